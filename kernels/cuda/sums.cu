// The online softmax: what one read of a row's logits is summed up to.
//
// Running sums refer to the largest logit so far and are rescaled when it grows, once per 128-bit load and not once per logit. The
// target's own term stays out of the sums and is merged at the end: nothing cancels then, and a loss of 1e-9 keeps its digits in
// single precision (src/reference.rs has the formulas).

// Sums over some classes of a row, the target left out, with d = z - max and e = exp(d).
// SMOOTH: also the weighted distance of all these logits below the maximum, which label smoothing needs. The weighted sum of the
// logits would do on paper; in floating point an offset of theirs, times the number of classes, would leave its rounding.
template <class R, bool SMOOTH> struct Sums {
    R max;
    R e, ee, de;
    R before; // largest logit in front of the target: the first maximum wins
    R wd, w;  // sum of weight * (max - z), sum of weight; only if SMOOTH

    __device__ void clear() {
        max = before = Real<R>::negative_infinity();
        e = ee = de = R(0);
        if (SMOOTH) wd = w = R(0);
    }

    // Refers the sums to a larger maximum: z - top = (z - max) + (max - top).
    __device__ void rescale(R top) {
        R shift = max - top;
        R factor = real_exp(shift);
        de = factor * (de + real_max(shift, Real<R>::exp_zero()) * e); // shift is -inf at first, when e is 0
        e *= factor;
        ee *= factor * factor;
        // At most the largest number, which times no weight at all is still nothing. With no maximum yet, wd is 0 or already inf.
        if (SMOOTH && max != Real<R>::negative_infinity()) wd -= real_max(shift, Real<R>::lowest()) * w;
        max = top;
    }

    // Nothing but -inf (or NaN) so far: any finite reference keeps -inf - -inf from making a NaN.
    __device__ R reference() const { return max == Real<R>::negative_infinity() ? R(0) : max; }

    template <int N> __device__ void add(const R (&z)[N], bool in_front) {
        R top = z[0];
#pragma unroll
        for (int i = 1; i < N; i++) top = real_max(top, z[i]);
        if (in_front) before = real_max(before, top);
        if (top > max) rescale(top);
        R from = reference();
#pragma unroll
        for (int i = 0; i < N; i++) {
            R d = z[i] - from;
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
        if (SMOOTH) {
            wd += other.wd;
            w += other.w;
        }
    }

    // Over groups of `lanes` neighbouring lanes (a power of two), as a tree of fixed shape. The whole warp takes part.
    __device__ void reduce(int lanes) {
#pragma unroll 1 // unrolled, the exponentials of every step are most of the module's size
        for (int step = lanes / 2; step > 0; step /= 2) {
            Sums other;
            other.max = __shfl_xor_sync(FULL_WARP, max, step);
            other.e = __shfl_xor_sync(FULL_WARP, e, step);
            other.ee = __shfl_xor_sync(FULL_WARP, ee, step);
            other.de = __shfl_xor_sync(FULL_WARP, de, step);
            other.before = __shfl_xor_sync(FULL_WARP, before, step);
            if (SMOOTH) {
                other.wd = __shfl_xor_sync(FULL_WARP, wd, step);
                other.w = __shfl_xor_sync(FULL_WARP, w, step);
            }
            merge(other);
        }
    }
};

// One row, or a piece of one, as a lane sees it. Classes count from the piece's first.
template <class T> struct Piece {
    const typename T::Raw* logits;
    const typename T::R* weight; // of the same classes; null: all 1
    int classes;
    int target; // negative: in front of the piece; `classes` and above: behind it
};

// `N` neighbouring logits from class `first` on; takes the target out when it is among them.
template <class T, bool SMOOTH, int N>
__device__ inline void add_logits(Sums<typename T::R, SMOOTH>& sums, const Piece<T>& piece, typename T::R (&z)[N], int first) {
    int own = piece.target - first;
    bool holds = (u32)own < (u32)N;
    if (holds) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (i < own) sums.before = real_max(sums.before, z[i]);
            if (i == own) z[i] = Real<typename T::R>::negative_infinity();
        }
    }
    sums.add(z, !holds && own > 0);
    if (SMOOTH) {
        typename T::R from = sums.reference();
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (i == own) continue;
            typename T::R weight = piece.weight ? __ldg(piece.weight + first + i) : typename T::R(1);
            sums.wd += weight * (from - z[i]);
            sums.w += weight;
        }
    }
}

template <class T, bool SMOOTH>
__device__ inline void add_vector(Sums<typename T::R, SMOOTH>& sums, const Piece<T>& piece, const typename Vector<T>::Bits& bits,
                                  int first) {
    const int N = Vector<T>::N;
    typename T::R z[N];
#pragma unroll
    for (int i = 0; i < N; i++) z[i] = T::widen(bits.raw[i]);
    add_logits<T, SMOOTH, N>(sums, piece, z, first);
}

template <class T, bool SMOOTH>
__device__ inline void add_single(Sums<typename T::R, SMOOTH>& sums, const Piece<T>& piece, int index) {
    typename T::R z[1] = {T::widen(__ldg(piece.logits + index))};
    add_logits<T, SMOOTH, 1>(sums, piece, z, index);
}

// This lane's share of a piece: single loads up to the first 16-byte boundary, 128-bit loads from there, single loads for the
// rest. Four loads are in flight per thread: with one, 512 threads cannot keep the memory of an H100-class GPU busy.
template <class T, bool SMOOTH>
__device__ inline void add_piece(Sums<typename T::R, SMOOTH>& sums, const Piece<T>& piece, int lane, int lanes) {
    const int N = Vector<T>::N;
    const int IN_FLIGHT = 4;
    int classes = piece.classes;
    int head = head_elements<T>(piece.logits, classes);
    for (int i = lane; i < head; i += lanes) add_single<T>(sums, piece, i);

    const uint4* words = (const uint4*)(piece.logits + head);
    int vectors = (classes - head) / N;
    int k = lane;
    for (; k < vectors - (IN_FLIGHT - 1) * lanes; k += IN_FLIGHT * lanes) {
        typename Vector<T>::Bits bits[IN_FLIGHT];
#pragma unroll
        for (int u = 0; u < IN_FLIGHT; u++) bits[u].word = __ldg(words + k + u * lanes);
#pragma unroll
        for (int u = 0; u < IN_FLIGHT; u++) add_vector<T>(sums, piece, bits[u], head + (k + u * lanes) * N);
    }
    for (; k < vectors; k += lanes) {
        typename Vector<T>::Bits bits;
        bits.word = __ldg(words + k);
        add_vector<T>(sums, piece, bits, head + k * N);
    }
    for (int i = head + vectors * N + lane; i < classes; i += lanes) add_single<T>(sums, piece, i);
}

// Over a whole block of one row: every thread of warp 0 gets the total. `shared` holds one set of sums a warp.
template <class S> __device__ inline void reduce_block(S& sums, S* shared) {
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, warps = (int)blockDim.x / 32;
    sums.reduce(32);
    if (lane == 0) shared[warp] = sums;
    __syncthreads();
    if (warp != 0) return;
    sums.clear();
    if (lane < warps) sums = shared[lane];
    sums.reduce(32);
}
