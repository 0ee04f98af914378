//! What a sample takes in the cache.

use crate::arena::Arena;
use crate::settings::CacheForm;
use crate::source::{Form, Source};
use crate::types::SampleId;
use std::sync::Arc;

/// The sizes of a dataset's records. A record is a sample's payload, in the form in which it is kept, followed by its
/// target.
#[derive(Clone)]
pub struct RecordSizes {
    source: Arc<dyn Source>,
    encoded: bool,
    tailed: bool,
    announced: bool,
    decoded_bytes: usize,
    target_bytes: usize,
}

impl RecordSizes {
    /// For samples that have `decoded_bytes` once they are decoded, tails apart. Only images have an encoded form.
    pub fn new(source: Arc<dyn Source>, decoded_bytes: usize, form: CacheForm) -> Self {
        let encoded = form == CacheForm::Encoded && matches!(source.form(), Form::Images { .. });
        let target_bytes = source.target_spec().bytes();
        let (tailed, announced) = (source.form().tailed(), source.facts().sized);
        Self { source, encoded, tailed, announced, decoded_bytes, target_bytes }
    }

    /// Whether records hold the source's own bytes, which are decoded at every use.
    pub fn encoded(&self) -> bool {
        self.encoded
    }

    /// Whether a tail follows what all decoded samples have.
    pub fn tailed(&self) -> bool {
        self.tailed
    }

    /// Whether the source says before it reads them how large samples are.
    pub fn announced(&self) -> bool {
        self.announced
    }

    /// Whether each record's size is known before it was read once: so it is where decoded samples are all there is.
    fn sized(&self) -> bool {
        self.announced || !(self.encoded || self.tailed)
    }

    /// Bytes of a decoded sample, without its tail.
    pub fn decoded_bytes(&self) -> usize {
        self.decoded_bytes
    }

    /// The record's own bytes.
    pub fn bytes(&self, id: SampleId) -> u64 {
        let payload = match self.source.form() {
            _ if self.encoded => self.source.payload_bytes(id),
            Form::Fields(fields) if fields.tailed() => self.source.payload_bytes(id),
            _ if self.tailed => self.decoded_bytes as u64 + self.source.size(id).tail,
            _ => self.decoded_bytes as u64,
        };
        payload + self.target_bytes as u64
    }

    /// What the record takes in the arena.
    pub fn footprint(&self, id: SampleId) -> u64 {
        Arena::footprint(self.bytes(id) as usize)
    }

    /// What the smallest record takes in the arena, or would without its tail.
    pub fn smallest_footprint(&self) -> u64 {
        if !self.sized() {
            return Arena::footprint(self.decoded_bytes + self.target_bytes);
        }
        self.footprints().min().unwrap_or(0)
    }

    /// What all samples together take in the arena; `u64::MAX` where that is not known.
    pub fn total_footprint(&self) -> u64 {
        if !self.sized() {
            return u64::MAX;
        }
        if self.encoded || self.tailed {
            self.footprints().sum()
        } else {
            self.footprint(0).saturating_mul(self.source.len() as u64)
        }
    }

    /// Of every sample, or of one where all are alike.
    fn footprints(&self) -> impl Iterator<Item = u64> + '_ {
        let samples = if self.encoded || self.tailed { self.source.len() } else { self.source.len().min(1) };
        (0..samples as SampleId).map(|id| self.footprint(id))
    }
}
