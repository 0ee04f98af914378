//! Ranks that draw one order together, held to one process that draws it alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use lossfeed::control::{BufferSetup, Control, Cut, Drawing, Held, Plan, Shared, Together, Turn};
use lossfeed::index::ScoreTable;
use lossfeed::ledger::Ledger;
use lossfeed::policy;
use lossfeed::sampler::{
    Batches, Block, Blocks, CostAware, Echo, Importance, Ods, Order, Outlook, Pads, Replay, SamplerSettings, Uniform,
};
use proptest::prelude::*;

const WORLDS: [u32; 4] = [1, 2, 3, 5];

fn drawing(sampler: SamplerSettings, samples: u32, seed: u64, (rank, world_size): (u32, u32), size: usize) -> Drawing {
    let block = sampler.buffer().map_or(Block::default(), |options| options.block);
    Drawing {
        sampler: sampler.build().unwrap().into(),
        samples,
        owned: (0..samples).collect(),
        seed,
        rank,
        world_size,
        blocks: Blocks::new(block),
        awaits_weights: false,
        together: Some(Together { batch_size: size, granule: block.granule() }),
    }
}

fn that_look_at_caches() -> Vec<SamplerSettings> {
    vec![
        SamplerSettings::CostAware(CostAware::default()),
        SamplerSettings::CostAware(CostAware { fetches: Some(0.3), ..CostAware::default() }),
        SamplerSettings::Pads(Pads { corrected: true, ..Pads::default() }),
        SamplerSettings::Pads(Pads::default()),
        SamplerSettings::Ods(Ods::default()),
        SamplerSettings::Importance(Importance::default()),
        SamplerSettings::Uniform(Uniform::default()),
    ]
}

/// Beliefs and caches that follow from numbers alone.
fn facts(beliefs: &[f32], caches: &[Vec<bool>]) -> Shared {
    let mut table = ScoreTable::new(beliefs.len(), 0.5);
    // Below 0: never met.
    beliefs.iter().enumerate().filter(|(_, b)| **b >= 0.0).for_each(|(id, &b)| _ = table.record(id as u32, b, 0));
    let bits = |has: &Vec<bool>| {
        let word = |bits: &[bool]| bits.iter().enumerate().fold(0u32, |word, (at, &set)| word | u32::from(set) << at);
        has.chunks(32).map(word).collect::<Vec<u32>>()
    };
    let held = Held::new(caches.iter().map(bits).collect(), beliefs.len()).unwrap();
    Shared { table: Arc::new(table), held: Arc::new(held) }
}

fn rows(order: &Order) -> Vec<(u32, u32)> {
    order.ids.iter().copied().zip(order.weights.iter().map(|weight| weight.to_bits())).collect()
}

/// The draws of all ranks, step by step, sorted within a step: it does not matter which rank gets them.
fn steps(ranks: &[Order], samples: usize, size: usize, world: u32) -> Vec<Vec<(u32, u32)>> {
    let cut = |rank: usize| Batches::new(samples, size, false, rank as u32, world).unwrap();
    let mut steps = vec![Vec::new(); cut(0).len()];
    for (rank, order) in ranks.iter().enumerate() {
        let (rows, cut) = (rows(order), cut(rank));
        assert_eq!(cut.len(), steps.len(), "ranks step alike");
        cut.iter().zip(&mut steps).for_each(|(range, step)| step.extend_from_slice(&rows[range]));
    }
    steps.iter_mut().for_each(|step| step.sort_unstable());
    steps
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever is believed and cached: step by step all ranks together draw what one process draws that has all their
    /// caches and batches as large as theirs together, with the same weights.
    #[test]
    fn ranks_together_draw_what_one_process_does(
        beliefs in prop::collection::vec(prop_oneof![Just(-1.0f32), Just(0.0), 0.0f32..4.0, Just(900.0)], 12..150),
        caches in prop::collection::vec(prop::collection::vec(any::<bool>(), 150), 5),
        size in 2usize..7, seed in 0u64..1000, epoch in 1u64..4,
    ) {
        let samples = beliefs.len();
        for world in WORLDS {
            let caches: Vec<Vec<bool>> = caches[..world as usize].iter().map(|of| of[..samples].to_vec()).collect();
            let shared = facts(&beliefs, &caches);
            if Batches::new(samples, size, false, 0, world).is_err() {
                continue;
            }
            for sampler in that_look_at_caches() {
                let ranks: Vec<Order> = (0..world)
                    .map(|rank| drawing(sampler, samples as u32, seed, (rank, world), size))
                    .map(|rank| rank.draw_shared(epoch, &shared).unwrap())
                    .collect();
                let owned: Vec<u32> = (0..samples as u32).collect();
                let resident = |id: u32| caches.iter().any(|has| has[id as usize]);
                let outlook = Outlook {
                    owned: &owned, samples: samples as u32, epoch, seed, rank: 0, world_size: 1,
                    scores: &shared.table, resident: &resident,
                };
                let one = sampler.build().unwrap().draw(&outlook).unwrap();
                let alone: Vec<Order> = (0..world as usize).map(|rank| Order {
                    ids: one.ids.iter().copied().skip(rank).step_by(world as usize).collect(),
                    weights: one.weights.iter().copied().skip(rank).step_by(world as usize).collect(),
                }).collect();
                prop_assert_eq!(
                    steps(&ranks, samples, size, world), steps(&alone, samples, size, world),
                    "{} on {} ranks", sampler.name(), world
                );
                if matches!(sampler.name(), "ods" | "uniform") {
                    let mut ids: Vec<u32> = ranks.iter().flat_map(|order| order.ids.iter().copied()).collect();
                    ids.sort_unstable();
                    prop_assert_eq!(ids, owned, "each once");
                }
                // Another rank's state tells the same list.
                let all = drawing(sampler, samples as u32, seed, (0, 1), size)
                    .draw_of_all(epoch, (world, size), Some(&shared)).unwrap();
                let mine = |rank: usize| rows(&all).into_iter().skip(rank).step_by(world as usize).collect::<Vec<_>>();
                ranks.iter().enumerate().for_each(|(rank, order)| assert_eq!(rows(order), mine(rank)));
            }
        }
    }

    /// One stream for all ranks: whatever its blocks, their places have each sample once a pass, and what a rank is
    /// told of passes and places agrees with what it draws.
    #[test]
    fn ranks_share_one_stream(
        samples in 6u32..90, block in 1u32..9, seed in 0u64..50, position in 0u64..300, passes in 1u64..4,
    ) {
        let sampler = SamplerSettings::Echo(Echo { block: Block::Of(block), ..Echo::default() });
        for world in WORLDS {
            let mut times = vec![0u64; samples as usize];
            let one = drawing(sampler, samples, seed, (0, 1), 4);
            let whole = one.draw_stream(0, (passes * u64::from(samples)) as usize);
            for rank in 0..world {
                let of = drawing(sampler, samples, seed, (rank, world), 4);
                // Enough of the rank's stream that every pass is over.
                let long = (passes * u64::from(samples) / u64::from(world) + 2 * u64::from(block)) as usize;
                let order = of.draw_stream(0, long);
                let (unit, world) = (block as usize, world as usize);
                for (place, &id) in order.ids.iter().enumerate() {
                    let at = (place / unit * world + rank as usize) * unit + place % unit;
                    if at < whole.ids.len() {
                        prop_assert_eq!(id, whole.ids[at]);
                        times[id as usize] += 1;
                    }
                }
                prop_assert!(order.weights.iter().all(|&weight| weight == 1.0));
                let from = position as usize % long;
                prop_assert_eq!(&of.draw_stream(from as u64, long - from).ids[..], &order.ids[from..]);
                let taken = |place: usize| (place / unit * world + rank as usize) * unit + place % unit;
                let pass = (from > 0).then(|| taken(from - 1) / samples as usize + 1);
                prop_assert_eq!(of.pass_to_come(from as u64), pass.unwrap_or(0) as u64);
            }
            prop_assert!(times.iter().all(|&times| times == passes), "{} ranks: {:?}", world, times);
        }
    }
}

fn resident(id: u32) -> bool {
    id % 4 < 2
}

/// Correlated with beliefs, with what is cached, and with where.
fn quantity(id: u32) -> f64 {
    f64::from(id * 37 % 101) / 30.0 + if resident(id) { 2.0 } else { 0.0 } + if id % 4 == 1 { 1.0 } else { 0.0 }
}

/// A step is the mean over ranks of their batches' weighted means: over many seeds the mean over steps, by the rows of
/// each, is the dataset's, within five standard errors. Seeds are fixed, so it fails always or never.
#[test]
fn a_step_of_all_ranks_is_unbiased() {
    const SAMPLES: usize = 101;
    let beliefs: Vec<f32> =
        (0..SAMPLES).map(|id| if id % 10 == 3 { -1.0 } else { (id * 37 % 101) as f32 / 25.0 }).collect();
    let truth = (0..SAMPLES as u32).map(quantity).sum::<f64>() / SAMPLES as f64;
    for world in WORLDS {
        // Each rank has its part of what is cached, and one sample is in two caches.
        let has = |rank: u32| {
            let of = |id: u32| resident(id) && (id / 4 % world == rank || id == 40);
            (0..SAMPLES as u32).map(of).collect::<Vec<bool>>()
        };
        let shared = facts(&beliefs, &(0..world).map(has).collect::<Vec<_>>());
        for sampler in that_look_at_caches() {
            if sampler.build().unwrap().biased() {
                continue;
            }
            let (mut sum, mut squares, epochs) = (0.0, 0.0, 400u64);
            for epoch in 0..epochs {
                let cut = |rank| Batches::new(SAMPLES, 4, false, rank, world).unwrap();
                let (mut steps, mut rows) = (vec![0.0; cut(0).len()], vec![0; cut(0).len()]);
                for rank in 0..world {
                    let order =
                        drawing(sampler, SAMPLES as u32, 7, (rank, world), 4).draw_shared(epoch, &shared).unwrap();
                    for (number, range) in cut(rank).iter().enumerate() {
                        let batch = order.ids[range.clone()].iter().zip(&order.weights[range.clone()]);
                        let sum = batch.map(|(&id, &weight)| f64::from(weight) * quantity(id)).sum::<f64>();
                        steps[number] += sum / range.len() as f64 / f64::from(world);
                        rows[number] += range.len();
                    }
                }
                let of = |(step, rows): (&f64, &usize)| step * *rows as f64;
                let mean = steps.iter().zip(&rows).map(of).sum::<f64>() / SAMPLES as f64;
                (sum, squares) = (sum + mean, squares + mean * mean);
            }
            let count = epochs as f64;
            let mean = sum / count;
            let error = ((squares / count - mean * mean).max(0.0) / count).sqrt().max(1e-6);
            let off = (mean - truth).abs() / error;
            assert!(off < 5.0, "{} on {world} ranks: {mean} for {truth}, z {off:.1}", sampler.name());
        }
    }
}

/// A rank of a run that trains on its cache as a buffer.
struct Rank {
    control: Control,
    size: usize,
    epoch: u64,
}

impl Rank {
    fn new(sampler: SamplerSettings, samples: u32, seed: u64, of: (u32, u32), size: usize, kept: u64) -> Self {
        let drawing = drawing(sampler, samples, seed, of, size);
        let setup = BufferSetup {
            options: sampler.buffer().unwrap(),
            residents_max: kept as usize,
            seed,
            rank: of.0,
            share_weight: 1.0,
            owned: Arc::clone(&drawing.owned),
            awaits_weights: false,
        };
        let ledger = Ledger::new(kept, samples as usize, policy::from_name("fifo", samples as usize).unwrap());
        let table = ScoreTable::new(samples as usize, 0.0);
        let control = Control::new(table, ledger).with_drawing(drawing).with_buffer(setup).with_exchange();
        Self { control, size, epoch: 0 }
    }
    /// An epoch; (sample, weight) by batch. Scores follow from the sample alone.
    fn epoch(&mut self, score: impl Fn(u32) -> f32) -> Vec<Vec<(u32, f32)>> {
        let drawing = self.control.drawing().unwrap();
        let order = Arc::new(drawing.draw_stream(self.control.stream(self.epoch).unwrap(), drawing.share()));
        let batches =
            Batches::new(drawing.samples as usize, self.size, false, drawing.rank, drawing.world_size).unwrap();
        let plan = Plan { epoch: self.epoch, order, cut: Cut::Even(batches), behind: Vec::new() };
        let pass = self.control.plan_and_begin(plan, 0);
        let mut all = Vec::new();
        while let Turn::Decided(decision) = self.control.decide(pass, &|_| 1) {
            self.control
                .learn(Some(decision.serial), decision.rows.iter().map(|row| (row.delivered, score(row.delivered))));
            all.push(decision.rows.iter().map(|row| (row.delivered, row.weight)).collect());
        }
        self.control.end(pass);
        self.epoch += 1;
        all
    }
}

/// Over many seeds every step of ranks that replay their own caches has the dataset's mean, while caches fill and
/// later, whatever scores say: within five standard errors, seeds fixed. Without its weights it has not.
#[test]
fn replays_of_own_caches_are_unbiased_for_the_whole_dataset() {
    const SAMPLES: u32 = 48;
    let quantity = |id: u32| f64::from(id * 19 % 48) / 12.0;
    let score = |id: u32| (quantity(id) * quantity(id)) as f32 + 0.1;
    let truth = (0..SAMPLES).map(quantity).sum::<f64>() / f64::from(SAMPLES);
    for (sampler, by_score) in [
        (SamplerSettings::Replay(Replay { lag: 3, ..Replay::default() }), true),
        (SamplerSettings::Echo(Echo { lag: 3, block: Block::Of(2), ..Echo::default() }), false),
    ] {
        for world in WORLDS {
            let runs = 300u64;
            let mut of_steps: BTreeMap<usize, (f64, f64, f64)> = BTreeMap::new();
            for seed in 0..runs {
                let ranks = (0..world).map(|rank| Rank::new(sampler, SAMPLES, seed, (rank, world), 4, 9));
                let mut ranks: Vec<Rank> = ranks.collect();
                let mut step = 0;
                for _ in 0..5 {
                    let batches: Vec<_> = ranks.iter_mut().map(|rank| rank.epoch(score)).collect();
                    assert!(batches.iter().all(|of| of.len() == batches[0].len()), "ranks step alike");
                    for at in 0..batches[0].len() {
                        let of = |weigh: bool| -> f64 {
                            let each = batches.iter().map(|of| {
                                let row = |&(id, w): &(u32, f32)| quantity(id) * if weigh { f64::from(w) } else { 1.0 };
                                of[at].iter().map(row).sum::<f64>() / of[at].len() as f64
                            });
                            each.sum::<f64>() / f64::from(world)
                        };
                        let (mean, sums) = (of(true), of_steps.entry(step).or_default());
                        *sums = (sums.0 + mean, sums.1 + mean * mean, sums.2 + of(false));
                        step += 1;
                    }
                }
            }
            let count = runs as f64;
            let (mut tilted, mut late) = (0.0, 0.0);
            for (step, (sum, squares, plain)) in &of_steps {
                let mean = sum / count;
                let error = ((squares / count - mean * mean).max(0.0) / count).sqrt();
                let off = (mean - truth) / error;
                assert!(
                    off.abs() < 5.0,
                    "{} on {world} ranks, step {step}: {mean} for {truth}, z {off:.1}",
                    sampler.name()
                );
                if *step > of_steps.len() / 2 {
                    (tilted, late) = (tilted + plain / count - truth, late + 1.0);
                }
            }
            assert_eq!(tilted / late > 0.1, by_score, "{} on {world} ranks: {}", sampler.name(), tilted / late);
        }
    }
}

/// Every stay weighs as much, whichever rank a sample came to.
#[test]
fn what_is_new_comes_once_a_pass_whichever_rank_gets_it() {
    const SAMPLES: u32 = 60;
    for world in WORLDS {
        let sampler = SamplerSettings::Echo(Echo { lag: 3, fresh: 0.5, ..Echo::default() });
        let mut ranks: Vec<Rank> = (0..world).map(|rank| Rank::new(sampler, SAMPLES, 3, (rank, world), 4, 8)).collect();
        let mut times = vec![0.0; SAMPLES as usize];
        for _ in 0..40 {
            for rank in &mut ranks {
                rank.epoch(|_| 1.0).concat().iter().for_each(|&(id, weight)| times[id as usize] += weight);
            }
        }
        // Forty epochs of half new rows are twenty passes: each sample was new twenty times and used again as often,
        // but for what is resident at the end and for a cache that begins empty.
        let (least, most) = times.iter().fold((f32::MAX, 0.0f32), |(l, m), &t| (l.min(t), m.max(t)));
        assert!(least >= 27.0 && most <= 53.0, "{world} ranks: {least} to {most}");
    }
}
