//! PADS, the sampler of SHADE (Khan et al., FAST'23): draw by importance, then replay what is in the cache.
//!
//! Departure from the paper: repeats stay what they are set to. SHADE follows the loss and the accuracy, and shuffles
//! the important samples instead where the loss falls steeply or the accuracy stands still; its text gives no threshold
//! for either, and a sampler here sees no validation accuracy. (The public code has one switch, on the last three
//! changes of validation accuracy, and never changes the number of repeats. `shade-as-coded` leaves that out too.)
//!
//! Otherwise as the paper means it, not as its public code has it. Departures from that code, which [`Pads::as_coded`]
//! undoes except for the first:
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
use crate::error::{Error, Result};
use crate::index::Standing;
use crate::random::{LARGE, Purpose, below, generator, part_sizes, shuffle, shuffle_large, unit};
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

/// Refuses repeats that no draw has.
pub(super) fn check_repeats(name: &str, repeats: f64) -> Result<()> {
    if (1.0..=64.0).contains(&repeats) && (repeats * 2.0).fract() == 0.0 {
        return Ok(());
    }
    Err(Error::settings(format!("{name}: repeats is {repeats}: give 1 (no repeats) to 64 in steps of 0.5")))
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
        if scores.mean().is_none() {
            return vec![1.0; outlook.owned.len()];
        }
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
            (count, if count > 0 { sum / count as f64 } else { 0.0 })
        };
        // Cut where one belief would be most of the mean, and with it most of the draws.
        let values = chances.iter().copied().filter(|&c| c != AVERAGE);
        // Counted anew: the table's own mean forgets what small beliefs are once a huge one has come and gone.
        let (count, counted) = known(&chances);
        let mean = match cap::cut(values, counted) {
            None => counted,
            Some(cut) => {
                let most = cap::max_gain(count);
                let values = chances.iter_mut().filter(|c| **c != AVERAGE);
                values.for_each(|c| *c = cut.worth(f64::from(*c), most) as f32);
                known(&chances).1
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
    fn by_batch_rank(&self) -> bool {
        true
    }
    fn check(&self) -> Result<()> {
        let Self { miss_quota, unseen, corrected, .. } = *self;
        check_repeats("pads", self.repeats)?;
        if !(0.0..1.0).contains(&miss_quota) {
            return Err(Error::settings(format!(
                "pads: miss_quota is {miss_quota}: give the part of an epoch kept for samples that are not cached, 0 up to but not including 1"
            )));
        }
        if let Some(unseen) = unseen.filter(|u| !u.is_finite() || *u <= 0.0) {
            return Err(Error::settings(format!(
                "pads: unseen is {unseen}: give an importance above 0, or remove it to use the largest known one"
            )));
        }
        if corrected && miss_quota == 0.0 {
            return Err(Error::settings(
                "pads: corrected weights need misses to weigh, and miss_quota is 0: give a miss_quota above 0",
            ));
        }
        Ok(())
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
        let (mut hits, mut misses) = (Vec::new(), Vec::new());
        for index in multinomial(&chances, places, draw_rng) {
            let id = outlook.owned[index as usize];
            let to = if (outlook.resident)(id) { &mut hits } else { &mut misses };
            // From here on draws stand in no order, and looking one up waits for main memory: only weights need it.
            to.push(if self.corrected { index } else { id });
        }
        let (drawn_hits, drawn_misses) = (hits.len(), misses.len());
        // Who cannot be read is drawn as ever, always as a miss, and does not arrive.
        let arrives = |&index: &u32| outlook.scores.standing(outlook.owned[index as usize]) != Standing::Failed;
        let arriving = |indices: &[u32]| indices.iter().copied().filter(arrives).count();
        let some_fail = self.corrected && outlook.scores.failed() > 0;
        let arriving_draws = if some_fail { drawn_hits + arriving(&misses) } else { places };
        let hit_places = self.hit_places(drawn_hits, places);

        // Which hits get the extra copy, and which misses stay, must be chance.
        let is_large = places >= LARGE;
        let mut draws: Vec<u32> = if is_large {
            misses = pick(misses, places - hit_places, order_rng);
            pick(hits, hit_places, order_rng)
        } else {
            shuffle(&mut hits, order_rng);
            shuffle(&mut misses, order_rng);
            misses.truncate(places - hit_places);
            hits.iter().copied().cycle().take(hit_places).collect()
        };
        if self.interleave {
            draws.append(&mut misses);
            draws = shuffle_large(draws, order_rng);
        } else {
            draws = shuffle_large(draws, order_rng);
            if is_large {
                misses = shuffle_large(misses, order_rng);
            }
            draws.append(&mut misses);
        }

        if !self.corrected {
            return Ok(Order { ids: draws, weights: vec![1.0; places] });
        }
        // A draw of i weighs W/(N p_i); a hit draw took hit_places/drawn_hits places on average, a miss draw
        // (places − hit_places)/drawn_misses of one. Dividing by that restores each draw's say. What is trained on is the
        // mean over the places that arrive, and of them there is another share than of the draws.
        let weigh = tilt::weigher(outlook, &chances);
        let say = if some_fail { arriving(&draws) as f64 / arriving_draws.max(1) as f64 } else { 1.0 };
        let hit = say * drawn_hits as f64 / hit_places.max(1) as f64;
        let miss = say * drawn_misses as f64 / (places - hit_places).max(1) as f64;
        let factor = |index: u32| if (outlook.resident)(outlook.owned[index as usize]) { hit } else { miss };
        let weights = draws.iter().map(|&index| (weigh(index as usize) * factor(index)) as f32).collect();
        Ok(Order { ids: draws.into_iter().map(|index| outlook.owned[index as usize]).collect(), weights })
    }
}

/// `draws` independent draws of indices ∝ `chances`, in ascending order: sorted marks laid beside the running sum, so
/// the chances are read once and in order.
fn multinomial(chances: &[f32], draws: usize, rng: &mut ChaCha8Rng) -> Vec<u32> {
    if draws < LARGE {
        let mut marks: Vec<f64> = (0..draws).map(|_| unit(rng)).collect();
        marks.sort_unstable_by(f64::total_cmp);
        return draw_at(chances, draws, marks.into_iter());
    }
    draw_at(chances, draws, sorted_marks(draws, rng))
}

/// `count` of `items`: all of them as often as they go into it, and some of them, by chance, once more. In their order,
/// so that memory is read and written from front to back.
fn pick(items: Vec<u32>, count: usize, rng: &mut ChaCha8Rng) -> Vec<u32> {
    if items.is_empty() || items.len() == count {
        return items;
    }
    let (each, mut extra) = (count / items.len(), (count % items.len()) as u32);
    let mut picked = Vec::with_capacity(count);
    // Selection sampling (Fan, Muller and Rezucha 1962): what is left to be had, of those that are left.
    for (left, &item) in (1..=items.len() as u32).rev().zip(&items) {
        let once_more = extra > 0 && below(rng, left) < extra;
        extra -= u32::from(once_more);
        picked.extend(std::iter::repeat_n(item, each + usize::from(once_more)));
    }
    picked
}

/// `count` independent uniform numbers from 0 to 1 in ascending order. How many lie in each of many equal parts is drawn
/// first, then how many in the parts of a part; so few numbers are sorted at a time that nothing leaves a cache. No
/// logarithm, which differs between machines.
fn sorted_marks(count: usize, rng: &mut ChaCha8Rng) -> impl Iterator<Item = f64> + use<'_> {
    let sizes = part_sizes(count, PARTS.ilog2(), rng);
    let mut ready: Vec<f64> = Vec::new();
    sizes.into_iter().enumerate().flat_map(move |(part, size)| {
        // Of so many parts that two or three marks lie in each.
        let bits = (size / 2).max(1).ilog2().min(14);
        let width = 1.0 / (PARTS << bits) as f64;
        ready.clear();
        for (place, size) in part_sizes(size, bits, rng).into_iter().enumerate() {
            let (first, start) = (ready.len(), ((part << bits) + place) as f64);
            ready.extend((0..size).map(|_| (start + unit(rng)) * width));
            ready[first..].sort_unstable_by(f64::total_cmp);
        }
        std::mem::take(&mut ready)
    })
}

/// So many that the marks of one of them fit a cache.
const PARTS: usize = 2048;

/// The indices in which ascending `marks` below 1 lie, of which there are `draws`.
fn draw_at(chances: &[f32], draws: usize, marks: impl Iterator<Item = f64>) -> Vec<u32> {
    let total = tilt::total(chances);
    let (mut index, mut sum) = (0, chances.first().map_or(0.0, |&c| f64::from(c)));
    let last = chances.len().saturating_sub(1);
    let mut drawn = Vec::with_capacity(draws);
    drawn.extend(marks.map(|mark| {
        while mark * total >= sum && index < last {
            index += 1;
            sum += f64::from(chances[index]);
        }
        index as u32
    }));
    drawn
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::ScoreTable;

    /// The share of the chances of those of 1,000 samples that have a loss of 1, `hot` of them. All others have 0, or
    /// (`tried`) no score.
    fn share_of_hot(hot: u32, tried: u32) -> f64 {
        let mut scores = ScoreTable::new(1000, 0.0);
        (0..1000 - tried).for_each(|id| _ = scores.record(id, if id < hot { 1.0 } else { 0.0 }, 0));
        (1000 - tried..1000).for_each(|id| _ = scores.tried(id));
        let owned: Vec<SampleId> = (0..1000).collect();
        let resident = &|_| false;
        let scores = &scores;
        let outlook =
            Outlook { owned: &owned, samples: 1000, epoch: 1, seed: 1, rank: 0, world_size: 1, scores, resident };
        let chances = Pads::default().chances(&outlook);
        tilt::total(&chances[..hot as usize]) / tilt::total(&chances)
    }

    /// So few that no cut makes them worth as little as they may be: each is worth the most then, and what is left of
    /// the chances is spread.
    #[test]
    fn few_samples_with_a_loss_above_0_are_drawn_as_often_as_they_may_be() {
        for hot in [1, 20, 61, 62, 63, 64, 200] {
            let most = (16.0 * f64::from(hot) / 1000.0).min(1.0);
            let share = share_of_hot(hot, 0);
            assert!((share - most).abs() < 0.02, "{hot} hot: {share} of the chances, not {most}");
        }
        // Who was tried and got no score is worth an average sample, cut or not.
        for hot in [20, 30, 32] {
            let share = share_of_hot(hot, 500);
            let most = (16.0 * f64::from(hot) / 500.0).min(1.0) / 2.0;
            assert!((share - most).abs() < 0.02, "{hot} hot, 500 tried: {share} of the chances, not {most}");
        }
    }

    #[test]
    fn a_pick_takes_all_alike_and_chooses_the_rest_by_chance() {
        let items: Vec<u32> = (10..17).collect();
        for count in [0, 1, 3, 7, 8, 20, 21] {
            let mut times = [0u32; 7];
            for seed in 0..14_000 {
                let picked = pick(items.clone(), count, &mut generator(seed, 0, 0, Purpose::Order));
                assert!(picked.len() == count && picked.is_sorted());
                let mut here = [0; 7];
                picked.iter().for_each(|&item| here[item as usize - 10] += 1);
                assert!(here.iter().all(|&n| n == count / 7 || n == count / 7 + 1));
                here.iter().zip(&mut times).for_each(|(&n, all)| *all += n as u32);
            }
            // A binomial count of 14,000 has a standard deviation of 59 at most.
            let mean = 2000 * count as u32;
            assert!(times.iter().all(|&n| n.abs_diff(mean) < 300), "{count}: {times:?}");
        }
        assert_eq!(pick(vec![], 5, &mut generator(1, 0, 0, Purpose::Order)), [0; 0]);
    }

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
