"""One worker process, as the pool sees it: started, asked, killed, cleaned up."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

import anyio
from anyio import to_thread
from anyio.abc import ByteReceiveStream, ByteSendStream, Process

from . import _frames
from ._artifact import Output
from ._diagnostics import printable
from ._errors import KernelsError

T = TypeVar("T")

_BIG = 1 << 18
_STDERR_TAIL = 4096
_FIRST_FREE = 3
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
        given = os.memfd_create("kernels_async")
        self.descriptor = fcntl.fcntl(given, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE)
        os.close(given)
        fcntl.lockf(self.descriptor, fcntl.LOCK_EX)

    def close(self) -> None:
        """Let go of it."""
        os.close(self.descriptor)


class WorkerProcess:
    """One worker process, the pipes to it and the folder that it sits in.

    Attributes:
        pid: Its number, and that of its process group.
        folder: Its private folder, removed by the owner.
        sandbox: How it is confined, by its own account, once it has said hello.
        idle_since: When it last had nothing to do.
        jobs: How many it has begun.
        began: Whether it has begun the job that it was last asked.
        over_memory: Whether it was stopped for what it held.
    """

    def __init__(self, process: Process, folder: str) -> None:
        self.pid = process.pid
        self.folder = folder
        self.sandbox = ""
        self.idle_since = time.monotonic()
        self.jobs = 0
        self.began = False
        self.over_memory = False
        self._process = process
        self._stdin = cast(ByteSendStream, process.stdin)
        self._stdout = cast(ByteReceiveStream, process.stdout)
        self._unread = bytearray()
        self._stderr = cast(ByteReceiveStream, process.stderr)
        self._tail = b""
        self._stderr_ended = anyio.Event()
        self._collecting = False
        self._stopped = False
        self._busy = True

    @classmethod
    async def start(cls, folder: str, lifeline: Lifeline) -> WorkerProcess:
        """Start one in a folder; raises `OSError` where the system has no more."""
        module = f"{__package__}._worker"
        watched = (lifeline.descriptor, threading.get_native_id())
        with anyio.CancelScope(shield=True):
            process = await anyio.open_process(
                [sys.executable, "-P", "-m", module, *map(str, watched)],
                cwd=folder,
                env=_environment(folder),
                start_new_session=True,
                pass_fds=[lifeline.descriptor],
            )
        return cls(process, folder)

    @property
    def alive(self) -> bool:
        """Whether it is not known to have ended."""
        return self._process.returncode is None

    @property
    def returncode(self) -> int | None:
        """Its exit status, negative for a signal; `None` if it has not ended."""
        return self._process.returncode

    async def configure(self, frame: bytes) -> None:
        """Say what it is, and wait until it can compile.

        Raises:
            LostError: It died before.
            ToolchainError: It says that it cannot.
        """
        await self._send(frame)
        self.sandbox = await self._receive(_frames.NOTE, lambda t, _: _frames.read_hello(t))
        self._busy = False

    async def ask(self, number: int, frame: bytes) -> Output | KernelsError:
        """Have it do a job; what came of it.

        Raises:
            LostError: It had not begun; another worker may do the job.
            DiedError: It died or misbehaved while it did it.
        """
        self._busy, self.began = True, False
        await self._send(frame)
        await self._receive(_frames.NOTE, lambda t, _: _frames.read_begun(t, number))
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
        self._busy = False
        self.idle_since = time.monotonic()
        return outcome

    async def _send(self, frame: bytes) -> None:
        """Send a frame; if the worker is dead, its missing answer will tell."""
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._stdin.send(frame)

    async def _receive(
        self, bounds: _frames.Bounds, read: Callable[[bytes, bytes], T]
    ) -> T:
        """The worker's next frame as `read` understands it, a big one in a thread."""
        try:
            header = await self._exactly(_frames.HEADER.size)
            lengths = _frames.lengths(header, bounds)
            text = await self._exactly(lengths.text)
            data = await self._exactly(lengths.data)
            if lengths.text < _BIG:
                return read(text, data)
            return await to_thread.run_sync(read, text, data)
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            raise LostError("died") from None
        except ValueError as error:
            said = printable(str(error), 200)
            raise LostError(f"wrote what is no answer ({said})") from None

    async def _exactly(self, size: int) -> bytes:
        while len(self._unread) < size:
            self._unread += await self._stdout.receive()
        found = bytes(self._unread[:size])
        del self._unread[:size]
        return found

    async def end_group(self) -> None:
        """Kill what it started when it ends: that may hold its pipes open."""
        await self._process.wait()
        self.stop()

    async def collect_stderr(self) -> None:
        """Read what it writes to its standard error, and keep the last of it."""
        self._collecting = True
        try:
            async for chunk in self._stderr:
                self._tail = (self._tail + chunk)[-_STDERR_TAIL:]
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        finally:
            self._stderr_ended.set()

    def stop(self) -> None:
        """Kill the process and whatever it started, once; does not wait.

        One that died idle has started nothing, and its number may be another's by now.
        """
        if not self._stopped and (self.alive or self._busy):
            self._stopped = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    async def aclose(self) -> None:
        """Wait for its end, after `stop`, and let go of its pipes."""
        if self._collecting:
            with anyio.move_on_after(1):
                await self._stderr_ended.wait()
        await self._process.aclose()
        if self._stopped:
            await self._reap_group()

    async def _reap_group(self) -> None:
        """Wait for its killed children, which are ours where this process is an init."""
        with anyio.move_on_after(1):
            while _has_children(self.pid):  # noqa: ASYNC110 - processes set no event
                await anyio.sleep(0.005)

    @property
    def stderr(self) -> str:
        """The last of what it wrote to its standard error."""
        return printable(self._tail.decode(errors="backslashreplace")).strip()

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


def _has_children(group: int) -> bool:
    """Whether this process has children left in a group; those that ended are reaped."""
    try:
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


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
