"""CUDA's language on the CPU: real kernels, compiled, launched, compared with NumPy."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels_async import Artifact, CompileError, LaunchError, Source, Specialization
from kernels_async._value import digest
from kernels_async.devices._cpu import CpuDevice, CpuKernel
from kernels_async.toolchains import Job
from kernels_async.toolchains._cpu import CpuToolchain

Build = Callable[[str, str], CpuKernel]
Launch = Callable[..., None]


@pytest.fixture(scope="session")
def device() -> CpuDevice:
    """The cpu device, with more than one thread."""
    return CpuDevice()


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: CpuDevice) -> Build:
    """Compile a kernel and load it, without a cache between."""
    monkeypatch.chdir(tmp_path)
    toolchain = CpuToolchain.find()

    def build(source: str, symbol: str) -> CpuKernel:
        output = toolchain.compile(Job(Source(source), Specialization(symbol), "cpu"))
        path = tmp_path / f"{digest(output.data)}.so"
        if not path.exists():  # a library that is loaded must not be written to
            path.write_bytes(output.data)
        artifact = Artifact(
            digest=digest(output.data),
            bytes=output.data,
            path=path,
            symbol=symbol,
            entry=output.entry,
            target="cpu",
            compiler_identity=toolchain.identity,
            diagnostics=output.diagnostics,
            resources=None,
            origin="compiled",
            compile_seconds=output.compile_seconds,
            output_digest=digest(output.data),
            entries={},
        )
        return CpuKernel(device, artifact)

    return build


def extent(size: int | tuple[int, ...]) -> tuple[int, ...]:
    """A grid's or block's size; one number stands for x alone."""
    return (size,) if isinstance(size, int) else size


@pytest.fixture
def launch(build: Build) -> Launch:
    """Compile a kernel and run it."""

    def launch(
        source: str,
        symbol: str,
        grid: int | tuple[int, ...],
        block: int | tuple[int, ...],
        args: Sequence[Any],
        shared_mem: int = 0,
    ) -> None:
        build(source, symbol)(extent(grid), extent(block), args, shared_mem)

    return launch


def failure(launch: Launch, *arguments: Any) -> str:
    """Launch what must fail; its message."""
    with pytest.raises((LaunchError, CompileError)) as caught:
        launch(*arguments)
    return str(caught.value).removeprefix("<Kernel k on cpu>: ")


# ------------------------------------------------------------------ threads and blocks


def test_every_thread_of_a_three_dimensional_grid_runs_once(launch: Launch) -> None:
    """Each thread sees its own indices, and the launch's dimensions, in all three axes."""
    source = """
    extern "C" __global__ void __launch_bounds__(64) where(int* seen, unsigned* sums) {
        unsigned b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
        unsigned t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
        atomicAdd(&seen[b * blockDim.x * blockDim.y * blockDim.z + t], 1);
        atomicAdd(&sums[0], threadIdx.z);
        atomicAdd(&sums[1], blockIdx.y);
        if (b + t == 0) sums[2] = gridDim.z * 100 + blockDim.y * 10 + (warpSize == 32);
    }
    """
    seen = np.zeros(2 * 3 * 4 * 5 * 3 * 2, np.int32)
    sums = np.zeros(3, np.uint32)
    launch(source, "where", (2, 3, 4), (5, 3, 2), [seen, sums])
    assert (seen == 1).all()
    assert sums.tolist() == [24 * 15, 8 * 30 * 3, 431]


def test_arguments_arrive_by_value_by_pointer_and_in_structs(launch: Launch) -> None:
    """Scalars of every width, enums, bools, references and structs keep their values."""
    source = """
    enum class Mode : unsigned char { a, b };
    struct __align__(16) Pair { float x; double y; char name[5]; };
    namespace n {
    __global__ void k(double* o, bool yes, signed char c, unsigned short s, long long l,
                      float f, const __grid_constant__ Pair p, Mode m, double& r) {
        o[0] = yes; o[1] = c; o[2] = s; o[3] = double(l); o[4] = f; o[5] = p.x;
        o[6] = p.y; o[7] = p.name[4]; o[8] = m == Mode::b; o[9] = r;
        o[10] = (size_t)&p % 16;
    }
    }
    """
    pair = np.zeros(
        (),
        np.dtype(
            {
                "names": ["x", "y", "n"],
                "formats": ["f4", "f8", "S5"],
                "offsets": [0, 8, 16],
                "itemsize": 32,
            }
        ),
    )
    pair["x"], pair["y"], pair["n"] = 2.5, 3.5, b"abcde"
    out, held = np.zeros(11), np.full(1, 9.5)
    launch(source, "n::k", 1, 1, [
        out, np.bool_(True), np.int8(-3), np.uint16(65535), np.int64(-5), np.float32(0.5),
        pair[()], np.uint8(1), held,
    ])  # fmt: skip
    assert out.tolist() == [1, -3, 65535, -5, 0.5, 2.5, 3.5, ord("e"), 1, 9.5, 0]


def test_the_entry_describes_parameters_and_names_the_kernel(build: Build) -> None:
    """Size and kind of each parameter, and the mangled name in the relocation."""
    source = """
    enum E : short { e }; struct S { int a[3]; };
    template <class T>
    __global__ void k(T*, int&, long, unsigned char, double, bool, E, S) {}
    """
    kernel = build(source, "k<float>")
    assert kernel.artifact.entry == "_Z1kIfEvPT_Rilhdb1E1S"
    assert kernel.parameters == [
        (1, 8), (1, 8), (2, 8), (3, 1), (4, 8), (5, 1), (2, 2), (0, 12),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("symbol", "value"),
    [("plain", 1), ("a::k<float, 4>", 44), ("&a::k<int>", 42), ("(void(*)(int*))f", 3)],
)
def test_a_kernel_is_named_by_any_expression(
    launch: Launch, symbol: str, value: int
) -> None:
    """C names, template ids, addresses and casts of overloads all name a kernel."""
    source = """
    extern "C" __global__ void plain(int* o) { *o = 1; }
    namespace a { template <class T, int N = 2> __global__ void k(int* o) {
        *o = N + 10 * sizeof(T); } }
    __global__ void f(int* o) { *o = 3; }
    __global__ void f(float* o) { *o = 4; }
    """
    out = np.zeros(1, np.int32)
    launch(source, symbol, 1, 1, [out])
    assert out[0] == value


def test_lambdas_templates_and_qualifiers_compile_as_on_the_gpu(launch: Launch) -> None:
    """Device lambdas, function templates and every common qualifier mean what CUDA says."""
    source = """
    template <class F> __device__ __forceinline__ float apply(F f, float x) { return f(x); }
    static __device__ __noinline__ float twice(float x) { return 2 * x; }
    struct __align__(8) Two { float a, b;
        __host__ __device__ constexpr Two(float a, float b) : a(a), b(b) {} };
    template <int N> struct Power { static __device__ float of(float x) {
        float r = 1;
        #pragma unroll
        for (int i = 0; i < N; ++i) r *= x;
        return r; } };
    extern "C" __global__ void __launch_bounds__(32, 2)
    k(float* __restrict__ o, const float* __restrict__ x) {
        int i = threadIdx.x;
        float shift = 1.0f;
        auto f = [=] __device__ (float y) { return twice(y) + shift; };
        auto g = [&] __host__ __device__ (float y) -> float { return Power<3>::of(y); };
        Two two(apply(f, x[i]), apply(g, x[i]));
        o[i] = two.a + two.b + alignof(Two);
    }
    """
    x = np.arange(32, dtype=np.float32)
    out = np.zeros(32, np.float32)
    launch(source, "k", 1, 32, [out, x])
    assert np.array_equal(out, 2 * x + 1 + x**3 + 8)


def test_constant_and_device_variables_hold_their_values(launch: Launch) -> None:
    """Globals, in namespaces, arrays and variable templates, start as written."""
    source = """
    __constant__ float table[4] = {1, 2, 4, 8};
    namespace n { __device__ int counter = 5; __constant__ int2 pair = {6, 7}; }
    template <class T> __constant__ T three = T(3);
    template <class T> __device__ T grid_total;
    __managed__ int managed = 9;
    extern "C" __global__ void k(float* o) {
        atomicAdd(&n::counter, 1);
        atomicAdd(&grid_total<int>, int(threadIdx.x));
        o[threadIdx.x] = table[threadIdx.x % 4] * three<float> + n::pair.y + managed;
        __syncthreads();
        if (threadIdx.x == 0) { o[0] = n::counter; o[1] = grid_total<int>; }
    }
    """
    out = np.zeros(40, np.float32)
    launch(source, "k", 1, 40, [out])
    expected = np.tile([1, 2, 4, 8], 10) * 3.0 + 16
    expected[:2] = 45, 780
    assert np.array_equal(out, expected)


# ------------------------------------------------------------------ shared memory


def test_static_shared_memory_belongs_to_a_block_wherever_it_is_declared(
    launch: Launch,
) -> None:
    """In functions, templates, namespaces, as structs and tables, it is the block's own."""
    source = """
    struct Cell { int a; float b[3]; };
    __shared__ int global_one[64];
    namespace n { __shared__ Cell cells[64]; }
    template <class T, int N> __device__ T reversed(T x) {
        static __shared__ T line[N];
        line[threadIdx.x] = x;
        __syncthreads();
        return line[N - 1 - threadIdx.x];
    }
    template <int N> __global__ void k(float* o) {
        __shared__ float table[8][N / 8 + 1];
        volatile __shared__ int total;
        int t = threadIdx.x, b = blockIdx.x;
        table[t % 8][t / 8] = t + 100 * b;
        global_one[t] = t * b;
        n::cells[t].b[2] = t - b;
        if (t == 0) total = b;
        __syncthreads();
        int u = (t + 1) % N;
        float sum = table[u % 8][u / 8] + global_one[u] + n::cells[u].b[2] + total;
        o[b * N + t] = sum + reversed<float, N>(t) + reversed<int, N>(b);
    }
    """
    out = np.zeros((50, 64), np.float32)
    launch(source, "k<64>", 50, 64, [out])
    b, t = np.mgrid[:50, :64]
    u = (t + 1) % 64
    assert np.array_equal(out, u + 100 * b + u * b + u - b + b + 63 - t + b)


@pytest.mark.parametrize(
    ("declaration", "inside"),
    [
        ('extern "C" { extern __shared__ float memory[]; }', ""),
        ("extern __shared__ __align__(16) float memory[];", ""),
        ("", "extern __shared__ T memory[];"),
        ("", "extern __align__(16) __shared__ T memory[];"),
        (
            "namespace n { extern __shared__ unsigned char raw[]; }",
            "T* memory = reinterpret_cast<T*>(n::raw);",
        ),
        (
            """
            template <class U> struct Shared { __device__ operator U*() {
                extern __shared__ int raw[]; return (U*)raw; } };
            """,
            "T* memory = Shared<T>();",
        ),
    ],
)
def test_dynamic_shared_memory_may_be_declared_anywhere(
    launch: Launch, declaration: str, inside: str
) -> None:
    """At block, namespace and global scope, and in templates, it is one aligned array."""
    source = (
        declaration
        + """
    extern __shared__ char same_place[];
    template <class T> __global__ void k(float* o, int n) {
        """
        + inside
        + """
        int t = threadIdx.x;
        memory[t] = t + blockIdx.x;
        memory[n - 1] = 7;
        __syncthreads();
        bool good = (void*)memory == (void*)same_place && (size_t)memory % 128 == 0;
        T sum = memory[blockDim.x - 1 - t] + memory[n - 1];
        o[blockIdx.x * blockDim.x + t] = good ? sum : -1;
    }
    """
    )
    out = np.zeros((20, 48), np.float32)
    n = 232448 // 4
    launch(source, "k<float>", 20, 48, [out, np.int32(n)], shared_mem=232448)
    b, t = np.mgrid[:20, :48]
    assert np.array_equal(out, b + 47 - t + 7)


def test_each_library_has_its_own_shared_memory(launch: Launch) -> None:
    """Two versions of one template in one process do not share an array's smaller size."""
    source = """
    template <class T> __global__ void k(T* o) {
        __shared__ T line[SIZE];
        line[threadIdx.x] = o[threadIdx.x];
        __syncthreads();
        o[threadIdx.x] = line[SIZE - 1 - threadIdx.x];
    }
    """
    for size in (2, 1024):
        out = np.arange(size, dtype=np.float64)
        launch(f"#define SIZE {size}" + source, "k<double>", 3, size, [np.zeros(size)])
        launch(f"#define SIZE {size}" + source, "k<double>", 1, size, [out])
        assert np.array_equal(out, np.arange(size)[::-1])


def test_more_dynamic_shared_memory_than_the_gpu_has_is_an_error(launch: Launch) -> None:
    """A launch above 227 KiB fails with a message."""
    message = failure(launch, 'extern "C" __global__ void k() {}', "k", 1, 1, [], 232449)
    assert message == "shared_mem is 232449, which is not within 0 and 232448"


# ------------------------------------------------------------------ barriers


def test_barriers_order_a_blocks_threads(launch: Launch) -> None:
    """A tree reduction and a prefix sum, with barriers in loops and device functions."""
    source = """
    __device__ int scan(int* line, int x) {
        int t = threadIdx.x;
        line[t] = x;
        for (int d = 1; d < blockDim.x; d *= 2) {
            __syncthreads();
            int y = t >= d ? line[t - d] : 0;
            __syncthreads();
            line[t] += y;
        }
        __syncthreads();
        return line[t];
    }
    extern "C" __global__ void k(const int* x, int* sums, int* scans) {
        __shared__ int line[1024];
        int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
        line[t] = x[i];
        __syncthreads();
        for (int half = blockDim.x / 2; half > 0; half /= 2) {
            if (t < half) line[t] += line[t + half];
            __syncthreads();
        }
        if (t == 0) sums[blockIdx.x] = line[0];
        __syncthreads();
        scans[i] = scan(line, x[i]);
    }
    """
    x = np.random.default_rng(0).integers(-99, 99, (16, 1024), np.int32)
    sums, scans = np.zeros(16, np.int32), np.zeros_like(x)
    launch(source, "k", 16, 1024, [x, sums, scans])
    assert np.array_equal(sums, x.sum(1))
    assert np.array_equal(scans, x.cumsum(1))


def test_barriers_may_stand_in_lambdas_macros_templates_and_on_one_line(
    launch: Launch,
) -> None:
    """Each occurrence is a call site of its own; the same one in a loop is the same."""
    source = """
    #define SWAP_WITH_NEIGHBOUR(a, t) \\
        do { int y = a[(t) ^ 1]; __syncthreads(); a[t] = y; __syncthreads(); } while (0)
    template <int N> __device__ void rotate(int* a, int t) {
        if constexpr (N > 0) {
            int y = a[(t + 1) % blockDim.x]; __syncthreads(); a[t] = y; __syncthreads();
            rotate<N - 1>(a, t);
        }
    }
    extern "C" __global__ void k(int* o) {
        __shared__ int a[96];
        int t = threadIdx.x;
        auto put = [&](int x) { __syncthreads(); a[t] = x; __syncthreads(); };
        put(t);
        put(t * 2);
        rotate<3>(a, t);
        SWAP_WITH_NEIGHBOUR(a, t);
        o[t] = a[t];
    }
    """
    out = np.zeros(96, np.int32)
    launch(source, "k", 1, 96, [out])
    t = np.arange(96)
    assert np.array_equal(out, ((t ^ 1) + 3) % 96 * 2)


def test_barriers_count_and_combine_predicates(launch: Launch) -> None:
    """__syncthreads_count, _and and _or tell every thread, and only of threads not gone."""
    source = """
    template <int A, int B> __device__ int sum() { return A + B; }
    extern "C" __global__ void k(int* o) {
        int t = threadIdx.x;
        if (t >= 70) return;
        o[t * 5] = __syncthreads_count(t % 3 == 0);
        o[t * 5 + 1] = __syncthreads_and(t < 70);
        o[t * 5 + 2] = __syncthreads_and(t < 69);
        o[t * 5 + 3] = __syncthreads_or(t == 69);
        o[t * 5 + 4] = __syncthreads_or(t > sum<60, 40>());
    }
    """
    out = np.zeros((70, 5), np.int32)
    launch(source, "k", 1, 100, [out])
    assert (out == [24, 1, 0, 1, 0]).all()


def test_threads_that_returned_do_not_count_at_a_barrier(launch: Launch) -> None:
    """Early returns, before and between barriers, by first, last and odd threads."""
    source = """
    extern "C" __global__ void k(int* o, int n) {
        __shared__ int a[128];
        int t = threadIdx.x;
        a[t] = 0;
        if (t >= n || t == 0) return;
        __syncthreads();
        a[t] = t;
        __syncthreads();
        if (t % 2) return;
        int y = a[t - 1];
        __syncthreads();
        o[blockIdx.x * n + t] = y + 1;
    }
    """
    out = np.zeros((9, 100), np.int32)
    launch(source, "k", 9, 128, [out, np.int32(100)])
    t = np.arange(100)
    assert (out == np.where((t % 2 == 0) & (t > 0), t, 0)).all()


# ------------------------------------------------------------------ divergence and failure


def test_threads_at_different_barriers_end_the_launch(launch: Launch) -> None:
    """The message says how many threads of which block wait at which line."""
    source = """
    extern "C" __global__ void k() {
        if (threadIdx.x < 16)
            __syncthreads();
        else
            __syncthreads();
    }
    """
    message = failure(launch, source, "k", 1, 32, [])
    assert message == (
        "threads of block (0,0,0) wait at different barriers: "
        "16 at kernel.cu:4, 16 at kernel.cu:6"
    )


def test_two_barriers_on_one_line_are_two_barriers(launch: Launch) -> None:
    """Counts that would add up do not make different call sites one barrier."""
    source = """
    extern "C" __global__ void k(int n) {
        for (int i = 0; i < 3; ++i)
            if (threadIdx.x < n) __syncthreads(); else __syncthreads();
    }
    """
    launch(source, "k", 2, 64, [np.int32(64)])
    message = failure(launch, source, "k", 2, 64, [np.int32(1)])
    assert "1 at kernel.cu:4, 63 at kernel.cu:4" in message


def test_a_barrier_and_a_warp_operation_that_wait_for_one_another_end_the_launch(
    launch: Launch,
) -> None:
    """Nobody can run: the message names the barrier and the warp operation."""
    source = """
    extern "C" __global__ void k(float* o) {
        if (threadIdx.x % 32 < 8) __syncthreads();
        else o[0] = __shfl_sync(0xffffffff, 1.0f, 0);
    }
    """
    message = failure(launch, source, "k", 1, 32, [np.zeros(1, np.float32)])
    assert "wait for one another" in message
    assert "8 at a barrier, kernel.cu:3" in message
    assert "24 at __shfl_sync with mask 0xffffffff, kernel.cu:4" in message


def test_lanes_in_different_warp_operations_end_the_launch(launch: Launch) -> None:
    """Half a warp in a shuffle cannot meet the other half in a vote."""
    source = """
    extern "C" __global__ void k() {
        if (threadIdx.x < 16) __shfl_xor_sync(~0u, 1, 1); else __any_sync(~0u, 1);
    }
    """
    message = failure(launch, source, "k", 1, 32, [])
    assert "16 at __shfl_xor_sync" in message
    assert "16 at __any_sync" in message


def test_trap_and_assert_end_the_launch_with_their_place(launch: Launch) -> None:
    """The process lives, the first failing block speaks, and others stop."""
    source = """
    #include <assert.h>
    extern "C" __global__ void k(int* done, int trap) {
        __syncthreads();
        if (blockIdx.y == 2 && threadIdx.x == 5) { assert(trap && "no trap"); __trap(); }
        __syncthreads();
        atomicAdd(done, 1);
    }
    """
    done = np.zeros(1, np.int32)
    message = failure(launch, source, "k", (1, 1000), 8, [done, np.int32(1)])
    assert message == "__trap() in thread (5,0,0) of block (0,2,0)"
    assert done[0] < 500 * 8
    message = failure(launch, source, "k", (1, 1000), 8, [done, np.int32(0)])
    assert message == (
        'kernel.cu:5: assertion `trap && "no trap"\' failed '
        "in thread (5,0,0) of block (0,2,0)"
    )


# ------------------------------------------------------------------ warps


def test_shuffles_move_values_of_every_type_within_a_width(launch: Launch) -> None:
    """sync, up, down and xor, for 32 and 64 bits, against their definition."""
    source = """
    template <class T> __global__ void k(T* o, int width) {
        int t = threadIdx.x;
        T x = T(t) * T(3) + T(1);
        for (int d = 0; d < 8; ++d) {
            T* row = o + (d * 4) * blockDim.x + t;
            row[0] = __shfl_sync(0xffffffff, x, d * 5, width);
            row[blockDim.x] = __shfl_up_sync(0xffffffff, x, d, width);
            row[blockDim.x * 2] = __shfl_down_sync(0xffffffff, x, d, width);
            row[blockDim.x * 3] = __shfl_xor_sync(0xffffffff, x, d, width);
        }
    }
    """
    t = np.arange(64)
    for name, dtype, width in [
        ("int", np.int32, 32), ("unsigned", np.uint32, 8), ("float", np.float32, 4),
        ("double", np.float64, 16), ("long long", np.int64, 2),
        ("unsigned long", np.uint64, 32),
    ]:  # fmt: skip
        out = np.zeros((8, 4, 64), dtype)
        launch(source, f"k<{name}>", 2, 64, [out, np.int32(width)])
        base, last = t & -width, t | (width - 1)
        for d in range(8):
            up, down, xor = t - d, t + d, t ^ d
            sources = [
                base + d * 5 % width,
                np.where(up < base, t, up),
                np.where(down > last, t, down),
                np.where(xor > last, t, xor),
            ]
            assert np.array_equal(out[d], (np.array(sources) * 3 + 1).astype(dtype))


def test_votes_matches_and_reductions_see_the_lanes_of_their_mask(launch: Launch) -> None:
    """any, all, uni, ballot, match and reduce, over full and half warps."""
    source = """
    extern "C" __global__ void k(unsigned* o, const int* x) {
        int t = threadIdx.x, all;
        unsigned m = t % 32 < 16 ? 0x0000ffff : 0xffff0000;
        unsigned* r = o + t * 16;
        r[0] = __any_sync(~0u, t == 7);
        r[1] = __all_sync(m, t % 32 < 16);
        r[2] = __uni_sync(m, t % 32 < 16);
        r[3] = __ballot_sync(~0u, t % 3 == 0);
        r[4] = __match_any_sync(~0u, (long long)x[t] << 32);
        r[5] = __match_all_sync(m, t / 16, &all);
        r[6] = __match_all_sync(m, x[t], &all) + all;
        r[7] = __reduce_add_sync(~0u, x[t]);
        r[8] = __reduce_min_sync(m, x[t]);
        r[9] = __reduce_max_sync(~0u, unsigned(x[t]));
        r[10] = __reduce_and_sync(m, unsigned(x[t]));
        r[11] = __reduce_or_sync(m, unsigned(x[t]));
        r[12] = __reduce_xor_sync(m, unsigned(x[t]));
        r[13] = __activemask();
        __syncwarp();
    }
    """
    x = np.random.default_rng(1).integers(-4, 4, 64, np.int32)
    out = np.zeros((64, 16), np.uint32)
    launch(source, "k", 1, 64, [out, x])
    for t in range(64):
        lanes: Any = x[t & 32 :][:32]
        half: Any = x[t & 48 :][:16]
        halves: Any = half.view(np.uint32)
        mask = 0xFFFF << (t & 16)
        w = t & 32
        assert out[t].tolist() == [
            w == 0, t % 32 < 16, 1,
            sum(1 << i for i in range(32) if (w + i) % 3 == 0),
            sum(1 << i for i in range(32) if lanes[i] == x[t]),
            mask, (mask + 1) * bool((half == half[0]).all()),
            int(lanes.sum()) % 2**32, int(half.min()) % 2**32,
            int(lanes.view(np.uint32).max()), reduce(operator.and_, halves.tolist()),
            reduce(operator.or_, halves.tolist()), reduce(operator.xor, halves.tolist()),
            0xFFFFFFFF, 0, 0,
        ]  # fmt: skip


def test_lanes_that_do_not_exist_or_have_returned_are_not_waited_for(
    launch: Launch,
) -> None:
    """A block of 40 has a warp of 8; a lane's exit completes a group that awaited it."""
    source = """
    extern "C" __global__ void k(int* o) {
        int t = threadIdx.x;
        if (t == 3 || t == 39) return;
        int sum = t;
        for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffff, sum, d);
        o[t] = __ballot_sync(0xffffffff, 1);
        if (t == 31) return;
        o[40 + t] = __shfl_sync(0xffffffff, t, 31);
        o[80 + t] = __shfl_sync(0x2, t, 1);
        o[120 + t] = __reduce_add_sync(0xffffffff, 1);
        if (t < 10) o[160 + t] = __activemask(); else o[160 + t] = __activemask();
    }
    """
    out = np.zeros((5, 40), np.int32)
    launch(source, "k", 1, 40, [out])
    t = np.arange(40)
    here = (t != 3) & (t != 39)
    later = here & (t != 31)
    assert np.array_equal(out[0], np.where(here, np.where(t < 32, ~8, 0x7F), 0))
    assert np.array_equal(out[1:3], np.where(later, [t, t], 0))
    assert np.array_equal(out[3], np.where(later, np.where(t < 32, 30, 7), 0))
    active = np.where(t < 10, 0x3F7, np.where(t < 32, 0x7FFFFC00, 0x7F))
    assert np.array_equal(out[4], np.where(later, active, 0))


def test_a_warp_reduction_and_a_block_reduction_agree(launch: Launch) -> None:
    """Shuffles, shared memory and barriers together, over many blocks."""
    source = """
    __inline__ __device__ float warp_sum(float x) {
        for (int d = 16; d > 0; d >>= 1) x += __shfl_down_sync(0xffffffff, x, d);
        return x;
    }
    extern "C" __global__ void k(const float* x, float* total, int n) {
        __shared__ float partial[32];
        float mine = 0;
        int first = blockIdx.x * blockDim.x + threadIdx.x;
        for (int i = first; i < n; i += gridDim.x * blockDim.x)
            mine += x[i];
        mine = warp_sum(mine);
        if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = mine;
        __syncthreads();
        mine = threadIdx.x < blockDim.x / 32 ? partial[threadIdx.x] : 0;
        if (threadIdx.x < 32) mine = warp_sum(mine);
        if (threadIdx.x == 0) atomicAdd(total, mine);
    }
    """
    x = np.random.default_rng(2).integers(0, 50, 100_003).astype(np.float32)
    total = np.zeros(1, np.float32)
    launch(source, "k", 12, 256, [x, total, np.int32(len(x))])
    assert total[0] == x.sum(dtype=np.float64)


# ------------------------------------------------------------------ atomics


def test_contended_atomics_lose_nothing(launch: Launch) -> None:
    """Blocks in parallel on one address, for every operation and type."""
    source = """
    struct Cells { int i[8]; unsigned u[8]; unsigned long long l[8]; long long s[2];
                   float f[2]; double d; unsigned short h[2]; };
    extern "C" __global__ void k(Cells* c, int* seen) {
        int g = blockIdx.x * blockDim.x + threadIdx.x;
        atomicAdd(&c->i[0], 1); atomicSub(&c->i[1], 2);
        atomicMin(&c->i[2], -g); atomicMax_block(&c->i[3], g);
        atomicXor(&c->i[4], g); atomicOr(&c->i[5], g); atomicAnd(&c->i[6], ~g);
        atomicAdd_system(&c->u[0], 3u); atomicSub(&c->u[1], 1u);
        atomicMin(&c->u[2], unsigned(g)); atomicMax(&c->u[3], unsigned(-1 - g));
        seen[atomicInc(&c->u[4], 999)]++; atomicDec(&c->u[5], 6);
        atomicXor(&c->u[6], unsigned(g)); atomicExch(&c->u[7], 8u);
        atomicAdd(&c->l[0], 1ull << 32); atomicMin(&c->l[1], (unsigned long long)g);
        atomicMax(&c->l[2], 1ull << 63); atomicOr(&c->l[3], 1ull << (g % 64));
        atomicAnd(&c->l[4], ~(1ull << (g % 64))); atomicXor(&c->l[5], 1ull << (g % 63));
        atomicExch(&c->l[6], 5ull);
        atomicMin(&c->s[0], (long long)-g); atomicMax(&c->s[1], (long long)g);
        atomicAdd(&c->f[0], 0.5f); atomicExch(&c->f[1], 2.5f); atomicAdd(&c->d, 0.25);
        unsigned long long old = c->l[7], was;
        while ((was = atomicCAS(&c->l[7], old, old + 2)) != old) old = was;
        int x = c->i[7], y;
        while ((y = atomicCAS(&c->i[7], x, x + 1)) != x) x = y;
        unsigned short h = c->h[0], v;
        while ((v = atomicCAS(&c->h[0], h, (unsigned short)(h + 1))) != h) h = v;
        __threadfence(); __threadfence_block(); __threadfence_system();
    }
    """
    kinds = [("i", "i4", 8), ("u", "u4", 8), ("l", "u8", 8), ("s", "i8", 2), ("f", "f4", 2),
             ("d", "f8"), ("h", "u2", 2)]  # fmt: skip
    c = np.zeros(1, np.dtype(kinds, align=True))
    n = 200 * 100
    c["i"][0, 6] = -1
    c["u"][0, 2] = 99
    c["l"][0, 1] = 99
    c["l"][0, 4] = 2**64 - 1
    seen = np.zeros(1000, np.int32)
    launch(source, "k", 200, 100, [c, seen])
    g: Any = np.arange(n)
    xor = reduce(operator.xor, g.tolist())
    every = reduce(operator.or_, g.tolist())
    odd = sum(1 << b for b in range(63) if (g % 63 == b).sum() % 2)
    assert c["i"][0].tolist() == [n, -2 * n, 1 - n, n - 1, xor, every, ~every, n]
    assert c["u"][0].tolist() == [3 * n, 2**32 - n, 0, 2**32 - 1, 0, -n % 7, xor, 8]
    assert c["l"][0].tolist() == [n << 32, 0, 1 << 63, 2**64 - 1, 0, odd, 5, 2 * n]
    assert c["s"][0].tolist() == [1 - n, n - 1]
    assert c["f"][0].tolist() == [n / 2, 2.5]
    assert c["d"][0] == n / 4
    assert c["h"][0, 0] == n
    assert (seen == n // 1000).all()


def test_blocks_may_wait_for_earlier_blocks_and_hold_locks(launch: Launch) -> None:
    """Blocks start in order and run in parallel; a nanosleep lets a block's threads run."""
    source = """
    __device__ int lock, turn;
    __device__ double total;
    extern "C" __global__ void k(double* o) {
        __shared__ volatile int flag;
        if (threadIdx.x == blockDim.x - 1) flag = 0;
        __syncthreads();
        if (threadIdx.x == 0) {
            while (flag == 0) __nanosleep(100);
            while (atomicAdd(&turn, 0) != blockIdx.x) {}
            *o = *o * 1.5 + blockIdx.x;
            __threadfence();
            atomicAdd(&turn, 1);
        } else if (threadIdx.x == 20) flag = 1;
        while (atomicCAS(&lock, 0, 1) != 0) {}
        total += 1;
        atomicExch(&lock, 0);
        __syncthreads();
        if (blockIdx.x == gridDim.x - 1 && threadIdx.x == 0) {
            while (atomicCAS(&lock, 0, 1) != 0) {}
            o[1] = total >= 32;
            atomicExch(&lock, 0);
        }
    }
    """
    out = np.zeros(2)
    launch(source, "k", 20, 32, [out])
    expected = 0.0
    for b in range(20):
        expected = expected * 1.5 + b
    assert out.tolist() == [expected, 1]


# ------------------------------------------------------------------ vectors and mathematics


def test_vector_types_have_cudas_sizes_and_alignments(launch: Launch) -> None:
    """char1 to double4, and dim3, as the CUDA C++ guide's table has them."""
    names = {
        "char": (1, 1, 2, 1, 4), "uchar": (1, 1, 2, 1, 4), "short": (2, 2, 4, 2, 8),
        "ushort": (2, 2, 4, 2, 8), "int": (4, 4, 8, 4, 16), "uint": (4, 4, 8, 4, 16),
        "long": (8, 8, 16, 8, 16), "ulong": (8, 8, 16, 8, 16),
        "longlong": (8, 8, 16, 8, 16), "ulonglong": (8, 8, 16, 8, 16),
        "float": (4, 4, 8, 4, 16), "double": (8, 8, 16, 8, 16),
    }  # fmt: skip
    entries = [f"sizeof({n}{c}), alignof({n}{c})" for n in names for c in (1, 2, 3, 4)]
    source = f"""
    extern "C" __global__ void k(int* o, float4* v) {{
        const int all[] = {{ {", ".join(entries)} }};
        for (int i = 0; i < {2 * len(entries)}; ++i) o[i] = all[i];
        float4 a = make_float4(1, 2, 3, 4); int2 b = make_int2(5, 6); dim3 d(7, 8);
        uint3 u = d; dim3 e = u;
        v[0] = a; v[1] = {{float(b.x), float(b.y), float(e.x * e.y), float(e.z)}};
        v[2].w = make_uchar4(1, 2, 3, 255).w + make_double3(1, 2, 3).z;
        v[2].x = threadIdx.x + blockDim.y;
    }}
    """
    out = np.zeros((len(names), 4, 2), np.int32)
    vectors = np.zeros((3, 4), np.float32)
    launch(source, "k", 1, 1, [out, vectors])
    for row, (size, *alignments) in zip(out, names.values(), strict=True):
        assert row[:, 0].tolist() == [size * c for c in (1, 2, 3, 4)]
        assert row[:, 1].tolist() == alignments
    assert vectors.tolist() == [[1, 2, 3, 4], [5, 6, 56, 1], [1, 0, 0, 258]]


def test_mathematical_functions_give_the_right_numbers(launch: Launch) -> None:
    """CUDA's own functions in both precisions, against Python's or their inverses."""
    functions: dict[str, Callable[[float], float]] = {
        "rsqrt": lambda x: 1 / math.sqrt(x),
        "rcbrt": lambda x: 1 / np.cbrt(x),
        "exp10": lambda x: 10.0**x,
        "sinpi": lambda x: math.sin(math.pi * x),
        "cospi": lambda x: math.cos(math.pi * x),
        "erf": math.erf,
        "erfc": math.erfc,
        "erfcx": lambda x: math.exp(x * x) * math.erfc(x),
        "normcdf": lambda x: 0.5 * math.erfc(-x / math.sqrt(2)),
        "lgamma": math.lgamma,
        "tgamma": math.gamma,
        "cbrt": np.cbrt,
        "log1p": math.log1p,
        "expm1": math.expm1,
        "exp2": np.exp2,
        "asinh": math.asinh,
    }
    known = list(functions)
    body = "".join(
        f"d[{i} * n + t] = {name}(x[t]); f[{i} * n + t] = {name}f(float(x[t]));"
        for i, name in enumerate(known)
    )
    source = f"""
    extern "C" __global__ void k(const double* x, double* d, float* f, double* extra) {{
        int t = threadIdx.x, n = blockDim.x;
        {body}
        double y = x[t] / 4.0001, s, c; float sf, cf;
        double* e = extra + t;
        e[0] = erf(erfinv(y)) - y; e[n] = erfc(erfcinv(y)) / y;
        e[2 * n] = normcdf(normcdfinv(y)) / y;
        e[3 * n] = erff(erfinvf(float(y))) - y; e[4 * n] = erfcinv(1e-300 * y);
        sincos(x[t], &s, &c); sincosf(x[t], &sf, &cf);
        e[5 * n] = s * s + c * c; e[6 * n] = sf * sf + cf * cf;
        sincospif(x[t], &sf, &cf); e[7 * n] = sf * sf + cf * cf;
        e[8 * n] = hypotf(3, 4) + fmaf(2, 3, 4) + fdividef(1, 4) + copysignf(2, -1)
                 + norm3df(1, 2, 2) + rhypot(3.0, 4.0) + fmodf(7, 4) + roundf(2.5f);
        e[9 * n] = __saturatef(2.f) + __saturatef(-1.f) + __saturatef(NAN)
                 + __saturatef(.25f);
        e[10 * n] = sinpi(1e6) + cospi(0.5) + cospif(1.5f) + sinpif(-3.f) + erfinv(0.0);
    }}
    """
    n = 39
    x = np.linspace(0.1, 4, n)
    doubles = np.zeros((len(known), n))
    floats = np.zeros((len(known), n), np.float32)
    extra = np.zeros((11, n))
    launch(source, "k", 1, n, [x, doubles, floats, extra])
    for i, name in enumerate(known):
        expected = [functions[name](v) for v in x]
        single = [functions[name](v) for v in x.astype(np.float32).astype(float)]
        assert np.allclose(doubles[i], expected, rtol=2e-13, atol=1e-14), name
        assert np.allclose(floats[i], single, rtol=4e-7, atol=1e-7), name
    assert np.allclose(extra[0], 0, atol=1e-15)
    assert np.allclose(extra[1:3], 1, rtol=1e-12)
    assert np.allclose(extra[3], 0, atol=1e-6)
    erfc = np.array([math.erfc(v) for v in extra[4]])
    assert np.allclose(erfc / (1e-300 * x / 4.0001), 1, rtol=1e-9)
    assert np.allclose(extra[5:8], 1, rtol=1e-6)
    assert np.allclose(extra[8:, 0], [5 + 10 + 0.25 - 2 + 3 + 0.2 + 3 + 3, 1.25, 0])


def test_overloads_take_mixed_types_as_in_cuda(launch: Launch) -> None:
    """Overloads of min, max, abs, pow and others; signed, unsigned and floating."""
    source = """
    extern "C" __global__ void k(double* o) {
        o[0] = min(3, 4u); o[1] = max(-1, 1u); o[2] = min(2.5f, 1.5); o[3] = max(NAN, 1.0f);
        o[4] = min(-5ll, 3ll); o[5] = max(7ul, 3l); o[6] = abs(-3) + abs(-2.5f) + abs(-4ll);
        o[7] = pow(2.0f, 3) + pow(2.0, 0.5f) + powf(2, 2);
        o[8] = sqrt(4.0f) + exp(0.0) + log(1.0f) + floor(2.7f) + fmax(1.0f, 2.0);
        o[9] = isnan(NAN) + 2 * isinf(INFINITY) + 4 * isfinite(1.0f) + 8 * signbit(-1.0);
        o[10] = min(short(3), short(-3)); o[11] = umin(3, 4) + llmax(5, 6);
        o[12] = sizeof(sqrt(1.0f)) + sizeof(rsqrt(1.0f)) + sizeof(max(1.0f, 2.0f));
    }
    """
    out = np.zeros(13)
    launch(source, "k", 1, 1, [out])
    assert np.allclose(
        out, [3, 2**32 - 1, 1.5, 1, -5, 7, 9.5, 12 + 2**0.5, 7, 15, -3, 9, 12]
    )


def test_bit_intrinsics_match_their_definition(launch: Launch) -> None:
    """Counting, reversing, permuting, shifting and high products of integers."""
    source = """
    extern "C" __global__ void k(const unsigned* x, unsigned long long* o) {
        int t = threadIdx.x;
        unsigned a = x[t], b = x[(t + 1) % 32], s = t + 8;
        unsigned long long w = (unsigned long long)a << 32 | b;
        unsigned long long all[] = {
            (unsigned)__popc(a), (unsigned)__popcll(w), (unsigned)__clz(a >> t),
            (unsigned)__clzll(w >> t), (unsigned)__ffs(a << t), (unsigned)__ffsll(w << t),
            __brev(a), __brevll(w), __byte_perm(a, b, 0x7250),
            __funnelshift_l(a, b, s), __funnelshift_r(a, b, s),
            __funnelshift_lc(a, b, s), __funnelshift_rc(a, b, s),
            (unsigned)__mulhi(int(a), int(b)), __umulhi(a, b),
            (unsigned long long)__mul64hi((long long)w, -3ll), __umul64hi(w, w),
            (unsigned)__mul24(int(a), 5), __umul24(a, b), __sad(int(a), int(b), 1u),
            __usad(a, b, 1u), (unsigned)__hadd(int(a), int(b)), __urhadd(a, b),
            (unsigned)__dp4a(int(a), int(b), 1)};
        for (int i = 0; i < 24; ++i) o[t * 24 + i] = all[i];
    }
    """
    x = np.random.default_rng(3).integers(0, 2**32, 32, np.uint32)
    x[3] = 0
    out = np.zeros((32, 24), np.uint64)
    launch(source, "k", 1, 32, [x, out])

    def signed(value: int, bits: int) -> int:
        value %= 1 << bits
        return value - (value >> (bits - 1) << bits)

    def first(value: int) -> int:
        return (value & -value).bit_length()

    def flip(value: int, bits: int) -> int:
        return int(f"{value:0{bits}b}"[::-1], 2)

    for t in range(32):
        a, b, s = int(x[t]), int(x[(t + 1) % 32]), t + 8
        w, ba = a << 32 | b, b << 32 | a
        pick = [ba >> 8 * i & 255 for i in range(8)]
        i, j = signed(a, 32), signed(b, 32)
        dot = sum(signed(i >> k, 8) * signed(j >> k, 8) for k in (0, 8, 16, 24))
        assert [int(v) for v in out[t]] == [
            a.bit_count(), w.bit_count(),
            32 - (a >> t).bit_length(), 64 - (w >> t).bit_length(),
            first(a << t & 0xFFFFFFFF), first(w << t & (1 << 64) - 1),
            flip(a, 32), flip(w, 64),
            pick[0] | pick[5] << 8 | pick[2] << 16 | pick[7] << 24,
            (ba << s % 32 >> 32) % 2**32, (ba >> s % 32) % 2**32,
            (ba << min(s, 32) >> 32) % 2**32, (ba >> min(s, 32)) % 2**32,
            (i * j >> 32) % 2**32, a * b >> 32,
            (signed(w, 64) * -3 >> 64) % 2**64, w * w >> 64,
            signed(a, 24) * 5 % 2**32, (a & 0xFFFFFF) * (b & 0xFFFFFF) % 2**32,
            (abs(i - j) + 1) % 2**32, (abs(a - b) + 1) % 2**32, (i + j >> 1) % 2**32,
            a + b + 1 >> 1, (dot + 1) % 2**32,
        ]  # fmt: skip


def test_conversions_round_as_named_and_saturate(launch: Launch) -> None:
    """rn, rz, ru and rd, to and from integers, and reinterpretation of bits."""
    source = """
    extern "C" __global__ void k(const double* x, long long* o, float* f, double* d) {
        int t = threadIdx.x; double v = x[t]; float u = v;
        long long all[] = {
            __float2int_rn(u), __float2int_rz(u), __float2int_ru(u), __float2int_rd(u),
            __float2uint_rn(u), __double2int_rn(v), __double2uint_rz(v),
            __double2ll_rd(v), (long long)__double2ull_ru(v), __float2ll_rn(u),
            __float_as_int(u), __float_as_uint(u), __double_as_longlong(v),
            __double2hiint(v), __double2loint(v)};
        for (int i = 0; i < 15; ++i) o[t * 15 + i] = all[i];
        f[t * 6] = __int_as_float(__float_as_int(u)); f[t * 6 + 1] = __double2float_ru(0.1);
        f[t * 6 + 2] = __double2float_rd(0.1); f[t * 6 + 3] = __int2float_rz(16777219);
        f[t * 6 + 4] = __uint2float_ru(16777217u); f[t * 6 + 5] = __ll2float_rn(1ll << 40);
        d[t * 3] = __longlong_as_double(__double_as_longlong(v));
        d[t * 3 + 1] = __hiloint2double(__double2hiint(v), __double2loint(v));
        d[t * 3 + 2] = __ll2double_ru((1ll << 53) + 1) - __int2double_rn(1);
    }
    """
    x = np.array([0.5, 1.5, -1.5, 2.25, -0.75, 1e12, -1e12, np.nan, 1e30, -1e30])
    out = np.zeros((len(x), 15), np.int64)
    floats, doubles = np.zeros((len(x), 6), np.float32), np.zeros((len(x), 3))
    launch(source, "k", 1, len(x), [x, out, floats, doubles])

    def clip(value: float, bits: int, signed: bool, nan: int) -> int:
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if signed else (0, 2**bits)
        result = nan if math.isnan(value) else min(max(int(value), low), high - 1)
        return result - 2**64 if result >= 2**63 else result

    for row, v in zip(out.tolist(), x, strict=True):
        u = float(np.float32(v))
        assert row[:10] == [
            clip(np.rint(u), 32, True, 0), clip(np.trunc(u), 32, True, 0),
            clip(np.ceil(u), 32, True, 0), clip(np.floor(u), 32, True, 0),
            clip(np.rint(u), 32, False, 0), clip(np.rint(v), 32, True, -(2**31)),
            clip(np.trunc(v), 32, False, 2**31), clip(np.floor(v), 64, True, -(2**63)),
            clip(np.ceil(v), 64, False, 2**63), clip(np.rint(u), 64, True, -(2**63)),
        ]  # fmt: skip
    bits = x.view(np.int64)
    assert np.array_equal(out[:, 10], x.astype(np.float32).view(np.int32))
    assert np.array_equal(out[:, 11], x.astype(np.float32).view(np.uint32))
    assert np.array_equal(out[:, 12], bits)
    assert np.array_equal(out[:, 13], bits >> 32)
    assert np.array_equal(out[:, 14], bits.astype(np.int32))
    near = np.float32(0.1)
    expected = [near, np.nextafter(near, np.float32(0)), 16777218, 16777218, 2.0**40]
    assert (floats[:, 1:] == np.array(expected, np.float32)).all()
    assert np.array_equal(floats[:, 0], x.astype(np.float32), equal_nan=True)
    assert np.array_equal(doubles[:, 0], x, equal_nan=True)
    assert np.array_equal(doubles[:, 1], x, equal_nan=True)
    assert (doubles[:, 2] == 2.0**53 + 1).all()


def test_rounded_and_fast_intrinsics_compute_what_their_names_say(launch: Launch) -> None:
    """Directed rounding differs by one unit at most; fast versions are the exact ones."""
    source = """
    extern "C" __global__ void k(float* o, double* d) {
        volatile float one = 1, three = 3, tiny = 1e-10f;
        float all[] = {
            __fadd_rn(one, tiny), __fadd_ru(one, tiny), __fadd_rz(one, -tiny),
            __fsub_rd(one, tiny), __fdiv_rd(one, three), __fdiv_ru(one, three),
            __frcp_rn(three), __frcp_ru(three), __fmul_rn(three, three),
            __fmul_rz(one / 3, one / 3), __fmaf_rn(three, three, one),
            __fsqrt_rn(three), __fsqrt_ru(three), __fsqrt_rd(three), __frsqrt_rn(4.0f),
            __expf(1), __logf(2), __sinf(1), __cosf(1), __powf(2, 5), __fdividef(1, 8),
            __log2f(8), __log10f(100), __exp10f(2), __tanf(0)};
        for (int i = 0; i < 25; ++i) o[i] = all[i];
        d[0] = __dadd_ru(1.0, 1e-30); d[1] = __dmul_rn(3.0, 4.0);
        d[2] = __ddiv_rd(1.0, 3.0); d[3] = __ddiv_ru(1.0, 3.0);
        d[4] = __dsqrt_rn(2.0); d[5] = __fma_rn(2.0, 3.0, 4.0);
        d[6] = __drcp_rn(4.0); float s, c; __sincosf(1, &s, &c); d[7] = s * s + c * c;
    }
    """
    out, doubles = np.zeros(25, np.float32), np.zeros(8)
    launch(source, "k", 1, 1, [out, doubles])
    f = np.float32

    def up(value: Any, towards: float) -> Any:
        return np.nextafter(f(value), f(towards))

    down = up
    third = f(1) / f(3)
    low, high = (down(third, 0), third) if float(third) > 1 / 3 else (third, up(third, 1))
    root = np.sqrt(f(3))
    roots = (root, up(root, 9)) if float(root) ** 2 < 3 else (down(root, 0), root)
    product = float(third) ** 2
    cut = f(product) if float(f(product)) <= product else down(product, 0)
    expected = [
        1, up(1, 2), down(1, 0), down(1, 0), low, high, third, high, 9, cut, 10,
        root, roots[1], roots[0], 0.5, np.exp(f(1)), np.log(f(2)), np.sin(f(1)),
        np.cos(f(1)), 32, 0.125, 3, 2, 100, 0,
    ]  # fmt: skip
    assert np.array_equal(out[:15], np.array(expected[:15], f))
    assert np.allclose(out[15:], np.array(expected[15:], f), rtol=3e-7)
    exact = 1 / 3
    assert doubles[2:4].tolist() == [exact, np.nextafter(exact, 1)]
    assert np.allclose(doubles, [1, 12, exact, exact, 2**0.5, 10, 0.25, 1], rtol=1e-7)
    assert doubles[0] == np.nextafter(1, 2)


def test_cached_loads_clocks_and_printf_work(
    launch: Launch, capfd: pytest.CaptureFixture[str]
) -> None:
    """__ldg and kin load, clocks move forward, printf reaches standard output."""
    source = """
    extern "C" __global__ void k(const float4* x, float* o) {
        long long before = clock64(); auto c = clock();
        float4 v = __ldg(x);
        float a = __ldcg(&v.x) + __ldca(&v.y) + __ldcs(&v.z) + __ldcv(&v.w);
        __stcs(o, a); __stwt(o + 1, 2); __stcg(o + 2, __ldlu(o)); __stwb(o + 3, 4);
        o[4] = clock64() >= before && clock() >= c;
        printf("thread %d says %s %.1f\\n", int(threadIdx.x), "hello", double(a));
    #if __CUDA_ARCH__ != 700 || !defined(__CUDACC__) || __KERNELS_ASYNC_CPU__ != 1
    #error "a source must see the macros of an architecture"
    #endif
    }
    """
    x, out = np.arange(4, dtype=np.float32), np.zeros(5, np.float32)
    launch(source, "k", 1, 1, [x, out])
    assert out.tolist() == [6, 2, 6, 4, 1]
    assert "thread 0 says hello 6.0\n" in capfd.readouterr().out


def test_what_the_header_lacks_is_a_compile_error_that_names_it(launch: Launch) -> None:
    """No stub stands in for a construct that would not work."""
    source = 'extern "C" __global__ void k(float* o) { o[0] = tex1Dfetch<float>(0, 1); }'
    assert "tex1Dfetch" in failure(launch, source, "k", 1, 1, [np.zeros(1, np.float32)])


# ------------------------------------------------------------------ stacks


def test_each_thread_has_a_deep_stack_and_its_own_locals(launch: Launch) -> None:
    """300 KiB of locals per waiting thread, recursion, and vector registers survive."""
    source = """
    __device__ __noinline__ double deep(int n, double x) {
        volatile double local[256];
        local[n] = x;
        if (n == 100) __syncthreads();
        return n ? deep(n - 1, x + 1) + local[n] - x : local[n];
    }
    extern "C" __global__ void k(double* o) {
        double a = threadIdx.x, b = a * 2, c = a * 3;
        double r = deep(140, a);
        __syncwarp();
        o[blockIdx.x * blockDim.x + threadIdx.x] = r + a + b + c;
    }
    """
    out = np.zeros((3, 96))
    launch(source, "k", 3, 96, [out])
    assert (out == np.arange(96) * 7 + 140).all()


def test_many_launches_of_one_kernel_leave_no_trace(build: Build) -> None:
    """Success after failure, and again: state belongs to a launch."""
    source = """
    extern "C" __global__ void k(int* o, int bad) {
        __shared__ int a[32];
        a[threadIdx.x] = threadIdx.x;
        if (threadIdx.x == bad) __trap();
        __syncthreads();
        o[threadIdx.x] = a[31 - threadIdx.x];
    }
    """
    kernel = build(source, "k")
    for bad in [-1, 3, -1, 31, -1, -1]:
        out = np.zeros(32, np.int32)
        if bad >= 0:
            with pytest.raises(LaunchError, match="trap"):
                kernel((4,), (32,), [out, np.int32(bad)])
        else:
            kernel((4,), (32,), [out, np.int32(bad)])
            assert np.array_equal(out, np.arange(32)[::-1])
