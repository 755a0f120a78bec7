"""Tests of `KeyedKernels`: an index by the caller's own keys."""

from __future__ import annotations

import asyncio

import pytest

from kernels_async import ClosedError, CompileError, Kernels, Source, Specialization

SOURCE = Source("template <int N> __global__ void add(int* p) { p[threadIdx.x] += N; }\n")
BROKEN = Source("__global__ void broken(int* p) { *p = missing; }\n")


class Maker:
    """Makes requests for the kernels that add a number, and counts."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    def __call__(self, key: object) -> tuple[Source, Specialization]:
        self.calls.append(key)
        if key == "broken":
            return BROKEN, Specialization("broken")
        return SOURCE, Specialization("add<1>")


async def test_make_runs_only_for_a_key_that_is_not_known(kernels: Kernels) -> None:
    """A hit hashes no source and builds no specialization."""
    keyed, make = kernels.keyed(), Maker()
    first = await keyed.get(("add", 1), make)
    second = await keyed.get(("add", 1), make)

    assert first is second is keyed.loaded(("add", 1))
    assert make.calls == [("add", 1)]
    assert len(keyed) == 1


async def test_distinct_keys_of_one_artifact_share_one_executable(kernels: Kernels) -> None:
    """The artifact's digest is what counts."""
    keyed, make = kernels.keyed(), Maker()

    assert await keyed.get("a", make) is await keyed.get("b", make)
    assert len(kernels) == 1
    assert make.calls == ["a", "b"]


async def test_a_request_by_key_is_outstanding_until_it_is_built(kernels: Kernels) -> None:
    """It is the same handle as that of the plain request."""
    keyed, make = kernels.keyed(), Maker()
    pending = keyed.request("a", make)

    assert keyed.loaded("a") is None
    assert pending is keyed.request("a", make)
    assert pending is kernels.request(SOURCE, "add<1>")
    await kernels.build()
    assert keyed.loaded("a") is pending.built() is not None
    assert make.calls == ["a"]


async def test_a_failed_key_is_not_indexed(kernels: Kernels) -> None:
    """The next call asks `make` again."""
    keyed, make = kernels.keyed(), Maker()
    for _ in range(2):
        with pytest.raises(CompileError):
            await keyed.get("broken", make)
    assert make.calls == ["broken"] * 2

    pending = keyed.request("broken", make)
    with pytest.raises(CompileError):
        await pending
    keyed.request("broken", make)
    assert make.calls == ["broken"] * 4
    assert len(keyed) == 0


async def test_waiters_of_one_key_share_the_work(kernels: Kernels) -> None:
    """However many ask at once, `make` runs once."""
    keyed, make = kernels.keyed(), Maker()
    found = await asyncio.gather(*(keyed.get("a", make) for _ in range(20)))

    assert len(set(found)) == 1
    assert make.calls == ["a"]


async def test_a_key_whose_make_fails_is_not_indexed(kernels: Kernels) -> None:
    """The caller's own error passes."""
    keyed = kernels.keyed()

    def fail(key: int) -> tuple[Source, Specialization]:
        raise LookupError(key)

    with pytest.raises(LookupError):
        await keyed.get(1, fail)
    assert keyed.loaded(1) is None


async def test_two_indexes_do_not_share_keys(kernels: Kernels) -> None:
    """Each `keyed()` has keys of its own over the same kernels."""
    one, two, make = kernels.keyed(), kernels.keyed(), Maker()
    await one.get("a", make)

    assert two.loaded("a") is None


async def test_a_closed_cache_is_told_so() -> None:
    """Also through the index."""
    async with Kernels.open("cpu") as kernels:
        keyed, make = kernels.keyed(), Maker()
    with pytest.raises(ClosedError):
        await keyed.get("a", make)
