"""An event loop that a test turns by hand, and work that the test ends.

Nothing here waits for a thread, a process or a clock, so that one turn of the loop is
always the same and a cancellation can be aimed at any await.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

import anyio

T = TypeVar("T")
Asked = TypeVar("Asked")
Answer = TypeVar("Answer")

PATIENCE = 5.0


class _Future(asyncio.Future[Any]):
    """A future whose place in a set is the same in every run."""

    def __init__(self, *, loop: asyncio.AbstractEventLoop, number: int) -> None:
        super().__init__(loop=loop)
        self.number = number

    def __hash__(self) -> int:
        return self.number


class _Task(asyncio.Task[Any]):
    """A task whose place in a set is the same in every run."""

    def __init__(
        self, coroutine: Coroutine[Any, Any, Any], number: int, **options: Any
    ) -> None:
        self.number = number
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self.number


class TurnLoop(asyncio.SelectorEventLoop):
    """A loop whose turns and clock are the test's.

    Attributes:
        now: Its clock.
        complaints: What was told to its exception handler: "never retrieved" and the like.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.complaints: list[str] = []
        self.set_exception_handler(lambda _, context: self.complaints.append(str(context)))
        self._numbers = itertools.count()
        self.set_task_factory(self._task)  # type: ignore[arg-type]

    def _task(
        self,
        _: asyncio.AbstractEventLoop,
        coroutine: Coroutine[Any, Any, Any],
        **options: Any,
    ) -> _Task:
        return _Task(coroutine, next(self._numbers), loop=self, **options)

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(loop=self, number=next(self._numbers))

    def time(self) -> float:
        return self.now

    def turn(self) -> None:
        """Run what is ready, and not what that makes ready."""
        self.call_soon(self.stop)
        self.run_forever()

    @property
    def idle(self) -> bool:
        """Whether nothing goes on before the test does something."""
        return not self._ready  # type: ignore[attr-defined]

    def settle(self) -> None:
        """Turn until it is idle; waits that are shorter than `PATIENCE` pass."""
        limit = self.now + PATIENCE
        for _ in range(10_000):
            while not self.idle:
                self.turn()
            timers = self._scheduled  # type: ignore[attr-defined]
            times = [timer.when() for timer in timers if not timer.cancelled()]
            if not times or min(times) > limit:
                return
            self.now = min(times)
            self.turn()
        raise AssertionError("the loop is never idle")

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Turn until a coroutine that waits for no held work is done."""
        task = self.create_task(coroutine)
        self.settle()
        assert task.done(), f"{task!r} hangs"
        return task.result()


async def in_the_next_turn(function: Callable[..., T], *arguments: Any, **_: Any) -> T:
    """What `anyio.to_thread.run_sync` is to its caller, without a thread."""
    ready = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(_wake, ready)
    with anyio.CancelScope(shield=True):
        await ready
    return function(*arguments)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Call(Generic[Asked, Answer]):
    """One call that waits for the test to answer it."""

    def __init__(self, asked: Asked, cache: int) -> None:
        self.asked = asked
        self.cache = cache
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()


class Held(Generic[Asked, Answer]):
    """Calls that go on until the test answers them.

    Attributes:
        calls: Those that go on, in the order of asking.
    """

    def __init__(self) -> None:
        self.calls: list[Call[Asked, Answer]] = []

    async def ask(self, asked: Asked, cache: int = 0) -> Answer:
        """Wait for the test's answer."""
        call = Call[Asked, Answer](asked, cache)
        self.calls.append(call)
        try:
            return await call.answer
        finally:
            self.calls.remove(call)

    def unanswered(self) -> list[Call[Asked, Answer]]:
        """Those that the test has not answered."""
        return [call for call in self.calls if not call.answer.done()]
