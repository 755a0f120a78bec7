"""What a build's reader should look at: failures, spills and warnings."""

from __future__ import annotations

from .._build import Build, BuiltKernel
from .._diagnostics import Diagnostic
from ._details import diagnostic
from ._markup import Html, counted, html, tag

_MOST = 12


def findings(build: Build) -> Html:
    """Failures first, then kernels that spill, then warnings, each told once."""
    parts = [*_failures(build), *_spills(build), *_warnings(build)]
    if not parts:
        found = "No kernel failed or spills, and the compiler warned of nothing."
        parts = [tag("p", found, class_="fine")]
    return html(*parts)


def link(number: int, kernel: BuiltKernel) -> Html:
    """A link to the kernel's row."""
    return tag("a", tag("code", kernel.symbol), href=f"#k{number}", data_k=number)


def _failures(build: Build) -> list[Html]:
    failed = [(n, k) for n, k in enumerate(build.kernels) if k.state == "failed"]
    if not failed:
        return []
    told = [
        tag("li", link(number, kernel), tag("pre", kernel.error))
        for number, kernel in failed[:_MOST]
    ]
    title = tag("h3", "✕ ", counted(len(failed), "kernel"), " failed", class_="failing")
    return [title, tag("ul", *told, _rest(len(failed)), class_="failures")]


def _spills(build: Build) -> list[Html]:
    spilling = [(n, k) for n, k in enumerate(build.kernels) if k.spills]
    if not spilling:
        return []
    spilling.sort(key=lambda pair: -pair[1].spills)
    told = [
        tag(
            "li",
            link(number, kernel),
            f" {used.spill_stores:,} B stored and {used.spill_loads:,} B loaded back by "
            f"each thread, with {used.registers} registers",
        )
        for number, kernel in spilling[:_MOST]
        if (used := kernel.resources)
    ]
    count = counted(len(spilling), "kernel spills registers", "kernels spill registers")
    return [tag("h3", "▼ ", count), tag("ul", *told, _rest(len(spilling)))]


def _warnings(build: Build) -> list[Html]:
    """One warning that many kernels of a source get is one finding."""
    found: dict[Diagnostic, list[tuple[int, BuiltKernel]]] = {}
    for number, kernel in enumerate(build.kernels):
        for warning in dict.fromkeys(kernel.warnings):
            found.setdefault(warning, []).append((number, kernel))
    if not found:
        return []
    ordered = sorted(found.items(), key=lambda pair: -len(pair[1]))
    told = [
        tag(
            "li",
            diagnostic(warning),
            tag("p", _whose(kernels), class_="note"),
        )
        for warning, kernels in ordered[:_MOST]
    ]
    title = tag("h3", "⚠ ", counted(len(found), "different warning"))
    return [title, tag("ul", *told, _rest(len(found)), class_="warnings")]


def _whose(kernels: list[tuple[int, BuiltKernel]]) -> Html:
    if len(kernels) == 1:
        return html("in ", link(*kernels[0]))
    return html("in ", counted(len(kernels), "kernel"), ", first in ", link(*kernels[0]))


def _rest(count: int) -> Html | None:
    if count <= _MOST:
        return None
    return tag("li", f"and {count - _MOST:,} more, in the table", class_="note")
