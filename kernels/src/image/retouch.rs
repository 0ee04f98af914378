//! Retouching: what is done to an image's bytes between its crop and its transform, by a GPU in one launch. Colours,
//! then a cut and automatic augmentation.

use super::{Augment, ColorJitter, ImageMaker, ImageTransform};

/// The steps, for images of one shape; at least one.
#[derive(Clone, Debug, PartialEq)]
pub struct Retouch {
    /// Height, width, channels of what is retouched.
    pub(crate) source: [usize; 3],
    pub(crate) jitter: Option<ColorJitter>,
    /// Cuts and mirrors bytes, before augmentation.
    pub(crate) cut: Option<ImageTransform>,
    pub(crate) augment: Option<Augment>,
}

/// Where a batch lies on a device: offsets from the start of its pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetouchRoom {
    /// The retouched images.
    pub out: usize,
    /// Memory to work in; at 0 it is the pixels' own.
    pub spare: usize,
    /// Bytes from row to row of it.
    pub spare_row: usize,
    /// All bytes, those of the pixels among them.
    pub bytes: usize,
}

/// What parts of that memory begin at multiples of.
const ALIGNMENT: usize = 256;

impl Retouch {
    /// Of images of `source` (height, width, channels: 1 or 3). `None` without a step. A cut is one of bytes of that
    /// shape, and augmentation is of what it makes.
    pub fn new(
        source: [usize; 3],
        jitter: Option<ColorJitter>,
        cut: Option<ImageTransform>,
        augment: Option<Augment>,
    ) -> Option<Self> {
        (jitter.is_some() || augment.is_some()).then_some(Self { source, jitter, cut, augment })
    }

    /// Changes of colours, which come first.
    pub fn jitter(&self) -> Option<&ColorJitter> {
        self.jitter.as_ref()
    }
    /// Automatic augmentation, which comes last.
    pub fn augment(&self) -> Option<&Augment> {
        self.augment.as_ref()
    }

    /// Bytes of a sample as it comes.
    pub fn source_bytes(&self) -> usize {
        self.source.iter().product()
    }

    /// Bytes of a retouched sample.
    pub fn out_bytes(&self) -> usize {
        self.cut.as_ref().map_or(self.source_bytes(), ImageTransform::out_bytes)
    }

    /// Where the parts of `rows` samples lie.
    pub fn room(&self, rows: usize) -> RetouchRoom {
        let (source, made) = (self.source_bytes(), self.out_bytes());
        if self.augment.is_none() {
            // Colours change where they lie.
            return RetouchRoom { out: 0, spare: 0, spare_row: source, bytes: rows * source };
        }
        let out = (rows * source).next_multiple_of(ALIGNMENT);
        let end = out + rows * made;
        if made <= source {
            return RetouchRoom { out, spare: 0, spare_row: source, bytes: end };
        }
        let spare = end.next_multiple_of(ALIGNMENT);
        RetouchRoom { out, spare, spare_row: made, bytes: spare + rows * made }
    }

    /// Sample `id` in the batch of `key`, as loader threads make it: the definition.
    pub fn plain(&self, key: u64, id: i64, pixels: &[u8]) -> Vec<u8> {
        let mut made = pixels.to_vec();
        if let Some(jitter) = &self.jitter {
            jitter.apply(key, id, self.source[2], &mut made);
        }
        if let Some(cut) = &self.cut {
            let mut out = vec![0; cut.out_bytes()];
            ImageMaker::new(cut.clone()).make(key, id, &made, &mut out);
            made = out;
        }
        if let Some(augment) = &self.augment {
            augment.apply(key, id, &mut made, &mut Vec::new());
        }
        made
    }
}
