"""What a compiler said, as values: severities, messages, places."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

LOG_LIMIT = 1 << 20
NAME_LIMIT = 200

_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


class Severity(IntEnum):
    """How bad a message is; they compare as NOTE < WARNING < ERROR."""

    NOTE = 10
    WARNING = 20
    ERROR = 30


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One compiler message.

    Attributes:
        severity: Its severity; one that the compiler invents counts as an ERROR.
        message: The text, without place and severity.
        code: The compiler's number or flag for it, such as `177-D`, or `""`.
        file: The file as the compiler names it, or `""` if it names none.
        line: From 1, or `None`.
        column: From 1, or `None`.
        excerpt: The lines that followed it: source line, caret, what it was part of.
    """

    severity: Severity
    message: str
    code: str = ""
    file: str = ""
    line: int | None = None
    column: int | None = None
    excerpt: str = ""

    @property
    def place(self) -> str:
        """`file:line:column` as far as known, or `""`."""
        parts = (self.file, self.line, self.column)
        return ":".join(str(part) for part in parts if part)

    def __str__(self) -> str:
        code = f" [{self.code}]" if self.code else ""
        head = f"{self.severity.name.lower()}: {self.message}{code}"
        lines = [f"{self.place}: {head}" if self.place else head]
        if self.excerpt:
            lines.append(self.excerpt)
        return "\n".join(lines)

    def to_record(self) -> dict[str, object]:
        """The JSON form, read by `from_record`."""
        return {
            "severity": self.severity.name,
            "message": self.message,
            "code": self.code,
            "file": self.file,
            "line": self.line,
            "column": self.column,
            "excerpt": self.excerpt,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, object]) -> Diagnostic:
        """Rebuild one from its JSON form; anything else raises `ValueError`."""
        try:
            return cls(
                severity=Severity[_text(record["severity"])],
                message=_text(record["message"]),
                code=_text(record["code"]),
                file=_text(record["file"]),
                line=_number(record["line"]),
                column=_number(record["column"]),
                excerpt=_text(record["excerpt"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a diagnostic: {error}") from error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a text is missing")
    return value


def _number(value: object) -> int | None:
    if value is not None and type(value) is not int:
        raise TypeError("a number is missing")
    return value


def printable(text: str, limit: int = LOG_LIMIT) -> str:
    """`text` with control characters made visible, and cut in its middle at `limit`.

    A compiler's log repeats what the source says, so it may hold anything: terminal
    escapes, carriage returns, direction marks, megabytes.
    """
    text = text.replace("\r\n", "\n")
    if len(text) > limit:
        cut = len(text) - limit
        half = limit // 2
        text = f"{text[:half]}\n... {cut} characters cut ...\n{text[-half:]}"
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def shortened(name: str, limit: int = NAME_LIMIT) -> str:
    """`name` on one line, cut at its end: mangled names may have kilobytes."""
    return printable(name if len(name) <= limit else f"{name[:limit]}…")


def summarize(diagnostics: Sequence[Diagnostic]) -> str:
    """The first error whole, and how many more there are."""
    errors = [d for d in diagnostics if d.severity is Severity.ERROR]
    if not errors:
        return "the compiler failed without naming an error"
    rest = len(errors) - 1
    if not rest:
        return str(errors[0])
    return f"{errors[0]}\n(and {rest} more error{'s' if rest > 1 else ''})"
