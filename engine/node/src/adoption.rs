//! The arena of a dead owner: its samples are copied over, those that are asked for first.
//!
//! A client that finds another owner than before hands over the arena it had mapped, and those before it that no owner
//! has taken over to the end. Tags say what was in them, and a sample is taken over only if its checksum proves it.

use std::collections::HashMap;

use crate::arena::Shown;
use crate::message::{Key, OfferHead};
use crate::owner::Owner;
use crate::planted::planted;

/// So many arenas are taken over at a time, and kept by a client.
pub(crate) const ARENAS_MAX: usize = 4;
/// The job under which adopted samples are listed.
const ADOPTED: &str = "(adopted)";

/// An arena that is being taken over.
pub(crate) struct Adoption {
    shown: Shown,
    /// Samples that are still to be copied: dataset, what they are, offset.
    pub(crate) left: HashMap<Key, (u64, OfferHead, u64)>,
}

impl Owner {
    /// Takes an arena over, unless it was before or there are many of them.
    pub(crate) fn begin_adoption(&mut self, shown: Shown) {
        if self.adoptions.len() >= ARENAS_MAX || self.adopted.contains(&shown.id) {
            return;
        }
        self.adopted.push(shown.id);
        let left = shown.tags().map(|(dataset, head, offset)| (head.key, (dataset, head, offset))).collect();
        self.adoptions.push(Adoption { shown, left });
    }

    /// Samples that are still to be copied.
    pub(crate) fn adoptable(&self) -> u64 {
        self.adoptions.iter().map(|adoption| adoption.left.len() as u64).sum()
    }

    /// Copies one sample, if it is there to be copied.
    pub(crate) fn adopt(&mut self, key: &Key) {
        for at in 0..self.adoptions.len() {
            self.adopt_of(at, key);
        }
    }

    fn adopt_of(&mut self, at: usize, key: &Key) {
        let Some(adoption) = self.adoptions.get_mut(at) else { return };
        let Some((dataset, head, offset)) = adoption.left.remove(key) else { return };
        let Some(bytes) = adoption.shown.at(offset, head.bytes) else { return };
        if head.bytes == 0 || crc32fast::hash(bytes) != head.crc {
            return;
        }
        // A dataset that a client reads is listed under its name.
        let known = self.books.jobs.values().find(|job| job.dataset == dataset && job.name != ADOPTED);
        let name = known.map_or_else(|| format!("{dataset:016x}"), |job| job.dataset_name.clone());
        let job = self.books.job(ADOPTED, dataset, &name);
        let offered = self.books.enter(job, dataset, &head, false);
        offered.freed.iter().for_each(|&slot| self.arena.untag(slot));
        if let Some(slot) = offered.slot
            && let Some(at) = self.books.place_of(slot)
        {
            self.arena.put(at, bytes);
            planted("adopting");
            if let Some(resident) = self.books.publish(slot) {
                self.arena.tag(slot, &resident);
            }
        }
    }

    /// Copies up to `most` samples of one arena, which is let go after its last one.
    pub(crate) fn adopt_some(&mut self, most: usize) {
        let Some(adoption) = self.adoptions.first() else { return };
        let keys: Vec<Key> = adoption.left.keys().take(most).copied().collect();
        if keys.is_empty() {
            self.adoptions.remove(0);
        }
        keys.iter().for_each(|key| self.adopt(key));
    }

    /// Samples of these datasets are not copied.
    pub(crate) fn leave_behind(&mut self, datasets: &[u64]) {
        for adoption in &mut self.adoptions {
            adoption.left.retain(|_, (dataset, _, _)| !datasets.contains(dataset));
        }
    }
}
