"""Test of the cache beside a model of it, with every operation and fault in any order."""

from __future__ import annotations

import pytest

from tests.model.machine import run

STEPS = 10_000


@pytest.fixture
def _loop_is_never_blocked() -> None:
    """The machine turns loops of its own, many thousand times a second."""


@pytest.mark.timeout(240)
def test_the_cache_agrees_with_its_model_whatever_happens_in_whatever_order() -> None:
    """Nobody hangs, nothing is lost, and nobody gets what is another's."""
    run(STEPS)
