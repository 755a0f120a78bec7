"""Compile a dozen kernels at once, load them, run them, and start again warm.

Runs on the first CUDA device, else on the CPU, from the same CUDA C++ source::

    python examples/quickstart.py [cpu | cuda:0]
"""

from __future__ import annotations

import asyncio
import importlib
import sys
import tempfile
import time
from typing import Any

import numpy as np

from kernels_async import Artifact, Kernel, Kernels, Pending, Source, Specialization

ROWS = Source(
    name="rows.cu",
    text=r"""
struct Sum { template <class T> static __device__ T of(T a, T b) { return a + b; } };
struct Max { template <class T> static __device__ T of(T a, T b) { return max(a, b); } };

// Combines one value of each thread of a block; every thread gets the result.
template <class Op, class T, int BLOCK>
__device__ T block_reduce(T value) {
    __shared__ T partial[BLOCK / 32];
    for (int step = 16; step > 0; step /= 2)
        value = Op::of(value, __shfl_down_sync(0xffffffff, value, step));
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
    __syncthreads();
    T total = partial[0];
    for (int warp = 1; warp < BLOCK / 32; ++warp) total = Op::of(total, partial[warp]);
    __syncthreads();
    return total;
}

// One block a row: y = exp(x - max(x)) / sum(exp(x - max(x)))
template <class T, int BLOCK>
__global__ void softmax(const T* x, T* y, int columns) {
    const T* in = x + (size_t)blockIdx.x * columns;
    T* out = y + (size_t)blockIdx.x * columns;
    T most = in[0];
    for (int i = threadIdx.x; i < columns; i += BLOCK) most = Max::of(most, in[i]);
    most = block_reduce<Max, T, BLOCK>(most);
    T sum = 0;
    for (int i = threadIdx.x; i < columns; i += BLOCK) sum += exp(in[i] - most);
    sum = block_reduce<Sum, T, BLOCK>(sum);
    for (int i = threadIdx.x; i < columns; i += BLOCK) out[i] = exp(in[i] - most) / sum;
}

// One block a row: y = (x - mean(x)) / sqrt(var(x) + epsilon)
template <class T, int BLOCK>
__global__ void layer_norm(const T* x, T* y, int columns) {
    const T* in = x + (size_t)blockIdx.x * columns;
    T* out = y + (size_t)blockIdx.x * columns;
    T sum = 0;
    for (int i = threadIdx.x; i < columns; i += BLOCK) sum += in[i];
    T mean = block_reduce<Sum, T, BLOCK>(sum) / columns;
    T squares = 0;
    for (int i = threadIdx.x; i < columns; i += BLOCK)
        squares += (in[i] - mean) * (in[i] - mean);
    T scale = rsqrt(block_reduce<Sum, T, BLOCK>(squares) / columns + T(EPSILON));
    for (int i = threadIdx.x; i < columns; i += BLOCK) out[i] = (in[i] - mean) * scale;
}
""",
)

MATMUL = Source(
    name="matmul.cu",
    text=r"""
// C = A B, all n x n and row-major; one TILE x TILE block a tile of C.
template <class T, int TILE>
__global__ void matmul(const T* a, const T* b, T* c, int n) {
    __shared__ T left[TILE][TILE], right[TILE][TILE + 1];
    int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
    T sum = 0;
    for (int k = 0; k < n; k += TILE) {
        int x = k + threadIdx.x, y = k + threadIdx.y;
        left[threadIdx.y][threadIdx.x] = row < n && x < n ? a[row * n + x] : T(0);
        right[threadIdx.y][threadIdx.x] = y < n && column < n ? b[y * n + column] : T(0);
        __syncthreads();
        for (int i = 0; i < TILE; ++i) sum += left[threadIdx.y][i] * right[i][threadIdx.x];
        __syncthreads();
    }
    if (row < n && column < n) c[row * n + column] = sum;
}
""",
)

SHAPE = (64, 1000)
SIDE = 100
EPSILON = 1e-5
TYPES = {"float": np.float32, "double": np.float64}
Call = tuple[str, str, int]
CALLS: list[Call] = [
    *(
        (name, t, n)
        for name in ("softmax", "layer_norm")
        for t in TYPES
        for n in (128, 256)
    ),
    *(("matmul", t, tile) for t in TYPES for tile in (8, 16)),
]


def specialize(call: Call) -> tuple[Source, Specialization]:
    """The source and specialization of one of the calls."""
    name, type_name, size = call
    symbol = f"{name}<{type_name}, {size}>"
    if name == "matmul":
        return MATMUL, Specialization(symbol)
    return ROWS, Specialization(symbol, defines={"EPSILON": EPSILON})


def print_table(artifacts: list[Artifact]) -> None:
    """What the compiler said of each kernel."""
    print(
        f"\n{'kernel':26}{'from':>9}{'seconds':>9}{'registers':>11}{'spills':>8}  warnings"
    )
    for artifact in sorted(artifacts, key=lambda a: a.symbol):
        used = artifact.resources
        registers = str(used.registers) if used else "-"
        spills = str(used.spill_stores + used.spill_loads) if used else "-"
        print(
            f"{artifact.symbol:26}{artifact.origin:>9}{artifact.compile_seconds:9.2f}"
            f"{registers:>11}{spills:>8}  {len(artifact.warnings) or '-'}"
        )


def run(call: Call, kernel: Kernel) -> float:
    """Run one kernel on real data; its largest difference from NumPy."""
    xp: Any = np if kernel.device == "cpu" else importlib.import_module("cupy")

    name, type_name, size = call
    dtype = TYPES[type_name]
    random = np.random.default_rng(0)
    if name == "matmul":
        a, b = random.standard_normal((2, SIDE, SIDE)).astype(dtype)
        result = xp.empty((SIDE, SIDE), dtype)
        blocks = -(-SIDE // size)
        args = (xp.asarray(a), xp.asarray(b), result, np.int32(SIDE))
        kernel((blocks, blocks), (size, size), args)
        expected = a.astype(np.float64) @ b
    else:
        x = random.standard_normal(SHAPE).astype(dtype)
        result = xp.empty(SHAPE, dtype)
        kernel((SHAPE[0],), (size,), (xp.asarray(x), result, np.int32(SHAPE[1])))
        y = x.astype(np.float64)
        if name == "softmax":
            powers = np.exp(y - y.max(1, keepdims=True))
            expected = powers / powers.sum(1, keepdims=True)
        else:
            centred = y - y.mean(1, keepdims=True)
            expected = centred / np.sqrt(y.var(1, keepdims=True) + EPSILON)
    found = result if kernel.device == "cpu" else result.get()
    return float(np.abs(found - expected).max())


async def start(device: str | None, cache_dir: str) -> None:
    """Open a cache, build every kernel in one batch, run each, and ask again."""
    seen: list[Artifact] = []
    async with Kernels.open(device, cache_dir=cache_dir) as kernels:
        kernels.reporting(seen.append)
        pendings: dict[Call, Pending] = {
            call: kernels.request(*specialize(call)) for call in CALLS
        }
        began = time.perf_counter()
        await asyncio.gather(*pendings.values())
        print(f"{kernels}: all in {time.perf_counter() - began:.3f} s", end="")
        print_table(seen)

        for call, pending in pendings.items():
            error = await asyncio.to_thread(run, call, await pending)
            limit = 1e-3 if call[1] == "float" else 1e-9
            if not error < limit:
                raise SystemExit(f"{call} is off by {error}")
        print(f"every result agrees with NumPy ({len(pendings)} kernels)")

        source, specialization = specialize(CALLS[0])
        began = time.perf_counter()
        for _ in range(1000):
            await kernels.get(source, specialization)
        print(f"a memory hit takes {(time.perf_counter() - began) * 1e3:.2f} µs\n")


async def main() -> None:
    """Once cold, once warm."""
    device = sys.argv[1] if len(sys.argv) > 1 else None
    with tempfile.TemporaryDirectory(prefix="quickstart-") as cache_dir:
        print("cold start: every kernel is compiled")
        await start(device, cache_dir)
        print("warm start: every kernel is read from disk")
        await start(device, cache_dir)


if __name__ == "__main__":
    asyncio.run(main())
