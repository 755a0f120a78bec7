"""File systems that count, fail or kill at one call; entries to try them with."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import signal
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from kernels_async import Diagnostic, Resources, Severity
from kernels_async._artifact import Output
from kernels_async._files import Files

ENTRIES = {"symbol": "k<int>", "target": "sm_90", "toolchain": "nvrtc 13.5"}
OPERATIONS = [name for name in vars(Files) if not name.startswith("_")]
CHILD_SECONDS = 120
MOMENTS = ("before", "half", "after")


class Watched(Files):
    """Every call goes through `around`."""

    def around(self, name: str, call: Callable[[], Any], arguments: tuple[Any, ...]) -> Any:
        """Make one call of an operation."""
        return call()


def _watched(name: str) -> Callable[..., Any]:
    real = getattr(Files, name)

    def method(self: Watched, *arguments: Any, **named: Any) -> Any:
        return self.around(name, partial(real, self, *arguments, **named), arguments)

    return method


for _name in OPERATIONS:
    setattr(Watched, _name, _watched(_name))


class Counting(Watched):
    """Notes the name of every call."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def around(self, name: str, call: Callable[[], Any], arguments: tuple[Any, ...]) -> Any:
        self.calls.append(name)
        return call()


class Killing(Watched):
    """Kills this process before, within or after the call of that number, from 1."""

    def __init__(self, at: int, moment: str) -> None:
        self._left = at
        self._moment = moment

    def around(self, name: str, call: Callable[[], Any], arguments: tuple[Any, ...]) -> Any:
        self._left -= 1
        if self._left:
            return call()
        if self._moment == "half" and name == "write":
            fd, data = arguments
            os.write(fd, data[: len(data) // 2])
        elif self._moment != "before":
            call()
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("it lives on")


class Failing(Watched):
    """Fails the call of that number, from 1; `for_ever`, all of its kind from then on.

    Args:
        at: The number of the call.
        number: The system's number of the error.
        for_ever: Whether it goes on failing.
        done: Whether the call has its effect all the same, as on a network file system.
    """

    def __init__(
        self, at: int, number: int, *, for_ever: bool = False, done: bool = False
    ) -> None:
        self._left = at
        self._number = number
        self._for_ever = for_ever
        self._done = done
        self._name = ""
        self.failed = 0

    def around(self, name: str, call: Callable[[], Any], arguments: tuple[Any, ...]) -> Any:
        self._left -= 1
        if self._left == 0:
            self._name = name
        if name == self._name and (self._left == 0 or self._for_ever):
            self.failed += 1
            if self._done or name == "close":
                call()
            raise OSError(self._number, os.strerror(self._number))
        return call()

    def heal(self) -> None:
        """Fail no more."""
        self._for_ever = False


def make_output(generator: random.Random, size: int = 200) -> Output:
    """An output like no other."""
    return Output(
        data=b"\x7fELF" + generator.randbytes(size),
        entry="_Z1kv",
        diagnostics=(Diagnostic(Severity.WARNING, "unused", "177-D", "k.cu", 1, 2, "x"),),
        resources=Resources(1, 2, 3, 4, 5, 6, 7),
        compile_seconds=0.25,
    )


def make_key(generator: random.Random) -> str:
    """A key like no other, of few directories."""
    return generator.choice(("ab", "cd")) + generator.randbytes(31).hex()


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """An empty folder, in memory if that can be had; the store's warnings are off."""
    memory = Path("/dev/shm")  # noqa: S108 - a folder of its own is made in it
    place = memory if os.access(memory, os.W_OK) else None
    logger = logging.getLogger("kernels_async")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with tempfile.TemporaryDirectory(prefix="bar-", dir=place) as name:
            yield Path(name)
    finally:
        logger.setLevel(level)


def fork(run: Callable[[], object]) -> int:
    """Run it in a child; how that ended, as `os.waitstatus_to_exitcode` says it."""
    child = start(run)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def start(run: Callable[[], object]) -> int:
    """Run it in a child, which exits with 0, or tells what it raised; its process number.

    A child that hangs is killed by its alarm.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        child = os.fork()
    if child:
        return child
    status = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(CHILD_SECONDS)
        run()
        status = 0
    except BaseException:  # noqa: BLE001 - its parent sees the status
        traceback.print_exc()
    finally:
        os._exit(status)
