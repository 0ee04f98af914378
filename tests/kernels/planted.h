// Kernels with one bug each, so that the tests know the fibers would find it.
#pragma once

namespace planted {

// Every thread reads its neighbour's word without a barrier in between.
inline void missing_barrier(float* out) {
    LOSSFEED_SHARED(shared);
    float* tile = (float*)shared;
    tile[threadIdx.x] = (float)threadIdx.x;
    out[threadIdx.x] = tile[(threadIdx.x + 1) % blockDim.x];
}

inline void barrier_in_a_branch(float* out) {
    if (threadIdx.x < 40) __syncthreads();
    out[threadIdx.x] = 0;
}

inline void divergent_collective(float* out) {
    uint32_t lane = threadIdx.x % 32;
    out[threadIdx.x] = lane < 16 ? __shfl_xor_sync(0xffffffffu, 1.0f, 1) : (float)__ballot_sync(0xffffffffu, 1);
}

inline void misaligned_load(float* out) {
    out[threadIdx.x] = (float)__ldg((const uint4*)(fiber::state().readable[0].begin + 4)).x;
}

inline void load_behind_the_end(float* out) { out[threadIdx.x] = __ldg((const float*)fiber::state().readable[0].end); }

inline void write_behind_the_end(float* out) { out[threadIdx.x + 1] = 0; }

inline void write_behind_shared_memory(float* out) {
    LOSSFEED_SHARED(shared);
    ((float*)shared)[threadIdx.x + 1] = 0;
    out[threadIdx.x] = 0;
}

inline void unwritten_shared_memory(float* out) {
    LOSSFEED_SHARED(shared);
    out[threadIdx.x] = ((float*)shared)[threadIdx.x];
}

inline void read_only_load_of_an_output(float* out) { out[threadIdx.x] = __ldg(out + threadIdx.x); }

// Not a bug: what a barrier, a ballot and a shuffle should give.
inline void sound(float* out) {
    LOSSFEED_SHARED(shared);
    float* tile = (float*)shared;
    tile[threadIdx.x] = (float)threadIdx.x;
    __syncthreads();
    float neighbour = tile[(threadIdx.x + 1) % blockDim.x];
    uint32_t odd = __ballot_sync(0xffffffffu, threadIdx.x & 1);
    __syncwarp();
    float first = __shfl_sync(0xffffffffu, neighbour, 0);
    out[threadIdx.x] = odd == 0xaaaaaaaau ? neighbour + 100 * first : -1;
}

using Kernel = void (*)(float*);

// The kernel of that name, or null.
inline Kernel find(const char* name) {
    static const struct {
        const char* name;
        Kernel kernel;
    } all[] = {
        {"planted_missing_barrier", missing_barrier},
        {"planted_barrier_in_a_branch", barrier_in_a_branch},
        {"planted_divergent_collective", divergent_collective},
        {"planted_misaligned_load", misaligned_load},
        {"planted_load_behind_the_end", load_behind_the_end},
        {"planted_write_behind_the_end", write_behind_the_end},
        {"planted_write_behind_shared_memory", write_behind_shared_memory},
        {"planted_unwritten_shared_memory", unwritten_shared_memory},
        {"planted_read_only_load_of_an_output", read_only_load_of_an_output},
        {"planted_sound", sound},
    };
    for (const auto& one : all)
        if (strcmp(one.name, name) == 0) return one.kernel;
    return nullptr;
}

} // namespace planted
