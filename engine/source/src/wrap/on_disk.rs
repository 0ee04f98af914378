//! The disk tier before a source: what was fetched is kept on a local disk.
//!
//! A sample is known on disk by a digest of the store and of [`Source::proof`]: the object as it was indexed, and the
//! range. So decision 16 holds: bytes come under an id only if they prove to be those that were indexed, and an object
//! that has changed is another sample, which is not there. Labels are the source's own and never on the disk.
//!
//! What came over a network and does not decode is asked for once more, as damage on the way passes. The damaged bytes
//! are on the disk by then, or on their way there: [`News::Doubtful`](crate::sample::News::Doubtful) says so, and they
//! are forgotten.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use lossfeed_disk::{Disk, Flight, Key, Policy, ReadAt, Settings, Wanted, Whose};
use sha2::{Digest, Sha256};

use crate::error::Result;
use crate::options::DiskTier;
use crate::sample::Source;
use crate::tune::circuit::Outcome;
use crate::types::SampleId;
use crate::wrap::tier::{Tier, TierNumbers, check_kept};
use crate::wrap::tiered::Tiered;

/// See the module's head.
pub(crate) struct OnDisk {
    source: Arc<dyn Source>,
    disk: Disk,
    place: [u8; 32],
}

impl OnDisk {
    /// `source` with a disk tier before it. `place` tells names apart that are equal in two stores; `read` reads the
    /// files, and is the system where it is `None`.
    ///
    /// # Errors
    /// `Settings` as [`Disk::open`]; also for a source whose labels are not known without reading, or whose samples
    /// nothing tells apart from their next version.
    pub(crate) fn before(
        source: Arc<dyn Source>,
        place: &str,
        tier: &DiskTier,
        read: Option<Arc<dyn ReadAt>>,
    ) -> Result<Tiered<Self>> {
        check_kept(source.as_ref(), "disk")?;
        let settings = Settings {
            folder: tier.folder.clone(),
            limit_bytes: tier.bytes,
            dataset_bytes: (0..source.len() as SampleId).map(|id| source.payload_bytes(id)).sum(),
            policy: Policy::Worth,
        };
        let disk = match read {
            None => Disk::open(&settings)?,
            Some(read) => Disk::open_over(&settings, read)?,
        };
        let alone_us = disk.fetched_in_us();
        let tier = Self { disk, place: Sha256::digest(place).into(), source: Arc::clone(&source) };
        Ok(Tiered::new(source, tier, alone_us))
    }

    /// Until what was offered so far can be read.
    #[cfg(test)]
    pub(crate) fn settle(&self) {
        self.disk.settle();
    }

    fn key(&self, id: SampleId) -> Option<Key> {
        let mut digest = Sha256::new();
        digest.update(self.place);
        digest.update(self.source.proof(id)?);
        digest.finalize().first_chunk().copied().map(Key::from_le_bytes)
    }
}

impl Tier for OnDisk {
    type Flight = Flight;

    fn name(&self) -> &'static str {
        "the disk tier"
    }

    fn counted(&self) -> TierNumbers {
        TierNumbers::Disk(self.disk.numbers())
    }

    fn has(&self, id: SampleId) -> bool {
        self.key(id).is_some_and(|key| self.disk.has(key))
    }

    fn read(
        &self,
        ids: &[SampleId],
        patience: &dyn Fn(usize) -> Duration,
        stopped: &dyn Fn() -> bool,
        sink: &mut dyn FnMut(usize, &[u8]) -> ControlFlow<()>,
    ) -> Outcome {
        let keys: Vec<Option<Key>> = ids.iter().map(|&id| self.key(id)).collect();
        let found = ids.iter().zip(self.disk.find(&keys)).enumerate();
        let wanted: Vec<Wanted> =
            found.filter_map(|(k, (&id, found))| Some((k, found?, self.source.payload_bytes(id) as usize))).collect();
        if wanted.is_empty() {
            return Outcome::default();
        }
        let patience = |came: u64| patience(usize::try_from(came).unwrap_or(usize::MAX));
        let reads = self.disk.read_all(wanted, &patience, stopped, sink);
        Outcome {
            answers: reads.answers,
            failures: reads.failures,
            took_us: reads.took.as_micros() as u64,
            unfinished: reads.unfinished,
        }
    }

    fn flight(&self) -> Option<Flight> {
        self.disk.flight()
    }

    fn claim(&self, flight: &mut Flight, ids: &[SampleId], stopped: &dyn Fn() -> bool) -> Vec<Whose> {
        flight.claim(&ids.iter().map(|&id| self.key(id)).collect::<Vec<_>>(), stopped)
    }

    fn offer(&self, _: Option<&mut Flight>, id: SampleId, cost: Duration, data: &[u8]) {
        if let Some(key) = self.key(id) {
            self.disk.offer(key, cost, data);
        }
    }

    fn forget(&self, ids: &[SampleId]) {
        ids.iter().filter_map(|&id| self.key(id)).for_each(|key| self.disk.forget(key));
    }
}
