// Pixels of a batch to what a model reads: crop, flip, normalise, in one read and one write. src/image/mod.rs is the
// contract; the CPU's path gives the same bits.
//
// A thread makes 16 bytes of the result, consecutive in memory, and stores them at once. Its reads are bytes:
// neighbouring threads share their lines, and the batch has just come over the bus at a fraction of this kernel's
// speed.

#define IMAGE_CHANNELS_MAX 16

struct ImageArguments {
    const u8* source; // rows x height x width x channels
    const i64* ids;
    void* out;
    u64 key;
    u64 flip_below; // of 2^32
    float scale[IMAGE_CHANNELS_MAX];
    float shift[IMAGE_CHANNELS_MAX];
    int rows;
    int height;
    int width;
    int channels;
    int out_height;
    int out_width;
    int padding;
    u32 tops; // places the crop can have
    u32 lefts;
    u32 random_crop;
    u32 channels_first;
    u32 vectors; // of a sample's result
};

// A byte that stays one.
struct U8 {
    typedef u8 Raw;
};

template <class T> struct MakePixel {
    static __device__ typename T::Raw of(u8 value, float scale, float shift) { return T::narrow(fmaf((float)value, scale, shift)); }
};

template <> struct MakePixel<U8> {
    static __device__ u8 of(u8 value, float, float) { return value; }
};

__device__ inline u64 mix_bits(u64 z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

#define GOLDEN 0x9e3779b97f4a7c15ull

// What chance decides for a sample.
struct ImageDraw {
    int top; // of the result's first line in the source
    int left;
    bool flip;
};

// `Arguments` have what a draw is made by.
template <class Arguments> __device__ inline ImageDraw draw_image(const Arguments& a, i64 id) {
    u64 chance = mix_bits(a.key ^ mix_bits((u64)id + GOLDEN));
    u64 place = mix_bits(chance + GOLDEN);
    ImageDraw drawn;
    drawn.top = (int)(a.random_crop ? (place & 0xffffffffu) * a.tops >> 32 : (a.tops - 1) / 2) - a.padding;
    drawn.left = (int)(a.random_crop ? (place >> 32) * a.lefts >> 32 : (a.lefts - 1) / 2) - a.padding;
    drawn.flip = (chance >> 32) < a.flip_below;
    return drawn;
}

template <class T> __device__ inline void make_images(const ImageArguments& a) {
    typedef typename T::Raw Raw;
    u64 vector = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    u32 row = (u32)(vector / a.vectors);
    if (row >= (u32)a.rows) return;
    int elements = a.out_height * a.out_width * a.channels;
    int first = (int)(vector - (u64)row * a.vectors) * Vector<T>::N;
    int count = elements - first < Vector<T>::N ? elements - first : Vector<T>::N;

    const ImageDraw drawn = draw_image(a, __ldg(a.ids + row));

    // Position of the first element; the others follow by counting.
    int x, y, c;
    if (a.channels_first) {
        x = first % a.out_width;
        y = first / a.out_width % a.out_height;
        c = first / a.out_width / a.out_height;
    } else {
        c = first % a.channels;
        x = first / a.channels % a.out_width;
        y = first / a.channels / a.out_width;
    }
    const u8* source = a.source + (u64)row * a.height * a.width * a.channels;
    typename Vector<T>::Bits made;
#pragma unroll
    for (int i = 0; i < Vector<T>::N; i++) {
        if (i >= count) continue; // not break: unrolled, `made` stays in registers
        int from_y = y + drawn.top, from_x = (drawn.flip ? a.out_width - 1 - x : x) + drawn.left;
        bool inside = from_y >= 0 && from_y < a.height && from_x >= 0 && from_x < a.width;
        u8 value = inside ? __ldg(source + ((i64)from_y * a.width + from_x) * a.channels + c) : (u8)0;
        made.raw[i] = MakePixel<T>::of(value, a.scale[c], a.shift[c]);
        if (a.channels_first) {
            if (++x == a.out_width) {
                x = 0;
                if (++y == a.out_height) y = 0, c++;
            }
        } else if (++c == a.channels) {
            c = 0;
            if (++x == a.out_width) x = 0, y++;
        }
    }
    Raw* out = (Raw*)a.out + (u64)row * elements + first;
    if (count == Vector<T>::N && ((u64)out & 15) == 0) {
        *(uint4*)out = made.word;
    } else {
#pragma unroll
        for (int i = 0; i < Vector<T>::N; i++) {
            if (i < count) out[i] = made.raw[i];
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) lossfeed_image_u8(ImageArguments a) { make_images<U8>(a); }
extern "C" __global__ void __launch_bounds__(256) lossfeed_image_f16(ImageArguments a) { make_images<F16>(a); }
extern "C" __global__ void __launch_bounds__(256) lossfeed_image_bf16(ImageArguments a) { make_images<BF16>(a); }
extern "C" __global__ void __launch_bounds__(256) lossfeed_image_f32(ImageArguments a) { make_images<F32>(a); }
