//! The shape of a dataset's images, by its first one that decodes; sizes of some others, by their headers.

use std::ops::ControlFlow;

use super::payload::picture_and_tail;
use super::{Form, Source};
use crate::decode::{Decoder, ImageMode, Resize, size_of};
use crate::error::{Error, Result};
use crate::types::SampleId;

/// Samples looked at to learn the dataset's shape; the first that decodes decides.
const PROBES: usize = 16;

/// A decoder for `source`, whose shape is what `resize` makes or that of the first image that decodes.
///
/// # Errors
/// `Usage` for a source of rows; `Settings` for a resize of 0 or beyond [`MAX_PIXELS`](crate::MAX_PIXELS); `Sample`
/// when none of the first 16 samples decodes.
pub fn decoder_of(source: &dyn Source, mode: ImageMode, resize: Option<Resize>) -> Result<Decoder> {
    if !matches!(source.form(), Form::Images { .. }) {
        return Err(Error::usage(format!("{} holds rows, not images: there is nothing to decode", source.describe())));
    }
    resize.map(|resize| resize.region(resize.to)).transpose()?;
    let mut failure = None;
    for id in 0..source.len().min(PROBES) as SampleId {
        let mut decoder = None;
        source.fetch(&[id], &mut |_, payload| {
            decoder = Some(payload.and_then(|p| Decoder::for_image(p.data, mode, resize)));
            ControlFlow::Continue(())
        });
        match decoder {
            Some(Ok(decoder)) => return Ok(decoder),
            Some(Err(e)) => failure = failure.or(Some((id, e))),
            None => return Err(Error::internal(format!("{} did not answer for sample {id}", source.describe()))),
        }
    }
    let (id, e) = failure.ok_or_else(|| Error::unreadable(format!("{} holds no samples", source.describe())))?;
    Err(Error::new(
        e.kind(),
        format!("none of the first {} samples could be decoded; {}", source.len().min(PROBES), source.name(id)),
    )
    .because(e))
}

/// Height and width of `most` images at most, spread evenly over `source`. Those that cannot be read are left out. None
/// where looking costs more than a read of a local file each.
pub fn sizes(source: &dyn Source, most: usize) -> Vec<[usize; 2]> {
    let Form::Images { tailed } = *source.form() else { return Vec::new() };
    if !(source.facts().in_turn && source.facts().sized) {
        return Vec::new();
    }
    let (samples, count) = (source.len(), most.min(source.len()));
    let ids: Vec<SampleId> = (0..count).map(|k| (k * samples / count) as SampleId).collect();
    let mut found = Vec::with_capacity(count);
    source.fetch(&ids, &mut |_, payload| {
        let size =
            payload.and_then(|payload| size_of(if tailed { picture_and_tail(payload.data)?.0 } else { payload.data }));
        found.extend(size.ok().flatten());
        ControlFlow::Continue(())
    });
    found
}
