// The double's streams: one thread each, its work in order; events that streams and the host wait for. Every piece of
// work may be delayed, so that streams run past each other as they do on a busy GPU.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace streams {

inline std::mutex& lock() {
    static auto& m = *new std::mutex;
    return m;
}
// Woken at every end of work: there is little of it here.
inline std::condition_variable& changed() {
    static auto& c = *new std::condition_variable;
    return c;
}
inline uint64_t& delay_us() {
    static uint64_t us = 0;
    return us;
}

struct Event {
    uint64_t recorded = 0, completed = 0;
};

struct Stream {
    std::deque<std::function<void()>> work;
    uint64_t given = 0, done = 0, random = 1;
    bool closing = false;
};

using Handle = std::shared_ptr<Stream>;

inline void live(Handle s) {
    std::unique_lock<std::mutex> guard(lock());
    for (;;) {
        changed().wait(guard, [&] { return !s->work.empty() || s->closing; });
        if (s->work.empty()) return;
        std::function<void()> job = std::move(s->work.front());
        s->work.pop_front();
        s->random = s->random * 6364136223846793005ull + 1442695040888963407ull;
        uint64_t pause = delay_us() ? (s->random >> 33) % (delay_us() + 1) : 0;
        guard.unlock();
        // Mostly short pauses and a few long ones: both kinds of overtaking.
        if (pause) std::this_thread::sleep_for(std::chrono::microseconds(s->random >> 60 ? pause / 16 : pause));
        job();
        guard.lock();
        s->done++;
        changed().notify_all();
    }
}

inline std::map<uint64_t, Handle>& all() {
    static auto& streams = *new std::map<uint64_t, Handle>;
    return streams;
}

inline Handle make(uint64_t number) {
    Handle s = std::make_shared<Stream>();
    s->random = number * 0x9e3779b97f4a7c15ull + 1;
    std::thread(live, s).detach();
    return s;
}

constexpr uint64_t FIRST = 0x5000;
// The handle given out last; none is ever given out again.
inline uint64_t& last() {
    static uint64_t handle = FIRST;
    return handle;
}

// The stream of a handle; 0 and 1 are the legacy stream. Null if there is none. Under the lock.
inline Handle find(uint64_t handle) {
    if (handle <= 1 && !all().count(0)) all()[0] = make(0);
    auto found = all().find(handle <= 1 ? 0 : handle);
    return found == all().end() ? nullptr : found->second;
}

// Handles that were a stream's once.
inline bool was_destroyed(uint64_t handle) { return handle > FIRST && handle <= last() && !all().count(handle); }

inline uint64_t create() {
    std::lock_guard<std::mutex> guard(lock());
    uint64_t handle = ++last();
    all()[handle] = make(handle);
    return handle;
}

// Its work still ends.
inline bool destroy(uint64_t handle) {
    std::lock_guard<std::mutex> guard(lock());
    auto found = all().find(handle);
    if (handle <= 1 || found == all().end()) return false;
    found->second->closing = true;
    all().erase(found);
    changed().notify_all();
    return true;
}

inline bool give(uint64_t handle, std::function<void()> job) {
    std::lock_guard<std::mutex> guard(lock());
    Handle s = find(handle);
    if (!s) return false;
    s->work.push_back(std::move(job));
    s->given++;
    changed().notify_all();
    return true;
}

inline bool synchronize(uint64_t handle) {
    std::unique_lock<std::mutex> guard(lock());
    Handle s = find(handle);
    if (!s) return false;
    uint64_t until = s->given;
    changed().wait(guard, [&] { return s->done >= until; });
    return true;
}

inline void synchronize_all() {
    std::unique_lock<std::mutex> guard(lock());
    std::map<uint64_t, Handle> now = all();
    for (auto& [handle, s] : now) {
        uint64_t until = s->given;
        changed().wait(guard, [&, s = s] { return s->done >= until; });
    }
}

inline std::map<uint64_t, std::shared_ptr<Event>>& events() {
    static auto& known = *new std::map<uint64_t, std::shared_ptr<Event>>;
    return known;
}

inline uint64_t create_event() {
    static uint64_t next = 0xe000;
    std::lock_guard<std::mutex> guard(lock());
    events()[++next] = std::make_shared<Event>();
    return next;
}

inline std::shared_ptr<Event> event(uint64_t handle) {
    auto found = events().find(handle);
    return found == events().end() ? nullptr : found->second;
}

inline bool record(uint64_t handle, uint64_t stream) {
    std::shared_ptr<Event> e;
    uint64_t number;
    {
        std::lock_guard<std::mutex> guard(lock());
        e = event(handle);
        if (!e) return false;
        number = ++e->recorded;
    }
    return give(stream, [e, number] {
        std::lock_guard<std::mutex> guard(lock());
        if (e->completed < number) e->completed = number;
    });
}

// The stream waits for what the event stands for now; destroying or recording it again changes nothing.
inline bool wait(uint64_t stream, uint64_t handle) {
    std::shared_ptr<Event> e;
    uint64_t number;
    {
        std::lock_guard<std::mutex> guard(lock());
        e = event(handle);
        if (!e) return false;
        number = e->recorded;
    }
    return give(stream, [e, number] {
        std::unique_lock<std::mutex> guard(lock());
        changed().wait(guard, [&] { return e->completed >= number; });
    });
}

} // namespace streams
