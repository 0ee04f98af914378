// In-batch ranks (SHADE Eq. 6): count = #{k : key_k < key}, score = ln(count + b0). A key is the row's loss, or NaN when the row
// takes no part: every comparison with NaN is false, so such a row is in nobody's count.
//
// Every rank needs every loss. Up to FUSED_RANK_ROWS rows the block that finishes last ranks the batch inside the score launch;
// above, lossfeed_rank compares all pairs, spread over the grid.

#define FUSED_RANK_ROWS 512
#define TILE FUSED_RANK_ROWS

// Words in front of the keys of a workspace.
#define WORK_TICKET 0
#define WORK_BATCHES 1
#define WORK_KEYS 4

// Shared memory of every kernel: a flag word (padded to 16 bytes), then TILE keys; the row sums lie over the keys.
#define SHARED_HEAD_BYTES 16

__device__ inline u32 thread_in_block() { return threadIdx.y * blockDim.x + threadIdx.x; }
__device__ inline u32 block_threads() { return blockDim.x * blockDim.y; }

// How many of the TILE keys in shared memory are below `key`. Four counters, four keys a load: the comparisons of one counter wait
// for each other.
__device__ inline int count_below(const float* tile, float key) {
    const float4* keys = (const float4*)tile;
    int a = 0, b = 0, c = 0, d = 0;
#pragma unroll 4
    for (int i = 0; i < TILE / 4; i++) {
        float4 k = keys[i];
        a += k.x < key;
        b += k.y < key;
        c += k.z < key;
        d += k.w < key;
    }
    return (a + b) + (c + d);
}

// Fills the tile with the keys from `first` on, NaN behind the last. The reads are volatile: other blocks of this launch may have
// written the keys, and the first-level cache does not know.
__device__ inline void load_tile(float* tile, const float* keys, u32 first, u32 rows) {
    for (u32 i = thread_in_block(); i < TILE; i += block_threads()) {
        u32 row = first + i; // unsigned: the last tile may reach past 2^31
        tile[i] = row < rows ? *(volatile const float*)(keys + row) : Real<float>::nan();
    }
}

__device__ inline void write_rank(int row, float key, int below, float b0, int* count, float* rank_score) {
    bool ranked = key == key;
    count[row] = ranked ? below : -1;
    // In double and rounded once, as the CPU does: devices agree on the score as they do on the count.
    rank_score[row] = ranked ? (float)log((double)below + (double)b0) : Real<float>::nan();
}

// True in every thread of the block that comes last. What the other blocks wrote before is visible to it then.
__device__ inline bool take_ticket(u32* workspace, const u32* done, u8* shared) {
    u32* last = (u32*)shared;
    __syncthreads(); // every write of this block comes before its ticket, and nobody still reads shared memory
    if (thread_in_block() == 0) {
        // Outputs may be host memory: then the host must see them before `done`, which another block writes.
        if (done) __threadfence_system(); else __threadfence();
        *last = atomicAdd(workspace + WORK_TICKET, 1u) == gridDim.x - 1;
        __threadfence();
    }
    __syncthreads();
    return *last != 0;
}

// The last block's last act: ready the workspace for the next launch, then tell the host.
__device__ inline void publish(u32* workspace, u32* done) {
    __syncthreads();
    if (thread_in_block() == 0) {
        u32 batches = workspace[WORK_BATCHES] + 1;
        workspace[WORK_BATCHES] = batches;
        workspace[WORK_TICKET] = 0;
        if (done) {
            __threadfence_system();
            *(volatile u32*)done = batches;
        }
    }
}

// The end of a score launch: ranks a small batch in the block that finishes last.
__device__ inline void rank_small_batch(int rows, float b0, int* count, float* rank_score, u32* workspace, u32* done, u8* shared) {
    if (rows > FUSED_RANK_ROWS) return;
    if (!take_ticket(workspace, done, shared)) return;
    float* tile = (float*)(shared + SHARED_HEAD_BYTES);
    load_tile(tile, (const float*)(workspace + WORK_KEYS), 0u, (u32)rows);
    __syncthreads();
    for (int row = (int)thread_in_block(); row < rows; row += (int)block_threads()) {
        float key = tile[row];
        write_rank(row, key, count_below(tile, key), b0, count, rank_score);
    }
    publish(workspace, done);
}

extern "C" __global__ void __launch_bounds__(256)
lossfeed_rank(u32* workspace, int rows, float b0, int* count, float* rank_score, u32* done) {
    LOSSFEED_SHARED(shared);
    float* tile = (float*)(shared + SHARED_HEAD_BYTES);
    const float* keys = (const float*)(workspace + WORK_KEYS);
    u32 row = blockIdx.x * blockDim.x + threadIdx.x;
    bool live = row < (u32)rows;
    float key = live ? keys[row] : Real<float>::nan();
    int below = 0;
    for (u32 first = 0; first < (u32)rows; first += TILE) {
        __syncthreads(); // the previous tile has been read
        load_tile(tile, keys, first, (u32)rows);
        __syncthreads();
        below += count_below(tile, key);
    }
    if (live) write_rank((int)row, key, below, b0, count, rank_score);
    if (take_ticket(workspace, done, shared)) publish(workspace, done);
}
