"""The kernels that the benchmarks compile: small ones, and specializations of CUB.

A request is a pair of texts: the source and the symbol.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

from _peers import OPTIONS, make_context

from kernels_async import Artifact, Compiler, Kernels, Specialization

Request = tuple[str, str]

CUB = """
#include <cub/block/block_reduce.cuh>

// The sum of each block's values.
template <class T, int BLOCK, int ITEMS>
__global__ void sums(const T* in, T* out) {
    using Reduce = cub::BlockReduce<T, BLOCK>;
    __shared__ typename Reduce::TempStorage shared;
    T values[ITEMS];
    for (int item = 0; item < ITEMS; ++item)
        values[item] = in[((size_t)blockIdx.x * ITEMS + item) * BLOCK + threadIdx.x];
    T sum = Reduce(shared).Sum(values);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}
"""

_SMALL = (
    """
template <class T> __global__ void axpy(const T* x, T* y, T a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + T(NUMBER) * y[i];
}
""",
    """
template <class T> __global__ void gelu(const T* x, T* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = T(0.5) * x[i] * (T(1) + tanh(x[i] + T(NUMBER) * x[i] * x[i] * x[i]));
}
""",
    """
template <class T> __global__ void total(const T* x, T* y, int n) {
    __shared__ T partial[256];
    T sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[i] * T(NUMBER);
    partial[threadIdx.x] = sum;
    for (int step = blockDim.x / 2; step > 0; step /= 2) {
        __syncthreads();
        if (threadIdx.x < step) partial[threadIdx.x] += partial[threadIdx.x + step];
    }
    if (threadIdx.x == 0) *y = partial[0];
}
""",
    """
template <class T> __global__ void turned(const T* x, T* y, int n) {
    __shared__ T tile[16][17];
    int column = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
    if (row < n && column < n) tile[threadIdx.y][threadIdx.x] = x[row * n + column];
    __syncthreads();
    column = blockIdx.y * 16 + threadIdx.x, row = blockIdx.x * 16 + threadIdx.y;
    if (row < n && column < n)
        y[row * n + column] = tile[threadIdx.x][threadIdx.y] + T(NUMBER);
}
""",
)
_NAMES = ("axpy", "gelu", "total", "turned")


def cub(count: int) -> list[Request]:
    """So many specializations of one CUB source, 32 at most."""
    types = ("float", "double", "int", "unsigned long long")
    sizes = itertools.product((64, 128, 256, 512), (2, 4))
    symbols = [
        f"sums<{type_name}, {block}, {items}>"
        for (block, items), type_name in itertools.product(sizes, types)
    ]
    return [(CUB, symbol) for symbol in symbols[:count]]


def small(count: int, first: int = 1) -> list[Request]:
    """So many different sources of a few lines; distinct ones for distinct numbers."""
    return [
        (_SMALL[n % 4].replace("NUMBER", str(n)), f"{_NAMES[n % 4]}<float>")
        for n in range(first, first + count)
    ]


def heavy(count: int, quick: bool) -> list[Request]:
    """The CUB source's specializations; small sources where a run is to be quick."""
    return small(count) if quick else cub(count)


def specialized(requests: list[Request]) -> list[tuple[str, Specialization]]:
    """The requests as this library takes them, with everyone's options."""
    return [(text, Specialization(symbol, options=OPTIONS)) for text, symbol in requests]


async def artifacts(compiler: Compiler, requests: list[Request]) -> list[Artifact]:
    """The artifacts of one `compile_all`; the first failure is raised."""
    outcomes = await compiler.compile_all(specialized(requests))
    return [_made(outcome) for outcome in outcomes]


def _made(outcome: Artifact | Exception) -> Artifact:
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


async def loaded(
    requests: list[Request], device: str, opening: bool, settings: dict[str, Any]
) -> float:
    """Seconds until every kernel is loaded, compiled or not.

    Args:
        requests: The kernels.
        device: Such as `"cuda:0"`, whose context is there before the clock starts.
        opening: Whether opening counts.
        settings: The compiler's.
    """
    if device != "cpu":
        make_context()
    began = time.perf_counter()
    async with Kernels.open(device, **settings) as kernels:
        if not opening:
            began = time.perf_counter()
        pendings = [kernels.request(*request) for request in specialized(requests)]
        await asyncio.gather(*pendings)
        return time.perf_counter() - began
