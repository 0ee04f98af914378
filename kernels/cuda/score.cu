// The one-read forward: loss, maximum and log-sum, gradient-norm bound, entropy and correctness of every row, and on
// request the row's term of a weighted, smoothed training loss.

struct ScoreArguments {
    Finish finish;
    Mean mean;
    const void* logits;
    const i64* targets;
    i64 row_stride, ignore_index;
    void *loss, *max, *log_sum, *grad_norm, *entropy; // all but loss may be null
    u8* correct;                            // may be null
    const void *weight, *weight_sum;        // a weight per class and their sum, or null
    void *term, *share;                     // may be null
    float* keys;                            // may be null if nobody ranks
    void* partials;                         // rows x pieces sets of sums, if pieces > 1
    u32* row_tickets;                       // of `rows` rows, if pieces > 1
    u32* error;                             // device memory, may be null
    BadRows* bad_rows;                      // may be null
    double label_smoothing;
    int rows, classes;
    int pieces, piece_classes;              // blocks that share a row, and how many classes each takes
};

// What a row is written from and to, in the precision of its logits.
template <class T, int WANTED> struct Row {
    typedef typename T::R R;
    typedef Sums<R, WANTED> S;
    static const bool SMOOTH = S::SMOOTH;
    const ScoreArguments& a;
    u32 row;
    const typename T::Raw* logits;
    i64 target;
    Verdict verdict;
    Part* part = nullptr; // where the row's summands of the mean go; null: nobody wants them

    __device__ Row(const ScoreArguments& arguments, u32 index) : a(arguments), row(index) {
        // Lanes behind the last row still take part in the shuffles.
        target = live() ? a.targets[row] : a.ignore_index;
        logits = (const typename T::Raw*)a.logits + (i64)row * a.row_stride;
    }

    __device__ bool live() const { return row < (u32)a.rows; }
    __device__ void judge_target() { verdict = judge(target, a.ignore_index, a.classes); }

    __device__ void put(void* column, R value) const {
        if (column) ((R*)column)[row] = value;
    }

    __device__ void write(R loss, R max, R log_sum, R grad_norm, R entropy, u8 correct, u32 no_key) const {
        put(a.loss, loss);
        put(a.max, max);
        put(a.log_sum, log_sum);
        if (S::SCORED) {
            put(a.grad_norm, grad_norm);
            put(a.entropy, entropy);
        }
        if (a.correct) a.correct[row] = correct;
        if (!a.keys) return;
        float key = (float)loss;
        bool ranked = correct != NOT_SCORED && key - key == 0.0f; // false for NaN and infinity
        a.keys[row] = ranked ? key : __uint_as_float(no_key);
    }

    // The row's part in a training loss: `term` summed over the batch, over the sum of `share`, is its mean. `others`
    // is the weighted distance of the other classes below the maximum, `own` the target's.
    __device__ void write_term(R loss, R log_sum, R others, R own) const {
        if (!a.term && !a.share && !part) return;
        R weight = a.weight ? __ldg((const R*)a.weight + target) : R(1);
        R term = weight * loss;
        if (SMOOTH) {
            R smoothing = (R)a.label_smoothing;
            R weights = a.weight ? __ldg((const R*)a.weight_sum) : (R)a.classes;
            term = (R(1) - smoothing) * term + smoothing / (R)a.classes * (weights * log_sum + (others + weight * own));
        }
        put(a.term, term);
        put(a.share, weight);
        add(term, weight);
    }

    __device__ void add(R term, R share) const {
        if (!part) return;
        part->term = (double)(term * weight_of<R>(a.mean.sample_weight, a.mean.sample_rows, row));
        part->share = (double)share;
    }

    // Merges the target's term into the sums over the others.
    __device__ void write_scored(const S& sums) const {
        const R nan = Real<R>::nan();
        R z = T::widen(__ldg(logits + target));
        R max = real_max(sums.max, z);
        R shift = sums.max - max;
        R factor = real_exp(shift);
        R own_d = z - max;
        R own = real_exp(own_d);
        R others = factor * sums.e;
        R sum = others + own;
        // All -inf makes -inf - -inf, +inf makes inf - inf, NaN stays NaN: no softmax.
        if (!(sum > R(0))) {
            write(nan, nan, nan, nan, nan, 0, 0x7fc00000);
            write_term(nan, nan, nan, nan);
            return;
        }
        R ln_sum = z == max ? real_log1p(others) : real_log(sum);
        R grad_norm = R(0), entropy = R(0);
        if (S::SCORED) {
            R sum_de = factor * (sums.de + real_max(shift, Real<R>::exp_zero()) * sums.e) + own * real_max(own_d, Real<R>::exp_zero());
            R miss = others / sum;
            R spread = factor * factor * sums.ee / (sum * sum);
            grad_norm = real_sqrt(miss * miss + spread);
            entropy = ln_sum - sum_de / sum;
        }
        bool first_maximum = z == max && sums.before < z;
        R loss = (max - z) + ln_sum;
        write(loss, max, ln_sum, grad_norm, entropy, first_maximum ? 1 : 0, 0x7fc00000);
        S at_max = sums;
        if (SMOOTH) at_max.rescale(max);
        write_term(loss, ln_sum, SMOOTH ? at_max.wd : R(0), max - z);
    }

    // A row that is left out, or whose target names no class. No trap: that would take the whole process's context with
    // it.
    __device__ void write_unscored() const {
        const R nan = Real<R>::nan();
        bool bad = verdict == REFUSE;
        write(bad ? nan : R(0), nan, nan, nan, nan, NOT_SCORED, bad ? BAD_TARGET_KEY : 0x7fc00000);
        put(a.term, bad ? nan : R(0));
        put(a.share, R(0));
        add(bad ? nan : R(0), R(0));
        if (bad && a.error) atomicMin(a.error, row);
        if (bad && a.bad_rows) report_bad_row(a.bad_rows, row);
    }

    __device__ void finish(const S& sums) const {
        if (verdict == SCORE) write_scored(sums);
        else write_unscored();
    }

    // Sums up this lane's share of the classes from `first` on.
    __device__ S sum(Piece<T>& piece, int first) const {
        int own = (int)(target - first);
        const R* weight = SMOOTH && a.weight ? (const R*)a.weight + first : nullptr;
        S sums;
        bool near = weight ? piece.template sum<SMOOTH ? WEIGHTED : WANTED>(sums, weight, own)
                           : piece.template sum<WANTED>(sums, nullptr, own);
        return near ? sums : piece.template sum_far<WANTED>(weight, own);
    }
};

// The end of a score launch: the mean, then ranks of a small batch and its mail, in the block that comes last.
template <class T> __device__ inline void finish_scores(const ScoreArguments& a, u8* shared) {
    bool ranks = ranks_small(a.finish);
    if (!ranks && !a.mean.parts) return;
    if (!take_ticket(a.finish.tickets, gridDim.x, shared)) return;
    if (a.mean.parts) write_mean<T>(a.mean, shared);
    if (ranks) rank_small(a.finish, shared);
    if (thread_in_block() == 0) *a.finish.tickets = 0; // for the next launch
}

// Another block of this launch wrote it: past the first-level cache.
template <class R, int WANTED> __device__ inline Sums<R, WANTED> read_partial(const Sums<R, WANTED>* from) {
    volatile const Sums<R, WANTED>* at = from;
    Sums<R, WANTED> sums;
    sums.max = at->max;
    sums.e = at->e;
    sums.before = at->before;
    if (Sums<R, WANTED>::SCORED) {
        sums.ee = at->ee;
        sums.de = at->de;
    }
    if (Sums<R, WANTED>::SMOOTH) {
        sums.wd = at->wd;
        sums.w = at->w;
    }
    return sums;
}

// blockDim = (lanes of a row, rows of a block). Up to 32 lanes, a power of two, are of one warp; more, a multiple of 32
// up to 512, are a block of one row, or one of the `pieces` blocks that share it. The block that finishes a row last
// merges the pieces, in their order and not in that of arrival: the same input gives the same bits.
template <class T, int WANTED> __device__ inline void score(const ScoreArguments& a, u8* shared) {
    typedef Sums<typename T::R, WANTED> S;
    u32 pieces = (u32)a.pieces, rows = blockIdx.x, index = 0; // rows: the number of this block's
    if (pieces > 1) {
        rows = blockIdx.x / pieces;
        index = blockIdx.x % pieces;
    }
    bool whole = blockDim.x > 32; // the block has one row, or a part of it
    Row<T, WANTED> row(a, rows * blockDim.y + threadIdx.y);
    int first = (int)index * a.piece_classes;
    int classes = a.classes - first < a.piece_classes ? a.classes - first : a.piece_classes;
    // The logits are asked for before anybody waits for the target: one wait for both. A row that is left out is read
    // in vain.
    Piece<T> piece(row.logits + first, row.live() ? classes : 0, (int)threadIdx.x, (int)blockDim.x);
    piece.ask();
    row.judge_target();
    S sums;
    sums.clear();
    if (row.verdict == SCORE) sums = row.sum(piece, first);
    sums.reduce(whole ? 32 : (int)blockDim.x);
    bool mine = index == 0; // whether this block writes the row
    if (whole && row.verdict == SCORE) { // the same in every thread
        reduce_warps(sums, (S*)(shared + SHARED_HEAD_BYTES));
        if (pieces > 1) {
            S* partials = (S*)a.partials + (u64)row.row * pieces;
            if (threadIdx.x == 0) partials[index] = sums;
            mine = take_ticket(a.row_tickets + row.row, pieces, shared);
            if (mine && threadIdx.x < 32) {
                sums.clear();
                if (threadIdx.x < pieces) sums = read_partial(partials + threadIdx.x);
                sums.reduce(32);
                if (threadIdx.x == 0) a.row_tickets[row.row] = 0; // for the next launch
            }
        }
    }
    if (mine && threadIdx.x == 0) {
        if (a.mean.parts) row.part = whole ? a.mean.parts + row.row : (Part*)(shared + SHARED_HEAD_BYTES) + threadIdx.y;
        if (row.live()) row.finish(sums);
        else if (row.part) row.part->term = row.part->share = 0;
    }
    if (!whole && a.mean.parts) write_part(a.mean, (Part*)(shared + SHARED_HEAD_BYTES), blockDim.y);
    finish_scores<T>(a, shared);
}

// The bounds are the most threads of a block and the fewest blocks of a multiprocessor: left alone, ptxas saves
// registers for occupancy's sake and spills.
#define LOSSFEED_SCORE_KERNEL(T, name, wanted, bounds)                                                                         \
    extern "C" __global__ void __launch_bounds__ bounds lossfeed_##name(ScoreArguments a) {                                    \
        LOSSFEED_SHARED(shared);                                                                                               \
        score<T, wanted>(a, shared);                                                                                           \
    }

#define LOSSFEED_SCORE_KERNELS(T, dtype, bounds, smooth_bounds)                                                                \
    LOSSFEED_SCORE_KERNEL(T, score_##dtype, SCORES, bounds)                                                                    \
    LOSSFEED_SCORE_KERNEL(T, smooth_##dtype, EVEN, smooth_bounds)

LOSSFEED_SCORE_KERNELS(F16, f16, (256, 3), (256, 2))
LOSSFEED_SCORE_KERNELS(BF16, bf16, (256, 3), (256, 2))
LOSSFEED_SCORE_KERNELS(F32, f32, (256, 3), (256, 2))
LOSSFEED_SCORE_KERNELS(F64, f64, (256, 1), (256, 1))

// Of losses alone. Double precision has none: beside its exp(), what gradient norm and entropy take is next to nothing.
LOSSFEED_SCORE_KERNEL(F16, loss_f16, LOSS, (256, 3))
LOSSFEED_SCORE_KERNEL(BF16, loss_bf16, LOSS, (256, 3))
LOSSFEED_SCORE_KERNEL(F32, loss_f32, LOSS, (256, 3))
