//! The arena of a dead owner: its samples are copied over, those that are asked for first.
//!
//! A client that finds another owner than before hands over the arena it had mapped. Tags say what was in it, and a
//! sample is taken over only if its checksum proves it.

use std::collections::HashMap;

use crate::arena::Shown;
use crate::message::{Key, OfferHead};
use crate::owner::Owner;
use crate::planted::planted;

/// The job under which adopted samples are listed.
const ADOPTED: &str = "(adopted)";

/// An arena that is being taken over.
pub(crate) struct Adoption {
    shown: Shown,
    /// Samples that are still to be copied: dataset, what they are, offset.
    pub(crate) left: HashMap<Key, (u64, OfferHead, u64)>,
}

impl Owner {
    /// Takes an arena over, unless it was before or another is being taken over.
    pub(crate) fn begin_adoption(&mut self, shown: Shown) {
        if self.adoption.is_some() || self.adopted.contains(&shown.id) {
            return;
        }
        self.adopted.push(shown.id);
        let left = shown.tags().map(|(dataset, head, offset)| (head.key, (dataset, head, offset))).collect();
        self.adoption = Some(Adoption { shown, left });
    }

    /// Samples that are still to be copied.
    pub(crate) fn adoptable(&self) -> u64 {
        self.adoption.as_ref().map_or(0, |adoption| adoption.left.len() as u64)
    }

    /// Copies one sample, if it is there to be copied.
    pub(crate) fn adopt(&mut self, key: &Key) {
        let Some(adoption) = &mut self.adoption else { return };
        let Some((dataset, head, offset)) = adoption.left.remove(key) else { return };
        let Some(bytes) = adoption.shown.at(offset, head.bytes) else { return };
        if head.bytes == 0 || crc32fast::hash(bytes) != head.crc {
            return;
        }
        // A dataset that a client reads is listed under its name.
        let known = self.books.jobs.values().find(|job| job.dataset == dataset && job.name != ADOPTED);
        let name = known.map_or_else(|| format!("{dataset:016x}"), |job| job.dataset_name.clone());
        let job = self.books.job(ADOPTED, dataset, &name);
        let offered = self.books.enter(job, dataset, &head);
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

    /// Copies up to `most` samples; the old arena is let go after the last one.
    pub(crate) fn adopt_some(&mut self, most: usize) {
        let Some(adoption) = &self.adoption else { return };
        let keys: Vec<Key> = adoption.left.keys().take(most).copied().collect();
        if keys.is_empty() {
            self.adoption = None;
        }
        keys.iter().for_each(|key| self.adopt(key));
    }
}
