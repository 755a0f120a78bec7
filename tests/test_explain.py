"""Tests of `Compiler.explain`: which entries of the key differ."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kernels_async import Artifact, Compiler, Kernels, Source, Specialization

TEXT = '#include "v.h"\nextern "C" __global__ void k(int* p) { *p = VAL; }\n'
BASE = (Source(TEXT, {"v.h": "#define VAL 1\n"}), Specialization("k", {"N": 4}))


@pytest.fixture
async def compiler() -> AsyncIterator[Compiler]:
    """A compiler for sm_90."""
    async with Compiler("sm_90", workers=1) as compiler:
        yield compiler


@pytest.mark.parametrize(
    ("other", "names"),
    [
        (BASE, []),
        ((Source(TEXT, {"v.h": "#define VAL 2\n"}), BASE[1]), ["header v.h"]),
        ((Source(TEXT), BASE[1]), ["header v.h"]),
        ((Source(TEXT + "\n", dict(BASE[0].headers)), BASE[1]), ["source text"]),
        ((Source(TEXT, dict(BASE[0].headers), "x.cu"), BASE[1]), ["source name"]),
        ((BASE[0], Specialization("k ", {"N": 4})), ["symbol"]),
        ((BASE[0], Specialization("k", {"N": 5})), ["define N"]),
        ((BASE[0], Specialization("k", {"M": 4})), ["define N", "define M"]),
        ((BASE[0], Specialization("k", {"N": 4}, ("-lineinfo",))), ["options"]),
    ],
)
async def test_each_entry_that_differs_is_named(
    compiler: Compiler, other: Any, names: list[str]
) -> None:
    """And nothing else; equal keys differ in nothing."""
    found = compiler.explain(BASE, other)

    assert [difference.entry for difference in found] == names
    assert (compiler.key(*BASE) == compiler.key(*other)) == (found == [])


async def test_a_difference_reads_as_a_sentence(compiler: Compiler) -> None:
    """Values are shown, texts by their digest, what is absent as such."""
    (one,) = compiler.explain(BASE, (BASE[0], Specialization("k", {"N": 5})))
    first, second = compiler.explain(BASE, (BASE[0], Specialization("k", {"M": 4})))

    assert str(one) == "define N: 4 -> 5"
    assert str(first) == "define N: 4 -> (absent)"
    assert str(second) == "define M: (absent) -> 4"


async def test_an_artifact_explains_why_a_request_missed(
    compiler: Compiler, cache_dir: Path
) -> None:
    """Also one that was read from disk, and one of another target."""
    await compiler.compile(*BASE)
    read = await compiler.compile(*BASE)
    edited = (Source(TEXT, {"v.h": "#define VAL 2\n"}), BASE[1])

    assert read.origin == "disk"
    assert [d.entry for d in compiler.explain(read, edited)] == ["header v.h"]
    assert compiler.explain(read, BASE) == []
    async with Compiler("sm_80", workers=1) as other:
        assert [d.entry for d in other.explain(read, BASE)] == ["target"]


async def test_a_pending_is_a_request_too(cache_dir: Path) -> None:
    """`kernels.compiler.explain` takes whatever names a request."""
    seen: list[Artifact] = []
    async with Kernels.open("cpu") as kernels:
        kernels.reporting(seen.append)
        one = kernels.request(*BASE)
        two = kernels.request(BASE[0], "k")
        await one
        assert [d.entry for d in kernels.compiler.explain(one, two)] == ["define N"]
        artifact = next(artifact for artifact in seen if artifact.digest == one.key)
        assert kernels.compiler.explain(artifact, one) == []


async def test_no_source_text_is_in_what_an_artifact_keeps(compiler: Compiler) -> None:
    """But for the lines that the compiler quotes; a cache is no place for secrets."""
    artifact = await compiler.compile(*BASE)
    record = (artifact.path.parent / "artifact.json").read_text()

    assert "VAL" not in record
    assert "__global__" not in record


async def test_a_pending_of_another_compiler_keeps_its_own_entries(
    compiler: Compiler,
) -> None:
    """It was requested for that one's target."""
    async with Kernels.open("cpu", workers=1) as kernels:
        pending = kernels.request(*BASE)
        names = [difference.entry for difference in compiler.explain(BASE, pending)]
    assert names == ["toolchain", "target"]
