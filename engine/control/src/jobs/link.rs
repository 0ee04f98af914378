//! Dividing one amount among many who want some of it.

/// Each gets t × its weight, and nobody more than it wants; t is the largest for which `total` suffices. With equal
/// weights that is what a fair queue makes of a link. Exact: one sort, one pass.
pub(super) fn fill(wanted: &[f64], weights: &[f64], total: f64) -> Vec<f64> {
    let mut first_full: Vec<usize> = (0..wanted.len()).filter(|&i| wanted[i] > 0.0 && weights[i] > 0.0).collect();
    first_full.sort_by(|&a, &b| (wanted[a] / weights[a]).total_cmp(&(wanted[b] / weights[b])));
    let mut given = vec![0.0; wanted.len()];
    let mut left = total;
    let mut weight: f64 = first_full.iter().map(|&i| weights[i]).sum();
    for (place, &i) in first_full.iter().enumerate() {
        if wanted[i] * weight > left * weights[i] {
            let level = left.max(0.0) / first_full[place..].iter().map(|&i| weights[i]).sum::<f64>();
            for &i in &first_full[place..] {
                given[i] = wanted[i].min(level * weights[i]);
            }
            break;
        }
        given[i] = wanted[i];
        left -= wanted[i];
        weight -= weights[i];
    }
    given
}

/// One after the other, each as much as it wants.
pub(super) fn take_turns(wanted: &[f64], total: f64) -> Vec<f64> {
    let mut left = total;
    let take = |&wanted: &f64| {
        let given = wanted.min(left);
        left -= given;
        given
    };
    wanted.iter().map(take).collect()
}
