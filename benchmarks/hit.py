"""What a memory hit costs, against an `async def` that returns a dictionary look-up.

Excludes compiling and loading: every kernel is loaded before the clock starts. Times
are the least of several rounds; compare the ratios between machines, not the times::

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
    pairs, keys = {(source, spec): object()}, {1: object()}

    async def by_pair() -> object:
        return pairs[(source, spec)]

    async def by_key() -> object:
        return keys[1]

    def make(_: int) -> tuple[Source, Specialization]:
        return source, spec

    async with Kernels.open(device) as kernels:
        await kernels.get(source, spec)
        keyed = kernels.keyed()
        await keyed.get(1, make)
        pair, key = await awaited(by_pair), await awaited(by_key)
        look_up, key_look_up = (
            called(lambda: pairs[(source, spec)]),
            called(lambda: keys[1]),
        )
        getting = await awaited(lambda: kernels.get(source, spec))
        getting_keyed = await awaited(lambda: keyed.get(1, make))
        loaded = called(lambda: kernels.loaded(source, spec))
        loaded_keyed = called(lambda: keyed.loaded(1))
    found = [
        ("a coroutine: pairs[source, spec]", pair, pair),
        ("await kernels.get(source, spec)", getting, pair),
        ("a coroutine: keys[key]", key, key),
        ("await keyed.get(key, make)", getting_keyed, key),
        ("pairs[source, spec]", look_up, look_up),
        ("kernels.loaded(source, spec)", loaded, look_up),
        ("keys[key]", key_look_up, key_look_up),
        ("keyed.loaded(key)", loaded_keyed, key_look_up),
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
