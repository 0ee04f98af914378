//! Where the chosen members of each sample lie in what is read of it.

use crate::error::{Error, Result};
use crate::sample::Piece;
use crate::sample::payload::{self, TailPart};
use crate::types::SampleId;

/// Where a member lies in what is read of its sample.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) offset: u32,
    pub(crate) bytes: u32,
}

/// The chosen members of every sample: the picture, if there is one, and the tail's.
#[derive(Debug, Clone)]
pub(crate) struct Members {
    /// What was chosen.
    pub(crate) pieces: Vec<Piece>,
    pub(crate) picture: bool,
    pub(crate) labelled: bool,
    /// Members of a tail.
    pub(crate) tail: usize,
    /// Those of sample 0, then those of sample 1, and so on.
    pub(crate) extents: Vec<Extent>,
}

impl Members {
    pub(crate) fn has_tail(&self) -> bool {
        self.tail > 0
    }

    fn extents(&self, id: SampleId) -> &[Extent] {
        let each = usize::from(self.picture) + self.tail;
        let start = id as usize * each;
        self.extents.get(start..start + each).unwrap_or_default()
    }

    /// The picture's and the tail's members of a sample.
    fn apart(&self, id: SampleId) -> (Option<&Extent>, &[Extent]) {
        match self.extents(id).split_first() {
            Some((picture, tail)) if self.picture => (Some(picture), tail),
            _ => (None, self.extents(id)),
        }
    }

    /// Bytes of a sample's tail.
    pub(crate) fn tail_bytes(&self, id: SampleId) -> u64 {
        let (_, tail) = self.apart(id);
        payload::tail_bytes(tail.iter().map(|extent| u64::from(extent.bytes)))
    }

    /// Bytes of what [`Self::payload`] makes.
    pub(crate) fn payload_bytes(&self, id: SampleId) -> u64 {
        let (picture, tail) = self.apart(id);
        payload::payload_bytes(picture.map(|picture| u64::from(picture.bytes)), self.tail_bytes(id), !tail.is_empty())
    }

    /// Makes a payload of what was read of a sample.
    pub(crate) fn payload(&self, id: SampleId, read: &[u8], into: &mut Vec<u8>) -> Result<()> {
        let (picture, tail) = self.apart(id);
        let bytes = |extent: &Extent| {
            read.get(extent.offset as usize..)
                .and_then(|from| from.get(..extent.bytes as usize))
                .ok_or_else(|| Error::internal(format!("{} bytes were read of a larger sample", read.len())))
        };
        let part = |extent| Ok(TailPart { bytes: bytes(extent)?, length: Some(u64::from(extent.bytes)) });
        let tail = tail.iter().map(part).collect::<Result<Vec<_>>>()?;
        payload::join(picture.map(bytes).transpose()?, &tail, into);
        Ok(())
    }

    /// Where the chosen members of a sample lie, as bytes of a digest.
    pub(crate) fn proof(&self, id: SampleId) -> Vec<u8> {
        let places = self.extents(id).iter().flat_map(|extent| [extent.offset, extent.bytes]);
        places.flat_map(u32::to_le_bytes).collect()
    }
}
