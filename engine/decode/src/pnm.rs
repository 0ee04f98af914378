//! PBM, PGM and PPM in their binary forms.
//!
//! Values are stretched to a byte; of gray ones beyond 255 the high byte counts, as of other gray images with 16 bits.

use super::pixels::{put_colors, put_grays, unpacked};
use super::{Format, Head, Image, broken, not_read};
use crate::error::Result;

pub(super) const FORMAT: Format = Format {
    name: "PNM",
    endings: &["ppm", "pgm", "pbm"],
    begins: |bytes| matches!(bytes, [b'P', b'1'..=b'6', next, ..] if next.is_ascii_whitespace() || *next == b'#'),
    open: |encoded, _, then| then(&mut Pnm::open(encoded)?),
};

struct Pnm<'a> {
    encoded: &'a [u8],
    /// Everything after the header.
    rest: &'a [u8],
    /// Samples of a pixel; 1 too for a bit.
    samples: usize,
    /// The largest value; 0 where a sample is a bit.
    most: u32,
    head: Head,
}

impl<'a> Pnm<'a> {
    fn open(encoded: &'a [u8]) -> Result<Self> {
        let kind = encoded.get(1).copied().unwrap_or_default();
        if kind < b'4' {
            return Err(not_read(FORMAT.name, encoded, "its pixels are stored as text"));
        }
        let mut rest = encoded.get(2..).unwrap_or_default();
        let mut next = || number(&mut rest).ok_or_else(|| broken(FORMAT.name, encoded));
        let (width, height) = (next()?, next()?);
        let most = if kind == b'4' { 0 } else { next()? };
        // One white space ends the header; what follows may look like another.
        let rest = rest.split_first().map(|(_, rest)| rest).unwrap_or_default();
        if kind != b'4' && !(1..=65_535).contains(&most) {
            return Err(
                broken(FORMAT.name, encoded).because(format!("its largest value is {most}, which must be 1 to 65535"))
            );
        }
        let color = kind == b'6';
        let head = Head { height: height as usize, width: width as usize, color };
        Ok(Self { encoded, rest, samples: if color { 3 } else { 1 }, most, head })
    }

    fn row_bytes(&self) -> usize {
        let samples = self.head.width * self.samples;
        match self.most {
            0 => samples.div_ceil(8),
            1..=255 => samples,
            _ => 2 * samples,
        }
    }
}

impl Image for Pnm<'_> {
    fn head(&self) -> Head {
        self.head
    }

    fn write(&mut self, channels: usize, out: &mut [u8], spare: &mut Vec<u8>) -> Result<()> {
        let bytes = self.row_bytes();
        let rows = self.rest.get(..bytes * self.head.height).ok_or_else(|| {
            broken(FORMAT.name, self.encoded).because(format!(
                "its rows take {} bytes, {} are there",
                bytes * self.head.height,
                self.rest.len()
            ))
        })?;
        for (row, out) in rows.chunks_exact(bytes).zip(out.chunks_exact_mut(self.head.width * channels)) {
            spare.clear();
            match self.most {
                // A bit that is set is black.
                0 => spare.extend(unpacked(row, 1).map(|bit| 255 * (1 - bit))),
                255 => spare.extend_from_slice(row),
                1..=255 => spare.extend(row.iter().map(|&value| stretched(value.into(), self.most, 255) as u8)),
                _ => {
                    let values = row.as_chunks::<2>().0.iter().map(|&value| u16::from_be_bytes(value).into());
                    if self.head.color {
                        spare.extend(values.map(|value| stretched(value, self.most, 255) as u8));
                    } else {
                        spare.extend(values.map(|value| (stretched(value, self.most, 65_535) >> 8) as u8));
                    }
                }
            }
            if self.samples == 1 {
                put_grays(spare.iter().copied(), channels, out);
            } else {
                put_colors(spare.as_chunks::<3>().0.iter().copied(), channels, out);
            }
        }
        Ok(())
    }
}

/// A value out of `0..=most` as one out of `0..=to`, rounded as Pillow does.
fn stretched(value: u32, most: u32, to: u32) -> u32 {
    (f64::from(value) / f64::from(most) * f64::from(to)).round_ties_even().min(to.into()) as u32
}

/// The next number of a header: white space and comments stand before it. At most nine digits.
fn number(rest: &mut &[u8]) -> Option<u32> {
    loop {
        let (first, after) = rest.split_first()?;
        if *first == b'#' {
            let end = rest.iter().position(|&byte| byte == b'\n' || byte == b'\r')?;
            *rest = rest.get(end..)?;
        } else if first.is_ascii_whitespace() {
            *rest = after;
        } else {
            break;
        }
    }
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, after) = rest.split_at_checked(digits)?;
    *rest = after;
    let text = std::str::from_utf8(number).ok().filter(|text| text.len() <= 9)?;
    text.parse().ok()
}
