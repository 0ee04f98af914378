//! Who is next: samplers, one file each, and the table of all of them.

mod as_coded;
mod auto;
pub mod batches;
mod buffer;
mod cap;
mod cost_aware;
mod curriculum;
mod given;
mod iis;
mod importance;
mod infobatch;
mod mixed;
mod ods;
mod ownership;
mod pads;
mod part;
mod percentile;
mod selective;
mod settings;
mod tilt;
mod uniform;
mod weighted;

pub use as_coded::PadsAsCoded;
pub use auto::{Auto, CAREFUL_KAPPA, Chosen, Circumstances};
pub use batches::Batches;
pub use buffer::{BufferOptions, Echo, Replay};
pub use cap::MAX_GAIN;
pub use cost_aware::CostAware;
pub use curriculum::Curriculum;
pub use given::Given;
pub use iis::Iis;
pub use importance::Importance;
pub use infobatch::InfoBatch;
pub use ods::Ods;
pub use ownership::owned_ids;
pub use pads::Pads;
pub use part::{Dealt, Leg, Part, in_turn};
pub use selective::Selective;
pub use tilt::random_belief;
pub(crate) use tilt::{first_pass, pass_in_blocks};
pub use uniform::Uniform;
pub use weighted::weighted;

pub use crate::tune::{Block, Blocks, Budget, EpochSize, Neighbours, Observed, Pace, ReadCost};

use crate::error::Result;
use crate::index::ScoreTable;
use crate::types::SampleId;

settings::samplers! {
    /// Every sample alike.
    Uniform = "uniform",
    /// SHADE's.
    Pads = "pads",
    /// Unbiased, by importance.
    Importance = "importance",
    /// Unbiased, by importance and what a fetch costs.
    CostAware = "cost-aware",
    /// New samples from a stream, and passes over what the cache holds.
    Echo = "echo",
    /// New samples from a stream, and what the cache holds by importance.
    Replay = "replay",
    /// iCACHE's.
    Iis = "iis",
    /// InfoBatch's.
    InfoBatch = "infobatch",
    /// Selective-Backprop's: by loss, biased.
    Selective = "selective",
    /// From easy to hard, biased.
    Curriculum = "curriculum",
    /// SHADE's as its public code has it, biased.
    PadsAsCoded = "shade-as-coded",
    /// Seneca's: what is cached comes first.
    Ods = "ods",
}

/// What a sampler may look at when it draws an epoch.
pub struct Outlook<'a> {
    /// The ids this rank may draw, ascending. `uniform` ignores it (it shards a global permutation), all others draw
    /// from it; with one rank it is every id.
    pub owned: &'a [SampleId],
    /// Samples in the whole dataset.
    pub samples: u32,
    /// Epoch to draw.
    pub epoch: u64,
    /// The run's seed.
    pub seed: u64,
    /// This rank.
    pub rank: u32,
    /// Number of ranks.
    pub world_size: u32,
    /// Beliefs about all samples.
    pub scores: &'a ScoreTable,
    /// Whether an id is in the cache now.
    pub resident: &'a dyn Fn(SampleId) -> bool,
}

/// An epoch's draws for one rank, in the order of delivery.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Order {
    /// The samples; an id may come more than once.
    pub ids: Vec<SampleId>,
    /// `weights[k]` makes the mean over the epoch of weight × anything, averaged over the ranks, an unbiased estimate
    /// of that thing's mean over the dataset. 1 for uniform; as the paper has it (1) for samplers that say they are
    /// biased.
    pub weights: Vec<f32>,
}

impl Order {
    /// Draws that all count alike.
    fn unweighted(ids: Vec<SampleId>) -> Self {
        Self { weights: vec![1.0; ids.len()], ids }
    }
}

/// Draws an epoch. Pure: the same outlook gives the same order.
pub trait Sampler: Send + Sync {
    /// The name users type.
    fn name(&self) -> &'static str;
    /// Whether the mean it induces is biased on purpose. Such samplers must be asked for by name.
    fn biased(&self) -> bool {
        false
    }
    /// Whether the order depends on anything but (seed, epoch, rank, world size). If not, a resumed run draws it again
    /// instead of storing it.
    fn adaptive(&self) -> bool {
        true
    }
    /// Whether ranks share one list: each draws, in turn, what one rank alone would draw. If so, what is left of an
    /// epoch is known without drawing for every rank.
    fn shares_one_list(&self) -> bool {
        false
    }
    /// Whether it goes by a score's rank in its batch where the user names no score.
    fn by_batch_rank(&self) -> bool {
        false
    }
    /// True if an epoch may have fewer draws than the rank owns samples.
    fn is_short(&self) -> bool {
        false
    }
    /// How it runs, if it trains on the cache as a buffer instead of drawing epochs.
    fn buffer(&self) -> Option<BufferOptions> {
        None
    }
    /// Whether noise stands for every score: a control run.
    fn random_scores(&self) -> bool {
        false
    }
    /// Checks the options.
    ///
    /// # Errors
    /// `Settings`, with the value, the range and what it means, if an option is out of range or not a number.
    fn check(&self) -> Result<()> {
        Ok(())
    }
    /// Draws the epoch: as many draws as the rank owns samples, whatever the sampler leaves out. A run's steps then
    /// depend on its settings alone, ranks step alike, and samplers are compared at equal steps. A method that was
    /// published with shorter epochs goes on drawing by its own chances, unless it [is to be short](Self::is_short).
    fn draw(&self, outlook: &Outlook<'_>) -> Result<Order>;
}
