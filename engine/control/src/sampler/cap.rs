//! No sample may take an epoch over: beliefs are cut where they would be worth too much.
//!
//! A single absurd score (1e30 among ordinary ones) would otherwise be nearly all of the mean, and nearly every draw.
//! The cut changes chances, never what they mean: weights are made from the chances that are really used.

/// The most that a sample is worth, in average samples. A choice, not a measurement: see decision 17.
pub const MAX_GAIN: f64 = 16.0;

/// The most that one of `samples` samples is worth: [`MAX_GAIN`], but no more than half of a small dataset, and never
/// less than the average.
pub(super) fn max_gain(samples: usize) -> f64 {
    MAX_GAIN.min(samples as f64 / 2.0).max(1.0)
}

/// How beliefs become worths with mean 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Cut {
    /// Beliefs above this one are worth no more than it.
    pub(super) belief: f64,
    /// What every sample gets beside its own worth: above 0 only where so few samples have a belief above 0 that they
    /// would be worth too much however they share.
    pub(super) spread: f64,
}

impl Cut {
    /// What a sample of this belief is worth, in average samples. `most` is the [`max_gain`] of those that were looked
    /// at.
    pub(super) fn worth(self, belief: f64, most: f64) -> f64 {
        let own = match belief {
            above if above > self.belief => most,
            below if self.belief > 0.0 => most * below / self.belief,
            _ => 0.0,
        };
        own + self.spread
    }
}

/// Where to cut `beliefs` (at least 0 and finite, with this `mean`) so that none is worth more than [`max_gain`] times
/// the mean of what is left; `None` if none is.
///
/// With r_i = min(s·b_i, cap) the scale s with mean r = 1 is the root of a concave, increasing, piecewise linear
/// function: Newton's method from the left meets it from below and ends after as many steps as it crosses pieces.
pub(super) fn cut(beliefs: impl Iterator<Item = f32> + Clone, mean: f64) -> Option<Cut> {
    let (count, largest) = beliefs.clone().fold((0usize, 0.0f32), |(n, l), b| (n + 1, l.max(b)));
    let cap = max_gain(count);
    if mean <= 0.0 || f64::from(largest) <= cap * mean {
        return None;
    }
    let mut belief = cap * mean;
    let mut cut_before = 0;
    loop {
        let (mut cut_now, mut rest) = (0usize, 0.0f64);
        for b in beliefs.clone().map(f64::from) {
            if b > belief {
                cut_now += 1;
            } else {
                rest += b;
            }
        }
        let room = count as f64 - cap * cut_now as f64;
        if rest <= 0.0 || room <= 0.0 {
            // All that is left is worth nothing: the few above take their most, and the others share what remains.
            return Some(Cut { belief: 0.0, spread: room.max(0.0) / count as f64 });
        }
        if cut_now == cut_before {
            return Some(Cut { belief, spread: 0.0 });
        }
        cut_before = cut_now;
        // Scale = room / rest; a belief of cap / scale is worth the cap.
        belief = cap * rest / room;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worths(beliefs: &[f32]) -> Vec<f64> {
        let mean = beliefs.iter().map(|&b| f64::from(b)).sum::<f64>() / beliefs.len() as f64;
        let Some(cut) = cut(beliefs.iter().copied(), mean) else {
            return beliefs.iter().map(|&b| f64::from(b) / mean).collect();
        };
        beliefs.iter().map(|&b| cut.worth(f64::from(b), max_gain(beliefs.len()))).collect()
    }

    #[test]
    fn ordinary_beliefs_are_not_cut() {
        assert_eq!(cut((0..1000).map(|i| i as f32), 499.5), None);
        assert_eq!(cut([0.0; 9].into_iter(), 0.0), None);
    }

    #[test]
    fn whatever_is_believed_the_mean_worth_is_one_and_none_is_above_the_cap() {
        let mut cases: Vec<Vec<f32>> = Vec::new();
        for outliers in [1, 2, 30, 61, 62, 63, 64, 200] {
            for size in [1e2f32, 1e6, 1e30, f32::MAX] {
                for rest in [0.0f32, f32::MIN_POSITIVE, 1e-3, 1.0] {
                    cases.push((0..1000).map(|i| if i < outliers { size } else { rest * (i % 7) as f32 }).collect());
                }
            }
        }
        cases.push((0..1000).map(|i| 1.3f32.powi(i % 300)).collect());
        cases.push(vec![1e30, 1.0, 1.0]);
        for beliefs in cases {
            let worths = worths(&beliefs);
            let mean = worths.iter().sum::<f64>() / worths.len() as f64;
            let largest = worths.iter().copied().fold(0.0, f64::max);
            assert!((mean - 1.0).abs() < 1e-6, "mean worth {mean} of {:?}…", &beliefs[..3]);
            assert!(largest <= max_gain(beliefs.len()) + 1.0, "{largest} of {:?}…", &beliefs[..3]);
            assert!(worths.iter().zip(worths.iter().skip(1)).all(|(a, b)| a.is_finite() && b.is_finite()));
        }
    }
}
