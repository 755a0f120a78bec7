"""The warm-up of a cache: kernels of a manifest, built before they are asked for."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import anyio
import anyio.lowlevel

from ._cache import Cache
from ._errors import ClosedError
from ._manifest import Manifest, ManifestKernel

_AT_ONCE = 64

logger = logging.getLogger("kernels_async")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the warm-up of a cache is.

    Attributes:
        total: Kernels to build, of all warm-ups so far; 0 before the first has begun to.
            What one that was cancelled left does not count.
        loaded: Those that are loaded.
        failed: Those that could not be built.
        running: Whether a warm-up is going on.
        seconds: How long it has taken, or took.
        seconds_left: How long it may take from now on, by what the manifest says of
            compile times and what the rest took; `None` if nothing is known yet.
    """

    total: int = 0
    loaded: int = 0
    failed: int = 0
    running: bool = False
    seconds: float = 0.0
    seconds_left: float | None = None

    @property
    def is_ready(self) -> bool:
        """Whether no warm-up is going on; one that has not been begun does not count."""
        return not self.running

    def __str__(self) -> str:
        """Such as `2 of 5 kernels loaded, 1 failed, after 3.1 s, about 2.0 s left`."""
        told = [f"{self.loaded} of {self.total} kernels loaded"]
        if self.failed:
            told.append(f"{self.failed} failed")
        if self.total:
            told.append(f"after {self.seconds:.1f} s")
        if self.running and self.seconds_left is not None:
            told.append(f"about {self.seconds_left:.1f} s left")
        return ", ".join(told)


Watcher = Callable[[Progress], object]


@dataclass
class _Run:
    """What one warm-up has yet to do."""

    waiting: Iterator[tuple[ManifestKernel, float]]
    left: int
    watcher: Watcher | None


class WarmUp:
    """The warm-ups of one cache.

    Args:
        cache: What is warmed up.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._running = 0
        self._over = anyio.Event()
        self._over.set()
        self._total = self._loaded = self._failed = 0
        self._began = self._took = 0.0
        self._work = self._work_done = 0.0

    def progress(self) -> Progress:
        """How far it is."""
        seconds, left = self._took, 0.0 if self._total else None
        if self._running:
            seconds, left = time.monotonic() - self._began, None
            if self._work_done:
                left = seconds * (self._work - self._work_done) / self._work_done
        running = bool(self._running)
        return Progress(self._total, self._loaded, self._failed, running, seconds, left)

    async def ready(self) -> Progress:
        """Wait until none is going on; tasks that are ready may begin one before."""
        await self._cache.enter()
        await anyio.lowlevel.checkpoint()
        while self._running:
            await self._over.wait()
        await self._cache.enter()
        return self.progress()

    async def run(
        self, manifest: Manifest | str | os.PathLike[str], watcher: Watcher | None
    ) -> Progress:
        """Build the kernels of a manifest; the cache is frozen then, if it is to be."""
        self._begin()
        try:
            await self._cache.enter()
            if not isinstance(manifest, Manifest):
                manifest = await Manifest.load(manifest)
            await self._build(manifest, watcher)
            self._cache.freeze.begin()
        finally:
            self._end()
        return self.progress()

    def _begin(self) -> None:
        if not self._running:
            self._began = time.monotonic()
            self._work = self._work_done = 0.0
            self._over = anyio.Event()
        self._running += 1

    def _end(self) -> None:
        self._running -= 1
        if not self._running:
            self._took = time.monotonic() - self._began
            self._over.set()

    async def _build(self, manifest: Manifest, watcher: Watcher | None) -> None:
        """Build so many at once that there is work for all, and no more.

        Each is in the background, so that what somebody waits for overtakes the rest.
        """
        target = self._cache.compiler.target
        kernels = manifest.longest_first(target)
        known = [s for kernel in kernels if (s := kernel.seconds(target)) is not None]
        usual = sum(known) / len(known) if known else 1.0
        work = [(kernel, kernel.seconds(target) or usual) for kernel in kernels]
        self._total += len(work)
        self._work += sum(seconds for _, seconds in work)
        run = _Run(iter(work), len(work), watcher)
        try:
            async with anyio.create_task_group() as tasks:
                for _ in range(min(_AT_ONCE, len(work))):
                    tasks.start_soon(self._build_each, run)
        finally:
            self._total -= run.left
        await self._cache.enter()  # raises if the cache closed

    async def _build_each(self, run: _Run) -> None:
        for kernel, seconds in run.waiting:
            try:
                pending = self._cache.pending(
                    kernel.source, kernel.specialization, background=True
                )
                await self._cache.obtain(pending, background=True)
                self._loaded += 1
            except ClosedError:
                return
            except Exception as error:  # noqa: BLE001 - whatever it is, the rest is built
                self._failed += 1
                symbol = kernel.specialization.symbol
                logger.warning("the warm-up could not build %r: %s", symbol, error)
            run.left -= 1
            self._work_done += seconds
            if run.watcher is not None:
                self._tell(run.watcher)
            await anyio.lowlevel.checkpoint()  # what is loaded waited for nothing

    def _tell(self, watcher: Watcher) -> None:
        try:
            watcher(self.progress())
        except Exception:
            logger.exception("what watches a warm-up raised")
