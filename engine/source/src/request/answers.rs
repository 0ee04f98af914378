//! The times of a store's last answers, for people who wait for it.
//!
//! Lock: guards the last response times; held to write one number, and to copy 256 of them for a reader.

use std::time::Duration;

use lossfeed_sync::Mutex;

/// So many answers are remembered.
const REMEMBERED: usize = 256;
/// Before so many are known, a hundredth of them says nothing.
const KNOWN_MIN: usize = 16;

/// The times up to the first byte of the last answers, the oldest is written over.
#[derive(Default)]
pub(crate) struct Answers(Mutex<(Vec<u32>, usize)>);

impl Answers {
    pub(crate) fn learn(&self, took: Duration) {
        let us = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
        let mut known = self.0.lock();
        let (times, learnt) = &mut *known;
        match times.get_mut(*learnt % REMEMBERED) {
            Some(oldest) => *oldest = us,
            None => times.push(us),
        }
        *learnt = learnt.wrapping_add(1);
    }

    /// Microseconds that half of them took at most, and 99 of 100.
    pub(crate) fn quantiles(&self) -> Option<(u64, u64)> {
        let mut times = self.0.lock().0.clone();
        if times.len() < KNOWN_MIN {
            return None;
        }
        times.sort_unstable();
        let at = |share: f64| times.get((times.len() as f64 * share) as usize).copied().map(u64::from);
        Some((at(0.5)?, at(0.99)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_answers_count_and_few_say_nothing() {
        let answers = Answers::default();
        for _ in 0..KNOWN_MIN - 1 {
            answers.learn(Duration::from_secs(9));
        }
        assert_eq!(answers.quantiles(), None);
        for k in 1..=REMEMBERED as u64 {
            answers.learn(Duration::from_micros(10 * k));
        }
        assert_eq!(answers.quantiles(), Some((1290, 2540)), "the nine seconds are written over");
    }
}
