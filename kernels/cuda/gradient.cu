// The backward of a cross entropy over class indices: one read of the logits, one write of the gradient, nothing in
// between.
//
//     gradient_j = p_j A - [j = target] T - w_j S,   p_j = exp(z_j - max) exp(-log_sum)
//     A = g (a + s W / C) + g_lse,   T = g a,   S = g s / C,   a = (1 - s) w_target
//
// with the row's upstream gradient g of its term, g_lse of its log-sum-exp, smoothing s, class weights w and their sum
// W. The forward leaves maximum and log-sum apart: their sum would be rounded to the maximum's last place (a sixteenth
// for logits of 1e6), and every p_j would be off by the exponential of that. A row that is left out gets zeros whatever
// it holds, a row whose target names no class NaN. There is nothing to reduce, so a row may be shared by any number of
// blocks. The gradient may lie over the logits: every element is read before it is written, by the same thread (hence
// no read-only loads here).

struct GradientArguments {
    const void* logits;
    const i64* targets;
    const void *max, *log_sum; // the forward's
    const void* upstream;      // g, `upstream_stride` (0 or 1) elements apart
    const void* divisor;       // R: what every g is divided by, or null
    const float* sample_weight; // a factor of each sample's g, or null
    const void* upstream_lse;  // g_lse, likewise, or null
    const void *weight, *weight_sum;
    void* gradient;
    i64 row_stride, gradient_stride, ignore_index;
    double label_smoothing;
    int upstream_stride, upstream_lse_stride;
    int rows, classes;
    int pieces, piece_classes;
    u32 sample_rows;           // neighbouring rows that are one sample
    u32 upstream_narrow;       // 1: g has the logits' type, 0: R
};

// g of a row: as it was handed down, over the mean's divisor, times the sample's weight.
template <class T> __device__ inline typename T::R upstream_of(const GradientArguments& a, u32 row) {
    typedef typename T::R R;
    i64 at = (i64)row * a.upstream_stride;
    R g = a.upstream_narrow ? T::widen(((const typename T::Raw*)a.upstream)[at]) : ((const R*)a.upstream)[at];
    if (a.divisor) g /= *(const R*)a.divisor;
    return g * weight_of<R>(a.sample_weight, a.sample_rows, row);
}

// What is the same for all classes of a row, in the terms of prelude.cu's powers: exp(z - max) is the power of `scale z - reference`
// with the scaled maximum, rounded, as the reference; what the rounding took goes into `all`. A power below 2^-126 is 0, and so is a
// gradient that far below the row's largest.
template <class R> struct PlainSlope {
    static const bool PLAIN = true;
    R reference, all, spread, target_share; // all: A exp(-log_sum); S, T
    int target;

    // Turns logits into their gradient. The target's share is still to be taken off.
    template <int N> __device__ void apply(R (&z)[N], int) const {
#pragma unroll
        for (int i = 0; i < N; i++) z[i] = real_fma(Power<R>::of(real_fma(z[i], Power<R>::scale(), -reference)), all, -spread);
    }
};

// With class weights in the smoothing, or with a maximum beyond 2^22, where the reference would be off: it is
// subtracted first.
template <class R> struct AnySlope {
    static const bool PLAIN = false;
    R max, all, spread, target_share;
    const R* weight; // of the piece's classes; null: S is the same for all
    int target;

    template <int N> __device__ void apply(R (&z)[N], int first) const {
#pragma unroll
        for (int i = 0; i < N; i++) {
            R share = weight ? __ldg(weight + first + i) * spread : spread;
            z[i] = Power<R>::of((z[i] - max) * Power<R>::scale()) * all - share;
        }
    }
};

// A row's logits, or a piece's, and the gradient that goes over or beside them, as a lane sees them. 128-bit accesses
// where both are aligned alike; the elements in front of the first and behind the last are the edges.
template <class T> struct Stretch {
    typedef typename T::R R;
    typedef typename T::Raw Raw;
    static const int N = Vector<T>::N;
    const uint4* from; // the first vector
    uint4* to;
    int head, vectors, edges; // head: elements in front of the first vector
    int lane, lanes;
    uint4 words[IN_FLIGHT]; // the lane's vectors of the round that is next
    Raw edge;

    __device__ Stretch(const Raw* logits, Raw* gradient, int classes, int lane, int lanes) : lane(lane), lanes(lanes) {
        head = aligned_alike(logits, gradient) ? head_elements<T>(logits, classes) : classes;
        vectors = (classes - head) / N;
        edges = classes - vectors * N;
        from = (const uint4*)(logits + head);
        to = (uint4*)(gradient + head);
    }

    // Asks for the first round. Nothing depends on the target yet.
    __device__ void ask() {
#pragma unroll
        for (int u = 0; u < IN_FLIGHT; u++)
            if (lane + u * lanes < vectors) words[u] = load_vector_once(from + (lane + u * lanes));
        if (lane < edges) edge = load_edge(lane);
    }

    // An edge's place behind the first vector; negative in front of it.
    __device__ int place(int edge) const { return edge < head ? edge - head : edge - head + vectors * N; }
    __device__ Raw load_edge(int edge) const { return __ldcs((const Raw*)from + place(edge)); }

    // Every element is read before it is written, and by the same lane.
    template <class Slope> __device__ void map(const Slope& slope) {
        int body = slope.target - head, full = body < 0 ? -1 : body / N; // vectors in front of the target's
        int span = IN_FLIGHT * lanes;
        for (int first = 0; first < vectors; first += span) {
            // Rounds without the target, before another full round. Every vector makes room for the one that takes its
            // place in the next round: IN_FLIGHT loads stay under way.
            if (Slope::PLAIN && first + 2 * span <= vectors) {
                const uint4* next = from + (first + span + lane);
                uint4* out = to + (first + lane);
                for (; first + 2 * span <= vectors && (u32)(full - first) >= (u32)span; first += span, next += span, out += span) {
#pragma unroll
                    for (int u = 0; u < IN_FLIGHT; u++) {
                        R z[N];
                        unpack<T>(words[u], z);
                        words[u] = load_vector_once(next + u * lanes);
                        slope.apply(z, 0);
                        __stcs(out + u * lanes, pack<T>(z));
                    }
                }
            }
            map_mixed_round(slope, first, full, body);
        }
        map_edges(slope);
    }

    // A round that holds the target (element `body` of the vectors, in vector `full`), or is not full, or the last full
    // one.
    template <class Slope> __device__ void map_mixed_round(const Slope& slope, int first, int full, int body) {
#pragma unroll
        for (int u = 0; u < IN_FLIGHT; u++) {
            int k = first + lane + u * lanes;
            if (k >= vectors) break;
            R z[N];
            unpack<T>(words[u], z);
            if (k + IN_FLIGHT * lanes < vectors) words[u] = load_vector_once(from + (k + IN_FLIGHT * lanes));
            slope.apply(z, head + k * N);
            if (k == full) {
#pragma unroll
                for (int i = 0; i < N; i++)
                    if (k * N + i == body) z[i] -= slope.target_share;
            }
            __stcs(to + k, pack<T>(z));
        }
    }

    // Single elements, all of them where logits and gradient are not aligned alike.
    template <class Slope> __device__ void map_edges(const Slope& slope) {
        for (int i = lane; i < edges; i += IN_FLIGHT * lanes) {
            Raw raw[IN_FLIGHT];
#pragma unroll
            for (int u = 0; u < IN_FLIGHT; u++) {
                int at = i + u * lanes;
                if (at < edges) raw[u] = at == lane ? edge : load_edge(at);
            }
#pragma unroll
            for (int u = 0; u < IN_FLIGHT; u++) {
                int at = i + u * lanes;
                if (at >= edges) break;
                R z[1] = {T::widen(raw[u])};
                slope.apply(z, head + place(at));
                if (head + place(at) == slope.target) z[0] -= slope.target_share;
                __stcs((Raw*)to + place(at), T::narrow(z[0]));
            }
        }
    }

    // The same value for every class.
    __device__ void fill(R value) {
        Raw raw = T::narrow(value);
        R z[N];
#pragma unroll
        for (int i = 0; i < N; i++) z[i] = value;
        uint4 word = pack<T>(z);
        for (int k = lane; k < vectors; k += lanes) __stcs(to + k, word);
        for (int i = lane; i < edges; i += lanes) __stcs((Raw*)to + place(i), raw);
    }
};

// A backward goes from the last row to the first: what the forward read last may still be in the second-level cache.
__device__ inline u32 block_from_the_end() { return gridDim.x - 1 - blockIdx.x; }

// blockDim = (lanes of a row, rows of a block); `pieces` blocks share their rows.
template <class T> __device__ inline void backward(const GradientArguments& a) {
    typedef typename T::R R;
    typedef typename T::Raw Raw;
    u32 pieces = (u32)a.pieces, block = block_from_the_end();
    u32 row = block / pieces * blockDim.y + threadIdx.y;
    if (row >= (u32)a.rows) return;
    int first = (int)(block % pieces) * a.piece_classes;
    int classes = a.classes - first < a.piece_classes ? a.classes - first : a.piece_classes;
    // Logits and the row's numbers are asked for before anybody waits for the target: one wait for all.
    i64 target = a.targets[row];
    R max = ((const R*)a.max)[row], log_sum = ((const R*)a.log_sum)[row];
    R g = upstream_of<T>(a, row);
    R g_lse = a.upstream_lse ? ((const R*)a.upstream_lse)[(i64)row * a.upstream_lse_stride] : R(0);
    Stretch<T> stretch((const Raw*)a.logits + (i64)row * a.row_stride + first, (Raw*)a.gradient + (i64)row * a.gradient_stride + first,
                       classes, (int)threadIdx.x, (int)blockDim.x);
    stretch.ask();
    Verdict verdict = judge(target, a.ignore_index, a.classes);
    if (verdict != SCORE) {
        stretch.fill(verdict == LEAVE_OUT ? R(0) : Real<R>::nan());
        return;
    }
    R smoothing = (R)a.label_smoothing;
    R own = (R(1) - smoothing) * (a.weight ? ((const R*)a.weight)[target] : R(1));
    R spread = smoothing / (R)a.classes;
    bool weighs = a.weight && smoothing > R(0);
    R weights = weighs ? *(const R*)a.weight_sum : (R)a.classes;
    R of_all = g * (own + spread * weights) + g_lse;
    int place = (int)(target - first);
    if (weighs || !(real_abs(max) < Power<R>::far())) { // the same for the whole row
        R all = of_all * Power<R>::full(-log_sum * Power<R>::scale());
        AnySlope<R> slope = {max, all, g * spread, g * own, weighs ? (const R*)a.weight + first : nullptr, place};
        stretch.map(slope);
    } else {
        R reference = max * Power<R>::scale(), rounded = real_fma(max, Power<R>::scale(), -reference);
        R all = of_all * Power<R>::full(-real_fma(log_sum, Power<R>::scale(), rounded));
        PlainSlope<R> slope = {reference, all, g * spread, g * own, place};
        stretch.map(slope);
    }
}

#define LOSSFEED_BACKWARD_KERNEL(T, dtype, bounds)                                                                             \
    extern "C" __global__ void __launch_bounds__ bounds lossfeed_backward_##dtype(GradientArguments a) { backward<T>(a); }

LOSSFEED_BACKWARD_KERNEL(F16, f16, (256, 3))
LOSSFEED_BACKWARD_KERNEL(BF16, bf16, (256, 3))
LOSSFEED_BACKWARD_KERNEL(F32, f32, (256, 3))
LOSSFEED_BACKWARD_KERNEL(F64, f64, (256, 1))
