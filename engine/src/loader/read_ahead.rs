//! Reading ahead: samples that batches to come will want are asked for before those batches are decided.
//!
//! Without it a loader thread decides a batch and then waits for its misses: there are as many requests under way as
//! batch slots allow, and only samples of one batch come together. Here threads of their own look over the order of the
//! pass ([`crate::control::Control::ahead`]), ask for what is absent, in the order of need, and keep it in memory of
//! its own, bounded in bytes. A batch takes from it what has come, waits for what is under way, and asks for the rest
//! itself. What could not be read is the batch's to ask for once more: errors are named in one place.
//!
//! Of a source that reads files one after the other nobody reads ahead before its reads turn out to be slow; then one
//! thread looks, and others read beside each other (`readers.rs`).
//!
//! Nothing is decided early, see decision 28: batches, hits and journals are the same with it and without.
//!
//! Locks: the window is held for one look at a batch's samples or at what arrived, never across I/O or the cache's lock.
//! One thread at a time starts or ends the prefetching of files; threads, readers and window are locked under that.

use super::desk::Job;
use super::look::{Chosen, Landed, Look, Vain};
use super::readers::{Clock, Hire, Readers};
use super::window::Window;
use crate::cache::{Begun, Cache, Decision, Lookup};
use crate::control::Ahead;
use crate::error::Result;
use crate::source::{Decisions, Source, Traffic};
use crate::stats::Counters;
use crate::tune::decided::Decided;
use crate::tune::fetch_plan::Plan;
use crate::types::SampleId;
use lossfeed_sync::{Condvar, Mutex};
use std::collections::HashSet;
use std::ops::{ControlFlow, Range};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// As many answers may be outstanding when another call begins: requests that stores have under way at a time.
const FEW: usize = 64;

/// The most places of an order that one look sees: ranges of shards are planned over all of them.
const SCANNED_MAX: usize = 1 << 17;

/// All that is wanted from `look`'s place on, piece by piece as [`Cache::ahead`] tells it, as far as there is room.
fn scanned(cache: &Cache, look: &Look, places: usize, bytes: &dyn Fn(SampleId) -> u64) -> Option<Ahead> {
    let mut all = cache.ahead(look.pass, look.from, look.room, bytes)?;
    let (mut room, mut wanted) = (look.room, 0..all.wants.len());
    while !all.whole && !all.undrawn && all.next < look.from.saturating_add(places) {
        let taken: u64 = all.wants.get(wanted).into_iter().flatten().map(|want| bytes(want.id)).sum();
        room.free_bytes = room.free_bytes.saturating_sub(taken);
        let more = cache.ahead(look.pass, all.next, room, bytes)?;
        if more.next == all.next {
            break;
        }
        wanted = all.wants.len()..all.wants.len() + more.wants.len();
        all.wants.extend(more.wants);
        all.busy.extend(more.busy);
        all = Ahead { wants: all.wants, busy: all.busy, ..more };
    }
    Some(all)
}

/// See the module's head.
pub struct ReadAhead {
    pub(super) window: Mutex<Window>,
    /// There is more to look for, or room for it.
    pub(super) room: Condvar,
    /// Something has come, or will not.
    pub(super) landed: Condvar,
    /// Of each sample's target.
    pub(super) target_bytes: u64,
    /// Rows of a batch, and of a rank's pass.
    batch: usize,
    share: usize,
    /// Microseconds in which a loader thread waited because too little is read ahead ([`Window::is_short`]), of all
    /// threads.
    pub(crate) short_us: AtomicU64,
    pub(super) counters: Arc<Counters>,
    /// Of a source that reads in turn: who reads instead.
    pub(super) readers: Option<Readers>,
    /// It is read ahead, or something that was is not used yet.
    on: AtomicBool,
    /// Whoever turns the reading on or off does it alone.
    turning: Mutex<()>,
}

impl ReadAhead {
    /// At most `limit_bytes` of samples, targets included; of a dataset whose targets have `target_bytes` each, for
    /// batches of `batch` rows in passes of `share` rows.
    pub fn new(limit_bytes: u64, target_bytes: usize, [batch, share]: [usize; 2], counters: Arc<Counters>) -> Self {
        Self {
            window: Mutex::new(Window::new(limit_bytes)),
            room: Condvar::new(),
            landed: Condvar::new(),
            target_bytes: target_bytes as u64,
            batch,
            share,
            short_us: AtomicU64::new(0),
            counters,
            readers: None,
            on: AtomicBool::new(true),
            turning: Mutex::new(()),
        }
    }

    /// The same for a source that reads in turn: while its reads are slow, or `always`. Decisions are told to
    /// `decisions`.
    pub fn beside(self, always: bool, decisions: Arc<Decisions>) -> Self {
        self.beside_by(always, decisions, Box::new(Instant::now))
    }

    /// The same by another clock.
    pub(super) fn beside_by(mut self, always: bool, decisions: Arc<Decisions>, clock: Clock) -> Self {
        self.readers = Some(Readers::new(always, decisions, clock));
        self.on = AtomicBool::new(always);
        self.window.get_mut().pause(!always);
        self
    }

    /// Who starts the threads that a source which reads in turn needs: now, or when its reads turn out to be slow.
    ///
    /// # Errors
    /// As `hire`, if they are needed now.
    pub fn hire_by(&self, hire: Hire) -> Result<()> {
        let Some(readers) = &self.readers else { return Ok(()) };
        readers.hire_by(hire);
        if readers.read() { readers.start_first() } else { Ok(()) }
    }

    /// Whether it reads in threads beside each other, which [`Self::hire_by`] starts.
    pub fn is_beside(&self) -> bool {
        self.readers.is_some()
    }

    /// Reads in flight at most that are its own; 0: none, or its source counts them.
    pub fn reads(&self) -> usize {
        self.readers.as_ref().map_or(0, Readers::target)
    }

    /// See the field: quick files cost nothing but this look.
    pub(super) fn is_on(&self) -> bool {
        self.on.load(Relaxed)
    }

    /// Reads have turned slow, or quick.
    pub(super) fn turned(&self, readers: &Readers, decided: Decided) {
        let _alone = self.turning.lock();
        // Another may have turned by now.
        let reads = readers.turn();
        if reads && let Err(error) = readers.start_first() {
            tracing::warn!(%error, "reads are slow, but no prefetch thread can be started");
            return readers.give_up();
        }
        tracing::debug!(reads = decided.now, why = decided.why, "reading files ahead");
        readers.tell(decided);
        {
            let mut window = self.window.lock();
            if reads {
                self.on.store(true, Relaxed);
            }
            window.pause(!reads);
        }
        self.room.notify_all();
    }

    /// Nothing is left of what was read ahead, and no more is: batches need not look here.
    fn rest(&self, window: &Window) {
        if window.is_idle() {
            self.on.store(false, Relaxed);
        }
    }

    /// Reads for a pass that has begun. What was read for it already stays, if it was foreseen.
    pub fn begin(&self, begun: Begun) {
        self.read_for(begun.pass, begun.foreseen);
    }

    /// Reads for no pass any more.
    pub fn end(&self) {
        self.read_for(0, None);
    }

    fn read_for(&self, pass: u64, foreseen: Option<Range<usize>>) {
        let vain = self.window.lock().begin(pass, foreseen);
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
        if let Some(readers) = &self.readers {
            let left = readers.close();
            self.miss(&left);
        }
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
        if self.is_on() { self.window.lock().bytes() } else { 0 }
    }

    /// The most bytes that are asked for and have come.
    pub fn limit(&self) -> u64 {
        self.window.lock().limit()
    }

    /// The most bytes from now on.
    pub fn set_limit(&self, bytes: u64) {
        self.window.lock().set_limit(bytes);
        self.room.notify_all();
    }

    /// The life of a thread that reads ahead for batches which `cache` decides, until [`Self::close`].
    pub fn work(&self, cache: &Cache, source: &dyn Source) {
        let bytes = |id| source.size(id).expected.unwrap_or(0) + self.target_bytes;
        // Samples of the machine's cache would be here a second time. Those that came with the opening move here, and
        // stay for the next epoch as all others do.
        let shared = source.counted().node.is_some();
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
            // Rows of pages, whose sizes are not known, come with others from the start.
            let apart = source.facts().sized && source.link().request_bytes > 0;
            let first_alone = apart && look.first_alone(self.batch, self.share);
            let places = if first_alone { 0 } else { SCANNED_MAX };
            let ahead = || scanned(cache, &look, places, &bytes);
            let mut wants = ahead();
            if wants.as_ref().is_some_and(|ahead| ahead.undrawn && ahead.wants.is_empty()) {
                cache.foresee(look.pass);
                wants = ahead();
            }
            if shared {
                wants.iter_mut().for_each(|ahead| ahead.wants.retain(|want| !source.is_near(want.id)));
            }
            let found = self.window.lock().looked(&look, wants, &bytes);
            let free_bytes = self.window.lock().free_for(&found, &bytes);
            let call = look.call(&found, self.batch, free_bytes);
            let plan = match first_alone {
                true => Some(call.first_alone()),
                false => source.plan(&found.ids, call),
            };
            let by_ranges = plan.as_ref().is_some_and(|plan| plan.by_ranges);
            let request_bytes = if by_ranges { call.range_bytes } else { look.request_bytes };
            // Where requests cost nothing there is nothing to wait for.
            let early = found.early.filter(|_| source.link().request_bytes > 0);
            let along = || match early {
                Some(0) => Chosen::Nothing,
                Some(now) => Chosen::Planned(Plan { samples: (0..now).collect(), beside_bytes: 0, by_ranges: false }),
                None => Chosen::Along(source.along(&found.ids, found.urgent, look.request_bytes)),
            };
            let chosen = plan.map_or_else(along, Chosen::Planned);
            let (ids, beside_bytes, goes_on) = {
                let mut window = self.window.lock();
                let (ids, beside_bytes) = window.asked(&look, found, chosen, &bytes);
                (ids, beside_bytes, window.is_starting())
            };
            self.landed.notify_all();
            match &self.readers {
                None => {
                    let few = if goes_on { ids.len() } else { (ids.len() / 4).max(FEW) };
                    self.read(source, (look.stretch, request_bytes), &ids, few);
                    if beside_bytes > 0 {
                        self.window.lock().give_back(beside_bytes);
                        self.room.notify_all();
                    }
                }
                Some(readers) => {
                    if !readers.put(look.stretch, &ids) {
                        self.miss(&ids);
                    }
                    self.cede();
                }
            }
        }
    }

    /// The life of a thread that reads `source` beside others, for batches and ahead of them, until [`Self::close`].
    pub fn serve(&self, source: &dyn Source) {
        let Some(readers) = &self.readers else { return };
        while let Some(job) = readers.next() {
            let began = readers.now();
            let (reads, bytes) = match job {
                Job::Asked(id, place) => (1, Readers::read_one(source, id, place)),
                Job::Ahead(stretch, ids) if self.window.lock().stretch() != stretch => {
                    self.miss(&ids);
                    (0, 0)
                }
                Job::Ahead(stretch, ids) => (ids.len() as u32, self.bring(source, (stretch, 0), &ids, &mut |_| ())),
            };
            if let Some(decided) = readers.done(reads, bytes, began) {
                self.turned(readers, decided);
            }
        }
    }

    fn cede(&self) {
        self.window.lock().cede();
        self.room.notify_all();
    }

    /// Another may look when `few` answers are still to come: enough to keep the link busy.
    fn read(&self, source: &dyn Source, how: (u64, u64), ids: &[SampleId], few: usize) {
        let mut ceded = ids.len() <= few;
        if ceded {
            self.cede();
        }
        self.bring(source, how, ids, &mut |unanswered| {
            if !ceded && unanswered <= few {
                ceded = true;
                self.cede();
            }
        });
        if !ceded {
            self.cede();
        }
    }

    /// Reads `ids` for a stretch, by requests of about so many bytes, and tells how many are left after each answer.
    /// The bytes that have come.
    fn bring(
        &self,
        source: &dyn Source,
        (stretch, request_bytes): (u64, u64),
        ids: &[SampleId],
        left: &mut dyn FnMut(usize),
    ) -> u64 {
        let stopped = || self.window.lock().stretch() != stretch;
        let mut bytes = 0;
        let mut unanswered: HashSet<SampleId> = ids.iter().copied().collect();
        let read = AssertUnwindSafe(|| {
            source.fetch_by(request_bytes, &stopped, ids, &mut |k, payload| {
                let Some(&id) = ids.get(k).filter(|id| unanswered.remove(id)) else {
                    return ControlFlow::Continue(());
                };
                match payload {
                    Ok(payload) if !source.facts().sized || payload.data.len() as u64 == source.payload_bytes(id) => {
                        bytes += payload.data.len() as u64;
                        self.land(id, Arc::new([payload.data, payload.target].concat()));
                    }
                    // Its batch asks for it again, and says what is wrong with it.
                    _ => self.miss(&[id]),
                }
                left(unanswered.len());
                if stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
        });
        match catch_unwind(read) {
            Ok(Traffic { requests, vain_bytes, .. }) => {
                self.counters.store_requests_total.fetch_add(requests, Relaxed);
                self.counters.store_vain_bytes_total.fetch_add(vain_bytes, Relaxed);
            }
            // It happens again where the batch asks, which has somebody to tell.
            Err(_) => {
                tracing::error!(samples = ids.len(), "the source panicked during prefetching")
            }
        }
        // It does not come. Of the others nothing is said: by now another call may be asking for them.
        self.miss(&unanswered.into_iter().collect::<Vec<_>>());
        bytes
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
        if !self.is_on() {
            return;
        }
        let rows = decision.lookups.iter().zip(&decision.ids);
        let cached = rows.filter(|(lookup, _)| **lookup == Lookup::Resident).map(|(_, &id)| id);
        let vain = self.window.lock().settle(pass, decision.reach, cached);
        self.count(vain);
        self.room.notify_all();
    }

    /// A batch has ended: nobody has its samples in hand any more.
    pub(super) fn released(&self) {
        if !self.is_on() {
            return;
        }
        let mut window = self.window.lock();
        self.rest(&window);
        if window.released() {
            drop(window);
            self.room.notify_all();
        }
    }

    /// See [`News::Doubtful`](crate::source::News::Doubtful).
    pub(super) fn doubt(&self, ids: &[SampleId]) {
        self.window.lock().doubt(ids);
        self.room.notify_all();
    }
}
