"""All that is known of one kernel, behind its row of the table."""

from __future__ import annotations

from .._build import BuiltKernel
from .._diagnostics import Diagnostic
from ._markup import Content, Html, code, counted, html, seconds, size, tag
from ._occupancy_plot import occupancy
from ._timeline import story


def details(kernel: BuiltKernel, common: frozenset[str]) -> Html:
    """Why it failed, what the compiler said, its occupancy and what entered its key."""
    drawn = occupancy(kernel)
    return tag(
        "div",
        tag("pre", kernel.error, class_="error") if kernel.error else None,
        said(kernel) if kernel.diagnostics and not _told(kernel) else None,
        tag("section", tag("h3", "Facts"), facts(_facts(kernel))),
        tag("section", tag("h3", "Occupancy by threads of a block"), drawn.plot)
        if drawn
        else None,
        _entries(kernel, common),
        class_="details",
    )


def facts(pairs: dict[str, Content]) -> Html:
    """Names and values, as a list."""
    return tag(
        "dl",
        *(
            tag("div", tag("dt", name), tag("dd", value))
            for name, value in pairs.items()
            if value not in (None, "")
        ),
        class_="facts",
    )


def said(kernel: BuiltKernel) -> Html:
    """What the compiler said, with its source lines."""
    rest = counted(kernel.unsaid, "more message") if kernel.unsaid else None
    return tag(
        "section",
        tag("h3", "The compiler said"),
        *map(diagnostic, kernel.diagnostics),
        tag("p", rest, ", not kept", class_="note") if rest else None,
        class_="said",
    )


def diagnostic(one: Diagnostic) -> Html:
    """One message with its place and its source lines."""
    name = one.severity.name.lower()
    return tag(
        "div",
        tag("b", name, class_=name),
        " ",
        one.message,
        html(" ", code(one.code)) if one.code else None,
        tag("span", one.place, class_="place") if one.place else None,
        tag("pre", one.excerpt) if one.excerpt.strip() else None,
        class_="diagnostic",
    )


def _told(kernel: BuiltKernel) -> bool:
    """Whether the error's text is all that the compiler said."""
    return bool(kernel.error) and len(kernel.diagnostics) == 1


def _facts(kernel: BuiltKernel) -> dict[str, Content]:
    found = occupancy(kernel)
    return {
        "Key": code(kernel.key),
        "Target": kernel.target,
        "Device": kernel.device,
        "Options": code(kernel.options) if kernel.options else None,
        "Times": story(kernel),
        "Compile": seconds(kernel.compile_seconds) if kernel.compile_seconds else None,
        "Size": None if kernel.size is None else f"{size(kernel.size)} ({kernel.size:,} B)",
        "Barriers": kernel.resources.barriers if kernel.resources else None,
        "Launch bounds": kernel.resources.max_threads or None if kernel.resources else None,
        "Best block": f"{found.best[0]} threads" if found else None,
        "At once": f"{found.blocks} threads" if found and found.blocks else None,
        "Asked for": counted(kernel.requests, "time") if kernel.requests else None,
    }


def _entries(kernel: BuiltKernel, common: frozenset[str]) -> Html | None:
    own = {n: code(text) for n, text in kernel.entries.items() if n not in common and text}
    if not own:
        return None
    return tag("section", tag("h3", "In its key"), facts({**own}), class_="entries")
