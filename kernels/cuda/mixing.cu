// Images of a finished batch, erased in part and mixed in pairs, where they lie. src/image/erase.rs and mixing.rs are
// the contracts; the CPU's paths give the same bits.
//
// A row and its partner are one thread's, 16 bytes of each: both are read before either is written. Of CutMix only what
// is swapped is touched.

struct MixArguments {
    void* data; // rows x channels x height x width, or channels last
    float lam;
    float rest; // 1 - lam
    int rows;
    int height;
    int width;
    int channels;
    // CutMix: the partner's pixels are in this box, or with `outside` around it.
    int top;
    int left;
    int bottom;
    int right;
    u32 outside;
    u32 blends; // mixup: no box
    u32 channels_first;
    u32 vectors; // of a sample
};

// Not fused: the CPU's multiplications and additions are rounded one by one.
__device__ inline float blended(float own, float partner, const MixArguments& a) {
    return __fadd_rn(__fmul_rn(own, a.lam), __fmul_rn(partner, a.rest));
}

template <class T> struct BlendPixel {
    static __device__ typename T::Raw of(typename T::Raw own, typename T::Raw partner, const MixArguments& a) {
        return T::narrow(blended(T::widen(own), T::widen(partner), a));
    }
};

template <> struct BlendPixel<U8> {
    static __device__ u8 of(u8 own, u8 partner, const MixArguments& a) {
        return (u8)(int)__fadd_rn(blended((float)own, (float)partner, a), 0.5f);
    }
};

// Which of `count` elements from `first` on a pair exchanges or blends: a bit each.
template <class T> __device__ inline u32 mixed_elements(const MixArguments& a, int first, int count) {
    if (a.blends) return (1u << count) - 1;
    int x, y, c;
    if (a.channels_first) {
        x = first % a.width;
        y = first / a.width % a.height;
        c = 0;
    } else {
        c = first % a.channels;
        x = first / a.channels % a.width;
        y = first / a.channels / a.width;
    }
    u32 mixed = 0;
    for (int i = 0; i < count; i++) {
        bool inside = y >= a.top && y < a.bottom && x >= a.left && x < a.right;
        mixed |= (u32)(inside != (a.outside != 0)) << i;
        if (a.channels_first || ++c == a.channels) {
            c = 0;
            if (++x == a.width) {
                x = 0;
                if (++y == a.height && a.channels_first) y = 0;
            }
        }
    }
    return mixed;
}

template <class T> __device__ inline void mix_images(const MixArguments& a) {
    typedef typename T::Raw Raw;
    u64 vector = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    u32 pair = (u32)(vector / a.vectors);
    if (pair >= (u32)a.rows / 2) return;
    int elements = a.height * a.width * a.channels;
    int first = (int)(vector - (u64)pair * a.vectors) * Vector<T>::N;
    int count = elements - first < Vector<T>::N ? elements - first : Vector<T>::N;
    u32 mixed = mixed_elements<T>(a, first, count);
    if (mixed == 0) return;

    Raw* own = (Raw*)a.data + (u64)pair * elements + first;
    Raw* partner = (Raw*)a.data + (u64)(a.rows - 1 - pair) * elements + first;
    bool whole = count == Vector<T>::N && (((u64)own | (u64)partner) & 15) == 0;
    typename Vector<T>::Bits mine, theirs;
    if (whole) {
        mine.word = *(const uint4*)own;
        theirs.word = *(const uint4*)partner;
    } else {
#pragma unroll
        for (int i = 0; i < Vector<T>::N; i++) {
            if (i < count) mine.raw[i] = own[i], theirs.raw[i] = partner[i];
        }
    }
#pragma unroll
    for (int i = 0; i < Vector<T>::N; i++) {
        if ((mixed >> i & 1) == 0) continue;
        Raw here = mine.raw[i], there = theirs.raw[i];
        mine.raw[i] = a.blends ? BlendPixel<T>::of(here, there, a) : there;
        theirs.raw[i] = a.blends ? BlendPixel<T>::of(there, here, a) : here;
    }
    if (whole) {
        *(uint4*)own = mine.word;
        *(uint4*)partner = theirs.word;
    } else {
#pragma unroll
        for (int i = 0; i < Vector<T>::N; i++) {
            if (i < count) own[i] = mine.raw[i], partner[i] = theirs.raw[i];
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) lossfeed_mix_u8(MixArguments a) { mix_images<U8>(a); }
extern "C" __global__ void __launch_bounds__(256) lossfeed_mix_f16(MixArguments a) { mix_images<F16>(a); }
extern "C" __global__ void __launch_bounds__(256) lossfeed_mix_bf16(MixArguments a) { mix_images<BF16>(a); }
extern "C" __global__ void __launch_bounds__(256) lossfeed_mix_f32(MixArguments a) { mix_images<F32>(a); }

// ---- erasing -------------------------------------------------------------------------------------------------------

// The rectangles come from the host, which draws them: a logarithm's last bit is the processor's own.
#define ERASE_ROWS_MAX 320 // a structure of 4 KB is the most that a launch takes everywhere

struct ErasedRow {
    u32 row;
    u16 top;
    u16 left;
    u16 height;
    u16 width;
};

struct EraseArguments {
    void* out;
    u64 row_words;  // of a sample
    u32 line_words; // of a line of a plane
    u32 pixel_words;
    u32 height; // of the image
    u32 planes;
    u32 rows;
    u32 blocks; // a row
    ErasedRow of[ERASE_ROWS_MAX];
};

// Words of an element: all bits of 0 are the number 0 in every type.
template <class Word> __device__ inline void erase(const EraseArguments& a) {
    const ErasedRow at = a.of[blockIdx.x / a.blocks];
    const u32 words = at.width * a.pixel_words, lines = at.height * a.planes;
    const u64 total = (u64)words * lines, step = (u64)a.blocks * blockDim.x;
    Word* out = (Word*)a.out + at.row * a.row_words + at.left * a.pixel_words;
    for (u64 k = (u64)(blockIdx.x % a.blocks) * blockDim.x + threadIdx.x; k < total; k += step) {
        u32 line = (u32)(k / words), word = (u32)(k - (u64)line * words);
        u32 plane = line / at.height, y = at.top + (line - plane * at.height);
        out[((u64)plane * a.height + y) * a.line_words + word] = 0;
    }
}

extern "C" __global__ void __launch_bounds__(256) lossfeed_erase_b8(EraseArguments a) { erase<u8>(a); }
extern "C" __global__ void __launch_bounds__(256) lossfeed_erase_b16(EraseArguments a) { erase<u16>(a); }
extern "C" __global__ void __launch_bounds__(256) lossfeed_erase_b32(EraseArguments a) { erase<u32>(a); }
