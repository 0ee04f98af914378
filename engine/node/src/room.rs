//! The free places of the arena's data. A decision without effects.

use std::collections::{BTreeMap, BTreeSet};

/// Places begin at multiples of so many bytes.
pub(crate) const GRANULE: u64 = 64;

/// Bytes that a sample takes.
pub(crate) fn rounded(bytes: u64) -> u64 {
    bytes.div_ceil(GRANULE) * GRANULE
}

/// Free places, by where they are and by length. The smallest that is large enough is taken.
#[derive(Debug)]
pub(crate) struct Room {
    by_place: BTreeMap<u64, u64>,
    by_length: BTreeSet<(u64, u64)>,
}

impl Room {
    pub(crate) fn new(bytes: u64) -> Self {
        let mut room = Self { by_place: BTreeMap::new(), by_length: BTreeSet::new() };
        room.add(0, bytes / GRANULE * GRANULE);
        room
    }

    pub(crate) fn take(&mut self, bytes: u64) -> Option<u64> {
        let bytes = rounded(bytes);
        let &(length, at) = self.by_length.range((bytes, 0)..).next()?;
        self.remove(at, length);
        self.add(at + bytes, length - bytes);
        Some(at)
    }

    /// Returns a place that [`Self::take`] gave for so many bytes.
    pub(crate) fn give(&mut self, at: u64, bytes: u64) {
        let (mut at, mut bytes) = (at, rounded(bytes));
        if let Some((&before, &length)) = self.by_place.range(..at).next_back()
            && before + length == at
        {
            self.remove(before, length);
            (at, bytes) = (before, bytes + length);
        }
        if let Some((&after, &length)) = self.by_place.range(at..).next()
            && at + bytes == after
        {
            self.remove(after, length);
            bytes += length;
        }
        self.add(at, bytes);
    }

    fn add(&mut self, at: u64, length: u64) {
        if length > 0 {
            self.by_place.insert(at, length);
            self.by_length.insert((length, at));
        }
    }

    fn remove(&mut self, at: u64, length: u64) {
        self.by_place.remove(&at);
        self.by_length.remove(&(length, at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn places_never_overlap_and_all_come_back(steps in prop::collection::vec((0u8..3, 1u64..5000), 1..200)) {
            const ALL: u64 = 64 << 10;
            let mut room = Room::new(ALL);
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (step, number) in steps {
                if step < 2 {
                    if let Some(at) = room.take(number) {
                        let end = at + rounded(number);
                        prop_assert!(end <= ALL && at % GRANULE == 0);
                        prop_assert!(taken.iter().all(|&(other, bytes)| end <= other || other + rounded(bytes) <= at));
                        taken.push((at, number));
                    }
                } else if !taken.is_empty() {
                    let (at, bytes) = taken.swap_remove(number as usize % taken.len());
                    room.give(at, bytes);
                }
            }
            for (at, bytes) in taken {
                room.give(at, bytes);
            }
            prop_assert_eq!(room.take(ALL), Some(0));
        }
    }
}
