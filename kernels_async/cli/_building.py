"""A build of a manifest's kernels for several targets, and what it has come to."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .._artifact import Artifact
from .._compiler import Compiler
from .._errors import SpecificationError
from .._events import Event, Listener
from .._manifest import Manifest, ManifestKernel


@dataclass
class Running:
    """A compile that a worker has.

    Attributes:
        place: Which kernel of the build it is.
        since: When it began.
    """

    place: int
    since: float


@dataclass
class TargetBuild:
    """The build for one target.

    Attributes:
        target: The target.
        kernels: What is built, the longest first.
        skipped: How many kernels of the manifest are for another target.
        artifacts: What came of those that did not fail, by their place in `kernels`.
        failures: What came of the others.
        running: What is compiled now, by the worker's number.
        begun: When it began; 0 if it has not.
        seconds: How long it took.
    """

    target: str
    kernels: Sequence[ManifestKernel]
    skipped: int
    artifacts: dict[int, Artifact] = field(default_factory=dict)
    failures: dict[int, Exception] = field(default_factory=dict)
    running: dict[int, Running] = field(default_factory=dict)
    begun: float = 0.0
    seconds: float = 0.0

    def waiting(self) -> list[ManifestKernel]:
        """The kernels that are neither settled nor compiled now."""
        taken = {*self.artifacts, *self.failures}
        taken |= {one.place for one in list(self.running.values())}
        return [k for place, k in enumerate(self.kernels) if place not in taken]

    @property
    def done(self) -> int:
        """How many kernels are settled."""
        return len(self.artifacts) + len(self.failures)

    @property
    def keys(self) -> set[str]:
        """The keys of the artifacts; requests that are equal have one."""
        return {one.digest for one in self.artifacts.values()}

    def of_origin(self, origin: str) -> list[Artifact]:
        """The artifacts that were `compiled`, or are from `disk`."""
        return [one for one in list(self.artifacts.values()) if one.origin == origin]

    @property
    def compile_seconds(self) -> float:
        """The time of the compiles, added up."""
        return sum(one.compile_seconds for one in self.of_origin("compiled"))

    @property
    def saved_seconds(self) -> float:
        """What those would have taken that were there already."""
        found = [one for one in self.artifacts.values() if one.origin != "compiled"]
        return sum(one.compile_seconds for one in found)

    def seconds_left(self, workers: int, now: float) -> float | None:
        """How long it may take from now on; `None` if nobody knows.

        By the times of the manifest, and of the kernels that are compiled by now; those
        that took longer or shorter than they did before say how the others will.
        """
        compiled, expected, took = [], 0.0, 0.0
        for place, artifact in list(self.artifacts.items()):
            if artifact.origin == "compiled":
                compiled.append(artifact.compile_seconds)
                before = self.kernels[place].seconds(self.target)
                if before is not None:
                    expected += before
                    took += artifact.compile_seconds
        usual = sum(compiled) / len(compiled) if compiled else None
        pace = took / expected if expected else 1.0
        left = 0.0
        for place, kernel in enumerate(self.kernels):
            if place not in self.artifacts and place not in self.failures:
                before = kernel.seconds(self.target)
                each = usual if before is None else before * pace
                if each is None:
                    return None
                left += each
        left -= sum(now - one.since for one in list(self.running.values()))
        return max(0.0, left / min(workers, max(1, len(self.kernels) - self.done)))


Told = Callable[[TargetBuild, int], None]


class Building:
    """Builds the kernels of a manifest, one target after the other.

    Args:
        manifest: The kernels.
        compilers: For each target, in their order; they are opened at once, so that a
            compiler that is missing is noticed first.
        told: Called with each kernel that is settled, by its place.

    Attributes:
        targets: What is built for each.
        workers: How many compiles run at once.
        current: Which of them is built now.
    """

    def __init__(
        self, manifest: Manifest, compilers: Sequence[Compiler], told: Told
    ) -> None:
        self._compilers = compilers
        self._told = told
        self.workers = compilers[0].workers
        self.current = 0
        self.targets = []
        for compiler in compilers:
            kernels = manifest.longest_first(compiler.target)
            skipped = len(manifest.kernels) - len(kernels)
            self.targets.append(TargetBuild(compiler.target, kernels, skipped))

    async def run(self, listener: Listener) -> None:
        """Build all of it.

        Args:
            listener: Told what happens to each artifact.

        Raises:
            ToolchainError: There is no compiler for a target.
        """
        async with contextlib.AsyncExitStack() as opened:
            for compiler in self._compilers:
                await opened.enter_async_context(compiler)
            for place, compiler in enumerate(self._compilers):
                self.current, build = place, self.targets[place]
                build.begun = time.monotonic()
                compiler.listen(listener)
                compiler.listen(_Watcher(compiler, build))
                places = range(len(build.kernels))
                work = [self._compile(compiler, build, place) for place in places]
                await asyncio.gather(*work)
                build.seconds = time.monotonic() - build.begun
                await compiler.trim()

    async def _compile(self, compiler: Compiler, build: TargetBuild, place: int) -> None:
        kernel = build.kernels[place]
        try:
            artifact = await compiler.compile(kernel.source, kernel.specialization)
        except Exception as error:  # noqa: BLE001 - whatever it is, the rest is built
            build.failures[place] = error
        else:
            build.artifacts[place] = artifact
        self._told(build, place)

    def not_kept(self, root: Path) -> list[Artifact]:
        """The artifacts that the cache directory could not keep."""
        found = [one for build in self.targets for one in build.artifacts.values()]
        return [one for one in found if not one.path.is_relative_to(root)]


class _Watcher:
    """Notes which worker compiles what."""

    def __init__(self, compiler: Compiler, build: TargetBuild) -> None:
        self._build = build
        self._places: dict[str, int] = {}
        for place, kernel in enumerate(build.kernels):
            with contextlib.suppress(SpecificationError):  # its compile says so too
                key = compiler.key(kernel.source, kernel.specialization)
                self._places[key] = place

    def __call__(self, told: Event) -> None:
        if told.worker is None:
            return
        if told.kind == "compiling":
            place = self._places[told.key]
            self._build.running[told.worker] = Running(place, told.time)
        elif told.kind in ("compiled", "failed"):
            self._build.running.pop(told.worker, None)
