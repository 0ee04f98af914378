// Changes of an image's colours and levels. src/image/jitter.rs and augment/operation.rs are the contracts; the CPU's
// paths give the same bits.
//
// A block has an image, and its threads take four pixels at a time: whole words, where the image begins at one. What
// must be known of all pixels before any is changed is gathered in shared memory, in whole numbers, so that no order of
// threads matters. Every function begins and ends without a barrier: the caller has one between any two.
//
// Nothing is fused, because the CPU's multiplications and additions are rounded one by one.

#define LEVELS 256
// Tables of counts that warps take in turn: neighbours are often alike, and a count waits for the last write to it.
#define COUNTERS 4
// Lines of a result whose beginnings are known at a time.
#define BAND 128
// Steps of colours for one image: four factors, and grey.
#define COLOR_STEPS_MAX 5

__device__ inline float times(float a, float b) { return __fmul_rn(a, b); }
__device__ inline float plus(float a, float b) { return __fadd_rn(a, b); }
__device__ inline float minus(float a, float b) { return __fsub_rn(a, b); }
__device__ inline float over(float a, float b) { return __fdiv_rn(a, b); }

// What is done to an image. The first fourteen are those that augmentation draws from, by their number.
enum Operation {
    IDENTITY,
    SHEAR_X,
    SHEAR_Y,
    TRANSLATE_X,
    TRANSLATE_Y,
    ROTATE,
    BRIGHTNESS,
    SATURATION,
    CONTRAST,
    SHARPNESS,
    POSTERIZE,
    SOLARIZE,
    AUTO_CONTRAST,
    EQUALIZE,
    OPERATIONS, // how many they are
    HUE = OPERATIONS,
    GREY,
};

// An operation with its strength.
struct Drawn {
    double amount; // of a shear; degrees of a rotation
    float factor;
    int whole; // pixels, bits or a level
    int operation;
    int unused;
};

// What a block's threads share.
struct RetouchShared {
    u64 sum;
    i64 begins[2][BAND];
    Drawn steps[COLOR_STEPS_MAX];
    u32 count; // of the steps
    u32 ends[2][3];
    u32 counts[COUNTERS][3][LEVELS];
    u8 table[3][LEVELS];
};

#define RETOUCH_SHARED_BYTES 15264
static_assert(sizeof(RetouchShared) == RETOUCH_SHARED_BYTES, "src/launch/retouch.rs has the number too");

// Bytes of height x width x C.
struct Picture {
    u8* bytes;
    u32 height;
    u32 width;
    __device__ u32 pixels() const { return height * width; }
};

// Four pixels in a row; those that are not there are 0.
template <int C> union Four {
    u32 word[C];
    u8 level[4][C];

    __device__ Four() {
#pragma unroll
        for (int k = 0; k < C; k++) word[k] = 0;
    }
    __device__ void load(const u8* at, u32 count) {
        if (count == 4 && ((u64)at & 3) == 0) {
#pragma unroll
            for (int k = 0; k < C; k++) word[k] = ((const u32*)at)[k];
        } else {
#pragma unroll
            for (u32 k = 0; k < 4 * C; k++) {
                if (k < count * C) level[k / C][k % C] = at[k];
            }
        }
    }
    __device__ void store(u8* at, u32 count) const {
        if (count == 4 && ((u64)at & 3) == 0) {
#pragma unroll
            for (int k = 0; k < C; k++) ((u32*)at)[k] = word[k];
        } else {
#pragma unroll
            for (u32 k = 0; k < 4 * C; k++) {
                if (k < count * C) at[k] = level[k / C][k % C];
            }
        }
    }
};

__device__ inline u32 smaller(u32 a, u32 b) { return a < b ? a : b; }

// Every pixel of the image, changed, to `to`: the image itself, or one of its size.
template <int C, class Change> __device__ inline void change_pixels(const Picture& image, u8* to, const Change& change) {
    const u32 pixels = image.pixels(), step = 4 * blockDim.x;
    for (u32 first = 4 * threadIdx.x; first < pixels; first += step) {
        const u32 count = smaller(4, pixels - first);
        Four<C> four;
        four.load(image.bytes + (u64)first * C, count);
#pragma unroll
        for (int i = 0; i < 4; i++) change(four.level[i]);
        four.store(to + (u64)first * C, count);
    }
}

// Looks at every pixel.
template <int C, class Look> __device__ inline void each_pixel(const Picture& image, const Look& look) {
    const u32 pixels = image.pixels(), step = 4 * blockDim.x;
    for (u32 first = 4 * threadIdx.x; first < pixels; first += step) {
        const u32 count = smaller(4, pixels - first);
        Four<C> four;
        four.load(image.bytes + (u64)first * C, count);
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            if (i < count) look(four.level[i]);
        }
    }
}

// A level of a number: cut off towards 0, and at 255. What is no number is 0.
__device__ inline u8 level_of(float value) {
    if (!(value > 0.0f)) return 0;
    return value < 255.0f ? (u8)(int)value : (u8)255;
}

// A pixel's grey, in whole levels (ITU-R 601-2, as torchvision rounds its weights).
__device__ inline int grey_of(const u8 (&pixel)[3]) {
    float red_green = plus(times((float)pixel[0], 0.2989f), times((float)pixel[1], 0.587f));
    return (int)plus(red_green, times((float)pixel[2], 0.114f));
}
__device__ inline int grey_of(const u8 (&pixel)[1]) { return pixel[0]; }

// All levels by one function, which is asked once for each of them.
template <int C, class Level> __device__ inline void change_levels(const Picture& image, RetouchShared& s, const Level& level) {
    for (u32 k = threadIdx.x; k < LEVELS; k += blockDim.x) s.table[0][k] = level((float)k);
    __syncthreads();
    change_pixels<C>(image, image.bytes, [&](u8(&pixel)[C]) {
#pragma unroll
        for (int c = 0; c < C; c++) pixel[c] = s.table[0][pixel[c]];
    });
}

// Each channel's levels by its own table.
template <int C> __device__ inline void change_by_tables(const Picture& image, const RetouchShared& s) {
    change_pixels<C>(image, image.bytes, [&](u8(&pixel)[C]) {
#pragma unroll
        for (int c = 0; c < C; c++) pixel[c] = s.table[c][pixel[c]];
    });
}

template <int C> __device__ inline float mean_grey(const Picture& image, RetouchShared& s) {
    if (threadIdx.x == 0) s.sum = 0;
    __syncthreads();
    u64 sum = 0;
    each_pixel<C>(image, [&](const u8(&pixel)[C]) { sum += (u64)grey_of(pixel); });
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(FULL_WARP, sum, step);
    if (threadIdx.x % 32 == 0) atomicAdd(&s.sum, sum);
    __syncthreads();
    return __double2float_rn(__ddiv_rn((double)s.sum, (double)image.pixels()));
}

template <int C> __device__ inline void change_contrast(const Picture& image, RetouchShared& s, float factor) {
    const float rest = times(mean_grey<C>(image, s), minus(1.0f, factor));
    change_levels<C>(image, s, [=](float level) { return level_of(plus(times(level, factor), rest)); });
}

__device__ inline void change_saturation(const Picture& image, float factor) {
    const float rest = minus(1.0f, factor);
    change_pixels<3>(image, image.bytes, [=](u8(&pixel)[3]) {
        const float grey = times((float)grey_of(pixel), rest);
#pragma unroll
        for (int c = 0; c < 3; c++) pixel[c] = level_of(plus(times((float)pixel[c], factor), grey));
    });
}

// A pixel whose hue is turned by a share of the circle: to hue, saturation and value, and back.
__device__ inline void turn_pixel(u8 (&pixel)[3], float turn) {
    const float red = over((float)pixel[0], 255.0f), green = over((float)pixel[1], 255.0f), blue = over((float)pixel[2], 255.0f);
    float most = red > green ? red : green, least = red < green ? red : green;
    most = most > blue ? most : blue;
    least = least < blue ? least : blue;
    const float range = minus(most, least);
    if (range == 0.0f) return; // grey has no hue
    const float to_red = over(minus(most, red), range), to_green = over(minus(most, green), range), to_blue = over(minus(most, blue), range);
    const float of_others = most == green ? minus(plus(2.0f, to_red), to_blue) : minus(plus(4.0f, to_green), to_red);
    const float sixth = most == red ? minus(to_blue, to_green) : of_others;
    float hue = plus(plus(over(sixth, 6.0f), 1.0f), turn);
    hue = minus(hue, (float)(int)hue);
    hue = times(hue < 0.0f ? plus(hue, 1.0f) : hue, 6.0f);
    const int sixths = (int)hue;
    const float part = minus(hue, (float)sixths);
    const float saturation = over(range, most);
    const float low = times(most, minus(1.0f, saturation));
    const float falling = times(most, minus(1.0f, times(saturation, part)));
    const float rising = times(most, minus(1.0f, times(saturation, minus(1.0f, part))));
    const int sector = sixths < 6 ? sixths : 0; // rounding may give a whole circle
    const float made[3] = {
        sector == 0 || sector == 5 ? most : sector == 4 ? rising : sector == 1 ? falling : low,
        sector == 1 || sector == 2 ? most : sector == 0 ? rising : sector == 3 ? falling : low,
        sector == 3 || sector == 4 ? most : sector == 2 ? rising : sector == 5 ? falling : low,
    };
#pragma unroll
    for (int c = 0; c < 3; c++) pixel[c] = level_of(times(made[c], 255.999f));
}

// ---- levels by what all of the image's pixels are ------------------------------------------------------------------

// Each channel's levels, stretched so that its least and its largest become 0 and 255, or 254 by rounding.
template <int C> __device__ inline void stretch_levels(const Picture& image, RetouchShared& s) {
    if (threadIdx.x < 3) {
        s.ends[0][threadIdx.x] = LEVELS - 1;
        s.ends[1][threadIdx.x] = 0;
    }
    __syncthreads();
    u32 least[C], most[C];
#pragma unroll
    for (int c = 0; c < C; c++) least[c] = LEVELS - 1, most[c] = 0;
    each_pixel<C>(image, [&](const u8(&pixel)[C]) {
#pragma unroll
        for (int c = 0; c < C; c++) {
            least[c] = pixel[c] < least[c] ? pixel[c] : least[c];
            most[c] = pixel[c] > most[c] ? pixel[c] : most[c];
        }
    });
#pragma unroll
    for (int c = 0; c < C; c++) {
        for (int step = 16; step > 0; step /= 2) {
            const u32 other_least = __shfl_xor_sync(FULL_WARP, least[c], step), other_most = __shfl_xor_sync(FULL_WARP, most[c], step);
            least[c] = other_least < least[c] ? other_least : least[c];
            most[c] = other_most > most[c] ? other_most : most[c];
        }
        if (threadIdx.x % 32 == 0) {
            atomicMin(&s.ends[0][c], least[c]);
            atomicMax(&s.ends[1][c], most[c]);
        }
    }
    __syncthreads();
    for (u32 k = threadIdx.x; k < C * LEVELS; k += blockDim.x) {
        const u32 c = k / LEVELS, level = k % LEVELS, low = s.ends[0][c], high = s.ends[1][c];
        const float scale = times((float)(high - low), 1.0f / 255.0f);
        s.table[c][level] = low >= high ? (u8)level : level_of(over(minus((float)level, (float)low), scale));
    }
    __syncthreads();
    change_by_tables<C>(image, s);
}

// Each channel's levels, by how many pixels lie below them: Pillow's way, in steps of as many pixels as each of 255
// levels would have without those of the highest.
template <int C> __device__ inline void equalize_levels(const Picture& image, RetouchShared& s) {
    u32* all = &s.counts[0][0][0];
    for (u32 k = threadIdx.x; k < COUNTERS * 3 * LEVELS; k += blockDim.x) all[k] = 0;
    if (threadIdx.x < 3) s.ends[1][threadIdx.x] = 0;
    __syncthreads();
    u32(*mine)[LEVELS] = s.counts[threadIdx.x / 32 % COUNTERS];
    each_pixel<C>(image, [&](const u8(&pixel)[C]) {
#pragma unroll
        for (int c = 0; c < C; c++) atomicAdd(&mine[c][pixel[c]], 1u);
    });
    __syncthreads();
    for (u32 k = threadIdx.x; k < C * LEVELS; k += blockDim.x) {
        const u32 c = k / LEVELS, level = k % LEVELS;
        u32 count = 0;
        for (int n = 0; n < COUNTERS; n++) count += s.counts[n][c][level];
        s.counts[0][c][level] = count;
        if (count > 0) atomicMax(&s.ends[1][c], level);
    }
    __syncthreads();
    for (u32 k = threadIdx.x; k < C * LEVELS; k += blockDim.x) {
        const u32 c = k / LEVELS, level = k % LEVELS;
        const u32 step = (image.pixels() - s.counts[0][c][s.ends[1][c]]) / 255;
        u32 below = step / 2;
        for (u32 lower = 0; lower < level; lower++) below += s.counts[0][c][lower];
        s.table[c][level] = step == 0 ? (u8)level : (u8)smaller(below / step, 255);
    }
    __syncthreads();
    change_by_tables<C>(image, s);
}

// One of the operations that leave every pixel where it is.
template <int C> __device__ inline void recolor(const Drawn& drawn, const Picture& image, RetouchShared& s) {
    const float factor = drawn.factor;
    const int whole = drawn.whole;
    switch (drawn.operation) {
    case BRIGHTNESS: change_levels<C>(image, s, [=](float level) { return level_of(times(level, factor)); }); break;
    case CONTRAST: change_contrast<C>(image, s, factor); break;
    case SATURATION:
        if constexpr (C == 3) change_saturation(image, factor);
        break;
    case HUE:
        if constexpr (C == 3) change_pixels<3>(image, image.bytes, [=](u8(&pixel)[3]) { turn_pixel(pixel, factor); });
        break;
    case GREY:
        if constexpr (C == 3) change_pixels<3>(image, image.bytes, [](u8(&pixel)[3]) { pixel[0] = pixel[1] = pixel[2] = (u8)grey_of(pixel); });
        break;
    case POSTERIZE:
        change_pixels<C>(image, image.bytes, [=](u8(&pixel)[C]) {
#pragma unroll
            for (int c = 0; c < C; c++) pixel[c] = (u8)(pixel[c] & ~(255u >> whole));
        });
        break;
    case SOLARIZE:
        change_pixels<C>(image, image.bytes, [=](u8(&pixel)[C]) {
#pragma unroll
            for (int c = 0; c < C; c++) pixel[c] = pixel[c] >= whole ? (u8)(255 - pixel[c]) : pixel[c];
        });
        break;
    case AUTO_CONTRAST: stretch_levels<C>(image, s); break;
    case EQUALIZE: equalize_levels<C>(image, s); break;
    }
}
