//! Samples that came while shards were indexed: the first fetch of each needs no request.
//!
//! Headers of small members come with the members between them (`request/ranged.rs`). These are kept for the first
//! batches that want them, up to [`HELD_MAX`] bytes in the process, whatever the number of datasets. A sample that is
//! fetched leaves, so it is in memory once: here or where it went.
//!
//! Locks: ranges are held while one is added or looked at, samples for one look.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use lossfeed_sync::Mutex;

use crate::format::catalog::{Catalog, Place};
use crate::format::tar::ShardIndex;
use crate::types::SampleId;

/// The most bytes that all datasets of a process hold: the usual prefetch window.
const HELD_MAX: u64 = 128 << 20;

static HELD: AtomicU64 = AtomicU64::new(0);

/// A part of a shard; its room is given back with it.
struct Part {
    shard: u32,
    start: u64,
    bytes: Bytes,
    held: &'static AtomicU64,
}

impl Part {
    /// A copy of a sample that is whole within it.
    fn copy(&self, place: Place) -> Option<Box<[u8]>> {
        let from = usize::try_from(place.offset.checked_sub(self.start)?).ok()?;
        Some(self.bytes.get(from..from.checked_add(place.bytes as usize)?)?.into())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.held.fetch_sub(self.bytes.len() as u64, Relaxed);
    }
}

/// Parts of shards that are being indexed.
pub(crate) struct Parts {
    parts: Mutex<Vec<Part>>,
    /// Bytes of all that share a bound.
    held: &'static AtomicU64,
}

impl Default for Parts {
    fn default() -> Self {
        Self { parts: Mutex::default(), held: &HELD }
    }
}

impl Parts {
    /// Keeps a part of a shard if there is room.
    pub(crate) fn add(&self, shard: u32, start: u64, bytes: &Bytes) {
        let more = |held: u64| held.checked_add(bytes.len() as u64).filter(|&all| all <= HELD_MAX);
        if self.held.fetch_update(Relaxed, Relaxed, more).is_ok() {
            self.parts.lock().push(Part { shard, start, bytes: bytes.clone(), held: self.held });
        }
    }

    /// A shard is indexed: drops its parts in which no member is whole.
    pub(crate) fn indexed(&self, shard: u32, index: &ShardIndex) {
        let whole = |part: &Part| {
            let end = part.start + part.bytes.len() as u64;
            [&index.members, &index.others].iter().any(|members| {
                let first = members.partition_point(|member| member.offset < part.start);
                members.get(first).is_some_and(|member| member.offset.saturating_add(member.bytes) <= end)
            })
        };
        self.parts.lock().retain(|part| part.shard != shard || whole(part));
    }

    /// The samples of `catalog` that lie in one part each.
    pub(crate) fn cut(self, catalog: &Catalog) -> Walked {
        let (mut parts, held) = (self.parts.into_inner(), self.held);
        // The first one is the last, so that it can be dropped when it is used up: ids follow the shards.
        parts.sort_by_key(|part| std::cmp::Reverse((part.shard, part.start)));
        let mut samples = HashMap::new();
        for (id, &place) in (0..).zip(&catalog.places) {
            while parts.iter().rev().nth(1).is_some_and(|next| (next.shard, next.start) <= (place.shard, place.offset))
            {
                parts.pop();
            }
            let Some(part) = parts.last() else { break };
            if place.bytes > 0
                && part.shard == place.shard
                && let Some(data) = part.copy(place)
            {
                // Its part has this room until it is dropped.
                held.fetch_add(data.len() as u64, Relaxed);
                samples.insert(id, data);
            }
        }
        Walked { left: AtomicU64::new(samples.len() as u64), samples: Mutex::new(samples), held }
    }
}

/// Samples that were not fetched yet.
pub(crate) struct Walked {
    /// Their number, so that nothing is locked when there is none.
    left: AtomicU64,
    samples: Mutex<HashMap<SampleId, Box<[u8]>>>,
    held: &'static AtomicU64,
}

impl Default for Walked {
    fn default() -> Self {
        Self { left: AtomicU64::new(0), samples: Mutex::default(), held: &HELD }
    }
}

impl Walked {
    pub(crate) fn has(&self, id: SampleId) -> bool {
        self.left.load(Relaxed) > 0 && self.samples.lock().contains_key(&id)
    }

    /// Takes a sample out.
    pub(crate) fn take(&self, id: SampleId) -> Option<Box<[u8]>> {
        if self.left.load(Relaxed) == 0 {
            return None;
        }
        let mut samples = self.samples.lock();
        let data = samples.remove(&id)?;
        self.left.store(samples.len() as u64, Relaxed);
        self.held.fetch_sub(data.len() as u64, Relaxed);
        Some(data)
    }

    /// Drops samples until no more than `most` bytes are left.
    pub(crate) fn trim(&self, most: u64) {
        let mut samples = self.samples.lock();
        let (mut bytes, mut dropped) = (0, 0);
        samples.retain(|_, data| {
            let all = bytes + data.len() as u64;
            let stays = all <= most;
            *if stays { &mut bytes } else { &mut dropped } += data.len() as u64;
            stays
        });
        self.left.store(samples.len() as u64, Relaxed);
        self.held.fetch_sub(dropped, Relaxed);
    }
}

impl Drop for Walked {
    fn drop(&mut self) {
        self.trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bytes that no other test holds.
    fn nothing_held() -> &'static AtomicU64 {
        Box::leak(Box::default())
    }

    /// Samples of every shard, one after the other with gaps, and what each should be.
    fn catalog(shards: &[Vec<(u8, u8)>]) -> (Catalog, Vec<Vec<u8>>) {
        let (mut catalog, mut whole) = (Catalog::default(), Vec::new());
        for (shard, members) in (0..).zip(shards) {
            let mut at = 0;
            for &(gap, bytes) in members {
                at += u64::from(gap);
                catalog.places.push(Place { shard, offset: at, bytes: bytes.into() });
                at += u64::from(bytes);
            }
            whole.push((0..at).map(|k| (k * 31 + u64::from(shard)) as u8).collect());
        }
        (catalog, whole)
    }

    proptest! {
        #[test]
        fn a_sample_is_held_if_it_lies_in_one_part_and_leaves_when_it_is_taken(
            shards in prop::collection::vec(prop::collection::vec((any::<u8>(), any::<u8>()), 0..20), 1..4),
            cuts in prop::collection::vec((0u32..4, any::<prop::sample::Index>()), 0..12),
            most in 0u64..4000,
        ) {
            let (catalog, whole) = catalog(&shards);
            let held_bytes = nothing_held();
            let parts = Parts { held: held_bytes, ..Parts::default() };
            let mut ranges = Vec::new();
            for (shard, bytes) in (0..).zip(&whole) {
                let mut cuts: Vec<usize> =
                    cuts.iter().filter(|cut| cut.0 == shard).map(|cut| cut.1.index(bytes.len() + 1)).collect();
                cuts.sort_unstable();
                // A part begins where the one before ends, or further on.
                for two in cuts.windows(2).filter(|two| two[0] < two[1] && (two[0] + two[1]) % 5 != 0) {
                    parts.add(shard, two[0] as u64, &Bytes::copy_from_slice(&bytes[two[0]..two[1]]));
                    ranges.push((shard, two[0] as u64..two[1] as u64));
                }
            }
            let walked = parts.cut(&catalog);
            let naive = |place: &Place| {
                let end = place.offset + u64::from(place.bytes);
                place.bytes > 0 && ranges.iter().any(|(s, r)| *s == place.shard && r.start <= place.offset && end <= r.end)
            };
            let held: u64 = catalog.places.iter().filter(|place| naive(place)).map(|p| u64::from(p.bytes)).sum();
            prop_assert_eq!(held_bytes.load(Relaxed), held);
            for (id, place) in (0..).zip(&catalog.places) {
                prop_assert_eq!(walked.has(id), naive(place), "{} of {:?}", id, ranges);
            }
            walked.trim(most);
            prop_assert!(held_bytes.load(Relaxed) <= held.min(most));
            for (id, place) in (0..).zip(&catalog.places) {
                let there = walked.has(id);
                let data = walked.take(id);
                prop_assert_eq!(data.is_some(), there);
                let range = place.offset as usize..(place.offset + u64::from(place.bytes)) as usize;
                prop_assert!(data.is_none_or(|data| *data == whole[place.shard as usize][range]));
                prop_assert!(!walked.has(id) && walked.take(id).is_none(), "once");
            }
            prop_assert_eq!(held_bytes.load(Relaxed), 0);
        }
    }

    #[test]
    fn a_process_holds_no_more_than_its_bound() {
        let held_bytes = nothing_held();
        let (parts, bytes) = (Parts { held: held_bytes, ..Parts::default() }, Bytes::from(vec![0; 50 << 20]));
        (0..4).for_each(|shard| parts.add(shard, 0, &bytes));
        assert_eq!((parts.parts.lock().len(), held_bytes.load(Relaxed)), (2, 100 << 20));
        let member = |offset, bytes| crate::format::tar::Member::new("a.png".into(), offset, bytes);
        let index = |members| ShardIndex { members, ..ShardIndex::default() };
        parts.indexed(0, &index(vec![member(512, 60 << 20)]));
        parts.indexed(1, &index(vec![member(512, 1 << 20)]));
        assert_eq!((parts.parts.lock().len(), held_bytes.load(Relaxed)), (1, 50 << 20));
        drop(parts);
        assert_eq!(held_bytes.load(Relaxed), 0);
    }
}
