"""Tests of what a launch takes on a GPU; each needs one, some need two, some PyTorch."""

from __future__ import annotations

import asyncio
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels_async import DeviceMismatchError, Kernel, Kernels, Source
from tests.arrays import Exported, Interfaced

pytestmark = pytest.mark.gpu

DUMP = Source("""
struct Pair { float x; long long y; };
struct Complex { double re, im; };
struct Big { unsigned char bytes[128]; };
template <class T> __global__ void dump(unsigned char* out, T value) {
  const unsigned char* from = reinterpret_cast<const unsigned char*>(&value);
  for (int i = 0; i < int(sizeof(T)); i++) out[i] = from[i];
}
""")
PARAMETERS = """
struct Pair { float x; long long y; };
struct Odd { char bytes[3]; };
extern "C" __global__ void none() {}
extern "C" __global__ void k(char a, short b, int c, long long d, float e, double f, bool g,
                             Pair h, Odd i, const int* j, float3 k) {
  if (j) const_cast<int*>(j)[0] = a + b + c + d + e + f + g + h.y + i.bytes[0] + k.x;
}
"""
ADD = Source("template <int N> __global__ void add(int* p) { p[threadIdx.x] += N; }\n")
BYTES = """
extern "C" __global__ void k(unsigned char* p, int n, int value) {
  for (int i = 0; i < n; i++) p[i] = value;
}
"""
COPY = 'extern "C" __global__ void k(const int* from, int* to) { *to = *from; }\n'
SPIN = """
extern "C" __global__ void k(long long cycles) {
  for (long long end = clock64() + cycles; clock64() < end;) {}
}
"""
CYCLES = np.int64(400_000_000)
PAIR = np.dtype([("x", "f4"), ("y", "i8")], align=True)
TORCH_TYPES = [
    "float32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "bool",
    "int8",
    "complex64",
]


@pytest.fixture(scope="module")
def cupy() -> Any:
    """CuPy, its context made before any test watches the loop."""
    cupy = pytest.importorskip("cupy")
    for ordinal in range(cupy.cuda.runtime.getDeviceCount()):
        with cupy.cuda.Device(ordinal):
            cupy.zeros(1).sum()
    return cupy


@pytest.fixture(scope="module")
def torch(cupy: Any) -> Any:
    """PyTorch, likewise."""
    torch = pytest.importorskip("torch")
    torch.zeros(1, device="cuda").sum().item()
    return torch


@pytest.fixture
async def on_gpu(cupy: Any, warm_dir: Path) -> Any:
    """A cache on the first CUDA device."""
    async with Kernels.open("cuda:0", cache_dir=warm_dir, workers=2) as kernels:
        yield kernels


@pytest.fixture(params=["cupy", "external", "address", "protocol", "from another", "torch"])
def kind(request: pytest.FixtureRequest) -> str:
    """Whose stream it is."""
    if request.param == "torch":
        request.getfixturevalue("torch")
    return str(request.param)


def values() -> list[tuple[str, Any]]:
    """A type of C++ and an argument that fits it."""
    pair = np.array((1.5, -7), PAIR)
    big = np.frombuffer(bytes(range(128)), "V128")
    return [
        *(("double", 1.5), ("long long", -7), ("unsigned long long", (1 << 64) - 1)),
        *(("bool", True), ("bool", False), ("Complex", 1.5 - 2j), ("int*", None)),
        *(("float", np.float32(1.5)), ("unsigned short", np.float16(1.5))),
        *(("char", np.int8(-3)), ("short", np.int16(-3)), ("unsigned", np.uint32(1 << 31))),
        *(("long long", np.int64(-3)), ("bool", np.bool_(True))),
        *(("float2", np.complex64(1 - 2j)), ("Complex", np.complex128(1 - 2j))),
        *(("Pair", pair), ("Pair", pair[()]), ("Pair", pair.reshape(1, 1))),
        *(("Big", big), ("Big", big[0]), ("float", np.ones((), np.float32))),
    ]


@pytest.mark.parametrize(("kind", "value"), values(), ids=str)
async def test_each_argument_reaches_the_kernel_byte_for_byte(
    on_gpu: Kernels, cupy: Any, kind: str, value: Any
) -> None:
    """In a checked call, in one that is not, and bound."""
    kernel = await on_gpu.get(DUMP, f"dump<{kind}>")
    expected = np.uint64(0) if value is None else np.asarray(value)
    bound = cupy.zeros(128, np.uint8)
    launches: list[tuple[Any, Callable[[Any], None]]] = [
        (cupy.zeros(128, np.uint8), lambda out: kernel((1,), (1,), (out, value))),
        (cupy.zeros(128, np.uint8), lambda out: kernel((1,), (1,), (out, value))),
        (bound, lambda out: kernel.bind((1,), (1,), (out, value))()),
    ]
    for out, launch in launches:
        launch(out)
        assert out.get().tobytes() == expected.tobytes().ljust(128, b"\0")


@pytest.mark.parametrize(
    ("kind", "value"), [("int", -7), ("short", -7), ("unsigned char", 200)], ids=str
)
async def test_a_python_integer_fits_a_smaller_one(
    on_gpu: Kernels, cupy: Any, kind: str, value: int
) -> None:
    """The kernel reads the lower bytes."""
    kernel = await on_gpu.get(DUMP, f"dump<{kind}>")
    out = cupy.zeros(8, np.uint8)
    for launch in (kernel, kernel, lambda *given: kernel.bind(*given)()):
        launch((1,), (1,), (out, value))
        size = {"int": 4, "short": 2, "unsigned char": 1}[kind]
        assert out.get()[:size].tobytes() == np.array(value).tobytes()[:size]


async def test_the_driver_tells_the_size_of_each_parameter(
    on_gpu: Kernels, caplog: pytest.LogCaptureFixture
) -> None:
    """Structures as they are, without what is between them."""
    kernel: Any = await on_gpu.get(PARAMETERS, "k")
    none: Any = await on_gpu.get(PARAMETERS, "none")

    assert kernel._sizes == (1, 2, 4, 8, 4, 8, 1, 16, 3, 8, 12)
    assert none._sizes == ()
    assert not [text for text in caplog.messages if "not checked" in text]
    none((1,), (1,), ())
    with pytest.raises(TypeError, match="takes 0 arguments, not 1"):
        none((1,), (1,), (1,), checked=True)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "takes 3 arguments, not 0"),
        ((1, 2, 3, 4), "takes 3 arguments, not 4"),
        (
            ("array", 1.5, 1),
            "argument 1: its parameter has 4 bytes, and float is passed as 8",
        ),
        (("array", 1, np.int64(1)), "argument 2: .* 4 bytes, and int64 is passed as 8"),
        ((np.int32(1), 1, 1), "argument 0: .* 8 bytes, and int32 is passed as 4"),
        ((np.zeros(3), 1, 1), "argument 0 is an array that lies on no GPU"),
        (("array", 1 << 32, 1), "argument 1: .* 4 bytes, and int is passed as 8"),
    ],
    ids=str,
)
async def test_a_first_launch_that_does_not_fit_is_not_made(
    on_gpu: Kernels, cupy: Any, args: Any, message: str
) -> None:
    """And the next, which fits, is; so for one that is checked, and one that is bound."""
    kernel = await on_gpu.get(BYTES, "k")
    out = cupy.zeros(4, np.uint8)
    args = tuple(out if isinstance(a, str) else a for a in args)
    with pytest.raises(TypeError, match=message):
        kernel((1,), (1,), args)
    with pytest.raises(TypeError, match=message):
        kernel.bind((1,), (1,), args)
    kernel((1,), (1,), (out, np.int32(4), np.int32(3)))
    with pytest.raises(TypeError, match=message):
        kernel((1,), (1,), args, checked=True)
    kernel((1,), (1,), (out, np.int32(4), np.int32(5)), checked=True)

    assert out.get().tolist() == [5] * 4


@pytest.mark.parametrize("name", TORCH_TYPES)
async def test_pytorchs_tensors_of_any_type_are_passed(
    on_gpu: Kernels, torch: Any, name: str
) -> None:
    """Also those that neither `__cuda_array_interface__` nor DLPack has."""
    kernel = await on_gpu.get(BYTES, "k")

    def launched() -> None:
        tensor = torch.zeros(16, dtype=getattr(torch, name), device="cuda")
        stream = torch.cuda.current_stream()
        view = tensor.view(torch.uint8)
        for value in (1, 0, 1):
            kernel(
                (1,), (1,), (tensor, np.int32(len(view)), np.int32(value)), stream=stream
            )
            assert view.cpu().tolist() == [value] * len(view)
        bound = kernel.bind((1,), (1,), (tensor, np.int32(len(view)), np.int32(0)))
        bound(stream)
        assert view.cpu().tolist() == [0] * len(view)

    await asyncio.to_thread(launched)


async def test_a_parameter_of_a_model_is_passed(on_gpu: Kernels, torch: Any) -> None:
    """It requires a gradient, for which PyTorch itself refuses its interface."""
    kernel = await on_gpu.get(BYTES, "k")

    def launched() -> None:
        parameter = torch.nn.Parameter(torch.ones(4, device="cuda"))
        with pytest.raises(RuntimeError, match="requires grad"):
            _ = parameter.__cuda_array_interface__
        stream = torch.cuda.current_stream()
        kernel((1,), (1,), (parameter, np.int32(16), np.int32(0)), stream=stream)

        assert parameter.detach().cpu().tolist() == [0] * 4

    await asyncio.to_thread(launched)


async def test_a_tensor_that_the_kernel_could_not_read_is_refused(
    on_gpu: Kernels, torch: Any
) -> None:
    """On the host, pinned or not; not computed yet; sparse. An empty one is not."""
    kernel = await on_gpu.get(BYTES, "k")

    def launched() -> None:
        numbers = (np.int32(0), np.int32(0))
        conjugate = torch.zeros(2, dtype=torch.complex64, device="cuda").conj()
        for tensor, message in (
            (torch.zeros(4), "lies on no GPU"),
            (torch.zeros(4).pin_memory(), "lies on no GPU"),
            (torch.eye(4, device="cuda").to_sparse(), "has no address"),
            (conjugate, "resolve_conj"),
            (conjugate.imag, "resolve_neg"),
        ):
            for _ in range(2):
                with pytest.raises(TypeError, match=f"argument 0 .*{message}"):
                    kernel((1,), (1,), (tensor, *numbers))
        kernel((1,), (1,), (torch.zeros(0, device="cuda"), *numbers))

    await asyncio.to_thread(launched)


async def test_pytorchs_own_order_holds(on_gpu: Kernels, torch: Any) -> None:
    """With its stream given, what it did before is seen, and what it does next sees it."""
    kernel = await on_gpu.get(ADD, "add<3>")

    def alternate() -> list[int]:
        with torch.cuda.stream(torch.cuda.Stream()):
            tensor = torch.zeros(1024, dtype=torch.int32, device="cuda")
            bound = kernel.bind((1,), (1024,), (tensor,))
            for number in range(100):
                stream = torch.cuda.current_stream()
                if number % 2:
                    bound(stream)
                else:
                    kernel((1,), (1024,), (tensor,), stream=stream)
                tensor.mul_(2)
                tensor.remainder_(1000)
            found: list[int] = tensor.cpu().tolist()
        return found

    expected = 0
    for _ in range(100):
        expected = (expected + 3) * 2 % 1000
    assert await asyncio.to_thread(alternate) == [expected] * 1024


async def test_anyones_array_is_passed(on_gpu: Kernels, cupy: Any) -> None:
    """By its interface or by DLPack; read-only, managed and pinned memory too."""
    kernel = await on_gpu.get(ADD, "add<2>")

    def launched() -> None:
        array = cupy.zeros(4, np.int32)
        managed = cupy.cuda.malloc_managed(16)
        on_managed = cupy.ndarray((4,), np.int32, managed)
        managed.memset(0, 16)
        pinned = np.frombuffer(cupy.cuda.alloc_pinned_memory(16), np.int32, 4)
        pinned[:] = 0
        cupy.cuda.get_current_stream().synchronize()
        for given in (
            Interfaced(array.data.ptr),
            Interfaced(array.data.ptr, data=(array.data.ptr, True)),
            Exported(array, array.__dlpack_device__()),
            Interfaced(managed.ptr),
            Exported(on_managed, on_managed.__dlpack_device__()),
            Interfaced(pinned.ctypes.data),
        ):
            for _ in range(2):
                kernel((1,), (4,), (given,))
        cupy.cuda.Device().synchronize()

        print("DLPack's device of managed memory:", on_managed.__dlpack_device__())
        assert array.get().tolist() == [12] * 4
        assert on_managed.get().tolist() == [8] * 4
        assert pinned.tolist() == [4] * 4
        with pytest.raises(TypeError, match="argument 0: its memory is not a GPU's"):
            kernel((1,), (4,), (Interfaced(np.zeros(4).ctypes.data),))
        with pytest.raises(TypeError, match="lies on no GPU"):
            kernel((1,), (4,), (Exported(np.zeros(4, np.int32)),))

    await asyncio.to_thread(launched)


async def test_a_launch_waits_for_the_stream_that_an_array_names(
    on_gpu: Kernels, cupy: Any
) -> None:
    """By its interface, and by DLPack; the host does not wait."""
    spin, add = await on_gpu.get(SPIN, "k"), await on_gpu.get(ADD, "add<5>")
    copy = await on_gpu.get(COPY, "k")

    def launched() -> None:
        producer, consumer = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))

        class Producing(Exported):
            def __dlpack__(self, **options: Any) -> object:
                given.append(options["stream"])
                with producer:
                    return self.array.__dlpack__(**options)

        given: list[int] = []
        for number in range(2):
            array, out = cupy.zeros(1, np.int32), cupy.zeros(1, np.int32)
            cupy.cuda.Device().synchronize()
            spin((1,), (1,), (CYCLES,), stream=producer)
            add((1,), (1,), (array,), stream=producer)
            source: Any = Interfaced(array.data.ptr, stream=producer.ptr)
            if number:
                source = Producing(array, array.__dlpack_device__())
            began = time.perf_counter()
            copy((1,), (1,), (source, out), stream=consumer)
            took = time.perf_counter() - began
            assert not producer.done
            consumer.synchronize()

            print(f"the launch took {1e3 * took:.2f} ms, and was done behind its producer")
            assert out.get().tolist() == [5]
        assert given == [consumer.ptr]

    await asyncio.to_thread(launched)


def as_kind(cupy: Any, stream: Any, kind: str) -> Any:
    """A CuPy stream, as others have it."""

    class Protocol:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, stream.ptr

    match kind:
        case "cupy":
            return stream
        case "external":
            with warnings.catch_warnings(action="ignore"):  # it is deprecated
                return cupy.cuda.ExternalStream(stream.ptr)
        case "from another":
            return cupy.cuda.Stream.from_external(Protocol())
        case "address":
            return stream.ptr
        case "protocol":
            return Protocol()
        case _:
            torch: Any = sys.modules["torch"]
            return torch.cuda.ExternalStream(stream.ptr)


async def test_a_launch_is_on_the_stream_that_is_given(
    on_gpu: Kernels, cupy: Any, kind: str
) -> None:
    """Behind what is on it, and beside the others; called and bound."""
    spin, add = await on_gpu.get(SPIN, "k"), await on_gpu.get(ADD, "add<1>")
    stream, beside = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    given = as_kind(cupy, stream, kind)

    def launched() -> None:
        array = cupy.zeros(1, np.int32)
        cupy.cuda.Device().synchronize()
        bound = add.bind((1,), (1,), (array,))
        launches: list[Callable[[], None]] = [
            lambda: add((1,), (1,), (array,), stream=given),
            lambda: bound(given),
            add.bind((1,), (1,), (array,), stream=given),
        ]
        for number, launch in enumerate(launches):
            spin((1,), (1,), (CYCLES,), stream=given)
            launch()
            before = array.get(stream=beside).tolist()
            assert not stream.done
            stream.synchronize()
            assert (before, array.get().tolist()) == ([number], [number + 1])

    await asyncio.to_thread(launched)
    assert await on_gpu.get(ADD, "add<1>", stream=given) is add


async def test_a_bound_launch_without_a_stream_is_on_the_current_one(
    on_gpu: Kernels, cupy: Any
) -> None:
    """Of the call, not of when it was bound; so a graph captures it."""
    add = await on_gpu.get(ADD, "add<1>")
    array = cupy.zeros(4, np.int32)
    cupy.cuda.Device().synchronize()
    bound = add.bind((1,), (4,), (array,))
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        bound()
        bound()
        add((1,), (4,), (array,))
        graph = stream.end_capture()
    stream.synchronize()
    assert array.get().tolist() == [0] * 4

    for _ in range(5):
        graph.launch(stream)
    stream.synchronize()
    assert array.get().tolist() == [15] * 4


async def test_a_bound_launch_keeps_its_arrays(on_gpu: Kernels, cupy: Any) -> None:
    """CuPy's pool gives their memory to nobody else."""
    add = await on_gpu.get(ADD, "add<1>")
    size = 1_234_567
    array = cupy.zeros(size, np.int32)
    address = array.data.ptr
    bound = add.bind((1,), (1024,), (array,))
    del array
    others = [cupy.zeros(size, np.int32) for _ in range(4)]
    assert address not in {other.data.ptr for other in others}
    del bound
    others += [cupy.zeros(size, np.int32) for _ in range(4)]
    assert address in {other.data.ptr for other in others}


async def test_any_thread_may_repeat_a_bound_launch(on_gpu: Kernels, cupy: Any) -> None:
    """One that never used CUDA before has no context yet."""
    add = await on_gpu.get(ADD, "add<1>")
    array = cupy.zeros(1, np.int32)
    bound = add.bind((1,), (1,), (array,))
    for _ in range(4):
        await asyncio.to_thread(bound)
        cupy.cuda.Device().synchronize()

    assert array.get().tolist() == [4]


async def test_a_bound_launch_has_its_shared_memory(on_gpu: Kernels, cupy: Any) -> None:
    """Also more than 48 KB of it."""
    text = (
        'extern "C" __global__ void k(int* p, int last) {\n'
        "  extern __shared__ int s[]; s[last] = 7; *p = s[last];\n"
        "}\n"
    )
    kernel, out = await on_gpu.get(text, "k"), cupy.zeros(1, np.int32)
    size = 200 * 1024
    kernel.bind((1,), (1,), (out, np.int32(size // 4 - 1)), shared_mem=size)()

    assert out.get().tolist() == [7]


async def test_what_launches_cost_is_shown(on_gpu: Kernels, cupy: Any, torch: Any) -> None:
    """Microseconds each, the least of rounds."""
    kernel = await on_gpu.get(BYTES, "k")
    other = await on_gpu.get(BYTES.replace("= value", "= value + 1"), "k")

    def launched() -> None:
        raw = cupy.RawKernel(BYTES, "k")
        array, numbers = cupy.zeros(1, np.uint8), (np.int32(1), np.int32(1))
        args = (array, *numbers)
        tensor = torch.zeros(1, dtype=torch.uint8, device="cuda")
        with_tensor = (tensor, *numbers)
        stream, theirs = cupy.cuda.Stream(), torch.cuda.current_stream()
        bound = kernel.bind((1,), (1,), args)
        launches: dict[str, Callable[[], object]] = {
            "cupy.RawKernel": lambda: raw((1,), (1,), args),
            "kernel": lambda: kernel((1,), (1,), args),
            "kernel, checked": lambda: kernel((1,), (1,), args, checked=True),
            "kernel, CuPy's stream": lambda: kernel((1,), (1,), args, 0, stream),
            "kernel, PyTorch's stream": lambda: kernel((1,), (1,), args, 0, theirs),
            "kernel, a tensor": lambda: other((1,), (1,), with_tensor),
            "cupy.from_dlpack of it": lambda: kernel(
                (1,), (1,), (cupy.from_dlpack(tensor), *numbers)
            ),
            "bound": bound,
            "bound, CuPy's stream": lambda: bound(stream),
        }
        least = dict.fromkeys(launches, float("inf"))
        for _ in range(5):
            for name, launch in launches.items():
                cupy.cuda.Device().synchronize()
                began = time.perf_counter()
                for _ in range(300):
                    launch()
                least[name] = min(least[name], (time.perf_counter() - began) / 300)
        for name, seconds in least.items():
            print(f"{1e6 * seconds:8.2f} us  {name}")
        assert len(least) == len(launches)

    await asyncio.to_thread(launched)


@pytest.mark.gpus
async def test_another_devices_arrays_and_streams_are_refused(
    cupy: Any, torch: Any, warm_dir: Path
) -> None:
    """Whoever made them, if they tell, and whatever the current device is."""
    with cupy.cuda.Device(1):
        array = cupy.zeros(4, np.int32)
    tensor = torch.zeros(4, dtype=torch.int32, device="cuda:1")
    async with Kernels.open(0, cache_dir=warm_dir) as kernels:
        kernel: Kernel = await kernels.get(ADD, "add<1>")
        for given in (
            tensor,
            Interfaced(array.data.ptr),
            Exported(array, array.__dlpack_device__()),
        ):
            for _ in range(2):
                with pytest.raises(DeviceMismatchError, match="argument 0 lies on cuda:1"):
                    kernel((1,), (4,), (given,))
        with pytest.raises(DeviceMismatchError, match="the stream belongs to cuda:1"):
            kernel((1,), (4,), (cupy.zeros(4, "i4"),), stream=torch.cuda.Stream(1))
    async with Kernels.open(1, cache_dir=warm_dir) as kernels:
        kernel = await kernels.get(ADD, "add<1>")
        bound = kernel.bind((1,), (4,), (tensor,))
        kernel((1,), (4,), (tensor,))
        bound()
        cupy.cuda.Device(1).synchronize()
        assert tensor.cpu().tolist() == [2] * 4
        assert cupy.cuda.runtime.getDevice() == 0
