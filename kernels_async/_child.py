"""A child process and its pipes, for asyncio.

asyncio's own takes several turns of the loop to start one, and a loop that ends between
them waits for ever; this one is started in one step. It needs no task, and takes the exit
status of no other child.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence

import anyio

_CHUNK = 1 << 16
_LAST_WORDS = 4096
_PATIENCE = 1.0


class Child:
    """One process, the leader of a session and a process group of its own.

    Args:
        command: Its program and arguments.
        folder: Its working directory.
        environment: Its environment.
        keep: A descriptor that it inherits.

    Attributes:
        pid: Its number, and that of its group.
        last_words: The last of what it wrote to its standard error.

    Raises:
        OSError: It cannot be started.
        RuntimeError: There is no thread to wait for it.
    """

    def __init__(
        self, command: Sequence[str], folder: str, environment: Mapping[str, str], keep: int
    ) -> None:
        self._process = subprocess.Popen(
            command,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env=environment,
            start_new_session=True,
            pass_fds=[keep],
        )
        self.pid = self._process.pid
        self.last_words = b""
        self._killing = threading.Lock()
        self._may_be_killed = True
        pipes = (self._process.stdin, self._process.stdout, self._process.stderr)
        self._pipes = [pipe for pipe in pipes if pipe is not None]
        self._stdin, self._stdout, self._stderr = (pipe.fileno() for pipe in self._pipes)
        for descriptor in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(descriptor, False)
        self._ended, self._silent = asyncio.Event(), asyncio.Event()
        self._loop = asyncio.get_running_loop()
        try:
            threading.Thread(target=self._watch, daemon=True).start()
        except BaseException:
            self.kill_group()
            self._process.wait()
            self._close_pipes()
            raise
        self._loop.add_reader(self._stderr, self._listen)

    @property
    def returncode(self) -> int | None:
        """Its exit status, negative for a signal; `None` while it is not known to end."""
        return self._process.returncode

    async def send(self, data: bytes) -> None:
        """Write to its standard input; nothing, if it does not read any more."""
        view = memoryview(data)
        with contextlib.suppress(BrokenPipeError):
            while view:
                try:
                    view = view[os.write(self._stdin, view) :]
                except BlockingIOError:
                    await _writable(self._stdin)

    async def read_output(self) -> bytes:
        """Some of its standard output; nothing at its end."""
        return await _read(self._stdout)

    def kill_group(self) -> None:
        """Kill it and everything in its group that it started, unless it is reaped.

        After that its number may be another's.
        """
        with self._killing, contextlib.suppress(ProcessLookupError):
            if self._may_be_killed:
                os.killpg(self.pid, signal.SIGKILL)

    async def aclose(self) -> None:
        """Wait for its end and that of its group, and let go of its pipes.

        Nobody may be reading or writing them.
        """
        if not self._pipes:
            return
        await self._ended.wait()
        with anyio.move_on_after(_PATIENCE):
            await self._silent.wait()
        with anyio.move_on_after(_PATIENCE):
            while self._reap_group():  # noqa: ASYNC110 - it sets no event
                await anyio.sleep(0.005)
        self._loop.remove_reader(self._stderr)
        self._close_pipes()

    def _watch(self) -> None:
        """Wait in a thread for its end, and kill what it leaves in its group."""
        with contextlib.suppress(ChildProcessError):  # the host takes all statuses
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            self.kill_group()
        with self._killing:
            self._may_be_killed = False
        self._process.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._ended.set)

    def _listen(self) -> None:
        """Read some of its standard error, and keep the last of it."""
        with contextlib.suppress(BlockingIOError):
            chunk = os.read(self._stderr, _CHUNK)
            self.last_words = (self.last_words + chunk)[-_LAST_WORDS:]
            if not chunk:
                self._loop.remove_reader(self._stderr)
                self._silent.set()

    def _reap_group(self) -> bool:
        """Whether this process has other children in the group; the ended are reaped.

        Those of the child become this process's own where it is an init.
        """
        try:
            while os.waitpid(-self.pid, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return False
        return True

    def _close_pipes(self) -> None:
        pipes, self._pipes = self._pipes, []
        for pipe in pipes:
            pipe.close()


async def _read(descriptor: int) -> bytes:
    while True:
        try:
            return os.read(descriptor, _CHUNK)
        except BlockingIOError:
            await _readable(descriptor)


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    await _ready(descriptor, loop.add_reader, loop.remove_reader)


async def _writable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    await _ready(descriptor, loop.add_writer, loop.remove_writer)


async def _ready(
    descriptor: int,
    add: Callable[[int, Callable[[], None]], None],
    remove: Callable[[int], bool],
) -> None:
    ready = asyncio.Event()
    add(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        remove(descriptor)
