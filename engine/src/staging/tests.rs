//! The pool in use.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use super::{BatchLayout, SlotGauges, SlotPool};
use crate::device::{Cpu, Device, DeviceKind, Registration};
use crate::types::{Dtype, TensorSpec};
use crate::{Error, ErrorKind, Result, SampleId};

const NOW: Duration = Duration::ZERO;
const LONG: Duration = Duration::from_secs(60);

fn layout() -> BatchLayout {
    BatchLayout::new(6, TensorSpec::new(Dtype::U8, [5]), TensorSpec::class_index()).unwrap()
}

fn pool(depth: usize, max_slots: usize) -> SlotPool {
    SlotPool::new(layout(), depth, max_slots, Arc::new(Cpu)).unwrap()
}

#[test]
fn parts_written_together_are_read_back_apart() {
    let pool = pool(1, 1);
    let mut slot = pool.acquire(NOW).unwrap().unwrap();
    slot.bytes_mut().fill(0xee);
    slot.set_rows(4);
    for k in 0..4 {
        let (data, target) = slot.row_mut(k);
        data.fill(k as u8);
        target.copy_from_slice(&(10 * k as i64).to_ne_bytes());
    }
    slot.set_ids(&[9 as SampleId, 8, 7, u32::MAX], &[0.5, 1.0, 1.5, 2.0]);
    assert_eq!(slot.data().unwrap(), [[0; 5], [1; 5], [2; 5], [3; 5]].concat());
    assert_eq!(bytemuck::pod_collect_to_vec::<u8, i64>(slot.target()), [0, 10, 20, 30]);
    assert_eq!(slot.ids(), [9, 8, 7, i64::from(u32::MAX)]);
    assert_eq!(slot.weight(), [0.5, 1.0, 1.5, 2.0]);
    // Rows that the batch does not have were not touched.
    let untouched = |range: std::ops::Range<usize>| slot.bytes()[range].iter().all(|&b| b == 0xee);
    let l = layout();
    assert!(untouched(l.data_range(4).end..l.data_range(6).end));
    assert!(untouched(l.ids_range(4).end..l.ids_range(6).end));
    assert!(untouched(l.weight_range(4).end..l.weight_range(6).end));
    slot.set_rows(100);
    assert_eq!(slot.rows(), 6, "never beyond the slot");
}

#[test]
fn states_follow_a_slot_round_always_add_up_and_no_step_is_taken_out_of_turn() {
    let pool = pool(2, 3);
    let gauges = |free, filling, ready, lent, copying| SlotGauges {
        total: free + filling + ready + lent + copying,
        free,
        filling,
        ready,
        lent,
        copying,
    };
    assert_eq!(pool.gauges(), gauges(2, 0, 0, 0, 0));
    let mut a = pool.acquire(NOW).unwrap().unwrap();
    assert_eq!(a.lend().unwrap_err().kind(), ErrorKind::Internal);
    a.ready().unwrap();
    let twice = a.ready().unwrap_err();
    assert!(twice.to_string().contains("cannot become Ready: it is Ready"), "{twice}");
    assert!(a.copying().is_err(), "nobody has taken it yet");
    let mut b = pool.acquire(NOW).unwrap().unwrap();
    assert_eq!(pool.gauges(), gauges(0, 1, 1, 0, 0));
    a.lend().unwrap();
    b.ready().unwrap();
    b.lend().unwrap();
    let c = pool.acquire(NOW).unwrap().unwrap();
    assert_eq!(pool.gauges(), gauges(0, 1, 0, 2, 0));
    assert_eq!(pool.allocated_bytes(), 3 * layout().total_bytes() as u64);
    a.copying().unwrap();
    assert_eq!(a.copying().unwrap_err().kind(), ErrorKind::Internal, "one copy at a time");
    assert_eq!(pool.gauges(), gauges(0, 1, 0, 1, 1));
    drop((a, c));
    assert_eq!(pool.gauges(), gauges(2, 0, 0, 1, 0));
    drop(b);
    assert_eq!(pool.gauges(), gauges(3, 0, 0, 0, 0));
}

#[test]
fn only_what_the_consumer_holds_counts_as_lent_out() {
    let pool = pool(1, 2);
    let mut held: Vec<_> = (0..2).map(|_| pool.acquire(NOW).unwrap().unwrap()).collect();
    held.iter_mut().for_each(|slot| slot.ready().unwrap());
    held[0].lend().unwrap();
    assert!(!pool.is_lent_out(), "one is still to come");
    held[1].lend().unwrap();
    assert!(pool.is_lent_out());
    held[1].copying().unwrap();
    assert!(!pool.is_lent_out(), "a copy ends by itself");
    drop(held);
    assert!(!pool.is_lent_out());
}

#[test]
fn slots_are_scarce_where_the_consumer_leaves_fewer_than_there_were_at_first() {
    let pool = pool(2, 4);
    let mut held: Vec<_> = (0..3).map(|_| pool.acquire(NOW).unwrap().unwrap()).collect();
    held.iter_mut().for_each(|slot| slot.ready().unwrap());
    for slot in &mut held[..2] {
        slot.lend().unwrap();
        assert!(!slot.is_scarce(), "two of four are left, or more");
    }
    held[2].lend().unwrap();
    assert!(held[2].is_scarce());
    drop(held.pop());
    assert!(!held[0].is_scarce());
}

#[test]
fn a_pool_grows_to_its_bound_and_then_says_with_numbers_who_holds_the_slots() {
    let pool = pool(1, 4);
    let mut held: Vec<_> = (0..4).map(|_| pool.acquire(NOW).unwrap().unwrap()).collect();
    assert!(pool.acquire(Duration::from_millis(20)).unwrap().is_none());
    for slot in &mut held[..3] {
        slot.ready().unwrap();
    }
    held[0].lend().unwrap();
    held[1].lend().unwrap();
    let error = pool.exhausted(Duration::from_millis(2500));
    assert_eq!(error.kind(), ErrorKind::Memory);
    for part in ["2.5 s", "4 of at most 4", "2 held by you", "1 ready", "1 filling", "raise max_slots", "Hold fewer"] {
        assert!(error.to_string().contains(part), "{part:?} in {error}");
    }
    let bases: std::collections::HashSet<_> = held.iter().map(|s| s.base()).collect();
    assert_eq!(bases.len(), 4, "every slot has memory of its own");
    held.pop();
    assert!(pool.acquire(NOW).unwrap().is_some());
}

#[test]
fn descriptors_stay_where_they_are_while_the_pool_grows() {
    let pool = pool(1, 40);
    let mut held = Vec::new();
    let mut addresses = Vec::new();
    for n in 0..40 {
        held.push(pool.acquire(NOW).unwrap().unwrap());
        addresses.push(pool.address(n));
        held[n].bytes_mut().fill(n as u8);
    }
    assert_eq!(addresses, (0..40).map(|n| pool.address(n)).collect::<Vec<_>>());
    assert!(held.iter().enumerate().all(|(n, slot)| slot.bytes().iter().all(|&b| b == n as u8)));
}

#[test]
fn a_slot_dropped_on_another_thread_wakes_whoever_waits_for_it() {
    let pool = pool(1, 1);
    let mut slot = pool.acquire(NOW).unwrap().unwrap();
    slot.bytes_mut()[0] = 42;
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| pool.acquire(LONG).unwrap().map(|slot| slot.bytes()[0]));
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            drop(slot);
        });
        assert_eq!(waiter.join().unwrap(), Some(42), "the same memory, after the owner let go");
    });
}

#[test]
fn closing_wakes_waiters_with_a_usage_error_and_leaves_slots_in_use_alone() {
    let pool = pool(1, 1);
    let slot = pool.acquire(NOW).unwrap().unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| pool.acquire(LONG));
        std::thread::sleep(Duration::from_millis(20));
        pool.close();
        assert_eq!(waiter.join().unwrap().unwrap_err().kind(), ErrorKind::Usage);
    });
    drop(slot);
    assert_eq!(pool.gauges().free, 1);
    assert!(pool.acquire(NOW).is_err());
}

#[test]
fn slots_outlive_the_pool_handle() {
    let pool = pool(1, 1);
    let slot = pool.acquire(NOW).unwrap().unwrap();
    drop(pool);
    assert_eq!(slot.bytes().len(), layout().total_bytes());
}

#[test]
fn threads_that_pass_slots_around_never_share_one() {
    let pool = pool(1, 3);
    let start = Barrier::new(4);
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let (pool, start) = (&pool, &start);
            scope.spawn(move || {
                start.wait();
                for round in 0..500 {
                    let mut slot = pool.acquire(LONG).unwrap().unwrap();
                    let mark = thread.wrapping_mul(61).wrapping_add(round as u8);
                    slot.bytes_mut().fill(mark);
                    slot.ready().unwrap();
                    std::thread::yield_now();
                    slot.lend().unwrap();
                    assert!(slot.bytes().iter().all(|&b| b == mark), "two owners of one slot");
                }
            });
        }
    });
    let gauges = pool.gauges();
    assert!(gauges.total <= 3);
    assert_eq!(gauges.free, gauges.total);
}

#[test]
fn settings_that_make_no_pool_are_refused() {
    for (depth, max_slots) in [(0, 4), (5, 4)] {
        let error = SlotPool::new(layout(), depth, max_slots, Arc::new(Cpu)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Settings);
    }
}

/// A device that registers `left` pieces of memory and then refuses: the locked-memory limit.
#[derive(Debug)]
struct Stingy(AtomicUsize);

impl Device for Stingy {
    fn name(&self) -> String {
        "stingy".to_owned()
    }
    fn kind(&self) -> DeviceKind {
        DeviceKind::Cuda(0)
    }
    fn pins(&self) -> bool {
        true
    }
    fn register(&self, memory: &mut [u8]) -> Result<Registration> {
        assert!(memory.iter().all(|&b| b == 0), "fresh memory, readable and writable");
        memory.fill(0);
        match self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) {
            Ok(_) => Ok(Registration::pinned(memory.len() as u64, Box::new(()))),
            Err(_) => Err(Error::device("locked-memory limit reached")),
        }
    }
}

#[test]
fn a_device_that_refuses_more_memory_leaves_the_slots_there_are_in_service() {
    let pool = SlotPool::new(layout(), 1, 4, Arc::new(Stingy(AtomicUsize::new(2)))).unwrap();
    let a = pool.acquire(NOW).unwrap().unwrap();
    let b = pool.acquire(NOW).unwrap().unwrap();
    assert!(pool.acquire(Duration::from_millis(20)).unwrap().is_none());
    assert_eq!(pool.gauges().total, 2);
    let mut held = [a, b];
    for slot in &mut held {
        slot.ready().unwrap();
        slot.lend().unwrap();
    }
    assert!(pool.is_lent_out(), "there will never be more than these two");
    let error = pool.exhausted(NOW).to_string();
    for part in ["2 of at most 4", "2 held by you", "locked-memory limit reached"] {
        assert!(error.contains(part), "{part:?} in {error}");
    }
    drop(held);
    assert!(pool.acquire(NOW).unwrap().is_some());
    let none = SlotPool::new(layout(), 1, 4, Arc::new(Stingy(AtomicUsize::new(0)))).unwrap_err();
    assert_eq!(none.kind(), ErrorKind::Device);
}

#[test]
fn a_forked_child_is_refused_slots_and_drops_its_copies_without_waiting() {
    let pool = pool(1, 2);
    let mut slot = pool.acquire(NOW).unwrap();
    let child = || {
        let refused = pool.acquire(LONG).is_err_and(|error| error.kind() == ErrorKind::Usage);
        pool.close();
        let counted = pool.gauges() == SlotGauges::default() && !pool.is_lent_out();
        drop(slot.take());
        refused && counted
    };
    assert_eq!(pool.locked(|| crate::arena::in_forked_child(child)), Ok(true));
    assert!(pool.acquire(NOW).is_ok(), "the child closed nothing here");
}
