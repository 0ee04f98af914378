//! DLCache's two rules (Kang, Min, Zhou, Barve and Gokhale, ISORC'23): on which node a job runs and its dataset lies, and
//! how many workers load it.
//!
//! The formulas are the paper's, and agree with its authors' public code (VUZhuangweiKang/DLCache: the operator's
//! scheduler, the manager and the loader). Where ours departs from that code:
//! 1. what the code counts in objects is bytes here;
//! 2. the code takes all of a node's storage for free space, and all of its GPUs for free GPUs. Here both are what the
//!    caller says is free, and [`place`] takes what it gives;
//! 3. the code runs a job on its first node even if no node has the GPUs; here it runs nowhere;
//! 4. where no node has room the code evicts, on the first node. Here what has no room is told;
//! 5. the code's worker rule may answer 0 workers where memory is short; here it is 1 at least.

use crate::error::{Error, Result};

use super::{above_zero, amount};

/// A node, as one job sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NodeView {
    /// GPUs that nobody has.
    pub free_gpus: u32,
    /// Bytes of storage that nobody has.
    pub free_bytes: f64,
    /// Bytes that it has of the job's dataset. A byte that lies on several nodes is counted on one of them.
    pub held_bytes: f64,
}

/// The score of each node, for a job that needs `gpus` and reads a dataset of `dataset_bytes`:
/// I + (k + α (D − K)) / D. I is 1 if the node has the GPUs, k is what it has of the dataset, K what all nodes have, D the
/// dataset and α the node's part of all free storage (0 where there is none).
///
/// The fractions of all nodes add up to 1 where there is free storage, so a node without the GPUs is never above one
/// that has them.
///
/// # Errors
/// `Settings` for a size that is negative or not finite, an empty dataset, or nodes that together have more of it than
/// there is.
pub fn placement_scores(nodes: &[NodeView], dataset_bytes: f64, gpus: u32) -> Result<Vec<f64>> {
    above_zero("the dataset", dataset_bytes, "bytes")?;
    for (number, node) in nodes.iter().enumerate() {
        amount(&format!("node {number}"), node.free_bytes, "free bytes")?;
        amount(&format!("node {number}"), node.held_bytes, "bytes of the dataset")?;
    }
    let held: f64 = nodes.iter().map(|node| node.held_bytes).sum();
    if held > dataset_bytes * (1.0 + ROUNDING) {
        return Err(Error::settings(format!(
            "the nodes have {held} bytes of a dataset of {dataset_bytes}: count what lies on several nodes on one of them"
        )));
    }
    let missing = (dataset_bytes - held).max(0.0);
    let free: f64 = nodes.iter().map(|node| node.free_bytes).sum();
    let score = |node: &NodeView| {
        let alpha = if free > 0.0 { node.free_bytes / free } else { 0.0 };
        let fits = if node.free_gpus >= gpus { 1.0 } else { 0.0 };
        fits + (node.held_bytes + alpha * missing) / dataset_bytes
    };
    Ok(nodes.iter().map(score).collect())
}

/// Sums of bytes may be off by so much.
const ROUNDING: f64 = 1e-9;

/// Where a job runs and its dataset lies.
#[derive(Debug, Clone, PartialEq)]
pub struct Placement {
    /// The nodes, best first; of equals the one that was named first.
    pub order: Vec<usize>,
    /// Of each node, in the order in which they were named.
    pub scores: Vec<f64>,
    /// The node that the job runs on, if any has the GPUs.
    pub runs_on: Option<usize>,
    /// Bytes of the dataset that each node has to fetch, in the order in which they were named.
    pub fetch_bytes: Vec<f64>,
    /// Bytes that no node has room for.
    pub homeless_bytes: f64,
}

/// Places one job: it runs on the best node, and what no node has of its dataset goes to the nodes in their order, to
/// each as much as it has room for. Takes GPUs and room from `nodes`.
///
/// # Errors
/// As [`placement_scores`].
pub fn place(nodes: &mut [NodeView], dataset_bytes: f64, gpus: u32) -> Result<Placement> {
    let scores = placement_scores(nodes, dataset_bytes, gpus)?;
    let mut order: Vec<usize> = (0..nodes.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    // The first with the GPUs is the first of all, but for one without them that has all of the dataset.
    let runs_on = order.iter().copied().find(|&node| nodes[node].free_gpus >= gpus);
    if let Some(node) = runs_on {
        nodes[node].free_gpus -= gpus;
    }
    let held: f64 = nodes.iter().map(|node| node.held_bytes).sum();
    let mut left = (dataset_bytes - held).max(0.0);
    let mut fetch_bytes = vec![0.0; nodes.len()];
    for &number in &order {
        let node = &mut nodes[number];
        let here = left.min(node.free_bytes);
        node.free_bytes -= here;
        node.held_bytes += here;
        fetch_bytes[number] = here;
        left -= here;
    }
    Ok(Placement { order, scores, runs_on, fetch_bytes, homeless_bytes: left })
}

/// What a loader has measured of itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Loading<'a> {
    /// Seconds that a worker took for each of the last batches.
    pub fetch_s: &'a [f64],
    /// Seconds from the delivery of a batch to the request for the next.
    pub request_s: &'a [f64],
    /// Workers at present.
    pub workers: u32,
    /// The most that there may be: processors.
    pub cores: u32,
    /// The part of the memory in use, and the most that may be.
    pub memory: f64,
    /// See `memory`.
    pub memory_max: f64,
}

/// How many workers there should be: ω' = min(⌈fetch / request⌉, cores), of the medians. If more are wanted than there
/// are processors, or nothing was measured yet, no more than would use `memory_max`, where each uses as much as those
/// at present do on average. Below that the memory is not looked at, as in the authors' code.
///
/// # Errors
/// `Settings` for times or parts that are negative or not finite, or for no worker or no processor.
pub fn workers(loading: &Loading<'_>) -> Result<u32> {
    let &Loading { fetch_s, request_s, workers, cores, memory, memory_max } = loading;
    if workers == 0 || cores == 0 {
        return Err(Error::settings(format!("{workers} workers on {cores} processors: give whole numbers above 0")));
    }
    for &seconds in fetch_s.iter().chain(request_s) {
        amount("a batch", seconds, "seconds")?;
    }
    amount("the memory in use", memory, "as its part")?;
    amount("the most of the memory", memory_max, "as its part")?;
    let cores_wanted = f64::from(cores);
    let wanted = match (median(fetch_s), median(request_s)) {
        // A trainer that asks at once wants as many as there are; one that is served at once wants one.
        (Some(fetch), Some(request)) if request > 0.0 => (fetch / request).ceil(),
        (Some(0.0), Some(_)) => 1.0,
        _ => f64::INFINITY,
    };
    let per_worker = memory / f64::from(workers);
    let bounded =
        if wanted > cores_wanted && per_worker > 0.0 { wanted.min((memory_max / per_worker).floor()) } else { wanted };
    Ok(bounded.min(cores_wanted).max(1.0) as u32)
}

/// The middle one, or the mean of the two in the middle.
fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    Some(if sorted.len().is_multiple_of(2) { f64::midpoint(sorted[sorted.len() / 2 - 1], upper) } else { upper })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn node(free_gpus: u32, free_bytes: f64, held_bytes: f64) -> NodeView {
        NodeView { free_gpus, free_bytes, held_bytes }
    }

    /// By hand: D = 100, K = 40, and of 200 free bytes the nodes have 3/4, 1/4 and none.
    #[test]
    fn scores_are_gpus_and_what_would_lie_there() {
        let mut nodes = [node(4, 150.0, 10.0), node(8, 50.0, 0.0), node(0, 0.0, 30.0)];
        assert_eq!(placement_scores(&nodes, 100.0, 8).unwrap(), [0.1 + 0.45, 1.15, 0.3]);
        let placed = place(&mut nodes, 100.0, 8).unwrap();
        assert_eq!((placed.order, placed.runs_on), (vec![1, 0, 2], Some(1)));
        assert_eq!((placed.fetch_bytes, placed.homeless_bytes), (vec![10.0, 50.0, 0.0], 0.0));
        assert_eq!(nodes, [node(4, 140.0, 20.0), node(0, 0.0, 50.0), node(0, 0.0, 30.0)]);
        // All of it is there, and nobody has GPUs any more.
        let again = place(&mut nodes, 100.0, 8).unwrap();
        assert_eq!((again.runs_on, again.scores), (None, vec![0.2, 0.5, 0.3]));
    }

    #[test]
    fn a_job_runs_where_gpus_are_though_a_node_without_them_has_all_of_its_dataset() {
        let mut nodes = [node(0, 5.0, 100.0), node(1, 0.0, 0.0)];
        let placed = place(&mut nodes, 100.0, 1).unwrap();
        assert_eq!((placed.scores, placed.order, placed.runs_on), (vec![1.0, 1.0], vec![0, 1], Some(1)));
    }

    #[test]
    fn what_is_no_cluster_is_refused() {
        for (nodes, dataset, says) in [
            ([node(1, 1.0, 0.0); 2], 0.0, "the dataset has 0 bytes"),
            ([node(1, -1.0, 0.0); 2], 1.0, "node 0 has -1 free bytes"),
            ([node(1, 1.0, f64::NAN); 2], 1.0, "node 0 has NaN bytes"),
            ([node(1, 1.0, 0.6); 2], 1.0, "the nodes have 1.2 bytes of a dataset of 1"),
        ] {
            assert!(place(&mut nodes.clone(), dataset, 1).unwrap_err().to_string().contains(says), "{says}");
        }
        let fine = Loading { fetch_s: &[0.1], request_s: &[0.1], workers: 1, cores: 1, memory: 0.1, memory_max: 0.9 };
        assert_eq!(workers(&fine).unwrap(), 1);
        for bad in [
            Loading { workers: 0, ..fine },
            Loading { cores: 0, ..fine },
            Loading { fetch_s: &[0.1, f64::NAN], ..fine },
            Loading { request_s: &[-1.0], ..fine },
            Loading { memory: f64::INFINITY, ..fine },
            Loading { memory_max: -0.5, ..fine },
        ] {
            assert!(workers(&bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn workers_follow_the_medians_and_the_memory() {
        let at = Loading {
            fetch_s: &[0.9, 0.3, 0.4],
            request_s: &[0.1],
            workers: 4,
            cores: 8,
            memory: 0.4,
            memory_max: 0.6,
        };
        assert_eq!(workers(&at).unwrap(), 4);
        // 40 are wanted, 8 may be, and 6 of 0.1 each are in 0.6 (a hair more, as 0.6 / 0.1 is below 6 in float64).
        let more = Loading { request_s: &[0.01], ..at };
        assert_eq!(workers(&Loading { memory_max: 0.61, ..more }).unwrap(), 6);
        assert_eq!(workers(&Loading { memory_max: 1.0, ..more }).unwrap(), 8);
        assert_eq!(workers(&Loading { memory_max: 0.05, ..more }).unwrap(), 1);
        assert_eq!(workers(&Loading { memory: 0.0, fetch_s: &[], ..at }).unwrap(), 8);
        assert_eq!(workers(&Loading { fetch_s: &[0.0], request_s: &[0.0], ..at }).unwrap(), 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        /// The twin looks for the best node again and again, and hands out the dataset byte by byte.
        #[test]
        fn placing_is_what_brute_force_finds(
            rows in prop::collection::vec((0..4u32, 0..8u32, 0..5u32), 1..6), more in 0..20u32, gpus in 0..4u32,
        ) {
            let mut nodes: Vec<_> =
                rows.iter().map(|&(g, free, held)| node(g, f64::from(free), f64::from(held))).collect();
            let held: u32 = rows.iter().map(|row| row.2).sum();
            let free: u32 = rows.iter().map(|row| row.1).sum();
            let bytes = (held + more).max(1);
            let before = nodes.clone();
            let found = place(&mut nodes, f64::from(bytes), gpus).unwrap();

            // As fractions of D × all free bytes, in whole numbers: nothing is rounded.
            let score = |row: &(u32, u32, u32)| {
                let fits = u32::from(row.0 >= gpus) * bytes * free.max(1);
                fits + row.2 * free.max(1) + row.1 * (bytes - held)
            };
            for (found, row) in found.scores.iter().zip(&rows) {
                prop_assert!((found - f64::from(score(row)) / f64::from(bytes * free.max(1))).abs() < 1e-12);
            }
            let parts: f64 = found.scores.iter().zip(&rows).map(|(s, row)| s - f64::from(u32::from(row.0 >= gpus))).sum();
            let expected = if free > 0 { 1.0 } else { f64::from(held) / f64::from(bytes) };
            prop_assert!((parts - expected).abs() < 1e-9, "{parts}");

            let mut rest: Vec<usize> = (0..rows.len()).collect();
            for &place in &found.order {
                let best = rest.iter().map(|&node| score(&rows[node])).max().unwrap();
                // Scores that are equal may differ by a rounding.
                prop_assert_eq!(score(&rows[place]), best);
                rest.retain(|&node| node != place);
            }
            if let Some(first) = found.order.first().filter(|&&first| rows[first].0 < gpus) {
                prop_assert!(found.runs_on.is_none() || found.scores[*first] <= 1.0 + 1e-12);
            }
            prop_assert_eq!(found.runs_on.is_some(), rows.iter().any(|row| row.0 >= gpus));

            let (mut room, mut fetch, mut homeless): (Vec<u32>, _, _) =
                (rows.iter().map(|row| row.1).collect(), vec![0u32; rows.len()], 0);
            for _ in held..bytes {
                match found.order.iter().find(|&&node| room[node] > 0) {
                    Some(&node) => (room[node], fetch[node]) = (room[node] - 1, fetch[node] + 1),
                    None => homeless += 1,
                }
            }
            let fetch: Vec<f64> = fetch.into_iter().map(f64::from).collect();
            prop_assert_eq!(&found.fetch_bytes, &fetch);
            prop_assert_eq!(found.homeless_bytes, f64::from(homeless));
            for (number, (now, then)) in nodes.iter().zip(&before).enumerate() {
                prop_assert_eq!(now.free_bytes, then.free_bytes - fetch[number]);
                prop_assert_eq!(now.held_bytes, then.held_bytes + fetch[number]);
                let taken = if found.runs_on == Some(number) { gpus } else { 0 };
                prop_assert_eq!(now.free_gpus, then.free_gpus - taken);
            }
        }

        /// The twin tries every number of workers. Times and memory are whole, so that nothing is rounded.
        #[test]
        fn as_many_workers_as_serve_the_trainer(
            mut fetch in prop::collection::vec(0..40u32, 0..6), mut request in prop::collection::vec(0..8u32, 0..6),
            now in 1..6u32, cores in 1..9u32, each in 0..9u32, most in 0..60u32,
        ) {
            let real = |values: &[u32]| values.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
            let (fetch_s, request_s) = (real(&fetch), real(&request));
            let loading = Loading {
                fetch_s: &fetch_s, request_s: &request_s, workers: now, cores,
                memory: f64::from(each * now), memory_max: f64::from(most),
            };
            let found = workers(&loading).unwrap();
            prop_assert!((1..=cores).contains(&found));
            fetch.sort_unstable();
            request.sort_unstable();
            // Twice the median, so that it is whole.
            let twice = |v: &[u32]| (!v.is_empty()).then(|| v[(v.len() - 1) / 2] + v[v.len() / 2]);
            let serves = |workers: u32| match (twice(&fetch), twice(&request)) {
                (Some(fetch), Some(request)) => workers * request >= fetch,
                _ => false,
            };
            let enough = (1..=cores).find(|&workers| serves(workers));
            let fits = (1..=cores).rev().find(|&workers| workers * each <= most).unwrap_or(1);
            prop_assert_eq!(found, enough.unwrap_or(fits));
        }
    }
}
