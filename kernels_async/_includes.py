"""The `#include`s of a text, without a preprocessor.

NVRTC cannot list what a source includes, so it is read from the text: comments are
skipped, macros that are plainly defined as a header's name are followed, and what stands
under `#if 0` does not count. Conditions are not evaluated: a header under one is taken
if it is there.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_TOKEN = re.compile(
    r'//(?:\\\n|[^\n])*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"', re.DOTALL
)
_DIRECTIVE = re.compile(r"[ \t]*(?:#|%:)[ \t]*(\w+)[ \t]*((?:[^\n\\]|\\\n?)*)")
_INCLUDED = re.compile(r'(?P<quoted>"[^"\n]+")|(?P<angled><[^>\n]+>)|(?P<macro>\w+)')
_NAME = re.compile(r"[\w+-][\w.+-]*(/[\w+-][\w.+-]*)*")
_NAME_LIMIT = 200
_HAS_INCLUDE = re.compile(r'__has_include(?:_next)?\s*\(\s*("[^"\n]+"|<[^>\n]+>)')


@dataclass(frozen=True)
class Include:
    """One name that an `#include` or `__has_include` gives.

    Attributes:
        name: The header's name, without quotes, or the macro's.
        quoted: In quotes, so that the including file's own folder comes first.
        macro: It is a macro's name.
        asked: It is only asked for, by `__has_include`.
        needed: It stands under no condition but an include guard.
        line: From 1.
        span: Where the name with its quotes stands in the text.
    """

    name: str
    quoted: bool
    macro: bool
    asked: bool
    needed: bool
    line: int
    span: tuple[int, int]


def is_header_name(name: str) -> bool:
    """Whether `name` can name a header of a source: a relative path with no dot names."""
    return len(name) <= _NAME_LIMIT and bool(_NAME.fullmatch(name))


def leaves_the_source(name: str) -> bool:
    """Whether an include's name is a path of the host's, or leads out of the source."""
    return name.startswith("/") or ".." in name.split("/")


def is_header_literal(text: str) -> bool:
    """Whether `text` is a header's name in quotes or angles."""
    return bool(re.fullmatch(r'"[^"\n]+"|<[^>\n]+>', text))


def without_comments(text: str) -> str:
    """`text` with comments blanked, every other character where it was."""

    def blank(match: re.Match[str]) -> str:
        if match[0][0] != "/":
            return match[0]
        return re.sub(r"[^\n]", " ", match[0])

    return _TOKEN.sub(blank, text)


def includes(text: str) -> Iterator[Include]:
    """Every include of `text` that is not under `#if 0`, in order."""
    code = without_comments(text)
    guard = _has_guard(code)
    live: list[bool] = []
    for match in _directives(code):
        keyword, rest = match[1], match[2]
        if keyword in ("if", "ifdef", "ifndef"):
            live.append(not (keyword == "if" and rest.strip() == "0"))
        elif keyword in ("elif", "else") and live:
            live[-1] = True
        elif keyword == "endif" and live:
            live.pop()
        if not all(live):
            continue
        line = code.count("\n", 0, match.start(2)) + 1
        if keyword in ("if", "elif"):
            for asked in _HAS_INCLUDE.finditer(code, match.start(2), match.end(2)):
                yield _include(asked, 1, line, asked=True, needed=False)
        elif keyword == "include" and (found := _INCLUDED.match(code, match.start(2))):
            needed = len(live) <= guard
            yield _include(found, 0, line, asked=False, needed=needed)


def plain_defines(text: str) -> dict[str, str]:
    """The macros of `text` that are defined as a header's name, quotes included."""
    found = {}
    for match in _directives(without_comments(text)):
        name, _, value = match[2].strip().partition(" ")
        if match[1] == "define" and is_header_literal(value.strip()):
            found[name] = value.strip()
    return found


def rename(text: str, choose: Callable[[Include], str | None]) -> str:
    """`text` with the includes for which `choose` gives a name given that name."""
    parts, end = [], 0
    for include in includes(text):
        name = None if include.macro else choose(include)
        if name is not None and name != include.name:
            start, stop = include.span
            opening, closing = text[start], text[stop - 1]
            parts += [text[end:start], opening, name, closing]
            end = stop
    return "".join([*parts, text[end:]])


def relative(including: str, name: str) -> str:
    """The header that `name` means beside the header `including`."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(including), name))


def _directives(code: str) -> Iterator[re.Match[str]]:
    start = 0
    while start <= len(code):
        match = _DIRECTIVE.match(code, start)
        if match is not None:
            yield match
        end = code.find("\n", start if match is None else match.end())
        if end < 0:
            return
        start = end + 1


def _include(
    match: re.Match[str], group: int, line: int, *, asked: bool, needed: bool
) -> Include:
    text = match[group]
    macro = text[0] not in '"<'
    return Include(
        name=text if macro else text[1:-1],
        quoted=text[0] == '"',
        macro=macro,
        asked=asked,
        needed=needed,
        line=line,
        span=match.span(group),
    )


def _has_guard(code: str) -> int:
    """1 if an include guard surrounds the text, else 0."""
    match = re.match(r"\s*#\s*ifndef\s+(\w+)\s*\n\s*#\s*define\s+\1\b", code)
    return 1 if match else 0
