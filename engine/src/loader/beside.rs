//! Masks and boxes in a sample's tail, moved by the draws of its image.
//! Loader threads do this on every device, so a batch for a GPU has the same.

use super::images::Draw;
use crate::error::{Error, Result};
use crate::settings::{BesidePart, BesideRole, BesideSettings, Stored};
use crate::source::{Mask, Npy, Scratch};
use crate::types::Dtype;
use lossfeed_kernels::image::{Geometry, ImageTransform, ResizedCrop};
use std::borrow::Cow;

/// Boxes that are narrower or lower than this, in pixels of the result, have vanished.
const LEAST: f64 = 1.0;

/// Makes the tails of delivered samples.
pub struct Beside {
    crop: Option<ResizedCrop>,
    cut: ImageTransform,
    parts: Vec<BesidePart>,
}

/// An array of a sample.
struct Array<'a> {
    dtype: Dtype,
    shape: Vec<usize>,
    data: Cow<'a, [u8]>,
}

impl Beside {
    /// For images that `crop` makes one size, of samples of `source` (height, width) without one.
    ///
    /// # Errors
    /// Those of [`BesideSettings::cut`].
    pub fn new(settings: &BesideSettings, crop: Option<ResizedCrop>, source: [usize; 2]) -> Result<Self> {
        let cut = settings.cut(crop.map_or(source, |crop| crop.size()))?;
        Ok(Self { crop, cut, parts: settings.parts.clone() })
    }

    /// The delivered tail of a sample, whose image has `size` (height, width).
    ///
    /// # Errors
    /// `Sample` for masks of another size and boxes that are none, with their names.
    pub(super) fn tail(
        &self,
        (key, id): Draw,
        size: [usize; 2],
        tail: &[u8],
        scratch: &mut Scratch,
    ) -> Result<Box<[u8]>> {
        let stored = split(&self.parts, tail).ok_or_else(|| Error::sample("its parts are damaged"))?;
        let geometry = Geometry::new(size, self.crop.as_ref(), &self.cut, key, id);
        let mut boxes: Vec<Vec<Option<[f32; 4]>>> = vec![Vec::new(); self.parts.len()];
        for ((part, (shape, data)), moved) in self.parts.iter().zip(&stored).zip(&mut boxes) {
            if let BesideRole::Boxes(how) = part.role {
                let found = corners(read(part, how, shape, data, Dtype::F64, scratch)?)
                    .and_then(|all| all.into_iter().map(sound).collect());
                let found: Vec<[f64; 4]> = found.map_err(|e: Error| named(part, e))?;
                moved.extend(
                    found
                        .into_iter()
                        .map(|corners| Some(geometry.boxed(corners)).filter(is_there).map(|b| b.map(|v| v as f32))),
                );
            }
        }
        let mut made: Vec<(Vec<usize>, Cow<'_, [u8]>)> = Vec::with_capacity(stored.len());
        for (at, (part, (shape, data))) in self.parts.iter().zip(&stored).enumerate() {
            made.push(match part.role {
                BesideRole::Keep => (shape.clone(), Cow::Borrowed(*data)),
                BesideRole::Mask(how, dtype) => {
                    let mask = read(part, how, shape, data, dtype, scratch)?;
                    (geometry.out().to_vec(), self::mask(part, &mask, size, dtype, &geometry)?.into())
                }
                BesideRole::Boxes(_) => {
                    let kept: Vec<f32> = boxes.get(at).into_iter().flatten().flatten().flatten().copied().collect();
                    (vec![kept.len() / 4, 4], bytemuck::cast_slice(&kept).to_vec().into())
                }
                BesideRole::Along(how, dtype, of) => {
                    let values = read(part, how, shape, data, dtype, scratch)?;
                    along(part, values, dtype, boxes.get(of).map_or(&[], Vec::as_slice))?
                }
            });
        }
        Ok(join(&made))
    }
}

/// Shape and bytes of each part of a tail; `None` if it is none.
fn split<'a>(parts: &[BesidePart], tail: &'a [u8]) -> Option<Vec<(Vec<usize>, &'a [u8])>> {
    let dimensions: usize = parts.iter().map(|part| part.dimensions).sum();
    let (numbers, arrays) = tail.split_at_checked(dimensions.checked_mul(8)?)?;
    let mut numbers = numbers.as_chunks::<8>().0.iter().map(|&n| usize::try_from(u64::from_ne_bytes(n)).ok());
    let mut at = 0usize;
    let each = parts.iter().map(|part| {
        let shape: Vec<usize> = numbers.by_ref().take(part.dimensions).collect::<Option<_>>()?;
        let bytes = shape.iter().try_fold(part.dtype.size_bytes(), |all, &n| all.checked_mul(n))?;
        let start = at.checked_next_multiple_of(8)?;
        at = start.checked_add(bytes)?;
        Some((shape, arrays.get(start..at)?))
    });
    each.collect()
}

/// A tail of such parts; see `pybind/src/tails.rs`.
fn join(parts: &[(Vec<usize>, Cow<'_, [u8]>)]) -> Box<[u8]> {
    let mut out: Vec<u8> = parts.iter().flat_map(|(shape, _)| shape).flat_map(|&n| (n as u64).to_ne_bytes()).collect();
    let start = out.len();
    for (_, data) in parts {
        out.resize(start + (out.len() - start).next_multiple_of(8), 0);
        out.extend_from_slice(data);
    }
    out.into()
}

/// The array of a part. Numbers of JSON become `wanted`.
fn read<'a>(
    part: &BesidePart,
    how: Stored,
    shape: &[usize],
    data: &'a [u8],
    wanted: Dtype,
    scratch: &mut Scratch,
) -> Result<Array<'a>> {
    let read = match how {
        Stored::Array => Ok(Array { dtype: part.dtype, shape: shape.to_vec(), data: data.into() }),
        Stored::Npy => Npy::read(data).map(|npy| Array { dtype: npy.dtype, shape: npy.shape, data: npy.data.into() }),
        Stored::Image => Mask::decode(data, scratch).map(|mask| Array {
            dtype: mask.dtype,
            shape: mask.size.to_vec(),
            data: mask.pixels.into(),
        }),
        Stored::Json if part.is_boxes() => serde_json::from_slice::<Vec<[f64; 4]>>(data).map_err(no_list).map(|all| {
            let shape = vec![all.len(), 4];
            Array { dtype: Dtype::F64, shape, data: bytemuck::cast_slice(&all).to_vec().into() }
        }),
        Stored::Json if wanted == Dtype::I64 => serde_json::from_slice::<Vec<i64>>(data).map_err(no_list).map(|all| {
            Array { dtype: wanted, shape: vec![all.len()], data: bytemuck::cast_slice(&all).to_vec().into() }
        }),
        Stored::Json => serde_json::from_slice::<Vec<f64>>(data).map_err(no_list).map(|all| Array {
            dtype: Dtype::F64,
            shape: vec![all.len()],
            data: bytemuck::cast_slice(&all).to_vec().into(),
        }),
    };
    read.map_err(|e| named(part, e))
}

fn no_list(e: serde_json::Error) -> Error {
    Error::sample(format!("it is no list of numbers as the first sample has one: {e}"))
}

fn named(part: &BesidePart, e: Error) -> Error {
    Error::new(e.kind(), part.name.clone()).because(e)
}

fn mask(part: &BesidePart, mask: &Array<'_>, size: [usize; 2], dtype: Dtype, geometry: &Geometry) -> Result<Vec<u8>> {
    if mask.shape != size || mask.dtype != dtype {
        return Err(Error::sample(format!(
            "{} is a mask of {} and shape {:?} for an image of {size:?} (height, width), and the first sample's is \
            of {}: masks need their image's size and one type",
            part.name,
            mask.dtype.name(),
            mask.shape,
            dtype.name()
        )));
    }
    let mut out = Vec::with_capacity(geometry.out().iter().product::<usize>() * dtype.size_bytes());
    geometry.nearest(&mask.data, size[1], dtype.size_bytes(), &mut out);
    Ok(out)
}

/// Boxes of an array of (n, 4), or of 4 n numbers.
fn corners(array: Array<'_>) -> Result<Vec<[f64; 4]>> {
    let fits = match array.shape.as_slice() {
        [_, 4] => true,
        [all] => all % 4 == 0,
        _ => false,
    };
    let data = array.data.as_ref();
    let numbers: Option<Vec<f64>> = match array.dtype {
        Dtype::F64 => Some(values(data, f64::from_ne_bytes)),
        Dtype::F32 => Some(values(data, |b| f32::from_ne_bytes(b).into())),
        Dtype::I64 => Some(values(data, |b| i64::from_ne_bytes(b) as f64)),
        Dtype::I32 => Some(values(data, |b| i32::from_ne_bytes(b).into())),
        Dtype::I16 => Some(values(data, |b| i16::from_ne_bytes(b).into())),
        Dtype::I8 => Some(values(data, |b| i8::from_ne_bytes(b).into())),
        Dtype::U64 => Some(values(data, |b| u64::from_ne_bytes(b) as f64)),
        Dtype::U32 => Some(values(data, |b| u32::from_ne_bytes(b).into())),
        Dtype::U16 => Some(values(data, |b| u16::from_ne_bytes(b).into())),
        Dtype::U8 => Some(values(data, |b| u8::from_ne_bytes(b).into())),
        _ => None,
    };
    match numbers.filter(|_| fits) {
        Some(numbers) => Ok(numbers.as_chunks::<4>().0.to_vec()),
        None => Err(Error::sample(format!(
            "boxes of {} and shape {:?} must be numbers of shape (n, 4)",
            array.dtype.name(),
            array.shape
        ))),
    }
}

fn values<const N: usize>(data: &[u8], of: impl Fn([u8; N]) -> f64) -> Vec<f64> {
    data.as_chunks::<N>().0.iter().map(|&bytes| of(bytes)).collect()
}

/// A box that has two corners in their order.
fn sound(corners: [f64; 4]) -> Result<[f64; 4]> {
    let [left, top, right, bottom] = corners;
    if corners.iter().all(|v| v.is_finite()) && left <= right && top <= bottom {
        return Ok(corners);
    }
    Err(Error::sample(format!(
        "{corners:?} is no box (left, top, right, bottom) in pixels: of (left, top, width, height) make left + width \
        and top + height"
    )))
}

fn is_there(&[left, top, right, bottom]: &[f64; 4]) -> bool {
    right - left >= LEAST && bottom - top >= LEAST
}

/// The values of boxes that are still there.
fn along<'a>(
    part: &BesidePart,
    values: Array<'a>,
    dtype: Dtype,
    boxes: &[Option<[f32; 4]>],
) -> Result<(Vec<usize>, Cow<'a, [u8]>)> {
    let Array { dtype: found, mut shape, data } = values;
    let (count, inner) = shape.split_first().map_or((None, &[][..]), |(n, inner)| (Some(*n), inner));
    if count != Some(boxes.len()) || found != dtype {
        return Err(Error::sample(format!(
            "{} is of {} and shape {shape:?} beside {} boxes, and the first sample's is of {}: one value a box is \
            needed",
            part.name,
            found.name(),
            boxes.len(),
            dtype.name()
        )));
    }
    let each = inner.iter().product::<usize>() * dtype.size_bytes();
    let kept = boxes.iter().filter(|b| b.is_some()).count();
    if kept == boxes.len() {
        return Ok((shape, data));
    }
    let rows = data.chunks_exact(each.max(1)).zip(boxes).filter(|(_, b)| b.is_some());
    let data = rows.flat_map(|(row, _)| row).copied().collect::<Vec<u8>>();
    if let Some(first) = shape.first_mut() {
        *first = kept;
    }
    Ok((shape, data.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(name: &str, dimensions: usize, dtype: Dtype, role: BesideRole) -> BesidePart {
        BesidePart { name: name.to_owned(), dimensions, dtype, role }
    }

    fn beside(parts: Vec<BesidePart>, flip: f64) -> Beside {
        let settings = BesideSettings { crop: None, padding: 0, random_crop: false, flip, parts };
        Beside::new(&settings, None, [4, 6]).unwrap()
    }

    fn parts() -> Vec<BesidePart> {
        vec![
            part("text", 1, Dtype::U8, BesideRole::Keep),
            part("boxes", 2, Dtype::F32, BesideRole::Boxes(Stored::Array)),
            part("mask", 2, Dtype::U8, BesideRole::Mask(Stored::Array, Dtype::U8)),
            part("labels", 1, Dtype::I64, BesideRole::Along(Stored::Array, Dtype::I64, 1)),
        ]
    }

    fn stored(boxes: &[f32], labels: &[i64]) -> Box<[u8]> {
        let mask: Vec<u8> = (0..24).collect();
        join(&[
            (vec![5], b"words"[..].into()),
            (vec![boxes.len() / 4, 4], bytemuck::cast_slice(boxes).to_vec().into()),
            (vec![4, 6], mask.into()),
            (vec![labels.len()], bytemuck::cast_slice(labels).to_vec().into()),
        ])
    }

    #[test]
    fn masks_and_boxes_are_mirrored_and_the_labels_of_boxes_that_vanish_go_with_them() {
        let tail = stored(&[1.0, 0.0, 3.0, 2.0, 0.0, 0.0, 0.5, 4.0, 2.0, 1.0, 9.0, 9.0], &[10, 11, 12]);
        let made = beside(parts(), 1.0).tail((1, 1), [4, 6], &tail, &mut Scratch::default()).unwrap();
        let found = split(&parts(), &made).unwrap();
        assert_eq!(found[0], (vec![5], &b"words"[..]));
        assert_eq!(found[1].0, [2, 4]);
        let boxes: Vec<f32> = found[1].1.as_chunks::<4>().0.iter().map(|&b| f32::from_ne_bytes(b)).collect();
        assert_eq!(boxes, [3.0, 0.0, 5.0, 2.0, 0.0, 1.0, 4.0, 4.0]);
        assert_eq!((found[2].0.as_slice(), &found[2].1[..6]), (&[4, 6][..], &[5, 4, 3, 2, 1, 0][..]));
        assert_eq!(found[3], (vec![2], bytemuck::cast_slice(&[10i64, 12])));
    }

    #[test]
    fn tails_that_are_damaged_or_contradict_themselves_are_bad_samples() {
        let sound = stored(&[0.0, 0.0, 2.0, 2.0], &[1]);
        let made = |tail: &[u8], size| beside(parts(), 0.0).tail((1, 1), size, tail, &mut Scratch::default());
        assert!(made(&sound, [4, 6]).is_ok());
        for cut in 0..sound.len() {
            assert!(made(&sound[..cut], [4, 6]).is_err(), "{cut}");
        }
        for (tail, size, words) in [
            (sound.clone(), [6, 4], "mask is a mask of uint8 and shape [4, 6] for an image of [6, 4]"),
            (stored(&[0.0, 0.0, 2.0, 2.0], &[]), [4, 6], "labels is of int64 and shape [0] beside 1 boxes"),
            (stored(&[3.0, 0.0, 2.0, 2.0], &[1]), [4, 6], "boxes: [3.0, 0.0, 2.0, 2.0] is no box"),
            (stored(&[f32::NAN, 0.0, 2.0, 2.0], &[1]), [4, 6], "is no box"),
        ] {
            let error = made(&tail, size).unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::Sample);
            assert!(error.to_string().contains(words), "{error}");
        }
        // Numbers beyond the address space are none.
        let mut huge = sound.to_vec();
        huge[8..16].copy_from_slice(&u64::MAX.to_ne_bytes());
        assert!(made(&huge, [4, 6]).is_err());
    }
}
