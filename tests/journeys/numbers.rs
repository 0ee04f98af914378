//! The numbers an engine tells about itself, to its own process and to others.

use super::stat;
use super::stops::gated;
use super::support::{Patterned, engine, next, settings};
use lossfeed::loader::Next;
use lossfeed::stats::{self, JobPage};
use lossfeed::{Engine, Settings};
use std::time::Duration;

/// The consumer's work counts as such also where it had asked in vain whether the next batch is there already.
#[test]
fn work_between_an_answer_that_nothing_is_there_and_the_next_question_is_busy_time() {
    const WORK: Duration = Duration::from_millis(30);
    let (gate, engine) = gated(Settings { workers: Some(1), ..settings(8) }, None);
    let iteration = engine.start_epoch().unwrap();
    gate.open_to(8);
    drop(next(&engine, iteration).unwrap());
    let before = stat(&engine, "busy_us_total");
    assert!(matches!(engine.next_batch(iteration, Duration::ZERO), Ok(Next::Pending)), "the gate is closed");
    std::thread::sleep(WORK);
    gate.open_to(16);
    assert!(next(&engine, iteration).unwrap().is_some());
    let busy = stat(&engine, "busy_us_total") - before;
    assert!(busy >= WORK.as_micros() as f64, "{busy} us of work of {WORK:?}");
}

#[test]
fn the_number_of_processors_is_asked_once_and_the_engine_says_what_it_was_told() {
    let asked = Settings { workers: None, ..settings(8) };
    let engine = engine(Patterned::new(64), asked.clone());
    let told = engine.settings();
    assert_eq!((told.workers, told.processors), (None, Some(asked.worker_count())));
    assert_eq!((engine.workers(), told.worker_count()), (asked.worker_count(), asked.worker_count()));
}

/// The engine's own page, as soon as `when` holds for it.
fn page(job: &str, when: impl Fn(&JobPage) -> bool) -> JobPage {
    for _ in 0..600 {
        let mine = stats::discover().into_iter().find(|page| page.identity.job == job);
        if let Some(page) = mine.filter(&when) {
            return page;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("no such page within a minute");
}

/// What another process sees is what `stats` says, and nobody has to call `stats` for it.
#[test]
fn a_page_is_fresh_by_itself_and_its_coverage_is_over_the_ranks_own_share() {
    let job = format!("numbers-{}", std::process::id());
    let of_eight = Settings { rank: 3, world_size: 8, stats: true, job: Some(job.clone()), ..settings(4) };
    let engine: Engine = engine(Patterned::new(320), of_eight);
    let iteration = engine.start_epoch().unwrap();
    let mut batches = 0;
    while let Some(batch) = next(&engine, iteration).unwrap() {
        engine.apply_losses(&batch.ticket, &[1.0; 4]).unwrap();
        batches += 1;
    }
    assert_eq!(batches, 10);
    // Scored in the steps 0 to 9, and it is step 10 now: 5.5 old in the mean.
    let page = page(&job, |page| page.snapshot.get("score_age_steps") == Some(5));
    let counter = |name: &str| page.snapshot.get(name);
    assert_eq!((counter("samples_in_share"), counter("samples_in_dataset")), (Some(40), Some(320)));
    assert_eq!((stats::COVERAGE_EPOCH.of(&counter), stats::COVERAGE_EVER.of(&counter)), (Some(1.0), Some(0.125)));
    assert_eq!((stat(&engine, "coverage_epoch"), stat(&engine, "coverage_ever")), (1.0, 0.125));
}

#[test]
fn stats_are_the_pages_counters_their_former_names_and_what_is_derived() {
    let engine = engine(Patterned::new(64), settings(8));
    let names: Vec<String> = engine.stats().into_iter().map(|(name, _)| name).collect();
    for number in stats::descriptors() {
        assert!(names.iter().any(|name| name == number.name), "{}", number.name);
    }
    assert_eq!(names.len(), stats::descriptors().count() + stats::RENAMED.len());
    assert_eq!(stat(&engine, "wait_score_us_total"), stat(&engine, "wait_decide_us_total"));
}
