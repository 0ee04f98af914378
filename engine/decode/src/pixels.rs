//! From the samples that decoders deliver to the 1 or 3 channels that were asked for.
//!
//! Alpha is dropped. Gray is widened to three equal channels. Colour becomes gray by Pillow's integers.

/// What a pixel is made of, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    Gray,
    GrayAlpha,
    Rgb,
    Rgba,
}

impl Layout {
    pub(super) fn samples(self) -> usize {
        match self {
            Self::Gray => 1,
            Self::GrayAlpha => 2,
            Self::Rgb => 3,
            Self::Rgba => 4,
        }
    }
}

/// Writes pixels of a layout as `channels` (1 or 3) bytes each.
pub(super) fn convert(from: Layout, pixels: &[u8], channels: usize, out: &mut [u8]) {
    match (from, channels) {
        (Layout::Gray, 1) | (Layout::Rgb, 3) => out.iter_mut().zip(pixels).for_each(|(out, &value)| *out = value),
        (Layout::Gray, _) => put_grays(pixels.iter().copied(), channels, out),
        (Layout::GrayAlpha, _) => put_grays(pixels.as_chunks::<2>().0.iter().map(|p| p[0]), channels, out),
        (Layout::Rgb, _) => put_colors(pixels.as_chunks::<3>().0.iter().copied(), channels, out),
        (Layout::Rgba, _) => {
            put_colors(pixels.as_chunks::<4>().0.iter().map(|&[r, g, b, _]| [r, g, b]), channels, out);
        }
    }
}

/// Writes gray pixels.
pub(super) fn put_grays(grays: impl Iterator<Item = u8>, channels: usize, out: &mut [u8]) {
    if channels == 1 {
        out.iter_mut().zip(grays).for_each(|(out, gray)| *out = gray);
    } else {
        out.as_chunks_mut::<3>().0.iter_mut().zip(grays).for_each(|(out, gray)| *out = [gray; 3]);
    }
}

/// Writes colour pixels.
pub(super) fn put_colors(colors: impl Iterator<Item = [u8; 3]>, channels: usize, out: &mut [u8]) {
    if channels == 1 {
        out.iter_mut().zip(colors).for_each(|(out, color)| *out = luma(color));
    } else {
        out.as_chunks_mut::<3>().0.iter_mut().zip(colors).for_each(|(out, color)| *out = color);
    }
}

/// The luma of ITU-R BT.601 with Pillow's integers: (19595 R + 38470 G + 7471 B + 32768) / 65536.
fn luma(color: [u8; 3]) -> u8 {
    let [r, g, b] = color.map(u32::from);
    ((19595 * r + 38470 * g + 7471 * b + 0x8000) >> 16) as u8
}

/// A table of colours. An index that the file names no colour for is black; but where all colours are the grays of
/// their numbers there is no table, and it is the gray of its number: as in Pillow.
pub(super) struct Palette(Box<[[u8; 3]; 256]>);

impl Palette {
    pub(super) fn new(colors: impl Iterator<Item = [u8; 3]>) -> Self {
        let mut table = Box::new([[0; 3]; 256]);
        let mut named = 0;
        for (entry, color) in table.iter_mut().zip(colors) {
            *entry = color;
            named += 1;
        }
        if (0..named).all(|index| table[index] == [index as u8; 3]) {
            *table = std::array::from_fn(|index| [index as u8; 3]);
        }
        Self(table)
    }

    /// Whether any of its colours is not gray.
    pub(super) fn color(&self) -> bool {
        self.0.iter().any(|[r, g, b]| r != g || g != b)
    }

    pub(super) fn get(&self, index: u8) -> [u8; 3] {
        // As many entries as a byte has values.
        self.0[usize::from(index)]
    }

    /// Writes the pixels with these indices.
    pub(super) fn put(&self, indices: impl Iterator<Item = u8>, channels: usize, out: &mut [u8]) {
        put_colors(indices.map(|index| self.get(index)), channels, out);
    }
}

/// The values of a row that stores each in 1, 2, 4 or 8 bits, from the highest bit on.
pub(super) fn unpacked(row: &[u8], bits: usize) -> impl Iterator<Item = u8> + '_ {
    let mask = ((1u32 << bits) - 1) as u8;
    row.iter().flat_map(move |&byte| (1..=8 / bits).map(move |at| (byte >> (8 - at * bits)) & mask))
}

/// Ink to light without a colour profile, with Pillow's integers.
pub(super) fn light(&[c, m, y, k]: &[u8; 4]) -> [u8; 3] {
    let left = 255 - u32::from(k);
    [c, m, y].map(|ink| {
        let taken = u32::from(ink) * left + 128;
        left.saturating_sub(((taken >> 8) + taken) >> 8) as u8
    })
}
