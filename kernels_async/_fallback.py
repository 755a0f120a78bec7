"""A requested kernel that another one stands in for until it is loaded."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import Literal

from ._cache import Cache
from ._outcome import Outcome
from ._pending import Pending
from ._types import StreamLike
from .devices import Kernel


class FallbackPending:
    """A handle on a special kernel, and on a generic one that serves until then.

    It exists so that a request need not wait for a compile: a generic kernel, which is
    slower and loaded already, answers while the special one is compiled. Nothing starts
    until it is awaited. A special kernel that cannot be built is not tried again by this
    handle, which serves the generic one: `await handle.special` tries again and tells
    why. Both must take the same arguments, and may be launched alike; that is not checked.

    Attributes:
        special: The request of the special kernel.
        fallback: The request of the generic one.
    """

    __slots__ = ("_cache", "fallback", "special")

    def __init__(self, cache: Cache, special: Pending, fallback: Pending) -> None:
        self._cache = cache
        self.special: Pending = special
        self.fallback: Pending = fallback

    @property
    def serving(self) -> Literal["special", "fallback"] | None:
        """Which of them is served now; `None` while neither is loaded."""
        if self.special.kernel is not None:
            return "special"
        return None if self.fallback.kernel is None else "fallback"

    def built(self) -> Kernel | None:
        """The special kernel if it is loaded, else the generic one if that is.

        It never waits, from any thread.
        """
        return self.special.built() or self.fallback.built()

    def __await__(self) -> Generator[object, None, Kernel]:
        return self.resolve().__await__()

    async def resolve(self, stream: StreamLike | None = None) -> Kernel:
        """The special kernel if it is loaded; else the one of both that is, or is first.

        Args:
            stream: A stream of the cache's device, or `None`.

        Raises:
            DeviceMismatchError: `stream` belongs to another device.
            KernelsError: Neither can be built; the failure is the generic kernel's.
        """
        await self._cache.enter(stream)
        both = (self.special, self.fallback)
        if self.serving is None:
            for pending in both:
                if pending.attempt is not None:
                    self._cache.join(pending)
        self._cache.start([p for p in both if not p.failed])
        while (kernel := self.built()) is None:
            attempts = [p.attempt for p in both if p.attempt is not None]
            if not attempts or self.special.attempt is None:
                return await self._cache.resolve(self.fallback)
            first: Outcome[None] = Outcome()
            settled = partial(first.succeed, None)
            for attempt in attempts:
                attempt.listen(settled)
            try:
                await first.wait()
            finally:
                for attempt in attempts:
                    attempt.ignore(settled)
        return kernel

    def __repr__(self) -> str:
        symbol = self.special.specialization.symbol
        return f"<FallbackPending {symbol} serving={self.serving}>"
