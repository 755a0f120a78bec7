"""The worker processes of a pool: started on demand, gone when idle for a while."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import anyio

from . import _frames
from ._blame import Circuit
from ._errors import ToolchainError
from ._machine import resident_bytes
from ._private import remove_folder
from ._process import Lifeline, LostError, WorkerProcess, make_folder
from ._sandbox import Mode
from ._scope import Scope
from ._threads import in_thread
from .toolchains import Toolchain

logger = logging.getLogger("kernels_async")

IDLE_SECONDS = 60.0
START_SECONDS = 120.0
RECYCLE_BYTES = 1 << 30
RECYCLE_JOBS = 1000
_EXHAUSTED = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE}


@dataclass(frozen=True)
class Limits:
    """What a pool's compiles may take.

    Attributes:
        workers: How many run at once.
        timeout: Seconds after which one is killed.
        memory: Bytes of resident memory above which one is killed.
        sandbox: Whether its worker confines itself: as it can, or it must, or not.
    """

    workers: int
    timeout: float
    memory: int
    sandbox: Mode


class Crew:
    """The workers of one pool, each doing one job at a time.

    Attributes:
        workers: All of them.
        idle: Those that have nothing to do, the last to be busy last.
        busy: Those that have a job.
        sandbox: How the last one that started has confined itself.

    Args:
        toolchain: What the workers are.
        limits: How many there may be, and what each may take.
        folder: A private folder; each worker sits in an empty one inside it.
        scope: Owns the task that stops idle ones.
    """

    def __init__(
        self, toolchain: Toolchain, limits: Limits, folder: Path, scope: Scope
    ) -> None:
        self.sandbox: str = "not known before a worker has started"
        self._limits = limits
        self._folder = folder
        self._scope = scope
        self._circuit = Circuit()
        self._lifeline = Lifeline()
        self._starter = ThreadPoolExecutor(1, "kernels_async-workers")
        self._configuration = _frames.encode(
            {
                "toolchain": toolchain.configuration(),
                "memory": limits.memory,
                "sandbox": limits.sandbox,
            }
        )
        self.workers: set[WorkerProcess] = set()
        self.idle: list[WorkerProcess] = []
        self.busy: set[WorkerProcess] = set()
        self._starting = 0
        self._freed = anyio.Event()

    def watch(self) -> None:
        """Begin to stop workers that have been idle for a while."""
        self._scope.start_soon(self._stop_idle)

    async def take(self, prefix: str) -> WorkerProcess:
        """A worker for one job, until it is `done`.

        An idle worker that knows the prefix, else any, a new one, the next free one.

        Raises:
            ToolchainError: None can start.
        """
        worker = await self._acquire(prefix)
        self.busy.add(worker)
        return worker

    async def _acquire(self, prefix: str) -> WorkerProcess:
        while True:
            while self.idle:
                known = (worker for worker in self.idle if prefix in worker.prefixes)
                worker = next(known, self.idle[-1])
                self.idle.remove(worker)
                if worker.alive:
                    return worker
                await self.discard(worker)
            self._circuit.check()
            try:
                return await self._start()
            except LostError:
                continue
            except (OSError, RuntimeError) as error:
                exhausted = getattr(error, "errno", errno.EAGAIN) in _EXHAUSTED
                if not exhausted or not (self.busy or self.idle or self._starting):
                    raise ToolchainError(f"a worker cannot start: {error}") from error
            if not self.idle:
                await self._freed.wait()

    def _wake(self) -> None:
        """Have those look again who wait for a worker, as none more could start."""
        self._freed.set()
        self._freed = anyio.Event()

    async def _start(self) -> WorkerProcess:
        self._starting += 1
        try:
            return await self._started()
        finally:
            self._starting -= 1
            if not (self._starting or self.busy):
                self._wake()

    async def _started(self) -> WorkerProcess:
        folder = await in_thread(make_folder, self._folder)
        try:
            worker = await WorkerProcess.start(self._starter, folder, self._lifeline)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await in_thread(remove_folder, folder)
            raise
        taken = {one.number for one in self.workers}
        worker.number = next(number for number in count(1) if number not in taken)
        self.workers.add(worker)
        try:
            with anyio.fail_after(START_SECONDS):
                await worker.configure(self._configuration)
        except BaseException as error:
            await self.discard(worker)
            if isinstance(error, LostError | TimeoutError):
                how = str(error) or f"took more than {START_SECONDS:g} s"
                told = f"a worker cannot start: it {worker.obituary(how)}"
                self._circuit.failed(ToolchainError(told))
                if isinstance(error, TimeoutError):
                    raise ToolchainError(told) from None
            elif isinstance(error, ToolchainError):
                self._circuit.failed(error)
            raise
        self.sandbox = worker.sandbox
        return worker

    def done(self, worker: WorkerProcess) -> None:
        """It has no job any more; it may have ended."""
        self.busy.discard(worker)
        self._wake()

    async def put_back(self, worker: WorkerProcess, *, spoiled: bool) -> None:
        """Keep a worker that did its job for the next, unless it is worn or too large."""
        self._circuit.succeeded()
        most = min(RECYCLE_BYTES, self._limits.memory // 2)
        worn = spoiled or worker.jobs >= RECYCLE_JOBS
        if worn or resident_bytes(worker.pid) > most:
            await self.discard(worker)
        else:
            self.idle.append(worker)

    async def trim(self) -> int:
        """Stop the idle workers now; how many there were."""
        idle = self.idle.copy()
        self.idle.clear()
        await self._stop(idle)
        return len(idle)

    async def aclose(self) -> None:
        """Stop every worker."""
        self.idle.clear()
        await self._stop(self.workers)
        await in_thread(self._starter.shutdown)
        self._lifeline.close()

    async def _stop(self, workers: Iterable[WorkerProcess]) -> None:
        """End workers side by side."""
        async with anyio.create_task_group() as tasks:
            for worker in list(workers):
                worker.stop()
                tasks.start_soon(self.discard, worker)

    async def discard(self, worker: WorkerProcess) -> None:
        """End a worker and everything that it left."""
        worker.stop()
        with anyio.CancelScope(shield=True):
            await worker.aclose()
            await in_thread(remove_folder, worker.folder)
        self.workers.discard(worker)

    async def _stop_idle(self) -> None:
        while True:
            await anyio.sleep(IDLE_SECONDS / 4)
            tired = time.monotonic() - IDLE_SECONDS
            old = [worker for worker in self.idle if worker.idle_since < tired]
            self.idle[:] = [worker for worker in self.idle if worker not in old]
            try:
                await self._stop(old)
            except Exception:
                logger.exception("idle workers could not be stopped")
