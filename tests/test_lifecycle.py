"""Tests of opening and closing: nothing is left, whoever is cancelled when."""

from __future__ import annotations

import asyncio
import copy
import gc
import logging
import os
import pickle
import shutil
import signal
import tempfile
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from kernels_async import (
    Artifact,
    ClosedError,
    Compiler,
    DeviceMismatchError,
    Kernel,
    Kernels,
    KernelsError,
    LoadError,
    ReporterError,
    Source,
    Specialization,
    SymbolNotFoundError,
    ToolchainError,
    WorkerCrashed,
    WrongLoopError,
)
from kernels_async._private import copies
from kernels_async.devices._cpu import CpuDevice
from tests.processes import CPU_SLOW, children, until

SOURCE = Source("template <int N> __global__ void add(int* p) { p[threadIdx.x] += N; }\n")
SLOW = Source(CPU_SLOW)


def alive(group: int) -> bool:
    """Whether any process of a group lives."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(autouse=True)
async def _nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[None]:
    """No process, task, file descriptor or folder outlives a test."""
    copies.on_disk("made before", b"")
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    await asyncio.to_thread(int)
    tasks = asyncio.all_tasks()
    files = len(os.listdir("/proc/self/fd"))
    yield
    await until(lambda: not children())
    await until(lambda: asyncio.all_tasks() <= tasks | {asyncio.current_task()})
    await until(lambda: len(os.listdir("/proc/self/fd")) <= files)
    await until(lambda: not list(folder.glob("*/processes/*")))


async def test_closing_a_cache_in_the_turn_of_an_await_ends_only_it() -> None:
    """Its compiler and the other caches over it go on."""
    async with Compiler("cpu", workers=1) as compiler:
        other = Kernels(compiler)
        kernels = Kernels(compiler)
        await kernels.__aenter__()
        waiter = asyncio.ensure_future(kernels.request(SOURCE, "add<2>"))
        await asyncio.sleep(0)
        await kernels.aclose()
        with pytest.raises(ClosedError):
            await waiter
        assert isinstance(await other.get(SOURCE, "add<3>"), Kernel)
        assert isinstance(await compiler.compile(SOURCE, "add<4>"), Artifact)


async def test_an_unexpected_error_of_a_load_is_that_loads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither the cache nor its compiler ends with it."""
    async with Kernels.open("cpu", workers=1) as kernels:

        def fail(*_: object) -> None:
            raise RuntimeError("no thread")

        with monkeypatch.context() as patched:
            patched.setattr(CpuDevice, "_load", fail)
            with pytest.raises(LoadError, match="no thread") as caught:
                await kernels.get(SOURCE, "add<1>")
            assert isinstance(caught.value.__cause__, RuntimeError)
        assert isinstance(await kernels.get(SOURCE, "add<1>"), Kernel)


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 13, 40])
async def test_closing_while_a_worker_starts_leaves_no_process(turns: int) -> None:
    """Whenever it comes."""
    async with Compiler("cpu", workers=1) as compiler:
        waiter = asyncio.ensure_future(compiler.compile(SOURCE, "add<1>"))
        await until(children)
        for _ in range(turns):
            await asyncio.sleep(0)
    with pytest.raises(ClosedError):
        await waiter


@pytest.mark.parametrize("turns", [0, 1, 2, 5, 20, 100, 1000])
async def test_cancelling_the_opening_leaves_nothing(turns: int) -> None:
    """At whichever await."""
    manager = Kernels.open("cpu")
    opening = asyncio.ensure_future(manager.__aenter__())
    for _ in range(turns):
        await asyncio.sleep(0)
    if opening.cancel():
        with pytest.raises(asyncio.CancelledError):
            await opening
    else:
        await manager.__aexit__(None, None, None)


async def test_cancelling_the_opening_in_the_turn_that_it_succeeds_leaves_nothing() -> None:
    """What has opened is closed, though nobody was given it."""
    compiler = Compiler("cpu")
    entering = asyncio.ensure_future(compiler.__aenter__())
    await asyncio.sleep(0)
    (use,) = compiler._makers._uses.values()
    while not use.opening.settled:
        await asyncio.sleep(0)
    assert entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering

    assert use.opening.value is not None
    with pytest.raises(ClosedError):
        use.opening.value.scope.start_soon(asyncio.sleep, 0)


async def test_leaving_under_a_cancelled_scope_leaves_nothing() -> None:
    """A time-out of anyio's cancels every await of the exit."""
    with anyio.move_on_after(1.5):
        async with Kernels.open("cpu", workers=1) as kernels:
            await kernels.get(SOURCE, "add<1>")
            await anyio.sleep(30)
    assert children() == []


async def test_a_cancelled_exit_still_closes() -> None:
    """The supervisor cleans up, not the caller."""
    compiler = Compiler("cpu", workers=1)
    await compiler.__aenter__()
    await compiler.compile(SOURCE, "add<1>")
    leaving = asyncio.ensure_future(compiler.__aexit__(None, None, None))
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    with pytest.raises(ClosedError):
        compiler.key(SOURCE, "add<1>")


async def test_a_cancelled_trim_stops_the_workers_all_the_same() -> None:
    """They are signalled before anything is awaited."""
    async with Compiler("cpu", workers=2) as compiler:
        await compiler.compile_all([(SOURCE, f"add<{n}>") for n in range(4)])
        workers = children()
        trimming = asyncio.ensure_future(compiler.trim())
        await asyncio.sleep(0)
        trimming.cancel()
        await asyncio.gather(trimming, return_exceptions=True)
        await until(lambda: not any(alive(worker) for worker in workers))


async def test_closing_a_cache_while_it_opens_ends_it() -> None:
    """It must not open after it was closed."""
    async with Compiler("cpu", workers=1) as compiler:
        kernels = Kernels(compiler)
        waiter = asyncio.ensure_future(kernels.get(SOURCE, "add<1>"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await kernels.aclose()
        with pytest.raises(ClosedError):
            await waiter


async def test_a_killed_worker_takes_its_compiler_along() -> None:
    """The host's C++ compiler is in the worker's process group."""
    async with Compiler("cpu", workers=1) as compiler:
        waiter = asyncio.ensure_future(compiler.compile(SLOW, "slow"))
        (worker,) = await until(children)
        tasks = Path(f"/proc/{worker}/task/{worker}/children")
        await until(lambda: tasks.read_text())
        os.kill(worker, signal.SIGKILL)
        with pytest.raises(WorkerCrashed, match="SIGKILL"):
            await waiter
        await until(lambda: not alive(worker))


async def test_one_compiler_may_be_used_by_one_loop_after_another() -> None:
    """And by several tasks of each."""
    compiler = Compiler("cpu", workers=1)

    async def use() -> None:
        async with compiler:
            await compiler.compile(SOURCE, "add<1>")

    async def several() -> None:
        await asyncio.gather(use(), use(), use())

    for _ in range(2):
        await asyncio.to_thread(asyncio.run, several())
    await several()


async def test_one_compiler_may_be_used_by_two_loops_at_once() -> None:
    """Each has workers of its own, and they share the store."""
    async with Kernels.open("cpu", workers=1) as here:

        async def there() -> bool:
            async with Kernels.open("cpu", workers=1) as kernels:
                await kernels.get(SOURCE, "add<1>")
                return kernels.compiler is here.compiler

        shared = await asyncio.gather(
            asyncio.to_thread(asyncio.run, there()), here.get(SOURCE, "add<2>")
        )
    assert shared[0] is True


async def test_a_compiler_that_is_open_elsewhere_says_so() -> None:
    """Its workers belong to another loop."""
    async with Compiler("cpu", workers=1) as compiler:
        with pytest.raises(WrongLoopError, match="another event loop"):
            await asyncio.to_thread(asyncio.run, compiler.compile(SOURCE, "add<1>"))
        assert isinstance(await compiler.compile(SOURCE, "add<1>"), Artifact)


async def test_equal_calls_share_one_compiler_whatever_memory_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is asked for is compared, not what comes of it at the moment."""
    async with Kernels.open("cpu") as one:
        monkeypatch.setattr("kernels_async._settings.default_workers", lambda: 77)
        async with Kernels.open("cpu") as two:
            assert one.compiler is two.compiler


def test_equal_calls_from_many_threads_share_one_compiler() -> None:
    """However the arguments are written."""
    found: list[Compiler] = []
    ready = threading.Barrier(8)

    def make(number: int) -> None:
        ready.wait()
        folder = "/x/y" if number % 2 else Path("/x/y")
        found.append(Compiler.for_device("cpu", cache_dir=folder, workers=3))

    threads = [threading.Thread(target=make, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(compiler) for compiler in found}) == 1


async def test_a_cleaned_temporary_folder_does_not_end_the_compiles(tmp_path: Path) -> None:
    """Systems clean theirs while servers live."""
    async with Compiler("cpu", workers=1) as compiler:
        await compiler.compile(SOURCE, "add<1>")
        await compiler.trim()
        (folder,) = (tmp_path / "temporary").glob("*/processes/*")
        assert list(folder.glob("worker-*")) == []
        shutil.rmtree(folder)
        assert isinstance(await compiler.compile(SOURCE, "add<2>"), Artifact)


async def test_a_worker_that_cannot_start_is_a_toolchain_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not a bare error of the system's."""
    async with Compiler("cpu", workers=1) as compiler:
        monkeypatch.setattr("sys.executable", "/no/such/python")
        with pytest.raises(ToolchainError, match=r"a worker cannot start: .*No such file"):
            await compiler.compile(SOURCE, "add<1>")


class _OwnError(KernelsError):
    def __init__(self, one: int, *, two: int) -> None:
        super().__init__(f"{one} and {two}")
        self.two = two


async def test_a_reporters_own_error_reaches_every_waiter_as_it_is() -> None:
    """Whatever its arguments are."""
    error = _OwnError(1, two=2)
    error.add_note("a note")

    def report(_: Artifact) -> None:
        raise error

    async with Kernels.open("cpu", workers=1) as kernels:
        pending = kernels.reporting(report).request(SOURCE, "add<1>")
        for _ in range(2):
            with pytest.raises(_OwnError, match="1 and 2") as caught:
                await pending
            assert caught.value is not error
            assert (caught.value.two, caught.value.__notes__) == (2, ["a note"])


async def test_an_artifact_is_reported_if_the_first_try_had_no_reporter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once the reporter is there."""
    seen: list[str] = []
    async with Kernels.open("cpu", workers=1) as kernels:
        pending = kernels.request(SOURCE, "add<1>")
        with monkeypatch.context() as patched:
            patched.setattr(CpuDevice, "_load", lambda *_: LoadError("not now"))
            with pytest.raises(LoadError, match="not now"):
                await pending
        kernels.reporting(lambda artifact: seen.append(artifact.symbol))
        await pending
    assert seen == ["add<1>"]


async def test_build_keeps_every_failure_whatever_it_is() -> None:
    """A reporter's `ClosedError` is not the cache's."""

    def report(_: Artifact) -> None:
        raise ClosedError("my sink is closed")

    async with Kernels.open("cpu", workers=1) as kernels:
        kernels.reporting(report)
        kernels.request(SOURCE, "add<1>")
        kernels.request(SOURCE, "nope")
        with pytest.raises(ExceptionGroup) as caught:
            await kernels.build()
        assert {type(e) for e in caught.value.exceptions} == {
            ClosedError,
            SymbolNotFoundError,
        }


async def test_loaded_of_a_closed_cache_is_none() -> None:
    """It never waits and never fails."""
    async with Kernels.open("cpu", workers=1) as kernels:
        await kernels.get(SOURCE, "add<1>")
        assert kernels.loaded(SOURCE, "add<1>") is not None
    assert kernels.loaded(SOURCE, "add<1>") is None
    assert kernels.loaded(SOURCE, "add<2>") is None
    async with kernels.compiler:
        never_opened = Kernels(kernels.compiler)
    assert never_opened.loaded(SOURCE, "add<1>") is None


async def test_a_request_that_is_no_pair_starts_nothing() -> None:
    """No coroutine is left that nobody awaits."""
    async with Compiler("cpu", workers=1) as compiler:
        with pytest.raises(ValueError, match="unpack"):
            await compiler.compile_all([(SOURCE, "add<1>"), (SOURCE,)])  # type: ignore[list-item]


async def test_a_cache_is_not_pickled_and_copies_are_clones() -> None:
    """Kernels belong to their process."""
    async with Kernels.open("cpu", workers=1) as kernels:
        with pytest.raises(TypeError, match="process"):
            pickle.dumps(kernels)
        copied = copy.deepcopy(kernels)
        pending = kernels.request(SOURCE, "add<1>")
        assert copied.request(SOURCE, "add<1>") is pending


async def test_an_unreadable_cache_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not at every miss."""
    folder = tmp_path / "cache"
    folder.symlink_to(tmp_path / "loop")
    (tmp_path / "loop").symlink_to(folder)
    async with Kernels.open("cpu", cache_dir=folder, workers=1) as kernels:
        for number in range(3):
            await kernels.get(SOURCE, f"add<{number}>")
    warnings = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 2


async def test_a_task_that_fails_is_logged_and_fails_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing of the kind is known; were there one, the server would go on."""

    async def fail() -> None:
        raise RuntimeError("a bug")

    async with Compiler("cpu", workers=1) as compiler:
        compiler._scope.start_soon(fail)
        assert isinstance(await compiler.compile(SOURCE, "add<1>"), Artifact)
    assert "a bug" in caplog.text


async def test_the_device_must_run_the_compilers_target() -> None:
    """And what was opened before is closed."""
    async with Compiler("sm_90", workers=1) as compiler:
        with pytest.raises(DeviceMismatchError, match=r"cpu .*does not run code for sm_90"):
            await Kernels(compiler, "cpu").get(SOURCE, Specialization("add<1>"))


async def test_an_error_that_cancels_is_the_reporters_own() -> None:
    """A reporter that raises CancelledError does not cancel the cache."""

    async def report(_: Artifact) -> None:
        raise asyncio.CancelledError

    async with Kernels.open("cpu", workers=1) as kernels:
        with pytest.raises(ReporterError):
            await kernels.reporting(report).get(SOURCE, "add<1>")
        await kernels.reporting(None).get(SOURCE, "add<1>")


@pytest.mark.filterwarnings("error")
def test_work_that_is_cancelled_before_it_began_is_quiet(
    recwarn: pytest.WarningsRecorder, warm_dir: Path
) -> None:
    """As by a program that cancels every task that there is."""

    async def main() -> None:
        kernels = await Kernels.open("cpu", cache_dir=warm_dir).__aenter__()
        pending = kernels.request(SOURCE, "add<1>")
        waiter = asyncio.ensure_future(pending)
        await asyncio.sleep(0)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.gather(waiter, return_exceptions=True)

    for _ in range(3):
        asyncio.run(main())
        gc.collect()
    assert [str(warning.message) for warning in recwarn] == []
