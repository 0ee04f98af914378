//! The pool in use.

use std::sync::Barrier;

use super::super::{BatchLayout, SlotGauges, SlotState};
use super::*;
use crate::device::{Cpu, DeviceKind, Registration};
use crate::types::{Dtype, TensorSpec};
use crate::{ErrorKind, SampleId};

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
    assert_eq!(slot.data(), [[0; 5], [1; 5], [2; 5], [3; 5]].concat());
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
fn states_follow_a_slot_round_and_always_add_up() {
    let pool = pool(2, 3);
    let gauges =
        |free, filling, ready, lent| SlotGauges { total: free + filling + ready + lent, free, filling, ready, lent };
    assert_eq!(pool.gauges(), gauges(2, 0, 0, 0));
    let mut a = pool.acquire(NOW).unwrap().unwrap();
    assert_eq!(a.state(), SlotState::Filling);
    a.ready();
    a.ready();
    let mut b = pool.acquire(NOW).unwrap().unwrap();
    assert_eq!(pool.gauges(), gauges(0, 1, 1, 0));
    a.lend();
    b.lend();
    let c = pool.acquire(NOW).unwrap().unwrap();
    assert_eq!(pool.gauges(), gauges(0, 1, 0, 2));
    assert_eq!(pool.allocated_bytes(), 3 * layout().total_bytes() as u64);
    drop((a, c));
    assert_eq!(pool.gauges(), gauges(2, 0, 0, 1));
    drop(b);
    assert_eq!(pool.gauges(), gauges(3, 0, 0, 0));
}

#[test]
fn a_pool_grows_to_its_bound_and_then_says_with_numbers_who_holds_the_slots() {
    let pool = pool(1, 4);
    let mut held: Vec<_> = (0..4).map(|_| pool.acquire(NOW).unwrap().unwrap()).collect();
    assert!(pool.acquire(Duration::from_millis(20)).unwrap().is_none());
    held[0].lend();
    held[1].lend();
    held[2].ready();
    let error = pool.exhausted(Duration::from_millis(2500));
    assert_eq!(error.kind(), ErrorKind::Memory);
    for part in ["2.5 s", "4 of at most 4", "2 lent", "1 ready", "1 filling", "raise max_slots", "Hold fewer"] {
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
                    slot.ready();
                    std::thread::yield_now();
                    slot.lend();
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
    let error = pool.acquire(Duration::from_millis(20)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Device);
    assert_eq!(pool.gauges().total, 2);
    drop(a);
    assert!(pool.acquire(NOW).unwrap().is_some());
    drop(b);
    let none = SlotPool::new(layout(), 1, 4, Arc::new(Stingy(AtomicUsize::new(0)))).unwrap_err();
    assert_eq!(none.kind(), ErrorKind::Device);
}

#[test]
fn a_forked_child_is_refused_slots_and_drops_its_copies_without_waiting() {
    let pool = pool(1, 2);
    let mut slot = pool.acquire(NOW).unwrap();
    let held = pool.0.inside.lock();
    let outcome = crate::arena::in_forked_child(|| {
        let refused = pool.acquire(LONG).is_err_and(|error| error.kind() == ErrorKind::Usage);
        pool.close();
        drop(slot.take());
        refused
    });
    assert_eq!(outcome, Ok(true));
    drop(held);
    assert!(pool.acquire(NOW).is_ok(), "the child closed nothing here");
}
