// Rows that lie scattered in page-locked memory of the host, read over the bus into one piece of device memory.
//
// A thread has four loads under way, and neighbours read neighbouring words: the bus wants whole lines, many of them at
// a time, and few blocks are enough to fill it. Every byte is read once.

#define GATHER_ROWS_MAX 480 // a structure of 4 KB is the most that a launch takes everywhere

struct GatherArguments {
    void* out;
    u32 rows;
    u32 words; // of a row
    const void* from[GATHER_ROWS_MAX];
};

template <class Word> __device__ inline void gather(const GatherArguments& a) {
    const u32 total = a.rows * a.words, step = gridDim.x * blockDim.x * 4;
    for (u32 base = blockIdx.x * blockDim.x * 4 + threadIdx.x; base < total; base += step) {
        Word held[4];
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            u32 at = base + k * blockDim.x, row = at / a.words;
            if (at < total) held[k] = ((const Word*)a.from[row])[at - row * a.words];
        }
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            u32 at = base + k * blockDim.x;
            if (at < total) ((Word*)a.out)[at] = held[k];
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) lossfeed_gather_b128(GatherArguments a) { gather<uint4>(a); }
extern "C" __global__ void __launch_bounds__(256) lossfeed_gather_b32(GatherArguments a) { gather<u32>(a); }
extern "C" __global__ void __launch_bounds__(256) lossfeed_gather_b8(GatherArguments a) { gather<u8>(a); }
