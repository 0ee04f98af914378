//! The shipped kernels: PTX text that every driver from 525 on compiles for its GPU, and where it came from.
//!
//! `kernels/README.md` documents entry points and arguments, [`crate::launch`] the launch shapes.

/// PTX ISA 8.0 for compute_75 and newer, one module with every entry point of [`KERNELS`].
pub fn module() -> &'static str {
    include_str!("../prebuilt/lossfeed.ptx")
}

/// SHA-256 of [`sources`], in hexadecimal, as it was when [`module`] was built (it is in the module's first line too).
pub const SOURCE_SHA256: &str = include_str!("../prebuilt/lossfeed.sha256");

/// The CUDA C++ of the module as one translation unit: header-free, for NVRTC or any other compiler.
pub fn sources() -> &'static str {
    concat!(
        include_str!("../cuda/prelude.cu"),
        include_str!("../cuda/rank.cu"),
        include_str!("../cuda/mail.cu"),
        include_str!("../cuda/finish.cu"),
        include_str!("../cuda/mean.cu"),
        include_str!("../cuda/tiles.cu"),
        include_str!("../cuda/radix.cu"),
        include_str!("../cuda/sums.cu"),
        include_str!("../cuda/score.cu"),
        include_str!("../cuda/gradient.cu"),
        include_str!("../cuda/probability.cu"),
        include_str!("../cuda/sequence.cu"),
        include_str!("../cuda/image.cu"),
        include_str!("../cuda/gather.cu"),
    )
}

/// Every entry point: load them all when the module is loaded, so that none is first met in a training step.
pub const KERNELS: [&str; 44] = [
    "lossfeed_score_warp_f16",
    "lossfeed_score_warp_bf16",
    "lossfeed_score_warp_f32",
    "lossfeed_score_warp_f64",
    "lossfeed_score_block_f16",
    "lossfeed_score_block_bf16",
    "lossfeed_score_block_f32",
    "lossfeed_score_block_f64",
    "lossfeed_smooth_warp_f16",
    "lossfeed_smooth_warp_bf16",
    "lossfeed_smooth_warp_f32",
    "lossfeed_smooth_warp_f64",
    "lossfeed_smooth_block_f16",
    "lossfeed_smooth_block_bf16",
    "lossfeed_smooth_block_f32",
    "lossfeed_smooth_block_f64",
    "lossfeed_backward_f16",
    "lossfeed_backward_bf16",
    "lossfeed_backward_f32",
    "lossfeed_backward_f64",
    "lossfeed_probability_f16",
    "lossfeed_probability_bf16",
    "lossfeed_probability_f32",
    "lossfeed_probability_f64",
    "lossfeed_probability_backward_f16",
    "lossfeed_probability_backward_bf16",
    "lossfeed_probability_backward_f32",
    "lossfeed_probability_backward_f64",
    "lossfeed_sequence_f32",
    "lossfeed_sequence_f64",
    "lossfeed_rank_sort",
    "lossfeed_rank_tiles",
    "lossfeed_rank_search",
    "lossfeed_radix_count",
    "lossfeed_radix_scatter",
    "lossfeed_radix_search",
    "lossfeed_mail_close",
    "lossfeed_image_u8",
    "lossfeed_image_f16",
    "lossfeed_image_bf16",
    "lossfeed_image_f32",
    "lossfeed_gather_b128",
    "lossfeed_gather_b32",
    "lossfeed_gather_b8",
];
