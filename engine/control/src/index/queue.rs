//! An indexed priority queue: the least key first, ties by id, any member found by its id in O(1).
//!
//! A tournament: the keys stand in the order of the ids, and above every [`FAN`] of them stands the least of them,
//! level by level, up to one. An indexed binary heap of (key, id) is the plain version. Three departures in its favour:
//! 1. the ids need not be stored: a key's place is its id, and the leftmost of equal keys is the smallest id. So it
//!    takes little more than the keys, where a heap takes the keys, the ids, and where each id is in the heap;
//! 2. what is compared lies side by side, in one line of the processor's cache for keys of 4 bytes. At millions of
//!    samples those lines are the whole cost, and only the lowest level or two are not in a near cache already;
//! 3. a new key mostly ends its way at the first level, because it is not the least of its neighbours.

use crate::types::SampleId;

/// How many nodes stand below one.
const FAN: usize = 16;

/// A key that maps to an unsigned number whose order is the key's.
pub trait Key: Copy {
    /// That number. The largest one stands for no member.
    type Bits: Copy + Ord + std::fmt::Debug;
    /// Of no member; above every key.
    const ABSENT: Self::Bits;
    /// Order-preserving bits, below [`Key::ABSENT`].
    fn to_bits(self) -> Self::Bits;
    /// The inverse of [`Key::to_bits`].
    fn from_bits(bits: Self::Bits) -> Self;
}

/// The two largest numbers are one key.
impl Key for u32 {
    type Bits = u32;
    const ABSENT: u32 = u32::MAX;
    fn to_bits(self) -> u32 {
        self.min(u32::MAX - 1)
    }
    fn from_bits(bits: u32) -> Self {
        bits
    }
}

/// The two largest numbers are one key.
impl Key for u64 {
    type Bits = u64;
    const ABSENT: u64 = u64::MAX;
    fn to_bits(self) -> u64 {
        self.min(u64::MAX - 1)
    }
    fn from_bits(bits: u64) -> Self {
        bits
    }
}

/// IEEE order; −0 and 0 are one key. A positive NaN sorts above infinity, a negative one below −infinity.
impl Key for f32 {
    type Bits = u32;
    const ABSENT: u32 = u32::MAX;
    fn to_bits(self) -> u32 {
        let bits = (self + 0.0).to_bits(); // −0 + 0 = +0
        if bits >> 31 == 0 { (bits | 0x8000_0000).min(u32::MAX - 1) } else { !bits }
    }
    fn from_bits(bits: u32) -> Self {
        f32::from_bits(if bits >> 31 == 1 { bits & 0x7fff_ffff } else { !bits })
    }
}

/// A min-queue over sample ids below a fixed bound. Insert, remove and update cost O(log samples), mostly less; memory
/// is a key and a fifteenth a sample, so 4¼ bytes for keys of 4.
#[derive(Debug, Clone)]
pub struct PriorityQueue<K: Key = f32> {
    /// By id.
    keys: Vec<K::Bits>,
    /// The least of every [`FAN`] keys, the least of every [`FAN`] of those, and so on: the last level has one node.
    levels: Vec<Vec<K::Bits>>,
    members: usize,
}

impl<K: Key> PriorityQueue<K> {
    /// An empty queue for ids `0..samples`.
    pub fn new(samples: usize) -> Self {
        let (mut levels, mut nodes) = (Vec::new(), samples);
        while levels.is_empty() || nodes > 1 {
            nodes = nodes.div_ceil(FAN).max(1);
            levels.push(vec![K::ABSENT; nodes]);
        }
        Self { keys: vec![K::ABSENT; samples], levels, members: 0 }
    }
    /// Number of members.
    pub fn len(&self) -> usize {
        self.members
    }
    /// Whether there is no member.
    pub fn is_empty(&self) -> bool {
        self.members == 0
    }
    /// Whether `id` is a member.
    #[inline]
    pub fn contains(&self, id: SampleId) -> bool {
        self.keys[id as usize] != K::ABSENT
    }
    /// The key of a member.
    pub fn key(&self, id: SampleId) -> Option<K> {
        let bits = self.keys[id as usize];
        (bits != K::ABSENT).then(|| K::from_bits(bits))
    }
    /// The least key.
    #[inline]
    pub fn least(&self) -> Option<K> {
        let bits = *self.levels.last()?.first()?;
        (bits != K::ABSENT).then(|| K::from_bits(bits))
    }
    /// The least (key, id), left in place.
    #[inline]
    pub fn peek(&self) -> Option<(SampleId, K)> {
        let least = *self.levels.last()?.first()?;
        if least == K::ABSENT {
            return None;
        }
        let mut place = 0;
        for below in self.levels.iter().rev().skip(1).chain([&self.keys]) {
            let first = place * FAN;
            place = first + block(below, place).iter().position(|&bits| bits == least)?;
        }
        Some((place as SampleId, K::from_bits(least)))
    }
    /// Adds `id`, or changes its key if it is a member.
    #[inline]
    pub fn insert(&mut self, id: SampleId, key: K) {
        self.members += usize::from(!self.contains(id));
        self.set(id, key.to_bits());
    }
    /// Changes the key of a member; `false` (and nothing done) if `id` is none.
    #[inline]
    pub fn update(&mut self, id: SampleId, key: K) -> bool {
        let member = self.contains(id);
        if member {
            self.set(id, key.to_bits());
        }
        member
    }
    /// Takes the least (key, id).
    pub fn pop(&mut self) -> Option<(SampleId, K)> {
        let least = self.peek()?;
        self.remove(least.0);
        Some(least)
    }
    /// Takes `id` out and returns its key, or `None` if it is no member.
    pub fn remove(&mut self, id: SampleId) -> Option<K> {
        let key = self.key(id)?;
        self.members -= 1;
        self.set(id, K::ABSENT);
        Some(key)
    }
    /// Keeps only the members for which `keep` answers true. O(samples).
    pub fn retain(&mut self, mut keep: impl FnMut(SampleId) -> bool) {
        self.replace(|id, bits| if keep(id) { bits } else { K::ABSENT });
    }
    /// Gives every member a new key. O(samples).
    pub fn rekey(&mut self, mut key: impl FnMut(SampleId) -> K) {
        self.replace(|id, _| key(id).to_bits());
    }
    /// The members, ascending. O(samples).
    pub fn ids(&self) -> impl Iterator<Item = SampleId> + '_ {
        (0..).zip(&self.keys).filter(|&(_, &bits)| bits != K::ABSENT).map(|(id, _)| id)
    }
    /// See [`Ledger::prefetch`](crate::ledger::Ledger::prefetch).
    pub fn prefetch(&self, ids: &[SampleId]) {
        let all = ids.iter().fold(K::ABSENT, |all, &id| all.min(self.keys[id as usize]));
        std::hint::black_box(all);
    }
    /// Heap bytes held.
    pub fn metadata_bytes(&self) -> usize {
        let nodes = self.keys.capacity() + self.levels.iter().map(Vec::capacity).sum::<usize>();
        nodes * size_of::<K::Bits>() + self.levels.capacity() * size_of::<Vec<K::Bits>>()
    }
    /// Recounts everything from scratch: O(samples), for tests.
    pub fn check(&self) -> Result<(), String> {
        let mut below = &self.keys;
        for (level, nodes) in self.levels.iter().enumerate() {
            for (place, &node) in nodes.iter().enumerate() {
                let least = block(below, place).iter().copied().min().unwrap_or(K::ABSENT);
                if node != least {
                    return Err(format!("node {place} of level {level} is {node:?}, the least below it is {least:?}"));
                }
            }
            below = nodes;
        }
        let members = self.ids().count();
        if members == self.members { Ok(()) } else { Err(format!("{members} keys for {} members", self.members)) }
    }

    #[inline]
    fn set(&mut self, id: SampleId, bits: K::Bits) {
        let mut place = id as usize;
        let (mut old, mut new) = (std::mem::replace(&mut self.keys[place], bits), bits);
        let mut below = &self.keys;
        for nodes in &mut self.levels {
            let parent = place / FAN;
            let node = nodes[parent];
            if new > node {
                // Only who was the least, and is no more, leaves the node to another.
                if old != node {
                    return;
                }
                new = block(below, parent).iter().copied().min().unwrap_or(K::ABSENT);
            }
            if new == node {
                return;
            }
            old = node;
            nodes[parent] = new;
            place = parent;
            below = nodes;
        }
    }
    fn replace(&mut self, mut with: impl FnMut(SampleId, K::Bits) -> K::Bits) {
        self.members = 0;
        for (id, bits) in (0..).zip(&mut self.keys) {
            if *bits != K::ABSENT {
                *bits = with(id, *bits);
                self.members += usize::from(*bits != K::ABSENT);
            }
        }
        let mut below = &self.keys;
        for nodes in &mut self.levels {
            for (node, block) in nodes.iter_mut().zip(below.chunks(FAN)) {
                *node = block.iter().copied().min().unwrap_or(K::ABSENT);
            }
            below = nodes;
        }
    }
}

/// What stands below node `place` of the next level.
#[inline]
fn block<T>(below: &[T], place: usize) -> &[T] {
    let first = place * FAN;
    &below[first..(first + FAN).min(below.len())]
}

/// Adds to a list that may come to hold each of `samples` samples. Not doubling: at full residency that could waste as
/// much as the list itself takes.
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
