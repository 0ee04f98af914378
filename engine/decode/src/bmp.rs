//! BMP: uncompressed, of 1, 4, 8, 16, 24 or 32 bits a pixel.
//!
//! Read here and not by a library, because a picture is a table of colours and rows of numbers, and because of what
//! libraries cost or get wrong (decision 41). Images that are coded by run lengths are refused. An image with a palette
//! is gray if all of its colours are.

use super::pixels::{Palette, put_colors, unpacked};
use super::{Format, Head, Image, broken, not_read};
use crate::error::{Error, Result};

pub(super) const FORMAT: Format = Format {
    name: "BMP",
    endings: &["bmp"],
    // Two letters are too little: the length of the second header is among the few that there are.
    begins: |bytes| bytes.starts_with(b"BM") && number(bytes, 14).is_some_and(|size| HEADERS.contains(&size)),
    open: |encoded, _, then| then(&mut Bmp::open(encoded)?),
};

/// Lengths of the header that follows the file's own of 14 bytes: OS/2's two, and Windows' in its versions.
const HEADERS: [u32; 7] = [12, 40, 52, 56, 64, 108, 124];
const FILE_HEADER: usize = 14;
/// OS/2's first, whose sides have 16 bits and whose colours have three bytes.
const OLDEST: u32 = 12;

/// What a row's numbers mean.
enum Colors {
    Palette(Palette),
    /// Which bits of a number are red, green and blue.
    Masks([u32; 3]),
    /// Blue, green and red, a byte each.
    Bytes,
}

struct Bmp<'a> {
    encoded: &'a [u8],
    /// Where the pixels begin.
    start: usize,
    /// Of a pixel.
    bits: usize,
    /// Most files begin with the lowest row.
    top_first: bool,
    colors: Colors,
    head: Head,
}

impl<'a> Bmp<'a> {
    fn open(encoded: &'a [u8]) -> Result<Self> {
        let cut = || broken(FORMAT.name, encoded);
        let long = |at: usize| number(encoded, at).ok_or_else(cut);
        let short = |at: usize| {
            let bytes = encoded.get(at..).and_then(<[u8]>::first_chunk).ok_or_else(cut)?;
            Ok::<_, Error>(u16::from_le_bytes(*bytes))
        };
        let (start, header) = (long(10)? as usize, long(14)?);
        let (width, height, bits, kind, used) = if header == OLDEST {
            (i32::from(short(18)?), i32::from(short(20)?), short(24)?, 0, 0)
        } else {
            (long(18)? as i32, long(22)? as i32, short(28)?, long(30)?, long(46)?)
        };
        let after = FILE_HEADER + header as usize;
        // Where pixels lie that the header names no place for: behind the table of colours, or the masks.
        let mut behind = after;
        let masks = || Ok::<_, Error>([long(54)?, long(58)?, long(62)?]);
        let colors = match (bits, kind) {
            (1 | 4 | 8, 0) => {
                let size = if header == OLDEST { 3 } else { 4 };
                let most = 1usize << bits;
                let count = if used == 0 { most } else { most.min(used as usize) };
                let table = encoded.get(after..).and_then(|rest| rest.get(..count * size)).ok_or_else(cut)?;
                behind += size * if used == 0 { most } else { used as usize };
                // Blue, green, red, and in newer files a byte more.
                let color = |entry: &[u8]| entry.first_chunk::<3>().map_or([0; 3], |&[b, g, r]| [r, g, b]);
                Colors::Palette(Palette::new(table.chunks_exact(size).map(color)))
            }
            (24, 0) => Colors::Bytes,
            (16, 0) => Colors::Masks([0x7c00, 0x03e0, 0x001f]),
            (32, 0) => Colors::Masks([0x00ff_0000, 0x0000_ff00, 0x0000_00ff]),
            // OS/2 uses the number for another coding.
            (16 | 32, 3 | 6) if header != 64 => {
                if header == 40 {
                    behind += if kind == 3 { 12 } else { 16 };
                }
                match masks()? {
                    [0, 0, 0] if bits == 32 => Colors::Masks([0x00ff_0000, 0x0000_ff00, 0x0000_00ff]),
                    masks => Colors::Masks(masks),
                }
            }
            _ => {
                let why = format!("it has {bits} bits a pixel, compression {kind}");
                return Err(not_read(FORMAT.name, encoded, &why));
            }
        };
        if let Colors::Masks(masks) = colors
            && masks.iter().any(|&mask| !(u64::from(mask >> mask.trailing_zeros().min(31)) + 1).is_power_of_two())
        {
            return Err(broken(FORMAT.name, encoded).because("the bits of a colour are not contiguous"));
        }
        // Some programs leave it 0, or name the table of colours.
        let start = match start {
            0 => behind,
            start if start == after && bits <= 8 => behind,
            start => start,
        };
        let color = if let Colors::Palette(palette) = &colors { palette.color() } else { true };
        let head = Head { height: height.unsigned_abs() as usize, width: width.max(0) as usize, color };
        Ok(Self { encoded, start, bits: bits.into(), top_first: height < 0, colors, head })
    }

    /// Writes one row.
    fn row(&self, row: &[u8], channels: usize, out: &mut [u8]) {
        match &self.colors {
            Colors::Palette(palette) => palette.put(unpacked(row, self.bits), channels, out),
            Colors::Bytes => put_colors(row.as_chunks::<3>().0.iter().map(|&[b, g, r]| [r, g, b]), channels, out),
            Colors::Masks(masks) if self.bits == 16 => {
                let pixels = row.as_chunks::<2>().0.iter().map(|&pixel| u32::from(u16::from_le_bytes(pixel)));
                put_colors(pixels.map(|pixel| masks.map(|mask| masked(pixel, mask))), channels, out);
            }
            Colors::Masks(masks) => {
                let pixels = row.as_chunks::<4>().0.iter().map(|&pixel| u32::from_le_bytes(pixel));
                put_colors(pixels.map(|pixel| masks.map(|mask| masked(pixel, mask))), channels, out);
            }
        }
    }
}

impl Image for Bmp<'_> {
    fn head(&self) -> Head {
        self.head
    }

    fn write(&mut self, channels: usize, out: &mut [u8], _: &mut Vec<u8>) -> Result<()> {
        let Head { height, width, .. } = self.head;
        let filled = (width * self.bits).div_ceil(8);
        // Rows begin at multiples of four bytes; the last may end where its pixels do.
        let stride = filled.next_multiple_of(4);
        let bytes = stride * (height - 1) + filled;
        let rows = self.encoded.get(self.start..).and_then(|rest| rest.get(..bytes));
        let rows = rows.ok_or_else(|| {
            broken(FORMAT.name, self.encoded)
                .because(format!("its rows need {bytes} bytes from byte {} on", self.start))
        })?;
        for (at, out) in out.chunks_exact_mut(width * channels).enumerate() {
            let stored = if self.top_first { at } else { height - 1 - at };
            self.row(rows.get(stored * stride..).unwrap_or_default(), channels, out);
        }
        Ok(())
    }
}

/// The bits of a pixel under a mask, stretched to a byte as Pillow does it.
fn masked(pixel: u32, mask: u32) -> u8 {
    let shift = mask.trailing_zeros().min(31);
    match u64::from(mask >> shift) {
        0 => 0,
        most => (u64::from((pixel & mask) >> shift) * 255 / most) as u8,
    }
}

/// A number of four bytes.
fn number(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map(|bytes| u32::from_le_bytes(*bytes))
}
