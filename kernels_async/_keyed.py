"""An index over the cache by the caller's own compact keys."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, Generic

from ._cache import Cache
from ._pending import Pending
from ._source import Source
from ._specialization import Specialization
from ._types import StreamLike
from .devices import Kernel

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # which a checker has, and which knows defaults

    Key = TypeVar("Key", bound=Hashable, default=Any)
else:
    from typing import TypeVar

    Key = TypeVar("Key", bound=Hashable)
Make = Callable[[Key], tuple[Source | str, Specialization | str]]
"""The source and the specialization of a key."""


class KeyedKernels(Generic[Key]):
    """Kernels by a key of the caller's, such as `("softmax", "float", 1024)`.

    It exists so that a dispatch loop neither builds a specialization nor hashes a source
    when the kernel is there: `make(key)` runs only when the key is not known. Different
    keys of one artifact share one executable. Keys that failed are not kept. It does not
    check that `make` gives the same for the same key.
    """

    __slots__ = ("_cache", "_pendings")

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._pendings: dict[Key, Pending] = {}

    async def get(
        self, key: Key, make: Make[Key], stream: StreamLike | None = None
    ) -> Kernel:
        """The loaded kernel of `key`; see `Kernels.get`.

        Args:
            key: Any hashable.
            make: Gives source and specialization for a key; called on a miss only.
            stream: A stream of the cache's device, or `None`.

        Raises:
            DeviceMismatchError: `stream` belongs to another device.
            KernelsError: As each error of the tree says; the key is not kept.
        """
        try:
            pending = self._pendings[key]
        except KeyError:
            pass
        else:
            if stream is None and (kernel := next(pending.served, None)) is not None:
                return kernel
        await self._cache.enter(stream)
        pending = self._pending(key, make)
        try:
            return await self._cache.obtain(pending)
        finally:
            self._drop_failed(key, pending)

    def request(self, key: Key, make: Make[Key]) -> Pending:
        """Ask for the kernel of `key`; see `Kernels.request`."""
        pending = self._pending(key, make)
        return self._cache.request(pending.source, pending.specialization)

    def loaded(self, key: Key) -> Kernel | None:
        """The kernel of `key` if it is loaded, else `None`; never waits."""
        try:
            return next(self._pendings[key].served, None)
        except KeyError:
            return None

    def __len__(self) -> int:
        return sum(p.kernel is not None for p in list(self._pendings.values()))

    def _pending(self, key: Key, make: Make[Key]) -> Pending:
        pending = self._pendings.get(key)
        if pending is None or pending.failed:
            pending = self._pendings[key] = self._cache.pending(*make(key))
        return pending

    def _drop_failed(self, key: Key, pending: Pending) -> None:
        if pending.failed and self._pendings.get(key) is pending:
            del self._pendings[key]
