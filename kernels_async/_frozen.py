"""What a frozen cache does with a request that it did not load at its warm-up."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from heapq import nlargest
from typing import Literal

from ._digest import Difference, differences
from ._errors import FrozenError, SpecificationError
from ._pending import Pending

Frozen = bool | Literal["warn"]
"""Whether a cache is frozen after its warm-up, or only says what it missed."""

_LOOKED_AT = 1000
_COMPARED = 16

logger = logging.getLogger("kernels_async")


class Freeze:
    """Whether a cache takes requests that it does not know.

    Args:
        mode: What becomes of a miss once it is frozen; `False` if it never is.

    Raises:
        SpecificationError: There is no such mode.

    Attributes:
        on: Whether it is frozen now.
    """

    def __init__(self, mode: Frozen) -> None:
        if not isinstance(mode, bool) and mode != "warn":
            raise SpecificationError(f"frozen is True, False or 'warn', not {mode!r}")
        self.mode: Frozen = mode
        self.on: bool = False

    @property
    def refuses(self) -> bool:
        """Whether a miss is an error now."""
        return self.on and self.mode is True

    def begin(self) -> None:
        """Freeze, if it is ever to be frozen: the warm-up is over."""
        self.on = self.mode is not False

    def miss(self, pending: Pending, known: Sequence[Pending]) -> None:
        """Refuse a request that is not loaded, or log it.

        Args:
            pending: The request.
            known: All that are known.

        Raises:
            FrozenError: The mode is to refuse.
        """
        error = _error(pending, [other for other in known if other.kernel is not None])
        if self.mode is True:
            raise error
        logger.warning("%s", error)


def _error(pending: Pending, loaded: Sequence[Pending]) -> FrozenError:
    """What is missed, and what tells it from the nearest of those that are loaded."""
    symbol = pending.specialization.symbol
    told = f"{symbol!r} is not loaded, and the cache is frozen"
    nearest = _nearest(pending, loaded)
    if nearest is None:
        return FrozenError(f"{told}: nothing is loaded")
    differing = differences(nearest.entries, pending.entries)
    listed = "; ".join(map(str, differing))
    return FrozenError(
        f"{told}; from the nearest that is, {nearest.specialization.symbol!r}, it differs "
        f"in {listed}",
        nearest=nearest.specialization.symbol,
        differences=differing,
    )


def _nearest(pending: Pending, loaded: Sequence[Pending]) -> Pending | None:
    """The one that differs in the fewest entries, among those that look alike."""

    def likeness(other: Pending) -> tuple[bool, bool, bool]:
        mine, others = pending.specialization, other.specialization
        return (
            other.source == pending.source,
            others.symbol == mine.symbol,
            _name(others.symbol) == _name(mine.symbol),
        )

    def differing(other: Pending) -> list[Difference]:
        return differences(other.entries, pending.entries)

    alike = nlargest(_COMPARED, loaded[-_LOOKED_AT:], key=likeness)
    return min(alike, key=lambda other: len(differing(other)), default=None)


def _name(symbol: str) -> str:
    return symbol.partition("<")[0]
