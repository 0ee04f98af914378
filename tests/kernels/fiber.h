// Runs CUDA C++ on the CPU: every thread of a block is a fiber, one block after the other.
//
// Supplies the part of CUDA that lossfeed's kernels use: indices, barriers, shuffles, ballots, atomics, fences, dynamic
// shared memory, read-only loads, streaming loads and stores. Finds deadlocks, divergent collectives, misaligned and
// out-of-bounds loads, writes behind an output, reads of shared memory nobody wrote (it is filled with NaN), atomics on
// the host's memory (which are none against the host), and, by running the threads in shuffled orders, missing
// barriers. A program may meddle: write somewhere in the middle of a launch, as a host or another stream would.
//
// Cannot find: races between blocks, missing fences, anything about speed.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>
#if !(defined(__x86_64__) && defined(__linux__))
#include <ucontext.h>
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#define __device__
#define __global__
#define __launch_bounds__(...)
#define LOSSFEED_SHARED(name) u8* name = (u8*)fiber::state().shared.data() + fiber::RED_ZONE

struct dim3 {
    uint32_t x = 1, y = 1, z = 1;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
struct alignas(16) float4 {
    float x, y, z, w;
};

static dim3 gridDim, blockDim, blockIdx, threadIdx;

namespace fiber {

constexpr size_t RED_ZONE = 64, STACK_BYTES = 64 << 10;
constexpr unsigned char RED = 0xa5;

struct Region {
    const char* begin;
    const char* end;
};

// One CUDA thread. It may run when `*wakes != asleep_at`.
struct Thread {
    dim3 index;
    std::vector<char> stack;
    bool done = false;
    const char* waits_for = nullptr;
    const uint32_t* wakes = nullptr;
    uint32_t asleep_at = 0;
#if defined(__x86_64__) && defined(__linux__)
    void* stack_pointer = nullptr;
#else
    ucontext_t context;
#endif
};

struct Warp {
    const char* operation = nullptr;
    uint32_t mask = 0, arrived = 0, generation = 0;
    uint64_t in[32], out[32];
};

struct State {
    std::vector<Thread> threads;
    std::vector<Warp> warps;
    std::vector<Region> readable; // what __ldg may touch: inputs
    std::vector<Region> known;    // what any checked load may touch: outputs too
    std::vector<Region> host;     // memory over the bus: the device's atomics and the host's do not exclude each other
    uint64_t resumed = 0, meddles_at = UINT64_MAX; // times that any thread went on
    std::function<void()> meddle;
    std::vector<unsigned char> shared;
    size_t current = 0, arrived = 0;
    uint32_t barrier_generation = 0;
    std::string failure;
    std::function<void()> kernel;
#if defined(__x86_64__) && defined(__linux__)
    void* scheduler = nullptr;
#else
    ucontext_t scheduler;
#endif
    const void* scheduler_stack = nullptr; // for AddressSanitizer
    size_t scheduler_stack_bytes = 0;
};

// Never destroyed: a launch may still run on another thread while the process exits.
inline State& state() {
    static State& s = *new State;
    return s;
}

#if defined(__x86_64__) && defined(__linux__)
// ucontext saves the signal mask with a system call at every switch; this is about six times as fast.
extern "C" void lossfeed_fiber_switch(void** save, void* load);
asm(R"(
.text
.globl lossfeed_fiber_switch
.type lossfeed_fiber_switch, @function
lossfeed_fiber_switch:
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
)");
inline void switch_to_scheduler(Thread& t) { lossfeed_fiber_switch(&t.stack_pointer, state().scheduler); }
inline void switch_to_thread(Thread& t) { lossfeed_fiber_switch(&state().scheduler, t.stack_pointer); }
#else
inline void switch_to_scheduler(Thread& t) { swapcontext(&t.context, &state().scheduler); }
inline void switch_to_thread(Thread& t) { swapcontext(&state().scheduler, &t.context); }
#endif

// AddressSanitizer must be told which stack is in use.
#ifdef __SANITIZE_ADDRESS__
inline void arrived_in_thread() {
    __sanitizer_finish_switch_fiber(nullptr, &state().scheduler_stack, &state().scheduler_stack_bytes);
}
inline void to_scheduler(Thread& t) {
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, state().scheduler_stack, state().scheduler_stack_bytes);
    switch_to_scheduler(t);
    __sanitizer_finish_switch_fiber(fake, &state().scheduler_stack, &state().scheduler_stack_bytes);
}
inline void to_thread(Thread& t) {
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, t.stack.data(), STACK_BYTES);
    switch_to_thread(t);
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
}
#else
inline void arrived_in_thread() {}
inline void to_scheduler(Thread& t) { switch_to_scheduler(t); }
inline void to_thread(Thread& t) { switch_to_thread(t); }
#endif

inline void entry() {
    arrived_in_thread();
    State& s = state();
    s.kernel();
    Thread& me = s.threads[s.current];
    me.done = true;
    to_scheduler(me);
    abort(); // never resumed
}

inline void prepare(Thread& t) {
    t.stack.resize(STACK_BYTES);
#ifdef __SANITIZE_ADDRESS__
    // A launch that failed left its frames behind.
    __asan_unpoison_memory_region(t.stack.data(), STACK_BYTES);
#endif
    t.done = false;
    t.wakes = nullptr;
    t.waits_for = nullptr;
#if defined(__x86_64__) && defined(__linux__)
    uintptr_t top = ((uintptr_t)t.stack.data() + STACK_BYTES) & ~(uintptr_t)15;
    void** frame = (void**)(top - 16); // the return address: entry then starts with rsp = 8 modulo 16, as after a call
    frame[0] = (void*)&entry;
    frame[1] = nullptr;
    frame -= 6;
    for (int i = 0; i < 6; i++) frame[i] = nullptr;
    t.stack_pointer = frame;
#else
    getcontext(&t.context);
    t.context.uc_stack.ss_sp = t.stack.data();
    t.context.uc_stack.ss_size = STACK_BYTES;
    t.context.uc_link = nullptr;
    makecontext(&t.context, entry, 0);
#endif
}

// Ends the launch with a message. Does not return: the fiber is never resumed.
[[noreturn]] inline void fail(const std::string& what) {
    State& s = state();
    if (s.failure.empty()) {
        char where[96];
        snprintf(where, sizeof where, " (block %u, thread %u,%u)", blockIdx.x, threadIdx.x, threadIdx.y);
        s.failure = what + where;
    }
    to_scheduler(s.threads[s.current]);
    abort();
}

inline void wait(const char* what, const uint32_t& generation) {
    Thread& me = state().threads[state().current];
    me.waits_for = what;
    me.wakes = &generation;
    me.asleep_at = generation;
    to_scheduler(me);
}

inline void barrier() {
    State& s = state();
    if (++s.arrived == s.threads.size()) {
        s.arrived = 0;
        s.barrier_generation++;
    } else {
        wait("__syncthreads", s.barrier_generation);
    }
}

// Every lane of `mask` brings a value; returns all of them. Valid until this lane's next collective.
inline const uint64_t* collective(const char* operation, uint32_t mask, uint64_t value) {
    State& s = state();
    Warp& warp = s.warps[s.current / 32];
    uint32_t lane = (uint32_t)(s.current % 32);
    if (!(mask >> lane & 1)) fail(std::string(operation) + ": a lane outside its own mask");
    if (warp.arrived && (warp.operation != operation || warp.mask != mask))
        fail(std::string("divergent warp: ") + operation + " meets " + warp.operation);
    warp.operation = operation;
    warp.mask = mask;
    warp.in[lane] = value;
    warp.arrived |= 1u << lane;
    if (warp.arrived == mask) {
        memcpy(warp.out, warp.in, sizeof warp.out);
        warp.arrived = 0;
        warp.generation++;
    } else {
        wait(operation, warp.generation);
    }
    return warp.out;
}

template <class T> uint64_t to_bits(T value) {
    static_assert(sizeof(T) <= 8, "shuffles move at most 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    return bits;
}

template <class T> T from_bits(uint64_t bits) {
    T value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// Shuffles an order; seed 0 leaves it natural.
inline void shuffle(std::vector<size_t>& order, uint64_t& random) {
    if (!random) return;
    for (size_t i = order.size(); i > 1; i--) {
        random = random * 6364136223846793005ull + 1442695040888963407ull;
        std::swap(order[i - 1], order[(random >> 33) % i]);
    }
}

inline void run_block(uint64_t& random) {
    State& s = state();
    s.arrived = 0;
    s.warps.assign((s.threads.size() + 31) / 32, Warp());
    memset(s.shared.data() + RED_ZONE, 0xff, s.shared.size() - 2 * RED_ZONE); // NaN in float and double, true as a flag
    for (Thread& t : s.threads) prepare(t);
    std::vector<size_t> order(s.threads.size());
    for (size_t i = 0; i < order.size(); i++) order[i] = i;
    for (size_t left = order.size(); left > 0;) {
        bool progress = false;
        shuffle(order, random);
        for (size_t i : order) {
            Thread& t = s.threads[i];
            if (t.done || (t.wakes && *t.wakes == t.asleep_at)) continue;
            t.wakes = nullptr;
            s.current = i;
            if (s.resumed++ == s.meddles_at) s.meddle();
            threadIdx = t.index;
            to_thread(t);
            progress = true;
            if (!s.failure.empty()) return;
            if (t.done) left--;
        }
        if (!progress) {
            for (Thread& t : s.threads) {
                if (t.done) continue;
                threadIdx = t.index;
                char where[128];
                snprintf(where, sizeof where, "deadlock: a thread waits in %s for threads that never come (block %u, thread %u,%u)",
                         t.waits_for, blockIdx.x, t.index.x, t.index.y);
                s.failure = where;
                return;
            }
        }
    }
    for (size_t i = 0; i < RED_ZONE; i++)
        if (s.shared[i] != RED || s.shared[s.shared.size() - 1 - i] != RED) {
            s.failure = "a write outside shared memory";
            return;
        }
}

// Runs the whole grid. Seed 0: blocks and threads in natural order; any other: shuffled.
// Returns what went wrong, or "".
inline std::string launch(uint32_t grid, dim3 block, size_t shared_bytes, uint64_t seed, std::function<void()> kernel) {
    State& s = state();
    s.failure.clear();
    s.kernel = std::move(kernel);
    s.shared.assign(shared_bytes + 2 * RED_ZONE, RED);
    gridDim = dim3{grid, 1, 1};
    blockDim = block;
    s.threads.resize((size_t)block.x * block.y);
    for (size_t i = 0; i < s.threads.size(); i++)
        s.threads[i].index = dim3{(uint32_t)(i % block.x), (uint32_t)(i / block.x), 0};
    std::vector<size_t> blocks(grid);
    for (size_t i = 0; i < grid; i++) blocks[i] = i;
    uint64_t random = seed;
    shuffle(blocks, random);
    for (size_t b : blocks) {
        blockIdx = dim3{(uint32_t)b, 0, 0};
        run_block(random);
        if (!s.failure.empty()) break;
    }
    return s.failure;
}

} // namespace fiber

// ---- CUDA's names --------------------------------------------------------------------------------------------------

inline void __syncthreads() { fiber::barrier(); }
inline void __syncwarp(uint32_t mask = 0xffffffffu) { fiber::collective("__syncwarp", mask, 0); }
// Blocks run one after the other, so these order nothing here but what the host sees of mapped memory.
inline void __threadfence() { __sync_synchronize(); }
inline void __threadfence_system() { __sync_synchronize(); }

template <class T> T __shfl_xor_sync(uint32_t mask, T value, int step) {
    const uint64_t* all = fiber::collective("__shfl_xor_sync", mask, fiber::to_bits(value));
    uint32_t from = (uint32_t)(fiber::state().current % 32) ^ (uint32_t)step;
    if (from >= 32 || !(mask >> from & 1)) fiber::fail("__shfl_xor_sync from a lane outside the mask");
    return fiber::from_bits<T>(all[from]);
}

template <class T> T __shfl_sync(uint32_t mask, T value, int from) {
    const uint64_t* all = fiber::collective("__shfl_sync", mask, fiber::to_bits(value));
    if (!(mask >> (from & 31) & 1)) fiber::fail("__shfl_sync from a lane outside the mask");
    return fiber::from_bits<T>(all[from & 31]);
}

inline uint32_t __ballot_sync(uint32_t mask, int predicate) {
    const uint64_t* all = fiber::collective("__ballot_sync", mask, predicate != 0);
    uint32_t votes = 0;
    for (int lane = 0; lane < 32; lane++)
        if ((mask >> lane & 1) && all[lane]) votes |= 1u << lane;
    return votes;
}

namespace fiber {
inline void check_atomic(const void* at) {
    for (const Region& r : state().host)
        if ((const char*)at >= r.begin && (const char*)at < r.end) fail("an atomic on the host's memory");
}
} // namespace fiber

template <class T> T atomicAdd(T* at, T value) {
    fiber::check_atomic(at);
    T old = *at;
    *at = old + value;
    return old;
}

template <class T> T atomicMin(T* at, T value) {
    fiber::check_atomic(at);
    T old = *at;
    if (value < old) *at = value;
    return old;
}

template <class T> T atomicMax(T* at, T value) {
    fiber::check_atomic(at);
    T old = *at;
    if (value > old) *at = value;
    return old;
}

template <class T> T atomicCAS(T* at, T expected, T value) {
    fiber::check_atomic(at);
    T old = *at;
    if (old == expected) *at = value;
    return old;
}

inline int __popc(uint32_t bits) { return __builtin_popcount(bits); }

namespace fiber {
template <class T> T checked_load(const T* at, const std::vector<Region>& where) {
    if ((uintptr_t)at % alignof(T)) fail("misaligned load of " + std::to_string(sizeof(T)) + " bytes");
    for (const Region& r : where)
        if ((const char*)at >= r.begin && (const char*)(at + 1) <= r.end) return *at;
    fail("a load outside the inputs");
}
} // namespace fiber

// The read-only load: of what no kernel writes. The streaming load: of anything.
template <class T> T __ldg(const T* at) { return fiber::checked_load(at, fiber::state().readable); }
template <class T> T __ldcs(const T* at) { return fiber::checked_load(at, fiber::state().known); }

// The streaming store.
template <class T> void __stcs(T* at, T value) {
    if ((uintptr_t)at % alignof(T)) fiber::fail("misaligned store of " + std::to_string(sizeof(T)) + " bytes");
    *at = value;
}

// Rounded one by one: never fused.
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline float __double2float_rn(double value) { return (float)value; }
inline long long __double2ll_rn(double value) { return llrint(value); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) { return (unsigned __int128)a * b >> 64; }

inline float __int_as_float(int32_t bits) { return fiber::from_bits<float>((uint32_t)bits); }
inline float __uint_as_float(uint32_t bits) { return fiber::from_bits<float>(bits); }
inline uint32_t __float_as_uint(float value) { return (uint32_t)fiber::to_bits(value); }
inline double __longlong_as_double(long long bits) { return fiber::from_bits<double>((uint64_t)bits); }
