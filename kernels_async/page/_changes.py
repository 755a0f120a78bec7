"""What changed from one build to another, as HTML."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from .._build import BuiltKernel
from .._digest import Difference
from .._resources import Resources
from ._diff import ORDER, Change, Comparison, Verdict, slower
from ._markup import NOTHING, Html, code, counted, html, percent, seconds, size, tag
from ._occupancy_plot import occupancy

_TITLES: dict[Verdict, str] = {
    "fails": "✕ Fail now",
    "spills": "▼ Spill more registers",
    "registers": "▲ Need more registers",
    "new": "+ New",
    "removed": "\N{MINUS SIGN} Removed",
    "slower": "▲ Slower to compile",
    "larger": "▲ Larger",
    "better": "✓ Better",
    "differs": "≠ Made from something else, to the same effect",
}
_MOST = 200


def changes(comparison: Comparison) -> Html:
    """The comparison: the gravest first, unchanged kernels as a number."""
    before = datetime.fromtimestamp(comparison.before.began, UTC)
    same = len(comparison.of("same"))
    groups = [
        _group(verdict, found)
        for verdict in ORDER
        if verdict != "same" and (found := comparison.of(verdict))
    ]
    since = tag(
        "p",
        "Compared with the build of ",
        tag("time", f"{before:%d %B %Y, %H:%M:%S} UTC", datetime=before.isoformat()),
        f", of {counted(len(comparison.before.kernels), 'kernel')}. ",
        f"{counted(same, 'kernel is', 'kernels are')} the same.",
    )
    everywhere = None
    if comparison.everywhere:
        everywhere = tag(
            "div",
            tag("h3", "≠ In every kernel"),
            _entries(comparison.everywhere),
            class_="everywhere",
        )
    return html(since, *groups, everywhere)


def headline(comparison: Comparison) -> str:
    """The comparison in one line."""
    words = {
        "fails": "fail now",
        "spills": "spill more",
        "registers": "need more registers",
        "new": "new",
        "removed": "removed",
        "slower": "slower to compile",
        "larger": "larger",
    }
    counts = {verdict: len(comparison.of(verdict)) for verdict in ORDER}
    told = [f"{counts[v]} {text}" for v, text in words.items() if counts[v]]  # type: ignore[index]
    return ", ".join(told) or "Nothing is worse"


def _group(verdict: Verdict, found: tuple[Change, ...]) -> Html:
    heads = ("Kernel", "Registers", "Spills", "Shared", "Best occupancy", "Compile", "Size")
    rows = [_row(change) for change in found[:_MOST]]
    rest = len(found) - _MOST
    return html(
        tag("h3", _TITLES[verdict], " ", tag("span", len(found), class_="count")),
        tag(
            "div",
            tag(
                "table",
                tag("caption", _TITLES[verdict], class_="hidden"),
                tag("thead", tag("tr", *(tag("th", head, scope="col") for head in heads))),
                tag("tbody", *rows),
                class_="changes",
            ),
            class_="wide",
            tabindex=0,
            role="region",
            aria_label=f"{_TITLES[verdict]}; it scrolls sideways",
        ),
        tag("p", f"and {rest:,} more", class_="note") if rest > 0 else None,
    )


def _row(change: Change) -> Html:
    kernel = change.kernel
    name = tag(
        "th",
        code(kernel.symbol),
        tag("small", kernel.configuration) if kernel.defines else None,
        _entries(change.entries) if change.entries else None,
        scope="row",
    )
    row = tag("tr", name, *(tag("td", _both(change, *how)) for how in _FIGURES))
    if change.verdict != "fails":
        return row
    why = tag("td", tag("pre", kernel.error, class_="error"), colspan=len(_FIGURES) + 1)
    return html(row, tag("tr", why, class_="why"))


def _resource(number: Callable[[Resources], int]) -> Callable[[BuiltKernel], int | None]:
    return lambda kernel: None if kernel.resources is None else number(kernel.resources)


def _peak(kernel: BuiltKernel) -> float | None:
    found = occupancy(kernel)
    return None if found is None else found.best[1]


def _compile_seconds(kernel: BuiltKernel) -> float | None:
    return kernel.compile_seconds


def _number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.0f}"


def _size(value: float | None) -> str:
    return size(None if value is None else int(value))


_FIGURES: tuple[
    tuple[Callable[[BuiltKernel], float | None], Callable[[float | None], str], int], ...
] = (
    (_resource(lambda used: used.registers), _number, 1),
    (_resource(lambda used: used.spills), _number, 1),
    (_resource(lambda used: used.shared), _number, 1),
    (_peak, percent, -1),
    (_compile_seconds, seconds, 1),
    (lambda kernel: kernel.size, _size, 1),
)


def _both(
    change: Change,
    value: Callable[[BuiltKernel], float | None],
    words: Callable[[float | None], str],
    worse: int,
) -> Html:
    """The figure before and after, if it changed; more is worse, or less."""
    old = None if change.before is None else value(change.before)
    now = None if change.after is None else value(change.after)
    if old is None or now is None or words(old) == words(now):
        return tag("span", words(now if old is None else old), class_="zero")
    changed = (now - old) * worse
    look = "bad" if changed > 0 else "good"
    if value is _compile_seconds and not (slower(old, now) or slower(now, old)):
        look = "old"
    return html(
        tag("span", words(old), class_="old"), " → ", tag("span", words(now), class_=look)
    )


def _entries(entries: tuple[Difference, ...]) -> Html:
    return tag(
        "ul",
        *(
            tag("li", one.entry, ": ", _value(one.first), " → ", _value(one.second))
            for one in entries
        ),
        class_="differences",
    )


def _value(text: str | None) -> Html:
    if text is None:
        return tag("i", "absent")
    algorithm, _, rest = text.partition(" ")
    if algorithm == "blake3" and len(rest) > 12:
        return tag("code", f"{rest[:12]}…", title=text)
    return code(text or "(empty)")
