//! From beliefs to chances: the tilt shared by the unbiased samplers.

use super::cap::{self, Cut};
use super::{Order, Outlook};
use crate::error::{Error, Result};
use crate::index::Standing;
use crate::random::{Purpose, generator, shuffle, unit};
use crate::types::SampleId;

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
        Some(Cut { belief, spread }) => {
            let most = cap::max_gain(seen);
            gains.iter_mut().for_each(|gain| {
                let worth = match f64::from(*gain) {
                    _ if *gain == AVERAGE => 1.0,
                    _ if *gain == UNSEEN => most,
                    value if value > belief => most,
                    value if belief > 0.0 => most * value / belief,
                    _ => 0.0,
                };
                *gain = floor + (1.0 - floor) * (worth + spread) as f32;
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
pub(super) fn first_pass(outlook: &Outlook<'_>) -> Order {
    let mut ids = outlook.owned.to_vec();
    shuffle(&mut ids, &mut generator(outlook.seed, outlook.epoch, outlook.rank, Purpose::Order));
    let weight = share_weight(outlook);
    Order { weights: vec![weight as f32; ids.len()], ids }
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
pub(super) fn weighted_order(outlook: &Outlook<'_>, chances: &[f32]) -> Order {
    let rng = &mut generator(outlook.seed, outlook.epoch, outlook.rank, Purpose::Draw);
    let start = unit(rng);
    // Marks are evenly spaced: laid in the order of ids, chances that vary periodically with it (every fifth sample
    // resident) would meet all marks alike, and a whole group would get its floor or its ceiling together.
    let mut laid: Vec<u32> = (0..chances.len() as u32).collect();
    shuffle(&mut laid, rng);
    let mut draws: Vec<u32> = Vec::with_capacity(chances.len());
    systematic(chances, &laid, chances.len(), start, |index, times| {
        draws.extend(std::iter::repeat_n(index, times));
    });
    drop(laid);
    shuffle(&mut draws, &mut generator(outlook.seed, outlook.epoch, outlook.rank, Purpose::Order));
    let weigh = weigher(outlook, chances);
    Order {
        ids: draws.iter().map(|&index| outlook.owned[index as usize]).collect(),
        weights: draws.iter().map(|&index| weigh(index as usize) as f32).collect(),
    }
}

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

/// Systematic resampling (Kitagawa 1996): lay the chances end to end on [0, draws), in the order of the indices `laid`,
/// and count the marks start, start + 1, … in each. `take(index, times)` is called for every index with times ≥ 1;
/// times is ⌊draws·q⌋ or ⌈draws·q⌉, its mean over `start` in [0, 1) is draws·q, and all add up to `draws`.
fn systematic(chances: &[f32], laid: &[u32], draws: usize, start: f64, mut take: impl FnMut(u32, usize)) {
    let scale = draws as f64 / total(chances);
    let (mut sum, mut taken) = (0.0f64, 0usize);
    for (place, &index) in laid.iter().enumerate() {
        sum += f64::from(chances[index as usize]);
        // Marks below this chance's end. The last end is `draws` whatever the rounding.
        let end = if place + 1 == laid.len() { draws as f64 } else { sum * scale };
        let below = ((end - start).ceil().max(0.0) as usize).clamp(taken, draws);
        if below > taken {
            take(index, below - taken);
        }
        taken = below;
    }
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

    #[test]
    fn systematic_resampling_counts_are_the_floor_or_the_ceiling_and_add_up() {
        let chances: Vec<f32> = (0..997).map(|i| 0.2 + random_belief(3, i)).collect();
        let all = total(&chances);
        let laid: Vec<u32> = (0..997).rev().collect();
        for start in [0.0, 1e-9, 0.3, 0.999_999] {
            let mut counts = vec![0; chances.len()];
            systematic(&chances, &laid, 5000, start, |index, times| counts[index as usize] = times);
            assert_eq!(counts.iter().sum::<usize>(), 5000);
            for (&count, &chance) in counts.iter().zip(&chances) {
                let mean = 5000.0 * f64::from(chance) / all;
                assert!((mean - 1e-9).floor() <= count as f64 && count as f64 <= (mean + 1e-9).ceil());
            }
        }
    }

    #[test]
    fn random_beliefs_have_mean_one() {
        let mean = (0..100_000).map(|id| f64::from(random_belief(5, id))).sum::<f64>() / 1e5;
        assert!((mean - 1.0).abs() < 0.02, "{mean}");
    }
}
