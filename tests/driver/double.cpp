// A driver for tests: a library of libcuda's name that has a GPU made of threads. Streams run on threads of their own
// and may be delayed, device memory is out of the host's reach, kernels are the shipped CUDA sources on fibers, calls
// fail and memory runs out on request. What a real driver would punish with wrong bytes is written down as a violation.
//
// Not here: graphs (a capture can only be pretended), several devices, speed. A function that the bindings know and
// this file does not ends the process with its name.

#include "../kernels/entries.h"
#include "memory.h"
#include "modules.h"
#include "streams.h"

#include <atomic>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

enum Result {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ALREADY_REGISTERED = 712,
    NOT_REGISTERED = 713,
    LAUNCH_FAILED = 719,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_ISOLATION = 905,
    CAPTURE_IMPLICIT = 906,
};

std::mutex& notes = *new std::mutex;
std::vector<std::string>& violations = *new std::vector<std::string>;
struct Planned {
    uint64_t after;
    int code;
};
std::map<std::string, Planned>& failures = *new std::map<std::string, Planned>;
std::map<std::string, uint64_t>& launches = *new std::map<std::string, uint64_t>; // by kernel
std::atomic<uint64_t> capturing{UINT64_MAX}, retained{0}, devices{1}, host_addresses{1}, capability{90};
std::atomic<uint64_t> mismatches{0}, batched_rows{0}, zeroed_at{0};
std::atomic<bool> launch_failed{false}, unified{false}, idle{false}, outlives{false}, unmaps{false};
thread_local std::vector<void*> contexts;
thread_local int capture_mode = 0; // global
thread_local uint64_t switches = 0; // of the context or the capture mode, by this thread

void* const CONTEXT = (void*)0xc0de;

void violation(const std::string& what) {
    std::lock_guard<std::mutex> guard(notes);
    violations.push_back(what);
    fprintf(stderr, "driver double: %s\n", what.c_str());
}

int planned(const char* name) {
    std::lock_guard<std::mutex> guard(notes);
    auto found = failures.find(name);
    if (found == failures.end() || found->second.after-- > 0) return OK;
    int code = found->second.code;
    failures.erase(found);
    return code;
}

// What every call begins with: failures on request, and the context it needs.
int enter(const char* name, bool needs_context) {
    if (int code = planned(name)) return code;
    if (needs_context && (contexts.empty() || !contexts.back())) return INVALID_CONTEXT;
    return launch_failed && needs_context ? LAUNCH_FAILED : OK;
}
// A stream that was destroyed may be another one's by now, or nobody's: a driver need not notice.
int no_stream(const char* name, uint64_t stream) {
    if (streams::was_destroyed(stream)) violation(std::string(name) + ": on a stream that was destroyed");
    return INVALID_HANDLE;
}
// What waits for the whole device or uses the legacy stream ends a capture, whoever's it is.
void ends_captures(const char* name) {
    if (capturing != UINT64_MAX) violation(std::string(name) + ": ends the capture that is under way");
}
// Calls that break a capture under way on another thread unless this one says that it knows what it does.
int uncapturable() { return capturing != UINT64_MAX && capture_mode != 2 ? CAPTURE_UNSUPPORTED : OK; }

#define ENTER(needs)                                           \
    if (int code = enter(__func__, needs)) return code
#define UNCAPTURABLE                                           \
    if (int code = uncapturable()) return code

uint64_t digest(const void* from, size_t bytes) {
    const unsigned char* at = (const unsigned char*)from;
    uint64_t sum = bytes;
    for (size_t i = 0; i < bytes; i++) sum = (sum ^ at[i]) * 0x100000001b3ull;
    return sum;
}

// Whether words that the device is handed hold an address of the host at which it reads nothing.
bool name_unseen(const void* words, size_t bytes) {
    if (host_addresses) return false;
    std::lock_guard<std::mutex> guard(memory::lock());
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        void* word;
        memcpy(&word, (const char*)words + i, 8);
        const memory::Host* range = memory::pinned(word, 1);
        if (range && !range->allocated) return true;
    }
    return false;
}
// The context is lost when the stream comes to it.
int unseen(const std::string& name, void* stream) {
    bool given = streams::give((uint64_t)stream, [=] {
        launch_failed = true;
        violation(name + ": an address of the host that the device does not read");
    });
    return given ? OK : INVALID_HANDLE;
}

} // namespace

// ---- the tests' own side ------------------------------------------------------------------------

EXPORT void lossfeed_double_set(const char* key, uint64_t value) {
    std::string k = key;
    if (k == "delay_us") {
        std::lock_guard<std::mutex> guard(streams::lock());
        streams::delay_us() = value;
    } else if (k == "device_bytes") {
        memory::limit(false) = value;
    } else if (k == "pinned_bytes") {
        memory::limit(true) = value;
    } else if (k == "capturing") {
        capturing = value;
    } else if (k == "devices") {
        devices = value;
    } else if (k == "host_addresses") {
        host_addresses = value;
    } else if (k == "unified") {
        unified = value;
    } else if (k == "idle") {
        idle = value;
    } else if (k == "capability") {
        capability = value; // 90 for 9.0
    } else if (k == "outlives") {
        outlives = value;
    } else if (k == "lost") {
        launch_failed = value; // the context
    } else if (k == "unmaps") {
        unmaps = value;
    } else {
        abort();
    }
}

EXPORT uint64_t lossfeed_double_get(const char* key) {
    std::string k = key;
    if (k == "device_bytes" || k == "pinned_bytes") {
        std::lock_guard<std::mutex> guard(memory::lock());
        return memory::used(k == "pinned_bytes");
    }
    if (KERNELS.count(k)) { // how often it was launched
        std::lock_guard<std::mutex> guard(notes);
        return launches[k];
    }
    if (k == "contexts") return retained;
    if (k == "modules") return modules::all().size();
    if (k == "mismatches") return mismatches;
    if (k == "batched_rows") return batched_rows;
    if (k == "zeroed_at") return zeroed_at; // by the last piece of work that zeroes memory
    if (k == "current") return contexts.size(); // of the calling thread
    if (k == "switches") return switches;       // likewise
    std::lock_guard<std::mutex> guard(streams::lock());
    if (k == "events") return streams::events().size();
    if (k == "streams") return streams::all().size() - streams::all().count(0);
    abort();
}

// The `after`-th call of that name from now on, counted from 0, gives `code`.
EXPORT void lossfeed_double_fail(const char* name, uint64_t after, int code) {
    std::lock_guard<std::mutex> guard(notes);
    failures[name] = Planned{after, code};
}

// How many violations there were; their texts, a line each.
EXPORT uint64_t lossfeed_double_violations(char* text, uint64_t room) {
    std::lock_guard<std::mutex> guard(notes);
    std::string all;
    for (const std::string& v : violations) all += v + "\n";
    if (room) {
        size_t n = all.size() < room - 1 ? all.size() : room - 1;
        memcpy(text, all.data(), n);
        text[n] = 0;
    }
    return violations.size();
}

EXPORT void lossfeed_double_reset() {
    streams::synchronize_all();
    {
        std::lock_guard<std::mutex> guard(notes);
        violations.clear();
        failures.clear();
    }
    mismatches = batched_rows = 0;
    host_addresses = 1;
    unified = idle = outlives = unmaps = false;
    capability = 90;
    launch_failed = false;
    capturing = UINT64_MAX;
    for (const char* key : {"device_bytes", "pinned_bytes"}) lossfeed_double_set(key, UINT64_MAX);
    lossfeed_double_set("delay_us", 0);
}

namespace {
// Streams work on while the process exits, until it is gone. On request they come to the end of their work first: this
// runs behind the destructors of all objects with a static lifetime.
__attribute__((destructor)) void ends_last() {
    if (outlives) streams::synchronize_all();
    if (!unmaps) return;
    // What the driver allocated goes with it, under whoever reads it still.
    for (auto& [at, range] : memory::host())
        if (range.allocated) munmap((void*)at, range.bytes);
    usleep(100'000); // 200 looks of a thread that reads scores
}
} // namespace

// What a framework has: memory, and streams with work of its own.
EXPORT uint64_t lossfeed_double_allocate(uint64_t bytes) { return memory::allocate(bytes); }
EXPORT bool lossfeed_double_free(uint64_t at) {
    streams::synchronize_all();
    return memory::release(at);
}
EXPORT uint64_t lossfeed_double_stream() { return streams::create(); }
EXPORT bool lossfeed_double_close_stream(uint64_t stream) { return streams::destroy(stream); }
// What a framework's allocator does when memory is dropped that was used on `stream`.
EXPORT bool lossfeed_double_record(uint64_t stream) {
    uint64_t event = streams::create_event();
    bool recorded = streams::record(event, stream);
    if (!recorded) no_stream("an allocator's event", stream);
    std::lock_guard<std::mutex> guard(streams::lock());
    streams::events().erase(event);
    return recorded;
}
EXPORT bool lossfeed_double_synchronize(uint64_t stream) { return streams::synchronize(stream); }
EXPORT uint64_t lossfeed_double_digest(const void* from, uint64_t bytes) { return digest(from, bytes); }

// Work on `stream` that writes these bytes.
EXPORT bool lossfeed_double_write(uint64_t stream, uint64_t at, const void* from, uint64_t bytes) {
    std::string kept((const char*)from, bytes);
    return streams::give(stream, [=] {
        std::lock_guard<std::mutex> guard(memory::lock());
        char* to = memory::alias(at, kept.size());
        if (to) memcpy(to, kept.data(), kept.size());
        else violation("a write outside of device memory");
    });
}

// Work on `stream` that reads, and counts a mismatch if the bytes have another digest.
EXPORT bool lossfeed_double_check(uint64_t stream, uint64_t at, uint64_t bytes, uint64_t expected) {
    return streams::give(stream, [=] {
        std::lock_guard<std::mutex> guard(memory::lock());
        const char* from = memory::alias(at, bytes);
        if (!from || digest(from, bytes) != expected) mismatches++;
    });
}

// What a kernel on `stream` would see at `at`; waits for it. False if that is no device memory.
EXPORT bool lossfeed_double_read(uint64_t stream, uint64_t at, void* to, uint64_t bytes) {
    bool found = false;
    bool given = streams::give(stream, [&] {
        std::lock_guard<std::mutex> guard(memory::lock());
        if (const char* from = memory::alias(at, bytes)) {
            memcpy(to, from, bytes);
            found = true;
        }
    });
    return given && streams::synchronize(stream) && found;
}

// ---- the driver's side --------------------------------------------------------------------------

EXPORT int cuInit(unsigned) {
    ENTER(false);
    static bool watching = (memory::watch(), true);
    (void)watching;
    return OK;
}
EXPORT int cuDriverGetVersion(int* version) {
    *version = 12080;
    return OK;
}
EXPORT int cuGetErrorName(int code, const char** name) {
    thread_local char text[32];
    snprintf(text, sizeof text, "CUDA_DOUBLE_%d", code);
    *name = text;
    return OK;
}
EXPORT int cuGetErrorString(int code, const char** words) {
    *words = code == OUT_OF_MEMORY ? "out of memory" : code == LAUNCH_FAILED ? "a kernel failed" : "planted or misused";
    return OK;
}
EXPORT int cuDeviceGetCount(int* count) {
    *count = (int)devices;
    return OK;
}
EXPORT int cuDeviceGet(int* device, int ordinal) {
    *device = ordinal;
    return ordinal < (int)devices ? OK : 101;
}
EXPORT int cuDeviceGetName(char* name, int room, int) {
    snprintf(name, (size_t)room, "Driver double");
    return OK;
}
EXPORT int cuDeviceGetUuid(char* bytes, int) {
    memset(bytes, 0x11, 16);
    return OK;
}
EXPORT int cuDeviceGetUuid_v2(char* bytes, int device) { return cuDeviceGetUuid(bytes, device); }
EXPORT int cuDeviceGetPCIBusId(char* text, int room, int) {
    snprintf(text, (size_t)room, "0000:FF:1F.7");
    return OK;
}
EXPORT int cuDeviceTotalMem_v2(size_t* bytes, int) {
    *bytes = 1ull << 30;
    return OK;
}
EXPORT int cuDeviceGetAttribute(int* value, int attribute, int) {
    switch (attribute) {
    case 16: *value = 4; return OK;  // multiprocessors
    case 75: *value = (int)capability / 10; return OK; // compute capability
    case 76: *value = (int)capability % 10; return OK;
    case 91: *value = (int)host_addresses; return OK; // the device reads registered memory at the host's addresses
    case 115: *value = 0; return OK; // memory pools
    default: violation("cuDeviceGetAttribute: attribute " + std::to_string(attribute) + " is not known here"); return INVALID_VALUE;
    }
}
EXPORT int cuDevicePrimaryCtxRetain(void** context, int) {
    ENTER(false);
    retained++;
    *context = CONTEXT;
    return OK;
}
EXPORT int cuDevicePrimaryCtxRelease_v2(int) {
    if (retained == 0) violation("cuDevicePrimaryCtxRelease: released more often than retained");
    retained--;
    return OK;
}
EXPORT int cuCtxGetCurrent(void** context) {
    *context = contexts.empty() ? nullptr : contexts.back();
    return OK;
}
EXPORT int cuCtxSetCurrent(void* context) {
    if (!contexts.empty()) contexts.pop_back();
    if (context) contexts.push_back(context);
    return OK;
}
EXPORT int cuCtxPushCurrent_v2(void* context) {
    ENTER(false);
    switches++;
    contexts.push_back(context);
    return OK;
}
EXPORT int cuCtxPopCurrent_v2(void** context) {
    if (contexts.empty()) return INVALID_CONTEXT;
    *context = contexts.back();
    contexts.pop_back();
    return OK;
}
EXPORT int cuCtxSynchronize() {
    ENTER(true);
    ends_captures(__func__); // whatever the mode
    if (capturing != UINT64_MAX) return CAPTURE_UNSUPPORTED;
    streams::synchronize_all();
    return launch_failed ? LAUNCH_FAILED : OK;
}
EXPORT int cuThreadExchangeStreamCaptureMode(int* mode) {
    switches++;
    std::swap(*mode, capture_mode);
    return OK;
}

EXPORT int cuMemAlloc_v2(uint64_t* at, size_t bytes) {
    ENTER(true);
    UNCAPTURABLE;
    *at = memory::allocate(bytes);
    return *at ? OK : OUT_OF_MEMORY;
}
EXPORT int cuMemFree_v2(uint64_t at) {
    ENTER(true);
    streams::synchronize_all();
    return memory::release(at) ? OK : INVALID_VALUE;
}
EXPORT int cuMemsetD8Async(uint64_t at, unsigned char value, size_t bytes, void* stream) {
    ENTER(true);
    bool given = streams::give((uint64_t)stream, [=] {
        std::lock_guard<std::mutex> guard(memory::lock());
        char* to = memory::alias(at, bytes);
        if (!to && unified) to = (char*)at;
        if (to) memset(to, value, bytes);
        else violation("cuMemsetD8: not device memory");
    });
    zeroed_at = at;
    return given ? OK : no_stream(__func__, (uint64_t)stream);
}
EXPORT int cuMemsetD8_v2(uint64_t at, unsigned char value, size_t bytes) {
    ENTER(true);
    ends_captures(__func__);
    return cuMemsetD8Async(at, value, bytes, nullptr);
}

namespace {
// Where the host reaches device memory; null if it is none. With one address space for both, every address is.
char* reached(uint64_t at, size_t bytes) {
    char* there = memory::alias(at, bytes);
    return there || !unified ? there : (char*)at;
}
// Queues a copy of host bytes that must stay what they are until it has ended.
int copy_in(const char* name, uint64_t to, const void* from, size_t bytes, uint64_t stream, bool must_be_pinned) {
    bool pinned;
    {
        std::lock_guard<std::mutex> guard(memory::lock());
        if (!reached(to, bytes)) return INVALID_VALUE;
        pinned = memory::is_pinned(from, bytes);
    }
    if (must_be_pinned && !pinned) violation(std::string(name) + ": from memory that is not page-locked, which waits for the copy");
    uint64_t before = digest(from, bytes);
    std::string who = name;
    bool given = streams::give(stream, [=] {
        std::lock_guard<std::mutex> guard(memory::lock());
        if (pinned && !memory::is_pinned(from, bytes)) return violation(who + ": its source was unlocked before the copy ended");
        char* there = reached(to, bytes);
        if (!there) return violation(who + ": device memory was freed before the copy ended");
        memcpy(there, from, bytes);
        if (digest(there, bytes) != before) violation(who + ": its source changed before the copy ended");
    });
    return given ? OK : no_stream(name, stream);
}
} // namespace

EXPORT int cuMemcpyHtoD_v2(uint64_t to, const void* from, size_t bytes) {
    ENTER(true);
    UNCAPTURABLE;
    ends_captures(__func__);
    if (name_unseen(from, bytes)) return unseen(__func__, nullptr);
    int code = copy_in(__func__, to, from, bytes, 0, false);
    if (code == OK) streams::synchronize(0);
    return code;
}
EXPORT int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void* stream) {
    ENTER(true);
    return copy_in(__func__, to, from, bytes, (uint64_t)stream, true);
}
// As CUDA 12.8 declares it: one attribute for all, in stream order.
struct CopyAttributes {
    int source_order, source_location[2], destination_location[2];
    unsigned flags;
};
EXPORT int cuMemcpyBatchAsync(uint64_t* to, uint64_t* from, size_t* bytes, size_t count, CopyAttributes* attributes, size_t* starts,
                              size_t attribute_count, size_t* failed, void* stream) {
    ENTER(true);
    *failed = SIZE_MAX;
    if ((uint64_t)stream <= 1 || !count || attribute_count != 1 || starts[0] != 0 || attributes->source_order != 1 || attributes->flags)
        return INVALID_VALUE;
    if (name_unseen(from, count * sizeof *from)) return unseen(__func__, stream);
    // Copies of one call have no order among themselves.
    std::vector<size_t> order(count);
    for (size_t i = 0; i < count; i++) order[i] = i;
    static uint64_t random = 1;
    for (size_t i = count; i > 1; i--) {
        random = random * 6364136223846793005ull + 1442695040888963407ull;
        std::swap(order[i - 1], order[(random >> 33) % i]);
    }
    for (size_t i : order) {
        if (int code = copy_in(__func__, to[i], (const void*)from[i], bytes[i], (uint64_t)stream, true)) {
            *failed = i;
            return code;
        }
    }
    batched_rows += count;
    return OK;
}
EXPORT int cuStreamGetId(void* stream, unsigned long long* id) {
    ENTER(true);
    std::lock_guard<std::mutex> guard(streams::lock());
    if (!streams::find((uint64_t)stream)) return no_stream(__func__, (uint64_t)stream);
    *id = (uint64_t)stream <= 1 ? 0 : (uint64_t)stream; // handles are never used again here
    return OK;
}
EXPORT int cuGetProcAddress_v2(const char* name, void** function, int version, uint64_t, int* status) {
    ENTER(false);
    if (std::string(name) == "cuMemcpyBatchAsync" && version == 12080) *function = (void*)cuMemcpyBatchAsync;
    else if (std::string(name) == "cuStreamGetId" && version == 12000) *function = (void*)cuStreamGetId;
    else fprintf(stderr, "driver double: %s of version %d is not known here\n", name, version), abort();
    *status = 0;
    return OK;
}
EXPORT int cuMemHostRegister_v2(void* at, size_t bytes, unsigned) {
    ENTER(true);
    UNCAPTURABLE;
    std::lock_guard<std::mutex> guard(memory::lock());
    if (memory::used(true) + bytes > memory::limit(true)) return OUT_OF_MEMORY;
    auto after = memory::host().lower_bound((uint64_t)at);
    if (after != memory::host().end() && after->first < (uint64_t)at + bytes) return ALREADY_REGISTERED;
    if (memory::is_pinned(at, 1)) return ALREADY_REGISTERED;
    memory::host()[(uint64_t)at] = memory::registered(at, bytes, host_addresses);
    return OK;
}
EXPORT int cuMemHostUnregister(void* at) {
    ENTER(true);
    std::lock_guard<std::mutex> guard(memory::lock());
    auto found = memory::host().find((uint64_t)at);
    if (found == memory::host().end() || found->second.allocated) return NOT_REGISTERED;
    if (found->second.seen_at && found->second.seen_at != found->first) munmap((void*)found->second.seen_at, found->second.bytes);
    memory::host().erase(found);
    return OK;
}
EXPORT int cuMemHostAlloc(void** at, size_t bytes, unsigned) {
    ENTER(true);
    UNCAPTURABLE;
    std::lock_guard<std::mutex> guard(memory::lock());
    if (memory::used(true) + bytes > memory::limit(true)) return OUT_OF_MEMORY;
    *at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (*at == MAP_FAILED) return OUT_OF_MEMORY;
    memset(*at, memory::POISON, bytes);
    memory::host()[(uint64_t)*at] = memory::Host{bytes, true, (uint64_t)*at};
    return OK;
}
EXPORT int cuMemFreeHost(void* at) {
    ENTER(true);
    std::lock_guard<std::mutex> guard(memory::lock());
    auto found = memory::host().find((uint64_t)at);
    if (found == memory::host().end() || !found->second.allocated) return INVALID_VALUE;
    munmap(at, found->second.bytes); // whoever still reads or writes it shall notice
    memory::host().erase(found);
    return OK;
}
EXPORT int cuMemHostGetDevicePointer_v2(uint64_t* device, void* at, unsigned) {
    ENTER(true);
    std::lock_guard<std::mutex> guard(memory::lock());
    auto found = memory::host().find((uint64_t)at);
    if (found == memory::host().end() || !found->second.seen_at) return INVALID_VALUE;
    *device = found->second.seen_at;
    return OK;
}

EXPORT int cuStreamCreate(void** stream, unsigned) {
    ENTER(true);
    *stream = (void*)streams::create();
    return OK;
}
EXPORT int cuStreamDestroy_v2(void* stream) {
    ENTER(true);
    return streams::destroy((uint64_t)stream) ? OK : INVALID_HANDLE;
}
EXPORT int cuStreamSynchronize(void* stream) {
    ENTER(true);
    UNCAPTURABLE;
    if (!streams::synchronize((uint64_t)stream)) return INVALID_HANDLE;
    return launch_failed ? LAUNCH_FAILED : OK;
}
EXPORT int cuStreamIsCapturing(void* stream, int* status) {
    ENTER(true);
    // The legacy stream cannot be asked while another one captures.
    if (capturing != UINT64_MAX && (uint64_t)stream <= 1 && capturing != (uint64_t)stream) return CAPTURE_IMPLICIT;
    *status = capturing == (uint64_t)stream;
    return OK;
}
EXPORT int cuEventCreate(void** event, unsigned) {
    ENTER(true);
    *event = (void*)streams::create_event();
    return OK;
}
EXPORT int cuEventDestroy_v2(void* event) {
    ENTER(true);
    std::lock_guard<std::mutex> guard(streams::lock());
    return streams::events().erase((uint64_t)event) ? OK : INVALID_HANDLE;
}
EXPORT int cuEventRecord(void* event, void* stream) {
    ENTER(true);
    return streams::record((uint64_t)event, (uint64_t)stream) ? OK : no_stream(__func__, (uint64_t)stream);
}
EXPORT int cuStreamWaitEvent(void* stream, void* event, unsigned) {
    ENTER(true);
    if (capturing == (uint64_t)stream) {
        violation("cuStreamWaitEvent: a stream that captures was made to wait for work outside of the capture, which ends it");
        return CAPTURE_ISOLATION;
    }
    return streams::wait((uint64_t)stream, (uint64_t)event) ? OK : no_stream(__func__, (uint64_t)stream);
}
EXPORT int cuEventQuery(void* event) {
    ENTER(true);
    UNCAPTURABLE;
    std::lock_guard<std::mutex> guard(streams::lock());
    auto e = streams::event((uint64_t)event);
    return !e ? INVALID_HANDLE : e->completed >= e->recorded ? OK : NOT_READY;
}
EXPORT int cuEventSynchronize(void* event) {
    ENTER(true);
    UNCAPTURABLE;
    std::unique_lock<std::mutex> guard(streams::lock());
    auto e = streams::event((uint64_t)event);
    if (!e) return INVALID_HANDLE;
    uint64_t until = e->recorded;
    streams::changed().wait(guard, [&] { return e->completed >= until; });
    return OK;
}

// ---- kernels ------------------------------------------------------------------------------------

EXPORT int cuModuleLoadDataEx(void** module, const void* image, unsigned, const int*, void**) {
    ENTER(true);
    UNCAPTURABLE;
    return modules::load((const char*)image, (unsigned)capability, (modules::Module**)module);
}
EXPORT int cuModuleUnload(void* module) {
    ENTER(true);
    if (!modules::all().erase((modules::Module*)module)) return INVALID_HANDLE;
    delete (modules::Module*)module;
    return OK;
}
EXPORT int cuModuleGetFunction(const void** function, void* module, const char* name) {
    ENTER(true);
    auto found = KERNELS.find(name);
    if (found == KERNELS.end() || !((modules::Module*)module)->kernels.count(name)) return NOT_FOUND;
    *function = &*found;
    return OK;
}
EXPORT int cuFuncGetAttribute(int* value, int, void*) {
    *value = 32;
    return OK;
}
EXPORT int cuLaunchKernel(const void* function, unsigned grid, unsigned y, unsigned z, unsigned block_x, unsigned block_y, unsigned block_z,
                          unsigned shared_bytes, void* stream, void** parameters, void** extra) {
    ENTER(true);
    if (!grid || y != 1 || z != 1 || block_z != 1 || block_x * block_y > 1024 || extra) return INVALID_VALUE;
    if (idle) return OK; // for the caller's clock: a launch is taken, and nothing happens
    auto& [name, entry] = *(const std::pair<const std::string, std::pair<Entry, size_t>>*)function;
    {
        std::lock_guard<std::mutex> guard(notes);
        launches[name]++;
    }
    const char* from = (const char*)parameters[0];
    std::vector<char> arguments(from, from + entry.second);
    if (name_unseen(arguments.data(), arguments.size())) return unseen(name, stream);
    dim3 block{block_x, block_y, 1};
    bool given = streams::give((uint64_t)stream, [=, &name = name, run = entry.first] {
        // One set of fibers: launches of different streams take turns.
        static std::mutex& one = *new std::mutex;
        std::lock_guard<std::mutex> guard(one);
        fiber::State& s = fiber::state();
        s.known.clear();
        s.host.clear();
        {
            std::lock_guard<std::mutex> guard(memory::lock());
            for (auto& [at, b] : memory::device()) s.known.push_back({(const char*)at, (const char*)at + b.bytes});
            for (auto& [at, range] : memory::host()) {
                // `host_addresses` may have been taken back since.
                if (!range.seen_at || (at == range.seen_at && !range.allocated && !host_addresses)) continue;
                fiber::Region region{(const char*)range.seen_at, (const char*)range.seen_at + range.bytes};
                s.known.push_back(region);
                s.host.push_back(region);
            }
            // As where host and device share one address space: kernels reach everything.
            if (unified) s.known.push_back({nullptr, (const char*)UINTPTR_MAX});
        }
        s.readable = s.known;
        static uint64_t seed = 0;
        memory::open_to_kernels(true);
        std::string failure = fiber::launch(grid, block, shared_bytes, seed++ % 3, [&] { run(arguments.data()); });
        memory::open_to_kernels(false);
        if (!failure.empty()) {
            launch_failed = true;
            violation(name + ": " + failure);
        }
    });
    return given ? OK : no_stream(__func__, (uint64_t)stream);
}

// ---- what is not here ---------------------------------------------------------------------------

#define UNKNOWN(name)                                                                    \
    EXPORT int name() {                                                                  \
        fprintf(stderr, "driver double: " #name " is not known here: add it to tests/driver/double.cpp\n"); \
        abort();                                                                         \
    }
#include "unknown.h"
