"""The lanes of a build: one per worker, one for the store and one per device."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .._build import Build, BuiltKernel, Span


@dataclass(frozen=True)
class Bar:
    """A span in its lane, and the kernel that it belongs to.

    Attributes:
        number: The kernel's place in the build.
        kernel: The kernel.
        span: What took its time.
        failed: Whether the kernel failed in it.
    """

    number: int
    kernel: BuiltKernel
    span: Span
    failed: bool


@dataclass
class Lane:
    """What happened in one place.

    Attributes:
        name: The place.
        rows: Its bars, so that those of one row do not overlap.
    """

    name: str
    rows: list[list[Bar]] = field(default_factory=list)

    def add(self, bar: Bar) -> None:
        """Put it into the first row that is free by then."""
        for row in self.rows:
            if row[-1].span.end <= bar.span.begin:
                row.append(bar)
                return
        self.rows.append([bar])


def lanes(build: Build) -> list[Lane]:
    """The lanes of a build: workers by their number, the store, then devices."""
    bars = [
        Bar(number, kernel, span, failed_in(kernel, span))
        for number, kernel in enumerate(build.kernels)
        for span in kernel.spans
        if span.lane
    ]
    found: dict[str, Lane] = {}
    for bar in sorted(bars, key=lambda bar: bar.span.begin):
        found.setdefault(bar.span.lane, Lane(bar.span.lane)).add(bar)
    return [found[name] for name in sorted(found, key=_order)]


def failed_in(kernel: BuiltKernel, span: Span) -> bool:
    """Whether it is the last thing that was done for a kernel that failed."""
    return kernel.state == "failed" and span is kernel.spans[-1]


def waiting(build: Build) -> list[tuple[float, int]]:
    """How many kernels wait, from each time at which that changes."""
    changes: dict[float, int] = {}
    for kernel in build.kernels:
        for span in kernel.spans:
            if span.kind == "waiting":
                changes[span.begin] = changes.get(span.begin, 0) + 1
                changes[span.end] = changes.get(span.end, 0) - 1
    steps, count = [], 0
    for time in sorted(changes):
        count += changes[time]
        steps.append((time, count))
    return steps


def _order(name: str) -> tuple[int, int, str]:
    worker = re.fullmatch(r"worker (\d{1,9})", name)
    if worker:
        return 0, int(worker[1]), name
    return (1 if name == "store" else 2), 0, name
