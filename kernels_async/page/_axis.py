"""The time axis of a page: the rests between two batches are cut short."""

from __future__ import annotations

import math
from bisect import bisect_right
from datetime import UTC, datetime
from itertools import pairwise
from typing import NamedTuple

from .._build import Build

_LONGEST_REST = 0.15
_LEAST_REST = 1.0
_REST_WIDTH = 1.5
_MOST_FOR_RESTS = 20.0
_TICKS = 8
_LEAST_APART = 9.0


class Stretch(NamedTuple):
    """A piece of the axis that is drawn to scale."""

    begin: float
    end: float
    left: float
    right: float


class Tick(NamedTuple):
    """A mark of the axis: where, and what is written there."""

    place: float
    label: str
    breaks: bool = False


class Axis:
    """Where on the page, in percent of its width, a time of the build is.

    Attributes:
        stretches: What is drawn to scale, in order; between them something rested.
    """

    def __init__(self, build: Build) -> None:
        self._began = build.began
        stretches = _stretches(build)
        total = sum(end - begin for begin, end in stretches) or 1.0
        rest = min(_REST_WIDTH, _MOST_FOR_RESTS / max(1, len(stretches) - 1))
        self._scale = (100.0 - rest * (len(stretches) - 1)) / total
        self.stretches: list[Stretch] = []
        left = 0.0
        for begin, end in stretches:
            right = left + (end - begin) * self._scale
            self.stretches.append(Stretch(begin, end, left, right))
            left = right + rest
        self._begins = [stretch.begin for stretch in self.stretches]

    def at(self, time: float) -> float:
        """The place of a time."""
        found = self.stretches[max(0, bisect_right(self._begins, time) - 1)]
        within = min(max(time, found.begin), found.end) - found.begin
        return found.left + within * self._scale

    def ticks(self) -> list[Tick]:
        """The marks: round times, or the clock's where a batch begins after a rest."""
        if len(self.stretches) == 1:
            (only,) = self.stretches
            step = _round_step((only.end - only.begin) / _TICKS)
            count = int((only.end - only.begin) / step)
            digits = max(0, -math.floor(math.log10(step)))
            return [
                Tick(self.at(only.begin + n * step), f"{n * step:.{digits}f} s")
                for n in range(count + 1)
            ]
        ticks: list[Tick] = []
        labelled = -_LEAST_APART
        for number, stretch in enumerate(self.stretches):
            far = stretch.left - labelled >= _LEAST_APART
            labelled = stretch.left if far else labelled
            label = self._clock(stretch.begin) if far else ""
            ticks.append(Tick(stretch.left, label, breaks=number > 0))
        return ticks

    def _clock(self, time: float) -> str:
        moment = datetime.fromtimestamp(self._began + time, UTC)
        days = (self.stretches[-1].end - self.stretches[0].begin) > 86_400
        return moment.strftime("%d %b %H:%M" if days else "%H:%M:%S")


def _stretches(build: Build) -> list[tuple[float, float]]:
    """When it was busy; short rests count as that."""
    longest = max(_LEAST_REST, build.seconds * _LONGEST_REST)
    if not build.busy:
        return [(0.0, 1.0)]
    joined = [build.busy[0]]
    for before, (begin, end) in pairwise(build.busy):
        if begin - before[1] > longest:
            joined.append((begin, end))
        else:
            joined[-1] = joined[-1][0], end
    begin, end = joined[-1]
    joined[-1] = begin, max(end, begin + 1e-6)
    return joined


def _round_step(least: float) -> float:
    """The next 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * n for n in (1, 2, 5, 10) if power * n >= least * 0.999)
