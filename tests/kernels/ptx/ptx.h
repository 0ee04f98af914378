// What the C++ that tests/kernels/ptx makes of PTX calls. Semantics are those of NVIDIA's "Parallel Thread Execution ISA",
// https://docs.nvidia.com/cuda/parallel-thread-execution/ (release 9.1), chapter 9.7.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using s8 = int8_t;
using s16 = int16_t;
using s32 = int32_t;
using s64 = int64_t;
using f32 = float;
using f64 = double;

enum Space { NOT_WRITTEN, GLOBAL, SHARED_MEMORY, GENERIC, ATOMIC };

// The driver's side: hosted.h.
extern "C" {
extern int ptx_fault; // which planted fault is on; 0: none
char* ptx_at(u64 address, u32 bytes, int space);
[[noreturn]] void ptx_fail(const char* what);
u64 ptx_shared();
void ptx_barrier();
const u64* ptx_collective(const char* operation, u32 mask, u64 value);
u32 ptx_lane();
u32 ptx_index(int which);
float ptx_ex2(float);
float ptx_lg2(float);
float ptx_sqrt(float);
float ptx_rsqrt(float);
float ptx_div(float, float, int places);
double ptx_rcp(double);
}

#define PTX_INLINE static inline __attribute__((always_inline))

PTX_INLINE f32 real(u32 bits) { f32 v; memcpy(&v, &bits, 4); return v; }
PTX_INLINE f64 real(u64 bits) { f64 v; memcpy(&v, &bits, 8); return v; }
PTX_INLINE u32 bits(f32 v) { u32 b; memcpy(&b, &v, 4); return b; }
PTX_INLINE u64 bits(f64 v) { u64 b; memcpy(&b, &v, 8); return b; }
// A NaN that single-precision arithmetic makes has these bits, whatever went in.
PTX_INLINE f32 made(f32 v) { return v == v ? v : real(0x7fffffffu); }
PTX_INLINE f64 made(f64 v) { return v; }

template <class T> PTX_INLINE T taken(const char* at) { T v; memcpy(&v, at, sizeof v); return v; }
template <class T> PTX_INLINE void given(char* at, T v) { memcpy(at, &v, sizeof v); }
// An argument: inside the argument block.
template <class T> PTX_INLINE T argument(const char* block, u64 bytes, u64 at) {
    if (at - (u64)block > bytes || at - (u64)block + sizeof(T) > bytes || at % sizeof(T)) ptx_fail("a load outside the arguments");
    return taken<T>((const char*)at);
}

PTX_INLINE u32 mul_hi(u32 a, u32 b) { return (u64)a * b >> 32; }
PTX_INLINE s32 mul_hi(s32 a, s32 b) { return (s32)((s64)a * b >> 32); }
PTX_INLINE u64 mul_hi(u64 a, u64 b) { return (u64)((unsigned __int128)a * b >> 64); }
template <class T> T quotient(T a, T b) {
    if (!b) ptx_fail("a division by zero");
    return b < 0 && b == (T)-1 ? (T)(0 - (u64)a) : a / b;
}
template <class T> T remainder(T a, T b) {
    if (!b) ptx_fail("a division by zero");
    return b < 0 && b == (T)-1 ? 0 : a % b;
}
// Shift counts beyond the width are clamped to it.
template <class T> PTX_INLINE T shl(T a, u32 n) { return n >= 8 * sizeof(T) ? 0 : (T)(a << n); }
template <class T> PTX_INLINE T shr(T a, u32 n) { return n >= 8 * sizeof(T) ? (a < 0 ? (T)-1 : 0) : (T)(a >> n); }
template <class T> T bfi(T a, T b, u32 at, u32 length) {
    at &= 255, length &= 255;
    if (at >= 8 * sizeof(T) || !length) return b;
    T mask = (length >= 8 * sizeof(T) ? (T)-1 : ((T)1 << length) - 1) << at;
    return (b & ~mask) | (a << at & mask);
}
static inline u32 prmt(u32 a, u32 b, u32 selector) {
    u64 both = (u64)b << 32 | a;
    u32 made = 0;
    for (int i = 0; i < 4; i++) {
        u32 choice = selector >> 4 * i & 15;
        u8 byte = (u8)(both >> 8 * (choice & 7));
        if (choice & 8) byte = byte & 0x80 ? 0xff : 0;
        made |= (u32)byte << 8 * i;
    }
    return made;
}

// To nearest, then back by one place if that went away from zero: the error of a float sum is a float.
static inline f32 add_rz(f32 a, f32 b) {
    f32 s = a + b, t = s - a;
    f32 error = (a - (s - t)) + (b - t);
    if (std::isinf(s) && std::isfinite(a) && std::isfinite(b)) return std::copysign(0x1.fffffep127f, s);
    return std::isfinite(s) && error != 0 && (error < 0) == (s > 0) ? std::nextafter(s, 0.0f) : s;
}
PTX_INLINE f32 flushed(f32 v) { return std::fabs(v) < 0x1p-126f ? std::copysign(0.0f, v) : v; }
PTX_INLINE bool large(f32 v) { return std::fabs(v) > 0x1p126f && std::fabs(v) <= 0x1.fffffep127f; }
// NaN is the other operand; -0 is less than +0.
template <class T> PTX_INLINE T larger(T a, T b) {
    return a > b ? a : a < b ? b : a != a ? b : b != b ? a : std::signbit(a) ? b : a;
}
template <class T> PTX_INLINE T smaller(T a, T b) {
    return a < b ? a : a > b ? b : a != a ? b : b != b ? a : std::signbit(a) ? a : b;
}

static inline f32 from_half(u16 h) {
    u32 sign = (u32)(h & 0x8000) << 16, exponent = h >> 10 & 31, digits = h & 1023;
    if (exponent == 31) return real(sign | 0x7f800000u | digits << 13);
    f32 v = exponent ? real((exponent + 112) << 23 | digits << 13) : (f32)digits * 0x1p-24f;
    return real(sign | bits(v));
}
// To nearest, ties to even: the places that do not fit are added away by a number that has none of them.
static inline u16 to_half(f32 v) {
    if (v != v) return 0x7fff;
    u16 sign = (u16)(bits(v) >> 16 & 0x8000);
    f32 size = std::fabs(v);
    if (size >= 65520.0f) return sign | 0x7c00;
    if (size < 0x1p-14f) return sign | (u16)(bits(size + 0.5f) - bits(0.5f));
    u32 b = bits(size);
    return sign | (u16)((b + 0xfff + (b >> 13 & 1) - (112u << 23)) >> 13);
}
PTX_INLINE f32 from_bfloat(u16 h) { return real((u32)h << 16); }
static inline u16 to_bfloat(f32 v) { return v != v ? 0x7fff : (u16)((bits(v) + 0x7fff + (bits(v) >> 16 & 1)) >> 16); }
// Two numbers at once. Conversions to float and back are exact; NaN is canonical.
static inline u32 larger_halves(u32 a, u32 b) {
    return (u32)to_half(larger(from_half(a >> 16), from_half(b >> 16))) << 16 | to_half(larger(from_half((u16)a), from_half((u16)b)));
}
static inline u32 larger_bfloats(u32 a, u32 b) {
    return (u32)to_bfloat(larger(from_bfloat(a >> 16), from_bfloat(b >> 16))) << 16 | to_bfloat(larger(from_bfloat((u16)a), from_bfloat((u16)b)));
}
// Out of range: the nearest. NaN: 0, and for 64 bits the least signed number.
template <class T, class R> T to_integer(R v) {
    constexpr bool is_signed = (T)-1 < 0;
    constexpr T least = is_signed ? (T)((u64)1 << (8 * sizeof(T) - 1)) : 0, most = (T)(is_signed ? ~least : (T)-1);
    if (v != v) return sizeof(T) == 8 ? (T)((u64)1 << 63) : 0;
    return v <= (R)least ? least : v >= (R)most ? most : (T)v;
}

static inline u32 ballot(bool vote, u32 mask) {
    const u64* all = ptx_collective("vote.sync", mask, vote);
    u32 votes = 0;
    for (int lane = 0; lane < 32; lane++)
        if (mask >> lane & 1 && all[lane]) votes |= 1u << lane;
    return votes;
}
// shfl.sync: `mode` is its letter; `clamp` holds the last lane of a segment, and the mask that makes segments.
static inline u32 shuffle(char mode, u32 value, u32 by, u32 clamp, u32 mask, bool& valid) {
    const u64* all = ptx_collective("shfl.sync", mask, value);
    u32 lane = ptx_lane(), segment = clamp >> 8 & 31, first = lane & segment, last = first | (clamp & 31 & ~segment), from;
    by &= 31;
    if (mode == 'u') from = lane - by, valid = (s32)from >= (s32)last;
    else from = mode == 'd' ? lane + by : mode == 'b' ? lane ^ by : first | (by & ~segment), valid = from <= last;
    if (!valid) from = lane;
    if (!(mask >> from & 1)) ptx_fail("shfl.sync from a lane outside the mask");
    return (u32)all[from];
}

template <class T> T atomic(const char* operation, u64 address, Space space, T with, T swapped = 0) {
    char* at = ptx_at(address, sizeof(T), space == SHARED_MEMORY ? SHARED_MEMORY : ATOMIC);
    T old = taken<T>(at), now = old;
    switch (operation[0] << 8 | operation[1]) {
        case 'a' << 8 | 'd': now = (T)(old + with); break;
        case 'm' << 8 | 'i': now = with < old ? with : old; break;
        case 'm' << 8 | 'a': now = with > old ? with : old; break;
        case 'e' << 8 | 'x': now = with; break;
        case 'c' << 8 | 'a': now = old == with ? swapped : old; break;
        default: ptx_fail(operation);
    }
    given<T>(at, now);
    return old;
}
