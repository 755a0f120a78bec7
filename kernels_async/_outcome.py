"""One result that many tasks wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from ._errors import fresh

T = TypeVar("T")


class Outcome(Generic[T]):
    """A result that is settled once, by the owner of the work, and awaited by any number.

    A waiter only waits: when it is cancelled, neither the work nor another waiter
    notices. Each waiter of a failure gets an exception of its own, so that tracebacks do
    not grow, and a failure that nobody awaits is silent. All waiters belong to one
    event loop.

    Args:
        abandoned: Called when the last waiter leaves before it is settled, so that the
            owner of the work may drop it.
    """

    __slots__ = ("_abandoned", "_error", "_value", "_waiters", "settled")

    def __init__(self, abandoned: Callable[[], None] | None = None) -> None:
        self.settled = False
        self._abandoned = abandoned
        self._waiters: set[asyncio.Future[None]] = set()
        self._value: T | None = None
        self._error: Exception | None = None

    def succeed(self, value: T) -> None:
        """Settle with a value; later settlements are ignored."""
        if not self.settled:
            self._value = value
            self._wake()

    def fail(self, error: Exception) -> None:
        """Settle with an error; later settlements are ignored."""
        if not self.settled:
            self._error = error
            self._wake()

    @property
    def value(self) -> T | None:
        """The value it was settled with; `None` if it failed or is not settled."""
        return self._value

    async def wait(self) -> T:
        """Wait until it is settled; its value, or a copy of its error raised."""
        if not self.settled:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)
                if not self.settled and not self._waiters and self._abandoned:
                    self._abandoned()
        if self._error is not None:
            raise fresh(self._error)
        return self._value  # type: ignore[return-value]  # a T: it did not fail

    def _wake(self) -> None:
        self.settled = True
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
