"""How a command ends: its exit codes, and what signals and closed pipes do to it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

GOOD = 0
PROBLEMS = 1
USAGE = 2
CANNOT = 3
INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM
BROKEN_PIPE = 128 + signal.SIGPIPE

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


def _forget_output() -> None:
    """Send what is still to be written nowhere: the interpreter flushes it at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
