"""Tests of a generic kernel that serves until the special one is loaded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from kernels_async import (
    CompileError,
    Event,
    FallbackPending,
    Kernels,
    SpecificationError,
    SymbolNotFoundError,
)
from tests.processes import held_worker, until

SOURCE = "template <int N> __global__ void add(int* p) { p[threadIdx.x] += N; }\n"
GENERIC = "add<0>"


def serving(handle: FallbackPending) -> str | None:
    """Which kernel a handle serves now."""
    return handle.serving


@pytest.fixture
async def kernels() -> AsyncIterator[Kernels]:
    """An empty cache with one worker that has started."""
    async with Kernels.open("cpu", workers=1) as kernels:
        await kernels.get(SOURCE, "add<100>")
        yield kernels


async def test_a_loaded_generic_kernel_is_served_at_once(kernels: Kernels) -> None:
    """The special one is compiled meanwhile, and served from the moment it is loaded."""
    generic = await kernels.get(SOURCE, GENERIC)
    handle = kernels.request(SOURCE, "add<1>", fallback=GENERIC)
    assert isinstance(handle, FallbackPending)
    assert serving(handle) == "fallback"
    assert handle.built() is generic
    assert kernels.stats().building == 0
    with held_worker():
        assert await handle is generic
        assert kernels.stats().building == 1
        assert repr(handle) == "<FallbackPending add<1> serving=fallback>"
    special = await handle.special
    assert special is not generic
    assert [serving(handle), handle.built(), await handle] == ["special", special, special]


async def test_the_first_of_both_is_served_if_neither_is_loaded(kernels: Kernels) -> None:
    """Whichever that is."""
    handle = kernels.request(SOURCE, "add<1>", fallback=GENERIC)
    assert [serving(handle), handle.built()] == [None, None]
    with held_worker():
        waiter = asyncio.ensure_future(handle.resolve())
        await until(lambda: kernels.stats().building == 2)
    first = await waiter
    assert first in (handle.special.built(), handle.fallback.built())
    await handle.special
    assert serving(handle) == "special"


async def test_a_special_kernel_that_fails_is_not_tried_again(kernels: Kernels) -> None:
    """The generic one goes on serving; the failure is told to who awaits it."""
    told: list[Event] = []
    kernels.listen(told.append)
    generic = await kernels.get(SOURCE, GENERIC)
    handle = kernels.request(SOURCE, "absent<1>", fallback=GENERIC)
    assert await handle is generic
    await until(lambda: handle.special.failed)
    for _ in range(3):
        assert await handle is generic
    again = kernels.request(SOURCE, "absent<1>", fallback=GENERIC)
    assert await again is generic
    await kernels.get(SOURCE, "add<50>")
    compiled = [e.symbol for e in told if e.kind == "compiling"]
    assert compiled.count("absent<1>") == 1
    with pytest.raises(SymbolNotFoundError):
        await handle.special


async def test_a_generic_kernel_serves_after_the_special_one_failed(
    kernels: Kernels,
) -> None:
    """Also if neither was loaded at first."""
    handle = kernels.request(SOURCE, "absent<1>", fallback=GENERIC)
    kernel = await handle
    assert kernel.artifact.symbol == GENERIC
    assert serving(handle) == "fallback"


async def test_a_special_kernel_serves_after_the_generic_one_failed(
    kernels: Kernels,
) -> None:
    """What is there is served."""
    handle = kernels.request(SOURCE, "add<1>", fallback="absent<0>")
    assert (await handle).artifact.symbol == "add<1>"


async def test_a_handle_whose_kernels_both_fail_raises(kernels: Kernels) -> None:
    """Then there is nothing to serve, now and the next time."""
    handle = kernels.request(SOURCE, "absent<1>", fallback="absent<0>")
    for _ in range(2):
        with pytest.raises(CompileError, match="absent<0>"):
            await handle


async def test_another_request_may_be_the_fallback(kernels: Kernels) -> None:
    """One of another source, for example."""
    other = kernels.request('extern "C" __global__ void any(int* p) {}', "any")
    handle = kernels.request(SOURCE, "add<1>", fallback=other)
    assert handle.fallback is other
    await handle
    assert (await handle.special).artifact.symbol == "add<1>"


async def test_a_request_of_another_cache_is_no_fallback(kernels: Kernels) -> None:
    """This cache would wait for it for ever, or serve another device's kernel."""
    async with Kernels(kernels.compiler) as others:
        foreign = others.request(SOURCE, GENERIC)
        with pytest.raises(SpecificationError, match="another cache"):
            kernels.request(SOURCE, "add<1>", fallback=foreign)
    assert kernels.stats().outstanding == 0


async def test_a_waiter_that_is_cancelled_takes_nothing_from_the_handle(
    kernels: Kernels,
) -> None:
    """Both kernels are built all the same."""
    handle = kernels.request(SOURCE, "add<1>", fallback=GENERIC)
    with held_worker():
        waiter = asyncio.ensure_future(handle.resolve())
        await until(lambda: kernels.stats().building == 2)
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
    await until(lambda: handle.special.built() and handle.fallback.built())
