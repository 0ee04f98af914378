//! The options of `lossfeed replay`.

use clap::Args;
use lossfeed_control::policy::{self, Entry};
use lossfeed_control::sim::Costs;

use super::units::{bytes, fraction, positive, seconds};

/// `lossfeed replay`.
#[derive(Debug, Clone, Args)]
pub struct ReplayArgs {
    /// The recorded run: a journal, or CSV with the columns epoch,step,id,loss[,bytes]; plain or gzipped
    #[arg(long, value_name = "FILE", required_unless_present = "sampler", help_heading = "What")]
    pub trace: Option<std::path::PathBuf>,
    /// Cache policies, comma-separated; --help says what each does [default: all; with --sampler the one that suits
    /// each]
    #[arg(long, value_name = "LIST", value_delimiter = ',', long_help = policies_help(const { &policy::ALL }), help_heading = "What")]
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
    /// trace's (a CSV or a journal with scores), or without one a model's of --samples N: planted difficulty ×
    /// e^(−deliveries / --decay)
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "Closed loop")]
    pub sampler: Vec<String>,
    /// Epochs to run [default: as many as the trace has, or 10]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000), requires = "sampler", help_heading = "Closed loop")]
    pub epochs: Option<u32>,
    /// Samples in a batch [default: 256]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), requires = "sampler", help_heading = "Closed loop")]
    pub batch_size: Option<u32>,
    /// Ranks that share the dataset: the first one's cache is told of [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), requires = "sampler", help_heading = "Closed loop")]
    pub world_size: Option<u32>,
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

/// The policies and what they do, one a line.
pub fn policies_help(policies: &[Entry]) -> String {
    let mut help = "Cache policies, comma-separated [default: all; with --sampler the one that suits each]:".to_owned();
    policies.iter().for_each(|entry| help += &format!("\n- {}: {}", entry.name, entry.help));
    help
}
