"""What a memory hit costs, against an `async def` that returns a dictionary look-up.

Excludes compiling and loading: every kernel is loaded before the clock starts. Times are
the least of several rounds; the ratios, not the times, are what to compare between machines::

    python benchmarks/hit.py [cpu | cuda:0] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Awaitable, Callable

from kernels_async import Kernels, Source, Specialization

CALLS, ROUNDS = 20_000, 7
TEXT = "template <int N> __global__ void add(int* p) { p[threadIdx.x] += N; }\n"


async def awaited(call: Callable[[], Awaitable[object]]) -> float:
    """Nanoseconds of one awaited call."""
    least = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter_ns()
        for _ in range(CALLS):
            await call()
        least = min(least, (time.perf_counter_ns() - began) / CALLS)
    return least


def called(call: Callable[[], object]) -> float:
    """Nanoseconds of one plain call."""
    least = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter_ns()
        for _ in range(CALLS):
            call()
        least = min(least, (time.perf_counter_ns() - began) / CALLS)
    return least


async def measure(device: str | None) -> list[tuple[str, float, float]]:
    """Each operation with its time and its ratio to the bare one."""
    source = Source(TEXT + "// " + "x" * 10_000)
    spec = Specialization("add<1>")
    table = {(source, spec): object()}

    async def bare() -> object:
        return table[(source, spec)]

    def make(_: int) -> tuple[Source, Specialization]:
        return source, spec

    async with Kernels.open(device) as kernels:
        await kernels.get(source, spec)
        keyed = kernels.keyed()
        await keyed.get(1, make)
        coroutine = await awaited(bare)
        look_up = called(lambda: table[(source, spec)])
        found = [
            ("bare coroutine with a dict look-up", coroutine, coroutine),
            (
                "await kernels.get(source, spec)",
                await awaited(lambda: kernels.get(source, spec)),
                coroutine,
            ),
            (
                "await keyed.get(key, make)",
                await awaited(lambda: keyed.get(1, make)),
                coroutine,
            ),
            ("bare dict look-up", look_up, look_up),
            (
                "kernels.loaded(source, spec)",
                called(lambda: kernels.loaded(source, spec)),
                look_up,
            ),
            ("keyed.loaded(key)", called(lambda: keyed.loaded(1)), look_up),
        ]
    return [(name, nanoseconds, nanoseconds / base) for name, nanoseconds, base in found]


def main() -> None:
    """Print one table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("device", nargs="?")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = asyncio.run(measure(options.device))
    if options.json:
        keys = ("operation", "nanoseconds", "ratio")
        print(json.dumps([dict(zip(keys, row, strict=True)) for row in rows]))
        return
    print(f"{'operation':38}{'ns':>8}{'ratio':>8}")
    for name, nanoseconds, ratio in rows:
        print(f"{name:38}{nanoseconds:8.0f}{ratio:8.2f}")


if __name__ == "__main__":
    main()
