"""Makes each artifact once: looks in the store, else has a worker compile it."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path

from anyio import to_thread

from ._artifact import Artifact
from ._errors import ClosedError, ToolchainError
from ._outcome import Outcome
from ._pool import CompilePool, remove_folder
from ._record import chosen_seal
from ._scope import Scope
from ._tiers import TieredStore
from .toolchains import Job, Toolchain, find

logger = logging.getLogger("kernels_async")


class Maker:
    """Makes artifacts, each once: from the store, else compiled by a worker.

    It is what a `Compiler` has in an event loop in which it is open; it belongs to that
    loop.

    Args:
        toolchain: The toolchain.
        store: Where artifacts are kept.
        folder: A private folder, removed at the end; workers sit in it.
        workers: How many compiles run at once.
        timeout: Seconds after which a compile is killed.
    """

    def __init__(
        self,
        toolchain: Toolchain,
        store: TieredStore,
        folder: Path,
        workers: int,
        timeout: float,
    ) -> None:
        self.toolchain = toolchain
        self.scope = Scope(clean_up=self._clean_up)
        self.pool = CompilePool(toolchain, workers, timeout, folder, self.scope)
        self._store = store
        self._folder = folder
        self._flights: dict[str, Outcome[Artifact]] = {}

    @classmethod
    async def open(
        cls, target: str, root: Path | None, workers: int, timeout: float
    ) -> Maker:
        """Find the toolchain for `target` and open everything that it takes.

        Raises:
            ToolchainError: There is no compiler for the target.
        """
        toolchain = await to_thread.run_sync(find, target)
        if root is None:
            logger.warning("there is no home directory: artifacts are not kept")
        folder = _private_folder()
        store = TieredStore(root, toolchain.filename, folder / "store", seal=chosen_seal())
        maker = cls(toolchain, store, folder, workers, timeout)
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
        artifact = await to_thread.run_sync(self._store.read, key)
        if artifact is None:
            output = await self.pool.compile(job)
            artifact = await to_thread.run_sync(self._store.keep, key, named, output)
        return artifact

    async def _clean_up(self) -> None:
        await self.pool.aclose()
        await to_thread.run_sync(remove_folder, self._folder)


def _private_folder() -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="kernels_async-"))
    except OSError as error:
        raise ToolchainError(f"there is no temporary directory: {error}") from error
