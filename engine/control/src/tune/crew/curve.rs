//! What each number of threads brought, and where to look next.

use std::collections::BTreeMap;

/// This share of the best rate is as good as all of it, and fewer threads may bring less: half of them 1.5 % less.
const HOLDS: f64 = 0.98;
const FEWER: f64 = 0.03;
/// More are worth it if the rate grows by this share of what they grew by.
const FOLLOWS: f64 = 0.3;
/// Numbers that lie nearer, as a share, are not told apart.
const NEAR: usize = 4;

/// Batches a second by number of threads, of a consumer that waits.
#[derive(Debug, Default)]
pub(super) struct Curve(BTreeMap<usize, f64>);

/// What to do about it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Next {
    /// More may bring more.
    Raise(usize),
    /// Fewer than the best may bring as much, or a number beside it more.
    Try(usize),
    /// The fewest that bring as much as any, and that rate.
    Settle { at: usize, rate: f64 },
}

impl Curve {
    pub(super) fn learn(&mut self, threads: usize, rate: f64) {
        self.0.insert(threads, rate);
    }

    /// Of at most `limit` threads; `more` is the number to go on with if the rate followed so far.
    pub(super) fn next(&self, limit: usize, more: usize) -> Next {
        let rates = || self.0.iter().map(|(&n, &rate)| (n, rate));
        let Some((best, most)) = rates().reduce(|a, b| if b.1 > a.1 { b } else { a }) else {
            return Next::Settle { at: limit.max(1), rate: 0.0 };
        };
        let hold = |n: usize| (HOLDS - FEWER * (1.0 - n as f64 / best as f64).max(0.0)) * most;
        let (top, at_top) = rates().next_back().unwrap_or((best, most));
        if top < limit && at_top >= hold(top) && self.follows(top, at_top) {
            return Next::Raise(more.clamp(top + 1, limit));
        }
        // The fewest that bring as much, and those that bring less: one that was tried, or that cannot.
        let (fewest, rate) = rates().find(|&(n, rate)| rate >= hold(n)).unwrap_or((best, most));
        let less = rates().take_while(|&(n, _)| n < fewest).last().map_or(0, |(n, rate)| {
            let least = (hold(n) * n as f64 / rate.max(f64::MIN_POSITIVE)).ceil() as usize;
            n.max(least.saturating_sub(1)).min(fewest)
        });
        if fewest - less > (fewest / NEAR).max(1) {
            return Next::Try(less + (fewest - less).div_ceil(2).min(fewest - less - 1));
        }
        // A peak may lie between the best and what brings less above it.
        if let Some((above, _)) = rates().find(|&(n, _)| n > best).filter(|&(n, rate)| rate < hold(n))
            && above - best > (best / NEAR).max(2)
        {
            return Next::Try(best + (above - best) / 2);
        }
        Next::Settle { at: fewest, rate }
    }

    /// Whether the rate followed the last time the number was raised to `top`.
    fn follows(&self, top: usize, at_top: f64) -> bool {
        self.0.range(..top).next_back().is_none_or(|(&below, &rate)| {
            let grown = top as f64 / below as f64 - 1.0;
            at_top / rate.max(f64::MIN_POSITIVE) - 1.0 >= FOLLOWS * grown
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(known: &[(usize, f64)], limit: usize, more: usize) -> Next {
        let mut curve = Curve::default();
        known.iter().for_each(|&(n, rate)| curve.learn(n, rate));
        curve.next(limit, more)
    }

    #[test]
    fn more_are_tried_as_long_as_the_rate_follows() {
        assert_eq!(next(&[(2, 10.0)], 16, 4), Next::Raise(4));
        assert_eq!(next(&[(2, 10.0)], 16, 0), Next::Raise(3));
        assert_eq!(next(&[(2, 10.0), (4, 14.0)], 16, 8), Next::Raise(8));
        assert_eq!(next(&[(4, 10.0)], 5, 99), Next::Raise(5));
        // It does not: two are enough, or one.
        assert_eq!(next(&[(2, 10.0), (4, 10.1)], 16, 99), Next::Try(1));
        assert_eq!(next(&[(1, 6.0), (2, 10.0), (4, 10.1)], 16, 99), Next::Settle { at: 2, rate: 10.0 });
    }

    #[test]
    fn fewer_are_tried_where_they_could_bring_as_much() {
        assert_eq!(next(&[(8, 80.0)], 8, 99), Next::Try(4));
        // Half brings half: none between can bring all.
        assert_eq!(next(&[(4, 40.0), (8, 80.0)], 8, 99), Next::Settle { at: 8, rate: 80.0 });
        // Half brings more than half: 6 cannot bring all, and 7 could.
        assert_eq!(next(&[(4, 60.0), (8, 80.0)], 8, 99), Next::Try(7));
        assert_eq!(next(&[(4, 79.5), (8, 80.0)], 8, 99), Next::Try(2));
        assert_eq!(next(&[(1, 1.0)], 1, 99), Next::Settle { at: 1, rate: 1.0 });
        assert_eq!(next(&[], 3, 1), Next::Settle { at: 3, rate: 0.0 });
        assert_eq!(next(&[(3, 0.0)], 3, 9), Next::Try(2));
    }

    #[test]
    fn a_peak_is_looked_for_on_both_sides_of_the_best() {
        // 4 brings most of those that are known, and 6 was not looked at.
        assert_eq!(next(&[(2, 40.0), (3, 50.0), (4, 70.0), (8, 60.0)], 8, 99), Next::Try(6));
        let known = [(2, 40.0), (3, 50.0), (4, 70.0), (6, 66.0), (8, 60.0)];
        assert_eq!(next(&known, 8, 99), Next::Settle { at: 4, rate: 70.0 });
    }
}
