"""What a memory hit costs, against an `async def` that returns a dictionary look-up.

The source has 10 kB, and every kernel is loaded before the clock starts. Times are the
least of several rounds; compare the ratios between machines, not the times. CuPy's row
needs a GPU, those of Prometheus and OpenTelemetry the client libraries of the extra
`test`. A hit is counted and is no event, so whoever watches the cache costs it nothing::

    python benchmarks/hit.py [cpu | cuda:0] [--json [PATH]] [--quick]
"""

from __future__ import annotations

import functools
import time
from collections.abc import Awaitable, Callable

from _fresh import fresh
from _peers import cupy_maker
from _table import Options, Row, main

from kernels_async import Kernels, Source, Specialization

TITLE = "hit: nanoseconds to get a kernel that is loaded"
EXCLUDES = "compiling and loading; the first call, which makes the key"
COLUMNS = {"operation": "", "ns": ".0f", "ratio": ".2f", "to": ""}
CALLS, ROUNDS = 20_000, 7
TEXT = "template <int N> __global__ void add(int* p) { p[threadIdx.x] += N; }\n"
SOURCE, SYMBOL = TEXT + "// " + "x" * 10_000, "add<1>"

COROUTINE, KEY_COROUTINE = "coroutine: pairs[source, spec]", "coroutine: keys[key]"
LOOK_UP, KEY_LOOK_UP = "pairs[source, spec]", "keys[key]"
GET, LOADED = "await kernels.get(source, spec)", "kernels.loaded(source, spec)"
KEYED_GET, KEYED_LOADED = "await keyed.get(key, make)", "keyed.loaded(key)"
LISTENER, PROMETHEUS, TRACED = (
    f"{GET}, {who}" for who in ("a listener", "KernelsCollector", "OpenTelemetry's spans")
)
LRU, CUPY = "functools.lru_cache", "cupy.RawModule(...).get_function(name)"
COMPARED = (
    (COROUTINE, COROUTINE),
    (GET, COROUTINE),
    (GET, KEY_COROUTINE),
    (LISTENER, GET),
    (PROMETHEUS, GET),
    (TRACED, GET),
    (LRU, COROUTINE),
    (CUPY, COROUTINE),
    (KEY_COROUTINE, KEY_COROUTINE),
    (KEYED_GET, KEY_COROUTINE),
    (LOOK_UP, LOOK_UP),
    (LOADED, LOOK_UP),
    (KEY_LOOK_UP, KEY_LOOK_UP),
    (KEYED_LOADED, KEY_LOOK_UP),
)


def measure(options: Options) -> list[Row]:
    """Each operation, with its ratio to the bare one."""
    calls = 1_000 if options.quick else CALLS
    times = fresh(hits, options.device, calls)
    times[CUPY] = fresh(cupy_hit, options.target, calls // 10) if options.on_gpu else None
    return [
        (name, times[name], times[name] and times[name] / times[base], base)
        for name, base in COMPARED
    ]


async def hits(device: str, calls: int) -> dict[str, float | None]:
    """Nanoseconds of each operation but CuPy's, side by side in one process."""
    source, spec = Source(SOURCE), Specialization(SYMBOL)
    pairs, keys = {(source, spec): object()}, {1: object()}

    async def by_pair(source: Source, spec: Specialization) -> object:
        return pairs[source, spec]

    async def by_key(key: int) -> object:
        return keys[key]

    @functools.lru_cache
    def remembered(source: Source, spec: Specialization) -> object:
        return pairs[source, spec]

    async with Kernels.open(device) as kernels:
        await kernels.get(source, spec)
        keyed = kernels.keyed()
        await keyed.get(1, lambda _: (source, spec))
        coroutines: dict[str, Callable[[], Awaitable[object]]] = {
            COROUTINE: lambda: by_pair(source, spec),
            GET: lambda: kernels.get(source, spec),
            KEY_COROUTINE: lambda: by_key(1),
            KEYED_GET: lambda: keyed.get(1, _never),
        }
        functions: dict[str, Callable[[], object]] = {
            LRU: lambda: remembered(source, spec),
            LOOK_UP: lambda: pairs[source, spec],
            LOADED: lambda: kernels.loaded(source, spec),
            KEY_LOOK_UP: lambda: keys[1],
            KEYED_LOADED: lambda: keyed.loaded(1),
        }
        return {
            **{name: await awaited(call, calls) for name, call in coroutines.items()},
            **{
                name: await watched(kernels, watch, coroutines[GET], calls)
                for name, watch in WATCHERS.items()
            },
            **{name: called(call, calls) for name, call in functions.items()},
        }


def _never(_: int) -> tuple[Source, Specialization]:
    raise AssertionError("a hit makes no specialization")


def _listen(kernels: Kernels) -> Callable[[], None]:
    return kernels.listen(lambda _: None)


def _collect(kernels: Kernels) -> Callable[[], None]:
    from prometheus_client import CollectorRegistry

    from kernels_async.adapters.prometheus import KernelsCollector

    collector = KernelsCollector(kernels)
    CollectorRegistry().register(collector)
    return functools.partial(collector.remove, kernels)


def _trace(kernels: Kernels) -> Callable[[], None]:
    from opentelemetry.sdk.trace import TracerProvider

    from kernels_async.adapters.opentelemetry import trace

    return trace(kernels, TracerProvider())


WATCHERS = {LISTENER: _listen, PROMETHEUS: _collect, TRACED: _trace}


async def watched(
    kernels: Kernels,
    watch: Callable[[Kernels], Callable[[], None]],
    call: Callable[[], Awaitable[object]],
    calls: int,
) -> float | None:
    """Nanoseconds of a call while somebody watches; `None` without their library."""
    try:
        stop = watch(kernels)
    except ImportError:
        return None
    try:
        return await awaited(call, calls)
    finally:
        stop()


def cupy_hit(target: str, calls: int) -> float:
    """Nanoseconds of the same with CuPy, which keeps modules by their arguments."""
    make = cupy_maker(target, on_gpu=True)
    make(SOURCE, SYMBOL)
    return called(lambda: make(SOURCE, SYMBOL), calls)


async def awaited(call: Callable[[], Awaitable[object]], calls: int) -> float:
    """Nanoseconds of one awaited call."""
    least = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter_ns()
        for _ in range(calls):
            await call()
        least = min(least, (time.perf_counter_ns() - began) / calls)
    return least


def called(call: Callable[[], object], calls: int) -> float:
    """Nanoseconds of one plain call."""
    least = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter_ns()
        for _ in range(calls):
            call()
        least = min(least, (time.perf_counter_ns() - began) / calls)
    return least


if __name__ == "__main__":
    main(__doc__, TITLE, EXCLUDES, COLUMNS, measure)
