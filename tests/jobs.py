"""Jobs for a toolchain that runs in the test's own process."""

from __future__ import annotations

from typing import Any

from kernels_async import Source, Specialization
from kernels_async.toolchains import Job


def job(text: str, symbol: str, **more: Any) -> Job:
    """A job for sm_90; `headers` are the source's, the rest the specialization's."""
    source = Source(text, more.pop("headers", {}))
    return Job(source, Specialization(symbol, **more), "sm_90")
