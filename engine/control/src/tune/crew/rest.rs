//! A number of threads that was settled on, and what must happen for it to be questioned.

use super::Look;

/// How far the rate must move to be another one: the natural logarithm of 1.12, and of 1.6 for it to be so at once.
const MOVED: f64 = 0.113;
const MOVED_FAR: f64 = 0.47;
/// What differs less than so many times what looks differ by anyway has not moved.
const NOISE: f64 = 4.0;
/// What a look differs by counts so much.
const FRESH: f64 = 0.1;

#[derive(Debug)]
pub(super) struct Rest {
    /// The consumer waits, and no other number helps.
    pub(super) hungry: bool,
    rate: f64,
    noise: f64,
    /// Looks in a row that showed something else.
    odd: u32,
}

impl Rest {
    /// The consumer does not wait.
    pub(super) fn served() -> Self {
        Self { hungry: false, rate: 0.0, noise: 0.0, odd: 0 }
    }

    /// It does, at this rate.
    pub(super) fn hungry(rate: f64) -> Self {
        Self { hungry: true, rate, noise: 0.0, odd: 0 }
    }

    fn twice(&mut self, odd: bool) -> bool {
        self.odd = if odd { self.odd + 1 } else { 0 };
        self.odd >= 2
    }

    /// Whether the threads of a consumer that is served are too few, for the second time.
    pub(super) fn is_short(&mut self, short: bool) -> bool {
        self.twice(short)
    }

    /// Whether the rate is another one: twice in a row by more than looks differ, and unless it is far from what it was
    /// only if the rest `may` end.
    pub(super) fn moved(&mut self, look: Look, may: bool) -> bool {
        let off = (look.rate / self.rate).ln().abs();
        if !off.is_finite() {
            return self.twice(true);
        }
        let least = if may { MOVED } else { MOVED_FAR };
        let odd = off > least.max(NOISE * self.noise);
        if !odd {
            self.noise += FRESH * (off - self.noise);
        }
        self.twice(odd)
    }
}
