"""What a build's reader should look at: failures, spills and warnings."""

from __future__ import annotations

from typing import TypeVar

from .._build import Build, BuiltKernel
from .._diagnostics import Diagnostic
from ._details import diagnostic
from ._markup import Html, counted, html, tag

_MOST = 12
_NAMED = 4


def findings(build: Build) -> Html:
    """Failures first, then kernels that spill, then warnings, each told once."""
    parts = [*_failures(build), *_spills(build), *_warnings(build)]
    if not parts:
        found = "No kernel failed or spills, and the compiler warned of nothing."
        parts = [tag("p", found, class_="fine")]
    return html(*parts)


def link(number: int, kernel: BuiltKernel) -> Html:
    """A link to the kernel's row."""
    name = tag("code", kernel.symbol, " " if kernel.defines else "", kernel.configuration)
    return tag("a", name, href=f"#k{number}", data_k=number)


def _failures(build: Build) -> list[Html]:
    failed = [(n, k) for n, k in enumerate(build.kernels) if k.state == "failed"]
    if not failed:
        return []
    found = _grouped([(kernel.error, (number, kernel)) for number, kernel in failed])
    told = [
        tag("li", tag("pre", error), tag("p", _whose(kernels), class_="note"))
        for error, kernels in found[:_MOST]
    ]
    title = tag("h3", "✕ ", counted(len(failed), "kernel"), " failed", class_="failing")
    return [title, tag("ul", *told, _rest(len(found)), class_="failures")]


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
    """One place of a template is one finding, whatever its instances are called."""
    warned = [
        (one, (number, kernel))
        for number, kernel in enumerate(build.kernels)
        for one in {_place(warning): warning for warning in kernel.warnings}.values()
    ]
    if not warned:
        return []
    first: dict[object, Diagnostic] = {}
    for warning, _ in warned:
        first.setdefault(_place(warning), warning)
    found = _grouped([(_place(warning), whose) for warning, whose in warned])
    told = [
        tag("li", diagnostic(first[place]), tag("p", _whose(kernels), class_="note"))
        for place, kernels in found[:_MOST]
    ]
    kernels = counted(len({number for _, (number, _) in warned}), "kernel")
    title = tag("h3", "⚠ ", counted(len(found), "warning"), " in ", kernels)
    return [title, tag("ul", *told, _rest(len(found)), class_="warnings")]


def _place(warning: Diagnostic) -> tuple[object, ...]:
    return warning.message, warning.code, warning.file, warning.line, warning.column


Thing = TypeVar("Thing")


def _grouped(
    pairs: list[tuple[Thing, tuple[int, BuiltKernel]]],
) -> list[tuple[Thing, list[tuple[int, BuiltKernel]]]]:
    """What is the same once, with its kernels; what most of them have first."""
    found: dict[Thing, list[tuple[int, BuiltKernel]]] = {}
    for thing, kernel in pairs:
        found.setdefault(thing, []).append(kernel)
    return sorted(found.items(), key=lambda pair: -len(pair[1]))


def _whose(kernels: list[tuple[int, BuiltKernel]]) -> Html:
    named = [html(", " if n else "", link(*one)) for n, one in enumerate(kernels[:_NAMED])]
    rest = len(kernels) - _NAMED
    return html("in ", *named, f" and {rest:,} more" if rest > 0 else None)


def _rest(count: int) -> Html | None:
    if count <= _MOST:
        return None
    return tag("li", f"and {count - _MOST:,} more, in the table", class_="note")
