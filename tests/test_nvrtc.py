"""Tests of what NVRTC keeps from one program to the next, and takes from the host."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

import pytest

from kernels_async import Compiler, KernelsError, Specialization, _options
from kernels_async.toolchains import Toolchain, _nowhere
from tests.jobs import job
from tests.processes import in_child

ALIAS = """extern "C" __global__ void alias(float* a, float* b, float* c) {
    for (int i = 0; i < 9; ++i) { b[i] = a[0] * b[i] + 1; c[i] = sqrtf(a[0]) / b[i]; }
}
"""
VALUES = {
    "--Ofast-compile": "min",
    "--brief-diagnostics": "true",
    "--define-macro": "M=1",
    "--device-stack-protector": "true",
    "--diag-error": "177",
    "--diag-suppress": "177",
    "--diag-warn": "177",
    "--dopt": "on",
    "--gpu-architecture": "sm_90",
    "--jump-table-density": "10",
    "--maxrregcount": "16",
    "--ptxas-options": "-O0",
    "--split-compile": "2",
    "--std": "c++20",
    "--undefine-macro": "__CUDA_ARCH__",
    "--warning-as-error": "all-warnings",
}


@pytest.mark.parametrize("option", ["-G", "-lineinfo"])
def test_debug_information_names_no_folder_of_the_host(
    toolchain: Toolchain, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVRTC writes the current folder into it: two workers would give other bytes."""
    outputs = []
    for name in ("one", "another"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        outputs.append(toolchain.compile(job(ALIAS, "alias", options=(option,))).data)
        assert Path.cwd() == tmp_path / name
    assert outputs[0] == outputs[1]
    assert bytes(tmp_path) not in outputs[0]


def test_options_that_nvrtc_does_not_forget_are_known(toolchain: Toolchain) -> None:
    """After a job with any other, what later ones compile to is what it was."""
    plain = job(ALIAS, "alias")
    options = [*_options._FLAGS]
    options += [
        f"{name}={value}"
        for name in _options._VALUED
        for value in ([VALUES[name]] if name in VALUES else ["true", "false"])
    ]
    with_each = [
        job(ALIAS, "alias", options=(option,))
        for option in options
        if option != "--relocatable-device-code=true"
    ]
    assert sum(map(toolchain.spoils, with_each)) == 3

    def changed() -> list[str]:
        before = toolchain.compile(plain).data
        found = []
        for one in with_each:
            if not toolchain.spoils(one):
                with contextlib.suppress(KernelsError):
                    toolchain.compile(one)
                if toolchain.compile(plain).data != before:
                    found.append(str(one.specialization))
                    break
        return found

    assert in_child(changed) == ["[]"]


async def test_an_option_that_nvrtc_does_not_forget_changes_no_later_kernel(
    tmp_path: Path,
) -> None:
    """`--restrict` of one job would make wrong code of the next in the same worker."""
    async with Compiler("sm_90", cache_dir=tmp_path / "alone", workers=1) as compiler:
        alone = await compiler.compile(ALIAS, "alias")
    async with Compiler("sm_90", cache_dir=tmp_path / "after", workers=1) as compiler:
        for option in ("-restrict", "-opt-info=inline"):
            spec = Specialization("alias", options=(option,))
            restricted = await compiler.compile(ALIAS, spec)
            later = await compiler.compile(ALIAS.replace("alias", "later"), "later")
        after = await compiler.compile(ALIAS, "alias")
    assert after.bytes == alone.bytes
    assert (after.diagnostics, later.diagnostics) == ((), ())
    assert restricted.entry == "alias"


def test_a_worker_needs_no_room_on_a_temporary_disk(tmp_path: Path) -> None:
    """All of them may be full once the server has its private folder."""

    def lose() -> None:
        os.chdir(tmp_path)
        tempfile.tempdir = str(tmp_path / "not there")
        _nowhere._removed_folder.cache_clear()

    def look() -> tuple[list[str], list[str]]:
        with _nowhere.nowhere():
            found = os.listdir()
        return found, os.listdir()

    assert in_child(lose, look)[-1] == "([], [])"
