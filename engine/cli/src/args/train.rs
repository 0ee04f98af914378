//! The options of `lossfeed train`.

use clap::Args;
use serde::Serialize;

use super::units::{bytes, positive, seconds};

/// `lossfeed train`: the demonstration job. An option left out is `None` (JSON `null`): the job picks its default by
/// the data it finds. The field names are the keys the job receives.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
pub struct TrainArgs {
    /// What to compare, comma-separated: SAMPLER[+POLICY][:key=value…], for example "uniform+lru" or "shade:repeats=2"
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "uniform+minio,shade,cost-aware,echo,replay,replay:scores=batch",
        help_heading = "What"
    )]
    pub compare: Vec<String>,
    /// Class-per-folder directory, tar or "shard-{000..007}.tar" [default: scikit-learn's handwritten digits]
    #[arg(long, value_name = "PATH", help_heading = "What")]
    pub data: Option<String>,
    /// Epochs; one epoch is as many steps as the data has batches, whatever the policy repeats or skips
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "What")]
    pub epochs: Option<u32>,
    /// Stop every run after N optimizer steps
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), help_heading = "What")]
    pub steps: Option<u64>,
    /// Runs per policy, each with its own seed; the seeds are the same for every policy
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000), help_heading = "What")]
    pub seeds: Option<u32>,
    /// The first seed; the others follow it
    #[arg(long, value_name = "N", help_heading = "What")]
    pub seed: Option<u64>,

    /// Samples in a batch
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..), help_heading = "Model")]
    pub batch_size: Option<u32>,
    /// Peak learning rate
    #[arg(long, value_name = "X", value_parser = positive, help_heading = "Model")]
    pub lr: Option<f64>,
    /// Channels of the network's first layer
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096), help_heading = "Model")]
    pub width: Option<u32>,
    /// Convolutions in each stage of the network; those after the first are residual blocks [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64), help_heading = "Model")]
    pub depth: Option<u32>,
    /// Give this share of the training samples a wrong label ("20%"), chosen by the seed, to see how scores react
    #[arg(long, value_name = "SHARE", help_heading = "Data path")]
    pub wrong_labels: Option<String>,
    /// Where the model runs: cpu, cuda or cuda:N [default: cuda if there is one]
    #[arg(long, value_name = "DEVICE", help_heading = "Model")]
    pub device: Option<String>,
    /// Threads PyTorch computes with
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024), help_heading = "Model")]
    pub threads: Option<u32>,

    /// Cache size: a share of the data ("20%") or bytes ("64MiB")
    #[arg(long, value_name = "SIZE", help_heading = "Data path")]
    pub cache: Option<String>,
    /// Delay of every request to the store, as a remote one would have ("2ms"); 0 for none
    #[arg(long, value_name = "TIME", value_parser = seconds, help_heading = "Data path")]
    pub latency: Option<f64>,
    /// Bandwidth of the store, per second ("20MB", "1GiB")
    #[arg(long, value_name = "SIZE", value_parser = bytes, help_heading = "Data path")]
    pub bandwidth: Option<u64>,
    /// Requests to the store fail on purpose, drawn from this seed; training must not change. Checksums every sample
    /// first
    #[arg(long, value_name = "SEED", help_heading = "Data path")]
    pub chaos: Option<u64>,
    /// Loader threads; 0 loads in the training thread
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1024), help_heading = "Data path")]
    pub workers: Option<u32>,
    /// Resize every image to HEIGHTxWIDTH; needed if sizes differ
    #[arg(long, value_name = "HxW", help_heading = "Data path")]
    pub resize: Option<String>,
    /// Random augmentation of each delivery: none, a shift by up to an eighth of the side, or that and mirroring
    /// [default: crop-flip; none for the digits]
    #[arg(long, value_name = "KIND", value_parser = ["none", "crop", "crop-flip"], help_heading = "Data path")]
    pub augment: Option<String>,
    /// Where the digits' shards are written [default: ~/.cache/lossfeed]
    #[arg(long, value_name = "DIR", help_heading = "Data path")]
    pub work_dir: Option<String>,

    /// Write each run's journal into this folder, for `lossfeed replay --trace`: POLICY-seedN.csv.gz
    #[arg(long, alias = "record", value_name = "DIR", help_heading = "Output")]
    pub journal: Option<String>,
    /// One JSON object a line instead of bars and a table
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    /// Only the final table
    #[arg(long, short, help_heading = "Output")]
    pub quiet: bool,
}
