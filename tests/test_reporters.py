"""Tests of the ready-made reporters and of what limits occupancy."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from kernels_async import (
    Artifact,
    Compiler,
    Kernels,
    LoggingReporter,
    Reporters,
    Resources,
    Source,
    Specialization,
    SpecificationError,
    SpillError,
    SpillPolicy,
)
from kernels_async._occupancy import blocks_at_once, most_threads, multiprocessor

SPILLS = Source(
    'extern "C" __global__ void k(float* p) {\n'
    "  float v[64]; int unused;\n"
    "  for (int i = 0; i < 64; i++) v[i] = p[i * 32 + threadIdx.x];\n"
    "  for (int r = 0; r < 8; r++)\n"
    "    for (int i = 0; i < 64; i++) v[i] = v[i] * v[(i * 7 + r) % 64] + v[(i + r) % 64];\n"
    "  for (int i = 0; i < 64; i++) p[i * 32 + threadIdx.x] = v[i];\n"
    "}\n"
)


@pytest.fixture
async def spilling(compiler: Compiler) -> Artifact:
    """An artifact that spills."""
    return await compiler.compile(
        SPILLS, Specialization("k", options=("--maxrregcount=24",))
    )


def messages(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    """What was logged at a level."""
    return [r.getMessage() for r in caplog.records if r.levelno == level]


async def test_the_logging_reporter_writes_a_line_and_the_warnings(
    spilling: Artifact, caplog: pytest.LogCaptureFixture
) -> None:
    """What was built, from where, with what, and what the compiler thought of it."""
    caplog.set_level(logging.INFO)
    LoggingReporter()(spilling)

    (line,) = messages(caplog, logging.INFO)
    assert line.startswith("k for sm_90: compiled in ")
    assert ", 24 registers, " in line
    (warning,) = messages(caplog, logging.WARNING)
    assert 'variable "unused" was declared' in warning


async def test_a_spill_policy_warns(
    spilling: Artifact, caplog: pytest.LogCaptureFixture
) -> None:
    """From so many bytes on."""
    used = spilling.resources
    assert used is not None
    SpillPolicy(warn=used.spills + 1)(spilling)
    assert caplog.records == []
    SpillPolicy(warn=used.spills)(spilling)

    (warning,) = messages(caplog, logging.WARNING)
    assert f"spills {used.spill_stores} bytes of stores" in warning


async def test_a_spill_policy_refuses(spilling: Artifact) -> None:
    """From so many bytes on; with no limit it never does."""
    used = spilling.resources
    assert used is not None
    SpillPolicy(warn=None, reject=used.spills + 1)(spilling)
    SpillPolicy(warn=None)(spilling)
    with pytest.raises(SpillError, match="are refused"):
        SpillPolicy(reject=used.spills)(spilling)


async def test_reporters_are_called_in_order_until_one_raises(
    spilling: Artifact, cache_dir: Path
) -> None:
    """Plain and async ones together; a cache takes them as one."""
    seen: list[str] = []

    async def second(artifact: Artifact) -> None:
        seen.append(f"second {artifact.symbol}")

    several = Reporters(lambda a: seen.append(f"first {a.symbol}"), second)
    async with Kernels.open("cpu") as kernels:
        await kernels.reporting(several).get("__global__ void k() {}", "k")
    assert seen == ["first k", "second k"]
    with pytest.raises(SpillError):
        await Reporters(SpillPolicy(reject=1), second)(spilling)
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("registers", "shared", "threads", "dynamic", "blocks"),
    [
        (32, 0, 256, 0, 8),
        (32, 0, 1024, 0, 2),
        (33, 0, 1024, 0, 1),
        (33, 0, 256, 0, 6),
        (64, 0, 1024, 0, 1),
        (65, 0, 1024, 0, 0),
        (16, 0, 32, 0, 32),
        (255, 0, 256, 0, 1),
        (32, 48 << 10, 128, 0, 4),
        (32, 0, 128, 227 << 10, 1),
        (32, 1, 128, 227 << 10, 0),
        (32, 0, 33, 0, 32),
    ],
)
def test_occupancy_follows_registers_threads_and_shared_memory(
    registers: int, shared: int, threads: int, dynamic: int, blocks: int
) -> None:
    """On compute capability 9.0; a GPU test asks the driver for the same."""
    limits = multiprocessor("sm_90")
    assert limits is not None
    resources = Resources(registers, 0, 0, 0, shared, 0, 0)

    assert blocks_at_once(resources, limits, threads, dynamic) == blocks


@pytest.mark.parametrize(
    ("registers", "threads"), [(16, 1024), (64, 1024), (65, 896), (128, 512), (255, 256)]
)
def test_registers_limit_the_threads_of_a_block(registers: int, threads: int) -> None:
    """Registers are given out by the warp, in units of 256."""
    assert most_threads(Resources(registers, 0, 0, 0, 0, 0, 0)) == threads


async def test_an_artifact_tells_its_occupancy(spilling: Artifact) -> None:
    """For its own target; not for one whose limits are not known."""
    assert spilling.occupancy(256) == 8
    assert spilling.max_threads_per_block == 1024
    async with Kernels.open("cpu") as kernels:
        artifact = (await kernels.get("__global__ void k() {}", "k")).artifact
    assert artifact.occupancy(256) is None
    assert artifact.max_threads_per_block is None


async def test_spills_of_functions_that_are_not_inlined_count(compiler: Compiler) -> None:
    """They are as slow."""
    body = SPILLS.text.replace(
        'extern "C" __global__ void k(float* p)', "HEAD void g(float* p)"
    )
    text = f'{body}extern "C" __global__ void k(float* p) {{ g(p); }}\n'
    spec = Specialization("k", {"HEAD": "__device__ __noinline__"}, ("--maxrregcount=24",))
    artifact = await compiler.compile(text, spec)

    assert artifact.resources is not None
    assert artifact.resources.spills > 0
    with pytest.raises(SpillError):
        SpillPolicy(reject=1)(artifact)


async def test_launch_bounds_limit_the_threads_of_a_block(compiler: Compiler) -> None:
    """As the driver has it."""
    text = "__global__ void __launch_bounds__(128) k(int* p) { *p = 1; }\n"
    artifact = await compiler.compile(text, "k")

    assert artifact.max_threads_per_block == 128
    assert (artifact.occupancy(128), artifact.occupancy(256)) == (16, 0)


@pytest.mark.parametrize(("threads", "dynamic"), [(0, 0), (-32, 0), (32, -1)])
async def test_the_occupancy_of_no_block_is_refused(
    compiler: Compiler, threads: int, dynamic: int
) -> None:
    """Not divided by."""
    artifact = await compiler.compile("__global__ void k(int* p) { *p = 1; }\n", "k")

    with pytest.raises(SpecificationError, match="at least one thread"):
        artifact.occupancy(threads, dynamic)
