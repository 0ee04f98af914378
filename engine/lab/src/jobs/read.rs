//! The files that `lossfeed-lab jobs` reads.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use lossfeed_control::{Error, Result};

use crate::args::JobsArgs;
use crate::cluster::{Throughputs, TraceJob, parse_trace};

/// A larger file is no trace of jobs.
const BYTES_MAX: u64 = 256 << 20;

/// Steps a second of the kinds of job, as `--throughputs` has them.
pub(super) fn rates(args: &JobsArgs) -> Result<Throughputs> {
    read(&args.throughputs, |text| throughputs(text, &args.gpu))
}

/// The jobs of a trace, the first `--first` of them by when they come.
pub(super) fn trace(text: &str, args: &JobsArgs) -> Result<Vec<TraceJob>> {
    let mut jobs = parse_trace(text)?;
    if let Some(first) = args.first {
        jobs.sort_by(|a, b| a.arrives_s.total_cmp(&b.arrives_s));
        jobs.truncate(first);
    }
    Ok(jobs)
}

/// What `of` makes of a file; its name is in every error.
pub(super) fn read<T>(path: &Path, of: impl FnOnce(&str) -> Result<T>) -> Result<T> {
    text(path).and_then(|text| of(&text)).map_err(|e| Error::new(e.kind(), path.display().to_string()).because(e))
}

fn text(path: &Path) -> Result<String> {
    let file = File::open(path).map_err(|e| Error::unreadable("cannot open it").because(e))?;
    let mut text = String::new();
    file.take(BYTES_MAX + 1).read_to_string(&mut text).map_err(|e| Error::unreadable("cannot read it").because(e))?;
    if text.len() as u64 > BYTES_MAX {
        return Err(Error::settings(format!("it is longer than {BYTES_MAX} bytes, so it is no trace of jobs")));
    }
    Ok(text)
}

/// Of Gavel's file: by GPU, by `('job type', GPUs)`, steps a second alone under the key "null".
fn throughputs(text: &str, gpu: &str) -> Result<Throughputs> {
    let document: serde_json::Value =
        serde_json::from_str(text).map_err(|e| Error::settings("it is no JSON").because(e))?;
    let Some(kinds) = document.get(gpu).and_then(serde_json::Value::as_object) else {
        let known = document.as_object().map(|all| all.keys().cloned().collect::<Vec<_>>().join(", "));
        return Err(Error::settings(format!("it has no GPU {gpu:?}, but: {}", known.unwrap_or_default())));
    };
    let mut found = Throughputs::default();
    for (name, rates) in kinds {
        let parts = name.strip_prefix("('").and_then(|rest| rest.strip_suffix(')')?.rsplit_once("', "));
        let parsed = parts.and_then(|(kind, gpus)| Some((kind, gpus.parse::<u32>().ok()?)));
        let (Some((kind, gpus)), Some(rate)) = (parsed, rates.get("null").and_then(serde_json::Value::as_f64)) else {
            return Err(Error::settings(format!(
                "{gpu} {name:?} is not ('job type', GPUs) with a rate under \"null\""
            )));
        };
        // Gavel writes 0 where a job did not fit.
        if rate > 0.0 {
            found.insert(kind, gpus, rate)?;
        }
    }
    Ok(found)
}
