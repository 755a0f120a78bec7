"""The numbers of a cache."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType

import anyio

from ._scope import Scope

_SAMPLE_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Stats:
    """What a cache has done since it was made, and what it does now.

    Counts only grow. A request is a hit, or a miss, or it is coalesced with a miss that
    is being built. A miss ends as one of `disk_hits`, `remote_hits`, `compiles`, as a
    failure, or dropped. What caches that share a compiler asked for together counts in
    each.

    Attributes:
        memory_hits: Requests of kernels that were loaded.
        misses: Requests of kernels that were not loaded; each began a build.
        coalesced: Requests of kernels that were being built.
        disk_hits: Misses whose artifact was read from disk.
        remote_hits: Misses whose artifact was fetched from a remote store.
        compiles: Misses whose artifact was compiled.
        compile_seconds: What those compiles took, together.
        seconds_saved: What the compiles of all that was read or fetched once took.
        failures: Builds that failed, by the name of the error's class.
        dropped: Misses that ended with nobody's doing: all who waited have left, the
            cache closed, or it is frozen.
        refused: Misses that a frozen cache refused, or reported.
        overloaded: Requests that were refused as too many were not loaded yet.
        loaded: Kernels that are loaded.
        load_seconds: What all loads took, together.
        longest_load_seconds: What the longest took.
        outstanding: Requests that nothing builds yet.
        building: Requests that are being built.
        reading: Of the compiler: artifacts that are about to be read.
        queued: Of the compiler: compiles that wait for a worker.
        compiling: Of the compiler: compiles that run.
        workers: Of the compiler: worker processes that there are.
        longest_loop_delay: By how many seconds the event loop was late at most, while the
            cache built. It is sampled every 10 ms: a delay that is shorter may be missed.
        loop_delay_seconds: All delays that were sampled, together.
        loop_delay_samples: How many were sampled.
    """

    memory_hits: int = 0
    misses: int = 0
    coalesced: int = 0
    disk_hits: int = 0
    remote_hits: int = 0
    compiles: int = 0
    compile_seconds: float = 0.0
    seconds_saved: float = 0.0
    failures: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    dropped: int = 0
    refused: int = 0
    overloaded: int = 0
    loaded: int = 0
    load_seconds: float = 0.0
    longest_load_seconds: float = 0.0
    outstanding: int = 0
    building: int = 0
    reading: int = 0
    queued: int = 0
    compiling: int = 0
    workers: int = 0
    longest_loop_delay: float = 0.0
    loop_delay_seconds: float = 0.0
    loop_delay_samples: int = 0

    def __repr__(self) -> str:
        """What is not as in a new cache; it is an expression for an equal one."""
        told = [
            f"{one.name}={dict(value) if isinstance(value, Mapping) else value!r}"
            for one in fields(self)
            if (value := getattr(self, one.name))
        ]
        return f"Stats({', '.join(told)})"


class LoopDelay:
    """How late the event loop is, looked at again and again while something is done.

    Args:
        busy: Whether something is done.

    Attributes:
        longest: The longest delay, in seconds.
        seconds: All delays together.
        samples: How many there were.
    """

    def __init__(self, busy: Callable[[], bool]) -> None:
        self.longest = self.seconds = 0.0
        self.samples = 0
        self._busy = busy
        self._looking = False

    def watch(self, scope: Scope) -> None:
        """Begin to look, in a task of `scope`, unless that is done already."""
        if not self._looking:
            self._looking = True
            scope.start_soon(self._look, dropped=self._stop)

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._busy():
                due = loop.time() + _SAMPLE_SECONDS
                await anyio.sleep(_SAMPLE_SECONDS)
                delay = max(0.0, loop.time() - due)
                self.longest = max(self.longest, delay)
                self.seconds += delay
                self.samples += 1
        finally:
            self._stop()

    def _stop(self) -> None:
        self._looking = False
