//! What is told of an epoch, held to lists.

use super::*;
use crate::control::Control;
use crate::index::ScoreTable;
use crate::ledger::Ledger;
use crate::policy;
use crate::random::{Purpose, below, generator};

fn beliefs(samples: usize, scored: &[(SampleId, u32)]) -> Snapshot {
    let mut scores = ScoreTable::new(samples, 0.0);
    let last = scored.iter().map(|&(_, step)| step).max().unwrap_or(0);
    scored.iter().for_each(|&(id, step)| _ = scores.record(id, 1.0, step));
    let mut control = Control::new(
        ScoreTable::new(samples, 0.0),
        Ledger::new(0, samples, policy::from_name("lru", samples).unwrap()),
    );
    control.replace_beliefs(scores, last);
    control.snapshot().unwrap()
}

/// Random epochs of random batches: every number of the report, counted again the slow way.
#[test]
fn a_report_is_what_counting_every_row_gives() {
    let rng = &mut generator(5, 0, 0, Purpose::Order);
    let samples = 700u32;
    let mut deliveries = Deliveries::new(samples as usize);
    let mut ever = std::collections::HashSet::new();
    for epoch in [0u64, 1, 2, 2, 9] {
        deliveries.begin(epoch, 0);
        let mut rows: Vec<(SampleId, f32, i64)> = Vec::new();
        for _ in 0..below(rng, 60) {
            let batch: Vec<_> = (0..below(rng, 40))
                .map(|_| {
                    // Some samples far more often than others.
                    let bound = 1 + below(rng, samples);
                    let id = below(rng, bound);
                    (id, 0.25 + below(rng, 8) as f32 / 4.0, i64::from(id % 7) * 3)
                })
                .collect();
            let (ids, weights): (Vec<_>, Vec<_>) = batch.iter().map(|&(id, weight, _)| (id, weight)).unzip();
            deliveries.deliver(&ids, &weights, Some(batch.iter().map(|row| row.2)));
            rows.extend(batch);
        }
        let report = deliveries.report(&beliefs(samples as usize, &[]), 10);
        let mut times = vec![0u32; samples as usize];
        rows.iter().for_each(|row| times[row.0 as usize] += 1);
        ever.extend(rows.iter().map(|row| row.0));
        let distinct = times.iter().filter(|&&n| n > 0).count() as u64;
        assert_eq!((report.epoch, report.delivered, report.distinct), (epoch, rows.len() as u64, distinct));
        assert_eq!(deliveries.distinct(), (distinct, ever.len() as u64));
        let sum: f64 = rows.iter().map(|row| f64::from(row.1)).sum();
        let squares: f64 = rows.iter().map(|row| f64::from(row.1) * f64::from(row.1)).sum();
        if !rows.is_empty() {
            assert!((report.weight_mean - sum / rows.len() as f64).abs() < 1e-12);
            assert!((report.ess_fraction - sum * sum / (squares * rows.len() as f64)).abs() < 1e-12);
            assert_eq!(report.weight_max, rows.iter().map(|row| row.1).fold(0.0, f32::max));
        }
        let counted: u64 = report
            .uses
            .iter()
            .map(|&(least, most, n)| {
                assert_eq!(
                    n,
                    times.iter().filter(|&&t| (least..=most).contains(&t)).count() as u64,
                    "{least} to {most}"
                );
                n
            })
            .sum();
        assert_eq!(counted, distinct);
        let mut most: Vec<(SampleId, u32)> =
            (0..samples).map(|id| (id, times[id as usize])).filter(|&(_, n)| n > 0).collect();
        most.sort_by_key(|&(id, n)| (std::cmp::Reverse(n), id));
        most.truncate(NAMED);
        assert_eq!(report.most_used, most);
        for label in 0..21usize {
            let of = |row: &&(SampleId, f32, i64)| row.2 == label as i64;
            let n = rows.iter().filter(of).count();
            let weight: f64 = rows.iter().filter(of).map(|row| f64::from(row.1)).sum();
            match report.classes.iter().find(|class| class.0 == label) {
                Some(&(_, share, of_weight)) => {
                    assert!(
                        (share - n as f64 / rows.len() as f64).abs() < 1e-12 && (of_weight - weight / sum).abs() < 1e-9
                    );
                }
                None => assert_eq!(n, 0),
            }
        }
    }
}

#[test]
fn the_rest_of_an_epoch_goes_on_and_another_pass_begins_anew() {
    let mut deliveries = Deliveries::new(8);
    let deliver = |deliveries: &mut Deliveries, ids: &[SampleId]| {
        deliveries.deliver(ids, &vec![1.0; ids.len()], None::<std::iter::Empty<i64>>);
    };
    deliveries.begin(3, 0);
    deliver(&mut deliveries, &[1, 2, 2]);
    deliveries.begin(3, 1);
    deliver(&mut deliveries, &[2, 5]);
    let report = deliveries.report(&beliefs(8, &[]), 1);
    assert_eq!((report.delivered, report.distinct, report.most_used), (5, 3, vec![(2, 3), (1, 1), (5, 1)]));
    deliveries.begin(3, 0);
    deliver(&mut deliveries, &[2]);
    assert_eq!(deliveries.distinct(), (1, 3));
    for _ in 0..400 {
        deliver(&mut deliveries, &[2]);
    }
    assert_eq!(deliveries.report(&beliefs(8, &[]), 1).most_used, [(2, 255)]);
}

#[test]
fn scores_are_told_by_their_age_in_epochs() {
    // The last step is 100, an epoch has 10.
    let scored = [(0, 100), (1, 91), (2, 90), (3, 81), (4, 79), (5, 30), (6, 1)];
    let report = Deliveries::new(9).report(&beliefs(9, &scored), 10);
    let ages = [(0, Some(1), 2), (1, Some(2), 2), (2, Some(4), 1), (4, Some(8), 1), (8, Some(16), 1), (16, None, 0)];
    assert_eq!((report.score_ages, report.unscored), (ages.to_vec(), 2));
}

#[test]
fn classes_that_nobody_could_count_are_left_out() {
    let mut deliveries = Deliveries::new(4);
    deliveries.begin(0, 0);
    deliveries.deliver(&[0, 1], &[1.0, 1.0], Some([0i64, 1].into_iter()));
    assert_eq!(deliveries.report(&beliefs(4, &[]), 1).classes.len(), 2);
    for label in [-1, 1 << 16, i64::MAX, i64::MIN] {
        deliveries.begin(0, 0);
        deliveries.deliver(&[2, 3], &[1.0, 1.0], Some([0, label].into_iter()));
        assert_eq!(deliveries.report(&beliefs(4, &[]), 1).classes, []);
    }
}
