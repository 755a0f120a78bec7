"""The cache of loaded kernels of one device: the front door."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Unpack, overload

from ._cache import Cache
from ._compiler import Compiler, shared_compiler
from ._errors import SpecificationError
from ._fallback import FallbackPending
from ._frozen import Frozen
from ._keyed import Key, KeyedKernels
from ._operations import Operations
from ._pending import Pending
from ._settings import Settings
from ._source import Source
from ._specialization import Specialization
from ._threads import in_thread
from ._types import StreamLike
from ._warm import WarmUp
from .devices import Device, DeviceLike, Kernel, open_device

MAX_OUTSTANDING = 10_000


class Kernels(Operations):
    """The loaded kernels of one device, by the artifact that they compile to.

    It exists because every server that compiles kernels at run time writes this cache.
    A kernel is compiled once per machine and loaded once per device, in worker processes
    and threads, and given to everyone who asks; the event loop never waits. Requests that
    compile to the same artifact share one executable. It serves one device and refuses
    another's streams. It belongs to one event loop. It never unloads a kernel.

    Use `Kernels.open()` for a cache with a compiler of its own. `Kernels(compiler)` is an
    empty cache over a compiler of the caller's, which must be open, and which it leaves
    open; it ends with `aclose`, at the end of `async with`, or with the compiler.

    Args:
        compiler: Makes the artifacts.
        device: As for `open`; by default the CPU for the target `cpu`, else the first
            CUDA device.
        max_outstanding: How many requests may be not loaded yet. One more is refused at
            once with `OverloadedError`; `None` lifts the limit.
        frozen: Whether a request that is not loaded is refused with `FrozenError` once
            `warm` has ended; `"warn"` only logs it, with what tells it from the nearest
            that is loaded. `warm` itself compiles what is missing, and without it nothing
            is ever refused.

    Raises:
        SpecificationError: `max_outstanding` or `frozen` cannot be right.
    """

    __slots__ = ("__weakref__", "_by_pair")

    def __init__(
        self,
        compiler: Compiler,
        device: DeviceLike | Device | None = None,
        *,
        max_outstanding: int | None = MAX_OUTSTANDING,
        frozen: Frozen = False,
    ) -> None:
        cache = Cache(compiler, device, max_outstanding, frozen)
        self._share(cache, WarmUp(cache))

    def _share(self, cache: Cache, warm_up: WarmUp) -> None:
        self._cache = cache
        self._warm_up = warm_up
        self._by_pair = cache.batch.by_pair

    @classmethod
    def open(
        cls,
        device: DeviceLike | None = None,
        *,
        target: str | None = None,
        max_outstanding: int | None = MAX_OUTSTANDING,
        frozen: Frozen = False,
        **settings: Unpack[Settings],
    ) -> Opening:
        """Open a device, a compiler for it and its pool; `async with` gives the cache.

        It may be entered in one task and left in another. On exit no task, process,
        file descriptor or unsettled `Pending` is left.

        Args:
            device: `"cuda:0"`, `0`, a `cupy.cuda.Device`, `"cpu"`; by default the first
                CUDA device, else the CPU.
            target: By default the device's own; `"sm_90a"` for what only a target with a
                suffix has.
            max_outstanding: As for `Kernels`.
            frozen: As for `Kernels`.
            settings: As for `Compiler`: `cache_dir`, `layers`, `max_bytes`, `cache_key`,
                `workers`, `timeout`, `memory`, `sandbox`, `slim`.

        Raises:
            DeviceError: There is no such device.
            DeviceMismatchError: The device does not run the target.
            ToolchainError: No compiler for the target was found.
        """

        @asynccontextmanager
        async def opening() -> AsyncIterator[Kernels]:
            opened = await in_thread(open_device, device)
            compiler = shared_compiler(target or opened.target, **settings)
            kernels = cls(compiler, opened, max_outstanding=max_outstanding, frozen=frozen)
            async with compiler, kernels:
                yield kernels

        return Opening(opening())

    async def __aenter__(self) -> Kernels:
        await self._cache.enter()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the cache and all its clones.

        Running compiles that nobody else waits for end with their compiler. Every
        unsettled `Pending` settles with `ClosedError`. Kernels that are loaded stay
        callable. A second call does nothing.
        """
        await self._cache.aclose()

    def clone(self) -> Kernels:
        """Another handle on the same cache: its loads, requests and reporter."""
        clone = type(self).__new__(type(self))
        clone._share(self._cache, self._warm_up)
        return clone

    __copy__ = clone

    def __deepcopy__(self, memo: object) -> Kernels:
        return self.clone()

    def __reduce__(self) -> str:
        raise TypeError("a cache of loaded kernels belongs to its process; pickle requests")

    @property
    def compiler(self) -> Compiler:
        """The compiler that this cache was made with."""
        return self._cache.compiler

    def __len__(self) -> int:
        return len(self._cache)

    def __bool__(self) -> bool:
        return True

    def is_empty(self) -> bool:
        """Whether no kernel is loaded."""
        return not len(self)

    async def get(
        self,
        source: Source | str,
        specialization: Specialization | str,
        stream: StreamLike | None = None,
    ) -> Kernel:
        """The loaded kernel; compiled if needed and loaded if it is not.

        Outstanding requests are left alone. When the kernel is loaded and the arguments
        are the objects of an earlier call, or equal ones, this is a dictionary look-up.

        Args:
            source: The source, or its text.
            specialization: The specialization, or its symbol alone.
            stream: A stream of the cache's device, or `None`.

        Raises:
            DeviceMismatchError: `stream` belongs to another device.
            KernelsError: As each error of the tree says.
        """
        try:
            pending = self._by_pair[source, specialization]
        except KeyError:
            pass
        else:
            if stream is None and (kernel := next(pending.served, None)) is not None:
                return kernel
        return await self._cache.get(source, specialization, stream)

    def from_thread(
        self,
        source: Source | str,
        specialization: Specialization | str,
        stream: StreamLike | None = None,
        timeout: float | None = None,
    ) -> Kernel:
        """`get` for a thread that runs no event loop: it blocks until the kernel is there.

        The work is the cache's, in its event loop, which must be running.

        Args:
            source: The source, or its text.
            specialization: The specialization, or its symbol alone.
            stream: A stream of the cache's device, or `None`.
            timeout: Seconds after which to wait no longer; by default there is no limit.

        Raises:
            WrongLoopError: An event loop runs in this thread: await `get` there.
            ClosedError: The cache is closed, or not open yet, or its loop ended.
            TimeoutError: It took longer than `timeout`.
            KernelsError: As for `get`.
        """
        pending = self._by_pair.get((source, specialization))
        kernel = None if pending is None or stream is not None else pending.built()
        if kernel is not None:
            return kernel
        return self._cache.from_thread(source, specialization, stream, timeout)

    @overload
    def request(
        self, source: Source | str, specialization: Specialization | str
    ) -> Pending: ...

    @overload
    def request(
        self,
        source: Source | str,
        specialization: Specialization | str,
        *,
        fallback: Specialization | str | Pending,
    ) -> FallbackPending: ...

    def request(
        self,
        source: Source | str,
        specialization: Specialization | str,
        *,
        fallback: Specialization | str | Pending | None = None,
    ) -> Pending | FallbackPending:
        """Ask for a kernel; nothing starts until it is awaited or `build` runs.

        Args:
            source: The source, or its text.
            specialization: The specialization, or its symbol alone.
            fallback: A specialization of the same source, or a request of this cache,
                whose kernel is served while this one is not loaded.

        Returns:
            Its handle; the same for every request of the same artifact. With a
            `fallback`, a handle on both.

        Raises:
            SpecificationError: The request cannot be right.
            OverloadedError: Too many are not loaded yet.
            FrozenError: The cache is frozen, and has not loaded it.
            ClosedError: The cache is closed.
        """
        if fallback is None:
            return self._cache.request(source, specialization)
        if not isinstance(fallback, Pending):
            fallback = self._cache.request(source, fallback)
        elif not fallback.belongs_to(self._cache):
            raise SpecificationError("the fallback is a request of another cache")
        special = self._cache.request(source, specialization)
        return FallbackPending(self._cache, special, fallback)

    async def build(self, stream: StreamLike | None = None) -> None:
        """Build every outstanding request in one batch.

        A call during another batch waits for it and then checks for more work. With
        nothing outstanding it returns at once.

        Args:
            stream: A stream of the cache's device, or `None`.

        Raises:
            DeviceMismatchError: `stream` belongs to another device.
            BuildError: Holds every failure; the other kernels of the batch are loaded,
                and those that failed stay requested.
        """
        await self._cache.build(stream)

    def loaded(
        self, source: Source | str, specialization: Specialization | str
    ) -> Kernel | None:
        """The kernel if it is loaded, else `None`; from any thread, without waiting."""
        try:
            return next(self._by_pair[source, specialization].served, None)
        except KeyError:
            return self._cache.loaded(source, specialization)

    def keyed(self) -> KeyedKernels[Key]:
        """A new index over this cache by keys of the caller's own.

        A checker knows their type if it is told: `index: KeyedKernels[str] = …`.
        """
        return KeyedKernels(self._cache)

    def __repr__(self) -> str:
        return repr(self._cache)


class Opening(AbstractAsyncContextManager[Kernels]):
    """What `Kernels.open` returns: `async with` it; nothing has been opened before."""

    def __init__(self, manager: AbstractAsyncContextManager[Kernels]) -> None:
        self._manager = manager

    async def __aenter__(self) -> Kernels:
        return await self._manager.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return await self._manager.__aexit__(kind, error, traceback)

    if not TYPE_CHECKING:  # a checker finds the mistake by itself

        def __getattr__(self, name: str) -> object:
            raise AttributeError(
                f"Kernels.open() has no {name!r} yet: use it as "
                "'async with Kernels.open(...) as kernels:'"
            )
