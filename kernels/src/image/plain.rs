//! The contract, element by element.

use super::{Draw, ImageDtype, ImageTransform};
use crate::element::{BF16, Element, F16};

/// Makes one sample, as the module's head says: `source` has the transform's `source_bytes`, `out` its `out_bytes` at
/// any address. Panics for other lengths, as slices do.
pub fn make_plain(transform: &ImageTransform, draw: Draw, source: &[u8], out: &mut [u8]) {
    let (t, [height, width, channels], [out_height, out_width]) = (transform, transform.source, transform.out);
    assert_eq!((source.len(), out.len()), (transform.source_bytes(), transform.out_bytes()));
    let size = transform.dtype().bytes();
    for y in 0..out_height {
        for x in 0..out_width {
            for c in 0..channels {
                let from_x = if draw.flip { out_width - 1 - x } else { x } + draw.left;
                let inside = |at: usize, side: usize| at.checked_sub(t.padding).filter(|&at| at < side);
                let value = match (inside(y + draw.top, height), inside(from_x, width)) {
                    (Some(y), Some(x)) => source[(y * width + x) * channels + c],
                    _ => 0,
                };
                let at = if t.channels_first {
                    (c * out_height + y) * out_width + x
                } else {
                    (y * out_width + x) * channels + c
                };
                let normal = f32::from(value).mul_add(t.scale[c], t.shift[c]);
                let place = &mut out[at * size..][..size];
                match transform.dtype() {
                    ImageDtype::U8 => place[0] = value,
                    ImageDtype::F16 => F16::write(normal, place),
                    ImageDtype::BF16 => BF16::write(normal, place),
                    ImageDtype::F32 => f32::write(normal, place),
                }
            }
        }
    }
}
