"""The cache beside a model of it: every operation and every fault, in any order.

The cache, its compiler and its store are the real ones. Compiles, loads and reports are
held open until a rule ends them, and the event loop turns only where a rule says so: a
cancellation, a fault or a close may come between any two turns.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import gc
import logging
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import anyio.to_thread
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kernels_async import (
    Artifact,
    BoundKernel,
    BuildError,
    ClosedError,
    CompileError,
    Compiler,
    DeviceMismatchError,
    Kernel,
    Kernels,
    KeyedKernels,
    LoadError,
    OverloadedError,
    Pending,
    ReentryError,
    Source,
    Specialization,
    WorkerCrashed,
)
from kernels_async._artifact import Output
from kernels_async._types import GlobalVariable
from kernels_async.toolchains import Job
from tests.model.turns import Call, Held, TurnLoop, in_the_next_turn

ARTIFACTS = 6
SHARED = (0, 1)
STEPS = 250
PHASES = (Phase.generate,)
OTHER_DEVICE: Any = object()

numbers = st.integers(0, ARTIFACTS - 1)
choices = st.integers(0, 11)


class FakeKernel(Kernel):
    """A kernel that is only told apart from others."""

    __slots__ = ()

    def __call__(self, *_: Any, **__: Any) -> None:
        raise AssertionError("it is never launched")

    def bind(self, *_: Any, **__: Any) -> BoundKernel:
        raise AssertionError("it is never launched")

    def get_global(self, name: str) -> GlobalVariable:
        raise KeyError(name)


class FakeDevice:
    """A device whose loads the test ends."""

    name = "fake:0"
    target = "cpu"

    def __init__(self, loads: Held[list[str], list[str | None]], cache: int) -> None:
        self.made: dict[str, Kernel] = {}
        self.closed = 0
        self._loads = loads
        self._cache = cache

    def accepts(self, target: str) -> bool:
        return target == self.target

    def check_stream(self, stream: object) -> None:
        if stream is OTHER_DEVICE:
            raise DeviceMismatchError("another device's stream")

    async def load(self, artifacts: Sequence[Artifact]) -> list[Kernel | LoadError]:
        assert not self.closed, "a load on a closed device"
        wanted = [artifact.bytes.decode() for artifact in artifacts]
        assert len({*wanted}) == len(wanted), f"loaded twice at once: {wanted}"
        assert not self.made.keys() & wanted, f"loaded again: {wanted}"
        faults = await self._loads.ask(wanted, self._cache)
        return [
            LoadError(fault) if fault else self._make(artifact)
            for artifact, fault in zip(artifacts, faults, strict=True)
        ]

    def _make(self, artifact: Artifact) -> Kernel:
        kernel = FakeKernel(artifact, self.name, {}, None)
        self.made[artifact.bytes.decode()] = kernel
        return kernel

    def close(self) -> None:
        self.closed += 1

    def __str__(self) -> str:
        return self.name


class Opened:
    """One cache and what the model knows of it."""

    def __init__(
        self, number: int, kernels: Kernels, device: FakeDevice, limit: int | None
    ) -> None:
        self.number = number
        self.limit = limit
        self.kernels = kernels
        self.device = device
        self.keyed: KeyedKernels[int] = kernels.keyed()
        self.pendings: dict[int, Pending] = {}
        self.built: dict[int, Kernel] = {}
        self.keys: set[int] = set()
        self.reported: set[int] = set()
        self.awaited: set[int] = set()
        self.compiled: dict[int, int] = {}
        self.closing = False
        self.closed = False

    async def close(self) -> None:
        """Close it, unless the caller is cancelled before it has begun."""
        self.closed = True
        await self.kernels.aclose()


class Waiter:
    """A task of somebody who waits, and what may become of it."""

    def __init__(
        self,
        task: asyncio.Task[Any],
        kind: str,
        number: int | None,
        cache: Opened,
        now: int,
    ) -> None:
        self.task = task
        self.kind = kind
        self.number = number
        self.cache = cache
        self.began = now
        self.requested = set(cache.pendings) - set(cache.built)
        self.cancelled = False


@functools.cache
def source(number: int) -> Source:
    """The source of an artifact."""
    return Source(f"__global__ void k{number}() {{}}\n")


class CacheMachine(RuleBasedStateMachine):
    """Every operation on a cache, each fault, and what must hold after each.

    One load per executable and one compile per artifact; the same `Pending` for the same
    artifact; each waiter gets its own kernel, its own artifact's newest failure, or its
    own cancellation; nobody hangs; what failed stays requested; sizes and `repr` agree
    with the model; a closed cache has settled everything; nothing is left.
    """

    def __init__(self) -> None:
        super().__init__()
        self.loop = TurnLoop()
        self.folder = Path(tempfile.mkdtemp(dir=_fast_folder()))
        self.compiles: Held[int, Output] = Held()
        self.loads: Held[list[str], list[str | None]] = Held()
        self.reports: Held[int, str | None] = Held()
        self.waiters: list[Waiter] = []
        self.faults: list[tuple[int, frozenset[int]]] = []
        self.finished: set[int] = set()
        self.now = 0
        self.checked = False
        self.caches = 0
        self.reporter = "none"
        self.reporting = False
        self.errors: dict[int, BaseException] = {}
        self.threads = mock.patch.object(anyio.to_thread, "run_sync", in_the_next_turn)
        self.threads.start()
        self.log = _Log()
        self.compiler = Compiler("cpu", cache_dir=self.folder, workers=64)
        self.open_compiler()
        self.cache = self.open_cache(False, None)

    # --- parts

    def open_compiler(self) -> None:
        """Open the compiler; its pool is the test's."""
        self.loop.call(self.compiler.__aenter__())
        self.finished.clear()

        async def swap() -> None:
            mock.patch.object(self.compiler._maker().pool, "compile", self.compile).start()

        self.loop.call(swap())

    def open_cache(self, entered: bool, limit: int | None) -> Opened:
        """An empty cache, which opens now or when it is first used."""
        self.caches += 1
        device = FakeDevice(self.loads, self.caches)

        async def make() -> Kernels:
            kernels = Kernels(self.compiler, device, max_outstanding=limit)
            return await kernels.__aenter__() if entered else kernels

        return Opened(self.caches, self.loop.call(make()), device, limit)

    async def compile(self, key: str, job: Job, *sharing: object) -> Output:
        """What a worker does, until a rule ends it."""
        number = int(job.specialization.symbol[1:])
        same = [call for call in self.compiles.calls if call.asked == number]
        assert not same, f"{number} is compiled twice at once"
        assert number not in self.finished, f"{number} is compiled again"
        awaited = False
        try:
            output = await self.compiles.ask(number, self.cache.number)
        finally:
            awaited = number in self.cache.awaited
            self.cache.awaited.discard(number)
        self.finished.add(number)
        if awaited:
            self.cache.compiled[number] = self.now
        return output

    async def report(self, artifact: Artifact) -> None:
        """The reporter; calls of it never overlap."""
        assert not self.reporting, "two reports at once"
        self.reporting = True
        try:
            await self.report_as_it_is(artifact)
        finally:
            self.reporting = False

    async def report_as_it_is(self, artifact: Artifact) -> None:
        """What the reporter does at the moment."""
        number, cache = int(artifact.symbol[1:]), self.cache
        assert number not in cache.reported, f"{number} is reported again"
        assert number not in cache.built, "a hit is reported"
        fault = None
        if self.reporter == "raises":
            fault = self.fault(number)
        elif self.reporter == "reenters":
            for work in (cache.kernels.get, cache.kernels.request):
                try:
                    await work(source(0), "k0")
                except ReentryError:
                    fault = self.fault(number)
        elif self.reporter == "waits":
            fault = await self.reports.ask(number, cache.number)
        if fault is not None:
            raise (ValueError if number % 2 else LoadError)(fault)
        if number in cache.pendings:
            cache.reported.add(number)

    def fault(self, *numbers: int) -> str:
        """The text of a new fault, which these artifacts' waiters may see from now on."""
        self.faults.append((self.now, frozenset(numbers)))
        return f"fault #{len(self.faults) - 1}"

    def start(self, kind: str, number: int | None, work: Coroutine[Any, Any, Any]) -> None:
        """Begin to wait."""
        task = self.loop.create_task(work)
        self.waiters.append(Waiter(task, kind, number, self.cache, self.now))

    def request_pair(
        self, number: int, spelling: int = 0
    ) -> tuple[Source | str, Specialization | str]:
        """A request for an artifact, spelled in one of several ways."""
        text, symbol = source(number), f"k{number}"
        if spelling % 3 == 0:
            return text, Specialization(symbol)
        return (text, symbol) if spelling % 3 == 1 else (text.text, symbol)

    # --- rules: what callers do

    @rule(number=numbers, spelling=choices)
    def request(self, number: int, spelling: int) -> None:
        """Ask, and be given the one handle that there is."""
        try:
            if spelling > 8:
                pending = self.cache.keyed.request(number, self.request_pair)
            else:
                pending = self.cache.kernels.request(*self.request_pair(number, spelling))
        except ClosedError:
            assert self.cache.closing
            return
        except OverloadedError:
            assert number not in self.cache.pendings
            assert self.is_full()
            return
        assert self.cache.pendings.setdefault(number, pending) is pending
        self.checked = False

    @rule(number=numbers, spelling=choices)
    def get(self, number: int, spelling: int) -> None:
        """Wait for a kernel alone."""
        kernels = self.cache.kernels
        self.start("get", number, kernels.get(*self.request_pair(number, spelling)))

    @rule(number=numbers, double=st.booleans())
    def get_keyed(self, number: int, double: bool) -> None:
        """Wait for a kernel by a key; two keys may mean one artifact."""
        cache, key = self.cache, number + 100 * double
        known = key in cache.keys
        made = 0

        def make(key: int) -> tuple[Source | str, Specialization | str]:
            nonlocal made
            made += 1
            return self.request_pair(key % 100, key)

        async def wait() -> Kernel:
            kernel = await cache.keyed.get(key, make)
            assert not (known and made), f"{key} was known"
            assert cache.keyed.loaded(key) is kernel or cache.closing
            cache.keys.add(key)
            return kernel

        self.start("get", number, wait())

    @rule(number=numbers)
    def await_pending(self, number: int) -> None:
        """Wait for a handle, if it was given out."""
        if pending := self.cache.pendings.get(number):
            self.start("await", number, pending.resolve())

    @rule()
    def await_all(self) -> None:
        """Wait for every handle at once."""
        for number, pending in self.cache.pendings.items():
            self.start("await", number, pending.resolve())

    @rule()
    def build(self) -> None:
        """Build everything outstanding."""
        self.start("build", None, self.cache.kernels.build())

    @rule(number=numbers)
    def compile_only(self, number: int) -> None:
        """Use the compiler without the cache."""
        work = self.compiler.compile(*self.request_pair(number))
        self.start("compile", number, work)

    @rule(number=numbers, choice=choices)
    def use_another_devices_stream(self, number: int, choice: int) -> None:
        """Is refused, also on a hit."""
        kernels, pending = self.cache.kernels, self.cache.pendings.get(number)
        if choice % 3 == 0:
            work: Any = kernels.build(OTHER_DEVICE)
        elif choice % 3 == 1 and pending is not None:
            work = pending.resolve(OTHER_DEVICE)
        else:
            work = kernels.get(*self.request_pair(number), stream=OTHER_DEVICE)
        self.start("mismatch", None, work)

    @precondition(lambda self: self.waiters)
    @rule(index=st.integers(0, 1000))
    def cancel(self, index: int) -> None:
        """Cancel one who waits, wherever it is."""
        waiter = self.waiters[index % len(self.waiters)]
        waiter.cancelled = waiter.task.cancel() or waiter.cancelled

    @precondition(lambda self: self.waiters)
    @rule(number=numbers)
    def cancel_all(self, number: int) -> None:
        """Cancel everybody who waits for one artifact."""
        for waiter in self.waiters:
            if waiter.number == number:
                waiter.cancelled = waiter.task.cancel() or waiter.cancelled

    @rule(copied=st.booleans())
    def clone(self, copied: bool) -> None:
        """Go on with another handle."""
        kernels = self.cache.kernels
        self.cache.kernels = copy.copy(kernels) if copied else kernels.clone()

    # --- rules: what becomes of the work

    @rule(index=st.integers(0, 1000), outcome=choices)
    def end(self, index: int, outcome: int) -> None:
        """A compile, a hop of loads or a report ends: it mostly succeeds."""
        if compiles := self.compiles.unanswered():
            self.end_compile(compiles[index % len(compiles)], outcome)
        for load in self.loads.unanswered():
            self.end_load(load, index, outcome)
        for report in self.reports.unanswered():
            report.answer.set_result(self.fault(report.asked) if outcome > 8 else None)

    @rule(number=numbers, outcome=choices)
    def end_and_settle(self, number: int, outcome: int) -> None:
        """The same of one artifact, and the loop turns until it has nothing to do."""
        for compile_ in self.compiles.unanswered():
            if compile_.asked == number:
                self.end_compile(compile_, outcome)
        for load in self.loads.unanswered():
            self.end_load(load, number, outcome)
        for report in self.reports.unanswered():
            report.answer.set_result(None)
        self.loop.settle()

    def end_compile(self, call: Call[int, Output], outcome: int) -> None:
        """A compile succeeds, fails, or loses its worker."""
        if outcome < 8:
            call.answer.set_result(_output(call.asked))
        else:
            kinds = (CompileError, WorkerCrashed, RuntimeError)
            call.answer.set_exception(kinds[outcome % 3](self.fault(call.asked)))

    def end_load(
        self, call: Call[list[str], list[str | None]], index: int, outcome: int
    ) -> None:
        """A hop of loads succeeds, fails in part, or raises."""
        loaded = [[n for n in range(ARTIFACTS) if _bytes(n) == b] for b in call.asked]
        if outcome == 11:
            every = {n for numbers in loaded for n in numbers}
            call.answer.set_exception(RuntimeError(self.fault(*every)))
            return
        faulty = index % len(loaded) if outcome > 7 else None
        call.answer.set_result(
            [
                self.fault(*numbers) if place == faulty else None
                for place, numbers in enumerate(loaded)
            ]
        )

    @rule(kind=st.sampled_from(["none", "returns", "waits", "waits", "raises", "reenters"]))
    def install_reporter(self, kind: str) -> None:
        """Replace the reporter of every clone."""
        self.reporter = kind
        reporter = None if kind == "none" else self.report
        assert self.cache.kernels.reporting(reporter) is self.cache.kernels

    @rule(turns=st.integers(1, 4))
    def turn(self, turns: int) -> None:
        """The loop turns."""
        for _ in range(turns):
            self.loop.turn()

    @rule()
    def settle(self) -> None:
        """The loop turns until it has nothing to do."""
        self.loop.settle()

    @rule(what=st.integers(0, 23), entered=st.booleans())
    def close_or_reopen(self, what: int, entered: bool) -> None:
        """Close the cache, or its compiler, in the middle of everything; open another."""
        if self.cache.closing:
            self.reopen(entered, 1 + what % 4 if what < 12 else None)
        elif what == 0:
            self.loop.call(self.cache.kernels.__aenter__())
            self.cache.closing = self.cache.closed = True
            self.loop.call(self.compiler.__aexit__(None, None, None))
            self.check()
            self.open_compiler()
        elif what < 4:
            self.cache.closing = True
            self.start("close", None, self.cache.close())

    def reopen(self, entered: bool, limit: int | None) -> None:
        """Another cache over the same compiler; its reporter is to be installed again."""
        self.loop.settle()
        self.check()
        if self.cache.closed:
            self.reporter = "none"
            self.cache = self.open_cache(entered, limit)

    # --- what must hold

    @invariant()
    def check(self) -> None:
        """The cache agrees with the model."""
        self.settle_accounts()
        assert not self.loop.complaints, self.loop.complaints
        assert not self.log.told, self.log.told
        if self.loop.idle:
            self.check_idle()
            self.now += 1

    def is_full(self) -> bool:
        """Whether there may be as many requests that are not loaded as are admitted."""
        limit = self.cache.limit
        if limit is None or self.loads.calls or self.reports.calls or not self.loop.idle:
            return limit is not None
        known = {n for n, pending in self.cache.pendings.items() if not pending.built()}
        asked = {call.asked for call in self.compiles.calls}
        return len(known | asked) >= limit

    def settle_accounts(self) -> None:
        """Each waiter that is done got what is its own."""
        done = [waiter for waiter in self.waiters if waiter.task.done()]
        self.waiters = [waiter for waiter in self.waiters if not waiter.task.done()]
        for waiter in done:
            self.check_outcome(waiter)

    def check_outcome(self, waiter: Waiter) -> None:
        """What one waiter may get."""
        if waiter.task.cancelled():
            assert waiter.cancelled, f"{waiter.kind} got another's cancellation"
            return
        error, cache = waiter.task.exception(), waiter.cache
        if error is not None:
            self.check_error(waiter, error)
        elif waiter.kind == "build":
            for number in waiter.requested:
                assert cache.closing or cache.pendings[number].built(), "not built"
        elif waiter.kind == "compile":
            assert waiter.task.result().symbol == f"k{waiter.number}"
        elif waiter.number is not None:
            kernel = waiter.task.result()
            assert kernel is cache.device.made[_bytes(waiter.number)], "another's kernel"
            assert cache.built.setdefault(waiter.number, kernel) is kernel

    def check_error(self, waiter: Waiter, error: BaseException) -> None:
        """A waiter's error is its own artifact's, and no older than its waiting."""
        if isinstance(error, BuildError):
            assert waiter.kind == "build"
            told = Counter(self.check_fault(waiter, each) for each in error.exceptions)
            for fault, times in told.items():
                assert times <= len(self.faults[fault][1]), f"{fault} is told {times} times"
        elif isinstance(error, ClosedError):
            assert waiter.cache.closing, f"{waiter.kind} was told {error!r}"
        elif isinstance(error, DeviceMismatchError):
            assert waiter.kind == "mismatch"
        elif isinstance(error, OverloadedError):
            assert waiter.kind in ("get", "mismatch")
            assert waiter.cache.limit is not None
        else:
            self.check_fault(waiter, error)

    def check_fault(self, waiter: Waiter, error: BaseException) -> int:
        """It is one that a rule caused; which."""
        assert id(error) not in self.errors, "two waiters share an exception"
        self.errors[id(error)] = error
        found = re.search(r"fault #(\d+)", str(error))
        assert found, repr(error)
        when, numbers = self.faults[int(found[1])]
        assert when >= waiter.began, f"{waiter.kind} was told a failure of the past"
        if waiter.number is not None:
            assert waiter.number in numbers, f"{waiter.kind} was told another's failure"
        return int(found[1])

    def check_idle(self) -> None:
        """When the loop is idle nobody waits for nothing, and all numbers agree."""
        cache = self.cache
        cache.closing = cache.closed
        for waiter in self.waiters:
            assert not waiter.cancelled, f"{waiter.kind} was cancelled and goes on"
            assert waiter.kind not in ("close", "mismatch"), f"{waiter.kind} hangs"
            assert not waiter.cache.closing or waiter.kind == "compile", waiter.kind
            assert self.going_on(waiter.number), f"{waiter.kind} hangs"
        if cache.closing:
            assert not self.loads.calls
            assert not self.reports.calls
            assert cache.device.closed <= 2
            assert cache.kernels.loaded(*self.request_pair(0)) is None
            return
        outstanding = [0, 0]
        for number in range(ARTIFACTS):
            kernel = cache.kernels.loaded(*self.request_pair(number))
            if kernel is not None:
                assert kernel is cache.device.made[_bytes(number)]
                assert cache.built.setdefault(number, kernel) is kernel
            assert cache.built.get(number) is kernel, f"{number} is lost"
            if pending := cache.pendings.get(number):
                assert pending.built() is kernel
                assert f"k{number} " in repr(pending)
                if kernel is None:
                    outstanding[0] += not self.going_on(number)
                    outstanding[1] += not self.surely_built(number)
        assert len(cache.kernels) == len(cache.device.made)
        assert cache.kernels.is_empty() == (not cache.device.made)
        shown = re.fullmatch(
            r"<Kernels fake:0 loaded=(\d+) outstanding=(\d+)>", repr(cache.kernels)
        )
        assert shown, repr(cache.kernels)
        assert int(shown[1]) == len(cache.device.made)
        assert outstanding[0] <= int(shown[2]) <= outstanding[1], (shown, outstanding)
        for number, when in cache.compiled.items():
            assert (
                number in cache.built
                or self.going_on(number)
                or any(n >= when and number in numbers for n, numbers in self.faults)
            ), f"the result of {number} is lost"
        cache.compiled.clear()
        asked = {call.asked for call in self.compiles.calls}
        cache.awaited |= {number for number in asked if self.surely_built(number)}

    def going_on(self, number: int | None) -> bool:
        """Whether something that may be for an artifact is held by the test."""
        if self.loads.calls or self.reports.calls:
            return True
        return any(number in (None, call.asked) for call in self.compiles.calls)

    def surely_built(self, number: int) -> bool:
        """Whether the cache builds it for sure: someone waits, or did when it began."""
        return number in self.cache.awaited or any(
            waiter.number == number and waiter.kind != "compile" for waiter in self.waiters
        )

    def teardown(self) -> None:
        """Everything ends, and nothing is left."""
        try:
            self.cache.closing = True
            self.loop.call(self.cache.close())
            self.loop.call(self.compiler.__aexit__(None, None, None))
            self.check()
            assert self.waiters == []
            assert self.compiles.calls == []
            assert asyncio.all_tasks(self.loop) == set()
        finally:
            self.threads.stop()
            mock.patch.stopall()
            self.log.close()
            self.loop.close()
            shutil.rmtree(self.folder)
        complaints = self.loop.complaints
        self.__dict__.clear()
        check_garbage(complaints)


def check_garbage(complaints: list[str]) -> None:
    """Nothing complains when it is collected, and no future is left unsettled."""
    gc.collect()
    assert complaints == []


class _Log(logging.Handler):
    """What the library logs as an error: a task of it that failed."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.told: list[str] = []
        logging.getLogger("kernels_async").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append(self.format(record))

    def close(self) -> None:
        logging.getLogger("kernels_async").removeHandler(self)
        super().close()


def _bytes(number: int) -> str:
    """What an artifact compiles to; some share one executable."""
    return f"bytes {SHARED[0] if number in SHARED else number}"


def _output(number: int) -> Output:
    return Output(_bytes(number).encode(), "entry", (), None, 0.0)


def _fast_folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - memory


def run(steps: int, number: int | None = None) -> int:
    """Run the machine for so many steps; how many there were.

    Args:
        steps: At least so many rules are run.
        number: The seed; by default a new one.
    """
    examples = -(-steps // STEPS)
    machine = type("CacheMachine", (CacheMachine,), {})
    if number is not None:
        machine = seed(number)(machine)
    gc.collect()
    gc.freeze()
    try:
        _run(machine, examples)
    finally:
        gc.unfreeze()
    return examples * STEPS


def _run(machine: type[CacheMachine], examples: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            phases=PHASES,
            suppress_health_check=list(HealthCheck),
        ),
    )
