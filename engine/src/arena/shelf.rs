//! The records that are kept, by sample.

use std::sync::Arc;

use super::slot::{self, End};
use super::{Arena, Pins, Slot};
use crate::types::SampleId;

/// A reference to each kept record, found by its sample: 4 bytes a sample, none if the arena holds nothing.
///
/// A batch pins and evicts in any order, and then [settles](Shelf::settle). Until then an evicted record keeps the
/// shelf's reference, so what was pinned before its eviction is still there to be counted, all at once.
#[derive(Debug)]
pub struct Shelf {
    arena: Arc<Arena>,
    places: Vec<Option<End>>,
    /// Pinned since the batch began and not counted yet; each is in `places` or in `evicted` as well.
    pinned: Vec<End>,
    evicted: Vec<End>,
}

impl Shelf {
    /// An empty shelf for `samples` records of `arena`.
    pub fn new(arena: Arc<Arena>, samples: usize) -> Self {
        let places = vec![None; if arena.limit_bytes() > 0 { samples } else { 0 }];
        Self { arena, places, pinned: Vec::new(), evicted: Vec::new() }
    }

    /// Begins a batch that will ask for `ids`: brings what is behind its places into the processor's caches, see
    /// [`Ledger::prefetch`](crate::ledger::Ledger::prefetch). Without it a batch of small records spends as long on its
    /// places as on copying their bytes.
    pub fn begin(&mut self, ids: &[SampleId]) {
        // A batch that panicked has not settled.
        self.pinned.clear();
        self.pinned.reserve(ids.len());
        let length = |end| slot::length(&self.arena, end);
        let touched = |all, &id: &SampleId| all ^ self.place(id).map_or(0, length);
        std::hint::black_box(ids.iter().fold(0, touched));
    }

    fn place(&self, id: SampleId) -> Option<End> {
        self.places.get(id as usize).copied().flatten()
    }

    /// Keeps a record of this shelf's arena.
    pub fn put(&mut self, id: SampleId, slot: Slot) {
        if let Some(place) = self.places.get_mut(id as usize).filter(|_| slot.lies_in(&self.arena)) {
            self.evicted.extend(place.replace(slot.into_end()));
        }
    }

    /// Pins the record of `id` for the batch; false if there is none.
    pub fn pin(&mut self, id: SampleId) -> bool {
        let place = self.place(id);
        self.pinned.extend(place);
        place.is_some()
    }

    /// Keeps the record of `id` no longer.
    pub fn evict(&mut self, id: SampleId) {
        self.evicted.extend(self.places.get_mut(id as usize).and_then(Option::take));
    }

    /// Copies those of the records of `ids` that lie behind the arena's fence to before it. Answers those for which there
    /// is no room: they are to be [evicted](Self::evict). What was copied is let go of by the next
    /// [settle](Self::settle).
    pub fn move_before_fence(&mut self, ids: std::ops::Range<SampleId>) -> Vec<SampleId> {
        let Some(fence) = self.arena.with_books(|books| books.fence) else { return Vec::new() };
        let behind = |place: &Option<End>| place.is_some_and(|end| end.get() > fence);
        let places = self.places.get(ids.start as usize..ids.end as usize).unwrap_or_default();
        let moving: Vec<SampleId> = ids.zip(places).filter(|(_, place)| behind(place)).map(|(id, _)| id).collect();
        let mut left_over = Vec::new();
        for id in moving {
            let Some(record) = self.record(id) else { continue };
            match self.arena.allocate(record.len()) {
                Some(mut room) => {
                    room.copy_from_slice(record);
                    self.put(id, room.freeze());
                }
                None => left_over.push(id),
            }
        }
        left_over
    }

    fn record(&self, id: SampleId) -> Option<&[u8]> {
        self.place(id).map(|end| slot::kept(&self.arena, end))
    }

    /// Ends a batch: what it pinned, in that order, and what was evicted. Records in the latter are freed when it is
    /// dropped, or with their last pin: that is better done outside a lock.
    pub fn settle(&mut self) -> (Pins, Pins) {
        let pinned = std::mem::take(&mut self.pinned);
        if !pinned.is_empty() {
            self.arena.with_books(|books| pinned.iter().for_each(|end| books.pin(end.get())));
        }
        let pins = |ends| Pins { arena: Arc::clone(&self.arena), ends };
        (pins(pinned), pins(std::mem::take(&mut self.evicted)))
    }

    /// Heap bytes held; the arena counts what it holds for each record.
    pub fn metadata_bytes(&self) -> usize {
        (self.places.capacity() + self.pinned.capacity() + self.evicted.capacity()) * size_of::<Option<End>>()
    }
}

impl Drop for Shelf {
    fn drop(&mut self) {
        let mut ends = std::mem::take(&mut self.evicted);
        ends.extend(self.places.iter().flatten());
        drop(Pins { arena: Arc::clone(&self.arena), ends });
    }
}
