// The backward of a cross entropy over class indices: one read of the logits, one write of the gradient, nothing in between.
//
//     gradient_j = p_j A - [j = target] T - w_j S,   p_j = exp(z_j - max) exp(-log_sum)
//     A = g (a + s W / C) + g_lse,   T = g a,   S = g s / C,   a = (1 - s) w_target
//
// with the row's upstream gradient g of its term, g_lse of its log-sum-exp, smoothing s, class weights w and their sum W. The forward
// leaves maximum and log-sum apart: their sum would be rounded to the maximum's last place (a sixteenth for logits of 1e6), and every
// p_j would be off by the exponential of that. A row that is left out gets zeros whatever it holds, a row whose target names no class
// NaN. There is nothing to reduce, so a row may be shared by any number of blocks. The gradient may lie over the logits: every element
// is read before it is written, by the same thread (hence no read-only loads here).

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

// What is the same for all classes of a row.
template <class R> struct Slope {
    R max, all, target_share, spread; // all: A exp(-log_sum); T, S
    const R* weight;                  // of the piece's classes; null: S is the same for all
    int target;

    __device__ R at(R z, int index) const {
        R share = weight ? __ldg(weight + index) * spread : spread;
        R slope = real_exp(z - max) * all - share;
        return index == target ? slope - target_share : slope;
    }
};

// Writes `map(logit, index)` for every class of a piece. 128-bit stores where source and destination are aligned alike.
template <class T, class Map>
__device__ inline void map_piece(const typename T::Raw* from, typename T::Raw* to, int classes, int lane, int lanes, const Map& map) {
    const int N = Vector<T>::N;
    const int IN_FLIGHT = 4;
    typedef typename Vector<T>::Bits Bits;
    int head = aligned_alike(from, to) ? head_elements<T>(from, classes) : classes;
    int vectors = (classes - head) / N;
    for (int i = lane; i < head; i += lanes) to[i] = T::narrow(map.at(T::widen(__ldcs(from + i)), i));
    const uint4* words = (const uint4*)(from + head);
    uint4* out = (uint4*)(to + head);
    int k = lane;
    for (; k < vectors - (IN_FLIGHT - 1) * lanes; k += IN_FLIGHT * lanes) {
        Bits bits[IN_FLIGHT];
#pragma unroll
        for (int u = 0; u < IN_FLIGHT; u++) bits[u].word = __ldcs(words + k + u * lanes);
#pragma unroll
        for (int u = 0; u < IN_FLIGHT; u++) {
            int first = head + (k + u * lanes) * N;
#pragma unroll
            for (int i = 0; i < N; i++) bits[u].raw[i] = T::narrow(map.at(T::widen(bits[u].raw[i]), first + i));
            out[k + u * lanes] = bits[u].word;
        }
    }
    for (; k < vectors; k += lanes) {
        Bits bits;
        bits.word = __ldcs(words + k);
#pragma unroll
        for (int i = 0; i < N; i++) bits.raw[i] = T::narrow(map.at(T::widen(bits.raw[i]), head + k * N + i));
        out[k] = bits.word;
    }
    for (int i = head + vectors * N + lane; i < classes; i += lanes) to[i] = T::narrow(map.at(T::widen(__ldcs(from + i)), i));
}

// The same value for every class of a piece.
template <class T>
__device__ inline void fill_piece(typename T::Raw* to, int classes, int lane, int lanes, typename T::R value) {
    const int N = Vector<T>::N;
    typename T::Raw raw = T::narrow(value);
    typename Vector<T>::Bits bits;
#pragma unroll
    for (int i = 0; i < N; i++) bits.raw[i] = raw;
    int head = head_elements<T>(to, classes);
    int vectors = (classes - head) / N;
    for (int i = lane; i < head; i += lanes) to[i] = raw;
    uint4* out = (uint4*)(to + head);
    for (int k = lane; k < vectors; k += lanes) out[k] = bits.word;
    for (int i = head + vectors * N + lane; i < classes; i += lanes) to[i] = raw;
}

// blockDim = (lanes of a row, rows of a block); `pieces` blocks share their rows.
template <class T> __device__ inline void backward(const GradientArguments& a) {
    typedef typename T::R R;
    typedef typename T::Raw Raw;
    u32 pieces = (u32)a.pieces;
    u32 row = blockIdx.x / pieces * blockDim.y + threadIdx.y;
    if (row >= (u32)a.rows) return;
    int first = (int)(blockIdx.x % pieces) * a.piece_classes;
    int classes = a.classes - first < a.piece_classes ? a.classes - first : a.piece_classes;
    int lane = (int)threadIdx.x, lanes = (int)blockDim.x;
    i64 target = a.targets[row];
    Verdict verdict = judge(target, a.ignore_index, a.classes);
    Raw* to = (Raw*)a.gradient + (i64)row * a.gradient_stride + first;
    if (verdict != SCORE) {
        fill_piece<T>(to, classes, lane, lanes, verdict == LEAVE_OUT ? R(0) : Real<R>::nan());
        return;
    }
    R g = upstream_of<T>(a, row);
    R g_lse = a.upstream_lse ? ((const R*)a.upstream_lse)[(i64)row * a.upstream_lse_stride] : R(0);
    R smoothing = (R)a.label_smoothing;
    R own = (R(1) - smoothing) * (a.weight ? ((const R*)a.weight)[target] : R(1));
    R spread = smoothing / (R)a.classes;
    R weights = a.weight && smoothing > R(0) ? *(const R*)a.weight_sum : (R)a.classes;
    Slope<R> slope;
    slope.max = ((const R*)a.max)[row];
    slope.all = (g * (own + spread * weights) + g_lse) * real_exp(-((const R*)a.log_sum)[row]);
    slope.target_share = g * own;
    slope.spread = g * spread;
    slope.weight = a.weight && smoothing > R(0) ? (const R*)a.weight + first : nullptr;
    slope.target = (int)(target - first);
    map_piece<T>((const Raw*)a.logits + (i64)row * a.row_stride + first, to, classes, lane, lanes, slope);
}

#define LOSSFEED_BACKWARD_KERNEL(T, dtype, bounds)                                                                             \
    extern "C" __global__ void __launch_bounds__ bounds lossfeed_backward_##dtype(GradientArguments a) { backward<T>(a); }

LOSSFEED_BACKWARD_KERNEL(F16, f16, (256))
LOSSFEED_BACKWARD_KERNEL(BF16, bf16, (256))
LOSSFEED_BACKWARD_KERNEL(F32, f32, (256))
LOSSFEED_BACKWARD_KERNEL(F64, f64, (256, 1))
