"""`kernels-async doctor`: whether everything that the library needs is there and works."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import typer
from rich.text import Text

from . import _device_checks, _machine_checks, _place_checks, _toolchain_checks
from ._bench import Bench
from ._command import Answer, CacheDir, command
from ._ends import GOOD, PROBLEMS
from ._findings import Finding, Status, run_checks
from ._screen import Screen
from ._words import count

_STYLES = {
    Status.OK: "green",
    Status.NOTE: "cyan",
    Status.WARNING: "yellow",
    Status.PROBLEM: "bold red",
}


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "doctor")(doctor)


def doctor(screen: Screen, cache_dir: CacheDir = None) -> Answer:
    """Check this machine, and say what is wrong.

    Compilers, GPUs, cache and limits; each problem has its remedy. It compiles a small
    kernel with each compiler, and runs it where it can. It makes and changes nothing
    but temporary files of its own.
    """
    with Bench() as bench, _watched(screen) as waiting:
        groups = {
            "machine": _machine_checks.checks(),
            "compilers": _toolchain_checks.checks(bench),
            "GPUs": _device_checks.checks(bench),
            "places": _place_checks.checks(cache_dir),
        }
        checks = [
            replace(check, group=name) for name, group in groups.items() for check in group
        ]
        findings = run_checks(checks, waiting)
    counts = Counter(finding.status for finding in findings)
    document = {
        "findings": [finding.to_record() for finding in findings],
        "counts": {status.value: counts[status] for status in Status},
    }
    code = PROBLEMS if counts[Status.PROBLEM] else GOOD
    return Answer(document, lambda screen: _show(screen, findings, counts), code)


@contextlib.contextmanager
def _watched(screen: Screen) -> Iterator[Callable[[Sequence[str]], None]]:
    """Tells which checks still run, where somebody watches."""
    if not screen.err.is_terminal:
        yield lambda _: None
        return
    with screen.err.status("looking") as status:
        yield lambda names: status.update(f"looking: {', '.join(names)}")


def _show(screen: Screen, findings: Sequence[Finding], counts: Counter[Status]) -> None:
    screen.table(("", "", "", ""), _rows(findings))
    problems, warnings = counts[Status.PROBLEM], counts[Status.WARNING]
    worst = Status.PROBLEM if problems else Status.WARNING if warnings else Status.OK
    text = f"{count(problems, 'problem')}, {count(warnings, 'warning')}"
    screen.print()
    screen.print(text, _STYLES[worst])


def _rows(findings: Sequence[Finding]) -> Iterator[tuple[Text, Text, str, str]]:
    nothing, group = Text(), ""
    for finding in findings:
        head = Text("" if finding.group == group else finding.group, "bold")
        status = Text(finding.status.value, _STYLES[finding.status])
        group = finding.group
        first, *rest = finding.text.splitlines()
        yield head, status, finding.check, first
        for more in rest:
            yield nothing, nothing, "", more
        if finding.remedy:
            yield nothing, nothing, "", f"-> {finding.remedy}"
