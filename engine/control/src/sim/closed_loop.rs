//! A run that never was: a sampler draws, a policy keeps, and losses are recorded ones or a model's.
//!
//! A trace has one order, so replaying it cannot tell samplers apart. Here every epoch is drawn by the beliefs and
//! residents that the epochs before it left, through the same [`Control`] that decides in a live run. What is told is
//! what the choice costs and covers: hits, bytes, distinct samples, how even the weights are. What a model would learn
//! of it, nobody can tell without training one.
//!
//! Where the engine waits for scores until a batch was trained on, they are here at once. A score is
//! SHADE's rank in the batch for the sampler `pads` and the policy `shade`, and the newest is believed; elsewhere it is
//! the loss, and a belief is half old, half new, as in the engine, which takes the gradient's norm instead.

use std::collections::VecDeque;
use std::sync::Arc;

use lossfeed_kernels::rank;

use super::pipeline::Costs;
use super::population::{Ages, Population};
use super::replay::{Replay, Watch};
use super::tally::Tally;
use super::trace::{B0, Trace};
use crate::control::{BufferSetup, Control, Cut, Drawing, Plan, Turn, Verdict};
use crate::error::{Error, Result};
use crate::index::ScoreTable;
use crate::ledger::Ledger;
use crate::policy::{Entry, Needs};
use crate::sampler::{Batches, Block, Blocks, Order, SamplerSettings, owned_ids, random_belief};
use crate::types::SampleId;

/// Where losses come from.
#[derive(Debug, Clone, Copy)]
pub enum Losses<'a> {
    /// A recorded run: in its epoch e, and so in epoch e here, a sample has the last loss that the run saw of it by the
    /// end of e. A sample that it had not seen by then has none. After the recorded epochs all losses stay.
    Recorded(&'a Trace),
    /// A model: exp(d + 0.5 e − uses / decay), d and e standard normal, d fixed by the sample and e by sample and
    /// epoch; uses are the sample's deliveries so far. Every sample takes 1.
    Planted {
        /// Samples in the dataset.
        samples: usize,
        /// Deliveries after which a sample's loss is 1/e of what it was.
        decay: f64,
    },
}

impl Losses<'_> {
    /// Samples in the dataset.
    pub fn samples(&self) -> usize {
        match self {
            Self::Recorded(trace) => trace.samples(),
            Self::Planted { samples, .. } => *samples,
        }
    }
    /// Bytes of the dataset, or samples if they have no sizes.
    pub fn total_bytes(&self) -> u64 {
        match self {
            Self::Recorded(trace) => trace.total_bytes(),
            Self::Planted { samples, .. } => *samples as u64,
        }
    }
}

/// A run to be made.
#[derive(Debug, Clone)]
pub struct ClosedLoop<'a> {
    /// Who draws.
    pub sampler: SamplerSettings,
    /// Who stays. A sampler that trains on the cache as a buffer needs `fifo`.
    pub policy: &'a Entry,
    /// What the cache holds as a part of the dataset, which is reported as it is given, and in bytes.
    pub capacity: (f64, u64),
    /// Epochs to run.
    pub epochs: u64,
    /// Samples in a batch.
    pub batch: usize,
    /// Ranks that share the dataset. The run is that of the first; the others are as it is.
    pub ranks: u32,
    /// Of every draw.
    pub seed: u64,
    /// What a sample's loss is.
    pub losses: Losses<'a>,
    /// Whether every score is replaced by noise fixed by seed and sample.
    pub noise: bool,
    /// Time is counted.
    pub costs: Option<Costs>,
    /// Creates a counter for each run, where samples have sizes.
    pub watch: Option<fn() -> Box<dyn Watch>>,
}

/// Whether anybody looks at scores, in a run of this sampler and policy.
///
/// # Errors
/// `Settings` if the sampler refuses its options.
pub fn looks_at_scores(sampler: &SamplerSettings, policy: &Entry) -> Result<bool> {
    let by_score = sampler.buffer().is_some_and(|options| options.by_score);
    Ok(sampler.build()?.adaptive() || by_score || policy.needs.contains(Needs::SCORES))
}

impl ClosedLoop<'_> {
    fn ranked(&self) -> bool {
        self.sampler.by_batch_rank() || self.policy.name == "shade"
    }
}

/// Runs it. Answers the numbers, and the samples as the run left them.
///
/// # Errors
/// `Settings` if the policy does not go with the sampler, an option is refused, or the dataset is
/// empty or larger than 2³² − 2.
pub fn closed_loop(run: &ClosedLoop<'_>) -> Result<(Replay, Population)> {
    let samples = run.losses.samples();
    check(run, samples)?;
    let mut control = control_of(run, samples)?;
    if run.sampler.is_short() && run.ranks > 1 {
        return Err(Error::settings(
            "ranks that end their epochs early must exchange scores to step alike: give one rank",
        ));
    }
    let even = Batches::new(samples, run.batch, false, 0, run.ranks)?;
    let bytes = |id: SampleId| match run.losses {
        Losses::Recorded(trace) => trace.bytes(id),
        Losses::Planted { .. } => 1,
    };
    let mut known: VecDeque<Arc<Order>> = VecDeque::new();
    let mut losses = Model::new(run.losses);
    let mut tally = Tally::new(samples, run.costs);
    let sized = matches!(run.losses, Losses::Recorded(trace) if trace.has_sizes());
    let mut watch = run.watch.filter(|_| sized).map(|make| make());
    let mut ages = Ages::new(samples);
    for epoch in 0..run.epochs {
        losses.begin_epoch(epoch);
        tally.begin_epoch();
        watch.iter_mut().for_each(|watch| watch.begin_epoch());
        let order = match known.pop_front() {
            Some(order) => order,
            None => Arc::new(draw(&mut control, epoch)?),
        };
        for behind in control.planned_behind(epoch).skip(known.len()) {
            known.push_back(Arc::new(draw(&mut control, behind)?));
        }
        let cut = Cut::of(&order, run.sampler.is_short(), even, run.batch, false);
        let plan = Plan { epoch, order, cut, behind: known.iter().cloned().collect() };
        let pass = control.plan_and_begin(plan, 0);
        let mut places = 0;
        while let Turn::Decided(decision) = control.decide(pass, &bytes) {
            let rows = &decision.rows;
            tally.batch(rows.iter().map(|row| (row.delivered, row.verdict == Verdict::Hit)), bytes);
            if let Some((watch, books)) = watch.as_mut().zip(control.ledger()) {
                decision.fetched().for_each(|id| watch.fetched(id, bytes(id), books));
            }
            tally.weigh(rows.iter().map(|row| row.weight));
            let ids: Vec<SampleId> = rows.iter().map(|row| row.delivered).collect();
            let mut scores = losses.of(&ids);
            if run.ranked() {
                scores = rank::scores(&rank::counts(&scores), B0);
            }
            if run.noise {
                let noise = |(score, &id): (&mut f32, &SampleId)| *score = random_belief(run.seed, id);
                scores.iter_mut().zip(&ids).filter(|(score, _)| score.is_finite()).for_each(noise);
            }
            control.learn(Some(decision.serial), ids.iter().copied().zip(scores));
            places += rows.len();
            ids.into_iter().for_each(|id| ages.meet(id));
        }
        let mut met = 0;
        while met < places {
            control.met(pass, met..places);
            met += crate::control::PIECE;
        }
        control.end(pass);
    }
    let population = Population::new(control.scores().as_slice(), &ages);
    let residents = control.ledger().map(|ledger| population.composition(ledger.residents_iter()));
    let watched = watch.map(|watch| watch.counted()).unwrap_or_default();
    let counted = Replay::counted(run.policy.name, run.capacity, tally.finish(), residents);
    Ok((Replay { watched, ..counted }, population))
}

/// Refuses what cannot be run.
fn check(run: &ClosedLoop<'_>, samples: usize) -> Result<()> {
    if samples == 0 || samples > crate::types::MAX_SAMPLES {
        return Err(Error::settings(format!(
            "a dataset of {samples} samples: give 1 to {}",
            crate::types::MAX_SAMPLES
        )));
    }
    if let Losses::Planted { decay, .. } = run.losses
        && !(decay > 0.0)
    {
        return Err(Error::settings(format!("losses decay within {decay} deliveries: give a number above 0")));
    }
    if run.sampler.buffer().is_some_and(|options| options.block == Block::Auto) {
        return Err(Error::settings(
            "block auto goes by what a source's requests cost, and here is no source: give a number of neighbours",
        ));
    }
    Ok(())
}

fn control_of(run: &ClosedLoop<'_>, samples: usize) -> Result<Control> {
    let entry = run.policy;
    run.sampler.check_policy(entry.name, entry.needs)?;
    let smoothing = if run.ranked() { 0.0 } else { 0.5 };
    let ledger = Ledger::new(run.capacity.1, samples, (entry.make)(samples));
    let block = run.sampler.buffer().map_or(Block::default(), |options| options.block);
    let owned: Arc<[SampleId]> = owned_ids(samples, run.seed, 0, run.ranks, block.granule()).into();
    let drawing = Drawing {
        sampler: run.sampler.build()?.into(),
        samples: samples as u32,
        owned: Arc::clone(&owned),
        seed: run.seed,
        rank: 0,
        world_size: run.ranks,
        blocks: Blocks::new(block),
        awaits_weights: false,
        together: None,
    };
    let control = Control::new(ScoreTable::new(samples, smoothing), ledger).with_drawing(drawing);
    let Some(options) = run.sampler.buffer() else { return Ok(control) };
    if entry.name != "fifo" {
        return Err(Error::settings(format!(
            "the sampler {} trains on the cache as a buffer, from which the oldest leaves first: its policy is fifo, not {}",
            run.sampler.name(),
            entry.name
        )));
    }
    let smallest = match run.losses {
        Losses::Recorded(trace) => (0..samples as u32).map(|id| trace.bytes(id)).min().unwrap_or(1),
        Losses::Planted { .. } => 1,
    };
    let residents_max = (run.capacity.1 / smallest).min(owned.len() as u64) as usize;
    Ok(control.with_buffer(BufferSetup {
        options,
        residents_max,
        seed: run.seed,
        rank: 0,
        share_weight: (f64::from(run.ranks) * owned.len() as f64 / samples as f64) as f32,
        owned,
        awaits_weights: false,
    }))
}

/// As the engine draws.
fn draw(control: &mut Control, epoch: u64) -> Result<Order> {
    let drawing = control.drawing().cloned().ok_or_else(|| Error::internal("an epoch is drawn without a sampler"))?;
    if let Some(position) = control.stream(epoch) {
        return Ok(drawing.draw_stream(position, drawing.owned.len()));
    }
    if !drawing.sampler.adaptive() {
        return drawing.draw_blind(epoch);
    }
    control.snapshot().ok_or_else(|| Error::internal("the books are lent to nobody"))?.draw(epoch)
}

/// Losses as the run goes on.
enum Model<'a> {
    Recorded { epochs: Vec<(usize, usize)>, trace: &'a Trace, latest: Vec<f32> },
    Planted { uses: Vec<u32>, difficulty: Vec<f32>, decay: f64, epoch: u64 },
}

impl<'a> Model<'a> {
    fn new(losses: Losses<'a>) -> Self {
        match losses {
            Losses::Recorded(trace) => {
                let rows = |batches: Vec<std::ops::Range<usize>>| {
                    (batches.first().map_or(0, |rows| rows.start), batches.last().map_or(0, |rows| rows.end))
                };
                let epochs = trace.epochs().map(rows).collect();
                Self::Recorded { epochs, trace, latest: vec![f32::NAN; trace.samples()] }
            }
            Losses::Planted { samples, decay } => {
                let difficulty = (0..samples as u32).map(|id| planted_normal(id, DIFFICULTY) as f32).collect();
                Self::Planted { uses: vec![0; samples], difficulty, decay, epoch: 0 }
            }
        }
    }
    fn begin_epoch(&mut self, number: u64) {
        match self {
            Self::Recorded { epochs, trace, latest } => {
                let Some(&(start, end)) = usize::try_from(number).ok().and_then(|epoch| epochs.get(epoch)) else {
                    return;
                };
                let seen = trace.ids[start..end].iter().zip(&trace.losses[start..end]);
                seen.filter(|(_, loss)| loss.is_finite()).for_each(|(&id, &loss)| latest[id as usize] = loss);
            }
            Self::Planted { epoch, .. } => *epoch = number,
        }
    }
    /// Of one batch, which is trained on.
    fn of(&mut self, batch: &[SampleId]) -> Vec<f32> {
        match self {
            Self::Recorded { latest, .. } => batch.iter().map(|&id| latest[id as usize]).collect(),
            Self::Planted { uses, difficulty, decay, epoch } => {
                let mut loss = |&id: &SampleId| {
                    let place = id as usize;
                    let learnt = f64::from(uses[place]) / *decay;
                    uses[place] += 1;
                    (f64::from(difficulty[place]) + 0.5 * planted_normal(id, *epoch) - learnt).exp() as f32
                };
                batch.iter().map(&mut loss).collect()
            }
        }
    }
}

/// Standard normal enough: twelve uniforms less six. Fixed by (id, salt).
pub fn planted_normal(id: SampleId, salt: u64) -> f64 {
    (0..12).map(|k| f64::from(random_belief(salt * 16 + k, id) / 4.0).cbrt()).sum::<f64>() - 6.0
}

/// The salt of [`planted_normal`] under which a sample's difficulty is planted.
pub const DIFFICULTY: u64 = 1000;
