//! The samples in the caches of a run's ranks, and how an epoch's draws go to the ranks that have them.
//!
//! A step of all ranks takes the same draws whichever rank gets them, and each rank gets as many as it would in turn.
//! So the mean over ranks of a step's batch means is the mean over the step's draws, as in one process with batches
//! that are so many times as large: weights need no change.

use crate::error::{Error, Result};
use crate::sampler::Order;
use crate::types::SampleId;

/// The cached samples of each rank at the last exchange. The default: no rank has anything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Held {
    /// A bit for each sample by rank; empty for a rank that has nothing.
    ranks: Vec<Vec<u32>>,
    /// A bit for each sample that any rank has.
    any: Vec<u32>,
}

/// Steps at the beginning in which every rank has a full batch. Shares that differ by one draw can end with the shorter
/// ranks' last full batch halved ([`Batches`](crate::sampler::Batches)): that step is not among them.
fn full_steps(draws: usize, ranks: usize, batch_size: usize) -> usize {
    let halved = !draws.is_multiple_of(ranks) && (draws / ranks).is_multiple_of(batch_size);
    (draws / ranks / batch_size).saturating_sub(usize::from(halved))
}

/// Numbers of 32 bits that hold a bit for each of `samples`.
fn words_of(samples: usize) -> usize {
    samples.div_ceil(32)
}

#[inline]
fn bit(words: &[u32], id: SampleId) -> bool {
    words.get(id as usize / 32).is_some_and(|word| word >> (id % 32) & 1 == 1)
}

impl Held {
    /// Takes the cached samples of each rank, in the order of the ranks: a bit for each of `samples`, from the lowest
    /// of the first number on, or no number for a rank that has nothing.
    ///
    /// # Errors
    /// `Settings` for a rank with another number of bits.
    pub fn new(ranks: Vec<Vec<u32>>, samples: usize) -> Result<Self> {
        let words = words_of(samples);
        if let Some(other) = ranks.iter().map(Vec::len).find(|&len| len != 0 && len != words) {
            return Err(Error::settings(format!(
                "a rank tells of its cache with {other} numbers where {samples} samples take {words}: they are damaged"
            )));
        }
        let mut any = Vec::new();
        for rank in ranks.iter().filter(|rank| !rank.is_empty()) {
            any.resize(words, 0);
            any.iter_mut().zip(rank).for_each(|(any, word)| *any |= word);
        }
        Ok(if any.iter().any(|&word| word != 0) { Self { ranks, any } } else { Self::default() })
    }

    /// True if any rank has `id`.
    #[inline]
    pub fn any(&self, id: SampleId) -> bool {
        bit(&self.any, id)
    }

    /// The same as numbers, for a run's state: the number of ranks, then each rank's bits.
    pub fn to_words(&self) -> Vec<u32> {
        let bits = self
            .ranks
            .iter()
            .flat_map(|rank| rank.iter().copied().chain(std::iter::repeat_n(0, self.any.len() - rank.len())));
        std::iter::once(self.ranks.len() as u32).chain(bits).collect()
    }

    /// The inverse, from the front of `words`; and the rest of them.
    ///
    /// # Errors
    /// `Settings` for numbers that are damaged.
    pub fn from_words(words: &[u32], samples: usize) -> Result<(Self, &[u32])> {
        let damaged = || Error::settings("the state's caches of other ranks are damaged");
        let (&ranks, rest) = words.split_first().ok_or_else(damaged)?;
        let each = words_of(samples);
        let all = (ranks as usize).checked_mul(each).ok_or_else(damaged)?;
        let (bits, rest) = rest.split_at_checked(all).ok_or_else(damaged)?;
        let ranks = bits.chunks(each.max(1)).map(<[u32]>::to_vec).collect();
        Ok((Self::new(ranks, samples)?, rest))
    }

    /// Reorders the draws that `ranks` ranks take in turn, `batch_size` a rank and step: within each step a draw goes
    /// to a rank that has it, to the one with most room if several do, as far as all get equally many. Draws after the
    /// last full step stay: there batches may differ in size, and a cache must not decide which one a draw is in.
    pub(super) fn deal(&self, order: &mut Order, ranks: u32, batch_size: usize) {
        let ranks = ranks as usize;
        let step = ranks.saturating_mul(batch_size);
        if self.any.is_empty() || ranks < 2 || !(1..=order.ids.len()).contains(&step) {
            return;
        }
        let mut to = vec![usize::MAX; step];
        let (mut room, mut ids, mut weights) = (vec![0; ranks], vec![0; step], vec![0.0; step]);
        for first in (0..full_steps(order.ids.len(), ranks, batch_size)).map(|number| number * step) {
            room.fill(batch_size);
            let drawn = &mut order.ids[first..first + step];
            for (to, &id) in to.iter_mut().zip(drawn.iter()) {
                let have = |&rank: &usize| room[rank] > 0 && self.ranks.get(rank).is_some_and(|has| bit(has, id));
                let found = if self.any(id) { (0..ranks).filter(have).max_by_key(|&rank| room[rank]) } else { None };
                *to = found.unwrap_or(usize::MAX);
                found.into_iter().for_each(|rank| room[rank] -= 1);
            }
            // Everything else is taken in turn by those that have room.
            let mut turn = 0;
            for to in to.iter_mut().filter(|to| **to == usize::MAX) {
                while room[turn % ranks] == 0 {
                    turn += 1;
                }
                *to = turn % ranks;
                room[*to] -= 1;
                turn += 1;
            }
            room.fill(0);
            let weighed = &mut order.weights[first..first + step];
            for ((&to, &id), &weight) in to.iter().zip(drawn.iter()).zip(weighed.iter()) {
                let place = room[to] * ranks + to;
                (ids[place], weights[place]) = (id, weight);
                room[to] += 1;
            }
            drawn.copy_from_slice(&ids);
            weighed.copy_from_slice(&weights);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn held(ranks: &[BTreeSet<u32>], samples: usize) -> Held {
        let bits = |ids: &BTreeSet<u32>| {
            let mut words = vec![0u32; words_of(samples)];
            ids.iter().for_each(|id| words[*id as usize / 32] |= 1 << (id % 32));
            words
        };
        Held::new(ranks.iter().map(bits).collect(), samples).unwrap()
    }

    proptest! {
        /// Each step has the draws that it had, with their weights, and each rank as many. A draw that goes to another
        /// rank than one that has it found those full of what they have.
        #[test]
        fn a_step_keeps_its_draws_and_ranks_get_what_they_have(
            draws in prop::collection::vec(0u32..70, 0..120), batch_size in 1usize..6, ranks in 1u32..6,
            caches in prop::collection::vec(prop::collection::btree_set(0u32..70, 0..40), 5),
        ) {
            let weights: Vec<f32> = (0..draws.len()).map(|at| at as f32 + 0.5).collect();
            let before = Order { ids: draws, weights };
            let held = held(&caches[..ranks as usize], 70);
            let mut dealt = before.clone();
            held.deal(&mut dealt, ranks, batch_size);
            let step = batch_size * ranks as usize;
            let whole = full_steps(before.ids.len(), ranks as usize, batch_size) * step;
            let rows = |order: &Order| -> Vec<(u32, u32)> {
                order.ids.iter().copied().zip(order.weights.iter().map(|weight| weight.to_bits())).collect()
            };
            let (old, new) = (rows(&before), rows(&dealt));
            prop_assert_eq!(&old[whole..], &new[whole..]);
            for (old, new) in old[..whole].chunks(step).zip(new[..whole].chunks(step)) {
                let (mut a, mut b) = (old.to_vec(), new.to_vec());
                a.sort_unstable();
                b.sort_unstable();
                prop_assert_eq!(a, b);
                // A draw that its only holder did not get found it full of draws that it has.
                for (place, &(id, _)) in new.iter().enumerate() {
                    let rank = place % ranks as usize;
                    let holders: Vec<usize> = (0..ranks as usize).filter(|&r| caches[r].contains(&id)).collect();
                    prop_assert_eq!(held.any(id), !holders.is_empty());
                    if !holders.contains(&rank) {
                        for holder in holders {
                            let of = new.iter().skip(holder).step_by(ranks as usize);
                            prop_assert!(of.into_iter().all(|(id, _)| caches[holder].contains(id)));
                        }
                    }
                }
            }
            let words = held.to_words();
            let (again, rest) = Held::from_words(&words, 70).unwrap();
            prop_assert!(again == held && rest.is_empty());
            prop_assert!(words.len() == 1 || Held::from_words(&words[..words.len() - 1], 70).is_err());
        }
    }

    #[test]
    fn damaged_numbers_are_refused_and_nothing_is_dealt_where_no_rank_has_anything() {
        assert!(Held::new(vec![vec![1], vec![1, 2]], 64).unwrap_err().to_string().contains("with 1 numbers"));
        assert!(Held::from_words(&[], 64).is_err() && Held::from_words(&[u32::MAX, 1], 64).is_err());
        assert_eq!(Held::new(vec![vec![], vec![0, 0]], 64).unwrap(), Held::default());
        let order = Order { ids: vec![3, 1, 2, 0], weights: vec![1.0; 4] };
        let mut dealt = order.clone();
        Held::default().deal(&mut dealt, 2, 2);
        assert_eq!(dealt, order);
    }
}
