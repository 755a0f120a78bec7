"""Tests of the cuda toolchain: real NVRTC in real workers, without a GPU."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from kernels_async import (
    Artifact,
    CompileError,
    Compiler,
    Severity,
    Source,
    Specialization,
    SpecificationError,
    SymbolNotFoundError,
    ToolchainError,
)

SCALE = """\
namespace detail { template <class T> struct wrap { T x; }; }
template <class T, int N> __global__ void scale(T* p) { p[threadIdx.x] *= N; }
namespace a { __global__ void inner(int* p) { *p = 1; } }
__global__ void f(int* p) { *p = 1; }
__global__ void f(float* p) { *p = 1; }
extern "C" __global__ void plain(int* p) { *p = VAL; }
"""


@pytest.mark.parametrize(
    ("symbol", "entry"),
    [
        ("plain", "plain"),
        ("scale<float, 4>", "_Z5scaleIfLi4EEvPT_"),
        (" scale < float , 2+2 > ", "_Z5scaleIfLi4EEvPT_"),
        ("&::scale<float,4>/*x*/", "_Z5scaleIfLi4EEvPT_"),
        ("scale<detail::wrap<float>*, 1>", "_Z5scaleIPN6detail4wrapIfEELi1EEvPT_"),
        ("a::inner", "_ZN1a5innerEPi"),
        ("(void(*)(int*))f", "_Z1fPi"),
        ("static_cast<void(*)(float*)>(f)", "_Z1fPf"),
        ("scale<float, VAL>", "_Z5scaleIfLi9EEvPT_"),
    ],
)
async def test_a_symbol_is_found_however_it_is_written(
    compiler: Compiler, symbol: str, entry: str
) -> None:
    """The lowered name comes from NVRTC, which looks names up by exact bytes."""
    source = SCALE.replace("*= N", "= T()") if "wrap" in symbol else SCALE
    artifact = await compiler.compile(source, Specialization(symbol, {"VAL": "(1+2)*3"}))

    assert (artifact.symbol, artifact.entry) == (symbol, entry)
    assert artifact.bytes[:4] == b"\x7fELF"


async def test_the_toolkits_headers_are_there_out_of_the_box(compiler: Compiler) -> None:
    """CUB, cuda::std, cooperative groups, half precision and tensor cores compile."""
    source = Source(
        "#include <cub/block/block_reduce.cuh>\n"
        "#include <cooperative_groups.h>\n"
        "#include <cuda_fp16.h>\n"
        "#include <cuda/std/cstdint>\n"
        "__global__ void k(const __half* x, cuda::std::int32_t* y) {\n"
        "  using Reduce = cub::BlockReduce<int, 128>;\n"
        "  __shared__ typename Reduce::TempStorage storage;\n"
        "  cooperative_groups::this_thread_block().sync();\n"
        "  int sum = Reduce(storage).Sum(__half2int_rn(x[threadIdx.x]));\n"
        "  if (threadIdx.x == 0) *y = sum;\n"
        "}\n"
    )
    artifact = await compiler.compile(source, "k")

    assert artifact.resources is not None
    assert artifact.resources.registers > 0
    assert artifact.resources.shared > 0


async def test_headers_come_from_the_source(compiler: Compiler) -> None:
    """An `#include` finds the source's own headers, also inside one another."""
    source = Source(
        '#include "detail/a.h"\nextern "C" __global__ void k(int* p) { *p = VAL; }\n',
        {"detail/a.h": '#include "b.h"\n', "b.h": "#define VAL 7\n"},
    )

    assert (await compiler.compile(source, "k")).entry == "k"


async def test_a_header_on_the_hosts_disk_is_not_found(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker sits in an empty directory, and the source's name is no path."""
    (tmp_path / "v.h").write_text("#define VAL 1\n")
    monkeypatch.chdir(tmp_path)
    source = Source('#include "v.h"\nextern "C" __global__ void k(int* p) { *p = VAL; }\n')

    with pytest.raises(CompileError, match=r'cannot open source file "v\.h"'):
        await compiler.compile(source, "k")


async def test_resources_are_those_of_the_kernel_asked_for(compiler: Compiler) -> None:
    """Registers, spills, stack, shared and constant memory come before any load."""
    source = Source(
        "__constant__ float table[100];\n"
        'extern "C" __global__ void small(float* p) { *p = table[threadIdx.x]; }\n'
        'extern "C" __global__ void big(float* p) {\n'
        "  __shared__ float s[100];\n"
        "  float v[64];\n"
        "  s[threadIdx.x] = p[threadIdx.x]; __syncthreads();\n"
        "  for (int i = 0; i < 64; i++) v[i] = p[i * 32 + threadIdx.x] + s[99 - i];\n"
        "  for (int r = 0; r < 8; r++)\n"
        "    for (int i = 0; i < 64; i++) v[i] = v[i] * v[(i * 7 + r) % 64] + v[(i + r) % 64];\n"
        "  for (int i = 0; i < 64; i++) p[i * 32 + threadIdx.x] = v[i];\n"
        "}\n"
    )
    options = ("--maxrregcount=24",)
    small = await compiler.compile(source, Specialization("small", {}, options))
    big = await compiler.compile(source, Specialization("big", {}, options))

    assert small.resources is not None
    assert big.resources is not None
    assert big.resources.registers == 24
    assert big.resources.spill_stores > 0
    assert big.resources.spill_loads > 0
    assert big.resources.stack > 0
    assert big.resources.shared == 400
    assert big.resources.barriers == 1
    assert small.resources.constant == 400
    assert (small.resources.spill_stores, small.resources.shared) == (0, 0)


async def test_warnings_are_kept_with_the_artifact(compiler: Compiler) -> None:
    """A disk hit says what the compiler said when it compiled."""
    source = Source('extern "C" __global__ void k(int* p) { int unused; *p = 1; }\n')
    compiled = await compiler.compile(source, "k")
    read = await compiler.compile(source, "k")

    assert (compiled.origin, read.origin) == ("compiled", "disk")
    assert read.diagnostics == compiled.diagnostics
    (warning,) = read.warnings
    assert (warning.code, warning.file, warning.line) == ("177-D", "kernel.cu", 1)
    assert read.compile_seconds == compiled.compile_seconds > 0


async def test_a_compile_error_leads_with_the_first_error(compiler: Compiler) -> None:
    """File, line, column and source line; the rest counted, all of it in data."""
    source = Source(
        "__device__ int f() { return first; }\n"
        "__device__ int g() { return second; }\n"
        'extern "C" __global__ void k(int* p) { *p = third; }\n',
        name="broken.cu",
    )
    with pytest.raises(CompileError) as caught:
        await compiler.compile(source, "k")

    lines = str(caught.value).splitlines()
    assert lines[0] == 'broken.cu:1:29: error: identifier "first" is undefined'
    assert lines[1].strip() == "__device__ int f() { return first; }"
    assert lines[2].strip() == "^"
    assert lines[-1] == "(and 2 more errors)"
    errors = [d for d in caught.value.diagnostics if d.severity is Severity.ERROR]
    assert [d.line for d in errors] == [1, 2, 3]
    assert "third" in caught.value.log


async def test_the_sources_error_leads_before_the_symbols(compiler: Compiler) -> None:
    """A source that does not parse has no symbols either; that is not the news."""
    with pytest.raises(CompileError, match=r"^kernel\.cu:1") as caught:
        await compiler.compile("oops\n__global__ void k() {}", "k<int>")

    assert not isinstance(caught.value, SymbolNotFoundError)


@pytest.mark.parametrize(
    ("symbol", "message"),
    [
        (
            "nope",
            r"no kernel 'nope' in kernel\.cu: .*it has scale<T, N>, a::inner, f, plain",
        ),
        ("inner", "(?s)no kernel.*hint: its name is a::inner"),
        ("scale<>", "(?s)no kernel.*hint: scale<T, N> is a template"),
        ("scale", r"(?s)cannot determine which instance.*hint: scale<T, N> is a template"),
        ("scale<flaot,4>", 'identifier "flaot" is undefined'),
        ("f", "overloaded"),
        ("detail::wrap<int>", "no kernel"),
    ],
)
async def test_a_symbol_that_is_not_there_names_those_that_are(
    compiler: Compiler, symbol: str, message: str
) -> None:
    """The error blames the symbol, not a file that the user never wrote."""
    with pytest.raises(SymbolNotFoundError, match=message) as caught:
        await compiler.compile(SCALE, Specialization(symbol, {"VAL": 1}))

    assert all("__nv_name_map" not in d.file for d in caught.value.diagnostics)


@pytest.mark.parametrize(
    ("text", "symbol"),
    [
        ("// nothing here\n", "k"),
        ("__device__ int f() { return 1; }\n", "f"),
        ("struct S { int k; };\n", "k"),
    ],
)
async def test_a_source_without_kernels_is_told_so(
    compiler: Compiler, text: str, symbol: str
) -> None:
    """NVRTC may report success for a program without kernels."""
    with pytest.raises(SymbolNotFoundError, match="it has no kernel"):
        await compiler.compile(text, symbol)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('asm("bogus.op.s32 %0, 1;" : "=r"(*p));', "Unknown modifier"),
        (
            "__shared__ char b[65536]; b[*p] = 1; *p = b[7 - *p];",
            "^error: Entry .* shared data",
        ),
        ("extern __device__ int ext(int); *p = ext(1);", "Unresolved extern"),
    ],
)
async def test_an_error_of_ptxas_is_a_compile_error(
    compiler: Compiler, text: str, message: str
) -> None:
    """NVRTC's own getters report success after it."""
    with pytest.raises(CompileError, match=message) as caught:
        await compiler.compile(f'extern "C" __global__ void k(int* p) {{ {text} }}', "k")

    assert caught.value.diagnostics[0].severity is Severity.ERROR


async def test_one_bad_specialization_fails_alone(compiler: Compiler) -> None:
    """One bad name expression would fail a whole NVRTC program."""
    good, bad, unknown = await compiler.compile_all(
        [
            (SCALE, Specialization("plain", {"VAL": 1})),
            (SCALE, Specialization("nope", {"VAL": 1})),
            (b"bytes", "k"),  # type: ignore[list-item]
        ]
    )

    assert isinstance(good, Artifact)
    assert isinstance(bad, SymbolNotFoundError)
    assert isinstance(unknown, TypeError)


async def test_text_of_any_alphabet_compiles(compiler: Compiler) -> None:
    """UTF-8 in comments and strings, CRLF line ends and digraphs are C++."""
    source = Source(
        '// héllo 日本 😀\r\nextern "C" __global__ void k(int* p)'
        ' <% const char s[] = "é😀"; p<:0:> = sizeof(s); %>\r\n'
    )

    assert (await compiler.compile(source, "k")).entry == "k"


async def test_the_same_input_gives_the_same_bytes_in_every_process(
    tmp_path: Path,
) -> None:
    """Symbols with internal linkage would otherwise carry the process's number."""
    source = Source(
        "#include <cuda/ptx>\n"
        "namespace { __global__ void hidden(int* p) { *p = 1; } }\n"
        "template <class T> __global__ void k(T* p) { *p = 1; }\n"
    )

    async def compile_once(folder: str) -> list[Artifact | Exception]:
        async with Compiler("sm_90", cache_dir=tmp_path / folder, workers=1) as compiler:
            return await compiler.compile_all([(source, "k<float>"), (source, "hidden")])

    one, two = await asyncio.gather(compile_once("one"), compile_once("two"))
    assert [getattr(a, "output_digest", a) for a in one] == [
        getattr(a, "output_digest", a) for a in two
    ]


@pytest.mark.parametrize("target", ["sm_90a", "sm_80", "sm_100f"])
async def test_each_architecture_is_a_target(target: str) -> None:
    """Suffixes too; `wgmma` is known to sm_90a alone."""
    async with Compiler(target, workers=1) as compiler:
        artifact = await compiler.compile(SCALE, Specialization("plain", {"VAL": 1}))
    assert artifact.target == target


@pytest.mark.parametrize("target", ["sm_20", "sm_199"])
async def test_a_target_that_nvrtc_does_not_know_names_those_it_knows(target: str) -> None:
    """A GPU older or newer than the toolkit."""
    async with Compiler(target, workers=1) as compiler:
        with pytest.raises(
            ToolchainError, match=rf"does not know the target {target}.*sm_90"
        ):
            await compiler.compile(SCALE, Specialization("plain", {"VAL": 1}))


@pytest.mark.parametrize("target", ["compute_90", "90", "", "gpu"])
def test_what_is_no_target_is_refused(target: str) -> None:
    """`compute_` gives PTX, for which NVRTC's cubin is empty."""
    with pytest.raises(SpecificationError, match="target"):
        Compiler(target)


async def test_an_arch_option_must_be_the_compilers_target(compiler: Compiler) -> None:
    """NVRTC would take the last one and only warn."""
    same = Specialization("plain", {"VAL": 1}, ("-arch=sm_90",))
    other = Specialization("plain", {"VAL": 1}, ("-arch=sm_80",))

    assert compiler.key(SCALE, same) == compiler.key(
        SCALE, Specialization("plain", {"VAL": 1})
    )
    with pytest.raises(SpecificationError, match="sm_80"):
        compiler.key(SCALE, other)


async def test_the_identity_names_version_digest_and_headers(compiler: Compiler) -> None:
    """The version alone lacks the patch level; no path enters."""
    assert "nvrtc 1" in compiler.identity
    assert "CUDA_VERSION" in compiler.identity
    assert "CCCL_VERSION" in compiler.identity
    assert "/" not in compiler.identity


async def test_no_nvrtc_is_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install."""
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", None)
    monkeypatch.delattr("cuda.pathfinder", raising=False)

    with pytest.raises(ToolchainError, match=r"kernels_async\[cuda13\]"):
        await Compiler("sm_90").__aenter__()


async def test_precompiled_headers_do_not_change_the_bytes(tmp_path: Path) -> None:
    """So that a worker may use them, and another machine need not."""
    program = (
        "import sys\n"
        "from blake3 import blake3\n"
        "from cuda.bindings import nvrtc\n"
        "from kernels_async.toolchains import find\n"
        "text = b'#include <cuda/std/cstdint>\\n'\n"
        "text += b'extern \"C\" __global__ void k%d(int* p) { *p = %d; }\\n'\n"
        "def compile(number, *more):\n"
        "    source = text % (number, number)\n"
        "    _, p = nvrtc.nvrtcCreateProgram(source, b'k.cu', 0, [], [])\n"
        "    options = [b'-arch=sm_90', b'--frandom-seed=x', *more]\n"
        "    options += [b'-I' + d.encode() for d in find('sm_90').include_dirs]\n"
        "    status, = nvrtc.nvrtcCompileProgram(p, len(options), options)\n"
        "    assert status.value == 0, status\n"
        "    data = bytes(nvrtc.nvrtcGetCUBINSize(p)[1])\n"
        "    nvrtc.nvrtcGetCUBIN(p, data)\n"
        "    return blake3(data).hexdigest(), nvrtc.nvrtcGetPCHCreateStatus(p)[0].name\n"
        "nvrtc.nvrtcSetPCHHeapSize(1 << 28)\n"
        "without = compile(2)[0]\n"
        "made = compile(1, b'--pch', b'--pch-dir=' + sys.argv[1].encode())[1]\n"
        "used = compile(2, b'--pch', b'--pch-dir=' + sys.argv[1].encode())[0]\n"
        "print(made, used == without)\n"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, str(tmp_path)),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()

    assert out.decode().split() == ["NVRTC_SUCCESS", "True"]


async def test_messages_of_headers_lines_and_instantiations_keep_their_place(
    compiler: Compiler,
) -> None:
    """A header's, a `#line`'s, a note of an error, and what was being instantiated."""
    source = Source(
        '#include "part.h"\n'
        'template <int N> __device__ void check() { static_assert(N % 2 == 0, "even"); }\n'
        "template <int N> __global__ void k(int* p) {\n"
        "  check<N>();\n"
        '#line 500 "generated.py"\n'
        "  *p = lost;\n"
        "}\n",
        {"part.h": "\n\n__device__ int f() { return missing; }\n"},
    )
    with pytest.raises(CompileError) as caught:
        await compiler.compile(source, "k<3>")

    errors = [d for d in caught.value.diagnostics if d.severity is Severity.ERROR]
    places = [(d.file, d.line) for d in errors]
    assert places == [("part.h", 3), ("generated.py", 500), ("kernel.cu", 2)]
    last = caught.value.diagnostics[caught.value.diagnostics.index(errors[-1]) :]
    chain = "".join(d.excerpt for d in last if d.line == 2)
    assert 'instantiation of "void check<N>() [with N=3]" at line 4' in chain


async def test_hostile_text_in_a_message_is_made_visible(compiler: Compiler) -> None:
    """A log goes to terminals."""
    with pytest.raises(CompileError) as caught:
        await compiler.compile('#error "\x1b[31mred\x07"\n__global__ void k() {}\n', "k")

    everything = f"{caught.value}{caught.value.log}{caught.value.diagnostics!r}"
    assert "\\u001b[31mred\\u0007" in str(caught.value)
    assert "\x1b" not in everything
    assert "\x07" not in everything


async def test_a_mangled_symbol_is_told_to_be_written_as_cpp(compiler: Compiler) -> None:
    """NVRTC takes names as C++ writes them."""
    with pytest.raises(SymbolNotFoundError, match=r"hint: a symbol is written as in C\+\+"):
        await compiler.compile(SCALE, Specialization("_Z5scaleIfLi4EEvPT_", {"VAL": 1}))


@pytest.mark.parametrize(
    "text",
    [
        "__global__ void k(int n, int* p) { float a[n]; *p = a[0]; }\n",
        "__device__ void g(int*);\n__global__ void k(int* p) { g(p, p, p); }\n",
        "__global__ void k(int* p) { *p = halfway; }\n",
    ],
)
async def test_an_error_without_a_usual_cause_has_no_hint(
    compiler: Compiler, text: str
) -> None:
    """A wrong hint is worse than none."""
    with pytest.raises(CompileError) as caught:
        await compiler.compile(text, "k")
    assert "hint:" not in str(caught.value)


@pytest.mark.parametrize("name", ["cuda_utils.h", "nvec.h", "cubic.cuh", "complex_ops"])
async def test_a_missing_header_of_the_users_is_not_the_toolkits(
    compiler: Compiler, name: str
) -> None:
    """Whatever its name begins with."""
    with pytest.raises(CompileError, match=r"hint: pass the header's text"):
        await compiler.compile(f'#include "{name}"\n__global__ void k() {{}}\n', "k")
