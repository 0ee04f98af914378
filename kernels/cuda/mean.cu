// The mean (or the sum) of a batch's terms, from the launch that wrote them: one number, in the type that the caller's
// loss has.
//
// Every block leaves the sum of its rows' terms and shares; the block that comes last adds those up. All of it is in
// double precision and a tree whose shape depends on the launch alone: the same input gives the same bits, and the
// order leaves no trace in single precision. Compensated floats would be as good for the narrow types and no help for
// double logits. A double addition costs little here: a few per thread, on data-centre GPUs at half the rate of a
// float's, on others at a 64th.

// What some rows add to the two sums of a mean.
struct Part {
    double term, share;
};

struct Mean {
    Part* parts;                // scratch, one a block; null: nobody wants a mean
    void* out;                  // the mean or the sum
    void* divisor;              // R: the sum of the shares, which the backward divides by; may be null
    const float* sample_weight; // a factor of each sample's terms, or null
    u32 sample_rows;            // neighbouring rows that are one sample
    u32 count;                  // parts
    u32 divide;                 // 1: the mean, 0: the sum
    u32 narrow;                 // 1: `out` has the logits' type, 0: R
};

// Over a warp, in every lane.
__device__ inline Part sum_warp(Part part) {
    for (int step = 16; step > 0; step /= 2) {
        part.term += __shfl_xor_sync(FULL_WARP, part.term, step);
        part.share += __shfl_xor_sync(FULL_WARP, part.share, step);
    }
    return part;
}

// The factor of a row's term.
template <class R> __device__ inline R weight_of(const float* sample_weight, u32 sample_rows, u32 row) {
    return sample_weight ? (R)__ldg(sample_weight + row / sample_rows) : R(1);
}

// Adds up what the rows of this block have left in shared memory. The whole block takes part.
__device__ inline void write_part(const Mean& m, const Part* rows, u32 count) {
    __syncthreads();
    if (thread_in_block() >= 32) return;
    Part sum = {0, 0};
    for (u32 row = thread_in_block(); row < count; row += 32) {
        sum.term += rows[row].term;
        sum.share += rows[row].share;
    }
    sum = sum_warp(sum);
    if (thread_in_block() == 0) m.parts[blockIdx.x] = sum;
}

// In the block that comes last. No share at all makes 0 / 0, as torch's mean over nothing does.
template <class T> __device__ inline void write_mean(const Mean& m, u8* shared) {
    typedef typename T::R R;
    const u32 AT_ONCE = 4;
    u32 thread = thread_in_block(), threads = block_threads();
    volatile const double* parts = (volatile const double*)m.parts; // another block of this launch wrote them
    Part sum = {0, 0};
    for (u32 first = thread; first < m.count; first += AT_ONCE * threads) {
        Part some[AT_ONCE];
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) {
            u32 at = first + i * threads;
            bool there = at < m.count;
            some[i].term = there ? parts[2 * (u64)at] : 0.0;
            some[i].share = there ? parts[2 * (u64)at + 1] : 0.0;
        }
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) {
            sum.term += some[i].term;
            sum.share += some[i].share;
        }
    }
    sum = sum_warp(sum);
    Part* warps = (Part*)(shared + SHARED_HEAD_BYTES);
    if (thread % 32 == 0) warps[thread / 32] = sum;
    __syncthreads();
    if (thread < 32) {
        sum.term = sum.share = 0;
        if (thread < threads / 32) sum = warps[thread];
        sum = sum_warp(sum);
        if (thread == 0) {
            R value = (R)(m.divide ? sum.term / sum.share : sum.term);
            if (m.narrow) *(typename T::Raw*)m.out = T::narrow(value);
            else *(R*)m.out = value;
            if (m.divisor) *(R*)m.divisor = (R)sum.share;
        }
    }
    __syncthreads(); // shared memory is free again
}
