"""The pool of worker processes that compile.

Workers start on demand, run one job at a time and go when they have been idle for a
while. A worker that crashes, hangs or is killed fails the job that it ran and no other.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import cast

import anyio
from anyio import to_thread
from anyio.abc import ByteReceiveStream, ByteSendStream, Process
from anyio.streams.buffered import BufferedByteReceiveStream

from . import _frames
from ._artifact import Output
from ._diagnostics import printable
from ._errors import CompileTimeout, KernelsError, ToolchainError, WorkerCrashed
from ._scope import Scope
from .toolchains import Job, Toolchain

IDLE_SECONDS = 60.0
_BIG = 1 << 18
_STDERR_TAIL = 4096
_KEPT_ENVIRONMENT = ("HOME", "LANG", "LD_LIBRARY_PATH", "PATH")


class CompilePool:
    """Compiles jobs in worker processes.

    Attributes:
        turn: Held by whoever compiles: so many at once and no more.

    Args:
        toolchain: What the workers are.
        workers: How many jobs run at once.
        timeout: Seconds after which a job's worker is killed.
        folder: A private folder; each worker sits in an empty one inside it.
        scope: Owns the tasks that watch over the workers.
    """

    def __init__(
        self,
        toolchain: Toolchain,
        workers: int,
        timeout: float,
        folder: Path,
        scope: Scope,
    ) -> None:
        self._toolchain = toolchain
        self._timeout = timeout
        self._folder = folder
        self._scope = scope
        self.turn = anyio.CapacityLimiter(workers)
        self._workers: set[_Worker] = set()
        self._idle: list[_Worker] = []

    def watch(self) -> None:
        """Begin to stop workers that have been idle for a while."""
        self._scope.start_soon(self._reap)

    async def compile(self, job: Job) -> Output:
        """Compile one job; the caller holds `turn`.

        Raises:
            CompileError: The compiler refused the source.
            ToolchainError: The compiler cannot be used, or not for this target.
            CompileTimeout: The job ran past the time-out; its worker was killed.
            WorkerCrashed: The worker died, or wrote what is no answer.
        """
        frame = await _encode(job)
        worker = self._take() or await self._start()
        try:
            with anyio.fail_after(self._timeout):
                outcome = await worker.ask(frame)
        except TimeoutError:
            await self._discard(worker)
            raise CompileTimeout(
                f"{_named(job)} did not compile within {self._timeout:g} s"
            ) from None
        except _Died as death:
            await self._discard(worker)
            raise worker.crashed(job, str(death)) from None
        except BaseException:
            await self._discard(worker)
            raise
        worker.idle_since = time.monotonic()
        self._idle.append(worker)
        if isinstance(outcome, KernelsError):
            raise outcome
        return outcome

    async def trim(self) -> int:
        """Stop the idle workers now; how many there were."""
        idle, self._idle = self._idle, []
        await self._stop(idle)
        return len(idle)

    async def aclose(self) -> None:
        """Stop every worker."""
        self._idle.clear()
        await self._stop(list(self._workers))

    async def _stop(self, workers: list[_Worker]) -> None:
        for worker in workers:
            worker.stop()
        for worker in workers:
            await self._discard(worker)

    async def _discard(self, worker: _Worker) -> None:
        """End a worker and everything that it left."""
        worker.stop()
        with anyio.CancelScope(shield=True):
            await worker.aclose()
            await to_thread.run_sync(remove_folder, worker.folder)
        self._workers.discard(worker)

    def _take(self) -> _Worker | None:
        while self._idle:
            worker = self._idle.pop()
            if worker.alive:
                return worker
            self._scope.start_soon(self._discard, worker)
        return None

    async def _start(self) -> _Worker:
        try:
            folder = await to_thread.run_sync(_make_folder, self._folder)
            with anyio.CancelScope(shield=True):
                process = await anyio.open_process(
                    [sys.executable, "-P", "-m", f"{__package__}._worker"],
                    cwd=folder,
                    env=_environment(folder),
                    start_new_session=True,
                )
        except OSError as error:
            raise ToolchainError(f"a worker cannot be started: {error}") from error
        worker = _Worker(process, folder)
        self._workers.add(worker)
        try:
            self._scope.start_soon(worker.collect_stderr)
            await worker.send(_frames.encode(self._toolchain.configuration()))
        except BaseException:
            await self._discard(worker)
            raise
        return worker

    async def _reap(self) -> None:
        while True:
            await anyio.sleep(IDLE_SECONDS / 4)
            tired = time.monotonic() - IDLE_SECONDS
            old = [worker for worker in self._idle if worker.idle_since < tired]
            self._idle = [worker for worker in self._idle if worker not in old]
            await self._stop(old)


class _Died(Exception):
    """The worker's end of the pipe broke, or sent what is no answer."""


class _Worker:
    """One worker process and the pipes to it."""

    def __init__(self, process: Process, folder: str) -> None:
        self.folder = folder
        self._process = process
        self._stdin = cast(ByteSendStream, process.stdin)
        self._stdout = BufferedByteReceiveStream(cast(ByteReceiveStream, process.stdout))
        self._stderr = cast(ByteReceiveStream, process.stderr)
        self._tail = b""
        self._stderr_ended = anyio.Event()
        self._collecting = False
        self._stopped = False
        self._busy = False
        self.idle_since = time.monotonic()

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    async def send(self, frame: bytes) -> None:
        """Send a frame; if the worker is dead, its missing answer will tell."""
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._stdin.send(frame)

    async def ask(self, frame: bytes) -> Output | KernelsError:
        self._busy = True
        await self.send(frame)
        try:
            header = await self._stdout.receive_exactly(_frames.HEADER.size)
            text, data = _frames.lengths(header)
            answer = await self._stdout.receive_exactly(text)
            output = await self._stdout.receive_exactly(data)
            self._busy = False
            if text < _BIG:
                return _frames.outcome(answer, output)
            return await to_thread.run_sync(_frames.outcome, answer, output)
        except (anyio.IncompleteRead, anyio.EndOfStream, anyio.BrokenResourceError):
            raise _Died("died") from None
        except ValueError as error:
            raise _Died(f"wrote what is no answer ({printable(str(error), 200)})") from None

    async def collect_stderr(self) -> None:
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
                os.killpg(self._process.pid, signal.SIGKILL)

    async def aclose(self) -> None:
        """Wait for its end, after `stop`, and let go of its pipes."""
        if self._collecting:
            with anyio.move_on_after(1):
                await self._stderr_ended.wait()
        await self._process.aclose()

    def crashed(self, job: Job, how: str) -> WorkerCrashed:
        code = self._process.returncode
        ended = ""
        if code is not None and code < 0:
            ended = f", by {_signal_name(-code)}"
        elif code:
            ended = f", with exit status {code}"
        stderr = printable(self._tail.decode(errors="backslashreplace")).strip()
        said = f"; it said: {stderr}" if stderr else ""
        return WorkerCrashed(
            f"the worker that compiled {_named(job)} {how}{ended}{said}",
            returncode=code,
            stderr=stderr,
        )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _named(job: Job) -> str:
    return f"{job.specialization.symbol!r} of {job.source.name}"


def remove_folder(folder: str | Path) -> None:
    """Remove a private folder with everything in it, as far as it goes."""
    shutil.rmtree(folder, ignore_errors=True)


def _make_folder(parent: Path) -> str:
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


async def _encode(job: Job) -> bytes:
    """The job's frame; big ones are made off the event loop."""
    size = len(job.source.text) + sum(map(len, job.source.headers.values()))
    if size < _BIG:
        return _frames.encode(job.to_record())
    return await to_thread.run_sync(lambda: _frames.encode(job.to_record()))
