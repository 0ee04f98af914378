//! The options of `lossfeed why` and `lossfeed check`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::units::{positive, seconds};

/// `lossfeed why`.
#[derive(Debug, Clone, Args)]
pub struct WhyArgs {
    /// Write the report as one JSON document, in base units, null for unknown
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// The program and its arguments, as after a shell's prompt: `-- python train.py`, `-- torchrun train.py`
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// `lossfeed check`.
#[derive(Debug, Clone, Args)]
#[command(group = clap::ArgGroup::new("limits").args(["max_stall", "min_rate"]).required(true).multiple(true))]
pub struct CheckArgs {
    /// The job's name or the pid of one of its processes
    #[arg(value_name = "JOB")]
    pub job: String,
    /// The largest share of its time that any rank may wait for data ("5%" or "0.05")
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub max_stall: Option<f64>,
    /// The fewest samples a second, all ranks together
    #[arg(long, value_name = "N", value_parser = positive)]
    pub min_rate: Option<f64>,
    /// Over so much of the last time, up to 90s
    #[arg(long = "for", value_name = "TIME", value_parser = window, default_value = "60s")]
    pub window: f64,
}

/// "5%" or "0.05".
fn share(text: &str) -> Result<f64, String> {
    let (number, scale) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
    match number.trim().parse::<f64>().map(|x| x / scale) {
        Ok(x) if (0.0..=1.0).contains(&x) => Ok(x),
        _ => Err("must be a share such as 5% or 0.05".to_owned()),
    }
}

/// A stats page keeps 100 seconds.
fn window(text: &str) -> Result<f64, String> {
    match seconds(text)? {
        x if (2.0..=90.0).contains(&x) => Ok(x),
        _ => Err("must be from 2s to 90s: a stats page keeps 100 seconds".to_owned()),
    }
}
