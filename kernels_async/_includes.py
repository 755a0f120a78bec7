"""The `#include`s of a text, without a preprocessor.

NVRTC cannot list what a source includes, so it is read from the text: comments are
skipped, macros that are plainly defined as a header's name are followed, and what stands
under `#if 0` does not count. Conditions are not evaluated: a header under one is taken
if it is there.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass

from ._errors import SpecificationError

_TOKEN = re.compile(
    r"""//(?:\\\r?\n|[^\n])*|/\*.*?\*/"""
    r"""|R"([^\s()\\]{0,16})\(.*?\)\1"|"(?:\\.|[^"\\\n])*\""""
    r"""|(?<![\w'])'(?:\\.|[^'\\\n])+'""",
    re.DOTALL,
)
_LEADING = re.compile(
    r"""(?:\s|//(?:\\\r?\n|[^\n])*+|/\*.*?\*/"""
    r"""|(?:#|%:)(?:\\\r?\n|/\*.*?\*/|[^\n])*+)*+""",
    re.DOTALL,
)
_BLANK = r"(?:[ \t\f\v]|\\\r?\n)*"
_DIRECTIVE = re.compile(rf"{_BLANK}(?:#|%:){_BLANK}(\w+){_BLANK}((?:[^\n\\]|\\\r?\n|\\)*)")
_INCLUDED = re.compile(r'(?P<quoted>"[^"\n]+")|(?P<angled><[^>\n]+>)|(?P<macro>\w+)')
_NAME = re.compile(r"[\w+-][\w.+-]*(/[\w+-][\w.+-]*)*")
_NAME_LIMIT = 200
_ASKED = re.compile(r'("[^"\n]+")|__has_include\s*\(\s*(<[^>\n]+>)')


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
    """`text` with comments blanked, every other character where it was.

    So are strings of several lines, in which nothing is a directive.
    """

    def blank(match: re.Match[str]) -> str:
        if match[0][0] == "/" or (match[0][0] == "R" and "\n" in match[0]):
            return re.sub(r"[^\n]", " ", match[0])
        return match[0]

    return _TOKEN.sub(blank, text)


def leading_directives(text: str) -> str:
    """What stands before the first declaration: directives, comments and blank lines."""
    found = _LEADING.match(text)
    return found[0] if found else ""


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
        defines_question = keyword == "define" and "__has_include" in rest
        if keyword in ("if", "elif") or defines_question:
            for asked in _ASKED.finditer(code, match.start(2), match.end(2)):
                yield _include(asked, asked.lastindex or 0, line, asked=True, needed=False)
        elif keyword == "include_next":
            raise SpecificationError(
                f"line {line}: #include_next depends on folders: pass the headers in "
                "Source(headers={...})"
            )
        elif keyword in ("include", "import") and (
            found := _INCLUDED.match(code, match.start(2))
        ):
            needed = len(live) <= guard
            yield _include(found, 0, line, asked=False, needed=needed)


def plain_defines(text: str) -> list[tuple[str, str]]:
    """The macros of `text` that are defined as a header's name, quotes included.

    All of them: which is in force where is a preprocessor's to know.
    """
    found = []
    for match in _directives(without_comments(text)):
        name, *value = match[2].split(None, 1) or [""]
        if match[1] == "define" and value and is_header_literal(value[0].strip()):
            found.append((name, value[0].strip()))
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


def written_out(name: str, text: str, headers: Container[str]) -> str:
    """A header's text, the headers that it includes from beside itself by full name.

    As NVRTC, which knows headers by exact names and no folders, must be told.
    """
    if "/" not in name:
        return text

    def choose(include: Include) -> str | None:
        beside = relative(name, include.name)
        return beside if include.quoted and beside in headers else None

    return rename(text, choose)


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
