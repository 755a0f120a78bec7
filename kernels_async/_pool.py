"""The pool of worker processes that compile.

Workers start on demand, run one job at a time and go when they have been idle for a
while. A worker that crashes, hangs, eats memory or is killed fails the job that it had
begun and no other; one that dies idle fails none.
"""

from __future__ import annotations

import errno
import itertools
import logging
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, TypeVarTuple

import anyio

from . import _frames
from ._artifact import Output
from ._blame import Circuit, Quarantine
from ._errors import (
    CompileMemoryError,
    CompileTimeout,
    KernelsError,
    ToolchainError,
    WorkerCrashed,
)
from ._machine import resident_bytes
from ._memory import MemoryGuard
from ._private import remove_folder
from ._process import DiedError, Lifeline, LostError, WorkerProcess, make_folder
from ._sandbox import Mode
from ._scope import Scope
from ._sharing import Sharing
from ._threads import in_thread
from .toolchains import Job, Toolchain

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

logger = logging.getLogger("kernels_async")

IDLE_SECONDS = 60.0
START_SECONDS = 120.0
RECYCLE_BYTES = 1 << 30
RECYCLE_JOBS = 1000
_EXHAUSTED = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE}


@dataclass(frozen=True)
class _Work:
    """One job, and what is known of others like it; see `CompilePool.compile`."""

    key: str
    job: Job
    prefix: str
    more: int


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


class CompilePool:
    """Compiles jobs in worker processes.

    Attributes:
        turn: Held by whoever compiles: so many at once and no more.
        sharing: Which workers know which headers.

    Args:
        toolchain: What the workers are.
        limits: What compiles may take.
        folder: A private folder; each worker sits in an empty one inside it.
        scope: Owns the tasks that watch over the workers.
        quarantine: The requests that are not to be compiled.
    """

    def __init__(
        self,
        toolchain: Toolchain,
        limits: Limits,
        folder: Path,
        scope: Scope,
        quarantine: Quarantine,
    ) -> None:
        self.sandbox = "not known before a worker has started"
        self._toolchain = toolchain
        self._limits = limits
        self._folder = folder
        self._scope = scope
        self.turn = anyio.CapacityLimiter(limits.workers)
        self._quarantine = quarantine
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
        self._numbers = itertools.count(1)
        self._workers: set[WorkerProcess] = set()
        self._idle: list[WorkerProcess] = []
        self.sharing = Sharing(limits.workers, self._workers, self._idle)
        self._busy: set[WorkerProcess] = set()
        self._starting = 0
        self._freed = anyio.Event()
        self._memory = MemoryGuard(scope, limits.memory, self._busy)

    def watch(self) -> None:
        """Begin to stop workers that have been idle for a while."""
        self._scope.start_soon(self._stop_idle)

    def refuse(self, key: str, job: Job) -> None:
        """Raise `QuarantinedError` if the job has killed workers before."""
        self._quarantine.check(key, _named(job))

    async def compile(self, key: str, job: Job, prefix: str = "", more: int = 0) -> Output:
        """Compile one job; the caller holds `turn`.

        Args:
            key: What the job is known by, when it has killed workers.
            job: What to compile.
            prefix: What it shares with other jobs, as its toolchain says.
            more: How many other jobs of that prefix wait.

        Raises:
            CompileError: The compiler refused the source.
            ToolchainError: The compiler cannot be used, or not for this target.
            CompileTimeout: The job ran past the time-out; its worker was killed.
            CompileMemoryError: It took too much memory; its worker was killed.
            WorkerCrashed: The worker died, or wrote what is no answer.
            QuarantinedError: The job has killed workers before.
        """
        self.refuse(key, job)
        work = _Work(key, job, prefix, more)
        try:
            outcome = await self._try(work, last=False)
        except LostError:
            outcome = await self._try(work, last=True)
        if isinstance(outcome, KernelsError):
            raise outcome
        self._quarantine.forget(key)
        return outcome

    async def trim(self) -> int:
        """Stop the idle workers now; how many there were."""
        idle = self._idle.copy()
        self._idle.clear()
        await self._stop(idle)
        return len(idle)

    async def aclose(self) -> None:
        """Stop every worker."""
        self._idle.clear()
        await self._stop(self._workers)
        await in_thread(self._starter.shutdown)
        self._lifeline.close()

    async def _try(self, work: _Work, *, last: bool) -> Output | KernelsError:
        """What came of the work.

        Raises:
            LostError: This is not the last try, and its worker was lost before it began,
                or died while it shared its headers: a job that loses two has to do with it.
        """
        worker = await self._acquire(work.prefix)
        self._busy.add(worker)
        shared = ""
        try:
            shared = self.sharing.keep(worker, work.prefix, work.more)
            self._memory.watch()
            number = next(self._numbers)
            frame = await _encode(number, work.job, shared)
            with anyio.fail_after(self._limits.timeout):
                outcome = await worker.ask(number, frame, shared)
        except BaseException as error:
            await self._discard(worker)
            lost = isinstance(error, LostError) and not last
            if lost or not isinstance(error, TimeoutError | DiedError | LostError):
                raise
            death = self._death(worker, work.job, error)
            if worker.began or last:
                self._quarantine.blame(work.key, death)
            if shared and not last and isinstance(death, WorkerCrashed):
                self.sharing.distrust(work.prefix)
                raise LostError(str(death)) from None
            raise death from None
        finally:
            self._busy.discard(worker)
            self._wake()
        self._circuit.succeeded()
        await self._put_back(worker, spoiled=self._toolchain.spoils(work.job))
        return outcome

    def _death(self, worker: WorkerProcess, job: Job, error: Exception) -> KernelsError:
        """The error of a job whose worker has ended."""
        name = _named(job)
        if worker.ran_out_of_memory:
            told = "" if worker.over_memory else f": the worker {worker.obituary('ended')}"
            return CompileMemoryError(
                f"{name} took more than {self._limits.memory >> 20} MiB of memory to "
                f"compile{told}"
            )
        if isinstance(error, TimeoutError):
            return CompileTimeout(
                f"{name} did not compile within {self._limits.timeout:g} s"
            )
        return WorkerCrashed(
            f"the worker that compiled {name} {worker.obituary(str(error))}",
            returncode=worker.returncode,
            stderr=worker.stderr,
        )

    async def _acquire(self, prefix: str) -> WorkerProcess:
        """An idle worker that knows the prefix, else any, a new one, the next free one."""
        while True:
            while self._idle:
                known = (worker for worker in self._idle if prefix in worker.prefixes)
                worker = next(known, self._idle[-1])
                self._idle.remove(worker)
                if worker.alive:
                    return worker
                await self._discard(worker)
            self._circuit.check()
            try:
                return await self._start()
            except LostError:
                continue
            except (OSError, RuntimeError) as error:
                exhausted = getattr(error, "errno", errno.EAGAIN) in _EXHAUSTED
                if not exhausted or not (self._busy or self._idle or self._starting):
                    raise ToolchainError(f"a worker cannot start: {error}") from error
            if not self._idle:
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
            if not (self._starting or self._busy):
                self._wake()

    async def _started(self) -> WorkerProcess:
        folder = await in_thread(make_folder, self._folder)
        try:
            worker = await WorkerProcess.start(self._starter, folder, self._lifeline)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await in_thread(remove_folder, folder)
            raise
        self._workers.add(worker)
        try:
            with anyio.fail_after(START_SECONDS):
                await worker.configure(self._configuration)
        except BaseException as error:
            await self._discard(worker)
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

    async def _put_back(self, worker: WorkerProcess, *, spoiled: bool) -> None:
        """Keep a worker for the next job, unless it is worn or holds too much."""
        most = min(RECYCLE_BYTES, self._limits.memory // 2)
        worn = spoiled or worker.jobs >= RECYCLE_JOBS
        if worn or resident_bytes(worker.pid) > most:
            await self._discard(worker)
        else:
            self._idle.append(worker)

    async def _stop(self, workers: Iterable[WorkerProcess]) -> None:
        """End workers side by side."""
        async with anyio.create_task_group() as tasks:
            for worker in list(workers):
                worker.stop()
                tasks.start_soon(self._discard, worker)

    async def _discard(self, worker: WorkerProcess) -> None:
        """End a worker and everything that it left."""
        worker.stop()
        with anyio.CancelScope(shield=True):
            await worker.aclose()
            await in_thread(remove_folder, worker.folder)
        self._workers.discard(worker)

    async def _stop_idle(self) -> None:
        while True:
            await anyio.sleep(IDLE_SECONDS / 4)
            tired = time.monotonic() - IDLE_SECONDS
            old = [worker for worker in self._idle if worker.idle_since < tired]
            self._idle[:] = [worker for worker in self._idle if worker not in old]
            try:
                await self._stop(old)
            except Exception:
                logger.exception("idle workers could not be stopped")


def _named(job: Job) -> str:
    return f"{job.specialization.symbol!r} of {job.source.name}"


async def _encode(number: int, job: Job, shared: str) -> bytes:
    """The job's frame; big ones are made off the event loop."""

    def encode() -> bytes:
        record = {"number": number, "job": job.to_record(), "shared": shared}
        return _frames.encode(record)

    size = len(job.source.text) + sum(map(len, job.source.headers.values()))
    return encode() if size < _frames.BIG else await in_thread(encode)
