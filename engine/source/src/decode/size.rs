//! The sizes of some images of a dataset, by their headers.

use std::ops::ControlFlow;

use super::contain::contained;
use super::{Format, Scratch};
use crate::error::Result;
use crate::sample::{Form, Source, picture_and_tail};
use crate::types::SampleId;

/// Height and width of `most` images at most, spread evenly over `source`. Those that cannot be read are left out. None
/// where looking costs more than a read of a local file each.
pub fn sizes(source: &dyn Source, most: usize) -> Vec<[usize; 2]> {
    let Form::Images { tailed } = *source.form() else { return Vec::new() };
    if !(source.in_turn() && source.sized()) {
        return Vec::new();
    }
    let (samples, count) = (source.len(), most.min(source.len()));
    let ids: Vec<SampleId> = (0..count).map(|k| (k * samples / count) as SampleId).collect();
    let mut found = Vec::with_capacity(count);
    source.fetch(&ids, &mut |_, payload| {
        let size =
            payload.and_then(|payload| size(if tailed { picture_and_tail(payload.data)?.0 } else { payload.data }));
        found.extend(size.ok().flatten());
        ControlFlow::Continue(())
    });
    found
}

fn size(encoded: &[u8]) -> Result<Option<[usize; 2]>> {
    let (format, mut found) = (Format::of(encoded)?, None);
    contained(format.name, encoded.len(), &mut Scratch::default(), |_| {
        (format.open)(encoded, 3, &mut |image| {
            found = Some(image.head().size());
            Ok(())
        })
    })?;
    Ok(found)
}
