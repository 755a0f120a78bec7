"""The page and the trace of a build: where they may be written, and how."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from .._build import Build
from .._errors import SpecificationError
from .._replacing import replacing
from ..page import is_page, is_trace, render_page, trace_build
from ._command import told

TraceFile = Annotated[
    Path | None,
    typer.Option(
        "--trace", metavar="FILE", help="Write the timeline, for Perfetto to open."
    ),
]


def check_outputs(page: Path | None, trace: Path | None, read: Iterable[Path]) -> None:
    """Refuse files that cannot be written, or whose loss nobody asked for.

    It is asked before a build that takes long. A page may replace a page, and a trace a
    trace.

    Args:
        page: The page to write, if one is wanted.
        trace: The trace to write, if one is wanted.
        read: The files that they are made of.

    Raises:
        SpecificationError: One has no folder to be in, is read, is both, or is something
            that this program did not write.
        CannotError: One is there and cannot be read.
    """
    taken = {os.path.realpath(path): "read" for path in read}
    for file, name, is_own in ((page, "page", is_page), (trace, "trace", is_trace)):
        if file is None:
            continue
        if not file.absolute().parent.is_dir():
            raise SpecificationError(f"there is no folder {file.absolute().parent}")
        place = os.path.realpath(file)
        if place in taken:
            raise SpecificationError(
                f"{file} is {taken[place]}: name another file for the {name}"
            )
        taken[place] = f"the {name}"
        with told("read", file):
            is_free = not file.exists() or (file.is_file() and is_own(file))
        if not is_free:
            raise SpecificationError(
                f"{file} is there, and is no {name} of kernels-async: it is not replaced"
            )


def write_report(
    build: Build, page: Path | None, trace: Path | None, before: Build | None = None
) -> None:
    """Write the page and the trace of a build, as far as they are wanted.

    Raises:
        CannotError: One of them cannot be written.
    """
    if page is not None:
        text = render_page(build, before)
        with told("write", page), replacing(page) as file:
            file.write(text.encode())
    if trace is not None:
        text = json.dumps(trace_build(build))
        with told("write", trace), replacing(trace) as file:
            file.write(text.encode())
