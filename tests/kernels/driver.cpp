// Reads launches from standard input, runs the kernels of kernels/cuda on fibers, writes what they wrote to standard output.
// tests/kernels/fiber.rs is the other end; fields are in native byte order and in the order of the structures below.

#include "fiber.h"

#include "prelude.cu"
#include "rank.cu"
#include "score.cu"

#include "planted.h"

namespace {

struct Request {
    char kernel[40];
    uint32_t grid, block_x, block_y, shared_bytes;
    uint32_t rank_grid, rank_block, rank_shared_bytes; // grid 0: no rank launch
    uint32_t dtype, offset_bytes, launches;
    uint64_t seed, logits_bytes;
    int64_t row_stride, ignore_index;
    int32_t rows, classes;
    float b0;
    uint32_t unused;
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

// Memory between red zones, itself red until written.
template <class T> struct Guarded {
    std::vector<unsigned char> bytes;
    size_t count;
    explicit Guarded(size_t n) : bytes(n * sizeof(T) + 2 * fiber::RED_ZONE, fiber::RED), count(n) {}
    T* data() { return (T*)(bytes.data() + fiber::RED_ZONE); }
    bool intact() const {
        for (size_t i = 0; i < fiber::RED_ZONE; i++)
            if (bytes[i] != fiber::RED || bytes[bytes.size() - 1 - i] != fiber::RED) return false;
        return true;
    }
    void send() { write_exactly(data(), count * sizeof(T)); }
};

template <class T> using Score = void (*)(const typename T::Raw*, const i64*, int, int, i64, i64, float, typename T::R*, typename T::R*,
                                          typename T::R*, typename T::R*, u8*, int*, float*, u32*, u32*, u32*);

template <class T>
void answer(const Request& q, const char* logits, const i64* targets, Score<T> warp, Score<T> block) {
    typedef typename T::R R;
    size_t rows = (size_t)q.rows;
    Guarded<R> loss(rows), lse(rows), grad_norm(rows), entropy(rows);
    Guarded<u8> correct(rows);
    Guarded<int> count(rows);
    Guarded<float> rank_score(rows);
    Guarded<u32> workspace(4 + rows), words(2); // words: error, done
    memset(workspace.data(), 0, 16);
    words.data()[0] = 0xffffffffu;
    words.data()[1] = 0;

    std::string failure;
    bool ranks_alone = strcmp(q.kernel, "lossfeed_rank") == 0;
    if (ranks_alone) memcpy(workspace.data() + 4, logits, rows * sizeof(float));
    Score<T> score = strncmp(q.kernel, "lossfeed_score_warp_", 20) == 0 ? warp : block;
    for (uint32_t k = 0; k < q.launches && failure.empty(); k++) {
        uint64_t seed = q.seed ? q.seed + k : 0;
        if (!ranks_alone)
            failure = fiber::launch(q.grid, dim3{q.block_x, q.block_y, 1}, q.shared_bytes, seed, [&] {
                score((const typename T::Raw*)logits, targets, q.rows, q.classes, q.row_stride, q.ignore_index, q.b0, loss.data(),
                      lse.data(), grad_norm.data(), entropy.data(), correct.data(), count.data(), rank_score.data(),
                      workspace.data(), words.data(), words.data() + 1);
            });
        if (failure.empty() && q.rank_grid)
            failure = fiber::launch(q.rank_grid, dim3{q.rank_block, 1, 1}, q.rank_shared_bytes, seed, [&] {
                lossfeed_rank(workspace.data(), q.rows, q.b0, count.data(), rank_score.data(), words.data() + 1);
            });
    }
    bool intact = loss.intact() && lse.intact() && grad_norm.intact() && entropy.intact() && correct.intact() && count.intact() &&
                  rank_score.intact() && workspace.intact() && words.intact();
    if (failure.empty() && !intact) failure = "a write outside the outputs";

    uint32_t length = (uint32_t)failure.size();
    write_exactly(&length, 4);
    write_exactly(failure.data(), length);
    if (length) return;
    loss.send();
    lse.send();
    grad_norm.send();
    entropy.send();
    correct.send();
    count.send();
    rank_score.send();
    words.send();
    write_exactly(workspace.data(), 8); // ticket, batches
}

void answer_planted(const Request& q) {
    Guarded<float> out(64);
    std::string failure = planted::run(q.kernel, q.seed, out.data());
    if (failure.empty() && !out.intact()) failure = "a write outside the outputs";
    uint32_t length = (uint32_t)failure.size();
    write_exactly(&length, 4);
    write_exactly(failure.data(), length);
    if (!length) out.send();
}

} // namespace

int main() {
    Request q;
    while (fread(&q, 1, sizeof q, stdin) == sizeof q) {
        // Aligned as an allocation of the device is, then moved by the offset asked for.
        std::vector<uint4> storage((q.offset_bytes + q.logits_bytes + 15) / 16 + 1);
        char* logits = (char*)storage.data() + q.offset_bytes;
        read_exactly(logits, q.logits_bytes);
        std::vector<i64> targets((size_t)q.rows);
        read_exactly(targets.data(), targets.size() * sizeof(i64));
        fiber::state().readable = {{logits, logits + q.logits_bytes}};
        if (strncmp(q.kernel, "planted_", 8) == 0) answer_planted(q);
        else if (q.dtype == 0) answer<F16>(q, logits, targets.data(), lossfeed_score_warp_f16, lossfeed_score_block_f16);
        else if (q.dtype == 1) answer<BF16>(q, logits, targets.data(), lossfeed_score_warp_bf16, lossfeed_score_block_bf16);
        else if (q.dtype == 2) answer<F32>(q, logits, targets.data(), lossfeed_score_warp_f32, lossfeed_score_block_f32);
        else answer<F64>(q, logits, targets.data(), lossfeed_score_warp_f64, lossfeed_score_block_f64);
        fflush(stdout);
    }
    return 0;
}
