//! The newest beliefs of a walk, and whether one of them is kept with chance percentile^β.
//!
//! The plain version keeps them sorted: two searches and two moves of half the list for every sample that is met. Here
//! they stand in the order in which they came, counted in buckets. That bounds the percentile; the sample's mark mostly
//! lies outside of the bounds, and else all are counted. Answers are the same to the bit.

use crate::index::queue::Key;

/// Buckets are found in two steps of so many comparisons, which a processor makes at once.
const FAN: usize = 16;
const BUCKETS: usize = FAN * FAN;

/// The newest beliefs: 5 bytes each, and 8 for each chance.
pub(super) struct History {
    /// Order-preserving bits of the beliefs; the oldest is at `oldest` once there are `most`.
    keys: Vec<u32>,
    /// The bucket of each.
    buckets: Vec<u8>,
    oldest: usize,
    most: usize,
    /// The least key of each bucket, ascending; those that repeat the one before are of empty buckets. Signed, because
    /// that is what the commonest processors compare many of at once.
    least: [[i32; FAN]; FAN],
    /// The first of each row of `least`.
    firsts: [i32; FAN],
    /// How many keys are in the buckets before each; the last is all of them.
    before: [u32; BUCKETS + 1],
    /// Whether a bucket can hold one key alone.
    single: [bool; BUCKETS],
    /// By how many of the newest are at most as large: (count / most)^β.
    chances: Vec<f64>,
}

impl History {
    /// Of the newest `most` beliefs.
    pub(super) fn new(most: usize, beta: f32) -> Self {
        let chance = |count: usize| (count as f64 / most as f64).powf(f64::from(beta));
        Self {
            keys: Vec::with_capacity(most),
            buckets: Vec::new(),
            oldest: 0,
            most,
            least: [[0; FAN]; FAN],
            firsts: [0; FAN],
            before: [0; BUCKETS + 1],
            single: [false; BUCKETS],
            chances: (0..=most).map(chance).collect(),
        }
    }
    /// Remembers a belief. Whether `mark`, in [0, 1), is below percentile^β, the percentile being the share of those
    /// remembered that are at most as large, it itself included; 1 while there is room.
    #[inline]
    pub(super) fn keeps(&mut self, belief: f32, mark: f64) -> bool {
        let key = Key::to_bits(belief);
        if self.keys.len() < self.most {
            self.keys.push(key);
            if self.keys.len() == self.most {
                self.lay();
            }
            return true;
        }
        let bucket = self.bucket(key);
        let left = std::mem::replace(&mut self.buckets[self.oldest], bucket as u8) as usize;
        self.keys[self.oldest] = key;
        self.oldest = if self.oldest + 1 == self.most { 0 } else { self.oldest + 1 };
        if left < bucket {
            self.before[left + 1..=bucket].iter_mut().for_each(|count| *count -= 1);
        } else {
            self.before[bucket + 1..=left].iter_mut().for_each(|count| *count += 1);
        }
        let (fewest, most) = (self.before[bucket] as usize + 1, self.before[bucket + 1] as usize);
        if mark >= self.chances[most] {
            return false;
        }
        self.single[bucket] || mark < self.chances[fewest] || mark < self.chances[self.at_most(key)]
    }
    fn at_most(&self, key: u32) -> usize {
        self.keys.iter().filter(|&&other| other <= key).count()
    }
    /// The last bucket whose least key is at most `key`.
    #[inline]
    fn bucket(&self, key: u32) -> usize {
        let key = signed(key);
        let at_most = |row: &[i32; FAN]| row.iter().map(|&least| i32::from(least <= key)).sum::<i32>() as usize;
        let row = at_most(&self.firsts).saturating_sub(1);
        row * FAN + at_most(&self.least[row]).saturating_sub(1)
    }
    /// Chooses the buckets so that those remembered fall alike into them, each value that many have into one of its
    /// own.
    fn lay(&mut self) {
        let mut sorted = self.keys.clone();
        sorted.sort_unstable();
        let values = (0..BUCKETS / 2).map(|k| sorted[k * sorted.len() / (BUCKETS / 2)]);
        let mut least: Vec<u32> = values.flat_map(|value| [value, value.saturating_add(1)]).collect();
        least[0] = 0;
        least.dedup();
        let last = least[least.len() - 1];
        least.resize(BUCKETS, last);
        self.least = std::array::from_fn(|row| std::array::from_fn(|column| signed(least[row * FAN + column])));
        self.firsts = std::array::from_fn(|row| self.least[row][0]);
        self.single = std::array::from_fn(|bucket| least.get(bucket + 1) == Some(&least[bucket].saturating_add(1)));
        self.buckets = self.keys.iter().map(|&key| self.bucket(key) as u8).collect();
        self.before = [0; BUCKETS + 1];
        for &bucket in &self.buckets {
            self.before[bucket as usize + 1] += 1;
        }
        (1..=BUCKETS).for_each(|bucket| self.before[bucket] += self.before[bucket - 1]);
    }
}

/// The order of unsigned numbers as that of signed ones.
#[inline]
fn signed(key: u32) -> i32 {
    (key ^ 1 << 31) as i32
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::sampler::random_belief;

    /// Counts them all.
    fn chance(met: &VecDeque<f32>, most: usize, beta: f32) -> f64 {
        let newest = met.len() > most;
        let last: Vec<f32> = met.iter().rev().take(most).copied().collect();
        let at_most = last.iter().filter(|&&other| other <= last[0]).count();
        if newest { (at_most as f64 / most as f64).powf(f64::from(beta)) } else { 1.0 }
    }

    #[test]
    fn a_history_keeps_whom_counting_keeps() {
        let beliefs: [&dyn Fn(u32) -> f32; 7] = [
            &|step| random_belief(2, step) - 1.0,
            &|step| (random_belief(3, step) * 5.0).floor() - 3.0,
            &|_| 0.25,
            &|step| step as f32,
            &|step| -(step as f32),
            // Buckets are laid by what comes first, and then comes something else.
            &|step| if step < 1000 { random_belief(4, step) * 1e-30 } else { random_belief(4, step) * 1e30 },
            &|step| [f32::MAX, -0.0, 0.0, f32::MIN, 1.0][step as usize % 5],
        ];
        for (belief, most) in beliefs.into_iter().flat_map(|belief| [1, 2, 17, 300, 1024].map(|most| (belief, most))) {
            let (mut history, mut met) = (History::new(most, 3.0), VecDeque::new());
            for step in 0..2500 {
                met.push_back(belief(step));
                met.drain(..met.len().saturating_sub(most + 1));
                let expected = chance(&met, most, 3.0);
                // Marks at random, and those next to the chance.
                let mark = match step % 3 {
                    0 => f64::from(random_belief(9, step)) % 1.0,
                    1 => expected.next_down(),
                    _ => expected,
                };
                assert_eq!(history.keeps(belief(step), mark), mark < expected || met.len() <= most, "{most}, {step}");
            }
        }
    }
}
