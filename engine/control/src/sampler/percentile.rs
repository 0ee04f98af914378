//! Where a sample's belief stands among others: the share of them that are at most as large.
//!
//! Two ways, for two kinds of samplers. [`percentiles`] compares with all of the rank's own samples, exactly. [`Walk`]
//! compares as Selective-Backprop (Jiang et al. 2019) and iCACHE do: with the last few that were met.

use super::history::History;
use super::{Order, Outlook};
use crate::error::{Error, Result};
use crate::index::Standing;
use crate::index::queue::Key;
use crate::random::{Purpose, generator, shuffle_large, unit};
use crate::types::SampleId;

/// Where a sample stands that was delivered and got no score: where an average one does.
const AVERAGE: f32 = 0.5;

/// For each owned sample the share of the scored ones whose belief is at most its own: above 0, and 1 for the largest.
/// An unseen sample has 1: it must be met soon. `None` if nothing has a score.
pub(super) fn percentiles(outlook: &Outlook<'_>) -> Option<Vec<f32>> {
    let mut all = vec![1.0; outlook.owned.len()];
    // Belief and index in one number: sorting then looks at nothing else.
    let mut scored: Vec<u64> = Vec::with_capacity(all.len());
    for (index, &id) in outlook.owned.iter().enumerate() {
        match outlook.scores.standing(id) {
            Standing::Scored(belief) => scored.push(u64::from(Key::to_bits(belief)) << 32 | index as u64),
            Standing::Tried | Standing::Failed => all[index] = AVERAGE,
            Standing::Unseen => {}
        }
    }
    scored.sort_unstable();
    let mut at_most = 0;
    for equal in scored.chunk_by(|a, b| a >> 32 == b >> 32) {
        at_most += equal.len();
        let share = (at_most as f64 / scored.len() as f64) as f32;
        equal.iter().for_each(|&packed| all[packed as u32 as usize] = share);
    }
    (!scored.is_empty()).then_some(all)
}

/// A walk over shuffled passes that keeps a sample with chance percentile^beta, the percentile being its belief's among
/// the last `history` beliefs that were met, its own included. The first `history` of a walk are all kept, and so is
/// who is unseen.
///
/// The published code walks in blocks of a batch; here each sample is compared by itself, since a sampler knows no
/// batches.
#[derive(Debug, Clone, Copy)]
pub(super) struct Walk {
    pub(super) history: u32,
    pub(super) beta: f32,
}

impl Walk {
    /// # Errors
    /// `Settings`, with the value and the range, if an option is out of range.
    pub(super) fn check(&self, name: &str) -> Result<()> {
        let &Self { history, beta } = self;
        if !(beta > 0.0 && beta <= 64.0) {
            return Err(Error::settings(format!(
                "{name}: beta is {beta}: give how much harder the hard samples are preferred, above 0 and at most 64"
            )));
        }
        if !(1..=1 << 16).contains(&history) {
            return Err(Error::settings(format!(
                "{name}: history is {history}: give the number of losses a loss is compared with, 1 to 65536"
            )));
        }
        Ok(())
    }

    /// What one pass keeps: fewer samples than the rank owns.
    pub(super) fn pass(&self, outlook: &Outlook<'_>) -> Vec<SampleId> {
        self.keep(outlook, 1)
    }

    /// As many draws as the rank owns samples, by walking on into further passes. Weights are 1, as published.
    pub(super) fn epoch(&self, outlook: &Outlook<'_>) -> Order {
        let ids = self.keep(outlook, usize::MAX);
        Order { weights: vec![1.0; ids.len()], ids }
    }

    /// Ends: the sample with the largest belief is kept in every pass.
    fn keep(&self, outlook: &Outlook<'_>, passes: usize) -> Vec<SampleId> {
        let order = &mut generator(outlook.seed, outlook.epoch, outlook.rank, Purpose::Order);
        let chance = &mut generator(outlook.seed, outlook.epoch, outlook.rank, Purpose::Draw);
        let draws = outlook.owned.len();
        let mut history = History::new(self.history as usize, self.beta);
        let unscored = f64::from(AVERAGE).powf(f64::from(self.beta));
        let beliefs = outlook.scores.as_slice();
        let mut walked = outlook.owned.to_vec();
        let mut kept = Vec::with_capacity(draws);
        for _ in 0..passes {
            walked = shuffle_large(walked, order);
            for ids in walked.chunks(BLOCK) {
                // All of a block first: these loads do not wait for each other.
                let mut block = [0.0; BLOCK];
                block.iter_mut().zip(ids).for_each(|(belief, &id)| *belief = beliefs[id as usize]);
                for (&id, &belief) in ids.iter().zip(&block) {
                    if kept.len() == draws {
                        return kept;
                    }
                    let mark = unit(chance);
                    let keeps = match outlook.scores.standing_of(id, belief) {
                        Standing::Scored(belief) => history.keeps(belief, mark),
                        Standing::Tried | Standing::Failed => mark < unscored,
                        Standing::Unseen => true,
                    };
                    if keeps {
                        kept.push(id);
                    }
                }
            }
        }
        kept
    }
}

/// Samples whose beliefs are fetched together.
const BLOCK: usize = 256;

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
                    let counted = |belief| scored.iter().filter(|&&other| other <= belief).count();
                    let share = scores.importance(id).map_or(1.0, |b| counted(b) as f32 / scored.len() as f32);
                    assert!((found - share).abs() < 1e-6 && found > 0.0, "{id}: {found}, {share} counted");
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

    #[test]
    fn a_walk_keeps_all_of_the_first_and_then_one_part_in_beta_plus_one() {
        let scores = table(|id| Some(random_belief(3, id)));
        for (beta, history) in [(1.0, 100), (3.0, 50), (0.33, 64)] {
            let walk = Walk { history, beta };
            let (pass, epoch) = with(&scores, |outlook| (walk.pass(outlook), walk.epoch(outlook)));
            let owned = with(&scores, |outlook| outlook.owned.len());
            let expected = f64::from(history) + (owned as f64 - f64::from(history)) / (1.0 + f64::from(beta));
            assert!((pass.len() as f64 - expected).abs() < 40.0, "{beta}: {} kept, {expected} expected", pass.len());
            assert_eq!(epoch.ids[..pass.len()], pass, "an epoch begins with the pass");
            assert_eq!((epoch.ids.len(), epoch.weights.len()), (owned, owned));
            let mut once = pass.clone();
            once.sort_unstable();
            once.dedup();
            assert_eq!(once.len(), pass.len(), "a pass meets nobody twice");
        }
    }

    #[test]
    fn a_walk_ends_whatever_is_believed() {
        let steep = table(|id| Some(f32::MAX * 0.5f32.powi(id as i32 % 200)));
        for (scores, beta) in [(&steep, 64.0), (&table(|_| Some(1.0)), 64.0), (&table(|_| None), 1.0)] {
            let epoch = with(scores, |outlook| Walk { history: 1, beta }.epoch(outlook));
            assert_eq!(epoch.ids.len(), with(scores, |outlook| outlook.owned.len()));
        }
    }
}
