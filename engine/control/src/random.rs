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
