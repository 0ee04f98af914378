// The kernels of kernels/cuda, compiled for fibers, and their entry points by name.
#pragma once

#include "fiber.h"

#include "prelude.cu"
#include "rank.cu"
#include "mail.cu"
#include "finish.cu"
#include "mean.cu"
#include "tiles.cu"
#include "radix.cu"
#include "sums.cu"
#include "score.cu"
#include "gradient.cu"
#include "probability.cu"
#include "sequence.cu"
#include "image.cu"
#include "color.cu"
#include "retouch.cu"
#include "mixing.cu"
#include "gather.cu"

namespace {

template <class A, void (*kernel)(A)> void call(const char* arguments) {
    A a;
    memcpy(&a, arguments, sizeof a);
    kernel(a);
}

using Entry = void (*)(const char*);

#define FOUR(family, A)                                                                                                        \
    {"lossfeed_" #family "_f16", {call<A, lossfeed_##family##_f16>, sizeof(A)}},                                               \
        {"lossfeed_" #family "_bf16", {call<A, lossfeed_##family##_bf16>, sizeof(A)}},                                         \
        {"lossfeed_" #family "_f32", {call<A, lossfeed_##family##_f32>, sizeof(A)}},                                           \
        {"lossfeed_" #family "_f64", {call<A, lossfeed_##family##_f64>, sizeof(A)}}
#define ONE(name, A) {"lossfeed_" #name, {call<A, lossfeed_##name>, sizeof(A)}}

// Never destroyed, as the fibers' state.
const auto& KERNELS = *new const std::unordered_map<std::string, std::pair<Entry, size_t>>{
    FOUR(score, ScoreArguments),
    ONE(loss_f16, ScoreArguments),
    ONE(loss_bf16, ScoreArguments),
    ONE(loss_f32, ScoreArguments),
    FOUR(smooth, ScoreArguments),
    FOUR(backward, GradientArguments),
    FOUR(probability, ProbabilityArguments),
    FOUR(probability_backward, ProbabilityGradientArguments),
    ONE(sequence_f32, SequenceArguments),
    ONE(sequence_f64, SequenceArguments),
    ONE(rank_sort, Finish),
    ONE(rank_tiles, TileArguments),
    ONE(rank_search, TileArguments),
    ONE(radix_count, RadixArguments),
    ONE(radix_scatter, RadixArguments),
    ONE(radix_search, RadixArguments),
    ONE(mail_close, MailArguments),
    ONE(image_u8, ImageArguments),
    ONE(image_f16, ImageArguments),
    ONE(image_bf16, ImageArguments),
    ONE(image_f32, ImageArguments),
    ONE(retouch_c1, RetouchArguments),
    ONE(retouch_c3, RetouchArguments),
    ONE(mix_u8, MixArguments),
    ONE(mix_f16, MixArguments),
    ONE(mix_bf16, MixArguments),
    ONE(mix_f32, MixArguments),
    ONE(erase_b8, EraseArguments),
    ONE(erase_b16, EraseArguments),
    ONE(erase_b32, EraseArguments),
    ONE(gather_b128, GatherArguments),
    ONE(gather_b32, GatherArguments),
    ONE(gather_b8, GatherArguments),
};

#undef FOUR
#undef ONE

} // namespace
