"""A cold batch: many kernels that nobody has compiled before, on all cores.

32 specializations of one CUB source, then 64 different small sources. On a GPU this
library and CuPy also load what they compiled; without one everybody compiles for sm_90.
Each contender runs in a process of its own with empty caches, after one compile of each
kind has put libraries and headers into the page cache. The ideal is the sum of the
compile times that the workers measured, divided by their number::

    python benchmarks/batch.py [cpu | cuda:0] [--workers N] [--json [PATH]] [--quick]
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

from _fresh import fresh
from _peers import (
    can_be_slim,
    compile_plain,
    cupy_maker,
    cupy_name,
    load_nvrtc,
    nvrtc_options,
    toolchain,
)
from _sources import Request, artifacts, cub, loaded, small
from _table import Options, Row, main

from kernels_async import Compiler

TITLE = "batch: seconds for a cold batch of kernels"
EXCLUDES = (
    "imports, the device's context, reading libraries and headers from disk for the first "
    "time (everybody finds them in the page cache); includes starting workers, except "
    "where they are started already, and writing caches where there is one. CuPy reads "
    "the CCCL that it bundles, the others the toolkit's"
)
COLUMNS = {
    "batch": "",
    "contender": "",
    "seconds": ".2f",
    "to ours": ".2f",
    "to ideal": ".2f",
}


def measure(options: Options) -> list[Row]:
    """The rows of both batches."""
    if options.quick:
        return _rows(small(2), "small sources", options)
    fresh(warm, cub(1), options.target)
    return [
        *_rows(cub(32), "of one CUB source", options),
        *_rows(small(64), "small sources", options),
    ]


def _rows(requests: list[Request], kind: str, options: Options) -> list[Row]:
    name = f"{len(requests)} {kind}"
    return [(name, *row) for row in race(requests, options)]


def race(requests: list[Request], options: Options) -> list[Row]:
    """One batch, by everybody; the first row is ours, to which the others compare."""
    target, workers, on_gpu = options.target, options.workers, options.on_gpu
    ours, spent = fresh(compiled, requests, target, workers, False)
    started, _ = fresh(compiled, requests, target, workers, True)
    rows = [
        ("kernels_async, compiled", ours),
        ("kernels_async, compiled, workers started", started),
        (
            cupy_name("one after the other", on_gpu),
            fresh(by_cupy, requests, target, on_gpu),
        ),
        ("NVRTC in threads", fresh(by_threads, requests, target, workers)),
        ("NVRTC in a ProcessPoolExecutor", fresh(by_processes, requests, target, workers)),
    ]
    if fresh(can_be_slim):
        slim, _ = fresh(compiled, requests, target, workers, True, True)
        rows.insert(2, ("kernels_async, slim, workers started", slim))
    if on_gpu:
        ours = fresh(loaded, requests, options.device, False, {"workers": workers})
        rows.insert(0, ("kernels_async, compiled and loaded", ours))
    ideal = spent / workers
    rows.append(("ideal: compile time / workers", ideal))
    return [(name, took, took / ours, took / ideal) for name, took in rows]


def warm(requests: list[Request], target: str) -> None:
    """Read what a compile reads, that of CuPy too, which has its own headers."""
    for text, symbol in requests:
        compile_plain(text, symbol, nvrtc_options(target))
        cupy_maker(target, False)(text, symbol)


async def compiled(
    requests: list[Request], target: str, workers: int, started: bool, slim: bool = False
) -> tuple[float, float]:
    """Seconds of this library's compiler, and the sum of its workers' compile times."""
    async with Compiler(target, workers=workers, slim=slim) as compiler:
        if started:
            await artifacts(compiler, small(workers, first=1_000))
        began = time.perf_counter()
        made = await artifacts(compiler, requests)
        took = time.perf_counter() - began
    return took, sum(artifact.compile_seconds for artifact in made)


def by_cupy(requests: list[Request], target: str, on_gpu: bool) -> float:
    """Seconds of CuPy, one kernel after the other, as its users have it."""
    make = cupy_maker(target, on_gpu)
    return timed(lambda: [make(*request) for request in requests])


def by_threads(requests: list[Request], target: str, workers: int) -> float:
    """Seconds of NVRTC in as many threads as there are workers."""
    options = nvrtc_options(target)
    load_nvrtc(toolchain()["library"])
    return timed(lambda: _in_pool(ThreadPoolExecutor(workers), requests, options))


def by_processes(requests: list[Request], target: str, workers: int) -> float:
    """Seconds of NVRTC in as many processes; `spawn`, as a server that uses CUDA must."""
    options, library = nvrtc_options(target), toolchain()["library"]

    def work() -> None:
        pool = ProcessPoolExecutor(workers, get_context("spawn"), load_nvrtc, (library,))
        _in_pool(pool, requests, options)

    return timed(work)


def _in_pool(pool: Executor, requests: list[Request], options: list[str]) -> None:
    with pool:
        jobs = [pool.submit(compile_plain, *request, options) for request in requests]
        for job in jobs:
            job.result()


def timed(work: Callable[[], object]) -> float:
    """Seconds that it takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    main(__doc__, TITLE, EXCLUDES, COLUMNS, measure)
