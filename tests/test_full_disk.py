"""Tests of the store on real file systems that are full, or read only."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

PROGRAM = """
import logging, subprocess, sys
from pathlib import Path
from kernels_async._artifact import Output
from kernels_async._tiers import Place, TieredStore
from tests.bars.injection import ENTRIES

logging.basicConfig(format="%(message)s", stream=sys.stdout)
root, private = Path(sys.argv[1]), Path(sys.argv[2])
tiers = TieredStore(Place(root), "kernel.cubin", private)
wanted = {f"{n:064x}": Output(bytes([n]) * 9000, "k", (), None, 0.1) for n in range(12)}
"""
KEEP = """
kept = [tiers.keep(key, ENTRIES, output) for key, output in wanted.items()]
places = {artifact.path.is_relative_to(root) for artifact in kept}
print("kept in both places:", places == {True, False})
print("right:", all(tiers.read(key).bytes == wanted[key].data for key in wanted))
print("staging:", list((root / "tmp").iterdir()))
"""
READ_ONLY = """
first, *others = wanted
tiers.keep(first, ENTRIES, wanted[first])
subprocess.run(["mount", "-o", "remount,ro", root.parent], check=True)
print("read:", tiers.read(first).path.is_relative_to(root))
kept = [tiers.keep(key, ENTRIES, wanted[key]) for key in others]
print("kept:", {artifact.path.is_relative_to(private) for artifact in kept})
lock = tiers.try_lock(first)
print("locked:", lock.is_held)
"""


def on_tmpfs(folder: Path, options: str, program: str) -> str:
    """What a program prints whose cache is on a small file system of its own."""
    disk = folder / "disk"
    disk.mkdir()
    script = (
        f'mount -t tmpfs -o mode=700,{options} none "{disk}" || exit 77; exec "$0" -c "$@"'
    )
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("there is no unshare here")
    ended = subprocess.run(
        [
            *(unshare, "--mount", "sh", "-c", script, sys.executable),
            *(PROGRAM + program, str(disk / "store"), str(folder / "private")),
        ],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
    )
    if ended.returncode in (1, 77) and "Traceback" not in ended.stderr:
        pytest.skip(f"nothing may be mounted here: {ended.stderr.strip()}")
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize("options", ["size=80k", "nr_inodes=30"])
def test_a_full_disk_loses_no_kernel(tmp_path: Path, options: str) -> None:
    """No room, or no more files: what fits is kept, the rest privately."""
    warning, *found = on_tmpfs(tmp_path, options, KEEP).splitlines()

    assert warning.startswith("artifacts are not kept in")
    assert "No space left on device" in warning
    assert found == ["kept in both places: True", "right: True", "staging: []"]


def test_a_disk_that_became_read_only_is_read(tmp_path: Path) -> None:
    """What is compiled then is kept privately, and that is told once."""
    read, warning, *found = on_tmpfs(tmp_path, "size=800k", READ_ONLY).splitlines()

    assert read == "read: True"
    assert "Read-only file system" in warning
    assert found == ["kept: {True}", "locked: False"]
