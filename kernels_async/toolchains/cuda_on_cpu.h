// CUDA's language for a host C++ compiler: include it before a CUDA C++ source, and the
// source's kernels run on the CPU. It exists so that kernels, and what is built on them,
// run and give right numbers where there is no GPU.
//
// A launch's blocks run in parallel on the OS threads that call `run`; the threads of one
// block take turns on one OS thread, each going on until it must wait for the others.
// Threads that wait for one another for ever end the launch with a message.
//
// What it does not promise: speed; the GPU's last bits (approximate intrinsics are the
// exact functions here); any answer for what CUDA leaves undefined: a bad address or an
// integer division by zero ends the process, a float too large for an integer converts as
// the host does. A thread that spins until another thread of its block writes to memory
// never ends, unless it calls __nanosleep. What CUDA has and this file lacks (half types,
// cooperative groups, textures, PTX, ...) is a compile error.

#pragma once
#pragma GCC system_header  // errors in a macro's use are the user's, not this file's

#if __cplusplus < 201703L
#error "CUDA on the CPU needs C++17 or later"
#endif

// Names that kernels like to have, and that the C library need not have here.
#define clone kernels_async_libc_clone
#define fadd kernels_async_libc_fadd
#define fdiv kernels_async_libc_fdiv
#define fmul kernels_async_libc_fmul
#define fsub kernels_async_libc_fsub
#define gamma kernels_async_libc_gamma
#define index kernels_async_libc_index
#define random kernels_async_libc_random
#define select kernels_async_libc_select

#include <math.h>
#include <cassert>
#include <cfenv>
#include <climits>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <type_traits>
#include <utility>
#include <sched.h>
#include <sys/mman.h>

#if defined(__ELF__) && defined(__x86_64__) && !defined(KERNELS_ASYNC_CPU_UCONTEXT)
#define KERNELS_ASYNC_X86_64 1
#elif defined(__ELF__) && defined(__aarch64__) && !defined(KERNELS_ASYNC_CPU_UCONTEXT)
#define KERNELS_ASYNC_AARCH64 1
#else
#include <ucontext.h>
#endif

#undef clone
#undef fadd
#undef fdiv
#undef fmul
#undef fsub
#undef gamma
#undef index
#undef random
#undef select

#define __KERNELS_ASYNC_CPU__ 1
#define __CUDACC__ 1
#define __CUDA_ARCH__ 700  // warps may diverge, and nothing guarded by it needs PTX

#pragma GCC visibility push(hidden)

// ---------------------------------------------------------------- vector types

#define KERNELS_ASYNC_VECTOR(NAME, TYPE, ALIGN2, ALIGN4)                           \
    struct NAME##1 { TYPE x; };                                                    \
    struct __attribute__((aligned(ALIGN2))) NAME##2 { TYPE x, y; };                \
    struct NAME##3 { TYPE x, y, z; };                                              \
    struct __attribute__((aligned(ALIGN4))) NAME##4 { TYPE x, y, z, w; };          \
    constexpr NAME##1 make_##NAME##1(TYPE x) { return {x}; }                       \
    constexpr NAME##2 make_##NAME##2(TYPE x, TYPE y) { return {x, y}; }            \
    constexpr NAME##3 make_##NAME##3(TYPE x, TYPE y, TYPE z) { return {x, y, z}; } \
    constexpr NAME##4 make_##NAME##4(TYPE x, TYPE y, TYPE z, TYPE w) {             \
        return {x, y, z, w};                                                       \
    }

KERNELS_ASYNC_VECTOR(char, signed char, 2, 4)
KERNELS_ASYNC_VECTOR(uchar, unsigned char, 2, 4)
KERNELS_ASYNC_VECTOR(short, short, 4, 8)
KERNELS_ASYNC_VECTOR(ushort, unsigned short, 4, 8)
KERNELS_ASYNC_VECTOR(int, int, 8, 16)
KERNELS_ASYNC_VECTOR(uint, unsigned int, 8, 16)
KERNELS_ASYNC_VECTOR(long, long, 2 * sizeof(long), 16)
KERNELS_ASYNC_VECTOR(ulong, unsigned long, 2 * sizeof(long), 16)
KERNELS_ASYNC_VECTOR(longlong, long long, 16, 16)
KERNELS_ASYNC_VECTOR(ulonglong, unsigned long long, 16, 16)
KERNELS_ASYNC_VECTOR(float, float, 8, 16)
KERNELS_ASYNC_VECTOR(double, double, 16, 16)

#undef KERNELS_ASYNC_VECTOR

struct dim3 {
    unsigned int x, y, z;
    constexpr dim3(unsigned int x = 1, unsigned int y = 1, unsigned int z = 1)
        : x(x), y(y), z(z) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
    constexpr operator uint3() const { return {x, y, z}; }
};

inline thread_local uint3 threadIdx;
inline thread_local uint3 blockIdx;
inline thread_local dim3 blockDim;
inline thread_local dim3 gridDim;
constexpr int warpSize = 32;

// ---------------------------------------------------------------- the interface to Python

namespace kernels_async_cpu {

struct ka_parameter {
    uint32_t size;
    uint32_t kind;
};

enum : uint32_t { OTHER, POINTER, SIGNED, UNSIGNED, FLOATING, BOOLEAN, CONST_POINTER };

struct ka_launch {
    uint32_t grid[3];
    uint32_t block[3];
    uint64_t shared_bytes;
    void* const* arguments;
    uint64_t next_block;
    int32_t failed;
    char message[1024];
};

template <class... P>
struct ka_entry {
    uint32_t abi;
    uint32_t parameter_count;
    void (*kernel)(P...);
    const ka_parameter* parameters;
    void (*run)(ka_launch*);
};

constexpr uint64_t DYNAMIC_SHARED_LIMIT = 232448;

// ---------------------------------------------------------------- contexts

#if KERNELS_ASYNC_X86_64 || KERNELS_ASYNC_AARCH64

struct context {
    void* stack_pointer = nullptr;
};

extern "C" void kernels_async_cpu_switch(void** from, void* to);

#if KERNELS_ASYNC_X86_64

asm(R"(
    .pushsection .text
    .globl kernels_async_cpu_switch
    .hidden kernels_async_cpu_switch
    .type kernels_async_cpu_switch, @function
kernels_async_cpu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size kernels_async_cpu_switch, . - kernels_async_cpu_switch
    .popsection
)");

inline void prepare(context& c, char* stack, size_t size, void (*entry)()) {
    void** top = reinterpret_cast<void**>(stack + size);
    *--top = nullptr;  // where `entry` would return to
    *--top = reinterpret_cast<void*>(entry);
    for (int saved = 0; saved < 6; ++saved) *--top = nullptr;
    c.stack_pointer = top;
}

#else

asm(R"(
    .pushsection .text
    .globl kernels_async_cpu_switch
    .hidden kernels_async_cpu_switch
    .type kernels_async_cpu_switch, %function
    .balign 4
kernels_async_cpu_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
    .size kernels_async_cpu_switch, . - kernels_async_cpu_switch
    .popsection
)");

inline void prepare(context& c, char* stack, size_t size, void (*entry)()) {
    void** frame = reinterpret_cast<void**>(stack + size - 160);
    std::memset(frame, 0, 160);
    frame[11] = reinterpret_cast<void*>(entry);  // x30
    c.stack_pointer = frame;
}

#endif

inline void switch_context(context& from, context& to) {
    kernels_async_cpu_switch(&from.stack_pointer, to.stack_pointer);
}

#else

struct context {
    ucontext_t registers;
};

inline void prepare(context& c, char* stack, size_t size, void (*entry)()) {
    getcontext(&c.registers);
    c.registers.uc_stack.ss_sp = stack;
    c.registers.uc_stack.ss_size = size;
    c.registers.uc_link = nullptr;
    makecontext(&c.registers, entry, 0);
}

inline void switch_context(context& from, context& to) {
    swapcontext(&from.registers, &to.registers);
}

#endif

// ---------------------------------------------------------------- fibers, warps, a worker

struct fiber;

// A warp operation: the last lane to come computes the `result` of every lane.
struct operation {
    const char* name;
    void (*finish)(fiber* const* lanes, unsigned arrived);
};

struct warp {
    struct group {
        const operation* what;
        unsigned mask, arrived;
    };
    unsigned alive;
    unsigned group_count;
    fiber* lanes[32];
    group groups[32];
};

// What runs threads, one after another: a thread that waits keeps its fiber.
struct fiber {
    context saved;
    fiber* next;
    uint3 thread;
    unsigned lane;
    kernels_async_cpu::warp* warp;

    bool waits;
    const operation* what;  // null at a barrier
    const char* file;
    int line;
    int site;

    unsigned mask, arrived;
    unsigned source;
    uint64_t value, result;
};

template <class F>
inline void for_each_lane(unsigned lanes, F f) {
    for (; lanes; lanes &= lanes - 1) f(unsigned(__builtin_ctz(lanes)));
}

struct queue {
    fiber* first = nullptr;
    fiber* last = nullptr;

    void push(fiber* f) {
        f->next = nullptr;
        (first ? last->next : first) = f;
        last = f;
    }
    fiber* pop() {
        fiber* f = first;
        first = f->next;
        return f;
    }
    void append(queue& other) {
        if (!other.first) return;
        (first ? last->next : first) = other.first;
        last = other.last;
        other.first = nullptr;
    }
};

// One call of `run`: an OS thread that runs one block after another.
struct worker {
    ka_launch* launch;
    void (*call)(void* const*);
    unsigned thread_count, warp_count;

    char* arena;
    size_t arena_size;
    fiber* fibers;
    warp* warps;
    char* stacks;
    unsigned guarded;

    context home;
    fiber* current;
    fiber* parked;
    unsigned fibers_used;
    unsigned started, alive;
    uint3 next_thread;
    queue ready, yielded;

    queue barrier;
    unsigned barrier_arrived;
    bool barrier_mixed;
    int barrier_sum, barrier_result;
};

inline thread_local worker* current_worker;

#if KERNELS_ASYNC_X86_64
constexpr size_t GUARD_SIZE = 4096;
#else
constexpr size_t GUARD_SIZE = 65536;
#endif
constexpr size_t STACK_SIZE = 512 * 1024;

// ---------------------------------------------------------------- failure

__attribute__((noinline)) inline void report(ka_launch* launch, const char* text) {
    int32_t none = 0;
    if (__atomic_compare_exchange_n(&launch->failed, &none, 1, false, __ATOMIC_SEQ_CST,
                                    __ATOMIC_SEQ_CST))
        std::snprintf(launch->message, sizeof launch->message, "%s", text);
}

// Ends the launch, from inside a fiber: nothing of this block runs again.
[[noreturn]] __attribute__((noinline)) inline void stop(const char* text) {
    worker& w = *current_worker;
    report(w.launch, text);
    switch_context(w.current->saved, w.home);
    std::abort();
}

[[noreturn]] __attribute__((noinline, format(printf, 1, 2))) inline void stop_thread(
    const char* format, ...) {
    char what[800], text[1024];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    std::snprintf(text, sizeof text, "%s in thread (%u,%u,%u) of block (%u,%u,%u)", what,
                  threadIdx.x, threadIdx.y, threadIdx.z, blockIdx.x, blockIdx.y,
                  blockIdx.z);
    stop(text);
}

// clang puts ./ before the name of a file that stands beside the including one.
inline const char* shown(const char* file) {
    return file[0] == '.' && file[1] == '/' ? file + 2 : file;
}

// Ends the launch because every thread of the block waits; says who waits where.
[[noreturn]] __attribute__((noinline)) inline void stop_stuck(worker& w) {
    struct place {
        const fiber* example;
        unsigned count;
    };
    constexpr unsigned MOST = 8;
    place places[MOST];
    unsigned place_count = 0;
    bool barriers_only = true;
    for (unsigned i = 0; i < w.fibers_used; ++i) {
        const fiber& f = w.fibers[i];
        if (!f.waits) continue;
        if (f.what) barriers_only = false;
        unsigned p = 0;
        while (p < place_count &&
               (places[p].example->what != f.what || places[p].example->site != f.site ||
                places[p].example->line != f.line || places[p].example->mask != f.mask))
            ++p;
        if (p < place_count)
            ++places[p].count;
        else if (place_count < MOST)
            places[place_count++] = {&f, 1};
    }
    char text[1024];
    int length = std::snprintf(text, sizeof text, "threads of block (%u,%u,%u) wait %s:",
                               blockIdx.x, blockIdx.y, blockIdx.z,
                               barriers_only ? "at different barriers" : "for one another");
    for (unsigned p = 0; p < place_count; ++p) {
        const fiber& f = *places[p].example;
        char name[64] = "";
        if (f.what)
            std::snprintf(name, sizeof name, "%s with mask 0x%08x, ", f.what->name, f.mask);
        else if (!barriers_only)
            std::snprintf(name, sizeof name, "a barrier, ");
        if (length < int(sizeof text))
            length += std::snprintf(text + length, sizeof text - length,
                                    "%s %u at %s%.80s:%d", p ? "," : "", places[p].count,
                                    name, shown(f.file), f.line);
    }
    stop(text);
}

// ---------------------------------------------------------------- the scheduler

inline void run_fiber();

inline fiber* new_fiber(worker& w) {
    unsigned i = w.fibers_used++;
    char* stack = w.stacks + i * (GUARD_SIZE + STACK_SIZE);
    if (i == w.guarded) {
        // Without its guard page a stack still works: the kernel has a limit on mappings.
        (void)mprotect(stack, GUARD_SIZE, PROT_NONE);
        ++w.guarded;
    }
    // At one offset in their pages, the tops of stacks would compete for few cache lines.
    size_t shift = i % 32 * 448;
    prepare(w.fibers[i].saved, stack + GUARD_SIZE, STACK_SIZE - shift, run_fiber);
    w.fibers[i].waits = false;
    return &w.fibers[i];
}

inline void wait_at(fiber& self, const operation* what, unsigned mask, const char* file,
                    int line, int site) {
    self.waits = true;
    self.what = what;
    self.mask = mask;
    self.file = file;
    self.line = line;
    self.site = site;
}

inline void release_barrier_if_all_wait(worker& w) {
    if (w.barrier_arrived != w.alive || !w.barrier_arrived || w.barrier_mixed) return;
    w.barrier_result = w.barrier_sum;
    w.barrier_sum = 0;
    w.barrier_arrived = 0;
    w.ready.append(w.barrier);
}

inline void finish_lanes(worker& w, warp& warp, const operation& what, unsigned arrived) {
    what.finish(warp.lanes, arrived);
    for_each_lane(arrived, [&](unsigned lane) {
        warp.lanes[lane]->arrived = arrived;
        w.ready.push(warp.lanes[lane]);
    });
}

inline void finish_groups_that_are_complete(worker& w, warp& warp) {
    for (unsigned i = warp.group_count; i-- > 0;) {
        warp::group group = warp.groups[i];
        if (group.arrived != (group.mask & warp.alive)) continue;
        warp.groups[i] = warp.groups[--warp.group_count];
        finish_lanes(w, warp, *group.what, group.arrived);
    }
}

inline void finish_activemask(fiber* const* lanes, unsigned arrived) {
    for_each_lane(arrived, [&](unsigned lane) { lanes[lane]->result = arrived; });
}

inline constexpr operation ACTIVEMASK = {"__activemask", finish_activemask};

// Lanes that ask who is active wait until nobody else can run; then those that ask at the
// same place are active together, the first place in the source first.
inline bool release_activemasks(worker& w) {
    bool any = false;
    for (unsigned i = 0; i < w.warp_count; ++i) {
        warp& warp = w.warps[i];
        const fiber* first = nullptr;
        unsigned arrived = 0;
        for_each_lane(warp.alive, [&](unsigned lane) {
            const fiber* f = warp.lanes[lane];
            if (!f->waits || f->what != &ACTIVEMASK) return;
            if (!first || f->site < first->site) {
                first = f;
                arrived = 0;
            }
            if (f->site == first->site) arrived |= 1u << lane;
        });
        if (!arrived) continue;
        any = true;
        finish_lanes(w, warp, ACTIVEMASK, arrived);
    }
    return any;
}

// Leaves `from` for whoever can run next.
inline void run_another(worker& w, fiber* from) {
    bool unstarted = w.started < w.thread_count;
    if (!w.ready.first && !unstarted) {
        if (!w.alive) {
            switch_context(from->saved, w.home);
            std::abort();
        }
        if (!release_activemasks(w)) {
            if (!w.yielded.first) stop_stuck(w);
            w.ready.append(w.yielded);
        }
    }
    fiber* to;
    if (w.ready.first) {
        to = w.ready.pop();
        to->waits = false;
        threadIdx = to->thread;
    } else if (w.parked) {
        to = w.parked;
        w.parked = to->next;
    } else {
        to = new_fiber(w);
    }
    w.current = to;
    if (to != from) switch_context(from->saved, to->saved);
}

inline void start_thread(worker& w, fiber* self) {
    unsigned i = w.started++;
    self->lane = i % 32;
    self->warp = &w.warps[i / 32];
    self->warp->lanes[self->lane] = self;
    threadIdx = self->thread = w.next_thread;
    if (++w.next_thread.x == blockDim.x) {
        w.next_thread.x = 0;
        if (++w.next_thread.y == blockDim.y) {
            w.next_thread.y = 0;
            ++w.next_thread.z;
        }
    }
}

inline void end_thread(worker& w, fiber* self) {
    --w.alive;
    self->warp->alive &= ~(1u << self->lane);
    if (self->warp->group_count) finish_groups_that_are_complete(w, *self->warp);
    release_barrier_if_all_wait(w);
}

inline void run_fiber() {
    worker& w = *current_worker;
    fiber* self = w.current;
    for (;;) {
        while (!w.ready.first && w.started < w.thread_count) {
            start_thread(w, self);
            w.call(w.launch->arguments);
            end_thread(w, self);
        }
        self->next = w.parked;
        w.parked = self;
        run_another(w, self);
    }
}

// ---------------------------------------------------------------- running a launch

inline bool map_arena(worker& w) {
    size_t records = w.thread_count * sizeof(fiber) + w.warp_count * sizeof(warp);
    records = (records + GUARD_SIZE - 1) / GUARD_SIZE * GUARD_SIZE;
    w.arena_size = records + w.thread_count * (GUARD_SIZE + STACK_SIZE);
    void* memory = mmap(nullptr, w.arena_size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (memory == MAP_FAILED) {
        report(w.launch, "there is no memory for the stacks of a block's threads");
        return false;
    }
#ifdef MADV_NOHUGEPAGE
    madvise(memory, w.arena_size, MADV_NOHUGEPAGE);
#endif
    w.arena = static_cast<char*>(memory);
    w.fibers = reinterpret_cast<fiber*>(w.arena);
    w.warps = reinterpret_cast<warp*>(w.fibers + w.thread_count);
    w.stacks = w.arena + records;
    return true;
}

inline void run_block(worker& w, uint64_t block) {
    blockIdx.x = unsigned(block % gridDim.x);
    blockIdx.y = unsigned(block / gridDim.x % gridDim.y);
    blockIdx.z = unsigned(block / gridDim.x / gridDim.y);
    w.parked = nullptr;
    w.fibers_used = 0;
    w.started = 0;
    w.alive = w.thread_count;
    w.next_thread = {0, 0, 0};
    for (unsigned i = 0; i < w.warp_count; ++i) {
        unsigned lanes = w.thread_count - 32 * i;
        w.warps[i].alive = lanes < 32 ? (1u << lanes) - 1 : ~0u;
        w.warps[i].group_count = 0;
    }
    w.current = new_fiber(w);
    switch_context(w.home, w.current->saved);
}

inline void run_launch(ka_launch* launch, void (*call)(void* const*)) {
    if (launch->shared_bytes > DYNAMIC_SHARED_LIMIT)
        return report(launch, "a block has at most 232448 bytes of dynamic shared memory");
    worker w{};
    w.launch = launch;
    w.call = call;
    blockDim = dim3(launch->block[0], launch->block[1], launch->block[2]);
    gridDim = dim3(launch->grid[0], launch->grid[1], launch->grid[2]);
    w.thread_count = blockDim.x * blockDim.y * blockDim.z;
    w.warp_count = (w.thread_count + 31) / 32;
    if (!w.thread_count) return;
    uint64_t block_count = uint64_t(gridDim.x) * gridDim.y * gridDim.z;
    current_worker = &w;
    while (!__atomic_load_n(&launch->failed, __ATOMIC_SEQ_CST)) {
        uint64_t block = __atomic_fetch_add(&launch->next_block, 1, __ATOMIC_SEQ_CST);
        if (block >= block_count) break;
        if (!w.arena && !map_arena(w)) break;
        run_block(w, block);
    }
    current_worker = nullptr;
    if (w.arena) munmap(w.arena, w.arena_size);
    std::fflush(stdout);
}

// ---------------------------------------------------------------- a kernel's entry

template <class T>
constexpr uint32_t kind_of() {
    if constexpr (std::is_enum_v<T>) return kind_of<std::underlying_type_t<T>>();
    else if constexpr (std::is_reference_v<T> || std::is_pointer_v<T>)
        return std::is_const_v<std::remove_pointer_t<std::remove_reference_t<T>>> ? CONST_POINTER
                                                                               : POINTER;
    else if constexpr (std::is_same_v<T, bool>) return BOOLEAN;
    else if constexpr (std::is_floating_point_v<T>) return FLOATING;
    else if constexpr (!std::is_integral_v<T>) return OTHER;
    else return std::is_signed_v<T> ? SIGNED : UNSIGNED;
}

template <class T>
constexpr ka_parameter describe() {
    if constexpr (std::is_reference_v<T>) return {sizeof(void*), kind_of<std::remove_reference_t<T>*>()};
    else return {sizeof(T), kind_of<T>()};
}

template <class... P>
inline constexpr ka_parameter parameters[sizeof...(P) + 1] = {describe<P>()..., {0, 0}};

// An argument as the caller packed it, which need not be aligned, where a T can lie.
template <class T>
struct argument {
    alignas(T) unsigned char bytes[sizeof(T)];
    explicit argument(const void* from) { std::memcpy(bytes, from, sizeof(T)); }
    T& get() { return *reinterpret_cast<T*>(bytes); }
};

template <class T>
struct argument<T&> : argument<T*> {
    using argument<T*>::argument;
    T& get() { return *argument<T*>::get(); }
};

template <class T>
struct argument<T&&> : argument<T*> {
    using argument<T*>::argument;
    T&& get() { return static_cast<T&&>(*argument<T*>::get()); }
};

template <class... P, size_t... I>
inline void call_with(void (*kernel)(P...), void* const* arguments,
                      std::index_sequence<I...>) {
    kernel(argument<P>(arguments[I]).get()...);
}

template <class... P>
inline void call(void (*kernel)(P...), void* const* arguments) {
    call_with(kernel, arguments, std::index_sequence_for<P...>());
}

template <class... P>
constexpr auto kernel_pointer(void (*kernel)(P...)) {
    return kernel;
}

template <class... P>
constexpr ka_entry<P...> make_entry(void (*kernel)(P...), void (*run)(ka_launch*)) {
    return {1, sizeof...(P), kernel, parameters<P...>, run};
}

static_assert(offsetof(ka_entry<>, kernel) == 8 && offsetof(ka_entry<>, run) == 24);

}  // namespace kernels_async_cpu

#define KERNELS_ASYNC_ENTRY(...)                                                     \
    static constexpr auto kernels_async_kernel =                                     \
        ::kernels_async_cpu::kernel_pointer(__VA_ARGS__);                            \
    static void kernels_async_call(void* const* kernels_async_p) {                   \
        ::kernels_async_cpu::call(kernels_async_kernel, kernels_async_p);            \
    }                                                                                \
    static void kernels_async_run(::kernels_async_cpu::ka_launch* kernels_async_p) { \
        ::kernels_async_cpu::run_launch(kernels_async_p, kernels_async_call);        \
    }                                                                                \
    extern "C" {                                                                     \
    __attribute__((visibility("default"), used)) auto kernels_async_entry =          \
        ::kernels_async_cpu::make_entry(kernels_async_kernel, kernels_async_run);    \
    }

// ---------------------------------------------------------------- qualifiers

#define __global__
#define __device__
#define __host__
#define __managed__
#define __constant__ __attribute__((used))
#define __grid_constant__
#define __shared__ thread_local
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)

// ---------------------------------------------------------------- barriers

namespace kernels_async_cpu {

inline int barrier(bool predicate, const char* file, int line, int site) {
    worker& w = *current_worker;
    fiber* self = w.current;
    wait_at(*self, nullptr, 0, file, line, site);
    if (!w.barrier_arrived)
        w.barrier_mixed = false;
    else if (w.barrier.first->site != site)
        w.barrier_mixed = true;
    w.barrier.push(self);
    ++w.barrier_arrived;
    w.barrier_sum += predicate;
    release_barrier_if_all_wait(w);
    run_another(w, self);
    return w.barrier_result;
}

}  // namespace kernels_async_cpu

inline void kernels_async_barrier(const char* file, int line, int site) {
    kernels_async_cpu::barrier(false, file, line, site);
}
inline int kernels_async_barrier_count(bool p, const char* file, int line, int site) {
    return kernels_async_cpu::barrier(p, file, line, site);
}
inline int kernels_async_barrier_and(bool p, const char* file, int line, int site) {
    return kernels_async_cpu::barrier(!p, file, line, site) == 0;
}
inline int kernels_async_barrier_or(bool p, const char* file, int line, int site) {
    return kernels_async_cpu::barrier(p, file, line, site) != 0;
}

#define __syncthreads() kernels_async_barrier(__FILE__, __LINE__, __COUNTER__)
#define __syncthreads_count(...) \
    kernels_async_barrier_count(bool(__VA_ARGS__), __FILE__, __LINE__, __COUNTER__)
#define __syncthreads_and(...) \
    kernels_async_barrier_and(bool(__VA_ARGS__), __FILE__, __LINE__, __COUNTER__)
#define __syncthreads_or(...) \
    kernels_async_barrier_or(bool(__VA_ARGS__), __FILE__, __LINE__, __COUNTER__)

// ---------------------------------------------------------------- warp operations

namespace kernels_async_cpu {

template <class To, class From>
inline To bits_as(From from) {
    static_assert(sizeof(To) >= sizeof(From));
    To to{};
    std::memcpy(&to, &from, sizeof from);
    return to;
}

template <class To>
inline To low_bits_as(uint64_t from) {
    To to;
    std::memcpy(&to, &from, sizeof to);  // little-endian, as CUDA is
    return to;
}

// Waits for the lanes of `mask`; afterwards `result` and `arrived` of the fiber are set.
inline fiber& exchange(const operation& what, unsigned mask, uint64_t value,
                       unsigned source, const char* file, int line) {
    worker& w = *current_worker;
    fiber* self = w.current;
    warp& warp = *self->warp;
    unsigned bit = 1u << self->lane;
    self->value = value;
    self->source = source;
    if (!(mask & bit)) {
        self->arrived = bit;
        what.finish(warp.lanes, bit);
        return *self;
    }
    wait_at(*self, &what, mask, file, line, 0);
    unsigned i = 0;
    while (i < warp.group_count &&
           (warp.groups[i].mask != mask || warp.groups[i].what != &what))
        ++i;
    if (i == warp.group_count) warp.groups[warp.group_count++] = {&what, mask, 0};
    warp.groups[i].arrived |= bit;
    finish_groups_that_are_complete(w, warp);
    run_another(w, self);
    return *self;
}

// The `value` of the lane `from`; the lane's own if `from` is 32 or does not take part.
template <class T>
inline T shuffle(const operation& what, unsigned mask, T value, unsigned from,
                 const char* file, int line) {
    uint64_t bits = bits_as<uint64_t>(value);
    return low_bits_as<T>(exchange(what, mask, bits, from, file, line).result);
}

inline void finish_shuffle(fiber* const* lanes, unsigned arrived) {
    for_each_lane(arrived, [&](unsigned lane) {
        unsigned source = lanes[lane]->source;
        bool known = source < 32 && (arrived >> source & 1);
        lanes[lane]->result = lanes[known ? source : lane]->value;
    });
}

inline void finish_ballot(fiber* const* lanes, unsigned arrived) {
    unsigned ballot = 0;
    for_each_lane(arrived, [&](unsigned lane) {
        if (lanes[lane]->value) ballot |= 1u << lane;
    });
    for_each_lane(arrived, [&](unsigned lane) { lanes[lane]->result = ballot; });
}

inline void finish_match(fiber* const* lanes, unsigned arrived) {
    for_each_lane(arrived, [&](unsigned lane) {
        unsigned same = 0;
        for_each_lane(arrived, [&](unsigned other) {
            same |= unsigned(lanes[other]->value == lanes[lane]->value) << other;
        });
        lanes[lane]->result = same;
    });
}

template <class T, class F>
inline void finish_reduction(fiber* const* lanes, unsigned arrived) {
    T total = T(lanes[__builtin_ctz(arrived)]->value);
    for_each_lane(arrived & (arrived - 1),
                  [&](unsigned lane) { total = F()(total, T(lanes[lane]->value)); });
    for_each_lane(arrived, [&](unsigned lane) { lanes[lane]->result = unsigned(total); });
}

struct add_up {
    unsigned operator()(unsigned a, unsigned b) const { return a + b; }
};
struct smaller {
    template <class T> T operator()(T a, T b) const { return b < a ? b : a; }
};
struct larger {
    template <class T> T operator()(T a, T b) const { return a < b ? b : a; }
};
struct bit_and {
    unsigned operator()(unsigned a, unsigned b) const { return a & b; }
};
struct bit_or {
    unsigned operator()(unsigned a, unsigned b) const { return a | b; }
};
struct bit_xor {
    unsigned operator()(unsigned a, unsigned b) const { return a ^ b; }
};

inline constexpr operation SYNCWARP = {"__syncwarp", finish_ballot};
inline constexpr operation ANY = {"__any_sync", finish_ballot};
inline constexpr operation ALL = {"__all_sync", finish_ballot};
inline constexpr operation BALLOT = {"__ballot_sync", finish_ballot};
inline constexpr operation UNI = {"__uni_sync", finish_ballot};
inline constexpr operation SHUFFLE = {"__shfl_sync", finish_shuffle};
inline constexpr operation SHUFFLE_UP = {"__shfl_up_sync", finish_shuffle};
inline constexpr operation SHUFFLE_DOWN = {"__shfl_down_sync", finish_shuffle};
inline constexpr operation SHUFFLE_XOR = {"__shfl_xor_sync", finish_shuffle};
inline constexpr operation MATCH_ANY = {"__match_any_sync", finish_match};
inline constexpr operation MATCH_ALL = {"__match_all_sync", finish_match};

inline unsigned own_lane() { return current_worker->current->lane; }

}  // namespace kernels_async_cpu

#define KERNELS_ASYNC_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncwarp(unsigned mask = 0xffffffff, KERNELS_ASYNC_SITE) {
    kernels_async_cpu::exchange(kernels_async_cpu::SYNCWARP, mask, 0, 0, file, line);
}

inline unsigned kernels_async_activemask(const char* file, int line, int site) {
    using namespace kernels_async_cpu;
    worker& w = *current_worker;
    fiber* self = w.current;
    wait_at(*self, &ACTIVEMASK, 0, file, line, site);
    run_another(w, self);
    return unsigned(self->result);
}
#define __activemask() kernels_async_activemask(__FILE__, __LINE__, __COUNTER__)

inline int __any_sync(unsigned mask, int predicate, KERNELS_ASYNC_SITE) {
    using namespace kernels_async_cpu;
    return exchange(ANY, mask, predicate != 0, 0, file, line).result != 0;
}

inline int __all_sync(unsigned mask, int predicate, KERNELS_ASYNC_SITE) {
    using namespace kernels_async_cpu;
    fiber& self = exchange(ALL, mask, predicate != 0, 0, file, line);
    return self.result == self.arrived;
}

inline unsigned __ballot_sync(unsigned mask, int predicate, KERNELS_ASYNC_SITE) {
    using namespace kernels_async_cpu;
    return unsigned(exchange(BALLOT, mask, predicate != 0, 0, file, line).result);
}

inline int __uni_sync(unsigned mask, int predicate, KERNELS_ASYNC_SITE) {
    using namespace kernels_async_cpu;
    fiber& self = exchange(UNI, mask, predicate != 0, 0, file, line);
    return self.result == self.arrived || self.result == 0;
}

#define KERNELS_ASYNC_WARP(T)                                                             \
    inline T __shfl_sync(unsigned mask, T value, int source, int width = 32,              \
                         KERNELS_ASYNC_SITE) {                                            \
        using namespace kernels_async_cpu;                                                \
        unsigned from = (own_lane() & ~(width - 1u)) | (source & (width - 1u));           \
        return shuffle(SHUFFLE, mask, value, from, file, line);                           \
    }                                                                                     \
    inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,       \
                            KERNELS_ASYNC_SITE) {                                         \
        using namespace kernels_async_cpu;                                                \
        unsigned from = delta > (own_lane() & (width - 1u)) ? 32u : own_lane() - delta;   \
        return shuffle(SHUFFLE_UP, mask, value, from, file, line);                        \
    }                                                                                     \
    inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,     \
                              KERNELS_ASYNC_SITE) {                                       \
        using namespace kernels_async_cpu;                                                \
        unsigned room = width - 1u - (own_lane() & (width - 1u));                         \
        unsigned from = delta > room ? 32u : own_lane() + delta;                          \
        return shuffle(SHUFFLE_DOWN, mask, value, from, file, line);                      \
    }                                                                                     \
    inline T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32,       \
                             KERNELS_ASYNC_SITE) {                                        \
        using namespace kernels_async_cpu;                                                \
        unsigned from = own_lane() ^ unsigned(lane_mask);                                 \
        if (from > (own_lane() | (width - 1u))) from = 32;                                \
        return shuffle(SHUFFLE_XOR, mask, value, from, file, line);                       \
    }                                                                                     \
    inline unsigned __match_any_sync(unsigned mask, T value, KERNELS_ASYNC_SITE) {        \
        using namespace kernels_async_cpu;                                                \
        return unsigned(                                                                  \
            exchange(MATCH_ANY, mask, bits_as<uint64_t>(value), 0, file, line).result);   \
    }                                                                                     \
    inline unsigned __match_all_sync(unsigned mask, T value, int* all,                    \
                                     KERNELS_ASYNC_SITE) {                                \
        using namespace kernels_async_cpu;                                                \
        fiber& self = exchange(MATCH_ALL, mask, bits_as<uint64_t>(value), 0, file, line); \
        *all = self.result == self.arrived;                                               \
        return *all ? self.arrived : 0;                                                   \
    }

KERNELS_ASYNC_WARP(int)
KERNELS_ASYNC_WARP(unsigned int)
KERNELS_ASYNC_WARP(long)
KERNELS_ASYNC_WARP(unsigned long)
KERNELS_ASYNC_WARP(long long)
KERNELS_ASYNC_WARP(unsigned long long)
KERNELS_ASYNC_WARP(float)
KERNELS_ASYNC_WARP(double)

#define KERNELS_ASYNC_REDUCE(NAME, T, F)                                                 \
    inline T NAME(unsigned mask, T value, KERNELS_ASYNC_SITE) {                          \
        using namespace kernels_async_cpu;                                               \
        static constexpr operation what = {#NAME, finish_reduction<T, F>};               \
        return T(exchange(what, mask, uint64_t(unsigned(value)), 0, file, line).result); \
    }

KERNELS_ASYNC_REDUCE(__reduce_add_sync, unsigned, add_up)
KERNELS_ASYNC_REDUCE(__reduce_add_sync, int, add_up)
KERNELS_ASYNC_REDUCE(__reduce_min_sync, unsigned, smaller)
KERNELS_ASYNC_REDUCE(__reduce_min_sync, int, smaller)
KERNELS_ASYNC_REDUCE(__reduce_max_sync, unsigned, larger)
KERNELS_ASYNC_REDUCE(__reduce_max_sync, int, larger)
KERNELS_ASYNC_REDUCE(__reduce_and_sync, unsigned, bit_and)
KERNELS_ASYNC_REDUCE(__reduce_or_sync, unsigned, bit_or)
KERNELS_ASYNC_REDUCE(__reduce_xor_sync, unsigned, bit_xor)

#undef KERNELS_ASYNC_WARP
#undef KERNELS_ASYNC_REDUCE
#undef KERNELS_ASYNC_SITE

// ---------------------------------------------------------------- atomics and fences

namespace kernels_async_cpu {

template <class Bits, class T, class F>
inline T update(T* address, F f) {
    Bits* bits = reinterpret_cast<Bits*>(address);
    Bits old = __atomic_load_n(bits, __ATOMIC_SEQ_CST);
    while (!__atomic_compare_exchange_n(bits, &old, bits_as<Bits>(T(f(bits_as<T>(old)))),
                                        false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    }
    return bits_as<T>(old);
}

}  // namespace kernels_async_cpu

#define KERNELS_ASYNC_ATOMIC(NAME, T, PARAMETERS, ...) \
    inline T NAME PARAMETERS { __VA_ARGS__ }           \
    inline T NAME##_block PARAMETERS { __VA_ARGS__ }   \
    inline T NAME##_system PARAMETERS { __VA_ARGS__ }

#define KERNELS_ASYNC_BUILTIN(NAME, T, BUILTIN)           \
    KERNELS_ASYNC_ATOMIC(NAME, T, (T * address, T value), \
                         return BUILTIN(address, value, __ATOMIC_SEQ_CST);)

#define KERNELS_ASYNC_UPDATE(NAME, T, BITS, EXPRESSION)          \
    KERNELS_ASYNC_ATOMIC(NAME, T, (T * address, T value),        \
                         return kernels_async_cpu::update<BITS>( \
                             address, [=](T old) -> T { return EXPRESSION; });)

#define KERNELS_ASYNC_CAS(T)                                                              \
    KERNELS_ASYNC_ATOMIC(atomicCAS, T, (T * address, T compare, T value),                 \
                         __atomic_compare_exchange_n(address, &compare, value, false,     \
                                                     __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
                         return compare;)

#define KERNELS_ASYNC_INTEGER_ATOMICS(T)                      \
    KERNELS_ASYNC_BUILTIN(atomicAdd, T, __atomic_fetch_add)   \
    KERNELS_ASYNC_BUILTIN(atomicExch, T, __atomic_exchange_n) \
    KERNELS_ASYNC_BUILTIN(atomicAnd, T, __atomic_fetch_and)   \
    KERNELS_ASYNC_BUILTIN(atomicOr, T, __atomic_fetch_or)     \
    KERNELS_ASYNC_BUILTIN(atomicXor, T, __atomic_fetch_xor)   \
    KERNELS_ASYNC_CAS(T)

#define KERNELS_ASYNC_ORDER_ATOMICS(T)                               \
    KERNELS_ASYNC_UPDATE(atomicMin, T, T, value < old ? value : old) \
    KERNELS_ASYNC_UPDATE(atomicMax, T, T, old < value ? value : old)

KERNELS_ASYNC_INTEGER_ATOMICS(int)
KERNELS_ASYNC_INTEGER_ATOMICS(unsigned int)
KERNELS_ASYNC_INTEGER_ATOMICS(unsigned long long)
KERNELS_ASYNC_CAS(unsigned short)
KERNELS_ASYNC_BUILTIN(atomicSub, int, __atomic_fetch_sub)
KERNELS_ASYNC_BUILTIN(atomicSub, unsigned int, __atomic_fetch_sub)
KERNELS_ASYNC_ORDER_ATOMICS(int)
KERNELS_ASYNC_ORDER_ATOMICS(unsigned int)
KERNELS_ASYNC_ORDER_ATOMICS(long long)
KERNELS_ASYNC_ORDER_ATOMICS(unsigned long long)
KERNELS_ASYNC_UPDATE(atomicAdd, float, uint32_t, old + value)
KERNELS_ASYNC_UPDATE(atomicAdd, double, uint64_t, old + value)
KERNELS_ASYNC_UPDATE(atomicExch, float, uint32_t, (void(old), value))
KERNELS_ASYNC_UPDATE(atomicInc, unsigned int, uint32_t, old >= value ? 0 : old + 1)
KERNELS_ASYNC_UPDATE(atomicDec, unsigned int, uint32_t,
                     old == 0 || old > value ? value : old - 1)

#undef KERNELS_ASYNC_ATOMIC
#undef KERNELS_ASYNC_BUILTIN
#undef KERNELS_ASYNC_UPDATE
#undef KERNELS_ASYNC_CAS
#undef KERNELS_ASYNC_INTEGER_ATOMICS
#undef KERNELS_ASYNC_ORDER_ATOMICS

inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// ---------------------------------------------------------------- trap, assert, time

inline void __trap() { kernels_async_cpu::stop_thread("__trap()"); }

extern "C" [[noreturn]] inline void kernels_async_assert_fail(
    const char* condition, const char* file, unsigned line, const char*) noexcept {
    using namespace kernels_async_cpu;
    stop_thread("%.200s:%u: assertion `%.500s' failed", shown(file), line, condition);
}
#define __assert_fail kernels_async_assert_fail

inline void __nanosleep(unsigned) {
    using namespace kernels_async_cpu;
    worker& w = *current_worker;
    fiber* self = w.current;
    w.yielded.push(self);
    run_another(w, self);
    if (!w.ready.first) sched_yield();  // it waits for another block
}

inline long long clock64() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

// ---------------------------------------------------------------- integers and bits

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }

inline unsigned __brev(unsigned x) {
    unsigned reversed = 0;
    for (int i = 0; i < 32; ++i) reversed |= (x >> i & 1u) << (31 - i);
    return reversed;
}
inline unsigned long long __brevll(unsigned long long x) {
    return (unsigned long long)__brev(unsigned(x)) << 32 | __brev(unsigned(x >> 32));
}

inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    uint64_t bytes = uint64_t(y) << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i)
        result |= unsigned(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
    return result;
}

inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return unsigned((uint64_t(high) << 32 | low) << (shift & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return unsigned((uint64_t(high) << 32 | low) >> (shift & 31));
}
inline unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned shift) {
    return shift >= 32 ? low : __funnelshift_l(low, high, shift);
}
inline unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned shift) {
    return shift >= 32 ? high : __funnelshift_r(low, high, shift);
}

inline int __mulhi(int a, int b) { return int((long long)a * b >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
inline long long __mul64hi(long long a, long long b) {
    return (long long)((__int128)a * b >> 64);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
inline int __mul24(int a, int b) {
    return int(unsigned(int(unsigned(a) << 8) >> 8) * unsigned(int(unsigned(b) << 8) >> 8));
}
inline unsigned __umul24(unsigned a, unsigned b) {
    return (a & 0xffffff) * (b & 0xffffff);
}
inline unsigned __sad(int a, int b, unsigned c) {
    return (a < b ? unsigned(b) - unsigned(a) : unsigned(a) - unsigned(b)) + c;
}
inline unsigned __usad(unsigned a, unsigned b, unsigned c) {
    return (a < b ? b - a : a - b) + c;
}
inline int __hadd(int a, int b) { return int(((long long)a + b) >> 1); }
inline int __rhadd(int a, int b) { return int(((long long)a + b + 1) >> 1); }
inline unsigned __uhadd(unsigned a, unsigned b) { return unsigned((uint64_t(a) + b) >> 1); }
inline unsigned __urhadd(unsigned a, unsigned b) {
    return unsigned((uint64_t(a) + b + 1) >> 1);
}

inline int __dp4a(int a, int b, int c) {
    unsigned sum = unsigned(c);
    for (int i = 0; i < 32; i += 8)
        sum += unsigned((signed char)(a >> i) * (signed char)(b >> i));
    return int(sum);
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 32; i += 8) c += (a >> i & 0xff) * (b >> i & 0xff);
    return c;
}

// ---------------------------------------------------------------- reinterpretation

inline int __float_as_int(float x) { return kernels_async_cpu::bits_as<int>(x); }
inline unsigned __float_as_uint(float x) { return kernels_async_cpu::bits_as<unsigned>(x); }
inline float __int_as_float(int x) { return kernels_async_cpu::bits_as<float>(x); }
inline float __uint_as_float(unsigned x) { return kernels_async_cpu::bits_as<float>(x); }
inline long long __double_as_longlong(double x) {
    return kernels_async_cpu::bits_as<long long>(x);
}
inline double __longlong_as_double(long long x) {
    return kernels_async_cpu::bits_as<double>(x);
}
inline int __double2hiint(double x) { return int(__double_as_longlong(x) >> 32); }
inline int __double2loint(double x) { return int(__double_as_longlong(x)); }
inline double __hiloint2double(int high, int low) {
    uint64_t bits = uint64_t(unsigned(high)) << 32 | unsigned(low);
    return kernels_async_cpu::bits_as<double>(bits);
}

// ---------------------------------------------------------------- loads and stores

#define KERNELS_ASYNC_LOAD(NAME) \
    template <class T>           \
    inline T NAME(const T* address) { return *address; }
#define KERNELS_ASYNC_STORE(NAME) \
    template <class T>            \
    inline void NAME(T* address, std::common_type_t<T> value) { *address = value; }

KERNELS_ASYNC_LOAD(__ldg)
KERNELS_ASYNC_LOAD(__ldcg)
KERNELS_ASYNC_LOAD(__ldca)
KERNELS_ASYNC_LOAD(__ldcs)
KERNELS_ASYNC_LOAD(__ldlu)
KERNELS_ASYNC_LOAD(__ldcv)
KERNELS_ASYNC_STORE(__stwb)
KERNELS_ASYNC_STORE(__stcg)
KERNELS_ASYNC_STORE(__stcs)
KERNELS_ASYNC_STORE(__stwt)

#undef KERNELS_ASYNC_LOAD
#undef KERNELS_ASYNC_STORE

// ---------------------------------------------------------------- rounding modes

namespace kernels_async_cpu {

template <class T>
inline T through_memory(T x) {
    volatile T memory = x;
    return memory;
}

// `f` of `x...` in a rounding mode; the compiler must not move the arithmetic out of it.
template <class F, class... T>
inline auto rounded(int mode, F f, T... x) {
    int before = fegetround();
    fesetround(mode);
    auto result = through_memory(f(through_memory(x)...));
    fesetround(before);
    return result;
}

// As PTX converts: what is too large saturates; NaN is 0, or, where either type has 64
// bits, the highest bit alone.
template <class To, class From>
inline To saturated(From x) {
    constexpr bool is_signed = std::is_signed_v<To>;
    constexpr int bits = 8 * sizeof(To) - is_signed;
    constexpr To highest_bit = To(To(1) << (8 * sizeof(To) - 1));
    constexpr To lowest = is_signed ? highest_bit : 0;
    constexpr To highest = To(~lowest);
    if (x != x) return sizeof(From) + sizeof(To) > 8 ? highest_bit : 0;
    if (x >= From(2) * From(1ull << (bits - 1))) return highest;
    if (x <= From(lowest)) return lowest;
    return To(x);
}

template <class T> inline T to_nearest(T x) { return T(__builtin_rint(x)); }
template <class T> inline T to_zero(T x) { return T(__builtin_trunc(x)); }
template <class T> inline T upwards(T x) { return T(__builtin_ceil(x)); }
template <class T> inline T downwards(T x) { return T(__builtin_floor(x)); }

}  // namespace kernels_async_cpu

#define KERNELS_ASYNC_MODES(F, ...)              \
    F(rn, FE_TONEAREST, to_nearest, __VA_ARGS__) \
    F(rz, FE_TOWARDZERO, to_zero, __VA_ARGS__)   \
    F(ru, FE_UPWARD, upwards, __VA_ARGS__)       \
    F(rd, FE_DOWNWARD, downwards, __VA_ARGS__)

#define KERNELS_ASYNC_TO_INTEGER(SUFFIX, MODE, ROUND, FROM_NAME, FROM, TO_NAME, TO) \
    inline TO __##FROM_NAME##2##TO_NAME##_##SUFFIX(FROM x) {                        \
        return kernels_async_cpu::saturated<TO>(kernels_async_cpu::ROUND(x));       \
    }
#define KERNELS_ASYNC_TO_FLOAT(SUFFIX, MODE, ROUND, FROM_NAME, FROM, TO_NAME, TO) \
    inline TO __##FROM_NAME##2##TO_NAME##_##SUFFIX(FROM x) {                      \
        return kernels_async_cpu::rounded(MODE, [](FROM y) { return TO(y); }, x); \
    }

KERNELS_ASYNC_MODES(KERNELS_ASYNC_TO_INTEGER, float, float, int, int)
KERNELS_ASYNC_MODES(KERNELS_ASYNC_TO_INTEGER, float, float, uint, unsigned)
KERNELS_ASYNC_MODES(KERNELS_ASYNC_TO_INTEGER, float, float, ll, long long)
KERNELS_ASYNC_MODES(KERNELS_ASYNC_TO_INTEGER, float, float, ull, unsigned long long)
KERNELS_ASYNC_MODES(KERNELS_ASYNC_TO_INTEGER, double, double, int, int)
KERNELS_ASYNC_MODES(KERNELS_ASYNC_TO_INTEGER, double, double, uint, unsigned)
KERNELS_ASYNC_MODES(KERNELS_ASYNC_TO_INTEGER, double, double, ll, long long)
KERNELS_ASYNC_MODES(KERNELS_ASYNC_TO_INTEGER, double, double, ull, unsigned long long)
KERNELS_ASYNC_MODES(KERNELS_ASYNC_TO_FLOAT, int, int, float, float)
KERNELS_ASYNC_MODES(KERNELS_ASYNC_TO_FLOAT, uint, unsigned, float, float)
KERNELS_ASYNC_MODES(KERNELS_ASYNC_TO_FLOAT, ll, long long, float, float)
KERNELS_ASYNC_MODES(KERNELS_ASYNC_TO_FLOAT, ull, unsigned long long, float, float)
KERNELS_ASYNC_MODES(KERNELS_ASYNC_TO_FLOAT, ll, long long, double, double)
KERNELS_ASYNC_MODES(KERNELS_ASYNC_TO_FLOAT, ull, unsigned long long, double, double)
KERNELS_ASYNC_MODES(KERNELS_ASYNC_TO_FLOAT, double, double, float, float)
inline double __int2double_rn(int x) { return x; }
inline double __uint2double_rn(unsigned x) { return x; }

#define KERNELS_ASYNC_UNARY(SUFFIX, MODE, ROUND, NAME, T, EXPRESSION)               \
    inline T __##NAME##_##SUFFIX(T x) {                                             \
        return kernels_async_cpu::rounded(MODE, [](T a) { return EXPRESSION; }, x); \
    }
#define KERNELS_ASYNC_BINARY(SUFFIX, MODE, ROUND, NAME, T, EXPRESSION) \
    inline T __##NAME##_##SUFFIX(T x, T y) {                           \
        return kernels_async_cpu::rounded(                             \
            MODE, [](T a, T b) { return EXPRESSION; }, x, y);          \
    }
#define KERNELS_ASYNC_TERNARY(SUFFIX, MODE, ROUND, NAME, T, EXPRESSION) \
    inline T __##NAME##_##SUFFIX(T x, T y, T z) {                       \
        return kernels_async_cpu::rounded(                              \
            MODE, [](T a, T b, T c) { return EXPRESSION; }, x, y, z);   \
    }

KERNELS_ASYNC_MODES(KERNELS_ASYNC_BINARY, fadd, float, a + b)
KERNELS_ASYNC_MODES(KERNELS_ASYNC_BINARY, fsub, float, a - b)
KERNELS_ASYNC_MODES(KERNELS_ASYNC_BINARY, fmul, float, a * b)
KERNELS_ASYNC_MODES(KERNELS_ASYNC_BINARY, fdiv, float, a / b)
KERNELS_ASYNC_MODES(KERNELS_ASYNC_UNARY, frcp, float, 1.0f / a)
KERNELS_ASYNC_MODES(KERNELS_ASYNC_UNARY, fsqrt, float, sqrtf(a))
KERNELS_ASYNC_MODES(KERNELS_ASYNC_TERNARY, fmaf, float, fmaf(a, b, c))
KERNELS_ASYNC_MODES(KERNELS_ASYNC_BINARY, dadd, double, a + b)
KERNELS_ASYNC_MODES(KERNELS_ASYNC_BINARY, dsub, double, a - b)
KERNELS_ASYNC_MODES(KERNELS_ASYNC_BINARY, dmul, double, a * b)
KERNELS_ASYNC_MODES(KERNELS_ASYNC_BINARY, ddiv, double, a / b)
KERNELS_ASYNC_MODES(KERNELS_ASYNC_UNARY, drcp, double, 1.0 / a)
KERNELS_ASYNC_MODES(KERNELS_ASYNC_UNARY, dsqrt, double, sqrt(a))
KERNELS_ASYNC_MODES(KERNELS_ASYNC_TERNARY, fma, double, fma(a, b, c))
inline float __frsqrt_rn(float x) { return float(1.0 / sqrt(double(x))); }

#undef KERNELS_ASYNC_MODES
#undef KERNELS_ASYNC_TO_INTEGER
#undef KERNELS_ASYNC_TO_FLOAT
#undef KERNELS_ASYNC_UNARY
#undef KERNELS_ASYNC_BINARY
#undef KERNELS_ASYNC_TERNARY

// ---------------------------------------------------------------- min and max

#define KERNELS_ASYNC_MINMAX(A, B, T) \
    inline T min(A a, B b) {          \
        T x = a, y = b;               \
        return y < x ? y : x;         \
    }                                 \
    inline T max(A a, B b) {          \
        T x = a, y = b;               \
        return x < y ? y : x;         \
    }
#define KERNELS_ASYNC_INTEGER_MINMAX(S, U) \
    KERNELS_ASYNC_MINMAX(S, S, S)          \
    KERNELS_ASYNC_MINMAX(U, U, U)          \
    KERNELS_ASYNC_MINMAX(S, U, U)          \
    KERNELS_ASYNC_MINMAX(U, S, U)

KERNELS_ASYNC_INTEGER_MINMAX(int, unsigned int)
KERNELS_ASYNC_INTEGER_MINMAX(long, unsigned long)
KERNELS_ASYNC_INTEGER_MINMAX(long long, unsigned long long)
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
inline double min(float a, double b) { return fmin(a, b); }
inline double max(float a, double b) { return fmax(a, b); }
inline double min(double a, float b) { return fmin(a, b); }
inline double max(double a, float b) { return fmax(a, b); }
inline unsigned umin(unsigned a, unsigned b) { return min(a, b); }
inline unsigned umax(unsigned a, unsigned b) { return max(a, b); }
inline long long llmin(long long a, long long b) { return min(a, b); }
inline long long llmax(long long a, long long b) { return max(a, b); }
inline unsigned long long ullmin(unsigned long long a, unsigned long long b) {
    return min(a, b);
}
inline unsigned long long ullmax(unsigned long long a, unsigned long long b) {
    return max(a, b);
}

#undef KERNELS_ASYNC_MINMAX
#undef KERNELS_ASYNC_INTEGER_MINMAX

// ---------------------------------------------------------------- mathematics
//
// The C library has most of CUDA's functions, under CUDA's names. The others are computed
// in double, also for float.

namespace kernels_async_cpu {

constexpr double PI = 3.14159265358979323846;
constexpr double SQRT_PI = 1.77245385090551602730;
constexpr double SQRT_2 = 1.41421356237309504880;

inline double sin_pi(double x) {
    if (!(fabs(x) < INFINITY)) return NAN;
    double r = remainder(x, 2.0);
    if (fabs(r) > 0.5) r = copysign(1.0, r) - r;
    if (r == 0) return copysign(0.0, x);
    return fabs(r) > 0.25 ? copysign(cos(PI * (0.5 - fabs(r))), r) : sin(PI * r);
}

inline double cos_pi(double x) {
    if (!(fabs(x) < INFINITY)) return NAN;
    double r = fabs(remainder(x, 2.0));
    double sign = r > 0.5 ? -1.0 : 1.0;
    if (r > 0.5) r = 1.0 - r;
    return sign * (r > 0.25 ? sin(PI * (0.5 - r)) : cos(PI * r));
}

// Solves erfc(z) = y for 0 < y <= 1: an estimate by Winitzki's formula, then Halley steps.
inline double inverse_erfc_positive(double y) {
    double l = log(y) + log(2.0 - y);
    double k = 2.0 / (PI * 0.147) + l / 2;
    double z = sqrt(fmax(0.0, sqrt(k * k - l / 0.147) - k));
    for (int step = 0; step < 4; ++step) {
        double slope = -2.0 / SQRT_PI * exp(-z * z);
        double error = z < 0.5 ? (1.0 - y) - erf(z) : erfc(z) - y;
        double u = error / slope;
        if (!(fabs(u) < INFINITY)) break;
        z -= u / (1.0 + z * u);
    }
    return z;
}

inline double inverse_erfc(double y) {
    if (!(y >= 0.0 && y <= 2.0)) return NAN;
    if (y == 0.0) return INFINITY;
    if (y == 2.0) return -INFINITY;
    return y <= 1.0 ? inverse_erfc_positive(y) : -inverse_erfc_positive(2.0 - y);
}

// erf near 0 keeps digits that 1 - x would lose.
inline double inverse_erf(double x) {
    if (fabs(x) >= 0.5) return copysign(inverse_erfc(1.0 - fabs(x)), x);
    double z = x * (SQRT_PI / 2);
    for (int step = 0; step < 5; ++step) {
        double u = (erf(z) - x) / (2.0 / SQRT_PI * exp(-z * z));
        z -= u / (1.0 + z * u);
    }
    return x == 0.0 ? x : z;
}

inline double scaled_erfc(double x) {
    if (x < 10.0) return exp(x * x) * erfc(x);
    double term = 1.0, sum = 1.0;
    for (int n = 1; n <= 12; ++n) sum += term *= -(2 * n - 1) / (2.0 * x * x);
    return sum / (x * SQRT_PI);
}

inline double length(double a, double b, double c, double d = 0.0) {
    return hypot(hypot(a, b), hypot(c, d));
}

}  // namespace kernels_async_cpu

#define KERNELS_ASYNC_MATH1(NAME, EXPRESSION)                              \
    inline double NAME(double x) { return EXPRESSION; }                    \
    inline float NAME(float y) { double x = y; return float(EXPRESSION); } \
    inline float NAME##f(float y) { double x = y; return float(EXPRESSION); }
#define KERNELS_ASYNC_MATH(NAME, PARAMETERS, FLOAT_PARAMETERS, EXPRESSION) \
    inline double NAME PARAMETERS { return EXPRESSION; }                   \
    inline float NAME##f FLOAT_PARAMETERS { return float(EXPRESSION); }

KERNELS_ASYNC_MATH1(rsqrt, 1.0 / sqrt(x))
KERNELS_ASYNC_MATH1(rcbrt, 1.0 / cbrt(x))
KERNELS_ASYNC_MATH1(sinpi, kernels_async_cpu::sin_pi(x))
KERNELS_ASYNC_MATH1(cospi, kernels_async_cpu::cos_pi(x))
KERNELS_ASYNC_MATH1(erfinv, kernels_async_cpu::inverse_erf(x))
KERNELS_ASYNC_MATH1(erfcinv, kernels_async_cpu::inverse_erfc(x))
KERNELS_ASYNC_MATH1(erfcx, kernels_async_cpu::scaled_erfc(x))
KERNELS_ASYNC_MATH1(normcdf, 0.5 * erfc(-x / kernels_async_cpu::SQRT_2))
KERNELS_ASYNC_MATH1(normcdfinv,
                    -kernels_async_cpu::SQRT_2 * kernels_async_cpu::inverse_erfc(2.0 * x))
KERNELS_ASYNC_MATH(rhypot, (double x, double y), (float x, float y),
                   1.0 / hypot(double(x), y))
KERNELS_ASYNC_MATH(norm3d, (double x, double y, double z), (float x, float y, float z),
                   kernels_async_cpu::length(x, y, z))
KERNELS_ASYNC_MATH(rnorm3d, (double x, double y, double z), (float x, float y, float z),
                   1.0 / kernels_async_cpu::length(x, y, z))
KERNELS_ASYNC_MATH(norm4d, (double x, double y, double z, double w),
                   (float x, float y, float z, float w),
                   kernels_async_cpu::length(x, y, z, w))
KERNELS_ASYNC_MATH(rnorm4d, (double x, double y, double z, double w),
                   (float x, float y, float z, float w),
                   1.0 / kernels_async_cpu::length(x, y, z, w))

#undef KERNELS_ASYNC_MATH1
#undef KERNELS_ASYNC_MATH

inline void sincospi(double x, double* s, double* c) {
    *s = sinpi(x);
    *c = cospi(x);
}
inline void sincospif(float x, float* s, float* c) {
    *s = sinpif(x);
    *c = cospif(x);
}
inline void sincospi(float x, float* s, float* c) { sincospif(x, s, c); }
inline void sincos(float x, float* s, float* c) { sincosf(x, s, c); }
inline float exp10(float x) { return exp10f(x); }
inline float fdividef(float x, float y) { return x / y; }
inline float __saturatef(float x) { return x > 0.0f ? fminf(x, 1.0f) : 0.0f; }

// glibc declares some of these, with C linkage, and does not export them.
#define __sinf kernels_async_sinf
#define __cosf kernels_async_cosf
#define __tanf kernels_async_tanf
#define __tanhf kernels_async_tanhf
#define __sincosf kernels_async_sincosf
#define __expf kernels_async_expf
#define __exp10f kernels_async_exp10f
#define __logf kernels_async_logf
#define __log2f kernels_async_log2f
#define __log10f kernels_async_log10f
#define __powf kernels_async_powf

inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __tanf(float x) { return tanf(x); }
inline float __tanhf(float x) { return tanhf(x); }
inline void __sincosf(float x, float* s, float* c) { sincosf(x, s, c); }
inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return exp10f(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __log10f(float x) { return log10f(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __fdividef(float x, float y) { return x / y; }

#pragma GCC visibility pop
