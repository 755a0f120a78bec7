"""Bars of the event loop: cancellation, storms, overload, reporters, the state machine."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import anyio.to_thread
import uvloop

from kernels_async import (
    Artifact,
    Compiler,
    Kernel,
    Kernels,
    KernelsError,
    LoadError,
    ReentryError,
    Specialization,
)
from kernels_async._artifact import Output
from kernels_async.toolchains import Job
from tests.model.machine import FakeKernel, run
from tests.model.turns import in_the_next_turn
from tests.processes import server

SOURCE = "template <int N> __global__ void k(int* p) { *p = N; }\n"
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
TURNS = 3


class CountingDevice:
    """A device that loads after some turns, and counts."""

    name = "fake:0"
    target = "cpu"

    def __init__(self) -> None:
        self.loads: Counter[str] = Counter()

    def accepts(self, target: str) -> bool:
        return target == self.target

    def check_stream(self, stream: object) -> None:
        pass

    async def load(self, artifacts: Sequence[Artifact]) -> list[Kernel | LoadError]:
        for _ in range(TURNS):
            await asyncio.sleep(0)
        self.loads.update(artifact.entry for artifact in artifacts)
        return [FakeKernel(artifact, self.name, {}, None) for artifact in artifacts]

    def close(self) -> None:
        pass


class Bench:
    """A real compiler and cache, whose workers and device are counters.

    Args:
        go: What each compile waits for, besides some turns.
    """

    def __init__(self, compiler: Compiler, go: asyncio.Event) -> None:
        self.compiler = compiler
        self.go = go
        self.compiles: Counter[str] = Counter()

    async def compile(self, key: str, job: Job, *sharing: object) -> Output:
        """What a worker does."""
        symbol = job.specialization.symbol
        self.compiles[symbol] += 1
        for _ in range(TURNS):
            await asyncio.sleep(0)
        await self.go.wait()
        return Output(symbol.encode(), symbol, (), None, 0.0)


@contextlib.asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    """A compiler over a directory in memory; compiles go on at once."""
    shm = Path("/dev/shm")  # noqa: S108 - memory
    folder = tempfile.mkdtemp(dir=shm if shm.is_dir() else None)
    try:
        async with Compiler("cpu", cache_dir=folder) as compiler:
            made = Bench(compiler, asyncio.Event())
            made.go.set()
            with mock.patch.object(compiler._maker().pool, "compile", made.compile):
                yield made
    finally:
        shutil.rmtree(folder)


def run_in(loop: str, work: Coroutine[Any, Any, Any]) -> Any:
    """Run in a loop of that kind; it must not complain."""
    complaints: list[str] = []

    def factory() -> asyncio.AbstractEventLoop:
        made = LOOPS[loop]()
        made.set_exception_handler(lambda _, context: complaints.append(str(context)))
        return made

    with asyncio.Runner(loop_factory=factory) as runner:
        result = runner.run(work)
        gc.collect()
    assert complaints == []
    return result


# --- B8


async def cancel_everywhere(
    count: int, seed: int, report: Callable[[Artifact], Awaitable[None]]
) -> Counter[str]:
    """Cancel one waiter of each key, each at another turn, until `count` are cancelled."""
    chance, totals = random.Random(seed), Counter[str]()
    async with bench() as made:
        began = asyncio.all_tasks()
        turns, generation = 0, 0
        while totals["cancelled"] < count:
            generation += 1
            turns = max(
                turns, await cancel_once(made, generation, turns, chance, totals, report)
            )
            assert asyncio.all_tasks() == began, "a task is left"
        assert max(made.compiles.values()) == 1, "compiled twice"
    totals["turns"] = turns
    return totals


async def cancel_once(
    made: Bench,
    generation: int,
    turns: int,
    chance: random.Random,
    totals: Counter[str],
    report: Callable[[Artifact], Awaitable[None]],
) -> int:
    """One cache with many keys, each with six kinds of waiter; one of each is cancelled."""
    device = CountingDevice()
    kernels = Kernels(made.compiler, device).reporting(report)
    keyed = kernels.keyed()
    epoch = generation // 3
    keys = 48
    specs = [Specialization(f"k<{epoch}, {n}>") for n in range(keys)]
    waiters: list[list[asyncio.Task[Any]]] = []

    async def through_build(spec: Specialization) -> Kernel:
        pending = kernels.request(SOURCE, spec)
        await kernels.build()
        kernel = pending.built()
        assert kernel is not None
        return kernel

    for spec in specs:
        pending = kernels.request(SOURCE, spec)
        waits: list[Coroutine[Any, Any, Kernel]] = [
            kernels.get(SOURCE, spec),
            pending.resolve(),
            keyed.get(spec, lambda spec: (SOURCE, spec)),
            kernels.clone().get(SOURCE, spec),
            pending.resolve(),
            through_build(spec),
        ]
        chance.shuffle(waits)
        waiters.append([asyncio.ensure_future(wait) for wait in waits])
    victims = [tasks[(generation + n) % len(tasks)] for n, tasks in enumerate(waiters)]
    first = chance.randrange(keys)
    turn = 0
    while not all(task.done() for tasks in waiters for task in tasks):
        for n, victim in enumerate(victims):
            if (n + first) % max(turns, 1) == turn:
                totals["cancelled"] += victim.cancel()
        await asyncio.sleep(0)
        turn += 1
    for spec, tasks, victim in zip(specs, waiters, victims, strict=True):
        kernel = kernels.loaded(SOURCE, spec)
        assert kernel is not None, "a result is lost"
        for task in tasks:
            if not task.cancelled():
                assert task.result() is kernel
            assert task is victim or not task.cancelled(), "another was cancelled"
    totals["kernels"] += keys
    assert repr(kernels) == f"<Kernels fake:0 loaded={keys} outstanding=0>"
    assert set(device.loads.values()) == {1}
    await kernels.aclose()
    return turn


def cancellations(full: bool, seed: int) -> str:
    """B8: one waiter of six of each key is cancelled, at every turn, under two loops."""

    async def report(_: Artifact) -> None:
        await asyncio.sleep(0)

    found = {}
    with mock.patch.object(anyio.to_thread, "run_sync", in_the_next_turn):
        for loop in LOOPS:
            count = 50_000 if full else 1_000
            found[loop] = run_in(loop, cancel_everywhere(count, seed, report))
    said = ", ".join(
        f"{loop}: {t['cancelled']} cancellations over {t['turns']} turns"
        for loop, t in found.items()
    )
    return f"{said}; 0 tasks, flights or results lost (seed {seed})"


# --- B9


class Stalls:
    """The longest turn of the loop while it is watched.

    What the thread waited for a processor does not count.
    """

    def __init__(self) -> None:
        self.worst = 0.0

    async def watch(self) -> None:
        last = _running()
        while True:
            await asyncio.sleep(0)
            now = _running()
            self.worst, last = max(self.worst, now - last), now


def _running() -> float:
    """A clock that stands still while this thread waits for a processor."""
    waited = int(Path("/proc/thread-self/schedstat").read_text().split()[1])
    return time.perf_counter() - waited / 1e9


async def worst_stall(waits: Callable[[], Coroutine[Any, Any, Any]], count: int) -> float:
    """The loop's longest turn while so many waiters are cancelled at once."""
    waiters = [asyncio.ensure_future(waits()) for _ in range(count)]
    await asyncio.sleep(0.01)
    stalls = Stalls()
    watch = asyncio.ensure_future(stalls.watch())
    await asyncio.sleep(0)
    for waiter in waiters:
        waiter.cancel()
    await asyncio.gather(*waiters, return_exceptions=True)
    watch.cancel()
    assert all(waiter.cancelled() for waiter in waiters)
    return stalls.worst


async def storm_on_one_key(count: int) -> tuple[float, float]:
    """Cancel all waiters but one of one key; then the same with `asyncio.shield`."""
    async with bench() as made:
        made.go.clear()
        device = CountingDevice()
        async with Kernels(made.compiler, device) as kernels:
            before = asyncio.all_tasks()
            last = asyncio.ensure_future(kernels.get(SOURCE, "k<1>"))
            await asyncio.sleep(0.01)
            gc.disable()
            ours = await worst_stall(lambda: kernels.get(SOURCE, "k<1>"), count)
            gc.enable()
            made.go.set()
            assert await last is kernels.loaded(SOURCE, "k<1>")
            assert made.compiles["k<1>"] == device.loads["k<1>"] == 1
            await asyncio.sleep(0.01)
            assert asyncio.all_tasks() <= before, "a task is left"
    work = asyncio.get_running_loop().create_future()

    async def shielded() -> None:
        await asyncio.shield(work)

    gc.disable()
    theirs = await worst_stall(shielded, count)
    gc.enable()
    work.cancel()
    return ours, theirs


def storm(full: bool, seed: int) -> str:
    """B9: every waiter of one key but one is cancelled in one turn."""
    count = 10_000
    ours, theirs = run_in("asyncio", storm_on_one_key(count))
    ratio = ours / theirs
    if full:
        assert ratio <= 0.3, f"{ours:.4f} s against {theirs:.4f} s"
    return (
        f"{count} waiters cancelled, compiled once, loaded once, 0 left; worst stall "
        f"{ours * 1e3:.0f} ms, asyncio.shield {theirs * 1e3:.0f} ms: {ratio:.2f}"
    )


async def many_requests(count: int, keys: int, seed: int) -> str:
    """So many requests, of every kind, over so many keys."""
    order = [n % keys for n in range(count)]
    random.Random(seed).shuffle(order)
    async with bench() as made:
        device = CountingDevice()
        async with Kernels(made.compiler, device) as kernels:
            keyed = kernels.keyed()

            def pair(key: int) -> tuple[str, str]:
                return SOURCE, f"k<{key}>"

            def wait(place: int, key: int) -> Awaitable[Kernel]:
                if place % 3 == 0:
                    return kernels.get(*pair(key))
                if place % 3 == 1:
                    return keyed.get(key, pair)
                return kernels.request(*pair(key))

            waits = [wait(place, key) for place, key in enumerate(order)]
            found = await asyncio.gather(*waits)
            assert all(
                k.artifact.symbol == f"k<{n}>" for k, n in zip(found, order, strict=True)
            )
            assert len(made.compiles) == len(device.loads) == len(kernels) == keys
            assert {*made.compiles.values(), *device.loads.values()} == {1}
    return f"{count} requests over {keys} keys: each compiled once and loaded once"


def herd(full: bool, seed: int) -> str:
    """10,000 requests over 1,000 keys, in any order and of every kind."""
    counts = (10_000, 1_000) if full else (2_000, 200)
    result: str = run_in("asyncio", many_requests(*counts, seed))
    return result


# --- B10


def resident() -> int:
    """This process's memory in bytes."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


async def hits(kernels: Kernels, spec: Specialization, count: int) -> float:
    """Seconds that all but one in a hundred hits take at most."""
    times = []
    for _ in range(count):
        began = time.perf_counter()
        await kernels.get(SOURCE, spec)
        times.append(time.perf_counter() - began)
    return sorted(times)[count * 99 // 100]


def _refusal(kernels: Kernels, symbol: str) -> KernelsError | None:
    try:
        kernels.request(SOURCE, symbol)
    except KernelsError as error:
        return error
    return None


async def flood(admitted: int, offered: int) -> str:
    """As many requests as are admitted, with a waiter each, and then many more."""
    async with (
        bench() as made,
        Kernels(made.compiler, CountingDevice(), max_outstanding=admitted) as kernels,
    ):
        spec = Specialization("k<-1>")
        await kernels.get(SOURCE, spec)
        quiet = await hits(kernels, spec, 20_000)
        made.go.clear()
        idle = resident()
        pendings = [kernels.request(SOURCE, f"k<{n}>") for n in range(admitted)]
        requested = resident()
        waiters = [asyncio.ensure_future(pending.resolve()) for pending in pendings]
        await asyncio.sleep(0)
        waited = resident()
        await asyncio.sleep(1)
        building = resident()
        refusals = []
        for n in range(admitted, admitted + offered):
            began = time.perf_counter()
            refusal = _refusal(kernels, f"k<{n}>")
            refusals.append(time.perf_counter() - began)
            assert type(refusal).__name__ == "OverloadedError", repr(refusal)
        refused = resident()
        loaded = await hits(kernels, spec, 20_000)
        again = [kernels.request(SOURCE, f"k<{n}>") for n in range(0, admitted, 7)]
        assert again == pendings[::7]
        made.go.set()
        await asyncio.gather(*waiters)
        assert f"loaded={admitted + 1} outstanding=0" in repr(kernels)
    over = (refused - idle) / 1e6
    assert over <= 40, f"{over:.0f} MB over idle"
    refusals.sort()
    slow = refusals[len(refusals) * 99 // 100] * 1e6
    assert slow <= 3000
    return (
        f"{admitted} outstanding with a waiter each, {len(refusals)} refused: "
        f"{over:.1f} MB over idle; {(requested - idle) / admitted:.0f} bytes a request, "
        f"{(waited - requested) / admitted:.0f} more a waiter and its task, "
        f"{(building - waited) / admitted:.0f} more while it is built; "
        f"refusal p99 {slow:.0f} us; "
        f"hit p99 {loaded * 1e6:.2f} us, unloaded {quiet * 1e6:.2f} us: "
        f"{loaded / quiet:.2f}"
    )


def overload(full: bool, seed: int) -> str:
    """B10: in a process of its own, whose memory is nobody else's."""
    admitted, offered = (10_000, 100_000) if full else (1_000, 10_000)
    program = (
        "from tests.bars.loop import flood, run_in\n"
        f"print(run_in('asyncio', flood({admitted}, {offered})))"
    )
    with server(program) as process:
        out, err = process.communicate()
    assert process.returncode == 0, err
    return out.strip()


# --- B16

REFUSE = ("raises", "refuses", "exits", "reenters and raises")
KINDS = ("returns", *REFUSE, "reenters", "closes", "blocks", "installs")
BLOCKED_SECONDS = 0.2


class FaultyReporter:
    """A reporter that does something else at each event."""

    def __init__(self, kernels: Kernels, seed: int, blocks: int) -> None:
        self.kernels = kernels
        self.told: dict[str, str] = {}
        self._chance = random.Random(seed)
        self._blocks = blocks

    async def on_the_loop(self, artifact: Artifact) -> None:
        """As an `async` reporter."""
        kind = self._next(artifact)
        if kind == "blocks":
            await asyncio.sleep(BLOCKED_SECONDS / 50)
        elif "reenters" in kind or kind == "closes":
            try:
                if kind == "closes":
                    await self.kernels.aclose()
                else:
                    await self.kernels.get(SOURCE, "k<-1>")
            except ReentryError:
                if kind in REFUSE:
                    raise
            else:
                raise AssertionError("it was let in")
        else:
            self._do(kind)

    def in_a_thread(self, artifact: Artifact) -> None:
        """As a plain reporter."""
        kind = self._next(artifact)
        if kind == "blocks":
            self._blocks -= 1
            time.sleep(BLOCKED_SECONDS if self._blocks > 0 else 0)
        elif "reenters" in kind or kind == "closes":
            try:
                self.kernels.request(SOURCE, "k<-1>")
            except ReentryError:
                if kind in REFUSE:
                    raise
            else:
                raise AssertionError("it was let in")
        else:
            self._do(kind)

    def _next(self, artifact: Artifact) -> str:
        assert artifact.symbol not in self.told, "told twice"
        kind = self.told[artifact.symbol] = self._chance.choice(KINDS)
        return kind

    def _do(self, kind: str) -> None:
        if kind == "raises":
            raise ValueError(kind)
        if kind == "refuses":
            raise LoadError(kind)
        if kind == "exits":
            raise SystemExit(kind)
        if kind == "installs":
            self.kernels.reporting(self.kernels._cache.reporting.reporter)


async def report_events(
    events: int, seed: int, threads: bool
) -> tuple[Counter[str], float]:
    """So many events of a faulty reporter; what it did, and the loop's longest turn."""
    async with bench() as made:
        device = CountingDevice()
        async with Kernels(made.compiler, device) as kernels:
            reporter = FaultyReporter(kernels, seed, 5)
            kernels.reporting(reporter.in_a_thread if threads else reporter.on_the_loop)
            stalls = Stalls()
            watch = asyncio.ensure_future(stalls.watch())
            gc.disable()
            for start in range(0, events, 50):
                symbols = [f"k<{n}>" for n in range(start, min(start + 50, events))]
                found = await asyncio.gather(
                    *(kernels.get(SOURCE, symbol) for symbol in symbols),
                    return_exceptions=True,
                )
                for symbol, kernel in zip(symbols, found, strict=True):
                    refused = reporter.told[symbol] in REFUSE
                    assert isinstance(kernel, KernelsError if refused else Kernel), kernel
                    assert kernels.loaded(SOURCE, symbol) is (None if refused else kernel)
            gc.enable()
            watch.cancel()
            assert len(reporter.told) == events
            wanted = {s for s, kind in reporter.told.items() if kind not in REFUSE}
            assert set(device.loads) == wanted
    return Counter(reporter.told.values()), stalls.worst


def reporters(full: bool, seed: int) -> str:
    """B16: reporters of both kinds that raise, block, re-enter and close."""
    events = 5_000 if full else 500
    did, worst = Counter[str](), 0.0
    for threads in (False, True):
        counts, stall = run_in("asyncio", report_events(events, seed, threads))
        did, worst = did + counts, max(worst, stall)
    assert worst < BLOCKED_SECONDS, f"the loop stood still for {worst:.3f} s"
    refused = sum(did[kind] for kind in REFUSE)
    return (
        f"{did.total()} events, {dict(sorted(did.items()))}: exactly the {refused} refused "
        f"were not delivered; longest turn {worst * 1e3:.0f} ms (seed {seed})"
    )


# --- B17


def state_machine(full: bool, seed: int) -> str:
    """B17: the cache beside its model."""
    began = time.monotonic()
    steps = run(100_000 if full else 10_000, seed)
    seconds = time.monotonic() - began
    return f"{steps} steps agree with the model, {steps / seconds:.0f}/s (seed {seed})"


BARS: dict[str, Callable[[bool, int], str]] = {
    "B8": cancellations,
    "B9": storm,
    "B9-keys": herd,
    "B10": overload,
    "B16": reporters,
    "B17": state_machine,
}
