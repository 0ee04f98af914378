//! Doubly linked lists threaded through the ids: order of arrival or of use, O(1) everything.

use crate::index::Sizes;
use crate::types::SampleId;

/// Outside every list.
const OUT: u32 = u32::MAX;

/// The two neighbours lie side by side: at millions of samples a random node is a cache miss, so it must be one, not
/// two.
#[derive(Debug, Clone, Copy)]
struct Node {
    older: u32,
    newer: u32,
}

/// A few lists of which a sample is in one at most, each from oldest to newest; 8 bytes a sample however many there
/// are.
#[derive(Debug, Clone)]
pub struct Lists {
    /// By id, and one more at the end for each list, which closes its ring: there `newer` is the oldest member and
    /// `older` the newest.
    nodes: Vec<Node>,
    samples: u32,
}

/// The first list, for those who have only one.
pub const ONLY: u32 = 0;

impl Lists {
    /// So many empty lists; ids `0..samples`.
    pub fn new(samples: usize, lists: u32) -> Self {
        let samples = samples as u32;
        // Exactly: a list that grows by doubling would keep twice as much.
        let mut nodes = Vec::with_capacity(samples as usize + lists as usize);
        nodes.resize(samples as usize, Node { older: OUT, newer: OUT });
        nodes.extend((samples..samples + lists).map(|ring| Node { older: ring, newer: ring }));
        Self { nodes, samples }
    }
    fn member(&self, place: u32) -> Option<SampleId> {
        (place < self.samples).then_some(place)
    }
    /// Adds `id`, which must be outside, as the newest of `list`.
    #[inline]
    pub fn push_newest(&mut self, list: u32, id: SampleId) {
        let ring = self.samples + list;
        let newest = self.nodes[ring as usize].older;
        self.nodes[id as usize] = Node { older: newest, newer: ring };
        self.nodes[newest as usize].newer = id;
        self.nodes[ring as usize].older = id;
    }
    /// Takes `id` out if it is a member.
    #[inline]
    pub fn remove(&mut self, id: SampleId) {
        let Node { older, newer } = self.nodes[id as usize];
        if newer != OUT {
            self.nodes[older as usize].newer = newer;
            self.nodes[newer as usize].older = older;
            self.nodes[id as usize] = Node { older: OUT, newer: OUT };
        }
    }
    /// The oldest member of `list`.
    #[inline]
    pub fn oldest(&self, list: u32) -> Option<SampleId> {
        self.member(self.nodes[(self.samples + list) as usize].newer)
    }
    /// Takes the oldest of `list`, one after the other, until they free `missing` bytes together. Takes none and
    /// returns false if all are not enough.
    pub fn take_oldest(&mut self, list: u32, missing: u64, sizes: &Sizes, victims: &mut Vec<SampleId>) -> bool {
        let (mut freed, before) = (0, victims.len());
        let mut members = self.iter(list);
        while freed < missing {
            let Some(id) = members.next() else {
                victims.truncate(before);
                return false;
            };
            freed += sizes.bytes(id);
            victims.push(id);
        }
        drop(members);
        victims[before..].iter().for_each(|&id| self.remove(id));
        true
    }
    /// The member that came after the member `id`.
    #[inline]
    pub fn newer(&self, id: SampleId) -> Option<SampleId> {
        self.member(self.nodes[id as usize].newer)
    }
    /// The members of `list`, oldest first.
    pub fn iter(&self, list: u32) -> impl Iterator<Item = SampleId> + '_ {
        std::iter::successors(self.oldest(list), |&id| self.newer(id))
    }
    /// See [`Policy::prefetch`](super::Policy::prefetch).
    pub fn prefetch(&self, ids: &[SampleId]) {
        std::hint::black_box(ids.iter().fold(0, |all, &id| all ^ self.nodes[id as usize].newer));
    }
    /// Heap bytes held.
    pub fn metadata_bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>()
    }
}
