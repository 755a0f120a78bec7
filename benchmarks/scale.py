"""Whether the time per request stays the same from ten to ten thousand of them.

Requests: so many are outstanding at once, each another artifact, and all are awaited. The
artifacts lie in the cache already: one tiny kernel, compiled once and published under as
many keys, so that they share one load, and what is left is this library's own work and
the disk. Waiters: so many tasks wait for one artifact. Both begin with an empty cache of
loaded kernels each time::

    python benchmarks/scale.py [cpu | cuda:0] [--json [PATH]] [--quick]
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from _fresh import fresh
from _table import Options, Row, main

from kernels_async import Artifact, Compiler, Kernels, Source, Specialization
from kernels_async._artifact import Output
from kernels_async._store import Store

TITLE = "scale: microseconds per request and per waiter"
EXCLUDES = (
    "compiling; loading, but for one small kernel each time; the cache directory is in "
    "memory where there is /dev/shm. The least of several rounds"
)
COLUMNS = {
    "what": "",
    "count": "d",
    "ms": ".2f",
    "us each": ".1f",
    "us one more": ".1f",
    "to the least": ".2f",
}
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where it is, it is a file system in memory
SOURCE = Source("template <int N> __global__ void add(int* p) { p[threadIdx.x] += N; }\n")
REQUESTS, WAITERS = "outstanding requests", "waiters of one kernel"
Work = Callable[[Kernels, list[Specialization]], Awaitable[None]]


def measure(options: Options) -> list[Row]:
    """A row for each number of requests and of waiters."""
    sizes = (10, 100) if options.quick else (10, 100, 1_000, 10_000)
    rounds = 1 if options.quick else 50
    where = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="benchmark-", dir=where) as caches:
        found = fresh(times, options.device, sizes, rounds, caches=caches)
    return [row for name, seconds in found.items() for row in _rows(name, seconds)]


def _rows(name: str, seconds: dict[str, float]) -> list[Row]:
    """Of one kind; one more costs what the larger number took more than the smaller."""
    counts = [int(count) for count in seconds]
    took = list(seconds.values())
    each = [1e6 * t / n for t, n in zip(took, counts, strict=True)]
    more = [None] + [
        1e6 * (took[i] - took[i - 1]) / (counts[i] - counts[i - 1])
        for i in range(1, len(took))
    ]
    return [
        (name, count, 1e3 * t, one, another, one / min(each))
        for count, t, one, another in zip(counts, took, each, more, strict=True)
    ]


async def times(device: str, sizes: list[int], rounds: int) -> dict[str, dict[int, float]]:
    """Seconds for each number of requests, and of waiters from one on."""
    async with Kernels.open(device) as kernels:
        compiler = kernels.compiler
        await asyncio.to_thread(publish, compiler, await template(compiler), max(sizes))

        async def least(work: Work, count: int) -> float:
            """The fastest round's; few are needed where each is long."""
            tries = max(min(rounds, 3), min(rounds, 2_000 // count))
            return min([await once(compiler, device, work, count) for _ in range(tries)])

        return {
            REQUESTS: {count: await least(requests, count) for count in sizes},
            WAITERS: {count: await least(waiters, count) for count in (1, *sizes)},
        }


def spec(number: int) -> Specialization:
    """The specialization of one of the keys."""
    return Specialization("add<1>", defines={"KEY": number})


async def template(compiler: Compiler) -> Artifact:
    """The artifact that all keys have."""
    return await compiler.compile(SOURCE, spec(0))


def publish(compiler: Compiler, made: Artifact, count: int) -> None:
    """Put copies of an artifact into the cache, under the keys of that many requests."""
    store = Store(made.path.parents[3], made.path.name)
    output = Output(
        made.bytes, made.entry, made.diagnostics, made.resources, made.compile_seconds
    )
    for number in range(1, count + 1):
        entries = compiler.entries(SOURCE, spec(number))
        store.publish(compiler.key(SOURCE, spec(number)), entries, output)


async def once(compiler: Compiler, device: str, work: Work, count: int) -> float:
    """Seconds of the work in an empty cache."""
    wanted = [spec(number) for number in range(1, count + 1)]
    async with Kernels(compiler, device) as kernels:
        began = time.perf_counter()
        await work(kernels, wanted)
        return time.perf_counter() - began


async def requests(kernels: Kernels, wanted: list[Specialization]) -> None:
    """All are requested and then awaited together."""
    await asyncio.gather(*[kernels.request(SOURCE, one) for one in wanted])


async def waiters(kernels: Kernels, wanted: list[Specialization]) -> None:
    """As many tasks get the first, which is not loaded yet."""
    await asyncio.gather(*(kernels.get(SOURCE, wanted[0]) for _ in wanted))


if __name__ == "__main__":
    main(__doc__, TITLE, EXCLUDES, COLUMNS, measure)
