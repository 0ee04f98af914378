//! Where a sample's belief stands among others: the share of them that are at most as large.
//!
//! [`percentiles`] counts beliefs instead of sorting them, which takes two reads of them all. [`Passes`] keeps samples
//! by them, as Selective-Backprop (Jiang et al. 2019) and iCACHE do.

use super::{Order, Outlook};
use crate::error::{Error, Result};
use crate::index::Standing;
use crate::index::queue::Key;
use crate::random::{Purpose, generator, shuffle_large, unit};
use crate::types::SampleId;

/// Where a sample stands that was delivered and got no score: where an average one does.
const AVERAGE: f32 = 0.5;

/// Of a belief's order-preserving bits, those that do not count: what is left is a sign, an exponent and 11 bits.
const DROPPED: u32 = 12;

/// For each owned sample the share of the scored ones whose belief is at most its own: above 0, and 1 for the largest.
/// Beliefs that differ by less than one part in 2,048 may count as equal. An unseen sample has 1: it must be met soon.
/// `None` if nothing has a score.
pub(super) fn percentiles(outlook: &Outlook<'_>) -> Option<Vec<f32>> {
    let level = |belief| (Key::to_bits(belief) >> DROPPED) as usize;
    // How many have each level, then how many have at most it.
    let mut at_most = vec![0u32; 1 << (u32::BITS - DROPPED)];
    for belief in outlook.owned.iter().filter_map(|&id| outlook.scores.importance(id)) {
        at_most[level(belief)] += 1;
    }
    let mut scored = 0;
    for count in &mut at_most {
        scored += *count;
        *count = scored;
    }
    let share = |&id: &SampleId| match outlook.scores.standing(id) {
        Standing::Scored(belief) => (f64::from(at_most[level(belief)]) / f64::from(scored)) as f32,
        Standing::Tried | Standing::Failed => AVERAGE,
        Standing::Unseen => 1.0,
    };
    (scored > 0).then(|| outlook.owned.iter().map(share).collect())
}

/// Shuffled passes, each of which keeps a sample with chance percentile^beta: all of the unseen and of the largest.
///
/// The published codes compare a loss with the last 1,024 that were met. Their share at most as large has the
/// percentile among all as its mean, and 1/64 as its largest standard deviation; here is the mean itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Passes {
    pub(super) beta: f32,
}

impl Passes {
    /// # Errors
    /// `Settings`, with the value and the range, if `beta` is out of range.
    pub(super) fn check(&self, name: &str) -> Result<()> {
        let beta = self.beta;
        if beta > 0.0 && beta <= 64.0 {
            return Ok(());
        }
        Err(Error::settings(format!(
            "{name}: beta is {beta}: give how much harder the hard samples are preferred, above 0 and at most 64"
        )))
    }

    /// What one pass keeps: fewer samples than the rank owns.
    pub(super) fn one(&self, outlook: &Outlook<'_>) -> Vec<SampleId> {
        self.kept(outlook, 1)
    }

    /// As many draws as the rank owns samples, from as many passes as that takes. Weights are 1, as published.
    pub(super) fn epoch(&self, outlook: &Outlook<'_>) -> Order {
        let ids = self.kept(outlook, usize::MAX);
        Order { weights: vec![1.0; ids.len()], ids }
    }

    /// Ends: the sample with the largest belief is kept in every pass.
    fn kept(&self, outlook: &Outlook<'_>, passes: usize) -> Vec<SampleId> {
        let draws = outlook.owned.len();
        let mut chances = percentiles(outlook).unwrap_or_else(|| vec![1.0; draws]);
        chances.iter_mut().for_each(|chance| *chance = chance.powf(self.beta));
        let order = &mut generator(outlook.seed, outlook.epoch, outlook.rank, Purpose::Order);
        let chance = &mut generator(outlook.seed, outlook.epoch, outlook.rank, Purpose::Draw);
        let mut kept = Vec::with_capacity(draws);
        for _ in 0..passes {
            if kept.len() == draws {
                break;
            }
            let keeps = outlook.owned.iter().zip(&chances).filter(|&(_, &share)| unit(chance) < f64::from(share));
            let pass = shuffle_large(keeps.map(|(&id, _)| id).collect(), order);
            kept.extend(pass.into_iter().take(draws - kept.len()));
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::ScoreTable;
    use crate::sampler::random_belief;

    const SAMPLES: u32 = 500;

    fn table(belief: impl Fn(SampleId) -> Option<f32>) -> ScoreTable {
        let mut scores = ScoreTable::new(SAMPLES as usize, 0.0);
        (0..SAMPLES).for_each(|id| _ = belief(id).map(|belief| scores.record(id, belief, 0)));
        scores
    }

    fn with<T>(scores: &ScoreTable, look: impl Fn(&Outlook<'_>) -> T) -> T {
        let owned: Vec<u32> = (0..SAMPLES).filter(|id| id % 3 != 0).collect();
        let resident = &|_| false;
        look(&Outlook { owned: &owned, samples: SAMPLES, epoch: 4, seed: 8, rank: 0, world_size: 1, scores, resident })
    }

    #[test]
    fn percentiles_are_the_counted_shares_of_own_scored_samples_ties_alike() {
        let cases: [&dyn Fn(u32) -> Option<f32>; 4] = [
            &|id| (id % 7 != 2).then(|| (random_belief(1, id) * 9.0).floor()),
            &|_| Some(0.0),
            &|id| Some(if id % 2 == 0 { -0.0 } else { -3.5 }),
            &|id| (id == 4).then_some(f32::MAX),
        ];
        for belief in cases {
            let scores = table(belief);
            with(&scores, |outlook| {
                let all = percentiles(outlook).unwrap();
                let scored: Vec<f32> = outlook.owned.iter().filter_map(|&id| scores.importance(id)).collect();
                for (&id, &found) in outlook.owned.iter().zip(&all) {
                    // Who is larger by a part in 2,048 may count as equal.
                    let share =
                        |most: f32| scored.iter().filter(|&&other| other <= most).count() as f32 / scored.len() as f32;
                    let (least, most) =
                        scores.importance(id).map_or((1.0, 1.0), |b| (share(b), share(b + b.abs() / 2048.0)));
                    let range = least - 1e-6..=most + 1e-6;
                    assert!(range.contains(&found) && found > 0.0, "{id}: {found}, {least} to {most} counted");
                }
            });
        }
        assert!(with(&table(|_| None), percentiles).is_none());
        let mut tried = table(|id| (id == 1).then_some(2.0));
        (2..9).for_each(|id| _ = tried.tried(id));
        with(&tried, |outlook| {
            assert_eq!(percentiles(outlook).unwrap()[..5], [1.0, AVERAGE, AVERAGE, AVERAGE, AVERAGE])
        });
    }

    /// Each sample by itself, over many epochs: five standard errors around its chance.
    #[test]
    fn a_pass_keeps_each_sample_by_its_chance() {
        let scores = table(|id| (id % 9 != 4).then(|| random_belief(3, id)));
        for beta in [1.0, 3.0, 0.33] {
            let epochs = 500;
            with(&scores, |outlook| {
                let mut kept = vec![0u32; SAMPLES as usize];
                for epoch in 0..epochs {
                    let pass = Passes { beta }.one(&Outlook { epoch, ..*outlook });
                    pass.iter().for_each(|&id| kept[id as usize] += 1);
                }
                for (&id, &share) in outlook.owned.iter().zip(&percentiles(outlook).unwrap()) {
                    let chance = f64::from(share).powf(f64::from(beta));
                    let (expected, found) = (chance * epochs as f64, f64::from(kept[id as usize]));
                    let spread = 5.0 * (expected * (1.0 - chance)).sqrt();
                    assert!(
                        (found - expected).abs() <= spread + 1e-6,
                        "{beta}: {id} kept {found} times, not {expected}"
                    );
                }
            });
        }
    }

    #[test]
    fn an_epoch_begins_with_a_pass_and_a_pass_meets_nobody_twice() {
        let scores = table(|id| Some(random_belief(3, id)));
        for beta in [1.0, 3.0, 0.33] {
            let (pass, epoch) = with(&scores, |outlook| (Passes { beta }.one(outlook), Passes { beta }.epoch(outlook)));
            let owned = with(&scores, |outlook| outlook.owned.len());
            assert_eq!(epoch.ids[..pass.len()], pass);
            assert_eq!((epoch.ids.len(), epoch.weights.len()), (owned, owned));
            let mut once = pass.clone();
            once.sort_unstable();
            once.dedup();
            assert_eq!(once.len(), pass.len());
            assert!(!pass.is_sorted(), "in random order");
        }
    }

    #[test]
    fn an_epoch_is_full_whatever_is_believed() {
        let steep = table(|id| Some(f32::MAX * 0.5f32.powi(id as i32 % 200)));
        for (scores, beta) in [(&steep, 64.0), (&table(|_| Some(1.0)), 64.0), (&table(|_| None), 1.0)] {
            let epoch = with(scores, |outlook| Passes { beta }.epoch(outlook));
            assert_eq!(epoch.ids.len(), with(scores, |outlook| outlook.owned.len()));
        }
    }
}
