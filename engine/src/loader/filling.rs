//! The rows of one batch, phase by phase: what is cached, what the source is asked for, what others are fetching.

use super::Feed;
use super::came;
use super::gather::gather;
use super::origin::Origins;
use super::rows::Rows;
use super::timesheet::{Timesheet, Work};
use crate::arena::{Pins, SlotMut};
use crate::cache::{Fetched, Landing};
use crate::error::{Error, ErrorKind, Result};
use crate::source::{Payload, Scratch, again};
use crate::staging::InPlace;
use crate::types::SampleId;
use std::cell::Cell;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Rounds in which the source answers for nothing before it is held to be broken.
const SILENT_ROUNDS: usize = 3;
/// The longest sleep before a look whether the batch is still wanted.
const STOP_SOON: Duration = Duration::from_millis(50);

/// Why a batch was not filled that nobody wants: the pass has ended, so nobody is told either.
fn stopped_early() -> Error {
    Error::new(ErrorKind::Interrupted, "the pass was stopped")
}

/// What became of the rows.
pub(super) struct Outcome {
    /// Why they could not be filled, by row.
    pub(super) failures: Vec<Option<Arc<Error>>>,
    /// The tails of the samples that have some.
    pub(super) tails: Vec<Box<[u8]>>,
    pub(super) came: came::Rows,
}

/// A batch in the making.
pub(super) struct Filling<'a> {
    pub(super) feed: &'a Feed,
    pub(super) origins: Origins<'a>,
    pub(super) sheet: &'a Timesheet,
    /// Whether the pass has ended: nobody wants the batch then.
    pub(super) stopped: &'a dyn Fn() -> bool,
    /// Whether this batch has seen the pass's end, and has left the fetches it had joined.
    pub(super) over: Cell<bool>,
    pub(super) rows: Rows<'a>,
    pub(super) scratch: &'a mut Scratch,
    /// Why a row could not be filled, by row.
    pub(super) failures: Vec<Option<Arc<Error>>>,
    pub(super) came: came::Rows,
}

impl Filling<'_> {
    /// Copies all rows out of the source's memory: the whole batch, where nothing of it is cached or to be kept.
    pub(super) fn copy_all(mut self) -> Result<Outcome> {
        let count = self.failures.len();
        self.sheet.turn(Work::Source);
        let gathered = gather(&*self.feed.source, &mut self.rows, self.scratch, self.stopped);
        self.sheet.turn(Work::Copy);
        self.feed.counters.fetched_samples_total.fetch_add(gathered.rows as u64, Relaxed);
        self.feed.counters.fetched_bytes_total.fetch_add(gathered.bytes, Relaxed);
        if gathered.stopped {
            return Err(stopped_early());
        }
        if gathered.rows < count {
            return Err(Error::internal(format!("the source answered for {} of {count} samples", gathered.rows)));
        }
        for (row, e) in gathered.failures {
            self.failures[row] = Some(self.feed.named(self.rows.ids[row], e));
        }
        self.came.all_near();
        Ok(Outcome { failures: self.failures, tails: self.rows.tails, came: self.came })
    }

    /// Fills the rows whose records are cached. Records that a device may read where they lie stay pinned: see
    /// [`InPlace`].
    pub(super) fn unpack_residents(&mut self, residents: Pins) -> Option<InPlace> {
        let in_place = self.feed.in_place;
        // Of short records, or where only the targets are read, the first bytes of all at once: misses of memory
        // overlap here, and would follow each other in the copies below. Longer ones are asked for one ahead.
        let ahead = !in_place && residents.iter().next().is_some_and(|record| record.len() >= 1024);
        if ahead {
            residents.prefetch(0);
        } else {
            let skipped = if in_place { self.rows.data_bytes } else { 0 };
            let first = |all: u8, record: &[u8]| all ^ record.get(skipped).copied().unwrap_or(0);
            std::hint::black_box(residents.iter().fold(0, first));
        }
        let mut left = Vec::new();
        for (number, (row, record)) in self.origins.residents().zip(residents.iter()).enumerate() {
            if ahead {
                residents.prefetch(number + 1);
            }
            if in_place && residents.is_in_one_piece(number) && self.rows.leave(row, record) {
                left.push((row as u32, number as u32));
            } else if let Err(e) = self.rows.unpack(row, record, self.scratch) {
                self.failures[row] = Some(self.feed.named(self.rows.ids[row], e));
            }
        }
        self.feed.counters.in_place_samples_total.fetch_add(left.len() as u64, Relaxed);
        // Else all pins are let go of now, with one lock.
        (!left.is_empty()).then(|| InPlace::new(residents, left))
    }

    /// Asks the source for what is neither cached nor on its way, until it has answered for everything. Once the pass
    /// has ended, what nobody else waits for is left unread.
    pub(super) fn fetch(&mut self) {
        let mut asked = self.origins.wanted();
        let mut silent_rounds = 0;
        while !asked.is_empty() {
            let answered = self.ask(&asked);
            let answers = answered.iter().filter(|answered| answered.get()).count();
            if answers == asked.len() {
                return;
            }
            silent_rounds += usize::from(answers == 0);
            let unanswered = asked.iter().zip(&answered).filter(|(_, answered)| !answered.get());
            let unanswered: Vec<usize> = unanswered.map(|(&row, _)| row).collect();
            asked = unanswered.into_iter().filter(|&row| self.is_asked_again(row, silent_rounds)).collect();
        }
    }

    /// What becomes of a row that the source has not answered for; true if it must be asked again.
    fn is_asked_again(&mut self, row: usize, silent_rounds: usize) -> bool {
        let owned = self.origins.flight(row).filter(|_| self.over.get());
        match owned.map(|(flight, _)| flight.close_if_alone()) {
            // Left unread, and nobody will know.
            Some(true) => self.origins.settle(row, Fetched::Passed(None)),
            // Somebody has joined at the last moment.
            Some(false) if silent_rounds < SILENT_ROUNDS => return true,
            _ => {
                let error = Error::internal("the source did not answer for this sample");
                self.failures[row] = Some(self.feed.named(self.rows.ids[row], error));
            }
        }
        false
    }

    /// Asks the source once for the samples of rows `asked`. By position: whether it has answered.
    fn ask(&mut self, asked: &[usize]) -> Vec<Cell<bool>> {
        let Self { feed, origins, sheet, stopped, over, rows, scratch, failures, came } = self;
        let (source, ids) = (&feed.source, rows.ids);
        // Beside the origins and not in them: a byte written into a record that is read a moment later stalls the read.
        let answered = vec![Cell::new(false); asked.len()];
        let abandoned = || {
            if !stopped() {
                return false;
            }
            if !over.replace(true) {
                origins.leave_joined();
            }
            !asked.iter().zip(&answered).any(|(&row, answered)| !answered.get() && origins.is_waited_for(row))
        };
        // Whether a pass is over is asked after every sample that had to be read, and now and then where that is only a
        // copy.
        let in_memory = source.facts().in_memory;
        let going = |k: usize| {
            let ends = (!in_memory || k.is_multiple_of(16)) && abandoned();
            if ends { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let mut fetched_bytes = 0;
        let mut land = |k: usize, payload: Result<Payload<'_>>, wrong: Option<&mut Vec<(usize, Error)>>| {
            let row = asked[k];
            answered[k].set(true);
            // By reference, as in `gather.rs`.
            let landed = match payload {
                Ok(ref payload) => {
                    fetched_bytes += payload.data.len() as u64;
                    came.came(row, payload.near || in_memory);
                    land_one(feed, row, payload, origins, rows, scratch)
                }
                Err(e) => Err(e),
            };
            let landed = match (landed, wrong) {
                (Ok(landed), _) => landed,
                (Err(e), Some(wrong)) if e.kind() == ErrorKind::Sample => {
                    wrong.push((k, e));
                    return going(k);
                }
                (Err(e), _) => {
                    let e = feed.named(ids[row], e);
                    failures[row] = Some(Arc::clone(&e));
                    Fetched::Failed(e)
                }
            };
            origins.settle(row, landed);
            going(k)
        };
        sheet.turn(Work::Source);
        // Bytes that came over a network and are no sample are fetched again, by the same rule as an answer of a wrong
        // length: damage on the way passes.
        let (mut wrong, begun) = (Vec::new(), Instant::now());
        let remote = source.facts().remote;
        let wanted: Vec<SampleId> = asked.iter().map(|&row| ids[row]).collect();
        let mut traffic =
            feed.fetch_unless(&abandoned, &wanted, &mut |k, payload| land(k, payload, remote.then_some(&mut wrong)));
        for round in 0.. {
            if wrong.is_empty() {
                break;
            }
            let Some(pause) = again(round, begun.elapsed(), source.facts().retry_timeout) else {
                for (k, e) in wrong {
                    let _ = land(k, Err(e), None);
                }
                break;
            };
            let asked: Vec<usize> = wrong.drain(..).map(|(k, _)| k).collect();
            asked.iter().for_each(|&k| answered[k].set(false));
            let wanted: Vec<SampleId> = asked.iter().map(|&k| wanted[k]).collect();
            feed.doubt(&wanted);
            // The first time at once: most damage has passed by then.
            if round > 0 {
                wait(pause, &abandoned);
            }
            traffic += source
                .fetch_by(u64::MAX, &abandoned, &wanted, &mut |k, payload| land(asked[k], payload, Some(&mut wrong)));
        }
        feed.counters.store_requests_total.fetch_add(traffic.requests, Relaxed);
        feed.counters.store_vain_bytes_total.fetch_add(traffic.vain_bytes, Relaxed);
        let answers = answered.iter().filter(|answered| answered.get()).count() as u64;
        feed.counters.fetched_samples_total.fetch_add(answers.saturating_sub(traffic.repeated_samples), Relaxed);
        feed.counters.fetched_bytes_total.fetch_add(fetched_bytes.saturating_sub(traffic.repeated_bytes), Relaxed);
        answered
    }

    /// Publishes what this batch fetched, then waits for what others are fetching.
    pub(super) fn publish_and_join(self) -> Result<Outcome> {
        let Self { feed, origins, sheet, stopped, over, mut rows, scratch, mut failures, mut came } = self;
        let joined = origins.joined();
        if !joined.is_empty() {
            let (own, in_memory) = (origins.wanted(), feed.source.facts().in_memory);
            joined.iter().for_each(|(row, _)| came.joined(*row, rows.ids, own.iter().copied(), in_memory));
        }
        sheet.turn(Work::Decide);
        drop(origins); // publishes
        if over.get() {
            return Err(stopped_early());
        }
        let mut joined = joined.into_iter();
        while let Some((row, flight)) = joined.next() {
            sheet.turn(Work::Source);
            let landing = flight.join(stopped);
            sheet.turn(Work::Copy);
            let Some(landing) = landing else {
                joined.for_each(|(_, flight)| flight.leave());
                return Err(stopped_early());
            };
            let unpacked = match landing {
                Landing::Stored(record) => rows.unpack(row, &record, scratch),
                Landing::Loose(record) => rows.unpack(row, &record, scratch),
                Landing::Failed(e) => {
                    failures[row] = Some(e);
                    continue;
                }
            };
            failures[row] = unpacked.err().map(|e| feed.named(rows.ids[row], e));
        }
        sheet.turn(Work::Copy);
        Ok(Outcome { failures, tails: rows.tails, came })
    }
}

/// One fetched payload: into its row, and into the cache if it was admitted and there is memory.
fn land_one(
    feed: &Feed,
    row: usize,
    payload: &Payload<'_>,
    origins: &Origins<'_>,
    rows: &mut Rows<'_>,
    scratch: &mut Scratch,
) -> Result<Fetched> {
    let id = rows.ids[row];
    let stored = feed.source.payload_bytes(id);
    if feed.records.announced() && payload.data.len() as u64 != stored {
        return Err(Error::sample(format!(
            "the source returned {} bytes instead of {stored}: it changed since it was opened; open it again",
            payload.data.len()
        )));
    }
    rows.write(row, payload, feed.decoder.is_some(), scratch)?;
    if !feed.records.announced() {
        feed.source.delivered(id, payload.data);
    }
    let Some((flight, admitted)) = origins.flight(row) else { return Ok(Fetched::Passed(None)) };
    // What is kept takes what the books say: a sample whose size was not known, or was another, is kept another time.
    let record_bytes = rows.kept(row, payload, scratch).len() + payload.target.len();
    let booked = admitted.is_some_and(|bytes| bytes == record_bytes as u64);
    if booked && let Some(slot) = feed.cache.reserve(record_bytes) {
        let before = rows.sheet.turn(Work::Copy);
        let packed = pack(slot, rows.kept(row, payload, scratch), payload.target);
        rows.sheet.turn(before);
        return Ok(packed);
    }
    if flight.close_if_alone() {
        return Ok(Fetched::Passed(None));
    }
    Ok(Fetched::Passed(Some([rows.kept(row, payload, scratch), payload.target].concat().into())))
}

/// Waits for so long, or until `abandoned` says that nobody wants what comes after it.
fn wait(pause: Duration, abandoned: &dyn Fn() -> bool) {
    let begun = Instant::now();
    while let Some(rest) = pause.checked_sub(begun.elapsed()).filter(|_| !abandoned()) {
        std::thread::sleep(rest.min(STOP_SOON));
    }
}

/// Copies a record (payload, then target) into arena memory.
fn pack(mut slot: SlotMut, payload: &[u8], target: &[u8]) -> Fetched {
    slot[..payload.len()].copy_from_slice(payload);
    slot[payload.len()..].copy_from_slice(target);
    Fetched::Kept(slot.freeze())
}
