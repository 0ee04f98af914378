//! `lossfeed-lab papers --gavel FOLDER`: SiloD's Sec. 7.2 and 7.3 on Gavel's traces, as its own are not public.

use std::fs;
use std::path::{Path, PathBuf};

use lossfeed_control::{Error, Result};

use super::Checked;
use super::claims::Agrees::{Above, Within};
use crate::args::JobsArgs;
use crate::cluster::{CacheSystem, ORDERS, Order};
use crate::jobs::{Overall, overall};

const PAPER: &str = "SiloD's Sec. 7.2 and 7.3 on Gavel's traces";
const THROUGHPUTS: &str = "simulation_throughputs.json";
/// Folders below the one that is given.
const DEPTH: usize = 4;
const FILES_MAX: usize = 10_000;

/// GPUs of the simulated cluster, and its link: SiloD's are 400 and 4 GB/s, for longer queues than these traces have.
const GPUS: u32 = 160;
const LINK: u64 = 1_600_000_000;

/// Runs like these, but for what is named.
struct Asked<'a>(&'a JobsArgs);

impl Asked<'_> {
    fn of(&self, order: Order, cache: CacheSystem, change: impl Fn(&mut JobsArgs)) -> Result<Overall> {
        let mut args = JobsArgs { order: vec![order], cache: vec![cache], ..self.0.clone() };
        change(&mut args);
        overall(&args)?.into_iter().next().ok_or_else(|| Error::internal("a system that was not run"))
    }
}

/// The numbers that the text gives of Fig. 8 and 12 to 15, and ours.
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
    let usual = JobsArgs {
        trace: traces,
        throughputs,
        first: None,
        gpu: "v100".to_owned(),
        order: vec![],
        cache: vec![],
        gpus: GPUS,
        cache_bytes: None,
        bandwidth: Some(LINK),
        scored: 0.0,
        shared: 0.0,
        gpu_speed: 1.0,
        seed: 0,
        json: false,
    };
    let asked = Asked(&usual);
    let plain = |_: &mut JobsArgs| ();
    let others = [(CacheSystem::Lru, "LRU"), (CacheSystem::Static, "CoorDL"), (CacheSystem::Quiver, "Quiver")];
    let mut checked = Vec::new();
    let mut add = |claim: String, says, agrees, ours, note| {
        checked.push(Checked::new(PAPER, claim, says, agrees, ours, note));
    };
    for order in ORDERS {
        let silod = asked.of(order, CacheSystem::Silod, plain)?;
        if order == Order::Fifo {
            let effective = silod.effective.map_or(f64::NAN, |part| 100.0 * part);
            let note = "160 GPUs, 40 TB, 1.6 GB/s (the paper's 400 and 4 GB/s, by GPU); what jobs read is drawn.";
            add("Fig. 8: allocated cache that is effective, %".to_owned(), 91.7, Within(5.0), effective, note);
        }
        for (cache, name) in others {
            let other = asked.of(order, cache, plain)?;
            let claim = format!("Fig. 12, {}: completion under {name} over SiloD's", order.name());
            add(claim, 1.0, Above, other.completion_s / silod.completion_s, "");
            if order == Order::MaxMin {
                let claim = format!("Fig. 13: fairness of SiloD over that of {name}");
                let says = match cache {
                    CacheSystem::Lru => 2.56 / 1.39,
                    CacheSystem::Static => 2.56 / 1.51,
                    _ => 2.56 / 1.35,
                };
                let note = match cache {
                    CacheSystem::Lru => {
                        "The job that is worst off beside an equal split of cache and link; mean over time."
                    }
                    _ => "",
                };
                add(claim, says, Within(0.1), silod.fairness / other.fairness, note);
            }
        }
    }
    for (link, says, agrees) in [(400_000_000, 1.0, Above), (4_000_000_000, 1.0, Within(0.02))] {
        let slow = |args: &mut JobsArgs| args.bandwidth = Some(link);
        let [lru, silod] = [CacheSystem::Lru, CacheSystem::Silod].map(|cache| asked.of(Order::Fifo, cache, slow));
        let claim = format!("Fig. 14a, fifo, {:.1} MB/s a GPU: LRU over SiloD", link as f64 / 1e6 / f64::from(GPUS));
        let note = if link == 4_000_000_000 { "The paper's 10 GB/s for 400 GPUs." } else { "" };
        add(claim, says, agrees, lru?.completion_s / silod?.completion_s, note);
    }
    let fast = |args: &mut JobsArgs| args.gpu_speed = 4.0;
    let [quiver, silod] = [CacheSystem::Quiver, CacheSystem::Silod].map(|cache| asked.of(Order::MaxMin, cache, fast));
    let note = "GPUs of four times the speed.";
    let claim = "Fig. 14b, max-min: Quiver over SiloD".to_owned();
    add(claim, 2.17, Within(0.2), quiver?.completion_s / silod?.completion_s, note);
    for (order, says) in [(Order::Fifo, 6.9), (Order::Sjf, 22.0), (Order::MaxMin, 22.0)] {
        let own = asked.of(order, CacheSystem::Silod, plain)?;
        let one = asked.of(order, CacheSystem::Silod, |args| args.shared = 1.0)?;
        let claim = format!("Fig. 15, {}: sooner with datasets shared, %", order.name());
        add(claim, says, Within(3.0), 100.0 * (1.0 - one.completion_s / own.completion_s), "");
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
        assert_eq!(found.len(), 19);
        assert!(found.iter().all(|row| row.ours.is_finite()), "{found:?}");
        assert_eq!(found[1].claim, "Fig. 12, fifo: completion under LRU over SiloD's");
        assert!(check(Path::new("/nonexistent")).unwrap_err().to_string().contains("/nonexistent"));
    }
}
