//! Every option, defined once: help, parsing, completions and manual pages come from here.

mod allocate;
#[cfg(feature = "engine")]
mod data;
mod groups;
mod node;
mod replay;
mod smi;
mod train;
pub mod units;
mod why;

use clap::{Parser, Subcommand};

pub use allocate::{AllocateArgs, FormsArgs, Sharing};
#[cfg(feature = "engine")]
pub use data::{IndexArgs, PackArgs};
pub use node::{NodeArgs, NodeCommand};
pub use replay::{ReplayArgs, policies_help};
#[cfg(feature = "engine")]
pub use smi::ExporterArgs;
pub use smi::{CsvForm, SmiArgs, SmiMode};
pub use train::TrainArgs;
pub use why::{CheckArgs, WhyArgs};

/// Trains models faster when the data is the bottleneck: samples are cached, chosen and weighted by their own losses.
#[derive(Debug, Parser)]
#[command(name = "lossfeed", version, max_term_width = 110, help_template = groups::template())]
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
    /// Run a training program unchanged and say at its end why it waits, and what to change
    Why(WhyArgs),
    /// Show GPUs, running jobs and why each waits: one table and exit
    #[command(after_long_help = crate::smi::legend(), subcommand_help_heading = "Views")]
    Smi(SmiArgs),
    /// Show the cache that this machine's jobs share, drop a dataset of it, limit a job
    Node(NodeArgs),
    /// Serve the numbers of running engines to Prometheus, as OpenMetrics over HTTP
    #[cfg(feature = "engine")]
    Exporter(ExporterArgs),
    /// Hold a running job to limits: exit code 0 they hold, 1 exceeded, 3 too little data, 6 no such job
    Check(CheckArgs),
    /// Replay a recorded run through cache policies and sizes, or let samplers draw anew: hits, coverage, time
    Replay(Box<ReplayArgs>),
    /// Divide a cache and the link to the store among several training jobs
    Allocate(AllocateArgs),
    /// Choose in which form to cache samples: as stored, decoded, augmented
    Forms(FormsArgs),
    /// Print what a shell needs to complete this program's words: `source <(lossfeed completions bash)`
    Completions {
        /// For which shell.
        shell: clap_complete::Shell,
    },
    /// Write manual pages, one a command: `lossfeed man DIR`, then `man -l DIR/lossfeed.1`
    Man {
        /// The folder; made if it is not there.
        dir: std::path::PathBuf,
    },
    /// Write a dataset of images as tar shards of a good size, mixed: what an object store reads best
    #[cfg(feature = "engine")]
    Pack(PackArgs),
    /// Walk the shards of a dataset once and keep their index, so that training opens it at once
    #[cfg(feature = "engine")]
    Index(IndexArgs),
    /// Tell what this machine can and cannot do, with a remedy for each shortcoming
    #[cfg(feature = "engine")]
    Doctor(DoctorArgs),
}

/// `lossfeed doctor`.
#[cfg(feature = "engine")]
#[derive(Debug, Clone, clap::Args)]
pub struct DoctorArgs {
    /// One JSON document instead of lines
    #[arg(long)]
    pub json: bool,
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
    fn train_options_become_one_flat_object_with_null_for_what_was_left_out() {
        let cli =
            Cli::parse_from(["lossfeed", "train", "--latency", "2ms", "--compare", "shade,cost-aware", "--seeds", "2"]);
        let Command::Train(options) = cli.command else { panic!("not train") };
        let json: serde_json::Value = serde_json::to_value(&options).unwrap();
        assert_eq!(json["latency"], 0.002);
        assert_eq!(json["compare"], serde_json::json!(["shade", "cost-aware"]));
        assert_eq!(json["seeds"], 2);
        assert!(["bandwidth", "batch_size", "journal"].iter().all(|left_out| json[left_out].is_null()));
        assert_eq!(json["json"], false);
        assert_eq!(json.as_object().unwrap().len(), 24);
    }
}
