// Cross entropy against probabilities instead of class indices, forward and backward, one read each.
//
// With q' = q (1 - s) + s / C and class weights w:  loss = -sum_j q'_j w_j (z_j - lse),  grad_norm = |p - q'|,
// gradient_j = g (p_j M - q'_j w_j) with the row's mass M = sum_j q'_j w_j, which the forward leaves for the backward.
// A class whose q'_j w_j is 0 adds nothing, even where it is masked (z_j = -inf).

struct ProbabilityArguments {
    Finish finish;
    const void *logits, *probabilities; // of one type
    i64 row_stride, probability_stride;
    void *loss, *max, *log_sum, *grad_norm, *entropy, *mass; // all but loss may be null
    const void* weight;                                      // may be null
    float* keys;                                             // may be null if nobody ranks
    double label_smoothing;
    int rows, classes;
};

struct ProbabilityGradientArguments {
    const void *logits, *probabilities, *max, *log_sum, *mass;
    const void* upstream; // `upstream_stride` (0 or 1) elements apart
    const void* weight;
    void* gradient; // may lie over the logits
    i64 row_stride, probability_stride, gradient_stride;
    double label_smoothing;
    int upstream_stride;
    int rows, classes;
    int pieces, piece_classes;
};

// Sums over some classes of a row, with d = z - max, e = exp(d), q = q', m = q' w.
template <class R> struct TargetSums {
    R max;
    R e, ee, de, eq, qq, m, md;

    __device__ void clear() {
        max = Real<R>::negative_infinity();
        e = ee = de = eq = qq = m = md = R(0);
    }

    __device__ void rescale(R top) {
        R shift = max - top;
        R factor = real_exp(shift);
        de = factor * (de + real_max(shift, Real<R>::exp_zero()) * e);
        e *= factor;
        ee *= factor * factor;
        eq *= factor;
        // With no maximum yet, md is 0 or already -inf.
        if (max != Real<R>::negative_infinity()) md += real_max(shift, Real<R>::lowest()) * m;
        max = top;
    }

    template <int N> __device__ void add(const R (&z)[N], const R (&q)[N], const R (&w)[N]) {
        R top = z[0];
#pragma unroll
        for (int i = 1; i < N; i++) top = real_max(top, z[i]);
        if (top > max) rescale(top);
        R reference = max == Real<R>::negative_infinity() ? R(0) : max;
#pragma unroll
        for (int i = 0; i < N; i++) {
            R d = z[i] - reference;
            R term = real_exp(d);
            R mass = q[i] * w[i];
            e += term;
            ee += term * term;
            de += term * real_max(d, Real<R>::exp_zero());
            eq += term * q[i];
            qq += q[i] * q[i];
            m += mass;
            if (mass != R(0)) md += mass * d;
        }
    }

    __device__ void merge(TargetSums other) {
        if (other.max > max) rescale(other.max);
        else if (max > other.max) other.rescale(max);
        e += other.e;
        ee += other.ee;
        de += other.de;
        eq += other.eq;
        qq += other.qq;
        m += other.m;
        md += other.md;
    }

    __device__ void reduce(int lanes) {
#pragma unroll 1 // unrolled, the exponentials of every step are most of the module's size
        for (int step = lanes / 2; step > 0; step /= 2) {
            TargetSums other;
            other.max = __shfl_xor_sync(FULL_WARP, max, step);
            other.e = __shfl_xor_sync(FULL_WARP, e, step);
            other.ee = __shfl_xor_sync(FULL_WARP, ee, step);
            other.de = __shfl_xor_sync(FULL_WARP, de, step);
            other.eq = __shfl_xor_sync(FULL_WARP, eq, step);
            other.qq = __shfl_xor_sync(FULL_WARP, qq, step);
            other.m = __shfl_xor_sync(FULL_WARP, m, step);
            other.md = __shfl_xor_sync(FULL_WARP, md, step);
            merge(other);
        }
    }
};

// A row's logits, probabilities and weights.
template <class T> struct TargetRow {
    typedef typename T::R R;
    typedef typename T::Raw Raw;
    const Raw *logits, *probabilities;
    const R* weight;
    R keep, spread; // q' = keep q + spread

    __device__ R probability(Raw raw) const { return keep * T::widen(raw) + spread; }
    __device__ R weight_of(int index) const { return weight ? __ldg(weight + index) : R(1); }

    __device__ void add_single(TargetSums<R>& sums, int i) const {
        R z[1] = {T::widen(__ldg(logits + i))}, q[1] = {probability(__ldg(probabilities + i))}, w[1] = {weight_of(i)};
        sums.add(z, q, w);
    }

    __device__ void add(TargetSums<R>& sums, int classes, int lane, int lanes) const {
        const int N = Vector<T>::N;
        int head = aligned_alike(logits, probabilities) ? head_elements<T>(logits, classes) : classes;
        int vectors = (classes - head) / N;
        for (int i = lane; i < head; i += lanes) add_single(sums, i);
        for (int k = lane; k < vectors; k += lanes) {
            typename Vector<T>::Bits logit, target;
            logit.word = __ldg((const uint4*)(logits + head) + k);
            target.word = __ldg((const uint4*)(probabilities + head) + k);
            R z[N], q[N], w[N];
#pragma unroll
            for (int i = 0; i < N; i++) {
                z[i] = T::widen(logit.raw[i]);
                q[i] = probability(target.raw[i]);
                w[i] = weight_of(head + k * N + i);
            }
            sums.add(z, q, w);
        }
        for (int i = head + vectors * N + lane; i < classes; i += lanes) add_single(sums, i);
    }
};

template <class R> __device__ inline void write_probability_row(const ProbabilityArguments& a, u32 row, const TargetSums<R>& s) {
    R nan = Real<R>::nan();
    R loss = nan, max = nan, log_sum = nan, grad_norm = nan, entropy = nan;
    if (s.e > R(0)) { // false without a softmax, see score.cu
        R ln_sum = real_log(s.e);
        R square = s.ee / (s.e * s.e) - R(2) * s.eq / s.e + s.qq;
        loss = s.m == R(0) ? -s.md : ln_sum * s.m - s.md;
        max = s.max;
        log_sum = ln_sum;
        grad_norm = square > R(0) ? real_sqrt(square) : square * R(0); // NaN stays NaN
        entropy = ln_sum - s.de / s.e;
    }
    ((R*)a.loss)[row] = loss;
    if (a.max) ((R*)a.max)[row] = max;
    if (a.log_sum) ((R*)a.log_sum)[row] = log_sum;
    if (a.grad_norm) ((R*)a.grad_norm)[row] = grad_norm;
    if (a.entropy) ((R*)a.entropy)[row] = entropy;
    if (a.mass) ((R*)a.mass)[row] = s.m;
    float key = (float)loss;
    if (a.keys) a.keys[row] = key - key == 0.0f ? key : Real<float>::nan();
}

// One kernel for both shapes: blockDim = (lanes of a row, rows of a block) with lanes up to 32, or (a multiple of 32,
// 1).
template <class T> __device__ inline void score_probabilities(const ProbabilityArguments& a, u8* shared) {
    typedef typename T::R R;
    typedef typename T::Raw Raw;
    u32 row = blockIdx.x * blockDim.y + threadIdx.y;
    bool live = row < (u32)a.rows;
    TargetRow<T> from;
    from.logits = (const Raw*)a.logits + (i64)row * a.row_stride;
    from.probabilities = (const Raw*)a.probabilities + (i64)row * a.probability_stride;
    from.weight = (const R*)a.weight;
    from.keep = R(1) - (R)a.label_smoothing;
    from.spread = (R)a.label_smoothing / (R)a.classes;
    TargetSums<R> sums;
    sums.clear();
    if (live) from.add(sums, a.classes, (int)threadIdx.x, (int)blockDim.x);
    if (blockDim.x > 32) {
        sums.reduce(32);
        reduce_warps(sums, (TargetSums<R>*)(shared + SHARED_HEAD_BYTES));
    } else {
        sums.reduce((int)blockDim.x);
    }
    if (live && threadIdx.x == 0) write_probability_row(a, row, sums);
    finish_small(a.finish, shared);
}

template <class T> struct TargetSlope {
    static const bool PLAIN = false;
    typedef typename T::R R;
    TargetRow<T> from;
    R max, all, upstream; // all: upstream times mass times exp(-log_sum)
    R target_share;       // no class is the target
    int target;

    template <int N> __device__ void apply(R (&z)[N], int first) const {
#pragma unroll
        for (int i = 0; i < N; i++) {
            R mass = from.probability(__ldg(from.probabilities + first + i)) * from.weight_of(first + i);
            z[i] = Power<R>::of((z[i] - max) * Power<R>::scale()) * all - upstream * mass;
        }
    }
};

template <class T> __device__ inline void backward_probabilities(const ProbabilityGradientArguments& a) {
    typedef typename T::R R;
    typedef typename T::Raw Raw;
    u32 pieces = (u32)a.pieces, block = block_from_the_end();
    u32 row = block / pieces * blockDim.y + threadIdx.y;
    if (row >= (u32)a.rows) return;
    int first = (int)(block % pieces) * a.piece_classes;
    int classes = a.classes - first < a.piece_classes ? a.classes - first : a.piece_classes;
    TargetSlope<T> slope;
    slope.from.logits = nullptr;
    slope.from.probabilities = (const Raw*)a.probabilities + (i64)row * a.probability_stride + first;
    slope.from.weight = a.weight ? (const R*)a.weight + first : nullptr;
    slope.from.keep = R(1) - (R)a.label_smoothing;
    slope.from.spread = (R)a.label_smoothing / (R)a.classes;
    slope.max = ((const R*)a.max)[row];
    slope.upstream = ((const R*)a.upstream)[(i64)row * a.upstream_stride];
    slope.all = slope.upstream * ((const R*)a.mass)[row] * real_exp(-((const R*)a.log_sum)[row]);
    slope.target_share = R(0);
    slope.target = -1;
    Stretch<T> stretch((const Raw*)a.logits + (i64)row * a.row_stride + first, (Raw*)a.gradient + (i64)row * a.gradient_stride + first,
                       classes, (int)threadIdx.x, (int)blockDim.x);
    stretch.ask();
    stretch.map(slope);
}

#define LOSSFEED_PROBABILITY_KERNELS(T, dtype, bounds)                                                                         \
    extern "C" __global__ void __launch_bounds__ bounds lossfeed_probability_##dtype(ProbabilityArguments a) {                 \
        LOSSFEED_SHARED(shared);                                                                                               \
        score_probabilities<T>(a, shared);                                                                                     \
    }                                                                                                                          \
    extern "C" __global__ void __launch_bounds__ bounds lossfeed_probability_backward_##dtype(ProbabilityGradientArguments a) { \
        backward_probabilities<T>(a);                                                                                          \
    }

LOSSFEED_PROBABILITY_KERNELS(F16, f16, (256))
LOSSFEED_PROBABILITY_KERNELS(BF16, bf16, (256))
LOSSFEED_PROBABILITY_KERNELS(F32, f32, (256))
LOSSFEED_PROBABILITY_KERNELS(F64, f64, (256, 1))
