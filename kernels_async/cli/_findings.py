"""What `doctor` finds, and how its checks run: each alone, for no longer than its time."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from .._diagnostics import printable

_REMEDY = re.compile(
    r"(?P<text>.*?)[:;] (?P<remedy>(?:pip install|install|chmod|set|compile) .*)", re.DOTALL
)


class Status(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """One thing that a check found.

    Attributes:
        check: What was looked at.
        status: How bad it is.
        text: What was found.
        remedy: What to type or to do about it, or "".
        group: What the check belongs to.
    """

    check: str
    status: Status
    text: str
    remedy: str = ""
    group: str = ""

    def to_record(self) -> dict[str, str]:
        """The JSON form."""
        return {
            "group": self.group,
            "check": self.check,
            "status": self.status.value,
            "text": self.text,
            "remedy": self.remedy,
        }


@dataclass(frozen=True)
class Check:
    """Something to look at.

    Attributes:
        name: What it is called.
        look: Looks, and gives what it finds as it finds it.
        seconds: For how long it is waited for.
        group: What it belongs to.
    """

    name: str
    look: Callable[[], Iterator[Finding]]
    seconds: float = 20.0
    group: str = ""


def ok(check: str, text: str) -> Finding:
    """All is well."""
    return Finding(check, Status.OK, text)


def note(check: str, text: str, remedy: str = "") -> Finding:
    """Something to know; the library works without."""
    return Finding(check, Status.NOTE, text, remedy)


def warning(check: str, text: str, remedy: str = "") -> Finding:
    """The library is slower or less safe than it could be, or lacks a part."""
    return Finding(check, Status.WARNING, text, remedy)


def problem(check: str, text: str, remedy: str = "") -> Finding:
    """Something does not work."""
    return Finding(check, Status.PROBLEM, text, remedy)


def from_error(check: str, error: Exception, status: Status = Status.PROBLEM) -> Finding:
    """What an error says; the library's own name the remedy at their end."""
    text = printable(str(error)) or type(error).__name__
    match = _REMEDY.fullmatch(text)
    if match is None:
        return Finding(check, status, text)
    return Finding(check, status, match["text"], match["remedy"])


class Running:
    """A check that runs in a thread of its own, which nobody has to wait for.

    Args:
        check: The check; it begins at once.
    """

    def __init__(self, check: Check) -> None:
        self.check = check
        self._found: list[Finding] = []
        self._ends = time.monotonic() + check.seconds
        self._over = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or its time."""
        return self._over.is_set() or time.monotonic() > self._ends

    def wait(self, seconds: float) -> None:
        """Wait for its end, no longer than so long."""
        self._over.wait(min(seconds, max(0.0, self._ends - time.monotonic())))

    def found(self) -> list[Finding]:
        """What it has found; if it did not end, that is a problem too."""
        found = list(self._found)
        if not self._over.is_set():
            text = f"it did not answer within {self.check.seconds:g} s"
            found.append(problem(self.check.name, text))
        return [replace(finding, group=self.check.group) for finding in found]

    def _run(self) -> None:
        try:
            for finding in self.check.look():
                self._found.append(finding)
        except Exception as error:  # noqa: BLE001 - the others go on
            self._found.append(from_error(self.check.name, error))
        finally:
            self._over.set()


def run_checks(
    checks: Sequence[Check], waiting: Callable[[Sequence[str]], None]
) -> list[Finding]:
    """All that the checks find, in their order, each finding once.

    Args:
        checks: They run at the same time.
        waiting: Told the names of those that still run, now and then.
    """
    running = [Running(check) for check in checks]
    for one in running:
        while not one.is_over:
            waiting([other.check.name for other in running if not other.is_over])
            one.wait(0.2)
    return list(dict.fromkeys(finding for one in running for finding in one.found()))
