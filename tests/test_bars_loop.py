"""Tests of the event loop's bars, in their short form."""

from __future__ import annotations

import pytest

from tests.bars.loop import BARS

pytestmark = pytest.mark.alone


@pytest.fixture
def _loop_is_never_blocked() -> None:
    """The bars run loops of their own, and measure them."""


@pytest.mark.parametrize("name", sorted(BARS.keys() - {"B17"}))
def test_the_bar_is_met(name: str) -> None:
    """In the short form of `python -m tests.bars`."""
    print(BARS[name](False, 1))
