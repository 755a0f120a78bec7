"""How late a 1 ms ticker is in the event loop while a cold batch compiles.

A batch of CUB kernels is compiled on all cores meanwhile: by this library, by CuPy in
`asyncio.to_thread` and by CuPy in the loop itself. On a GPU they are loaded too. What
the machine does on its own comes first: the ticker alone, and beside as many endless
processes of the workers' priority as there are workers::

    python benchmarks/loop.py [cpu | cuda:0] [--workers N] [--json [PATH]] [--quick]
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Coroutine, Iterator
from typing import Any

from _fresh import fresh
from _peers import cupy_maker, cupy_name, make_context
from _sources import Request, artifacts, heavy, small, specialized
from _table import Options, Row, main

from kernels_async import Compiler, Kernels

TITLE = "loop: how late a 1 ms ticker is while a cold batch compiles, in milliseconds"
EXCLUDES = (
    "imports and opening; each contender has a process and empty caches of its own; a "
    "tick's lateness is what it took beyond 1 ms, also for want of a processor"
)
COLUMNS = {
    "meanwhile": "",
    "seconds": ".2f",
    "ticks": "d",
    "p50 ms": ".2f",
    "p99 ms": ".2f",
    "longest ms": ".2f",
}
TICK_SECONDS = 0.001
NICENESS = 10
BURN = f"import os; os.nice({NICENESS})\nwhile True: pass"


def measure(options: Options) -> list[Row]:
    """The machine alone, then each contender."""
    requests = heavy(3 if options.quick else 16, options.quick)
    target, workers, on_gpu = options.target, options.workers, options.on_gpu
    idle = 0.2 if options.quick else 3.0
    cupy = (requests, target, on_gpu)
    rows = [
        ("nothing", fresh(alone, idle, 0)),
        (f"{workers} endless processes at nice {NICENESS}", fresh(alone, idle, workers)),
        ("kernels_async, compiled", fresh(compiled, requests, target, workers)),
        (
            cupy_name("in asyncio.to_thread", on_gpu),
            fresh(cupy_in_threads, *cupy),
        ),
        (cupy_name("in the loop", on_gpu), fresh(cupy_in_the_loop, *cupy)),
    ]
    if on_gpu:
        late = fresh(loaded, requests, options.device, workers)
        rows.insert(3, ("kernels_async, compiled and loaded", late))
    return [(name, *_row(*found)) for name, found in rows]


def _row(seconds: float, late: list[float]) -> Row:
    late = sorted(1e3 * delay for delay in late)
    middle, last = late[len(late) // 2], late[len(late) * 99 // 100]
    return seconds, len(late), middle, last, late[-1]


Watched = tuple[float, list[float]]


async def watched(work: Coroutine[Any, Any, Any]) -> Watched:
    """Seconds that `work` takes, and how late each tick was meanwhile."""
    late: list[float] = []

    async def tick() -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(TICK_SECONDS)
            late.append(time.perf_counter() - began - TICK_SECONDS)

    ticker = asyncio.create_task(tick())
    await asyncio.sleep(0)
    began = time.perf_counter()
    await work
    seconds = time.perf_counter() - began
    await asyncio.sleep(2 * TICK_SECONDS)  # the tick that was late to the end
    ticker.cancel()
    return seconds, late


async def alone(seconds: float, burners: int) -> Watched:
    """The ticker beside so many endless processes."""
    with burning(burners):
        return await watched(asyncio.sleep(seconds))


@contextlib.contextmanager
def burning(count: int) -> Iterator[None]:
    """So many processes that keep a processor busy."""
    processes = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


async def compiled(requests: list[Request], target: str, workers: int) -> Watched:
    """This library's compiler; nothing is loaded."""
    async with Compiler(target, workers=workers) as compiler:
        return await watched(artifacts(compiler, requests))


async def loaded(requests: list[Request], device: str, workers: int) -> Watched:
    """This library, compiling and loading."""
    make_context()
    async with Kernels.open(device, workers=workers) as kernels:
        for request in specialized(requests):
            kernels.request(*request)
        return await watched(kernels.build())


async def cupy_in_threads(requests: list[Request], target: str, on_gpu: bool) -> Watched:
    """CuPy in the loop's own threads, all kernels at once."""
    make = _ready(target, on_gpu)

    async def work() -> None:
        await asyncio.gather(*(asyncio.to_thread(make, *request) for request in requests))

    return await watched(work())


async def cupy_in_the_loop(requests: list[Request], target: str, on_gpu: bool) -> Watched:
    """CuPy as a coroutine calls it that knows no better; others run after each kernel."""
    make = _ready(target, on_gpu)

    async def work() -> None:
        for request in requests:
            make(*request)
            await asyncio.sleep(TICK_SECONDS)

    return await watched(work())


def _ready(target: str, on_gpu: bool) -> Any:
    """CuPy, imported, with NVRTC loaded."""
    make = cupy_maker(target, on_gpu)
    make(*small(1, first=1_000)[0])
    return make


if __name__ == "__main__":
    main(__doc__, TITLE, EXCLUDES, COLUMNS, measure)
