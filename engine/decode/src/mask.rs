//! Masks in PNG files, as `numpy.asarray(PIL.Image.open(file))` has them: numbers and no colours. A palette's numbers
//! stay what they are; gray of 2 and 4 bits is stretched to a byte, and 1 bit is 0 or 1, as in Pillow.

use std::io::Cursor;

use ::png::{BitDepth, ColorType, Decoder, DecodingError, Limits, Transformations};

use super::contain::contained;
use super::{Head, MAX_PIXELS, Scratch, broken};
use crate::error::{Error, Result};
use crate::types::Dtype;

/// A decoded mask.
#[derive(Debug, PartialEq, Eq)]
pub struct Mask {
    /// Height and width.
    pub size: [usize; 2],
    /// `U8`, or `I32` of 16 bits.
    pub dtype: Dtype,
    /// Its numbers, native-endian.
    pub pixels: Vec<u8>,
}

impl Mask {
    /// Decodes a PNG.
    ///
    /// # Errors
    /// `Sample` for other formats, colours, and damaged files.
    pub fn decode(encoded: &[u8], scratch: &mut Scratch) -> Result<Self> {
        if !encoded.starts_with(b"\x89PNG\r\n\x1a\n") {
            return Err(Error::sample(
                "a mask must be a PNG of one channel or an array (npy): other formats lose numbers or colour them; \
                save it by Pillow's Image.fromarray(mask).save(\"….png\")",
            ));
        }
        contained("PNG", encoded.len(), scratch, |_| read(encoded))
    }
}

fn read(encoded: &[u8]) -> Result<Mask> {
    let corrupt = |e: DecodingError| broken("PNG", encoded).because(e);
    let mut decoder = Decoder::new_with_limits(Cursor::new(encoded), Limits { bytes: MAX_PIXELS });
    decoder.set_transformations(Transformations::IDENTITY);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let mut reader = decoder.read_info().map_err(corrupt)?;
    let (info, depth) = (reader.info(), reader.info().bit_depth);
    let size = [info.height as usize, info.width as usize];
    Head { height: size[0], width: size[1], color: false }.check_size()?;
    let indexed = match info.color_type {
        ColorType::Grayscale => false,
        ColorType::Indexed => true,
        other => {
            return Err(Error::sample(format!(
                "the mask is {other:?}: one of a number a pixel is needed, gray or with a palette; make one of its \
                colours"
            )));
        }
    };
    let bytes = reader.output_buffer_size().ok_or_else(|| Error::sample("the mask does not fit into memory"))?;
    let mut rows = vec![0; bytes];
    reader.next_frame(&mut rows).map_err(corrupt)?;
    let pixels = size[0] * size[1];
    let packed = |bits: usize, factor: u8| {
        let most = (1u8 << bits) - 1;
        let row = (size[1] * bits).div_ceil(8);
        let mut out = Vec::with_capacity(pixels);
        for row in rows.chunks_exact(row) {
            out.extend((0..size[1]).filter_map(|x| {
                let shift = 8 - bits - x * bits % 8;
                Some((row.get(x * bits / 8)? >> shift & most) * factor)
            }));
        }
        out
    };
    let (dtype, pixels) = match depth {
        BitDepth::One => (Dtype::U8, packed(1, 1)),
        BitDepth::Two => (Dtype::U8, packed(2, if indexed { 1 } else { 85 })),
        BitDepth::Four => (Dtype::U8, packed(4, if indexed { 1 } else { 17 })),
        BitDepth::Eight => (Dtype::U8, rows),
        BitDepth::Sixteen => {
            let wide = rows.as_chunks::<2>().0.iter().map(|&two| i32::from(u16::from_be_bytes(two)));
            (Dtype::I32, wide.flat_map(i32::to_ne_bytes).collect())
        }
    };
    Ok(Mask { size, dtype, pixels })
}
