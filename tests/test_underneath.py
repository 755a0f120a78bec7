"""Tests of a cache directory that changes between the check of an entry and its load."""

from __future__ import annotations

import shutil
from pathlib import Path

from kernels_async import Artifact, Kernels
from tests.test_kernels import add, run


async def test_a_directory_that_is_removed_before_the_load_does_not_fail_it(
    cache_dir: Path,
) -> None:
    """What was verified is what is loaded."""
    async with Kernels.open("cpu", workers=1) as kernels:
        kernels.reporting(lambda _: shutil.rmtree(cache_dir, ignore_errors=True))
        assert run(await kernels.get(*add(1))) == 1
        assert run(await kernels.get(*add(2))) == 2


async def test_a_file_that_is_replaced_before_the_load_is_not_loaded(
    cache_dir: Path,
) -> None:
    """Not even by another entry's, which is whole."""
    async with Kernels.open("cpu", workers=1) as kernels:
        other = (await kernels.get(*add(1))).artifact

        def replace(artifact: Artifact) -> None:
            artifact.path.unlink()
            artifact.path.write_bytes(other.bytes)

        kernels.reporting(replace)
        assert run(await kernels.get(*add(2))) == 2
