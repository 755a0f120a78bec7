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
    """

    __slots__ = ("_error", "_listeners", "_value", "_waiters", "settled")

    def __init__(self) -> None:
        self.settled: bool = False
        self._waiters: set[asyncio.Future[None]] | None = None
        self._listeners: tuple[Callable[[], None], ...] = ()
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
            self._error = error.with_traceback(None)
            self._wake()

    @property
    def value(self) -> T | None:
        """The value it was settled with; `None` if it failed or is not settled."""
        return self._value

    async def wait(self) -> T:
        """Wait until it is settled; its value, or a copy of its error raised."""
        if not self.settled:
            waiter = asyncio.get_running_loop().create_future()
            waiters = self._waiters = self._waiters or set()
            waiters.add(waiter)
            try:
                await waiter
            finally:
                waiters.discard(waiter)
                self._look_whether_abandoned()
        if self._error is not None:
            raise fresh(self._error)
        return self._value  # type: ignore[return-value]  # a T: it did not fail

    async def error(self) -> Exception | None:
        """Wait until it is settled; its error, if it failed."""
        try:
            await self.wait()
        except Exception as error:  # noqa: BLE001 - it is the outcome
            return error
        return None

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` when it is settled, now if it is; until then it is a waiter."""
        if self.settled:
            listener()
        else:
            self._listeners = (*self._listeners, listener)

    def ignore(self, listener: Callable[[], None]) -> None:
        """Do not call `listener` any more: it leaves."""
        self._listeners = tuple(one for one in self._listeners if one is not listener)
        self._look_whether_abandoned()

    def _look_whether_abandoned(self) -> None:
        if not (self.settled or self._waiters or self._listeners):
            self.abandon()

    def abandon(self) -> None:
        """The last waiter or listener has left: the owner of the work may drop it."""

    def _wake(self) -> None:
        self.settled = True
        for waiter in self._waiters or ():
            if not waiter.done():
                waiter.set_result(None)
        listeners, self._listeners = self._listeners, ()
        for listener in listeners:
            listener()
