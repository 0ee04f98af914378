// The double's memory. Device memory is poisoned when it is given out, and the host cannot touch it: its addresses are
// mapped without any right, kernels get rights for the time of a launch, copies go through a second mapping of the same
// pages.
#pragma once

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace memory {

constexpr unsigned char POISON = 0xdb;

struct Block {
    size_t bytes, mapped;
    char* alias; // readable and writable
};

inline std::mutex& lock() {
    static auto& m = *new std::mutex;
    return m;
}
inline std::map<uint64_t, Block>& device() {
    static auto& blocks = *new std::map<uint64_t, Block>;
    return blocks;
}
// A page-locked range of the host: registered, or allocated by the driver. `seen_at`: where the device reads it, 0 if
// nowhere. Allocated memory has one address for both; registered memory has another one on a device that does not read
// the host's: a second mapping of the same pages.
struct Host {
    size_t bytes;
    bool allocated;
    uint64_t seen_at;
};
inline Host registered(void* at, size_t bytes, bool reads_host_addresses) {
    if (reads_host_addresses) return {bytes, false, (uint64_t)at};
    // Only shared mappings can be had twice.
    void* again = mremap(at, 0, bytes, MREMAP_MAYMOVE);
    return {bytes, false, again == MAP_FAILED ? 0 : (uint64_t)again};
}
inline std::map<uint64_t, Host>& host() {
    static auto& ranges = *new std::map<uint64_t, Host>;
    return ranges;
}
inline uint64_t& limit(bool pinned) {
    static uint64_t limits[2] = {UINT64_MAX, UINT64_MAX};
    return limits[pinned];
}

inline uint64_t used(bool pinned) {
    uint64_t sum = 0;
    if (pinned)
        for (auto& [at, range] : host()) sum += range.bytes;
    else
        for (auto& [at, block] : device()) sum += block.bytes;
    return sum;
}

// 0 where there is no room.
inline uint64_t allocate(size_t bytes) {
    std::lock_guard<std::mutex> guard(lock());
    if (bytes == 0 || used(false) + bytes > limit(false)) return 0;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), mapped = (bytes + page - 1) / page * page;
    int file = memfd_create("lossfeed-double", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)mapped)) abort();
    void* view = mmap(nullptr, mapped, PROT_NONE, MAP_SHARED, file, 0);
    void* alias = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (view == MAP_FAILED || alias == MAP_FAILED) abort();
    memset(alias, POISON, mapped);
    device()[(uint64_t)view] = Block{bytes, mapped, (char*)alias};
    return (uint64_t)view;
}

inline bool release(uint64_t at) {
    std::lock_guard<std::mutex> guard(lock());
    auto found = device().find(at);
    if (found == device().end()) return false;
    munmap((void*)at, found->second.mapped);
    munmap(found->second.alias, found->second.mapped);
    device().erase(found);
    return true;
}

// Where the host reaches `bytes` of device memory at `at`; null if they are not inside one allocation.
inline char* alias(uint64_t at, size_t bytes) {
    auto after = device().upper_bound(at);
    if (after == device().begin()) return nullptr;
    auto& [start, block] = *--after;
    return at - start + bytes <= block.bytes ? block.alias + (at - start) : nullptr;
}

// The page-locked range that holds all of these bytes, or null.
inline const Host* pinned(const void* from, size_t bytes) {
    auto after = host().upper_bound((uint64_t)from);
    if (after == host().begin()) return nullptr;
    auto& [start, range] = *--after;
    return (uint64_t)from - start + bytes <= range.bytes ? &range : nullptr;
}
inline bool is_pinned(const void* from, size_t bytes) { return pinned(from, bytes); }

// Gives kernels the right to device memory, and takes it back.
inline void open_to_kernels(bool open) {
    std::lock_guard<std::mutex> guard(lock());
    for (auto& [at, block] : device()) mprotect((void*)at, block.mapped, open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

// A touch of device memory from the host ends the process with a word about it.
inline struct sigaction& previous() {
    static struct sigaction action;
    return action;
}
inline void segv(int signal, siginfo_t* info, void* context) {
    uint64_t at = (uint64_t)info->si_addr;
    for (auto& [start, block] : device()) {
        if (at < start || at >= start + block.mapped) continue;
        const char said[] = "driver double: the host touched device memory\n";
        if (write(2, said, sizeof said - 1) < 0) _exit(86);
        _exit(86);
    }
    struct sigaction& before = previous();
    if (before.sa_flags & SA_SIGINFO && before.sa_sigaction) return before.sa_sigaction(signal, info, context);
    ::signal(SIGSEGV, SIG_DFL);
}
inline void watch() {
    struct sigaction action = {};
    action.sa_sigaction = segv;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, &previous());
}

} // namespace memory
