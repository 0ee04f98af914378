// Bytes of a batch between a crop and what makes elements of them: colours, a cut, automatic augmentation, each as it is
// drawn for the sample. src/image/jitter.rs and augment/ are the contracts; the CPU's paths give the same bits.
//
// A block takes an image through all of its steps: most images have a few of many, contrast and equalising look at
// every pixel before they change one, and what one step wrote the next reads, from the second-level cache if that is
// large enough. One thread draws, the others wait for it: draws are a few divisions in double precision.

struct RetouchArguments {
    u8* pixels; // rows x height x width x channels; colours change in place
    u8* out;    // rows x out_height x out_width x channels; null: colours are all there is
    u8* spare;  // room for as much, `spare_bytes` from row to row; perhaps `pixels`
    const i64* ids;
    u64 key; // of the cut's draws, and of those of others
    u64 color_key;
    u64 augment_key;
    u64 spare_bytes;
    u64 flip_below;   // of 2^32
    u64 change_below; // of 2^53
    u64 grey_below;
    double low[4]; // of factors: brightness, contrast, saturation, hue
    double span[4];
    int rows;
    u32 height;
    u32 width;
    u32 out_height;
    u32 out_width;
    int padding;
    u32 tops;
    u32 lefts;
    u32 random_crop;
    u32 cuts;
    u32 factors; // which of the four are drawn, a bit each
    u32 colors;  // whether colours are drawn at all
    u32 augments; // operations of an image
    u32 bins;
    u32 magnitude;
    u32 wide; // TrivialAugment's ranges, and a magnitude of each image's own
    u32 fill; // levels of pixels from beyond, 8 bits a channel
    u32 unused;
};

// ---- chance --------------------------------------------------------------------------------------------------------

// The words of one sample's draws.
struct Words {
    u64 state;
    __device__ Words(u64 key, i64 id) : state(mix_bits(key ^ mix_bits((u64)id + GOLDEN)) + GOLDEN) {}
    __device__ u64 next() {
        state += GOLDEN;
        return mix_bits(state);
    }
    // Evenly below n.
    __device__ u32 below(u32 n) { return (u32)__umul64hi(next(), n); }
    __device__ double between(double low, double span) {
        return __dadd_rn(low, __dmul_rn(span, (double)(next() >> 11) * (1.0 / 9007199254740992.0)));
    }
};

__device__ inline Drawn drawn_as(int operation, float factor) {
    Drawn drawn;
    drawn.amount = 0.0;
    drawn.factor = factor;
    drawn.whole = 0;
    drawn.operation = operation;
    return drawn;
}

// The steps of a sample's colours, in their order.
__device__ inline u32 draw_colors(const RetouchArguments& a, i64 id, Drawn* steps) {
    Words words(a.color_key, id);
    const bool changed = words.next() >> 11 < a.change_below, grey = words.next() >> 11 < a.grey_below;
    u32 order = 0x3210; // four bits a place
    for (u32 left = 3; left > 0; left--) {
        const u32 other = words.below(left + 1);
        const u32 both = (order >> 4 * left ^ order >> 4 * other) & 15;
        order ^= both << 4 * left;
        if (other != left) order ^= both << 4 * other;
    }
    float brightness = 0, contrast = 0, saturation = 0, hue = 0;
    if (a.factors & 1) brightness = __double2float_rn(words.between(a.low[0], a.span[0]));
    if (a.factors & 2) contrast = __double2float_rn(words.between(a.low[1], a.span[1]));
    if (a.factors & 4) saturation = __double2float_rn(words.between(a.low[2], a.span[2]));
    if (a.factors & 8) hue = __double2float_rn(words.between(a.low[3], a.span[3]));
    u32 count = 0;
    for (u32 place = 0; changed && place < 4; place++) {
        const u32 of = order >> 4 * place & 15;
        if ((a.factors >> of & 1) == 0) continue;
        steps[count++] = of == 0   ? drawn_as(BRIGHTNESS, brightness)
                         : of == 1 ? drawn_as(CONTRAST, contrast)
                         : of == 2 ? drawn_as(SATURATION, saturation)
                                   : drawn_as(HUE, hue);
    }
    if (grey) steps[count++] = drawn_as(GREY, 0.0f);
    return count;
}

// The next operation of a sample's augmentation.
__device__ inline Drawn draw_operation(const RetouchArguments& a, Words& words) {
    const u32 number = words.below(OPERATIONS), drawn_bin = words.below(a.bins);
    const bool negative = words.next() >> 63 != 0;
    const u32 bin = a.wide ? drawn_bin : a.magnitude, last = a.bins - 1;
    const double most = number == SHEAR_X || number == SHEAR_Y ? (a.wide ? 0.99 : 0.3)
                        : number == ROTATE                     ? (a.wide ? 135.0 : 30.0)
                        : number == POSTERIZE                  ? (a.wide ? 6.0 : 4.0)
                                                               : (a.wide ? 0.99 : 0.9);
    const double share = __ddiv_rn(__dmul_rn(most, (double)bin), (double)last);
    const double amount = negative ? -share : share;
    Drawn drawn = drawn_as((int)number, __double2float_rn(__dadd_rn(1.0, amount)));
    drawn.amount = amount;
    if (number == TRANSLATE_X || number == TRANSLATE_Y) {
        const u64 side = number == TRANSLATE_X ? a.out_width : a.out_height;
        const int whole = (int)(a.wide ? 32ull * bin / last : 150ull * side * bin / (331ull * last));
        drawn.whole = negative ? -whole : whole;
    } else if (number == POSTERIZE) {
        drawn.whole = (int)rint(__dadd_rn(8.0, -share));
    } else if (number == SOLARIZE) {
        drawn.whole = (int)((255ull * (last - bin) + last - 1) / last);
    }
    return drawn;
}

// ---- pixels that move ----------------------------------------------------------------------------------------------

// Places are counted in 2^-32 of a pixel.
#define WHOLE 4294967296ll

__device__ inline i64 fixed(double place) { return __double2ll_rn(place * 4294967296.0); }

// Where a line of the result comes from: `x` is its first pixel's column, `y` the line; both go on by `step_x` and
// `step_y` from pixel to pixel.
struct Begin {
    i64 x;
    i64 y;
};

// An image of other pixels: each of the result is the one of `from` that lies where it comes from, or the fill if that
// is beyond. `begins(y)` is a Begin.
template <int C, class Begins>
__device__ inline void move_pixels(const Picture& from, const Picture& to, RetouchShared& s, u32 fill, i64 step_x, i64 step_y, const Begins& begins) {
    for (u32 top = 0; top < to.height; top += BAND) {
        const u32 lines = smaller(BAND, to.height - top), pixels = lines * to.width;
        if (top > 0) __syncthreads();
        for (u32 line = threadIdx.x; line < lines; line += blockDim.x) {
            const Begin begin = begins(top + line);
            s.begins[0][line] = begin.x;
            s.begins[1][line] = begin.y;
        }
        __syncthreads();
        u8* band = to.bytes + (u64)top * to.width * C;
        for (u32 first = 4 * threadIdx.x; first < pixels; first += 4 * blockDim.x) {
            const u32 count = smaller(4, pixels - first);
            u32 line = first / to.width, column = first - line * to.width;
            i64 x = s.begins[0][line] + step_x * column, y = s.begins[1][line] + step_y * column;
            Four<C> four;
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                if (i >= count) continue; // not break: unrolled, `four` stays in registers
                // What lies before the first is beyond the last here.
                const u32 from_x = (u32)(x >> 32), from_y = (u32)(y >> 32);
                const bool inside = from_x < from.width && from_y < from.height;
                const u8* source = from.bytes + ((u64)from_y * from.width + from_x) * C;
#pragma unroll
                for (int c = 0; c < C; c++) four.level[i][c] = inside ? source[c] : (u8)(fill >> 8 * c);
                x += step_x;
                y += step_y;
                if (++column == to.width && i + 1 < count) {
                    column = 0;
                    line++;
                    x = s.begins[0][line];
                    y = s.begins[1][line];
                }
            }
            four.store(band + (u64)first * C, count);
        }
    }
}

template <int C> __device__ inline void cut(const RetouchArguments& a, i64 id, const Picture& from, const Picture& to, RetouchShared& s) {
    const ImageDraw drawn = draw_image(a, id);
    const i64 first = (drawn.flip ? (i64)a.out_width - 1 : 0) + drawn.left;
    move_pixels<C>(from, to, s, 0, drawn.flip ? -WHOLE : WHOLE, 0, [=](u32 y) {
        Begin begin = {first * WHOLE, ((i64)y + drawn.top) * WHOLE};
        return begin;
    });
}

// Sine and cosine, by the same steps as the CPU's (augment/turn.rs): a library's last bit is its own.
__device__ inline void turned(double degrees, double& sine, double& cosine) {
    const double sines[8] = {-1.0 / 6.0,        1.0 / 120.0,        -1.0 / 5040.0,          1.0 / 362880.0,
                             -1.0 / 39916800.0, 1.0 / 6227020800.0, -1.0 / 1307674368000.0, 1.0 / 355687428096000.0};
    const double cosines[8] = {-1.0 / 2.0,       1.0 / 24.0,        -1.0 / 720.0,         1.0 / 40320.0,
                               -1.0 / 3628800.0, 1.0 / 479001600.0, -1.0 / 87178291200.0, 1.0 / 20922789888000.0};
    const double quarters = rint(__ddiv_rn(degrees, 90.0));
    const double x = __dmul_rn(__dadd_rn(degrees, -__dmul_rn(quarters, 90.0)), 0.017453292519943295);
    const double square = __dmul_rn(x, x);
    double of_sine = sines[7], of_cosine = cosines[7];
#pragma unroll
    for (int k = 6; k >= 0; k--) {
        of_sine = __dadd_rn(__dmul_rn(of_sine, square), sines[k]);
        of_cosine = __dadd_rn(__dmul_rn(of_cosine, square), cosines[k]);
    }
    const double s = __dadd_rn(x, __dmul_rn(__dmul_rn(x, square), of_sine));
    const double c = __dadd_rn(1.0, __dmul_rn(square, of_cosine));
    const int quarter = (int)quarters & 3;
    sine = quarter == 0 ? s : quarter == 1 ? c : quarter == 2 ? -s : -c;
    cosine = quarter == 0 ? c : quarter == 1 ? -s : quarter == 2 ? -c : s;
}

// Around the centre against the clock.
template <int C> __device__ inline void rotate(double degrees, const Picture& from, const Picture& to, RetouchShared& s, u32 fill) {
    double sine, cosine;
    turned(-degrees, sine, cosine);
    const double middle_x = (double)(from.width - 1) * 0.5, middle_y = (double)(from.height - 1) * 0.5;
    const double x = __dadd_rn(__dadd_rn(middle_x, -__dmul_rn(cosine, middle_x)), -__dmul_rn(sine, middle_y));
    const double y = __dadd_rn(__dadd_rn(middle_y, __dmul_rn(sine, middle_x)), -__dmul_rn(cosine, middle_y));
    move_pixels<C>(from, to, s, fill, fixed(cosine), fixed(-sine), [=](u32 line) {
        Begin begin = {fixed(__dadd_rn(__dadd_rn(__dmul_rn(sine, (double)line), x), 0.5)),
                       fixed(__dadd_rn(__dadd_rn(__dmul_rn(cosine, (double)line), y), 0.5))};
        return begin;
    });
}

// Pixels across for each pixel down, from the top edge; and down for each across, from the left edge.
template <int C> __device__ inline void shear_across(double by, const Picture& from, const Picture& to, RetouchShared& s, u32 fill) {
    move_pixels<C>(from, to, s, fill, WHOLE, 0, [=](u32 line) {
        const double shift = floor(__dadd_rn(__dmul_rn(by, (double)line + 0.5), 0.5));
        Begin begin = {(i64)shift * WHOLE, (i64)line * WHOLE};
        return begin;
    });
}
template <int C> __device__ inline void shear_down(double by, const Picture& from, const Picture& to, RetouchShared& s, u32 fill) {
    move_pixels<C>(from, to, s, fill, WHOLE, fixed(by), [=](u32 line) {
        Begin begin = {WHOLE / 2, fixed(__dadd_rn(__dadd_rn((double)line, by * 0.5), 0.5))};
        return begin;
    });
}

template <int C> __device__ inline void translate(i64 right, i64 down, const Picture& from, const Picture& to, RetouchShared& s, u32 fill) {
    move_pixels<C>(from, to, s, fill, WHOLE, 0, [=](u32 line) {
        Begin begin = {-right * WHOLE, ((i64)line - down) * WHOLE};
        return begin;
    });
}

// Away from the blurred image, or towards it: its weights are 1 for each neighbour and 5 in the middle. Pixels at the
// edges stay. A thread takes four pixels of a line: the sums of six columns are all that it needs.
template <int C> __device__ inline void sharpen(float factor, const Picture& from, const Picture& to) {
    const float weight = minus(1.0f, factor);
    const u32 fours = (from.width + 3) / 4, all = fours * from.height, width = from.width;
    const u64 line_bytes = (u64)width * C;
    for (u32 k = threadIdx.x; k < all; k += blockDim.x) {
        const u32 y = k / fours, x = 4 * (k - y * fours), count = smaller(4, width - x);
        const u64 at = y * line_bytes + (u64)x * C;
        Four<C> four;
        four.load(from.bytes + at, count);
        if (y > 0 && y + 1 < from.height) {
#pragma unroll
            for (int c = 0; c < C; c++) {
                u32 columns[6];
#pragma unroll
                for (u32 n = 0; n < 6; n++) {
                    const bool there = x + n > 0 && x + n <= width;
                    const u8* above = from.bytes + at - line_bytes + (i64)n * C - C + c;
                    columns[n] = there ? (u32)above[0] + above[line_bytes] + above[2 * line_bytes] : 0;
                }
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    if (x + i == 0 || x + i + 1 >= width) continue;
                    const u32 middle = four.level[i][c];
                    const u32 sum = columns[i] + columns[i + 1] + columns[i + 2] + 4 * middle;
                    const float level = (float)middle, blurred = (float)((2 * sum + 13) / 26);
                    four.level[i][c] = level_of(plus(level, times(minus(blurred, level), weight)));
                }
            }
        }
        four.store(to.bytes + at, count);
    }
}

// ---- an image ------------------------------------------------------------------------------------------------------

// Does an operation to the image `here`; whether the image is `there` now.
template <int C> __device__ inline bool operate(const Drawn& drawn, const Picture& here, const Picture& there, RetouchShared& s, u32 fill) {
    switch (drawn.operation) {
    case SHEAR_X: shear_across<C>(drawn.amount, here, there, s, fill); return true;
    case SHEAR_Y: shear_down<C>(drawn.amount, here, there, s, fill); return true;
    case TRANSLATE_X: translate<C>(drawn.whole, 0, here, there, s, fill); return true;
    case TRANSLATE_Y: translate<C>(0, drawn.whole, here, there, s, fill); return true;
    case ROTATE: rotate<C>(drawn.amount, here, there, s, fill); return true;
    case SHARPNESS:
        if (here.height < 3 || here.width < 3) return false;
        sharpen<C>(drawn.factor, here, there);
        return true;
    default: recolor<C>(drawn, here, s); return false;
    }
}

template <int C> __device__ inline void change_colors(const RetouchArguments& a, i64 id, const Picture& image, RetouchShared& s) {
    if (threadIdx.x == 0) s.count = draw_colors(a, id, s.steps);
    __syncthreads();
    const u32 count = s.count;
    for (u32 k = 0; k < count; k++) {
        recolor<C>(s.steps[k], image, s);
        __syncthreads();
    }
}

template <int C> __device__ inline void retouch(const RetouchArguments& a) {
    LOSSFEED_SHARED(memory);
    RetouchShared& s = *(RetouchShared*)memory;
    const u32 row = blockIdx.x;
    const i64 id = __ldg(a.ids + row);
    const u64 out_bytes = (u64)a.out_height * a.out_width * C;
    Picture here = {a.pixels + (u64)row * a.height * a.width * C, a.height, a.width};
    if (a.colors) change_colors<C>(a, id, here, s);
    if (a.out == nullptr) return;
    const Picture out = {a.out + row * out_bytes, a.out_height, a.out_width};
    const Picture spare = {a.spare + row * a.spare_bytes, a.out_height, a.out_width};
    if (a.cuts) {
        cut<C>(a, id, here, out, s);
        here = out;
    }
    Words words(a.augment_key, id);
    for (u32 k = 0; k < a.augments; k++) {
        __syncthreads();
        if (threadIdx.x == 0) s.steps[0] = draw_operation(a, words);
        __syncthreads();
        const Drawn drawn = s.steps[0];
        const Picture there = here.bytes == out.bytes ? spare : out;
        if (operate<C>(drawn, here, there, s, a.fill)) here = there;
    }
    if (here.bytes == out.bytes) return;
    __syncthreads();
    change_pixels<C>(here, out.bytes, [](u8(&)[C]) {});
}

extern "C" __global__ void __launch_bounds__(256, 3) lossfeed_retouch_c1(RetouchArguments a) { retouch<1>(a); }
extern "C" __global__ void __launch_bounds__(256, 3) lossfeed_retouch_c3(RetouchArguments a) { retouch<3>(a); }
