//! Journals: a run of several threads counts the same hits when it is replayed, and damaged ones are told, never
//! believed to crash.

use std::sync::Mutex;

use lossfeed_control::index::ScoreTable;
use lossfeed_control::ledger::{Access, Ledger};
use lossfeed_journal::{
    Ending, Event, Limits, Meta, Recording, Replayed, Row, Scored, Verdict, WhenBehind, Writer, is_journal,
};
use lossfeed_lab::policies;
use lossfeed_tests::policy_names;
use proptest::prelude::*;

fn replay(recording: &Recording, policy: &str, capacity_bytes: u64) -> lossfeed_control::Result<Replayed> {
    lossfeed_journal::replay(recording, policies::find(policy)?, capacity_bytes)
}

const SAMPLES: usize = 200;
const CAPACITY: u64 = 2500;
const BATCH: usize = 8;
const STEPS: u32 = 100;

fn bytes(id: u32) -> u64 {
    20 + u64::from(id * 37 % 61)
}

/// The books as an engine has them, and the journal under the same lock.
struct Books {
    ledger: Ledger,
    scores: ScoreTable,
    clock: u32,
    journal: Writer,
    next: u32,
    random: u64,
}

impl Books {
    fn draw(&mut self, below: u64) -> u64 {
        // A multiplicative generator (Knuth): the draws need no quality, only variety.
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below
    }
    fn decide(&mut self, epoch: u64, order: &[u32]) -> Option<(u32, Vec<u32>)> {
        let step = self.next;
        let ids = order.chunks(BATCH).nth(step as usize)?.to_vec();
        self.next += 1;
        let mut evicted = Vec::new();
        let rows = ids
            .iter()
            .map(|&id| {
                let verdict = match self.ledger.access(id, &bytes, &self.scores, &mut evicted) {
                    Access::Hit => Verdict::Hit,
                    Access::Admitted => Verdict::Keep,
                    Access::Bypassed => Verdict::Pass,
                };
                Row { id, drawn: id, verdict, bytes: bytes(id), weight: 1.0 }
            })
            .collect();
        self.journal.push(Event::Decide { epoch, step, rows });
        Some((step, ids))
    }
    /// A sample now and then fails and is kept no longer; the others are scored.
    fn end(&mut self, epoch: u64, step: u32, ids: &[u32]) {
        if self.draw(4) == 0 {
            let id = ids[self.draw(ids.len() as u64) as usize];
            self.ledger.cancel(id);
            self.journal.push(Event::Cancel(vec![id]));
            self.scores.fail(id);
            self.journal.push(Event::Read(vec![(id, false)]));
        }
        let rows: Vec<Scored> = ids
            .iter()
            .map(|&id| {
                let loss = self.draw(1000) as f32 / 7.0;
                Scored { id, score: loss.ln_1p(), loss, gradient_norm: f32::NAN }
            })
            .collect();
        for row in &rows {
            if let Some(belief) = self.scores.record(row.id, row.score, self.clock) {
                self.ledger.rescore(row.id, belief);
            }
        }
        self.clock += 1;
        self.journal.push(Event::Learn { epoch, step, rows });
    }
}

/// Three epochs by `workers` threads that decide, fail and learn as they come; the run's hits and misses, and its
/// journal.
fn run(name: &str, workers: usize, seed: u64) -> ((u64, u64), Vec<u8>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.csv.gz");
    let meta = Meta::new(SAMPLES as u64, CAPACITY, name, 0.3);
    let books = Mutex::new(Books {
        ledger: Ledger::new(CAPACITY, SAMPLES, policies::from_name(name, SAMPLES).unwrap()),
        scores: ScoreTable::new(SAMPLES, 0.3),
        clock: 0,
        journal: Writer::create(&path, &meta, WhenBehind::Wait).unwrap(),
        next: 0,
        random: seed,
    });
    for epoch in 0..3 {
        let order: Vec<u32> = {
            let mut books = books.lock().unwrap();
            let order: Vec<u32> = (0..STEPS as usize * BATCH).map(|_| books.draw(SAMPLES as u64) as u32).collect();
            books.next = 0;
            books.ledger.plan(&order);
            books.journal.push(Event::Begin { epoch, step: 0, plan: order[..].into() });
            order
        };
        std::thread::scope(|scope| {
            for _ in 0..workers.max(1) {
                scope.spawn(|| {
                    while let Some((step, ids)) = { books.lock().unwrap().decide(epoch, &order) } {
                        std::thread::yield_now();
                        books.lock().unwrap().end(epoch, step, &ids);
                    }
                });
            }
        });
    }
    let books = books.into_inner().unwrap();
    let counts = books.ledger.counts();
    assert_eq!(books.journal.close().unwrap().lost, 0);
    ((counts.hits, counts.misses), std::fs::read(path).unwrap())
}

#[test]
fn a_replay_counts_the_runs_hits_to_the_last_one_for_every_policy_and_number_of_threads() {
    for name in policy_names() {
        for workers in [0, 4] {
            let ((hits, misses), journal) = run(name, workers, 7);
            assert!(hits > 0 && misses > 0, "{name}");
            let recording = Recording::read(&journal[..], Limits::default()).unwrap();
            assert_eq!(recording.ending, Ending::Closed);
            assert_eq!(recording.counted(), (hits, misses), "{name}, {workers} threads, as recorded");
            let replayed = replay(&recording, name, CAPACITY).unwrap();
            let found = (replayed.hits, replayed.misses, replayed.otherwise);
            assert_eq!(found, (hits, misses, 0), "{name}, {workers} threads, as replayed");
        }
    }
}

#[test]
fn the_order_of_the_scores_matters_and_is_kept() {
    // The proof that the test above can fail: the same run with its scores at the end is another run.
    let (_, journal) = run("importance", 4, 11);
    let mut recording = Recording::read(&journal[..], Limits::default()).unwrap();
    let learns = |event: &Event| matches!(event, Event::Learn { .. });
    let (late, early): (Vec<Event>, Vec<Event>) = recording.events.into_iter().partition(learns);
    recording.events = early.into_iter().chain(late).collect();
    assert!(replay(&recording, "importance", CAPACITY).unwrap().otherwise > 0);
}

#[test]
fn any_policy_and_size_may_be_asked_of_a_journal() {
    let (_, journal) = run("lru", 2, 3);
    let recording = Recording::read(&journal[..], Limits::default()).unwrap();
    let asked = (3 * STEPS as usize * BATCH) as u64;
    let mut best = 0;
    for name in policy_names() {
        let all = replay(&recording, name, u64::MAX).unwrap();
        let none = replay(&recording, name, 0).unwrap();
        assert_eq!((all.hits + all.misses, none.hits), (asked, 0), "{name}");
        let some = replay(&recording, name, CAPACITY).unwrap().hits;
        assert!(some <= all.hits);
        if name != "belady" {
            best = best.max(some);
        }
    }
    assert!(best > 0);
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_a_journal_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        is_journal(&bytes[..]);
        let _ = Recording::read(&bytes[..], Limits::default());
    }

    #[test]
    fn a_damaged_journal_is_replayed_or_refused_with_a_line(
        seed in any::<u64>(),
        packed in any::<bool>(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(if packed { "run.csv.gz" } else { "run.csv" });
        let journal = Writer::create(&path, &Meta::new(30, 200, "lru", 0.0), WhenBehind::Wait).unwrap();
        let mut random = seed;
        for step in 0..6u32 {
            let mut id = || { random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1); (random >> 40) as u32 % 30 };
            let ids = [id(), id(), id()];
            journal.push(Event::Begin { epoch: u64::from(step) / 3, step, plan: ids[..].into() });
            let rows = ids.map(|id| Row { id, drawn: id, verdict: Verdict::Keep, bytes: bytes(id), weight: 1.0 }).to_vec();
            journal.push(Event::Decide { epoch: u64::from(step) / 3, step, rows });
            let scored = ids.map(|id| Scored { id, score: id as f32, loss: f32::NAN, gradient_norm: 1.0 }).to_vec();
            journal.push(Event::Learn { epoch: u64::from(step) / 3, step, rows: scored });
            journal.push(Event::Cancel(vec![ids[0]]));
            journal.push(Event::Tried(ids.to_vec()));
        }
        journal.close().unwrap();
        let mut text = std::fs::read(&path).unwrap();
        for (at, byte) in damage {
            let at = at.index(text.len());
            text[at] = byte;
        }
        match Recording::read(&text[..], Limits { rows: 10_000, samples: 100_000 }) {
            Ok(recording) => for name in policy_names() {
                let replayed = replay(&recording, name, 200).unwrap();
                let (hits, misses) = recording.counted();
                prop_assert_eq!(replayed.hits + replayed.misses, hits + misses);
            },
            Err(error) => {
                let said = error.to_string();
                let told = ["line ", "step ", "cannot read it", "nothing to replay"];
                prop_assert!(told.iter().any(|told| said.contains(told)), "{}", said);
            }
        }
    }
}
