"""Threads that nobody else can take."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

import anyio
from anyio import to_thread

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


async def in_thread(
    function: Callable[[*Arguments], T],
    *arguments: *Arguments,
    limiter: anyio.CapacityLimiter | None = None,
    abandon: bool = False,
) -> T:
    """Run a function in a thread.

    anyio's own forty are the host's too, as the endpoints of a web server: where all of
    them wait for a kernel, none would be left to load it.

    Args:
        function: What to call.
        arguments: With what.
        limiter: How many run at once; by default it counts against nobody.
        abandon: Whether, when this is cancelled, the thread is not waited for.
    """
    return await to_thread.run_sync(
        function,
        *arguments,
        limiter=limiter or anyio.CapacityLimiter(1),
        abandon_on_cancel=abandon,
    )
