//! From beliefs to chances: the tilt shared by the unbiased samplers.

use std::hint::black_box;

use super::{Order, Outlook, cap};
use crate::error::{Error, Result};
use crate::index::Standing;
use crate::random::{LARGE, Purpose, below, generator, shuffle, shuffle_large, unit};
use crate::types::SampleId;
use rand_chacha::ChaCha8Rng;

/// How much every owned sample is worth a draw, relative to the average one: `floor + (1 − floor) × belief / mean
/// belief`, so at least `floor`, with outliers cut by [`cap`](super::cap). A belief below 0 counts as 0. An unseen
/// sample is worth as much as the best scored one: it must be met soon, and its worth is found out by meeting it. One
/// that was met without getting a score is worth what an average sample is. `None` if nothing has a score.
pub(super) fn gains(outlook: &Outlook<'_>, floor: f32, belief: impl Fn(SampleId, f32) -> f32) -> Option<Vec<f32>> {
    let mut gains = Vec::with_capacity(outlook.owned.len());
    let (mut sum, mut seen, mut largest) = (0.0f64, 0usize, 0.0f32);
    for &id in outlook.owned {
        gains.push(match outlook.scores.standing(id) {
            Standing::Scored(value) => {
                let value = belief(id, value).max(0.0);
                sum += f64::from(value);
                seen += 1;
                largest = largest.max(value);
                value
            }
            Standing::Unseen => UNSEEN,
            Standing::Tried | Standing::Failed => AVERAGE,
        });
    }
    if seen == 0 {
        return None;
    }
    let mean = (sum / seen as f64) as f32;
    let worth = |value: f32| if mean > 0.0 { value / mean } else { 1.0 }; // all beliefs 0 (everything learnt): nothing to prefer
    let scored = gains.iter().copied().filter(|&g| g >= 0.0);
    match cap::cut(scored, f64::from(mean)) {
        None => gains.iter_mut().for_each(|gain| {
            *gain = match *gain {
                AVERAGE => 1.0,
                UNSEEN => floor + (1.0 - floor) * worth(largest),
                value => floor + (1.0 - floor) * worth(value),
            }
        }),
        Some(cut) => {
            let most = cap::max_gain(seen);
            gains.iter_mut().for_each(|gain| {
                let worth = match *gain {
                    AVERAGE => 1.0 + cut.spread,
                    UNSEEN => most + cut.spread,
                    value => cut.worth(f64::from(value), most),
                };
                *gain = floor + (1.0 - floor) * worth as f32;
            });
        }
    }
    Some(gains)
}

/// # Errors
/// `Settings`, with the value, if `floor` is no share of chances that leaves every sample one.
pub(super) fn check_floor(name: &str, floor: f32) -> Result<()> {
    if floor > 0.0 && floor <= 1.0 {
        return Ok(());
    }
    Err(Error::settings(format!(
        "{name}: floor is {floor}: give the share of chances spread evenly, above 0 (every sample must keep a chance) and at most 1"
    )))
}

/// Beliefs that are none, in a list of beliefs of at least 0.
const UNSEEN: f32 = -1.0;
const AVERAGE: f32 = -2.0;

/// One shuffled pass over the owned samples: what to do while nothing is known.
pub(crate) fn first_pass(outlook: &Outlook<'_>) -> Order {
    let mut ids = outlook.owned.to_vec();
    shuffle(&mut ids, &mut generator(outlook.seed, outlook.epoch, outlook.rank, Purpose::Order));
    let weight = share_weight(outlook);
    Order { weights: vec![weight as f32; ids.len()], ids }
}

/// As [`first_pass`], but blocks of neighbours are shuffled instead of samples: within one, ids ascend. A block is the
/// owned ids with the same id / `block`. The pass begins anywhere in their order, and has the block that it begins in cut
/// in two: so every place of it is as likely any sample's. Else a place would be that of the first samples of blocks
/// alone, or of the second, for every seed.
pub(crate) fn pass_in_blocks(outlook: &Outlook<'_>, block: u32) -> Order {
    if block <= 1 {
        return first_pass(outlook);
    }
    let mut blocks: Vec<&[SampleId]> = outlook.owned.chunk_by(|a, b| a / block == b / block).collect();
    let rng = &mut generator(outlook.seed, outlook.epoch, outlook.rank, Purpose::Order);
    shuffle(&mut blocks, rng);
    let mut ids = blocks.concat();
    if !ids.is_empty() {
        let first = below(rng, ids.len() as u32) as usize;
        ids.rotate_left(first);
    }
    Order { weights: vec![share_weight(outlook) as f32; ids.len()], ids }
}

/// The weight of a draw that is as likely as any other of this rank: 1 where shares are equal.
///
/// Ranks average their gradients with equal say (each step is the mean over ranks of batch means), so what must be
/// unbiased is the mean over ranks of each rank's mean. A rank that owns n of N samples stands for W·n/N of an average
/// rank.
pub(super) fn share_weight(outlook: &Outlook<'_>) -> f64 {
    f64::from(outlook.world_size) * outlook.owned.len() as f64 / f64::from(outlook.samples)
}

/// As many draws as there are owned samples, q ∝ `chances`, shuffled, with the weights that undo the tilt: W/(N q).
pub(super) fn weighted_order(outlook: &Outlook<'_>, chances: Vec<f32>) -> Order {
    let draws = weighted_draws(outlook, chances);
    let draws = shuffle_large(draws, &mut generator(outlook.seed, outlook.epoch, outlook.rank, Purpose::Order));
    Order { ids: draws.iter().map(|&(id, _)| id).collect(), weights: draws.iter().map(|&(_, weight)| weight).collect() }
}

/// The same draws with their weights, not shuffled: those of one sample lie side by side.
pub(super) fn weighted_draws(outlook: &Outlook<'_>, chances: Vec<f32>) -> Vec<(SampleId, f32)> {
    let rng = &mut generator(outlook.seed, outlook.epoch, outlook.rank, Purpose::Draw);
    let run = if chances.len() < LARGE { 1 } else { RUN };
    let mut draws: Vec<(SampleId, f32)> = Vec::with_capacity(chances.len());
    let weigh = weigher(outlook, &chances);
    let mut drawn: Vec<(u32, f32)> = Vec::with_capacity(2 * AHEAD * run);
    let mut look_up = |drawn: &mut Vec<(u32, f32)>| {
        draws.extend(drawn.drain(..).map(|(index, weight)| (outlook.owned[index as usize], weight)));
    };
    systematic(&chances, run, chances.len(), rng, |index, times| {
        drawn.extend(std::iter::repeat_n((index, weigh(index as usize) as f32), times));
        if drawn.len() >= AHEAD * run {
            look_up(&mut drawn);
        }
    });
    look_up(&mut drawn);
    draws
}

/// Neighbours that are drawn from together where there are very many samples: a line of a cache, fetched once.
const RUN: usize = 16;

/// Runs whose chances are fetched before the first is looked at, and whose ids together: loads that wait for main
/// memory then wait together. One by one they were half of the time at 100 million samples.
const AHEAD: usize = 64;

/// The weight of a draw of the index-th owned sample at chances ∝ `chances`.
///
/// A run that goes on without samples that cannot be read trains on the others: what must be unbiased is *their* mean,
/// over the draws that arrive. So both the count and the sum of the chances are those of the samples that can be read.
pub(super) fn weigher<'a>(outlook: &Outlook<'_>, chances: &'a [f32]) -> impl Fn(usize) -> f64 + use<'a> {
    let readable = |id| outlook.scores.standing(id) != Standing::Failed;
    let (mut count, mut sum) = (chances.len(), total(chances));
    if outlook.scores.failed() > 0 {
        let found = outlook.owned.iter().zip(chances).filter(|&(&id, _)| readable(id));
        (count, sum) = found.fold((0, 0.0), |(n, s), (_, &c)| (n + 1, s + f64::from(c)));
        if count == 0 {
            (count, sum) = (chances.len(), total(chances)); // nothing arrives: any weight will do
        }
    }
    // Share weight × (1/n)/q.
    let scale = share_weight(outlook) * sum / count as f64;
    move |index| scale / f64::from(chances[index])
}

pub(super) fn total(chances: &[f32]) -> f64 {
    chances.iter().map(|&c| f64::from(c)).sum()
}

/// Systematic resampling (Kitagawa 1996): lay the chances end to end on [0, draws), in random order, and count the
/// marks start, start + 1, … in each. `take(index, times)` is called for every index with times ≥ 1; times is ⌊draws·q⌋
/// or ⌈draws·q⌉, its mean over the start in [0, 1) is draws·q, and all add up to `draws`.
///
/// The order is random because marks are evenly spaced: in the order of ids, chances that vary periodically with it
/// (every fifth sample resident) would meet all marks alike, and a whole group would get its floor or its ceiling
/// together.
///
/// With a `run` above 1 this is done twice. Runs of so many neighbours get their numbers of draws like that, and within
/// each run evenly spaced marks from a start of its own share them out. Means are the same, `times` may be one more
/// off.
pub(super) fn systematic(
    chances: &[f32],
    run: usize,
    draws: usize,
    rng: &mut ChaCha8Rng,
    take: impl FnMut(u32, usize),
) {
    let start = unit(rng);
    systematic_from(start, chances, run, draws, rng, take);
}

/// The same with the start given.
fn systematic_from(
    start: f64,
    chances: &[f32],
    run: usize,
    draws: usize,
    rng: &mut ChaCha8Rng,
    mut take: impl FnMut(u32, usize),
) {
    let mut runs: Vec<u32> = (0..chances.len().div_ceil(run) as u32).collect();
    shuffle(&mut runs, rng);
    let scale = draws as f64 / total(chances);
    let (mut sum, mut taken, last) = (0.0f64, 0usize, runs.len().saturating_sub(1));
    for (place, &number) in runs.iter().enumerate() {
        if place % AHEAD == 0 {
            let firsts = runs[place..].iter().take(AHEAD).map(|&number| chances[number as usize * run]);
            black_box(firsts.sum::<f32>());
        }
        let first = number as usize * run;
        let here = &chances[first..(first + run).min(chances.len())];
        let mass = total(here);
        sum += mass;
        // Marks below the run's end. The last end is `draws` whatever the rounding.
        let end = if place == last { draws as f64 } else { sum * scale };
        let below = marks_below(end - start).clamp(taken, draws);
        let (times, own) = (below - taken, first as u32);
        taken = below;
        match here {
            [_] if times > 0 => take(own, times),
            _ if times > 0 => share_out(here, times, times as f64 / mass, unit(rng), |k, times| take(own + k, times)),
            _ => {}
        }
    }
}

/// Systematic resampling of `draws` draws in the order of the indices.
fn share_out(chances: &[f32], draws: usize, scale: f64, start: f64, mut take: impl FnMut(u32, usize)) {
    let (mut sum, mut taken) = (0.0f64, 0);
    for (index, &chance) in chances.iter().enumerate() {
        sum += f64::from(chance);
        let end = if index + 1 == chances.len() { draws as f64 } else { sum * scale };
        let below = marks_below(end - start).clamp(taken, draws);
        if below > taken {
            take(index as u32, below - taken);
        }
        taken = below;
    }
}

fn marks_below(end: f64) -> usize {
    end.ceil().max(0.0) as usize
}

/// A belief that knows nothing: skewed like real ones (density falling from 0, mean 1, at most 4), fixed by (seed, id).
/// The control of every claim about scores: whatever it achieves was not achieved by them.
pub fn random_belief(seed: u64, id: SampleId) -> f32 {
    // SplitMix64's finaliser (Steele, Lea, Flood 2014).
    let mut z = seed ^ u64::from(id).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    let u = (z >> 40) as f32 / (1 << 24) as f32;
    4.0 * u * u * u
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Draws by index.
    fn counts(chances: &[f32], run: usize, draws: usize, seed: u64) -> Vec<usize> {
        let mut counts = vec![0; chances.len()];
        let rng = &mut generator(seed, 0, 0, Purpose::Draw);
        systematic(chances, run, draws, rng, |index, times| counts[index as usize] += times);
        counts
    }

    #[test]
    fn systematic_resampling_counts_are_the_floor_or_the_ceiling_and_add_up() {
        let chances: Vec<f32> = (0..997).map(|i| 0.2 + random_belief(3, i)).collect();
        let all = total(&chances);
        for (seed, run) in [(1, 1), (2, 1), (3, RUN), (4, RUN), (5, 1000)] {
            let counts = counts(&chances, run, 5000, seed);
            assert_eq!(counts.iter().sum::<usize>(), 5000);
            let slack = if run == 1 || run > chances.len() { 1e-9 } else { 1.0 };
            for (&count, &chance) in counts.iter().zip(&chances) {
                let mean = 5000.0 * f64::from(chance) / all;
                assert!((mean - slack).floor() <= count as f64 && count as f64 <= (mean + slack).ceil());
            }
        }
    }

    /// What the weights promise, integrated over the start: every sample is drawn as often as its chance says, so the
    /// weighted draws have the mean over the samples, of any function. The counts of one laying change only where a
    /// mark meets an end, so between those starts the integral is a sum.
    #[test]
    fn integrated_over_the_start_the_weighted_mean_is_the_mean() {
        for (count, draws, seed) in [(37u32, 37usize, 1), (37, 5, 2), (12, 100, 3), (1, 4, 4)] {
            let chances: Vec<f32> = (0..count).map(|i| 0.2 + random_belief(seed, i)).collect();
            let of: Vec<f64> = (0..count).map(|i| f64::from(random_belief(seed + 9, i)) - 0.7).collect();
            let all = total(&chances);
            let times = |start: f64| {
                let mut times = vec![0; chances.len()];
                let rng = &mut generator(seed, 0, 0, Purpose::Draw);
                systematic_from(start, &chances, 1, draws, rng, |index, more| times[index as usize] += more);
                times
            };
            // Where the counts change: found by halving every step of a grid that is finer than any sample is short.
            let steps = 20_000;
            let mut changes = vec![0.0];
            for step in 0..steps {
                let (mut low, mut high) = (f64::from(step) / f64::from(steps), f64::from(step + 1) / f64::from(steps));
                let before = times(low);
                if before != times(high.next_down()) {
                    while high - low > 1e-12 {
                        let middle = (low + high) / 2.0;
                        if times(middle) == before { low = middle } else { high = middle }
                    }
                    changes.push(high);
                }
            }
            changes.push(1.0);
            let (mut drawn, mut mean) = (vec![0.0; chances.len()], 0.0);
            for piece in changes.windows(2) {
                for (index, times) in times((piece[0] + piece[1]) / 2.0).into_iter().enumerate() {
                    let weight = all / f64::from(count) / f64::from(chances[index]);
                    drawn[index] += (piece[1] - piece[0]) * times as f64;
                    mean += (piece[1] - piece[0]) * times as f64 * weight * of[index] / draws as f64;
                }
            }
            for (drawn, &chance) in drawn.iter().zip(&chances) {
                assert!((drawn - draws as f64 * f64::from(chance) / all).abs() < 1e-6);
            }
            assert!((mean - of.iter().sum::<f64>() / f64::from(count)).abs() < 1e-6, "{mean}");
        }
    }

    /// Over many starts everybody is drawn as often as its chance says, in runs too, also where chances are 0 and where
    /// the last run is a short one.
    #[test]
    fn draws_in_runs_have_the_means_of_draws_one_by_one() {
        let chances: Vec<f32> = (0..37).map(|i| if i % 9 == 4 { 0.0 } else { 0.1 + random_belief(8, i) }).collect();
        let (all, starts) = (total(&chances), 20_000);
        for run in [1, 5, RUN] {
            let mut sums = vec![0.0f64; chances.len()];
            for seed in 0..starts {
                counts(&chances, run, 37, seed).iter().zip(&mut sums).for_each(|(&n, sum)| *sum += n as f64);
            }
            for (&sum, &chance) in sums.iter().zip(&chances) {
                let mean = 37.0 * f64::from(chance) / all;
                // Counts are at most one off their mean and a little: five standard errors of the mean of so many.
                assert!((sum / starts as f64 - mean).abs() < 5.0 / (starts as f64).sqrt(), "run {run}: {mean}");
            }
        }
    }

    /// Chances with a period that divides a run, and whole numbers of marks a run: the worst that can be laid. Every
    /// group gets its part of the draws all the same.
    #[test]
    fn a_group_with_a_period_gets_its_part_of_the_draws() {
        let count = 16 * 4096;
        for period in [2, 4, 8, 5] {
            let chances: Vec<f32> = (0..count).map(|i| if i % period == 0 { 0.5 } else { 1.5 }).collect();
            let draws = (total(&chances) / 2.0) as usize;
            let share = chances.iter().step_by(period).map(|&c| f64::from(c)).sum::<f64>() / total(&chances);
            for (seed, run) in [(1, 1), (2, RUN), (3, RUN)] {
                let group: usize = counts(&chances, run, draws, seed).iter().step_by(period).sum();
                let off = group as f64 - share * draws as f64;
                assert!(off.abs() < 4.0 * (share * draws as f64).sqrt(), "period {period}, run {run}: {off} off");
            }
        }
    }

    #[test]
    fn random_beliefs_have_mean_one() {
        let mean = (0..100_000).map(|id| f64::from(random_belief(5, id))).sum::<f64>() / 1e5;
        assert!((mean - 1.0).abs() < 0.02, "{mean}");
    }
}
