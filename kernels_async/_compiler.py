"""Compiles each artifact once: looks in the store, else has a worker compile it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Protocol, TypeVar, Unpack
from weakref import WeakValueDictionary

from . import toolchains
from ._artifact import Artifact
from ._blame import Quarantine
from ._digest import Difference, artifact_key, differences, entries
from ._errors import SpecificationError
from ._events import Listener
from ._flight import Flight
from ._maker import Maker
from ._makers import Makers
from ._report import refuse_reentry
from ._sandbox import Mode
from ._scope import Scope
from ._settings import Settings, limits
from ._source import Source, as_source
from ._specialization import Specialization, as_specialization
from ._store import Store
from ._tiers import Place
from ._upkeep import Pruned, Verified, clear, prune, verify
from .devices import DeviceLike, open_device
from .toolchains import Job

T = TypeVar("T")


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
            slower, and says so once in the log `kernels_async`. It must belong to the user
            alone (mode 700), or it is not used.
        layers: Cache directories to read from that are never written, the first one
            first, such as one that is baked into a container image.
        max_bytes: What the cache directory's entries may have together: those that were
            not used for the longest time are removed. By default there is no limit.
        cache_key: A secret that authenticates every entry, for caches that are shared;
            by default `$KERNELS_ASYNC_CACHE_KEY`. Entries that were written without it,
            or with another, are not seen.
        workers: How many compiles run at once; by default what processors, CPU quota
            and free memory allow.
        timeout: Seconds after which a compile is killed.
        memory: Bytes of memory above which a compile is killed; by default half of what
            the machine, or the container, has.
        sandbox: Whether workers confine themselves to what the toolchain needs: `"auto"`
            as far as the kernel can, `"require"` or else not at all, `"off"` not.
        slim: Whether nvJitLink leaves out of an artifact every variable that its kernel
            does not use, so that it is small and loads quickly. It takes the package
            `nvidia-nvjitlink`, and is for CUDA targets.

    Raises:
        SpecificationError: An argument cannot be right.
    """

    def __init__(
        self,
        target: str,
        *,
        cache_dir: str | os.PathLike[str] | None = None,
        layers: Sequence[str | os.PathLike[str]] = (),
        max_bytes: int | None = None,
        cache_key: bytes | str | None = None,
        workers: int | None = None,
        timeout: float = 300.0,
        memory: int | None = None,
        sandbox: Mode = "auto",
        slim: bool = False,
    ) -> None:
        self.target: str = toolchains.check_target(target)
        if not isinstance(slim, bool) or (slim and target == "cpu"):
            raise SpecificationError(
                f"slim is True or False, and for CUDA targets; not {slim!r} for {target}"
            )
        self._limits = limits(workers, timeout, memory, sandbox)
        self.workers: int = self._limits.workers
        self._place = Place.choose(cache_dir, layers, max_bytes, cache_key)
        self._quarantine = Quarantine()
        self._slim = slim
        self._settings = (self.target, slim, self._place, workers, timeout, memory, sandbox)
        self._makers = Makers(self._open, f"<Compiler {self.target}>")

    @classmethod
    def for_device(
        cls, device: DeviceLike | None = None, **settings: Unpack[Settings]
    ) -> Compiler:
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

    async def _open(self) -> Maker:
        return await Maker.open(
            self.target, self._slim, self._place, self._limits, self._quarantine
        )

    async def __aenter__(self) -> Compiler:
        await self._makers.enter()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._makers.is_last():
            refuse_reentry(lambda reporting: reporting.owner is self)
        await self._makers.leave()

    @property
    def identity(self) -> str:
        """The toolchain: its version, the digests of its libraries, its headers.

        Raises:
            ClosedError: The compiler is not open.
        """
        return self._makers.any().toolchain.identity

    @property
    def sandbox(self) -> str:
        """How the last worker that started has confined itself, as text.

        Raises:
            ClosedError: The compiler is not open.
        """
        return self._makers.any().pool.crew.sandbox

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
        key = self.key(source, specialization)
        return await self._flight(key, source, specialization).wait()

    def _flight(
        self,
        key: str,
        source: Source,
        specialization: Specialization,
        background: bool = False,
    ) -> Flight:
        """What `compile` awaits, for a cache that knows the request's key."""
        job = Job(source, specialization, self.target)
        return self._maker().artifact(key, job, background=background)

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

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Have `listener` told what happens to each artifact, in this event loop.

        It is called at once, in the loop, so it must not block.

        Args:
            listener: A function of an `Event`.

        Returns:
            What ends it, when it is called.

        Raises:
            ClosedError: The compiler is not open.
        """
        return self._maker().hub.add(listener)

    async def trim(self) -> int:
        """Stop idle workers now, to free their memory; how many there were."""
        return await self._maker().pool.crew.trim()

    async def prune(self, max_bytes: int) -> Pruned:
        """Remove the entries of the cache directory that were not used for longest.

        An entry that is being read stays.

        Args:
            max_bytes: What the entries that stay may have together.

        Raises:
            ClosedError: The compiler is not open.
            OSError: The directory cannot be read or written.
        """
        return await self._maintain(lambda store: prune(store, max_bytes), Pruned(0, 0, 0))

    async def verify(self) -> Verified:
        """Read every entry of the cache directory; what is damaged is put aside.

        Raises:
            ClosedError: The compiler is not open.
            OSError: The directory cannot be read.
        """
        return await self._maintain(verify, Verified(0, 0, 0))

    async def clear(self) -> Pruned:
        """Remove every entry of the cache directory that is not being read.

        Kernels that are loaded stay.

        Raises:
            ClosedError: The compiler is not open.
            OSError: The directory cannot be read or written.
        """
        return await self._maintain(clear, Pruned(0, 0, 0))

    async def _maintain(self, work: Callable[[Store], T], nothing: T) -> T:
        maker = self._maker()
        store = maker.store.main
        return nothing if store is None else await maker.in_thread(work, store)

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
        if self._slim:
            toolchains.refuse_unlinkable(specialization.options)
        return entries(self.identity, self.target, as_source(source), specialization)

    @property
    def _scope(self) -> Scope:
        """The scope that ends with this compiler; the caches over it live inside."""
        return self._maker().scope

    def _maker(self) -> Maker:
        return self._makers.here()

    def __repr__(self) -> str:
        state = "" if self._makers.are_open else " closed"
        return f"<Compiler {self.target} workers={self.workers}{state}>"


_shared: WeakValueDictionary[tuple[object, ...], Compiler] = WeakValueDictionary()
_sharing = threading.Lock()
os.register_at_fork(
    before=_sharing.acquire,
    after_in_parent=_sharing.release,
    after_in_child=_sharing.release,
)


def shared_compiler(target: str, **settings: Unpack[Settings]) -> Compiler:
    """The one compiler of this process with these arguments of `Compiler`."""
    compiler = Compiler(target, **settings)
    with _sharing:
        return _shared.setdefault(compiler._settings, compiler)
