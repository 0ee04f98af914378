// The one-read forward: loss, log-sum-exp, gradient-norm bound, entropy and correctness of every row.
//
// Running sums refer to the largest logit so far and are rescaled when it grows (online softmax), once per 128-bit load and not
// once per logit. The target's own term stays out of the sums and is merged at the end: nothing cancels then, and a loss of
// 1e-9 keeps its digits in single precision (src/reference.rs has the formulas).

// Sums over some classes of a row, the target left out, with d = z - max and e = exp(d).
template <class R> struct Sums {
    R max;
    R e, ee, de;
    R before; // largest logit in front of the target: the first maximum wins

    __device__ void clear() {
        max = before = Real<R>::negative_infinity();
        e = ee = de = R(0);
    }

    // Refers the sums to a larger maximum: z - top = (z - max) + (max - top).
    __device__ void rescale(R top) {
        R shift = max - top;
        R factor = real_exp(shift);
        de = factor * (de + real_max(shift, Real<R>::exp_zero()) * e); // shift is -inf at first, when e is 0
        e *= factor;
        ee *= factor * factor;
        max = top;
    }

    template <int N> __device__ void add(const R (&z)[N], bool in_front) {
        R top = z[0];
#pragma unroll
        for (int i = 1; i < N; i++) top = real_max(top, z[i]);
        if (in_front) before = real_max(before, top);
        if (top > max) rescale(top);
        // Nothing but -inf (or NaN) so far: any finite reference keeps -inf - -inf from making a NaN.
        R reference = max == Real<R>::negative_infinity() ? R(0) : max;
#pragma unroll
        for (int i = 0; i < N; i++) {
            R d = z[i] - reference;
            R term = real_exp(d);
            e += term;
            ee += term * term;
            // A masked class has d = -inf and a term of 0: its share of the entropy is 0, not NaN.
            de += term * real_max(d, Real<R>::exp_zero());
        }
    }

    __device__ void merge(Sums other) {
        if (other.max > max) rescale(other.max);
        else if (max > other.max) other.rescale(max);
        e += other.e;
        ee += other.ee;
        de += other.de;
        before = real_max(before, other.before);
    }

    // Over groups of `lanes` neighbouring lanes (a power of two), as a tree of fixed shape. The whole warp takes part.
    __device__ void reduce(int lanes) {
        for (int step = lanes / 2; step > 0; step /= 2) {
            Sums other;
            other.max = __shfl_xor_sync(FULL_WARP, max, step);
            other.e = __shfl_xor_sync(FULL_WARP, e, step);
            other.ee = __shfl_xor_sync(FULL_WARP, ee, step);
            other.de = __shfl_xor_sync(FULL_WARP, de, step);
            other.before = __shfl_xor_sync(FULL_WARP, before, step);
            merge(other);
        }
    }
};

// `N` neighbouring logits from class `first` on; takes the target out when it is among them.
template <class T, int N>
__device__ inline void add_logits(Sums<typename T::R>& sums, typename T::R (&z)[N], int first, int target) {
    int own = target - first;
    bool holds = (u32)own < (u32)N;
    if (holds) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (i < own) sums.before = real_max(sums.before, z[i]);
            if (i == own) z[i] = Real<typename T::R>::negative_infinity();
        }
    }
    sums.add(z, !holds && own > 0);
}

template <class T>
__device__ inline void add_vector(Sums<typename T::R>& sums, const typename Vector<T>::Bits& bits, int first, int target) {
    const int N = Vector<T>::N;
    typename T::R z[N];
#pragma unroll
    for (int i = 0; i < N; i++) z[i] = T::widen(bits.raw[i]);
    add_logits<T, N>(sums, z, first, target);
}

template <class T>
__device__ inline void add_single(Sums<typename T::R>& sums, const typename T::Raw* row, int index, int target) {
    typename T::R z[1] = {T::widen(__ldg(row + index))};
    add_logits<T, 1>(sums, z, index, target);
}

// This lane's share of a row. A row may start anywhere (an odd number of 16-bit classes misaligns every other one): single loads up
// to the first 16-byte boundary, 128-bit loads from there, single loads for the rest. Four loads are in flight per thread:
// with one, 512 threads cannot keep the memory of an H100-class GPU busy.
template <class T>
__device__ inline void add_row(Sums<typename T::R>& sums, const typename T::Raw* row, int classes, int target, int lane, int lanes) {
    const int N = Vector<T>::N;
    const int IN_FLIGHT = 4;
    int past = (int)(((u64)row & 15) / sizeof(typename T::Raw));
    int head = past == 0 ? 0 : N - past;
    if (head > classes) head = classes;
    for (int i = lane; i < head; i += lanes) add_single<T>(sums, row, i, target);

    const uint4* words = (const uint4*)(row + head);
    int vectors = (classes - head) / N;
    int k = lane;
    for (; k < vectors - (IN_FLIGHT - 1) * lanes; k += IN_FLIGHT * lanes) {
        typename Vector<T>::Bits bits[IN_FLIGHT];
#pragma unroll
        for (int u = 0; u < IN_FLIGHT; u++) bits[u].word = __ldg(words + k + u * lanes);
#pragma unroll
        for (int u = 0; u < IN_FLIGHT; u++) add_vector<T>(sums, bits[u], head + (k + u * lanes) * N, target);
    }
    for (; k < vectors; k += lanes) {
        typename Vector<T>::Bits bits;
        bits.word = __ldg(words + k);
        add_vector<T>(sums, bits, head + k * N, target);
    }
    for (int i = head + vectors * N + lane; i < classes; i += lanes) add_single<T>(sums, row, i, target);
}

// The columns of a batch.
template <class R> struct Columns {
    R *loss, *lse, *grad_norm, *entropy;
    u8* correct;
    float* keys;

    __device__ void write(int row, R row_loss, R row_lse, R row_grad_norm, R row_entropy, u8 row_correct) {
        loss[row] = row_loss;
        lse[row] = row_lse;
        grad_norm[row] = row_grad_norm;
        entropy[row] = row_entropy;
        correct[row] = row_correct;
        float key = (float)row_loss;
        bool ranked = row_correct != NOT_SCORED && key - key == 0.0f; // false for NaN and infinity
        keys[row] = ranked ? key : Real<float>::nan();
    }

    __device__ void write_unscored(int row, R row_loss) {
        R nan = Real<R>::nan();
        write(row, row_loss, nan, nan, nan, NOT_SCORED);
    }

    // Merges the target's term into the sums over the others.
    __device__ void write_scored(int row, const Sums<R>& sums, R target) {
        R nan = Real<R>::nan();
        R max = real_max(sums.max, target);
        R shift = sums.max - max;
        R factor = real_exp(shift);
        R own_d = target - max;
        R own = real_exp(own_d);
        R others = factor * sums.e;
        R sum = others + own;
        // All -inf makes -inf - -inf, +inf makes inf - inf, NaN stays NaN: no softmax.
        if (!(sum > R(0))) {
            write(row, nan, nan, nan, nan, 0);
            return;
        }
        R sum_de = factor * (sums.de + real_max(shift, Real<R>::exp_zero()) * sums.e)
                 + own * real_max(own_d, Real<R>::exp_zero());
        R ln_sum = target == max ? real_log1p(others) : real_log(sum);
        R miss = others / sum;
        R spread = factor * factor * sums.ee / (sum * sum);
        bool first_maximum = target == max && sums.before < target;
        write(row, (max - target) + ln_sum, max + ln_sum, real_sqrt(miss * miss + spread), ln_sum - sum_de / sum,
              first_maximum ? 1 : 0);
    }
};

// What to do with a row.
enum Verdict { SCORE, LEAVE_OUT, REFUSE };

__device__ inline Verdict judge(i64 target, i64 ignore_index, int classes) {
    if (target == ignore_index) return LEAVE_OUT;
    return target < 0 || target >= classes ? REFUSE : SCORE;
}

template <class T>
__device__ inline void write_row(Columns<typename T::R> columns, int row, Verdict verdict, const Sums<typename T::R>& sums,
                                 const typename T::Raw* logits, i64 target, u32* error) {
    if (verdict == SCORE) {
        columns.write_scored(row, sums, T::widen(__ldg(logits + target)));
    } else if (verdict == LEAVE_OUT) {
        columns.write_unscored(row, typename T::R(0));
    } else {
        columns.write_unscored(row, Real<typename T::R>::nan());
        atomicMin(error, (u32)row); // no trap: that would take the whole process's context with it
    }
}

// blockDim = (lanes of a row, rows of a block); lanes is a power of two up to 32.
template <class T>
__device__ inline void score_warp(const typename T::Raw* logits, const i64* targets, int rows, int classes, i64 row_stride,
                                  i64 ignore_index, Columns<typename T::R> columns, u32* error) {
    u32 row = blockIdx.x * blockDim.y + threadIdx.y;
    bool live = row < (u32)rows; // lanes behind the last row still take part in the shuffles
    i64 target = live ? targets[row] : ignore_index;
    Verdict verdict = judge(target, ignore_index, classes);
    const typename T::Raw* mine = logits + (i64)row * row_stride;
    Sums<typename T::R> sums;
    sums.clear();
    if (verdict == SCORE) add_row<T>(sums, mine, classes, (int)target, (int)threadIdx.x, (int)blockDim.x);
    sums.reduce((int)blockDim.x);
    if (live && threadIdx.x == 0) write_row<T>(columns, (int)row, verdict, sums, mine, target, error);
}

// One row a block; blockDim = (a multiple of 32 up to 512, 1).
template <class T>
__device__ inline void score_block(const typename T::Raw* logits, const i64* targets, int classes, i64 row_stride,
                                   i64 ignore_index, Columns<typename T::R> columns, u32* error, u8* shared) {
    typedef Sums<typename T::R> S;
    int row = (int)blockIdx.x;
    i64 target = targets[row];
    Verdict verdict = judge(target, ignore_index, classes); // the same in every thread
    const typename T::Raw* mine = logits + (i64)row * row_stride;
    S sums;
    sums.clear();
    if (verdict == SCORE) {
        S* partial = (S*)(shared + SHARED_HEAD_BYTES);
        int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, warps = (int)blockDim.x / 32;
        add_row<T>(sums, mine, classes, (int)target, (int)threadIdx.x, (int)blockDim.x);
        sums.reduce(32);
        if (lane == 0) partial[warp] = sums;
        __syncthreads();
        if (warp == 0) {
            sums.clear();
            if (lane < warps) sums = partial[lane];
            sums.reduce(32);
        }
    }
    if (threadIdx.x == 0) write_row<T>(columns, row, verdict, sums, mine, target, error);
}

#define LOSSFEED_SCORE_ARGUMENTS(T)                                                                                            \
    const T::Raw *logits, const i64 *targets, int rows, int classes, i64 row_stride, i64 ignore_index, float b0, T::R *loss,   \
        T::R *lse, T::R *grad_norm, T::R *entropy, u8 *correct, int *count, float *rank_score, u32 *workspace, u32 *error,     \
        u32 *done

// The bounds are the most threads of a block and, for f64, the fewest blocks of a multiprocessor: left alone, ptxas keeps f64 to 64
// registers for occupancy's sake and spills.
#define LOSSFEED_SCORE_KERNELS(T, name, warp_bounds, block_bounds)                                                             \
    extern "C" __global__ void __launch_bounds__ warp_bounds lossfeed_score_warp_##name(LOSSFEED_SCORE_ARGUMENTS(T)) {         \
        LOSSFEED_SHARED(shared);                                                                                               \
        Columns<T::R> columns = {loss, lse, grad_norm, entropy, correct, (float*)(workspace + WORK_KEYS)};                     \
        score_warp<T>(logits, targets, rows, classes, row_stride, ignore_index, columns, error);                               \
        rank_small_batch(rows, b0, count, rank_score, workspace, done, shared);                                                \
    }                                                                                                                          \
    extern "C" __global__ void __launch_bounds__ block_bounds lossfeed_score_block_##name(LOSSFEED_SCORE_ARGUMENTS(T)) {       \
        LOSSFEED_SHARED(shared);                                                                                               \
        Columns<T::R> columns = {loss, lse, grad_norm, entropy, correct, (float*)(workspace + WORK_KEYS)};                     \
        score_block<T>(logits, targets, classes, row_stride, ignore_index, columns, error, shared);                            \
        rank_small_batch(rows, b0, count, rank_score, workspace, done, shared);                                                \
    }

LOSSFEED_SCORE_KERNELS(F16, f16, (256), (512))
LOSSFEED_SCORE_KERNELS(BF16, bf16, (256), (512))
LOSSFEED_SCORE_KERNELS(F32, f32, (256), (512))
LOSSFEED_SCORE_KERNELS(F64, f64, (256, 1), (512, 1))
