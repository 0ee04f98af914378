//! Which record lies where: the index of all segments, in memory.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use lossfeed_sync::RwLock;

use crate::Key;
use crate::format::Entry;
use crate::segment::Segment;

/// Entries that are added or taken out under one hold of the lock.
const AT_ONCE: usize = 4096;

/// Records by the low half of their keys: 16 bytes each, and the table's air. Two keys with the same low half share a
/// place; the record's head tells whose it is.
#[derive(Default)]
pub(crate) struct Shelf(RwLock<Inner>);

#[derive(Default)]
struct Inner {
    places: HashMap<u64, Place, BuildHasherDefault<AsItIs>>,
    segments: HashMap<u32, Arc<Segment>, BuildHasherDefault<AsItIs>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    segment: u32,
    at: u32,
}

impl Shelf {
    /// The segment that has a key, and where in it.
    pub(crate) fn find(&self, key: Key) -> Option<(Arc<Segment>, u32)> {
        let inner = self.0.read();
        let place = inner.places.get(&(key as u64))?;
        Some((Arc::clone(inner.segments.get(&place.segment)?), place.at))
    }

    /// The same of many, under one hold of the lock: their misses of memory overlap.
    pub(crate) fn find_all(&self, keys: &[Option<Key>]) -> Vec<Option<(Arc<Segment>, u32)>> {
        let inner = self.0.read();
        let places: Vec<Option<Place>> =
            keys.iter().map(|key| key.and_then(|key| inner.places.get(&(key as u64)).copied())).collect();
        let found = |place: Option<Place>| {
            let place = place?;
            Some((Arc::clone(inner.segments.get(&place.segment)?), place.at))
        };
        places.into_iter().map(found).collect()
    }

    pub(crate) fn has(&self, key: Key) -> bool {
        self.0.read().places.contains_key(&(key as u64))
    }

    pub(crate) fn add(&self, segment: Arc<Segment>, entries: &[Entry]) {
        let number = segment.number;
        self.0.write().segments.insert(number, segment);
        self.publish(number, entries);
    }

    /// Records of a known segment can be read from now on.
    pub(crate) fn publish(&self, number: u32, entries: &[Entry]) {
        let fresh = {
            let mut inner = self.0.write();
            let fresh = inner.places.is_empty();
            inner.places.reserve(entries.len());
            fresh
        };
        // While a folder is opened nobody waits for the lock.
        for entries in entries.chunks(if fresh { usize::MAX } else { AT_ONCE }) {
            let mut inner = self.0.write();
            for entry in entries {
                inner.places.insert(entry.key as u64, Place { segment: number, at: entry.at });
            }
        }
    }

    /// Forgets a record, if it still lies there.
    pub(crate) fn forget(&self, key: Key, number: u32, at: u32) -> bool {
        let mut inner = self.0.write();
        let there = inner.places.get(&(key as u64)) == Some(&Place { segment: number, at });
        if there {
            inner.places.remove(&(key as u64));
        }
        there
    }

    /// Forgets a segment and what lies in it.
    pub(crate) fn remove(&self, segment: &Segment) {
        let number = segment.number;
        match segment.contents() {
            Some(contents) => {
                for entries in contents.entries.chunks(AT_ONCE) {
                    let mut inner = self.0.write();
                    for entry in entries {
                        let key = entry.key as u64;
                        if inner.places.get(&key).is_some_and(|place| place.segment == number) {
                            inner.places.remove(&key);
                        }
                    }
                }
            }
            None => self.0.write().places.retain(|_, place| place.segment != number),
        }
        self.0.write().segments.remove(&number);
    }

    pub(crate) fn segments(&self) -> Vec<Arc<Segment>> {
        self.0.read().segments.values().cloned().collect()
    }

    pub(crate) fn records(&self) -> usize {
        self.0.read().places.len()
    }
}

/// The low half of a digest is its own hash, and a number nearly.
#[derive(Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }
    fn write_u32(&mut self, n: u32) {
        // The table looks at both ends of a hash.
        self.0 = u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = n;
    }
}
