//! An unrolled linked list (Shao, Reppy and Appel, LFP'94): samples in order, in chunks that are linked.
//!
//! A list that is threaded through the ids waits for main memory at every step, because the next node's address is in
//! this one: at a million samples that is 0.1 µs for every sample that leaves. Here neighbours lie side by side, so that
//! who leaves next is in the processor's cache already, and a sample's own place is looked at only where it is taken
//! out of the middle.

use crate::index::Sizes;
use crate::index::push;
use crate::types::SampleId;

/// Places of a chunk: as many as a word has bits.
const SLOTS: usize = 64;
/// No chunk.
const NONE: u32 = u32::MAX;
/// So many chunks in a row give one up as soon as the others have room for all of their members.
const GROUP: usize = 5;
/// How often that is looked at: when a chunk has lost so many members.
const PATIENCE: u32 = 4;

#[derive(Debug, Clone, Copy)]
struct Chunk {
    /// Which slots have a member, a bit each. Members stand in the order of their slots.
    taken: u64,
    older: u32,
    /// In a chunk that is not in use: the next one that is not.
    newer: u32,
}

/// A list from oldest to newest. 4 bytes a sample, and for each member 4¼ to 5⅝: of five chunks in a row, but for the
/// oldest and the newest, more than three quarters of the slots are taken. Room for three billion members.
#[derive(Debug, Clone)]
pub(super) struct Unrolled {
    /// By id, of members alone: chunk × [`SLOTS`] + slot.
    places: Vec<u32>,
    chunks: Vec<Chunk>,
    /// By chunk.
    ids: Vec<[SampleId; SLOTS]>,
    /// [`NONE`] while there is no member.
    oldest: u32,
    newest: u32,
    /// Slots of the newest chunk that were given out.
    filled: usize,
    /// The first chunk that is not in use.
    free: u32,
    /// Chunks that may stand in a group with too much room; kept for its allocation.
    suspects: Vec<u32>,
}

impl Unrolled {
    /// No members; ids `0..samples`.
    pub(super) fn new(samples: usize) -> Self {
        Self {
            places: vec![0; samples],
            chunks: Vec::new(),
            ids: Vec::new(),
            oldest: NONE,
            newest: NONE,
            filled: SLOTS,
            free: NONE,
            suspects: Vec::new(),
        }
    }
    /// Adds `id`, which must be no member, as the newest.
    #[inline]
    pub(super) fn push_newest(&mut self, id: SampleId) {
        if self.filled == SLOTS {
            self.open();
        }
        let (chunk, slot) = (self.newest, self.filled);
        self.put(chunk, slot, id);
        self.chunks[chunk as usize].taken |= 1 << slot;
        self.filled += 1;
    }
    #[inline]
    fn put(&mut self, chunk: u32, slot: usize, id: SampleId) {
        self.ids[chunk as usize][slot] = id;
        self.places[id as usize] = chunk * SLOTS as u32 + slot as u32;
    }
    /// Takes out `id`, which must be a member.
    #[inline]
    pub(super) fn remove(&mut self, id: SampleId) {
        let place = self.places[id as usize];
        let number = place / SLOTS as u32;
        let chunk = &mut self.chunks[number as usize];
        chunk.taken &= !(1 << (place % SLOTS as u32));
        match chunk.taken.count_ones() {
            0 => self.close(number),
            left if left.is_multiple_of(PATIENCE) => self.squeeze(number),
            _ => {}
        }
    }
    /// The oldest member.
    #[inline]
    pub(super) fn oldest(&self) -> Option<SampleId> {
        self.iter().next()
    }
    /// Takes the oldest, one after the other, until they free `missing` bytes together. Takes nobody and answers false
    /// if all are not enough.
    #[inline]
    pub(super) fn take_oldest(&mut self, missing: u64, sizes: &Sizes, victims: &mut Vec<SampleId>) -> bool {
        let (mut freed, before) = (0, victims.len());
        {
            let mut members = self.iter();
            while freed < missing {
                let Some(id) = members.next() else {
                    victims.truncate(before);
                    return false;
                };
                freed += sizes.bytes(id);
                victims.push(id);
            }
        }
        for _ in before..victims.len() {
            let chunk = &mut self.chunks[self.oldest as usize];
            chunk.taken &= chunk.taken - 1;
            if chunk.taken == 0 {
                self.close(self.oldest);
            }
        }
        true
    }
    /// The members, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = SampleId> + '_ {
        let mut at = self.oldest;
        let mut left = self.chunks.get(at as usize).map_or(0, |chunk| chunk.taken);
        std::iter::from_fn(move || {
            if left == 0 {
                at = self.chunks.get(at as usize)?.newer;
                left = self.chunks.get(at as usize)?.taken;
            }
            let slot = left.trailing_zeros();
            left &= left - 1;
            Some(self.ids[at as usize][slot as usize])
        })
    }
    pub(super) fn prefetch(&self, ids: &[SampleId]) {
        std::hint::black_box(ids.iter().fold(0, |all, &id| all ^ self.places[id as usize]));
    }
    pub(super) fn metadata_bytes(&self) -> usize {
        self.places.capacity() * 4
            + self.chunks.capacity() * size_of::<Chunk>()
            + self.ids.capacity() * size_of::<[SampleId; SLOTS]>()
            + self.suspects.capacity() * 4
    }

    /// A chunk at the newest end.
    #[cold]
    fn open(&mut self) {
        let (before, opened) = (self.newest, Chunk { taken: 0, older: self.newest, newer: NONE });
        let number = if let Some(chunk) = self.chunks.get_mut(self.free as usize) {
            let number = std::mem::replace(&mut self.free, chunk.newer);
            *chunk = opened;
            number
        } else {
            let most = self.places.len() / SLOTS;
            push(&mut self.chunks, opened, most);
            push(&mut self.ids, [0; SLOTS], most);
            self.chunks.len() as u32 - 1
        };
        (self.newest, self.filled) = (number, 0);
        match self.chunks.get_mut(before as usize) {
            Some(chunk) => {
                chunk.newer = number;
                self.squeeze(before); // it is like all others from now on
            }
            None => self.oldest = number,
        }
    }
    /// Takes a chunk without members out.
    fn close(&mut self, number: u32) {
        let Chunk { older, newer, .. } = self.chunks[number as usize];
        match self.chunks.get_mut(older as usize) {
            Some(chunk) => chunk.newer = newer,
            None => self.oldest = newer,
        }
        match self.chunks.get_mut(newer as usize) {
            Some(chunk) => chunk.older = older,
            None => (self.newest, self.filled) = (older, SLOTS),
        }
        self.chunks[number as usize] = Chunk { taken: 0, older: NONE, newer: self.free };
        self.free = number;
    }
    /// Gives chunks up where there is too much room around chunk `number`. Every chunk that is given up was opened for
    /// [`SLOTS`] members: so there are no more than `GROUP - 1` moves for each that was ever added.
    fn squeeze(&mut self, number: u32) {
        self.suspects.push(number);
        while let Some(suspect) = self.suspects.pop() {
            if self.chunks[suspect as usize].taken == 0 {
                continue; // given up meanwhile
            }
            if let Some(group) = self.loose(suspect) {
                self.pack(group);
                // Its members stand closer now, so another group that has some of them may have too much room.
                self.suspects.extend([group[0], group[GROUP - 2]]);
            }
        }
    }
    /// A group around chunk `number` that has too much room. The newest chunk is in none: it is being filled.
    fn loose(&self, number: u32) -> Option<[u32; GROUP]> {
        let chunk = |number: u32| self.chunks[number as usize];
        let (mut first, mut before) = (number, 0);
        while before < GROUP - 1 && chunk(first).older != NONE {
            (first, before) = (chunk(first).older, before + 1);
        }
        let (mut around, mut count) = ([NONE; 2 * GROUP - 1], 0);
        while count < before + GROUP && first != self.newest && first != NONE {
            around[count] = first;
            (first, count) = (chunk(first).newer, count + 1);
        }
        let members = |group: &[u32]| group.iter().map(|&number| chunk(number).taken.count_ones()).sum::<u32>();
        let mut groups = around[..count].windows(GROUP);
        groups.find(|group| members(group) as usize <= (GROUP - 1) * SLOTS).and_then(|group| group.try_into().ok())
    }
    /// Moves the members of a group to its first slots, and gives up what has none then.
    fn pack(&mut self, group: [u32; GROUP]) {
        let (mut members, mut count) = ([0; (GROUP - 1) * SLOTS], 0);
        for number in group {
            let mut taken = self.chunks[number as usize].taken;
            while taken != 0 {
                members[count] = self.ids[number as usize][taken.trailing_zeros() as usize];
                (count, taken) = (count + 1, taken & (taken - 1));
            }
        }
        let mut parts = members[..count].chunks(SLOTS);
        for number in group {
            let Some(part) = parts.next() else {
                self.close(number);
                continue;
            };
            self.chunks[number as usize].taken = u64::MAX >> (SLOTS - part.len());
            part.iter().enumerate().for_each(|(slot, &id)| self.put(number, slot, id));
        }
    }
    /// Recounts everything. O(samples), for tests.
    pub(super) fn check(&self) -> Result<(), String> {
        let chunk = |number: u32| self.chunks.get(number as usize);
        let start = chunk(self.oldest).map(|_| self.oldest);
        let next = |&number: &u32| chunk(number).map(|c| c.newer).filter(|&newer| newer != NONE);
        let line: Vec<u32> = std::iter::successors(start, next).take(self.chunks.len() + 1).collect();
        let members = |number: &u32| self.chunks[*number as usize].taken.count_ones() as usize;
        for (at, number) in line.iter().enumerate() {
            let older = at.checked_sub(1).map_or(NONE, |before| line[before]);
            if self.chunks[*number as usize].older != older || members(number) == 0 {
                return Err(format!("chunk {number}, {at} from the oldest, stands wrong or is empty"));
            }
        }
        if line.last().copied().unwrap_or(NONE) != self.newest {
            return Err(format!("the newest chunk is {}, the last in line {:?}", self.newest, line.last()));
        }
        let free = std::iter::successors(chunk(self.free).map(|_| self.free), next).take(self.chunks.len() + 1).count();
        if line.len() + free != self.chunks.len() {
            return Err(format!("{} chunks in line and {free} free of {}", line.len(), self.chunks.len()));
        }
        // Who leaves the oldest chunk is not looked at, and the newest is being filled.
        let all = line.get(1..line.len().saturating_sub(1)).unwrap_or(&[]);
        let least = (GROUP - 1) * SLOTS - GROUP * (PATIENCE as usize - 1);
        if let Some(group) = all.windows(GROUP).find(|group| group.iter().map(members).sum::<usize>() <= least) {
            return Err(format!("the chunks {group:?} hold no more than {least} members"));
        }
        let misplaced = |&id: &SampleId| {
            let place = self.places[id as usize] as usize;
            self.ids.get(place / SLOTS).is_none_or(|ids| ids[place % SLOTS] != id)
        };
        match self.iter().find(misplaced) {
            Some(id) => Err(format!("{id} is not at its place")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const SAMPLES: u32 = 4000;

    /// Beside a plain queue: who is oldest, who gives way together, and all of the order.
    struct Twins {
        list: Unrolled,
        naive: VecDeque<SampleId>,
        sizes: Sizes,
    }

    impl Twins {
        fn new() -> Self {
            let mut sizes = Sizes::new(SAMPLES as usize);
            (0..SAMPLES).for_each(|id| sizes.learn(id, 1 + id % 3));
            Self { list: Unrolled::new(SAMPLES as usize), naive: VecDeque::new(), sizes }
        }
        fn push(&mut self, id: SampleId) {
            self.list.push_newest(id);
            self.naive.push_back(id);
        }
        fn remove(&mut self, at: usize) -> SampleId {
            let id = self.naive.remove(at).unwrap();
            self.list.remove(id);
            id
        }
        fn take(&mut self, missing: u64) {
            let (mut freed, mut victims) = (0, vec![7]);
            let made = self.list.take_oldest(missing, &self.sizes, &mut victims);
            let count = self.naive.iter().take_while(|&&id| (freed < missing, freed += self.sizes.bytes(id)).0).count();
            assert_eq!(made, freed >= missing);
            let expected: Vec<_> = self.naive.drain(..if made { count } else { 0 }).collect();
            assert_eq!((victims[0], &victims[1..]), (7, &expected[..]));
        }
        fn compare(&self) {
            assert!(self.list.iter().eq(self.naive.iter().copied()));
            assert_eq!(self.list.oldest(), self.naive.front().copied());
            assert_eq!(self.list.check(), Ok(()));
        }
    }

    fn random() -> impl FnMut(usize) -> usize {
        let mut state = 5u64;
        move |bound| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % bound.max(1)
        }
    }

    #[test]
    fn it_is_a_queue_from_which_anybody_can_be_taken() {
        let (mut twins, mut random) = (Twins::new(), random());
        let mut outside: Vec<SampleId> = (0..SAMPLES).collect();
        for step in 0..30_000 {
            // Grows, turns over, then shrinks to nothing.
            let enters = [95, 50, 25][step / 10_000];
            match random(100) {
                n if n < enters && !outside.is_empty() => {
                    let id = outside.swap_remove(random(outside.len()));
                    twins.push(id);
                }
                n if n % 5 == 0 => {
                    let before: Vec<_> = twins.naive.iter().copied().collect();
                    twins.take(random(if n == 0 { 9000 } else { 9 }) as u64);
                    outside.extend(&before[..before.len() - twins.naive.len()]);
                }
                n if n % 5 < 3 && !twins.naive.is_empty() => {
                    let id = twins.remove(random(twins.naive.len()));
                    twins.push(id); // as a use does
                }
                _ if !twins.naive.is_empty() => outside.push(twins.remove(random(twins.naive.len()))),
                _ => {}
            }
            if step % 97 == 0 {
                twins.compare();
            }
        }
        twins.compare();
    }

    /// Members that go in the ways that leave most room: each time the list is nearly rebuilt, and the next is laid
    /// upon what is left.
    #[test]
    fn chunks_stay_three_quarters_full_whoever_leaves() {
        let mut random = random();
        let ways: [&mut dyn FnMut(usize, usize) -> bool; 6] = [
            &mut |at, _| at % 64 != 0,
            &mut |at, _| at % 64 < 48,
            &mut |at, _| at / 64 % 2 == 0,
            &mut |at, all| at > all / 7,
            &mut |at, _| at % 5 != 2,
            &mut |_, _| random(3) > 0,
        ];
        for way in ways {
            let mut twins = Twins::new();
            (0..SAMPLES).for_each(|id| twins.push(id));
            for _ in 0..4 {
                let all = twins.naive.len();
                let left: Vec<SampleId> =
                    (0..all).rev().filter(|&at| way(at, all)).map(|at| twins.remove(at)).collect();
                twins.compare();
                left.into_iter().for_each(|id| twins.push(id));
                twins.compare();
            }
            let chunks = twins.list.chunks.len();
            assert!(chunks * 242 <= (SAMPLES as usize + 64) * GROUP + 242 * 64, "{chunks} chunks");
        }
    }

    #[test]
    fn an_emptied_list_is_used_again() {
        let mut twins = Twins::new();
        for round in 1..200 {
            (0..round).for_each(|id| twins.push(id));
            while !twins.naive.is_empty() {
                twins.remove(if round % 2 == 0 { 0 } else { twins.naive.len() - 1 });
            }
            twins.take(0);
            twins.take(1);
            twins.compare();
        }
        assert!(twins.list.chunks.len() <= 8);
    }
}
