"""Occupancy over block sizes, small in a row of a table and large in its details."""

from __future__ import annotations

from functools import lru_cache

from .._build import BuiltKernel
from .._occupancy import MOST_THREADS, WARP, multiprocessor
from .._resources import Resources
from ._markup import Html, percent, tag

_WIDTH, _HEIGHT, _RIGHT = 332, 120, 12
_LEFT, _BOTTOM, _TOP = 40, 24, 8
_STEP = (_WIDTH - _LEFT - _RIGHT) * WARP / MOST_THREADS
_FLOOR = _HEIGHT - _BOTTOM
_TALL = _FLOOR - _TOP

_SIZES = range(WARP, MOST_THREADS + 1, WARP)
_NAMED = (32, 256, 512, 768, 1024)
_ASKED = (64, 128, 256, 512, 1024)

_cached = lru_cache(maxsize=4096)


class Occupancy:
    """The occupancy of kernels that need the same, and how it is drawn.

    Attributes:
        best: The smallest block with the highest occupancy, and that.
        sparkline: A small plot: one step per block size.
        plot: A plot with axes; the best block size is marked.
        blocks: How many blocks of some sizes run at once, in words.
    """

    def __init__(self, shares: list[float], threads_at_once: int) -> None:
        highest = max(shares)
        place = shares.index(highest)
        self.best = _SIZES[place], highest
        self.sparkline = _sparkline(shares)
        self.plot = _plot(shares, place)
        blocks = {
            threads: round(shares[threads // WARP - 1] * threads_at_once / threads)
            for threads in _ASKED
        }
        self.blocks = ", ".join(
            f"{count} of {threads}" for threads, count in blocks.items() if count
        )


def occupancy(kernel: BuiltKernel) -> Occupancy | None:
    """The occupancy of a kernel; `None` if the target's limits are not known."""
    return None if kernel.resources is None else _of(kernel.target, kernel.resources)


@_cached
def _of(target: str, resources: Resources) -> Occupancy | None:
    limits = multiprocessor(target)
    kernel = BuiltKernel("", "", target, resources=resources)
    shares = [kernel.occupancy(threads) for threads in _SIZES]
    known = [share for share in shares if share is not None]
    return None if limits is None else Occupancy(known, limits.threads)


def _sparkline(shares: list[float]) -> Html:
    path = "".join(
        f"M{2 * n + 1} 16v{-max(0.5, 15 * share):.3g}" for n, share in enumerate(shares)
    )
    return tag(
        "svg",
        tag("path", d=path),
        class_="spark",
        width=2 * len(shares),
        height=16,
        aria_hidden="true",
    )


def _plot(shares: list[float], best: int) -> Html:
    bars = [_bar(place, share) for place, share in enumerate(shares)]
    names = [
        tag(
            "text",
            threads,
            x=f"{_LEFT + (threads / WARP - 0.5) * _STEP:.4g}",
            y=_HEIGHT - 8,
            text_anchor="middle",
        )
        for threads in _NAMED
    ]
    told = f"Occupancy: at best {percent(shares[best])}, with {_SIZES[best]} threads"
    return tag(
        "svg",
        *(_level(share) for share in (0.0, 0.5, 1.0)),
        tag("path", d="".join(bars)),
        tag("path", d=bars[best], class_="best"),
        *names,
        class_="plot",
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
        aria_label=told,
    )


def _bar(place: int, share: float) -> str:
    left, wide = _LEFT + place * _STEP + 1, _STEP - 2
    return f"M{left:.4g} {_FLOOR}v{-_TALL * share:.4g}h{wide:.3g}V{_FLOOR}z"


def _level(share: float) -> Html:
    y = _FLOOR - _TALL * share
    line = tag("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=f"{y:.4g}", y2=f"{y:.4g}")
    name = tag("text", percent(share), x=_LEFT - 6, y=f"{y + 4:.4g}", text_anchor="end")
    return tag("g", line, name)
