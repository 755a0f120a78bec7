"""Test of many servers on one cache directory, with every fault at once, for a short time."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.alone


@pytest.mark.timeout(150)
def test_a_short_soak_loses_hangs_and_leaks_nothing(
    child_environment: dict[str, str],
) -> None:
    """And no kernel computes something else."""
    soak = subprocess.run(
        [sys.executable, "-m", "tests.soak", "--minutes", "0.25", "--processes", "2"],
        cwd=ROOT,
        env=child_environment,
        capture_output=True,
        text=True,
        check=False,
    )
    print(soak.stdout)
    assert soak.returncode == 0, soak.stdout[-5000:] + soak.stderr[-5000:]
    assert "wrong results 0, hung 0" in soak.stdout
