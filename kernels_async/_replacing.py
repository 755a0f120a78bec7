"""Files that appear at once, or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A stream whose content appears under `path` once it is whole and on the disk.

    Until then, and if writing it fails, what is there stays.
    """
    staged = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with staged.open("xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        staged.replace(path)
    finally:
        staged.unlink(missing_ok=True)
