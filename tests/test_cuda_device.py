"""Tests of the cuda device; each needs an NVIDIA GPU, some need two."""

from __future__ import annotations

import asyncio
import ctypes
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels_async import (
    Artifact,
    Compiler,
    DeviceMismatchError,
    Kernel,
    Kernels,
    LoadError,
    Source,
    Specialization,
)
from kernels_async._private import copies
from tests.processes import in_child, output
from tests.test_slim import ARITHMETIC, CUB, GLOBALS

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[1]
ADD = Source("template <int N> __global__ void add(int* p) { p[threadIdx.x] += N; }\n")
SPIN = Source(
    'extern "C" __global__ void spin(long long cycles) {\n'
    "  for (long long end = clock64() + cycles; clock64() < end;) {}\n"
    "}\n"
)


@pytest.fixture(scope="session", autouse=True)
def cupy() -> Any:
    """CuPy, its context made before any test watches the loop."""
    cupy = pytest.importorskip("cupy")
    for ordinal in range(cupy.cuda.runtime.getDeviceCount()):
        with cupy.cuda.Device(ordinal):
            cupy.zeros(1).sum()
    return cupy


@pytest.fixture
async def on_gpu(cache_dir: Path) -> Any:
    """A cache on the first CUDA device."""
    async with Kernels.open("cuda:0", workers=2) as kernels:
        yield kernels


@pytest.fixture
async def slim_on_gpu(cache_dir: Path) -> Any:
    """The same, of kernels that nvJitLink made slim."""
    async with Kernels.open("cuda:0", workers=2, slim=True) as kernels:
        yield kernels


def run(cupy: Any, kernel: Kernel, stream: Any = None) -> int:
    """What the kernel adds, computed on its device."""
    with cupy.cuda.Device(int(kernel.device.removeprefix("cuda:"))):
        numbers = cupy.zeros(4, np.int32)
        cupy.cuda.get_current_stream().synchronize()
        kernel((1,), (4,), (numbers,), stream=stream)
        if stream is not None:
            stream.synchronize()
        found = numbers.get()
    assert (found == found[0]).all()
    return int(found[0])


async def test_a_batch_compiles_loads_and_runs(on_gpu: Kernels, cupy: Any) -> None:
    """The main job, on the device's own architecture."""
    seen: list[Artifact] = []
    on_gpu.reporting(seen.append)
    pendings = [on_gpu.request(ADD, f"add<{n}>") for n in range(8)]
    found = await asyncio.gather(*pendings)

    assert [run(cupy, kernel) for kernel in found] == list(range(8))
    assert len(seen) == len(on_gpu) == 8
    assert await on_gpu.get(ADD, "add<3>") is found[3]
    assert repr(on_gpu) == "<Kernels cuda:0 loaded=8 outstanding=0>"
    capability = cupy.cuda.Device(0).compute_capability
    assert {artifact.target for artifact in seen} == {f"sm_{capability}"}


@pytest.mark.parametrize("name", [None, 0, "cuda", "cuda:0"])
async def test_the_first_device_has_many_names(name: Any, cupy: Any) -> None:
    """A name, a number, a CuPy device, or nothing."""
    async with Kernels.open(name) as kernels:
        assert repr(kernels).startswith("<Kernels cuda:0 ")
    async with Kernels.open(cupy.cuda.Device(0)) as kernels:
        assert repr(kernels).startswith("<Kernels cuda:0 ")


async def test_the_drivers_numbers_are_those_of_ptxas(on_gpu: Kernels) -> None:
    """What is reported before the load is what the driver finds."""
    source = Source(
        "__constant__ float table[100];\n"
        'extern "C" __global__ void k(float* p) {\n'
        "  __shared__ float s[100];\n"
        "  float v[64];\n"
        "  s[threadIdx.x] = p[threadIdx.x] + table[threadIdx.x]; __syncthreads();\n"
        "  for (int i = 0; i < 64; i++) v[i] = p[i * 32 + threadIdx.x] + s[99 - i];\n"
        "  for (int r = 0; r < 8; r++)\n"
        "    for (int i = 0; i < 64; i++) v[i] = v[i] * v[(i * 7 + r) % 64] + v[(i + r) % 64];\n"
        "  for (int i = 0; i < 64; i++) p[i * 32 + threadIdx.x] = v[i];\n"
        "}\n"
    )
    spec = Specialization("k", options=("--maxrregcount=24",))
    kernel = await on_gpu.get(source, spec)
    resources = kernel.artifact.resources

    assert resources is not None
    assert resources.spill_stores > 0
    assert kernel.attributes["num_regs"] == resources.registers
    assert kernel.attributes["shared_size_bytes"] >= resources.shared == 400
    assert kernel.attributes["const_size_bytes"] == resources.constant == 400
    assert kernel.attributes["local_size_bytes"] >= resources.stack


@pytest.mark.parametrize("kilobytes", [0, 48, 64, 227])
async def test_large_dynamic_shared_memory_is_allowed_on_demand(
    on_gpu: Kernels, cupy: Any, kilobytes: int
) -> None:
    """CUDA asks for an opt-in above 48 KB."""
    source = Source(
        'extern "C" __global__ void k(int* p, int last) {\n'
        "  extern __shared__ int s[];\n"
        "  s[last] = 7; *p = s[last];\n"
        "}\n"
    )
    kernel = await on_gpu.get(source, "k")
    out = cupy.zeros(1, np.int32)
    size = max(kilobytes * 1024, 4)
    kernel((1,), (1,), (out, np.int32(size // 4 - 1)), shared_mem=size)

    assert out.get()[0] == 7


async def test_more_shared_memory_than_there_is_is_the_drivers_error(
    on_gpu: Kernels, cupy: Any
) -> None:
    """It is refused before the launch."""
    kernel = await on_gpu.get(ADD, "add<1>")
    with pytest.raises(cupy.cuda.driver.CUDADriverError):
        kernel((1,), (1,), (cupy.zeros(1, np.int32),), shared_mem=300 * 1024)
    assert run(cupy, kernel) == 1


async def test_globals_are_readable_and_writable(on_gpu: Kernels, cupy: Any) -> None:
    """As CuPy's memory pointers."""
    source = Source(
        "__constant__ int table[2] = {3, 4};\n"
        "namespace n { __device__ int counter; }\n"
        'extern "C" __global__ void k(int* p) { *p = table[0]; n::counter = 5; }\n'
    )
    kernel = await on_gpu.get(source, "k")
    table = cupy.ndarray((2,), np.int32, kernel.get_global("table"))
    table.set(np.array([30, 40], np.int32))
    out = cupy.zeros(1, np.int32)
    kernel((1,), (1,), (out,))

    assert out.get()[0] == 30
    counter = cupy.ndarray((1,), np.int32, kernel.get_global("_ZN1n7counterE"))
    assert counter.get()[0] == 5
    with pytest.raises(KeyError, match="nope"):
        kernel.get_global("nope")


async def test_a_slim_kernels_globals_are_those_of_the_host(
    on_gpu: Kernels, slim_on_gpu: Kernels, cupy: Any
) -> None:
    """What it sets is read and what it reads is written, as without slim."""
    values = {
        "only_the_host_sets": 7,
        "constant_of_the_host": -2,
        "internal": 1,
        "only_in_assembly": 33,
        "pointed": 60,
    }
    for kernels in (on_gpu, slim_on_gpu):
        kernel = await kernels.get(GLOBALS, "k")

        def variable(name: str, dtype: Any, kernel: Kernel = kernel) -> Any:
            return cupy.ndarray((1,), dtype, kernel.get_global(name))

        out = cupy.zeros(8, np.int32)
        kernel((1,), (1,), (out,))
        assert out.get()[:2].tolist() == [26, 27]
        assert variable("only_the_host_reads", np.int32).get()[0] == 8

        for name, value in values.items():
            variable(name, np.int32).set(np.array([value], np.int32))
        table = cupy.ndarray((100,), np.float32, kernel.get_global("table"))
        table.set(np.arange(100, dtype=np.float32) * 50)
        out.set(np.array([0] * 7 + [2], np.int32))
        kernel((1,), (1,), (out,))
        assert out.get()[:2].tolist() == [89, 87]
        assert variable("only_the_host_reads", np.int32).get()[0] == 33


@pytest.mark.parametrize(
    "options",
    [(), ("--use_fast_math",), ("--fmad=false",), ("--maxrregcount=32",)],
    ids=" ".join,
)
async def test_a_slim_kernel_gives_the_same_bits(
    on_gpu: Kernels, slim_on_gpu: Kernels, cupy: Any, options: tuple[str, ...]
) -> None:
    """Of arithmetic that rounds, with the options that round otherwise."""
    spec = Specialization("k", options=options)
    found = []
    for kernels in (on_gpu, slim_on_gpu):
        kernel = await kernels.get(ARITHMETIC, spec)
        rng = np.random.default_rng(1)
        p = cupy.asarray(rng.standard_normal(40 * 32, np.float32))
        q = cupy.asarray(rng.standard_normal(40, np.float32))
        kernel((1,), (32,), (p, q, np.int32(0)))
        found.append((p.get().tobytes(), q.get().tobytes()))
    assert found[0] == found[1]


@pytest.mark.parametrize("symbol", ["k<float, 128>", "k<int, 64>", "k<double, 256>"])
async def test_a_slim_cub_kernel_gives_the_same_bits(
    on_gpu: Kernels, slim_on_gpu: Kernels, cupy: Any, symbol: str
) -> None:
    """And the right ones."""
    name, _, size = symbol.strip("k<>").partition(", ")
    dtype = {"float": np.float32, "int": np.int32, "double": np.float64}[name]
    found = []
    for kernels in (on_gpu, slim_on_gpu):
        kernel = await kernels.get(CUB, symbol)
        numbers = np.random.default_rng(2).standard_normal((64, int(size))) * 100
        x, y = cupy.asarray(numbers.astype(dtype)), cupy.zeros(64, dtype)
        kernel((64,), (int(size),), (x, y))
        np.testing.assert_allclose(y.get(), numbers.astype(dtype).sum(1), 1e-3, 1e-2)
        found.append(y.get().tobytes())
    assert found[0] == found[1]


async def test_a_slim_kernel_loads_sooner(
    on_gpu: Kernels, slim_on_gpu: Kernels, cupy: Any
) -> None:
    """Without the variables that a toolkit's headers leave behind."""
    seconds = []
    for kernels in (on_gpu, slim_on_gpu):
        artifact = await kernels.compiler.compile(CUB, "k<float, 128>")
        loads = []
        for _ in range(5):
            module = cupy.cuda.function.Module()
            began = time.perf_counter()
            module.load(artifact.bytes)
            loads.append(time.perf_counter() - began)
        seconds.append(min(loads))
        print(f"{len(artifact.bytes)} bytes load in {1e3 * min(loads):.3f} ms")
    assert seconds[1] < seconds[0] / 2


async def test_a_launch_uses_the_stream_that_is_given(on_gpu: Kernels, cupy: Any) -> None:
    """By default CuPy's current one."""
    kernel = await on_gpu.get(ADD, "add<5>")
    stream = cupy.cuda.Stream(non_blocking=True)

    assert run(cupy, kernel, stream) == 5
    with stream:
        assert run(cupy, kernel) == 5
    assert run(cupy, await on_gpu.get(ADD, "add<6>", stream=stream), stream) == 6
    assert run(cupy, await on_gpu.get(ADD, "add<6>", stream=cupy.cuda.Stream.null)) == 6


async def test_any_thread_may_launch(on_gpu: Kernels, cupy: Any) -> None:
    """Servers run their models in threads."""
    kernel = await on_gpu.get(ADD, "add<2>")

    assert (
        await asyncio.gather(*(asyncio.to_thread(run, cupy, kernel) for _ in range(8)))
        == [2] * 8
    )


async def test_the_loop_ticks_while_a_load_waits_for_a_running_kernel(
    on_gpu: Kernels, cupy: Any
) -> None:
    """A module load waits for running kernels; the event loop must not."""
    spin = await on_gpu.get(SPIN, "spin")
    await on_gpu.compiler.compile(ADD, "add<77>")
    stream = cupy.cuda.Stream(non_blocking=True)
    spin((1,), (1,), (np.int64(1_000_000_000),), stream=stream)
    began, gaps = time.perf_counter(), []
    getting = asyncio.create_task(on_gpu.get(ADD, "add<77>"))
    while not getting.done():
        tick = time.perf_counter()
        await asyncio.sleep(0.001)
        gaps.append(time.perf_counter() - tick)
    waited = time.perf_counter() - began
    stream.synchronize()

    print(f"the load took {waited * 1e3:.1f} ms, the longest tick {max(gaps) * 1e3:.1f} ms")
    assert run(cupy, await getting) == 77
    assert max(gaps) < 0.05


async def test_a_target_with_a_suffix_has_that_targets_instructions(
    cache_dir: Path, cupy: Any
) -> None:
    """`sm_90a` on a device of compute capability 9.0."""
    target = f"sm_{cupy.cuda.Device(0).compute_capability}a"
    async with Kernels.open(0, target=target) as kernels:
        kernel = await kernels.get(ADD, "add<4>")
        assert kernel.artifact.target == target
        assert run(cupy, kernel) == 4


async def test_an_artifact_for_another_architecture_is_refused(cache_dir: Path) -> None:
    """Before anything is compiled for nothing."""
    with pytest.raises(DeviceMismatchError, match="sm_75"):
        await Kernels.open(0, target="sm_75").__aenter__()


async def test_a_file_that_is_gone_or_another_is_not_missed(
    on_gpu: Kernels, cupy: Any
) -> None:
    """What was verified is what is loaded, whatever becomes of the entry meanwhile."""

    def replace(artifact: Artifact) -> None:
        artifact.path.write_bytes(b"no cubin")

    def remove(artifact: Artifact) -> None:
        artifact.path.unlink()

    for number, change in ((8, replace), (9, remove)):
        on_gpu.reporting(change)
        assert run(cupy, await on_gpu.get(ADD, f"add<{number}>")) == number


async def test_what_is_no_image_is_a_load_error(
    on_gpu: Kernels, cupy: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The driver's error is the cause, and the next try may load."""
    (tmp_path / "file").write_bytes(b"no cubin")
    pending = on_gpu.request(ADD, "add<10>")
    with monkeypatch.context() as patched:
        patched.setattr(copies, "on_disk", lambda *_: tmp_path / "file")
        with pytest.raises(LoadError, match="cuda:0 refused 'add<10>'") as caught:
            await pending
    assert isinstance(caught.value.__cause__, cupy.cuda.driver.CUDADriverError | OSError)
    assert run(cupy, await pending) == 10


async def test_a_cache_that_is_opened_again_loads_no_second_module(
    cache_dir: Path, cupy: Any
) -> None:
    """CuPy never unloads one: a server that reopens its cache must not grow."""
    async with Kernels.open(0) as kernels:
        first: Any = await kernels.get(ADD, "add<11>")
    async with Kernels.open(0) as kernels:
        again: Any = await kernels.get(ADD, "add<11>")

    assert again is not first
    assert again.raw.kernel.ptr == first.raw.kernel.ptr


async def test_a_forked_child_is_told_and_the_parent_goes_on(
    on_gpu: Kernels, cupy: Any
) -> None:
    """CUDA does not survive a fork; the child hears of it at once, on hits too."""
    kernel = await on_gpu.get(ADD, "add<1>")
    told = await asyncio.to_thread(
        in_child,
        lambda: asyncio.run(on_gpu.get(ADD, "add<1>")),
        lambda: on_gpu.request(ADD, "add<2>"),
    )
    assert all(text.startswith("ClosedError") for text in told)
    assert run(cupy, await on_gpu.get(ADD, "add<1>")) == 1
    assert await on_gpu.get(ADD, "add<1>") is kernel
    assert run(cupy, await on_gpu.get(ADD, "add<12>")) == 12


async def test_the_quickstart_runs_on_the_gpu(child_environment: dict[str, str]) -> None:
    """The same file as on the CPU."""
    out = await output(child_environment, str(ROOT / "examples" / "quickstart.py"))

    print(out)
    assert out.count("every result agrees with NumPy (12 kernels)") == 2
    assert "<Kernels cuda:0 loaded=12 outstanding=0>" in out


@pytest.mark.gpus
async def test_devices_that_are_named_by_uuid_and_reordered_are_served(
    child_environment: dict[str, str], cache_dir: Path
) -> None:
    """The number is the process's own; the artifact is the architecture's."""
    program = (
        "import asyncio, cupy\n"
        "from kernels_async import Kernels\n"
        "async def main():\n"
        "    async with Kernels.open(0) as kernels:\n"
        f"        kernel = await kernels.get({ADD.text!r}, 'add<3>')\n"
        "        numbers = cupy.zeros(4, 'i4')\n"
        "        kernel((1,), (4,), (numbers,))\n"
        "        print(kernel.artifact.origin, kernel.device, numbers.get().tolist())\n"
        "asyncio.run(main())\n"
    )
    names = [uuid_of(ordinal) for ordinal in (0, 1)]
    told = []
    for order in (names, names[::-1]):
        visible = {"CUDA_VISIBLE_DEVICES": ",".join(order)}
        told.append(await output(child_environment | visible, "-c", program))
    assert told == [f"{origin} cuda:0 [3, 3, 3, 3]\n" for origin in ("compiled", "disk")]


def uuid_of(ordinal: int) -> str:
    """A device's name as CUDA_VISIBLE_DEVICES takes it, from the driver."""
    found = (ctypes.c_ubyte * 16)()
    assert ctypes.CDLL("libcuda.so.1").cuDeviceGetUuid_v2(found, ordinal) == 0
    return f"GPU-{uuid.UUID(bytes=bytes(found))}"


@pytest.mark.gpus
async def test_two_devices_share_one_compile_and_load_each_on_their_own(
    cache_dir: Path, cupy: Any
) -> None:
    """One compile, a load on each, whatever the current device is."""
    seen: list[Artifact] = []
    async with Kernels.open(0) as first, Kernels.open(1) as second:
        assert first.compiler is second.compiler
        first.reporting(seen.append)
        second.reporting(seen.append)
        one, two = await asyncio.gather(first.get(ADD, "add<1>"), second.get(ADD, "add<1>"))
        assert one is not two
        assert (one.device, two.device) == ("cuda:0", "cuda:1")
        assert [artifact.origin for artifact in seen] == ["compiled", "compiled"]
        assert seen[0] is seen[1]
        assert run(cupy, one) == run(cupy, two) == 1

        with cupy.cuda.Device(1):
            numbers = cupy.zeros(4, np.int32)
            cupy.cuda.get_current_stream().synchronize()
        two((1,), (4,), (numbers,))
        cupy.cuda.Device(1).synchronize()
        assert numbers.get().tolist() == [1] * 4
        assert cupy.cuda.runtime.getDevice() == 0


@pytest.mark.gpus
async def test_the_other_devices_stream_is_refused_on_hits_too(
    cache_dir: Path, cupy: Any
) -> None:
    """By every call that takes a stream."""
    with cupy.cuda.Device(1):
        stream = cupy.cuda.Stream()
    async with Kernels.open(0) as kernels:
        pending = kernels.request(ADD, "add<1>")
        kernel = await pending
        keyed = kernels.keyed()
        await keyed.get(1, lambda _: (ADD, "add<1>"))
        for call in (
            kernels.get(ADD, "add<1>", stream=stream),
            kernels.get(ADD, "add<2>", stream=stream),
            pending.resolve(stream),
            kernels.build(stream),
            keyed.get(1, lambda _: (ADD, "add<1>"), stream),
        ):
            with pytest.raises(DeviceMismatchError, match="cuda:1"):
                await call
        with pytest.raises(DeviceMismatchError, match="cuda:1"):
            kernel((1,), (4,), (cupy.zeros(4, np.int32),), stream=stream)


@pytest.mark.gpus
async def test_nothing_is_allocated_on_a_device_that_is_not_used(
    tmp_path: Path, child_environment: dict[str, str]
) -> None:
    """A process that serves cuda:1 leaves cuda:0 without a context."""
    script = tmp_path / "script.py"
    script.write_text(
        "import asyncio, ctypes, cupy\n"
        "from kernels_async import Kernels\n"
        "async def main():\n"
        "    async with Kernels.open(1) as kernels:\n"
        f"        kernel = await kernels.get({ADD.text!r}, 'add<1>')\n"
        "        cupy.cuda.Device(1).use()\n"
        "        numbers = cupy.zeros(4, 'i4')\n"
        "        kernel((1,), (4,), (numbers,))\n"
        "        assert numbers.get().tolist() == [1] * 4\n"
        "    flags, active = ctypes.c_uint(), ctypes.c_int()\n"
        "    driver = ctypes.CDLL('libcuda.so.1')\n"
        "    for device in (0, 1):\n"
        "        driver.cuDevicePrimaryCtxGetState(\n"
        "            device, ctypes.byref(flags), ctypes.byref(active))\n"
        "        print(active.value)\n"
        "asyncio.run(main())\n"
    )
    assert await output(child_environment, str(script)) == "0\n1\n"


async def test_closing_ends_the_loading_thread(cache_dir: Path, cupy: Any) -> None:
    """And loaded kernels stay callable."""
    async with Kernels.open(0) as kernels:
        kernel = await kernels.get(ADD, "add<1>")
        assert any("kernels_async-cuda" in thread.name for thread in threading.enumerate())
    assert not any("kernels_async-cuda" in thread.name for thread in threading.enumerate())
    assert run(cupy, kernel) == 1


async def test_a_compiler_for_the_device_has_its_target(cupy: Any) -> None:
    """`Compiler.for_device` asks the driver."""
    compiler = await asyncio.to_thread(Compiler.for_device, 0)

    assert compiler.target == f"sm_{cupy.cuda.Device(0).compute_capability}"


@pytest.mark.parametrize("registers", [24, 40, 64, 128, 255])
async def test_occupancy_is_what_the_driver_answers(
    on_gpu: Kernels, cupy: Any, registers: int
) -> None:
    """Computed from the resources, for several block sizes and shared memories."""
    source = Source(
        'extern "C" __global__ void k(float* p) {\n'
        "  __shared__ float s[SHARED];\n"
        "  float v[48];\n"
        "  s[threadIdx.x % SHARED] = p[threadIdx.x]; __syncthreads();\n"
        "  for (int i = 0; i < 48; i++) v[i] = p[i * 32 + threadIdx.x] + s[i % SHARED];\n"
        "  for (int r = 0; r < 8; r++)\n"
        "#pragma unroll\n"
        "    for (int i = 0; i < 48; i++) v[i] = v[i] * v[(i * 7 + r) % 48] + v[(i + r) % 48];\n"
        "  for (int i = 0; i < 48; i++) p[i * 32 + threadIdx.x] = v[i];\n"
        "}\n"
    )
    options = (f"--maxrregcount={registers}",)
    for shared in (1, 300, 3000, 10000):
        spec = Specialization("k", {"SHARED": shared}, options)
        kernel: Any = await on_gpu.get(source, spec)
        artifact = kernel.artifact
        kernel.raw.max_dynamic_shared_size_bytes = 100 * 1024
        assert artifact.max_threads_per_block == kernel.attributes["max_threads_per_block"]
        for threads in (1, 32, 33, 64, 128, 200, 256, 512, 1000, 1024):
            for dynamic in (0, 1, 1000, 20_000, 100_000):
                answer = cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(
                    kernel.raw.kernel.ptr, threads, dynamic
                )
                assert (threads, dynamic, artifact.occupancy(threads, dynamic)) == (
                    threads,
                    dynamic,
                    answer,
                )


async def test_launch_bounds_are_what_the_driver_has(on_gpu: Kernels) -> None:
    """The cubin says it before the load."""
    for bound in ("", "__launch_bounds__(96)", "__launch_bounds__(256, 2)"):
        text = f"__global__ void {bound} k(int* p) {{ *p = 1; }}\n"
        kernel = await on_gpu.get(text, "k")
        most = kernel.attributes["max_threads_per_block"]
        assert kernel.artifact.max_threads_per_block == most


async def test_the_cpu_device_gives_the_numbers_of_the_gpu(
    on_gpu: Kernels, cupy: Any
) -> None:
    """It is a reference: integers are equal, floats within rounding."""
    source = Source(
        "template <class T> __global__ void k(const T* x, T* y, int n) {\n"
        "  extern __shared__ unsigned char memory[];\n"
        "  T* s = reinterpret_cast<T*>(memory);\n"
        "  int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "  s[threadIdx.x] = i < n ? x[i] : T(0);\n"
        "  __syncthreads();\n"
        "  T v = s[blockDim.x - 1 - threadIdx.x];\n"
        "  v += __shfl_xor_sync(0xffffffff, v, 5);\n"
        "  v = v * T(3) + T(__popc(__ballot_sync(0xffffffff, v > T(0))));\n"
        "  if (i < n) y[i] = v;\n"
        "  if (i < n) atomicAdd(&y[n], T(1));\n"
        "}\n"
    )
    n, block = 1000, 96
    for name, dtype in (("int", np.int32), ("float", np.float32), ("double", np.float64)):
        x = np.random.default_rng(0).integers(-50, 50, n).astype(dtype)
        y = np.zeros(n + 1, dtype)
        grid, shared = (-(-n // block),), block * x.itemsize
        async with Kernels.open("cpu") as on_cpu:
            kernel = await on_cpu.get(source, f"k<{name}>")
            kernel(grid, (block,), (x, y, np.int32(n)), shared_mem=shared)
        found = cupy.zeros(n + 1, dtype)
        kernel = await on_gpu.get(source, f"k<{name}>")
        kernel(grid, (block,), (cupy.asarray(x), found, np.int32(n)), shared_mem=shared)
        assert np.array_equal(y, found.get())


async def test_a_launch_on_pytorchs_stream_is_in_its_order(
    on_gpu: Kernels, cupy: Any
) -> None:
    """PyTorch reads on the stream what the kernel wrote there, without more ado."""
    kernel = await on_gpu.get(ADD, "add<3>")

    def alternate() -> list[int]:
        torch = pytest.importorskip("torch")
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            tensor = torch.zeros(1024, dtype=torch.int32, device="cuda")
            array = cupy.from_dlpack(tensor)
            same = cupy.cuda.Stream.from_external(stream)
            for _ in range(100):
                kernel((1,), (1024,), (array,), stream=same)
                tensor.mul_(2)
                tensor.remainder_(1000)
            found: list[int] = tensor.cpu().tolist()
        return found

    expected = 0
    for _ in range(100):
        expected = (expected + 3) * 2 % 1000
    assert await asyncio.to_thread(alternate) == [expected] * 1024


async def test_a_failed_assert_harms_neither_cache_nor_the_next_process(
    child_environment: dict[str, str], cache_dir: Path
) -> None:
    """It ends its process's context, as CUDA has it, and nothing more."""
    program = (
        "import asyncio, sys, cupy\n"
        "from kernels_async import Kernels\n"
        "async def main():\n"
        "    async with Kernels.open(0) as kernels:\n"
        "        text = 'extern \"C\" __global__ void k(int x) { assert(x == 1); }'\n"
        "        kernel = await kernels.get(text, 'k')\n"
        "        kernel((1,), (1,), (cupy.int32(sys.argv[1]),))\n"
        "        try:\n"
        "            cupy.cuda.Device().synchronize()\n"
        "            print(kernel.artifact.origin, 'fine', flush=True)\n"
        "        except cupy.cuda.runtime.CUDARuntimeError as error:\n"
        "            print(kernel.artifact.origin, 'assert' in str(error), flush=True)\n"
        "        import os; os._exit(0)\n"
        "asyncio.run(main())\n"
    )
    found = []
    for argument in ("2", "1"):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", program, argument),
            env=child_environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        found.append((await process.communicate())[0].decode())
    assert found == ["compiled True\n", "disk fine\n"]
