"""Where a command writes: its answer to standard output, its progress to the other one."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, NoReturn

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ._words import line

_WIDE = 100_000


class _Console(Console):
    """A console that tells its caller when nobody reads any more."""

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


class Screen:
    """What a command writes to.

    Texts are written as they are: nothing in them is markup. Where standard output is no
    terminal, or `NO_COLOR` is set, there are no escapes, and lines are as long as they are.

    Args:
        as_json: Whether the answer is a document for programs.

    Attributes:
        as_json: As given.
        out: The console of the answer.
        err: The console of progress and errors.
    """

    def __init__(self, as_json: bool = False) -> None:
        self.as_json = as_json
        self.out = _console(sys.stdout)
        self.err = _console(sys.stderr)

    def document(self, document: Mapping[str, object]) -> None:
        """Write one JSON document, and nothing else."""
        sys.stdout.write(json.dumps(document, indent=2, allow_nan=False) + "\n")

    def print(self, text: str = "", style: str = "") -> None:
        """Write a line of the answer, or several."""
        self.out.print(Text(text, style), soft_wrap=True)

    def tell(self, text: str, style: str = "") -> None:
        """Write a line that is no part of the answer."""
        self.err.print(Text(text, style), soft_wrap=True)

    def table(
        self,
        headers: Sequence[str],
        rows: Iterable[Sequence[str | Text]],
        right: Iterable[str] = (),
    ) -> None:
        """Write a table: what is too long for a terminal is folded, for a pipe it stays.

        Args:
            headers: The columns' names; none if all are empty.
            rows: A text for each column.
            right: The columns that are aligned to the right.
        """
        numbers = set(right)
        if self.out.is_terminal:
            named = any(headers)
            table = Table(box=None, show_header=named, header_style="bold", pad_edge=False)
            for name in headers:
                table.add_column(name, overflow="fold")
                if name in numbers:
                    table.columns[-1].justify = "right"
            for row in rows:
                table.add_row(*(c if isinstance(c, Text) else Text(line(c)) for c in row))
            self.out.print(table)
            return
        plain = [[line(str(cell)) for cell in row] for row in rows]
        lines = [list(headers), *plain] if any(headers) else plain
        for text in _columns(lines, [name in numbers for name in headers]):
            self.print(text)


def _columns(rows: Sequence[Sequence[str]], right: Sequence[bool]) -> Iterable[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.rjust(width) if to_the_right else cell.ljust(width)
            for cell, width, to_the_right in zip(row, widths, right, strict=True)
        ]
        yield "  ".join(cells).rstrip()


def _console(stream: IO[str]) -> Console:
    if isinstance(stream, io.TextIOWrapper):  # whatever the terminal can show
        stream.reconfigure(errors="backslashreplace")
    is_plain = (
        not stream.isatty()
        or bool(os.environ.get("NO_COLOR"))
        or os.environ.get("TERM") == "dumb"
    )
    if is_plain:
        return _Console(
            file=stream,
            force_terminal=False,
            color_system=None,
            width=_WIDE,
            highlight=False,
            emoji=False,
            markup=False,
        )
    return _Console(file=stream, highlight=False, emoji=False, markup=False)
