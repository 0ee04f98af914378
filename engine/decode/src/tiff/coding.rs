//! What strips and tiles of a TIFF are coded by: into a buffer of the bytes that they become, or nothing.

use std::io::Read;

use fax::Color;
use fax::decoder::{DecodeStatus, Group4Decoder, pels};
use flate2::read::ZlibDecoder;
use weezl::decode::Decoder as Lzw;
use weezl::{BitOrder, LzwStatus};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Coding {
    Plain,
    /// CCITT group 4.
    Fax,
    Lzw,
    Deflate,
    PackBits,
}

impl Coding {
    /// The coding that a tag's value stands for.
    ///
    /// # Errors
    /// The name of one that is not read.
    pub(super) fn of(compression: u64) -> Result<Self, String> {
        Ok(match compression {
            1 => Self::Plain,
            4 => Self::Fax,
            5 => Self::Lzw,
            8 | 32946 => Self::Deflate,
            32773 => Self::PackBits,
            other => {
                return Err(match other {
                    2 | 32771 => "CCITT run lengths".to_owned(),
                    3 => "CCITT group 3".to_owned(),
                    6 | 7 => "JPEG".to_owned(),
                    34712 | 33003 | 33005 => "JPEG 2000".to_owned(),
                    34887 => "LERC".to_owned(),
                    34925 => "LZMA".to_owned(),
                    50000 => "Zstandard".to_owned(),
                    50001 => "WebP".to_owned(),
                    50002 => "JPEG XL".to_owned(),
                    other => format!("an unknown coding ({other})"),
                });
            }
        })
    }

    /// Fills `into`, rows of `width` samples. `None` where `stored` is too short or makes no sense.
    pub(super) fn unpack(self, stored: &[u8], width: usize, into: &mut [u8]) -> Option<()> {
        match self {
            Self::Plain => into.copy_from_slice(stored.get(..into.len())?),
            Self::Deflate => ZlibDecoder::new(stored).read_exact(into).ok()?,
            Self::PackBits => pack_bits(stored, into)?,
            Self::Lzw => lzw(stored, into)?,
            Self::Fax => fax(stored, width, into)?,
        }
        Some(())
    }
}

/// Many writers leave out the end code, and stop where the pixels do.
fn lzw(mut stored: &[u8], mut into: &mut [u8]) -> Option<()> {
    // What libtiff wrote before 1991 has its bits the other way round.
    let mut decoder = match stored {
        [0, next, ..] if next & 1 == 1 => Lzw::new(BitOrder::Lsb, 8),
        _ => Lzw::with_tiff_size_switch(BitOrder::Msb, 8),
    };
    while !into.is_empty() {
        let step = decoder.decode_bytes(stored, into);
        stored = stored.get(step.consumed_in..)?;
        into = into.get_mut(step.consumed_out..)?;
        let going = matches!(step.status, Ok(LzwStatus::Ok)) && step.consumed_in + step.consumed_out > 0;
        (going || into.is_empty()).then_some(())?;
    }
    Some(())
}

fn pack_bits(mut stored: &[u8], mut into: &mut [u8]) -> Option<()> {
    while !into.is_empty() {
        let (&head, rest) = stored.split_first()?;
        stored = rest;
        // A run may go on behind the last pixel.
        if head < 128 {
            let (run, rest) = stored.split_at_checked(usize::from(head) + 1)?;
            let most = run.len().min(into.len());
            into.get_mut(..most)?.copy_from_slice(run.get(..most)?);
            (stored, into) = (rest, into.get_mut(most..)?);
        } else if head > 128 {
            let (&value, rest) = stored.split_first()?;
            let most = (257 - usize::from(head)).min(into.len());
            into.get_mut(..most)?.fill(value);
            (stored, into) = (rest, into.get_mut(most..)?);
        }
    }
    Some(())
}

/// Bits that are set are black.
fn fax(stored: &[u8], width: usize, into: &mut [u8]) -> Option<()> {
    let wide = u16::try_from(width).ok()?;
    let bytes = stored.iter().map(|&byte| Ok::<_, std::convert::Infallible>(byte));
    let mut decoder = Group4Decoder::new(bytes, wide).ok()?;
    into.fill(0);
    for row in into.chunks_exact_mut(width.div_ceil(8)) {
        // A picture may end with its marker before its last rows, which are white then.
        if decoder.advance().ok()? == DecodeStatus::End {
            break;
        }
        for (at, color) in pels(decoder.transition(), wide).enumerate() {
            row[at / 8] |= u8::from(color == Color::Black) << (7 - at % 8);
        }
    }
    Some(())
}

/// Undoes horizontal differences of rows of samples of 8 or 16 bits, `samples` a pixel.
pub(super) fn add_up(rows: &mut [u8], row_bytes: usize, samples: usize, bits: usize, little: bool) {
    for row in rows.chunks_exact_mut(row_bytes) {
        if bits == 8 {
            for at in samples..row.len() {
                row[at] = row[at].wrapping_add(row[at - samples]);
            }
            continue;
        }
        let pairs = row.as_chunks_mut::<2>().0;
        let (read, write): (fn([u8; 2]) -> u16, fn(u16) -> [u8; 2]) =
            if little { (u16::from_le_bytes, u16::to_le_bytes) } else { (u16::from_be_bytes, u16::to_be_bytes) };
        for at in samples..pairs.len() {
            pairs[at] = write(read(pairs[at]).wrapping_add(read(pairs[at - samples])));
        }
    }
}
