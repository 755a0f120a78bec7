"""Tests of `Kernels` and `Pending`: every operation, on the cpu device."""

from __future__ import annotations

import asyncio
import copy
import gc
import os
import threading
import time
from collections.abc import Awaitable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels_async import (
    Artifact,
    BuildError,
    ClosedError,
    CompileError,
    Compiler,
    DeviceError,
    DeviceMismatchError,
    Kernel,
    Kernels,
    LoadError,
    Source,
    Specialization,
    SpecificationError,
    WrongLoopError,
)
from kernels_async._private import copies

SOURCE = Source("template <int N> __global__ void add(int* p) { p[threadIdx.x] += N; }\n")
BROKEN = Source("__global__ void broken(int* p) { *p = missing; }\n", name="broken.cu")


def add(number: int) -> tuple[Source, Specialization]:
    """A request for the kernel that adds `number`."""
    return SOURCE, Specialization(f"add<{number}>")


def run(kernel: Kernel) -> int:
    """What the kernel adds."""
    numbers = np.zeros(4, np.int32)
    kernel((1,), (4,), (numbers,))
    assert (numbers == numbers[0]).all()
    return int(numbers[0])


async def settled(pendings: Iterable[Awaitable[Kernel]]) -> list[Kernel | BaseException]:
    """The outcomes of awaiting all of them."""
    return await asyncio.gather(*pendings, return_exceptions=True)


async def test_get_compiles_loads_and_remembers(kernels: Kernels) -> None:
    """The second call gives the same kernel without a compile."""
    kernel = await kernels.get(*add(1))

    assert run(kernel) == 1
    assert await kernels.get(*add(1)) is kernel
    assert await kernels.get(SOURCE.text, "add<1>") is kernel
    assert len(kernels) == 1
    assert kernel.device == "cpu"
    assert kernel.artifact.digest == kernels.compiler.key(*add(1))


async def test_a_request_starts_nothing(kernels: Kernels) -> None:
    """It is synchronous, and the same artifact gives the same handle."""
    pending = kernels.request(*add(1))

    assert kernels.request(SOURCE.text, "add<1>") is pending
    assert pending.key == kernels.compiler.key(*add(1))
    assert pending.built() is None
    await asyncio.sleep(0.1)
    assert pending.built() is None
    assert repr(kernels) == "<Kernels cpu loaded=0 outstanding=1>"


async def test_awaiting_one_builds_everything_outstanding(kernels: Kernels) -> None:
    """The first to be awaited starts the batch."""
    one, two = kernels.request(*add(1)), kernels.request(*add(2))

    assert run(await one) == 1
    assert run(await two.resolve()) == 2
    assert one.built() is await one
    assert repr(kernels) == "<Kernels cpu loaded=2 outstanding=0>"


async def test_gather_makes_one_batch(kernels: Kernels) -> None:
    """The flush waits for the end of the loop's turn."""
    pendings = [kernels.request(*add(n)) for n in range(4)]

    assert [run(k) for k in await asyncio.gather(*pendings)] == [0, 1, 2, 3]


async def test_get_leaves_outstanding_requests_alone(kernels: Kernels) -> None:
    """A request may be waiting for a batch that its server has planned."""
    pending = kernels.request(*add(1))
    await kernels.get(*add(2))
    await asyncio.sleep(0.05)

    assert pending.built() is None
    assert kernels.loaded(*add(1)) is None
    assert kernels.loaded(*add(2)) is not None


async def test_get_of_an_outstanding_request_settles_it(kernels: Kernels) -> None:
    """There is one kernel, whoever asked first."""
    pending = kernels.request(*add(1))

    assert await kernels.get(*add(1)) is pending.built()
    assert "outstanding=0" in repr(kernels)


async def test_build_builds_everything_and_returns_at_once_with_nothing_to_do(
    kernels: Kernels,
) -> None:
    """It is how a server warms up."""
    await kernels.build()
    pendings = [kernels.request(*add(n)) for n in (1, 2)]
    await kernels.build()

    assert all(p.built() for p in pendings)
    await kernels.build()


async def test_concurrent_builds_share_the_work(kernels: Kernels, cache_dir: Path) -> None:
    """The second waits for the active batch and then checks for more."""
    seen: list[Artifact] = []
    kernels.reporting(seen.append)
    first = [kernels.request(*add(n)) for n in (1, 2)]
    building = asyncio.create_task(kernels.build())
    await asyncio.sleep(0)
    second = kernels.request(*add(3))
    await asyncio.gather(building, kernels.build(), kernels.build())

    assert all(p.built() for p in [*first, second])
    assert len(seen) == 3


async def test_build_waits_for_a_batch_that_an_await_started(kernels: Kernels) -> None:
    """After `build` everything that was requested is there."""
    pending = kernels.request(*add(1))
    waiter = asyncio.ensure_future(pending)
    await asyncio.sleep(0.001)
    await kernels.build()

    assert pending.built() is not None
    await waiter


async def test_a_failing_specialization_fails_alone(kernels: Kernels) -> None:
    """The rest of the batch loads; a Pending raises its own failure only."""
    good, bad = kernels.request(*add(1)), kernels.request(BROKEN, "broken")
    kernel, error = await settled([good, bad])

    assert isinstance(kernel, Kernel)
    assert isinstance(error, CompileError)
    assert "broken.cu:1" in str(error)
    assert "missing" in str(error)
    assert "failed" in repr(bad)


async def test_build_raises_every_failure_in_one_group(kernels: Kernels) -> None:
    """What is not in it has loaded."""
    good = kernels.request(*add(1))
    kernels.request(BROKEN, "broken")
    kernels.request(SOURCE, "subtract<1>")

    with pytest.raises(BuildError, match="2 of 3 kernels failed") as caught:
        await kernels.build()
    assert len(caught.value.exceptions) == 2
    assert good.built() is not None


async def test_a_failed_request_stays_requested(kernels: Kernels) -> None:
    """The next build or await tries again."""
    pending = kernels.request(BROKEN, "broken")
    for _ in range(2):
        with pytest.raises(CompileError):
            await pending
        with pytest.raises(BuildError):
            await kernels.build()
    assert "outstanding=1" in repr(kernels)


async def test_a_failed_get_is_forgotten(kernels: Kernels) -> None:
    """Nobody requested it, so no later build fails because of it."""
    with pytest.raises(CompileError):
        await kernels.get(BROKEN, "broken")
    await kernels.build()

    assert "outstanding=0" in repr(kernels)


async def test_what_is_no_library_is_a_load_error(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The linker's error is the cause, and the next try may load."""
    (tmp_path / "file").write_bytes(b"no library")
    async with Kernels.open("cpu") as kernels:
        pending = kernels.request(*add(8))
        with monkeypatch.context() as patched:
            for name in ("on_disk", "in_memory"):
                patched.setattr(copies, name, lambda *_: tmp_path / "file")
            with pytest.raises(LoadError, match="cpu refused 'add<8>'") as caught:
                await pending
        assert isinstance(caught.value.__cause__, OSError)
        assert run(await pending) == 8


async def test_each_waiter_gets_an_exception_of_its_own(kernels: Kernels) -> None:
    """Tracebacks must not grow with the number of waiters."""
    pending = kernels.request(BROKEN, "broken")
    errors = await settled(pending.resolve() for _ in range(10))

    assert len({id(error) for error in errors}) == 10
    assert all(isinstance(error, CompileError) for error in errors)


async def test_a_failure_that_nobody_awaits_is_silent(
    kernels: Kernels, caplog: pytest.LogCaptureFixture
) -> None:
    """No "exception was never retrieved" in the server's log."""
    good = kernels.request(*add(1))
    kernels.request(BROKEN, "broken")
    await good
    while "failed" not in repr(kernels.request(BROKEN, "broken")):
        await asyncio.sleep(0.01)
    gc.collect(0)

    assert caplog.records == []


async def test_a_cancelled_waiter_disturbs_nobody(kernels: Kernels) -> None:
    """A waiter only waits; the cache's scope owns the work."""
    pending = kernels.request(*add(7))
    waiters = [asyncio.ensure_future(pending) for _ in range(3)]
    while not kernels.stats().building:
        await asyncio.sleep(0)
    waiters[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiters[0]

    assert run(await waiters[1]) == 7
    assert await waiters[2] is pending.built()


async def test_a_time_out_of_one_waiter_does_not_stop_the_work(
    cache_dir: Path,
) -> None:
    """The next one finds it done or joins it."""
    async with Kernels.open("cpu") as kernels:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await kernels.get(*add(1))
        assert run(await kernels.get(*add(1))) == 1


async def test_a_kernel_settles_without_waiting_for_the_slowest(cache_dir: Path) -> None:
    """Each loads as soon as its own artifact is there."""
    header = "".join(
        f"template <> struct F<{n}> {{ static const int value = F<{n - 1}>::value + 1; }};\n"
        for n in range(1, 20_000)
    )
    slow = Source(
        "template <int N> struct F { static const int value = 0; };\n"
        f"{header}__global__ void slow(int* p) {{ *p = F<19999>::value; }}\n"
    )
    async with Kernels.open("cpu", workers=2) as kernels:
        slow_one = kernels.request(slow, "slow")
        quick_one = kernels.request(*add(1))
        await quick_one
        assert slow_one.built() is None
        await slow_one


async def test_clones_share_one_cache(kernels: Kernels) -> None:
    """Loads, requests and reporter."""
    seen: list[Artifact] = []
    clone, copied = kernels.clone(), copy.copy(kernels)
    pending = kernels.request(*add(1))
    assert copied.reporting(seen.append) is copied
    kernel = await clone.get(*add(1))

    assert clone.request(*add(1)) is pending
    assert copied.loaded(*add(1)) is kernel
    assert len(kernels) == len(clone) == len(copied) == 1
    assert clone.compiler is kernels.compiler
    assert len(seen) == 1


async def test_size_counts_loaded_executables(kernels: Kernels) -> None:
    """An empty cache is still true, as `if kernels:` asks for None."""
    assert (len(kernels), kernels.is_empty(), bool(kernels)) == (0, True, True)
    await kernels.get(*add(1))
    assert (len(kernels), kernels.is_empty()) == (1, False)


async def test_different_inputs_of_equal_output_share_one_load(kernels: Kernels) -> None:
    """A comment changes the key and not the code."""
    source = Source(SOURCE.text + "// a comment\n")
    one, two = await asyncio.gather(
        kernels.request(*add(1)), kernels.request(source, "add<1>")
    )

    assert kernels.compiler.key(*add(1)) != kernels.compiler.key(source, "add<1>")
    assert one is two
    assert len(kernels) == 1


async def test_never_waiting_calls_work_from_any_thread(kernels: Kernels) -> None:
    """`built`, `loaded` and `len` read what is there."""
    pending = kernels.request(*add(1))
    kernel = await pending
    found: list[object] = []

    def look() -> None:
        found.extend([pending.built(), kernels.loaded(*add(1)), len(kernels)])

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [kernel, kernel, 1]


async def test_a_stream_of_another_device_is_refused_on_hits_too(kernels: Kernels) -> None:
    """The cpu device has no streams."""
    pending = kernels.request(*add(1))
    kernel = await pending
    keyed = kernels.keyed()
    await keyed.get(1, add)
    stream: Any = object()

    for call in (
        kernels.get(*add(1), stream=stream),
        kernels.get(*add(2), stream=stream),
        pending.resolve(stream),
        kernels.build(stream),
        keyed.get(1, add, stream),
    ):
        with pytest.raises(DeviceMismatchError, match="stream"):
            await call
    with pytest.raises(DeviceMismatchError, match="stream"):
        kernel((1,), (1,), (np.zeros(1, np.int32),), stream=stream)


async def test_closing_settles_everything(cache_dir: Path) -> None:
    """Waiters and later calls get ClosedError; loaded kernels stay callable."""
    async with Kernels.open("cpu") as kernels:
        kernel = await kernels.get(*add(1))
        outstanding = kernels.request(*add(2))
        waiter = asyncio.ensure_future(kernels.get(*add(3)))
        await asyncio.sleep(0.01)
    with pytest.raises(ClosedError):
        await waiter
    for call in (outstanding, kernels.get(*add(1)), kernels.build()):
        with pytest.raises(ClosedError):
            await call
    with pytest.raises(ClosedError):
        kernels.request(*add(1))
    await kernels.aclose()
    assert run(kernel) == 1


async def test_leaving_leaves_no_task_process_or_file(cache_dir: Path) -> None:
    """Also when it is left in the middle of a batch."""
    await asyncio.to_thread(int)
    tasks, files = asyncio.all_tasks(), os.listdir("/proc/self/fd")
    async with Kernels.open("cpu") as kernels:
        pendings = [kernels.request(*add(n)) for n in range(3)]
        waiters = [asyncio.ensure_future(p) for p in pendings]
        await kernels.get(*add(9))
    await settled(waiters)
    await asyncio.sleep(0)

    assert asyncio.all_tasks() == tasks
    assert len(os.listdir("/proc/self/fd")) == len(files)
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text()
    assert children.split() == []


async def test_it_may_be_opened_in_one_task_and_closed_in_another(cache_dir: Path) -> None:
    """Fixtures and a server's lifespan do that."""
    opening = Kernels.open("cpu")
    kernels = await asyncio.create_task(opening.__aenter__())
    assert run(await kernels.get(*add(1))) == 1
    await asyncio.create_task(opening.__aexit__(None, None, None))
    with pytest.raises(ClosedError):
        kernels.request(*add(1))


async def test_kernels_over_a_compiler_leave_it_open(warm_dir: Path) -> None:
    """Two caches over one compiler share its artifacts; its end is theirs."""
    async with Compiler("cpu", cache_dir=warm_dir, workers=2) as compiler:
        async with Kernels(compiler) as first:
            assert run(await first.get(*add(1))) == 1
        second = Kernels(compiler)
        assert repr(second) == "<Kernels cpu loaded=0 outstanding=0>"
        pending = second.request(*add(2))
        assert run(await pending) == 2
        third = second.request(*add(3))
    with pytest.raises(ClosedError):
        await third


async def test_the_compiler_must_be_open(warm_dir: Path) -> None:
    """An identity is needed for a key."""
    kernels = Kernels(Compiler("cpu", cache_dir=warm_dir))

    with pytest.raises(ClosedError, match="async with"):
        kernels.request(*add(1))


async def test_equal_calls_share_one_compiler(warm_dir: Path) -> None:
    """And the last cache to leave closes it."""
    async with Kernels.open("cpu", cache_dir=warm_dir) as one:
        async with Kernels.open("cpu", cache_dir=warm_dir) as two:
            assert one.compiler is two.compiler
            assert Compiler.for_device("cpu", cache_dir=warm_dir) is one.compiler
            assert (
                Compiler.for_device("cpu", cache_dir=warm_dir, workers=9)
                is not one.compiler
            )
        assert run(await one.get(*add(1))) == 1
    first = Compiler.for_device("cpu", workers=1)
    assert Compiler.for_device("cpu", workers=1) is first
    assert Compiler.for_device("cpu", workers=2) is not first


async def test_a_warm_start_reads_from_disk(cache_dir: Path) -> None:
    """The reporter gets the artifact, with what the compiler said back then."""
    origins = []
    for _ in range(2):
        seen: list[Artifact] = []
        async with Kernels.open("cpu") as kernels:
            kernels.reporting(seen.append)
            assert run(await kernels.get(*add(1))) == 1
        origins += [artifact.origin for artifact in seen]
    assert origins == ["compiled", "disk"]


async def test_an_await_from_another_loop_is_refused() -> None:
    """A cache belongs to the loop that opened it."""
    async with Kernels.open("cpu") as kernels:
        pending = kernels.request(*add(1))

        async def wait() -> None:
            await pending

        with pytest.raises(WrongLoopError, match="the cache was opened in another"):
            await asyncio.to_thread(asyncio.run, wait())


async def test_an_unwritable_cache_is_slower_and_not_broken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The server is told once, not per kernel."""
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    async with Kernels.open("cpu", cache_dir=blocked / "cache") as kernels:
        pendings = [kernels.request(*add(n)) for n in range(3)]
        assert [run(k) for k in await asyncio.gather(*pendings)] == [0, 1, 2]

    warnings = [r.getMessage() for r in caplog.records if r.name == "kernels_async"]
    assert len([w for w in warnings if "not kept" in w]) == 1


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "cuda:99"])
async def test_a_device_that_is_not_there_is_a_device_error(device: str) -> None:
    """It says what is missing."""
    with pytest.raises(DeviceError):
        await Kernels.open(device).__aenter__()


@pytest.mark.parametrize("device", [1.5, True, object()])
async def test_what_is_no_device_is_a_type_error(device: Any) -> None:
    """Names, numbers and CuPy devices are."""
    with pytest.raises(TypeError, match="device"):
        await Kernels.open(device).__aenter__()


def test_a_cache_that_is_not_entered_says_how() -> None:
    """Forgetting `async with` is easy."""
    with pytest.raises(AttributeError, match=r"async with Kernels\.open"):
        Kernels.open("cpu").get  # type: ignore[attr-defined]  # noqa: B018


async def test_a_reporter_that_is_no_function_is_a_type_error(kernels: Kernels) -> None:
    """At once, not at the first kernel."""
    with pytest.raises(TypeError, match="reporter"):
        kernels.reporting("print")  # type: ignore[arg-type]


async def test_a_target_that_the_device_does_not_run_is_refused() -> None:
    """A cubin on the CPU."""
    with pytest.raises(DeviceMismatchError, match="sm_90"):
        await Kernels.open("cpu", target="sm_90").__aenter__()


async def test_no_cpp_compiler_is_told_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error says what to install."""
    from kernels_async import ToolchainError

    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ToolchainError, match=r"no-such-compiler.*install"):
        await Kernels.open("cpu").__aenter__()


@pytest.mark.parametrize(
    ("source", "symbol", "error"),
    [
        ("", "k", SpecificationError),
        (None, "k", TypeError),
        (SOURCE, "", SpecificationError),
        (SOURCE, None, TypeError),
    ],
)
async def test_a_request_that_cannot_be_right_is_refused_at_once(
    kernels: Kernels, source: str, symbol: str, error: type[Exception]
) -> None:
    """Nothing is requested then."""
    with pytest.raises(error):
        kernels.request(source, symbol)
    with pytest.raises(error):
        await kernels.get(source, symbol)
    assert "outstanding=0" in repr(kernels)


async def test_many_waiters_get_one_kernel(kernels: Kernels) -> None:
    """One compile, one load, whoever waits."""
    seen: list[Artifact] = []
    kernels.reporting(seen.append)
    pending = kernels.request(*add(1))
    waiters = [asyncio.ensure_future(pending) for _ in range(100)]
    for waiter in waiters[::2]:
        waiter.cancel()
    found = await asyncio.gather(*waiters[1::2])

    assert set(found) == {pending.built()}
    assert len(seen) == 1


async def test_the_loop_keeps_ticking_during_a_batch(cache_dir: Path) -> None:
    """Compiles run in processes, loads and disk in threads."""
    gaps = []

    async def tick() -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.001)
            gaps.append(time.perf_counter() - began)

    ticker = asyncio.create_task(tick())
    async with Kernels.open("cpu") as kernels:
        await asyncio.gather(*(kernels.request(*add(n)) for n in range(6)))
    ticker.cancel()
    assert len(gaps) > 50
