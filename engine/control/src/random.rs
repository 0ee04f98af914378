//! Reproducible randomness, handed in: one seed gives one stream on any machine.

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

/// What a stream of random numbers is for. Streams with different purposes never overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The order in which an epoch visits its samples.
    Order = 1,
    /// Which samples an epoch draws.
    Draw = 2,
    /// Which rank owns which samples.
    Ownership = 3,
    /// Which residents a batch uses again.
    Replay = 4,
    /// Whose score stands for whose, where that is wrong on purpose.
    Misplace = 5,
    /// Which samples are in which part of a split.
    Split = 6,
}

/// A generator keyed by (seed, epoch, rank, purpose).
pub fn generator(seed: u64, epoch: u64, rank: u32, purpose: Purpose) -> ChaCha8Rng {
    let mut key = [0u8; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..16].copy_from_slice(&epoch.to_le_bytes());
    key[16..20].copy_from_slice(&rank.to_le_bytes());
    key[20] = purpose as u8;
    ChaCha8Rng::from_seed(key)
}

/// A uniform integer below `bound` (Lemire 2019, nearly divisionless; written out because crates may change the stream
/// of their own between versions and an order must not change with them).
pub fn below(rng: &mut ChaCha8Rng, bound: u32) -> u32 {
    let mut product = u64::from(rng.next_u32()) * u64::from(bound);
    if (product as u32) < bound {
        let threshold = bound.wrapping_neg() % bound;
        while (product as u32) < threshold {
            product = u64::from(rng.next_u32()) * u64::from(bound);
        }
    }
    (product >> 32) as u32
}

/// A uniform integer below `bound`, which must be above 0.
pub fn below_u128(rng: &mut ChaCha8Rng, bound: u128) -> u128 {
    let mask = u128::MAX >> (bound - 1).leading_zeros().min(127);
    loop {
        let drawn = (u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64())) & mask;
        if drawn < bound {
            return drawn;
        }
    }
}

/// A uniform real in [0, 1) with 53 bits.
pub fn unit(rng: &mut ChaCha8Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

/// Fisher–Yates.
pub fn shuffle<T>(items: &mut [T], rng: &mut ChaCha8Rng) {
    for i in (1..items.len()).rev() {
        items.swap(i, below(rng, i as u32 + 1) as usize);
    }
}

/// Lists from this length on are shuffled, and dealt with otherwise, in a way that suits caches. Part of what one seed
/// means: an order of more samples would be another one with another number here.
pub const LARGE: usize = 1 << 22;

/// As [`shuffle`], for lists that may be longer than any cache: a swap there waits for main memory. Every item is first
/// thrown into one of many parts, each of which fits a cache and is shuffled there (Rao 1961, Sandelius 1962). Takes as
/// much memory again while it works.
pub fn shuffle_large<T: Copy + Default>(items: Vec<T>, rng: &mut ChaCha8Rng) -> Vec<T> {
    if items.len() < LARGE {
        let mut items = items;
        shuffle(&mut items, rng);
        return items;
    }
    let bits = (items.len() >> 15).ilog2().min(11);
    shuffle_in_parts(items, bits, rng)
}

/// How many of `count` items fall into each of 2^`bits` parts, at most 2^16, when every one is thrown at random.
pub fn part_sizes(count: usize, bits: u32, rng: &mut ChaCha8Rng) -> Vec<usize> {
    let mut parts = Halves { rng: rng.clone(), word: 0, left: 0, mask: (1 << bits) - 1 };
    let mut sizes = vec![0; 1 << bits];
    (0..count).for_each(|_| sizes[parts.next()] += 1);
    *rng = parts.rng;
    sizes
}

/// In 2^`bits` parts, at most 2^16.
fn shuffle_in_parts<T: Copy + Default>(items: Vec<T>, bits: u32, rng: &mut ChaCha8Rng) -> Vec<T> {
    let mut parts = Halves { rng: rng.clone(), word: 0, left: 0, mask: (1 << bits) - 1 };
    let mut starts = vec![0];
    starts.extend(part_sizes(items.len(), bits, rng));
    (1..starts.len()).for_each(|part| starts[part] += starts[part - 1]);
    // The same parts once more.
    let (mut thrown, mut free) = (vec![T::default(); items.len()], starts.clone());
    for &item in &items {
        let place = &mut free[parts.next()];
        thrown[*place] = item;
        *place += 1;
    }
    drop(items);
    starts.windows(2).for_each(|part| shuffle(&mut thrown[part[0]..part[1]], rng));
    thrown
}

/// Numbers of up to 16 bits, two of each word that is drawn.
struct Halves {
    rng: ChaCha8Rng,
    word: u32,
    left: u32,
    mask: u32,
}

impl Halves {
    #[inline]
    fn next(&mut self) -> usize {
        if self.left == 0 {
            (self.word, self.left) = (self.rng.next_u32(), 2);
        }
        let number = self.word & self.mask;
        (self.word, self.left) = (self.word >> 16, self.left - 1);
        number as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every order of four items comes equally often, whichever way they were thrown: χ² with 23 degrees of freedom is
    /// above 58 once in 10,000 seeds.
    #[test]
    fn a_shuffle_in_parts_favours_no_order() {
        for bits in [0, 1, 2, 5] {
            let mut times = std::collections::BTreeMap::<Vec<u8>, u32>::new();
            for seed in 0..24_000 {
                let rng = &mut generator(seed, 0, 0, Purpose::Order);
                *times.entry(shuffle_in_parts(vec![0, 1, 2, 3], bits, rng)).or_default() += 1;
            }
            let spread: f64 = times.values().map(|&n| (f64::from(n) - 1000.0).powi(2) / 1000.0).sum();
            assert!(times.len() == 24 && spread < 58.0, "{bits} bits: {spread} {times:?}");
        }
    }

    #[test]
    fn a_shuffle_in_parts_keeps_every_item() {
        let items: Vec<u32> = (0..10_007).collect();
        let mut shuffled = shuffle_in_parts(items.clone(), 6, &mut generator(1, 2, 3, Purpose::Order));
        assert!(shuffled != items);
        // Parts are drawn anew for every seed, and where items land has nothing to do with where they were.
        let kept = shuffled.windows(2).filter(|two| two[0] + 1 == two[1]).count();
        assert!(kept < 10, "{kept} items are still followed by the next one");
        shuffled.sort_unstable();
        assert_eq!(shuffled, items);
    }

    #[test]
    fn a_short_list_is_shuffled_as_ever() {
        let (mut one, items) = ((0..1000).collect::<Vec<u32>>(), (0..1000).collect());
        shuffle(&mut one, &mut generator(7, 0, 0, Purpose::Order));
        assert_eq!(shuffle_large::<u32>(items, &mut generator(7, 0, 0, Purpose::Order)), one);
    }
}
