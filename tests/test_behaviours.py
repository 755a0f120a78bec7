"""Ways of running that went wrong for people elsewhere, each with what is right here.

The letters are those of the kinds of case: CR crashes, CC concurrency, CD the cache's
directory, CI its integrity, EV the environment, AS asyncio, IT what it meets.
"""

from __future__ import annotations

import asyncio
import ctypes
import locale
import os
import pickle
import re
import resource
import shutil
import signal
import sys
import time
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile

from kernels_async import Artifact, CompileError, Compiler, Kernels, Source, _machine
from kernels_async._files import Files
from kernels_async._store import RECORD
from tests.processes import GOOD, SLOW, children, output, until

PROLOGUE = (
    f"import asyncio, sys\nfrom kernels_async import *\nGOOD, SLOW = {GOOD!r}, {SLOW!r}\n"
)


async def start(
    environment: dict[str, str], program: str, *options: str, **more: Any
) -> asyncio.subprocess.Process:
    """Start a program that has the library."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, *options, "-c", PROLOGUE + program),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        **more,
    )


async def run(environment: dict[str, str], program: str, *options: str) -> str:
    """Run a program that has the library; its output, nothing on standard error."""
    return await output(environment, *options, "-c", PROLOGUE + program)


async def test_cr_02_a_compiler_out_of_memory_says_so_and_is_not_remembered(
    compiler: Compiler,
) -> None:
    """NVRTC calls it an ordinary error; the next try may have the memory."""
    await compiler.compile(GOOD, "good<1>")
    (worker,) = children()
    status = Path(f"/proc/{worker}/status").read_text()
    limit = int(re.findall(r"VmSize:\s+(\d+)", status)[0]) * 1024 + (60 << 20)
    resource.prlimit(worker, resource.RLIMIT_AS, (limit, limit))
    cub = '#include <cub/block/block_reduce.cuh>\nextern "C" __global__ void k(int* p) {}\n'
    with pytest.raises(Exception, match=r"(?i)memory|died"):
        await compiler.compile(cub, "k")
    await compiler.trim()

    assert isinstance(await compiler.compile(cub, "k"), Artifact)


async def test_cr_05_a_missing_part_of_nvrtc_is_named(
    tmp_path: Path, child_environment: dict[str, str]
) -> None:
    """Not just a number."""
    out = await run(
        child_environment,
        "import dataclasses, os, pathlib\n"
        "from kernels_async.toolchains import find, Job\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "toolchain = find.__globals__['CudaToolchain']\n"
        "library = folder / 'libnvrtc.so'\n"
        "from cuda.pathfinder import find_nvidia_header_directory\n"
        "import importlib.util, glob\n"
        "found = [p for s in sys.path for p in glob.glob(s + '/nvidia/*/lib/libnvrtc.so.*')]\n"
        "library = folder / os.path.basename(found[0])\n"
        "import shutil; shutil.copy(found[0], library)\n"
        "broken = toolchain(str(library), (), (13, 0), 'x')\n"
        "os.chdir(folder)\n"
        "try:\n"
        "    broken.compile(Job(Source(GOOD), Specialization('good<1>'), 'sm_90'))\n"
        "except ToolchainError as error:\n"
        "    print(error)\n",
    )
    assert "NVRTC is not whole" in out
    assert "libnvrtc-builtins" in out


LEAVING = {
    "closed": """
async def main():
    async with Compiler('sm_90', workers=1) as compiler:
        task = asyncio.create_task(compiler.compile(SLOW, 'slow'))
        task.add_done_callback(lambda task: task.exception())
        await asyncio.sleep(0.5)
""",
    "not closed": """
async def main():
    compiler = await Compiler('sm_90', workers=1).__aenter__()
    task = asyncio.create_task(compiler.compile(SLOW, 'slow'))
    await asyncio.sleep(0.5)
""",
    "exit": """
async def main():
    kernels = Kernels(await Compiler('cpu', workers=1).__aenter__())
    task = asyncio.create_task(kernels.get(GOOD, 'good<1>'))
    await asyncio.sleep(0.05)
    sys.exit(0)
""",
}


@pytest.mark.parametrize("how", LEAVING)
async def test_cr_08_leaving_in_the_middle_of_a_compile_is_quick_and_quiet(
    child_environment: dict[str, str], how: str
) -> None:
    """Closed or not: no traceback, no orphan, no waiting for the compile."""
    program = f"{LEAVING[how]}asyncio.run(main())\n"
    process = await start(child_environment, program, "-Xdev")
    workers = await until(lambda: children(process.pid))
    began = time.monotonic()
    out, err = await process.communicate()

    assert (process.returncode, out, err) == (0, b"", b"")
    assert time.monotonic() - began < 5
    await until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))


async def test_cc_01_cc_02_a_program_may_fork_while_it_compiles(
    child_environment: dict[str, str],
) -> None:
    """NVRTC runs in processes of its own, so its locks are in no state to inherit."""
    program = (
        "import os, warnings\n"
        "warnings.simplefilter('ignore', DeprecationWarning)\n"
        "async def compile(text, symbol):\n"
        "    async with Compiler('sm_90', workers=1) as compiler:\n"
        "        return (await compiler.compile(text, symbol)).symbol\n"
        "async def main():\n"
        "    slow = asyncio.create_task(compile(SLOW, 'slow'))\n"
        "    await asyncio.sleep(0.3)\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        print(asyncio.run(compile(GOOD, 'good<1>')), flush=True)\n"
        "        os._exit(0)\n"
        "    await asyncio.to_thread(os.waitpid, child, 0)\n"
        "    slow.cancel()\n"
        "asyncio.run(main())\n"
    )
    assert await run(child_environment, program) == "good<1>\n"


async def test_cc_07_many_processes_may_start_cold_on_one_key(
    child_environment: dict[str, str],
) -> None:
    """All get the kernel, whoever publishes first."""
    program = (
        "async def main():\n"
        "    async with Compiler('sm_90', workers=1) as compiler:\n"
        "        artifact = await compiler.compile(GOOD, 'good<1>')\n"
        "        print(artifact.entry, artifact.output_digest)\n"
        "asyncio.run(main())\n"
    )
    found = await asyncio.gather(*(run(child_environment, program) for _ in range(6)))

    assert len(set(found)) == 1
    assert found[0].startswith("_Z4goodILi1EEvPi ")


async def test_cc_13_a_daemonic_process_may_compile(
    tmp_path: Path, child_environment: dict[str, str]
) -> None:
    """Which may not have children of `multiprocessing`'s."""
    script = tmp_path / "script.py"
    script.write_text(
        PROLOGUE + "import multiprocessing\n"
        "async def work():\n"
        "    async with Compiler('sm_90', workers=1) as compiler:\n"
        "        print((await compiler.compile(GOOD, 'good<1>')).entry, flush=True)\n"
        "def main():\n"
        "    asyncio.run(work())\n"
        "if __name__ == '__main__':\n"
        "    process = multiprocessing.get_context('spawn').Process(target=main, daemon=True)\n"
        "    process.start(); process.join()\n"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(script)),
        env=child_environment,
        stdout=asyncio.subprocess.PIPE,
    )
    assert (await process.communicate())[0] == b"_Z4goodILi1EEvPi\n"


async def test_cc_14_an_interrupt_of_the_group_does_not_reach_the_workers(
    child_environment: dict[str, str],
) -> None:
    """Ctrl-C is the server's to handle: it ends, once, and they with it."""
    process = await start(
        child_environment,
        "async def main():\n"
        "    async with Compiler('sm_90', workers=1) as compiler:\n"
        "        await compiler.compile(SLOW, 'slow')\n"
        "try:\n    asyncio.run(main())\nexcept KeyboardInterrupt:\n    print('interrupted')\n",
        start_new_session=True,
    )
    (worker,) = await until(lambda: children(process.pid))
    await asyncio.sleep(0.3)
    os.killpg(process.pid, signal.SIGINT)
    out, err = await process.communicate()

    assert (out, err) == (b"interrupted\n", b"")
    await until(lambda: not Path(f"/proc/{worker}").exists())


def test_cc_17_workers_are_bounded_by_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each holds some 400 MB after a compile of CUB, and does not give it back."""
    monkeypatch.setattr(_machine, "processors", lambda: 64)
    monkeypatch.setattr(_machine, "available_memory", lambda: 3 << 30)
    assert _machine.default_workers() == 6
    monkeypatch.setattr(_machine, "available_memory", lambda: 0)
    assert _machine.default_workers() == 1
    monkeypatch.setattr(_machine, "processors", lambda: 2)
    monkeypatch.setattr(_machine, "available_memory", lambda: 1 << 40)
    assert _machine.default_workers() == 2


@pytest.mark.parametrize("error", [OSError(16, "EBUSY"), OSError(116, "ESTALE")])
@pytest.mark.parametrize("call", ["rename", "mkdir", "read"])
async def test_cd_01_an_error_of_the_file_system_loses_no_kernel(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch, error: OSError, call: str
) -> None:
    """A network file system has them; the kernel is delivered all the same."""
    real = getattr(Files, call)
    calls: list[Any] = []

    def once(self: Files, *arguments: Any) -> Any:
        if not calls:
            calls.append(arguments)
            raise error
        return real(self, *arguments)

    monkeypatch.setattr(Files, call, once)
    assert isinstance(await compiler.compile(GOOD, "good<1>"), Artifact)
    assert isinstance(await compiler.compile(GOOD, "good<1>"), Artifact)
    assert calls


async def test_cd_07_an_unreadable_entry_is_a_miss(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user's, say; not a PermissionError."""
    await compiler.compile(GOOD, "good<1>")
    real = Files.open

    def denied(self: Files, name: str, flags: int, dir_fd: int | None = None) -> int:
        if name == RECORD and not flags & os.O_CREAT:
            raise PermissionError(13, "denied")
        return real(self, name, flags, dir_fd)

    monkeypatch.setattr(Files, "open", denied)
    assert isinstance(await compiler.compile(GOOD, "good<1>"), Artifact)


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
async def test_cd_08_a_directory_that_others_can_write_is_not_used(
    compiler: Compiler, cache_dir: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A planted entry is code."""
    artifact = await compiler.compile(GOOD, "good<1>")
    cache_dir.chmod(mode)
    again = await compiler.compile(GOOD, "good<1>")

    assert (artifact.origin, again.origin) == ("compiled", "compiled")
    assert cache_dir not in again.path.parents
    assert "may be written by others" in caplog.text


async def test_cd_08_a_directory_of_another_user_is_not_used(
    compiler: Compiler, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever owns it can change it."""
    await compiler.compile(GOOD, "good<1>")
    if os.geteuid() == 0:
        os.chown(cache_dir, 65534, 65534)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)

    assert (await compiler.compile(GOOD, "good<1>")).origin == "compiled"


async def test_cd_13_a_directory_deleted_while_running_is_made_again(
    compiler: Compiler, cache_dir: Path
) -> None:
    """And what it held is compiled again."""
    await compiler.compile(GOOD, "good<1>")
    shutil.rmtree(cache_dir)

    assert (await compiler.compile(GOOD, "good<1>")).origin == "compiled"
    assert (await compiler.compile(GOOD, "good<1>")).origin == "disk"


async def test_ci_17_nothing_in_an_entry_is_executed(
    compiler: Compiler, tmp_path: Path
) -> None:
    """A planted pickle is a damaged record."""
    artifact = await compiler.compile(GOOD, "good<1>")

    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "executed",))

    (artifact.path.parent / RECORD).write_bytes(pickle.dumps(Bomb()))

    assert (await compiler.compile(GOOD, "good<1>")).origin == "compiled"
    assert not (tmp_path / "executed").exists()


async def test_ev_01_the_c_locale_takes_every_alphabet(
    child_environment: dict[str, str],
) -> None:
    """Files are UTF-8, whatever the locale says."""
    environment = child_environment | {
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
    }
    program = (
        "async def main():\n"
        "    for target in ('cpu', 'sm_90'):\n"
        "        async with Compiler(target, workers=1) as compiler:\n"
        "            print((await compiler.compile('// h\\u00e9llo \\u65e5\\n' + GOOD,"
        " 'good<1>')).entry)\n"
        "asyncio.run(main())\n"
    )
    assert await run(environment, program) == "_Z4goodILi1EEvPi\n" * 2


@pytest.mark.parametrize("target", ["cpu", "sm_90"])
async def test_ev_02_include_variables_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    """They would not be in the key."""
    (tmp_path / "v.h").write_text("#define VAL 1\n")
    for name in ("CPATH", "CPLUS_INCLUDE_PATH", "C_INCLUDE_PATH", "INCLUDE"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("NVCC_APPEND_FLAGS", f"-I{tmp_path}")
    async with Compiler(target, workers=1) as compiler:
        with pytest.raises(CompileError, match=r"v\.h"):
            await compiler.compile("#include <v.h>\n__global__ void k() {}\n", "k")


async def test_ev_04_headers_of_another_toolkit_are_not_taken(
    tmp_path: Path, child_environment: dict[str, str]
) -> None:
    """NVRTC's own lie beside it, wherever `CUDA_PATH` points."""
    other = tmp_path / "include"
    other.mkdir()
    (other / "cuda.h").write_text("#define CUDA_VERSION 13000\n")
    (other / "cuda_runtime.h").write_text("#error another toolkit\n")
    program = (
        "from kernels_async.toolchains import find\n"
        "toolchain = find('sm_90')\n"
        "print(toolchain.identity, toolchain.include_dirs)\n"
    )
    plain = await run(child_environment, program)
    variables = dict.fromkeys(("CUDA_PATH", "CUDA_HOME"), str(tmp_path))

    assert await run(child_environment | variables, program) == plain
    assert str(tmp_path) not in plain


async def test_ev_05_a_compile_leaves_the_servers_locale_alone(compiler: Compiler) -> None:
    """It happens in another process."""
    before = locale.setlocale(locale.LC_ALL)
    await compiler.compile(GOOD, "good<1>")

    assert locale.setlocale(locale.LC_ALL) == before


async def test_as_04_time_outs_pile_nothing_up(compiler: Compiler) -> None:
    """Twenty that gave up wait for one compile, and leave one worker."""
    for _ in range(20):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await compiler.compile(SLOW, "slow")
    assert len(children()) <= 1


async def test_as_10_a_loop_that_ends_during_a_compile_is_quiet(
    child_environment: dict[str, str],
) -> None:
    """No callback reaches a closed loop; the next loop works."""
    program = (
        "compiler = Compiler('sm_90', workers=1)\n"
        "async def abandon():\n"
        "    await compiler.__aenter__()\n"
        "    asyncio.create_task(compiler.compile(SLOW, 'slow'))\n"
        "    await asyncio.sleep(0.3)\n"
        "async def use():\n"
        "    async with compiler:\n"
        "        print((await compiler.compile(GOOD, 'good<1>')).entry)\n"
        "asyncio.run(abandon())\n"
        "asyncio.run(use())\n"
    )
    assert await run(child_environment, program, "-Xdev") == "_Z4goodILi1EEvPi\n"


async def test_as_11_uvloop_gives_the_same_results(
    child_environment: dict[str, str],
) -> None:
    """The whole path, a crash and a close under it."""
    program = (
        "import os, signal, uvloop\n"
        "async def main():\n"
        "    async with Kernels.open('cpu', workers=2) as kernels:\n"
        "        found = await asyncio.gather(\n"
        "            *(kernels.request(GOOD, f'good<{n}>') for n in range(4)))\n"
        "        print(len(found), len(kernels))\n"
        "        path = f'/proc/{os.getpid()}/task/{os.getpid()}/children'\n"
        "        for worker in open(path).read().split():\n"
        "            os.kill(int(worker), signal.SIGKILL)\n"
        "        await asyncio.sleep(0.2)\n"
        "        await kernels.get(GOOD, 'good<9>')\n"
        "    print('closed')\n"
        "uvloop.run(main())\n"
    )
    assert await run(child_environment, program) == "4 4\nclosed\n"


async def test_as_13_many_requests_at_once_are_all_served(cache_dir: Path) -> None:
    """With as many workers as were asked for, and no more."""
    async with Compiler("sm_90", workers=2) as compiler:
        found = await compiler.compile_all([(GOOD, f"good<{n}>") for n in range(200)])
        assert len(children()) == 2
    assert [type(artifact) for artifact in found] == [Artifact] * 200


async def test_mg_04_mg_05_the_choice_of_devices_is_the_drivers_to_read(
    cache_dir: Path, child_environment: dict[str, str]
) -> None:
    """It may name a MIG slice, or reorder; what is compiled is of an architecture."""
    program = (
        "async def main():\n"
        "    async with Kernels.open() as kernels, Compiler('sm_90') as compiler:\n"
        "        kernel = await kernels.get(GOOD, 'good<1>')\n"
        "        artifact = await compiler.compile(GOOD, 'good<1>')\n"
        "        print(kernel.device, kernel.artifact.origin, artifact.origin)\n"
        "asyncio.run(main())\n"
    )
    slice_ = "MIG-11111111-2222-3333-4444-555555555555"
    for visible, origin in ((slice_, "compiled"), ("", "disk")):
        environment = child_environment | {"CUDA_VISIBLE_DEVICES": visible}
        assert await run(environment, program) == f"cpu {origin} {origin}\n"


async def test_it_08_a_cubin_is_kept_to_its_last_byte(compiler: Compiler) -> None:
    """Its tables of sections and of segments end where the file does."""
    artifact = await compiler.compile(GOOD, "good<1>")
    data = artifact.path.read_bytes()
    header = ELFFile(BytesIO(data)).header
    tables = (
        header["e_shoff"] + header["e_shnum"] * header["e_shentsize"],
        header["e_phoff"] + header["e_phnum"] * header["e_phentsize"],
    )

    assert max(tables) <= len(data)


async def test_it_10_a_kernel_is_not_pickled(kernels: Kernels) -> None:
    """It belongs to its process; its request is what to send."""
    kernel = await kernels.get(Source(GOOD), "good<1>")

    with pytest.raises(TypeError, match="process"):
        pickle.dumps(kernel)
    assert isinstance(kernel.raw, ctypes.CDLL)


ELSEWHERE = {
    "AS-01": "test_kernels.test_the_loop_keeps_ticking_during_a_batch",
    "AS-02": "test_kernels.test_a_cancelled_waiter_disturbs_nobody",
    "AS-05": "test_kernels.test_a_failing_specialization_fails_alone",
    "AS-07": "test_kernels.test_each_waiter_gets_an_exception_of_its_own",
    "AS-08": "test_kernels.test_an_await_from_another_loop_is_refused",
    "AS-14": "test_kernels.test_closing_settles_everything",
    "AS-16": "test_cuda_device.test_two_devices_share_one_compile_and_load_each_on_their_own",
    "CC-04": "test_pool.test_a_worker_sees_nothing_of_the_servers_environment",
    "CC-05": "test_pool.test_no_more_compiles_run_at_once_than_workers",
    "CC-10": "test_specialization.test_an_option_that_cannot_be_right_is_refused_with_the_reason",
    "CC-11": "test_specialization.test_an_option_that_cannot_be_right_is_refused_with_the_reason",
    "CD-02": "test_store.test_a_directory_that_cannot_be_written_is_an_os_error",
    "CD-04": "test_store.test_the_default_directory_is_named_or_the_users",
    "CD-05": "test_store.test_a_user_without_a_home_has_no_default_directory",
    "CD-10": "test_store.test_a_relative_directory_is_resolved_once",
    "CD-11": "test_store.test_a_relative_directory_is_resolved_once",
    "CD-14": "test_store.test_a_damaged_entry_is_a_miss_and_is_replaced",
    "CD-16": "test_store.test_what_was_published_is_read_back_whole",
    "CD-17": "test_store.test_any_directory_name_works",
    "CI-01": "test_store.test_an_entry_with_any_bit_flipped_or_cut_anywhere_is_a_miss",
    "CI-02": "test_cuda_toolchain.test_a_source_without_kernels_is_told_so",
    "CI-04": "test_store.test_a_damaged_entry_is_a_miss_and_is_replaced",
    "CI-05": "test_store.test_a_damaged_entry_is_a_miss_and_is_replaced",
    "CI-07": "test_source_load.test_the_source_is_content_from_then_on",
    "CI-08": "test_source_load.test_the_source_is_content_from_then_on",
    "CI-10": "test_cuda_toolchain.test_the_identity_names_version_digest_and_headers",
    "CI-13": "test_digest.test_the_key_is_the_same_in_another_process_hash_seed_and_directory",
    "CI-14": "test_digest.test_two_requests_have_one_key_only_if_they_are_equal",
    "CI-16": "test_store.test_a_key_that_was_never_published_is_a_miss",
    "CI-19": "test_digest.test_the_key_differs_when_any_part_of_the_request_does",
    "CR-01": "test_pool.test_a_crash_of_the_compiler_itself_is_a_worker_crash",
    "CR-04": "test_errors.test_every_error_survives_pickling",
    "CR-07": "test_pool.test_a_hanging_worker_is_killed_at_the_time_out",
    "EV-07": "test_cuda_toolchain.test_each_architecture_is_a_target",
    "HD-22": "test_source.test_a_source_that_cannot_be_right_is_refused",
    "IT-01": "test_cuda_device.test_a_launch_on_pytorchs_stream_is_in_its_order",
    "IT-07": "test_specialization.test_a_wrong_type_is_a_type_error",
    "MG-01": "test_cuda_device.test_two_devices_share_one_compile_and_load_each_on_their_own",
    "MG-02": "test_cuda_device.test_nothing_is_allocated_on_a_device_that_is_not_used",
    "MG-07": "test_cuda_device.test_the_loop_ticks_while_a_load_waits_for_a_running_kernel",
    "MG-08": "test_cuda_device.test_large_dynamic_shared_memory_is_allowed_on_demand",
    "MG-10": "test_cuda_device.test_a_failed_assert_harms_neither_cache_nor_the_next_process",
    "MG-11": "test_cuda_toolchain.test_a_symbol_that_is_not_there_names_those_that_are",
    "NX-32": "test_cuda_toolchain.test_the_same_input_gives_the_same_bytes_in_every_process",
}


@pytest.mark.parametrize("case", ELSEWHERE)
def test_a_case_that_is_tested_elsewhere_is_tested_there(case: str) -> None:
    """Under a name that says more than the case's letters."""
    module, _, name = ELSEWHERE[case].partition(".")

    assert f"def {name}(" in Path(__file__).with_name(f"{module}.py").read_text()
