"""Writes down what a cache was asked for, as a manifest."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import anyio

from ._cache import Cache
from ._errors import ManifestError
from ._manifest import Manifest, ManifestKernel, read_manifest, write_manifest
from ._threads import in_thread

_LOOK_SECONDS = 1.0
_COUNTS_SECONDS = 60.0
_LOCK_SECONDS = 5.0

logger = logging.getLogger("kernels_async")


class Recording:
    """What `Kernels.record` began: a manifest file that grows with what is asked for.

    What is new is added to the file within about a second, and at the close of the cache;
    counts that grow, once a minute. Several processes may record to one file. A kernel
    stays in it until the file is removed. A file that cannot be written, or is no
    manifest, is logged and left as it is, and harms nobody.

    Args:
        cache: The cache; it records to one file once.
        path: The file.
    """

    def __init__(self, cache: Cache, path: Path) -> None:
        self._cache = cache
        self._path = path.absolute()
        self._saved: dict[str, int] = {}
        self._built = 0
        self._last = time.monotonic()
        self._told: str | None = None
        self._saving = threading.Lock()

    async def save(self) -> None:
        """Add to the file what is not in it yet.

        Raises:
            ManifestError: The file is no manifest, or damaged; it stays as it is.
            OSError: It cannot be read or written.
        """
        await in_thread(self._save, abandon=True)

    def _save(self) -> None:
        with self._saving:
            built, counts, news = self._cache.batch.built, dict(self._saved), []
            for pending in self._cache.batch.known():
                kernel = pending.kernel
                count = pending.hits + pending.asked
                if kernel is None or counts.get(pending.key) == count:
                    continue
                artifact = kernel.artifact
                news.append(
                    ManifestKernel(
                        pending.source,
                        pending.specialization,
                        count - counts.get(pending.key, 0),
                        {artifact.target: artifact.compile_seconds},
                    )
                )
                counts[pending.key] = count
            if news:
                _add(self._path, Manifest(tuple(news)))
            self._saved, self._built, self._last = counts, built, time.monotonic()

    async def run(self) -> None:
        """Save again and again."""
        while True:
            await anyio.sleep(_LOOK_SECONDS)
            due = time.monotonic() - self._last > _COUNTS_SECONDS
            if due or self._cache.batch.built != self._built:
                await self.finish()

    async def finish(self) -> None:
        """Save; trouble is logged, once while it is the same."""
        try:
            await self.save()
        except (OSError, ValueError) as error:
            self._last, self._built = time.monotonic(), self._cache.batch.built
            if str(error) != self._told:
                self._told = str(error)
                logger.warning("what was asked for is not recorded: %s", error)
        else:
            self._told = None

    def __repr__(self) -> str:
        return f"<Recording {self._path} kernels={len(self._saved)}>"


def _add(path: Path, news: Manifest) -> None:
    path = path.resolve()  # a link stays one
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.parent):
        known = Manifest()
        if path.exists():
            if not path.is_file():
                raise ManifestError(f"{path} is no file")
            known = read_manifest(path)
        write_manifest(path, known.merged(news))


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep others out who do the same in that folder; not for ever."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        ends = time.monotonic() + _LOCK_SECONDS
        while time.monotonic() < ends:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(0.02)
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)  # a child that was forked meanwhile has it too
        os.close(fd)
