// Words, element types and the few functions of float and double that the kernels share.
//
// prelude.cu, rank.cu and score.cu are one translation unit, compiled in this order. They include no header, so that NVRTC
// needs no toolkit and a host compiler can run the same text on the CPU behind a small fiber header (which defines
// LOSSFEED_SHARED itself; everything else it supplies is CUDA's own names).

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
    // exp of this and of anything below is 0.
    static __device__ float exp_zero() { return -104.0f; }
};

template <> struct Real<double> {
    static __device__ double negative_infinity() { return __longlong_as_double((i64)0xfff0000000000000ull); }
    static __device__ double nan() { return __longlong_as_double(0x7ff8000000000000ll); }
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
};

struct BF16 {
    typedef u16 Raw;
    typedef float R;
    static __device__ float widen(u16 raw) { return __uint_as_float((u32)raw << 16); }
};

struct F32 {
    typedef float Raw;
    typedef float R;
    static __device__ float widen(float raw) { return raw; }
};

struct F64 {
    typedef double Raw;
    typedef double R;
    static __device__ double widen(double raw) { return raw; }
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
