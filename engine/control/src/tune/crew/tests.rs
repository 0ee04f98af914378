//! Single decisions, and what is not believed. Whole runs against the best fixed number: `tests/pure/crew`.

use super::*;
use proptest::prelude::*;

/// A second with `threads` threads whose batches take `work_s` each, of a consumer whose batches take `own_s` each;
/// exact, without any buffer.
fn second(threads: usize, work_s: f64, own_s: f64) -> Seen {
    let made = (threads as f64 / work_s).min(1.0 / own_s);
    let batches = (made * 1000.0) as u64;
    let worked_s = batches as f64 * work_s;
    let busy = batches as f64 * own_s;
    Seen { taken: batches, own_s: busy, waited_s: (1000.0 - busy).max(0.0), made: batches, worked_s, cpu_s: worked_s }
}

#[test]
fn a_consumer_that_is_served_keeps_what_it_needs_and_a_quarter() {
    let mut crew = Crew::new(16, 32);
    let changes: Vec<_> = (0..40).filter_map(|_| crew.follow(second(crew.threads(), 0.1, 0.05))).collect();
    assert_eq!(changes, [Change { before: 16, threads: 3, why: Why::Enough }]);
    assert_eq!((crew.threads(), crew.last()), (3, Some(changes[0])));
}

#[test]
fn a_consumer_that_waits_gets_one_a_processor_and_more_only_if_threads_wait_too() {
    let mut crew = Crew::new(4, 32);
    for _ in 0..40 {
        crew.follow(second(crew.threads(), 0.1, 0.001));
    }
    assert_eq!(crew.threads(), 4, "they compute");
    let mut crew = Crew::new(4, 32);
    for _ in 0..40 {
        let seen = second(crew.threads(), 0.1, 0.001);
        crew.follow(Seen { cpu_s: seen.worked_s / 5.0, ..seen });
    }
    assert_eq!(crew.threads(), 20, "each keeps a fifth of a processor busy");
}

/// A second of a consumer that waits for `threads` threads whose batches take `work_s` each.
fn hungry(threads: usize, work_s: f64) -> Seen {
    let made = threads as f64 / work_s;
    let worked_s = made * work_s;
    Seen { taken: made as u64, own_s: 0.1, waited_s: 0.9, made: made as u64, worked_s, cpu_s: worked_s }
}

#[test]
fn searches_that_find_nothing_become_rare() {
    let mut crew = Crew::new(8, 8);
    // Every twelve seconds samples become a fifth larger, or smaller again.
    let work = |second: usize| if (second / 12).is_multiple_of(2) { 0.1 } else { 0.12 };
    let changes: Vec<_> = (0..2000).filter_map(|at| crew.follow(hungry(crew.threads(), work(at)))).collect();
    let tries = changes.iter().filter(|change| change.why == Why::Tries).count();
    assert!((2..=12).contains(&tries), "{tries} searches in 2,000 s: {changes:?}");
}

#[test]
fn a_rate_that_falls_far_is_looked_into_although_the_last_search_was_in_vain() {
    let mut crew = Crew::new(8, 8);
    let first: Vec<_> = (0..8).filter_map(|_| crew.follow(hungry(crew.threads(), 0.1))).collect();
    assert_eq!(first.iter().map(|change| change.why).collect::<Vec<_>>(), [Why::Tries, Why::Less], "in vain");
    // Now eight are in each other's way, and four are not.
    let work = |threads: usize| if threads > 4 { 0.3 } else { 0.1 };
    (0..10).for_each(|_| _ = crew.follow(hungry(crew.threads(), work(crew.threads()))));
    assert_eq!(crew.threads(), 4);
}

#[test]
fn a_number_that_was_too_few_is_not_tried_again_while_as_much_is_asked_for() {
    let mut crew = Crew::new(8, 8);
    // 1.2 threads are busy on average, and two are late now and then.
    let mut second = |load: f64| {
        let waited_s = if crew.threads() <= 2 { 0.1 } else { 0.0 };
        crew.follow(Seen { taken: 100, own_s: 1.0 - waited_s, waited_s, made: 100, worked_s: load, cpu_s: load })
    };
    let whys: Vec<_> = (0..300).filter_map(|_| second(1.2)).map(|change| (change.threads, change.why)).collect();
    assert_eq!(whys, [(2, Why::Enough), (3, Why::Waits)]);
    // Half as much is asked for.
    assert!((0..30).filter_map(|_| second(0.6)).any(|change| change.threads == 1));
}

#[test]
fn nothing_is_learnt_of_clocks_that_say_nonsense_or_of_nobody_who_takes_batches() {
    let good = second(8, 0.1, 0.05);
    let bad = [
        Seen { own_s: f64::NAN, ..good },
        Seen { waited_s: f64::INFINITY, ..good },
        Seen { own_s: -1e9, ..good },
        Seen { worked_s: f64::NAN, ..good },
        Seen { cpu_s: f64::INFINITY, ..good },
        Seen { worked_s: 0.0, ..good },
        Seen { worked_s: -1.0, ..good },
        Seen { taken: 0, ..good },
        Seen { made: 0, ..good },
        Seen::default(),
    ];
    for seen in bad {
        let mut crew = Crew::new(8, 8);
        assert!((0..50).all(|_| crew.follow(seen).is_none()), "{seen:?}");
    }
    assert_eq!((Crew::new(0, 0).threads(), Crew::new(9, 4).threads()), (1, 4));
}

#[test]
fn reasons_have_numbers_and_words() {
    let codes: Vec<u64> = Why::ALL.iter().map(|why| why.code()).collect();
    assert_eq!(codes, [1, 2, 3, 4, 5, 6, 7]);
    assert!(Why::ALL.into_iter().all(|why| Why::of_code(why.code()) == Some(why) && !why.to_string().is_empty()));
    assert_eq!((Why::of_code(0), Why::of_code(8)), (None, None));
}

proptest! {
    /// Whatever it is told: from 1 to the most, one change a look, each as it says.
    #[test]
    fn the_number_stays_within_its_bounds(
        cores in 1usize..20,
        most in 1usize..40,
        seen in proptest::collection::vec((0u64..50, 0u32..1000, 0u32..1000, 0u64..50, 0u32..5000, 0u32..5000), 1..200),
    ) {
        let mut crew = Crew::new(cores, most);
        for (taken, own, waited, made, worked, cpu) in seen {
            let ms = |ms: u32| f64::from(ms) / 1000.0;
            let (own_s, waited_s, worked_s, cpu_s) = (ms(own), ms(waited), ms(worked), ms(cpu));
            let before = crew.threads();
            let change = crew.follow(Seen { taken, own_s, waited_s, made, worked_s, cpu_s });
            prop_assert!((1..=most).contains(&crew.threads()));
            match change {
                Some(change) => {
                    prop_assert_eq!((change.before, change.threads), (before, crew.threads()));
                    prop_assert!(change.before != change.threads);
                }
                None => prop_assert_eq!(crew.threads(), before),
            }
        }
    }
}

#[test]
fn a_rank_that_waits_takes_the_processors_that_others_leave_and_gives_them_back() {
    let mut crew = Crew::new(2, 8);
    assert_eq!(crew.wanted(), f64::INFINITY, "nothing is known yet");
    let follow = |crew: &mut Crew, share: f64| {
        let changes: Vec<_> = (0..12)
            .filter_map(|_| {
                crew.share(share);
                crew.follow(hungry(crew.threads(), 0.1))
            })
            .map(|change| (change.threads, change.why))
            .collect();
        assert_eq!(crew.wanted(), f64::INFINITY);
        changes
    };
    assert_eq!(follow(&mut crew, 2.7), [], "less than a processor more");
    assert_eq!(follow(&mut crew, 6.8), [(7, Why::Waits)]);
    assert_eq!(follow(&mut crew, 6.4), []);
    assert_eq!(follow(&mut crew, 2.2), [(2, Why::Shared)]);
    // A consumer that is served wants what it uses, and a quarter.
    for _ in 0..20 {
        crew.share(4.0);
        crew.follow(second(crew.threads(), 0.1, 0.2));
    }
    assert!((crew.wanted() - 0.625).abs() < 0.01, "{}", crew.wanted());
}

#[test]
fn threads_that_wait_for_a_store_are_not_cut_to_the_processors() {
    let mut crew = Crew::new(4, 32);
    let slow = |threads: usize| Seen { cpu_s: hungry(threads, 0.1).worked_s / 5.0, ..hungry(threads, 0.1) };
    (0..40).for_each(|_| _ = crew.follow(slow(crew.threads())));
    assert_eq!(crew.threads(), 20);
    crew.share(2.0);
    (0..3).for_each(|_| _ = crew.follow(slow(crew.threads())));
    assert_eq!((crew.threads(), crew.last().map(|change| change.why)), (10, Some(Why::Shared)));
}
