//! Every number, a line an epoch.

use super::Report;

const HEADER: &str = "sampler,policy,capacity_fraction,capacity_bytes,scores,epoch,hits,misses,fetched_bytes,distinct,effective_samples,total_s,stall_s";

/// The report as CSV. What was not counted is left empty. `scores` is `noise` in a control's lines, else `own`.
pub(super) fn csv(report: &Report) -> String {
    let mut text = format!("{HEADER}\n");
    let number = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
    for row in &report.results {
        let sampler = row.sampler.as_deref().unwrap_or_default();
        for (noise, found) in row.all() {
            let scores = if noise { "noise" } else { "own" };
            let before =
                format!("{sampler},{},{},{},{scores}", found.policy, found.capacity_fraction, found.capacity_bytes);
            for (number_of, epoch) in found.epochs.iter().enumerate() {
                text += &format!(
                    "{before},{number_of},{},{},{},{},{},{},{}\n",
                    epoch.hits,
                    epoch.misses,
                    epoch.fetched_bytes,
                    epoch.distinct,
                    number(epoch.effective_samples),
                    number(epoch.time.map(|time| time.total_s)),
                    number(epoch.time.map(|time| time.stall_s)),
                );
            }
        }
    }
    text
}
