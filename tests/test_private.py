"""Tests of private folders: what is loaded is what was verified, and nothing is left."""

from __future__ import annotations

import ctypes
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from kernels_async import Kernel, Kernels
from kernels_async._artifact import Artifact
from kernels_async._private import Copies, copies, private_folder, remove_folder

SOURCE = "template <int N> __global__ void add(int* p) { p[threadIdx.x] += N; }\n"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's temporary directory, for this test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(copies, "_folder", None)
    return tmp_path


def test_a_private_folder_is_for_its_user_alone(temporary: Path) -> None:
    """And so is every directory of ours above it."""
    folder = private_folder()

    assert folder.parents[2] == temporary
    for made in (folder, folder.parent, folder.parent.parent):
        assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert private_folder() != folder


@pytest.mark.parametrize("taken", ["a file", "a link", "open to others"])
def test_a_name_that_somebody_else_took_is_not_used(temporary: Path, taken: str) -> None:
    """The temporary directory is everybody's."""
    base = temporary / f"kernels_async-{os.geteuid()}"
    if taken == "a file":
        base.write_text("")
    elif taken == "a link":
        (temporary / "elsewhere").mkdir(mode=0o777)
        (temporary / "elsewhere").chmod(0o777)
        base.symlink_to(temporary / "elsewhere")
    else:
        base.mkdir()
        base.chmod(0o777)
    folder = private_folder()

    assert folder.parent == temporary
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_what_a_killed_process_left_is_removed_by_the_next(temporary: Path) -> None:
    """What lives, or may live, is left alone."""
    program = (
        "import os, tempfile\n"
        f"tempfile.tempdir = {str(temporary)!r}\n"
        "from kernels_async._private import private_folder\n"
        "print(private_folder())\n"
        "os.kill(os.getpid(), 9)\n"
    )
    left = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    dead, mine = Path(left.stdout.strip()), private_folder()
    strange = mine.with_name("not-one-of-ours")
    strange.mkdir()
    for folder in (dead, mine, strange):
        os.utime(folder, (0, 0))
    os.utime(strange)
    private_folder()

    assert [folder.exists() for folder in (dead, mine, strange)] == [False, True, True]


def test_a_copy_is_written_once_and_removed_with_its_process(temporary: Path) -> None:
    """CuPy and the dynamic linker remember files by their path."""
    program = (
        "import tempfile\n"
        f"tempfile.tempdir = {str(temporary)!r}\n"
        "from kernels_async._private import copies\n"
        "path = copies.on_disk('name', b'bytes')\n"
        "first = path.stat().st_ino\n"
        "assert copies.on_disk('name', b'bytes') == path\n"
        "assert path.stat().st_ino == first and path.read_bytes() == b'bytes'\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)

    assert list(temporary.glob("*/processes/*")) == []


def test_where_there_is_no_disk_a_copy_is_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Under a name that stays its own."""
    monkeypatch.setattr(tempfile, "tempdir", "/proc")
    mine = Copies()
    first, second = mine.on_disk("one", b"1"), mine.on_disk("two", b"2")

    assert (first.read_bytes(), second.read_bytes()) == (b"1", b"2")
    assert mine.on_disk("one", b"1").read_bytes() == b"1"


async def test_an_entry_that_is_replaced_before_its_load_does_not_matter(
    temporary: Path, cache_dir: Path
) -> None:
    """What was verified is what is loaded, also when the entry is gone by then."""
    async with Kernels.open("cpu", workers=1) as kernels:

        def replace(artifact: Artifact) -> None:
            artifact.path.write_bytes(b"not what was verified")
            artifact.path.unlink()

        kernels.reporting(replace)
        assert isinstance(await kernels.get(SOURCE, "add<1>"), Kernel)


async def test_a_library_loads_where_files_of_the_temporary_directory_may_not_run(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on hardened systems; what the linker refuses from disk it takes from memory."""

    def refused(name: str, _: bytes) -> Path:
        return temporary / name

    monkeypatch.setattr(copies, "on_disk", refused)
    async with Kernels.open("cpu", workers=1) as kernels:
        kernel = await kernels.get(SOURCE, "add<1>")

    assert isinstance(kernel.raw, ctypes.CDLL)
    assert kernel.raw._name.startswith("/proc/self/fd/")


def test_removing_a_folder_that_is_gone_is_no_error(tmp_path: Path) -> None:
    """Systems clean their temporary directory."""
    remove_folder(tmp_path / "gone")
