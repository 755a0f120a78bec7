"""What it costs to begin: the import, the first answer of a worker, a worker's memory.

The first answer is that of a small kernel, from before the compiler or the pool is opened
until it is compiled. The memory is what the worker is resident with then. The peers are
worker processes with the same NVRTC. Each figure is the median of several processes::

    python benchmarks/start.py [cpu | cuda:0] [--json [PATH]] [--quick]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from _fresh import fresh
from _peers import compile_plain, load_nvrtc, nvrtc_options, toolchain
from _sources import Request, artifacts, small
from _table import Options, Row, main

from kernels_async import Compiler

TITLE = "start: import, first answer of a worker, memory of a worker"
EXCLUDES = (
    "starting Python; reading modules and libraries from disk for the first time; for the "
    "peers, finding NVRTC and the headers, which this library does while it opens"
)
COLUMNS = {
    "workers": "",
    "import ms": ".0f",
    "first answer ms": ".0f",
    "to ours": ".2f",
    "worker MB": ".0f",
}
EXECUTOR = "concurrent.futures.ProcessPoolExecutor"
TO_PROCESS = "anyio.to_process"


def measure(options: Options) -> list[Row]:
    """Each kind of worker; an answer also compares to ours."""
    tries = 1 if options.quick else 5
    (request,) = small(1)
    contenders: dict[str, tuple[str, Callable[..., Any]]] = {
        "kernels_async": ("kernels_async", ours),
        EXECUTOR: ("concurrent.futures.process", executor),
        TO_PROCESS: (TO_PROCESS, to_process),
    }
    found = {
        name: (
            statistics.median(import_seconds(module) for _ in range(tries)),
            *_medians([fresh(answer, request, options.target) for _ in range(tries)]),
        )
        for name, (module, answer) in contenders.items()
    }
    first = found["kernels_async"][1]
    return [
        (name, 1e3 * importing, 1e3 * answer, answer / first, resident / 1e6)
        for name, (importing, answer, resident) in found.items()
    ]


def _medians(found: list[tuple[float, int]]) -> tuple[float, float]:
    answers, resident = zip(*found, strict=True)
    return statistics.median(answers), statistics.median(resident)


def import_seconds(module: str) -> float:
    """What the import takes in a new process that has imported nothing else."""
    program = (
        f"import time; began = time.perf_counter(); import {module}; "
        "print(time.perf_counter() - began)"
    )
    return float(subprocess.check_output([sys.executable, "-c", program]))


async def ours(request: Request, target: str) -> tuple[float, int]:
    """Seconds to the first answer of this library, and its worker's memory."""
    began = time.perf_counter()
    async with Compiler(target, workers=1) as compiler:
        await artifacts(compiler, [request])
        seconds = time.perf_counter() - began
        (worker,) = _children()
        return seconds, resident_bytes(worker)


def executor(request: Request, target: str) -> tuple[float, int]:
    """The same of a process pool; `spawn`, as a server that uses CUDA must."""
    options, library = nvrtc_options(target), toolchain()["library"]
    began = time.perf_counter()
    with ProcessPoolExecutor(1, get_context("spawn"), load_nvrtc, (library,)) as pool:
        pool.submit(compile_plain, *request, options).result()
        seconds = time.perf_counter() - began
        return seconds, resident_bytes(pool.submit(os.getpid).result())


async def to_process(request: Request, target: str) -> tuple[float, int]:
    """The same of anyio's worker processes."""
    import anyio.to_process

    options = nvrtc_options(target)
    began = time.perf_counter()
    await anyio.to_process.run_sync(compile_plain, *request, options)
    seconds = time.perf_counter() - began
    return seconds, resident_bytes(await anyio.to_process.run_sync(os.getpid))


def _children() -> list[int]:
    """The process numbers of this process's children, whichever thread started them."""
    lists = Path("/proc/self/task").glob("*/children")
    return [int(child) for children in lists for child in children.read_text().split()]


def resident_bytes(process: int) -> int:
    """What a process is resident with, the pages that it shares included."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return 1024 * int(line.split()[1])
    raise ProcessLookupError(f"process {process} has ended")


if __name__ == "__main__":
    main(__doc__, TITLE, EXCLUDES, COLUMNS, measure)
