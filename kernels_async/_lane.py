"""Work for many items, a few at a time: items that wait take no task."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from ._scope import Scope

T = TypeVar("T")


class Lane(Generic[T]):
    """Does its work for each item, in the order of their coming.

    It exists because a task, with its stack and its scopes, takes kilobytes, and ten
    thousand requests may wait for two workers.

    Args:
        scope: Owns the tasks that do the work.
        width: How many there are at most.
        work: What to do for one item; it raises nothing.
    """

    def __init__(
        self, scope: Scope, width: int, work: Callable[[T], Coroutine[Any, Any, None]]
    ) -> None:
        self._scope = scope
        self._width = width
        self._work = work
        self._waiting: deque[T] = deque()
        self._running = 0

    def put(self, item: T) -> None:
        """Have the work done for `item`.

        Raises:
            ClosedError: The scope has ended, or ends.
        """
        if self._running < self._width:
            self._scope.start_soon(self._run)
            self._running += 1
        self._waiting.append(item)

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._work(self._waiting.popleft())
        finally:
            self._running -= 1
