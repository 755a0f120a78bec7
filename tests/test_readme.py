"""Tests of the README and the quickstart: they run as written."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


async def run(environment: dict[str, str], *command: str) -> str:
    """Run a program with warnings as errors; its output, nothing on standard error."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-Werror", *command),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert (process.returncode, err.decode()) == (0, "")
    return out.decode()


def test_the_readme_is_read_in_ten_minutes() -> None:
    """What is longer has a page of its own; nothing is there twice."""
    headings = re.findall(r"^## (.+)$", README, re.MULTILINE)

    assert len(README.splitlines()) <= 250
    assert sorted(set(headings)) == sorted(headings)


def test_the_readme_names_files_that_exist() -> None:
    """No path in it is dead."""
    names = set(
        re.findall(r"`((?:examples|kernels_async|benchmarks|\.ci)/[\w./]+)`", README)
    )

    assert names
    assert [name for name in names if not (ROOT / name).exists()] == []


async def test_the_quickstart_runs_cold_and_warm(
    child_environment: dict[str, str],
) -> None:
    """Every kernel is right, compiled at first and then read from disk."""
    out = await run(child_environment, str(ROOT / "examples" / "quickstart.py"), "cpu")

    assert out.count("every result agrees with NumPy (12 kernels)") == 2
    assert out.count(" compiled ") == 12
    assert out.count(" disk ") == 12
    assert out.count("a memory hit takes") == 2
