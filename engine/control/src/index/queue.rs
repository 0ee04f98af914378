//! An indexed priority queue: the least key first, ties by id, any member found by its id in O(1).
//!
//! A binary heap of (key, id) is the plain version. Two departures, both for memory latency, which is the whole cost at
//! millions of samples:
//! 1. an entry packs the key and the id into one `u64` whose integer order *is* (key, id), so a comparison touches no
//!    second array and a tie needs no second branch;
//! 2. four children a node: a node's children share a cache line half of the time and the tree is half as deep.

use crate::types::SampleId;

const ARITY: usize = 4;
/// In `positions`: not a member.
const ABSENT: u32 = u32::MAX;

/// A key that maps to `u32` so that integer order is key order.
pub trait Key: Copy {
    /// Order-preserving bits.
    fn to_bits(self) -> u32;
    /// The inverse of [`Key::to_bits`].
    fn from_bits(bits: u32) -> Self;
}

impl Key for u32 {
    fn to_bits(self) -> u32 {
        self
    }
    fn from_bits(bits: u32) -> Self {
        bits
    }
}

/// IEEE order; −0 and 0 are one key. A positive NaN sorts above infinity, a negative one below −infinity.
impl Key for f32 {
    fn to_bits(self) -> u32 {
        let bits = (self + 0.0).to_bits(); // −0 + 0 = +0
        if bits >> 31 == 0 { bits | 0x8000_0000 } else { !bits }
    }
    fn from_bits(bits: u32) -> Self {
        f32::from_bits(if bits >> 31 == 1 { bits & 0x7fff_ffff } else { !bits })
    }
}

/// A min-queue over sample ids below a fixed bound. Insert, remove and update cost O(log members); memory is 4 bytes a
/// sample plus 8 bytes a member.
#[derive(Debug, Clone)]
pub struct PriorityQueue<K: Key = f32> {
    /// Where in `heap` an id is, by id.
    positions: Vec<u32>,
    heap: Vec<u64>,
    key: std::marker::PhantomData<K>,
}

#[inline]
fn entry_id(entry: u64) -> SampleId {
    entry as u32
}

impl<K: Key> PriorityQueue<K> {
    /// An empty queue for ids `0..samples`.
    pub fn new(samples: usize) -> Self {
        Self { positions: vec![ABSENT; samples], heap: Vec::new(), key: std::marker::PhantomData }
    }
    /// Number of members.
    pub fn len(&self) -> usize {
        self.heap.len()
    }
    /// Whether there is no member.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
    /// Whether `id` is a member.
    #[inline]
    pub fn contains(&self, id: SampleId) -> bool {
        self.positions[id as usize] != ABSENT
    }
    /// The key of a member.
    pub fn key(&self, id: SampleId) -> Option<K> {
        let position = self.positions[id as usize];
        (position != ABSENT).then(|| K::from_bits((self.heap[position as usize] >> 32) as u32))
    }
    /// The least (key, id), left in place.
    #[inline]
    pub fn peek(&self) -> Option<(SampleId, K)> {
        self.heap.first().map(|&entry| (entry_id(entry), K::from_bits((entry >> 32) as u32)))
    }
    /// Adds `id`, or changes its key if it is a member.
    #[inline]
    pub fn insert(&mut self, id: SampleId, key: K) {
        if self.update(id, key) {
            return;
        }
        let position = self.heap.len();
        push(&mut self.heap, pack(id, key), self.positions.len());
        self.sift_up(position);
    }
    /// Changes the key of a member; `false` (and nothing done) if `id` is none.
    #[inline]
    pub fn update(&mut self, id: SampleId, key: K) -> bool {
        let position = self.positions[id as usize];
        if position == ABSENT {
            return false;
        }
        let position = position as usize;
        let (old, new) = (self.heap[position], pack(id, key));
        self.heap[position] = new;
        if new < old {
            self.sift_up(position);
        } else if new > old {
            self.sift_down(position);
        }
        true
    }
    /// Takes the least (key, id).
    pub fn pop(&mut self) -> Option<(SampleId, K)> {
        let least = self.peek()?;
        self.remove(least.0);
        Some(least)
    }
    /// Takes `id` out and returns its key, or `None` if it is no member.
    pub fn remove(&mut self, id: SampleId) -> Option<K> {
        let position = self.positions[id as usize];
        if position == ABSENT {
            return None;
        }
        let position = position as usize;
        let removed = self.heap[position];
        let last = self.heap.pop()?;
        self.positions[id as usize] = ABSENT;
        if position < self.heap.len() {
            self.heap[position] = last;
            if last < removed {
                self.sift_up(position);
            } else {
                self.sift_down(position);
            }
        }
        Some(K::from_bits((removed >> 32) as u32))
    }
    /// Keeps only the members for which `keep` answers true. O(members).
    pub fn retain(&mut self, mut keep: impl FnMut(SampleId) -> bool) {
        let positions = &mut self.positions;
        self.heap.retain(|&entry| {
            let kept = keep(entry_id(entry));
            if !kept {
                positions[entry_id(entry) as usize] = ABSENT;
            }
            kept
        });
        self.heap.shrink_to(self.heap.len() + step(self.positions.len()));
        for position in (0..self.heap.len()).rev() {
            self.sift_down(position);
        }
    }
    /// Gives every member a new key. O(members).
    pub fn rekey(&mut self, mut key: impl FnMut(SampleId) -> K) {
        for entry in &mut self.heap {
            *entry = pack(entry_id(*entry), key(entry_id(*entry)));
        }
        for position in (0..self.heap.len()).rev() {
            self.sift_down(position);
        }
    }
    /// The members, in no order.
    pub fn ids(&self) -> impl Iterator<Item = SampleId> + '_ {
        self.heap.iter().map(|&entry| entry_id(entry))
    }
    /// See [`Ledger::prefetch`](crate::ledger::Ledger::prefetch).
    pub fn prefetch(&self, ids: &[SampleId]) {
        std::hint::black_box(ids.iter().fold(0, |all, &id| all ^ self.positions[id as usize]));
    }
    /// Heap bytes held.
    pub fn metadata_bytes(&self) -> usize {
        self.positions.capacity() * 4 + self.heap.capacity() * 8
    }
    /// Recounts everything from scratch: O(samples), for tests.
    pub fn check(&self) -> Result<(), String> {
        for (position, &entry) in self.heap.iter().enumerate() {
            if self.positions[entry_id(entry) as usize] as usize != position {
                return Err(format!("id {} is at {position} but is recorded elsewhere", entry_id(entry)));
            }
            if position > 0 && self.heap[(position - 1) / ARITY] > entry {
                return Err(format!("entry {position} is less than its parent"));
            }
        }
        let members = self.positions.iter().filter(|&&p| p != ABSENT).count();
        if members == self.heap.len() {
            Ok(())
        } else {
            Err(format!("{members} positions for {} entries", self.heap.len()))
        }
    }

    #[inline]
    fn place(&mut self, position: usize, entry: u64) {
        self.heap[position] = entry;
        self.positions[entry_id(entry) as usize] = position as u32;
    }
    fn sift_up(&mut self, mut position: usize) {
        let entry = self.heap[position];
        while position > 0 {
            let parent = (position - 1) / ARITY;
            if self.heap[parent] <= entry {
                break;
            }
            self.place(position, self.heap[parent]);
            position = parent;
        }
        self.place(position, entry);
    }
    fn sift_down(&mut self, mut position: usize) {
        let entry = self.heap[position];
        loop {
            let first = position * ARITY + 1;
            let children = &self.heap[first.min(self.heap.len())..(first + ARITY).min(self.heap.len())];
            let Some((offset, &least)) = children.iter().enumerate().min_by_key(|&(_, &child)| child) else { break };
            if least >= entry {
                break;
            }
            self.place(position, least);
            position = first + offset;
        }
        self.place(position, entry);
    }
}

/// Adds to a list that may come to hold each of `samples` samples. Not doubling: at full residency that could waste as much as
/// the list itself takes.
#[inline]
pub(crate) fn push<T>(list: &mut Vec<T>, item: T, samples: usize) {
    if list.len() == list.capacity() {
        list.reserve_exact(step(samples));
    }
    list.push(item);
}

/// What such a list grows by, and may keep too much of.
pub(crate) fn step(samples: usize) -> usize {
    (samples / 32).max(64)
}

#[inline]
fn pack<K: Key>(id: SampleId, key: K) -> u64 {
    u64::from(key.to_bits()) << 32 | u64::from(id)
}
