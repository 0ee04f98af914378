//! The CPU's path: a table of 256 values a channel, line by line.
//!
//! A pixel has 256 values, so every element type's arithmetic is done once, when the transform is made; what is left is
//! a load and a store an element, without the fused multiply-add that baseline processors do not have.

use super::{Draw, ImageDtype, ImageTransform};
use crate::element::{BF16, Element, F16};

/// Makes samples of one transform. Shared by threads.
#[derive(Clone, Debug)]
pub struct ImageMaker {
    transform: ImageTransform,
    tables: Tables,
}

/// By channel, what each pixel value becomes.
#[derive(Clone, Debug)]
enum Tables {
    Bytes(Vec<[u8; 256]>),
    Halves(Vec<[u16; 256]>),
    Floats(Vec<[f32; 256]>),
}

impl ImageMaker {
    /// Makes the tables: at most 16 KiB.
    pub fn new(transform: ImageTransform) -> Self {
        let t = &transform;
        let normal = |c: usize, value: usize| (value as f32).mul_add(t.scale[c], t.shift[c]);
        let channels = 0..t.source[2];
        let halves = |write: fn(f32, &mut [u8])| {
            let half = |c, value| {
                let mut bytes = [0; 2];
                write(normal(c, value), &mut bytes);
                u16::from_ne_bytes(bytes)
            };
            Tables::Halves(channels.clone().map(|c| std::array::from_fn(|value| half(c, value))).collect())
        };
        let tables = match transform.dtype() {
            ImageDtype::U8 => Tables::Bytes(channels.map(|_| std::array::from_fn(|value| value as u8)).collect()),
            ImageDtype::F16 => halves(F16::write),
            ImageDtype::BF16 => halves(BF16::write),
            ImageDtype::F32 => {
                Tables::Floats(channels.map(|c| std::array::from_fn(|value| normal(c, value))).collect())
            }
        };
        Self { transform, tables }
    }

    /// What it does.
    pub fn transform(&self) -> &ImageTransform {
        &self.transform
    }

    /// Makes sample `id` of the batch of `key`. `source` has the transform's `source_bytes`; `out` has its `out_bytes`
    /// and is aligned to its elements. Panics if that is not so, as slices do.
    pub fn make(&self, key: u64, id: i64, source: &[u8], out: &mut [u8]) {
        let draw = self.transform.draw(key, id);
        let t = &self.transform;
        assert_eq!((source.len(), out.len()), (self.transform.source_bytes(), self.transform.out_bytes()));
        match &self.tables {
            Tables::Bytes(_) if !t.channels_first => match t.source[2] {
                3 => copied::<3>(t, draw, source, out),
                _ => copied::<0>(t, draw, source, out),
            },
            Tables::Bytes(tables) => sample(t, tables, draw, source, out),
            Tables::Halves(tables) => sample(t, tables, draw, source, bytemuck::cast_slice_mut(out)),
            Tables::Floats(tables) => sample(t, tables, draw, source, bytemuck::cast_slice_mut(out)),
        }
    }
}

/// `start..end` of the `n` output positions lie in the source, the first of them at `first`.
struct Span {
    start: usize,
    end: usize,
    first: usize,
}

impl Span {
    fn new(n: usize, at: usize, padding: usize, side: usize) -> Span {
        let start = padding.saturating_sub(at).min(n);
        let end = (padding + side).saturating_sub(at).clamp(start, n);
        Span { start, end, first: (at + start).saturating_sub(padding) }
    }
}

/// Bytes as they are, in their order. `C`: the channels where they are known when this is compiled, else 0.
fn copied<const C: usize>(t: &ImageTransform, draw: Draw, source: &[u8], out: &mut [u8]) {
    let ([height, width, channels], [out_height, out_width]) = (t.source, t.out);
    let pixel = if C == 0 { channels } else { C };
    let down = Span::new(out_height, draw.top, t.padding, height);
    let across = Span::new(out_width, draw.left, t.padding, width);
    let cols = if draw.flip { out_width - across.end..out_width - across.start } else { across.start..across.end };
    for (y, line) in out.chunks_exact_mut(out_width * pixel).enumerate() {
        if cols.is_empty() || !(down.start..down.end).contains(&y) {
            line.fill(0);
            continue;
        }
        line[..cols.start * pixel].fill(0);
        line[cols.end * pixel..].fill(0);
        let line = &mut line[cols.start * pixel..cols.end * pixel];
        let from = &source[((down.first + y - down.start) * width + across.first) * pixel..][..line.len()];
        if draw.flip {
            line.chunks_exact_mut(pixel).rev().zip(from.chunks_exact(pixel)).for_each(|(o, p)| o.copy_from_slice(p));
        } else {
            line.copy_from_slice(from);
        }
    }
}

fn sample<T: Copy>(t: &ImageTransform, tables: &[[T; 256]], draw: Draw, source: &[u8], out: &mut [T]) {
    match t.source[2] {
        1 => lines::<T, 1>(t, tables, draw, source, out),
        3 => lines::<T, 3>(t, tables, draw, source, out),
        4 => lines::<T, 4>(t, tables, draw, source, out),
        _ => lines::<T, 0>(t, tables, draw, source, out),
    }
}

/// `C`: the channels where they are known when this is compiled, else 0.
fn lines<T: Copy, const C: usize>(t: &ImageTransform, tables: &[[T; 256]], draw: Draw, source: &[u8], out: &mut [T]) {
    let ([height, width, channels], [out_height, out_width]) = (t.source, t.out);
    let channels = if C == 0 { channels } else { C };
    let tables = &tables[..channels];
    let down = Span::new(out_height, draw.top, t.padding, height);
    let across = Span::new(out_width, draw.left, t.padding, width);
    // Where the pixels that exist go in a line of the result.
    let cols = if draw.flip { out_width - across.end..out_width - across.start } else { across.start..across.end };
    let count = cols.len();
    let line_of = |y: usize| {
        let inside = (down.start..down.end).contains(&y);
        let y = if inside { down.first + (y - down.start) } else { 0 };
        let pixels = if inside { count } else { 0 };
        &source[(y * width + if pixels > 0 { across.first } else { 0 }) * channels..][..pixels * channels]
    };
    if t.channels_first {
        let plane = out_height * out_width;
        for y in 0..out_height {
            let from = line_of(y);
            for (c, table) in tables.iter().enumerate() {
                let line = &mut out[c * plane + y * out_width..][..out_width];
                if from.is_empty() {
                    line.fill(table[0]);
                    continue;
                }
                line[..cols.start].fill(table[0]);
                line[cols.end..].fill(table[0]);
                let line = &mut line[cols.clone()];
                let pixels = from.chunks_exact(channels);
                if draw.flip {
                    line.iter_mut().rev().zip(pixels).for_each(|(o, p)| *o = table[usize::from(p[c])]);
                } else {
                    line.iter_mut().zip(pixels).for_each(|(o, p)| *o = table[usize::from(p[c])]);
                }
            }
        }
        return;
    }
    let fill = |pixels: &mut [T]| {
        for pixel in pixels.chunks_exact_mut(channels) {
            pixel.iter_mut().zip(tables).for_each(|(o, table)| *o = table[0]);
        }
    };
    let look_up = |(out, from): (&mut [T], &[u8])| {
        for ((o, &value), table) in out.iter_mut().zip(from).zip(tables) {
            *o = table[usize::from(value)];
        }
    };
    for y in 0..out_height {
        let from = line_of(y);
        let line = &mut out[y * out_width * channels..][..out_width * channels];
        if from.is_empty() {
            fill(line);
            continue;
        }
        fill(&mut line[..cols.start * channels]);
        fill(&mut line[cols.end * channels..]);
        let line = line[cols.start * channels..cols.end * channels].chunks_exact_mut(channels);
        let pixels = from.chunks_exact(channels);
        if draw.flip {
            line.rev().zip(pixels).for_each(look_up);
        } else {
            line.zip(pixels).for_each(look_up);
        }
    }
}
