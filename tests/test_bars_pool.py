"""Short forms of the pool's bars; `python -m tests.bars` runs the long ones."""

from __future__ import annotations

import pytest

from tests.bars.pool import BARS

pytestmark = pytest.mark.alone


@pytest.mark.parametrize("bar", BARS)
def test_a_bar_is_met_in_its_short_form(bar: str) -> None:
    """Its summary says how much was tried."""
    print(BARS[bar](False, 1))
