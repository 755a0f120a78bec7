"""The log of GCC or Clang, taken apart."""

from __future__ import annotations

import re
import signal

from .._diagnostics import Diagnostic, Severity, printable

_SEVERITY = {
    "note": Severity.NOTE,
    "remark": Severity.NOTE,
    "warning": Severity.WARNING,
    "Warning": Severity.WARNING,
}
_MESSAGE = re.compile(
    r"(?P<file>[^\s:][^:]*):(?:(?P<line>\d+):)?(?:(?P<column>\d+):)? "
    r"(?P<severity>(?:fatal |internal compiler )?error|warning|note|remark"
    r"|sorry, unimplemented|Error|Warning): (?P<message>.*?)"
    r"(?: \[-W(?P<code>[\w=+-]+)\])?"
)

_OUT_OF_MEMORY = re.compile(
    r"^(?:virtual memory exhausted|\S+: out of memory allocating|LLVM ERROR: out of memory"
    r"|terminate called after throwing an instance of 'std::bad_alloc')",
    re.MULTILINE,
)

_KILLED = re.compile(
    r"error: (?P<name>[A-Z][\w -]+?) signal terminated program"
    r"|terminated with signal (?P<number>\d+)"
    r"|unable to execute command: (?P<clang>[A-Z][\w -]+)"
)
_SIGNALS = {signal.strsignal(number): number for number in signal.valid_signals()}


def killed_by(returncode: int, text: str) -> int | None:
    """The signal that ended a compiler, or the part of it that its driver tells of."""
    if returncode < 0:
        return -returncode
    found = _KILLED.search(text) if returncode else None
    if found is None:
        return None
    if found["number"]:
        return int(found["number"])
    return _SIGNALS.get(found["name"] or found["clang"])


def out_of_memory(text: str) -> bool:
    """Whether a compiler, or a part of it, says that it had no more memory."""
    return bool(_OUT_OF_MEMORY.search(text))


def parse(text: str) -> list[Diagnostic]:
    """Every message of `text`, in order; what fits no pattern is a NOTE."""
    found: list[Diagnostic] = []
    context: list[str] = []
    lines: list[str] = []

    def end() -> None:
        if lines:
            found.append(_diagnostic(lines, context))
            lines.clear()
            context.clear()

    for line in printable(text).splitlines():
        if _MESSAGE.fullmatch(line):
            end()
            lines.append(line)
        elif lines and line[:1] == " ":
            lines.append(line)
        elif line.strip():
            end()
            context.append(line)
    end()
    return [*found, *([Diagnostic(Severity.NOTE, "\n".join(context))] if context else [])]


def _diagnostic(lines: list[str], context: list[str]) -> Diagnostic:
    """One message; the lines before it, which say where it is, go into its excerpt."""
    head, *rest = lines
    match = _MESSAGE.fullmatch(head)
    if match is None:
        return Diagnostic(Severity.NOTE, "\n".join(lines))
    return Diagnostic(
        severity=_SEVERITY.get(match["severity"], Severity.ERROR),
        message=match["message"],
        code=match["code"] or "",
        file=match["file"],
        line=int(match["line"]) if match["line"] else None,
        column=int(match["column"]) if match["column"] else None,
        excerpt="\n".join([*rest, *context]),
    )
