"""Compiles each artifact once: looks in the store, else has a worker compile it."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol
from weakref import WeakValueDictionary

import anyio

from . import toolchains
from ._artifact import Artifact
from ._digest import Difference, artifact_key, differences, entries
from ._errors import (
    ClosedError,
    SpecificationError,
    WrongLoopError,
)
from ._machine import default_workers
from ._maker import Maker
from ._scope import Scope
from ._source import Source, as_source
from ._specialization import Specialization, as_specialization
from ._store import default_cache_dir
from .devices import open_device
from .toolchains import Job

logger = logging.getLogger("kernels_async")


class Request(Protocol):
    """Something that was asked for, such as a `Pending`."""

    @property
    def source(self) -> Source: ...

    @property
    def specialization(self) -> Specialization: ...


Explained = Artifact | Request | tuple[Source | str, Specialization | str]


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
        if not isinstance(workers, int | None):
            raise TypeError(f"workers is a number, not {workers!r}")
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
        self._maker: Maker | None = None

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
            if self._maker is not None and self._maker.loop.is_closed():
                self._maker, self._users = None, 0
            if self._maker is None:
                self._maker = await Maker.open(
                    self.target, self._root, self.workers, self._timeout
                )
            elif self._maker.loop is not asyncio.get_running_loop():
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
            if self._users == 0 and self._maker is not None:
                maker, self._maker = self._maker, None
                await maker.aclose()

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
        return artifact_key(self._entries(source, specialization))

    async def compile(
        self, source: Source | str, specialization: Specialization | str
    ) -> Artifact:
        """The artifact of one request: from the store, else compiled.

        Requests for one artifact share one compile. Cancelling a caller does not stop it.

        Raises:
            KernelsError: As each error of the tree says.
        """
        source, specialization = as_source(source), as_specialization(specialization)
        named = self._entries(source, specialization)
        job = Job(source, specialization, self.target)
        return await self._open_part().artifact(named, job).wait()

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

    def explain(self, first: Explained, second: Explained) -> list[Difference]:
        """What two requests differ in: why the second missed what the first hit.

        Args:
            first: An `Artifact`, as a reporter gets it, a `Pending`, or a pair of source
                and specialization.
            second: The same.

        Returns:
            The entries of the key that differ; nothing if the two are one artifact.
        """
        return differences(self._explained(first), self._explained(second))

    def _explained(self, request: Explained) -> Mapping[str, str]:
        if isinstance(request, Artifact):
            return request.entries
        if isinstance(request, tuple):
            return self._entries(*request)
        return self._entries(request.source, request.specialization)

    def _entries(
        self, source: Source | str, specialization: Specialization | str
    ) -> dict[str, str]:
        specialization = as_specialization(specialization)
        architecture = specialization.architecture
        if architecture not in (None, self.target):
            raise SpecificationError(
                f"-arch={architecture} is not the compiler's target {self.target}"
            )
        return entries(self.identity, self.target, as_source(source), specialization)

    def _open_part(self) -> Maker:
        if self._maker is None:
            raise ClosedError(f"{self!r} is not open: use it in 'async with'")
        return self._maker

    @property
    def scope(self) -> Scope:
        """The scope that ends with this compiler; the caches over it live inside."""
        return self._open_part().scope

    def __repr__(self) -> str:
        state = "" if self._maker else " closed"
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
