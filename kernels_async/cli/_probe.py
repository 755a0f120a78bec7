"""The program of a probe, which `doctor` runs as a process of its own.

It does one thing that might crash or hang, and writes a JSON object as its last line::

    compile cpu [slim]    {"seconds": …, "sandbox": …}      compiles; on the CPU also runs
    devices               {"cupy": …, "driver": …, "devices": [{…}, …]}
    launch 0              {"seconds": …}                    compiles, loads and launches
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine

from .._compiler import Compiler
from .._kernels import Kernels
from .._source import Source
from ..devices._cuda import count_devices, import_cupy

_SOURCE = Source(
    'extern "C" __global__ void twice(int* x, int n) {\n'
    "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "    if (i < n) x[i] *= 2;\n"
    "}\n",
    name="probe.cu",
)
_COUNT = 100


async def _compile(target: str, *slim: str) -> dict[str, object]:
    async with Compiler(
        target, cache_dir=tempfile.mkdtemp(), workers=1, slim=bool(slim)
    ) as compiler:
        began = time.perf_counter()
        await compiler.compile(_SOURCE, "twice")
        seconds = time.perf_counter() - began
        report = {"seconds": seconds, "sandbox": compiler.sandbox}
        if target == "cpu":
            await _run_on_cpu(Kernels(compiler))
    return report


async def _run_on_cpu(kernels: Kernels) -> None:
    import numpy as np

    kernel = await kernels.get(_SOURCE, "twice")
    x = np.arange(_COUNT, dtype=np.int32)
    await asyncio.to_thread(kernel, (4,), (32,), (x, np.int32(_COUNT)))
    if x.tolist() != list(range(0, 2 * _COUNT, 2)):
        raise RuntimeError("a kernel on the CPU gave wrong numbers")


async def _devices() -> dict[str, object]:
    cupy = import_cupy()
    runtime = cupy.cuda.runtime
    devices = []
    for ordinal in range(count_devices(cupy)):
        found = runtime.getDeviceProperties(ordinal)
        devices.append(
            {
                "name": found["name"].decode(errors="replace"),
                "target": f"sm_{found['major']}{found['minor']}",
                "memory": int(found["totalGlobalMem"]),
            }
        )
    return {
        "cupy": cupy.__version__,
        "driver": _version(runtime.driverGetVersion()),
        "runtime": _version(runtime.runtimeGetVersion()),
        "devices": devices,
    }


def _version(number: int) -> list[int]:
    """CUDA's version numbers: 13020 is 13.2; none is 0.0."""
    return [number // 1000, number % 1000 // 10]


async def _launch(device: str) -> dict[str, object]:
    cupy, ordinal, folder = import_cupy(), int(device), tempfile.mkdtemp()
    async with Kernels.open(ordinal, cache_dir=folder, workers=1) as kernels:
        began = time.perf_counter()
        kernel = await kernels.get(_SOURCE, "twice")
        with cupy.cuda.Device(ordinal):
            x = cupy.arange(_COUNT, dtype=cupy.int32)
            kernel((4,), (32,), (x, cupy.int32(_COUNT)))
            right = x.get().tolist() == list(range(0, 2 * _COUNT, 2))
    if not right:
        raise RuntimeError("a kernel gave wrong numbers")
    return {"seconds": time.perf_counter() - began}


def main() -> None:
    """Do what the arguments say, and report."""
    work: dict[str, Callable[..., Coroutine[None, None, dict[str, object]]]]
    work = {"compile": _compile, "devices": _devices, "launch": _launch}
    what, *arguments = sys.argv[1:]
    try:
        report = asyncio.run(work[what](*arguments))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is reported
        report = {"error": str(error) or type(error).__name__}
    sys.stdout.write(json.dumps(report) + "\n")
