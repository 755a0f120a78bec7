"""Checks of the machine, or the container: what a pool of workers may take."""

from __future__ import annotations

import os
import platform
import resource
import sys
from collections.abc import Iterator

from .._machine import (
    WORKER_BYTES,
    available_memory,
    default_memory,
    default_workers,
    processors,
)
from ._findings import Check, Finding, ok, problem, warning
from ._words import count, own_version, size

_LEAST_FILES = 1024
_LEAST_ADDRESSES = 16 << 30
_MACHINES = ("x86_64", "aarch64")


def checks() -> list[Check]:
    """Those of the machine."""
    return [
        Check("versions", _versions),
        Check("workers", _workers),
        Check("limits", _limits),
    ]


def _versions() -> Iterator[Finding]:
    system, machine = platform.system(), platform.machine()
    text = (
        f"kernels_async {own_version()}, Python {platform.python_version()} at "
        f"{sys.executable}, {system} {platform.release()} {machine}"
    )
    if system == "Linux" and machine in _MACHINES:
        yield ok("versions", text)
    else:
        yield problem("versions", f"{text}: Linux on {' or '.join(_MACHINES)} is needed")


def _workers() -> Iterator[Finding]:
    cores, memory, workers = processors(), available_memory(), default_workers()
    installed = os.cpu_count() or cores
    of = f" of {installed}" if cores < installed else ""
    text = (
        f"{count(workers, 'compile')} at once, of {size(default_memory())} each at most: "
        f"{count(cores, 'processor')}{of}, {size(memory)} of memory available"
    )
    if memory < WORKER_BYTES:
        text = f"{text}: large compiles may be killed"
        yield warning("workers", text, "give it more memory")
    elif workers < cores:
        yield warning("workers", f"{text}: for want of memory", "give it more memory")
    else:
        yield ok("workers", text)


def _limits() -> Iterator[Finding]:
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= files < _LEAST_FILES:
        can = most == resource.RLIM_INFINITY or most >= _LEAST_FILES
        remedy = (
            f"ulimit -n {_LEAST_FILES}" if can else "raise the hard limit of open files"
        )
        yield warning("open files", f"at most {files}: each worker takes some", remedy)
    else:
        yield ok("open files", f"at most {'any number' if files < 0 else files}")
    addresses, _ = resource.getrlimit(resource.RLIMIT_AS)
    if 0 <= addresses < _LEAST_ADDRESSES:
        text = f"at most {size(addresses)}: compilers and CUDA reserve more than they use"
        yield warning("address space", text, "ulimit -v unlimited")
    else:
        yield ok("address space", "not limited" if addresses < 0 else size(addresses))
