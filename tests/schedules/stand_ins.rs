//! What a pass needs of rooms that are not under test: books that only watch the order of decisions, a fill that writes
//! a batch's number into every byte, memory that runs out, and timesheets without a clock.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lossfeed::device::{Device, DeviceKind, Registration};
use lossfeed::error::{Error, ErrorKind, Result};
use lossfeed::loader::Punctual;
use lossfeed::source::Scratch;
use lossfeed::stats::Counters;
use lossfeed::{Dtype, SampleId, TensorSpec};

use crate::staging::{BatchSlot, SlotPool};
use crate::sync::Mutex;

pub(crate) const ROWS: usize = 2;

/// As the product's.
pub(crate) struct Ticket {
    pub(crate) number: usize,
}

/// As the product's.
pub(crate) struct Batch {
    pub(crate) slot: BatchSlot,
    pub(crate) ticket: Ticket,
    pub(crate) rows: usize,
    pub(crate) punctual: Punctual,
}

impl Batch {
    /// No other has written into it since it was filled.
    pub(crate) fn check(&self) {
        assert!(
            self.slot.data().unwrap().iter().all(|&byte| byte == mark(self.ticket.number)),
            "two owners of one slot"
        );
    }
}

/// As the product's.
pub(crate) enum Next {
    Batch(Batch),
    End,
    Pending,
}

fn mark(number: usize) -> u8 {
    number as u8 ^ 0x5a
}

/// How a batch can go wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Trouble {
    None,
    Fails(usize),
    Panics(usize),
    /// Nothing in this batch is good, nor in the one after it.
    NothingGood(usize),
}

pub(crate) struct Feed {
    pub(crate) pool: SlotPool,
    pub(crate) cache: Cache,
    pub(crate) counters: Arc<Counters>,
    pub(crate) trouble: Trouble,
}

impl Feed {
    pub(crate) fn new(pool: SlotPool, batches: usize, trouble: Trouble) -> Self {
        Self { pool, cache: Cache { batches, next: Mutex::new(0) }, counters: Arc::default(), trouble }
    }

    pub(crate) fn queued_time(&self) -> Duration {
        Duration::ZERO
    }

    pub(crate) fn ask_owner(&self, _: &dyn Fn() -> bool) {}

    pub(crate) fn record_bytes(&self, _: SampleId) -> u64 {
        1
    }

    /// Nothing is prefetched here, so there is no plan to wait for.
    pub(crate) fn wait_for_start(&self, _first: bool, _stopped: &dyn Fn() -> bool) {}

    pub(crate) fn fill(
        &self,
        planned: &fill::Planned<'_>,
        decision: cache::Decision,
        mut slot: BatchSlot,
        _: &mut Scratch,
        _: &timesheet::Timesheet,
        stopped: &dyn Fn() -> bool,
    ) -> Result<fill::Filled> {
        let range = planned.plan.range(planned.number);
        let rows = range.len();
        assert_eq!((planned.pass, planned.plan.epoch, decision.number), (PASS, 0, planned.number));
        assert_eq!(planned.plan.order.ids[range].len(), rows);
        slot.set_rows(rows);
        for row in 0..rows {
            shuttle::thread::yield_now();
            slot.row_mut(row).0.fill(mark(planned.number));
            // As the product's: what nobody wants is left, and nobody may be told.
            if stopped() {
                return Err(Error::new(ErrorKind::Interrupted, "the pass was stopped"));
            }
        }
        match self.trouble {
            Trouble::Fails(number) if number == planned.number => return Err(Error::sample("it is bad on purpose")),
            Trouble::Panics(number) if number == planned.number => resume_unwind(Box::new("it explodes on purpose")),
            Trouble::NothingGood(number) if planned.number == number || planned.number == number + 1 => {
                return Ok(fill::Filled::NothingGood(Error::sample("nothing is good on purpose")));
            }
            _ => {}
        }
        Ok(fill::Filled::Batch(Batch {
            slot,
            ticket: Ticket { number: planned.number },
            rows,
            punctual: Punctual::default(),
        }))
    }
}

/// The number of the pass under test.
pub(crate) const PASS: u64 = 7;

/// Its state is the batch that is decided next.
pub(crate) struct Cache {
    batches: usize,
    next: Mutex<usize>,
}

impl Cache {
    /// As the product's: in order, each once, `None` when there is none left.
    pub(crate) fn decide(
        &self,
        pass: u64,
        _: usize,
        record_bytes: &dyn Fn(SampleId) -> u64,
    ) -> Option<cache::Decision> {
        assert_eq!((pass, record_bytes(0)), (PASS, 1));
        let mut next = self.next.lock();
        let number = *next;
        *next += 1;
        (number < self.batches).then_some(cache::Decision { number })
    }
}

pub(crate) mod cache {
    /// Nothing is cached.
    pub(crate) struct Decision {
        pub(crate) number: usize,
    }
}

pub(crate) mod arena {
    use std::ptr::NonNull;

    use lossfeed::device::{Cpu, Device};
    use lossfeed::error::Result;

    /// The product's, on memory that is not page-locked: threads of the system would be started for it.
    pub(crate) struct Mapping(lossfeed::arena::Mapping);

    impl Mapping {
        pub(crate) fn new(bytes: u64, device: &dyn Device, purpose: &str, remedy: &str) -> Result<Self> {
            device.register(&mut [])?;
            lossfeed::arena::Mapping::new(bytes, &Cpu, purpose, remedy).map(Self)
        }
        pub(crate) fn base(&self) -> NonNull<u8> {
            self.0.base()
        }
        pub(crate) fn len(&self) -> usize {
            self.0.len()
        }
    }

    pub(crate) fn human(bytes: u64) -> String {
        format!("{bytes} B")
    }
}

pub(crate) mod fill {
    use lossfeed::control::Plan;
    use lossfeed::error::Error;

    /// As the product's.
    pub(crate) struct Planned<'a> {
        pub(crate) pass: u64,
        pub(crate) number: usize,
        pub(crate) plan: &'a Plan,
    }

    /// As the product's.
    pub(crate) enum Filled {
        Batch(super::Batch),
        NothingGood(Error),
    }
}

pub(crate) mod timesheet {
    use std::time::Duration;

    /// As the product's.
    #[derive(Clone, Copy)]
    pub(crate) enum Work {
        Source,
        Decode,
        Slot,
        Decide,
        Idle,
    }

    #[derive(Clone, Default)]
    pub(crate) struct Spent;

    impl Spent {
        pub(crate) fn on(&self, _: Work) -> Duration {
            Duration::ZERO
        }
        pub(crate) fn total(&self) -> Duration {
            Duration::ZERO
        }
        pub(crate) fn since(&self, _: &Spent) -> Spent {
            Spent
        }
        pub(crate) fn mean(_: &[Spent]) -> Spent {
            Spent
        }
        pub(crate) fn divide(&self, waited_us: u64) -> [u64; 6] {
            [0, 0, 0, 0, 0, waited_us]
        }
    }

    /// No clock either.
    pub(crate) fn processor_time() -> Duration {
        Duration::ZERO
    }

    pub(crate) struct Timesheet;

    impl Timesheet {
        pub(crate) fn new() -> Self {
            Self
        }
        pub(crate) fn turn(&self, _: Work) {}
        pub(crate) fn spent(&self) -> Spent {
            Spent
        }
    }
}

/// Registers so many pieces of memory, then refuses.
#[derive(Debug)]
pub(crate) struct Stingy(pub(crate) AtomicUsize);

impl Device for Stingy {
    fn name(&self) -> String {
        "stingy".to_owned()
    }
    fn kind(&self) -> DeviceKind {
        DeviceKind::Cpu
    }
    fn register(&self, _: &mut [u8]) -> Result<Registration> {
        // Making a slot takes its time: others act meanwhile.
        shuttle::thread::yield_now();
        match self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) {
            Ok(_) => Ok(Registration::none()),
            Err(_) => Err(Error::device("locked-memory limit reached")),
        }
    }
}

/// A pool on a device that registers `most` slots.
pub(crate) fn pool(depth: usize, max_slots: usize, most: usize) -> SlotPool {
    let layout =
        lossfeed::staging::BatchLayout::new(ROWS, TensorSpec::new(Dtype::U8, [3]), TensorSpec::class_index()).unwrap();
    SlotPool::new(layout, depth, max_slots, Arc::new(Stingy(AtomicUsize::new(most)))).unwrap()
}

/// Every slot is in the pool again.
pub(crate) fn all_are_back(pool: &SlotPool) {
    let gauges = pool.gauges();
    assert_eq!(gauges.free, gauges.total, "a slot is missing: {gauges:?}");
}
