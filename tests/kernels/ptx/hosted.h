// Translated PTX as the driver's kernels: each entry is a library in the folder that the driver is given; here is what
// `ptx.h` asks of the driver. Arguments: folder, error of the special functions (none, above, below, scattered), number
// of the planted fault.
#pragma once

#include "../fiber.h"
#include "ptx.h"

#include <dlfcn.h>
#include <sys/time.h>

namespace ptx {

enum class Error { NONE, ABOVE, BELOW, SCATTERED };
static Error error = Error::NONE;
static std::string folder;

static void configure(int count, char** words) {
    if (count < 4) exit(2);
    folder = words[1];
    const std::string named = words[2];
    error = named == "above" ? Error::ABOVE : named == "below" ? Error::BELOW : named == "scattered" ? Error::SCATTERED : Error::NONE;
    if (error == Error::NONE && named != "none") exit(2);
    ptx_fault = atoi(words[3]);
}

// A faulty loop may never end: after this much of the processor a request does.
static void limit() {
    const itimerval five_seconds = {{0, 0}, {5, 0}};
    if (ptx_fault) setitimer(ITIMER_VIRTUAL, &five_seconds, nullptr);
}

// The result of a function that PTX gives an error for, that far off: always above or below the rounded one, or by a
// number of places that depends on the argument alone.
static int places(uint64_t argument, int most) {
    if (error == Error::ABOVE) return most;
    if (error == Error::BELOW) return -most;
    if (error == Error::NONE) return 0;
    argument = (argument ^ argument >> 32) * 0x9e3779b97f4a7c15ull;
    return (int)((argument >> 40) % (2 * most + 1)) - most;
}

// That many places off, towards larger numbers if it is above. 0, the infinities and NaN stay.
static float off(float value, uint64_t argument, int most) {
    float moved = value;
    const int by = places(argument, most);
    if (!std::isfinite(value) || value == 0) return value;
    for (int i = 0; i < std::abs(by); i++) moved = std::nextafter(moved, by > 0 ? INFINITY : -INFINITY);
    return std::isfinite(moved) ? moved : value;
}

struct Entry {
    void (*run)(const char*);
    uint64_t argument_bytes;
};

// The library of that kernel, or null.
static const Entry* find(const std::string& name) {
    static auto& loaded = *new std::unordered_map<std::string, Entry>;
    auto found = loaded.find(name);
    if (found != loaded.end()) return &found->second;
    void* library = dlopen((folder + "/" + name + ".so").c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) return nullptr;
    Entry entry;
    entry.run = (void (*)(const char*))dlsym(library, "ptx_entry");
    entry.argument_bytes = *(const uint64_t*)dlsym(library, "ptx_argument_bytes");
    return &(loaded[name] = entry);
}

} // namespace ptx

int ptx_fault = 0;

void ptx_fail(const char* what) { fiber::fail(what); }
uint64_t ptx_shared() { return (uint64_t)fiber::state().shared.data() + fiber::RED_ZONE; }
void ptx_barrier() { fiber::barrier(); }
const uint64_t* ptx_collective(const char* operation, uint32_t mask, uint64_t value) { return fiber::collective(operation, mask, value); }
uint32_t ptx_lane() { return (uint32_t)(fiber::state().current % 32); }
uint32_t ptx_index(int which) {
    const uint32_t all[] = {threadIdx.x, threadIdx.y, blockDim.x, blockDim.y, blockIdx.x, gridDim.x};
    return all[which];
}

// Where an access lies, if it may be there: inside of one buffer, or of the launch's shared memory.
char* ptx_at(uint64_t address, uint32_t bytes, int space) {
    fiber::State& s = fiber::state();
    if (address % bytes) fiber::fail("misaligned access of " + std::to_string(bytes) + " bytes");
    const uint64_t shared = ptx_shared(), size = s.shared.size() - 2 * fiber::RED_ZONE;
    if (space == SHARED_MEMORY) address = (uint32_t)address + shared;
    if (space == SHARED_MEMORY || (space >= GENERIC && address >= shared && address < shared + size)) {
        if (address + bytes <= shared + size) return (char*)address;
        fiber::fail("an access outside shared memory");
    }
    if (space == ATOMIC) fiber::check_atomic((const void*)address);
    for (const fiber::Region& r : space == NOT_WRITTEN ? s.readable : s.known)
        if ((const char*)address >= r.begin && (const char*)address + bytes <= r.end) return (char*)address;
    fiber::fail(space == NOT_WRITTEN ? "a load outside the inputs" : "an access outside the buffers");
}

// The greatest errors that the PTX ISA gives (9.7.3): ex2 2 places; lg2 2^-22, absolute between 0.5 and 2, else
// relative; rcp 1 place, div 2; sqrt 2^-23 and rsqrt 2^-22.9, relative. For
// rcp.approx.ftz.f64 it gives none, only that the upper 32 bits of argument and result count: one place of those.
float ptx_ex2(float a) { return a == 0 ? 1 : ptx::off(std::exp2(a), bits(a), 2); }
float ptx_lg2(float a) {
    const float exact = std::log2(a);
    const double most = std::ldexp(a > 0.5f && a < 2 ? 1.0 : std::fabs((double)exact), -22);
    return std::isfinite(exact) ? (float)(exact + most * ptx::places(bits(a), 2) / 2) : exact;
}
float ptx_sqrt(float a) { return ptx::off(std::sqrt(a), bits(a), 1); }
float ptx_rsqrt(float a) { return ptx::off((float)(1 / std::sqrt((double)a)), bits(a), 1); }
float ptx_div(float a, float b, int most) { return ptx::off(a / b, bits(b), most); }
double ptx_rcp(double a) {
    const auto flushed = [](double v) { return std::fabs(v) < 0x1p-1022 ? std::copysign(0.0, v) : v; };
    const u64 upper = 0xffffffff00000000ull, argument = bits(a) & upper;
    if (a != a) return real(u64(0x7fffffff00000000ull));
    const double value = flushed(1 / flushed(real(argument)));
    if (!std::isfinite(value) || value == 0) return value;
    const u64 rounded = (bits(value) + 0x80000000u) & upper, places = (u64)(s64)ptx::places(argument, 1) << 32;
    return flushed(real(value < 0 ? rounded - places : rounded + places));
}
