"""The timeline of a build as SVG: places are percentages, so that it stretches."""

from __future__ import annotations

from .._build import Build, BuiltKernel, Span
from ._axis import Axis
from ._lanes import Bar, Lane, failed_in, lanes, waiting
from ._markup import Html, counted, html, seconds, tag

_AXIS = 26
_QUEUE = 40
_GAP = 10
_TALL, _LOW = 20, 12
_MOST_ROWS = 6
_WIDE = 4.0
_LIFE = 16

KINDS = {
    "waiting": "waiting for a worker, the reporter or the device",
    "reading": "reading from disk or a remote store",
    "compiling": "compiling",
    "keeping": "keeping on disk",
    "loading": "loading",
}

PATTERNS = Html(
    '<svg class="patterns" width="0" height="0" aria-hidden="true"><defs>'
    '<pattern id="keeping" width="4" height="4" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><rect class="paper" width="4" height="4"/>'
    '<rect class="keeping-ink" width="1.6" height="4"/></pattern>'
    '<pattern id="loading" width="4" height="4" patternUnits="userSpaceOnUse">'
    '<rect class="paper" width="4" height="4"/>'
    '<circle class="loading-ink" cx="1" cy="1" r="1"/>'
    '<circle class="loading-ink" cx="3" cy="3" r="1"/></pattern>'
    '<pattern id="failed" width="7" height="7" patternUnits="userSpaceOnUse">'
    '<rect class="paper" width="7" height="7"/>'
    '<path class="failed-ink" d="M0 0L7 7M7 0L0 7"/></pattern>'
    "</defs></svg>"
)


def timeline(build: Build, axis: Axis) -> Html:
    """All lanes of the build under one axis, with the names of the lanes beside."""
    parts, names = [], []
    top = _AXIS
    if waits := waiting(build):
        most = max(count for _, count in waits)
        names.append(_name("waiting", top + 16))
        names.append(_name(f"up to {most}", top + 30, "small"))
        parts.append(_queue(waits, most, axis, top))
        top += _QUEUE + _GAP
    for lane in lanes(build):
        tall = _TALL if lane.name.startswith("worker ") else _LOW
        rows = min(len(lane.rows), _MOST_ROWS)
        names.append(_name(_short(lane.name), top + tall / 2 + 4))
        parts.append(_lane(lane, axis, top, tall))
        top += rows * (tall + 2) + _GAP
    chart = tag(
        "svg",
        _ticks(axis, top),
        *parts,
        class_="chart",
        width="100%",
        height=top,
        role="group",
        aria_label="Timeline of the build",
    )
    return tag(
        "div",
        tag("svg", *names, class_="names", width=112, height=top, aria_hidden="true"),
        tag(
            "div",
            chart,
            class_="scroller",
            tabindex=0,
            role="region",
            aria_label="Timeline; it scrolls sideways",
        ),
        class_="timeline",
    )


def legend() -> Html:
    """What each look of a bar means."""
    kinds = [*KINDS.items(), ("failed", "failed")]
    return tag(
        "ul",
        *(tag("li", _swatch(kind), " ", text) for kind, text in kinds),
        class_="legend",
    )


def life(kernel: BuiltKernel, axis: Axis) -> Html:
    """What happened to one kernel, under the same axis."""
    bars = [_life_bar(kernel, span, axis) for span in kernel.spans]
    return tag(
        "svg",
        tag("title", story(kernel)),
        *bars,
        class_="life",
        width="100%",
        height=_LIFE,
        role="img",
    )


def story(kernel: BuiltKernel) -> str:
    """How long each part took, in words."""
    parts = [
        f"{kind} {seconds(took)}"
        for kind in KINDS
        if (took := kernel.seconds(kind)) is not None  # type: ignore[arg-type]
    ]
    return ", ".join(parts) or "no times are known"


def _ticks(axis: Axis, bottom: float) -> Html:
    marks = []
    for tick in axis.ticks():
        place = f"{tick.place:.4g}%"
        line = "break" if tick.breaks else "tick"
        marks.append(tag("line", x1=place, x2=place, y1=_AXIS - 6, y2=bottom, class_=line))
        side = {"text_anchor": "end", "dx": -2} if tick.place > 96 else {"dx": 3}
        if tick.label:
            marks.append(tag("text", tick.label, x=place, y=12, class_="mark", **side))
    return tag("g", *marks, aria_hidden="true")


def _queue(waits: list[tuple[float, int]], most: int, axis: Axis, top: float) -> Html:
    """How many kernels wait, as a line with steps."""
    path, last = ["M0 0"], 0
    for time, count in waits:
        path.append(f"L{axis.at(time) * 10:.1f} {last}V{count}")
        last = count
    path.append("Z")
    return tag(
        "svg",
        tag("title", f"Up to {counted(most, 'kernel')} waited at once"),
        tag("path", d="".join(path), transform=f"translate(0 {most}) scale(1 -1)"),
        class_="queue",
        viewBox=f"0 0 1000 {most}",
        preserveAspectRatio="none",
        width="100%",
        height=_QUEUE,
        y=top,
        role="img",
    )


def _lane(lane: Lane, axis: Axis, top: float, tall: int) -> Html:
    bars = []
    for number, row in enumerate(lane.rows):
        y = top + number % _MOST_ROWS * (tall + 2)
        bars += [_bar(bar, axis, y, tall) for bar in row]
    middle = top + tall / 2
    rest = tag("line", x1=0, x2="100%", y1=middle, y2=middle, class_="rest")
    return tag("g", rest, *bars, class_="lane", data_lane=lane.name)


def _bar(bar: Bar, axis: Axis, y: float, tall: int) -> Html:
    left, width = _extent(bar.span, axis)
    wide = width >= _WIDE
    text = bar.kernel.symbol if tall == _TALL else None
    words = f"{bar.kernel.symbol}: {bar.span.kind} {seconds(bar.span.seconds)}"
    if bar.failed:
        words += ", failed"
    return tag(
        "svg",
        tag("title", f"{words} ({bar.span.lane}, after {seconds(bar.span.begin)})"),
        tag("rect", width="100%", height=tall),
        tag("text", "✕ " if bar.failed else "", text, x=5, y=tall - 6) if text else None,
        class_=f"bar {_look(bar)}{' wide' if wide else ''}",
        data_k=bar.number,
        x=f"{left:.5g}%",
        y=y,
        width=f"{width:.4g}%",
        height=tall,
        role="img",
    )


def _life_bar(kernel: BuiltKernel, span: Span, axis: Axis) -> Html:
    left, width = _extent(span, axis)
    thin = span.kind == "waiting"
    return tag(
        "rect",
        class_="failed" if failed_in(kernel, span) else span.kind,
        x=f"{left:.4g}%",
        width=f"{width:.3g}%",
        y=_LIFE / 2 - 0.5 if thin else 3,
        height=1 if thin else _LIFE - 6,
    )


def _extent(span: Span, axis: Axis) -> tuple[float, float]:
    left = axis.at(span.begin)
    return left, max(axis.at(span.end) - left, 0.001)


def _look(bar: Bar) -> str:
    return "failed" if bar.failed else bar.span.kind


def _name(text: str, y: float, look: str = "") -> Html:
    return tag("text", text, x=0, y=y, class_=look or None)


def _short(name: str) -> str:
    return name if len(name) <= 16 else f"{name[:15]}…"


def _swatch(kind: str) -> Html:
    thin = kind == "waiting"
    shape = tag(
        "rect",
        class_=kind,
        x=1,
        y=6.5 if thin else 2,
        width=24,
        height=1 if thin else 10,
    )
    return tag("svg", html(shape), class_="swatch", width=26, height=14, aria_hidden="true")
