//! Which segment gives way to a new one. No effects: times are handed in.
//!
//! Records come and go by the segment, so what is compared is what a segment's bytes are worth: the time that its
//! records have saved, as LRFU folds uses into one number (Lee et al., IEEE Trans. Computers 2001), with a half-life
//! and a use counted by what its fetch took. Per byte, so that samples that are dear to fetch stay.
//!
//! LRFU alone always takes the newcomer. That is wrong for training: a dataset that is larger than the disk is read
//! once an epoch in random order, every segment of it is worth the same, and exchanging one for another writes for ever
//! and wins nothing (keeping what came first hits as well as any choice can; oldest-first hits less). So a segment in
//! use gives way only to what is worth twice as much. A new sample's worth is not known yet; it is taken to be what its
//! dataset's samples are asked for on average, by the same fold over all its requests. What nobody has read for a while
//! gives way to anything.

use std::time::Duration;

/// After this time a use counts half.
const HALF_LIFE: Duration = Duration::from_secs(3600);
/// A segment that no process has read for so long is out of use.
const OUT_OF_USE: Duration = Duration::from_secs(600);
/// A segment in use gives way to what is worth so many times as much.
const MARGIN: f64 = 2.0;

/// Who gives way when the limit is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// Cost-aware LRFU with admission: what nobody reads goes first, and what is read stays unless the newcomer is
    /// clearly worth more.
    #[default]
    Worth,
    /// The oldest segment, always. The control that the other is measured against.
    Oldest,
}

/// Uses folded into one number: the time they saved, each counted half for every half-life since. In logarithms of 2,
/// so that years do not make it zero.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Worth {
    log2: f64,
    at: Duration,
}

impl Worth {
    pub(crate) fn new(cost_us: u64, at: Duration) -> Self {
        Self { log2: (cost_us as f64).log2(), at }
    }

    /// Adds uses that saved `cost_us` in all, now. The clock may have been set back since the last call.
    pub(crate) fn add(&mut self, cost_us: u64, now: Duration) {
        if cost_us > 0 {
            let before = self.log2_at(now).exp2();
            *self = Self { log2: (before + cost_us as f64).log2(), at: now };
        }
        self.at = self.at.min(now);
    }

    pub(crate) fn log2_at(&self, now: Duration) -> f64 {
        self.log2 - now.saturating_sub(self.at).as_secs_f64() / HALF_LIFE.as_secs_f64()
    }
}

/// A complete segment, as the choice sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Resident {
    pub(crate) number: u32,
    /// When it was begun, nanoseconds since 1970: a name to order by.
    pub(crate) born: u64,
    pub(crate) bytes: u64,
    /// Logarithm of its worth now, in µs.
    pub(crate) log2_us: f64,
    /// Since any process has read it.
    pub(crate) idle: Duration,
}

impl Resident {
    /// Logarithm of what a byte of it is worth.
    fn log2_a_byte(&self) -> f64 {
        self.log2_us - (self.bytes.max(1) as f64).log2()
    }
}

/// The segment that gives way to samples whose bytes are worth `newcomer` (a logarithm) each; `None` if they are to be
/// let go instead.
pub(crate) fn victim(policy: Policy, residents: &[Resident], newcomer: f64) -> Option<u32> {
    if policy == Policy::Oldest {
        return residents.iter().min_by_key(|r| r.born).map(|r| r.number);
    }
    let least = |in_use: bool| {
        let those = residents.iter().filter(move |r| (r.idle < OUT_OF_USE) == in_use);
        those.min_by(|a, b| a.log2_a_byte().total_cmp(&b.log2_a_byte()).then(a.born.cmp(&b.born)))
    };
    let busy = || least(true).filter(|r| newcomer > r.log2_a_byte() + MARGIN.log2());
    least(false).or_else(busy).map(|r| r.number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resident(number: u32, cost: u64, idle: Duration) -> Resident {
        Resident { number, born: number.into(), bytes: 1000, log2_us: (cost as f64).log2(), idle }
    }

    const NOW: Duration = Duration::ZERO;

    #[test]
    fn what_nobody_reads_gives_way_first_and_the_least_worth_of_it() {
        let residents =
            [resident(1, 1, NOW), resident(2, 900, OUT_OF_USE), resident(3, 800, OUT_OF_USE), resident(4, 0, NOW)];
        assert_eq!(victim(Policy::Worth, &residents, f64::NEG_INFINITY), Some(3));
        assert_eq!(victim(Policy::Oldest, &residents, f64::NEG_INFINITY), Some(1));
        assert_eq!(victim(Policy::Worth, &[], 9.0), None);
    }

    #[test]
    fn what_is_read_gives_way_to_twice_its_worth_and_to_no_less() {
        let residents = [resident(1, 3000, NOW), resident(2, 1000, NOW)];
        assert_eq!(victim(Policy::Worth, &residents, 1.99f64.log2()), None);
        assert_eq!(victim(Policy::Worth, &residents, 2.01f64.log2()), Some(2));
        assert_eq!(victim(Policy::Worth, &residents, f64::NEG_INFINITY), None);
    }

    #[test]
    fn a_use_counts_half_after_a_half_life_and_never_nothing() {
        let mut worth = Worth::new(1000, NOW);
        assert!((worth.log2_at(HALF_LIFE) - 500f64.log2()).abs() < 1e-9);
        worth.add(500, HALF_LIFE);
        assert!((worth.log2_at(HALF_LIFE) - 1000f64.log2()).abs() < 1e-9);
        let years = 100_000 * HALF_LIFE;
        assert!(worth.log2_at(years) > Worth::new(1000, NOW).log2_at(years));
        let mut ahead = Worth::new(1000, years);
        for cost_us in [0, 1000] {
            ahead.add(cost_us, NOW);
            assert_eq!(ahead.log2_at(HALF_LIFE), ahead.log2_at(NOW) - 1.0, "by a clock that was set back");
        }
        let mut none = Worth::new(0, NOW);
        none.add(0, HALF_LIFE);
        assert_eq!(none.log2_at(years), f64::NEG_INFINITY);
        none.add(8, HALF_LIFE);
        assert_eq!(none.log2_at(HALF_LIFE), 3.0);
    }
}
