//! A doubly linked list threaded through the ids: order of arrival or of use, O(1) everything.

use crate::index::Sizes;
use crate::types::SampleId;

/// Outside the list.
const OUT: u32 = u32::MAX;

/// The two neighbours lie side by side: at millions of samples a random node is a cache miss, so it must be one, not two.
#[derive(Debug, Clone, Copy)]
struct Node {
    older: u32,
    newer: u32,
}

/// Members from oldest to newest; 8 bytes a sample.
#[derive(Debug, Clone)]
pub(super) struct List {
    /// By id, and one more at the end that closes the ring: its `newer` is the oldest member, its `older` the newest.
    nodes: Vec<Node>,
}

impl List {
    pub(super) fn new(samples: usize) -> Self {
        let mut nodes = vec![Node { older: OUT, newer: OUT }; samples + 1];
        nodes[samples] = Node { older: samples as u32, newer: samples as u32 };
        Self { nodes }
    }
    fn ring(&self) -> u32 {
        self.nodes.len() as u32 - 1
    }
    /// Adds `id`, which must be outside, as the newest.
    #[inline]
    pub(super) fn push_newest(&mut self, id: SampleId) {
        let ring = self.ring();
        let newest = self.nodes[ring as usize].older;
        self.link(newest, id, ring);
    }
    #[inline]
    fn link(&mut self, older: u32, id: SampleId, newer: u32) {
        self.nodes[id as usize] = Node { older, newer };
        self.nodes[older as usize].newer = id;
        self.nodes[newer as usize].older = id;
    }
    /// Takes `id` out if it is a member.
    #[inline]
    pub(super) fn remove(&mut self, id: SampleId) {
        let Node { older, newer } = self.nodes[id as usize];
        if newer != OUT {
            self.nodes[older as usize].newer = newer;
            self.nodes[newer as usize].older = older;
            self.nodes[id as usize] = Node { older: OUT, newer: OUT };
        }
    }
    /// The oldest member.
    #[inline]
    pub(super) fn oldest(&self) -> Option<SampleId> {
        let oldest = self.nodes[self.ring() as usize].newer;
        (oldest != self.ring()).then_some(oldest)
    }
    /// Takes the oldest, one after the other, until they free `missing` bytes together. Takes nobody and answers false if all
    /// are not enough.
    #[inline]
    pub(super) fn take_oldest(&mut self, missing: u64, sizes: &Sizes, victims: &mut Vec<SampleId>) -> bool {
        let (mut freed, before) = (0, victims.len());
        let mut next = self.nodes[self.ring() as usize].newer;
        while freed < missing {
            if next == self.ring() {
                victims.truncate(before);
                return false;
            }
            freed += sizes.bytes(next);
            victims.push(next);
            next = self.nodes[next as usize].newer;
        }
        victims[before..].iter().for_each(|&id| self.remove(id));
        true
    }
    /// The members, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = SampleId> + '_ {
        let ring = self.ring();
        let follow = move |&id: &u32| Some(self.nodes[id as usize].newer).filter(|&next| next != ring && next != OUT);
        std::iter::successors(follow(&ring), follow)
    }
    pub(super) fn prefetch(&self, ids: &[SampleId]) {
        std::hint::black_box(ids.iter().fold(0, |all, &id| all ^ self.nodes[id as usize].newer));
    }
    pub(super) fn metadata_bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>()
    }
}
