// Reads programs (buffers and launches) from standard input, runs the kernels of kernels/cuda (with LOSSFEED_PTX: those of
// translated PTX) on fibers, writes the buffers they wrote to standard output. tests/kernels/program.rs says what a
// program is; numbers are in native byte order.

#ifdef LOSSFEED_PTX
#include "ptx/hosted.h"
#else
#include "entries.h"
#endif
#include "planted.h"

#include <sys/mman.h>

namespace {

struct Request {
    uint64_t seed;
    uint32_t buffers, steps;
    // Before the `meddles_at`-th time that a thread goes on, these bytes are written to `meddle_to`.
    uint64_t meddles_at, meddle_to, meddle_bytes;
    char meddle_with[16];
};

enum Kind { INPUT, OUTPUT, STATE }; // a state is written, and holds addresses

struct BufferHead {
    uint64_t bytes;
    uint32_t kind, offset; // offset: from a 256-byte boundary
    uint64_t hole;         // zeros in front of the content, of which only the pages that a kernel reads take memory
};

struct StepHead {
    char kernel[48];
    uint32_t grid, block_x, block_y, shared_bytes;
    uint64_t argument_bytes;
};

[[noreturn]] void stop(const char* why) {
    fprintf(stderr, "driver: %s\n", why);
    exit(2);
}

void read_exactly(void* to, size_t bytes) {
    if (bytes && fread(to, 1, bytes, stdin) != bytes) stop("the request ends early");
}

void write_exactly(const void* from, size_t bytes) {
    if (bytes && fwrite(from, 1, bytes, stdout) != bytes) stop("cannot answer");
}

#ifdef __SANITIZE_ADDRESS__
constexpr size_t RED_ZONE = 0; // the sanitizer has its own, and finds reads too
#else
constexpr size_t RED_ZONE = 256;
#endif

// Memory between red zones, its start as far from a boundary as asked for.
class Buffer {
public:
    explicit Buffer(const BufferHead& head) : kind(head.kind), bytes(head.bytes) {
        if (head.hole) {
            mapped = head.hole + bytes;
            base = (unsigned char*)mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (base == MAP_FAILED) stop("no address space");
            data = (char*)base;
            read_exactly(data + head.hole, bytes);
            return;
        }
        size_t front = RED_ZONE + head.offset, size = (front + bytes + RED_ZONE);
        // Not rounded up: what lies behind the last byte belongs to nobody.
        void* memory = nullptr;
        if (posix_memalign(&memory, 256, size ? size : 1)) stop("no memory");
        base = (unsigned char*)memory;
        memset(base, fiber::RED, size);
        data = (char*)base + front;
        read_exactly(data, bytes);
        if (kind == INPUT) original.assign(data, data + bytes);
    }
    Buffer(Buffer&& other)
        : kind(other.kind), bytes(other.bytes), mapped(other.mapped), data(other.data), original(std::move(other.original)), base(other.base) {
        other.base = nullptr;
        other.mapped = 0;
    }
    ~Buffer() {
        if (mapped) munmap(base, mapped);
        else free(base);
    }
    fiber::Region region() const { return {data, data + (mapped ? mapped : bytes)}; }
    bool intact() const {
        if (mapped) return true; // only read, and too large to look at
        for (const unsigned char* p = base; p < (unsigned char*)data; p++)
            if (*p != fiber::RED) return false;
        for (size_t i = 0; i < RED_ZONE; i++)
            if ((unsigned char)data[bytes + i] != fiber::RED) return false;
        return kind != INPUT || memcmp(original.data(), data, bytes) == 0;
    }
    uint32_t kind;
    size_t bytes, mapped = 0; // mapped: of a buffer with a hole
    char* data;

private:
    std::vector<char> original;
    unsigned char* base;
};

// Addresses travel as 0x00f1, the buffer's number in 12 bits, the byte in 36. A word that begins so by chance, as a key
// drawn at random may, has the number of a buffer that is not there.
void relocate(char* memory, size_t bytes, std::vector<Buffer>& buffers) {
    for (size_t at = 0; at + 8 <= bytes; at += 8) {
        uint64_t word;
        memcpy(&word, memory + at, 8);
        if (word >> 48 != 0x00f1) continue;
        size_t number = word >> 36 & 0xfff;
        if (number >= buffers.size()) continue;
        char* address = buffers[number].data + (word & 0xfffffffffull);
        memcpy(memory + at, &address, 8);
    }
}

std::string run(const StepHead& step, const std::vector<char>& arguments, uint64_t seed) {
    dim3 block{step.block_x, step.block_y, 1};
    if (planted::Kernel kernel = planted::find(step.kernel)) {
        float* out;
        memcpy(&out, arguments.data(), sizeof out);
        return fiber::launch(step.grid, block, step.shared_bytes, seed, [&] { kernel(out); });
    }
#ifdef LOSSFEED_PTX
    const ptx::Entry* found = ptx::find(step.kernel);
    ptx::limit();
#else
    auto at = KERNELS.find(step.kernel);
    const auto* found = at == KERNELS.end() ? nullptr : &at->second;
#endif
    if (!found) return std::string("no such kernel: ") + step.kernel;
    auto [entry, bytes] = *found;
    if (bytes != arguments.size()) return std::string("arguments of another size: ") + step.kernel;
    return fiber::launch(step.grid, block, step.shared_bytes, seed, [entry = entry, &arguments] { entry(arguments.data()); });
}

} // namespace

int main([[maybe_unused]] int count, [[maybe_unused]] char** words) {
#ifdef LOSSFEED_PTX
    ptx::configure(count, words);
#endif
    Request q;
    while (fread(&q, 1, sizeof q, stdin) == sizeof q) {
        std::vector<Buffer> buffers;
        for (uint32_t i = 0; i < q.buffers; i++) {
            BufferHead head;
            read_exactly(&head, sizeof head);
            buffers.emplace_back(head);
        }
        fiber::State& s = fiber::state();
        s.readable.clear();
        s.known.clear();
        for (Buffer& b : buffers) {
            if (b.kind == STATE) relocate(b.data, b.bytes, buffers);
            fiber::Region region = b.region();
            s.known.push_back(region);
            if (b.kind == INPUT) s.readable.push_back(region);
        }
        relocate((char*)&q.meddle_to, sizeof q.meddle_to, buffers);
        s.resumed = 0;
        s.meddles_at = q.meddles_at;
        s.meddle = [&] { memcpy((char*)q.meddle_to, q.meddle_with, std::min<size_t>(q.meddle_bytes, sizeof q.meddle_with)); };
        std::string failure;
        for (uint32_t i = 0; i < q.steps; i++) {
            StepHead step;
            read_exactly(&step, sizeof step);
            std::vector<char> arguments(step.argument_bytes);
            read_exactly(arguments.data(), arguments.size());
            relocate(arguments.data(), arguments.size(), buffers);
            if (failure.empty()) failure = run(step, arguments, q.seed ? q.seed + i : 0);
        }
        for (const Buffer& b : buffers)
            if (failure.empty() && !b.intact()) failure = b.kind == INPUT ? "a write into an input" : "a write outside the outputs";
        uint32_t length = (uint32_t)failure.size();
        write_exactly(&length, 4);
        write_exactly(failure.data(), length);
        for (const Buffer& b : buffers)
            if (failure.empty() && b.kind != INPUT) write_exactly(b.data, b.bytes);
        fflush(stdout);
    }
    return 0;
}
