// Words, element types and the few functions of float and double that the kernels share.
//
// The files of this folder are one translation unit (src/ptx.rs has their order). They include no header, so that NVRTC
// needs no toolkit and a host compiler can run the same text on the CPU behind a small fiber header (which defines
// LOSSFEED_SHARED itself; everything else it supplies is CUDA's own names).
//
// Every kernel takes one structure by value; src/launch/arguments.rs mirrors them field by field.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

#ifndef LOSSFEED_SHARED
#define LOSSFEED_SHARED(name) extern __shared__ __align__(16) u8 name[]
#endif

#define FULL_WARP 0xffffffffu

// `correct` of a row that was not scored.
#define NOT_SCORED 255

// ---- the precision of the arithmetic -------------------------------------------------------------------------------

template <class R> struct Real;

template <> struct Real<float> {
    static __device__ float negative_infinity() { return __int_as_float(0xff800000); }
    static __device__ float nan() { return __int_as_float(0x7fc00000); }
    // The finite number furthest below 0.
    static __device__ float lowest() { return __int_as_float(0xff7fffff); }
    // exp of this and of anything below is 0.
    static __device__ float exp_zero() { return -104.0f; }
};

template <> struct Real<double> {
    static __device__ double negative_infinity() { return __longlong_as_double((i64)0xfff0000000000000ull); }
    static __device__ double nan() { return __longlong_as_double(0x7ff8000000000000ll); }
    static __device__ double lowest() { return __longlong_as_double((i64)0xffefffffffffffffull); }
    static __device__ double exp_zero() { return -746.0; }
};

// The subtraction z - max comes first and exactly; folding log2(e) into it would lose the bits of large logits.
__device__ inline float real_exp(float d) { return exp2f(d * 1.4426950408889634f); }
__device__ inline double real_exp(double d) { return exp(d); }
__device__ inline float real_log(float v) { return logf(v); }
__device__ inline double real_log(double v) { return log(v); }
__device__ inline float real_log1p(float v) { return log1pf(v); }
__device__ inline double real_log1p(double v) { return log1p(v); }
__device__ inline float real_sqrt(float v) { return sqrtf(v); }
__device__ inline double real_sqrt(double v) { return sqrt(v); }
// The larger one; a NaN loses, so it cannot hide in a running maximum (it shows up in the sums instead).
__device__ inline float real_max(float a, float b) { return fmaxf(a, b); }
__device__ inline double real_max(double a, double b) { return fmax(a, b); }

// What the loops over logits raise to powers. Single precision raises 2: then a logit's exponent is one fused
// multiply-add and one instruction of the special function unit. Double precision keeps exp.
template <class R> struct Power;

template <> struct Power<float> {
    static __device__ float scale() { return 1.4426950408889634f; }   // of a natural exponent
    static __device__ float unscale() { return 0.6931471805599453f; } // back
    // The power of this and of anything below is 0.
    static __device__ float zero() { return -150.0f; }
    // From here on a fused exponent would be off: half of the last place of scale() times a logit is no longer far
    // below 1.
    static __device__ float far() { return 4194304.0f; }
    // Powers below 2^-126 are 0, and so are exponents below it. sums.cu and gradient.cu say why that changes nothing.
    static __device__ float of(float exponent) {
#ifdef __CUDA_ARCH__
        float power;
        asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(exponent));
        return power;
#else
        const float smallest = 1.17549435e-38f;
        float power = exp2f(fabsf(exponent) < smallest ? 0.0f : exponent);
        return power < smallest ? 0.0f : power;
#endif
    }
    // The same down to 2^-149, for the few powers that are not in a loop.
    static __device__ float full(float exponent) { return exp2f(exponent); }
};

template <> struct Power<double> {
    static __device__ double scale() { return 1.0; }
    static __device__ double unscale() { return 1.0; }
    static __device__ double zero() { return -746.0; }
    static __device__ double far() { return -Real<double>::negative_infinity(); } // z - max is one operation already
    static __device__ double of(double exponent) { return exp(exponent); }
    static __device__ double full(double exponent) { return exp(exponent); }
};

__device__ inline float real_fma(float a, float b, float c) { return fmaf(a, b, c); }
__device__ inline double real_fma(double a, double b, double c) { return fma(a, b, c); }
__device__ inline float real_abs(float v) { return fabsf(v); }
__device__ inline double real_abs(double v) { return fabs(v); }

// ---- element types -------------------------------------------------------------------------------------------------

// Two 16-bit elements travel in a word, the first in its low half. `larger` is the larger of each pair; a NaN loses.

struct F16 {
    typedef u16 Raw;
    typedef float R;
    static __device__ float widen(u16 raw) {
#ifdef __CUDA_ARCH__
        float wide;
        asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(raw));
        return wide;
#else
        // Exponent up by 13 bits is 112 short; the multiplication repairs it, subnormals included, exactly.
        u32 magnitude = (u32)(raw & 0x7fff) << 13;
        u32 finite = __float_as_uint(__uint_as_float(magnitude) * __uint_as_float((127u + 112u) << 23));
        u32 bits = (raw & 0x7c00) == 0x7c00 ? (magnitude | 0x7f800000u) : finite;
        return __uint_as_float(bits | ((u32)(raw & 0x8000) << 16));
#endif
    }
    static __device__ float low(u32 pair) { return widen((u16)pair); }
    static __device__ float high(u32 pair) { return widen((u16)(pair >> 16)); }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    static __device__ u32 larger(u32 a, u32 b) {
        u32 pair;
        asm("max.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
        return pair;
    }
#endif
    // To the nearest, ties to even; a NaN becomes 0x7fff.
    static __device__ u16 narrow(float wide) {
#ifdef __CUDA_ARCH__
        u16 raw;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(raw) : "f"(wide));
        return raw;
#else
        u32 bits = __float_as_uint(wide), magnitude = bits & 0x7fffffff;
        u32 sign = bits >> 16 & 0x8000;
        if (magnitude > 0x7f800000) return 0x7fff;
        if (magnitude >= 0x47800000) return (u16)(sign | 0x7c00); // 65536 and above, infinity
        if (magnitude < 0x38800000) {
            // Subnormal: adding 0.5 leaves units of 2^-24 in the low bits, rounded by the addition itself.
            float shifted = __uint_as_float(magnitude) + 0.5f;
            return (u16)(sign | (__float_as_uint(shifted) - 0x3f000000));
        }
        u32 rounded = magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1);
        return (u16)(sign | rounded >> 13); // a carry out of the mantissa is the next exponent, at the top infinity
#endif
    }
    static __device__ u32 narrow_pair(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
        u32 pair;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
        return pair;
#else
        return (u32)narrow(low) | (u32)narrow(high) << 16;
#endif
    }
};

struct BF16 {
    typedef u16 Raw;
    typedef float R;
    static __device__ float widen(u16 raw) { return __uint_as_float((u32)raw << 16); }
    static __device__ float low(u32 pair) { return __uint_as_float(pair << 16); }
    static __device__ float high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    static __device__ u32 larger(u32 a, u32 b) {
        u32 pair;
        asm("max.bf16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
        return pair;
    }
#endif
    // To the nearest, ties to even; a NaN becomes 0x7fff, as the instruction of newer GPUs has it.
    static __device__ u16 narrow(float wide) {
        u32 bits = __float_as_uint(wide);
        if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
        return (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
    static __device__ u32 narrow_pair(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
        u32 pair;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
        return pair;
#else
        return (u32)narrow(low) | (u32)narrow(high) << 16;
#endif
    }
};

struct F32 {
    typedef float Raw;
    typedef float R;
    static __device__ float widen(float raw) { return raw; }
    static __device__ float narrow(float wide) { return wide; }
};

struct F64 {
    typedef double Raw;
    typedef double R;
    static __device__ double widen(double raw) { return raw; }
    static __device__ double narrow(double wide) { return wide; }
};

// Elements of a 128-bit load.
template <class T> struct Vector {
    static const int N = 16 / (int)sizeof(typename T::Raw);
    union Bits {
        uint4 word;
        typename T::Raw raw[N];
        __device__ Bits() {}
    };
};

// The elements of a vector, in its type's precision.
template <class T> __device__ inline void unpack(const uint4& word, float (&z)[8]) {
    const u32 pairs[4] = {word.x, word.y, word.z, word.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        z[2 * i] = T::low(pairs[i]);
        z[2 * i + 1] = T::high(pairs[i]);
    }
}
template <class T> __device__ inline void unpack(const uint4& word, float (&z)[4]) {
    z[0] = __uint_as_float(word.x);
    z[1] = __uint_as_float(word.y);
    z[2] = __uint_as_float(word.z);
    z[3] = __uint_as_float(word.w);
}
template <class T> __device__ inline void unpack(const uint4& word, double (&z)[2]) {
    typename Vector<T>::Bits bits;
    bits.word = word;
    z[0] = bits.raw[0];
    z[1] = bits.raw[1];
}

// And back.
template <class T> __device__ inline uint4 pack(const float (&z)[8]) {
    uint4 word;
    word.x = T::narrow_pair(z[0], z[1]);
    word.y = T::narrow_pair(z[2], z[3]);
    word.z = T::narrow_pair(z[4], z[5]);
    word.w = T::narrow_pair(z[6], z[7]);
    return word;
}
template <class T> __device__ inline uint4 pack(const float (&z)[4]) {
    uint4 word;
    word.x = __float_as_uint(z[0]);
    word.y = __float_as_uint(z[1]);
    word.z = __float_as_uint(z[2]);
    word.w = __float_as_uint(z[3]);
    return word;
}
template <class T> __device__ inline uint4 pack(const double (&z)[2]) {
    typename Vector<T>::Bits bits;
    bits.raw[0] = z[0];
    bits.raw[1] = z[1];
    return bits.word;
}

// The largest element of some vectors; a NaN loses.
template <class R, int N> __device__ inline R largest_of(const R (&z)[N]) {
    R top = z[0];
#pragma unroll
    for (int i = 1; i < N; i++) top = real_max(top, z[i]);
    return top;
}
template <class T, int VECTORS> struct Largest {
    typedef typename T::R R;
    static __device__ R of(const uint4* words) {
        R z[Vector<T>::N];
        unpack<T>(words[0], z);
        R top = largest_of(z);
#pragma unroll
        for (int v = 1; v < VECTORS; v++) {
            unpack<T>(words[v], z);
            top = real_max(top, largest_of(z));
        }
        return top;
    }
};
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
// Two elements a comparison.
template <class T, int VECTORS> struct LargestPair {
    static __device__ float of(const uint4* words) {
        u32 top = T::larger(T::larger(words[0].x, words[0].y), T::larger(words[0].z, words[0].w));
#pragma unroll
        for (int v = 1; v < VECTORS; v++)
            top = T::larger(top, T::larger(T::larger(words[v].x, words[v].y), T::larger(words[v].z, words[v].w)));
        return real_max(T::low(top), T::high(top));
    }
};
template <int VECTORS> struct Largest<F16, VECTORS> : LargestPair<F16, VECTORS> {};
template <int VECTORS> struct Largest<BF16, VECTORS> : LargestPair<BF16, VECTORS> {};
#endif

// ---- 128-bit loads and stores --------------------------------------------------------------------------------------

// In flight per thread. With one, 1024 threads cannot keep the memory of an H100-class GPU busy.
#define IN_FLIGHT 4

// Of logits that nobody writes. `volatile` keeps the compiler from moving a load down to its first use.
__device__ inline uint4 load_vector(const uint4* at) {
#ifdef __CUDA_ARCH__
    uint4 word;
    asm volatile("{ .reg .u64 g; cvta.to.global.u64 g, %4; ld.global.nc.v4.u32 {%0, %1, %2, %3}, [g]; }"
                 : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
                 : "l"(at));
    return word;
#else
    return __ldg(at);
#endif
}

// Of logits that this thread may write over afterwards.
__device__ inline uint4 load_vector_once(const uint4* at) {
#ifdef __CUDA_ARCH__
    uint4 word;
    asm volatile("{ .reg .u64 g; cvta.to.global.u64 g, %4; ld.global.cs.v4.u32 {%0, %1, %2, %3}, [g]; }"
                 : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
                 : "l"(at)
                 : "memory");
    return word;
#else
    return __ldcs(at);
#endif
}

// ---- threads and rows ----------------------------------------------------------------------------------------------

__device__ inline u32 thread_in_block() { return threadIdx.y * blockDim.x + threadIdx.x; }
__device__ inline u32 block_threads() { return blockDim.x * blockDim.y; }

// Elements in front of the first 16-byte boundary of a row, at most `classes`. A row may start anywhere: an odd number
// of 16-bit classes misaligns every other one.
template <class T> __device__ inline int head_elements(const typename T::Raw* row, int classes) {
    int past = (int)(((u64)row & 15) / sizeof(typename T::Raw));
    int head = past == 0 ? 0 : Vector<T>::N - past;
    return head > classes ? classes : head;
}

// Whether 128-bit accesses to both rows can start at the same element.
__device__ inline bool aligned_alike(const void* a, const void* b) { return (((u64)a ^ (u64)b) & 15) == 0; }

// What to do with a row.
enum Verdict { SCORE, LEAVE_OUT, REFUSE };

__device__ inline Verdict judge(i64 target, i64 ignore_index, int classes) {
    if (target == ignore_index) return LEAVE_OUT;
    return target < 0 || target >= classes ? REFUSE : SCORE;
}
