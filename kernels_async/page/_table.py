"""The table of a build's kernels: a row for each, and behind it all that is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .._build import Build, BuiltKernel
from .._resources import Resources
from ._axis import Axis
from ._details import details
from ._markup import NOTHING, Html, counted, html, percent, seconds, size, tag
from ._occupancy_plot import occupancy
from ._timeline import life

Sorted = str | int | float | None

STATES = {
    "failed": "failed",
    "loaded": "loaded",
    "shared": "loaded",
    "kept": "built",
    "building": "unfinished",
}


class Column(NamedTuple):
    """A column: its head, what is in it, and by what it is sorted."""

    head: str
    note: str
    value: Callable[[BuiltKernel], Sorted]
    cell: Callable[[BuiltKernel], str | int | None]
    look: str = "number"


def table(build: Build, axis: Axis, common: frozenset[str]) -> Html:
    """The table.

    Args:
        build: The build.
        axis: The time axis, the same as the timeline's.
        common: The entries that all kernels share, which no row repeats.
    """
    columns = _columns(build, axis)
    heads = [
        tag("th", column.head, scope="col", title=column.note, class_=column.look)
        for column in columns
    ]
    bodies = [
        _body(number, kernel, columns, common)
        for number, kernel in enumerate(build.kernels)
    ]
    return tag(
        "table",
        tag("caption", "Kernels, in the order in which they began", class_="hidden"),
        tag("thead", tag("tr", *heads)),
        *bodies,
        id="kernels",
    )


def tokens(kernel: BuiltKernel) -> str:
    """What a kernel is found by with the buttons of the filter."""
    return " ".join(
        token
        for token, holds in {
            "failed": kernel.state == "failed",
            "warnings": bool(kernel.warnings),
            "spills": kernel.spills > 0,
            "memory": kernel.state == "shared",
            kernel.origin or "": kernel.origin and kernel.state != "shared",
        }.items()
        if holds
    )


def _body(
    number: int, kernel: BuiltKernel, columns: list[Column], common: frozenset[str]
) -> Html:
    cells = []
    for place, column in enumerate(columns):
        value = column.value(kernel)
        cells.append(
            tag(
                "th" if place == 0 else "td",
                column.cell(kernel) if place else _name(number, kernel),
                scope="row" if place == 0 else None,
                class_=column.look,
                data_v=value,
            )
        )
    more = tag("td", details(kernel, common), colspan=len(columns))
    return tag(
        "tbody",
        tag("tr", *cells, class_="row"),
        tag("tr", more, class_="more", id=f"more{number}"),
        id=f"k{number}",
        data_s=tokens(kernel),
        class_="failing" if kernel.state == "failed" else None,
    )


def _name(number: int, kernel: BuiltKernel) -> Html:
    defines = kernel.configuration
    return tag(
        "details",
        tag(
            "summary",
            tag("code", kernel.symbol, title=kernel.symbol),
            tag("small", defines, title=defines) if defines else None,
            aria_controls=f"more{number}",
        ),
    )


def _columns(build: Build, axis: Axis) -> list[Column]:
    columns = [
        Column("Kernel", "The symbol, and its defines", lambda k: k.symbol, _none, "name"),
        Column("State", "What became of it", _state_order, _state, "word"),
        Column(
            "From", "Where its artifact came from", lambda k: _origin(k), _origin, "word"
        ),
        _resource("Regs", "Registers of a thread", lambda r: r.registers),
        _resource("Spill st.", "Bytes spilled to memory, each thread", _stores, bad=True),
        _resource("Spill ld.", "Bytes loaded back, each thread", _loads, bad=True),
        _resource(
            "Shared", "Bytes of static shared memory, each block", lambda r: r.shared
        ),
        _resource("Stack", "Bytes of stack, each thread", lambda r: r.stack),
        _resource("Const", "Bytes of constant memory", lambda r: r.constant),
        Column(
            "Occupancy", "By block size, 32 to 1024 threads; the best", _peak, _occupancy
        ),
        Column(
            "Compile",
            "Seconds of the compile, whenever it was",
            lambda k: k.compile_seconds,
            lambda k: seconds(k.compile_seconds),
        ),
        Column(
            "Load",
            "Seconds of the load onto the device",
            lambda k: k.seconds("loading"),
            lambda k: seconds(k.seconds("loading")),
        ),
        Column("Size", "Bytes of the artifact", lambda k: k.size, lambda k: size(k.size)),
        Column("Warn", "Warnings", lambda k: len(k.warnings), _warnings),
        Column(
            "When", "Under the timeline's axis", _begin, lambda k: life(k, axis), "when"
        ),
    ]
    if len({kernel.target for kernel in build.kernels}) > 1:
        columns.insert(
            2, Column("Target", "", lambda k: k.target, lambda k: k.target, "word")
        )
    return columns


def _resource(
    head: str, note: str, number: Callable[[Resources], int], *, bad: bool = False
) -> Column:
    def value(kernel: BuiltKernel) -> int | None:
        return None if kernel.resources is None else number(kernel.resources)

    def cell(kernel: BuiltKernel) -> str | Html:
        found = value(kernel)
        if found is None:
            return NOTHING
        look = "zero" if not found else "bad" if bad else None
        return tag("span", f"{found:,}", class_=look)

    return Column(head, note, value, cell)


def _none(_: BuiltKernel) -> None:
    return None


def _stores(resources: Resources) -> int:
    return resources.spill_stores


def _loads(resources: Resources) -> int:
    return resources.spill_loads


def _state_order(kernel: BuiltKernel) -> int:
    return list(STATES).index(kernel.state)


def _state(kernel: BuiltKernel) -> Html:
    mark = "✕ " if kernel.state == "failed" else None
    return tag("span", mark, STATES[kernel.state], class_=f"state {kernel.state}")


def _origin(kernel: BuiltKernel) -> str:
    return "memory" if kernel.state == "shared" else kernel.origin or NOTHING


def _peak(kernel: BuiltKernel) -> float | None:
    found = occupancy(kernel)
    return None if found is None else found.best[1]


def _occupancy(kernel: BuiltKernel) -> str | Html:
    found = occupancy(kernel)
    if found is None:
        return NOTHING
    return html(found.sparkline, tag("span", percent(found.best[1]), class_="after"))


def _warnings(kernel: BuiltKernel) -> Html:
    count = len(kernel.warnings)
    look = "warns" if count else "zero"
    title = counted(count, "warning")
    return tag("span", "⚠ " if count else None, count, class_=look, title=title)


def _begin(kernel: BuiltKernel) -> float | None:
    return round(kernel.spans[0].begin, 6) if kernel.spans else None
