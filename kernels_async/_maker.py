"""Makes each artifact once: looks in the store, else has a worker compile it."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar, TypeVarTuple

import anyio
from anyio import to_thread

from ._artifact import Artifact
from ._blame import Quarantine
from ._errors import ClosedError, ToolchainError
from ._outcome import Outcome
from ._outside import disown_in_children
from ._pool import CompilePool, Limits
from ._private import private_folder, remove_folder
from ._scope import Scope
from ._tiers import Place, TieredStore
from .toolchains import Job, Toolchain, find

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

_THREADS = 8
_FIRST_LOOK_SECONDS = 0.005
_LONGEST_LOOK_SECONDS = 0.25

logger = logging.getLogger("kernels_async")


class Flight(Outcome[Artifact]):
    """One artifact in the making, for all who wait for it.

    Attributes:
        key: The artifact's key.
        named: The entries of the key.
        job: What to compile.
        begun: Whether a worker has the job: from then on it is made, wanted or not.
        cancelling: Ends the flight.
    """

    __slots__ = ("begun", "cancelling", "job", "key", "named")

    def __init__(
        self,
        key: str,
        named: Mapping[str, str],
        job: Job,
        drop: Callable[[Flight], None],
    ) -> None:
        super().__init__(lambda: drop(self))
        self.key = key
        self.named = named
        self.job = job
        self.begun = False
        self.cancelling = anyio.CancelScope()


class Maker:
    """Makes artifacts, each once: from the store, else compiled by a worker.

    It is what a `Compiler` has in an event loop in which it is open; it belongs to that
    loop.

    Args:
        toolchain: The toolchain.
        store: Where artifacts are kept.
        folder: A private folder, removed at the end; workers sit in it.
        limits: What compiles may take.
        quarantine: The requests that are not to be compiled.
    """

    def __init__(
        self,
        toolchain: Toolchain,
        store: TieredStore,
        folder: Path,
        limits: Limits,
        quarantine: Quarantine,
    ) -> None:
        self.toolchain = toolchain
        self.scope = Scope(clean_up=self._clean_up)
        self.pool = CompilePool(toolchain, limits, folder, self.scope, quarantine)
        self.store = store
        self._folder = folder
        self._timeout = limits.timeout
        self._threads = anyio.CapacityLimiter(_THREADS)
        self._flights: dict[str, Flight] = {}
        self._disowned = False
        disown_in_children(self)

    @classmethod
    async def open(
        cls, target: str, place: Place, limits: Limits, quarantine: Quarantine
    ) -> Maker:
        """Find the toolchain for `target` and open everything that it takes.

        Raises:
            ToolchainError: There is no compiler for the target.
        """
        toolchain = await to_thread.run_sync(find, target)
        if place.root is None:
            logger.warning("there is no home directory: artifacts are not kept")
        try:
            folder = await to_thread.run_sync(private_folder)
        except OSError as error:
            raise ToolchainError(f"there is no temporary directory: {error}") from error
        store = TieredStore(place, toolchain.filename, folder / "store")
        maker = cls(toolchain, store, folder, limits, quarantine)
        try:
            await maker.scope.open()
        except BaseException:
            remove_folder(folder)
            raise
        maker.pool.watch()
        return maker

    def artifact(self, key: str, named: Mapping[str, str], job: Job) -> Flight:
        """The flight that makes the artifact, started if there is none.

        When its last waiter leaves before a worker has the job, it is dropped.

        Args:
            key: The artifact's key.
            named: The entries of the key.
            job: What to compile.
        """
        flight = self._flights.get(key)
        if flight is None:
            flight = Flight(key, named, job, self._drop)
            self.scope.start_soon(self._fly, flight)
            self._flights[key] = flight
        return flight

    def _drop(self, flight: Flight) -> None:
        if not flight.begun:
            self._forget(flight)
            flight.cancelling.cancel()

    def _forget(self, flight: Flight) -> None:
        if self._flights.get(flight.key) is flight:
            del self._flights[flight.key]

    async def _fly(self, flight: Flight) -> None:
        try:
            with flight.cancelling:
                flight.succeed(await self._make(flight))
        except Exception as error:  # noqa: BLE001 - whatever it is, its waiters get it
            flight.fail(error)
        finally:
            self._forget(flight)
            flight.fail(ClosedError("the compiler closed while it compiled"))

    async def _make(self, flight: Flight) -> Artifact:
        """The artifact from the store; if it is not there, one process compiles it.

        Others wait for that process, and no longer than a compile may take: then they
        compile too, which does no harm.
        """
        patience = _Patience(self._timeout)
        artifact = await self.in_thread(self.store.read, flight.key)
        while artifact is None:
            self.pool.refuse(flight.key, flight.job)
            output = None
            with contextlib.ExitStack() as held:
                async with self.pool.turn:
                    if await self._lock(flight, held) or patience.is_over:
                        artifact = await self.in_thread(self.store.read, flight.key)
                        if artifact is None:
                            flight.begun = True
                            output = await self.pool.compile(flight.key, flight.job)
                if output is not None:
                    artifact = await self.in_thread(
                        self.store.keep, flight.key, flight.named, output
                    )
            if artifact is None:
                await patience.pause()
                artifact = await self.in_thread(self.store.read, flight.key)
        return artifact

    async def _lock(self, flight: Flight, held: contextlib.ExitStack) -> bool:
        """Lock the key for as long as `held` lasts; `False` if another process has it."""
        lock = await self.in_thread(self.store.try_lock, flight.key)
        if lock is not None:
            held.callback(lock.release)
        return lock is not None

    async def in_thread(
        self, function: Callable[[*Arguments], T], *arguments: *Arguments
    ) -> T:
        """Run a function in a thread, one of few that nobody else takes."""
        return await to_thread.run_sync(function, *arguments, limiter=self._threads)

    def disown(self) -> None:
        """Leave workers and folder alone, in a forked child: they are its parent's."""
        self._disowned = True

    async def _clean_up(self) -> None:
        if self._disowned:
            return
        await self.pool.aclose()
        await to_thread.run_sync(remove_folder, self._folder)


class _Patience:
    """Waits for another process, at first often, and not for ever.

    Args:
        seconds: For how long, from the first pause on.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._pause = _FIRST_LOOK_SECONDS
        self._ends: float | None = None

    @property
    def is_over(self) -> bool:
        return self._ends is not None and time.monotonic() > self._ends

    async def pause(self) -> None:
        if self._ends is None:
            self._ends = time.monotonic() + self._seconds
        await anyio.sleep(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_LOOK_SECONDS)
