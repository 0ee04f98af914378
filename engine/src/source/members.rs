//! Where the chosen members of each sample lie in what is read of it, and the payload that is made of them.

use crate::error::{Error, Result};
use crate::types::SampleId;

/// Every member of a tail begins at a multiple of this from where the first does.
const ALIGNMENT: usize = 8;
const NUMBER_BYTES: usize = 8;

/// Where a member lies in what is read of its sample.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) offset: u32,
    pub(super) bytes: u32,
}

/// The chosen members of every sample: the picture, if there is one, and the tail's.
#[derive(Debug, Clone)]
pub(super) struct Members {
    /// Which were chosen.
    pub(super) names: String,
    pub(super) picture: bool,
    pub(super) labelled: bool,
    /// Members of a tail.
    pub(super) tail: usize,
    /// Those of sample 0, then those of sample 1, and so on.
    pub(super) extents: Vec<Extent>,
}

impl Members {
    pub(super) fn has_tail(&self) -> bool {
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
    pub(super) fn tail_bytes(&self, id: SampleId) -> u64 {
        let (_, tail) = self.apart(id);
        let mut bytes = 0u64;
        for extent in tail {
            bytes = bytes.next_multiple_of(ALIGNMENT as u64) + u64::from(extent.bytes);
        }
        bytes + (NUMBER_BYTES * tail.len()) as u64
    }

    /// Bytes of what [`Self::payload`] makes.
    pub(super) fn payload_bytes(&self, id: SampleId) -> u64 {
        let (picture, tail) = self.apart(id);
        let length = if tail.is_empty() { 0 } else { NUMBER_BYTES as u64 };
        self.tail_bytes(id) + picture.map_or(0, |picture| u64::from(picture.bytes) + length)
    }

    /// Makes a payload of what was read of a sample: the picture, the tail, and the picture's length. The tail has the
    /// lengths of its members and then the members. Without a picture it is the tail alone, and without a tail the picture.
    pub(super) fn payload(&self, id: SampleId, read: &[u8], into: &mut Vec<u8>) -> Result<()> {
        into.clear();
        let (picture, tail) = self.apart(id);
        let bytes = |extent: &Extent| {
            read.get(extent.offset as usize..)
                .and_then(|from| from.get(..extent.bytes as usize))
                .ok_or_else(|| Error::internal(format!("{} bytes were read of a larger sample", read.len())))
        };
        if let Some(picture) = picture {
            into.extend_from_slice(bytes(picture)?);
        }
        for extent in tail {
            into.extend_from_slice(&u64::from(extent.bytes).to_ne_bytes());
        }
        let start = into.len();
        for extent in tail {
            into.resize(start + (into.len() - start).next_multiple_of(ALIGNMENT), 0);
            into.extend_from_slice(bytes(extent)?);
        }
        if let Some(picture) = picture.filter(|_| !tail.is_empty()) {
            into.extend_from_slice(&u64::from(picture.bytes).to_ne_bytes());
        }
        Ok(())
    }

    /// Where the chosen members of a sample lie, as bytes of a digest.
    pub(super) fn proof(&self, id: SampleId) -> Vec<u8> {
        let places = self.extents(id).iter().flat_map(|extent| [extent.offset, extent.bytes]);
        places.flat_map(u32::to_le_bytes).collect()
    }
}

/// The picture and the tail of a payload that has both.
///
/// # Errors
/// `Sample` for bytes that are no such payload.
pub(crate) fn picture_and_tail(payload: &[u8]) -> Result<(&[u8], &[u8])> {
    let parts = payload.split_last_chunk::<NUMBER_BYTES>().and_then(|(rest, length)| {
        usize::try_from(u64::from_ne_bytes(*length)).ok().and_then(|length| rest.split_at_checked(length))
    });
    parts.ok_or_else(|| Error::sample("its picture is longer than the sample: it is damaged"))
}
