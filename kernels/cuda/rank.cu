// In-batch ranks (SHADE Eq. 6): count = #{k : key_k < key}, score = ln(count + b0). A key is the row's loss, or NaN
// when the row takes no part: every comparison with NaN is false, so such a row is in nobody's count.
//
// Every rank needs every loss. Up to FUSED_RANK_ROWS rows the block that finishes last ranks the batch inside the score
// launch. Above, launches of their own: one block that sorts a tile (to SORT_TILE rows); blocks that sort a tile each,
// then a search in every tile (to 65,536); a radix sort beyond (radix.cu). All of them count the same integers.

#define FUSED_RANK_ROWS 512
#define SORT_TILE 2048

// Shared memory of every kernel: a few words (padded to 16 bytes), then keys; the row sums lie over the keys.
#define SHARED_HEAD_BYTES 16

// Key of a row whose target names no class: a NaN that the mail tells from others.
#define BAD_TARGET_KEY 0x7fc0bad1u
// Orders behind every number.
#define ORDERED_NAN 0xffffffffu

// The key as ranks see it: NaN for an infinite one too. The read is volatile: other blocks of this launch may have
// written the key, and the first-level cache does not know.
__device__ inline float read_key(const float* keys, u32 row) {
    float key = *(volatile const float*)(keys + row);
    return key - key == 0.0f ? key : Real<float>::nan();
}

// Unsigned integers in the order of the floats they stand for; both zeros are one, NaN comes last.
__device__ inline u32 ordered(float key) {
    if (key != key) return ORDERED_NAN;
    u32 bits = __float_as_uint(key == 0.0f ? 0.0f : key);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// How many of `n` ordered keys are below `key`.
__device__ inline int lower_bound(const u32* sorted, u32 n, u32 key) {
    u32 first = 0;
    while (n > 0) {
        u32 half = n / 2;
        bool below = sorted[first + half] < key;
        first = below ? first + half + 1 : first;
        n = below ? n - half - 1 : half;
    }
    return (int)first;
}

__device__ inline void write_rank(u32 row, bool ranked, int below, float b0, int* count, float* rank_score) {
    count[row] = ranked ? below : -1;
    // In double and rounded once, as the CPU does: devices agree on the score as they do on the count.
    if (rank_score) rank_score[row] = ranked ? (float)log((double)below + (double)b0) : Real<float>::nan();
}

// How many of `fours` times four keys in shared memory are below `key`. Four counters, four keys a load: the
// comparisons of one counter wait for each other.
__device__ inline int count_below(const float* tile, u32 fours, float key) {
    const float4* keys = (const float4*)tile;
    int a = 0, b = 0, c = 0, d = 0;
#pragma unroll 4
    for (u32 i = 0; i < fours; i++) {
        float4 k = keys[i];
        a += k.x < key;
        b += k.y < key;
        c += k.z < key;
        d += k.w < key;
    }
    return (a + b) + (c + d);
}
