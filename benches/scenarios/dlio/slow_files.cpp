// Makes one folder as slow as a remote file system, for every program that is started with this library preloaded:
// LD_PRELOAD=slow_files.so SLOW_FOLDER=/data SLOW_LATENCY_S=0.02 SLOW_BYTES_PER_S=1e7 SLOW_LINK=/tmp/link PROGRAM.
//
// The model is a network file system with a page cache for open files, and the same for whoever reads:
// - opening a file takes one latency, and so does its first read; later reads of it find it read ahead;
// - bytes pass one link that all processes share, in the order in which they ask; what a process has read of an open
//   file passes once;
// - listings and stat cost nothing; nothing is kept once a file is closed.
// Programs that map files into memory, or call the kernel without the C library, are not slowed down.

#include <atomic>
#include <climits>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace {

constexpr int FILES_MAX = 65536;
// How far each open file was read, plus one; 0: it is none of ours.
std::atomic<int64_t> read_to[FILES_MAX];
// When the link is free again, in nanoseconds of the monotonic clock; all processes map it.
std::atomic<int64_t> *link_free_at = nullptr;
char folder[PATH_MAX];
size_t folder_length = 0;
int64_t latency_ns = 0;
double bytes_per_ns = 0;

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t(t.tv_sec) * 1000000000 + t.tv_nsec;
}

void sleep_until(int64_t ns) {
  timespec t = {time_t(ns / 1000000000), long(ns % 1000000000)};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, nullptr) != 0) {
  }
}

template <class F> F real(const char *name) { return reinterpret_cast<F>(dlsym(RTLD_NEXT, name)); }

__attribute__((constructor)) void begin() {
  const char *at = getenv("SLOW_FOLDER"), *latency = getenv("SLOW_LATENCY_S"), *rate = getenv("SLOW_BYTES_PER_S"),
             *link = getenv("SLOW_LINK");
  if (!at || !latency || !rate || !link || !realpath(at, folder)) return;
  latency_ns = int64_t(atof(latency) * 1e9);
  bytes_per_ns = atof(rate) / 1e9;
  int fd = real<int (*)(const char *, int, ...)>("open")(link, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || ftruncate(fd, 8) != 0) return;
  void *map = mmap(nullptr, 8, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (map == MAP_FAILED) return;
  link_free_at = static_cast<std::atomic<int64_t> *>(map);
  folder_length = strlen(folder);
}

int opened(int fd, int flags) {
  if (fd < 0 || fd >= FILES_MAX || !link_free_at) return fd;
  read_to[fd] = 0;
  if ((flags & O_DIRECTORY) || (flags & O_ACCMODE) != O_RDONLY) return fd;
  char name[64], path[PATH_MAX];
  snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(name, path, sizeof path - 1);
  if (length > ssize_t(folder_length) && memcmp(path, folder, folder_length) == 0 && path[folder_length] == '/') {
    read_to[fd] = 1;
    sleep_until(now_ns() + latency_ns);
  }
  return fd;
}

ssize_t passed(int fd, int64_t from, ssize_t got) {
  if (got <= 0) return got;
  int64_t before = read_to[fd].load() - 1, end = from + got;
  if (end <= before) return got;
  read_to[fd] = end + 1;
  int64_t bytes = end - (from > before ? from : before), asked = now_ns();
  int64_t takes = int64_t(double(bytes) / bytes_per_ns), old = link_free_at->load(), free_at;
  do {
    free_at = (old > asked ? old : asked) + takes;
  } while (!link_free_at->compare_exchange_weak(old, free_at));
  int64_t waits = before == 0 ? asked + latency_ns + takes : asked;
  sleep_until(free_at > waits ? free_at : waits);
  return got;
}

bool ours(int fd) { return fd >= 0 && fd < FILES_MAX && link_free_at && read_to[fd].load() != 0; }

} // namespace

#define OPEN(name)                                                                                                     \
  extern "C" int name(const char *path, int flags, ...) {                                                              \
    static auto next = real<int (*)(const char *, int, ...)>(#name);                                                   \
    va_list rest;                                                                                                      \
    va_start(rest, flags);                                                                                             \
    mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(rest, mode_t) : 0;                                          \
    va_end(rest);                                                                                                      \
    return opened(next(path, flags, mode), flags);                                                                     \
  }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                                                                   \
  extern "C" int name(int at, const char *path, int flags, ...) {                                                      \
    static auto next = real<int (*)(int, const char *, int, ...)>(#name);                                              \
    va_list rest;                                                                                                      \
    va_start(rest, flags);                                                                                             \
    mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(rest, mode_t) : 0;                                          \
    va_end(rest);                                                                                                      \
    return opened(next(at, path, flags, mode), flags);                                                                 \
  }
OPENAT(openat)
OPENAT(openat64)

extern "C" ssize_t read(int fd, void *into, size_t bytes) {
  static auto next = real<ssize_t (*)(int, void *, size_t)>("read");
  if (!ours(fd)) return next(fd, into, bytes);
  int64_t from = lseek(fd, 0, SEEK_CUR);
  return passed(fd, from, next(fd, into, bytes));
}

#define PREAD(name)                                                                                                    \
  extern "C" ssize_t name(int fd, void *into, size_t bytes, off_t from) {                                              \
    static auto next = real<ssize_t (*)(int, void *, size_t, off_t)>(#name);                                           \
    ssize_t got = next(fd, into, bytes, from);                                                                         \
    return ours(fd) ? passed(fd, from, got) : got;                                                                     \
  }
PREAD(pread)
PREAD(pread64)

extern "C" int close(int fd) {
  static auto next = real<int (*)(int)>("close");
  if (fd >= 0 && fd < FILES_MAX) read_to[fd] = 0;
  return next(fd);
}
