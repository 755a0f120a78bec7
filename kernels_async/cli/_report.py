"""`kernels-async report`: the page of a build, of what changed, or of a cache directory."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, get_args

import typer

from .._build import Build, BuiltKernel
from .._collector import BuildCollector
from .._errors import SpecificationError
from .._inventory import inspect, listed
from .._store import DamagedEntry
from ..page import (
    Change,
    Comparison,
    Verdict,
    compare_builds,
    read_build,
)
from ._command import Answer, CacheDir, CannotError, command, existing_store, told
from ._outputs import TraceFile, check_outputs, write_report
from ._screen import Screen
from ._words import count, line, seconds, size

_UNTOLD = ("same", "differs")
_PAGES = ("cache.html", "build.html", "changes.html")


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "report")(report)


def report(
    _: Screen,
    builds: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[BUILD]...",
            help="Pages or JSON files of builds: one, or an earlier and a later one.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="The page to write; by default a new cache.html, build.html or, of two "
            "builds, changes.html.",
        ),
    ] = None,
    trace: TraceFile = None,
    cache_dir: CacheDir = None,
) -> Answer:
    """Write a page of a build, or of the cache.

    Of two builds it is of what changed; without one it is of the cache's artifacts. The
    page is one file that needs no other, and holds the build itself.
    """
    given = builds or []
    if len(given) > 2:
        raise SpecificationError("report takes two builds at most")
    page = _new_page(_PAGES[len(given)]) if output is None else output
    check_outputs(page, trace, given)
    before = _read(given[0]) if len(given) == 2 else None
    build = _read(given[-1]) if given else _of_cache(cache_dir)
    write_report(build, page, trace, before)
    comparison = None if before is None else compare_builds(before, build)
    document = {
        "output": str(page),
        "trace": None if trace is None else str(trace),
        "kernels": len(build.kernels),
        "failed": len(build.failed),
        "changes": None if comparison is None else _changes(comparison),
    }

    def show(screen: Screen) -> None:
        if comparison is not None:
            _show_changes(screen, comparison)
        failed = f", {len(build.failed)} failed" if build.failed else ""
        kernels = count(len(build.kernels), "kernel")
        wrote = f"{page}" if trace is None else f"{page} and {trace}"
        screen.print(f"wrote {wrote}: {kernels}{failed}")

    return Answer(document, show)


def _new_page(name: str) -> Path:
    """The file of that name in the current folder; nobody named it, so it must be new."""
    if os.path.lexists(name):
        raise SpecificationError(f"{name} is there: name the page to write by --output")
    return Path(name)


def _read(file: Path) -> Build:
    try:
        with told("read", file):
            return read_build(file)
    except SpecificationError as error:
        raise CannotError(str(error)) from error


def _of_cache(cache_dir: Path | None) -> Build:
    store = existing_store(cache_dir)
    keys = [item.entry.key for item in listed(store) if item.record is not None]
    collector = BuildCollector(limit=max(1, len(keys)))
    for key in keys:
        try:
            collector.add(inspect(store, key))
        except (DamagedEntry, FileNotFoundError):
            continue
    return collector.build()


def _changes(comparison: Comparison) -> dict[str, object]:
    counts = Counter(change.verdict for change in comparison.changes)
    return {
        "counts": {verdict: counts[verdict] for verdict in get_args(Verdict)},
        "kernels": [
            {
                "verdict": change.verdict,
                "symbol": change.kernel.symbol,
                "target": change.kernel.target,
                "before": _facts(change.before),
                "after": _facts(change.after),
                "entries": [one.entry for one in change.entries],
            }
            for change in comparison.changes
            if change.verdict != "same"
        ],
        "everywhere": [one.entry for one in comparison.everywhere],
    }


def _facts(kernel: BuiltKernel | None) -> dict[str, object] | None:
    if kernel is None:
        return None
    resources = kernel.resources
    return {
        "registers": None if resources is None else resources.registers,
        "spills": kernel.spills,
        "bytes": kernel.size,
        "compile_seconds": kernel.compile_seconds,
        "error": kernel.error,
    }


def _show_changes(screen: Screen, comparison: Comparison) -> None:
    changed = [c for c in comparison.changes if c.verdict not in _UNTOLD]
    if changed:
        numbers = ("REGISTERS", "SPILLS", "SIZE", "COMPILED IN")
        names = ("CHANGE", "KERNEL", "TARGET", *numbers)
        screen.table(names, [_row(change) for change in changed], right=numbers)
    if comparison.everywhere:
        entries = ", ".join(line(one.entry) for one in comparison.everywhere)
        screen.print(f"every kernel differs in: {entries}")
    same = len(comparison.changes) - len(changed)
    screen.print(f"{count(same, 'kernel')} compiled to the same effect")


def _row(change: Change) -> Sequence[str]:
    kernel, pair = change.kernel, (change.before, change.after)
    macros = [f"-D{name}={text}" for name, text in kernel.defines.items()]
    needs = [k.resources for k in pair if k is not None and k.resources is not None]
    sizes = [k.size for k in pair if k is not None and k.size is not None]
    times = [k.compile_seconds for k in pair if k is not None]
    return (
        change.verdict,
        " ".join([kernel.symbol, *macros]),
        kernel.target,
        _arrow(str(resources.registers) for resources in needs),
        _arrow(str(resources.spills) for resources in needs),
        _arrow(map(size, sizes)),
        _arrow(seconds(took) for took in times if took is not None),
    )


def _arrow(texts: Iterable[str]) -> str:
    """What was and what is, or just what is if that is the same."""
    return " -> ".join(dict.fromkeys(texts))
