"""Tests of `Compiler(slim=True)`: real NVRTC and nvJitLink, without a GPU.

Equal machine code is the proof of equal results: what a GPU runs is what is compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from io import BytesIO
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from kernels_async import (
    Artifact,
    CompileError,
    CompileMemoryError,
    Compiler,
    Kernels,
    Source,
    Specialization,
    SpecificationError,
    SymbolNotFoundError,
    ToolchainError,
)
from kernels_async._compiler import shared_compiler
from kernels_async.toolchains import Job, find
from kernels_async.toolchains._cubin import symbols
from kernels_async.toolchains._nvjitlink import Linker, _failed
from kernels_async.toolchains._ptx import Variable, used_variables
from tests.processes import GOOD, children

ARITHMETIC = Source("""
__device__ __noinline__ float choose(float x, int n) {
  switch (n) {
    case 1: return x * 3;
    case 2: return sinf(x);
    case 3: return x / 7;
    case 4: return sqrtf(x);
    case 5: return x * x + 1;
    case 6: return expf(x);
    default: return x;
  }
}
extern "C" __global__ void k(float* p, float* q, int n) {
  extern __shared__ float dynamic[];
  __shared__ float fixed[40];
  char buffer[64];
  float v[40];
  for (int i = 0; i < 40; i++) v[i] = p[i * 32 + threadIdx.x];
  for (int r = 0; r < 8; r++)
    for (int i = 0; i < 40; i++)
      v[i] = v[i] * v[(i * 7 + r) % 40] + v[(i + r) % 40] / (q[i] + 1e-3f);
  for (int i = 0; i < 40; i++) p[i * 32 + threadIdx.x] = sqrtf(v[i]) + choose(v[i], n);
  for (int i = 0; i < n; i++) fixed[i] = dynamic[i], buffer[i] = p[i];
  __syncthreads();
  for (int i = 0; i < n; i++) q[i] = fixed[n - i] * 2.f + q[i] + buffer[n - i];
}
""")
GLOBALS = Source("""
__device__ int only_the_host_sets = 5;
__constant__ int constant_of_the_host = 3;
__constant__ float table[100];
__device__ int only_the_host_reads;
static __device__ int internal = 9;
namespace n {
  __device__ int named = 2;
  namespace { __device__ int hidden = 4; }
  template <class T> __device__ T generic = 5;
}
__device__ int twice(int x) { return 2 * x; }
__device__ int thrice(int x) { return 3 * x; }
__device__ int (*calls[2])(int) = {twice, thrice};
__device__ int pointed = 6;
__device__ int* pointer = &pointed;
extern "C" __global__ void k(int* p) {
  static __device__ int local = 7;
  int text;
  asm volatile("ld.global.u32 %0, [only_in_assembly];" : "=r"(text));
  only_the_host_reads = text;
  p[0] = only_the_host_sets * constant_of_the_host + table[p[7]] + internal + n::named;
  p[1] = calls[p[0] & 1](n::generic<int>) + n::hidden + *pointer + local++;
}
""".replace("__device__ int pointed", "__device__ int only_in_assembly = 8;\n__device__ int pointed"))  # fmt: skip
BOUNDED = Source(
    "__global__ void __launch_bounds__(96) k(int* p) { extern __shared__ int s[]; *p = s[*p]; }\n"
)
CUB = Source("""
#include <cub/block/block_reduce.cuh>
template <class T, int N> __global__ void k(const T* x, T* y) {
  using Reduce = cub::BlockReduce<T, N>;
  __shared__ typename Reduce::TempStorage storage;
  T sum = Reduce(storage).Sum(x[blockIdx.x * N + threadIdx.x]);
  if (threadIdx.x == 0) y[blockIdx.x] = sum;
}
""")
AT_THE_LINK = [
    ("--maxrregcount=32",),
    ("--ftz=true",),
    ("--prec-div=false",),
    ("--prec-sqrt=false",),
    ("--fmad=false",),
    ("--use_fast_math",),
    ("--use_fast_math", "--ftz=false"),
    ("--prec-div=true", "--use_fast_math"),
    ("--fmad=false", "--use_fast_math"),
    ("--Ofast-compile=max",),
    ("--Ofast-compile=min",),
    ("--jump-table-density=0",),
    ("--device-stack-protector=true",),
    ("--ptxas-options=-O1",),
    ("--ptxas-options=-O0",),
    ("--ptxas-options=--register-usage-level=0",),
    ("--ptxas-options=-maxrregcount=64", "--maxrregcount=32"),
    ("--ptxas-options=-dlcm=cg",),
]
NOT_IN_THE_CODE = [
    (),
    ("--ftz=true", "--ftz=false"),
    ("--generate-line-info",),
    ("--Ofast-compile=0",),
    ("--split-compile=2",),
    ("--minimal",),
    ("--std=c++20",),
    ("--dopt=on",),
]


@pytest.fixture
async def plain(compiler: Compiler) -> Compiler:
    """A compiler that is not slim."""
    return compiler


@pytest.fixture
async def slim(cache_dir: Path) -> AsyncIterator[Compiler]:
    """One that is, and beyond that equal."""
    async with Compiler("sm_90", workers=2, slim=True) as compiler:
        yield compiler


async def both(
    plain: Compiler, slim: Compiler, source: Source | str, *specs: Specialization | str
) -> list[tuple[Artifact, Artifact]]:
    """Each artifact without and with slim."""
    requests = [(source, spec) for spec in specs]
    found = await asyncio.gather(plain.compile_all(requests), slim.compile_all(requests))
    pairs = []
    for one, two in zip(*found, strict=True):
        assert isinstance(one, Artifact), one
        assert isinstance(two, Artifact), two
        pairs.append((one, two))
    return pairs


def section(artifact: Artifact, name: str) -> bytes:
    """The bytes of a section of its cubin."""
    found = ELFFile(BytesIO(artifact.bytes)).get_section_by_name(name)
    return b"" if found is None else bytes(found.data())


def variables(artifact: Artifact) -> dict[str, int]:
    """The sizes of its cubin's variables."""
    table = ELFFile(BytesIO(artifact.bytes)).get_section_by_name(".symtab")
    assert isinstance(table, SymbolTableSection)
    return {
        symbol.name: symbol["st_size"]
        for symbol in table.iter_symbols()
        if symbol["st_info"]["type"] == "STT_OBJECT"
    }


def code(artifact: Artifact) -> bytes:
    """Its kernel's machine code."""
    found = section(artifact, f".text.{artifact.entry}")
    assert found
    return found


def with_options(options: Iterable[tuple[str, ...]]) -> list[Specialization]:
    """The kernel `k`, once with each of the options."""
    return [Specialization("k", options=each) for each in options]


async def test_every_option_that_changes_the_code_changes_it_alike(
    plain: Compiler, slim: Compiler
) -> None:
    """The machine code is that without slim, and not that without the option."""
    ((usual, _),) = await both(plain, slim, ARITHMETIC, "k")
    pairs = await both(plain, slim, ARITHMETIC, *with_options(AT_THE_LINK))

    codes = await asyncio.to_thread(lambda: [(code(one), code(two)) for one, two in pairs])
    unchanged = code(usual)
    told = [*zip(AT_THE_LINK, pairs, codes, strict=True)]
    assert [option for option, _, (one, two) in told if one != two] == []
    assert [o for o, (one, two), _ in told if one.resources != two.resources] == []
    assert [option for option, _, (one, _) in told if one == unchanged] == []


async def test_other_options_leave_the_code_as_it_is(
    plain: Compiler, slim: Compiler
) -> None:
    """With the same resources and diagnostics; line information is there."""
    pairs = await both(plain, slim, ARITHMETIC, *with_options(NOT_IN_THE_CODE))

    both_of_each = [artifact for pair in pairs for artifact in pair]
    codes = await asyncio.to_thread(lambda: [*map(code, both_of_each)])
    assert [one == codes[0] for one in codes] == [True] * 16
    assert [one.resources == two.resources for one, two in pairs] == [True] * 8
    assert [one.diagnostics == two.diagnostics for one, two in pairs] == [True] * 8
    lines = [bool(section(two, ".debug_line")) for _, two in pairs]
    assert lines == ["--generate-line-info" in options for options in NOT_IN_THE_CODE]


async def test_resources_are_told_as_without(plain: Compiler, slim: Compiler) -> None:
    """Registers, spills, stack, shared memory, barriers and launch bounds."""
    spec = Specialization("k", options=("--maxrregcount=32",))
    ((one, two),) = await both(plain, slim, ARITHMETIC, spec)

    assert two.resources == one.resources
    assert two.resources is not None
    assert two.resources.registers == 32
    assert two.resources.spill_stores > 0
    assert two.resources.spill_loads > 0
    assert two.resources.stack > 0
    assert two.resources.shared == 160
    assert two.resources.barriers == 1
    ((one, two),) = await both(plain, slim, BOUNDED, "k")
    assert two.resources == one.resources
    assert two.resources is not None
    assert two.resources.max_threads == 96


async def test_variables_of_the_host_are_neither_folded_nor_lost(
    plain: Compiler, slim: Compiler
) -> None:
    """What the host may set is read, what it may read is written, each by its name."""
    ((one, two),) = await both(plain, slim, GLOBALS, "k")

    assert variables(two) == variables(one)
    assert variables(two).keys() > {"only_the_host_sets", "only_the_host_reads", "internal"}
    assert section(two, ".nv.constant3") == section(one, ".nv.constant3")
    assert section(two, ".nv.global.init")
    assert len(code(two)) == len(code(one))
    assert two.resources == one.resources


async def test_only_what_the_kernel_uses_stays(slim: Compiler) -> None:
    """Other kernels, and the variables that only those use, go."""
    source = Source(
        "__constant__ int mine[4]; __constant__ int others[900]; __device__ int nobodys = 1;\n"
        'extern "C" __global__ void asked(int* p) { *p = mine[*p]; }\n'
        'extern "C" __global__ void other(int* p) { *p = others[*p]; }\n'
    )
    asked = await slim.compile(source, "asked")

    assert {"mine", "asked"} <= symbols(asked.bytes)
    assert not {"others", "nobodys", "other"} & symbols(asked.bytes)
    assert asked.resources is not None
    assert asked.resources.constant == 16


async def test_a_toolkits_headers_leave_nothing_behind(
    plain: Compiler, slim: Compiler
) -> None:
    """The same code in a small fraction of the bytes."""
    ((one, two),) = await both(plain, slim, CUB, "k<float, 128>")

    assert code(two) == code(one)
    assert two.entry == one.entry
    assert two.resources == one.resources
    assert len(symbols(one.bytes)) > 500
    assert len(symbols(two.bytes)) < 20
    assert len(two.bytes) < len(one.bytes) / 10


async def test_the_same_input_gives_the_same_bytes_in_every_process(tmp_path: Path) -> None:
    """Whatever was compiled before; and no name of this machine is in them."""
    requests: list[tuple[Source | str, Specialization | str]] = [
        (GLOBALS, "k"),
        ("namespace { __global__ void hidden(int* p) { *p = 1; } }\n", "hidden"),
        (ARITHMETIC, Specialization("k", options=("--use_fast_math",))),
        (ARITHMETIC, "k"),
    ]

    async def compile_all(name: str, order: int) -> list[Artifact | Exception]:
        folder = tmp_path / name
        async with Compiler("sm_90", cache_dir=folder, workers=1, slim=True) as compiler:
            return (await compiler.compile_all(requests[::order]))[::order]

    one, two = await asyncio.gather(compile_all("one", 1), compile_all("two", -1))
    assert [getattr(a, "output_digest", a) for a in one] == [
        getattr(a, "output_digest", a) for a in two
    ]
    for artifact in one:
        assert isinstance(artifact, Artifact)
        for name in (b"/tmp", str(tmp_path).encode(), str(Path.cwd()).encode()):
            assert name not in artifact.bytes


@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90a", "sm_100", "sm_100f"])
async def test_each_architecture_is_a_target(target: str, tmp_path: Path) -> None:
    """With the machine code that it has without slim."""
    async with (
        Compiler(target, workers=1, cache_dir=tmp_path / "plain") as plain,
        Compiler(target, workers=1, cache_dir=tmp_path / "slim", slim=True) as slim,
    ):
        ((one, two),) = await both(plain, slim, ARITHMETIC, "k")
    assert two.target == target
    assert code(two) == code(one)


@pytest.mark.parametrize(
    ("text", "symbol", "kind", "message"),
    [
        ("__global__ void other() {}", "k", SymbolNotFoundError, "it has other"),
        ("__device__ int k() { return 1; }", "k", SymbolNotFoundError, "no kernel"),
        ("__global__ void k() { lost; }", "k", CompileError, r"^kernel\.cu:1:23: error"),
        (
            '__global__ void k(int* p) { asm("bogus.op.s32 %0, 1;" : "=r"(*p)); }',
            "k",
            CompileError,
            "Unknown modifier",
        ),
        (
            "__global__ void k(int* p) { __shared__ char b[65536]; b[*p] = 1; *p = b[9]; }",
            "k",
            CompileError,
            "(?s)^error: Entry .* shared data.*hint: more than 48 KB",
        ),
        (
            "__device__ int ext(int); __global__ void k(int* p) { *p = ext(1); }",
            "k",
            CompileError,
            "(?s)Unresolved extern function.*hint: a kernel is compiled whole",
        ),
        (
            "__global__ void c() {} __global__ void k() { c<<<1, 1>>>(); }",
            "k",
            CompileError,
            "device-side kernel launch could not be processed",
        ),
    ],
)
async def test_an_error_is_what_it_is_without(
    plain: Compiler,
    slim: Compiler,
    text: str,
    symbol: str,
    kind: type[Exception],
    message: str,
) -> None:
    """Of the front end, of ptxas, and of the symbol: kind, text and diagnostics."""
    told = []
    for compiler in (plain, slim):
        with pytest.raises(CompileError, match=message) as caught:
            await compiler.compile(text, symbol)
        assert type(caught.value) is kind
        told.append((str(caught.value), caught.value.diagnostics))
    assert told[0] == told[1]


async def test_a_source_does_not_see_that_it_is_linked(slim: Compiler) -> None:
    """Else headers would declare what a kernel that is compiled whole does not have."""
    text = "#ifdef __CUDACC_RDC__\n#error linked\n#endif\n__global__ void k() {}\n"

    assert isinstance(await slim.compile(text, "k"), Artifact)


async def test_warnings_are_those_without(plain: Compiler, slim: Compiler) -> None:
    """Of the front end and of ptxas, and none where none are wanted."""
    text = (
        "__device__ int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }\n"
        "__global__ void k(int* p) { int unused; *p = fib(*p); }\n"
    )
    pairs = await both(
        plain, slim, text, *with_options([(), ("--disable-warnings",)])
    )  # fmt: skip

    assert [two.diagnostics == one.diagnostics for one, two in pairs] == [True, True]
    assert [w.message.split()[0] for w in pairs[0][1].warnings] == ["variable", "Stack"]
    assert pairs[1][1].diagnostics == ()


@pytest.mark.parametrize(
    "option",
    ["-G", "-ewp", "-restrict", "-extra-device-vectorization", "-opt-info=inline"],
)
async def test_an_option_that_a_link_cannot_honour_is_refused_at_once(
    plain: Compiler, slim: Compiler, option: str
) -> None:
    """Before anything is compiled, and only there."""
    spec = Specialization("k", options=(option,))

    assert plain.key(ARITHMETIC, spec)
    with pytest.raises(SpecificationError, match="does not go with slim=True"):
        slim.key(ARITHMETIC, spec)
    with pytest.raises(SpecificationError, match="does not go with slim=True"):
        await slim.compile(ARITHMETIC, spec)


@pytest.mark.parametrize(("target", "slim"), [("cpu", True), ("sm_90", 1), ("cpu", None)])
def test_what_cannot_be_slim_is_refused(target: str, slim: bool) -> None:
    """The cpu target has no nvJitLink."""
    with pytest.raises(SpecificationError, match="slim is True or False"):
        Compiler(target, slim=slim)


async def test_the_cpu_device_cannot_be_slim() -> None:
    """`Kernels.open` says so too."""
    with pytest.raises(SpecificationError, match="for CUDA targets"):
        await Kernels.open("cpu", slim=True).__aenter__()


async def test_the_linker_is_in_the_identity_only_of_what_is_slim(
    plain: Compiler, slim: Compiler
) -> None:
    """So their artifacts have different keys, and explaining them says why."""
    added = slim.identity.removeprefix(plain.identity)

    assert "nvjitlink" not in plain.identity
    assert added.startswith(" nvjitlink 1")
    assert "/" not in slim.identity
    assert plain.key(GOOD, "good<1>") != slim.key(GOOD, "good<1>")
    assert shared_compiler("sm_90", slim=True) is not shared_compiler("sm_90")


async def test_nvjitlink_is_loaded_only_to_be_slim() -> None:
    """And a worker that is confined needs nothing more of the host."""
    for is_slim in (False, True):
        async with Compiler("sm_90", workers=1, slim=is_slim, sandbox="off") as compiler:
            await compiler.compile(GOOD, f"good<{is_slim:d}>")
            (worker,) = children()
            maps = Path(f"/proc/{worker}/maps").read_text()
        assert ("libnvJitLink" in maps) == is_slim
    assert find("sm_90", slim=True).access() == find("sm_90").access()


async def test_a_confined_worker_links(tmp_path: Path) -> None:
    """Errors too."""
    async with Compiler("sm_90", workers=1, slim=True, sandbox="require") as compiler:
        assert isinstance(await compiler.compile(GLOBALS, "k"), Artifact)
        with pytest.raises(CompileError, match="Unresolved"):
            await compiler.compile(
                "__device__ int f(); __global__ void k(int* p) { *p = f(); }", "k"
            )
        assert isinstance(await compiler.compile(CUB, "k<int, 64>"), Artifact)


async def test_no_nvjitlink_is_told_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is not slim does without."""
    from cuda import pathfinder

    load = pathfinder.load_nvidia_dynamic_lib

    def load_another(name: str) -> pathfinder.LoadedDL:
        if name == "nvJitLink":
            raise pathfinder.DynamicLibNotFoundError(name)
        return load(name)

    monkeypatch.setattr(pathfinder, "load_nvidia_dynamic_lib", load_another)
    async with Compiler("sm_90"):
        pass
    with pytest.raises(ToolchainError, match=r"nvJitLink .*\[cuda13-slim\]"):
        await Compiler("sm_90", slim=True).__aenter__()


@pytest.mark.parametrize("nvrtc", [(13, 99), (12, 9), (99, 0)])
def test_an_nvjitlink_for_another_nvrtc_is_refused(nvrtc: tuple[int, int]) -> None:
    """It links LTO-IR of its own major version, and not of a later minor one."""
    with pytest.raises(ToolchainError, match=rf"NVRTC {nvrtc[0]}\.{nvrtc[1]} makes"):
        Linker.find(nvrtc)


def test_what_nvjitlink_cannot_do_is_no_fault_of_the_source() -> None:
    """No LTO-IR, a target or an option that it does not know, no library."""
    version = find("sm_90").configuration()["version"]
    linker = Linker.find((version[0], version[1]))
    job = Job(ARITHMETIC, Specialization("k"), "sm_90")

    with pytest.raises(ToolchainError, match="failed: ERROR_INCORRECT_INPUT_TYPE"):
        linker.link(b"no LTO-IR", "k", job)
    with pytest.raises(ToolchainError, match=r"refuses -arch=sm_199 .*ERROR_"):
        linker.link(b"", "k", Job(ARITHMETIC, Specialization("k"), "sm_199"))
    with pytest.raises(ToolchainError, match="cannot be loaded"):
        Linker("/nowhere/libnvJitLink.so", "").load()


@pytest.mark.parametrize(
    "log", ["ERROR 3: ptxjit:ltoPtx\n", "ptxas fatal   : Memory allocation failure\n"]
)
def test_a_link_that_ran_out_of_memory_says_so(log: str) -> None:
    """Its log does not use the words."""
    with pytest.raises(CompileMemoryError, match="nvJitLink ran out of memory"):
        _failed("ERROR_PTX_COMPILE", log)


PTX = """
	// .globl	another_kernel
.visible .global .align 4 .u32 in_a_call = 5;
.visible .const .align 4 .b8 in_the_kernel[400];
.weak .global .align 8 .u64 points[2] = {generic(pointed), by_pointer};
.global .align 4 .u32 pointed;
.visible .global .attribute(.managed) .align 4 .u32 managed = 1;
.extern .global .align 4 .u32 elsewhere;
.visible .global .align 4 .u32 in_a_function_by_pointer;
.visible .global .align 4 .u32 nobodys = 7;
.visible .global .align 4 .u32 another_kernels;
.visible .global .align 4 .u32 aliased;
.visible .global .align 4 .u32 r1;
.extern .func  (.param .b32 func_retval0) called
(
	.param .b32 called_param_0
)
;
.alias elsewhere_function, aliased;
.visible .entry another_kernel(
	.param .u64 another_kernel_param_0
)
{
	st.global.u32 	[another_kernels], %r2;
	ret;
}
.visible .func  (.param .align 16 .b8 func_retval0[16]) called(
	.param .b32 called_param_0
)
{
	ld.global.u32 	%r1, [in_a_call];
	ret;
}
.func by_pointer()
{
	ld.global.u32 	%r1, [in_a_function_by_pointer];
}
	// .weak	k
.weak .entry k(
	.param .u64 k_param_0
)
.maxntid 128, 1, 1
{
	{ // callseq 0, 0
	call.uni (retval0), called, (param0);
	} // callseq 0
	mov.u64 	%rd4, in_the_kernel+4;
	ld.global.u64 	%rd5, [points];
	ld.global.u32 	%r1, [elsewhere];
	ld.global.u32 	%r1, [managed];
	ret;
}
"""


def test_the_variables_of_a_kernel_are_what_it_reaches_by_name() -> None:
    """Through calls, pointers and initial values; what is not understood counts."""
    found = used_variables(PTX, "k")

    assert found == [
        Variable("in_a_call", is_exported=True),
        Variable("in_the_kernel", is_exported=True),
        Variable("points", is_exported=True),
        Variable("pointed", is_exported=False),
        Variable("managed", is_exported=True),
        Variable("elsewhere", is_exported=False),
        Variable("in_a_function_by_pointer", is_exported=True),
        Variable("aliased", is_exported=True),
    ]
    of_the_other = [variable.name for variable in used_variables(PTX, "another_kernel")]
    assert of_the_other == ["another_kernels", "aliased"]


def test_a_brace_in_assembly_text_loses_no_variable() -> None:
    """It ends the kernel, for who reads lines; the rest counts as used."""
    asm = "{\n\t{\n.reg .u32 t;\n}\n\t// end inline asm\n"
    text = PTX.replace(".maxntid 128, 1, 1\n{\n", f".maxntid 128, 1, 1\n{asm}")

    assert asm in text
    assert used_variables(text, "k") == used_variables(PTX, "k")
