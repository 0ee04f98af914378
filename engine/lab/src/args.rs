//! The options of `lossfeed-lab`.

use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use lossfeed_cli::args::units::{bytes, fraction};
use lossfeed_cli::args::{ReplayArgs, policies_help};

use crate::cluster::{CACHE_SYSTEMS, CacheSystem, ORDERS, Order};
use crate::policies;
use crate::traces::ObjectColumns;

/// Compares caches: recorded runs under many policies, clusters of jobs, and what papers print.
#[derive(Debug, Parser)]
#[command(name = "lossfeed-lab", version, max_term_width = 110)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// `lossfeed replay` with more policies, traces of libCacheSim, and a page of charts
    Replay(Box<LabReplayArgs>),
    /// Run a cluster's trace of jobs under several schedulers and cache systems, and compare completion times
    Jobs(JobsArgs),
    /// Compute again what papers about such caches print, and say where the numbers agree
    Papers(PapersArgs),
}

/// The definition, with the help of all policies.
pub(crate) fn command() -> clap::Command {
    Cli::command().mut_subcommand("replay", |replay| {
        replay.mut_arg("policy", |policy| policy.long_help(policies_help(&policies::ALL)))
    })
}

/// `lossfeed-lab replay`.
#[derive(Debug, Clone, Args)]
pub(crate) struct LabReplayArgs {
    #[command(flatten)]
    pub(crate) replay: ReplayArgs,
    /// What the file is; "auto" tells a journal by its first line and oracleGeneral by its name
    #[arg(long, value_enum, value_name = "KIND", default_value = "auto", help_heading = "What")]
    pub(crate) format: TraceFormat,
    /// The file is libCacheSim's CSV, with these columns: what its option -t takes, such as
    /// "time-col=2,obj-id-col=5,obj-size-col=4,has-header=true,delimiter=;"
    #[arg(long, value_name = "COLUMNS", requires = "trace", conflicts_with = "format", help_heading = "What")]
    pub(crate) object_csv: Option<ObjectColumns>,
    /// Write one self-contained page with charts and tables
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) html: Option<PathBuf>,
    /// Show accuracy against bytes on that page: what `lossfeed train --json` printed
    #[arg(long, value_name = "FILE", requires = "html", help_heading = "Output")]
    pub(crate) trained: Option<PathBuf>,
}

/// The file formats of `lossfeed-lab replay`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TraceFormat {
    /// By the file's first line and its name
    Auto,
    /// CSV, epoch,step,id,loss[,bytes]
    Csv,
    /// libCacheSim's: 24 bytes a request
    OracleGeneral,
}

/// `lossfeed-lab jobs`.
#[derive(Debug, Clone, Args)]
pub(crate) struct JobsArgs {
    /// Gavel's traces, comma-separated. They are taken in the order of their names, in whichever they are given
    #[arg(long, value_name = "LIST", value_delimiter = ',', required = true)]
    pub(crate) trace: Vec<PathBuf>,
    /// Gavel's simulation_throughputs.json: how long the steps take that its traces count
    #[arg(long, value_name = "FILE")]
    pub(crate) throughputs: PathBuf,
    /// Only the first N jobs of each trace, by when they came
    #[arg(long, value_name = "N", value_parser = first)]
    pub(crate) first: Option<usize>,
    /// Which of its kinds of GPU the cluster has
    #[arg(long, value_name = "KIND", default_value = "v100")]
    pub(crate) gpu: String,
    /// Which job comes first, comma-separated: fifo, sjf, max-min
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = order, default_values = ["fifo", "sjf", "max-min"], hide_default_value = true)]
    pub(crate) order: Vec<Order>,
    /// Cache systems, comma-separated: lru, static (CoorDL), quiver, silod, ours, silod-in-order (not SiloD's: the
    /// first job in line gets the link)
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = cache_system, default_values = ["lru", "static", "quiver", "silod", "ours"], hide_default_value = true)]
    pub(crate) cache: Vec<CacheSystem>,
    /// GPUs in the cluster
    #[arg(long, value_name = "N", default_value = "160", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) gpus: u32,
    /// Size of the cache [default: 250 GB a GPU]
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub(crate) cache_bytes: Option<u64>,
    /// Bandwidth of the link to the store, per second [default: 25 MB a GPU]
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub(crate) bandwidth: Option<u64>,
    /// The part of the jobs that choose samples by scores, and hit more than what is cached of their dataset
    #[arg(long, value_name = "PART", default_value = "0.5", value_parser = fraction)]
    pub(crate) scored: f64,
    /// The part of the jobs that share one copy of their dataset, instead of one for each
    #[arg(long, value_name = "PART", default_value = "0", value_parser = fraction)]
    pub(crate) shared: f64,
    /// Speed of the GPUs, as a multiple of the trace's
    #[arg(long, value_name = "TIMES", default_value = "1", value_parser = times)]
    pub(crate) gpu_speed: f64,
    /// Which job reads what is drawn by it
    #[arg(long, value_name = "N", default_value = "0")]
    pub(crate) seed: u64,
    /// One JSON document, each trace by itself, instead of a table over all
    #[arg(long)]
    pub(crate) json: bool,
}

/// `lossfeed-lab papers`.
#[derive(Debug, Clone, Args)]
pub(crate) struct PapersArgs {
    /// Also ask who is first on Gavel's cluster traces: the folder with simulation_throughputs.json and, in or below it,
    /// NAME.trace
    #[arg(long, value_name = "FOLDER")]
    pub(crate) gavel: Option<PathBuf>,
    /// DLCache's 24,000 workloads, instead of 5 orders of jobs for each of its 480 settings
    #[arg(long)]
    pub(crate) whole: bool,
    /// One JSON document instead of lines
    #[arg(long)]
    pub(crate) json: bool,
}

fn first(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&jobs| jobs > 0).ok_or_else(|| "give a whole number above 0".to_owned())
}

fn times(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|&times: &f64| times.is_finite() && times > 0.0)
        .ok_or_else(|| "give a number above 0".to_owned())
}

fn order(text: &str) -> Result<Order, String> {
    named(text, &ORDERS, Order::name)
}

fn cache_system(text: &str) -> Result<CacheSystem, String> {
    named(text, &CACHE_SYSTEMS, CacheSystem::name)
}

fn named<T: Copy>(text: &str, all: &[T], name: fn(T) -> &'static str) -> Result<T, String> {
    let known = || all.iter().map(|&one| name(one)).collect::<Vec<_>>().join(", ");
    all.iter().copied().find(|&one| name(one) == text).ok_or_else(|| format!("is not one of {}", known()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::FromArgMatches;

    impl LabReplayArgs {
        /// As if typed.
        pub(crate) fn of(options: &[&str]) -> Self {
            let typed = command().get_matches_from(["lossfeed-lab", "replay"].iter().chain(options));
            match Cli::from_arg_matches(&typed).map(|cli| cli.command) {
                Ok(Command::Replay(args)) => *args,
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn the_definition_is_consistent_and_tells_of_every_policy() {
        command().debug_assert();
        let help = command().find_subcommand_mut("replay").unwrap().render_long_help().to_string();
        assert!(policies::ALL.iter().all(|entry| help.contains(&format!("- {}: ", entry.name))), "{help}");
    }
}
