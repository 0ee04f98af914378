//! DLCache's part of `lossfeed allocate`: which node each job runs on, where its dataset lies, how many workers load it.

use std::collections::BTreeMap;
use std::io::{self, Write};

use lossfeed_control::jobs::{Cluster, Loading, NodeView, place, workers};
use lossfeed_control::{Error, Result, printable};
use serde::{Deserialize, Serialize};

/// A node, as the file has it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AskedNode {
    name: String,
    gpus: u32,
    free_bytes: f64,
    /// Bytes of datasets, by name.
    #[serde(default)]
    holds: BTreeMap<String, f64>,
}

/// What a job's loader has measured of itself.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AskedLoading {
    fetch_s: Vec<f64>,
    request_s: Vec<f64>,
    workers: u32,
    cores: u32,
    memory: f64,
    memory_max: f64,
}

impl AskedLoading {
    pub(super) fn workers(&self) -> Result<u32> {
        let &Self { ref fetch_s, ref request_s, workers: now, cores, memory, memory_max } = self;
        workers(&Loading { fetch_s, request_s, workers: now, cores, memory, memory_max })
    }
}

/// Where one job goes.
#[derive(Debug, Serialize)]
pub(super) struct PlacementRow {
    job: String,
    /// None has the GPUs: nothing.
    runs_on: Option<String>,
    /// Best first.
    nodes: Vec<NodeRow>,
    homeless_bytes: f64,
}

#[derive(Debug, Serialize)]
struct NodeRow {
    node: String,
    score: f64,
    fetch_bytes: f64,
}

/// Places the jobs one after the other, each on what those before it left.
pub(super) fn placed(nodes: &[AskedNode], cluster: &Cluster, gpus: &[u32]) -> Result<Vec<PlacementRow>> {
    let dataset = |name: &str| cluster.datasets().iter().position(|dataset| dataset.name == name);
    // By dataset, the nodes as a job that reads it sees them.
    let view = |node: &AskedNode| NodeView { free_gpus: node.gpus, free_bytes: node.free_bytes, held_bytes: 0.0 };
    let mut views = vec![nodes.iter().map(view).collect::<Vec<_>>(); cluster.datasets().len()];
    for (number, node) in nodes.iter().enumerate() {
        for (name, &bytes) in &node.holds {
            let of = dataset(name).ok_or_else(|| {
                Error::settings(format!("node {} holds the dataset {name:?}, which is not listed", node.name))
            })?;
            views[of][number].held_bytes = bytes;
        }
    }
    let mut rows = Vec::with_capacity(gpus.len());
    for (job, &gpus) in cluster.jobs().iter().zip(gpus) {
        let of = job.dataset;
        let told = |e: Error| Error::settings(format!("job {}", job.name)).because(e);
        let found = place(&mut views[of], cluster.datasets()[of].bytes, gpus).map_err(told)?;
        // GPUs and room are gone for readers of other datasets too.
        let now = views[of].clone();
        for views in &mut views {
            for (view, now) in views.iter_mut().zip(&now) {
                (view.free_gpus, view.free_bytes) = (now.free_gpus, now.free_bytes);
            }
        }
        let name = |node: usize| nodes[node].name.clone();
        let row = |&node: &usize| NodeRow {
            node: name(node),
            score: found.scores[node],
            fetch_bytes: found.fetch_bytes[node],
        };
        rows.push(PlacementRow {
            job: job.name.clone(),
            runs_on: found.runs_on.map(name),
            nodes: found.order.iter().map(row).collect(),
            homeless_bytes: found.homeless_bytes,
        });
    }
    Ok(rows)
}

pub(super) fn print(rows: &[PlacementRow], out: &mut impl Write) -> io::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    writeln!(out, "{:<24} {:<16} {:>9}  nodes by score, GB to fetch", "job", "runs on", "no room")?;
    for PlacementRow { job, runs_on, nodes, homeless_bytes } in rows {
        let one = |row: &NodeRow| format!("{} {:.3} {:.2}", printable(&row.node), row.score, row.fetch_bytes / 1e9);
        let nodes: Vec<_> = nodes.iter().map(one).collect();
        let runs_on = runs_on.as_deref().map_or_else(|| "(no GPUs)".into(), printable);
        let (job, homeless) = (printable(job), homeless_bytes / 1e9);
        writeln!(out, "{job:<24} {runs_on:<16} {homeless:>9.2}  {}", nodes.join(", "))?;
    }
    Ok(())
}
