"""Makes each artifact once: looks in the store, else has a worker compile it."""

from __future__ import annotations

import logging
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import anyio
from anyio import to_thread

from ._artifact import Artifact, Output
from ._errors import ClosedError, ToolchainError
from ._outcome import Outcome
from ._outside import disown_in_children
from ._pool import CompilePool, remove_folder
from ._scope import Scope
from ._store import Store
from .toolchains import Job, Toolchain, find

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
        store: Where artifacts are kept, or `None` if there is no place.
        folder: A private folder, removed at the end; workers sit in it, and it keeps
            what the store cannot.
        workers: How many compiles run at once.
        timeout: Seconds after which a compile is killed.
    """

    def __init__(
        self,
        toolchain: Toolchain,
        store: Store | None,
        folder: Path,
        workers: int,
        timeout: float,
    ) -> None:
        self.toolchain = toolchain
        self.scope = Scope(clean_up=self._clean_up)
        self.pool = CompilePool(toolchain, workers, timeout, folder, self.scope)
        self._store = store
        self._fallback = Store(folder / "store", toolchain.filename)
        self._folder = folder
        self._flights: dict[str, Flight] = {}
        self._writable = store is not None
        self._telling = threading.Lock()
        self._disowned = False
        disown_in_children(self)

    @classmethod
    async def open(
        cls, target: str, root: Path | None, workers: int, timeout: float
    ) -> Maker:
        """Find the toolchain for `target` and open everything that it takes.

        Raises:
            ToolchainError: There is no compiler for the target.
        """
        toolchain = await to_thread.run_sync(find, target)
        store = None if root is None else Store(root, toolchain.filename)
        if store is None:
            logger.warning("there is no home directory: artifacts are not kept")
        folder = _private_folder()
        maker = cls(toolchain, store, folder, workers, timeout)
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
        artifact = await to_thread.run_sync(self._read, flight.key)
        if artifact is None:
            async with self.pool.turn:
                flight.begun = True
                output = await self.pool.compile(flight.job)
            artifact = await to_thread.run_sync(
                self._publish, flight.key, flight.named, output
            )
        return artifact

    def _read(self, key: str) -> Artifact | None:
        found = None if self._store is None else self._store.read(key)
        return found or self._fallback.read(key)

    def _publish(self, key: str, named: Mapping[str, str], output: Output) -> Artifact:
        """Keep the output; where the cache cannot, for as long as the compiler lives."""
        if self._store is not None and self._writable:
            try:
                return self._store.publish(key, named, output)
            except (OSError, ValueError) as error:
                self._give_up_keeping(self._store, error)
        return self._fallback.publish(key, named, output)

    def _give_up_keeping(self, store: Store, error: Exception) -> None:
        with self._telling:
            told, self._writable = not self._writable, False
        if not told:
            logger.warning("artifacts are not kept in %s: %s", store.root, error)

    def disown(self) -> None:
        """Leave workers and folder alone, in a forked child: they are its parent's."""
        self._disowned = True

    async def _clean_up(self) -> None:
        if self._disowned:
            return
        await self.pool.aclose()
        await to_thread.run_sync(remove_folder, self._folder)


def _private_folder() -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="kernels_async-"))
    except OSError as error:
        raise ToolchainError(f"there is no temporary directory: {error}") from error
