"""Inputs that went wrong for people elsewhere, each with its right result here.

The letters name the kind of the case: NX name expressions, HD headers, TX text, OP options,
AR architectures, RS resources, GV globals, DG diagnostics, PT inline PTX, LK linking,
DB debugging, FM fast math, SL slow ones. All of them go through real NVRTC.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels_async import (
    Artifact,
    CompileError,
    Compiler,
    Kernels,
    Severity,
    Source,
    Specialization,
    SpecificationError,
    SymbolNotFoundError,
    ToolchainError,
)

K = 'extern "C" __global__ void k(int* p) '
ONE = K + "{ *p = 1; }\n"
VAL = K + "{ *p = VAL; }\n"
SCALE = "template <class T, int N>\n__global__ void scale(T* p) { p[threadIdx.x] *= N; }\n"
LIST = "L<1,2,3,4,5,6,7,8,9>"
LONG = "k<" + f"P<{LIST}," * 60 + "int" + ">" * 61


@dataclass(frozen=True)
class Case:
    """One input and what is right for it.

    Attributes:
        text: The source.
        entry: The lowered name that the artifact has, where it compiles.
        symbol: The symbol that is asked for.
        options: NVRTC's options.
        headers: The source's headers.
        target: The compiler's target.
        error: The error, where it does not compile, and a pattern of its text.
        warns: The codes of its warnings.
        says: A pattern of one of its diagnostics.
        value: What the kernel writes, on the cpu device.
    """

    text: Any
    entry: str = "k"
    symbol: str = "k"
    options: tuple[str, ...] = ()
    headers: dict[str, str] = field(default_factory=dict)
    target: str = "sm_90"
    error: tuple[type[Exception], str] | None = None
    warns: tuple[str, ...] = ()
    says: str = ""
    value: int | None = None


def fails(text: Any, error: type[Exception], pattern: str, **more: Any) -> Case:
    """A case that ends in an error."""
    return Case(text, error=(error, pattern), **more)


def named(symbol: str, entry: str, text: str = SCALE, **more: Any) -> Case:
    """A case about a symbol."""
    return Case(text, entry, symbol, **more)


FS = "__global__ void f(int* p) { *p = 1; }\n__global__ void f(float* p) { *p = 1; }\n"
DS = "template <class T = float, int N = 8> __global__ void d(T* p) { p[0] = N; }\n"
M = "#define T float\ntemplate <class X, int M> __global__ void k(X* p) { *p = M; }\n"
WGMMA = K + '{ asm volatile("wgmma.fence.sync.aligned;"); *p = 1; }\n'
BOGUS = K + '{ int r; asm("bogus.op.s32 %0, 1;" : "=r"(r)); *p = r; }\n'
SHARED = (
    'extern "C" __global__ void k(char* p) {\n  __shared__ char b[65536];\n'
    "  b[threadIdx.x] = p[threadIdx.x];\n  __syncthreads();\n"
    "  p[threadIdx.x] = b[1023 - threadIdx.x];\n}\n"
)
EXT = f"extern __device__ int ext(int);\n{K}{{ *p = ext(1); }}\n"
CDP = 'extern "C" __global__ void c(int* p) { *p = 1; }\n' + K + "{ c<<<1, 1>>>(p); }\n"
PTX_ONLY = (SpecificationError, "-arch=compute_90 is not the compiler's target")

CASES = {
    "NX-01": named("scale<float, 4>", "_Z5scaleIfLi4EEvPT_"),
    "NX-02a": named("scale<float,4>", "_Z5scaleIfLi4EEvPT_"),
    "NX-02b": named(" scale < float , 4 > ", "_Z5scaleIfLi4EEvPT_"),
    "NX-02c": named("scale<float, 2+2>", "_Z5scaleIfLi4EEvPT_"),
    "NX-02d": named("::scale<float,4>", "_Z5scaleIfLi4EEvPT_"),
    "NX-02e": named("&scale<float,4>", "_Z5scaleIfLi4EEvPT_"),
    "NX-02f": named("scale<float,4>/*x*/", "_Z5scaleIfLi4EEvPT_"),
    "NX-04": fails(SCALE, SymbolNotFoundError, 'scale<flaot,4>.*identifier "flaot"',
                   symbol="scale<flaot,4>"),
    "NX-05": fails(SCALE, SymbolNotFoundError, 'identifier "nope"', symbol="nope<int>"),
    "NX-07": fails(FS, SymbolNotFoundError, r"(?s)overloaded.*hint: .*\(void\(\*\)\(float\*\)\)",
                   symbol="f"),
    "NX-08a": named("(void(*)(int*))f", "_Z1fPi", FS),
    "NX-08b": named("static_cast<void(*)(float*)>(f)", "_Z1fPf", FS),
    "NX-11": fails(ONE, SpecificationError, "drop it", options=("--frandom-seed=k1",)),
    "NX-13a": named("k<T,N>", "_Z1kIfLi5EEvPT_", M, options=("-DN=5",)),
    "NX-13b": named("k<T,N*2>", "_Z1kIfLi10EEvPT_", M, options=("-DN=5",)),
    "NX-13c": named("k<T,__CUDA_ARCH__/100>", "_Z1kIfLi9EEvPT_", M, options=("-DN=5",)),
    "NX-14": fails("template <class X> struct w { X x; };\n"
                   "template <class P> __global__ void k(P* p) {}\n",
                   SymbolNotFoundError, "space required between adjacent",
                   symbol="k<w<int>>", options=("--std=c++03",)),
    "NX-15": named("k<w<int>>", "_Z1kI1wIiEEvPT_",
                   "template <class X> struct w { X x; };\n"
                   "template <class P> __global__ void k(P* p) {}\n",
                   options=("--std=c++11",)),
    "NX-16a": named("d<>", "_Z1dIfLi8EEvPT_", DS),
    "NX-16b": named("d<float>", "_Z1dIfLi8EEvPT_", DS),
    "NX-16c": named("d<float,8>", "_Z1dIfLi8EEvPT_", DS),
    "NX-17": fails(DS, SymbolNotFoundError, r"(?s)d<T, N>.*hint: d<T, N> is a template",
                   symbol="d"),
    "NX-19": fails(SCALE, SymbolNotFoundError, "name an instantiation", symbol="scale"),
    "NX-20": Case(ONE, value=1),
    "NX-22": named("a::k", "k", f"namespace a {{ {ONE} }}\n"),
    "NX-23": fails('extern "C" {\ntemplate <class T> __global__ void k(T* p) { *p = 1; }\n}\n',
                   CompileError, r"kernel\.cu:2.*may not have extern", symbol="k<int>"),
    "NX-25": fails(ONE + ONE, CompileError, r"kernel\.cu:2.*already been defined .*line 1"),
    "NX-26": fails("struct S { static __global__ void k(int* p) { *p = 1; } };\n",
                   CompileError, "cannot be a member function", symbol="S::k"),
    "NX-28": fails("namespace n { __device__ int d = 3; }\n"
                   "__global__ void k(int* p) { *p = n::d; }\n",
                   SymbolNotFoundError, r"(?s)hint: a symbol names a kernel.*get_global",
                   symbol="n::d"),
    "NX-29": fails("template <class F> __global__ void l(F f, int* p) { *p = f(2); }\n"
                   "__device__ auto g = [](int x) { return x * 2; };\n",
                   CompileError, "(?s)inferred to be __host__.*hint: .*-default-device",
                   symbol="l<decltype(g)>", options=("--std=c++17",)),
    "HD-01": Case(f"#include <cuda_fp16.h>\n{ONE}"),
    "HD-02": Case('#include <cuda_fp16.h>\nextern "C" __global__ void k(__half h, __half2 v, '
                  "__half* p) { *p = h + v.x; }\n"),
    "HD-04": Case(f"#include <cuda/std/cstdint>\n{ONE}"),
    "HD-05": Case(f"#include <cooperative_groups.h>\n{ONE}"),
    "HD-07": Case(f"#include <mma.h>\n{ONE}"),
    "HD-08": Case(f"#include <cub/block/block_reduce.cuh>\n{ONE}"),
    "HD-10": fails(f"#include <thrust/device_vector.h>\n{ONE}", CompileError,
                   "(?s)hint: NVRTC has no host"),
    "HD-11": fails(f"#include <cuda.h>\n{ONE}", CompileError,
                   '(?s)"stdlib.h".*hint: NVRTC has no host headers'),
    "HD-13": fails(K + "{ cudaGridDependencySynchronize(); *p = 1; }\n", CompileError,
                   'identifier "cudaGridDependencySynchronize" is undefined'),
    "HD-14": fails(ONE, SpecificationError, "writes files",
                   options=("--use-bundled-headers=/tmp/x",)),
    "HD-16": fails(ONE, SpecificationError, r"Source\(headers=", options=('-I"/tmp/inc dir"',)),
    "HD-17": fails(ONE, SpecificationError, r"Source\(headers=", options=("-I/a -I/b",)),
    "HD-23": Case(f'#include "v.h"\n{VAL}', headers={"v.h": "#define VAL 99\n"}, value=99),
    "HD-25": fails(f'#include "not_here.h"\n#include "also_not.h"\n{ONE}', CompileError,
                   r"(?s)kernel\.cu:1.*not_here\.h.*hint: .*Source\.load"),
    "HD-26": Case(f'#if 0\n#include "not_here.h"\n#endif\n{ONE}', value=1),
    "HD-29a": Case(f"#include HDR\n{VAL}", options=('-DHDR="v.h"',),
                   headers={"v.h": "#define VAL 1\n"}, value=1),
    "HD-29b": Case(f"#include HDR\n{VAL}", options=("-DHDR=<v.h>",),
                   headers={"v.h": "#define VAL 1\n"}, value=1),
    "HD-32": fails(f'#include "c1.h"\n{ONE}', CompileError, "includes itself",
                   headers={"c1.h": '#include "c2.h"\n', "c2.h": '#include "c1.h"\n'}),
    "HD-34": fails(f'#include "a/o.h"\n#include "b/o.h"\n{ONE}', CompileError,
                   r"b/o\.h:2.*already been defined",
                   headers={f"{d}/o.h": "#pragma once\n__device__ inline int f() { return 1; }\n"
                            for d in "ab"}),
    "HD-35": fails(VAL, SpecificationError, r"Source\(headers=", options=("--pre-include=v.h",)),
    "HD-37": Case(f'#include "g.h"\n#ifndef VAL\n#define VAL 5\n#endif\n{VAL}',
                  options=("-DG_H",), value=5,
                  headers={"g.h": "#ifndef G_H\n#define G_H\n#define VAL 1\n#endif\n"}),
    "HD-38": Case(f'#include "v.h"\n{VAL}', headers={"v.h": "\ufeff#define VAL 3\n"}, value=3),
    "TX-01": Case("\ufeff" + ONE, value=1),
    "TX-02": Case(ONE.replace("\n", "\r\n") + "#define M(x) \\\r\n (x)\r\n", value=1),
    "TX-04": fails(ONE + '\0extern "C" __global__ void tail(int* p) {} #error no',
                   SpecificationError, "NUL"),
    "TX-05": fails(ONE.encode() + b"// \xff\n", TypeError, "string"),
    "TX-07": Case(f'// héllo 日本 😀\n{K}{{ const char s[] = "é😀"; *p = sizeof(s); }}\n', value=7),
    "TX-08": fails('extern "C" __global__ void kérnel(int* é) { *é = 1; }\n', CompileError,
                   "(?s)unrecognized token.*hint: .*not C", symbol="kérnel"),
    "TX-10": fails(K + "{ *p = undefd; } // café\n", CompileError, 'identifier "undefd"'),
    "TX-11": fails("// nothing here\n", SymbolNotFoundError, "it has no kernel"),
    "TX-13": Case(("// " + "y" * 96 + "\n") * 40_000 + ONE),
    "TX-14": fails(K + "{ *p =\xa01; }\n", CompileError,
                   "(?s)unrecognized token.*hint: .*non-breaking space"),
    "TX-16": fails(f'#include "kernel.cu"\n{ONE}', CompileError, r"kernel\.cu"),
    "TX-17": Case('extern "C" __global__ void k(int* p) <% p<:0:> = 1; %>\n', value=1),
    "OP-01": Case(VAL, options=("-DVAL=(1+2)*3",), value=9),
    "OP-02": Case(K + "{ *p = sizeof(STR); }\n", options=('-DSTR="a b"',), value=4),
    "OP-04": Case(K + "{ *p = MX(3,4); }\n", options=("-DMX(a,b)=((a)>(b)?(a):(b))",), value=4),
    "OP-05": fails(VAL, SpecificationError, "identifier", options=("-DVAL =6",)),
    "OP-07": fails(VAL, CompileError, "expected an expression", options=("-DVAL=",)),
    "OP-08": fails(VAL, SpecificationError, "second define", options=("-DVAL=3 -DB=4",)),
    "OP-10": fails(VAL, SpecificationError, "given twice", options=("-DVAL=2", "-DVAL=1")),
    "OP-11": fails(VAL, SpecificationError, "both defined", options=("-DVAL=3", "-UVAL")),
    "OP-13": fails(ONE, SpecificationError, "control character", options=('-DSTR="a\nb"',)),
    "OP-14": fails(ONE, SpecificationError, "given twice", options=("-arch=sm_90", "-arch=sm_80")),
    "OP-16": Case(ONE, options=("-arch", "sm_90")),
    "OP-17": fails(ONE, SpecificationError, "own string", options=("-Xptxas -v",)),
    "OP-19": fails(ONE, SpecificationError, "unknown option '-'", options=tuple("-arch=sm_90")),
    "OP-20": fails(ONE, SpecificationError, "empty", options=("",)),
    "OP-22": fails(ONE, SpecificationError, "needs a value", options=("-G", "-dopt")),
    "OP-23": Case(ONE, options=("--std=c++20",)),
    "OP-26": fails(K + "{ int unused; *p = 1; }\n", CompileError,
                   "unused|unrecognized option", options=("-Werror=all-warnings",)),
    "OP-25": Case(ONE, options=("--ftz=false", "-ftz=true"), says="followed by"),
    "AR-01": Case(K + "{ *p = __CUDA_ARCH__; static_assert(__CUDA_ARCH__ == 900); }\n"),
    "AR-02": fails(ONE, *PTX_ONLY, options=("-arch=compute_90",)),
    "AR-04": fails(WGMMA, CompileError, "(?s)not supported on .target.*hint: .*sm_90a"),
    "AR-04a": Case(WGMMA, target="sm_90a"),
    "AR-05": fails(WGMMA, *PTX_ONLY, options=("-arch=compute_90",)),
    "AR-07": fails(ONE, ToolchainError, "does not know the target sm_40", target="sm_40"),
    "AR-08": Case(ONE, target="sm_100f"),
    "AR-10": fails(ONE, SpecificationError, "belongs to the compiler",
                   options=("-D__CUDA_ARCH__=800",)),
    "RS-01": fails(SHARED, CompileError, "(?s)too much shared data.*hint: .*extern __shared__"),
    "RS-02": fails(SHARED, *PTX_ONLY, options=("-arch=compute_90",)),
    "RS-04": fails("__constant__ char big[70000];\n"
                   'extern "C" __global__ void k(char* p) { *p = big[threadIdx.x]; }\n',
                   CompileError, "too much global constant data"),
    "RS-05": fails("struct S { char c[33000]; };\n"
                   'extern "C" __global__ void k(S s, char* p) { *p = s.c[threadIdx.x]; }\n',
                   CompileError, "Formal parameter space overflowed"),
    "RS-08": Case('extern "C" __global__ void __launch_bounds__(2048) k(int* p) { *p = 1; }\n'),
    "RS-10": Case("__device__ int f(int n) { return n < 2 ? n : f(n - 1) + f(n - 2); }\n"
                  + K + "{ *p = f(*p); }\n"),
    "RS-11": fails('extern "C" __global__ void __cluster_dims__(2, 1, 1) k(int* p) { *p = 1; }\n',
                   CompileError, "__cluster_dims__ is not supported", target="sm_80"),
    "GV-01": Case("__constant__ float cc[4] = {1};\n__device__ int used, unused;\n"
                  + K + "{ *p = used + cc[0]; }\n", value=1),
    "GV-02": named("k", "_Z1kPi", "namespace n { __device__ int d = 3; }\n"
                   "template <class T> __device__ T tv = T(2);\n"
                   "__global__ void k(int* p) { *p = n::d + tv<int>; }\n", value=5),
    "GV-04": Case(f"int g = 3;\n{K}{{ *p = g; }}\n", options=("-default-device",), value=3),
    "GV-05": Case('extern "C" __global__ void k(cudaTextureObject_t t, cudaSurfaceObject_t s, '
                  "float* p) { p[0] = tex1Dfetch<float>(t, 3); surf2Dwrite(1.f, s, 0, 0); }\n"),
    "GV-07": Case(f"__managed__ int m;\n{K}{{ *p = m; }}\n", value=0),
    "GV-08": Case("struct __align__(16) S { char a; double b; float3 c; };\n"
                  'extern "C" __global__ void k(S s, double* p) { *p = s.b + s.a + s.c.z; '
                  'static_assert(sizeof(S) == 32, "sz"); }\n'),
    "GV-10": Case("#include <cuComplex.h>\n#include <cuda_fp16.h>\n"
                  'extern "C" __global__ void k(cuFloatComplex c, cuDoubleComplex d, __half h, '
                  "float* p) { p[0] = c.x + d.y + __half2float(h); }\n"),
    "GV-11": Case('extern "C" __global__ void k(int& p) { p = 1; }\n', value=1),
    "GV-13": fails(f"int helper() {{ return 1; }}\n{ONE}", CompileError,
                   "(?s)considered a host function.*hint: mark it __device__"),
    "GV-14": fails('extern "C" __global__ int k(int* p) { return 1; }\n', CompileError,
                   "must have a void return type"),
    "DG-01": Case(K + "{ int unused; *p = 1; }\n", warns=("177-D",)),
    "DG-02": Case('[[deprecated("old")]] __device__ int f() { return 1; }\n'
                  + K + "{ *p = f(); }\n", warns=("1444-D",)),
    "DG-04": fails(f'#error "stop here"\n{ONE}', CompileError, r"kernel\.cu:1.*stop here"),
    "DG-05": Case(f"#warning heads up\n{ONE}", warns=("1105-D",)),
    "DG-06": Case(f"#warning heads up\n{ONE}", options=("-w",)),
    "DG-07": Case(K + "{\n#pragma unroll U\n  for (int i = 0; i < 16; i++) p[0] = i;\n}\n",
                  options=("-DU=4",), value=15),
    "DG-08": fails(K + "{\n#pragma unroll U\n  for (int i = 0; i < 16; i++) p[i] = i;\n}\n",
                   CompileError, 'identifier "U" is undefined'),
    "DG-10": Case('extern "C" __global__ void k() { printf("%d\\n", threadIdx.x); }\n'),
    "DG-11": fails('#include <stdio.h>\nextern "C" __global__ void k() { printf("x"); }\n',
                   CompileError, '(?s)"stdio.h".*hint: NVRTC has no host headers: printf'),
    "DG-13": fails("template <int N> __global__ void k(int* p) "
                   '{ static_assert(N % 32 == 0, "N must be a multiple of 32"); *p = N; }\n',
                   CompileError, "N must be a multiple of 32", symbol="k<33>"),
    "DG-16": fails(K + "{ int u; *p = 1; }\n", CompileError, 'variable "u" was declared',
                   options=("--diag-error=177",)),
    "DG-17": Case('extern "C" __global__ void k(char* p) { const char f[] = __TIME__; '
                  "p[0] = f[0]; }\n"),
    "PT-01": fails(BOGUS, CompileError, "Unknown modifier '.op'"),
    "PT-02": fails(BOGUS, *PTX_ONLY, options=("-arch=compute_90",)),
    "LK-01": fails(EXT, CompileError, "(?s)Unresolved extern.*hint: a kernel is compiled whole"),
    "LK-02": fails(EXT, SpecificationError, "no link step", options=("-rdc=true",)),
    "LK-04": fails(CDP, CompileError, "device-side kernel launch could not be processed"),
    "LK-05": fails(CDP, SpecificationError, "no link step", options=("-rdc=true",)),
    "DB-01": Case(ONE, options=("-G", "-lineinfo"), says="Conflicting options"),
    "DB-02": Case(ONE, options=("-lineinfo",)),
    "SL-01": Case('extern "C" __global__ void k(float* p) {\n  float v[16];\n'
                  "  for (int i = 0; i < 16; i++) v[i] = p[i];\n#pragma unroll\n"
                  "  for (int r = 0; r < ROUNDS; r++) {\n#pragma unroll\n"
                  "    for (int i = 0; i < 16; i++) v[i] = sinf(v[i]) * v[(i + r) % 16];\n  }\n"
                  "  for (int i = 0; i < 16; i++) p[i] = v[i];\n}\n", options=("-DROUNDS=4",)),
    "SL-02": Case(f"#include <cuda/std/complex>\n{ONE}"),
    "SL-04": Case(K + "{ *p = " + "(" * 20_000 + "1" + ")" * 20_000 + "; }\n"),
}  # fmt: skip


@pytest.fixture(scope="module")
def cases_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache directory for all cases."""
    return tmp_path_factory.mktemp("cases")


async def compile_case(case: Case, cache_dir: Path) -> Artifact:
    """Compile a case for its target."""
    async with Compiler(case.target, cache_dir=cache_dir, workers=1) as compiler:
        return await compiler.compile(*request(case))


def request(case: Case) -> tuple[Source, Specialization]:
    """The source and specialization of a case."""
    spec = Specialization(case.symbol, options=case.options)
    return Source(case.text, case.headers), spec


Outcome = Artifact | Exception | int


async def compile_cases(cache_dir: Path) -> dict[str, Outcome]:
    """The outcome of every case, compiled together."""
    outcomes: dict[str, Outcome] = {}
    for target in {case.target for case in CASES.values()}:
        requests = {}
        for name, case in CASES.items():
            if case.target == target:
                try:
                    requests[name] = request(case)
                except (TypeError, SpecificationError) as error:
                    outcomes[name] = error
        async with Compiler(target, cache_dir=cache_dir, workers=2) as compiler:
            found = await compiler.compile_all(requests.values())
        outcomes |= dict(zip(requests, found, strict=True))
    return outcomes


async def run_cases(cache_dir: Path) -> dict[str, Outcome]:
    """What every case writes that has a value, on the cpu device."""
    values: dict[str, Outcome] = {}
    cases = {name: case for name, case in CASES.items() if case.value is not None}
    async with Kernels.open("cpu", cache_dir=cache_dir, workers=2) as kernels:
        loads = (kernels.get(*request(case)) for case in cases.values())
        for name, kernel in zip(cases, await asyncio.gather(*loads), strict=True):
            out = np.zeros(1, np.int32)
            kernel((1,), (1,), (out,))
            values[name] = int(out[0])
    return values


@pytest.fixture(scope="module")
def outcomes(cases_dir: Path) -> dict[str, Outcome]:
    """The outcome of every case, for CUDA."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, compile_cases(cases_dir)).result()


@pytest.fixture(scope="module")
def values(cases_dir: Path) -> dict[str, Outcome]:
    """The value of every case that has one, on the CPU."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, run_cases(cases_dir)).result()


@pytest.mark.parametrize("name", CASES)
def test_a_case_has_its_right_result(name: str, outcomes: dict[str, Outcome]) -> None:
    """It compiles to the right entry, or fails with the right error."""
    case, outcome = CASES[name], outcomes[name]
    if "crt/mma.h" in str(outcome):
        pytest.skip("the toolkit here lacks its crt headers")
    if case.error is not None:
        kind, pattern = case.error
        assert isinstance(outcome, kind)
        assert re.search(pattern, str(outcome))
        return

    assert isinstance(outcome, Artifact)
    assert outcome.entry == case.entry
    assert tuple(w.code for w in outcome.warnings if w.code) == case.warns
    assert case.says in "".join(str(d) for d in outcome.diagnostics)
    assert not any(d.severity is Severity.ERROR for d in outcome.diagnostics)


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if c.value is not None])
def test_a_case_computes_its_right_value(name: str, values: dict[str, Outcome]) -> None:
    """The same input gives the right number on the cpu device."""
    assert values[name] == CASES[name].value


@pytest.fixture
async def sm_90(cases_dir: Path) -> AsyncIterator[Compiler]:
    """A compiler for sm_90."""
    async with Compiler("sm_90", cache_dir=cases_dir, workers=2) as compiler:
        yield compiler


async def test_case_nx_10_a_kernel_in_an_anonymous_namespace_is_repeatable(
    tmp_path: Path,
) -> None:
    """Its symbol would hold the process's number, but for the seed."""
    case = Case(
        "namespace {\n__global__ void hidden(int* p) { *p = 1; }\n}\n", symbol="hidden"
    )
    one, two = [await compile_case(case, tmp_path / name) for name in "ab"]

    assert (one.origin, two.origin) == ("compiled", "compiled")
    assert (one.entry, one.output_digest) == (two.entry, two.output_digest)


async def test_case_nx_31_a_name_longer_than_a_file_name_may_be(sm_90: Compiler) -> None:
    """Names of files are digests."""
    text = (
        "template <int...> struct L {};\ntemplate <class A, class B> struct P {};\n"
        "template <class T> __global__ void k(T* p) {}\n"
    )
    artifact = await sm_90.compile(text, LONG)

    assert len(artifact.entry) > 255
    assert (await sm_90.compile(text, LONG)).entry == artifact.entry


async def test_case_dg_14_three_hundred_errors_are_all_kept(sm_90: Compiler) -> None:
    """The message is short, the data whole."""
    text = "".join(f"__device__ int f{i}() {{ return zz{i}; }}\n" for i in range(300))
    with pytest.raises(CompileError) as caught:
        await sm_90.compile(text + ONE, "k")

    errors = [d for d in caught.value.diagnostics if d.severity is Severity.ERROR]
    assert len(errors) >= 100
    assert len(str(caught.value).splitlines()) < 8
    assert f"(and {len(errors) - 1} more errors)" in str(caught.value)


async def test_case_rs_07_spills_are_told(sm_90: Compiler) -> None:
    """On success, in bytes."""
    text = (
        'extern "C" __global__ void k(float* p) {\n  float v[64];\n'
        "  for (int i = 0; i < 64; i++) v[i] = p[i * 32 + threadIdx.x];\n"
        "  for (int r = 0; r < 8; r++)\n"
        "    for (int i = 0; i < 64; i++) v[i] = v[i] * v[(i * 7 + r) % 64] + v[(i + r) % 64];\n"
        "  for (int i = 0; i < 64; i++) p[i * 32 + threadIdx.x] = v[i];\n}\n"
    )
    options = ("--maxrregcount=24", "--ptxas-options=-v")
    artifact = await sm_90.compile(text, Specialization("k", options=options))

    assert artifact.resources is not None
    assert artifact.resources.spills > 0


async def test_case_fm_fast_math_never_shares_a_key_or_code(sm_90: Compiler) -> None:
    """Approximate instructions are other code."""
    text = (
        'extern "C" __global__ void k(float* p) { float a = p[0], b = p[1]; '
        "p[2] = a / b; p[3] = sqrtf(a); p[4] = sinf(b); }\n"
    )
    fast = await sm_90.compile(text, Specialization("k", options=("--use_fast_math",)))
    exact = await sm_90.compile(text, "k")

    assert fast.digest != exact.digest
    assert fast.output_digest != exact.output_digest


@pytest.mark.parametrize(
    ("files", "folders", "defines", "value"),
    [
        pytest.param({"b/v.h": 2, "a/v.h": 1}, ["b", "a"], {}, 2, id="HD-19"),
        pytest.param({"b/v.h": 2, "a/readme": 0}, ["a", "b"], {}, 2, id="HD-31"),
        pytest.param({"v.h": 1}, ["."], {"HDR": "<v.h>"}, 1, id="HD-29"),
    ],
)
async def test_case_headers_on_disk_are_loaded(
    tmp_path: Path,
    sm_90: Compiler,
    files: dict[str, int],
    folders: list[str],
    defines: dict[str, str],
    value: int,
) -> None:
    """What `-I` is for elsewhere is `Source.load` here; the order of folders decides."""
    for name, number in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"#define VAL {number}\n")
    include = "#include HDR" if defines else "#include <v.h>"
    (tmp_path / "k.cu").write_text(f"{include}\nstatic_assert(VAL == {value});\n{VAL}")
    source = await Source.load(tmp_path / "k.cu", [tmp_path / f for f in folders], defines)

    assert await sm_90.compile(source, Specialization("k", defines))


async def test_case_hd_20_the_working_directory_does_not_count(
    tmp_path: Path, sm_90: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quoted include would find it first."""
    (tmp_path / "v.h").write_text("#error from the working directory\n")
    monkeypatch.chdir(tmp_path)
    source = Source(f'#include "v.h"\n{VAL}', {"v.h": "#define VAL 2\n"})

    assert await sm_90.compile(source, "k")


async def test_case_hd_28_a_computed_name_says_to_pass_the_header(tmp_path: Path) -> None:
    """A text scan cannot follow it."""
    text = f"#define S(x) #x\n#define X(x) S(x)\n#include X(WHICH/v.h)\n{VAL}"
    (tmp_path / "k.cu").write_text(text)
    with pytest.raises(SpecificationError, match=r"k\.cu:3 includes the macro X.*headers="):
        await Source.load(tmp_path / "k.cu")

    source = Source(text, {"b/v.h": "#define VAL 2\n"})
    async with Compiler("sm_90", workers=1) as compiler:
        assert await compiler.compile(source, Specialization("k", {"WHICH": "b"}))


async def test_case_ci_11_the_same_name_in_two_sources_is_two_kernels(
    cases_dir: Path,
) -> None:
    """The whole request is the key, never the name."""
    async with Kernels.open("cpu", cache_dir=cases_dir) as kernels:
        texts = [
            f'extern "C" __global__ void probe(int* p) {{ *p = {n}; }}\n' for n in (1, 2)
        ]
        found = await asyncio.gather(*(kernels.get(text, "probe") for text in texts))
        values = []
        for kernel in found:
            out = np.zeros(1, np.int32)
            kernel((1,), (1,), (out,))
            values.append(int(out[0]))
    assert values == [1, 2]


async def test_case_ci_20_a_warm_hit_needs_no_nvrtc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lowered names are stored with the artifact."""
    case = named("scale<float, 4>", "_Z5scaleIfLi4EEvPT_")
    await compile_case(case, tmp_path)
    monkeypatch.setattr("sys.executable", "/no/such/python")
    read = await compile_case(case, tmp_path)

    assert (read.origin, read.entry) == ("disk", "_Z5scaleIfLi4EEvPT_")
