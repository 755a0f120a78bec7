"""How a command ends: its exit codes, and what signals and closed pipes do to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Coroutine, Iterator
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")

GOOD = 0
PROBLEMS = 1
USAGE = 2
CANNOT = 3
INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM
BROKEN_PIPE = 128 + signal.SIGPIPE
_SHOW_CURSOR = b"\x1b[?25h\n"

CODES = {
    GOOD: "good",
    PROBLEMS: "it found problems, or not all that was asked for: some kernels failed",
    USAGE: "wrong usage",
    CANNOT: "it cannot work: no compiler, no access, a file that is no such file",
    INTERRUPTED: "interrupted",
    TERMINATED: "terminated",
}


class End:
    """What a command ends with.

    Attributes:
        code: Its exit code.
    """

    def __init__(self) -> None:
        self.code = GOOD


_terminated = threading.Event()


def interruption() -> int:
    """The exit code of what is interrupted now."""
    return TERMINATED if _terminated.is_set() else INTERRUPTED


def _terminate(number: int, frame: FrameType | None) -> None:
    """Do on SIGTERM what SIGINT does: end the event loop's task, or the program."""
    _terminated.set()
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):
        raise KeyboardInterrupt
    handler(number, frame)


@contextlib.contextmanager
def ending() -> Iterator[End]:
    """Run a command in it; whatever stops it, it ends without a traceback.

    What the command leaves to clean up is cleaned up: `SIGTERM` interrupts it as a Ctrl-C
    does. A reader of its output that has gone is no error.
    """
    end = End()
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, _terminate) if is_main else None
    _terminated.clear()
    try:
        yield end
        sys.stdout.flush()
    except KeyboardInterrupt:
        end.code = interruption()
    except BrokenPipeError:
        end.code = BROKEN_PIPE
        _forget_output()
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, before)


def run(work: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, in which a signal cancels the work, and another ends the program.

    `asyncio.run` itself raises the second one in whatever runs, which is what cleans up:
    what waits for that would wait for ever.

    Raises:
        KeyboardInterrupt: A signal came.
    """
    if threading.current_thread() is not threading.main_thread():
        return asyncio.run(work)
    before = signal.getsignal(signal.SIGTERM)
    try:
        return asyncio.run(_stopped_by_signals(work))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        signal.signal(signal.SIGTERM, before)


async def _stopped_by_signals(work: Coroutine[Any, Any, T]) -> T:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None  # noqa: S101 - a coroutine runs in one
    stopping = threading.Event()

    def stop(number: int) -> None:
        if stopping.is_set():
            if sys.stderr.isatty():
                os.write(sys.stderr.fileno(), _SHOW_CURSOR)
            os._exit(128 + number)
        stopping.set()
        if number == signal.SIGTERM:
            _terminated.set()
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:
            loop.add_signal_handler(number, stop, number)
    return await work


def _forget_output() -> None:
    """Send what is still to be written nowhere: the interpreter flushes it at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
