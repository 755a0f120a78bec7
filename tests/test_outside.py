"""Tests of who may use a cache from outside its loop, and of what nobody waits for."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any
from unittest import mock

import anyio.to_thread
import numpy as np
import pytest

from kernels_async import (
    Artifact,
    ClosedError,
    CompileError,
    Compiler,
    Kernel,
    Kernels,
    KernelsError,
    OverloadedError,
    ReentryError,
    SpecificationError,
    WrongLoopError,
)
from kernels_async._tiers import TieredStore
from tests.processes import SLOW, children, in_child, until

SOURCE = "template <int N> __global__ void add(int* p) { p[threadIdx.x] += N; }\n"


def make(number: int) -> tuple[str, str]:
    """Source and specialization of a key."""
    return SOURCE, f"add<{number}>"


def resume(worker: int) -> None:
    """Let a stopped worker go on."""
    os.kill(worker, signal.SIGCONT)


@pytest.fixture
async def busy() -> AsyncIterator[Kernels]:
    """A cache whose one worker compiles something that takes long."""
    async with Compiler("cpu", workers=1) as compiler, Kernels(compiler) as kernels:
        await kernels.get(SOURCE, "add<0>")
        (worker,) = children()
        os.kill(worker, signal.SIGSTOP)
        flight = asyncio.create_task(compiler.compile(SOURCE, "add<1>"))
        await until(lambda: any(f.begun for f in compiler._maker()._flights.values()))
        yield kernels
        resume(worker)
        await flight


async def test_a_get_that_nobody_waits_for_is_not_compiled(busy: Kernels) -> None:
    """It is forgotten, as if it had not been asked for."""
    compiler = busy.compiler
    waiters = [asyncio.create_task(busy.get(SOURCE, f"add<{n}>")) for n in range(2, 6)]
    waiters += [asyncio.create_task(busy.get(SOURCE, "add<2>")) for _ in range(3)]
    await until(lambda: len(compiler._maker()._flights) == 5)
    for waiter in waiters:
        waiter.cancel()
    await asyncio.gather(*waiters, return_exceptions=True)

    await until(lambda: len(compiler._maker()._flights) == 1)
    assert not busy._cache.batch.building
    assert len(busy._cache.batch.by_pair) == 1


async def test_a_compile_that_nobody_waits_for_is_not_begun(busy: Kernels) -> None:
    """Nor one that was asked of the compiler itself."""
    compiler = busy.compiler
    waiter = asyncio.create_task(compiler.compile(SOURCE, "add<2>"))
    await until(lambda: len(compiler._maker()._flights) == 2)
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)

    assert len(compiler._maker()._flights) == 1


@pytest.mark.parametrize("stays", ["a second get", "a request", "the compiler's caller"])
async def test_a_get_that_somebody_else_wants_is_compiled(
    busy: Kernels, stays: str
) -> None:
    """The last waiter is the last of all."""
    first = asyncio.create_task(busy.get(SOURCE, "add<2>"))
    await until(lambda: len(busy.compiler._maker()._flights) == 2)
    asked: Any = {
        "a second get": busy.get,
        "a request": busy.request,
        "the compiler's caller": busy.compiler.compile,
    }[stays]
    other = asyncio.ensure_future(asked(SOURCE, "add<2>"))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    resume(*children())

    assert isinstance(await other, Kernel | Artifact)


@pytest.mark.parametrize("joins_first", [False, True])
async def test_a_get_that_joins_as_the_last_waiter_leaves_is_served(
    busy: Kernels, joins_first: bool
) -> None:
    """In the same turn of the loop, before or after the other is cancelled."""
    leaving = asyncio.create_task(busy.get(SOURCE, "add<2>"))
    await until(lambda: len(busy.compiler._maker()._flights) == 2)
    if not joins_first:
        leaving.cancel()
    joining = asyncio.create_task(busy.get(SOURCE, "add<2>"))
    if joins_first:
        leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    resume(*children())

    assert leaving.cancelled()
    assert isinstance(await joining, Kernel)


async def test_a_keyed_get_that_was_dropped_is_asked_for_again(busy: Kernels) -> None:
    """The key is not tied to the request that nobody waited for."""
    keyed = busy.keyed()
    waiter = asyncio.create_task(keyed.get(7, make))
    await until(lambda: len(busy.compiler._maker()._flights) == 2)
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)
    resume(*children())

    assert await keyed.get(7, make) is await busy.get(SOURCE, "add<7>")


async def test_one_request_more_than_the_limit_is_refused_at_once() -> None:
    """Known requests and loaded kernels are served; room is made by building."""
    async with Kernels.open("cpu", workers=2, max_outstanding=2) as kernels:
        loaded = await kernels.get(SOURCE, "add<1>")
        first, second = (kernels.request(SOURCE, f"add<{n}>") for n in (2, 3))
        with pytest.raises(OverloadedError, match="max_outstanding is 2"):
            kernels.request(SOURCE, "add<4>")
        with pytest.raises(OverloadedError):
            kernels.keyed().request(4, make)
        with pytest.raises(OverloadedError):
            await kernels.get(SOURCE, "add<4>")
        with pytest.raises(OverloadedError):
            await kernels.keyed().get(4, make)
        assert kernels.request(SOURCE, "add<3>") is second
        assert await kernels.get(SOURCE, "add<1>") is loaded
        await kernels.build()
        assert first.built() is not None
        assert isinstance(await kernels.get(SOURCE, "add<4>"), Kernel)


@pytest.mark.parametrize("limit", [0, -1, 1.5, "2"])
async def test_a_limit_that_is_none_is_refused(limit: Any) -> None:
    """Before anything opens."""
    async with Compiler("cpu") as compiler:
        with pytest.raises(SpecificationError, match="max_outstanding"):
            Kernels(compiler, max_outstanding=limit)


async def test_threads_get_kernels_through_the_loop(kernels: Kernels) -> None:
    """Many threads that ask at once share one kernel; errors are as in the loop."""
    found = await asyncio.gather(
        *(asyncio.to_thread(kernels.from_thread, SOURCE, "add<1>") for _ in range(8))
    )
    assert set(found) == {await kernels.get(SOURCE, "add<1>")}
    with pytest.raises(CompileError, match="does not name a type"):
        await asyncio.to_thread(kernels.from_thread, "nope", "k")
    x = np.zeros(4, np.int32)
    await asyncio.to_thread(found[0], (1,), (4,), (x,))
    assert x.tolist() == [1] * 4


async def test_a_thread_waits_no_longer_than_it_said(busy: Kernels) -> None:
    """What it asked for is not compiled then, unless somebody else wants it."""
    with pytest.raises(TimeoutError, match=r"within 0\.05 s"):
        await asyncio.to_thread(busy.from_thread, SOURCE, "add<2>", timeout=0.05)
    await until(lambda: len(busy.compiler._maker()._flights) == 1)


async def test_a_thread_with_a_loop_of_its_own_is_told_to_await(kernels: Kernels) -> None:
    """It would block that loop, or for ever."""
    with pytest.raises(WrongLoopError, match="await"):
        kernels.from_thread(SOURCE, "add<1000>")


async def test_a_thread_is_told_that_the_cache_is_not_open_or_closed() -> None:
    """It does not wait for what cannot come."""
    async with Compiler("cpu") as compiler:
        kernels = Kernels(compiler)
        with pytest.raises(ClosedError, match="not open yet"):
            await asyncio.to_thread(kernels.from_thread, SOURCE, "add<1>")
        async with kernels:
            pass
        with pytest.raises(ClosedError, match="closed"):
            await asyncio.to_thread(kernels.from_thread, SOURCE, "add<1>")


def test_a_thread_does_not_wait_for_a_loop_that_ended(warm_dir: Path) -> None:
    """Whether the loop ended before it asked or while it waits."""
    outcomes: list[str] = []
    opened: list[Kernels] = []
    loop = asyncio.new_event_loop()
    loop.run_until_complete(_open(opened, warm_dir))

    def ask() -> None:
        try:
            opened[0].from_thread(SOURCE, "add<1000>")
        except ClosedError as error:
            outcomes.append(str(error))

    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(0.1)
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0.3))
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    thread.join(10)
    ask()

    assert len(outcomes) == 2
    assert all("closed" in outcome or "ended" in outcome for outcome in outcomes)


async def _open(opened: list[Kernels], folder: Path) -> None:
    opened.append(await Kernels.open("cpu", cache_dir=folder, workers=1).__aenter__())


async def test_a_forked_child_is_told_that_the_cache_is_its_parents(
    kernels: Kernels, warm_dir: Path
) -> None:
    """Hits included; the parent goes on, and the child may open its own."""
    kernel = await kernels.get(SOURCE, "add<1>")
    pending = kernels.request(SOURCE, "add<1>")
    x = np.zeros(4, np.int32)

    async def own() -> Kernel:
        async with Kernels.open("cpu", cache_dir=warm_dir, workers=1) as mine:
            return await mine.get(SOURCE, "add<1>")

    told = await asyncio.to_thread(
        in_child,
        lambda: asyncio.run(kernels.get(SOURCE, "add<1>")),
        lambda: kernels.request(SOURCE, "add<1>"),
        lambda: asyncio.run(pending.resolve()),
        lambda: asyncio.run(kernels.build()),
        lambda: kernels.from_thread(SOURCE, "add<1>"),
        lambda: asyncio.run(kernels.compiler.compile(SOURCE, "add<1>")),
        lambda: kernels.loaded(SOURCE, "add<1>"),
        lambda: asyncio.run(kernels.aclose()),
        lambda: (kernel((8,), (4,), (x,)), x.tolist()),
        lambda: asyncio.run(own()),
    )
    refused, rest = told[:6], told[6:]
    assert all(text.startswith("ClosedError") for text in refused)
    assert all("a fork" in text for text in refused[:5])
    assert rest[:2] == ["None", "None"]
    assert rest[2] == "(None, [8, 8, 8, 8])"
    assert rest[3] == "<Kernel add<1> on cpu>"
    assert await kernels.get(SOURCE, "add<1>") is kernel
    assert isinstance(await kernels.get(SOURCE, "add<1>"), Kernel)


async def test_a_reporter_may_not_leave_its_own_compiler() -> None:
    """It would wait for itself; from a thread as from a task."""
    compiler = Compiler("cpu")
    async with compiler, Kernels(compiler) as kernels:
        loop = asyncio.get_running_loop()

        async def leave(_: Artifact) -> None:
            await compiler.__aexit__(None, None, None)

        def leave_from_thread(_: Artifact) -> None:
            leaving = compiler.__aexit__(None, None, None)
            asyncio.run_coroutine_threadsafe(leaving, loop).result(10)

        for number, reporter in enumerate((leave, leave_from_thread)):
            kernels.reporting(reporter)
            with pytest.raises(KernelsError) as caught:
                await kernels.get(SOURCE, f"add<{number}>")
            assert isinstance(caught.value, ReentryError)
        kernels.reporting(None)
        assert isinstance(await kernels.get(SOURCE, "add<3>"), Kernel)


async def test_closing_does_not_wait_for_a_reporter_in_a_thread(warm_dir: Path) -> None:
    """Its `Pending` settles with `ClosedError` while it still runs."""
    told, go = threading.Event(), threading.Event()

    def report(_: Artifact) -> None:
        told.set()
        go.wait(20)

    async with Kernels.open("cpu", cache_dir=warm_dir, workers=1) as kernels:
        waiter = asyncio.ensure_future(kernels.reporting(report).request(SOURCE, "add<1>"))
        await until(told.is_set)
    with pytest.raises(ClosedError):
        await waiter
    assert not go.is_set()
    go.set()


async def test_closing_in_the_middle_of_everything_settles_every_request() -> None:
    """Compiles, queued ones, a build and awaits of all kinds."""
    async with Kernels.open("cpu", workers=2) as kernels:
        pendings = [kernels.request(SOURCE, f"add<{n}>") for n in range(20)]
        work: list[asyncio.Future[Any]] = [
            *map(asyncio.ensure_future, pendings),
            *(asyncio.ensure_future(kernels.get(SOURCE, f"add<{n}>")) for n in range(30)),
            asyncio.ensure_future(kernels.build()),
            asyncio.ensure_future(kernels.get(SLOW, "slow")),
        ]
        await until(lambda: len(children()) == 2)
    outcomes = await asyncio.gather(*work, return_exceptions=True)

    assert all(isinstance(outcome, Kernel | ClosedError) for outcome in outcomes)
    assert any(isinstance(outcome, ClosedError) for outcome in outcomes)
    assert not children()


async def test_a_build_does_not_wait_for_a_get_that_was_dropped(busy: Kernels) -> None:
    """Though it began to wait while the get was still wanted."""
    dropped = [asyncio.create_task(busy.get(SOURCE, f"add<{n}>")) for n in (2, 3)]
    await until(lambda: len(busy.compiler._maker()._flights) == 3)
    build = asyncio.create_task(busy.build())
    await asyncio.sleep(0)
    for waiter in dropped[::-1]:
        waiter.cancel()
    await asyncio.gather(*dropped, return_exceptions=True)
    resume(*children())

    async with asyncio.timeout(20):
        await build


async def test_threads_that_all_wait_do_not_keep_the_cache_from_loading(
    warm_dir: Path,
) -> None:
    """Anyio's forty threads are those of a web server's endpoints."""
    async with Kernels.open("cpu", cache_dir=warm_dir, workers=1) as kernels:
        kernels.reporting(lambda _: None)
        limiter = anyio.to_thread.current_default_thread_limiter()
        found: list[Kernel] = []

        async def endpoint() -> None:
            found.append(
                await anyio.to_thread.run_sync(kernels.from_thread, SOURCE, "add<1>")
            )

        async with asyncio.timeout(30), anyio.create_task_group() as tasks:
            for _ in range(int(limiter.total_tokens)):
                tasks.start_soon(endpoint)
    assert len({*map(id, found)}) == 1


async def test_closing_from_another_loop_is_refused(kernels: Kernels) -> None:
    """It would wake tasks of this one from a thread that is not theirs."""
    await kernels.get(SOURCE, "add<1>")
    with pytest.raises(WrongLoopError, match="another event loop"):
        await asyncio.to_thread(lambda: asyncio.run(kernels.aclose()))
    assert isinstance(await kernels.get(SOURCE, "add<1>"), Kernel)


async def test_requests_that_failed_do_not_keep_others_out(warm_dir: Path) -> None:
    """They stay requested, and count no more."""
    async with Kernels.open(
        "cpu", cache_dir=warm_dir, workers=2, max_outstanding=2
    ) as kernels:
        broken = [kernels.request(f"nope {n}", "k") for n in range(2)]
        await asyncio.gather(*broken, return_exceptions=True)
        assert "outstanding=2" in repr(kernels)
        assert isinstance(await kernels.get(SOURCE, "add<1>"), Kernel)


async def test_dropped_requests_leave_nothing_in_the_queues(busy: Kernels) -> None:
    """Clients that time out and try again must not fill the memory."""
    maker = busy.compiler._maker()
    for number in range(2, 50):
        waiter = asyncio.create_task(busy.get(SOURCE, f"add<{number}>"))
        await until(lambda: len(maker._flights) == 2)
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
    assert len(maker._reading) + len(maker._compiling) == 0
    assert len(maker._flights) == 1


async def test_a_request_that_is_dropped_while_it_is_read_is_not_queued(
    busy: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that reads knows nothing of who waits."""
    maker = busy.compiler._maker()
    gate, read_all = threading.Event(), maker.store.read_all

    def read_behind_the_gate(keys: list[str]) -> list[Artifact | None]:
        gate.wait(5)
        return read_all(keys)

    monkeypatch.setattr(maker.store, "read_all", read_behind_the_gate)
    waiter = asyncio.create_task(busy.get(SOURCE, "add<2>"))
    await until(lambda: len(maker._flights) == 2 and len(maker._reading) == 0)
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)
    gate.set()
    await until(lambda: maker._readers.borrowed_tokens == 0)
    await asyncio.sleep(0)
    assert len(maker._compiling) == 0


def test_a_program_that_ends_as_a_cache_opens_ends(warm_dir: Path) -> None:
    """Also where it closes the cache on its way out."""
    ended = []

    async def use(kernels: Kernels) -> None:
        try:
            await kernels.get(SOURCE, "add<1>")
        finally:
            await kernels.aclose()
            ended.append(True)

    async def main() -> None:
        compiler = Compiler("cpu", cache_dir=warm_dir)
        await compiler.__aenter__()
        tasks.append(asyncio.create_task(use(Kernels(compiler))))

    tasks: list[asyncio.Task[None]] = []
    asyncio.run(main())
    assert ended == [True]


async def test_a_read_that_no_thread_can_be_started_for_fails_its_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They do not wait for ever, and the next is served."""
    async with Compiler("cpu", workers=1) as compiler:
        with monkeypatch.context() as patch:
            refusal = RuntimeError("can't start new thread")
            patch.setattr(anyio.to_thread, "run_sync", mock.AsyncMock(side_effect=refusal))
            with pytest.raises(RuntimeError, match="new thread"):
                await asyncio.wait_for(compiler.compile(SOURCE, "add<1>"), 5)
        assert isinstance(await compiler.compile(SOURCE, "add<1>"), Artifact)


@pytest.mark.parametrize(("seconds", "together"), [(0.0, {1, 2}), (0.03, range(4, 10))])
async def test_threads_read_together_where_the_disk_is_slow(
    monkeypatch: pytest.MonkeyPatch, seconds: float, together: Collection[int]
) -> None:
    """Where it is fast they would only wait for the interpreter, as who launches would.

    One more read is that of the worker's turn.
    """
    reading, most = 0, 0

    def read_all(_: TieredStore, keys: list[str]) -> list[None]:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        time.sleep(seconds)
        reading -= 1
        return [None] * len(keys)

    async with Compiler("cpu", workers=1) as compiler:
        with monkeypatch.context() as patch:
            patch.setattr(TieredStore, "read_all", read_all)
            requests = [(SOURCE, f"add<{n}>") for n in range(100)]
            waiting = asyncio.ensure_future(compiler.compile_all(requests))
            await until(lambda: len(compiler._maker()._compiling) > 90)
        waiting.cancel()
    assert most in together
