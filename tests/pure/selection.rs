//! Samplers that leave samples out: iCACHE's, InfoBatch's, Selective-Backprop's, a curriculum; and those that only
//! reorder. Each against its rule, counted naively.

use std::collections::HashMap;

use lossfeed::index::ScoreTable;
use lossfeed::sampler::{
    Curriculum, Iis, InfoBatch, NAMES, Ods, Order, Outlook, Pads, PadsAsCoded, Sampler, SamplerSettings, Selective,
    random_belief,
};
use lossfeed::sim::{ClosedLoop, Losses, closed_loop};
use proptest::prelude::*;

/// Twelve levels of difficulty, so that many tie; every tenth sample has no score.
fn scores(samples: u32) -> ScoreTable {
    let mut scores = ScoreTable::new(samples as usize, 0.0);
    for id in (0..samples).filter(|id| id % 10 != 3) {
        scores.record(id, (random_belief(9, id) * 3.0).floor(), 0);
    }
    scores
}

fn draw(sampler: &dyn Sampler, scores: &ScoreTable, epoch: u64, resident: &dyn Fn(u32) -> bool) -> Order {
    let samples = scores.len() as u32;
    let owned: Vec<u32> = (0..samples).collect();
    sampler.draw(&Outlook { owned: &owned, samples, epoch, seed: 6, rank: 0, world_size: 1, scores, resident }).unwrap()
}

fn times(order: &Order) -> HashMap<u32, usize> {
    let mut times = HashMap::new();
    order.ids.iter().for_each(|&id| *times.entry(id).or_default() += 1);
    times
}

fn is_one_pass(order: &Order) -> bool {
    let times = times(order);
    times.len() == order.ids.len() && order.weights.iter().all(|&w| (w - 1.0).abs() < 1e-6)
}

/// Draws an epoch and holds it to chances counted naively: each sample comes ⌊n q⌋ or ⌈n q⌉ times, at weight 1/(n q).
fn hold_to_chances(sampler: &dyn Sampler, scores: &ScoreTable, epoch: u64, chance: &dyn Fn(u32) -> f64) {
    let samples = scores.len() as u32;
    let order = draw(sampler, scores, epoch, &|_| false);
    let total: f64 = (0..samples).map(chance).sum();
    let times = times(&order);
    for id in 0..samples {
        let expected = f64::from(samples) * chance(id) / total;
        let came = times.get(&id).copied().unwrap_or(0) as f64;
        let (least, most) = ((expected - 1e-4).floor(), (expected + 1e-4).ceil());
        assert!((least..=most).contains(&came), "{}: {id} came {came} times of {expected}", sampler.name());
    }
    for (&id, &weight) in order.ids.iter().zip(&order.weights) {
        let expected = total / (f64::from(samples) * chance(id));
        assert!(
            (f64::from(weight) / expected - 1.0).abs() < 1e-4,
            "{}: weight {weight}, not {expected}",
            sampler.name()
        );
    }
}

#[test]
fn iis_draws_by_percentile_to_the_beta_above_a_floor() {
    let scores = scores(300);
    let beliefs: Vec<f32> = (0..300).filter_map(|id| scores.importance(id)).collect();
    let percentile = |id| {
        let at_most = |belief| beliefs.iter().filter(|&&other| other <= belief).count();
        scores.importance(id).map_or(1.0, |belief| at_most(belief) as f64 / beliefs.len() as f64)
    };
    for (beta, floor) in [(1.0, 0.1), (3.0, 0.02), (0.33, 0.5)] {
        let chance = |id| f64::from(floor) + (1.0 - f64::from(floor)) * percentile(id).powf(f64::from(beta));
        let iis = Iis { beta, floor, ..Default::default() };
        [5, 7, 8, 10].iter().for_each(|&epoch| hold_to_chances(&iis, &scores, epoch, &chance));
        for full in [0, 1, 2, 3, 4, 6, 9] {
            assert!(is_one_pass(&draw(&iis, &scores, full, &|_| false)), "epoch {full}");
        }
    }
}

#[test]
fn infobatch_halves_what_is_easier_than_the_mean_until_the_last_eighth_of_the_run() {
    let scores = scores(300);
    let mean = scores.mean().unwrap();
    for ratio in [0.5, 0.9, 0.0] {
        let easy = |id| scores.importance(id).is_some_and(|belief| f64::from(belief) < mean);
        let chance = |id| if easy(id) { 1.0 - f64::from(ratio) } else { 1.0 };
        let infobatch = InfoBatch { ratio, epochs: Some(80), ..Default::default() };
        [1, 69].iter().for_each(|&epoch| hold_to_chances(&infobatch, &scores, epoch, &chance));
        for full in [70, 79, 1000] {
            assert!(is_one_pass(&draw(&infobatch, &scores, full, &|_| false)), "epoch {full}");
        }
        let endless = InfoBatch { ratio, ..Default::default() };
        hold_to_chances(&endless, &scores, 1 << 40, &chance);
    }
}

/// As published: what is kept is kept at weight 1, a pass meets nobody twice, and the harder half is kept far more
/// often than the easier one.
#[test]
fn as_published_iis_and_selective_keep_by_loss_and_weigh_nothing() {
    let samples = 20_000;
    let mut scores = ScoreTable::new(samples as usize, 0.0);
    (0..samples).for_each(|id| _ = scores.record(id, id as f32, 0));
    let iis = Iis { corrected: false, ..Default::default() };
    let selective = Selective::default();
    for (sampler, beta, epoch) in [(&iis as &dyn Sampler, 1.0, 7), (&selective, 3.0, 4)] {
        assert!(sampler.biased());
        let order = draw(sampler, &scores, epoch, &|_| false);
        assert!(order.weights.iter().all(|&w| w == 1.0) && order.ids.len() == samples as usize);
        // P(percentile above a half | kept) = 1 − 2^−(β + 1).
        let hard = order.ids.iter().filter(|&&id| id >= samples / 2).count() as f64 / f64::from(samples);
        let expected = 1.0 - 0.5f64.powf(beta + 1.0);
        assert!((hard - expected).abs() < 0.03, "{}: {hard} of {expected}", sampler.name());
        assert!(is_one_pass(&draw(sampler, &scores, 3, &|_| false)), "every third epoch is full");
    }
}

/// One pass, in which no sample comes twice: of 1 in 2, 3 in 4 and 1 in 4 samples. InfoBatch's weights sum to the
/// dataset, the others' are 1.
#[test]
fn short_epochs_are_one_pass_as_published() {
    let samples = 20_000;
    let mut scores = ScoreTable::new(samples as usize, 0.0);
    (0..samples).for_each(|id| _ = scores.record(id, id as f32, 0));
    let iis = Iis { short: true, ..Default::default() };
    let infobatch = InfoBatch { short: true, epochs: Some(8), ..Default::default() };
    let selective = Selective { short: true, ..Default::default() };
    let all: [(&dyn Sampler, f64, u64); 3] = [(&iis, 0.5, 0), (&infobatch, 0.75, 7), (&selective, 0.25, 0)];
    for (sampler, part, full) in all {
        assert!(sampler.is_short() && is_one_pass(&draw(sampler, &scores, full, &|_| false)));
        let Order { mut ids, weights } = draw(sampler, &scores, 5, &|_| false);
        let (expected, name) = (part * f64::from(samples), sampler.name());
        assert!((ids.len() as f64 - expected).abs() < 400.0, "{name}: {} kept of {samples}", ids.len());
        assert!(!ids.is_sorted() && weights.len() == ids.len(), "{name}");
        if name == "infobatch" {
            let weight = |id: u32| if id < samples / 2 { 2.0 } else { 1.0 };
            assert!(ids.iter().zip(&weights).all(|(&id, &of)| of == weight(id)));
        } else {
            assert!(sampler.biased() && weights.iter().all(|&weight| weight == 1.0), "{name}");
        }
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), weights.len(), "{name}");
    }
}

#[test]
fn a_replay_ends_short_epochs_early_too() {
    let run = |ranks| ClosedLoop {
        sampler: SamplerSettings::Selective(Selective { short: true, ..Default::default() }),
        policy: lossfeed::policy::find("importance").unwrap(),
        capacity: (0.2, 200),
        epochs: 3,
        batch: 64,
        ranks,
        seed: 1,
        losses: Losses::Planted { samples: 1000, decay: 5.0 },
        noise: false,
        costs: None,
        watch: None,
    };
    let (found, _) = closed_loop(&run(1)).unwrap();
    let asked: Vec<u64> = found.epochs.iter().map(|epoch| epoch.hits + epoch.misses).collect();
    assert!(asked[0] == 1000 && asked[1..].iter().all(|&asked| (150..350).contains(&asked)), "{asked:?}");
    assert!(closed_loop(&run(2)).unwrap_err().to_string().contains("give one rank"));
}

#[test]
fn a_curriculum_walks_the_easiest_part_which_grows_to_everything() {
    let scores = scores(400);
    let curriculum = Curriculum::default();
    assert!(is_one_pass(&draw(&curriculum, &scores, 0, &|_| false)));
    let mut easiest: Vec<u32> = (0..400).collect();
    // Who has no score comes last; of equals the smaller ids first.
    easiest.sort_by(|&a, &b| {
        let key = |id| scores.importance(id).unwrap_or(f32::INFINITY);
        key(a).total_cmp(&key(b)).then(a.cmp(&b))
    });
    for (epoch, part) in [(1, 100), (2, 150), (3, 225), (4, 338), (5, 400), (u64::MAX, 400)] {
        let order = draw(&curriculum, &scores, epoch, &|_| false);
        let mut met: Vec<u32> = times(&order).into_keys().collect();
        let mut expected = easiest[..part].to_vec();
        met.sort_unstable();
        expected.sort_unstable();
        // Samples without a score tie with the largest belief: 1 is the percentile of both.
        let scored = |ids: &[u32]| ids.iter().filter(|&&id| scores.importance(id) != scores.importance(3)).count();
        assert_eq!((met.len(), scored(&met)), (part, scored(&expected)), "epoch {epoch}");
        let (least, most) = (400 / part, 400usize.div_ceil(part));
        assert!(times(&order).values().all(|n| (least..=most).contains(n)), "epoch {epoch}");
        assert!(order.weights.iter().all(|&w| w == 1.0));
    }
}

proptest! {
    /// One pass, whatever is cached, and nobody who is not cached before somebody who is.
    #[test]
    fn ods_is_one_pass_with_what_is_cached_first(cached in prop::collection::hash_set(0u32..60, 0..60), epoch in 0u64..9) {
        let order = draw(&Ods {}, &ScoreTable::new(60, 0.0), epoch, &|id| cached.contains(&id));
        prop_assert!(is_one_pass(&order));
        prop_assert!(order.ids[..cached.len()].iter().all(|id| cached.contains(id)));
    }
}

#[test]
fn shade_as_coded_is_the_codes_sampler_with_scores_that_say_nothing() {
    let mut scores = ScoreTable::new(4_000, 0.0);
    // Every second sample is a thousand times as important.
    (0..4_000).for_each(|id| _ = scores.record(id, if id % 2 == 0 { 1000.0 } else { 1.0 }, 0));
    let resident = |id: u32| id.is_multiple_of(5);
    let important = |order: &Order| order.ids.iter().filter(|&&id| id % 2 == 0).count() as f64 / 4_000.0;
    let placed = PadsAsCoded { misplaced: false, ..Default::default() };
    let order = draw(&placed, &scores, 3, &resident);
    assert_eq!(order, draw(&Pads::as_coded(3.0), &scores, 3, &resident), "the rules are those of the simulation");
    assert!(important(&order) > 0.99);
    let misplaced = draw(&PadsAsCoded::default(), &scores, 3, &resident);
    assert!((important(&misplaced) - 0.5).abs() < 0.05, "{}", important(&misplaced));
    let hits = misplaced.ids.iter().filter(|&&id| resident(id)).count();
    assert!(misplaced.ids[..hits].iter().all(|&id| resident(id)), "hits come first");
    assert!((hits as f64 / 4_000.0 - 0.6).abs() < 0.05, "a fifth of the draws, three times");
}

/// One rule of length for all: ranks step alike whatever a sampler leaves out.
#[test]
fn every_sampler_draws_as_often_as_the_rank_owns_samples() {
    let scores = scores(97);
    // "auto" is one of the others by then.
    for name in NAMES.into_iter().filter(|&name| name != "auto") {
        let sampler = SamplerSettings::from_name(name).unwrap().build().unwrap();
        for (epoch, rank) in [(0, 0), (1, 1), (7, 0), (8, 1)] {
            let owned = lossfeed::sampler::owned_ids(97, 6, rank, 2, 1);
            let resident = |id: u32| id.is_multiple_of(4);
            let (scores, resident) = (&scores, &resident as &dyn Fn(u32) -> bool);
            let outlook = Outlook { owned: &owned, samples: 97, epoch, seed: 6, rank, world_size: 2, scores, resident };
            let order = sampler.draw(&outlook).unwrap();
            assert_eq!((order.ids.len(), order.weights.len()), (owned.len(), owned.len()), "{name}");
            assert!(order.weights.iter().all(|&w| w > 0.0 && w.is_finite()), "{name}");
            assert!(name == "uniform" || order.ids.iter().all(|id| owned.contains(id)), "{name}");
        }
    }
}

#[test]
fn options_out_of_range_are_refused_with_the_value() {
    let refused = |settings: SamplerSettings, said: &str| {
        let error = settings.build().err().unwrap_or_else(|| panic!("{settings:?} was accepted"));
        assert_eq!(error.kind(), lossfeed::ErrorKind::Settings);
        assert!(error.to_string().contains(said), "{error}");
    };
    for beta in [0.0, -1.0, 65.0, f32::NAN, f32::INFINITY] {
        refused(SamplerSettings::Iis(Iis { beta, ..Default::default() }), &format!("iis: beta is {beta}"));
        refused(SamplerSettings::Selective(Selective { beta, ..Default::default() }), &format!("beta is {beta}"));
    }
    for floor in [0.0, 1.5, f32::NAN] {
        refused(SamplerSettings::Iis(Iis { floor, ..Default::default() }), "iis: floor is");
    }
    refused(SamplerSettings::Iis(Iis { reuse: 0, ..Default::default() }), "reuse is 0");
    refused(SamplerSettings::Selective(Selective { stale: 0, ..Default::default() }), "stale is 0");
    for ratio in [-0.1, 1.0, f32::NAN] {
        refused(SamplerSettings::InfoBatch(InfoBatch { ratio, ..Default::default() }), "infobatch: ratio is");
    }
    for delta in [-0.1, 1.1, f64::NAN] {
        refused(SamplerSettings::InfoBatch(InfoBatch { delta, ..Default::default() }), "delta is");
    }
    for start in [0.0, 1.1, f64::NAN] {
        refused(SamplerSettings::Curriculum(Curriculum { start, ..Default::default() }), "start is");
    }
    for growth in [0.9, f64::NAN, f64::INFINITY] {
        refused(SamplerSettings::Curriculum(Curriculum { growth, ..Default::default() }), "growth is");
    }
    for repeats in [0.5, 1.2, f64::NAN] {
        refused(
            SamplerSettings::PadsAsCoded(PadsAsCoded { repeats, ..Default::default() }),
            &format!("shade-as-coded: repeats is {repeats}"),
        );
    }
}
