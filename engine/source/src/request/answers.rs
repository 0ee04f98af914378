//! The times of a store's last answers.
//!
//! Lock: guards the last response times; held to write one number, each sixteenth time to sort 256, and by a reader to
//! copy two.

use std::time::Duration;

use lossfeed_sync::Mutex;

/// So many answers are remembered.
const REMEMBERED: usize = 256;
/// They are looked at after so many new ones.
pub(crate) const LOOK_EVERY: usize = 16;

/// The last times in microseconds, the oldest is written over.
#[derive(Default)]
pub(crate) struct Recent {
    times: Vec<u32>,
    learnt: usize,
}

/// Recent times, ascending.
pub(crate) struct Sorted(Vec<u32>);

impl Recent {
    /// Each [`LOOK_EVERY`]th time all of them.
    pub(crate) fn learn(&mut self, took: Duration) -> Option<Sorted> {
        let us = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
        match self.times.get_mut(self.learnt % REMEMBERED) {
            Some(oldest) => *oldest = us,
            None => self.times.push(us),
        }
        self.learnt = self.learnt.wrapping_add(1);
        self.learnt.is_multiple_of(LOOK_EVERY).then(|| {
            let mut times = self.times.clone();
            times.sort_unstable();
            Sorted(times)
        })
    }
}

impl Sorted {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The time that this share of them took at most.
    pub(crate) fn at(&self, share: f64) -> u32 {
        self.0.get((self.0.len() as f64 * share) as usize).copied().unwrap_or(u32::MAX)
    }
}

/// The times up to the first byte, for people who wait for it.
#[derive(Default)]
pub(crate) struct Answers(Mutex<(Recent, Option<(u64, u64)>)>);

impl Answers {
    pub(crate) fn learn(&self, took: Duration) {
        let mut known = self.0.lock();
        if let Some(sorted) = known.0.learn(took) {
            known.1 = Some((sorted.at(0.5).into(), sorted.at(0.99).into()));
        }
    }

    /// Microseconds that half of them took at most, and 99 of 100. `None` until there are [`LOOK_EVERY`].
    pub(crate) fn quantiles(&self) -> Option<(u64, u64)> {
        self.0.lock().1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_answers_count_and_few_say_nothing() {
        let answers = Answers::default();
        for _ in 0..LOOK_EVERY - 1 {
            answers.learn(Duration::from_secs(9));
        }
        assert_eq!(answers.quantiles(), None);
        for k in 0..=REMEMBERED as u64 {
            answers.learn(Duration::from_micros(10 * k));
        }
        assert_eq!(answers.quantiles(), Some((1290, 2540)), "the nine seconds are written over");
    }
}
