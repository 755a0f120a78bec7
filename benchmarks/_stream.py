"""A steady stream of launches on a GPU, and what holds it back.

A thread launches kernels of 1.8 ms, two in flight, and times each call. Beside it the
event loop builds what has been compiled before, or CuPy does in a thread.
"""

from __future__ import annotations

import asyncio
import collections
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
from _fresh import fresh
from _peers import can_be_slim, cupy_maker, make_context
from _sources import Request, artifacts, heavy, small, specialized

from kernels_async import Kernels

SPIN = """
extern "C" __global__ void spin(unsigned long long nanoseconds) {
    unsigned long long began, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(began));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - began < nanoseconds);
}
"""
SPIN_NANOSECONDS = 1_800_000
IN_FLIGHT = 2
SETTLE_SECONDS = 0.05
AFTER_SECONDS = 0.005  # a launch or two more, where the work is short
NOTHING_SECONDS = 0.5
Work = Callable[[], Awaitable[object]]
Row = tuple[Any, ...]


def held_back(target: str, quick: bool, caches: str) -> list[Row]:
    """The launches of the stream beside each kind of work; caches are filled first."""
    count = 2 if quick else 32
    slim = fresh(can_be_slim)
    cases = {"small": small(count), "CUB": heavy(count, quick)}
    rows: list[Row] = [("1.8 ms kernels, nothing else", *fresh(beside_nothing))]
    for kind, requests in cases.items():
        beside = f"1.8 ms kernels, {count} {kind} ones"
        works: list[tuple[str, Callable[..., Any], tuple[Any, ...]]] = [
            ("read, none loaded", beside_ours, (requests, False)),
            ("loaded: kernels_async", beside_ours, (requests, True)),
            ("loaded: CuPy", beside_cupy, (requests, target)),
        ]
        if slim:
            works.insert(2, ("loaded: slim=True", beside_ours, (requests, True, True)))
        fresh(fill, requests, target, slim, caches=caches)
        for name, work, arguments in works:
            found = fresh(work, *arguments, caches=caches)
            rows.append((f"{beside} {name}", *found))
    return rows


async def fill(requests: list[Request], target: str, slim: bool) -> None:
    """Compile everything, by this library and by CuPy."""
    for how in {False, slim}:
        async with Kernels.open("cuda:0", slim=how) as kernels:
            await artifacts(kernels.compiler, requests)
    make = cupy_maker(target, on_gpu=True)
    for request in requests:
        make(*request)


async def beside_nothing() -> Row:
    """The stream alone."""
    return await _launched(lambda: asyncio.sleep(NOTHING_SECONDS))


async def beside_ours(requests: list[Request], loading: bool, slim: bool = False) -> Row:
    """The stream while this library reads artifacts, or reads and loads them."""
    make_context()
    async with Kernels.open("cuda:0", slim=slim) as kernels:
        pendings = [kernels.request(*request) for request in specialized(requests)]

        async def read() -> None:
            await artifacts(kernels.compiler, requests)

        async def load() -> None:
            await asyncio.gather(*pendings)

        return await _launched(load if loading else read)


async def beside_cupy(requests: list[Request], target: str) -> Row:
    """The stream while CuPy loads, in a thread."""
    make = cupy_maker(target, on_gpu=True)
    return await _launched(
        lambda: asyncio.to_thread(lambda: [make(*request) for request in requests])
    )


async def _launched(work: Work) -> Row:
    """Launches during the work: their number, the median, no ratio, p99 and longest."""
    import cupy

    spin = cupy.RawKernel(SPIN, "spin")
    spin.compile()
    stop = threading.Event()
    streaming = asyncio.create_task(asyncio.to_thread(_stream, spin, stop))
    try:
        await asyncio.sleep(SETTLE_SECONDS)
        began = time.perf_counter()
        await work()
        ended = time.perf_counter() + AFTER_SECONDS
        await asyncio.sleep(2 * AFTER_SECONDS)
    finally:
        stop.set()
        launches = await streaming
    took = sorted(
        1e6 * (end - start) for start, end in launches if end > began and start < ended
    )
    middle, last = took[len(took) // 2], took[len(took) * 99 // 100]
    return len(took), middle, None, last, took[-1]


def _stream(spin: Any, stop: threading.Event) -> list[tuple[float, float]]:
    """Launch one kernel after the other until it is to stop; when each call ran."""
    import cupy

    launches = []
    argument = (np.uint64(SPIN_NANOSECONDS),)
    running: collections.deque[Any] = collections.deque()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        while not stop.is_set():
            began = time.perf_counter()
            spin((1,), (1,), argument)
            launches.append((began, time.perf_counter()))
            running.append(stream.record())
            if len(running) == IN_FLIGHT:
                running.popleft().synchronize()
        stream.synchronize()
    return launches
