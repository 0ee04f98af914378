//! The options of `lossfeed allocate` and `lossfeed forms`.

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::units::{bytes, job_epochs};

/// `lossfeed allocate`.
#[derive(Debug, Clone, Args)]
pub struct AllocateArgs {
    /// Jobs, datasets and what they share, as JSON; --help shows one
    #[arg(value_name = "FILE", long_help = JOBS_HELP, required_unless_present = "apply", conflicts_with = "apply")]
    pub jobs: Option<std::path::PathBuf>,
    /// Divide among the jobs that run on this machine, and have their loaders obey; without --watch the limits hold
    /// until the jobs end
    #[arg(long, requires_all = ["cache", "bandwidth"])]
    pub apply: bool,
    /// Keep watching: jobs that come, go and change; the limits are taken back at the end
    #[arg(long, requires = "apply")]
    pub watch: bool,
    /// Memory that all caches may take together, as in 64GiB
    #[arg(long, value_name = "SIZE", value_parser = bytes, requires = "apply")]
    pub cache: Option<u64>,
    /// Bytes a second that all jobs may read from the store together, as in 200MB
    #[arg(long, value_name = "SIZE", value_parser = bytes, requires = "apply")]
    pub bandwidth: Option<u64>,
    /// How many epochs a job runs in all, for --sharing sjf; once for each job
    #[arg(long, value_name = "JOB=N", value_parser = job_epochs, requires = "apply")]
    pub epochs: Vec<(String, u64)>,
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

/// How `lossfeed allocate` divides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sharing {
    /// Nobody falls behind: the largest common multiple of what an equal split would give
    MaxMin,
    /// Cache where a byte saves most, and a fair link: SiloD under FIFO
    Fifo,
    /// Cache to the jobs with the least work and the least need first, and a fair link: SiloD under SJF
    Sjf,
    /// Cache where a byte saves most; the link to the jobs in their order, each as much as it can use
    InOrder,
    /// The same part of both for every job
    EqualSplit,
    /// iCACHE's: samples by aggregated importance value, of jobs that a cache makes more than 1.5 times as fast
    Aiv,
}

/// The samples' file. A paragraph is one line: clap breaks it once.
const FORMS_HELP: &str = concat!(
    r#"Samples, their forms, and what there is, as JSON:

  {"cache_bytes": 6.4e10,
   "bandwidth_bytes_per_s": 1.25e9, "cores": 16,
   "samples": [
     {"name": "imagenet", "count": 1281167,
      "reads": 1, "cpu_s": 0.008,
      "fetch_bytes": 1.1e5,
      "forms": [
        {"name": "encoded", "bytes": 1.1e5,
         "cpu_s_saved": 0, "reuse": 1,
         "fetch_bytes_saved": 1.1e5},
        {"name": "decoded", "bytes": 6e5,
         "cpu_s_saved": 0.006, "reuse": 1,
         "fetch_bytes_saved": 1.1e5}]}]}

"#,
    "All numbers of \"samples\" are of one sample: \"reads\" an epoch by all jobs together, CPU seconds and ",
    "bytes of a read that the cache does not answer. \"reuse\" is how many of the reads one cached sample ",
    "answers: an augmented one is stale after one."
);

/// The jobs' file.
const JOBS_HELP: &str = concat!(
    r#"Jobs, datasets and what they share, as JSON:

  {"cache_bytes": 1e12,
   "bandwidth_bytes_per_s": 1.25e9,
   "datasets": [
     {"name": "imagenet", "bytes": 1.4e11}],
   "jobs": [
     {"name": "resnet", "dataset": "imagenet",
      "ideal_bytes_per_s": 2.5e8}]}

"#,
    "\"ideal_bytes_per_s\" is what the job reads if it never waits for data. A job may bring \"hits\": ",
    "[[bytes cached, hit ratio], …] as measured of it; left out, it reads plain epochs, and hits what is ",
    "cached of its dataset. For --sharing aiv it may bring \"batch_s_without\" and \"batch_s_with\", the ",
    "seconds of 20 batches each without and with the cache; left out, they follow from its rate under an ",
    "equal split. --sharing sjf needs \"left_s\" of each job, the seconds it would still run if it never waited.\n\n",
    "With \"nodes\": [{\"name\": \"m1\", \"gpus\": 8, \"free_bytes\": 2e12, \"holds\": {\"imagenet\": ",
    "5e10}}, …] the jobs are also placed by DLCache's score, one after the other: on which node each runs ",
    "(\"gpus\" of a job; left out, 1), and which nodes fetch how much of its dataset. This is apart from the ",
    "sharing. A job with \"loading\": {\"fetch_s\": [0.4, …], \"request_s\": [0.1, …], \"workers\": 4, ",
    "\"cores\": 16, \"memory\": 0.3, \"memory_max\": 0.8} is also told how many workers it should have, by ",
    "DLCache's rule: seconds that a worker took for each batch, seconds until the trainer asked for the ",
    "next, and the parts of the memory in use and at most."
);
