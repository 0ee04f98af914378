//! An indexed priority queue: the least key first, ties by id, any member found by its id in O(1).
//!
//! A tournament: the keys stand in the order of the ids, and above every [`FAN`] of them stands the least of them with
//! its id, level by level, up to one. An indexed binary heap of (key, id) is the plain version. Departures in its
//! favour:
//! 1. the keys' ids need not be stored: a key's place is its id. So it takes little more than the keys, where a heap
//!    takes the keys, the ids, and where each id is in the heap;
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
    /// A key and whose it is, in one number whose order is (key, id).
    type Node: Copy + Ord + std::fmt::Debug;
    /// Of no member; above every key.
    const ABSENT: Self::Bits;
    /// Order-preserving bits, below [`Key::ABSENT`].
    fn to_bits(self) -> Self::Bits;
    /// The inverse of [`Key::to_bits`].
    fn from_bits(bits: Self::Bits) -> Self;
    /// Both in one.
    fn node(bits: Self::Bits, id: SampleId) -> Self::Node;
    /// The inverse of [`Key::node`].
    fn of(node: Self::Node) -> (Self::Bits, SampleId);
}

/// The two largest numbers are one key.
impl Key for u32 {
    type Bits = u32;
    type Node = u64;
    const ABSENT: u32 = u32::MAX;
    fn to_bits(self) -> u32 {
        self.min(u32::MAX - 1)
    }
    fn from_bits(bits: u32) -> Self {
        bits
    }
    fn node(bits: u32, id: SampleId) -> u64 {
        u64::from(bits) << 32 | u64::from(id)
    }
    fn of(node: u64) -> (u32, SampleId) {
        ((node >> 32) as u32, node as SampleId)
    }
}

/// The two largest numbers are one key.
impl Key for u64 {
    type Bits = u64;
    type Node = u128;
    const ABSENT: u64 = u64::MAX;
    fn to_bits(self) -> u64 {
        self.min(u64::MAX - 1)
    }
    fn from_bits(bits: u64) -> Self {
        bits
    }
    fn node(bits: u64, id: SampleId) -> u128 {
        u128::from(bits) << 64 | u128::from(id)
    }
    fn of(node: u128) -> (u64, SampleId) {
        ((node >> 64) as u64, node as SampleId)
    }
}

/// IEEE order; −0 and 0 are one key. A positive NaN sorts above infinity, a negative one below −infinity.
impl Key for f32 {
    type Bits = u32;
    type Node = u64;
    const ABSENT: u32 = u32::MAX;
    fn to_bits(self) -> u32 {
        let bits = (self + 0.0).to_bits(); // −0 + 0 = +0
        if bits >> 31 == 0 { (bits | 0x8000_0000).min(u32::MAX - 1) } else { !bits }
    }
    fn from_bits(bits: u32) -> Self {
        f32::from_bits(if bits >> 31 == 1 { bits & 0x7fff_ffff } else { !bits })
    }
    fn node(bits: u32, id: SampleId) -> u64 {
        <u32 as Key>::node(bits, id)
    }
    fn of(node: u64) -> (u32, SampleId) {
        <u32 as Key>::of(node)
    }
}

/// A min-queue over sample ids below a fixed bound. Insert, remove and update cost O(log samples), mostly less; memory
/// is a key and a fifteenth of a key and an id a sample, so 4½ bytes for keys of 4.
#[derive(Debug, Clone)]
pub struct PriorityQueue<K: Key = f32> {
    /// By id.
    keys: Blocks<K::Bits>,
    /// The least of every [`FAN`] keys with its id, the least of every [`FAN`] of those, and so on: the last level has
    /// one node.
    levels: Vec<Blocks<K::Node>>,
    members: usize,
}

/// What stands below one node, in lines of the processor's cache that it shares with nobody.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Block<T>([T; FAN]);

/// Nodes side by side, filled up to whole blocks.
#[derive(Debug, Clone)]
struct Blocks<T>(Vec<Block<T>>);

impl<T: Copy> Blocks<T> {
    fn new(nodes: usize, node: impl Fn(usize) -> T) -> Self {
        let block = |block: usize| Block(std::array::from_fn(|offset| node(block * FAN + offset)));
        Self((0..nodes.div_ceil(FAN).max(1)).map(block).collect())
    }
    #[inline]
    fn at(&self, place: usize) -> T {
        self.0[place / FAN].0[place % FAN]
    }
    #[inline]
    fn at_mut(&mut self, place: usize) -> &mut T {
        &mut self.0[place / FAN].0[place % FAN]
    }
    fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().flat_map(|block| &block.0)
    }
    fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().flat_map(|block| &mut block.0)
    }
    fn heap_bytes(&self) -> usize {
        self.0.capacity() * size_of::<Block<T>>()
    }
}

impl<K: Key> PriorityQueue<K> {
    /// An empty queue for ids `0..samples`.
    pub fn new(samples: usize) -> Self {
        let keys = Blocks::new(samples, |_| K::ABSENT);
        let (mut levels, mut nodes, mut below) = (Vec::new(), keys.0.len(), FAN);
        loop {
            let level = Blocks::new(nodes, |node| K::node(K::ABSENT, (node * below) as SampleId));
            levels.push(level);
            if nodes == 1 {
                return Self { keys, levels, members: 0 };
            }
            (nodes, below) = (nodes.div_ceil(FAN), below * FAN);
        }
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
        self.keys.at(id as usize) != K::ABSENT
    }
    /// The key of a member.
    pub fn key(&self, id: SampleId) -> Option<K> {
        let bits = self.keys.at(id as usize);
        (bits != K::ABSENT).then(|| K::from_bits(bits))
    }
    /// The least (key, id), left in place.
    #[inline]
    pub fn peek(&self) -> Option<(SampleId, K)> {
        let (bits, id) = K::of(self.levels.last()?.at(0));
        (bits != K::ABSENT).then(|| (id, K::from_bits(bits)))
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
    /// Gives every member a new key, made of its id and the key that it has. O(samples).
    pub fn rekey(&mut self, mut key: impl FnMut(SampleId, K) -> K) {
        self.replace(|id, bits| key(id, K::from_bits(bits)).to_bits());
    }
    /// The members, ascending. O(samples).
    pub fn ids(&self) -> impl Iterator<Item = SampleId> + '_ {
        (0..).zip(self.keys.iter()).filter(|&(_, &bits)| bits != K::ABSENT).map(|(id, _)| id)
    }
    /// See [`Ledger::prefetch`](crate::ledger::Ledger::prefetch).
    pub fn prefetch(&self, ids: &[SampleId]) {
        let Some(lowest) = self.levels.first() else { return };
        let node = |id: usize| K::node(self.keys.at(id), 0).min(lowest.at(id / FAN));
        std::hint::black_box(ids.iter().fold(lowest.at(0), |all, &id| all.min(node(id as usize))));
    }
    /// Heap bytes held.
    pub fn metadata_bytes(&self) -> usize {
        self.keys.heap_bytes()
            + self.levels.iter().map(Blocks::heap_bytes).sum::<usize>()
            + self.levels.capacity() * size_of::<Blocks<K::Node>>()
    }
    /// Recounts everything from scratch: O(samples), for tests.
    pub fn check(&self) -> Result<(), String> {
        let mut made = self.clone();
        made.replace(|_, bits| bits);
        for (level, (kept, made)) in self.levels.iter().zip(&made.levels).enumerate() {
            if let Some((place, (kept, made))) =
                kept.iter().zip(made.iter()).enumerate().find(|(_, (kept, made))| kept != made)
            {
                return Err(format!("node {place} of level {level} is {kept:?}, the least below it is {made:?}"));
            }
        }
        if made.members == self.members {
            Ok(())
        } else {
            Err(format!("{} keys for {} members", made.members, self.members))
        }
    }

    #[inline]
    fn set(&mut self, id: SampleId, bits: K::Bits) {
        // The child that was `old` is now `new`, and nothing else has changed below `place`.
        let before = std::mem::replace(self.keys.at_mut(id as usize), bits);
        let (mut old, mut new) = (K::node(before, id), K::node(bits, id));
        let mut place = id as usize;
        for number in 0..self.levels.len() {
            place /= FAN;
            let (below, level) = self.levels.split_at_mut(number);
            let node = level[0].at_mut(place);
            if new >= *node {
                // Only who was the least, and is no more, leaves the node to another.
                if old != *node || new == old {
                    return;
                }
                new = match below.last() {
                    None => least_key::<K>(&self.keys, place),
                    Some(below) => least(below.0[place]),
                };
            }
            old = std::mem::replace(node, new);
        }
    }
    fn replace(&mut self, mut with: impl FnMut(SampleId, K::Bits) -> K::Bits) {
        self.members = 0;
        for (id, bits) in (0..).zip(self.keys.iter_mut()) {
            if *bits != K::ABSENT {
                *bits = with(id, *bits);
                self.members += usize::from(*bits != K::ABSENT);
            }
        }
        for number in 0..self.levels.len() {
            let (below, level) = self.levels.split_at_mut(number);
            let blocks = below.last().map_or(self.keys.0.len(), |below| below.0.len());
            for (place, node) in level[0].iter_mut().enumerate().take(blocks) {
                *node = match below.last() {
                    None => least_key::<K>(&self.keys, place),
                    Some(below) => least(below.0[place]),
                };
            }
        }
    }
}

/// The least of the keys below node `place` of the lowest level, and whose it is.
#[inline]
fn least_key<K: Key>(keys: &Blocks<K::Bits>, place: usize) -> K::Node {
    let Block(keys) = keys.0[place];
    least(Block(std::array::from_fn(|offset| K::node(keys[offset], (place * FAN + offset) as SampleId))))
}

/// Pair by pair: the comparisons of one round do not wait for each other.
#[inline]
fn least<N: Copy + Ord>(Block(nodes): Block<N>) -> N {
    let eight: [N; 8] = std::array::from_fn(|k| nodes[k].min(nodes[k + 8]));
    let four: [N; 4] = std::array::from_fn(|k| eight[k].min(eight[k + 4]));
    four[0].min(four[1]).min(four[2].min(four[3]))
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
