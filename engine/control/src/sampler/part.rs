//! What is left of an epoch when the number of ranks changes within it, and how it is dealt anew.
//!
//! The ranks of an epoch take its draws in turn: rank r has the draws r, r + ranks, … of a list that all of them could
//! write down. A *leg* is what one number of ranks delivered of it. What they left, in the list's order, is the list of
//! the next leg. So a leg's number of ranks, batch size and batches are all that must be known of it.
//!
//! ```text
//! 10 draws, 2 ranks, batches of 2    rank 0 [0 2] [4 6] [8]    rank 1 [1 3] [5 7] [9]
//! after a batch each 4 to 9 are left; 3 ranks go on with       [4 7]   [5 8]   [6 9]
//! ```

use serde::{Deserialize, Serialize};

use super::Batches;
use crate::error::{Error, Result};

/// A part of an epoch that one number of ranks delivered, all as many batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leg {
    /// How many ranks.
    pub ranks: u32,
    /// Samples a batch and rank.
    pub batch_size: usize,
    /// Batches that each of them delivered.
    pub batches: usize,
}

/// An epoch of which other numbers of ranks delivered a part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Draws of the whole epoch, of all ranks.
    pub draws: usize,
    /// What is over, in its order.
    pub legs: Vec<Leg>,
}

/// How draws that are left are dealt to one of several ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dealt {
    /// The rank's cut; `None`: no batch is left.
    batches: Option<Batches>,
    /// Draws that are dealt, of all ranks.
    dealt: usize,
    /// Draws that the rank holds: those that it is dealt, and those behind them which are dealt to nobody.
    share: usize,
    /// Number of the first batch that is left.
    first: usize,
}

impl Dealt {
    /// `left` of an epoch of `draws`, dealt to `ranks` ranks in turn, as seen by `rank`.
    ///
    /// Ranks step equally often, so each must get a sample for each of its steps. Where that cannot be, up to
    /// `ranks − 1` draws are dealt to nobody: fewer are left than ranks, or batches have one sample and the ranks do not
    /// get equally many. With `drop_last` whatever fills no batch on every rank is dropped, as in a whole epoch.
    ///
    /// Batches are numbered so that the last one has the number that it has in a whole epoch of so many ranks.
    pub fn new(left: usize, draws: usize, batch_size: usize, drop_last: bool, rank: u32, ranks: u32) -> Self {
        let cut = |draws| Batches::new(draws, batch_size, drop_last, rank, ranks).ok();
        let every = ranks.max(1) as usize;
        let even = left - left % every;
        let (batches, dealt) = match cut(left) {
            Some(batches) => (Some(batches), left),
            None => (cut(even), even),
        };
        let whole = cut(draws).map_or(0, |batches| batches.len());
        let count = batches.map_or(0, |batches| batches.len());
        Self {
            batches,
            dealt: if batches.is_some() { dealt } else { 0 },
            share: left.saturating_sub(rank as usize).div_ceil(every),
            first: whole.saturating_sub(count),
        }
    }
    /// Whether a batch is left.
    pub fn any(&self) -> bool {
        self.batches.is_some()
    }
    /// Draws that are dealt, to all ranks together.
    pub fn dealt(&self) -> usize {
        self.dealt
    }
    /// Draws that this rank holds, in turn with the others. The last of them may be in no batch of its own; they stay
    /// in its state, so that yet other ranks can be dealt them.
    pub fn share(&self) -> usize {
        self.share
    }
    /// Number of the first batch that is left.
    pub fn first(&self) -> usize {
        self.first
    }
    /// The end of each batch among the rank's draws. Those that others delivered are empty, at the beginning.
    pub fn ends(&self) -> Vec<usize> {
        let left = self.batches.iter().flat_map(|batches| batches.iter().map(|range| range.end));
        std::iter::repeat_n(0, self.first).chain(left).collect()
    }
    /// Draws of this rank that its first `batches` batches take.
    fn taken(&self, batches: usize) -> usize {
        self.batches.map_or(0, |cut| cut.range(batches).start)
    }
}

impl Part {
    /// The whole epoch.
    pub fn whole(draws: usize) -> Self {
        Self { draws, legs: Vec::new() }
    }
    /// Draws that are left for the leg behind `legs`.
    ///
    /// # Errors
    /// `Settings` for a leg that cannot have been.
    pub fn left(&self, drop_last: bool) -> Result<usize> {
        self.legs.iter().try_fold(self.draws, |left, leg| {
            let ranks = leg.ranks as usize;
            let of = |rank| Dealt::new(left, self.draws, leg.batch_size, drop_last, rank, leg.ranks);
            let most = of(0).batches.map_or(0, |batches| batches.len());
            if leg.batches == 0 || leg.batches > most {
                return Err(Error::settings(format!(
                    "the state tells of {} batches of {} on {ranks} ranks, where {left} draws made {most}: it is damaged",
                    leg.batches, leg.batch_size
                )));
            }
            // The first ranks have one draw more, so there are two kinds of ranks.
            let more = of(0).dealt % ranks;
            let taken = more * of(0).taken(leg.batches) + (ranks - more) * of(leg.ranks - 1).taken(leg.batches);
            Ok(left - taken)
        })
    }
    /// How what is left is dealt to `rank` of `ranks`.
    ///
    /// # Errors
    /// As [`Self::left`].
    pub fn dealt(&self, batch_size: usize, drop_last: bool, rank: u32, ranks: u32) -> Result<Dealt> {
        Ok(Dealt::new(self.left(drop_last)?, self.draws, batch_size, drop_last, rank, ranks))
    }
    /// The draws of the epoch that are left, in its order.
    ///
    /// # Errors
    /// As [`Self::left`].
    pub fn places(&self, drop_last: bool) -> Result<Vec<u32>> {
        self.left(drop_last)?; // every leg can have been
        let mut left: Vec<u32> = (0..self.draws as u32).collect();
        for leg in &self.legs {
            let ranks = leg.ranks as usize;
            let of = |rank| Dealt::new(left.len(), self.draws, leg.batch_size, drop_last, rank, leg.ranks);
            let taken: Vec<usize> = (0..leg.ranks).map(|rank| of(rank).taken(leg.batches)).collect();
            let mut place = 0..;
            left.retain(|_| place.next().is_some_and(|place: usize| place / ranks >= taken[place % ranks]));
        }
        Ok(left)
    }
    /// The same after another leg.
    pub fn after(mut self, leg: Leg) -> Self {
        // A leg in which nothing was delivered leaves no trace.
        if leg.batches > 0 {
            self.legs.push(leg);
        }
        self
    }
}

/// What ranks' lists have left, taken from them in turn.
pub fn in_turn<T: Copy>(lists: &[&[T]]) -> Vec<T> {
    let longest = lists.iter().map(|list| list.len()).max().unwrap_or(0);
    (0..longest).flat_map(|place| lists.iter().filter_map(move |list| list.get(place).copied())).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A run as it happens: every rank is a queue, and steps are taken one after the other.
    fn happens(list: &[u32], leg: Leg, drop_last: bool) -> Option<(Vec<Vec<u32>>, Vec<u32>)> {
        let ranks = leg.ranks as usize;
        let mut queues = vec![Vec::new(); ranks];
        list.iter().enumerate().for_each(|(place, &draw)| queues[place % ranks].push(draw));
        // Whoever has a draw too many for equal steps keeps it.
        let shortest = queues.iter().map(Vec::len).min()?;
        let steps = |len: usize| if drop_last { len / leg.batch_size } else { len.div_ceil(leg.batch_size) };
        let mut wanted = queues.iter().map(|queue| steps(queue.len())).max()?;
        if drop_last {
            wanted = steps(shortest);
        } else if wanted > shortest {
            queues.iter_mut().for_each(|queue| queue.truncate(shortest));
            wanted = steps(shortest);
        }
        if leg.batches > wanted {
            return None;
        }
        let cut = |queue: &[u32]| {
            let mut batches: Vec<Vec<u32>> = queue.chunks(leg.batch_size).map(<[u32]>::to_vec).collect();
            if drop_last {
                batches.retain(|batch| batch.len() == leg.batch_size);
                batches.truncate(wanted);
            } else if batches.len() < wanted {
                let last = batches.pop().unwrap();
                let (one, other) = last.split_at(last.len().div_ceil(2));
                batches.extend([one.to_vec(), other.to_vec()]);
            }
            assert_eq!(batches.len(), wanted);
            batches.truncate(leg.batches);
            batches.concat()
        };
        let delivered: Vec<Vec<u32>> = queues.iter().map(|queue| cut(queue)).collect();
        let gone: std::collections::HashSet<u32> = delivered.iter().flatten().copied().collect();
        Some((delivered, list.iter().copied().filter(|draw| !gone.contains(draw)).collect()))
    }

    fn legs() -> impl Strategy<Value = Vec<Leg>> {
        let leg =
            (1u32..7, 1usize..6, 0usize..5).prop_map(|(ranks, batch_size, batches)| Leg { ranks, batch_size, batches });
        prop::collection::vec(leg, 0..5)
    }

    proptest! {
        /// Beside a run that takes its steps one by one: what is left, and what the next ranks get, is the same.
        #[test]
        fn what_is_left_is_what_nobody_took(
            draws in 1usize..90, legs in legs(), last in (1u32..7, 1usize..6), drop_last: bool,
        ) {
            let (mut part, mut list) = (Part::whole(draws), (0..draws as u32).collect::<Vec<_>>());
            for leg in legs {
                let Some((_, left)) = happens(&list, leg, drop_last) else {
                    prop_assert!(leg.batches == 0 || part.clone().after(leg).left(drop_last).is_err());
                    continue;
                };
                list = left;
                part = part.after(leg);
                prop_assert_eq!(part.left(drop_last).unwrap(), list.len());
                prop_assert_eq!(&part.places(drop_last).unwrap(), &list);
            }
            let (ranks, batch_size) = last;
            let of = |rank| part.dealt(batch_size, drop_last, rank, ranks).unwrap();
            let most = Leg { ranks, batch_size, batches: of(0).ends().len() - of(0).first() };
            let (delivered, left) = happens(&list, most, drop_last).unwrap();
            let beyond = Leg { batches: most.batches + 1, ..most };
            prop_assert_eq!(happens(&list, beyond, drop_last), None);
            for (rank, delivered) in delivered.iter().enumerate() {
                let dealt = of(rank as u32);
                let got: Vec<u32> = list.iter().copied().skip(rank).step_by(ranks as usize).collect();
                prop_assert_eq!(dealt.share(), got.len());
                let ends = dealt.ends();
                prop_assert_eq!(&got[..ends.last().copied().unwrap_or(0)], delivered.as_slice());
                prop_assert!(ends[..dealt.first()].iter().all(|&end| end == 0));
                let fits = |pair: &[usize]| pair[0] < pair[1] && pair[1] - pair[0] <= batch_size;
                prop_assert!(ends[dealt.first()..].windows(2).all(fits));
                // Every rank's last batch has one number, that of an ordinary epoch where there is one.
                if let Ok(whole) = Batches::new(draws, batch_size, drop_last, rank as u32, ranks) {
                    prop_assert_eq!(ends.len(), whole.len());
                }
            }
            if !drop_last {
                prop_assert!(left.len() < ranks as usize, "at most one draw a rank less one is left out");
                prop_assert!(left.is_empty() || batch_size == 1 || list.len() < ranks as usize);
            }
        }

        #[test]
        fn no_part_of_a_state_that_was_changed_ends_badly(
            draws in 0usize..50, ranks: u32, batch_size: usize, batches: usize, drop_last: bool, rank in 0u32..4,
        ) {
            let part = Part { draws, legs: vec![Leg { ranks, batch_size, batches }] };
            if part.left(drop_last).is_ok() {
                prop_assert!(part.places(drop_last).is_ok());
                prop_assert!(part.dealt(batch_size, drop_last, rank, 4).is_ok());
            }
        }

        #[test]
        fn lists_are_taken_from_in_turn(
            lists in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..6), 0..5),
        ) {
            let mut queues: Vec<std::collections::VecDeque<u8>> = lists.iter().cloned().map(Into::into).collect();
            let mut naive = Vec::new();
            while queues.iter().any(|queue| !queue.is_empty()) {
                queues.iter_mut().for_each(|queue| naive.extend(queue.pop_front()));
            }
            let slices: Vec<&[u8]> = lists.iter().map(Vec::as_slice).collect();
            prop_assert_eq!(in_turn(&slices), naive);
        }
    }
}
