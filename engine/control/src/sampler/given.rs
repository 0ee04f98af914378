//! An order that the caller brings, epoch by epoch.

use serde::{Deserialize, Serialize};

use super::{Order, Outlook, Sampler};
use crate::error::{Error, Result};
use crate::types::SampleId;

/// Ids in an order of the caller's own, handed over when an epoch starts: what a rank is given is that rank's alone,
/// and is not shared out again. Every weight is 1.
///
/// Nothing is drawn here, so a state holds the whole order of an epoch under way (8 bytes a draw): whoever made it
/// (a sampler of torch's, a generator) need not be able to make it again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Given {
    /// Whether the caller cuts the batches too.
    pub batches: bool,
}

impl Given {
    /// The order of ids that were handed over for a dataset of `samples`.
    ///
    /// # Errors
    /// `Settings`, with the place, for an id that no sample has.
    pub fn order(ids: &[i64], samples: usize) -> Result<Order> {
        let known = |&id: &i64| SampleId::try_from(id).ok().filter(|&id| (id as usize) < samples);
        let id = |(place, id): (usize, &i64)| {
            known(id).ok_or_else(|| {
                Error::settings(format!(
                    "draw {place} of the sampler's epoch is id {id}: this dataset's ids are 0 to {}",
                    samples.saturating_sub(1)
                ))
            })
        };
        let ids: Vec<SampleId> = ids.iter().enumerate().map(id).collect::<Result<_>>()?;
        Ok(Order { weights: vec![1.0; ids.len()], ids })
    }

    /// Where `draws` draws are cut into batches of `batch_size`: the end of each. Nothing without a draw.
    pub fn ends(draws: usize, batch_size: usize, drop_last: bool) -> Vec<usize> {
        let size = batch_size.max(1);
        let count = if drop_last { draws / size } else { draws.div_ceil(size) };
        (1..=count).map(|number| (number * size).min(draws)).collect()
    }

    /// Whether the caller's own `ends` cut `draws` draws into batches of 1 to `most` samples.
    ///
    /// # Errors
    /// `Settings`, with the first batch that is empty or too large.
    pub fn check_ends(ends: &[usize], draws: usize, most: usize) -> Result<()> {
        let mut start = 0;
        for (number, &end) in ends.iter().enumerate() {
            match end.checked_sub(start) {
                None | Some(0) => {
                    return Err(Error::settings(format!(
                        "batch {number} of the batch sampler's epoch has no sample: leave it out"
                    )));
                }
                Some(rows) if rows > most => {
                    return Err(Error::settings(format!(
                        "batch {number} of the batch sampler's epoch has {rows} samples, and memory was made for {most}: \
                         pass batch_size={rows}, or whatever the largest batch has"
                    )));
                }
                Some(_) => start = end,
            }
        }
        if start != draws {
            return Err(Error::settings(format!("batches of {start} samples were cut out of {draws}")));
        }
        Ok(())
    }
}

impl Sampler for Given {
    fn name(&self) -> &'static str {
        "given"
    }
    fn draw(&self, outlook: &Outlook<'_>) -> Result<Order> {
        Err(Error::usage(format!(
            "sampler given draws nothing: hand over the ids of epoch {} when it starts",
            outlook.epoch
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Beside the naive way: fill a batch until it is full.
        #[test]
        fn batches_are_cut_as_they_fill(draws in 0usize..200, size in 1usize..40, drop_last: bool) {
            let (mut naive, mut rows) = (Vec::new(), 0);
            for draw in 1..=draws {
                rows += 1;
                if rows == size || (draw == draws && !drop_last) {
                    naive.push(draw);
                    rows = 0;
                }
            }
            let ends = Given::ends(draws, size, drop_last);
            prop_assert_eq!(&ends, &naive);
            prop_assert!(Given::check_ends(&ends, ends.last().copied().unwrap_or(0), size).is_ok());
        }

        #[test]
        fn ends_pass_if_every_batch_has_its_samples(sizes in prop::collection::vec(0usize..5, 0..9), most in 1usize..5) {
            let ends: Vec<usize> = sizes.iter().scan(0, |end, size| { *end += size; Some(*end) }).collect();
            let fine = sizes.iter().all(|&size| (1..=most).contains(&size));
            prop_assert_eq!(Given::check_ends(&ends, sizes.iter().sum(), most).is_ok(), fine);
        }

        #[test]
        fn an_order_has_the_ids_or_names_the_first_that_is_none(ids in prop::collection::vec(-3i64..12, 0..20)) {
            let bad = ids.iter().position(|id| !(0..9).contains(id));
            match (Given::order(&ids, 9), bad) {
                (Ok(order), None) => {
                    prop_assert!(order.ids.iter().map(|&id| i64::from(id)).eq(ids));
                    prop_assert!(order.weights.iter().all(|&w| w == 1.0) && order.weights.len() == order.ids.len());
                }
                (Err(e), Some(place)) => {
                    prop_assert!(e.to_string().contains(&format!("draw {place} of")), "{}", e);
                }
                (found, _) => prop_assert!(false, "{:?}", found),
            }
        }
    }

    #[test]
    fn ids_beyond_what_can_be_counted_and_ends_that_go_back_are_refused() {
        for id in [i64::MIN, i64::MAX, 1 << 32, -1] {
            assert!(Given::order(&[0, id], 9).is_err());
        }
        assert!(Given::check_ends(&[4, 2], 2, 9).is_err());
        assert!(Given::check_ends(&[4], 5, 9).is_err());
    }
}
