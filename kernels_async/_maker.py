"""Makes each artifact once: looks in the store, else has a worker compile it."""

from __future__ import annotations

import logging
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

from anyio import to_thread

from ._artifact import Artifact, Output
from ._blame import Quarantine
from ._errors import ClosedError, ToolchainError
from ._outcome import Outcome
from ._pool import CompilePool, Limits
from ._process import remove_folder
from ._scope import Scope
from ._store import Store
from .toolchains import Job, Toolchain, find

logger = logging.getLogger("kernels_async")


class Maker:
    """Makes artifacts, each once: from the store, else compiled by a worker.

    It is what a `Compiler` has in an event loop in which it is open; it belongs to that
    loop.

    Args:
        toolchain: The toolchain.
        store: Where artifacts are kept, or `None` if there is no place.
        folder: A private folder, removed at the end; workers sit in it, and it keeps
            what the store cannot.
        limits: What compiles may take.
        quarantine: The requests that are not to be compiled.
    """

    def __init__(
        self,
        toolchain: Toolchain,
        store: Store | None,
        folder: Path,
        limits: Limits,
        quarantine: Quarantine,
    ) -> None:
        self.toolchain = toolchain
        self.scope = Scope(clean_up=self._clean_up)
        self.pool = CompilePool(toolchain, limits, folder, self.scope, quarantine)
        self._store = store
        self._fallback = Store(folder / "store", toolchain.filename)
        self._folder = folder
        self._flights: dict[str, Outcome[Artifact]] = {}
        self._writable = store is not None
        self._telling = threading.Lock()

    @classmethod
    async def open(
        cls, target: str, root: Path | None, limits: Limits, quarantine: Quarantine
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
        maker = cls(toolchain, store, folder, limits, quarantine)
        try:
            await maker.scope.open()
        except BaseException:
            remove_folder(folder)
            raise
        maker.pool.watch()
        return maker

    def artifact(self, key: str, named: Mapping[str, str], job: Job) -> Outcome[Artifact]:
        """The flight that makes the artifact, started if there is none.

        Args:
            key: The artifact's key.
            named: The entries of the key.
            job: What to compile.
        """
        flight = self._flights.get(key)
        if flight is None:
            flight = Outcome()
            self.scope.start_soon(self._fly, key, named, job, flight)
            self._flights[key] = flight
        return flight

    async def _fly(
        self, key: str, named: Mapping[str, str], job: Job, flight: Outcome[Artifact]
    ) -> None:
        try:
            flight.succeed(await self._make(key, named, job))
        except Exception as error:  # noqa: BLE001 - whatever it is, its waiters get it
            flight.fail(error)
        finally:
            del self._flights[key]
            flight.fail(ClosedError("the compiler closed while it compiled"))

    async def _make(self, key: str, named: Mapping[str, str], job: Job) -> Artifact:
        artifact = await to_thread.run_sync(self._read, key)
        if artifact is None:
            output = await self.pool.compile(key, job)
            artifact = await to_thread.run_sync(self._publish, key, named, output)
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

    async def _clean_up(self) -> None:
        await self.pool.aclose()
        await to_thread.run_sync(remove_folder, self._folder)


def _private_folder() -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="kernels_async-"))
    except OSError as error:
        raise ToolchainError(f"there is no temporary directory: {error}") from error
