//! Reading ahead: samples that batches to come will want are asked for before those batches are decided.
//!
//! Without it a loader thread decides a batch and then waits for its misses: there are as many requests under way as
//! batch slots allow, and only samples of one batch come together. Here threads of their own look over the order of the
//! pass ([`crate::control::Control::ahead`]), ask for what is absent, in the order of need, and keep it in memory of its
//! own, bounded in bytes. A batch takes from it what has come, waits for what is under way, and asks for the rest
//! itself. What could not be read is the batch's to ask for once more: errors are named in one place.
//!
//! Nothing is decided early, see decision 28: batches, hits and journals are the same with it and without.

use super::window::{self, Landed, Look, Vain, Window};
use crate::cache::{Begun, Cache, Decision, Lookup};
use crate::error::Result;
use crate::source::{Payload, Source, Traffic};
use crate::stats::Counters;
use crate::types::SampleId;
use parking_lot::{Condvar, Mutex};
use std::cell::Cell;
use std::collections::HashSet;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// How long a batch waits for what is under way before it looks whether anybody still wants it.
const PATIENCE: Duration = Duration::from_millis(50);

/// As many answers may be outstanding when another call begins: requests that stores have under way at a time.
const FEW: usize = 64;

/// What a batch found of what it needs, by its own positions.
#[derive(Default)]
struct Taken {
    /// How many had come.
    landed: u64,
    /// Of these, those that had stayed for this pass.
    repeated: Traffic,
    under_way: Vec<usize>,
    /// Those that nobody asked for, or that did not come.
    absent: Vec<usize>,
}

/// See the module's head.
pub struct ReadAhead {
    window: Mutex<Window>,
    /// There is more to look for, or room for it.
    room: Condvar,
    /// Something has come, or will not.
    landed: Condvar,
    /// Of each sample's target.
    target_bytes: u64,
    counters: Arc<Counters>,
}

impl ReadAhead {
    /// At most `limit_bytes` of samples, targets included; of a dataset whose targets have `target_bytes` each.
    pub fn new(limit_bytes: u64, target_bytes: usize, counters: Arc<Counters>) -> Self {
        Self {
            window: Mutex::new(Window::new(limit_bytes)),
            room: Condvar::new(),
            landed: Condvar::new(),
            target_bytes: target_bytes as u64,
            counters,
        }
    }

    /// Reads for a pass that has begun. What was read for it already stays, if it was foreseen.
    pub fn begin(&self, begun: Begun) {
        self.read_for(begun.pass, begun.start);
    }

    /// Reads for no pass any more.
    pub fn end(&self) {
        self.read_for(0, None);
    }

    fn read_for(&self, pass: u64, start: Option<usize>) {
        let vain = self.window.lock().begin(pass, start);
        self.count(vain);
        self.room.notify_all();
        self.landed.notify_all();
    }

    /// Ends the threads that are in [`Self::work`].
    pub fn close(&self) {
        let mut window = self.window.lock();
        window.close();
        let vain = window.begin(0, None);
        drop(window);
        self.count(vain);
        self.room.notify_all();
        self.landed.notify_all();
    }

    fn count(&self, vain: Vain) {
        if vain.samples > 0 {
            let c = &self.counters;
            c.read_ahead_vain_total.fetch_add(vain.samples, Relaxed);
            c.fetched_samples_total.fetch_add(vain.samples, Relaxed);
            c.fetched_bytes_total.fetch_add(vain.bytes, Relaxed);
        }
    }

    /// Bytes that were asked for, or have come and are not used yet.
    pub fn bytes(&self) -> u64 {
        self.window.lock().bytes()
    }

    /// The life of a thread that reads ahead for batches which `cache` decides, until [`Self::close`].
    pub fn work(&self, cache: &Cache, source: &dyn Source) {
        let bytes = |id| source.expected_bytes(id).unwrap_or(0) + self.target_bytes;
        loop {
            let look = {
                let mut window = self.window.lock();
                loop {
                    if window.is_closed() {
                        return;
                    }
                    if let Some(look) = window.look() {
                        break look;
                    }
                    self.room.wait(&mut window);
                }
            };
            let ahead = || cache.ahead(look.pass, look.from, look.room, &bytes);
            let mut wants = ahead();
            if wants.as_ref().is_some_and(|ahead| ahead.undrawn && ahead.wants.is_empty()) {
                cache.foresee(look.pass);
                wants = ahead();
            }
            let found = self.window.lock().looked(&look, wants, &bytes);
            let along = source.along(&found.ids, found.urgent, look.request_bytes);
            let ids = self.window.lock().asked(&look, found, &along, &bytes);
            self.read(source, &look, &ids);
        }
    }

    fn cede(&self) {
        self.window.lock().cede();
        self.room.notify_all();
    }

    fn read(&self, source: &dyn Source, look: &Look, ids: &[SampleId]) {
        let stopped = || self.window.lock().stretch() != look.stretch;
        // From here on another may look, while this call's last answers come: enough to keep the link busy.
        let few = (ids.len() / 4).max(FEW);
        let mut ceded = ids.len() <= few;
        if ceded {
            self.cede();
        }
        let mut unanswered: HashSet<SampleId> = ids.iter().copied().collect();
        let read = AssertUnwindSafe(|| {
            source.fetch_by(look.request_bytes, &stopped, ids, &mut |k, payload| {
                let Some(&id) = ids.get(k).filter(|id| unanswered.remove(id)) else {
                    return ControlFlow::Continue(());
                };
                match payload {
                    Ok(payload) if !source.sized() || payload.data.len() as u64 == source.payload_bytes(id) => {
                        self.land(id, Arc::new([payload.data, payload.target].concat()));
                    }
                    // Its batch asks for it again, and says what is wrong with it.
                    _ => self.miss(&[id]),
                }
                if !ceded && unanswered.len() <= few {
                    ceded = true;
                    self.cede();
                }
                if stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
        });
        let read = catch_unwind(read);
        if !ceded {
            self.cede();
        }
        match read {
            Ok(Traffic { requests, vain_bytes, .. }) => {
                self.counters.store_requests_total.fetch_add(requests, Relaxed);
                self.counters.store_vain_bytes_total.fetch_add(vain_bytes, Relaxed);
            }
            // It happens again where the batch asks, which has somebody to tell.
            Err(_) => {
                tracing::error!(pass = look.pass, samples = ids.len(), "the source panicked while it was read ahead")
            }
        }
        // It does not come. Of the others nothing is said: by now another call may be asking for them.
        self.miss(&unanswered.into_iter().collect::<Vec<_>>());
    }

    fn land(&self, id: SampleId, landed: Landed) {
        let bytes = landed.len() as u64;
        let needed = self.window.lock().land(id, landed);
        if needed {
            self.landed.notify_all();
        } else {
            self.count(Vain { samples: 1, bytes });
        }
    }

    fn miss(&self, ids: &[SampleId]) {
        let mut window = self.window.lock();
        ids.iter().for_each(|&id| window.miss(id));
        drop(window);
        self.room.notify_all();
        self.landed.notify_all();
    }

    /// A batch of pass `pass` was decided: what was read for it and is cached by now is let go of.
    pub(super) fn settle(&self, pass: u64, decision: &Decision) {
        let rows = decision.lookups.iter().zip(&decision.ids);
        let cached = rows.filter(|(lookup, _)| **lookup == Lookup::Resident).map(|(_, &id)| id);
        let vain = self.window.lock().settle(pass, decision.reach, cached);
        self.count(vain);
        self.room.notify_all();
    }

    /// A batch has ended: nobody has its samples in hand any more.
    pub(super) fn released(&self) {
        if self.window.lock().released() {
            self.room.notify_all();
        }
    }

    /// As [`Source::doubt`].
    pub(super) fn doubt(&self, ids: &[SampleId]) {
        self.window.lock().doubt(ids);
        self.room.notify_all();
    }

    /// As [`Source::fetch_by`] for the samples of a batch: from what was read ahead, and from `source` what was
    /// not.
    pub(super) fn fetch_unless(
        &self,
        source: &dyn Source,
        stopped: &dyn Fn() -> bool,
        ids: &[SampleId],
        sink: &mut dyn FnMut(usize, Result<Payload<'_>>) -> ControlFlow<()>,
    ) -> Traffic {
        let traffic = Cell::new(Traffic::default());
        let add = |more: Traffic| {
            let mut sum = traffic.get();
            sum += more;
            traffic.set(sum);
        };
        let ControlFlow::Continue(at_first) = self.take((0..ids.len()).collect(), ids, sink) else {
            return traffic.get();
        };
        self.counters.read_ahead_samples_total.fetch_add(at_first.landed, Relaxed);
        add(at_first.repeated);
        // First, so that they are under way too while the others are waited for.
        let mut broken = false;
        let mut ask = |absent: &[usize], sink: &mut dyn FnMut(usize, Result<Payload<'_>>) -> ControlFlow<()>| {
            if absent.is_empty() {
                return false;
            }
            let wanted: Vec<SampleId> = absent.iter().filter_map(|&k| ids.get(k).copied()).collect();
            add(source.fetch_by(u64::MAX, stopped, &wanted, &mut |at, payload| {
                let going = absent.get(at).map_or(ControlFlow::Continue(()), |&k| sink(k, payload));
                broken |= going.is_break();
                going
            }));
            broken
        };
        if ask(&at_first.absent, sink) {
            return traffic.get();
        }
        let (mut under_way, mut missed) = (at_first.under_way, Vec::new());
        while !under_way.is_empty() {
            if stopped() {
                return traffic.get();
            }
            self.wait(&under_way, ids);
            let ControlFlow::Continue(taken) = self.take(under_way, ids, sink) else { return traffic.get() };
            self.counters.read_ahead_late_total.fetch_add(taken.landed, Relaxed);
            add(taken.repeated);
            missed.extend(taken.absent);
            under_way = taken.under_way;
        }
        ask(&missed, sink);
        traffic.get()
    }

    /// Hands what has come of the positions `wanted` to `sink`.
    fn take(
        &self,
        wanted: Vec<usize>,
        ids: &[SampleId],
        sink: &mut dyn FnMut(usize, Result<Payload<'_>>) -> ControlFlow<()>,
    ) -> ControlFlow<(), Taken> {
        let (mut here, mut taken, mut free_bytes) = (Vec::new(), Taken::default(), 0);
        {
            let mut window = self.window.lock();
            for k in wanted {
                match ids.get(k).map_or(window::Taken::Nothing, |&id| window.take(id)) {
                    window::Taken::Landed { landed, stays, used } => {
                        free_bytes += if stays { 0 } else { landed.len() as u64 };
                        if used {
                            taken.repeated.repeated_samples += 1;
                            taken.repeated.repeated_bytes += (landed.len() as u64).saturating_sub(self.target_bytes);
                        }
                        here.push((k, landed));
                    }
                    window::Taken::UnderWay => taken.under_way.push(k),
                    window::Taken::Nothing => taken.absent.push(k),
                }
            }
        }
        taken.landed = here.len() as u64;
        let mut going = ControlFlow::Continue(());
        for (k, landed) in here {
            let data = landed.len().saturating_sub(self.target_bytes as usize);
            let (data, target) = landed.split_at(data);
            going = sink(k, Ok(Payload { data, target, near: true }));
            if going.is_break() {
                break;
            }
        }
        if taken.landed > 0 {
            let mut window = self.window.lock();
            window.give_back(free_bytes);
            drop(window);
            self.room.notify_all();
        }
        going?;
        ControlFlow::Continue(taken)
    }

    /// Until one of the positions `under_way` has come or will not, or for a moment.
    fn wait(&self, under_way: &[usize], ids: &[SampleId]) {
        let mut window = self.window.lock();
        let is_there = |k: &usize| ids.get(*k).is_none_or(|&id| !window.is_under_way(id));
        if !under_way.iter().any(is_there) {
            self.landed.wait_for(&mut window, PATIENCE);
        }
    }
}
