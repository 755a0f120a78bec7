"""Tests of what a worker gives up: files, network, core dumps, and who says so."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from kernels_async import Artifact, CompileError, Compiler, Source, ToolchainError
from kernels_async._errors import SpecificationError
from tests.bars.pool import attack
from tests.processes import GOOD, children, server

CONFINED = r"""
import ctypes, errno, json, os, resource, socket, subprocess, sys
from kernels_async import _sandbox
from kernels_async.toolchains import Access
kept, other, mode, abi = sys.argv[1:]
if abi == "none":
    _sandbox._CREATE_RULESET = 100_000
print(_sandbox.confine(
    Access(reads=(kept,), writes=(os.path.join(kept, "mine"),)), 1 << 30, mode))
def attempt(name, function, *arguments):
    try:
        function(*arguments)
        print(name, "done", sep="\t")
    except OSError as error:
        print(name, errno.errorcode[error.errno], sep="\t")
attempt("read kept", open, f"{kept}/file")
attempt("read other", open, f"{other}/file")
attempt("list other", os.listdir, other)
attempt("list the root", os.listdir, "/")
attempt("read itself", open, "/proc/self/environ")
attempt("write kept", open, f"{kept}/file", "w")
attempt("write mine", open, f"{kept}/mine/file", "w")
attempt("make mine", os.mkdir, f"{kept}/mine/folder")
attempt("remove kept", os.unlink, f"{kept}/file")
attempt("truncate other", os.truncate, f"{other}/file", 0)
attempt("link", os.symlink, "/etc", f"{kept}/link")
attempt("execute", subprocess.run, ["/bin/sh", "-c", ""])
attempt("connect", socket.create_connection, ("127.0.0.1", 9))
attempt("signal", os.kill, os.getppid(), 0)
print("core", resource.getrlimit(resource.RLIMIT_CORE), sep="\t")
print("memory", resource.getrlimit(resource.RLIMIT_AS)[0] < 6 << 30, sep="\t")
print("dumpable", ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), sep="\t")
print("privileges", ctypes.CDLL(None).prctl(39, 0, 0, 0, 0), sep="\t")
print("umask", oct(os.umask(0)), sep="\t")
"""


def confined(folder: Path, mode: str, abi: str = "any") -> tuple[str, dict[str, str]]:
    """What a confined program said of itself, and what came of its attempts."""
    kept, other = folder / "kept", folder / "other"
    for place in (kept, other):
        place.mkdir()
        (place / "file").write_text("text")
    (kept / "mine").mkdir()
    with server(CONFINED, str(kept), str(other), mode, abi) as process:
        out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    said, *lines = out.splitlines()
    return said, dict(line.split("\t") for line in lines)


def test_a_confined_process_keeps_only_what_is_named(tmp_path: Path) -> None:
    """It cannot read, write, execute, connect or signal anything else."""
    said, found = confined(tmp_path, "require")
    abi = int(re.findall(r"landlock abi (\d+)", said)[0])

    done = {name for name, outcome in found.items() if outcome == "done"}
    by_abi = {"truncate other": 3, "connect": 4, "signal": 6}
    kernel_lets = {name for name, since in by_abi.items() if abi < since}
    assert done - kernel_lets == {"read kept", "write mine", "make mine"}
    assert found["read other"] == found["read itself"] == found["execute"] == "EACCES"
    assert found["core"] == "(0, 0)"
    assert (found["memory"], found["umask"]) == ("True", "0o77")
    assert (found["dumpable"], found["privileges"]) == ("0", "1")


def test_without_landlock_the_rest_is_in_force_and_it_says_so(tmp_path: Path) -> None:
    """As far as the kernel can."""
    said, found = confined(tmp_path, "auto", "none")

    assert said.startswith("no landlock (ENOSYS), no core dumps")
    assert found["read other"] == "done"
    assert (found["core"], found["privileges"]) == ("(0, 0)", "1")


async def test_a_sandbox_that_is_required_and_not_there_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the toolchain's, and says why."""
    python = tmp_path / "python"
    python.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path[:0] = {sys.path!r}\n"
        "from kernels_async import _sandbox, _worker\n"
        "_sandbox._CREATE_RULESET = 100_000\n"
        "del sys.argv[:2]\n"
        "_worker.main()\n"
    )
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    async with Compiler("sm_90", workers=1, sandbox="require") as compiler:
        with pytest.raises(ToolchainError, match=r"no Landlock: .*ENOSYS"):
            await compiler.compile(GOOD, "good<1>")
    async with Compiler("sm_90", workers=1, sandbox="auto") as compiler:
        assert isinstance(await compiler.compile(GOOD, "good<1>"), Artifact)
        assert compiler.sandbox.startswith("no landlock (ENOSYS)")


@pytest.mark.parametrize("target", ["sm_90", "cpu"])
async def test_a_compiler_says_what_confines_its_workers(target: str) -> None:
    """By the last worker's own account."""
    async with Compiler(target, workers=1) as compiler:
        assert compiler.sandbox == "not known before a worker has started"
        await compiler.compile(GOOD, "good<1>")
        assert re.match(r"(no )?landlock .*no core dumps, .*no new priv", compiler.sandbox)
        (worker,) = children()
        limits = Path(f"/proc/{worker}/limits").read_text()
        status = Path(f"/proc/{worker}/status").read_text()
    assert re.search(r"Max core file size +0 +0", limits)
    assert "NoNewPrivs:\t1" in status
    async with Compiler(target, workers=1, sandbox="off") as compiler:
        await compiler.compile(GOOD, "good<2>")
        assert compiler.sandbox.startswith("sandbox off, no core dumps")


@pytest.mark.parametrize("argument", [{"sandbox": "on"}, {"memory": 5}, {"memory": "1G"}])
def test_an_argument_that_cannot_be_right_is_refused(argument: dict[str, object]) -> None:
    """With what is right."""
    with pytest.raises(SpecificationError, match=r"is one of|in bytes"):
        Compiler("cpu", **argument)  # type: ignore[arg-type]


async def test_the_attacks_leak_where_workers_are_not_confined() -> None:
    """So that what the bar counts is what the sandbox holds back."""
    _, leaked, controls = await attack(1, seed=1, sandbox="off")

    assert leaked > 0
    assert controls == 0


@pytest.mark.parametrize("target", ["sm_90", "cpu"])
async def test_errors_of_every_kind_come_out_of_a_confined_worker(target: str) -> None:
    """What tells them is loaded before."""
    sources = {
        "syntax": "__global__ void k() { nonsense; }",
        "symbol": GOOD,
        "link": "__device__ int f(); __global__ void k(int* p) { *p = f(); }",
        "include": '#include "nothing.h"\n__global__ void k() {}',
        "next": "#include_next <vector>\n__global__ void k() {}",
    }
    async with Compiler(target, workers=1, sandbox="require") as compiler:
        for name, text in sources.items():
            with pytest.raises(CompileError):
                await compiler.compile(Source(text), "k")
            assert len(children()) == 1, name
        warned = await compiler.compile("__global__ void k() { int unused; }", "k")
    assert warned.warnings
