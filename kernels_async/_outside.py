"""Ways to a cache from outside its event loop: other threads, and forked children."""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
import os
import time
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

from ._errors import ClosedError, WrongLoopError

T = TypeVar("T")

_LOOK_SECONDS = 0.25


def wait_from_thread(
    loop: asyncio.AbstractEventLoop | None,
    begin: Callable[[], Coroutine[Any, Any, T]],
    timeout: float | None,
) -> T:
    """Run what `begin` returns in `loop`, and block this thread until it has ended.

    Args:
        loop: The loop; `None` if there is none yet.
        begin: Makes the coroutine.
        timeout: Seconds after which it is cancelled; `None` for no limit.

    Raises:
        WrongLoopError: A loop runs in this thread, which it would block.
        ClosedError: There is no loop, or it ended.
        TimeoutError: The time is up.
    """
    if _loop_runs_here():
        raise WrongLoopError("an event loop runs in this thread: await get() instead")
    if loop is None:
        raise ClosedError("the cache is not open yet: enter it in its event loop first")
    work = begin()
    try:
        future = asyncio.run_coroutine_threadsafe(work, loop)
    except RuntimeError:
        work.close()
        raise ClosedError("the event loop of the cache is closed") from None
    ends = None if timeout is None else time.monotonic() + timeout
    while True:
        left = math.inf if ends is None else ends - time.monotonic()
        try:
            return future.result(max(0, min(left, _LOOK_SECONDS)))
        except concurrent.futures.CancelledError:
            raise ClosedError("the event loop of the cache ended") from None
        except TimeoutError:
            if future.done():
                return future.result()
        if loop.is_closed():
            work.close()
            raise ClosedError("the event loop of the cache is closed")
        if ends is not None and time.monotonic() >= ends:
            future.cancel()
            raise TimeoutError(f"the kernel was not there within {timeout:g} s")


def _loop_runs_here() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class Forkable(Protocol):
    """What must not be used by a forked child as if it were its own."""

    def disown(self) -> None:
        """Refuse all work from now on: this is a child."""


_live: WeakSet[Forkable] = WeakSet()


def disown_in_children(mine: Forkable) -> None:
    """Have `mine.disown` called in every child that is forked from now on."""
    _live.add(mine)


def _after_fork() -> None:
    for mine in list(_live):
        mine.disown()


os.register_at_fork(after_in_child=_after_fork)
