//! The options of `lossfeed node`.

use clap::{Args, Subcommand};

use super::units::{bytes, seconds};

/// `lossfeed node`.
#[derive(Debug, Clone, Args)]
pub struct NodeArgs {
    /// The action.
    #[command(subcommand)]
    pub command: NodeCommand,
}

/// The actions of `lossfeed node`.
#[derive(Debug, Clone, Subcommand)]
pub enum NodeCommand {
    /// Show bytes, hits and clients by dataset and job
    Ls {
        /// One JSON document instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Drop the samples of a dataset, named as `lossfeed node ls` names it
    Drop {
        /// The dataset
        dataset: String,
    },
    /// Keep the samples of a dataset: they leave for none of another
    Pin {
        /// The dataset
        dataset: String,
        /// Let them leave again
        #[arg(long)]
        off: bool,
    },
    /// Limit the bytes that a job may bring; those it has beyond leave
    Limit {
        /// The job
        job: String,
        /// A size such as 4GiB, or `none`
        #[arg(value_name = "BYTES", value_parser = limit)]
        bytes: Limit,
    },
    /// Own the shared cache; loaders start this themselves
    #[command(hide = true)]
    Serve {
        /// The folder of its socket
        #[arg(long)]
        folder: std::path::PathBuf,
        /// Bytes for samples
        #[arg(long, value_parser = bytes)]
        bytes: u64,
        /// Seconds without clients after which it ends
        #[arg(long, value_parser = seconds, default_value = "60s")]
        idle: f64,
        /// Leave the starting process
        #[arg(long)]
        detach: bool,
    },
}

/// A limit in bytes, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit(pub Option<u64>);

fn limit(text: &str) -> Result<Limit, String> {
    if text == "none" { Ok(Limit(None)) } else { bytes(text).map(|bytes| Limit(Some(bytes))) }
}
