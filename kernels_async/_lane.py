"""Work for many items, a few at a time: items that wait take no task."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

from ._scope import Scope

T = TypeVar("T", bound=Hashable)


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
        self._waiting: dict[T, None] = {}
        self._running = 0

    def put(self, item: T) -> None:
        """Have the work done for `item`.

        Raises:
            ClosedError: The scope has ended, or ends.
        """
        self._waiting[item] = None
        if self._running < self._width:
            self._running += 1
            try:
                self._scope.start_soon(self._run)
            except BaseException:
                self._running -= 1
                del self._waiting[item]
                raise

    def discard(self, item: T) -> None:
        """Have nothing done for `item`, if that has not begun."""
        self._waiting.pop(item, None)

    async def _run(self) -> None:
        try:
            while self._waiting:
                item = next(iter(self._waiting))
                del self._waiting[item]
                await self._work(item)
        finally:
            self._running -= 1
