"""A small inference server: softmax over JSON, one kernel for each row length.

The cache opens with the server. A request for a new row length compiles its kernel while
every other request is answered::

    python examples/server.py --port 8000
    curl -s localhost:8000/softmax -d '{"rows": [[1, 2, 3], [0, 0, 0]]}'
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from kernels_async import Artifact, Kernel, Kernels, KernelsError, Source, Specialization

SOFTMAX = Source(
    name="softmax.cu",
    text=r"""
extern "C" __global__ void softmax(const float* x, float* y) {
    __shared__ float partial[BLOCK];
    const float* in = x + blockIdx.x * COLUMNS;
    float* out = y + blockIdx.x * COLUMNS;
    int i = threadIdx.x;
    float value = i < COLUMNS ? in[i] : in[0];
    partial[i] = value;
    __syncthreads();
    for (int step = BLOCK / 2; step > 0; step /= 2) {
        if (i < step) partial[i] = fmaxf(partial[i], partial[i + step]);
        __syncthreads();
    }
    float power = i < COLUMNS ? expf(value - partial[0]) : 0.0f;
    __syncthreads();
    partial[i] = power;
    __syncthreads();
    for (int step = BLOCK / 2; step > 0; step /= 2) {
        if (i < step) partial[i] += partial[i + step];
        __syncthreads();
    }
    if (i < COLUMNS) out[i] = power / partial[0];
}
""",
)
LONGEST = 1024


def block_size(columns: int) -> int:
    """The least power of two that holds a row."""
    return max(32, 1 << (columns - 1).bit_length())


def specialize(columns: int) -> tuple[Source, Specialization]:
    """The softmax kernel for rows of that length."""
    defines = {"COLUMNS": columns, "BLOCK": block_size(columns)}
    return SOFTMAX, Specialization("softmax", defines)


def launch(kernel: Kernel, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Run the kernel on rows in host memory and wait for the result."""
    shape = (rows.shape[0],), (block_size(rows.shape[1]),)
    if kernel.device == "cpu":
        result = np.empty_like(rows)
        kernel(*shape, (rows, result))
        return result
    import cupy

    with cupy.cuda.Device(int(kernel.device.removeprefix("cuda:"))):
        on_device = cupy.empty_like(rows)
        kernel(*shape, (cupy.asarray(rows), on_device))
        return np.asarray(on_device.get())


async def softmax(request: Request) -> Response:
    """Resolve the kernel for the rows' length, run it, answer."""
    try:
        rows = np.asarray((await request.json())["rows"], np.float32)
    except (KeyError, TypeError, ValueError):
        return JSONResponse({"error": 'send {"rows": [[...], ...]}'}, 400)
    if rows.ndim != 2 or not 1 <= rows.shape[1] <= LONGEST or not np.isfinite(rows).all():
        return JSONResponse({"error": f"send rows of 1 to {LONGEST} finite numbers"}, 400)
    try:
        kernel = await request.app.state.by_columns.get(rows.shape[1], specialize)
    except KernelsError as error:
        return JSONResponse({"error": str(error)}, 500)
    result = await asyncio.to_thread(launch, kernel, rows)
    return JSONResponse({"rows": result.tolist(), "device": kernel.device})


async def health(request: Request) -> Response:
    """Answers at once, whatever compiles."""
    kernels: Kernels = request.app.state.kernels
    return JSONResponse({"kernels": repr(kernels), "loaded": len(kernels)})


def report(artifact: Artifact) -> None:
    """One line for each kernel that is built."""
    print(
        f"{artifact.symbol} for {artifact.target}: {artifact.origin}, "
        f"{artifact.compile_seconds:.2f} s, {artifact.resources}",
        flush=True,
    )


def make_app(device: str | None = None, cache_dir: str | None = None) -> Starlette:
    """The application; its lifespan holds the cache open."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with Kernels.open(device, cache_dir=cache_dir) as kernels:
            app.state.kernels = kernels.reporting(report)
            app.state.by_columns = kernels.keyed()
            yield

    routes = [Route("/softmax", softmax, methods=["POST"]), Route("/health", health)]
    return Starlette(routes=routes, lifespan=lifespan)


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--device", help="'cpu' or such as 'cuda:0'")
    parser.add_argument("--cache-dir")
    options = parser.parse_args()
    app = make_app(options.device, options.cache_dir)
    print(f"serving http://127.0.0.1:{options.port}, until interrupted", flush=True)
    uvicorn.run(app, host="127.0.0.1", port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
