//! Every option, defined once: help, parsing and (later) completions come from here.

use clap::{Args, Parser, Subcommand, ValueEnum};
use lossfeed_control::sim::Costs;
use lossfeed_control::{jobs, policy};
use serde::Serialize;

use crate::term::Color;

/// Trains models faster when the data is the bottleneck: samples are cached, chosen and weighted by their own losses.
#[derive(Debug, Parser)]
#[command(name = "lossfeed", version, about, disable_help_subcommand = true, max_term_width = 110)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train one small model under several policies at equal steps and print them side by side
    Train(Box<TrainArgs>),
    /// Show running engines and GPUs: one table and exit
    Smi(SmiArgs),
    /// Replay a recorded run through cache policies and sizes, or let samplers draw anew: hits, coverage, time
    Replay(Box<ReplayArgs>),
    /// Divide a cache and the link to the store among several training jobs
    Allocate(AllocateArgs),
    /// Run a cluster's trace of jobs under several schedulers and cache systems, and compare completion times
    Jobs(JobsArgs),
    /// Compute again what papers about such caches print, and say where the numbers agree
    Papers(PapersArgs),
    /// Tell what this machine can and cannot do, with a remedy for each shortcoming
    #[cfg(feature = "doctor")]
    Doctor(DoctorArgs),
}

/// `lossfeed smi`.
#[derive(Debug, Clone, Args)]
pub struct SmiArgs {
    /// Show again every SEC seconds: a full screen on a terminal, repeated tables or JSON lines elsewhere
    #[arg(short, long, short_alias = 'l', value_name = "SEC", num_args = 0..=1, default_missing_value = "1", value_parser = interval, help_heading = "What")]
    pub watch: Option<f64>,
    /// Only the engines of this job name or pid; exit code 6 if there is none
    #[arg(long, value_name = "NAME|PID", help_heading = "What")]
    pub job: Option<String>,
    /// Fail without a readable GPU: exit code 9 no driver, 12 no NVML, 15 GPU lost, 6 no GPU
    #[arg(long, help_heading = "What")]
    pub require_gpu: bool,
    /// One JSON document, in base units, null for unknown; with --watch one a line
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    /// When to use colour; NO_COLOR, CLICOLOR_FORCE and FORCE_COLOR are honoured
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto", help_heading = "Output")]
    pub color: Color,
    /// Draw with plain ASCII
    #[arg(long, help_heading = "Output")]
    pub ascii: bool,
}

/// `lossfeed replay`.
#[derive(Debug, Clone, Args)]
pub struct ReplayArgs {
    /// The recorded run: a journal, CSV with the columns epoch,step,id,loss[,bytes], or libCacheSim's oracleGeneral;
    /// plain or gzipped
    #[arg(long, value_name = "FILE", required_unless_present = "sampler", help_heading = "What")]
    pub trace: Option<std::path::PathBuf>,
    /// What the file is; "auto" tells a journal by its first line and oracleGeneral by its name
    #[arg(long, value_enum, value_name = "KIND", default_value = "auto", help_heading = "What")]
    pub format: TraceFormat,
    /// Cache policies, comma-separated; --help says what each does [default: all; with --sampler the one that suits
    /// each]
    #[arg(long, value_name = "LIST", value_delimiter = ',', long_help = policies_help(), help_heading = "What")]
    pub policy: Vec<String>,
    /// Cache sizes as shares of the dataset (of its bytes, if the trace has them), comma-separated [default:
    /// 0.1,0.2,0.5, if there is no --capacity]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = fraction, help_heading = "What")]
    pub capacity_fraction: Vec<f64>,
    /// Cache sizes in bytes ("1500000", "64MiB"), comma-separated; in samples, if the trace has no bytes
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = bytes, help_heading = "What")]
    pub capacity: Vec<u64>,
    /// Samples in the dataset, if the trace does not name every one, or there is none
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "What")]
    pub samples: Option<u32>,
    /// Leave out the control, in which noise stands for every score
    #[arg(long, help_heading = "What")]
    pub no_control: bool,
    /// Of the control's noise, and of --sampler's draws
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "What")]
    pub seed: u64,

    /// Close the loop: do not replay the recorded order, but let these samplers draw, comma-separated:
    /// NAME[:key=value…], such as cost-aware:kappa=64. Losses are the
    /// trace's CSV, or without a trace a model's of --samples N: planted difficulty × e^(−deliveries / --decay)
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "Closed loop")]
    pub sampler: Vec<String>,
    /// Epochs to run [default: as many as the trace has, or 10]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000), requires = "sampler", help_heading = "Closed loop")]
    pub epochs: Option<u32>,
    /// Samples in a batch [default: 256]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), requires = "sampler", help_heading = "Closed loop")]
    pub batch_size: Option<u32>,
    /// Deliveries after which a modelled loss is 1/e of what it was [default: 10]
    #[arg(long, value_name = "X", value_parser = positive, requires = "sampler", help_heading = "Closed loop")]
    pub decay: Option<f64>,

    /// From a request to its first byte ("20ms"). This and the next three tell how long the run takes
    #[arg(long, value_name = "TIME", value_parser = seconds, help_heading = "Time")]
    pub latency: Option<f64>,
    /// Bandwidth of the link to the source, per second ("200MB"); in samples, if they have no sizes
    #[arg(long, value_name = "SIZE", value_parser = bytes, help_heading = "Time")]
    pub bandwidth: Option<u64>,
    /// Bandwidth of the copy to the device, per second ("12GB")
    #[arg(long, value_name = "SIZE", value_parser = bytes, help_heading = "Time")]
    pub copy_bandwidth: Option<u64>,
    /// What computing a batch takes ("120ms")
    #[arg(long, value_name = "TIME", value_parser = seconds, help_heading = "Time")]
    pub step_time: Option<f64>,
    /// Requests at once [default: 16]
    #[arg(long, value_name = "N", help_heading = "Time")]
    pub in_flight: Option<usize>,
    /// Batches that are fetched ahead of the step [default: 4]
    #[arg(long, value_name = "N", help_heading = "Time")]
    pub ahead: Option<usize>,

    /// One JSON document instead of a table
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    /// Write every number, a line an epoch, as CSV
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub csv: Option<std::path::PathBuf>,
    /// Write one self-contained page with charts and tables
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub html: Option<std::path::PathBuf>,
}

impl ReplayArgs {
    /// What things take, if anything was said of time.
    ///
    /// # Errors
    /// `Settings` as [`Costs::check`], and for bounds on what takes no time.
    pub(crate) fn costs(&self) -> Result<Option<Costs>, lossfeed_control::Error> {
        let timed = self.latency.is_some()
            || self.bandwidth.is_some()
            || self.copy_bandwidth.is_some()
            || self.step_time.is_some();
        if !timed && (self.in_flight.is_some() || self.ahead.is_some()) {
            return Err(lossfeed_control::Error::settings(
                "--in-flight and --ahead bound what takes time: give --latency, --bandwidth, --copy-bandwidth or --step-time",
            ));
        }
        let default = Costs::default();
        let costs = Costs {
            latency_s: self.latency.unwrap_or(0.0),
            bandwidth_bytes_per_s: self.bandwidth.map(|rate| rate as f64),
            copy_bytes_per_s: self.copy_bandwidth.map(|rate| rate as f64),
            step_s: self.step_time.unwrap_or(0.0),
            in_flight: self.in_flight.unwrap_or(default.in_flight),
            ahead: self.ahead.unwrap_or(default.ahead),
        };
        costs.check()?;
        Ok(timed.then_some(costs))
    }
}

/// What `lossfeed replay` reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TraceFormat {
    /// By the file's first line and its name
    Auto,
    /// CSV, epoch,step,id,loss[,bytes]
    Csv,
    /// libCacheSim's: 24 bytes a request
    OracleGeneral,
}

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

/// `lossfeed jobs`.
#[derive(Debug, Clone, Args)]
pub struct JobsArgs {
    /// Gavel's traces, comma-separated: job type, command, steps argument, needs data (0 or 1), steps, arrival in
    /// seconds, GPUs, between tabs
    #[arg(long, value_name = "LIST", value_delimiter = ',', required = true)]
    pub trace: Vec<std::path::PathBuf>,
    /// Gavel's simulation_throughputs.json: steps say nothing of time without it
    #[arg(long, value_name = "FILE")]
    pub throughputs: std::path::PathBuf,
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

/// `lossfeed papers`.
#[derive(Debug, Clone, Args)]
pub struct PapersArgs {
    /// One JSON document instead of lines
    #[arg(long)]
    pub json: bool,
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
}

/// What the jobs' file looks like.
const JOBS_HELP: &str = r#"Jobs, datasets and what they share, as JSON:

  {"cache_bytes": 1e12, "bandwidth_bytes_per_s": 1.25e9,
   "datasets": [{"name": "imagenet", "bytes": 1.4e11}],
   "jobs": [{"name": "resnet", "dataset": "imagenet", "ideal_bytes_per_s": 2.5e8}]}

"ideal_bytes_per_s" is what the job reads if it never waits for data. A job may bring "hits": [[bytes cached, hit ratio],
…] as measured of it; left out, it reads plain epochs, and hits what is cached of its dataset."#;

/// `lossfeed doctor`.
#[cfg(feature = "doctor")]
#[derive(Debug, Clone, Args)]
pub struct DoctorArgs {
    /// One JSON document instead of lines
    #[arg(long)]
    pub json: bool,
}

/// `lossfeed train`: the demonstration job. An option left out is `None` (JSON `null`): the job picks its default by
/// the data it finds. The field names are the keys the job receives.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
pub struct TrainArgs {
    /// What to compare, comma-separated: SAMPLER[+POLICY][:key=value…], for example "uniform+lru" or "shade:repeats=2"
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "uniform+minio,shade,cost-aware,echo,replay",
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
    /// Give this share of the training samples a wrong label ("20%"), chosen by the seed: what do scores make of it?
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
    /// Loader threads; 0 works in the training thread
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1024), help_heading = "Data path")]
    pub workers: Option<u32>,
    /// Bring every image to HEIGHTxWIDTH; needed where their sizes differ
    #[arg(long, value_name = "HxW", help_heading = "Data path")]
    pub resize: Option<String>,
    /// What every delivery draws anew: nothing, a shift by up to an eighth of the side, or that and a mirror image
    /// [default: crop-flip; none for the digits]
    #[arg(long, value_name = "KIND", value_parser = ["none", "crop", "crop-flip"], help_heading = "Data path")]
    pub augment: Option<String>,
    /// Where the digits' shards are written [default: ~/.cache/lossfeed]
    #[arg(long, value_name = "DIR", help_heading = "Data path")]
    pub work_dir: Option<String>,

    /// Write each run's journal into this folder, for `lossfeed replay --trace`: POLICY-seedN.csv.gz
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub record: Option<String>,
    /// One JSON object a line instead of bars and a table
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    /// Only the final table
    #[arg(long, short, help_heading = "Output")]
    pub quiet: bool,
}

impl TrainArgs {
    /// The options as one flat JSON object. `latency` is in seconds, `bandwidth` in bytes per second, an option left
    /// out is `null`.
    pub fn to_json(&self) -> String {
        // Numbers, strings, booleans and lists of them: serialising cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// A finite number above zero.
pub(crate) fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(x) if x > 0.0 && x.is_finite() => Ok(x),
        _ => Err("must be a number above 0".to_owned()),
    }
}

/// Seconds between screens: at least 0.1, as gpustat has it.
fn interval(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(x) if (0.1..=86_400.0).contains(&x) => Ok(x),
        _ => Err("must be between 0.1 and 86400 seconds".to_owned()),
    }
}

/// The policies and what they do, one a line.
fn policies_help() -> String {
    let mut help = "Cache policies, comma-separated [default: all; with --sampler the one that suits each]:".to_owned();
    policy::ALL.iter().for_each(|entry| help += &format!("\n- {}: {}", entry.name, entry.help));
    help
}

/// A share from 0 to 1.
fn fraction(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(x) if (0.0..=1.0).contains(&x) => Ok(x),
        _ => Err("must be from 0 to 1".to_owned()),
    }
}

/// "250us", "2ms", "1.5s" or plain seconds → seconds.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    let (number, unit) = split_unit(text);
    let scale = match unit {
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "s" | "" => 1.0,
        "min" => 60.0,
        _ => return Err(format!("unit {unit:?} is not one of us, ms, s, min")),
    };
    match number.parse::<f64>() {
        Ok(x) if x >= 0.0 && x.is_finite() => Ok(x * scale),
        _ => Err("must be a time such as 2ms or 0.5s".to_owned()),
    }
}

/// "64KiB", "20MB", "1.5GiB" or plain bytes → bytes.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let (number, unit) = split_unit(text);
    let scale = match unit.trim_end_matches("/s").to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "kb" | "k" => 1e3,
        "mb" | "m" => 1e6,
        "gb" | "g" => 1e9,
        "tb" | "t" => 1e12,
        "kib" => 1024.0,
        "mib" => 1024.0 * 1024.0,
        "gib" => 1024.0 * 1024.0 * 1024.0,
        "tib" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        _ => return Err(format!("unit {unit:?} is not one of B, kB, MB, GB, TB, KiB, MiB, GiB, TiB")),
    };
    match number.parse::<f64>() {
        Ok(x) if x >= 0.0 && x * scale < u64::MAX as f64 => Ok((x * scale).round() as u64),
        _ => Err("must be a size such as 64MiB or 20MB".to_owned()),
    }
}

fn split_unit(text: &str) -> (&str, &str) {
    let text = text.trim();
    let cut = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(cut);
    (number, unit.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    impl ReplayArgs {
        /// As if typed.
        pub(crate) fn of(options: &[&str]) -> Self {
            match Cli::try_parse_from(["lossfeed", "replay"].iter().chain(options)).map(|cli| cli.command) {
                Ok(Command::Replay(args)) => *args,
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn the_definition_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn units_become_base_units() {
        assert_eq!(seconds("2ms"), Ok(0.002));
        assert_eq!(seconds("1.5"), Ok(1.5));
        assert_eq!(bytes("20MB"), Ok(20_000_000));
        assert_eq!(bytes("1.5 GiB/s"), Ok(1_610_612_736));
        for bad in ["", "-1", "2parsec", "nan", "1e400", "."] {
            assert!(seconds(bad).is_err() && bytes(bad).is_err(), "{bad:?} went through");
        }
    }

    #[test]
    fn train_options_become_one_flat_object_with_null_for_what_was_left_out() {
        let cli =
            Cli::parse_from(["lossfeed", "train", "--latency", "2ms", "--compare", "shade,cost-aware", "--seeds", "2"]);
        let Command::Train(options) = cli.command else { panic!("not train") };
        let json: serde_json::Value = serde_json::from_str(&options.to_json()).unwrap();
        assert_eq!(json["latency"], 0.002);
        assert_eq!(json["compare"], serde_json::json!(["shade", "cost-aware"]));
        assert_eq!(json["seeds"], 2);
        assert!(["bandwidth", "batch_size", "record"].iter().all(|left_out| json[left_out].is_null()));
        assert_eq!(json["json"], false);
        assert_eq!(json.as_object().unwrap().len(), 23);
    }
}
