//! Dividing one amount among many who want some of it.

/// Each gets t × its weight, and nobody more than it wants; t is the largest for which `total` suffices. With equal
/// weights that is what a fair queue makes of a link. Exact: one sort, one pass.
pub fn fill(wanted: &[f64], weights: &[f64], total: f64) -> Vec<f64> {
    Filler::default().fill(wanted, weights, total)
}

/// One after the other, each as much as it wants.
pub(super) fn in_turns(wanted: &[f64], total: f64) -> Vec<f64> {
    let mut left = total;
    let take = |&wanted: &f64| {
        let given = wanted.min(left);
        left -= given;
        given
    };
    wanted.iter().map(take).collect()
}

/// [`fill`] for amounts that change little from one call to the next: it begins with the order of the last call, and a
/// sort of what is nearly in order takes one pass. The results are the same to the last bit.
#[derive(Debug, Default)]
pub struct Filler {
    first_full: Vec<usize>,
    ratios: Vec<f64>,
}

impl Filler {
    /// See [`fill`].
    pub fn fill(&mut self, wanted: &[f64], weights: &[f64], total: f64) -> Vec<f64> {
        let Self { first_full, ratios } = self;
        if first_full.len() != wanted.len() {
            first_full.clear();
            first_full.extend(0..wanted.len());
        }
        ratios.clear();
        // Who wants nothing, or may have nothing, is behind everybody.
        let ratio = |(&wanted, &weight): (&f64, &f64)| {
            if wanted > 0.0 && weight > 0.0 { wanted / weight } else { f64::INFINITY }
        };
        ratios.extend(wanted.iter().zip(weights).map(ratio));
        first_full.sort_by(|&a, &b| ratios[a].total_cmp(&ratios[b]).then(a.cmp(&b)));
        let mut given = vec![0.0; wanted.len()];
        let mut left = total;
        let takes = |&&i: &&usize| wanted[i] > 0.0 && weights[i] > 0.0;
        let mut weight: f64 = first_full.iter().filter(takes).map(|&i| weights[i]).sum();
        for (place, &i) in first_full.iter().enumerate() {
            if !takes(&&i) {
                continue;
            }
            if wanted[i] * weight > left * weights[i] {
                let rest = || first_full[place..].iter().filter(takes);
                let level = left.max(0.0) / rest().map(|&i| weights[i]).sum::<f64>();
                rest().for_each(|&i| given[i] = wanted[i].min(level * weights[i]));
                break;
            }
            given[i] = wanted[i];
            left -= wanted[i];
            weight -= weights[i];
        }
        given
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As it stands in the definition: sorted anew, without those who get nothing.
    fn plain(wanted: &[f64], weights: &[f64], total: f64) -> Vec<f64> {
        let mut first_full: Vec<usize> = (0..wanted.len()).filter(|&i| wanted[i] > 0.0 && weights[i] > 0.0).collect();
        first_full.sort_by(|&a, &b| (wanted[a] / weights[a]).total_cmp(&(wanted[b] / weights[b])));
        let mut given = vec![0.0; wanted.len()];
        let mut left = total;
        let mut weight: f64 = first_full.iter().map(|&i| weights[i]).sum();
        for (place, &i) in first_full.iter().enumerate() {
            if wanted[i] * weight > left * weights[i] {
                let level = left.max(0.0) / first_full[place..].iter().map(|&i| weights[i]).sum::<f64>();
                first_full[place..].iter().for_each(|&i| given[i] = wanted[i].min(level * weights[i]));
                break;
            }
            given[i] = wanted[i];
            left -= wanted[i];
            weight -= weights[i];
        }
        given
    }

    proptest! {
        #[test]
        fn a_filler_that_is_used_again_fills_as_a_new_one_to_the_last_bit(
            calls in prop::collection::vec(
                (prop::collection::vec((0..5u8, 0..4u8), 6..8), 0..40u8, 1..9u8), 1..8,
            ),
        ) {
            let mut filler = Filler::default();
            for (rows, total, scale) in calls {
                let wanted: Vec<f64> = rows.iter().map(|row| f64::from(row.0) / f64::from(scale)).collect();
                let weights: Vec<f64> = rows.iter().map(|row| f64::from(row.1) / 3.0).collect();
                let total = f64::from(total) / 7.0;
                let found = filler.fill(&wanted, &weights, total);
                let bits = |all: Vec<f64>| all.into_iter().map(f64::to_bits).collect::<Vec<_>>();
                prop_assert_eq!(bits(found), bits(plain(&wanted, &weights, total)));
            }
        }
    }
}
