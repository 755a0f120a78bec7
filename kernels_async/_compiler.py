"""Compiles each artifact once: looks in the store, else has a worker compile it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol
from weakref import WeakValueDictionary

from . import toolchains
from ._artifact import Artifact
from ._blame import Quarantine
from ._digest import Difference, artifact_key, differences, entries
from ._errors import ClosedError, SpecificationError, WrongLoopError
from ._machine import LEAST_MEMORY, default_memory, default_workers
from ._maker import Flight, Maker
from ._outcome import Outcome
from ._outside import disown_in_children
from ._pool import Limits
from ._report import refuse_reentry
from ._sandbox import MODES, Mode
from ._scope import Scope
from ._source import Source, as_source
from ._specialization import Specialization, as_specialization
from ._store import default_cache_dir
from .devices import open_device
from .toolchains import Job


class Request(Protocol):
    """What knows the entries of its key: an `Artifact`, a `Pending`."""

    @property
    def entries(self) -> Mapping[str, str]: ...


Explained = Request | tuple[Source | str, Specialization | str]


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
        memory: Bytes of memory above which a compile is killed; by default half of what
            the machine, or the container, has.
        sandbox: Whether workers confine themselves to what the toolchain needs: `"auto"`
            as far as the kernel can, `"require"` or else not at all, `"off"` not.

    Raises:
        SpecificationError: An argument cannot be right.
    """

    def __init__(
        self,
        target: str,
        *,
        cache_dir: str | os.PathLike[str] | None = None,
        workers: int | None = None,
        timeout: float = 300.0,
        memory: int | None = None,
        sandbox: Mode = "auto",
    ) -> None:
        if workers is not None and (not isinstance(workers, int) or workers < 1):
            raise SpecificationError(f"workers is a number from 1, not {workers!r}")
        if not isinstance(timeout, int | float) or not timeout > 0:
            raise SpecificationError(f"timeout is in seconds, more than 0, not {timeout!r}")
        if memory is not None and (not isinstance(memory, int) or memory < LEAST_MEMORY):
            raise SpecificationError(
                f"memory is in bytes, at least {LEAST_MEMORY}, not {memory!r}"
            )
        if sandbox not in MODES:
            raise SpecificationError(f"sandbox is one of {MODES}, not {sandbox!r}")
        chosen = cache_dir if cache_dir is not None else default_cache_dir()
        self.target = toolchains.check_target(target)
        self.workers = default_workers() if workers is None else workers
        self._root = None if chosen is None else Path(chosen).expanduser().absolute()
        held = default_memory() if memory is None else memory
        self._limits = Limits(self.workers, timeout, held, sandbox)
        self._quarantine = Quarantine()
        self._settings = (self.target, self._root, workers, timeout, memory, sandbox)
        self._uses: dict[asyncio.AbstractEventLoop, _Use] = {}
        disown_in_children(self)

    def disown(self) -> None:
        """Be closed, in a forked child; it may open it anew."""
        self._uses.clear()

    @classmethod
    def for_device(cls, device: Any = None, **settings: Any) -> Compiler:
        """The compiler for a device's own target.

        Equal calls in one process share one compiler. It asks the driver, and may
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
        loop = asyncio.get_running_loop()
        use = self._enter(loop)
        try:
            await use.opening.wait()
        except BaseException:
            await self._leave(loop)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._leave(asyncio.get_running_loop())

    def _enter(self, loop: asyncio.AbstractEventLoop) -> _Use:
        """Count one more user in `loop`; the first has the maker opened."""
        for gone in [known for known in self._uses if known.is_closed()]:
            del self._uses[gone]
        use = self._uses.get(loop)
        if use is None:
            use = self._uses[loop] = _Use()
            use.task = loop.create_task(self._open(use))
        use.users += 1
        return use

    async def _leave(self, loop: asyncio.AbstractEventLoop) -> None:
        """Count one user less in `loop`; the last closes the maker, if it has opened.

        Raises:
            ReentryError: A reporter of a cache over this compiler is the last to leave.
        """
        use = self._uses.get(loop)
        if use is None:
            return
        if use.users == 1:
            refuse_reentry(lambda reporting: reporting.owner is self)
        use.users -= 1
        if use.users:
            return
        del self._uses[loop]
        if use.opening.value is not None:
            await use.opening.value.scope.aclose()

    async def _open(self, use: _Use) -> None:
        try:
            maker = await Maker.open(
                self.target, self._root, self._limits, self._quarantine
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, those who enter get it
            use.opening.fail(error)
        else:
            use.opening.succeed(maker)
            if not use.users:
                await maker.scope.aclose()
        finally:
            use.opening.fail(ClosedError(f"{self!r} was not opened"))

    @property
    def identity(self) -> str:
        """The toolchain: its version, the digests of its libraries, its headers.

        Raises:
            ClosedError: The compiler is not open.
        """
        return self._any_maker().toolchain.identity

    @property
    def sandbox(self) -> str:
        """How the last worker that started has confined itself, as text.

        Raises:
            ClosedError: The compiler is not open.
        """
        return self._any_maker().pool.sandbox

    def key(self, source: Source | str, specialization: Specialization | str) -> str:
        """The digest of the artifact that a request compiles to.

        Raises:
            ClosedError: The compiler is not open.
            SpecificationError: The request cannot be right for this target.
        """
        return artifact_key(self.entries(source, specialization))

    async def compile(
        self, source: Source | str, specialization: Specialization | str
    ) -> Artifact:
        """The artifact of one request: from the store, else compiled.

        Requests for one artifact share one compile. Cancelling a caller does not stop it;
        one that nobody waits for any more is not begun.

        Raises:
            KernelsError: As each error of the tree says.
        """
        source, specialization = as_source(source), as_specialization(specialization)
        named = self.entries(source, specialization)
        key = artifact_key(named)
        return await self._flight(key, named, source, specialization).wait()

    def _flight(
        self,
        key: str,
        named: Mapping[str, str],
        source: Source,
        specialization: Specialization,
    ) -> Flight:
        """What `compile` awaits, for a cache that knows the request's key and entries."""
        job = Job(source, specialization, self.target)
        return self._maker().artifact(key, named, job)

    async def compile_all(
        self, requests: Iterable[tuple[Source | str, Specialization | str]]
    ) -> list[Artifact | Exception]:
        """The artifacts of many requests.

        Returns:
            In the order of the requests, each an `Artifact` or the error that it met;
            none of them cancels another.
        """
        pairs = [(source, specialization) for source, specialization in requests]
        return await asyncio.gather(*(self._attempt(*pair) for pair in pairs))

    async def _attempt(
        self, source: Source | str, specialization: Specialization | str
    ) -> Artifact | Exception:
        try:
            return await self.compile(source, specialization)
        except Exception as error:  # noqa: BLE001 - it is this request's outcome
            return error

    def forget(self, source: Source | str, specialization: Specialization | str) -> None:
        """Compile a request again that is in quarantine for having killed workers.

        Raises:
            ClosedError: The compiler is not open.
            SpecificationError: The request cannot be right for this target.
        """
        self._quarantine.forget(self.key(source, specialization))

    async def trim(self) -> int:
        """Stop idle workers now, to free their memory; how many there were."""
        return await self._maker().pool.trim()

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
        return self.entries(*request) if isinstance(request, tuple) else request.entries

    def entries(
        self, source: Source | str, specialization: Specialization | str
    ) -> dict[str, str]:
        """Everything that enters the key of a request, by name; texts by their digest.

        Raises:
            ClosedError: The compiler is not open.
            SpecificationError: The request cannot be right for this target.
        """
        specialization = as_specialization(specialization)
        architecture = specialization.architecture
        if architecture not in (None, self.target):
            raise SpecificationError(
                f"-arch={architecture} is not the compiler's target {self.target}"
            )
        return entries(self.identity, self.target, as_source(source), specialization)

    @property
    def _scope(self) -> Scope:
        """The scope that ends with this compiler; the caches over it live inside."""
        return self._maker().scope

    def _any_maker(self) -> Maker:
        """The maker of any loop: they all have one toolchain."""
        for use in list(self._uses.values()):
            if use.opening.value is not None:
                return use.opening.value
        raise ClosedError(f"{self!r} is not open: use it in 'async with'")

    def _maker(self) -> Maker:
        """The maker of the running loop."""
        use = self._uses.get(asyncio.get_running_loop())
        if use is not None and use.opening.value is not None:
            return use.opening.value
        self._any_maker()
        raise WrongLoopError(f"{self!r} is open in another event loop")

    def __repr__(self) -> str:
        state = "" if self._uses else " closed"
        return f"<Compiler {self.target} workers={self.workers}{state}>"


@dataclass
class _Use:
    """How one event loop uses a compiler."""

    users: int = 0
    opening: Outcome[Maker] = field(default_factory=Outcome)
    task: asyncio.Task[None] | None = None


_shared: WeakValueDictionary[tuple[object, ...], Compiler] = WeakValueDictionary()
_sharing = threading.Lock()


def shared_compiler(target: str, **settings: Any) -> Compiler:
    """The one compiler of this process with these arguments of `Compiler`."""
    compiler = Compiler(target, **settings)
    with _sharing:
        return _shared.setdefault(compiler._settings, compiler)
