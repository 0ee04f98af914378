// The online softmax: what one read of a row's logits is summed up to.
//
// A lane's running sums refer to a logit near the largest that it has seen and are rescaled when a much larger one
// comes. The target's own term stays out of the sums and is merged at the end: nothing cancels then, and a loss of 1e-9
// keeps its digits in single precision (src/reference.rs has the formulas).

// What is asked of a row: the loss, its two parts and correctness; also gradient norm and entropy; also what label
// smoothing adds, without class weights or with them.
enum Wanted { LOSS, SCORES, EVEN, WEIGHTED };

// Sums over some classes of a row, the target left out, with d = z - max and e = exp(d). From EVEN on also the weighted
// distance of all these logits below the maximum, which label smoothing needs. The weighted sum of the logits would do
// on paper; in floating point an offset of theirs, times the number of classes, would leave its rounding.
template <class R, int WANTED> struct Sums {
    static const bool SCORED = WANTED >= SCORES, SMOOTH = WANTED >= EVEN;
    R max;
    R e;
    R before; // largest logit in front of the target: the first maximum wins
    R ee, de; // only if SCORED
    R wd, w;  // sum of weight * (max - z), sum of weight; only if SMOOTH

    __device__ void clear() {
        max = before = Real<R>::negative_infinity();
        e = R(0);
        if (SCORED) ee = de = R(0);
        if (SMOOTH) wd = w = R(0);
    }

    // Refers the sums to a larger maximum: z - top = (z - max) + (max - top).
    __device__ void rescale(R top) {
        R shift = max - top;
        R factor = real_exp(shift);
        if (SCORED) {
            de = factor * (de + real_max(shift, Real<R>::exp_zero()) * e); // shift is -inf at first, when e is 0
            ee *= factor * factor;
        }
        e *= factor;
        // At most the largest number, which times no weight at all is still nothing. With no maximum yet, wd is 0 or
        // already inf.
        if (SMOOTH && max != Real<R>::negative_infinity()) wd -= real_max(shift, Real<R>::lowest()) * w;
        max = top;
    }

    // Over groups of `lanes` neighbouring lanes (a power of two), as a tree of fixed shape: first the common maximum,
    // then the sums, so that every lane rescales once. The whole warp takes part.
    __device__ void reduce(int lanes) {
        R top = max;
        for (int step = lanes / 2; step > 0; step /= 2) top = real_max(top, __shfl_xor_sync(FULL_WARP, top, step));
        if (top > max) rescale(top);
        for (int step = lanes / 2; step > 0; step /= 2) {
            e += __shfl_xor_sync(FULL_WARP, e, step);
            before = real_max(before, __shfl_xor_sync(FULL_WARP, before, step));
            if (SCORED) {
                ee += __shfl_xor_sync(FULL_WARP, ee, step);
                de += __shfl_xor_sync(FULL_WARP, de, step);
            }
            if (SMOOTH) {
                wd += __shfl_xor_sync(FULL_WARP, wd, step);
                w += __shfl_xor_sync(FULL_WARP, w, step);
            }
        }
    }
};

// Over a whole block of one row, whose warps have reduced theirs: every thread of warp 0 gets the total. `shared` holds
// one set of sums a warp.
template <class S> __device__ inline void reduce_warps(S& sums, S* shared) {
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, warps = (int)blockDim.x / 32;
    if (lane == 0) shared[warp] = sums;
    __syncthreads();
    if (warp != 0) return;
    sums.clear();
    if (lane < warps) sums = shared[lane];
    sums.reduce(32);
}

// The sums as a lane keeps them in its loop: of powers of 2 for single precision, of e for double (prelude.cu, Power).
//
// A logit's exponent is `scale z - reference` in one fused multiply-add, where the reference is a logit near the
// largest, scaled and rounded. All logits and later the maximum meet the same reference, so its rounding cancels; a
// product that is rounded once leaves no more error than z - max, scaled. That ends where the rounding itself is no
// longer small, at logits of 2^22: from there on (FAR) the sums refer to a logit as it is, subtracted first and
// exactly.
//
// A power below 2^-126 becomes 0 here. A lane's powers refer to a logit among its own, up to SLACK below its largest,
// so what is lost of C classes is below C 2^-125 of what stays: less than half of a float's last place for any C below
// 2^31. The target is merged outside, with exp(), which keeps everything down to 2^-149.
template <class R, int WANTED, bool FAR> struct Running {
    typedef Sums<R, (WANTED < EVEN ? WANTED : EVEN)> Total;
    static const bool SCORED = Total::SCORED, SMOOTH = Total::SMOOTH;
    R max;       // the largest logit so far
    R limit;     // a logit above it needs a new reference
    R reference; // scaled, unless FAR
    R e, ee, de;
    R before;
    R wd, w; // sum of weight * exponent, sum of weight
    bool far;

    // How far a logit may lie above the reference: powers up to 2^8. Rescaling at every new maximum would cost more.
    static __device__ R slack() { return R(5); }

    __device__ void clear() {
        max = limit = before = Real<R>::negative_infinity();
        reference = e = R(0); // finite: -inf must not meet -inf
        if (SCORED) ee = de = R(0);
        if (SMOOTH) wd = w = R(0);
        far = false;
    }

    __device__ R exponent(R z) const {
        return FAR ? (z - reference) * Power<R>::scale() : real_fma(z, Power<R>::scale(), -reference);
    }

    __device__ void raise(R top) {
        R to = FAR ? top : top * Power<R>::scale();
        if (limit != Real<R>::negative_infinity()) {
            R shift = FAR ? (reference - to) * Power<R>::scale() : reference - to;
            R factor = Power<R>::of(shift);
            if (SCORED) {
                de = factor * (de + real_max(shift, Power<R>::zero()) * e);
                ee *= factor * factor;
            }
            e *= factor;
            // At most the largest number, which times no weight at all is still nothing.
            if (SMOOTH) wd += real_max(shift, Real<R>::lowest()) * w;
        }
        reference = to;
        limit = FAR ? top : top + slack();
        if (!FAR && !(real_abs(top) < Power<R>::far())) far = true;
    }

    __device__ void meet(R top) {
        max = real_max(max, top);
        if (top > limit) raise(top);
    }

    __device__ void add_term(R d) {
        R term = Power<R>::of(d);
        e += term;
        if (!SCORED) return;
        ee += term * term;
        // A masked class has d = -inf and a term of 0: its share of the entropy is 0, not NaN.
        de += term * real_max(d, Power<R>::zero());
    }

    template <int N> __device__ void add(const R (&z)[N]) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            R d = exponent(z[i]);
            add_term(d);
            if (WANTED == EVEN) wd += d;
        }
        if (WANTED == EVEN) w += R(N);
    }

    // Label smoothing's part with class weights; `own` is the target's place and counts elsewhere.
    template <int N> __device__ void add_weights(const R (&z)[N], const R* weight, int own) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (i == own) continue;
            R share = WANTED == WEIGHTED || (FAR && weight) ? __ldg(weight + i) : R(1);
            wd += share * exponent(z[i]);
            w += share;
        }
    }

    // `N` neighbouring logits, with the target at place `own` from the first of them (or not among them).
    template <int N> __device__ void add_around(R (&z)[N], const R* weight, int own) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (i < own) before = real_max(before, z[i]);
            if (i == own) z[i] = Real<R>::negative_infinity();
        }
        meet(largest_of(z));
#pragma unroll
        for (int i = 0; i < N; i++) add_term(exponent(z[i]));
        if (SMOOTH) add_weights(z, weight, own);
    }

    // The same sums with the largest logit as their reference.
    __device__ Total settled() const {
        Total sums;
        bool any = max != Real<R>::negative_infinity();
        R shift = any ? exponent(max) : R(0);
        R factor = Power<R>::of(-shift);
        sums.max = max;
        sums.e = factor * e;
        sums.before = before;
        if (SCORED) {
            sums.ee = factor * factor * ee;
            sums.de = factor * (de - shift * e) * Power<R>::unscale();
        }
        if (SMOOTH) {
            sums.wd = (shift * w - wd) * Power<R>::unscale();
            sums.w = w;
        }
        return sums;
    }
};

// One row, or a piece of one, as a lane sees it. Classes count from the piece's first. The elements in front of the
// first 16-byte boundary and behind the last whole vector are its edges: single loads, a lane each.
template <class T> struct Piece {
    typedef typename T::R R;
    typedef typename T::Raw Raw;
    static const int N = Vector<T>::N;
    const uint4* from; // the first vector
    int head, vectors, edges; // head: elements in front of the first vector
    int lane, lanes;
    uint4 words[IN_FLIGHT]; // the lane's vectors of the round that is next
    Raw edge;

    __device__ Piece(const Raw* logits, int classes, int lane, int lanes) : lane(lane), lanes(lanes) {
        head = head_elements<T>(logits, classes);
        vectors = (classes - head) / N;
        edges = classes - vectors * N;
        from = (const uint4*)(logits + head);
    }

    // Asks for the first round, which is everything of a short row. Nothing depends on the target yet.
    __device__ void ask() {
#pragma unroll
        for (int u = 0; u < IN_FLIGHT; u++)
            if (lane + u * lanes < vectors) words[u] = load_vector(from + (lane + u * lanes));
        if (lane < edges) edge = load_edge(lane);
    }

    // Null stays null where nobody weighs.
    static __device__ const R* at(const R* weight, int index) { return weight ? weight + index : nullptr; }
    __device__ int edge_class(int edge) const { return edge < head ? edge : edge + vectors * N; }
    __device__ Raw load_edge(int edge) const { return __ldg((const Raw*)from + (edge_class(edge) - head)); }

    // Sums up this lane's share. `target` may lie in front of the piece (negative) or behind it. `weight`: of the
    // piece's classes. False where `sum_far` has to do it again.
    template <int WANTED, class S> __device__ bool sum(S& sums, const R* weight, int target) {
        Running<R, WANTED, false> run;
        run.clear();
        // Vectors in front of the target's; a target in the head is in front of them all.
        int body = target - head, full = body < 0 ? -1 : body / N;
        int span = IN_FLIGHT * lanes;
        for (int first = 0; first < vectors; first += span) {
            // Rounds without the target, before another full round: nothing to look at but the logits.
            const uint4* next = from + (first + span + lane);
            for (; first + 2 * span <= vectors && (u32)(full - first) >= (u32)span; first += span, next += span)
                add_round<WANTED>(run, weight, next, first);
            add_mixed_round(run, weight, first, full, body);
        }
        if (body >= vectors * N) run.before = run.max;
        for (int i = lane; i < edges; i += lanes) {
            R z[1] = {T::widen(i == lane ? edge : load_edge(i))};
            run.add_around(z, at(weight, edge_class(i)), target - edge_class(i));
        }
        sums = run.settled();
        return !run.far;
    }

    // A full round. Every vector makes room for the one that takes its place in the next round: IN_FLIGHT loads stay
    // under way.
    template <int WANTED> __device__ void add_round(Running<R, WANTED, false>& run, const R* weight, const uint4* next, int first) {
        // Vectors that share one look at the reference. Where pairs cannot be compared, two unpacked vectors are too
        // many registers.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
        const int STEP = 2;
#else
        const int STEP = N == 8 ? 1 : 2;
#endif
#pragma unroll
        for (int u = 0; u < IN_FLIGHT; u += STEP) {
            run.meet(Largest<T, STEP>::of(words + u));
#pragma unroll
            for (int v = u; v < u + STEP; v++) {
                R z[N];
                unpack<T>(words[v], z);
                run.add(z);
                if (WANTED == WEIGHTED) run.add_weights(z, at(weight, head + (first + lane + v * lanes) * N), -1);
                words[v] = load_vector(next + v * lanes);
            }
        }
    }

    // A round that holds the target (at element `body` of the vectors, in vector `full`), or is not full, or the last
    // full one.
    template <int WANTED>
    __device__ void add_mixed_round(Running<R, WANTED, false>& run, const R* weight, int first, int full, int body) {
        int k = first + lane, own = -1;
        if ((u32)(full - first) < (u32)(IN_FLIGHT * lanes)) {
            run.before = run.max; // this lane's vectors up to here are in front of the target
            uint4 word = words[0];
#pragma unroll
            for (int u = 0; u < IN_FLIGHT; u++)
                if (k + u * lanes == full && full < vectors) {
                    word = words[u];
                    own = u;
                }
            if (own >= 0) {
                R z[N];
                unpack<T>(word, z);
                run.add_around(z, at(weight, head + full * N), body - full * N);
            }
        }
#pragma unroll
        for (int u = 0; u < IN_FLIGHT; u++) {
            int k_u = k + u * lanes;
            if (k_u < vectors && u != own) {
                R top = Largest<T, 1>::of(words + u);
                if (k_u < full) run.before = real_max(run.before, top);
                run.meet(top);
                R z[N];
                unpack<T>(words[u], z);
                run.add(z);
                if (WANTED == WEIGHTED) run.add_weights(z, at(weight, head + k_u * N), -1);
            }
            if (k_u + IN_FLIGHT * lanes < vectors) words[u] = load_vector(from + (k_u + IN_FLIGHT * lanes));
        }
    }

    // Once more for logits of 2^22 and beyond, infinities among them, one vector after the other. `weight` may be null.
    template <int WANTED> __device__ Sums<R, WANTED> sum_far(const R* weight, int target) const {
        Running<R, WANTED, true> run;
        run.clear();
        for (int k = lane; k < vectors; k += lanes) {
            R z[N];
            unpack<T>(load_vector(from + k), z);
            run.add_around(z, at(weight, head + k * N), target - head - k * N);
        }
        for (int i = lane; i < edges; i += lanes) {
            R z[1] = {T::widen(load_edge(i))};
            run.add_around(z, at(weight, edge_class(i)), target - edge_class(i));
        }
        return run.settled();
    }
};
