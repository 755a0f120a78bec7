"""Tests of waiters who are cancelled, overtaken, or closed upon: only they notice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kernels_async import Artifact, Compiler, Kernel, Kernels
from kernels_async._artifact import Output
from kernels_async.devices import open_device
from kernels_async.toolchains import Job
from tests.processes import GOOD


@pytest.mark.parametrize("turns", range(1, 6))
async def test_a_waiter_that_is_cancelled_while_it_opens_the_cache_ends_alone(
    turns: int,
) -> None:
    """Those who wait for the same opening get their kernels."""
    async with Compiler("cpu", workers=1) as compiler:
        kernels = Kernels(compiler, open_device("cpu"))
        first = asyncio.ensure_future(kernels.get(GOOD, "good<1>"))
        second = asyncio.ensure_future(kernels.get(GOOD, "good<2>"))
        for _ in range(turns):
            await asyncio.sleep(0)
        first.cancel()
        assert isinstance(await second, Kernel)
        await kernels.aclose()


async def test_a_reporter_that_is_removed_fails_no_report_that_waits_for_its_turn() -> None:
    """What it has not begun is not reported, and loads."""
    begun, go = asyncio.Event(), asyncio.Event()

    async def report(_: Artifact) -> None:
        begun.set()
        await go.wait()

    async with Kernels.open("cpu", workers=2) as kernels:
        kernels.reporting(report)
        waiters = [asyncio.ensure_future(kernels.get(GOOD, f"good<{n}>")) for n in range(2)]
        await begun.wait()
        await kernels.compiler.compile_all([(GOOD, f"good<{n}>") for n in range(2)])
        await asyncio.sleep(0.01)
        kernels.reporting(None)
        go.set()
        for kernel in await asyncio.gather(*waiters):
            assert isinstance(kernel, Kernel)


async def test_build_waits_for_what_a_get_took_while_it_waited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After `build` everything that was requested before is there."""
    gates = {f"good<{n}>": asyncio.Event() for n in range(2)}
    async with Kernels.open("cpu", workers=4) as kernels:
        pool = kernels.compiler._maker().pool
        compile_ = pool.compile

        async def compile_at_the_gate(key: str, job: Job, *sharing: Any) -> Output:
            await gates[job.specialization.symbol].wait()
            return await compile_(key, job, *sharing)

        monkeypatch.setattr(pool, "compile", compile_at_the_gate)
        first = asyncio.ensure_future(kernels.get(GOOD, "good<0>"))
        await asyncio.sleep(0.01)
        pending = kernels.request(GOOD, "good<1>")
        building = asyncio.ensure_future(kernels.build())
        await asyncio.sleep(0.01)
        second = asyncio.ensure_future(kernels.get(GOOD, "good<1>"))
        await asyncio.sleep(0.01)
        gates["good<0>"].set()
        await first
        await asyncio.sleep(0.05)
        assert not building.done()
        gates["good<1>"].set()
        await building
        assert pending.built() is await second
