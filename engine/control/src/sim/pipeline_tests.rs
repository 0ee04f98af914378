//! The pipeline's recurrences against a machine that goes from event to event and knows nothing of them.

use proptest::prelude::*;

use super::pipeline::{Costs, Pipeline, Time};

/// One epoch, event by event: who can do anything does it, then time goes on to the next thing that ends.
fn by_events(costs: &Costs, batches: &[Vec<u64>], hits: &[u64]) -> Time {
    let mut clock = 0.0f64;
    // Requests of (batch, bytes), in order: waiting, in latency until, waiting for the link.
    let mut waiting: std::collections::VecDeque<(usize, u64)> =
        batches.iter().enumerate().flat_map(|(b, misses)| misses.iter().map(move |&m| (b, m))).collect();
    let mut latent: Vec<(f64, usize, usize, u64)> = vec![];
    let mut at_link: std::collections::VecDeque<(usize, u64)> = Default::default();
    let mut on_link: Option<(f64, usize)> = None;
    let mut missing: Vec<usize> = batches.iter().map(Vec::len).collect();
    let (mut sent, mut begun, mut ended, mut copied, mut copying) = (0, 0, 0, 0, None::<f64>);
    let (mut computing, mut idle_since, mut stall) = (None::<f64>, 0.0, 0.0);
    let takes = |bytes: u64, rate: Option<f64>| rate.map_or(0.0, |rate| bytes as f64 / rate);
    while ended < batches.len() {
        loop {
            let mut moved = false;
            if let Some(until) = computing
                && until <= clock
            {
                (computing, idle_since, ended, moved) = (None, clock, ended + 1, true);
            }
            if let Some(until) = copying
                && until <= clock
            {
                (copying, copied, moved) = (None, copied + 1, true);
            }
            if let Some((until, batch)) = on_link
                && until <= clock
            {
                missing[batch] -= 1;
                (on_link, moved) = (None, true);
            }
            latent.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            while latent.first().is_some_and(|first| first.0 <= clock) {
                let (_, _, batch, bytes) = latent.remove(0);
                at_link.push_back((batch, bytes));
                moved = true;
            }
            if on_link.is_none()
                && let Some((batch, bytes)) = at_link.pop_front()
            {
                on_link = Some((clock + takes(bytes, costs.bandwidth_bytes_per_s), batch));
                moved = true;
            }
            let busy = latent.len() + at_link.len() + usize::from(on_link.is_some());
            if busy < costs.in_flight
                && let Some(&(batch, bytes)) = waiting.front()
                && batch < begun + costs.ahead
            {
                waiting.pop_front();
                latent.push((clock + costs.latency_s, sent, batch, bytes));
                sent += 1;
                moved = true;
            }
            let next = copied + usize::from(copying.is_some());
            if copying.is_none() && next < batches.len() && missing[next] == 0 && next < begun + costs.ahead {
                let bytes = hits[next] + batches[next].iter().sum::<u64>();
                copying = Some(clock + takes(bytes, costs.copy_bytes_per_s));
                moved = true;
            }
            if computing.is_none() && copied > begun {
                stall += clock - idle_since;
                (computing, begun, moved) = (Some(clock + costs.step_s), begun + 1, true);
            }
            if !moved {
                break;
            }
        }
        let ends = computing.into_iter().chain(copying).chain(on_link.map(|l| l.0)).chain(latent.iter().map(|l| l.0));
        clock = ends.fold(f64::INFINITY, f64::min).max(clock);
        if clock.is_infinite() {
            break;
        }
    }
    Time { total_s: clock.min(idle_since.max(0.0)), stall_s: stall }
}

fn near(a: Time, b: Time) -> bool {
    let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * (1.0 + a.abs());
    near(a.total_s, b.total_s) && near(a.stall_s, b.stall_s)
}

proptest! {
    #[test]
    fn the_recurrences_take_as_long_as_the_events(
        epochs in prop::collection::vec(
            prop::collection::vec((prop::collection::vec(1u64..2000, 0..9), 0u64..3000), 1..12), 1..4),
        latency in prop_oneof![Just(0.0), 1e-4..0.2],
        bandwidth in prop::option::of(1e3..1e6),
        copy in prop::option::of(1e3..1e6),
        step in prop_oneof![Just(0.0), 1e-3..0.3],
        in_flight in 1usize..6,
        ahead in 1usize..5,
    ) {
        let costs = Costs {
            latency_s: latency,
            bandwidth_bytes_per_s: bandwidth,
            copy_bytes_per_s: copy,
            step_s: step,
            in_flight,
            ahead,
        };
        costs.check().unwrap();
        let mut pipeline = Pipeline::new(costs);
        for batches in &epochs {
            for (misses, hits) in batches {
                pipeline.batch(misses.iter().copied(), hits + misses.iter().sum::<u64>());
            }
            let (misses, hits): (Vec<_>, Vec<_>) = batches.iter().cloned().unzip();
            let (found, expected) = (pipeline.next_epoch(), by_events(&costs, &misses, &hits));
            prop_assert!(near(found, expected), "{found:?}, by events {expected:?}");
        }
    }

    /// Fewer misses, a faster link, or more at once never take longer.
    #[test]
    fn less_work_is_never_slower(
        misses in prop::collection::vec(prop::collection::vec(1u64..2000, 0..9), 1..12),
        faster in 1.0..4.0,
    ) {
        let time = |costs: Costs, skip: usize| {
            let mut pipeline = Pipeline::new(costs);
            misses.iter().for_each(|batch| pipeline.batch(batch.iter().skip(skip).copied(), 1000));
            pipeline.next_epoch().total_s
        };
        let costs = Costs {
            latency_s: 0.01,
            bandwidth_bytes_per_s: Some(1e5),
            copy_bytes_per_s: Some(1e6),
            step_s: 0.02,
            in_flight: 2,
            ahead: 2,
        };
        let whole = time(costs, 0);
        let least = misses.len() as f64 * costs.step_s;
        prop_assert!(whole >= least);
        prop_assert!(time(costs, 1) <= whole + 1e-12);
        let faster = Costs { bandwidth_bytes_per_s: Some(1e5 * faster), ..costs };
        for easier in [faster, Costs { in_flight: 5, ..costs }, Costs { ahead: 5, ..costs }] {
            prop_assert!(time(easier, 0) <= whole + 1e-12);
        }
    }
}

/// By hand: two requests of 1 s each, one at a time, for two batches of one sample; steps of 0.4 s.
#[test]
fn a_run_by_hand() {
    let costs = Costs { latency_s: 1.0, step_s: 0.4, in_flight: 1, ahead: 1, ..Costs::default() };
    let mut pipeline = Pipeline::new(costs);
    pipeline.batch([7].into_iter(), 7);
    // Asked for when the first step begins, at 1 s; there at 2 s; the step before ended at 1.4 s.
    pipeline.batch([7].into_iter(), 7);
    let first = pipeline.next_epoch();
    assert!(near(first, Time { total_s: 2.4, stall_s: 1.6 }), "{first:?}");
    // All hits: nothing to wait for.
    pipeline.batch([].into_iter(), 7);
    let second = pipeline.next_epoch();
    assert!(near(second, Time { total_s: 0.4, stall_s: 0.0 }), "{second:?}");
}

#[test]
fn impossible_costs_are_refused_with_the_range() {
    let refused = |costs: Costs, said: &str| {
        let error = costs.check().unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    };
    refused(Costs { in_flight: 0, ..Costs::default() }, "0 requests in flight");
    refused(Costs { ahead: 1 << 20, ..Costs::default() }, "batches ahead");
    refused(Costs { latency_s: -1.0, ..Costs::default() }, "latency");
    refused(Costs { step_s: f64::NAN, ..Costs::default() }, "step");
    refused(Costs { copy_bytes_per_s: Some(0.0), ..Costs::default() }, "above 0");
}
