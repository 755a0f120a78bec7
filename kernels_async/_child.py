"""A child process and its pipes, for asyncio.

asyncio's own holds the loop up until the new program is loaded, and one that ends meanwhile
waits for ever; this one is started in a thread, and killed if nobody waits for it any more.
It needs no task, and takes the exit status of no other child.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future

import anyio

from ._spawn import Spawned

_CHUNK = 1 << 16
_LAST_WORDS = 4096
_PATIENCE = 1.0


class Child:
    """One process and its pipes, as an event loop sees it.

    It is made in a thread, as it starts one, whose first step would hold up the loop.

    Args:
        process: The process, just started.
        loop: The event loop.

    Attributes:
        pid: Its number, and that of its group.
        returncode: Its exit status, negative for a signal; `None` while it is not known
            to end.
        last_words: The last of what it wrote to its standard error.

    Raises:
        RuntimeError: There is no thread to wait for it; it is killed.
    """

    def __init__(self, process: Spawned, loop: asyncio.AbstractEventLoop) -> None:
        self._process = process
        self.pid: int = process.pid
        self.returncode: int | None = None
        self.last_words: bytes = b""
        self._killing = threading.Lock()
        self._may_be_killed = True
        self._open = True
        for descriptor in (process.stdin, process.stdout, process.stderr):
            os.set_blocking(descriptor, False)
        self._ended, self._silent = asyncio.Event(), asyncio.Event()
        self._waiting: set[asyncio.Event] = set()
        self._loop = loop
        self._watching = threading.Thread(target=self._watch, daemon=True)
        try:
            self._watching.start()
        except BaseException:
            self.kill_group()
            _reap(process.pid)
            process.close()
            raise

    @classmethod
    async def start(cls, thread: Executor, function: Callable[[], Spawned]) -> Child:
        """What `function` starts in a thread; killed if the caller does not wait for it.

        Args:
            thread: One thread, which the kernel takes for the process's parent: it has to
                live as long. When it has ended, so has what nobody waited for.
            function: Starts the process.

        Raises:
            OSError: It cannot be started.
            RuntimeError: There is no thread to start it, or to wait for it.
        """
        loop = asyncio.get_running_loop()
        starting = thread.submit(lambda: cls(function(), loop))
        try:
            child = await asyncio.wrap_future(starting)
        except BaseException:
            with contextlib.suppress(RuntimeError):  # it ends, and with it the process
                thread.submit(_end, starting)
            raise
        loop.add_reader(child._process.stderr, child._listen)
        return child

    async def send(self, data: bytes) -> None:
        """Write to its standard input; nothing, if it does not read any more."""
        view, stdin = memoryview(data), self._process.stdin
        with contextlib.suppress(BrokenPipeError):
            while view:
                ended = self._ended.is_set()
                try:
                    view = view[os.write(stdin, view) :]
                except BlockingIOError:
                    if ended:
                        return
                    loop = self._loop
                    await self._ready(stdin, loop.add_writer, loop.remove_writer)

    async def read_output(self) -> bytes:
        """Some of its standard output; nothing at its end.

        The end is its own: a child that the host forked may hold the pipe open.
        """
        stdout = self._process.stdout
        while True:
            ended = self._ended.is_set()
            try:
                return os.read(stdout, _CHUNK)
            except BlockingIOError:
                if ended:
                    return b""
                await self._ready(stdout, self._loop.add_reader, self._loop.remove_reader)

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
        if not self._open:
            return
        await self._ended.wait()
        with anyio.move_on_after(_PATIENCE):
            await self._silent.wait()
        with anyio.move_on_after(_PATIENCE):
            while self._reap_group():  # noqa: ASYNC110 - it sets no event
                await anyio.sleep(0.005)
        self._loop.remove_reader(self._process.stderr)
        self._process.close()
        self._open = False

    def _watch(self) -> None:
        """Wait in a thread for its end, and kill what it leaves in its group."""
        with contextlib.suppress(ChildProcessError):  # the host takes all statuses
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            self.kill_group()
        with self._killing:
            self._may_be_killed = False
        self.returncode = _reap(self.pid)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        """Have nobody wait for a pipe any more: it has ended."""
        self._ended.set()
        for ready in self._waiting:
            ready.set()

    async def _ready(
        self,
        descriptor: int,
        add: Callable[[int, Callable[[], None]], None],
        remove: Callable[[int], bool],
    ) -> None:
        """Wait until there is something to do with a pipe, or for its end."""
        ready = asyncio.Event()
        self._waiting.add(ready)
        add(descriptor, ready.set)
        try:
            await ready.wait()
        finally:
            remove(descriptor)
            self._waiting.discard(ready)

    def _listen(self) -> None:
        """Read some of its standard error, and keep the last of it."""
        with contextlib.suppress(BlockingIOError):
            chunk = os.read(self._process.stderr, _CHUNK)
            self.last_words = (self.last_words + chunk)[-_LAST_WORDS:]
            if not chunk:
                self._loop.remove_reader(self._process.stderr)
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


def _end(starting: Future[Child]) -> None:
    """Kill a child that nobody waits for any more."""
    if not starting.cancelled() and starting.exception() is None:
        child = starting.result()
        child.kill_group()
        child._watching.join()
        child._process.close()


def _reap(pid: int) -> int:
    """Wait for the end of a process; its exit status, 0 if another has taken that."""
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return 0
