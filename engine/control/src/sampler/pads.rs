//! PADS, the sampler of SHADE (Khan et al., FAST'23): draw by importance, then replay what is in the cache.
//!
//! As the paper means it, not as its public code has it. Departures from that code, which [`Pads::as_coded`] undoes
//! except for the first:
//! 1. ids are ids: scores are credited to the samples that earned them (the code writes them to other positions);
//! 2. repeats are clamped so that misses keep a quota. Unclamped, repeats × hit share ≥ 1 leaves no room for misses,
//!    and the run trains on the cached part for ever;
//! 3. repeats are interleaved with misses: in-batch ranks mean something only in batches that are representative;
//! 4. unseen samples are drawn like the most important ones, not (weight 1) below the least important;
//! 5. the first epoch is a pass over the data, not draws with replacement that miss 36.8 % of it;
//! 6. every belief counts as at least a hundredth of the mean, so that no chance is 0, and beliefs far above the mean
//!    are cut ([`MAX_GAIN`](super::MAX_GAIN)), so that no chance is nearly 1.

use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::{Order, Outlook, Sampler, cap, tilt};
use crate::error::Result;
use crate::index::Standing;
use crate::random::{LARGE, Purpose, generator, part_sizes, shuffle_large, unit};
use crate::types::SampleId;

/// Draws with replacement ∝ belief; then draws that hit are repeated and draws that miss are cut to fill the epoch.
/// Biased towards the cache unless `corrected`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Pads {
    /// How often a draw that hits is delivered: 1 to 64 in steps of a half (a half repeats a random half of the hits).
    /// Default 2, the authors' choice for one node; 3 for several.
    pub repeats: f64,
    /// The part of the epoch that misses keep whatever `repeats` says, in [0, 1). Default 0.1.
    pub miss_quota: f64,
    /// The belief about a sample without a score; `None`, the default: the largest belief of any while it is unseen,
    /// the mean once it was delivered and got none.
    pub unseen: Option<f32>,
    /// Mix repeats and misses; otherwise all hits come first. Default true.
    pub interleave: bool,
    /// Begin with one pass over the data. Default true.
    pub first_pass: bool,
    /// Weight the draws so that the mean is unbiased after all. Default false, as the paper has it. Needs a
    /// `miss_quota`.
    pub corrected: bool,
}

impl Default for Pads {
    fn default() -> Self {
        Self { repeats: 2.0, miss_quota: 0.1, unseen: None, interleave: true, first_pass: true, corrected: false }
    }
}

/// Stands for a chance that is the mean of the others.
const AVERAGE: f32 = -1.0;

impl Pads {
    /// The rules of the authors' public code (but for the ids it gets wrong), to reproduce what they measured.
    pub fn as_coded(repeats: f64) -> Self {
        Self { repeats, miss_quota: 0.0, unseen: Some(1.0), interleave: false, first_pass: false, corrected: false }
    }
    fn chances(&self, outlook: &Outlook<'_>) -> Vec<f32> {
        let scores = outlook.scores;
        let Some(mean) = scores.mean() else { return vec![1.0; outlook.owned.len()] };
        let scored = outlook.owned.iter().filter_map(|&id| scores.importance(id));
        let largest = scored.fold(0.0f32, f32::max);
        let value = |&id: &SampleId| match (scores.standing(id), self.unseen) {
            (Standing::Scored(belief), _) => belief.max(0.0),
            (_, Some(unseen)) => unseen,
            (Standing::Unseen, None) => largest,
            (Standing::Tried | Standing::Failed, None) => AVERAGE,
        };
        let mut chances: Vec<f32> = outlook.owned.iter().map(value).collect();
        let known = |chances: &[f32]| {
            let known = chances.iter().filter(|&&c| c != AVERAGE);
            let (count, sum) = known.fold((0usize, 0.0), |(n, s), &c| (n + 1, s + f64::from(c)));
            if count > 0 { sum / count as f64 } else { 0.0 }
        };
        // Cut where one belief would be most of the mean, and with it most of the draws.
        let values = chances.iter().copied().filter(|&c| c != AVERAGE);
        let mean = match cap::cut(values, known(&chances)) {
            None => mean.max(0.0),
            Some(cut) => {
                chances.iter_mut().for_each(|c| *c = c.min(cut.belief as f32));
                known(&chances)
            }
        };
        let least = mean as f32 / 100.0;
        if least == 0.0 {
            return vec![1.0; outlook.owned.len()];
        }
        let chance = |&c: &f32| if c == AVERAGE { mean as f32 } else { c.max(least) };
        chances.iter().map(chance).collect()
    }
    /// How many places of `places` the draws that hit take when `hits` drew a resident.
    fn hit_places(&self, hits: usize, places: usize) -> usize {
        if hits == places {
            return places; // no miss to keep a place for
        }
        let wanted = (self.repeats * hits as f64).round();
        let quota = (self.miss_quota * places as f64).ceil();
        // Below `hits` (more hits drawn than the quota leaves room for) there is nothing to repeat and nothing to cut.
        (wanted.min(places as f64 - quota) as usize).max(hits)
    }
}

impl Sampler for Pads {
    fn name(&self) -> &'static str {
        "pads"
    }
    fn biased(&self) -> bool {
        !self.corrected
    }
    fn draw(&self, outlook: &Outlook<'_>) -> Result<Order> {
        let nothing_seen = outlook.scores.seen() == 0;
        if self.first_pass && nothing_seen {
            return Ok(tilt::first_pass(outlook));
        }
        let places = outlook.owned.len();
        let chances = self.chances(outlook);
        let draw_rng = &mut generator(outlook.seed, outlook.epoch, outlook.rank, Purpose::Draw);
        let order_rng = &mut generator(outlook.seed, outlook.epoch, outlook.rank, Purpose::Order);
        let (mut hits, mut misses): (Vec<u32>, Vec<u32>) = multinomial(&chances, places, draw_rng)
            .into_iter()
            .partition(|&index| (outlook.resident)(outlook.owned[index as usize]));
        let (drawn_hits, drawn_misses) = (hits.len(), misses.len());

        // Shuffled before they are repeated and cut: which hits get the extra copy, and which misses stay, must be
        // chance.
        hits = shuffle_large(hits, order_rng);
        misses = shuffle_large(misses, order_rng);
        let hit_places = self.hit_places(drawn_hits, places);
        let mut draws: Vec<u32> = hits.iter().copied().cycle().take(hit_places).collect();
        misses.truncate(places - hit_places);
        if self.interleave {
            draws.append(&mut misses);
            draws = shuffle_large(draws, order_rng);
        } else {
            draws = shuffle_large(draws, order_rng);
            draws.append(&mut misses);
        }

        let weights = if self.corrected {
            // A draw of i weighs W/(N p_i); a hit draw took hit_places/drawn_hits places on average, a miss draw
            // (places − hit_places)/drawn_misses of one. Dividing by that restores each draw's say.
            let weigh = tilt::weigher(outlook, &chances);
            let hit = drawn_hits as f64 / hit_places.max(1) as f64;
            let miss = drawn_misses as f64 / (places - hit_places).max(1) as f64;
            let factor = |index: u32| if (outlook.resident)(outlook.owned[index as usize]) { hit } else { miss };
            draws.iter().map(|&index| (weigh(index as usize) * factor(index)) as f32).collect()
        } else {
            vec![1.0; places]
        };
        Ok(Order { ids: draws.into_iter().map(|index| outlook.owned[index as usize]).collect(), weights })
    }
}

/// `draws` independent draws of indices ∝ `chances`, in ascending order: sorted marks laid beside the running sum, so
/// the chances are read once and in order.
fn multinomial(chances: &[f32], draws: usize, rng: &mut ChaCha8Rng) -> Vec<u32> {
    if draws < LARGE {
        let mut marks: Vec<f64> = (0..draws).map(|_| unit(rng)).collect();
        marks.sort_unstable_by(f64::total_cmp);
        return draw_at(chances, marks.into_iter());
    }
    draw_at(chances, sorted_marks(draws, rng))
}

/// `count` independent uniform numbers from 0 to 1 in ascending order. How many lie in each of many equal parts is drawn
/// first; then a part is drawn and sorted at a time, within a cache. No logarithm, which differs between machines.
fn sorted_marks(count: usize, rng: &mut ChaCha8Rng) -> impl Iterator<Item = f64> + use<'_> {
    let sizes = part_sizes(count, PARTS.ilog2(), rng);
    let width = 1.0 / PARTS as f64;
    sizes.into_iter().enumerate().flat_map(move |(part, size)| {
        let mut marks: Vec<f64> = (0..size).map(|_| (part as f64 + unit(rng)) * width).collect();
        marks.sort_unstable_by(f64::total_cmp);
        marks
    })
}

/// So many that those of [`LARGE`] numbers and more fit a cache one by one.
const PARTS: usize = 2048;

/// The indices in which ascending `marks` below 1 lie.
fn draw_at(chances: &[f32], marks: impl Iterator<Item = f64>) -> Vec<u32> {
    let total = tilt::total(chances);
    let (mut index, mut sum) = (0, chances.first().map_or(0.0, |&c| f64::from(c)));
    let last = chances.len().saturating_sub(1);
    marks
        .map(|mark| {
            while mark * total >= sum && index < last {
                index += 1;
                sum += f64::from(chances[index]);
            }
            index as u32
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As many marks, ascending, and as evenly spread as sorted draws: the largest gap to the line is within what
    /// Kolmogorov's test allows once in a million times.
    #[test]
    fn marks_in_parts_are_sorted_uniform_draws() {
        for count in [0, 1, 5, 100_000] {
            for seed in 0..5 {
                let marks: Vec<f64> = sorted_marks(count, &mut generator(seed, 0, 0, Purpose::Draw)).collect();
                assert!(marks.len() == count && marks.is_sorted() && marks.iter().all(|m| (0.0..=1.0).contains(m)));
                let off = |(k, &mark): (usize, &f64)| (mark - (k as f64 + 0.5) / count as f64).abs();
                let gap = marks.iter().enumerate().map(off).fold(0.0, f64::max);
                assert!(gap <= 2.7 / (count as f64).sqrt() + 1e-9 || count == 0, "{count}: {gap}");
            }
        }
    }
}
