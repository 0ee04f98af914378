//! Verdicts on ranks that are made up: each rule, its words and what it leaves unsaid.

use super::model::Model;
use super::*;

/// A rank of 100 steps: each waits `wait` and works `busy` microseconds, all waits reading.
fn rank(wait: u64, busy: u64) -> Measured {
    Measured {
        loader: Loader::Torch,
        steps: 100,
        samples: 3200,
        passes: 1,
        wait: Wait { total_us: 100 * wait, source_us: 100 * wait, ..Wait::default() },
        busy_us: 100 * busy,
        work: Work { batches: 100, total_us: 100 * (wait + busy), ..Work::default() },
        settings: Settings { workers: Some(1), processors: Some(8), ..Settings::default() },
        ..Measured::default()
    }
}

fn title(ranks: &[Measured]) -> String {
    judge(ranks).title()
}

#[test]
fn fewer_than_20_steps_are_no_verdict() {
    let few = Measured { steps: 19, ..rank(10_000, 1_000) };
    assert_eq!((title(&[few]), title(&[])), ("incomplete".to_owned(), "incomplete".to_owned()));
    assert_eq!(title(&[Measured { steps: 20, ..few }]), "input-bound (source)");
}

#[test]
fn a_wait_is_named_by_its_largest_part_and_the_second_only_where_the_first_explains_too_little() {
    let mut m = rank(10_000, 10_000);
    assert_eq!(judge(&[m]).also, None);
    m.wait = Wait { source_us: 610_000, decode_us: 390_000, ..m.wait };
    let verdict = judge(&[m]);
    assert_eq!((verdict.title(), verdict.also), ("input-bound (source)".to_owned(), Some((Cause::Decode, 0.39))));
    m.wait = Wait { source_us: 180_000, decode_us: 820_000, ..m.wait };
    assert_eq!((title(&[m]), judge(&[m]).also), ("input-bound (decode)".to_owned(), None));
    m.wait = Wait { source_us: 0, decode_us: 0, handover_us: 300_000, python_us: 700_000, ..m.wait };
    assert_eq!(judge(&[m]).also, Some((Cause::Handover, 0.3)));
}

#[test]
fn what_a_loop_costs_anyway_is_no_bottleneck() {
    assert_eq!(title(&[rank(900, 300)]), "ok", "a tiny model");
    assert_eq!(title(&[Measured { samples: 25_600, ..rank(3_000, 500) }]), "ok", "12 µs a sample: indexing memory");
    assert_eq!(title(&[rank(2_000, 500)]), "input-bound (source)");
    let handed =
        |us| Measured { wait: Wait { total_us: 100 * us, handover_us: 100 * us, ..Wait::default() }, ..rank(us, 500) };
    assert_eq!(title(&[handed(4_000)]), "ok", "what a worker process costs");
    assert_eq!(title(&[handed(6_000)]), "input-bound (hand-over)");
    assert_eq!(title(&[rank(1_000, 9_500)]), "ok", "under a tenth");
}

#[test]
fn nothing_is_proposed_where_nothing_is_wrong() {
    for m in [rank(0, 20_000), Measured { own_processor_us: 2_000_000, ..rank(0, 20_000) }, rank(0, 300)] {
        let verdict = judge(&[m]);
        assert!(!verdict.word.is_wrong() && verdict.next.is_none() && verdict.what_if.is_empty(), "{verdict:?}");
    }
    assert_eq!(title(&[Measured { own_processor_us: 2_000_000, ..rank(0, 20_000) }]), "compute-bound");
    assert_eq!(title(&[Measured { compute_us: 1_900_000, ..rank(0, 20_000) }]), "compute-bound");
}

#[test]
fn workers_are_proposed_as_many_as_keep_up_and_never_fewer_than_there_are() {
    // Making a batch takes 60 ms, the training 10.
    let m = Measured { work: Work { batches: 100, total_us: 6_000_000, ..Work::default() }, ..rank(50_000, 10_000) };
    let verdict = judge(&[m]);
    assert_eq!(verdict.next.as_deref(), Some("DataLoader(…, num_workers=7)"));
    assert_eq!(verdict.what_if[0].change, "num_workers 1 → 7");
    assert!((10_000.0..11_500.0).contains(&verdict.what_if[0].then_us), "{:?}", verdict.what_if);
    let bound = &verdict.what_if[1];
    assert_eq!((bound.basis, bound.then_us), (Basis::Measured, 10_000.0));
    // Computed by two processors, more workers bring nothing, and none are proposed.
    let computed = Measured {
        work: Work { processor_us: 6_000_000, ..m.work },
        wait: Wait { source_us: 0, python_us: 2_000_000, total_us: 2_000_000, ..Wait::default() },
        own_processor_us: 1_000_000,
        settings: Settings { workers: Some(2), processors: Some(2), ..m.settings },
        ..m
    };
    let verdict = judge(&[computed]);
    assert_eq!(verdict.title(), "input-bound (python)");
    assert!(!verdict.next.unwrap().contains("num_workers"));
}

/// A loop of 10 ms a step that makes its batches itself: each waits so long and computes so long (ms).
fn itself(waits: u64, computes: u64, processors: u64) -> Measured {
    let work = Work {
        batches: 100,
        total_us: 100_000 * (waits + computes),
        processor_us: 100_000 * computes,
        ..Work::default()
    };
    let settings = Settings { workers: Some(0), processors: Some(processors), ..Settings::default() };
    Measured { work, settings, ..rank(1000 * (waits + computes), 10_000) }
}

#[test]
fn waiting_overlaps_over_workers_and_computing_over_processors() {
    let step = |m: &Measured, workers| Model::of(m).unwrap().with(workers) / 1e3;
    let close = |got: f64, ms: f64| assert!((got - ms).abs() < 1.0, "{got} ms and not {ms}");
    let waits = itself(60, 0, 2);
    for (workers, ms) in [(0, 70.0), (1, 60.0), (2, 30.0), (6, 11.4), (32, 10.7)] {
        close(step(&waits, workers), ms);
    }
    let computes = itself(0, 60, 2);
    for (workers, ms) in [(0, 70.0), (1, 60.4), (2, 33.1), (6, 30.5), (32, 30.5)] {
        close(step(&computes, workers), ms);
    }
    close(step(&itself(0, 60, 8), 6), 11.4);
    // A loop that computes leaves less.
    close(step(&Measured { own_processor_us: 1_000_000, ..computes }, 6), 35.7);
}

#[test]
fn other_programs_keep_their_processors_or_share_them() {
    let step = |taken: u64, processors, workers| {
        let m = itself(0, 60, processors);
        let settings = Settings { taken_permille: taken, ..m.settings };
        Model::of(&Measured { settings, ..m }).unwrap().with(workers) / 1e3
    };
    assert!((step(1000, 2, 2) - 46.0).abs() < 1.5, "two threads of three: {}", step(1000, 2, 2));
    assert!(step(1000, 2, 8) < 36.0, "eight of nine");
    assert!(step(2000, 8, 8) < 13.5, "there is room for all");
}

#[test]
fn batches_that_cross_from_workers_cost_the_loop_too() {
    let m = itself(60, 0, 8);
    let many = Work { pieces: 20, ..m.work };
    let step = |m: Measured| Model::of(&m).unwrap().with(16);
    assert!(step(Measured { work: many, ..m }) > step(m) + 4_000.0, "20 tensors");
    // Where workers are, what they cost was measured.
    let workers = Settings { workers: Some(2), ..m.settings };
    let measured = Work { taken_us: 100_000, packed_us: 100_000, ..many };
    assert!((step(Measured { work: measured, settings: workers, ..m }) - 11_000.0).abs() < 100.0);
}

#[test]
fn a_hand_over_that_costs_more_than_the_batch_is_left_out() {
    let m = Measured {
        wait: Wait { total_us: 1_000_000, handover_us: 1_000_000, ..Wait::default() },
        work: Work { batches: 100, total_us: 200_000, processor_us: 200_000, ..Work::default() },
        ..rank(10_000, 5_000)
    };
    let verdict = judge(&[m]);
    assert_eq!(verdict.title(), "input-bound (hand-over)");
    assert_eq!(verdict.next.as_deref(), Some("DataLoader(…, num_workers=0)"));
}

#[test]
fn the_first_batches_of_passes_are_a_cause_of_their_own() {
    let mut m = rank(100, 10_000);
    m.passes = 5;
    m.wait = Wait { total_us: 2_510_000, first_us: 2_500_000, ..m.wait };
    let verdict = judge(&[m]);
    assert_eq!(verdict.title(), "input-bound (pass-start)");
    assert_eq!(verdict.next.as_deref(), Some("DataLoader(…, persistent_workers=True)"));
    m.settings.persistent = Some(true);
    assert_eq!(judge(&[m]).next, None, "it is set");
    m.passes = 1;
    assert_eq!(title(&[m]), "ok", "a run starts once");
}

#[test]
fn copies_are_bound_when_they_are_the_larger_loss() {
    let m = Measured { copies_us: 500_000, pageable_us: 500_000, ..rank(500, 20_000) };
    let verdict = judge(&[m]);
    assert_eq!(verdict.title(), "copy-bound (copy)");
    assert!(verdict.next.unwrap().contains("pin_memory=True"));
    let pinned = Settings { pinned: Some(true), ..m.settings };
    assert!(judge(&[Measured { settings: pinned, ..m }]).next.unwrap().contains("uint8"));
    assert_eq!(title(&[Measured { copies_us: 500_000, ..rank(20_000, 20_000) }]), "input-bound (source)");
}

#[test]
fn a_cache_is_small_when_it_is_full_and_reads_repeat() {
    let cache = Cache {
        capacity_bytes: 8 << 30,
        used_bytes: 8 << 30,
        requests: 3200,
        hits: 640,
        fetched: 2560,
        fetched_bytes: 2560 << 20,
        distinct: 1000,
        dataset: 40 << 10,
    };
    let m = Measured { loader: Loader::Lossfeed, cache, passes: 4, ..rank(10_000, 10_000) };
    let verdict = judge(&[m]);
    assert_eq!(verdict.title(), "cache-small (source)");
    assert_eq!(verdict.next.as_deref(), Some("Loader(…, cache=\"26GiB\")"), "{:?}", verdict.what_if);
    assert_eq!(verdict.what_if[0].change, "cache 8GiB → 26GiB");
    // 25 ms a step without any hit, 10 ms of them busy: the mean of a cold pass and three others.
    assert!((verdict.what_if[0].then_us - 13_750.0).abs() < 500.0, "{:?}", verdict.what_if);
    let once = judge(&[Measured { passes: 1, ..m }]);
    assert!((once.what_if[0].then_us - 10_000.0).abs() < 500.0 && once.what_if[0].change.contains("second pass"));
    let cold = Measured { cache: Cache { distinct: 2560, ..cache }, ..m };
    assert_eq!(title(&[cold]), "input-bound (source)", "every read is a first one");
    let whole = Cache { capacity_bytes: 80 << 30, used_bytes: 3 << 30, ..cache };
    let verdict = judge(&[Measured { cache: whole, ..m }]);
    assert_eq!((verdict.title(), verdict.next), ("input-bound (source)".to_owned(), None), "it holds everything");
}

#[test]
fn late_scores_count_only_where_no_time_is_lost() {
    let m = Measured { scores: 1000, scores_late: 300, ..rank(0, 20_000) };
    assert_eq!(title(&[m]), "scores-late");
    assert_eq!(title(&[Measured { scores_late: 50, ..m }]), "ok");
    assert_eq!(title(&[Measured { scores: 1000, scores_late: 300, ..rank(20_000, 20_000) }]), "input-bound (source)");
}

#[test]
fn the_rank_that_holds_the_others_up_is_named_with_the_part_that_differs() {
    let of = |rank: u32, m: Measured| Measured { rank, ..m };
    // Rank 1 waits 15 ms of a step of 30; rank 0 waits for it in its backward pass.
    let (fast, slow) = (rank(100, 29_900), rank(15_000, 15_000));
    let timed = |m: Measured, sync: u64| Measured { sync_us: 100 * sync, ..m };
    for ranks in [[of(0, fast), of(1, slow)], [of(0, timed(fast, 19_900)), of(1, timed(slow, 5_000))]] {
        let verdict = judge(&ranks);
        assert_eq!((verdict.title(), verdict.rank), ("rank-behind (source)".to_owned(), Some(1)), "{verdict:?}");
    }
    // Rank 0 computes longer.
    let ranks = [of(0, timed(rank(0, 30_000), 5_000)), of(1, timed(rank(0, 30_000), 20_000))];
    let verdict = judge(&ranks);
    assert_eq!((verdict.title(), verdict.rank), ("rank-behind (compute)".to_owned(), Some(0)));
    // Both wait alike: none is slower, and the worst one is judged.
    let verdict = judge(&[of(0, rank(10_000, 10_000)), of(1, rank(12_500, 10_000))]);
    assert_eq!((verdict.title(), verdict.rank), ("input-bound (source)".to_owned(), Some(1)));
    assert_eq!(judge(&[of(0, rank(0, 20_000)), of(1, rank(0, 20_000))]).word, Word::Ok);
}

/// The remedy for a rank of `lossfeed.Loader` over a Python dataset, with so many loader threads and processes.
fn ours(threads: u64, processes: u64, processor_us: u64) -> (String, Option<String>) {
    let mut m = Measured { loader: Loader::Lossfeed, ..rank(40_000, 10_000) };
    m.settings.workers = Some(threads);
    m.settings.processes = Some(processes);
    m.work.processor_us = 100 * processor_us;
    if processor_us > 0 && processes > 0 {
        m.wait = Wait { python_us: m.wait.source_us, source_us: 0, ..m.wait };
    }
    let verdict = judge(&[m]);
    (verdict.title(), verdict.next)
}

#[test]
fn a_python_dataset_of_ours_is_told_of_workers_by_the_keyword_that_sets_them() {
    let source = |next: &str| ("input-bound (source)".to_owned(), Some(next.to_owned()));
    let python = |next: &str| ("input-bound (python)".to_owned(), Some(next.to_owned()));
    assert_eq!(ours(0, 0, 0), source("Loader(…, num_workers=6)"), "the loop reads it");
    assert_eq!(ours(0, 2, 0), source("Loader(…, num_workers=6)"), "torch's worker processes");
    let pool = "Loader(…, num_workers=6), or lf.open(…, processes=6) if that names them";
    assert_eq!(ours(2, 2, 0), source(pool), "processes of ours, for a cache");
    assert_eq!(ours(2, 0, 0), source("Loader(…, num_workers=6)"), "threads that it bears");
    assert_eq!(ours(0, 0, 48_000), python("Loader(…, num_workers=6)"));
    let apart = "lf.open(dataset, processes=6) in place of thread_safe=True: Python threads take turns";
    assert_eq!(ours(2, 0, 40_000), python(apart), "they take turns");
    assert!(ours(0, 8, 400_000).1.unwrap().contains("cheaper"), "all processors compute");
}

#[test]
fn worker_processes_that_a_page_does_not_time_are_doubled_with_a_condition() {
    let now = |name: &str| match name {
        "batches_total" | "filled_total" => Some(100),
        "wait_us_total" | "wait_source_us_total" => Some(4_000_000),
        "busy_us_total" => Some(1_000_000),
        "dataset_readers" => Some(3),
        "workers" => Some(0),
        _ => None,
    };
    let verdict = judge(&[Measured::of(&now, None)]);
    let next = verdict.next.unwrap();
    assert!(next.starts_with("Loader(…, num_workers=4), if items wait") && next.contains("`lossfeed why`"), "{next}");
    assert!(verdict.what_if.iter().all(|then| then.basis == Basis::Measured), "{:?}", verdict.what_if);
}

#[test]
fn a_stream_needs_its_share_in_each_worker_and_cannot_be_cached() {
    let mut m = rank(50_000, 10_000);
    m.settings.stream = Some(true);
    assert_eq!(judge(&[m]).next.as_deref(), Some("DataLoader(…, num_workers=7)"), "it has workers");
    m.settings.workers = Some(0);
    let next = judge(&[m]).next.unwrap();
    assert!(next.starts_with("DataLoader(…, num_workers=7)") && next.contains("get_worker_info()"), "{next}");
    m.settings.workers = Some(32);
    assert_eq!(judge(&[m]).next, None);
}

#[test]
fn loaders_of_two_kinds_have_a_line_to_write_and_no_step_foretold() {
    let mut m = rank(50_000, 10_000);
    m.work.mixed = true;
    let verdict = judge(&[m]);
    assert_eq!(verdict.next.as_deref(), Some("DataLoader(…, num_workers=7)"));
    assert!(verdict.what_if.iter().all(|then| then.setting.is_empty()), "{:?}", verdict.what_if);
}

#[test]
fn passes_of_a_batch_or_two_are_told_to_keep_their_iterator() {
    let m = Measured {
        passes: 100,
        wait: Wait { total_us: 3_000_000, first_us: 3_000_000, ..Wait::default() },
        ..rank(0, 5_000)
    };
    let verdict = judge(&[m]);
    assert_eq!(verdict.title(), "input-bound (pass-start)");
    assert!(verdict.next.unwrap().starts_with("batches = iter(loader) once"));
}

#[test]
fn counters_of_two_moments_are_the_window_between_them() {
    let before = |name: &str| (name == "batches_total").then_some(100);
    let now = |name: &str| match name {
        "batches_total" => Some(150),
        "wait_us_total" => Some(500),
        "workers" => Some(3),
        "dataset_readers" => Some(1),
        _ => None,
    };
    let m = Measured::of(&now, Some(&before));
    assert_eq!((m.steps, m.wait.total_us, m.settings.workers, m.settings.processes), (50, 500, Some(3), Some(0)));
    assert_eq!((m.loader, Measured::of(&now, None).steps), (Loader::Lossfeed, 150));
}

#[test]
fn every_word_has_a_row_and_every_row_says_when() {
    let words = [
        Word::Incomplete,
        Word::RankBehind,
        Word::InputBound,
        Word::CacheSmall,
        Word::CopyBound,
        Word::ScoresLate,
        Word::ComputeBound,
        Word::Ok,
    ];
    for word in words {
        let row = RULES.iter().find(|rule| rule.word == word).unwrap();
        assert!(!row.when.is_empty() && row.next.is_empty() != word.is_wrong(), "{}", word.name());
    }
}

#[test]
fn the_page_for_users_has_this_table() {
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../pybind/docs/why.md");
    let page = std::fs::read_to_string(page).unwrap();
    let rows = RULES.map(|r| format!("| `{}` | {} | {} | {} |", r.word.name(), r.when, r.evidence, r.next));
    let table = rows.map(|row| row.replace(" |  |", " | |")).join("\n");
    assert!(page.contains(&table), "pybind/docs/why.md lacks:\n{table}");
}
