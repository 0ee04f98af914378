// Scores of sequences from the scores of their tokens: a warp a sequence, sums in a fixed order and in double
// precision.

#define BY_MEAN 0
#define BY_MAX 1
#define BY_SUM 2

struct SequenceArguments {
    Finish finish; // of the sequences
    // Columns of sequences x length tokens, one sequence after the other. grad_norm and entropy may be null.
    const void *loss, *grad_norm, *entropy;
    const u8* correct; // NOT_SCORED marks a token that does not count
    // Columns of sequences. NaN where no token counts; all but mean may be null.
    void *mean, *max, *sum, *mean_grad_norm, *mean_entropy;
    int* counted; // may be null
    float* keys;  // may be null if nobody ranks
    int sequences, length;
    u32 rank_by;  // BY_*
};

__device__ inline double sum_lanes(double value) {
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(FULL_WARP, value, step);
    return value;
}

// blockDim = (32, sequences of a block).
template <class R> __device__ inline void score_sequence(const SequenceArguments& a, u8* shared) {
    u32 sequence = blockIdx.x * blockDim.y + threadIdx.y;
    bool live = sequence < (u32)a.sequences;
    i64 first = (i64)sequence * a.length;
    double sum = 0, grad_norm = 0, entropy = 0, tokens = 0;
    R max = Real<R>::negative_infinity();
    if (live) {
        for (int t = (int)threadIdx.x; t < a.length; t += 32) {
            if (a.correct[first + t] == NOT_SCORED) continue;
            R loss = ((const R*)a.loss)[first + t];
            tokens += 1;
            sum += (double)loss;
            max = real_max(max, loss);
            if (a.grad_norm) grad_norm += (double)((const R*)a.grad_norm)[first + t];
            if (a.entropy) entropy += (double)((const R*)a.entropy)[first + t];
        }
    }
    tokens = sum_lanes(tokens);
    sum = sum_lanes(sum);
    grad_norm = sum_lanes(grad_norm);
    entropy = sum_lanes(entropy);
    for (int step = 16; step > 0; step /= 2) max = real_max(max, __shfl_xor_sync(FULL_WARP, max, step));
    if (live && threadIdx.x == 0) {
        const R nan = Real<R>::nan();
        bool any = tokens > 0;
        R mean = any ? (R)(sum / tokens) : nan, total = any ? (R)sum : nan;
        if (!any || sum != sum) max = nan; // a NaN among the losses does not hide behind the larger ones
        ((R*)a.mean)[sequence] = mean;
        if (a.max) ((R*)a.max)[sequence] = max;
        if (a.sum) ((R*)a.sum)[sequence] = total;
        if (a.mean_grad_norm) ((R*)a.mean_grad_norm)[sequence] = any && a.grad_norm ? (R)(grad_norm / tokens) : nan;
        if (a.mean_entropy) ((R*)a.mean_entropy)[sequence] = any && a.entropy ? (R)(entropy / tokens) : nan;
        if (a.counted) a.counted[sequence] = (int)tokens;
        float key = (float)(a.rank_by == BY_MAX ? max : a.rank_by == BY_SUM ? total : mean);
        if (a.keys) a.keys[sequence] = key - key == 0.0f ? key : Real<float>::nan();
    }
    finish_small(a.finish, shared);
}

extern "C" __global__ void __launch_bounds__(256, 4) lossfeed_sequence_f32(SequenceArguments a) {
    LOSSFEED_SHARED(shared);
    score_sequence<float>(a, shared);
}

extern "C" __global__ void __launch_bounds__(256, 4) lossfeed_sequence_f64(SequenceArguments a) {
    LOSSFEED_SHARED(shared);
    score_sequence<double>(a, shared);
}
