"""One worker process, as the pool sees it: started, asked, killed, cleaned up."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import TypeVar

from . import _frames
from ._artifact import Output
from ._child import Child
from ._diagnostics import printable
from ._errors import KernelsError
from ._spawn import above_standard_streams, spawn
from ._threads import in_thread

T = TypeVar("T")

_PROGRAM = str(Path(__file__).with_name("_start.py"))
_KEPT_ENVIRONMENT = ("HOME", "LANG", "LD_LIBRARY_PATH", "PATH")
_OUT_OF_MEMORY = ("LLVM ERROR: out of memory", "std::bad_alloc", "MemoryError")


class LostError(Exception):
    """The worker died, or sent what it may not, and had not begun a job."""


class DiedError(Exception):
    """It did so after it had begun its job."""


class Lifeline:
    """A lock that ends with this process, or when it becomes another program.

    Workers watch it, and end with it. Other than the pipes to them, it does not live on
    in a child that the server forked.
    """

    def __init__(self) -> None:
        self.descriptor: int = above_standard_streams(os.memfd_create("kernels_async"))
        fcntl.lockf(self.descriptor, fcntl.LOCK_EX)

    def close(self) -> None:
        """Let go of it."""
        os.close(self.descriptor)


class WorkerProcess:
    """One worker process, the pipes to it and the folder that it sits in.

    Args:
        child: The process, just started.
        folder: The folder.

    Attributes:
        pid: Its process's number, and that of its process group.
        number: Which of the pool's it is, counted from 1; the pool numbers them.
        folder: Its private folder, removed by the owner.
        sandbox: How it is confined, by its own account, once it has said hello.
        idle_since: When it last had nothing to do.
        jobs: How many it has begun.
        prefixes: How many jobs of each prefix it was asked.
        kept: The prefixes whose headers it keeps, for all that is known.
        began: Whether it has begun the job that it was last asked.
        over_memory: Whether it was stopped for what it held.
    """

    def __init__(self, child: Child, folder: str) -> None:
        self._child = child
        self.pid: int = self._child.pid
        self.number = 0
        self.folder = folder
        self.sandbox: str = ""
        self.idle_since: float = time.monotonic()
        self.jobs: int = 0
        self.prefixes: Counter[str] = Counter()
        self.kept: set[str] = set()
        self.began: bool = False
        self.over_memory = False
        self._unread = bytearray()

    @classmethod
    async def start(
        cls, thread: Executor, folder: str, lifeline: Lifeline
    ) -> WorkerProcess:
        """Start one.

        Args:
            thread: One thread, which lives as long as the worker may.
            folder: An empty folder for it.
            lifeline: What it watches.

        Raises:
            OSError: It cannot be started.
            RuntimeError: There is no thread for it.
        """
        watched = (lifeline.descriptor, threading.get_native_id())
        command = [sys.executable, "-P", _PROGRAM, *map(str, watched), folder]
        environment = _environment(folder)
        child = await Child.start(
            thread, lambda: spawn(command, environment, lifeline.descriptor)
        )
        return cls(child, folder)

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self._child.returncode is None

    @property
    def returncode(self) -> int | None:
        """Its exit status, negative for a signal; `None` if it has not ended."""
        return self._child.returncode

    async def configure(self, frame: bytes) -> None:
        """Say what it is, and wait until it can compile.

        Raises:
            LostError: It died before.
            ToolchainError: It says that it cannot.
        """
        await self._child.send(frame)
        self.sandbox = await self._receive(_frames.NOTE, lambda t, _: _frames.read_hello(t))

    async def ask(self, number: int, frame: bytes, shared: str) -> Output | KernelsError:
        """Have it do a job; what came of it.

        Args:
            number: The job's.
            frame: The job.
            shared: The prefix whose headers it is told to keep; it may not be able to.

        Raises:
            LostError: It had not begun; another worker may do the job.
            DiedError: It died or misbehaved while it did it.
        """
        self.began = False
        await self._child.send(frame)
        if not await self._receive(
            _frames.NOTE, lambda t, _: _frames.read_begun(t, number)
        ):
            self.kept.discard(shared)
        self.began = True
        self.jobs += 1
        try:
            outcome = await self._receive(
                _frames.ANSWER, lambda t, data: _frames.read_answer(t, data, number)
            )
        except LostError as error:
            raise DiedError(str(error)) from None
        if self._unread:
            raise DiedError("wrote more than an answer")
        self.idle_since = time.monotonic()
        return outcome

    async def _receive(
        self, bounds: _frames.Bounds, read: Callable[[bytes, bytes], T]
    ) -> T:
        """The worker's next frame as `read` understands it, a big one in a thread."""
        try:
            header = await self._exactly(_frames.HEADER.size)
            lengths = _frames.lengths(header, bounds)
            text = await self._exactly(lengths.text)
            data = await self._exactly(lengths.data)
            if lengths.text < _frames.BIG:
                return read(text, data)
            return await in_thread(read, text, data)
        except EOFError:
            raise LostError("died") from None
        except ValueError as error:
            said = printable(str(error), 200)
            raise LostError(f"wrote what is no answer ({said})") from None

    async def _exactly(self, size: int) -> bytes:
        while len(self._unread) < size:
            chunk = await self._child.read_output()
            if not chunk:
                raise EOFError
            self._unread += chunk
        found = bytes(self._unread[:size])
        del self._unread[:size]
        return found

    def stop(self) -> None:
        """Kill the process and whatever it started; does not wait."""
        self._child.kill_group()

    async def aclose(self) -> None:
        """Wait for its end, after `stop`, and let go of its pipes."""
        await self._child.aclose()

    @property
    def stderr(self) -> str:
        """The last of what it wrote to its standard error."""
        return printable(self._child.last_words.decode(errors="backslashreplace")).strip()

    @property
    def ran_out_of_memory(self) -> bool:
        """Whether it was stopped for its memory, or ended itself for want of it."""
        gave_up = self.returncode in (1, -signal.SIGABRT)
        said_so = any(word in self.stderr for word in _OUT_OF_MEMORY)
        return self.over_memory or (gave_up and said_so)

    def obituary(self, how: str) -> str:
        """How it ended, with its signal or status and its last words."""
        code = self.returncode
        ended = ""
        if code is not None and code < 0:
            ended = f", by {_signal_name(-code)}"
        elif code:
            ended = f", with exit status {code}"
        said = f"; it said: {self.stderr}" if self.stderr else ""
        return f"{how}{ended}{said}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def make_folder(parent: Path) -> str:
    """A new private folder for one worker."""
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return tempfile.mkdtemp(prefix="worker-", dir=parent)


def _environment(folder: str) -> dict[str, str]:
    """What a worker needs to find its modules and tools, and nothing of the user's."""
    kept = {name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ}
    modules = [str(Path(entry).absolute()) for entry in sys.path]
    return {
        **kept,
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join(modules),
        "PYTHONUTF8": "1",
        "TMPDIR": folder,
    }
