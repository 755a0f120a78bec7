"""Tests of the warm-up: built before it is asked for, and overtaken by what is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest

from kernels_async import (
    Artifact,
    BuildError,
    ClosedError,
    Compiler,
    Event,
    FrozenError,
    Kernel,
    Kernels,
    LoadError,
    Manifest,
    ManifestError,
    ManifestKernel,
    Progress,
    Source,
    Specialization,
    SpecificationError,
)
from kernels_async._frozen import Frozen
from kernels_async.devices._cpu import CpuDevice
from tests.processes import held_worker, until

SOURCE = Source("template <int N> __global__ void add(int* p) { p[threadIdx.x] += N; }\n")
BROKEN = Source("__global__ void broken(int* p) { *p = absent; }\n")


def manifest(*seconds: float | None) -> Manifest:
    """Kernels `add<0>`, `add<1>` and so on, that took so long."""
    return Manifest(
        tuple(
            ManifestKernel(
                SOURCE,
                Specialization(f"add<{n}>"),
                1,
                {} if took is None else {"cpu": took},
            )
            for n, took in enumerate(seconds)
        )
    )


@pytest.fixture
async def one_worker() -> AsyncIterator[tuple[Kernels, list[str]]]:
    """An empty cache with one worker that has started, and what it compiles, in order."""
    compiled: list[str] = []

    def note(event: Event) -> None:
        if event.kind == "compiling":
            compiled.append(event.symbol)

    async with Kernels.open("cpu", workers=1) as kernels:
        await kernels.get(SOURCE, "add<100>")
        kernels.listen(note)
        yield kernels, compiled


async def test_a_warm_up_loads_every_kernel_of_a_manifest(
    tmp_path: Path, warm_dir: Path
) -> None:
    """So that a get of one of them is a hit."""
    path = tmp_path / "kernels.manifest.json"
    await manifest(1, 2, 3).save(path)
    told: list[Progress] = []
    async with Kernels.open("cpu", cache_dir=warm_dir) as kernels:
        assert kernels.progress() == Progress()
        done = await kernels.warm(path, told.append)
        assert (done.total, done.loaded, done.failed) == (3, 3, 0)
        assert done.is_ready
        assert done.seconds > 0
        assert done.seconds_left == 0
        assert kernels.progress() == await kernels.ready() == done
        assert [progress.loaded for progress in told] == [1, 2, 3]
        assert not any(progress.is_ready for progress in told)
        assert told[1].seconds_left is not None
        for n in range(3):
            assert kernels.loaded(SOURCE, f"add<{n}>") is not None
        assert kernels.stats().misses == 3


async def test_the_longest_compiles_begin_first(
    one_worker: tuple[Kernels, list[str]],
) -> None:
    """One whose time nobody knows before them."""
    kernels, compiled = one_worker
    with held_worker():
        warm = asyncio.create_task(kernels.warm(manifest(0.1, 0.3, None, 0.2)))
        await until(lambda: kernels.stats().building == 4)
        await until(lambda: kernels.stats().queued == 3)
    await warm
    assert compiled == ["add<2>", "add<1>", "add<3>", "add<0>"]


@pytest.mark.parametrize("how", ["get", "await", "of the manifest"])
async def test_what_somebody_waits_for_overtakes_the_warm_up(
    one_worker: tuple[Kernels, list[str]], how: str
) -> None:
    """Whether the manifest has it or not."""
    kernels, compiled = one_worker
    symbol = "add<3>" if how == "of the manifest" else "add<50>"
    with held_worker():
        warm = asyncio.create_task(kernels.warm(manifest(*[1.0] * 4)))
        await until(lambda: kernels.stats().queued == 3)
        if how == "await":
            waiter = asyncio.ensure_future(kernels.request(SOURCE, symbol).resolve())
        else:
            waiter = asyncio.create_task(kernels.get(SOURCE, symbol))
        await until(lambda: kernels.stats().building + kernels.stats().coalesced >= 5)
        await until(lambda: kernels.stats().reading == 0)
    await waiter
    assert compiled[:2] == ["add<0>", symbol]
    assert (await warm).loaded == 4


async def test_what_a_fallback_waits_for_overtakes_the_warm_up_too(
    one_worker: tuple[Kernels, list[str]],
) -> None:
    """Both kernels, if neither is loaded and the warm-up has begun with them."""
    kernels, compiled = one_worker
    with held_worker():
        warm = asyncio.create_task(kernels.warm(manifest(*[1.0] * 5)))
        await until(lambda: kernels.stats().compiling)
        await until(lambda: kernels.stats().queued == 4)
        handle = kernels.request(SOURCE, "add<4>", fallback="add<3>")
        waiter = asyncio.create_task(handle.resolve())
        await until(lambda: kernels.stats().coalesced == 2)
    await waiter
    await warm
    assert compiled == ["add<0>", "add<4>", "add<3>", "add<1>", "add<2>"]


async def test_what_a_warm_up_finds_loaded_is_no_hit(warm_dir: Path) -> None:
    """As nobody asked for it."""
    async with Kernels.open("cpu", cache_dir=warm_dir) as kernels:
        for _ in range(2):
            await kernels.warm(manifest(1, 2))
        assert (kernels.stats().memory_hits, kernels.progress().loaded) == (0, 4)


@pytest.mark.parametrize("how", ["build", "a fallback"])
@pytest.mark.parametrize("symbol", ["add<3>", "add<50>"])
async def test_what_was_requested_overtakes_the_warm_up(
    one_worker: tuple[Kernels, list[str]], how: str, symbol: str
) -> None:
    """Once somebody waits for it, and whether the manifest has it or not."""
    kernels, compiled = one_worker
    with held_worker():
        warm = asyncio.create_task(kernels.warm(manifest(*[1.0] * 4)))
        await until(lambda: kernels.stats().queued == 3)
        if how == "build":
            kernels.request(SOURCE, symbol)
            waiter: asyncio.Future[object] = asyncio.create_task(kernels.build())
        else:
            handle = kernels.request(SOURCE, symbol, fallback="add<100>")
            waiter = asyncio.ensure_future(handle.resolve())
        for _ in range(9):
            await asyncio.sleep(0.01)
        await until(lambda: kernels.stats().reading == 0)
    await waiter
    assert (await warm).loaded == 4
    assert compiled[:2] == ["add<0>", symbol]


async def test_a_large_warm_up_is_no_overload(tmp_path: Path, warm_dir: Path) -> None:
    """It does not count as outstanding, and leaves room for those who ask."""
    async with Kernels.open("cpu", cache_dir=warm_dir, max_outstanding=2) as kernels:
        warm = asyncio.create_task(kernels.warm(manifest(*[1.0] * 6)))
        await until(lambda: kernels.stats().building > 2)
        await asyncio.gather(*(kernels.get(SOURCE, f"add<{n}>") for n in (1, 31)))
        assert (await warm).loaded == 6


async def test_a_kernel_that_cannot_be_built_does_not_stop_a_warm_up(
    warm_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is counted and logged, and the server goes on."""
    stale = ManifestKernel(BROKEN, Specialization("broken"))
    wrong = ManifestKernel(SOURCE, Specialization("add<1>", options=["-arch=sm_90"]))
    mixed = Manifest((stale, *manifest(1).kernels, wrong))
    async with Kernels.open("cpu", cache_dir=warm_dir) as kernels:
        done = await kernels.warm(mixed)
    assert (done.total, done.loaded, done.failed) == (2, 1, 1)
    assert "could not build 'broken'" in caplog.text


async def test_an_error_of_any_kind_does_not_stop_a_warm_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Such as that no thread can start: the cache is frozen then, and serves."""

    class Broken(CpuDevice):
        async def load(self, artifacts: Sequence[Artifact]) -> list[Kernel | LoadError]:
            return [cast(LoadError, RuntimeError("no thread")) for _ in artifacts]

    async with (
        Compiler("cpu", workers=1) as compiler,
        Kernels(compiler, Broken(), frozen=True) as kernels,
    ):
        done = await kernels.warm(manifest(1, 1))
        assert (done.total, done.loaded, done.failed) == (2, 0, 2)
        with pytest.raises(FrozenError):
            await kernels.get(SOURCE, "add<50>")
    assert "could not build 'add<0>': no thread" in caplog.text


async def test_a_warm_up_of_what_is_loaded_lets_others_run(kernels: Kernels) -> None:
    """After each kernel, though it waits for none: a manifest may have thousands."""
    await kernels.warm(manifest(1))
    turns: list[int] = []
    loaded = Manifest(manifest(1).kernels * 1000)

    async def count() -> None:
        while True:
            turns.append(kernels.progress().loaded)
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    assert (await kernels.warm(loaded)).loaded == 1001
    counting.cancel()
    assert max(later - earlier for earlier, later in pairwise(turns)) < 100


async def test_each_warm_up_estimates_its_own_time(
    one_worker: tuple[Kernels, list[str]],
) -> None:
    """What an earlier one has done says nothing of how fast this one is."""
    kernels, _ = one_worker
    await kernels.warm(manifest(*[1.0] * 6))
    again = Manifest(
        tuple(
            ManifestKernel(SOURCE, Specialization(f"add<{n}>"), 1, {"cpu": 1.0})
            for n in (20, 21, 22)
        )
    )
    told: list[Progress] = []
    await kernels.warm(again, told.append)
    first = told[0]
    assert first.seconds_left is not None
    assert first.seconds_left == pytest.approx(2 * first.seconds)


async def test_readiness_is_told_while_a_warm_up_goes_on(
    one_worker: tuple[Kernels, list[str]],
) -> None:
    """From the moment that it begins, before the manifest is read."""
    kernels, _ = one_worker
    with held_worker():
        warm = asyncio.create_task(kernels.warm(manifest(1.0)))
        await asyncio.sleep(0)
        assert not kernels.progress().is_ready
        ready = asyncio.create_task(kernels.ready())
        await until(lambda: kernels.stats().building)
        assert not ready.done()
    assert (await ready).loaded == 1
    assert kernels.progress().is_ready
    await warm


async def test_who_waits_for_readiness_waits_for_a_warm_up_that_is_about_to_begin(
    kernels: Kernels,
) -> None:
    """Whose task has not had its turn yet."""
    warm = asyncio.create_task(kernels.warm(manifest(1, 1)))
    assert (await kernels.ready()).loaded == 2
    assert (await warm).is_ready


async def test_a_warm_up_that_is_cancelled_leaves_nothing(
    one_worker: tuple[Kernels, list[str]],
) -> None:
    """What no worker has begun is not compiled."""
    kernels, compiled = one_worker
    with held_worker():
        warm = asyncio.create_task(kernels.warm(manifest(*[1.0] * 9)))
        await until(lambda: kernels.stats().queued == 8 and compiled)
        warm.cancel()
        await asyncio.gather(warm, return_exceptions=True)
        assert kernels.progress().is_ready
        assert kernels.progress().total == 0
    await until(lambda: not kernels.stats().building)
    assert compiled == ["add<0>"]


async def test_a_warm_up_ends_with_its_cache(warm_dir: Path) -> None:
    """With an error, as it is not through."""
    async with Compiler("cpu", workers=1) as compiler:
        kernels = Kernels(compiler)
        await kernels.get(SOURCE, "add<100>")
        with held_worker():
            warm = asyncio.create_task(kernels.warm(manifest(*[1.0] * 9)))
            await until(lambda: kernels.stats().queued)
            await kernels.aclose()
            with pytest.raises(ClosedError):
                await warm
    assert kernels.progress().is_ready


async def test_who_watches_a_warm_up_cannot_break_it(
    kernels: Kernels, caplog: pytest.LogCaptureFixture
) -> None:
    """What it raises is logged."""

    def watch(progress: Progress) -> None:
        raise RuntimeError("the watcher is broken")

    assert (await kernels.warm(manifest(1, 1), watch)).loaded == 2
    assert "the watcher is broken" in caplog.text


async def test_a_manifest_that_is_none_is_an_error_and_no_warm_up(
    kernels: Kernels, tmp_path: Path
) -> None:
    """The cache is as before, and not frozen."""
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(ManifestError):
        await kernels.warm(tmp_path / "x.json")
    assert kernels.progress().is_ready


async def test_a_frozen_cache_refuses_what_its_warm_up_did_not_load(
    warm_dir: Path,
) -> None:
    """With what tells it from the nearest that is loaded; hits are served."""
    known = Specialization("add<1>", {"L": 1, "M": 2})
    kernel = ManifestKernel(SOURCE, known)
    async with Kernels.open("cpu", cache_dir=warm_dir, frozen=True) as kernels:
        early = await kernels.get(SOURCE, "add<7>")
        left = kernels.request(SOURCE, "add<8>")
        await kernels.warm(Manifest((kernel, *manifest(1, 1).kernels)))
        assert await kernels.get(SOURCE, known)
        assert await kernels.get(SOURCE, "add<7>") is early

        wanted = Specialization("add<1>", {"L": 1, "M": 3})
        for ask in (kernels.get, kernels.request):
            with pytest.raises(FrozenError, match="'add<1>' is not loaded") as caught:
                await ask(SOURCE, wanted)
        assert caught.value.nearest == "add<1>"
        assert [str(d) for d in caught.value.differences] == ["define M: 2 -> 3"]
        with pytest.raises(FrozenError, match="differs in symbol"):
            await left
        with pytest.raises(FrozenError):
            await kernels.keyed().get(1, lambda _: (SOURCE, "add<9>"))
        assert kernels.stats().refused == 4
        assert kernels.stats().compiles + kernels.stats().disk_hits == 4


async def test_a_frozen_cache_may_only_say_what_it_missed(
    warm_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And build it all the same."""
    async with Kernels.open("cpu", cache_dir=warm_dir, frozen="warn") as kernels:
        await kernels.warm(manifest(1))
        await kernels.get(SOURCE, "add<5>")
        await kernels.get(SOURCE, "add<5>")
        assert kernels.stats().refused == 1
    assert caplog.text.count("'add<5>' is not loaded") == 1
    assert "symbol: add<0> -> add<5>" in caplog.text


async def test_a_frozen_cache_does_not_compile_again_what_failed_at_its_warm_up(
    warm_dir: Path,
) -> None:
    """It is not compiled again."""
    broken = ManifestKernel(BROKEN, Specialization("broken"))
    async with Kernels.open("cpu", cache_dir=warm_dir, frozen=True) as kernels:
        await kernels.warm(Manifest((broken,)))
        with pytest.raises(FrozenError, match="nothing is loaded"):
            await kernels.get(BROKEN, "broken")
        compiles = kernels.stats().failures
        assert compiles == {"CompileError": 1}


async def test_a_build_of_a_frozen_cache_raises_what_it_refused(warm_dir: Path) -> None:
    """It has built nothing, and must not return as if it had."""
    broken = ManifestKernel(BROKEN, Specialization("broken"))
    async with Kernels.open("cpu", cache_dir=warm_dir, frozen=True) as kernels:
        kernels.request(SOURCE, "add<5>")
        kernels.request(BROKEN, "broken")
        await kernels.warm(Manifest((broken, *manifest(1).kernels)))
        with pytest.raises(BuildError, match="2 of 2 kernels failed") as caught:
            await kernels.build()
        assert {type(error) for error in caught.value.exceptions} == {FrozenError}
        assert kernels.stats().outstanding == 2


async def test_another_warm_up_may_add_to_a_frozen_cache(warm_dir: Path) -> None:
    """It is asked for by name."""
    async with Kernels.open("cpu", cache_dir=warm_dir, frozen=True) as kernels:
        await kernels.warm(manifest(1))
        await kernels.warm(manifest(1, 1))
        assert await kernels.get(SOURCE, "add<1>")


@pytest.mark.parametrize("frozen", ["yes", 1, None, "True"])
async def test_frozen_is_true_false_or_warn(frozen: Frozen) -> None:
    """Anything else would be a guess."""
    with pytest.raises(SpecificationError, match="frozen is"):
        async with Kernels.open("cpu", frozen=frozen):
            pass
