"""Occupancy over block sizes, small in a row of a table and large in its details."""

from __future__ import annotations

from .._build import BuiltKernel
from .._occupancy import MOST_THREADS, WARP
from ._markup import Html, percent, tag

_WIDTH, _HEIGHT, _RIGHT = 332, 120, 12
_LEFT, _BOTTOM, _TOP = 40, 24, 8

SIZES = range(WARP, MOST_THREADS + 1, WARP)


def occupancies(kernel: BuiltKernel) -> dict[int, float]:
    """The occupancy of each block size; nothing if the target's limits are not known."""
    found = {threads: kernel.occupancy(threads) for threads in SIZES}
    return {threads: share for threads, share in found.items() if share is not None}


def best(kernel: BuiltKernel) -> tuple[int, float] | None:
    """The smallest block with the highest occupancy, and that."""
    found = occupancies(kernel)
    if not found:
        return None
    threads = max(found, key=lambda threads: (found[threads], -threads))
    return threads, found[threads]


def sparkline(kernel: BuiltKernel) -> Html | None:
    """A small plot: one step per block size."""
    found = occupancies(kernel)
    if not found:
        return None
    path = "".join(
        f"M{2 * n + 1} 16v{-max(0.5, 15 * share):.3g}"
        for n, share in enumerate(found.values())
    )
    return tag(
        "svg",
        tag("path", d=path),
        class_="spark",
        width=2 * len(SIZES),
        height=16,
        aria_hidden="true",
    )


def plot(kernel: BuiltKernel) -> Html | None:
    """A plot with axes; the best block size is marked."""
    found, peak = occupancies(kernel), best(kernel)
    if peak is None:
        return None
    step = (_WIDTH - _LEFT - _RIGHT) / len(SIZES)
    floor = _HEIGHT - _BOTTOM
    tall = floor - _TOP
    bars = [
        tag(
            "rect",
            tag("title", f"{threads} threads: {percent(share)}"),
            x=f"{_LEFT + n * step + 1:.4g}",
            y=f"{floor - tall * share:.4g}",
            width=f"{step - 2:.3g}",
            height=f"{tall * share:.4g}",
            class_="best" if threads == peak[0] else None,
        )
        for n, (threads, share) in enumerate(found.items())
    ]
    lines = [_level(share, floor - tall * share) for share in (0.0, 0.5, 1.0)]
    names = [
        tag(
            "text",
            threads,
            x=f"{_LEFT + (threads / WARP - 0.5) * step:.4g}",
            y=_HEIGHT - 8,
            text_anchor="middle",
        )
        for threads in (32, 256, 512, 768, 1024)
    ]
    return tag(
        "svg",
        *lines,
        *bars,
        *names,
        class_="plot",
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
        aria_label=f"Occupancy: at best {percent(peak[1])}, with {peak[0]} threads",
    )


def _level(share: float, y: float) -> Html:
    line = tag("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=f"{y:.4g}", y2=f"{y:.4g}")
    name = tag("text", percent(share), x=_LEFT - 6, y=f"{y + 4:.4g}", text_anchor="end")
    return tag("g", line, name)
