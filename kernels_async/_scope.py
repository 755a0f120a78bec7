"""A task group that may be opened in one task and closed in another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVarTuple

import anyio
from anyio.abc import TaskGroup

from ._errors import ClosedError

Arguments = TypeVarTuple("Arguments")


class Scope:
    """Owns the tasks that do a part's work, so that callers only wait.

    Its own supervisor task enters and leaves the task group, so no cancel scope is left
    open across the caller's `async with`: pytest fixtures and a server's lifespan open
    and close in different tasks.

    Args:
        parent: The scope whose end also ends this one.
    """

    def __init__(self, parent: Scope | None = None) -> None:
        self._parent = parent
        self._tasks: TaskGroup | None = None
        self._opened = asyncio.Event()
        self._closing = asyncio.Event()
        self._ended = asyncio.Event()
        self._supervisor: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Start the supervisor and wait until tasks can be started."""
        if self._parent is None:
            self._supervisor = asyncio.create_task(self._supervise())
        else:
            self._parent.start_soon(self._supervise)
        await self._opened.wait()

    def start_soon(
        self,
        function: Callable[[*Arguments], Coroutine[Any, Any, None]],
        *arguments: *Arguments,
    ) -> None:
        """Start a task of this scope.

        Raises:
            ClosedError: The scope has ended, or ends.
        """
        if self._tasks is None or self._closing.is_set():
            raise ClosedError("it is closed")
        self._tasks.start_soon(function, *arguments)

    async def aclose(self) -> None:
        """Cancel every task of this scope and wait until they have ended."""
        if self._tasks is not None:
            self._closing.set()
            await self._ended.wait()

    async def _supervise(self) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                self._opened.set()
                await self._closing.wait()
                tasks.cancel_scope.cancel()
        finally:
            self._closing.set()
            self._opened.set()
            self._ended.set()
