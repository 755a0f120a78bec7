"""Tests of the cpu toolchain and device as a user meets them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels_async import (
    CompileError,
    Compiler,
    Kernels,
    LaunchError,
    Source,
    Specialization,
    SymbolNotFoundError,
)

PARAMETERS = Source(
    "struct Pair { float x; int y; };\n"
    "__constant__ float scale[2] = {2, 3};\n"
    "namespace n { __device__ int counter; }\n"
    'extern "C" __global__ void k(float* out, int i, unsigned char c, double d, float f,\n'
    "                             bool b, Pair pair, long long l) {\n"
    "  out[0] = i; out[1] = c; out[2] = d; out[3] = f; out[4] = b;\n"
    "  out[5] = pair.x * scale[0]; out[6] = pair.y * scale[1]; out[7] = l;\n"
    "  n::counter = 5;\n"
    "}\n"
)
PAIR = np.dtype([("x", "f4"), ("y", "i4")])


def arguments(**changes: Any) -> tuple[Any, ...]:
    """Arguments that fit, with some replaced."""
    values = {
        "out": np.zeros(8, np.float32),
        "i": np.int32(-1),
        "c": np.uint8(200),
        "d": np.float64(0.5),
        "f": np.float32(1.5),
        "b": np.bool_(True),
        "pair": np.array((1.5, 7), PAIR)[()],
        "l": np.int64(1 << 40),
    }
    return tuple((values | changes).values())


async def test_arguments_reach_the_parameters(kernels: Kernels) -> None:
    """Each kind of parameter, structures by value included."""
    kernel = await kernels.get(PARAMETERS, "k")
    args = arguments()
    kernel((1,), (1,), args)
    assert args[0].tolist() == [-1, 200, 0.5, 1.5, 1, 3, 21, 2.0**40]

    args = arguments(i=-1, c=200, d=0.5, b=True, l=1 << 40)
    kernel((1,), (1,), args)
    assert args[0].tolist() == [-1, 200, 0.5, 1.5, 1, 3, 21, 2.0**40]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"more": np.int32(1)}, "takes 8 arguments, not 9"),
        ({"out": 1.5}, "argument 0 is a pointer"),
        ({"out": np.float32(1)}, "argument 0 is a pointer"),
        ({"i": np.int64(1)}, "argument 1 is a signed integer of 4 bytes, not int64"),
        ({"i": np.float32(1)}, "argument 1 is a signed integer of 4 bytes, not float32"),
        ({"i": 1.0}, "argument 1 is a signed integer of 4 bytes, not float64"),
        ({"i": 1 << 31}, "argument 1 is a signed integer of 4 bytes, too small"),
        ({"c": -1}, "argument 2 is an unsigned integer of 1 bytes, too small"),
        ({"f": 1.5}, "argument 4 is a floating-point number of 4 bytes, not float64"),
        ({"b": np.int32(1)}, "argument 5 is a bool of 1 bytes, not int32"),
        ({"pair": np.zeros(1, PAIR)}, "argument 6 is a structure of 8 bytes"),
        ({"pair": np.float32(1)}, "argument 6 is a structure of 8 bytes, not float32"),
        ({"l": "1"}, "argument 7 is a signed integer of 8 bytes, not str"),
    ],
)
async def test_arguments_that_do_not_fit_are_a_type_error(
    kernels: Kernels, change: dict[str, Any], message: str
) -> None:
    """On a GPU they would be memory corruption."""
    kernel = await kernels.get(PARAMETERS, "k")

    with pytest.raises(TypeError, match=message):
        kernel((1,), (1,), arguments(**change))


async def test_too_few_arguments_are_a_type_error(kernels: Kernels) -> None:
    """The kernel would read what is not there."""
    kernel = await kernels.get(PARAMETERS, "k")

    with pytest.raises(TypeError, match="takes 8 arguments, not 0"):
        kernel((1,), (1,), ())


@pytest.mark.parametrize(
    ("grid", "block", "shared_mem", "error"),
    [
        ((1,), (1025,), 0, LaunchError),
        ((1,), (32, 33), 0, LaunchError),
        ((1,), (1, 1, 65), 0, LaunchError),
        ((0,), (1,), 0, LaunchError),
        ((1, 65536), (1,), 0, LaunchError),
        ((1,), (1,), 227 * 1024 + 1, LaunchError),
        ((1,), (1,), -1, LaunchError),
        ((), (1,), 0, TypeError),
        ((1, 1, 1, 1), (1,), 0, TypeError),
        (1, (1,), 0, TypeError),
    ],
)
async def test_a_launch_out_of_bounds_is_an_error(
    kernels: Kernels, grid: Any, block: Any, shared_mem: int, error: type[Exception]
) -> None:
    """The bounds are those of a GPU."""
    kernel = await kernels.get(PARAMETERS, "k")

    with pytest.raises(error):
        kernel(grid, block, arguments(), shared_mem=shared_mem)


async def test_globals_are_readable_and_writable(kernels: Kernels) -> None:
    """By their lowered names, as the variable's bytes."""
    kernel: Any = await kernels.get(PARAMETERS, "k")
    scale = kernel.get_global("scale").view(np.float32)
    assert scale.tolist() == [2, 3]
    scale[:] = [10, 100]
    args = arguments()
    kernel((1,), (1,), args)
    scale[:] = [2, 3]

    assert args[0][5:7].tolist() == [15, 700]
    assert kernel.get_global("_ZN1n7counterE").view(np.int32).tolist() == [5]
    with pytest.raises(KeyError, match="nope"):
        kernel.get_global("nope")


async def test_a_kernel_that_fails_ends_in_a_launch_error(kernels: Kernels) -> None:
    """Threads that wait at different barriers end in an error that names both."""
    source = Source(
        "__global__ void k(int* p) {\n"
        "  if (threadIdx.x < 3)\n"
        "    __syncthreads();\n"
        "  else\n"
        "    __syncthreads();\n"
        "}\n",
        name="diverges.cu",
    )
    kernel = await kernels.get(source, "k")

    with pytest.raises(LaunchError, match=r"diverges\.cu:3.*diverges\.cu:5"):
        kernel((1,), (8,), (None,))


async def test_the_entry_is_the_kernels_lowered_name(kernels: Kernels) -> None:
    """The same as on a GPU."""
    source = Source("namespace a { template <class T> __global__ void k(T* p) {} }\n")
    kernel = await kernels.get(source, "a::k<float>")

    assert kernel.artifact.entry == "_ZN1a1kIfEEvPT_"
    assert kernel.artifact.resources is None
    assert kernel.attributes["max_threads_per_block"] == 1024
    assert repr(kernel) == "<Kernel a::k<float> on cpu>"


async def test_headers_and_defines_come_from_the_request(kernels: Kernels) -> None:
    """Also inside one another, by the name that the `#include` gives."""
    source = Source(
        '#include "detail/a.h"\n__global__ void k(int* p) { *p = VALUE + N; }\n',
        {"detail/a.h": '#include "b.h"\n', "b.h": "#define VALUE 40\n"},
    )
    kernel = await kernels.get(source, Specialization("k", {"N": 2}))
    out = np.zeros(1, np.int32)
    kernel((1,), (1,), (out,))

    assert out[0] == 42


async def test_a_compile_error_leads_with_the_first_error(kernels: Kernels) -> None:
    """File, line, column, source line and caret, as for CUDA."""
    source = Source(
        '#include "bad.h"\n__global__ void k(int* p) { *p = second; }\n',
        {"bad.h": "\n__device__ int f() { return first; }\n"},
    )
    with pytest.raises(CompileError) as caught:
        await kernels.get(source, "k")

    lines = str(caught.value).splitlines()
    assert re.match(r"bad\.h:2:29: error: .*'first'", lines[0])
    assert "return first" in lines[1]
    assert lines[-1] == "(and 1 more error)"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("#include <cuda_fp16.h>\n__global__ void k() {}", "cuda_fp16.h"),
        ("__global__ void k(__half* p) {}", "__half"),
        ("__global__ void k() { cudaDeviceSynchronize(); }", "cudaDeviceSynchronize"),
        ("__global__ void c() {}\n__global__ void k() { c<<<1, 1>>>(); }", "expected"),
        ('__global__ void k() { asm volatile("wgmma.fence;"); }', "wgmma"),
    ],
)
async def test_a_construct_that_it_lacks_is_a_compile_error_that_names_it(
    kernels: Kernels, text: str, names: str
) -> None:
    """The cpu device is a reference, not a GPU."""
    with pytest.raises(CompileError, match=names):
        await kernels.get(text, "k")


@pytest.mark.parametrize("symbol", ["nope", "scale", "scale<flaot>"])
async def test_a_symbol_that_is_not_there_names_those_that_are(
    kernels: Kernels, symbol: str
) -> None:
    """As for CUDA."""
    text = "template <class T> __global__ void scale(T* p) {}\n"

    with pytest.raises(SymbolNotFoundError, match=r"it has scale<T>"):
        await kernels.get(text, symbol)


async def test_options_that_mean_something_to_a_host_compiler_do(kernels: Kernels) -> None:
    """The C++ standard and warnings; those for a GPU alone are dropped."""
    source = Source("__global__ void k(int* p) { int unused; *p = __cplusplus / 100; }\n")
    options = ("-std=c++20", "--maxrregcount=32", "-lineinfo", "--use_fast_math")
    kernel = await kernels.get(source, Specialization("k", options=options))
    silent = await kernels.get(source, Specialization("k", options=("-w",)))
    out = np.zeros(1, np.int32)
    kernel((1,), (1,), (out,))

    assert out[0] == 2020
    assert [w.code for w in kernel.artifact.warnings] == ["unused-variable"]
    assert silent.artifact.warnings == ()


ADD = 'extern "C" __global__ void k(const float* x, float* y) { y[0] = x[0] + 1; }\n'


async def test_an_array_that_may_not_be_written_is_refused_where_it_would_be(
    kernels: Kernels,
) -> None:
    """A pointer to const takes it; another would change what is immutable."""
    kernel = await kernels.get(ADD, "k")
    constant, out = np.frombuffer(bytes(4), np.float32), np.zeros(1, np.float32)
    kernel((1,), (1,), (constant, out))
    assert out[0] == 1

    with pytest.raises(TypeError, match=r"argument 1 may be written.*read-only"):
        kernel((1,), (1,), (out, constant))


async def test_an_array_with_gaps_is_refused(kernels: Kernels) -> None:
    """A pointer knows no strides."""
    kernel = await kernels.get(ADD, "k")
    rows = np.zeros((4, 4), np.float32)
    kernel((1,), (1,), (rows.T, rows))

    with pytest.raises(TypeError, match=r"argument 1 is a pointer.*contiguous"):
        kernel((1,), (1,), (rows, rows[:, 0]))


async def test_an_array_of_no_dimension_is_a_scalar(kernels: Kernels) -> None:
    """Where the parameter is a value."""
    kernel = await kernels.get(PARAMETERS, "k")
    args = arguments(f=np.array(2.5, np.float32), pair=np.array((1.5, 7), PAIR))
    kernel((1,), (1,), args)

    assert args[0][[3, 5]].tolist() == [2.5, 3]


async def test_a_scalar_that_does_not_fit_says_what_to_pass(kernels: Kernels) -> None:
    """The remedy is in the message."""
    kernel = await kernels.get(PARAMETERS, "k")

    with pytest.raises(TypeError, match=r"not float64: pass np\.float32\(\.\.\.\)"):
        kernel((1,), (1,), arguments(f=1.5))


async def test_dynamic_shared_memory_that_was_forgotten_is_an_error(
    kernels: Kernels,
) -> None:
    """On a GPU it would be an illegal address."""
    text = (
        'extern "C" __global__ void k(int* p) {\n'
        "  extern __shared__ int s[]; s[0] = 7; *p = s[0];\n"
        "}\n"
    )
    kernel = await kernels.get(text, "k")
    out = np.zeros(1, np.int32)
    with pytest.raises(LaunchError, match="shared_mem"):
        kernel((1,), (1,), (out,))
    kernel((1,), (1,), (out,), shared_mem=4)
    assert out[0] == 7


async def test_more_static_shared_memory_than_a_gpu_has_is_a_compile_error(
    kernels: Kernels,
) -> None:
    """As ptxas says; 48 KB compile."""
    text = "__global__ void k(int* p) { __shared__ char s[N]; s[*p] = 1; *p = s[0]; }\n"

    assert await kernels.get(text, Specialization("k", {"N": 48 * 1024}))
    with pytest.raises(CompileError, match="too much shared data"):
        await kernels.get(text, Specialization("k", {"N": 48 * 1024 + 2048}))


async def test_constant_tables_keep_their_place(kernels: Kernels) -> None:
    """Static ones too, by their plain name; a const one is read-only."""
    source = Source(
        "static __constant__ float table[4];\n"
        "__constant__ const float fixed[2] = {5, 6};\n"
        'extern "C" __global__ void k(float* p) { p[0] = table[1] + fixed[1]; }\n'
    )
    kernel: Any = await kernels.get(source, "k")
    kernel.get_global("table").view(np.float32)[:] = [1, 2, 3, 4]
    out = np.zeros(1, np.float32)
    kernel((1,), (1,), (out,))

    assert out[0] == 8
    fixed = kernel.get_global("fixed")
    assert fixed.view(np.float32).tolist() == [5, 6]
    with pytest.raises(ValueError, match="read-only"):
        fixed[0] = 1


async def test_a_device_function_that_is_nowhere_is_a_compile_error(
    kernels: Kernels,
) -> None:
    """Not an error at the load."""
    text = "extern __device__ int ext(int);\n__global__ void k(int* p) { *p = ext(1); }\n"

    with pytest.raises(CompileError, match=r"undefined reference to `ext\(int\)'"):
        await kernels.get(text, "k")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("__global__ void k(int* p) { *p = 1;\n", "not allowed here|expected"),
        ("__global__ int k(int* p) { return 1; }\n", "k"),
    ],
)
async def test_a_kernel_that_is_there_and_wrong_is_no_missing_symbol(
    kernels: Kernels, text: str, message: str
) -> None:
    """The source is wrong, not the symbol."""
    with pytest.raises(CompileError, match=message) as caught:
        await kernels.get(text, "k")
    assert not isinstance(caught.value, SymbolNotFoundError)


async def test_code_guarded_for_a_device_is_compiled(kernels: Kernels) -> None:
    """As by the macros of an old architecture, one without a need for PTX."""
    text = (
        "#if __CUDA_ARCH__ < 600\n#error too old\n#endif\n"
        "__global__ void k(int* p) {\n#ifdef __CUDA_ARCH__\n  *p = __CUDA_ARCH__;\n#endif\n}\n"
    )
    out = np.zeros(1, np.int32)
    (await kernels.get(text, "k"))((1,), (1,), (out,))

    assert out[0] == 700


async def test_a_header_of_the_source_does_not_shadow_the_hosts_own(
    kernels: Kernels,
) -> None:
    """A `stdint.h` for NVRTC's sake must not break the host compiler's."""
    source = Source(
        '#include "stdint.h"\n#include <tile.h>\n'
        "__global__ void k(int* p) { *p = sizeof(int64_t) + TILE; }\n",
        {"stdint.h": "typedef long int64_t;\n", "tile.h": "#define TILE 1\n"},
    )
    out = np.zeros(1, np.int32)
    (await kernels.get(source, "k"))((1,), (1,), (out,))

    assert out[0] == 9


async def test_the_flags_of_the_compiler_are_part_of_its_identity(
    monkeypatch: pytest.MonkeyPatch, cache_dir: Path
) -> None:
    """Another `-D` in $CXX is another toolchain."""
    text = "__global__ void k(int* p) { *p = SCALE; }\n"
    values = []
    for scale in (2, 3):
        monkeypatch.setenv("CXX", f"c++ -DSCALE={scale}")
        async with Kernels.open("cpu", workers=1) as kernels:
            out = np.zeros(1, np.int32)
            (await kernels.get(text, "k"))((1,), (1,), (out,))
            values.append(int(out[0]))
    assert values == [2, 3]


@pytest.mark.parametrize("target", ["cpu", "sm_90"])
@pytest.mark.parametrize("name", ["/etc/hostname", "../x.h", "a/../../x.h"])
async def test_a_file_of_the_hosts_is_never_included(
    target: str, name: str, cache_dir: Path
) -> None:
    """Whether it is there or not; its content would not be in the key."""
    source = Source(f'\n#include "{name}"\n__global__ void k(int* p) {{}}\n', name="x.cu")
    async with Compiler(target, workers=1) as compiler:
        with pytest.raises(CompileError, match=r"x\.cu:2: error: .*path of the host"):
            await compiler.compile(source, "k")
