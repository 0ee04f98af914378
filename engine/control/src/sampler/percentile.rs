//! Where a sample's belief stands among others: the share of them that are at most as large.
//!
//! [`percentiles`] counts beliefs instead of sorting them, which takes two reads of them all. [`Passes`] keeps samples
//! by them, as Selective-Backprop (Jiang et al. 2019) and iCACHE do.

use super::{Order, Outlook, tilt};
use crate::error::{Error, Result};
use crate::index::Standing;
use crate::index::queue::Key;
use crate::random::{Purpose, generator, shuffle_large, unit};
use crate::types::SampleId;
use rand_chacha::ChaCha8Rng;

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

/// An epoch that would take more passes than this, in the mean, is not made of passes: each looks at every sample.
/// Where every sample has a score it takes beta + 1 at most, so up to 65. It takes more only where samples were
/// delivered without getting a score and beta is above 7: with a high beta and few scores as many as samples.
const MOST_PASSES: f64 = 128.0;

/// Shuffled passes, each of which keeps a sample with chance percentile^beta: all of the unseen and of the largest.
///
/// The published codes compare a loss with the last 1,024 that were met. Their share at most as large has the
/// percentile among all as its mean, and 1/64 as its largest standard deviation; here is the mean itself.
///
/// Where an epoch would take more than [`MOST_PASSES`], it is one pass and then as many draws as are missing, by
/// systematic resampling. A sample comes in them as often as it would in the passes, in the mean: in proportion to its
/// chance.
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
        Walk::new(outlook, self.beta).pass()
    }

    /// As many draws as the rank owns samples, from as many passes as that takes. Weights are 1, as published.
    pub(super) fn epoch(&self, outlook: &Outlook<'_>) -> Order {
        let draws = outlook.owned.len();
        let mut walk = Walk::new(outlook, self.beta);
        let mut ids = Vec::with_capacity(draws);
        let in_passes = tilt::total(&walk.chances) * MOST_PASSES >= draws as f64;
        // Ends: the sample with the largest belief is kept in every pass.
        while ids.len() < draws && (in_passes || ids.is_empty()) {
            ids.extend(walk.pass().into_iter().take(draws - ids.len()));
        }
        ids.append(&mut walk.resampled(draws - ids.len()));
        Order { weights: vec![1.0; draws], ids }
    }
}

/// One shuffled pass that keeps each owned sample with its chance, and weighs it by the inverse.
pub(super) fn kept(outlook: &Outlook<'_>, chances: Vec<f32>) -> Order {
    let mut walk = Walk::by(outlook, chances);
    let ids = walk.pass();
    let chance_of = |id: &SampleId| outlook.owned.binary_search(id).map_or(1.0, |place| walk.chances[place]);
    Order { weights: ids.iter().map(|id| 1.0 / chance_of(id)).collect(), ids }
}

/// One epoch's passes on their way.
struct Walk<'a> {
    owned: &'a [SampleId],
    chances: Vec<f32>,
    order: ChaCha8Rng,
    draw: ChaCha8Rng,
}

impl<'a> Walk<'a> {
    fn new(outlook: &Outlook<'a>, beta: f32) -> Self {
        let mut chances = percentiles(outlook).unwrap_or_else(|| vec![1.0; outlook.owned.len()]);
        chances.iter_mut().for_each(|chance| *chance = chance.powf(beta));
        Self::by(outlook, chances)
    }

    fn by(outlook: &Outlook<'a>, chances: Vec<f32>) -> Self {
        let rng = |purpose| generator(outlook.seed, outlook.epoch, outlook.rank, purpose);
        Self { owned: outlook.owned, chances, order: rng(Purpose::Order), draw: rng(Purpose::Draw) }
    }

    fn pass(&mut self) -> Vec<SampleId> {
        let Self { owned, chances, order, draw } = self;
        let keeps = owned.iter().zip(chances.iter()).filter(|&(_, &chance)| unit(draw) < f64::from(chance));
        shuffle_large(keeps.map(|(&id, _)| id).collect(), order)
    }

    fn resampled(&mut self, draws: usize) -> Vec<SampleId> {
        let mut drawn = Vec::with_capacity(draws);
        if draws > 0 {
            tilt::systematic(&self.chances, 1, draws, &mut self.draw, |index, times| {
                drawn.extend(std::iter::repeat_n(self.owned[index as usize], times));
            });
        }
        shuffle_large(drawn, &mut self.order)
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

    /// Nearly nothing has a score, and a pass keeps one or two samples: behind the first of them each comes as often as
    /// its chance says, rounded up or down. By passes it would come as often on average, and more or less by chance;
    /// and there would be as many passes as samples.
    #[test]
    fn an_epoch_of_which_a_pass_keeps_next_to_nothing_is_resampled() {
        let owned: Vec<SampleId> = (0..20_000).collect();
        let mut scores = ScoreTable::new(owned.len(), 0.0);
        owned.iter().for_each(|&id| _ = scores.tried(id));
        (0..10).for_each(|id| _ = scores.record(id, 1.0 + id as f32, 0));
        let resident = &|_| false;
        let (scores, owned) = (&scores, owned.as_slice());
        let (mut orders, chances) = (Vec::new(), |id: SampleId| (f64::from(id + 1) / 10.0).powi(48));
        let total: f64 = (0..10).map(chances).sum();
        for seed in 0..20 {
            let outlook = Outlook { owned, samples: 20_000, epoch: 4, seed, rank: 0, world_size: 1, scores, resident };
            let passes = Passes { beta: 48.0 };
            let (pass, order) = (passes.one(&outlook), passes.epoch(&outlook));
            assert_eq!(order, passes.epoch(&outlook), "one seed, one order");
            assert!((1..5).contains(&pass.len()) && order.ids[..pass.len()] == pass);
            assert_eq!((order.ids.len(), order.weights.len()), (owned.len(), owned.len()));
            let rest = &order.ids[pass.len()..];
            for id in 0..10 {
                let came = rest.iter().filter(|&&drawn| drawn == id).count() as f64;
                let expected = rest.len() as f64 * chances(id) / total;
                let range = (expected - 0.01).floor()..=(expected + 0.01).ceil();
                assert!(range.contains(&came), "seed {seed}: {id} came {came} times, not {expected}");
            }
            orders.push(order.ids);
        }
        orders.dedup();
        assert_eq!(orders.len(), 20, "another seed, another order");
    }
}
