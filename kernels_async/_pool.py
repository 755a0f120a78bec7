"""The pool of worker processes that compile.

Workers start on demand, run one job at a time and go when they have been idle for a
while. A worker that crashes, hangs, eats memory or is killed fails the job that it had
begun and no other; one that dies idle fails none.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import anyio

from . import _frames
from ._artifact import Output
from ._blame import Quarantine
from ._crew import Crew, Limits
from ._errors import CompileMemoryError, CompileTimeout, KernelsError, WorkerCrashed
from ._memory import MemoryGuard
from ._process import DiedError, LostError, WorkerProcess
from ._scope import Scope
from ._sharing import Sharing
from ._threads import in_thread
from .toolchains import Job, Toolchain


@dataclass(frozen=True)
class _Work:
    """One job, and what is known of others like it; see `CompilePool.compile`."""

    key: str
    job: Job
    prefix: str
    more: int
    begun: Callable[[int], None]


class CompilePool:
    """Compiles jobs in worker processes.

    Attributes:
        turn: Held by whoever compiles: so many at once and no more.
        crew: The workers.
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
        self._toolchain = toolchain
        self._limits = limits
        self._quarantine = quarantine
        self._numbers = itertools.count(1)
        self.turn: anyio.CapacityLimiter = anyio.CapacityLimiter(limits.workers)
        self.crew: Crew = Crew(toolchain, limits, folder, scope)
        self.sharing: Sharing = Sharing(limits.workers, self.crew.workers, self.crew.idle)
        self._memory = MemoryGuard(scope, limits.memory, self.crew.busy)

    def refuse(self, key: str, job: Job) -> None:
        """Raise `QuarantinedError` if the job has killed workers before."""
        self._quarantine.check(key, _named(job))

    async def compile(
        self,
        key: str,
        job: Job,
        prefix: str = "",
        more: int = 0,
        begun: Callable[[int], None] = lambda _: None,
    ) -> Output:
        """Compile one job; the caller holds `turn`.

        Args:
            key: What the job is known by, when it has killed workers.
            job: What to compile.
            prefix: What it shares with other jobs, as its toolchain says.
            more: How many other jobs of that prefix wait.
            begun: Told the number of each worker that gets it; a second one only if the
                first was lost.

        Raises:
            CompileError: The compiler refused the source.
            ToolchainError: The compiler cannot be used, or not for this target.
            CompileTimeout: The job ran past the time-out; its worker was killed.
            CompileMemoryError: It took too much memory; its worker was killed.
            WorkerCrashed: The worker died, or wrote what is no answer.
            QuarantinedError: The job has killed workers before.
        """
        self.refuse(key, job)
        work = _Work(key, job, prefix, more, begun)
        try:
            outcome = await self._try(work, last=False)
        except LostError:
            outcome = await self._try(work, last=True)
        if isinstance(outcome, KernelsError):
            raise outcome
        self._quarantine.forget(key)
        return outcome

    async def _try(self, work: _Work, *, last: bool) -> Output | KernelsError:
        """What came of the work.

        Raises:
            LostError: This is not the last try, and its worker was lost before it began,
                or died while it shared its headers: a job that loses two has to do with it.
        """
        worker = await self.crew.take(work.prefix)
        shared = ""
        try:
            shared = self.sharing.keep(worker, work.prefix, work.more)
            self._memory.watch()
            number = next(self._numbers)
            work.begun(worker.number)
            frame = await _encode(number, work.job, shared)
            with anyio.fail_after(self._limits.timeout):
                outcome = await worker.ask(number, frame, shared)
        except BaseException as error:
            await self.crew.discard(worker)
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
            self.crew.done(worker)
        await self.crew.put_back(worker, spoiled=self._toolchain.spoils(work.job))
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


def _named(job: Job) -> str:
    return f"{job.specialization.symbol!r} of {job.source.name}"


async def _encode(number: int, job: Job, shared: str) -> bytes:
    """The job's frame; big ones are made off the event loop."""

    def encode() -> bytes:
        record = {"number": number, "job": job.to_record(), "shared": shared}
        return _frames.encode(record)

    size = len(job.source.text) + sum(map(len, job.source.headers.values()))
    return encode() if size < _frames.BIG else await in_thread(encode)
