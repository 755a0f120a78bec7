"""Tests of what a cache tells as it happens, and of its numbers."""

from __future__ import annotations

import asyncio
import threading
import time
from contextvars import ContextVar
from pathlib import Path

import pytest

from kernels_async import (
    Artifact,
    ClosedError,
    CompileError,
    Compiler,
    Event,
    Kernels,
    Stats,
)
from tests.processes import held_worker, until

SOURCE = "template <int N> __global__ void add(int* p) { p[threadIdx.x] += N; }\n"
COMPILED = ["requested", "compiling", "compiled", "kept", "loading", "loaded"]
READ = ["requested", "found", "loading", "loaded"]


def new_symbol() -> str:
    """A kernel that no test has compiled."""
    return f"add<{time.time_ns() % (1 << 31)}>"


def kinds(told: list[Event], key: str | None = None) -> list[str]:
    """The kinds of events, of one kernel or of all."""
    return [event.kind for event in told if key in (None, event.key)]


async def test_a_kernel_that_is_compiled_tells_each_step_in_order() -> None:
    """With who did it, how long it took, and what came of it."""
    told: list[Event] = []
    async with Kernels.open("cpu", workers=1) as kernels:
        kernels.listen(told.append)
        kernel = await kernels.get(SOURCE, "add<1>")
    assert kinds(told) == COMPILED
    artifact = kernel.artifact
    assert {(e.key, e.symbol, e.target) for e in told} == {
        (artifact.digest, "add<1>", "cpu")
    }
    assert [e.time for e in told] == sorted(e.time for e in told)
    _, compiling, compiled, kept, loading, loaded = told
    assert compiling.worker == compiled.worker == 1
    assert compiled.seconds == artifact.compile_seconds > 0
    assert kept.artifact is loading.artifact is loaded.artifact is artifact
    assert kept.seconds is not None
    assert loaded.seconds == kernel.load_seconds > 0
    assert loaded.device == "cpu"


async def test_a_kernel_from_disk_tells_that_it_was_found() -> None:
    """And a kernel that is loaded tells nothing."""
    async with Compiler("cpu", workers=1) as compiler:
        await compiler.compile(SOURCE, "add<1>")
    told: list[Event] = []
    async with Kernels.open("cpu", workers=1) as kernels:
        kernels.listen(told.append)
        await kernels.get(SOURCE, "add<1>")
        await kernels.get(SOURCE, "add<1>")
        await kernels.request(SOURCE, "add<1>")
    assert kinds(told) == READ
    assert told[1].artifact is not None
    assert told[1].artifact.origin == "disk"


async def test_a_failure_is_told_once_with_its_error(kernels: Kernels) -> None:
    """By the compiler and by the cache, but not by both to one listener."""
    told: list[Event] = []
    by_compiler: list[Event] = []
    kernels.listen(told.append)
    stop = kernels.compiler.listen(by_compiler.append)
    with pytest.raises(CompileError):
        await kernels.get("__global__ void broken() { this; }", "broken")
    stop()
    assert kinds(told)[-1] == kinds(by_compiler)[-1] == "failed"
    assert kinds(told).count("failed") == kinds(by_compiler).count("failed") == 1
    assert isinstance(told[-1].error, CompileError)
    entries = told[0].entries
    assert entries is not None
    assert entries["symbol"] == "broken"
    assert by_compiler[-1].entries == entries


@pytest.mark.parametrize("how", ["its last waiter leaves", "the cache closes"])
async def test_a_build_that_is_dropped_tells_its_end(how: str) -> None:
    """So that whoever keeps what began can let go of it; it is no failure."""
    told: list[Event] = []
    async with Kernels.open("cpu", workers=1) as kernels:
        await kernels.get(SOURCE, "add<1>")
        kernels.listen(told.append)
        with held_worker():
            waiters = [
                asyncio.create_task(kernels.get(SOURCE, f"add<{n}>")) for n in (2, 3)
            ]
            await until(lambda: kernels.stats().queued)
            if how == "the cache closes":
                await kernels.aclose()
            waiters[1].cancel()
            await asyncio.gather(waiters[1], return_exceptions=True)
        await asyncio.gather(*waiters, return_exceptions=True)
    ended = [event for event in told if event.symbol == "add<3>"]
    assert kinds(ended) == ["requested", "failed"]
    assert isinstance(ended[-1].error, ClosedError)
    assert kernels.stats().failures == {}


async def test_a_cache_that_closes_takes_its_queued_compiles_along() -> None:
    """A compiler that others use goes on with what they wait for, and not with those."""
    compiling: list[str] = []
    async with Compiler("cpu", workers=1) as compiler, Kernels(compiler) as other:
        await other.get(SOURCE, "add<1>")
        kernels = Kernels(compiler)
        with held_worker():
            first = asyncio.create_task(other.get(SOURCE, "add<2>"))
            await until(lambda: kernels.stats().queued == 0 and other.stats().compiling)
            for number in range(3, 6):
                kernels.request(SOURCE, f"add<{number}>")
            building = asyncio.create_task(kernels.build())
            shared = asyncio.create_task(other.get(SOURCE, "add<4>"))
            await until(lambda: other.stats().queued == 3)
            compiler.listen(
                lambda e: compiling.append(e.symbol) if e.kind == "compiling" else None
            )
            await kernels.aclose()
            assert other.stats().queued == 1
        await asyncio.gather(first, shared)
        with pytest.raises(ClosedError):
            await building
    assert compiling == ["add<4>"]


async def test_what_another_asks_for_again_is_not_told_after_the_artifact_is_there(
    kernels: Kernels,
) -> None:
    """The compiler reads it again while this cache's reporter has it."""
    told: list[Event] = []
    symbol = new_symbol()
    going_on = asyncio.Event()

    async def report(artifact: Artifact) -> None:
        await going_on.wait()

    kernels.reporting(report)
    kernels.listen(told.append)
    waiter = asyncio.create_task(kernels.get(SOURCE, symbol))
    await until(lambda: "kept" in kinds(told))
    await kernels.compiler.compile(SOURCE, symbol)
    going_on.set()
    await waiter
    assert kinds(told) == COMPILED


async def test_a_cache_that_its_listener_closes_tells_one_end(kernels: Kernels) -> None:
    """And no failure, though the artifact had just arrived."""
    await kernels.get(SOURCE, "add<1>")
    told: list[Event] = []
    closing: list[asyncio.Task[None]] = []
    async with Kernels(kernels.compiler) as other:

        def close(event: Event) -> None:
            told.append(event)
            if event.kind == "found":
                closing.append(asyncio.create_task(other.aclose()))

        other.listen(close)
        with pytest.raises(ClosedError):
            await other.get(SOURCE, "add<1>")
        await asyncio.gather(*closing)
    assert kinds(told) == ["requested", "found", "failed"]
    assert other.stats().failures == {}


async def test_whoever_asks_is_told_in_their_own_context(kernels: Kernels) -> None:
    """So that a span can hang under the request that caused it."""
    request: ContextVar[str] = ContextVar("request")
    told: dict[tuple[str, str], str] = {}
    symbols = [new_symbol()] * 2 + ["add<7>", "add<8>"]

    def note(event: Event) -> None:
        if event.kind in ("requested", "joined"):
            told[event.kind, event.symbol] = request.get()

    async def ask(number: int) -> None:
        request.set(f"request {number}")
        if number < 2:
            await kernels.get(SOURCE, symbols[number])
        else:
            await kernels.request(SOURCE, symbols[number])

    kernels.listen(note)
    await asyncio.gather(*(ask(number) for number in range(4)))
    assert told == {
        ("requested", symbols[0]): "request 0",
        ("joined", symbols[0]): "request 1",
        ("requested", "add<7>"): "request 2",
        ("requested", "add<8>"): "request 3",
    }


async def test_a_listener_that_raises_harms_nobody(
    kernels: Kernels, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, and the others are told."""
    told: list[Event] = []

    def broken(event: Event) -> None:
        raise RuntimeError("the listener is broken")

    kernels.listen(broken)
    kernels.listen(told.append)
    await kernels.get(SOURCE, "add<1>")
    assert kinds(told)[-1] == "loaded"
    assert "the listener is broken" in caplog.text


async def test_a_listener_that_is_removed_is_told_nothing_more(kernels: Kernels) -> None:
    """And the others are."""
    first: list[Event] = []
    second: list[Event] = []
    remove = kernels.listen(first.append)
    kernels.listen(second.append)
    remove()
    await kernels.get(SOURCE, "add<1>")
    assert first == []
    assert second != []


async def test_a_listener_that_was_added_twice_is_removed_once(kernels: Kernels) -> None:
    """By each of those who added it, however often they say so."""
    told: list[Event] = []
    note = told.append
    removals = [kernels.listen(note), kernels.listen(note)]
    for removal in (removals[0], removals[0]):
        removal()
    await kernels.get(SOURCE, new_symbol())
    assert kinds(told) == COMPILED
    removals[1]()
    await kernels.get(SOURCE, new_symbol())
    assert kinds(told) == COMPILED


async def test_a_stream_of_events_ends_with_the_cache(warm_dir: Path) -> None:
    """After what happened before was taken."""
    async with Kernels.open("cpu", cache_dir=warm_dir) as kernels:
        events = kernels.events()
        await kernels.get(SOURCE, "add<1>")
        first = await anext(events)
    assert first.kind == "requested"
    assert [event.kind async for event in events][-1] == "loaded"
    with pytest.raises(ClosedError):
        kernels.events()


async def test_a_stream_keeps_no_more_than_its_limit(kernels: Kernels) -> None:
    """The oldest are dropped, and counted."""
    events = kernels.events(limit=3)
    told: list[Event] = []
    kernels.listen(told.append)
    await kernels.get(SOURCE, "add<1>")
    events.close()
    assert [event async for event in events] == told[-3:]
    assert events.dropped == len(told) - 3


async def test_a_stream_that_was_left_is_told_nothing_more(kernels: Kernels) -> None:
    """What happens afterwards is not kept for it."""
    waiter = asyncio.create_task(kernels.get(SOURCE, "add<1>"))
    async for event in kernels.events():
        assert event.kind == "requested"
        break
    await waiter
    assert kernels._cache.ledger._hub.listeners == ()


async def test_two_caches_of_one_compiler_are_told_of_their_own(warm_dir: Path) -> None:
    """And the compiler tells of both."""
    told: dict[str, list[Event]] = {"first": [], "second": [], "compiler": []}
    async with (
        Compiler("cpu", cache_dir=warm_dir) as compiler,
        Kernels(compiler) as first,
        Kernels(compiler) as second,
    ):
        first.listen(told["first"].append)
        second.listen(told["second"].append)
        compiler.listen(told["compiler"].append)
        await asyncio.gather(first.get(SOURCE, "add<1>"), second.get(SOURCE, "add<2>"))
    symbols = {name: {event.symbol for event in events} for name, events in told.items()}
    assert symbols == {
        "first": {"add<1>"},
        "second": {"add<2>"},
        "compiler": {"add<1>", "add<2>"},
    }


async def test_a_reporter_with_a_method_event_gets_the_events_too(
    warm_dir: Path,
) -> None:
    """Until another takes its place; it is told when the cache closes."""

    class Watching:
        def __init__(self) -> None:
            self.told: list[str] = []

        def __call__(self, artifact: Artifact) -> None:
            self.told.append(f"report {artifact.symbol}")

        def event(self, event: Event) -> None:
            self.told.append(event.kind)

        async def aclose(self) -> None:
            self.told.append("closed")

    first, second = Watching(), Watching()
    async with Kernels.open("cpu", cache_dir=warm_dir) as kernels:
        kernels.reporting(first)
        await kernels.get(SOURCE, "add<1>")
        kernels.reporting(second)
        await kernels.get(SOURCE, "add<2>")
    assert first.told[0] == "requested"
    assert "report add<1>" in first.told
    assert first.told[-1] == "loaded"
    assert second.told[-2:] == ["loaded", "closed"]


async def test_a_reporter_whose_event_is_another_thing_is_told_none(
    kernels: Kernels, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as one that its own threads wait for."""

    class Waiting:
        event = threading.Event()

        def __call__(self, artifact: Artifact) -> None:
            self.event.set()

    kernels.reporting(Waiting())
    await kernels.get(SOURCE, "add<1>")
    assert Waiting.event.is_set()
    assert "raised" not in caplog.text


async def test_a_reporter_that_fails_to_close_is_logged(
    warm_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The cache closes all the same."""

    class Broken:
        def __call__(self, artifact: Artifact) -> None: ...

        async def aclose(self) -> None:
            raise OSError("no space")

    async with Kernels.open("cpu", cache_dir=warm_dir) as kernels:
        kernels.reporting(Broken())
    assert "no space" in caplog.text
    caplog.clear()


async def test_stats_count_hits_by_tier_and_what_was_saved(cache_dir: Path) -> None:
    """Memory, disk and compiles; and waiters that came while one was built."""
    async with Compiler("cpu", workers=1) as compiler:
        artifact = await compiler.compile(SOURCE, "add<1>")
    async with Kernels.open("cpu", workers=1) as kernels:
        assert kernels.stats() == Stats()
        await asyncio.gather(*(kernels.get(SOURCE, "add<1>") for _ in range(3)))
        compiled = await kernels.get(SOURCE, "add<2>")
        keyed = kernels.keyed()
        for _ in range(2):
            await kernels.get(SOURCE, "add<1>")
            await keyed.get(1, lambda _: (SOURCE, "add<1>"))
            assert keyed.loaded(1) is kernels.loaded(SOURCE, "add<1>")
            await kernels.request(SOURCE, "add<1>")
        with pytest.raises(CompileError):
            await kernels.get("int x = ;", "f")
        stats = kernels.stats()
    assert stats.memory_hits == 2 + 2 + 2 + 2 + 2
    assert (stats.misses, stats.coalesced) == (3, 2)
    assert (stats.disk_hits, stats.compiles, stats.remote_hits) == (1, 1, 0)
    assert stats.seconds_saved == artifact.compile_seconds
    assert stats.compile_seconds == compiled.artifact.compile_seconds
    assert stats.failures == {"CompileError": 1}
    assert stats.loaded == 2
    assert stats.load_seconds > stats.longest_load_seconds > 0
    assert stats.workers == 1
    assert (stats.outstanding, stats.building, stats.queued) == (0, 0, 0)


async def test_stats_tell_what_waits(kernels: Kernels) -> None:
    """Requests that nothing builds yet, and those that are being built."""
    pendings = [kernels.request(SOURCE, new_symbol()) for _ in range(3)]
    assert kernels.stats().outstanding == 3
    waiter = asyncio.create_task(kernels.build())
    await until(lambda: kernels.stats().building == 3)
    await until(lambda: kernels.stats().compiling == 2)
    await waiter
    assert kernels.stats().building == 0
    assert all(pending.built() for pending in pendings)


async def test_stats_tell_how_late_the_loop_was(kernels: Kernels) -> None:
    """While something was built, whoever held it up."""
    waiter = asyncio.create_task(kernels.get(SOURCE, new_symbol()))
    await until(lambda: kernels.stats().compiling)
    await asyncio.sleep(0.02)
    time.sleep(0.045)  # noqa: ASYNC251 - a host that blocks its loop
    await waiter
    assert 0.02 < kernels.stats().longest_loop_delay < 5


async def test_stats_may_be_asked_from_any_thread(kernels: Kernels) -> None:
    """While the loop changes what they count."""
    problems: list[BaseException] = []
    over = threading.Event()

    def look() -> None:
        try:
            while not over.is_set():
                kernels.stats()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            problems.append(error)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for n in range(200):
            kernels.request(SOURCE, f"add<{n}>")
        await kernels.get(SOURCE, "add<1>")
    finally:
        over.set()
        thread.join()
    assert problems == []


async def test_stats_outlive_the_cache(warm_dir: Path) -> None:
    """What was counted is still there to be told."""
    async with Kernels.open("cpu", cache_dir=warm_dir) as kernels:
        await kernels.get(SOURCE, "add<1>")
        await kernels.get(SOURCE, "add<1>")
    stats = kernels.stats()
    assert (stats.misses, stats.loaded, stats.workers) == (1, 1, 0)
    assert stats.memory_hits == 1
