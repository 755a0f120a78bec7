"""A requested kernel, as a handle that can be awaited."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping
from itertools import repeat
from operator import length_hint
from typing import TYPE_CHECKING

from ._flight import Flight
from ._outcome import Outcome
from ._source import Source
from ._specialization import Specialization
from ._types import StreamLike
from .devices import Kernel

if TYPE_CHECKING:
    from ._batch import Batch
    from ._cache import Cache

_NEVER: Iterator[Kernel] = iter(())
_FOR_EVER = sys.maxsize


class Pending:
    """An awaitable handle on a requested kernel.

    It exists so that a server can name its kernels first and have all of them built in
    one batch: `await` any one, or `Kernels.build()`, starts everything outstanding. The
    same artifact has the same `Pending`. It may be awaited any number of times, and
    cancelling one waiter does not disturb another. A failed one stays requested: the next
    await or build tries again. It does not start anything by being made or dropped.

    Attributes:
        key: The digest of the artifact that it compiles to.
        source: The source.
        specialization: The symbol and configuration.
    """

    __slots__ = (
        "__weakref__",
        "_cache",
        "asked",
        "attempt",
        "failed",
        "kernel",
        "key",
        "pairs",
        "reported",
        "requested",
        "served",
        "source",
        "specialization",
    )

    def __init__(
        self,
        cache: Cache,
        key: str,
        source: Source,
        specialization: Specialization,
    ) -> None:
        self._cache = cache
        self.key: str = key
        self.source: Source = source
        self.specialization: Specialization = specialization
        self.served: Iterator[Kernel] = _NEVER
        self.kernel: Kernel | None = None
        self.attempt: Attempt | None = None
        self.requested: bool = False
        self.failed: bool = False
        self.reported: bool = False
        self.asked: int = 0
        self.pairs: list[tuple[Source | str, Specialization | str]] = []

    def serve(self, kernel: Kernel | None) -> None:
        """Be loaded, or never more.

        A hit is `next(served, None)`, the kernel again and again: that counts it in less
        than half of the time that it takes to add one.
        """
        self.kernel = kernel
        self.served = _NEVER if kernel is None else repeat(kernel, _FOR_EVER)

    @property
    def hits(self) -> int:
        """How often it was asked for since it is loaded."""
        served = self.served
        return 0 if served is _NEVER else _FOR_EVER - length_hint(served)

    @property
    def entries(self) -> Mapping[str, str]:
        """Everything that entered the key, by name; texts by their digest."""
        return self._cache.compiler.entries(self.source, self.specialization)

    def __await__(self) -> Generator[object, None, Kernel]:
        return self._cache.resolve(self).__await__()

    def resolve(self, stream: StreamLike | None = None) -> Coroutine[object, None, Kernel]:
        """The kernel, built with everything outstanding if it is not loaded yet.

        Args:
            stream: A stream of the cache's device, or `None`.

        Raises:
            DeviceMismatchError: `stream` belongs to another device.
            KernelsError: This kernel's own failure.
        """
        return self._cache.resolve(self, stream)

    def belongs_to(self, cache: Cache) -> bool:
        """Whether it is a request of that cache."""
        return self._cache is cache

    def built(self) -> Kernel | None:
        """The kernel if it is loaded, else `None`; from any thread, without waiting."""
        return next(self.served, None)

    def __repr__(self) -> str:
        state = "failed" if self.failed else "outstanding"
        if self.kernel is not None:
            state = "built"
        elif self.attempt is not None:
            state = "building"
        return f"<Pending {self.specialization.symbol} {state} {self.key[:12]}>"


class Attempt(Outcome[Kernel]):
    """One try at building a `Pending`, for all who wait for it.

    Attributes:
        flight: The making of its artifact, once that was asked for.
    """

    __slots__ = ("_arrived", "_batch", "_pending", "flight")

    def __init__(self, batch: Batch, pending: Pending) -> None:
        super().__init__()
        self.flight: Flight | None = None
        self._batch = batch
        self._pending = pending
        self._arrived: Callable[[], None] | None = None

    def abandon(self) -> None:
        """Be dropped, if only those who left wanted it."""
        self._batch.abandon(self._pending)

    def follow(self, flight: Flight, arrived: Callable[[], None]) -> None:
        """Have `arrived` called when the artifact is there, or cannot be made."""
        self.flight, self._arrived = flight, arrived
        flight.listen(arrived)

    def withdraw(self) -> None:
        """Want the artifact no more."""
        if self.flight is not None and self._arrived is not None:
            self.flight.ignore(self._arrived)

    def hurry(self) -> None:
        """Be made before what may wait: somebody waits for it."""
        if self.flight is not None:
            self.flight.hurry()

    @property
    def is_there(self) -> bool:
        """Whether the artifact is there, or cannot be made."""
        return self.flight is not None and self.flight.settled

    @property
    def begun(self) -> bool:
        """Whether a worker has the job, or the artifact is there."""
        return self.is_there or (self.flight is not None and self.flight.begun)
