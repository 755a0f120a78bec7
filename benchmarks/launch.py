"""What a launch costs, and how long a batch of loads holds launches back.

On a GPU: a call of a kernel, also checked and bound, against `cupy.RawKernel`; then the
launches of a steady stream of 1.8 ms kernels, while 32 kernels are loaded in the same
process, small ones and CUB ones, by this library and by CuPy, from warm disk caches. A
module load waits for running kernels, and other threads' launches wait for the load.

Without one: a call on the cpu device, also bound, against the bare call of the same library
through ctypes, its arguments prepared; and a million threads, with nine barriers each and
without.
The rest needs a GPU::

    python benchmarks/launch.py [cpu | cuda:0] [--json [PATH]] [--quick]
"""

from __future__ import annotations

import ctypes
import tempfile
import time
from collections.abc import Callable

import numpy as np
from _fresh import fresh
from _peers import make_context
from _stream import held_back
from _table import Options, Row, main

from kernels_async import Kernels
from kernels_async.devices import _cpu

TITLE = "launch: microseconds of a call, and of the launches that loads hold back"
EXCLUDES = (
    "compiling; on a GPU the run of the kernel, as calls return before; of the stream only "
    "launches that fall into the work beside it count"
)
COLUMNS = {
    "what": "",
    "calls": "d",
    "us": ".2f",
    "ratio": ".2f",
    "p99 us": ".0f",
    "longest us": ".0f",
}
ROUNDS = 7
THREADS, BLOCK = 1_000_000, 250
SOURCE = """
extern "C" __global__ void add(int* p, int n) { p[threadIdx.x] += n; }

extern "C" __global__ void scaled(float* x) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    x[i] = 0.5f * x[i] + 1.0f;
}

extern "C" __global__ void exchanged(float* x) {
    __shared__ float shared[2][BLOCK];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float value = x[i];
    for (int step = 0; step < 9; ++step) {
        shared[step % 2][threadIdx.x] = value;
        __syncthreads();
        value = 0.5f * shared[step % 2][BLOCK - 1 - threadIdx.x] + 1.0f;
    }
    x[i] = value;
}
""".replace("BLOCK", str(BLOCK))


def measure(options: Options) -> list[Row]:
    """The rows of the device."""
    calls = 50 if options.quick else 500
    if not options.on_gpu:
        threads = THREADS // 100 if options.quick else THREADS
        return [
            *_compared(fresh(cpu_calls, calls), calls),
            *fresh(many_threads, threads),
            ("against cupy.RawKernel, and beside loads: need a GPU", *[None] * 5),
        ]
    with tempfile.TemporaryDirectory(prefix="benchmark-") as caches:
        return [
            *_compared(fresh(gpu_calls, calls), calls),
            *held_back(options.target, options.quick, caches),
        ]


def _compared(found: dict[str, float], calls: int) -> list[Row]:
    """Calls of several kinds, the last of which is the bare one."""
    *_, bare = found.values()
    return [(name, calls, took, took / bare, None, None) for name, took in found.items()]


def alternately(
    kinds: dict[str, Callable[[], object]],
    calls: int,
    before: Callable[[], object] = lambda: None,
) -> dict[str, float]:
    """Microseconds of each kind of call, the least of rounds in turn.

    Args:
        kinds: What to call.
        calls: How often in each round; a GPU queues about a thousand launches, and then
            calls wait.
        before: Called before each round.
    """
    least = dict.fromkeys(kinds, float("inf"))
    for _ in range(ROUNDS):
        for name, call in kinds.items():
            before()
            began = time.perf_counter()
            for _ in range(calls):
                call()
            took = time.perf_counter() - began
            least[name] = min(least[name], 1e6 * took / calls)
    return least


async def cpu_calls(calls: int) -> dict[str, float]:
    """A call on the cpu device, and the library's function with a prepared launch."""
    numbers, one = np.zeros(1, np.int32), np.int32(1)
    async with Kernels.open("cpu") as kernels:
        add = await kernels.get(SOURCE, "add")
        entry = _cpu._Entry.in_dll(add.raw, "kernels_async_entry")
        values = (ctypes.c_void_p(numbers.ctypes.data), ctypes.c_int32(1))
        addresses = (ctypes.c_void_p * 2)(*map(ctypes.addressof, values))
        launch = _cpu._Launch(
            grid=(1, 1, 1), block=(1, 1, 1), arguments=ctypes.addressof(addresses)
        )

        def bare() -> None:
            launch.next_block = 0
            entry.run(launch)

        return alternately(
            {
                "kernel(grid, block, args), one thread": lambda: add(
                    (1,), (1,), (numbers, one)
                ),
                "bound(), one thread": add.bind((1,), (1,), (numbers, one)),
                "ctypes, the same launch prepared": bare,
            },
            calls,
        )


async def many_threads(threads: int) -> list[Row]:
    """So many threads, without barriers and with nine each."""
    numbers = np.zeros(threads, np.float32)
    rows: list[Row] = []
    async with Kernels.open("cpu") as kernels:
        for name, how in (("scaled", "no barrier"), ("exchanged", "nine barriers each")):
            kernel = await kernels.get(SOURCE, name)
            kernel((threads // BLOCK,), (BLOCK,), (numbers,))
            began = time.perf_counter()
            kernel((threads // BLOCK,), (BLOCK,), (numbers,))
            took = 1e6 * (time.perf_counter() - began)
            rows.append((f"{threads} threads, {how}", 1, took, None, None, None))
    return rows


async def gpu_calls(calls: int) -> dict[str, float]:
    """A call of a kernel, also checked and bound, and of CuPy's."""
    import cupy

    make_context()
    numbers, one = cupy.zeros(1, np.int32), np.int32(1)
    raw = cupy.RawKernel(SOURCE, "add")
    raw((1,), (1,), (numbers, one))
    async with Kernels.open("cuda:0") as kernels:
        add = await kernels.get(SOURCE, "add")
        return alternately(
            {
                "kernel(grid, block, args)": lambda: add((1,), (1,), (numbers, one)),
                "kernel(grid, block, args, checked=True)": lambda: add(
                    (1,), (1,), (numbers, one), checked=True
                ),
                "bound()": add.bind((1,), (1,), (numbers, one)),
                "cupy.RawKernel(grid, block, args)": lambda: raw(
                    (1,), (1,), (numbers, one)
                ),
            },
            calls,
            cupy.cuda.get_current_stream().synchronize,
        )


if __name__ == "__main__":
    main(__doc__, TITLE, EXCLUDES, COLUMNS, measure)
