//! A pass with its loader threads, from the first batch to the end it comes to.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lossfeed::control::{Cut, Plan};
use lossfeed::error::ErrorKind;
use lossfeed::sampler::{Batches, Order};
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread::{self, JoinHandle};

use crate::loader::Iteration;
use crate::staging::SlotPool;
use crate::stand_ins::{Batch, Feed, Next, PASS, ROWS, Trouble, all_are_back, pool};
use crate::sync::{Clock, Fault, deadlocks, explore};

const LONG: Duration = Duration::from_secs(3600);

struct Pass {
    pool: SlotPool,
    iteration: Arc<Iteration>,
    workers: Vec<JoinHandle<()>>,
}

impl Pass {
    fn start(pool: SlotPool, batches: usize, window: usize, workers: usize, trouble: Trouble) -> Self {
        let samples = batches * ROWS;
        let order = Order { ids: (0..samples as u32).collect(), weights: vec![1.0; samples] };
        let feed = Arc::new(Feed::new(pool.clone(), batches, trouble));
        let cut = Cut::Even(Batches::new(samples, ROWS, false, 0, 1).unwrap());
        let plan = Plan { epoch: 0, order: Arc::new(order), cut, behind: Vec::new() };
        let iteration = Arc::new(Iteration::new(feed, PASS, plan, 0, window, workers, workers));
        let workers = (0..workers)
            .map(|worker| {
                let iteration = iteration.clone();
                thread::spawn(move || iteration.work(worker))
            })
            .collect();
        Self { pool, iteration, workers }
    }

    fn next(&self) -> lossfeed::Result<Next> {
        self.iteration.next(LONG, self.workers.is_empty())
    }

    /// No thread is left, and no slot is missing.
    fn end(self) {
        self.workers.into_iter().for_each(|worker| worker.join().unwrap());
        all_are_back(&self.pool);
    }
}

/// Every batch is taken and let go of; no clock helps.
fn a_whole_pass() {
    whole_pass(4, Trouble::None);
}

/// So are those around a pair in which nothing is good, wherever it lies.
fn a_pass_with_a_gap() {
    whole_pass(4, Trouble::NothingGood(thread_rng().gen_range(0..4)));
}

fn whole_pass(batches: usize, trouble: Trouble) {
    let workers = thread_rng().gen_range(1..4);
    let window = thread_rng().gen_range(1..4);
    let pool = pool(1, window + 1, thread_rng().gen_range(1..4));
    let pass = Pass::start(pool, batches, window, workers, trouble);
    let missing = |number| matches!(trouble, Trouble::NothingGood(n) if number == n || number == n + 1);
    for number in (0..batches).filter(|&number| !missing(number)) {
        let Next::Batch(batch) = pass.next().unwrap() else { panic!("batch {number} did not come") };
        batch.check();
        assert_eq!((batch.ticket.number, batch.rows), (number, ROWS));
    }
    assert!(matches!(pass.next(), Ok(Next::End)));
    pass.end();
}

#[test]
fn every_batch_comes_in_its_order_without_a_clock() {
    explore(Clock::Stands, 5000, a_whole_pass);
}

#[test]
fn batches_without_a_good_sample_are_passed_over_without_a_clock() {
    explore(Clock::Stands, 5000, a_pass_with_a_gap);
}

/// An epoch that delivered nothing is no short epoch: it ends with the reason.
#[test]
fn an_epoch_without_any_good_sample_is_an_error() {
    explore(Clock::Stands, 500, || {
        let pass = Pass::start(pool(1, 2, 2), 2, 2, thread_rng().gen_range(0..3), Trouble::NothingGood(0));
        let error = pass.next().map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("nothing is good on purpose"), "{error}");
        assert!(matches!(pass.next(), Ok(Next::End)));
        pass.iteration.stop();
        pass.end();
    });
}

#[test]
fn a_lost_wake_up_is_found() {
    deadlocks(Fault::NobodyIsNotified, 2000, a_whole_pass);
    deadlocks(Fault::NobodyIsNotified, 2000, a_pass_with_a_gap);
    deadlocks(Fault::SleepsTooLate, 2000, a_whole_pass);
}

/// The number of threads that work, and of batches that may wait, changes at any moment, also while all of them wait.
fn a_pass_whose_threads_rest_and_work_again() {
    let (batches, workers) = (4, 3);
    let pool = pool(1, 5, 5);
    let pass = Pass::start(pool, batches, thread_rng().gen_range(1..4), workers, Trouble::None);
    let iteration = pass.iteration.clone();
    let other = thread::spawn(move || {
        for _ in 0..3 {
            // 0 is taken for 1: somebody has to work.
            iteration.set_workers(thread_rng().gen_range(0..4), thread_rng().gen_range(1..4));
        }
    });
    let mut came = 0;
    loop {
        match pass.next().unwrap() {
            Next::Batch(batch) => {
                batch.check();
                assert_eq!(batch.ticket.number, came);
                came += 1;
            }
            // Where the clock runs a wait may end before anything came.
            Next::Pending => {}
            Next::End => break,
        }
    }
    other.join().unwrap();
    assert_eq!(came, batches);
    // As the engine does at the end of a pass: those that rest go home.
    pass.iteration.stop();
    pass.end();
}

#[test]
fn batches_come_in_their_order_however_many_threads_work() {
    explore(Clock::Stands, 3000, a_pass_whose_threads_rest_and_work_again);
    explore(Clock::Runs, 500, a_pass_whose_threads_rest_and_work_again);
}

#[test]
fn a_wake_up_that_one_at_rest_keeps_for_itself_is_found() {
    deadlocks(Fault::NobodyIsNotified, 2000, a_pass_whose_threads_rest_and_work_again);
    deadlocks(Fault::NotAllAreNotified, 2000, a_pass_whose_threads_rest_and_work_again);
}

/// More threads than the window has room for, and a consumer that leaves.
fn a_pass_that_is_left() {
    let pass = Pass::start(pool(2, 2, 2), 6, 2, 4, Trouble::None);
    for _ in 0..thread_rng().gen_range(0..3) {
        assert!(matches!(pass.next(), Ok(Next::Batch(_))));
    }
    pass.iteration.stop();
    assert!(matches!(pass.next(), Ok(Next::End)));
    pass.end();
}

#[test]
fn leaving_wakes_every_thread() {
    explore(Clock::Stands, 5000, a_pass_that_is_left);
}

/// The only slot is not given back while the consumer waits; another thread ends the pass, or the pool.
fn a_wait_that_another_thread_ends() {
    let closes = thread_rng().gen_bool(0.5);
    let pass = Pass::start(pool(1, 1, 1), 3, 1, 2, Trouble::None);
    let held = match pass.next() {
        Ok(Next::Batch(batch)) => batch,
        _ => panic!("the first batch did not come"),
    };
    let (pool, iteration) = (pass.pool.clone(), pass.iteration.clone());
    let other = thread::spawn(move || if closes { pool.close() } else { iteration.stop() });
    match pass.next() {
        Err(error) => assert!(closes && error.kind() == ErrorKind::Usage, "{error}"),
        Ok(Next::End) => assert!(!closes),
        Ok(_) => panic!("a batch without a slot"),
    }
    other.join().unwrap();
    drop(held);
    pass.end();
}

#[test]
fn a_consumer_that_waits_is_told_of_an_end_that_others_make() {
    explore(Clock::Stands, 3000, a_wait_that_another_thread_ends);
}

#[test]
fn waking_one_where_all_are_meant_is_found() {
    deadlocks(Fault::NotAllAreNotified, 2000, a_pass_that_is_left);
}

/// How many schedules met what: a storm that is too calm shows nothing.
static MET: [AtomicUsize; 8] = [const { AtomicUsize::new(0) }; 8];

#[derive(Clone, Copy)]
enum Met {
    WholePass,
    Left,
    Closed,
    Failed,
    Panicked,
    AllHeld,
    NothingYet,
    Copied,
}

fn met(what: Met) {
    MET[what as usize].fetch_add(1, Ordering::Relaxed);
}

/// The consumer: keeps some batches, sends some to a device, lets go of others, and leaves, closes or fails at any
/// moment.
fn a_pass_that_ends_somehow() {
    let mut rng = thread_rng();
    let batches = 5;
    let trouble = match rng.gen_range(0..6) {
        0 => Trouble::Fails(rng.gen_range(0..batches)),
        1 => Trouble::Panics(rng.gen_range(0..batches)),
        _ => Trouble::None,
    };
    let (window, workers) = (rng.gen_range(1..4), rng.gen_range(0..4));
    let (max_slots, most) = (rng.gen_range(1..5), rng.gen_range(1..5));
    let pass = Pass::start(pool(1, max_slots, most), batches, window, workers, trouble);
    let watched = pass.pool.clone();
    let watcher = thread::spawn(move || assert!(watched.gauges().total <= max_slots.min(most)));
    let mut held: VecDeque<Batch> = VecDeque::new();
    let mut copies: Vec<JoinHandle<()>> = Vec::new();
    let (mut came, leaves_at, closes_at) = (0, rng.gen_range(0..30), rng.gen_range(0..30));
    loop {
        if came == leaves_at {
            pass.iteration.stop();
        }
        if came == closes_at {
            pass.pool.close();
        }
        match pass.next() {
            Ok(Next::Batch(batch)) => {
                batch.check();
                assert_eq!(batch.ticket.number, came, "out of order");
                came += 1;
                held.push_back(batch);
            }
            Ok(Next::Pending) => {
                // It lets go of nothing while it waits: either a slot comes back by itself, or it is told that none
                // will.
                met(Met::NothingYet);
                continue;
            }
            Ok(Next::End) if came == batches => break met(Met::WholePass),
            Ok(Next::End) => {
                assert!(pass.iteration.stopped());
                break met(Met::Left);
            }
            Err(error) => match error.kind() {
                ErrorKind::Memory => {
                    assert!(!held.is_empty(), "told to hold fewer, and holds none: {error}");
                    held.clear();
                    met(Met::AllHeld);
                }
                ErrorKind::Usage => break met(Met::Closed),
                ErrorKind::Sample => {
                    assert_eq!(trouble, Trouble::Fails(came));
                    break met(Met::Failed);
                }
                ErrorKind::Internal => {
                    assert_eq!(trouble, Trouble::Panics(came));
                    break met(Met::Panicked);
                }
                _ => panic!("{error}"),
            },
        }
        held.iter().for_each(Batch::check);
        while held.len() > rng.gen_range(0..3) {
            let batch = held.pop_front().unwrap();
            if rng.gen_bool(0.5) {
                batch.slot.copying().unwrap();
                met(Met::Copied);
                copies.push(thread::spawn(move || {
                    thread::yield_now();
                    batch.check();
                }));
            }
        }
    }
    pass.iteration.stop();
    held.iter().for_each(Batch::check);
    drop(held);
    watcher.join().unwrap();
    copies.into_iter().for_each(|copy| copy.join().unwrap());
    pass.end();
}

#[test]
fn however_a_pass_ends_no_slot_is_missing_and_no_thread_is_left() {
    explore(Clock::Runs, 10_000, a_pass_that_ends_somehow);
    assert!(MET.iter().all(|times| times.load(Ordering::Relaxed) > 500), "too calm: {MET:?}");
}
