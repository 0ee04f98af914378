//! How much may be fetched, from what fetching was seen to cost: a target for the time that training waits, a budget of
//! bytes, or both, and then whichever allows less.
//!
//! The rule looks at whole epochs and speaks between them, so that an order never changes while it is delivered.

use super::{Budget, Observed};
use crate::error::{Error, Result};

/// A whole, in the millionths that a pace counts in: whole numbers come out of a stored state as they went in.
const WHOLE: f64 = 1e6;
/// Never fewer than this part of the rows: with less, a dataset is hardly seen in a usual number of epochs.
const LEAST: u32 = 15_625;
/// The same as a part.
pub const LEAST_PART: f64 = LEAST as f64 / WHOLE;
/// How much more is tried after an epoch that hardly waited.
const BOLD: u32 = 1_500_000;
/// The same just after an epoch that waited: then the link's rate is known, and more would only wait again.
const CAREFUL: u32 = 1_050_000;

/// The part of the rows that may be fetched, and what moves it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// The part of the time that training may wait for the source, if that is what decides.
    stall: Option<f64>,
    /// Never more than this.
    most: u32,
    budget: Option<Budget>,
    /// What the target for waiting has come to, before the budget is asked.
    fetches: u32,
    growth: u32,
}

impl Pace {
    /// `stall`: the part of the time that training may wait for the source; `None`: it may wait. `first`: what may be
    /// fetched until something was seen, if `stall` decides. `most`: what may be fetched at all. Parts of the rows.
    ///
    /// # Errors
    /// `Settings` if `stall` is not within 0 and 1, or `most` not above 0 and at most 1.
    pub fn new(stall: Option<f32>, first: f64, most: f64, budget: Option<Budget>) -> Result<Self> {
        if let Some(stall) = stall.filter(|&stall| !(stall > 0.0 && stall < 1.0)) {
            return Err(Error::settings(format!(
                "auto: stall is {stall}: give the part of the time that training may wait for the source, above 0 and below 1"
            )));
        }
        if !(most > 0.0 && most <= 1.0) {
            return Err(Error::settings(format!(
                "auto: fetches is {most}: give the part of the rows that may be fetched, above 0 and at most 1"
            )));
        }
        let most = ((most * WHOLE) as u32).max(1);
        let fetches = if stall.is_some() { ((first * WHOLE) as u32).min(most) } else { most };
        Ok(Self { stall: stall.map(f64::from), most, budget, fetches, growth: BOLD })
    }

    /// The part of the rows that may be fetched in `epoch`.
    pub fn fetches(&self, epoch: u64) -> f64 {
        let wanted = f64::from(self.fetches) / WHOLE;
        self.budget.map_or(wanted, |budget| wanted.min(budget.share(epoch).max(LEAST_PART)))
    }

    /// Target, bound and budget, in words.
    pub fn told(&self) -> String {
        let target = self.stall.map(|stall| format!("stall {stall:.4}"));
        let most = format!("fetches at most {:.4}", f64::from(self.most) / WHOLE);
        let all = target.into_iter().chain([most]).chain(self.budget.map(|budget| budget.told()));
        all.collect::<Vec<_>>().join(", ")
    }

    /// What it has come to, for a run's state; the second part is the budget's.
    pub fn stored(&self) -> ([u32; 2], Option<[u64; 2]>) {
        ([self.fetches, self.growth], self.budget.map(|budget| budget.stored()))
    }

    /// Goes on with what another of the same target, bound and budget had come to.
    ///
    /// # Errors
    /// `Settings` for numbers that none can come to.
    pub fn restore(&mut self, [fetches, growth]: [u32; 2], spent: Option<[u64; 2]>) -> Result<()> {
        let possible = (1..=self.most).contains(&fetches) && (CAREFUL..=BOLD).contains(&growth);
        if !possible {
            return Err(Error::settings(format!("the state's pace is damaged: {fetches} and {growth} millionths")));
        }
        if spent.is_some() != self.budget.is_some() {
            return Err(Error::settings("the state's pace is damaged: what was read of the budget is missing"));
        }
        (self.fetches, self.growth) = (fetches, growth);
        if let (Some(budget), Some(spent)) = (&mut self.budget, spent) {
            budget.restore(spent);
        }
        Ok(())
    }

    /// Takes an epoch into account.
    ///
    /// One that waited longer than the target was fetched as fast as the link allows, so the rate is known; what it
    /// brings in the time that the steps take is what may be fetched. One that did not says only that the link can do
    /// this much.
    pub fn follow(&mut self, seen: Observed) {
        if let Some(budget) = &mut self.budget {
            budget.follow(seen);
        }
        let Some(stall) = self.stall else { return };
        let nothing = seen.rows == 0 || !seen.seconds.is_finite() || seen.seconds <= 0.0 || seen.waited_s.is_nan();
        if nothing {
            return;
        }
        let fetched = (seen.fetched as f64 / seen.rows as f64).min(1.0);
        let waited = (seen.waited_s / seen.seconds).clamp(0.0, 1.0);
        let wanted = if waited > stall {
            self.growth = CAREFUL;
            fetched * (1.0 - waited) / (1.0 - stall)
        } else {
            let tried = f64::from(self.growth) / WHOLE;
            self.growth = ((tried * tried * WHOLE) as u32).min(BOLD);
            (f64::from(self.fetches) / WHOLE).max(fetched) * tried
        };
        self.fetches = ((wanted * WHOLE) as u32).max(LEAST).min(self.most);
    }
}

#[cfg(test)]
mod tests {
    use super::super::EpochSize;
    use super::*;
    use proptest::prelude::*;

    /// An epoch over a link of `rate` samples a second, where 1,000 rows take a second of steps and fetching goes on
    /// beside them.
    fn epoch(fetched: f64, rate: f64) -> Observed {
        let (steps, fetching) = (1.0, 1000.0 * fetched / rate);
        let seconds = f64::max(steps, fetching);
        Observed {
            seconds,
            waited_s: seconds - steps,
            rows: 1000,
            fetched: (1000.0 * fetched).round() as u64,
            bytes: 0,
        }
    }

    fn pace(stall: f32) -> Pace {
        Pace::new(Some(stall), 0.25, 1.0, None).unwrap()
    }

    proptest! {
        /// Whatever the link gives, it is used, and after a few epochs no more is waited than a little above the
        /// target.
        #[test]
        fn the_link_is_used_and_hardly_waited_for(rate in 20f64..5000.0, stall in 0.01f32..0.3, cold in any::<bool>()) {
            let mut pace = pace(stall);
            let mut seen = Vec::new();
            for k in 0..40 {
                let of = epoch(if cold && k == 0 { 1.0 } else { pace.fetches(0) }, rate);
                seen.push(of.waited_s / of.seconds);
                pace.follow(of);
            }
            // What the link brings while 1,000 rows take their second.
            let bearable = (rate / 1000.0).min(1.0);
            prop_assert!(pace.fetches(0) > 0.9 * bearable, "{} of {bearable}", pace.fetches(0));
            // The rate is tried 5 to 46 % above what is known, and that is found to be too much once in a few epochs.
            let late: f64 = seen[10..].iter().sum::<f64>() / 30.0;
            prop_assert!(late <= f64::from(stall) + 0.08, "waited {late}");
        }

        /// A link that becomes slower is met with less at once, and one that becomes faster within ten epochs.
        #[test]
        fn it_follows_a_link_that_changes(before in 50f64..900.0, after in 50f64..900.0) {
            let mut pace = pace(0.05);
            (0..20).for_each(|_| pace.follow(epoch(pace.fetches(0), before)));
            let turns = if after < before { 2 } else { 14 };
            (0..turns).for_each(|_| pace.follow(epoch(pace.fetches(0), after)));
            let bearable = after / 1000.0;
            prop_assert!(pace.fetches(0) > 0.8 * bearable && pace.fetches(0) < 1.6 * bearable, "{} of {bearable}", pace.fetches(0));
        }

        #[test]
        fn it_stays_within_its_bounds_whatever_is_seen(
            seen in prop::collection::vec((any::<f64>(), any::<f64>(), any::<u64>(), any::<u64>()), 0..20),
            most in 0.001f64..1.0,
        ) {
            let mut pace = Pace::new(Some(0.02), 0.25, most, None).unwrap();
            for (seconds, waited_s, rows, fetched) in seen {
                pace.follow(Observed { seconds, waited_s, rows, fetched, bytes: fetched });
                prop_assert!(pace.fetches(0) > 0.0 && pace.fetches(0) <= most);
                let mut other = Pace::new(Some(0.02), 0.25, most, None).unwrap();
                let (stored, spent) = pace.stored();
                other.restore(stored, spent).unwrap();
                prop_assert_eq!(other, pace);
            }
        }
    }

    #[test]
    fn a_target_is_a_part_of_the_time() {
        for stall in [0.0, 1.0, -0.1, f32::NAN] {
            assert!(Pace::new(Some(stall), 0.25, 1.0, None).unwrap_err().to_string().contains("stall is"));
        }
        for most in [0.0, 1.01, f64::NAN] {
            assert!(Pace::new(Some(0.1), 0.25, most, None).unwrap_err().to_string().contains("fetches is"));
        }
        for stored in [[0, BOLD], [1_000_001, BOLD], [1, 0], [1, u32::MAX]] {
            assert!(pace(0.1).restore(stored, None).unwrap_err().to_string().contains("damaged"));
        }
    }

    fn budgeted(stall: Option<f32>, bytes: u64) -> Pace {
        let size = EpochSize { rows: 1000, sample_bytes: 100, ranks: 1 };
        let budget = Budget::new(bytes, 10, size, LEAST_PART, false).unwrap();
        Pace::new(stall, 0.25, 0.5, Some(budget)).unwrap()
    }

    #[test]
    fn of_a_target_and_a_budget_the_smaller_counts() {
        // A million bytes are everything, ten times.
        assert_eq!(budgeted(None, 300_000).fetches(0), 0.3);
        assert_eq!(budgeted(None, 1_000_000).fetches(0), 0.5);
        assert_eq!(budgeted(Some(0.05), 300_000).fetches(0), 0.25);
        let mut pace = budgeted(Some(0.05), 300_000);
        let fast = Observed { seconds: 1.0, waited_s: 0.0, rows: 1000, fetched: 250, bytes: 25_000 };
        pace.follow(fast);
        // 275,000 bytes for nine epochs.
        assert!((pace.fetches(1) - 0.275 / 0.9).abs() < 1e-9, "{}", pace.fetches(1));
        assert_eq!(pace.told(), "stall 0.0500, fetches at most 0.5000, 300000 bytes in 10 epochs");
        // Spent before the run is over: what is least stays new.
        pace.follow(Observed { bytes: 1 << 40, ..fast });
        assert_eq!(pace.fetches(2), LEAST_PART);
        let (stored, spent) = pace.stored();
        let mut other = budgeted(Some(0.05), 300_000);
        other.restore(stored, spent).unwrap();
        assert_eq!(other, pace);
        assert!(other.restore(stored, None).unwrap_err().to_string().contains("missing"));
    }
}
