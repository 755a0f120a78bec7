"""Tests of the worker pool: one failing worker fails its own job and no other."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kernels_async import (
    Artifact,
    Compiler,
    CompileTimeout,
    KernelsError,
    Specialization,
    ToolchainError,
    WorkerCrashed,
    _pool,
    _process,
)
from tests.processes import GOOD, SLOW, children, until


@pytest.fixture
async def running() -> AsyncIterator[Compiler]:
    """A compiler with two workers and a time-out of some seconds."""
    async with Compiler("sm_90", workers=2, timeout=20) as compiler:
        yield compiler


async def test_a_killed_worker_fails_its_own_job_and_no_other(running: Compiler) -> None:
    """The next job gets a new worker; the error names signal, symbol and source."""
    slow = asyncio.create_task(running.compile(SLOW, "slow"))
    (victim,) = await until(children)
    good = await running.compile(GOOD, "good<1>")
    os.kill(victim, signal.SIGKILL)

    with pytest.raises(
        WorkerCrashed, match=r"'slow' of kernel\.cu died, by SIGKILL"
    ) as caught:
        await slow
    assert caught.value.returncode == -signal.SIGKILL
    assert isinstance(good, Artifact)
    outcomes = await running.compile_all([(GOOD, f"good<{n}>") for n in range(2, 6)])
    assert all(isinstance(outcome, Artifact) for outcome in outcomes)


async def test_a_crash_of_the_compiler_itself_is_a_worker_crash(running: Compiler) -> None:
    """Nested parentheses overflow its stack: NVRTC's own segmentation fault."""
    depth = 200_000
    bomb = f'extern "C" __global__ void k(int* p) {{ *p = {"(" * depth}1{")" * depth}; }}'
    spec = Specialization("k", options=("-modify-stack-limit=false",))
    crashed, *good = await running.compile_all(
        [(bomb, spec), *((GOOD, f"good<{n}>") for n in range(4))]
    )

    assert isinstance(crashed, WorkerCrashed)
    assert crashed.returncode == -signal.SIGSEGV
    assert all(isinstance(outcome, Artifact) for outcome in good)


async def test_a_hanging_worker_is_killed_at_the_time_out() -> None:
    """The job ends in CompileTimeout, which is a TimeoutError; its worker is gone."""
    async with Compiler("sm_90", workers=1, timeout=1) as compiler:
        with pytest.raises(CompileTimeout, match=r"'slow' of kernel\.cu .* within 1 s"):
            await compiler.compile(SLOW, "slow")
        await until(lambda: not children())


async def test_a_worker_that_cannot_start_says_why(
    running: Compiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The error holds the last of what it wrote to its standard error."""
    monkeypatch.setattr(_process, "__package__", "no_such_package")

    with pytest.raises(ToolchainError, match=r"cannot start: .*No module named"):
        await running.compile(GOOD, "good<1>")


async def test_no_more_compiles_run_at_once_than_workers(running: Compiler) -> None:
    """Workers start on demand and are used again."""
    assert children() == []
    await running.compile(GOOD, "good<1>")
    first = children()
    await running.compile(GOOD, "good<2>")
    assert children() == first
    await running.compile_all([(GOOD, f"good<{n}>") for n in range(3, 12)])
    assert len(children()) == 2


async def test_workers_run_below_the_servers_priority(running: Compiler) -> None:
    """A batch must not take the processors from the server."""
    await running.compile(GOOD, "good<1>")
    (worker,) = children()

    assert os.getpriority(os.PRIO_PROCESS, worker) > os.getpriority(os.PRIO_PROCESS, 0)


async def test_a_worker_sees_nothing_of_the_servers_environment(running: Compiler) -> None:
    """No secret of the server's, no GPU, an empty private directory."""
    os.environ["A_SECRET"] = "x"  # noqa: S105 - the value is nothing
    try:
        await running.compile(GOOD, "good<1>")
    finally:
        del os.environ["A_SECRET"]
    (worker,) = children()
    environment = Path(f"/proc/{worker}/environ").read_bytes()
    folder = Path(f"/proc/{worker}/cwd").resolve()

    assert b"A_SECRET" not in environment
    assert b"CUDA_VISIBLE_DEVICES=\0" in environment
    assert list(folder.iterdir()) == []
    assert folder.stat().st_mode & 0o777 == 0o700


async def test_idle_workers_go_after_a_while(
    running: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They hold memory that the server may need."""
    monkeypatch.setattr(_pool, "IDLE_SECONDS", 0.2)
    async with Compiler("sm_80", workers=1) as compiler:
        await compiler.compile(GOOD, "good<1>")
        await until(lambda: not children())
        assert isinstance(await compiler.compile(GOOD, "good<2>"), Artifact)


async def test_trim_stops_idle_workers_now(running: Compiler) -> None:
    """It says how many there were."""
    await running.compile(GOOD, "good<1>")

    assert await running.trim() == 1
    assert children() == []
    assert await running.trim() == 0


async def test_closing_in_the_middle_of_a_compile_leaves_nothing() -> None:
    """Running compiles are killed, waiters get an error, folders are removed."""
    began = time.monotonic()
    async with Compiler("sm_90", workers=2) as compiler:
        slow = asyncio.create_task(compiler.compile(SLOW, "slow"))
        (worker,) = await until(children)
        folder = Path(f"/proc/{worker}/cwd").resolve()
    with pytest.raises(KernelsError, match="closed"):
        await slow

    assert time.monotonic() - began < 10
    assert children() == []
    assert not folder.parent.exists()


async def test_a_server_without_a_main_guard_or_standard_input_works(
    tmp_path: Path, child_environment: dict[str, str]
) -> None:
    """A worker never imports the server's `__main__`."""
    script = tmp_path / "script.py"
    script.write_text(
        "import asyncio\n"
        "from kernels_async import Compiler\n"
        "print('once')\n"
        "async def main():\n"
        "    async with Compiler('sm_90', workers=2) as compiler:\n"
        f"        print((await compiler.compile({GOOD!r}, 'good<1>')).entry)\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-Werror",
        str(script),
        env=child_environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert await process.communicate() == (b"once\n_Z4goodILi1EEvPi\n", b"")


async def test_a_job_of_megabytes_reaches_its_worker(running: Compiler) -> None:
    """Big sources are encoded off the event loop."""
    big = "// " + "y" * 80 + "\n"
    source = big * 40_000 + GOOD

    assert isinstance(await running.compile(source, Specialization("good<1>")), Artifact)
