//! A source with a disk tier before it: what the disk has is read there, the rest is fetched and kept.
//!
//! A sample is known on disk by a digest of the store and of [`Source::proof`]: the object as it was indexed, and the
//! range. So decision 16 holds: bytes come under an id only if they prove to be those that were indexed, and an object
//! that has changed is another sample, which is not there. Labels are the source's own and never on the disk.
//!
//! What came over a network and does not decode is asked for once more, as damage on the way passes. The damaged bytes
//! are on the disk by then, or on their way there: [`Source::doubt`] says so, and they are forgotten.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lossfeed_disk::{Disk, Key, Numbers, Policy, Settings};
use sha2::{Digest, Sha256};

use super::options::DiskTier;
use super::{Form, Payload, Piece, Source, Traffic};
use crate::error::{Error, Result};
use crate::process::Process;
use crate::types::{SampleId, TensorSpec};

/// See the module's head.
pub(super) struct OnDisk {
    inner: Arc<dyn Source>,
    disk: Disk,
    place: [u8; 32],
    made_by: Process,
}

impl OnDisk {
    /// `place` tells names apart that are equal in two stores.
    ///
    /// # Errors
    /// `Settings` as [`Disk::open`]; also for a source whose labels are not known without reading, or whose samples
    /// nothing tells apart from their next version.
    pub(super) fn new(inner: Arc<dyn Source>, place: &str, tier: &DiskTier) -> Result<Self> {
        let known = match inner.labels() {
            Some(_) => *inner.target_spec() == TensorSpec::class_index(),
            None => *inner.target_spec() == TensorSpec::no_target(),
        };
        // An empty sample has no proof, as it has no bytes.
        let some = (0..inner.len() as SampleId).find(|&id| inner.payload_bytes(id) > 0);
        if !inner.sized() {
            return Err(Error::settings(format!(
                "{} cannot be kept on disk: the size of a row is not known before it was read; leave `disk` out, or pack it into tar shards",
                inner.describe()
            )));
        }
        if !known || some.is_some_and(|id| inner.proof(id).is_none()) {
            return Err(Error::settings(format!(
                "{} cannot be kept on disk: its store tells neither entity tags nor dates, so nothing would tell a \
                 changed object from the one that was kept; leave `disk` out",
                inner.describe()
            )));
        }
        let settings = Settings {
            folder: tier.folder.clone(),
            limit_bytes: tier.bytes,
            dataset_bytes: (0..inner.len() as SampleId).map(|id| inner.payload_bytes(id)).sum(),
            policy: Policy::Worth,
        };
        Ok(Self {
            disk: Disk::open(&settings)?,
            place: Sha256::digest(place).into(),
            made_by: Process::current(),
            inner,
        })
    }

    fn key(&self, id: SampleId) -> Option<Key> {
        let mut digest = Sha256::new();
        digest.update(self.place);
        digest.update(self.inner.proof(id)?);
        digest.finalize().first_chunk().copied().map(Key::from_le_bytes)
    }

    /// Answers from the disk what is there. What is left, by position.
    fn read(
        &self,
        ids: &[SampleId],
        keys: &[Option<Key>],
        sink: &mut dyn FnMut(usize, Result<Payload<'_>>) -> ControlFlow<()>,
    ) -> ControlFlow<(), Vec<usize>> {
        let labels = self.inner.labels();
        let (mut left, mut room) = (Vec::new(), Vec::new());
        for (k, (&id, found)) in ids.iter().zip(self.disk.find(keys)).enumerate() {
            let bytes = self.inner.payload_bytes(id) as usize;
            let target = match labels {
                Some(labels) => labels.get(id as usize).map(bytemuck::bytes_of),
                None => Some(&[0][..]),
            };
            if let Some((found, target)) = found.as_ref().zip(target) {
                if room.len() < bytes {
                    room.resize(bytes, 0);
                }
                let data = room.get_mut(..bytes).unwrap_or_default();
                if self.disk.read_found(found, data) {
                    sink(k, Ok(Payload { data, target }))?;
                    continue;
                }
            }
            left.push(k);
        }
        ControlFlow::Continue(left)
    }
}

impl Source for OnDisk {
    fn len(&self) -> usize {
        self.inner.len()
    }
    fn describe(&self) -> String {
        self.inner.describe()
    }
    fn payload_bytes(&self, id: SampleId) -> u64 {
        self.inner.payload_bytes(id)
    }
    fn sized(&self) -> bool {
        self.inner.sized()
    }
    fn tail_bytes(&self, id: SampleId) -> u64 {
        self.inner.tail_bytes(id)
    }
    fn name(&self, id: SampleId) -> String {
        self.inner.name(id)
    }
    fn form(&self) -> &Form {
        self.inner.form()
    }
    fn pieces(&self) -> &[Piece] {
        self.inner.pieces()
    }
    fn expected_bytes(&self, id: SampleId) -> Option<u64> {
        self.inner.expected_bytes(id)
    }
    fn target_spec(&self) -> &TensorSpec {
        self.inner.target_spec()
    }
    fn classes(&self) -> &[String] {
        self.inner.classes()
    }
    fn labels(&self) -> Option<&[i64]> {
        self.inner.labels()
    }
    fn in_memory(&self) -> bool {
        self.inner.in_memory()
    }
    fn digest(&self) -> String {
        self.inner.digest()
    }
    fn proof(&self, id: SampleId) -> Option<[u8; 16]> {
        self.inner.proof(id)
    }
    fn disk(&self) -> Option<Numbers> {
        Some(self.disk.numbers())
    }
    fn remote(&self) -> bool {
        self.inner.remote()
    }
    fn doubt(&self, ids: &[SampleId]) {
        if self.made_by.is_current() {
            ids.iter().filter_map(|&id| self.key(id)).for_each(|key| self.disk.forget(key));
        }
        self.inner.doubt(ids);
    }
    fn fetch(&self, ids: &[SampleId], sink: &mut dyn FnMut(usize, Result<Payload<'_>>) -> ControlFlow<()>) {
        self.fetch_by(u64::MAX, &|| false, ids, sink);
    }
    fn limit(&self, bytes_per_s: Option<u64>) -> bool {
        self.inner.limit(bytes_per_s)
    }
    fn requests_ahead(&self) -> usize {
        self.inner.requests_ahead()
    }
    fn along(&self, ids: &[SampleId], first: usize, request_bytes: u64) -> Vec<usize> {
        // What the disk has needs no request and brings nobody along.
        let has = |id: SampleId| self.key(id).is_some_and(|key| self.disk.has(key));
        let absent: Vec<usize> = (0..ids.len()).filter(|&k| ids.get(k).is_some_and(|&id| !has(id))).collect();
        let inner: Vec<SampleId> = absent.iter().filter_map(|&k| ids.get(k).copied()).collect();
        let inner_first = absent.partition_point(|&k| k < first);
        let along = self.inner.along(&inner, inner_first, request_bytes);
        along.into_iter().filter_map(|at| absent.get(at).copied()).collect()
    }
    fn fetch_by(
        &self,
        request_bytes: u64,
        stopped: &dyn Fn() -> bool,
        ids: &[SampleId],
        sink: &mut dyn FnMut(usize, Result<Payload<'_>>) -> ControlFlow<()>,
    ) -> Traffic {
        if stopped() {
            return Traffic::default();
        }
        if !self.made_by.is_current() {
            // The disk tier's thread and locks are the parent's.
            return self.inner.fetch_by(request_bytes, stopped, ids, sink);
        }
        let keys: Vec<Option<Key>> = ids.iter().map(|&id| self.key(id)).collect();
        let ControlFlow::Continue(left) = self.read(ids, &keys, sink) else {
            return Traffic::default();
        };
        if left.is_empty() {
            return Traffic::default();
        }
        let wanted: Vec<SampleId> = left.iter().filter_map(|&k| ids.get(k).copied()).collect();
        // What the source made this thread wait for an answer so far: what a fetch of it costs.
        let (mut waited, mut answers, mut since) = (Duration::ZERO, 0, Instant::now());
        self.inner.fetch_by(request_bytes, stopped, &wanted, &mut |at, answer| {
            (waited, answers) = (waited + since.elapsed(), answers + 1);
            let (Some(&k), Some(&id)) = (left.get(at), wanted.get(at)) else { return ControlFlow::Continue(()) };
            if let (Ok(payload), Some(key)) = (&answer, keys.get(k).copied().flatten())
                && payload.data.len() as u64 == self.inner.payload_bytes(id)
            {
                self.disk.offer(key, waited / answers, payload.data);
            }
            let going = sink(k, answer);
            since = Instant::now();
            going
        })
    }
}
