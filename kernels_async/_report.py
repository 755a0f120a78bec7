"""Tells the reporter of each artifact, before it loads."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass

import anyio

from ._artifact import Artifact
from ._errors import KernelsError, ReentryError, ReporterError
from ._threads import in_thread

Reporter = Callable[[Artifact], Awaitable[object] | object]
"""What `Kernels.reporting` takes: a function of an artifact, `async` or not."""


@dataclass
class _Call:
    reporting: Reporting
    running: bool = True


_calls: ContextVar[tuple[_Call, ...]] = ContextVar("kernels_async_reports", default=())


class Reporting:
    """The reporter of one cache, and the calls to it.

    Calls never overlap. A plain function is called in a thread, so that it may take its
    time without stalling the event loop. It may be replaced at any moment.

    Args:
        owner: What waits for the reporter as the cache does: the cache's compiler.
    """

    def __init__(self, owner: object) -> None:
        self.owner = owner
        self.reporter: Reporter | None = None
        self._lock = anyio.Lock()

    async def report(self, artifact: Artifact) -> bool:
        """Call the reporter with `artifact`; whether there is one.

        Raises:
            ReporterError: The reporter raised.
            KernelsError: The reporter raised one, to refuse the artifact with it.
            KeyboardInterrupt: The program was interrupted in it.
        """
        async with self._lock:
            reporter = self.reporter
            if reporter is None:
                return False
            call = _Call(self)
            token = _calls.set((*_calls.get(), call))
            try:
                await invoke(reporter, artifact)
            except (KernelsError, KeyboardInterrupt):
                raise
            except BaseException as error:
                if _cancelled(error):
                    raise
                raise ReporterError(
                    f"the reporter raised on {artifact.symbol!r}: {error!r}"
                ) from error
            finally:
                call.running = False
                _calls.reset(token)
        return True

    async def aclose(self) -> None:
        """Have the reporter finish, if it has a method `aclose`."""
        finish = getattr(self.reporter, "aclose", None)
        if finish is not None:
            await finish()

    def refuse_reentry(self) -> None:
        """Raise `ReentryError` if a call of this reporter is what is running."""
        refuse_reentry(lambda reporting: reporting is self)


def refuse_reentry(waits: Callable[[Reporting], bool]) -> None:
    """Raise `ReentryError` if the call of a reporter that `waits` names is running."""
    if any(call.running and waits(call.reporting) for call in _calls.get()):
        raise ReentryError(
            "the reporter asked its own cache for work, which waits for the reporter; "
            "ask from outside it"
        )


def _cancelled(error: BaseException) -> bool:
    """Whether it is the cache that ends, and not the reporter that raised."""
    task = asyncio.current_task()
    return (
        isinstance(error, asyncio.CancelledError)
        and task is not None
        and task.cancelling() > 0
    )


async def invoke(reporter: Reporter, artifact: Artifact) -> None:
    """Call a reporter: in a thread, or on the loop if it is `async`.

    A cache that closes does not wait for the thread.
    """
    result: object
    calls = (reporter, type(reporter).__call__)
    if any(map(inspect.iscoroutinefunction, calls)):
        result = reporter(artifact)
    else:
        result = await in_thread(reporter, artifact, abandon=True)
    if inspect.isawaitable(result):
        await result
