"""Compiles each artifact once: looks in the store, else has a worker compile it."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any
from weakref import WeakValueDictionary

import anyio
from anyio import to_thread

from . import _digest, toolchains
from ._artifact import Artifact, Output
from ._errors import (
    ClosedError,
    SpecificationError,
    ToolchainError,
    WrongLoopError,
)
from ._machine import default_workers
from ._outcome import Outcome
from ._pool import CompilePool
from ._scope import Scope
from ._source import Source
from ._specialization import Specialization
from ._store import Store, default_cache_dir
from .devices import open_device
from .toolchains import Job, Toolchain

logger = logging.getLogger("kernels_async")


class Compiler:
    """A toolchain for one target, its artifact store and its pool of workers.

    It exists to be shared: by the `Kernels` of all devices of its target, so that each
    artifact is compiled once. It is an async context manager and may be entered several
    times; the last one to leave closes it. It does not load anything.

    Args:
        target: An architecture such as `"sm_90"` or `"sm_90a"`, or `"cpu"`.
        cache_dir: Where artifacts are kept; by default `$KERNELS_ASYNC_CACHE_DIR`, else
            the user's cache directory. If it cannot be written the compiler works on,
            slower, and says so once in the log `kernels_async`.
        workers: How many compiles run at once; by default what processors, CPU quota
            and free memory allow.
        timeout: Seconds after which a compile is killed.

    Raises:
        SpecificationError: The target, `workers` or `timeout` cannot be right.
    """

    def __init__(
        self,
        target: str,
        *,
        cache_dir: str | os.PathLike[str] | None = None,
        workers: int | None = None,
        timeout: float = 300.0,
    ) -> None:
        if workers is not None and workers < 1:
            raise SpecificationError(f"workers is at least 1, not {workers}")
        if not timeout > 0:
            raise SpecificationError(f"timeout is more than 0 seconds, not {timeout}")
        chosen = cache_dir if cache_dir is not None else default_cache_dir()
        self.target = toolchains.check_target(target)
        self.workers = default_workers() if workers is None else workers
        self._root = None if chosen is None else Path(chosen).expanduser().absolute()
        self._timeout = timeout
        self._users = 0
        self._entering = anyio.Lock()
        self._running: _Running | None = None

    @classmethod
    def for_device(cls, device: Any = None, **settings: Any) -> Compiler:
        """The compiler for a device's own target.

        Equal calls from one event loop share one compiler. It asks the driver, and may
        import CuPy: from an event loop, call it in a thread, or use `Kernels.open`.

        Args:
            device: As for `Kernels.open`.
            settings: As for `Compiler`.

        Raises:
            DeviceError: There is no such device.
        """
        opened = open_device(device)
        opened.close()
        return shared_compiler(opened.target, **settings)

    async def __aenter__(self) -> Compiler:
        async with self._entering:
            if self._running is not None and self._running.loop.is_closed():
                self._running, self._users = None, 0
            if self._running is None:
                self._running = await self._open()
            elif self._running.loop is not asyncio.get_running_loop():
                raise WrongLoopError(f"{self!r} is open in another event loop")
            self._users += 1
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        async with self._entering:
            self._users -= 1
            if self._users == 0 and self._running is not None:
                running, self._running = self._running, None
                await running.aclose()

    @property
    def identity(self) -> str:
        """The toolchain: its version, the digests of its libraries, its headers.

        Raises:
            ClosedError: The compiler is not open.
        """
        return self._open_part().toolchain.identity

    def key(self, source: Source | str, specialization: Specialization | str) -> str:
        """The digest of the artifact that a request compiles to.

        Raises:
            ClosedError: The compiler is not open.
            SpecificationError: The request cannot be right for this target.
        """
        return self._key(as_source(source), as_specialization(specialization))

    async def compile(
        self, source: Source | str, specialization: Specialization | str
    ) -> Artifact:
        """The artifact of one request: from the store, else compiled.

        Requests for one artifact share one compile. Cancelling a caller does not stop it.

        Raises:
            KernelsError: As each error of the tree says.
        """
        source, specialization = as_source(source), as_specialization(specialization)
        key = self._key(source, specialization)
        job = Job(source, specialization, self.target)
        return await self._open_part().artifact(key, job).wait()

    async def compile_all(
        self, requests: Iterable[tuple[Source | str, Specialization | str]]
    ) -> list[Artifact | Exception]:
        """The artifacts of many requests.

        Returns:
            In the order of the requests, each an `Artifact` or the error that it met;
            none of them cancels another.
        """
        compiles = (self.compile(*request) for request in requests)
        outcomes = await asyncio.gather(*compiles, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, Exception):
                raise outcome
        return [o for o in outcomes if isinstance(o, Artifact | Exception)]

    async def trim(self) -> int:
        """Stop idle workers now, to free their memory; how many there were."""
        return await self._open_part().pool.trim()

    def _key(self, source: Source, specialization: Specialization) -> str:
        architecture = specialization.architecture
        if architecture not in (None, self.target):
            raise SpecificationError(
                f"-arch={architecture} is not the compiler's target {self.target}"
            )
        return _digest.artifact_key(self.identity, self.target, source, specialization)

    def _open_part(self) -> _Running:
        if self._running is None:
            raise ClosedError(f"{self!r} is not open: use it in 'async with'")
        return self._running

    async def _open(self) -> _Running:
        toolchain = await to_thread.run_sync(toolchains.find, self.target)
        folder = await to_thread.run_sync(_private_folder)
        scope = Scope()
        await scope.open()
        pool = CompilePool(toolchain, self.workers, self._timeout, folder, scope)
        fallback = Store(folder / "store", toolchain.filename)
        store = None if self._root is None else Store(self._root, toolchain.filename)
        loop = asyncio.get_running_loop()
        return _Running(loop, toolchain, pool, store, fallback, folder, scope)

    @property
    def scope(self) -> Scope:
        """The scope that ends with this compiler; the caches over it live inside."""
        return self._open_part().scope

    def __repr__(self) -> str:
        state = "" if self._running else " closed"
        return f"<Compiler {self.target} workers={self.workers}{state}>"

    @property
    def settings(self) -> tuple[object, ...]:
        """What makes two compilers equal: target, directory, workers and time-out."""
        return (self.target, self._root, self.workers, self._timeout)


_shared: WeakValueDictionary[tuple[object, ...], Compiler] = WeakValueDictionary()


def shared_compiler(target: str, **settings: Any) -> Compiler:
    """The one compiler of the running event loop with these arguments of `Compiler`."""
    compiler = Compiler(target, **settings)
    try:
        loop = id(asyncio.get_running_loop())
    except RuntimeError:
        loop = 0
    return _shared.setdefault((loop, *compiler.settings), compiler)


@dataclass
class _Running:
    """The parts of an open compiler."""

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

    def artifact(self, key: str, job: Job) -> Outcome[Artifact]:
        """The flight that makes the artifact, started if there is none."""
        flight = self._flights.get(key)
        if flight is None:
            flight = Outcome()
            self.scope.start_soon(self._fly, key, job, flight)
            self._flights[key] = flight
        return flight

    async def _fly(self, key: str, job: Job, flight: Outcome[Artifact]) -> None:
        try:
            flight.succeed(await self._make(key, job))
        except Exception as error:  # noqa: BLE001 - whatever it is, its waiters get it
            flight.fail(error)
        finally:
            del self._flights[key]
            flight.fail(ClosedError("the compiler closed while it compiled"))

    async def _make(self, key: str, job: Job) -> Artifact:
        artifact = await to_thread.run_sync(self._read, key)
        if artifact is None:
            output = await self.pool.compile(job)
            artifact = await to_thread.run_sync(self._publish, key, job, output)
        return artifact

    def _read(self, key: str) -> Artifact | None:
        found = None if self.store is None else self.store.read(key)
        return found or self.fallback.read(key)

    def _publish(self, key: str, job: Job, output: Output) -> Artifact:
        """Keep the output; where the cache cannot, for as long as the compiler lives."""
        entry = (key, job.specialization.symbol, job.target, self.toolchain.identity)
        if self.store is not None and self._writable:
            try:
                return self.store.publish(*entry, output)
            except (OSError, ValueError) as error:
                self._give_up_keeping(self.store, error)
        return self.fallback.publish(*entry, output)

    def _give_up_keeping(self, store: Store, error: Exception) -> None:
        with self._telling:
            told, self._writable = not self._writable, False
        if not told:
            logger.warning("artifacts are not kept in %s: %s", store.root, error)

    async def aclose(self) -> None:
        await self.scope.aclose()
        await self.pool.trim()
        await to_thread.run_sync(_remove_folder, self.folder)


def as_source(source: Source | str) -> Source:
    """`source`, or a `Source` of that text."""
    return source if isinstance(source, Source) else Source(source)


def as_specialization(specialization: Specialization | str) -> Specialization:
    """`specialization`, or one of that symbol alone."""
    if isinstance(specialization, Specialization):
        return specialization
    return Specialization(specialization)


def _private_folder() -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="kernels_async-"))
    except OSError as error:
        raise ToolchainError(f"there is no temporary directory: {error}") from error


def _remove_folder(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
