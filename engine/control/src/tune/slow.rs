//! Whether reads of files take so long that it pays to have several in flight.
//!
//! A decision without effects. A read *costs* what it takes beyond the time in which memory would have brought its
//! bytes, so large files of a warm page cache are not slow. Files are held to be quick until a few reads in a row cost
//! a millisecond each, or many do on average: a thread of its own for reads costs some ten microseconds a sample, and a
//! copy. Once they are slow they stay so until hundreds of reads cost a quarter of that on average, and for longer each
//! time that this turns out to have been wrong. One read that hangs says little, however long.

use super::decided::Requests as Why;

/// A read that costs this much is slow.
const SLOW_S: f64 = 1e-3;
/// And this little is quick, where reads were slow.
const QUICK_S: f64 = SLOW_S / 4.0;
/// What memory brings at least, on a busy machine: a copy out of the page cache does five times as much alone.
const BYTES_PER_S: f64 = 400e6;
/// So many reads in a row that are slow are enough.
const IN_A_ROW: u32 = 4;
/// Over so many the mean tells: some of a cold disk's reads are cached.
const MANY: u32 = 64;
/// In the mean no read counts for more.
const COST_MAX_S: f64 = 8.0 * SLOW_S;
/// Slow files are held to be quick after so many reads, and after twice as many each time that they were not.
const CALM_MIN: u32 = 256;
const CALM_MAX: u32 = 1 << 16;

/// See the module's head.
#[derive(Debug)]
pub struct Judge {
    slow: bool,
    in_a_row: u32,
    reads: u32,
    cost_s: f64,
    calm: u32,
}

/// Files are quick to begin with.
impl Default for Judge {
    fn default() -> Self {
        Self { slow: false, in_a_row: 0, reads: 0, cost_s: 0.0, calm: CALM_MIN }
    }
}

impl Judge {
    /// Whether files are held to be slow.
    pub fn slow(&self) -> bool {
        self.slow
    }

    /// What a read of `bytes` costs that took so long.
    pub fn cost_s(seconds: f64, bytes: u64) -> f64 {
        (seconds - bytes as f64 / BYTES_PER_S).max(0.0)
    }

    /// Whether a call that took so long for so many samples is too quick to be looked at closer, with all that it did.
    pub fn is_brisk(seconds: f64, samples: usize) -> bool {
        seconds < QUICK_S * samples as f64
    }

    /// Whether a read that costs this much is slow.
    pub fn is_slow(cost_s: f64) -> bool {
        cost_s >= SLOW_S
    }

    /// `reads` reads were made that cost `cost_s` each. If files are not what they were held to be: what they are.
    pub fn read(&mut self, reads: u32, cost_s: f64) -> Option<Why> {
        self.in_a_row = if Self::is_slow(cost_s) { self.in_a_row.saturating_add(reads) } else { 0 };
        self.reads = self.reads.saturating_add(reads);
        self.cost_s += f64::from(reads) * cost_s.min(COST_MAX_S);
        let mean_s = self.cost_s / f64::from(self.reads.max(1));
        let many = self.reads >= if self.slow { self.calm } else { MANY };
        let turns = match self.slow {
            false => self.in_a_row >= IN_A_ROW || (many && Self::is_slow(mean_s)),
            true => many && mean_s < QUICK_S,
        };
        if many || turns {
            (self.reads, self.cost_s) = (0, 0.0);
        }
        if !turns {
            return None;
        }
        self.in_a_row = 0;
        if self.slow {
            self.calm = (2 * self.calm).min(CALM_MAX);
        }
        self.slow = !self.slow;
        Some(if self.slow { Why::Slow } else { Why::Quick })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: f64 = 1e-3;

    /// Reads that cost `cost_s` each, until the judge says something; at most `most`.
    fn until(judge: &mut Judge, cost_s: f64, most: u32) -> Option<(u32, Why)> {
        (1..=most).find_map(|k| judge.read(1, cost_s).map(|why| (k, why)))
    }

    #[test]
    fn a_slow_folder_is_found_within_four_reads_and_a_quick_one_never() {
        let mut judge = Judge::default();
        assert_eq!(until(&mut judge, 0.1 * MS, 10_000), None);
        assert_eq!(until(&mut judge, 0.9 * MS, 10_000), None, "just below");
        assert_eq!(until(&mut judge, 40.0 * MS, 10), Some((4, Why::Slow)));
        assert_eq!(until(&mut judge, 40.0 * MS, 10_000), None, "it is known");
    }

    #[test]
    fn bytes_that_memory_would_take_as_long_for_cost_nothing() {
        assert_eq!(Judge::cost_s(0.02, 10_000_000), 0.0);
        assert!((Judge::cost_s(0.04, 85_000) - 0.04).abs() < MS);
        assert!(!Judge::is_slow(Judge::cost_s(0.02, 10_000_000)) && Judge::is_slow(Judge::cost_s(0.002, 1000)));
        assert!(Judge::is_brisk(0.024, 100) && !Judge::is_brisk(0.025, 100) && !Judge::is_brisk(0.0, 0));
    }

    #[test]
    fn single_reads_that_hang_say_little_and_some_of_many_say_enough() {
        let mut judge = Judge::default();
        for k in 0..100_000u32 {
            let hangs = k % 20 == 0;
            assert_eq!(judge.read(1, if hangs { 60.0 } else { 0.05 * MS }), None, "{k}");
        }
        // A fifth of them from a disk, at random places.
        let cold = |k: u32| k.wrapping_mul(2_654_435_761) >> 16;
        let found = (0..640).find_map(|k| judge.read(1, if cold(k) % 5 == 0 { 9.0 * MS } else { 0.05 * MS }));
        assert_eq!(found, Some(Why::Slow));
    }

    #[test]
    fn what_has_become_quick_is_believed_later_each_time_that_it_was_not() {
        let mut judge = Judge::default();
        for calm in [256, 512, 1024] {
            assert_eq!(until(&mut judge, 40.0 * MS, 4), Some((4, Why::Slow)));
            assert_eq!(until(&mut judge, 0.3 * MS, 5000), None, "between the two it stays");
            // What is left of a window that began with others may have to pass first.
            let (reads, why) = until(&mut judge, 0.01 * MS, 5000).unwrap();
            assert_eq!(why, Why::Quick);
            assert!((1..=2 * calm).contains(&reads), "{reads} of {calm}");
        }
        assert_eq!(until(&mut judge, 40.0 * MS, 4), Some((4, Why::Slow)));
        assert_eq!(until(&mut judge, 0.0, 2047), None);
        assert_eq!(until(&mut judge, 0.0, 1), Some((1, Why::Quick)));
    }

    proptest! {
        #[test]
        fn it_turns_as_often_as_it_says_and_never_twice_the_same_way(
            costs in prop::collection::vec((1u32..40, 0.0f64..0.02), 1..400)
        ) {
            let mut judge = Judge::default();
            let mut last = Why::Quick;
            for (reads, cost_s) in costs {
                if let Some(why) = judge.read(reads, cost_s) {
                    prop_assert_ne!(why, last);
                    last = why;
                }
                prop_assert_eq!(judge.slow, last == Why::Slow);
            }
        }
    }
}
