// Ranks of more rows than a search in every tile is good for: a least-significant-digit radix sort of the ordered keys,
// eight bits and two launches a pass, then a binary search for every row. Stable and without any order left to chance,
// so the counts are those of the definition.

#define DIGITS 256
#define RADIX_THREADS 256
#define RADIX_TILE 4096 // keys of a block

struct RadixArguments {
    Finish finish;
    const u32* from; // null: the batch's own keys (the first pass)
    u32* to;
    u32* offsets;    // blocks x DIGITS, a block's digits side by side, as neighbouring threads read them
    u32 shift;
    u32 blocks;
};

__device__ inline u32 radix_key(const RadixArguments& a, u32 row) {
    return a.from ? a.from[row] : ordered(read_key(a.finish.keys, row));
}

// Counts become places, in the block that comes last: an exclusive running sum over a digit's blocks, digit by digit.
// Other blocks of this launch wrote the counts, so they are read past the first-level cache.
__device__ inline void places_of_counts(const RadixArguments& a, u32* sums) {
    u32 thread = threadIdx.x; // of RADIX_THREADS, one a digit
    volatile u32* counts = a.offsets + thread;
    u32 sum = 0;
    for (u32 block = 0; block < a.blocks; block++) sum += counts[block * DIGITS];
    sums[thread] = sum;
    for (u32 step = 1; step < RADIX_THREADS; step *= 2) {
        __syncthreads();
        u32 before = thread >= step ? sums[thread - step] : 0;
        __syncthreads();
        sums[thread] += before;
    }
    u32 place = sums[thread] - sum;
    for (u32 block = 0; block < a.blocks; block++) {
        u32 count = counts[block * DIGITS];
        counts[block * DIGITS] = place;
        place += count;
    }
}

// How often every digit occurs in each block's keys; then where each block's keys of a digit go.
extern "C" __global__ void __launch_bounds__(RADIX_THREADS) lossfeed_radix_count(RadixArguments a) {
    LOSSFEED_SHARED(shared);
    u32* counts = (u32*)(shared + SHARED_HEAD_BYTES);
    u32 thread = threadIdx.x, rows = (u32)a.finish.rows;
    counts[thread] = 0;
    __syncthreads();
    u32 first = blockIdx.x * RADIX_TILE;
    for (u32 i = thread; i < RADIX_TILE; i += RADIX_THREADS) {
        u32 row = first + i;
        if (row < rows) atomicAdd(counts + (radix_key(a, row) >> a.shift & (DIGITS - 1)), 1u);
    }
    __syncthreads();
    a.offsets[blockIdx.x * DIGITS + thread] = counts[thread];
    if (!take_ticket(a.finish.tickets, gridDim.x, shared)) return;
    places_of_counts(a, counts);
    if (thread == 0) *a.finish.tickets = 0; // for the next launch
}

// Every key to its place; keys of one digit keep their order. A block takes its tile RADIX_THREADS keys at a time.
extern "C" __global__ void __launch_bounds__(RADIX_THREADS) lossfeed_radix_scatter(RadixArguments a) {
    LOSSFEED_SHARED(shared);
    const u32 WARPS = RADIX_THREADS / 32;
    u32* places = (u32*)(shared + SHARED_HEAD_BYTES); // the next place of every digit
    u32* counts = places + DIGITS;                    // WARPS x DIGITS: a step's keys by warp and digit
    u32 thread = threadIdx.x, lane = thread % 32, warp = thread / 32, rows = (u32)a.finish.rows;
    places[thread] = a.offsets[blockIdx.x * DIGITS + thread];
    u32 first = blockIdx.x * RADIX_TILE;
    for (u32 step = 0; step < RADIX_TILE && first + step < rows; step += RADIX_THREADS) {
        for (u32 w = 0; w < WARPS; w++) counts[w * DIGITS + thread] = 0;
        __syncthreads();
        u32 row = first + step + thread;
        bool live = row < rows;
        u32 key = live ? radix_key(a, row) : 0;
        u32 digit = key >> a.shift & (DIGITS - 1);
        // The lanes of this warp with the same digit.
        u32 alike = __ballot_sync(FULL_WARP, live);
#pragma unroll
        for (u32 bit = 0; bit < 8; bit++) {
            u32 ones = __ballot_sync(FULL_WARP, digit >> bit & 1);
            alike &= digit >> bit & 1 ? ones : ~ones;
        }
        u32 in_front = alike & ((1u << lane) - 1);
        if (live && in_front == 0) counts[warp * DIGITS + digit] = (u32)__popc(alike);
        __syncthreads();
        if (live) {
            u32 place = places[digit] + (u32)__popc(in_front);
            for (u32 w = 0; w < warp; w++) place += counts[w * DIGITS + digit];
            a.to[place] = key;
        }
        __syncthreads();
        for (u32 w = 0; w < WARPS; w++) places[thread] += counts[w * DIGITS + thread];
    }
}

// Looks every row up among the sorted keys in `from`.
extern "C" __global__ void __launch_bounds__(256) lossfeed_radix_search(RadixArguments a) {
    LOSSFEED_SHARED(shared);
    u32 row = blockIdx.x * blockDim.x + threadIdx.x, rows = (u32)a.finish.rows;
    if (row < rows) {
        u32 key = ordered(read_key(a.finish.keys, row));
        write_rank(row, key != ORDERED_NAN, lower_bound(a.from, rows, key), a.finish.b0, a.finish.count, a.finish.rank_score);
    }
    finish_ranked(a.finish, shared);
}
