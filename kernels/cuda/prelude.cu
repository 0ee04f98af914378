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

// ---- element types -------------------------------------------------------------------------------------------------

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
    // To the nearest, ties to even.
    static __device__ u16 narrow(float wide) {
#ifdef __CUDA_ARCH__
        u16 raw;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(raw) : "f"(wide));
        return raw;
#else
        u32 bits = __float_as_uint(wide), magnitude = bits & 0x7fffffff;
        u32 sign = bits >> 16 & 0x8000;
        if (magnitude > 0x7f800000) return (u16)(sign | 0x7e00); // NaN
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
};

struct BF16 {
    typedef u16 Raw;
    typedef float R;
    static __device__ float widen(u16 raw) { return __uint_as_float((u32)raw << 16); }
    // To the nearest, ties to even.
    static __device__ u16 narrow(float wide) {
        u32 bits = __float_as_uint(wide);
        if ((bits & 0x7fffffff) > 0x7f800000) return (u16)(bits >> 16 | 0x40); // NaN stays NaN
        return (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
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

// ---- threads and rows ----------------------------------------------------------------------------------------------

__device__ inline u32 thread_in_block() { return threadIdx.y * blockDim.x + threadIdx.x; }
__device__ inline u32 block_threads() { return blockDim.x * blockDim.y; }

// Elements in front of the first 16-byte boundary of a row, at most `classes`. A row may start anywhere: an odd number of 16-bit
// classes misaligns every other one.
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
