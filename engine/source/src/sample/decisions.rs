//! What sources and engines decide about reading while a run goes on, on its way to whoever writes it down.
//!
//! Lock: guards decisions that are not written down yet; held for a few instructions.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use lossfeed_sync::{Mutex, PerProcess};

use crate::process::pid;
use crate::tune::decided::Decided;

/// Of more that wait the oldest are lost: somebody looks once a batch.
const WAITING_MAX: usize = 256;

/// Decisions that wait to be written down, in their order.
#[derive(Debug, Default)]
pub struct Decisions {
    waiting: Mutex<VecDeque<Decided>>,
    /// So that nobody takes the lock in vain.
    news: AtomicBool,
}

impl Decisions {
    /// Adds one.
    pub fn push(&self, decided: Decided) {
        let mut waiting = self.waiting.lock();
        if waiting.len() == WAITING_MAX {
            waiting.pop_front();
        }
        waiting.push_back(decided);
        self.news.store(true, Relaxed);
    }

    /// All that wait.
    pub fn take(&self) -> VecDeque<Decided> {
        if !self.news.load(Relaxed) {
            return VecDeque::new();
        }
        let mut waiting = self.waiting.lock();
        self.news.store(false, Relaxed);
        std::mem::take(&mut waiting)
    }
}

/// Who is told of a source's decisions: the runs that read from it now.
#[derive(Debug, Default)]
pub(crate) struct Listeners(PerProcess<Mutex<Vec<Weak<Decisions>>>>);

impl Listeners {
    pub(crate) fn add(&self, listener: &Arc<Decisions>) {
        let mut listeners = self.0.of(pid()).lock();
        listeners.retain(|known| known.strong_count() > 0);
        listeners.push(Arc::downgrade(listener));
    }

    pub(crate) fn tell(&self, decided: Decided) {
        self.0.of(pid()).lock().iter().filter_map(Weak::upgrade).for_each(|listener| listener.push(decided));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::decided::Knob;

    #[test]
    fn every_run_that_lives_is_told_in_order_and_the_oldest_give_way() {
        let decided = |now| Decided { knob: Knob::Requests, before: 0, now, code: 1, why: "so" };
        let (listeners, one, gone) = (Listeners::default(), Arc::default(), Arc::default());
        listeners.add(&one);
        listeners.add(&gone);
        drop(gone);
        (0..3).for_each(|now| listeners.tell(decided(now)));
        assert_eq!(one.take(), [decided(0), decided(1), decided(2)]);
        assert!(one.take().is_empty());
        (0..WAITING_MAX as u64 + 2).for_each(|now| one.push(decided(now)));
        let left = one.take();
        assert_eq!((left.len(), left.front().map(|first| first.now)), (WAITING_MAX, Some(2)));
        listeners.add(&one);
        assert_eq!(listeners.0.of(pid()).lock().len(), 2, "who has gone is forgotten");
    }
}
