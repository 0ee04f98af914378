//! Everything a user tunes, as plain values. Components (a source, a decoder, a device) are handed in beside them.

mod beside;
mod cache_form;
mod images;
mod kept;
mod node;
mod score;
mod workers;

pub use beside::{BesidePart, BesideRole, BesideSettings, Stored};
pub use cache_form::CacheForm;
pub use images::{AugmentOf, AugmentSettings, CropOf, CropSettings, ImageSteps, JitterSettings, MixSettings};
pub use node::NodeSettings;
pub use score::{Column, ScoreKind};
pub(crate) use workers::shared_processors;

use crate::error::{Error, Result};
use crate::policy::{self, Needs};
use crate::sampler::{Batches, SamplerSettings, Uniform};
use crate::types::{Dtype, MAX_SAMPLES, TensorSpec};
use lossfeed_kernels::image::{ImageDtype, ImageOptions, ImageTransform};
use std::path::PathBuf;

/// How the rows of a batch get to a GPU out of the host's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CopyPath {
    /// Loader threads gather them in a batch slot, which is copied as a whole.
    Gathered,
    /// The driver copies each cached row from where the cache has it, all in one call.
    Batched,
    /// A kernel reads the cached rows where they are, over the bus.
    Mapped,
}

impl CopyPath {
    /// All of them; the first of equally fast ones is preferred, as the one that takes least from the training.
    pub const ALL: [CopyPath; 3] = [CopyPath::Gathered, CopyPath::Batched, CopyPath::Mapped];

    /// The name users type.
    pub fn name(self) -> &'static str {
        match self {
            CopyPath::Gathered => "gathered",
            CopyPath::Batched => "batched",
            CopyPath::Mapped => "mapped",
        }
    }
}

/// What happens to a sample that cannot be fetched or decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnError {
    /// The epoch ends with the sample's error.
    Raise,
    /// The batch is one row shorter; the sample is counted and listed.
    Skip,
    /// Another sample of the same batch takes the row, under its own id and weight; counted and listed.
    Substitute,
}

/// What becomes of a sample's pixels on their way into a batch; see [`lossfeed_kernels::image`].
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct TransformSettings {
    /// `uint8`, `float16`, `bfloat16` or `float32`.
    pub dtype: Dtype,
    /// (channels, height, width) in memory instead of (height, width, channels).
    pub channels_first: bool,
    /// Height and width; `None`: as they are.
    pub crop: Option<[usize; 2]>,
    /// Pixels of 0 on every side, before the crop.
    pub padding: usize,
    /// A crop at random places instead of the centre.
    pub random_crop: bool,
    /// Chance of being mirrored.
    pub flip: f64,
    /// Means, in units of 0 to 1: none, one, or one a channel.
    pub mean: Vec<f64>,
    /// Standard deviations, likewise.
    pub std: Vec<f64>,
    /// Chance that a rectangle of the result becomes 0.
    #[serde(default)]
    pub erase: f64,
    /// How the images of a finished batch are mixed; `None`: not at all.
    #[serde(default)]
    pub mix: Option<MixSettings>,
}

impl TransformSettings {
    /// The transform of samples of `spec`, which must be u8 of (height, width, channels) or (height, width).
    ///
    /// # Errors
    /// [`crate::ErrorKind::Settings`] for other samples, and for whatever of the settings does not fit them.
    pub fn build(&self, spec: &TensorSpec) -> Result<ImageTransform> {
        let source = images::pixels(spec)?;
        let dtype = match self.dtype {
            Dtype::U8 => ImageDtype::U8,
            Dtype::F16 => ImageDtype::F16,
            Dtype::Bf16 => ImageDtype::BF16,
            Dtype::F32 => ImageDtype::F32,
            other => {
                return Err(Error::settings(format!(
                    "transform: dtype {} cannot be made: use uint8, float16, bfloat16 or float32",
                    other.name()
                )));
            }
        };
        let options = ImageOptions {
            dtype,
            channels_first: self.channels_first,
            crop: self.crop,
            padding: self.padding,
            random_crop: self.random_crop,
            flip: self.flip,
            mean: &self.mean,
            std: &self.std,
        };
        ImageTransform::new(source, &options).map_err(|e| Error::settings(format!("transform: {e}")))
    }
}

/// How an engine feeds a run.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Settings {
    /// Samples a batch, per rank. At least 1, at most the dataset.
    pub batch_size: usize,
    /// Drop the last batch if it would be short.
    pub drop_last: bool,
    /// One seed reproduces every order on any machine: with any number of workers for samplers that look at the seed
    /// alone, with `workers` 0 for those that draw by scores and residents, which threads bring in an order of their
    /// own.
    pub seed: u64,
    /// Nobody chose the seed: it is set before the first epoch ([`crate::engine::Engine::settle_seed`]), or a state
    /// that is loaded brings its own. Only with one rank: several must draw by one seed from the start.
    #[serde(default)]
    pub open_seed: bool,
    /// This rank, below `world_size`.
    pub rank: u32,
    /// Number of ranks.
    pub world_size: u32,
    /// Ranks own no share of the samples: what they learn, and what their caches hold, is exchanged between epochs
    /// ([`crate::engine::Engine::agree`]), and each takes its part of one order, which all draw from the same facts.
    #[serde(default)]
    pub exchange: bool,
    /// Threads that fetch, decode and fill batches. `None`: as many as the run turns out to need ([`crate::tune::crew`]), one
    /// a processor to begin with. 0: the calling thread does it all, so that cache decisions and scores interleave
    /// exactly as in the simulator.
    pub workers: Option<usize>,
    /// Processors of this rank. `None`: those that the process may run on, shared with the other ranks of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processors: Option<usize>,
    /// Ranks on this machine, this one included.
    #[serde(default = "one")]
    pub local_ranks: usize,
    /// Batches in preparation per worker, beside the one it fills. Default 2.
    pub prefetch_factor: usize,
    /// Host memory for samples that are read before their batch is decided, in bytes; 0: none are. Between epochs it
    /// holds samples of the next one, where seed and epoch decide its order or it goes on in a stream. `None`: where
    /// there are loader threads, 128 MiB for datasets behind a network, and more while answers come late
    /// ([`Settings::read_ahead_most`]); for files of this machine eight batches (64 samples or more, and 128 MiB at
    /// most) while their reads take long; else 0. Means nothing for samples in memory.
    #[serde(default)]
    pub read_ahead: Option<u64>,
    /// Host memory for cached samples, in bytes. 0: no cache.
    pub cache_bytes: u64,
    /// Keep fetched samples once for all processes of this machine, instead of in a cache of this one. `None`: no.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeSettings>,
    /// Form of the cached samples.
    pub cache_form: CacheForm,
    /// What the loader's threads make of a sample's pixels, after the cache. `None`: nothing. Where batches go to a GPU
    /// whose kernels do it ([`crate::device::cuda::CudaKernels::images`]), leave it out here.
    #[serde(default)]
    pub transform: Option<TransformSettings>,
    /// What the loader's threads crop of an image of any size before that, on any device. `None`: nothing; all images
    /// then have one size.
    #[serde(default)]
    pub crop: Option<CropSettings>,
    /// How the loader's threads change colours between the two, on any device. `None`: not at all.
    #[serde(default)]
    pub jitter: Option<JitterSettings>,
    /// How the loader's threads cut, mirror and augment images after that, on any device. `None`: the transform cuts
    /// and mirrors.
    #[serde(default)]
    pub augment: Option<AugmentSettings>,
    /// Masks and boxes, which loader threads move on any device. `None`: samples have none.
    #[serde(default)]
    pub beside: Option<BesideSettings>,
    /// How batches get to a GPU, by [`crate::engine::Courier`]. `None`: the way that is measured to be the fastest when
    /// the engine is made. On paths other than the gathered one a batch's cached samples are not in its slot
    /// ([`crate::staging::BatchSlot::gather`]).
    #[serde(default = "gathered")]
    pub copy_path: Option<CopyPath>,
    /// Cache policy by name; `None`: the one that suits the sampler.
    pub policy: Option<String>,
    /// Who comes next.
    pub sampler: SamplerSettings,
    /// What becomes importance; `None`: the batch rank for `shade` and `pads`, the gradient norm otherwise.
    pub score: Option<ScoreKind>,
    /// Weight of the old belief when a new score comes, in [0, 1). `None`: 0 for batch ranks, 0.5 otherwise.
    pub smoothing: Option<f32>,
    /// What happens to bad samples.
    pub on_error: OnError,
    /// Bound on batch slots, lent ones included. `None`: prefetch depth + 64.
    pub max_slots: Option<usize>,
    /// `cpu`, `cuda` or `cuda:N`.
    pub device: String,
    /// Name shown by `lossfeed smi`.
    pub job: Option<String>,
    /// Publish a stats page.
    pub stats: bool,
    /// Write what happens to this file, which must not exist yet: see [`crate::journal`]. Gzip if its name ends in
    /// `.gz`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub journal: Option<PathBuf>,
    /// Keep beliefs in this file, for a process after this one: see [`crate::scoring::file`]. `{rank}` in its name is
    /// this rank's number, and several ranks need it, unless they exchange scores: then the first rank's is all ranks'.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score_file: Option<PathBuf>,
    /// Seconds from one writing of that file to the next, at least.
    #[serde(default = "kept::a_minute")]
    pub score_file_every: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            batch_size: 1,
            drop_last: false,
            seed: 0,
            open_seed: false,
            rank: 0,
            world_size: 1,
            exchange: false,
            workers: None,
            processors: None,
            local_ranks: 1,
            prefetch_factor: 2,
            read_ahead: None,
            cache_bytes: 0,
            node: None,
            cache_form: CacheForm::Encoded,
            transform: None,
            crop: None,
            jitter: None,
            augment: None,
            beside: None,
            copy_path: gathered(),
            policy: None,
            sampler: SamplerSettings::default(),
            score: None,
            smoothing: None,
            on_error: OnError::Raise,
            max_slots: None,
            device: "cpu".into(),
            job: None,
            stats: true,
            journal: None,
            score_file: None,
            score_file_every: kept::a_minute(),
        }
    }
}

fn one() -> usize {
    1
}

/// The default: callers find whole batches in their slots.
fn gathered() -> Option<CopyPath> {
    Some(CopyPath::Gathered)
}

/// Largest number of loader threads: beyond it a typo is likelier than a wish.
const MAX_WORKERS: usize = 1024;

impl Settings {
    /// Checks everything that can be checked without the dataset's samples and without a device, for a dataset of
    /// `samples` samples.
    pub fn validate(&self, samples: usize) -> Result<()> {
        if samples == 0 {
            return Err(Error::settings("the dataset is empty: there is nothing to load"));
        }
        if samples > MAX_SAMPLES {
            return Err(Error::settings(format!("{samples} samples exceed the limit of {MAX_SAMPLES}")));
        }
        // What drop_last leaves of too large a batch size is told by the cut itself.
        let ranks = self.world_size as usize;
        let cut_here = self.sampler.given().is_none() && !self.drop_last && (1..=samples).contains(&ranks);
        let per_rank = cut_here.then(|| samples.div_ceil(ranks));
        if let Some(per_rank) = per_rank.filter(|&samples| self.batch_size > samples) {
            return Err(Error::settings(format!(
                "batch_size {} is above the {per_rank} samples of a rank ({samples} samples, world_size {}): use at most {per_rank}",
                self.batch_size, self.world_size
            )));
        }
        self.batches(samples)?;
        if self.open_seed && self.world_size > 1 {
            return Err(Error::settings(format!("{} ranks need one common seed: give seed=", self.world_size)));
        }
        if self.exchange && self.sampler.given().is_some() {
            return Err(Error::settings(
                "ranks=\"exchange\" needs one order for all ranks, but sampler= gives each rank its own: remove one",
            ));
        }
        if self.sampler.is_short() && self.world_size > 1 && !self.exchange {
            return Err(Error::settings(format!(
                "sampler={:?} with short=True ends each rank's epoch after its own number of steps, and {} ranks must \
                 step alike: give ranks=\"exchange\", or leave short out",
                self.sampler.name(),
                self.world_size
            )));
        }
        node::check_order(self, samples)?;
        self.check_counts()?;
        self.sampler.check_policy(self.policy_name(), policy::find(self.policy_name())?.needs)?;
        if self.exchange {
            self.check_exchange()?;
        }
        kept::check(self)?;
        if self.sampler.buffer().is_some() {
            let name = self.sampler.name();
            if self.policy_name() != "fifo" {
                return Err(Error::settings(format!(
                    "sampler={name:?} manages the cache itself (first in, first out): remove policy={:?}",
                    self.policy_name()
                )));
            }
            if self.cache_bytes == 0 {
                return Err(Error::settings(format!("sampler={name:?} trains from the cache: give cache=")));
            }
        }
        self.sampler.build().map(drop)
    }

    /// Threads, batches in preparation, batch slots and the weight of old scores.
    fn check_counts(&self) -> Result<()> {
        if let Some(workers) = self.workers.filter(|&w| w > MAX_WORKERS) {
            return Err(Error::settings(format!("num_workers={workers} exceeds {MAX_WORKERS} threads: lower it")));
        }
        if self.prefetch_factor == 0 || self.prefetch_factor > 1024 {
            return Err(Error::settings(format!("prefetch_factor {} must be 1 to 1024", self.prefetch_factor)));
        }
        if let Some(s) = self.smoothing.filter(|s| !(0.0..1.0).contains(s)) {
            return Err(Error::settings(format!(
                "smoothing {s} must be at least 0 and below 1 (0 keeps the newest score)"
            )));
        }
        if self.max_slots.is_some_and(|m| m < self.depth()) {
            return Err(Error::settings(format!(
                "max_slots {} is below the {} slots that num_workers and prefetch_factor keep busy: raise it, or lower those",
                self.max_slots.unwrap_or(0),
                self.depth()
            )));
        }
        if let Some(slots) = self.max_slots.filter(|&slots| slots > u32::MAX as usize) {
            return Err(Error::settings(format!("max_slots {slots} is above the {} that can be counted", u32::MAX)));
        }
        Ok(())
    }

    /// Refuses settings that `ranks="exchange"` cannot have.
    fn check_exchange(&self) -> Result<()> {
        if matches!(self.sampler, SamplerSettings::Uniform(Uniform { fixed_shares: true, .. })) {
            return Err(Error::settings(
                "ranks=\"exchange\" needs one order for all ranks, but fixed_shares gives each its own: remove one",
            ));
        }
        if policy::find(self.policy_name())?.needs.contains(Needs::NEXT_EPOCH) {
            return Err(Error::settings(format!(
                "policy={:?} needs the next epoch's order, which ranks=\"exchange\" draws only when it begins: \
                 remove policy=",
                self.policy_name()
            )));
        }
        if self.journal.is_some() {
            return Err(Error::settings(
                "journal= records one rank's scores, but with ranks=\"exchange\" its cache depends on all ranks' \
                 scores: remove one",
            ));
        }
        Ok(())
    }

    /// How an epoch over `samples` is cut. Where the caller brings the order, how one of every sample would be.
    ///
    /// # Errors
    /// As [`Batches::new`].
    pub fn batches(&self, samples: usize) -> Result<Batches> {
        if self.sampler.given().is_none() {
            return Batches::new(samples, self.batch_size, self.drop_last, self.rank, self.world_size);
        }
        if self.rank >= self.world_size {
            return Err(Error::settings(format!(
                "rank {} is not one of {} ranks: ranks count from 0 to world_size - 1",
                self.rank, self.world_size
            )));
        }
        Batches::new(samples, self.batch_size.min(samples), false, 0, 1)
    }

    /// The measurement that becomes importance.
    pub fn score_kind(&self) -> ScoreKind {
        self.score.unwrap_or_else(|| {
            if self.policy_name() == "shade" || self.sampler.by_batch_rank() {
                ScoreKind::BatchRank
            } else {
                ScoreKind::GradientNorm
            }
        })
    }

    /// The seed of the noise that stands for every score in a control run (`random_scores`) of this seed, or `None`.
    pub fn control_seed(&self, seed: u64) -> Option<u64> {
        self.sampler.random_scores().then_some(seed)
    }

    /// The weight of the old belief.
    pub fn smoothing_weight(&self) -> f32 {
        self.smoothing.unwrap_or(if self.score_kind() == ScoreKind::BatchRank { 0.0 } else { 0.5 })
    }

    /// The cache policy: the one asked for, or the one that suits the sampler.
    pub fn policy_name(&self) -> &str {
        // Without a cache nobody has to know what comes: several epochs' orders would be drawn for nothing.
        let ranks = if self.exchange || self.cache_bytes == 0 { 1 } else { self.world_size };
        self.policy.as_deref().unwrap_or_else(|| self.sampler.default_policy(ranks).name)
    }
}
