//! The structures that kernels take by value, field by field as in `cuda/*.cu`. Addresses are the device's; 0 is null.

use bytemuck::{Pod, Zeroable};

use crate::image::CHANNELS_MAX;

/// `struct Finish`: what happens to a batch once every row has its loss.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[allow(missing_docs)] // documented where they are read, in cuda/*.cu
pub struct Finish {
    pub keys: u64,
    pub count: u64,
    pub rank_score: u64,
    pub loss: u64,
    pub grad_norm: u64,
    pub entropy: u64,
    pub ids: u64,
    pub mail: u64,
    pub tickets: u64,
    pub tag: u64,
    pub b0: f32,
    pub rows: i32,
    pub real_bytes: u32,
    pub unused: u32,
}

/// `struct Mean`: the mean or the sum of a batch's terms.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[allow(missing_docs)]
pub struct Mean {
    pub parts: u64,
    pub out: u64,
    pub divisor: u64,
    pub sample_weight: u64,
    pub sample_rows: u32,
    pub count: u32,
    pub divide: u32,
    pub narrow: u32,
}

/// `struct ScoreArguments`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[allow(missing_docs)]
pub struct ScoreArguments {
    pub finish: Finish,
    pub mean: Mean,
    pub logits: u64,
    pub targets: u64,
    pub row_stride: i64,
    pub ignore_index: i64,
    pub loss: u64,
    pub max: u64,
    pub log_sum: u64,
    pub grad_norm: u64,
    pub entropy: u64,
    pub correct: u64,
    pub weight: u64,
    pub weight_sum: u64,
    pub term: u64,
    pub share: u64,
    pub keys: u64,
    pub partials: u64,
    pub row_tickets: u64,
    pub error: u64,
    pub bad_rows: u64,
    pub label_smoothing: f64,
    pub rows: i32,
    pub classes: i32,
    pub pieces: i32,
    pub piece_classes: i32,
}

/// `struct GradientArguments`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[allow(missing_docs)]
pub struct GradientArguments {
    pub logits: u64,
    pub targets: u64,
    pub max: u64,
    pub log_sum: u64,
    pub upstream: u64,
    pub divisor: u64,
    pub sample_weight: u64,
    pub upstream_lse: u64,
    pub weight: u64,
    pub weight_sum: u64,
    pub gradient: u64,
    pub row_stride: i64,
    pub gradient_stride: i64,
    pub ignore_index: i64,
    pub label_smoothing: f64,
    pub upstream_stride: i32,
    pub upstream_lse_stride: i32,
    pub rows: i32,
    pub classes: i32,
    pub pieces: i32,
    pub piece_classes: i32,
    pub sample_rows: u32,
    pub upstream_narrow: u32,
}

/// `struct ProbabilityArguments`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[allow(missing_docs)]
pub struct ProbabilityArguments {
    pub finish: Finish,
    pub logits: u64,
    pub probabilities: u64,
    pub row_stride: i64,
    pub probability_stride: i64,
    pub loss: u64,
    pub max: u64,
    pub log_sum: u64,
    pub grad_norm: u64,
    pub entropy: u64,
    pub mass: u64,
    pub weight: u64,
    pub keys: u64,
    pub label_smoothing: f64,
    pub rows: i32,
    pub classes: i32,
}

/// `struct ProbabilityGradientArguments`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[allow(missing_docs)]
pub struct ProbabilityGradientArguments {
    pub logits: u64,
    pub probabilities: u64,
    pub max: u64,
    pub log_sum: u64,
    pub mass: u64,
    pub upstream: u64,
    pub weight: u64,
    pub gradient: u64,
    pub row_stride: i64,
    pub probability_stride: i64,
    pub gradient_stride: i64,
    pub label_smoothing: f64,
    pub upstream_stride: i32,
    pub rows: i32,
    pub classes: i32,
    pub pieces: i32,
    pub piece_classes: i32,
    pub unused: i32,
}

/// `struct SequenceArguments`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[allow(missing_docs)]
pub struct SequenceArguments {
    pub finish: Finish,
    pub loss: u64,
    pub grad_norm: u64,
    pub entropy: u64,
    pub correct: u64,
    pub mean: u64,
    pub max: u64,
    pub sum: u64,
    pub mean_grad_norm: u64,
    pub mean_entropy: u64,
    pub counted: u64,
    pub keys: u64,
    pub sequences: i32,
    pub length: i32,
    pub rank_by: u32,
    pub unused: u32,
}

/// `struct TileArguments`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[allow(missing_docs)]
pub struct TileArguments {
    pub finish: Finish,
    pub sorted: u64,
    pub tiles: u32,
    pub unused: u32,
}

/// `struct MailArguments`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[allow(missing_docs)]
pub struct MailArguments {
    pub mail: u64,
}

/// `struct RadixArguments`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[allow(missing_docs)]
pub struct RadixArguments {
    pub finish: Finish,
    pub from: u64,
    pub to: u64,
    pub offsets: u64,
    pub shift: u32,
    pub blocks: u32,
}

/// `struct ImageArguments`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[allow(missing_docs)]
pub struct ImageArguments {
    pub source: u64,
    pub ids: u64,
    pub out: u64,
    pub key: u64,
    pub flip_below: u64,
    pub scale: [f32; CHANNELS_MAX],
    pub shift: [f32; CHANNELS_MAX],
    pub rows: i32,
    pub height: i32,
    pub width: i32,
    pub channels: i32,
    pub out_height: i32,
    pub out_width: i32,
    pub padding: i32,
    pub tops: u32,
    pub lefts: u32,
    pub random_crop: u32,
    pub channels_first: u32,
    pub vectors: u32,
}

/// `struct RetouchArguments`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[allow(missing_docs)]
pub struct RetouchArguments {
    pub pixels: u64,
    pub out: u64,
    pub spare: u64,
    pub ids: u64,
    pub key: u64,
    pub color_key: u64,
    pub augment_key: u64,
    pub spare_bytes: u64,
    pub flip_below: u64,
    pub change_below: u64,
    pub grey_below: u64,
    pub low: [f64; 4],
    pub span: [f64; 4],
    pub rows: i32,
    pub height: u32,
    pub width: u32,
    pub out_height: u32,
    pub out_width: u32,
    pub padding: i32,
    pub tops: u32,
    pub lefts: u32,
    pub random_crop: u32,
    pub cuts: u32,
    pub factors: u32,
    pub colors: u32,
    pub augments: u32,
    pub bins: u32,
    pub magnitude: u32,
    pub wide: u32,
    pub fill: u32,
    pub unused: u32,
}

/// `struct MixArguments`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[allow(missing_docs)]
pub struct MixArguments {
    pub data: u64,
    pub lam: f32,
    pub rest: f32,
    pub rows: i32,
    pub height: i32,
    pub width: i32,
    pub channels: i32,
    pub top: i32,
    pub left: i32,
    pub bottom: i32,
    pub right: i32,
    pub outside: u32,
    pub blends: u32,
    pub channels_first: u32,
    pub vectors: u32,
}

/// The most rows of an [`EraseArguments`], which stays below 4 KB too.
pub const ERASE_ROWS_MAX: usize = 320;

/// `struct ErasedRow`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[allow(missing_docs)]
pub struct ErasedRow {
    pub row: u32,
    pub top: u16,
    pub left: u16,
    pub height: u16,
    pub width: u16,
}

/// `struct EraseArguments`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[allow(missing_docs)]
pub struct EraseArguments {
    pub out: u64,
    pub row_words: u64,
    pub line_words: u32,
    pub pixel_words: u32,
    pub height: u32,
    pub planes: u32,
    pub rows: u32,
    pub blocks: u32,
    pub of: [ErasedRow; ERASE_ROWS_MAX],
}

/// The most rows of a [`GatherArguments`], which stays below the 4 KB that a launch takes on every driver.
pub const GATHER_ROWS_MAX: usize = 480;

/// `struct GatherArguments`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[allow(missing_docs)]
pub struct GatherArguments {
    pub out: u64,
    pub rows: u32,
    pub words: u32,
    pub from: [u64; GATHER_ROWS_MAX],
}

/// The one argument of a launch.
#[derive(Clone, Debug)]
#[allow(missing_docs, clippy::large_enum_variant)] // lives for one call
pub enum Arguments {
    Score(ScoreArguments),
    Gradient(GradientArguments),
    Probability(ProbabilityArguments),
    ProbabilityGradient(ProbabilityGradientArguments),
    Sequence(SequenceArguments),
    Rank(Finish),
    Tile(TileArguments),
    Mail(MailArguments),
    Radix(RadixArguments),
    Image(ImageArguments),
    Retouch(Box<RetouchArguments>),
    Mix(MixArguments),
    Erase(Box<EraseArguments>),
    Gather(Box<GatherArguments>),
}

impl Arguments {
    /// The structure as the kernel reads it, aligned to 8 bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Arguments::Score(a) => bytemuck::bytes_of(a),
            Arguments::Gradient(a) => bytemuck::bytes_of(a),
            Arguments::Probability(a) => bytemuck::bytes_of(a),
            Arguments::ProbabilityGradient(a) => bytemuck::bytes_of(a),
            Arguments::Sequence(a) => bytemuck::bytes_of(a),
            Arguments::Rank(a) => bytemuck::bytes_of(a),
            Arguments::Tile(a) => bytemuck::bytes_of(a),
            Arguments::Mail(a) => bytemuck::bytes_of(a),
            Arguments::Radix(a) => bytemuck::bytes_of(a),
            Arguments::Image(a) => bytemuck::bytes_of(a),
            Arguments::Retouch(a) => bytemuck::bytes_of(&**a),
            Arguments::Mix(a) => bytemuck::bytes_of(a),
            Arguments::Erase(a) => bytemuck::bytes_of(&**a),
            Arguments::Gather(a) => bytemuck::bytes_of(&**a),
        }
    }
}
