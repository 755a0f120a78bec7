"""What those who run a server ask of its cache: warm-up, record, numbers, events."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Self

from ._cache import Cache
from ._events import LIMIT, Events, Listener
from ._manifest import Manifest
from ._recording import Recording
from ._report import Reporter
from ._stats import Stats
from ._warm import Progress, WarmUp


class Operations:
    """The part of `Kernels` that a server's operators use."""

    __slots__ = ("_cache", "_warm_up")

    _cache: Cache
    _warm_up: WarmUp

    @property
    def device(self) -> str:
        """The name of its device, such as `cuda:0`; until it opens, what was asked for."""
        return self._cache.ledger.device

    def reporting(self, report: Reporter | None) -> Self:
        """Have `report` called once for each artifact built, before it loads.

        It gets artifacts read from disk too, with what the compiler said when they were
        compiled, and nothing for kernels that are loaded already. Calls never overlap; a
        plain function is called in a thread. If it raises, that kernel's load fails and
        no other. It must not ask the same cache for work.

        Args:
            report: A function of an `Artifact`, `async` or not; `None` for no reports. It
                replaces the reporter of every clone and every existing `Pending`.

        Returns:
            This cache.
        """
        if report is not None and not callable(report):
            raise TypeError(f"a reporter is a function of an artifact, not {report!r}")
        self._cache.report_to(report)
        return self

    def record(self, path: str | os.PathLike[str]) -> Recording:
        """Keep in a manifest file what this cache is asked for, until it closes.

        Each kernel's source, specialization, count of requests and compile time is added
        to what the file has. `warm`, and the command `build`, read it.

        Args:
            path: The file; it need not exist.

        Returns:
            What writes it, with `await recording.save()` at once.

        Raises:
            ClosedError: The cache is not open.
        """
        recording = Recording(self._cache, Path(path))
        self._cache.keep_up(recording.run, recording.finish)
        return recording

    async def warm(
        self,
        manifest: Manifest | str | os.PathLike[str],
        progress: Callable[[Progress], object] | None = None,
    ) -> Progress:
        """Build every kernel of a manifest, those that take longest first.

        Whatever else is asked for meanwhile overtakes them. A kernel that cannot be built
        is logged and counted, and is no error: the server goes on without it. What is
        missing is compiled; when it has ended, a cache that was opened with `frozen` is.

        Args:
            manifest: A manifest, or its file.
            progress: Called after each kernel, in the event loop.

        Returns:
            How it went.

        Raises:
            ManifestError: The file is no manifest, or damaged.
            OSError: It cannot be read.
            ClosedError: The cache is closed, or closes.
        """
        return await self._warm_up.run(manifest, progress)

    def progress(self) -> Progress:
        """How far the warm-up is; it never waits."""
        return self._warm_up.progress()

    async def ready(self) -> Progress:
        """Wait until the cache is open and no warm-up is going on.

        Raises:
            ClosedError: The cache is closed.
        """
        return await self._warm_up.ready()

    def stats(self) -> Stats:
        """The numbers of this cache, as they are now."""
        return self._cache.ledger.stats()

    def events(self, limit: int = LIMIT) -> Events:
        """What happens from now on, kernel by kernel, for `async for`.

        Args:
            limit: How many events wait at most until they are taken.

        Raises:
            ClosedError: The cache is closed.
        """
        return self._cache.ledger.events(limit)

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Have `listener` told each event at once.

        It is called in the event loop, so it must not block; for `requested` and `joined`
        in the task of who asks, with its context variables.

        Args:
            listener: A function of an `Event`.

        Returns:
            What ends it, when it is called.
        """
        return self._cache.ledger.listen(listener)

    def _repr_html_(self) -> str | None:
        """How a notebook shows it."""
        from ._notebook import show_cache

        return show_cache(self._cache)
