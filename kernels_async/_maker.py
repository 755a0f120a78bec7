"""Makes each artifact once: looks in the store, else has a worker compile it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar, TypeVarTuple, Unpack

import anyio

from ._artifact import Artifact, Output
from ._blame import Quarantine
from ._crew import Limits
from ._digest import entries
from ._errors import ClosedError, ToolchainError
from ._events import Details, Hub, Kind, event
from ._flight import Flight, Patience
from ._lane import InOrder, Lane, Overtaking
from ._locks import Hold
from ._outside import disown_in_children
from ._plan import Plans
from ._pool import CompilePool
from ._private import private_folder, remove_folder
from ._scope import Scope
from ._threads import in_thread
from ._tiers import Place, TieredStore
from .toolchains import Job, Toolchain, find

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

_THREADS = 8
_READ_AT_ONCE = 8
_SLOW_SECONDS = 0.02

logger = logging.getLogger("kernels_async")


class Maker:
    """Makes artifacts, each once: from the store, else compiled by a worker.

    Attributes:
        toolchain: The toolchain.
        store: Where artifacts are kept.
        scope: Owns everything that it does.
        hub: Tells what happens to each artifact.
        pool: Compiles.

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
        self.hub: Hub = Hub()
        self.scope: Scope = Scope(clean_up=self._clean_up)
        self.pool: CompilePool = CompilePool(
            toolchain, limits, folder, self.scope, quarantine
        )
        self.store = store
        self._folder = folder
        self._timeout = limits.timeout
        self._threads = anyio.CapacityLimiter(_THREADS)
        self._readers = anyio.CapacityLimiter(1)
        self._flights: dict[str, Flight] = {}
        self._order: Overtaking[Flight] = Overtaking(InOrder(), InOrder())
        self._plan: Plans[Flight] = Plans(self.pool.sharing)
        self._reading = Lane(self.scope, _THREADS, self._read, self._order)
        self._compiling = Lane(self.scope, 2 * limits.workers, self._compile, self._plan)
        self._disowned = False
        disown_in_children(self)

    @classmethod
    async def open(
        cls,
        target: str,
        slim: bool,
        place: Place,
        limits: Limits,
        quarantine: Quarantine,
    ) -> Maker:
        """Find the toolchain for `target` and open everything that it takes.

        Raises:
            ToolchainError: There is no compiler for the target.
        """
        toolchain = await in_thread(find, target, slim)
        if place.root is None:
            logger.warning("there is no home directory: artifacts are not kept")
        try:
            folder = await in_thread(private_folder)
        except OSError as error:
            raise ToolchainError(f"there is no temporary directory: {error}") from error
        store = TieredStore(place, toolchain.filename, folder / "store")
        maker = cls(toolchain, store, folder, limits, quarantine)
        try:
            await maker.scope.open()
        except BaseException:
            remove_folder(folder)
            raise
        maker.pool.crew.watch()
        return maker

    def artifact(self, key: str, job: Job, *, background: bool = False) -> Flight:
        """The flight that makes the artifact, started if there is none.

        When its last waiter leaves before a worker has the job, it is dropped.

        Args:
            key: The artifact's key.
            job: What to compile.
            background: Whether it may wait for those that are not.
        """
        flight = self._flights.get(key)
        if flight is None:
            flight = Flight(self, key, job, background)
            self._reading.put(flight)
            self._flights[key] = flight
        elif not background:
            flight.hurry()
        return flight

    def hurry(self, flight: Flight) -> None:
        """Make it before those that may wait."""
        flight.background = False
        self._order.hurry(flight)
        self._plan.hurry(flight)

    def drop(self, flight: Flight) -> None:
        """Do not make what nobody waits for, unless a worker has begun."""
        if not flight.begun:
            self._reading.discard(flight)
            self._compiling.discard(flight)
            self._fail(flight, ClosedError("nobody waited for it any more"))

    def _succeed(self, flight: Flight, artifact: Artifact) -> None:
        self._forget(flight)
        flight.succeed(artifact)

    def _fail(self, flight: Flight, error: Exception) -> None:
        self._forget(flight)
        if not flight.settled:
            self._tell("failed", flight, error=error)
        flight.fail(error)

    def _forget(self, flight: Flight) -> None:
        if self._flights.get(flight.key) is flight:
            del self._flights[flight.key]

    def queues(self) -> dict[str, int]:
        """How much there is to do, by the names of `Stats`."""
        return {
            "reading": len(self._reading),
            "queued": len(self._compiling),
            "compiling": len(self.pool.crew.busy),
            "workers": len(self.pool.crew.workers),
        }

    async def _read(self) -> None:
        """The first step: artifacts from the store; what it lacks is to be compiled.

        A thread reads several, as a hop to it takes as long as a read. Others help it where
        reads wait for the disk: else they would only wait for the interpreter's lock, and
        whoever launches kernels with them.
        """
        share = min(_READ_AT_ONCE, len(self._reading))
        taken = (self._reading.take() for _ in range(share))
        flights = [flight for flight in taken if flight is not None and not flight.settled]
        if not flights:
            return
        began = time.monotonic()
        try:
            async with self._readers:
                began = time.monotonic()
                found = await self._look_at(flights)
        except Exception as error:  # noqa: BLE001 - whatever it is, their waiters get it
            found = [error] * len(flights)
        seconds = time.monotonic() - began
        for flight, artifact in zip(flights, found, strict=True):
            if isinstance(artifact, Artifact):
                self._tell("found", flight, seconds=seconds, artifact=artifact)
            self._go_on(flight, artifact)

    async def _look_at(
        self, flights: list[Flight]
    ) -> Sequence[Artifact | Exception | None]:
        """What the store has of each; while that takes long, others may look too."""
        loop, readers = asyncio.get_running_loop(), self._readers
        began = loop.time()
        helped = loop.call_later(_SLOW_SECONDS, setattr, readers, "total_tokens", _THREADS)
        try:
            return await in_thread(self._look, flights, abandon=True)
        finally:
            helped.cancel()
            if loop.time() - began < _SLOW_SECONDS:
                readers.total_tokens = 1

    def _look(self, flights: list[Flight]) -> list[Artifact | None]:
        """The artifacts from the store; of what is missing, what its compile may share."""
        found = self.store.read_all([flight.key for flight in flights])
        for flight, artifact in zip(flights, found, strict=True):
            if artifact is None:
                flight.prefix = self.toolchain.prefix(flight.job)
        return found

    def _go_on(self, flight: Flight, found: Artifact | Exception | None) -> None:
        """Settle a flight with what was found, or have it compiled."""
        try:
            if isinstance(found, Artifact):
                self._succeed(flight, found)
            elif found is not None:
                self._fail(flight, found)
            elif not flight.settled:
                self.pool.refuse(flight.key, flight.job)
                self._compiling.put(flight)
        except Exception as error:  # noqa: BLE001 - whatever it is, its waiters get it
            self._fail(flight, error)

    async def _compile(self) -> None:
        """The second step, for the flight that suits the worker whose turn it is."""
        with Hold() as hold:
            async with self.pool.turn:
                flight = self._compiling.take()
                output = None if flight is None else await self._output(flight, hold)
            if flight is None:
                await self._plan.changed()
                return
            self._plan.notice()
            if output is not None:
                await self._keep(flight, output)

    async def _output(self, flight: Flight, hold: Hold) -> Output | None:
        """What a worker made; `None` if the flight is settled, or waits again.

        Of all processes that want the artifact, one compiles it. Others wait for that
        process, and no longer than a compile may take: then they compile too, which does
        no harm.
        """
        try:
            if flight.settled:
                return None
            claimed = await in_thread(self._claim, flight, hold, abandon=True)
            if not claimed:
                self.scope.start_soon(self._read_later, flight)
                return None
            if isinstance(claimed, Artifact):
                self._tell("found", flight, artifact=claimed)
                self._succeed(flight, claimed)
            if flight.settled:
                return None
            flight.begun = True
            more = self._plan.waiting(flight.prefix)
            begun = partial(self._begun, flight)
            output = await self.pool.compile(
                flight.key, flight.job, flight.prefix, more, begun
            )
            self._tell("compiled", flight, seconds=output.compile_seconds)
            return output
        except Exception as error:  # noqa: BLE001 - whatever it is, its waiters get it
            self._fail(flight, error)
            return None

    def _begun(self, flight: Flight, worker: int) -> None:
        flight.worker = worker
        self._tell("compiling", flight)

    async def _keep(self, flight: Flight, output: Output) -> None:
        """The last step: the output is an artifact, on disk if that can be."""
        named = self._entries(flight.job)
        began = time.monotonic()
        try:
            artifact = await self.in_thread(self.store.keep, flight.key, named, output)
        except Exception as error:  # noqa: BLE001 - whatever it is, its waiters get it
            self._fail(flight, error)
        else:
            seconds = time.monotonic() - began
            self._tell("kept", flight, seconds=seconds, artifact=artifact)
            self._succeed(flight, artifact)

    async def _read_later(self, flight: Flight) -> None:
        """Wait for the process that compiles it, and begin again."""
        if flight.patience is None:
            flight.patience = Patience(self._timeout)
        await flight.patience.pause()
        with contextlib.suppress(ClosedError):  # the end settles it
            self._reading.put(flight)

    def _claim(self, flight: Flight, hold: Hold) -> Artifact | bool:
        """Lock the key for as long as `hold` lasts; `False` if another process has it.

        Returns:
            The artifact, if another process has just made it.
        """
        over = flight.patience is not None and flight.patience.is_over
        if not hold.take(partial(self.store.try_lock, flight.key)) and not over:
            return False
        return self.store.read(flight.key) or True

    def _tell(self, kind: Kind, flight: Flight, **details: Unpack[Details]) -> None:
        if self.hub.listeners:
            if kind == "failed":
                details["entries"] = self._entries(flight.job)
            details["worker"] = flight.worker
            symbol, target = flight.job.specialization.symbol, flight.job.target
            self.hub.tell(event(kind, flight.key, symbol, target, **details))

    def _entries(self, job: Job) -> dict[str, str]:
        """The entries of a job's key."""
        identity = self.toolchain.identity
        return entries(identity, job.target, job.source, job.specialization)

    async def in_thread(
        self, function: Callable[[*Arguments], T], *arguments: *Arguments
    ) -> T:
        """Run a function in one of few threads; whoever closes does not wait for a disk."""
        return await in_thread(function, *arguments, limiter=self._threads, abandon=True)

    def disown(self) -> None:
        """Leave workers and folder alone, in a forked child: they are its parent's."""
        self._disowned = True

    async def _clean_up(self) -> None:
        if self._disowned:
            return
        for flight in list(self._flights.values()):
            self._fail(flight, ClosedError("the compiler closed while it compiled"))
        await self.pool.crew.aclose()
        await in_thread(remove_folder, self._folder)
