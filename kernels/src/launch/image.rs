//! Images of a batch, from pixels to what the model reads.

use super::arguments::{Arguments, ImageArguments};
use super::{Launch, Step, THREADS};
use crate::image::{ImageDtype, ImageTransform};

/// Bytes a thread writes.
pub(super) const VECTOR_BYTES: usize = 16;

/// Pixels in, elements out. Addresses on the device.
#[derive(Clone, Copy, Debug)]
pub struct Images {
    /// Samples.
    pub rows: usize,
    /// What [`crate::image::batch_key`] gave for the batch.
    pub key: u64,
    /// u8, rows x the transform's source.
    pub source: u64,
    /// int64, one a row.
    pub ids: u64,
    /// rows x the transform's result, aligned to its elements; 16-byte stores where every sample starts at a multiple
    /// of 16 bytes.
    pub out: u64,
}

/// The most blocks of a launch.
pub(super) const BLOCKS_MAX: u64 = i32::MAX as u64;

/// The launch; `None` for no rows.
///
/// # Errors
/// The number of blocks, if it is beyond what a launch may have (that is 8 TiB of result).
pub fn images(transform: &ImageTransform, batch: &Images) -> Result<Option<Step>, u64> {
    if batch.rows == 0 {
        return Ok(None);
    }
    let t = transform;
    let ([height, width, channels], [out_height, out_width], [tops, lefts]) = (t.source, t.out, t.places());
    let vectors = transform.elements().div_ceil(VECTOR_BYTES / transform.dtype().bytes());
    let blocks = (batch.rows as u64).saturating_mul(vectors as u64).div_ceil(u64::from(THREADS));
    if blocks > BLOCKS_MAX || batch.rows > i32::MAX as usize || transform.elements() > i32::MAX as usize {
        return Err(blocks);
    }
    let kernel = match transform.dtype() {
        ImageDtype::U8 => "lossfeed_image_u8",
        ImageDtype::F16 => "lossfeed_image_f16",
        ImageDtype::BF16 => "lossfeed_image_bf16",
        ImageDtype::F32 => "lossfeed_image_f32",
    };
    let arguments = ImageArguments {
        source: batch.source,
        ids: batch.ids,
        out: batch.out,
        key: batch.key,
        flip_below: t.flip_below,
        scale: t.scale,
        shift: t.shift,
        rows: batch.rows as i32,
        height: height as i32,
        width: width as i32,
        channels: channels as i32,
        out_height: out_height as i32,
        out_width: out_width as i32,
        padding: t.padding as i32,
        tops: tops as u32,
        lefts: lefts as u32,
        random_crop: u32::from(t.random_crop),
        channels_first: u32::from(t.channels_first),
        vectors: vectors as u32,
    };
    let launch = Launch { kernel, grid: blocks as u32, block: (THREADS, 1), shared_bytes: 0 };
    Ok(Some(Step { launch, arguments: Arguments::Image(arguments) }))
}
