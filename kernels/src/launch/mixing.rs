//! Images of a finished batch: erased in part, and mixed in pairs, where they lie.

use super::arguments::{Arguments, ERASE_ROWS_MAX, EraseArguments, ErasedRow, MixArguments};
use super::image::{BLOCKS_MAX, VECTOR_BYTES};
use super::{Launch, Step, THREADS};
use crate::image::{Erased, ImageDtype, ImageTransform, Mixed};

/// Blocks that share a row's rectangle: a third of a photograph of 224 × 224 in float32 is then 24 words a thread.
const ERASE_BLOCKS: u32 = 8;

/// The launch that mixes `rows` images at `data` (on the device, aligned to its elements; 16-byte accesses where every
/// sample starts at a multiple of 16 bytes) in pairs; `None` for fewer than two.
///
/// # Errors
/// As [`super::images`].
pub fn mix(transform: &ImageTransform, mixed: &Mixed, rows: usize, data: u64) -> Result<Option<Step>, u64> {
    let (elements, size) = (transform.elements(), transform.dtype().bytes());
    let vectors = elements.div_ceil(VECTOR_BYTES / size);
    let blocks = (rows as u64 / 2).saturating_mul(vectors as u64).div_ceil(u64::from(THREADS));
    if blocks > BLOCKS_MAX || rows > i32::MAX as usize || elements > i32::MAX as usize {
        return Err(blocks);
    }
    if blocks == 0 {
        return Ok(None);
    }
    let kernel = match transform.dtype() {
        ImageDtype::U8 => "lossfeed_mix_u8",
        ImageDtype::F16 => "lossfeed_mix_f16",
        ImageDtype::BF16 => "lossfeed_mix_bf16",
        ImageDtype::F32 => "lossfeed_mix_f32",
    };
    let [height, width] = transform.out;
    let part = mixed.part.as_ref();
    let arguments = MixArguments {
        data,
        lam: mixed.lam,
        rest: 1.0 - mixed.lam,
        rows: rows as i32,
        height: height as i32,
        width: width as i32,
        channels: transform.source[2] as i32,
        top: part.map_or(0, |p| p.top as i32),
        left: part.map_or(0, |p| p.left as i32),
        bottom: part.map_or(0, |p| (p.top + p.height) as i32),
        right: part.map_or(0, |p| (p.left + p.width) as i32),
        outside: u32::from(part.is_some_and(|p| p.outside)),
        blends: u32::from(part.is_none()),
        channels_first: u32::from(transform.channels_first),
        vectors: vectors as u32,
    };
    let launch = Launch { kernel, grid: blocks as u32, block: (THREADS, 1), shared_bytes: 0 };
    Ok(Some(Step { launch, arguments: Arguments::Mix(arguments) }))
}

/// The launches that erase rectangles of rows of images at `out`, of at most [`ERASE_ROWS_MAX`] rows each.
pub fn erase(transform: &ImageTransform, erased: &[(usize, Erased)], out: u64) -> Vec<Step> {
    let [height, width] = transform.out;
    let (size, channels) = (transform.dtype().bytes(), transform.source[2]);
    let kernel = match size {
        1 => "lossfeed_erase_b8",
        2 => "lossfeed_erase_b16",
        _ => "lossfeed_erase_b32",
    };
    let (planes, pixel_words) = if transform.channels_first { (channels, 1) } else { (1, channels) };
    let steps = erased.chunks(ERASE_ROWS_MAX).map(|rows| {
        let mut arguments = EraseArguments {
            out,
            row_words: transform.elements() as u64,
            line_words: (width * pixel_words) as u32,
            pixel_words: pixel_words as u32,
            height: height as u32,
            planes: planes as u32,
            rows: rows.len() as u32,
            blocks: ERASE_BLOCKS,
            of: [ErasedRow::default(); ERASE_ROWS_MAX],
        };
        for (place, &(row, at)) in arguments.of.iter_mut().zip(rows) {
            // A rectangle is smaller than its image, whose sides are at most 65,536.
            let [top, left, height, width] = [at.top, at.left, at.height, at.width].map(|n| n as u16);
            *place = ErasedRow { row: row as u32, top, left, height, width };
        }
        let grid = rows.len() as u32 * ERASE_BLOCKS;
        let launch = Launch { kernel, grid, block: (THREADS, 1), shared_bytes: 0 };
        Step { launch, arguments: Arguments::Erase(Box::new(arguments)) }
    });
    steps.collect()
}
