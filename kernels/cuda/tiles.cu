// Ranks of what one launch cannot rank at its end: tiles of SORT_TILE keys, each sorted by one block, all at the same
// time; then a binary search for every row in every tile, and the sum of what it finds. Up to one tile both happen in
// one launch.

#define TILE_THREADS (SORT_TILE / 4)
#define SEARCH_ROWS 32 // of a block, a lane each; its warps share the tiles

struct TileArguments {
    Finish finish;
    u32* sorted; // whole tiles, one after the other
    u32 tiles;
    u32 unused;
};

__device__ inline u32 pick(bool smaller, u32 a, u32 b) { return (a < b) == smaller ? a : b; }

__device__ inline void order(u32& a, u32& b, bool up) {
    u32 low = a < b ? a : b, high = a < b ? b : a;
    a = up ? low : high;
    b = up ? high : low;
}

// Sorts four words a thread, a power of two of threads from 32 on: thread t holds the words from 4 t on. A bitonic
// network, whose steps depend on nothing but the size. Partners are the thread's own words, another lane's by a
// shuffle, or another warp's through `exchange`, which has room for the words twice: a step writes one half while the
// step before is still read in the other.
__device__ inline void sort_words(u32 (&words)[4], uint4* exchange) {
    u32 thread = threadIdx.x, first = 4 * thread, size = 4 * blockDim.x, half = 0;
    for (u32 run = 2; run <= size; run *= 2) {
        bool up = (first & run) == 0;
        u32 step = run / 2;
        for (; step >= 128; step /= 2) {
            uint4* here = exchange + half;
            half ^= blockDim.x;
            uint4 mine;
            mine.x = words[0];
            mine.y = words[1];
            mine.z = words[2];
            mine.w = words[3];
            here[thread] = mine;
            __syncthreads();
            uint4 other = here[thread ^ step / 4];
            bool smaller = ((first & step) == 0) == up;
            words[0] = pick(smaller, words[0], other.x);
            words[1] = pick(smaller, words[1], other.y);
            words[2] = pick(smaller, words[2], other.z);
            words[3] = pick(smaller, words[3], other.w);
        }
        for (; step >= 4; step /= 2) {
            bool smaller = ((first & step) == 0) == up;
#pragma unroll
            for (int i = 0; i < 4; i++) words[i] = pick(smaller, words[i], __shfl_xor_sync(FULL_WARP, words[i], (int)(step / 4)));
        }
        if (run > 2) {
            order(words[0], words[2], up);
            order(words[1], words[3], up);
        }
        order(words[0], words[1], run > 2 ? up : true);
        order(words[2], words[3], run > 2 ? up : false);
    }
}

// The keys of four neighbouring rows, in the order of their floats; NaN behind the last row.
__device__ inline void ordered_keys(const Finish& f, u32 first, u32 (&keys)[4]) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        u32 row = first + i; // unsigned: the last tile may reach past 2^31
        keys[i] = row < (u32)f.rows ? ordered(read_key(f.keys, row)) : ORDERED_NAN;
    }
}

// One block, up to SORT_TILE rows.
extern "C" __global__ void __launch_bounds__(TILE_THREADS) lossfeed_rank_sort(Finish f) {
    LOSSFEED_SHARED(shared);
    uint4* exchange = (uint4*)(shared + SHARED_HEAD_BYTES);
    u32 keys[4], words[4];
    ordered_keys(f, 4 * threadIdx.x, keys);
#pragma unroll
    for (int i = 0; i < 4; i++) words[i] = keys[i];
    sort_words(words, exchange);
    __syncthreads(); // nobody still reads the exchange
    uint4 mine;
    mine.x = words[0];
    mine.y = words[1];
    mine.z = words[2];
    mine.w = words[3];
    exchange[threadIdx.x] = mine;
    __syncthreads();
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        u32 row = 4 * threadIdx.x + i;
        int below = lower_bound((const u32*)exchange, 4 * blockDim.x, keys[i]);
        if (row < (u32)f.rows) write_rank(row, keys[i] != ORDERED_NAN, below, f.b0, f.count, f.rank_score);
    }
    finish_ranked(f, shared);
}

// A block sorts a tile.
extern "C" __global__ void __launch_bounds__(TILE_THREADS) lossfeed_rank_tiles(TileArguments a) {
    LOSSFEED_SHARED(shared);
    u32 words[4];
    ordered_keys(a.finish, blockIdx.x * SORT_TILE + 4 * threadIdx.x, words);
    sort_words(words, (uint4*)(shared + SHARED_HEAD_BYTES));
    uint4 mine;
    mine.x = words[0];
    mine.y = words[1];
    mine.z = words[2];
    mine.w = words[3];
    ((uint4*)a.sorted)[(u64)blockIdx.x * TILE_THREADS + threadIdx.x] = mine;
}

// blockDim = (SEARCH_ROWS, warps): a lane a row, and every warp looks into every so manieth tile. The tiles are an
// earlier launch's.
extern "C" __global__ void __launch_bounds__(256) lossfeed_rank_search(TileArguments a) {
    LOSSFEED_SHARED(shared);
    int* found = (int*)(shared + SHARED_HEAD_BYTES); // warps x SEARCH_ROWS
    u32 row = blockIdx.x * SEARCH_ROWS + threadIdx.x, rows = (u32)a.finish.rows;
    u32 key = row < rows ? ordered(read_key(a.finish.keys, row)) : ORDERED_NAN;
    int below = 0;
    if (key != ORDERED_NAN)
        for (u32 tile = threadIdx.y; tile < a.tiles; tile += blockDim.y) below += lower_bound(a.sorted + (u64)tile * SORT_TILE, SORT_TILE, key);
    found[threadIdx.y * SEARCH_ROWS + threadIdx.x] = below;
    __syncthreads();
    if (threadIdx.y == 0 && row < rows) {
        for (u32 warp = 1; warp < blockDim.y; warp++) below += found[warp * SEARCH_ROWS + threadIdx.x];
        write_rank(row, key != ORDERED_NAN, below, a.finish.b0, a.finish.count, a.finish.rank_score);
    }
    finish_ranked(a.finish, shared);
}
