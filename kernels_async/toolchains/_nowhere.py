"""A current folder that is empty, stays so and has no path."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from functools import cache


@contextlib.contextmanager
def nowhere() -> Iterator[None]:
    """Have a removed folder as the current one: no file is found in it or made.

    A compiler looks there for headers and writes its path into debug information.
    """
    before = os.open(".", os.O_PATH | os.O_DIRECTORY)
    try:
        os.fchdir(_removed_folder())
        yield
    finally:
        os.fchdir(before)
        os.close(before)


@cache
def _removed_folder() -> int:
    """One made in the current folder: to look for another takes a disk with room."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
