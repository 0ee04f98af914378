//! How many bytes a run may read from its source, shared out over its epochs.
//!
//! What is left of the budget is divided by what the epochs to come would read if every row were fetched. So an epoch
//! that read more than its part, as the first does while the cache fills, is made up for by those behind it.

use super::Observed;
use crate::error::{Error, Result};

/// What the epochs of a run are, as far as it is known before anything is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpochSize {
    /// Rows of an epoch, of this rank.
    pub rows: u64,
    /// Bytes that a sample has in the mean at its source.
    pub sample_bytes: u64,
    /// Number of ranks. Each has an equal part of the budget.
    pub ranks: u32,
}

/// The bytes of a run, and what it has read so far.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Budget {
    bytes: u64,
    epochs: u64,
    /// Of this rank.
    own_bytes: u64,
    size: EpochSize,
    spent: u64,
    fetched: u64,
}

impl Budget {
    /// `bytes`: what all ranks together may read from the source in `epochs` epochs. `least`: the part of the rows that
    /// is fetched whatever the budget says. `reads_all`: whether the first epoch reads every sample once.
    ///
    /// # Errors
    /// `Settings` for a budget that cannot be kept.
    pub fn new(bytes: u64, epochs: u32, size: EpochSize, least: f64, reads_all: bool) -> Result<Self> {
        if epochs == 0 {
            return Err(Error::settings(
                "auto: bytes is for a whole run, and epochs is 0: say how many epochs it will have",
            ));
        }
        let ranks = u64::from(size.ranks.max(1));
        let epoch_bytes = size.rows as f64 * size.sample_bytes as f64 * ranks as f64;
        let first = if reads_all { epoch_bytes } else { 0.0 };
        let needed = first + epoch_bytes * least * f64::from(epochs - u32::from(reads_all));
        if (bytes as f64) < needed {
            let why = match (reads_all, least >= 1.0) {
                (true, true) => "without a cache each reads every sample",
                (true, false) => "the first reads every sample",
                (false, _) => "a part of every batch stays new",
            };
            return Err(Error::settings(format!(
                "auto: bytes is {bytes}, and {epochs} epochs of {} rows read {needed:.0} at least, since {why}: raise it",
                size.rows * ranks
            )));
        }
        Ok(Self { bytes, epochs: epochs.into(), own_bytes: bytes / ranks, size, spent: 0, fetched: 0 })
    }

    /// Takes what was read into account.
    pub fn follow(&mut self, seen: Observed) {
        self.spent = self.spent.saturating_add(seen.bytes);
        self.fetched = self.fetched.saturating_add(seen.fetched);
    }

    /// The part of the rows that may be fetched in `epoch` and in those behind it. Above 1: more than all.
    pub fn share(&self, epoch: u64) -> f64 {
        let each = match self.fetched {
            0 => self.size.sample_bytes as f64,
            fetched => self.spent as f64 / fetched as f64,
        };
        // A run that goes on beyond its last epoch has what was left for that.
        let epochs = self.epochs.saturating_sub(epoch).max(1);
        let left = self.own_bytes.saturating_sub(self.spent) as f64;
        left / (epochs as f64 * self.size.rows.max(1) as f64 * each.max(1.0))
    }

    /// The budget, in words.
    pub fn told(&self) -> String {
        format!("{} bytes in {} epochs", self.bytes, self.epochs)
    }

    /// What was read so far, for a run's state: bytes, and samples.
    pub fn stored(&self) -> [u64; 2] {
        [self.spent, self.fetched]
    }

    /// Goes on with what another had read.
    pub fn restore(&mut self, [spent, fetched]: [u64; 2]) {
        (self.spent, self.fetched) = (spent, fetched);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LEAST: f64 = 1.0 / 64.0;

    fn size(sample_bytes: u64) -> EpochSize {
        EpochSize { rows: 1000, sample_bytes, ranks: 1 }
    }

    fn read(fetched: f64, bytes: f64) -> Observed {
        let fetched = fetched.round();
        Observed { seconds: 1.0, waited_s: 0.0, rows: 1000, fetched: fetched as u64, bytes: (fetched * bytes) as u64 }
    }

    proptest! {
        /// Whatever a sample turns out to have, and however much the first epoch reads, the budget is used and kept.
        #[test]
        fn a_budget_is_used_and_kept(
            part in 0.05f64..1.2, epochs in 2u32..40, off in -4f64..4.0, real in 100f64..10_000.0,
            cold in 0.0f64..1.0, fill in 0.0f64..0.04,
        ) {
            let bytes = part * 1000.0 * f64::from(epochs) * real;
            let assumed = (real * off.exp2()) as u64 + 1;
            prop_assume!(bytes > 1000.0 * f64::from(epochs) * LEAST * assumed.max(real as u64 + 1) as f64);
            // An epoch that reads more than there is to read has overdrawn it.
            prop_assume!(bytes > 1000.0 * real);
            let mut budget = Budget::new(bytes as u64, epochs, size(assumed), LEAST, false).unwrap();
            let mut spent = 0.0;
            for epoch in 0..u64::from(epochs) {
                let share = budget.share(epoch).clamp(LEAST, 1.0);
                // The first may read more, to fill a cache; the others a little less, where what is new is cached.
                let fetched = if epoch == 0 { share.max(cold) } else { share * (1.0 - fill) };
                let seen = read(1000.0 * fetched, real);
                spent += seen.bytes as f64;
                budget.follow(seen);
            }
            prop_assert!(spent <= bytes + 1000.0 * real * LEAST * f64::from(epochs) + real, "{spent} of {bytes}");
            if part < 0.9 && off.abs() < 0.2 {
                prop_assert!(spent >= 0.95 * bytes - real, "{spent} of {bytes}");
            }
            let mut other = Budget::new(bytes as u64, epochs, size(assumed), LEAST, false).unwrap();
            other.restore(budget.stored());
            prop_assert_eq!(other, budget);
        }

        #[test]
        fn no_number_leads_out_of_bounds(
            seen in prop::collection::vec((any::<u64>(), any::<u64>()), 0..10), epoch in any::<u64>(), bytes in any::<u64>(),
        ) {
            let Ok(mut budget) = Budget::new(bytes, 7, size(1), 0.0, false) else { return Ok(()) };
            for (fetched, bytes) in seen {
                budget.follow(Observed { fetched, bytes, ..Observed::default() });
                let share = budget.share(epoch);
                prop_assert!(share >= 0.0 && share.is_finite(), "{share}");
            }
        }
    }

    #[test]
    fn ranks_share_a_budget() {
        let of = |ranks| Budget::new(8_000_000, 10, EpochSize { ranks, ..size(1000) }, 0.0, false).unwrap().share(0);
        assert_eq!((of(1), of(4)), (0.8, 0.2));
    }

    #[test]
    fn a_budget_that_cannot_be_kept_is_refused() {
        let refused = |bytes, epochs, reads_all| {
            Budget::new(bytes, epochs, size(1000), LEAST, reads_all).unwrap_err().to_string()
        };
        assert!(refused(1 << 40, 0, false).contains("say how many epochs"));
        assert!(refused(156_249, 10, false).contains("read 156250 at least, since a part of every batch stays new"));
        assert!(refused(1_140_624, 10, true).contains("read 1140625 at least, since the first reads every sample"));
        assert!(Budget::new(156_250, 10, size(1000), LEAST, false).is_ok());
        assert!(Budget::new(1_140_625, 10, size(1000), LEAST, true).is_ok());
    }
}
