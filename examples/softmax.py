"""The kernels that `server.py` serves: softmax, for one row length or for any.

Both are one template. A kernel for one row length is the faster one: the compiler unrolls
its loops. The generic one takes the length as an argument, and serves until then.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kernels_async import Kernel, Source, Specialization

Array = npt.NDArray[np.float32]

BLOCK = 128
LONGEST = 1024

SOFTMAX = Source(
    name="softmax.cu",
    text=r"""
struct Sum { static __device__ float of(float a, float b) { return a + b; } };
struct Max { static __device__ float of(float a, float b) { return fmaxf(a, b); } };

// Combines one value of each thread of a block; every thread gets the result.
template <class Op>
__device__ float combine(float value) {
    __shared__ float partial[BLOCK];
    const int i = threadIdx.x;
    partial[i] = value;
    __syncthreads();
    for (int step = BLOCK / 2; step > 0; step /= 2) {
        if (i < step) partial[i] = Op::of(partial[i], partial[i + step]);
        __syncthreads();
    }
    const float total = partial[0];
    __syncthreads();
    return total;
}

// One block a row: y = exp(x - max(x)) / sum(exp(x - max(x))). With COLUMNS the compiler
// knows a row's length; if that is 0, only the caller does.
template <int COLUMNS>
__global__ void softmax(const float* x, float* y, int columns) {
    if (COLUMNS) columns = COLUMNS;
    const float* in = x + (size_t)blockIdx.x * columns;
    float* out = y + (size_t)blockIdx.x * columns;
    float most = in[0];
    for (int i = threadIdx.x; i < columns; i += BLOCK) most = fmaxf(most, in[i]);
    most = combine<Max>(most);
    float sum = 0;
    for (int i = threadIdx.x; i < columns; i += BLOCK) sum += expf(in[i] - most);
    sum = combine<Sum>(sum);
    for (int i = threadIdx.x; i < columns; i += BLOCK) out[i] = expf(in[i] - most) / sum;
}
""",
)


def special(columns: int) -> Specialization:
    """The kernel for rows of that length; it is launched as the generic one is."""
    return Specialization(f"softmax<{columns}>", {"BLOCK": BLOCK})


GENERIC = special(0)


def launch(kernel: Kernel, rows: Array) -> Array:
    """Run a kernel on rows in host memory and wait for the result: call it in a thread."""
    count, columns = rows.shape
    grid, block, length = (count,), (BLOCK,), np.int32(columns)
    if kernel.device == "cpu":
        result = np.empty_like(rows)
        kernel(grid, block, (rows, result, length))
        return result
    import cupy

    with cupy.cuda.Device(int(kernel.device.removeprefix("cuda:"))):
        on_device = cupy.empty_like(rows)
        kernel(grid, block, (cupy.asarray(rows), on_device, length))
        return np.asarray(on_device.get())
