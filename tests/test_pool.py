"""Tests of the worker pool: one failing worker fails its own job and no other."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from kernels_async import (
    Artifact,
    CompileMemoryError,
    Compiler,
    CompileTimeout,
    KernelsError,
    QuarantinedError,
    Specialization,
    ToolchainError,
    WorkerCrashed,
    _blame,
    _crew,
    _machine,
    _process,
    _spawn,
)
from tests.bars.pool import SEGV_OPTION, parentheses
from tests.fake_worker import FAULTS, HARMLESS, FakeWorker
from tests.processes import (
    CPU_SLOW,
    GOOD,
    SLOW,
    at_work,
    children,
    in_child,
    is_alive,
    until,
)

UNROLLED = SLOW.replace("r < 1000", "r < 4")
"""Some seconds less than for ever."""


@pytest.fixture
async def running() -> AsyncIterator[Compiler]:
    """A compiler with two workers and a time-out of some seconds."""
    async with Compiler("sm_90", workers=2, timeout=20) as compiler:
        yield compiler


async def test_a_killed_worker_fails_its_own_job_and_no_other(running: Compiler) -> None:
    """The next job gets a new worker; the error names signal, symbol and source."""
    slow = asyncio.create_task(running.compile(SLOW, "slow"))
    (victim,) = await until(lambda: at_work(running))
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


async def test_a_death_is_noticed_though_a_forked_child_holds_the_workers_pipes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The host forked while the worker was started: its output never ends."""
    spawn, forked = _spawn._spawn, []

    def fork_and_spawn(*given: Any) -> int:
        if not (child := os.fork()):
            signal.pause()
        forked.append(child)
        return spawn(*given)

    monkeypatch.setattr(_spawn, "_spawn", fork_and_spawn)
    try:
        async with Compiler("sm_90", workers=1) as compiler:
            slow = asyncio.create_task(compiler.compile(SLOW, "slow"))
            (victim,) = await until(lambda: at_work(compiler))
            os.kill(victim, signal.SIGKILL)
            with pytest.raises(WorkerCrashed, match="SIGKILL"):
                await asyncio.wait_for(slow, 10)
    finally:
        for child in forked:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)  # noqa: ASYNC222 - it was killed


async def test_a_worker_starts_with_the_c_library_of_rhel_8(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It lacks an action, and skips one that copies a descriptor onto itself."""
    libc = _spawn._libc

    class Old:
        def __getattr__(self, name: str) -> Any:
            if name.endswith("_np"):
                raise AttributeError(name)
            return getattr(libc, name)

        def posix_spawn_file_actions_adddup2(self, actions: Any, old: int, new: int) -> int:
            same = old == new
            return 0 if same else libc.posix_spawn_file_actions_adddup2(actions, old, new)

    monkeypatch.setattr(_spawn, "_libc", Old())
    async with Compiler("sm_90", workers=1) as compiler:
        assert (await compiler.compile(GOOD, "good<1>")).entry
        (worker,) = compiler._maker().pool.crew.workers
        assert Path(f"/proc/{worker.pid}/cwd").readlink() == Path(worker.folder)


async def test_a_worker_inherits_no_file_of_the_server(tmp_path: Path) -> None:
    """Not those either that the server leaves open for other children."""
    secret = tmp_path / "secret"
    with secret.open("w") as file:
        os.set_inheritable(file.fileno(), True)
        async with Compiler("sm_90", workers=1, sandbox="off") as compiler:
            await compiler.compile(GOOD, "good<1>")
            (worker,) = compiler._maker().pool.crew.workers
            held = [f.readlink() for f in Path(f"/proc/{worker.pid}/fd").iterdir()]
    assert held
    assert secret not in held


async def test_a_crash_of_the_compiler_itself_is_a_worker_crash(running: Compiler) -> None:
    """Nested parentheses overflow its stack: NVRTC's own segmentation fault."""
    bomb = parentheses()
    spec = Specialization("k", options=(SEGV_OPTION,))
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
    monkeypatch.setattr(_process, "_PROGRAM", str(tmp_path / "none.py"))

    with pytest.raises(ToolchainError, match=r"cannot start: .*can't open file"):
        await running.compile(GOOD, "good<1>")


async def test_a_fault_of_a_worker_is_that_of_its_own_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Dead, hung, hungry, or writing what is no answer: the next job gets a new worker."""
    fake = FakeWorker(tmp_path)
    monkeypatch.setattr(sys, "executable", fake.program)
    compiler = Compiler("sm_90", workers=1, timeout=2, memory=300 << 20)
    async with compiler:
        for fault in FAULTS.keys() - {"flood-and-die"}:
            bad = f"{GOOD}//! {fault}\n"
            (error,) = await compiler.compile_all([(bad, fault)])
            after = await compiler.compile(GOOD, f"after-{fault}")
            expected = {
                "hang": CompileTimeout,
                "stop": CompileTimeout,
                "close": WorkerCrashed,
                "eat": CompileMemoryError,
            }.get(fault, WorkerCrashed)
            assert type(error) is expected, (fault, error)
            assert fault in str(error)
            assert isinstance(after, Artifact), (fault, after)
        assert len(children()) == 1
    assert set(fake.begun().values()) == {1}
    assert not Path("/tmp/kernels_async-unpickled").exists()  # noqa: S108


async def test_a_worker_may_misbehave_between_jobs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What it wrote too much of, or that it died, is nobody's fault: it is replaced."""
    monkeypatch.setattr(sys, "executable", FakeWorker(tmp_path).program)
    async with Compiler("sm_90", workers=1) as compiler:
        for fault in HARMLESS:
            found = await compiler.compile(f"{GOOD}//! {fault}\n", fault)
            assert isinstance(found, Artifact)
            await asyncio.sleep(0.2)
            assert isinstance(await compiler.compile(GOOD, f"after-{fault}"), Artifact)


async def test_the_last_words_of_a_worker_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of 100 MB only the end, with control characters made visible."""
    monkeypatch.setattr(sys, "executable", FakeWorker(tmp_path).program)
    async with Compiler("sm_90", workers=1) as compiler:
        with pytest.raises(
            WorkerCrashed, match=r"by SIGSEGV; it said: .*\\u001b"
        ) as caught:
            await compiler.compile(f"{GOOD}//! flood-and-die\n", "k")
    assert 1000 < len(caught.value.stderr) < 10_000


async def test_a_worker_that_dies_idle_fails_no_job(running: Compiler) -> None:
    """Also where nobody has noticed yet."""
    for number in range(5):
        await running.compile(GOOD, f"good<{number}>")
        (worker,) = children()
        os.kill(worker, signal.SIGKILL)
    assert isinstance(await running.compile(GOOD, "good<9>"), Artifact)


EATERS = {
    "sm_90": "__device__ char a[1500u << 20] = {1};\n__global__ void k(char* p) { *p = a[*p]; }",
    "cpu": CPU_SLOW.replace("slow(", "k("),
}


@pytest.mark.parametrize("target", EATERS)
async def test_a_compile_that_eats_memory_is_ended(target: str) -> None:
    """It is a MemoryError of its own; its worker is replaced."""
    async with Compiler(target, workers=1, memory=170 << 20) as compiler:
        with pytest.raises(CompileMemoryError, match=r"'k' of kernel\.cu") as caught:
            await compiler.compile(EATERS[target], "k")
        assert isinstance(caught.value, MemoryError)
        assert isinstance(await compiler.compile(GOOD, "good<1>"), Artifact)


async def test_what_a_compilers_children_hold_counts(tmp_path: Path) -> None:
    """The host's compiler is not the worker itself."""
    async with Compiler("cpu", workers=1) as compiler:
        task = asyncio.create_task(compiler.compile(CPU_SLOW, "slow"))
        (worker,) = await until(lambda: at_work(compiler))
        (driver,) = await until(lambda: children(worker))
        await until(lambda: _machine.resident_bytes(driver) > 60 << 20)
        alone = int(Path(f"/proc/{worker}/statm").read_text().split()[1]) * 4096
        assert _machine.resident_bytes(worker) > alone + (60 << 20)
        task.cancel()


async def test_a_compile_that_succeeds_clears_its_record(running: Compiler) -> None:
    """A worker that somebody killed once is not held against a source for ever."""
    key = running.key(GOOD, "good<1>")
    for _ in range(2):
        running._quarantine.blame(key, WorkerCrashed("killed by somebody"))
        assert isinstance(await running.compile(GOOD, "good<1>"), Artifact)
        assert (await running.clear()).removed == 1
    assert isinstance(await running.compile(GOOD, "good<1>"), Artifact)


@pytest.mark.parametrize("victim", ["driver", "compiler proper"])
async def test_a_killed_compiler_of_the_host_is_a_crash_and_leaves_nothing(
    victim: str,
) -> None:
    """Not an error of the source; what the driver had started does not go on."""
    async with Compiler("cpu", workers=1) as compiler:
        task = asyncio.create_task(compiler.compile(CPU_SLOW, "slow"))
        (worker,) = await until(lambda: at_work(compiler))
        (driver,) = await until(lambda: children(worker))
        (proper,) = await until(lambda: children(driver))
        os.kill(driver if victim == "driver" else proper, signal.SIGKILL)
        with pytest.raises(WorkerCrashed, match=r"'slow' of kernel\.cu died, by SIGKILL"):
            await task
        await until(lambda: not any(map(is_alive, (worker, driver, proper))))
        assert isinstance(await compiler.compile(GOOD, "good<1>"), Artifact)


async def test_a_request_that_killed_two_workers_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """At once and with its history, also after the compiler was closed, until `forget`."""
    fake = FakeWorker(tmp_path)
    monkeypatch.setattr(sys, "executable", fake.program)
    compiler = Compiler("sm_90", workers=1)
    bad = f"{GOOD}//! segv\n"
    async with compiler:
        for _ in range(2):
            with pytest.raises(WorkerCrashed):
                await compiler.compile(bad, "k")
        with pytest.raises(QuarantinedError, match="killed 2 workers") as caught:
            await compiler.compile(bad, "k")
        assert len(caught.value.history) == 2
        assert "SIGSEGV" in caught.value.history[0]
        assert isinstance(await compiler.compile(GOOD, "k"), Artifact)
    async with compiler:
        with pytest.raises(QuarantinedError):
            await compiler.compile(bad, "k")
        assert fake.begun()["k"] == 3
        compiler.forget(bad, "k")
        with pytest.raises(WorkerCrashed):
            await compiler.compile(bad, "k")


async def test_workers_that_do_not_start_cost_an_error_at_once(
    running: Compiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """After some no more are tried, for a while; no source is blamed."""
    monkeypatch.setattr(_blame, "BACK_OFF_SECONDS", 0.5)
    with monkeypatch.context() as patched:
        log = tmp_path / "log"
        broken = tmp_path / "python"
        broken.write_text(f"#!/bin/sh\necho started >> {log}\necho no luck >&2\nexit 7\n")
        broken.chmod(0o700)
        patched.setattr(sys, "executable", str(broken))
        for _ in range(10):
            with pytest.raises(ToolchainError, match=r"exit status 7; it said: no luck"):
                await running.compile(GOOD, "good<1>")
        assert log.read_text() == "started\n" * _blame.START_FAILURES
    await asyncio.sleep(0.6)
    assert isinstance(await running.compile(GOOD, "good<1>"), Artifact)


async def test_a_worker_that_dies_before_every_job_is_not_tried_for_ever(
    running: Compiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It says hello, and begins nothing."""
    fake = tmp_path / "python"
    fake.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path[:0] = {sys.path!r}\n"
        "from kernels_async import _frames\n"
        "sys.stdin.buffer.read(16)\n"
        "sys.stdout.buffer.write(_frames.hello('x'))\n"
    )
    fake.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(fake))
    with pytest.raises(WorkerCrashed, match="died"):
        await running.compile(GOOD, "good<1>")


@contextlib.contextmanager
def few_descriptors() -> Iterator[None]:
    """Leave too few descriptors for a worker, and enough for the store."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(map(int, os.listdir("/proc/self/fd")))
    held = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 10, limits[1]))
    with contextlib.suppress(OSError):
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    for _ in range(4):
        os.close(held.pop())
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in held:
            os.close(descriptor)


async def test_a_worker_that_never_says_hello_is_not_waited_for(
    running: Compiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever it waits for."""
    monkeypatch.setattr(_crew, "START_SECONDS", 0.3)
    stuck = tmp_path / "python"
    stuck.write_text("#!/bin/sh\nexec sleep 1000\n")
    stuck.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(stuck))
    with pytest.raises(ToolchainError, match=r"cannot start: it took more than 0\.3 s"):
        await running.compile(GOOD, "good<1>")
    assert children() == []


async def test_a_job_waits_for_a_worker_where_no_other_can_start(
    running: Compiler,
) -> None:
    """Out of descriptors: an error if there is none to wait for; it recovers."""
    with few_descriptors(), pytest.raises(ToolchainError, match="Too many open files"):
        await running.compile(GOOD, "good<1>")
    first = asyncio.create_task(running.compile(UNROLLED, "slow"))
    await until(lambda: at_work(running))
    with few_descriptors():
        second = await running.compile(GOOD, "good<2>")
        assert first.done()
    assert isinstance(second, Artifact)
    assert isinstance(await first, Artifact)


async def test_jobs_wait_for_workers_that_start_where_no_more_can() -> None:
    """A batch on an idle pool, with descriptors for some of its workers."""
    async with Compiler("sm_90", workers=16) as compiler:
        await compiler.compile(GOOD, "good<0>")
        await compiler.trim()
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        last = max(int(fd.name) for fd in Path("/proc/self/fd").iterdir())
        with contextlib.ExitStack() as held:
            while (taken := os.open(os.devnull, os.O_RDONLY)) <= last:
                held.callback(os.close, taken)
            os.close(taken)
            resource.setrlimit(resource.RLIMIT_NOFILE, (taken + 28, before[1]))
            held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
            requests = [(GOOD, f"good<{n}>") for n in range(1, 25)]
            outcomes = await asyncio.wait_for(compiler.compile_all(requests), 60)
        assert all(isinstance(outcome, Artifact) for outcome in outcomes), outcomes


@pytest.mark.parametrize("limit", ["RECYCLE_JOBS", "RECYCLE_BYTES"])
async def test_worn_workers_are_replaced_and_no_job_is_stranded(
    running: Compiler, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """By what they did, or by what they hold."""
    monkeypatch.setattr(_crew, limit, 1)
    found = await running.compile_all([(GOOD, f"good<{n}>") for n in range(8)])

    assert all(isinstance(outcome, Artifact) for outcome in found)
    assert children() == []


async def test_closing_with_many_busy_workers_takes_no_longer() -> None:
    """They are ended side by side."""
    async with Compiler("sm_90", workers=12) as compiler:
        for number in range(12):
            task = asyncio.ensure_future(compiler.compile(f"{SLOW}// {number}", "slow"))
            task.add_done_callback(lambda task: task.exception())
        await until(lambda: len(at_work(compiler)) == 12)
        began = time.monotonic()
    assert time.monotonic() - began < 2
    assert children() == []


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
    monkeypatch.setattr(_crew, "IDLE_SECONDS", 0.2)
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
        (worker,) = await until(lambda: at_work(compiler))
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


def test_a_process_that_cannot_be_started_leaves_no_descriptor() -> None:
    """However far its start came before there were no more descriptors."""

    def start_with_few() -> int:
        few, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        before = os.listdir("/proc/self/fd")
        for more in range(20):
            resource.setrlimit(resource.RLIMIT_NOFILE, (len(before) - 1 + more, most))
            try:
                _spawn.spawn(["/bin/true"], {}, 0)
            except OSError:
                resource.setrlimit(resource.RLIMIT_NOFILE, (few, most))
                assert os.listdir("/proc/self/fd") == before
            else:
                return more
        return 0

    (refused,) = in_child(start_with_few)
    assert int(refused) > 3
