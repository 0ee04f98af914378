//! TIFF: the first page; gray, RGB and CMYK of whole numbers of up to 16 bits, in strips or tiles, uncompressed or
//! coded by PackBits, LZW, Deflate or CCITT group 4.
//!
//! Read here and not by a library, because libraries deliver mirrored, inverted or premultiplied pixels for some of
//! what the tags say and panic on others (decision 41). As in Pillow the picture is turned as its orientation says, and
//! colours that were multiplied by their alpha are divided by it.
//!
//! What is refused with its reason: palettes, numbers of 32 bits or with a fraction, colour spaces such as Lab, and the
//! codings that [`Coding::of`] names.

mod coding;
mod directory;

use coding::{Coding, add_up};
use directory::Directory;

use super::pixels::{Layout, convert, light, put_colors, unpacked};
use super::{Format, Head, Image, broken, not_read};
use crate::error::{Error, Result};

pub(super) const FORMAT: Format = Format {
    name: "TIFF",
    endings: &["tif", "tiff"],
    begins: |bytes| [b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"].iter().any(|magic| bytes.starts_with(*magic)),
    open: |encoded, _, then| then(&mut Tiff::open(encoded)?),
};

/// Most bytes of all strips or tiles together, beside [`TILES_SHARE`] times those of the pixels: tiles reach beyond the
/// image, and small images have large ones.
const TILE_BYTES: usize = 4 << 20;
const TILES_SHARE: usize = 8;

/// Most samples of a pixel, as in Pillow: colours and up to two others.
const SAMPLES_MAX: usize = 6;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Colors {
    Gray,
    Rgb,
    Cmyk,
}

impl Colors {
    fn samples(self) -> usize {
        match self {
            Self::Gray => 1,
            Self::Rgb => 3,
            Self::Cmyk => 4,
        }
    }
}

struct Tiff<'a> {
    encoded: &'a [u8],
    little: bool,
    coding: Coding,
    colors: Colors,
    /// White is the sample 0.
    inverted: bool,
    /// Bits of a sample.
    bits: usize,
    /// Samples of a pixel, in the order in which they are delivered; the last one is alpha if the colours are
    /// multiplied by it.
    wanted: Vec<usize>,
    multiplied: bool,
    /// Samples of a pixel that lie together: one where each has a plane of its own.
    together: usize,
    /// Rows hold differences.
    differences: bool,
    /// The first bit of a byte is its lowest.
    lowest_first: bool,
    /// Height and width of a strip or tile.
    part: [usize; 2],
    tiled: bool,
    offsets: Vec<u64>,
    lengths: Vec<u64>,
    orientation: u64,
    /// Height and width as stored.
    stored: [usize; 2],
    head: Head,
}

/// An image's tags, whose values are refused by what they are.
struct Tags<'a> {
    encoded: &'a [u8],
    directory: Directory<'a>,
}

impl<'a> Tags<'a> {
    fn read(encoded: &'a [u8]) -> Result<Self> {
        let directory = Directory::read(encoded).ok_or_else(|| cut(encoded))?;
        Ok(Self { encoded, directory })
    }

    fn value(&self, tag: u64, or: u64) -> Result<u64> {
        self.directory.value(tag, or).ok_or_else(|| cut(self.encoded))
    }

    fn values(&self, tag: u64) -> Result<Vec<u64>> {
        self.directory.values(tag).ok_or_else(|| cut(self.encoded))
    }

    fn side(&self, tag: u64, or: usize) -> Result<usize> {
        Ok(usize::try_from(self.value(tag, or as u64)?).unwrap_or(usize::MAX))
    }

    fn refused<T>(&self, why: &str) -> Result<T> {
        Err(not_read(FORMAT.name, self.encoded, why))
    }
}

fn cut(encoded: &[u8]) -> Error {
    broken(FORMAT.name, encoded).because("its tags end beyond the file")
}

/// The samples that a pixel has.
struct Samples {
    colors: Colors,
    inverted: bool,
    count: usize,
    bits: usize,
    /// See [`Tiff::wanted`].
    wanted: Vec<usize>,
    multiplied: bool,
}

impl Samples {
    fn of(tags: &Tags<'_>) -> Result<Self> {
        let photometric = tags.value(262, 0)?;
        let colors = match photometric {
            0 | 1 => Colors::Gray,
            2 => Colors::Rgb,
            5 => Colors::Cmyk,
            3 => return tags.refused("its pixels index a palette"),
            6 => return tags.refused("its colours are YCbCr"),
            8..=10 => return tags.refused("its colours are Lab"),
            other => return tags.refused(&format!("its colours are of an unknown kind ({other})")),
        };
        let count = tags.side(277, 1)?;
        let extras = tags.values(338)?;
        let most = if colors == Colors::Gray { 2 } else { SAMPLES_MAX };
        if !(colors.samples()..=most).contains(&count) {
            return tags.refused(&format!("its pixels have {count} samples and {} colours", colors.samples()));
        }
        let depths = tags.values(258)?;
        let bits = depths.first().copied().unwrap_or(1);
        if depths.iter().take(count).any(|&other| other != bits) {
            return tags.refused("its samples have different numbers of bits");
        }
        let bits = match (bits, colors) {
            (8 | 16, _) => bits as usize,
            (1 | 2 | 4, Colors::Gray) if count == 1 => bits as usize,
            _ => return tags.refused(&format!("its samples have {bits} bits")),
        };
        // 1 stands for unsigned whole numbers.
        if let Some(other) = tags.values(339)?.into_iter().find(|&format| format != 1) {
            return tags.refused(&format!("its samples are not unsigned integers (sample format {other})"));
        }
        // Of those beside the colours, 1 stands for an alpha that the colours are multiplied by.
        let alpha = extras.iter().take(count - colors.samples()).position(|&extra| extra == 1);
        if alpha.is_some() && colors == Colors::Cmyk {
            return tags.refused("its inks are multiplied by an alpha");
        }
        let wanted = (0..colors.samples()).chain(alpha.map(|at| colors.samples() + at)).collect();
        Ok(Self { colors, inverted: photometric == 0, count, bits, wanted, multiplied: alpha.is_some() })
    }
}

impl<'a> Tiff<'a> {
    fn open(encoded: &'a [u8]) -> Result<Self> {
        let tags = Tags::read(encoded)?;
        let (width, height) = (tags.side(256, 0)?, tags.side(257, 0)?);
        let coding = match Coding::of(tags.value(259, 1)?) {
            Ok(coding) => coding,
            Err(name) => return tags.refused(&format!("its pixels are coded by {name}")),
        };
        let Samples { colors, inverted, count, bits, wanted, multiplied } = Samples::of(&tags)?;
        let apart = tags.value(284, 1)? == 2 && count > 1;
        let together = if apart { 1 } else { count };
        let differences = match (coding, tags.value(317, 1)?) {
            (Coding::Lzw | Coding::Deflate, 2) if bits >= 8 => true,
            (Coding::Lzw | Coding::Deflate, other @ 2..) => {
                return tags
                    .refused(&format!("its samples of {bits} bits are predicted from others (predictor {other})"));
            }
            _ => false,
        };
        if coding == Coding::Fax && (bits != 1 || width > usize::from(u16::MAX)) {
            return tags.refused(&format!("{width} samples of {bits} bits a row are coded by CCITT group 4"));
        }
        let tiled = !tags.values(324)?.is_empty();
        let (part, offsets, lengths) = if tiled {
            ([tags.side(323, 0)?, tags.side(322, 0)?], tags.values(324)?, tags.values(325)?)
        } else {
            let rows = tags.side(278, height)?;
            ([if rows == 0 { height } else { rows.min(height) }, width], tags.values(273)?, tags.values(279)?)
        };
        if height > 0 && width > 0 && part.contains(&0) {
            return Err(broken(FORMAT.name, encoded).because("its tiles have no pixels"));
        }
        let orientation = tags.value(274, 1)?;
        let [shown_height, shown_width] = if matches!(orientation, 5..=8) { [width, height] } else { [height, width] };
        let head = Head { height: shown_height, width: shown_width, color: colors != Colors::Gray };
        Ok(Self {
            encoded,
            little: tags.directory.little,
            coding,
            colors,
            inverted,
            bits,
            multiplied,
            wanted,
            together,
            differences,
            lowest_first: tags.value(266, 1)? == 2,
            part,
            tiled,
            offsets,
            lengths,
            orientation,
            stored: [height, width],
            head,
        })
    }

    fn broken(&self, why: &str) -> Error {
        broken(FORMAT.name, self.encoded).because(why)
    }

    /// The bytes of a strip or tile.
    fn stored(&self, number: usize, room: usize) -> Result<&'a [u8]> {
        let offset = self.offsets.get(number).ok_or_else(|| self.broken("it names too few strips or tiles"))?;
        let from = usize::try_from(*offset).ok().and_then(|offset| self.encoded.get(offset..));
        let from = from.ok_or_else(|| self.broken("a strip or tile begins after the file's end"))?;
        match self.lengths.get(number).map(|&length| usize::try_from(length)) {
            // Whatever it says: pixels that are not coded take the bytes that they take.
            _ if self.coding == Coding::Plain => Ok(from.get(..room).unwrap_or(from)),
            None | Some(Ok(0)) => Ok(from),
            Some(length) => length
                .ok()
                .and_then(|length| from.get(..length))
                .ok_or_else(|| self.broken("a strip or tile ends after the file's end")),
        }
    }

    /// The wanted samples of all pixels, a byte each, as they are stored: not turned.
    fn samples(&self, pixels: &mut Vec<u8>) -> Result<()> {
        let ([height, width], [part_height, part_width]) = (self.stored, self.part);
        let (down, across) = (height.div_ceil(part_height), width.div_ceil(part_width));
        let row_bytes = part_width.checked_mul(self.together * self.bits).map(|bits| bits.div_ceil(8));
        let part_bytes = row_bytes.and_then(|bytes| bytes.checked_mul(part_height));
        let (Some(row_bytes), Some(part_bytes)) = (row_bytes, part_bytes) else {
            return Err(self.broken("its tiles are larger than memory"));
        };
        let planes: &[usize] = if self.together == 1 { &self.wanted } else { &[0] };
        let most = TILE_BYTES + height * width * self.together * self.bits / 8 * planes.len() * TILES_SHARE;
        if down.saturating_mul(across).saturating_mul(part_bytes).saturating_mul(planes.len()) > most {
            return Err(self.broken(&format!("its strips or tiles decode to more than {most} bytes")));
        }
        let each = self.wanted.len();
        pixels.clear();
        pixels.resize(height * width * each, 0);
        let (mut part, mut reversed, mut row_samples) = (vec![0; part_bytes], Vec::new(), Vec::new());
        for (nth, plane) in planes.iter().enumerate() {
            for number in 0..down * across {
                let (top, left) = (number / across * part_height, number % across * part_width);
                let (rows, columns) = (part_height.min(height - top), part_width.min(width - left));
                // The last strip has no more rows than the image; a tile has all of them.
                let room = if self.tiled { part_bytes } else { rows * row_bytes };
                let mut stored = self.stored(plane * down * across + number, room)?;
                if self.lowest_first {
                    reversed.clear();
                    reversed.extend(stored.iter().map(|byte| byte.reverse_bits()));
                    stored = &reversed;
                }
                let part = part.get_mut(..room).unwrap_or_default();
                self.coding
                    .unpack(stored, part_width * self.together, part)
                    .ok_or_else(|| self.broken("a strip or tile is too short or malformed"))?;
                if self.differences {
                    add_up(part, row_bytes, self.together, self.bits, self.little);
                }
                for (row, stored) in part.chunks_exact(row_bytes).take(rows).enumerate() {
                    let row_samples = self.bytes_of(stored, &mut row_samples);
                    let at = ((top + row) * width + left) * each;
                    let into = pixels.get_mut(at..at + columns * each).unwrap_or_default();
                    if self.together == each {
                        into.copy_from_slice(row_samples.get(..into.len()).unwrap_or_default());
                        continue;
                    }
                    // One sample of each pixel, or those of all that are wanted.
                    let copies = if self.together == 1 { nth..nth + 1 } else { 0..each };
                    for (pixel, from) in into.chunks_exact_mut(each).zip(row_samples.chunks_exact(self.together)) {
                        for to in copies.clone() {
                            pixel[to] = from[if self.together == 1 { 0 } else { self.wanted[to] }];
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// The samples of a row, a byte each.
    fn bytes_of<'b>(&self, row: &'b [u8], room: &'b mut Vec<u8>) -> &'b [u8] {
        room.clear();
        match self.bits {
            8 => return row,
            16 => room.extend(row.as_chunks::<2>().0.iter().map(|pair| pair[usize::from(self.little)])),
            bits => {
                let most = (1u8 << bits) - 1;
                room.extend(unpacked(row, bits).map(|value| value * (255 / most)));
            }
        }
        room
    }

    /// Where the pixel of a place in the picture is stored.
    fn place(&self, row: usize, column: usize) -> usize {
        let [height, width] = self.stored;
        let (down, right) = (height - 1, width - 1);
        let (y, x) = match self.orientation {
            2 => (row, right - column),
            3 => (down - row, right - column),
            4 => (down - row, column),
            5 => (column, row),
            6 => (down - column, row),
            7 => (down - column, right - row),
            8 => (column, right - row),
            _ => (row, column),
        };
        y * width + x
    }
}

impl Image for Tiff<'_> {
    fn head(&self) -> Head {
        self.head
    }

    fn write(&mut self, channels: usize, out: &mut [u8], spare: &mut Vec<u8>) -> Result<()> {
        self.samples(spare)?;
        if self.multiplied {
            for pixel in spare.chunks_exact_mut(self.wanted.len()) {
                divide(pixel);
            }
        }
        if self.inverted {
            spare.chunks_exact_mut(self.wanted.len()).for_each(|pixel| pixel[0] = 255 - pixel[0]);
        }
        let turned = matches!(self.orientation, 2..=8);
        let mut upright = if turned { vec![0; out.len()] } else { Vec::new() };
        let into: &mut [u8] = if turned { &mut upright } else { out };
        match (self.colors, self.multiplied) {
            (Colors::Gray, false) => convert(Layout::Gray, spare, channels, into),
            (Colors::Gray, true) => convert(Layout::GrayAlpha, spare, channels, into),
            (Colors::Rgb, false) => convert(Layout::Rgb, spare, channels, into),
            (Colors::Rgb, true) => convert(Layout::Rgba, spare, channels, into),
            (Colors::Cmyk, _) => put_colors(spare.as_chunks::<4>().0.iter().map(light), channels, into),
        }
        if turned {
            let Head { width, .. } = self.head;
            for (at, pixel) in out.chunks_exact_mut(channels).enumerate() {
                let from = self.place(at / width, at % width) * channels;
                pixel.copy_from_slice(upright.get(from..from + channels).unwrap_or_default());
            }
        }
        Ok(())
    }
}

/// Colours without the alpha that they were multiplied by, the pixel's last sample, with Pillow's integers.
fn divide(pixel: &mut [u8]) {
    if let Some((&mut alpha, colors)) = pixel.split_last_mut()
        && alpha < 255
    {
        let divided = |color: u8| (u32::from(color) * 255).checked_div(alpha.into()).unwrap_or(0).min(255) as u8;
        colors.iter_mut().for_each(|color| *color = divided(*color));
    }
}
