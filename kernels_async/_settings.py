"""The arguments of a compiler."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypedDict

from ._crew import Limits
from ._errors import SpecificationError
from ._machine import LEAST_MEMORY, default_memory, default_workers
from ._sandbox import MODES, Mode


class Settings(TypedDict, total=False):
    """The keyword arguments of `Compiler`."""

    cache_dir: str | os.PathLike[str] | None
    layers: Sequence[str | os.PathLike[str]]
    max_bytes: int | None
    cache_key: bytes | str | None
    workers: int | None
    timeout: float
    memory: int | None
    sandbox: Mode
    slim: bool


def limits(
    workers: int | None, timeout: float, memory: int | None, sandbox: Mode
) -> Limits:
    """What compiles may take, of the arguments of `Compiler`.

    Raises:
        SpecificationError: One of them cannot be right.
    """
    if workers is not None and (not isinstance(workers, int) or workers < 1):
        raise SpecificationError(f"workers is a number from 1, not {workers!r}")
    if not isinstance(timeout, int | float) or not timeout > 0:
        raise SpecificationError(f"timeout is in seconds, more than 0, not {timeout!r}")
    if memory is not None and (not isinstance(memory, int) or memory < LEAST_MEMORY):
        raise SpecificationError(
            f"memory is in bytes, at least {LEAST_MEMORY}, not {memory!r}"
        )
    if sandbox not in MODES:
        raise SpecificationError(f"sandbox is one of {MODES}, not {sandbox!r}")
    return Limits(
        default_workers() if workers is None else workers,
        timeout,
        default_memory() if memory is None else memory,
        sandbox,
    )
