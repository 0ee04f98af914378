//! The options of `lossfeed allocate` and `lossfeed jobs`.

use clap::{Args, ValueEnum};
use lossfeed_control::jobs;
use serde::Serialize;

use super::units::{bytes, fraction};

/// `lossfeed allocate`.
#[derive(Debug, Clone, Args)]
pub struct AllocateArgs {
    /// Jobs, datasets and what they share, as JSON; --help shows one
    #[arg(value_name = "FILE", long_help = JOBS_HELP)]
    pub jobs: std::path::PathBuf,
    /// Who comes first
    #[arg(long, value_enum, value_name = "WAY", default_value = "max-min")]
    pub sharing: Sharing,
    /// One JSON document instead of tables
    #[arg(long)]
    pub json: bool,
}

/// `lossfeed forms`.
#[derive(Debug, Clone, Args)]
pub struct FormsArgs {
    /// Samples, their forms, and what there is, as JSON; --help shows one
    #[arg(value_name = "FILE", long_help = FORMS_HELP)]
    pub samples: std::path::PathBuf,
    /// One JSON document instead of a table
    #[arg(long)]
    pub json: bool,
}

/// `lossfeed jobs`.
#[derive(Debug, Clone, Args)]
pub struct JobsArgs {
    /// Gavel's traces, comma-separated. They are taken in the order of their names, in whichever they are given
    #[arg(long, value_name = "LIST", value_delimiter = ',', required = true)]
    pub trace: Vec<std::path::PathBuf>,
    /// Gavel's simulation_throughputs.json: how long the steps take that its traces count
    #[arg(long, value_name = "FILE")]
    pub throughputs: std::path::PathBuf,
    /// Only the first N jobs of each trace, by when they came
    #[arg(long, value_name = "N", value_parser = first)]
    pub first: Option<usize>,
    /// Which of its kinds of GPU the cluster has
    #[arg(long, value_name = "KIND", default_value = "v100")]
    pub gpu: String,
    /// Which job comes first, comma-separated: fifo, sjf, max-min
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = order, default_values = ["fifo", "sjf", "max-min"], hide_default_value = true)]
    pub order: Vec<jobs::Order>,
    /// What is cached, comma-separated: lru, static (CoorDL), quiver, silod, ours
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = cache_system, default_values = ["lru", "static", "quiver", "silod", "ours"], hide_default_value = true)]
    pub cache: Vec<jobs::CacheSystem>,
    /// GPUs in the cluster
    #[arg(long, value_name = "N", default_value = "160", value_parser = clap::value_parser!(u32).range(1..))]
    pub gpus: u32,
    /// Size of the cache [default: 250 GB a GPU]
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub cache_bytes: Option<u64>,
    /// Bandwidth of the link to the store, per second [default: 25 MB a GPU]
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub bandwidth: Option<u64>,
    /// The part of the jobs that choose samples by scores, and hit more than what is cached of their dataset
    #[arg(long, value_name = "PART", default_value = "0.5", value_parser = fraction)]
    pub scored: f64,
    /// Which job reads what is drawn by it
    #[arg(long, value_name = "N", default_value = "0")]
    pub seed: u64,
    /// One JSON document, each trace by itself, instead of a table over all
    #[arg(long)]
    pub json: bool,
}

fn first(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&jobs| jobs > 0).ok_or_else(|| "give a whole number above 0".to_owned())
}

fn order(text: &str) -> Result<jobs::Order, String> {
    named(text, &jobs::ORDERS, jobs::Order::name)
}

fn cache_system(text: &str) -> Result<jobs::CacheSystem, String> {
    named(text, &jobs::CACHE_SYSTEMS, jobs::CacheSystem::name)
}

fn named<T: Copy>(text: &str, all: &[T], name: fn(T) -> &'static str) -> Result<T, String> {
    let known = || all.iter().map(|&one| name(one)).collect::<Vec<_>>().join(", ");
    all.iter().copied().find(|&one| name(one) == text).ok_or_else(|| format!("is not one of {}", known()))
}

/// How `lossfeed allocate` divides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sharing {
    /// Nobody falls behind: the largest common multiple of what an equal split would give
    MaxMin,
    /// Cache where a byte saves most; the link to the jobs in their order, each as much as it can use
    InOrder,
    /// The same part of both for every job
    EqualSplit,
    /// iCACHE's: samples by aggregated importance value, of jobs that a cache makes more than 1.5 times as fast
    Aiv,
}

/// What the samples' file looks like.
const FORMS_HELP: &str = r#"Samples, their forms, and what there is, as JSON:

  {"cache_bytes": 6.4e10, "bandwidth_bytes_per_s": 1.25e9, "cores": 16,
   "samples": [{"name": "imagenet", "count": 1281167, "reads": 1, "cpu_s": 0.008, "fetch_bytes": 1.1e5, "forms": [
     {"name": "encoded", "bytes": 1.1e5, "cpu_s_saved": 0, "fetch_bytes_saved": 1.1e5, "reuse": 1},
     {"name": "decoded", "bytes": 6e5, "cpu_s_saved": 0.006, "fetch_bytes_saved": 1.1e5, "reuse": 1}]}]}

All numbers of "samples" are of one sample: "reads" an epoch by all jobs together, CPU seconds and bytes of a read that
the cache does not answer. "reuse" is how many of the reads one cached sample answers: an augmented one is stale after
one."#;

/// What the jobs' file looks like.
const JOBS_HELP: &str = r#"Jobs, datasets and what they share, as JSON:

  {"cache_bytes": 1e12, "bandwidth_bytes_per_s": 1.25e9,
   "datasets": [{"name": "imagenet", "bytes": 1.4e11}],
   "jobs": [{"name": "resnet", "dataset": "imagenet", "ideal_bytes_per_s": 2.5e8}]}

"ideal_bytes_per_s" is what the job reads if it never waits for data. A job may bring "hits": [[bytes cached, hit ratio],
…] as measured of it; left out, it reads plain epochs, and hits what is cached of its dataset. For --sharing aiv it may
bring "batch_s_without" and "batch_s_with", the seconds of 20 batches each without and with the cache; left out, what an
equal split would make of its rate stands for them.

With "nodes": [{"name": "m1", "gpus": 8, "free_bytes": 2e12, "holds": {"imagenet": 5e10}}, …] the jobs are also placed
by DLCache's score, one after the other: on which node each runs ("gpus" of a job; left out, 1), and which nodes fetch
how much of its dataset. This is apart from the sharing. A job with "loading": {"fetch_s": [0.4, …], "request_s": [0.1,
…], "workers": 4, "cores": 16, "memory": 0.3, "memory_max": 0.8} is also told how many workers it should have, by
DLCache's rule: seconds that a worker took for each batch, seconds until the trainer asked for the next, and the parts
of the memory in use and at most."#;
