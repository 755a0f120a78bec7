"""A task group that may be opened in one task and closed in another."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVarTuple

import anyio
from anyio.abc import TaskGroup

from ._errors import ClosedError

Arguments = TypeVarTuple("Arguments")

_Dropped = Callable[[], None] | None

logger = logging.getLogger("kernels_async")


class Scope:
    """Owns the tasks that do a part's work, so that callers only wait.

    Its own supervisor task enters and leaves the task group, so no cancel scope is left
    open across the caller's `async with`: pytest fixtures and a server's lifespan open
    and close in different tasks. The supervisor also cleans up, whatever becomes of the
    caller that closes. A task that raises ends alone, and is logged.

    Args:
        parent: The scope whose end also ends this one.
        clean_up: Runs once, when every task of the scope has ended.
    """

    def __init__(
        self,
        parent: Scope | None = None,
        clean_up: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._parent = parent
        self._clean_up = clean_up
        self._tasks: TaskGroup | None = None
        self._opened = asyncio.Event()
        self._closing = asyncio.Event()
        self._ended = asyncio.Event()
        self._supervisor: asyncio.Task[None] | None = None
        self._numbers = itertools.count()
        self._unstarted: dict[int, tuple[Coroutine[Any, Any, None], _Dropped]] = {}

    async def open(self) -> None:
        """Start the supervisor and wait until tasks can be started."""
        if self._parent is None:
            self._supervisor = asyncio.create_task(self._supervise())
            self._supervisor.add_done_callback(lambda _: self._end())
        else:
            self._parent.start_soon(self._supervise, dropped=self._end)
        try:
            await self._opened.wait()
        except BaseException:
            self._closing.set()
            raise

    def start_soon(
        self,
        function: Callable[[*Arguments], Coroutine[Any, Any, None]],
        *arguments: *Arguments,
        dropped: Callable[[], None] | None = None,
    ) -> None:
        """Start a task of this scope.

        Args:
            function: What it does.
            arguments: With what.
            dropped: Called if the scope ends before the task has begun.

        Raises:
            ClosedError: The scope has ended, or ends.
        """
        if self._tasks is None or self._closing.is_set():
            raise ClosedError("the cache or its compiler is closed")
        number = next(self._numbers)
        work = self._run(number, function, arguments)
        self._unstarted[number] = (work, dropped)
        self._tasks.start_soon(lambda: work, name=function)

    async def aclose(self) -> None:
        """Cancel every task of this scope and wait until it has cleaned up."""
        self._closing.set()
        with anyio.CancelScope(shield=True):
            await self._ended.wait()

    async def _run(
        self,
        number: int,
        function: Callable[[*Arguments], Coroutine[Any, Any, None]],
        arguments: tuple[*Arguments],
    ) -> None:
        del self._unstarted[number]
        try:
            await function(*arguments)
        except Exception:
            logger.exception("a task of kernels_async failed: %r", function)

    async def _supervise(self) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                self._opened.set()
                await self._closing.wait()
                tasks.cancel_scope.cancel()
        finally:
            self._closing.set()
            for never_awaited, dropped in self._unstarted.values():
                never_awaited.close()
                if dropped is not None:
                    dropped()
            try:
                if self._clean_up is not None:
                    with anyio.CancelScope(shield=True):
                        await self._clean_up()
            finally:
                self._end()

    def _end(self) -> None:
        self._opened.set()
        self._ended.set()
