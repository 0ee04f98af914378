//! `lossfeed-lab papers --gavel FOLDER`: who is first on a cluster's traces, as SiloD says it is.

use std::fs;
use std::path::{Path, PathBuf};

use lossfeed_control::{Error, Result};

use super::Checked;
use super::claims::Agrees;
use crate::args::JobsArgs;
use crate::cluster::{CACHE_SYSTEMS, CacheSystem, ORDERS};
use crate::jobs::completions;

const PAPER: &str = "SiloD's schedulers on Gavel's traces (160 GPUs)";
const THROUGHPUTS: &str = "simulation_throughputs.json";
/// Folders below the one that is given.
const DEPTH: usize = 4;
const FILES_MAX: usize = 10_000;

/// Mean completion times over SiloD's, for each order and every other cache system.
pub(super) fn check(folder: &Path) -> Result<Vec<Checked>> {
    let mut traces = Vec::new();
    find(folder, DEPTH, &mut traces)
        .map_err(|e| Error::unreadable(format!("--gavel {}", folder.display())).because(e))?;
    let throughputs = folder.join(THROUGHPUTS);
    if traces.is_empty() || !throughputs.is_file() {
        return Err(Error::settings(format!(
            "--gavel {}: it has {} files NAME.trace: give the folder with {THROUGHPUTS} and the traces in or below it",
            folder.display(),
            traces.len()
        )));
    }
    let found = completions(&JobsArgs {
        trace: traces,
        throughputs,
        first: None,
        gpu: "v100".to_owned(),
        order: ORDERS.to_vec(),
        cache: CACHE_SYSTEMS.to_vec(),
        gpus: 160,
        cache_bytes: None,
        bandwidth: None,
        scored: 0.5,
        seed: 0,
        json: false,
    })?;
    let mut checked = Vec::new();
    for order in ORDERS {
        let of = |cache| {
            let one = found.iter().find(|one| (one.0, one.1) == (order, cache));
            one.map(|one| one.2).ok_or_else(|| Error::internal("a system that was not run"))
        };
        let silod = of(CacheSystem::Silod)?;
        for cache in CACHE_SYSTEMS.into_iter().filter(|&cache| cache != CacheSystem::Silod) {
            let note = match (checked.len(), cache) {
                (0, _) => {
                    "As `lossfeed-lab jobs` runs them: what jobs read is drawn, half of them choose samples by scores."
                }
                (_, CacheSystem::Curves) => "Not the paper's: its division by every job's own hit curve.",
                _ => "",
            };
            let (claim, ours) = match cache {
                CacheSystem::Curves => {
                    (format!("{}: completion over that under ours, times", order.name()), silod / of(cache)?)
                }
                _ => {
                    (format!("{}: completion under {} over it, times", order.name(), cache.name()), of(cache)? / silod)
                }
            };
            checked.push(Checked::new(PAPER, claim, 1.0, Agrees::Above, ours, note));
        }
    }
    Ok(checked)
}

/// All traces in `folder` and below.
fn find(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            if depth > 0 {
                find(&path, depth - 1, found)?;
            }
        } else if path.extension().is_some_and(|kind| kind == "trace") && found.len() < FILES_MAX {
            found.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_traces_is_run_and_one_without_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("msr/seed=1");
        fs::create_dir_all(&below).unwrap();
        assert!(check(folder.path()).unwrap_err().to_string().contains("0 files NAME.trace"));
        let job = |arrives: u32| format!("small (batch size 1)\tpython3 a.py\t--steps\t1\t400000\t{arrives}.0\t2\n");
        fs::write(below.join("a.trace"), job(0) + &job(60)).unwrap();
        assert!(check(folder.path()).unwrap_err().to_string().contains("1 files NAME.trace"));
        fs::write(folder.path().join(THROUGHPUTS), r#"{"v100": {"('small (batch size 1)', 2)": {"null": 0.8}}}"#)
            .unwrap();
        let found = check(folder.path()).unwrap();
        assert_eq!(found.len(), 12);
        assert!(found.iter().all(|row| row.ours.is_finite() && row.ours > 0.0 && row.within.is_none()));
        assert_eq!(found[0].claim, "fifo: completion under lru over it, times");
        assert!(check(Path::new("/nonexistent")).unwrap_err().to_string().contains("/nonexistent"));
    }
}
