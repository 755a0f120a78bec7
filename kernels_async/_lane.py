"""Work for many items, a few at a time: items that wait take no task."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, Protocol, TypeVar

from ._scope import Scope

T = TypeVar("T", bound=Hashable)


class Queue(Protocol[T]):
    """Items that wait, and which of them is next."""

    def put(self, item: T) -> None:
        """Add one."""

    def discard(self, item: T) -> None:
        """Remove one, if it is there."""

    def take(self) -> T | None:
        """Remove and return the next; `None` if there is none."""

    def __contains__(self, item: object) -> bool: ...

    def __len__(self) -> int: ...


class Waiting(Hashable, Protocol):
    """An item that may wait for others.

    Attributes:
        background: Whether it does.
    """

    @property
    def background(self) -> bool: ...


W = TypeVar("W", bound=Waiting)


class InOrder(Generic[T]):
    """A queue in the order of coming."""

    def __init__(self) -> None:
        self._items: dict[T, None] = {}

    def put(self, item: T) -> None:
        """Add one."""
        self._items[item] = None

    def discard(self, item: T) -> None:
        """Remove one, if it is there."""
        self._items.pop(item, None)

    def take(self) -> T | None:
        """Remove and return the first; `None` if there is none."""
        for item in self._items:
            del self._items[item]
            return item
        return None

    def __contains__(self, item: object) -> bool:
        return item in self._items

    def __len__(self) -> int:
        return len(self._items)


class Overtaking(Generic[W]):
    """Two queues: items that somebody waits for overtake those in the background.

    Args:
        foreground: The queue of the former.
        background: The queue of the latter.
    """

    def __init__(self, foreground: Queue[W], background: Queue[W]) -> None:
        self._foreground = foreground
        self._background = background

    def put(self, item: W) -> None:
        """Add one."""
        (self._background if item.background else self._foreground).put(item)

    def hurry(self, item: W) -> None:
        """Have one, that is not in the background any more, overtake, if it is there."""
        if item in self._background:
            self._background.discard(item)
            self._foreground.put(item)

    def discard(self, item: W) -> None:
        """Remove one, if it is there."""
        self._foreground.discard(item)
        self._background.discard(item)

    def take(self) -> W | None:
        """Remove and return the next; `None` if there is none."""
        item = self._foreground.take()
        return self._background.take() if item is None else item

    def __contains__(self, item: object) -> bool:
        return item in self._foreground or item in self._background

    def __len__(self) -> int:
        return len(self._foreground) + len(self._background)


class Lane(Generic[T]):
    """Does its work for each item, so many at once and no more.

    It exists because a task, with its stack and its scopes, takes kilobytes, and ten
    thousand requests may wait for two workers.

    Args:
        scope: Owns the tasks that do the work.
        width: How many there are at most.
        work: Takes one item, as late as it can, and does what there is to do for it; it
            raises nothing.
        queue: Says which item is next; by default the first that came.
    """

    def __init__(
        self,
        scope: Scope,
        width: int,
        work: Callable[[], Coroutine[Any, Any, None]],
        queue: Queue[T] | None = None,
    ) -> None:
        self._scope = scope
        self._width = width
        self._work = work
        self._queue: Queue[T] = InOrder() if queue is None else queue
        self._running = 0

    def put(self, item: T) -> None:
        """Have the work done for `item`.

        Raises:
            ClosedError: The scope has ended, or ends.
        """
        self._queue.put(item)
        if self._running < self._width:
            self._running += 1
            try:
                self._scope.start_soon(self._run)
            except BaseException:
                self._running -= 1
                self._queue.discard(item)
                raise

    def discard(self, item: T) -> None:
        """Have nothing done for `item`, if it has not been taken."""
        self._queue.discard(item)

    def take(self) -> T | None:
        """The next item, for the work; `None` if another has taken the last one."""
        return self._queue.take()

    def __len__(self) -> int:
        return len(self._queue)

    async def _run(self) -> None:
        try:
            while self._queue:
                await self._work()
        finally:
            self._running -= 1
