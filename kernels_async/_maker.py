"""Makes each artifact once: looks in the store, else has a worker compile it."""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from anyio import to_thread

from ._artifact import Artifact, Output
from ._digest import artifact_key
from ._errors import ClosedError, ToolchainError
from ._outcome import Outcome
from ._pool import CompilePool
from ._scope import Scope
from ._store import Store
from .toolchains import Job, Toolchain, find

logger = logging.getLogger("kernels_async")


@dataclass
class Maker:
    """Makes artifacts, each once: from the store, else compiled by a worker.

    It is what an open `Compiler` has. Its parts live in its scope and private folder.
    """

    loop: asyncio.AbstractEventLoop
    toolchain: Toolchain
    pool: CompilePool
    store: Store | None
    fallback: Store
    folder: Path
    scope: Scope

    def __post_init__(self) -> None:
        self._flights: dict[str, Outcome[Artifact]] = {}
        self._writable = self.store is not None
        self._telling = threading.Lock()
        if self.store is None:
            logger.warning("there is no home directory: artifacts are not kept")

    @classmethod
    async def open(
        cls, target: str, root: Path | None, workers: int, timeout: float
    ) -> Maker:
        """Find the toolchain for `target` and open everything that it takes.

        Raises:
            ToolchainError: There is no compiler for the target.
        """
        toolchain = await to_thread.run_sync(find, target)
        folder = await to_thread.run_sync(_private_folder)
        scope = Scope()
        await scope.open()
        pool = CompilePool(toolchain, workers, timeout, folder, scope)
        fallback = Store(folder / "store", toolchain.filename)
        store = None if root is None else Store(root, toolchain.filename)
        loop = asyncio.get_running_loop()
        return cls(loop, toolchain, pool, store, fallback, folder, scope)

    def artifact(self, named: Mapping[str, str], job: Job) -> Outcome[Artifact]:
        """The flight that makes the artifact, started if there is none."""
        key = artifact_key(named)
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
            output = await self.pool.compile(job)
            artifact = await to_thread.run_sync(self._publish, key, named, output)
        return artifact

    def _read(self, key: str) -> Artifact | None:
        found = None if self.store is None else self.store.read(key)
        return found or self.fallback.read(key)

    def _publish(self, key: str, named: Mapping[str, str], output: Output) -> Artifact:
        """Keep the output; where the cache cannot, for as long as the compiler lives."""
        if self.store is not None and self._writable:
            try:
                return self.store.publish(key, named, output)
            except (OSError, ValueError) as error:
                self._give_up_keeping(self.store, error)
        return self.fallback.publish(key, named, output)

    def _give_up_keeping(self, store: Store, error: Exception) -> None:
        with self._telling:
            told, self._writable = not self._writable, False
        if not told:
            logger.warning("artifacts are not kept in %s: %s", store.root, error)

    async def aclose(self) -> None:
        await self.scope.aclose()
        await self.pool.trim()
        await to_thread.run_sync(_remove_folder, self.folder)


def _private_folder() -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="kernels_async-"))
    except OSError as error:
        raise ToolchainError(f"there is no temporary directory: {error}") from error


def _remove_folder(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
