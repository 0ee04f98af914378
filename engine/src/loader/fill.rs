//! Filling one batch: decide, gather, fetch, publish, join.

use super::gather::gather;
use super::rows::Rows;
use super::timesheet::{Timesheet, Work};
use super::{Batch, Feed};
use crate::arena::SlotMut;
use crate::cache::{Decision, Fetched, Flight, Landing, Lookup};
use crate::control::Plan;
use crate::error::{Error, ErrorKind, Result};
use crate::source::{Payload, Scratch};
use crate::staging::{BatchSlot, InPlace};
use crate::types::SampleId;
use lossfeed_kernels::image::batch_key;
use std::cell::Cell;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// One batch as planned.
pub(super) struct Planned<'a> {
    /// The pass, as the cache knows it.
    pub(super) pass: u64,
    pub(super) number: usize,
    pub(super) plan: &'a Plan,
}

/// Who is delivered, row by row.
pub(super) struct Delivered {
    pub(super) ids: Vec<SampleId>,
    pub(super) weights: Vec<f32>,
    /// By which the cache knows the batch.
    pub(super) serial: u64,
}

/// What became of a planned batch.
pub(super) enum Filled {
    Batch(Batch),
    /// None of its samples could be read or decoded, and the run goes on without them. Why the first could not.
    NothingGood(Error),
}

/// A slot with rows in it, or without any good one.
pub(super) enum Rowful {
    Batch(Batch),
    Nothing(BatchSlot, Error),
}

/// Other batches that are tried in place of one in which nothing was good, where the number of steps must stay.
const STAND_INS: usize = 8;

/// Flights this batch owes to others. Whatever happens, they land: a joiner must not wait for ever.
struct Owed<'a> {
    feed: &'a Feed,
    flights: Vec<(SampleId, Arc<Flight>, Fetched)>,
}

impl Drop for Owed<'_> {
    fn drop(&mut self) {
        self.feed.cache.publish(std::mem::take(&mut self.flights));
    }
}

/// A flight that is this batch's to land.
struct Own {
    /// Among those owed.
    number: usize,
    flight: Arc<Flight>,
    /// Whether the record is to be kept.
    admitted: bool,
}

/// A row whose sample has to be fetched.
struct Wanted {
    row: usize,
    /// `None` if the sample lies in memory and is not to be kept: then nobody else waits for it.
    flight: Option<Own>,
}

impl Wanted {
    /// Whether another batch waits for it: one of a later pass, or of this one.
    fn is_waited_for(&self) -> bool {
        self.flight.as_ref().is_some_and(|own| own.flight.is_waited_for())
    }
}

/// Copies a record (payload, then target) into arena memory.
fn pack(mut slot: SlotMut, payload: &[u8], target: &[u8]) -> Fetched {
    slot[..payload.len()].copy_from_slice(payload);
    slot[payload.len()..].copy_from_slice(target);
    Fetched::Kept(slot.freeze())
}

/// Why a batch was not filled that nobody wants: the pass has ended, so nobody is told either.
fn stopped_early() -> Error {
    Error::new(ErrorKind::Interrupted, "the pass was stopped")
}

impl Feed {
    /// Fills `slot` with the planned batch as it was decided. Once `stopped` says so nobody wants the batch: what was not read is
    /// left unread, unless others wait for it.
    ///
    /// A batch in which nothing is good is left out, unless every rank must take as many steps as the others, or the batches are to
    /// stay full: then another batch of the epoch comes a second time, in its place.
    pub(super) fn fill(
        &self,
        planned: &Planned<'_>,
        decision: Decision,
        slot: BatchSlot,
        scratch: &mut Scratch,
        sheet: &Timesheet,
        stopped: &dyn Fn() -> bool,
    ) -> Result<Filled> {
        let (mut slot, first) = match self.fill_rows(planned, decision, slot, scratch, sheet, stopped)? {
            Rowful::Batch(batch) => return Ok(Filled::Batch(batch)),
            Rowful::Nothing(slot, error) => (slot, error),
        };
        if !self.keeps_steps {
            return Ok(Filled::NothingGood(first));
        }
        let others = (0..planned.number).rev().chain(planned.number + 1..planned.plan.len());
        for number in others.take(STAND_INS) {
            let decision = self.cache.decide_again(planned.pass, number, &|id| self.record_bytes(id));
            // The pass is over, or batches are bound once.
            let Some(decision) = decision else { break };
            slot = match self.fill_rows(planned, decision, slot, scratch, sheet, stopped)? {
                Rowful::Batch(batch) => return Ok(Filled::Batch(batch)),
                Rowful::Nothing(slot, _) => slot,
            };
        }
        Err(Error::sample(format!(
            "batch {} of epoch {}: no sample of it is good, and none of the {STAND_INS} batches nearest to it, so nothing can take its place: repair the data",
            planned.number, planned.plan.epoch
        ))
        .because(first))
    }

    fn fill_rows(
        &self,
        planned: &Planned<'_>,
        decision: Decision,
        mut slot: BatchSlot,
        scratch: &mut Scratch,
        sheet: &Timesheet,
        stopped: &dyn Fn() -> bool,
    ) -> Result<Rowful> {
        let Decision { ids, weights, serial, lookups, residents, .. } = decision;
        let delivered = Delivered { ids, weights, serial };
        sheet.turn(Work::Copy);
        let count = delivered.ids.len();
        slot.set_rows(count);
        let parts = slot.parts_mut();
        let mut rows = Rows {
            feed: self,
            data: parts.data,
            target: parts.target,
            data_bytes: self.layout().data_row_bytes(),
            target_bytes: self.layout().target_row_bytes(),
            ids: &delivered.ids,
            key: self.images.as_ref().map_or(0, |i| batch_key(i.seed, planned.plan.epoch, planned.number as u64)),
            sheet,
        };
        let mut failures: Vec<Option<Arc<Error>>> = vec![None; count];
        let named = |id: SampleId, e: Error| {
            let kind = e.kind();
            Arc::new(Error::new(kind, format!("sample {id} ({})", self.source.name(id))).because(e))
        };

        if self.decoder.is_none() && lookups.iter().all(|lookup| matches!(lookup, Lookup::Passing)) {
            sheet.turn(Work::Source);
            let gathered = gather(&*self.source, &mut rows, stopped);
            sheet.turn(Work::Copy);
            self.counters.fetched_samples_total.fetch_add(gathered.rows as u64, Relaxed);
            self.counters.fetched_bytes_total.fetch_add(gathered.bytes, Relaxed);
            if gathered.stopped {
                return Err(stopped_early());
            }
            if gathered.rows < count {
                return Err(Error::internal(format!("the source answered for {} of {count} samples", gathered.rows)));
            }
            for (row, e) in gathered.failures {
                failures[row] = Some(named(delivered.ids[row], e));
            }
            return self.finish(planned, delivered, failures, slot);
        }

        // Whatever is pushed to it lands, also if a decoder panics.
        let mut owed = Owed { feed: self, flights: Vec::new() };
        let unfetched = Arc::new(Error::internal("the source did not answer for this sample"));
        let (mut resident_rows, mut joined, mut missing) = (Vec::new(), Vec::new(), Vec::with_capacity(count));
        let mut wanted = Vec::with_capacity(count);
        for (row, lookup) in lookups.into_iter().enumerate() {
            let id = delivered.ids[row];
            let flight = match lookup {
                Lookup::Resident => {
                    resident_rows.push(row);
                    continue;
                }
                Lookup::Joined(flight) => {
                    joined.push((row, flight));
                    continue;
                }
                Lookup::Passing => None,
                Lookup::Owned { flight, admitted } => {
                    owed.flights.push((id, Arc::clone(&flight), Fetched::Failed(Arc::clone(&unfetched))));
                    Some(Own { number: owed.flights.len() - 1, flight, admitted })
                }
            };
            missing.push(id);
            wanted.push(Wanted { row, flight });
        }

        // The first bytes to be read of all records at once: misses of memory overlap here, and follow each other in the copies below.
        let skipped = if self.in_place { rows.data_bytes } else { 0 };
        let first = |all: u8, record: &[u8]| all ^ record.get(skipped).copied().unwrap_or(0);
        std::hint::black_box(residents.iter().fold(0, first));
        // Residents first: their pins are short, and memory that evictions promised comes back before it is needed.
        let mut left = Vec::new();
        for (number, (&row, record)) in resident_rows.iter().zip(residents.iter()).enumerate() {
            if self.in_place && residents.is_in_one_piece(number) && rows.leave(row, record) {
                left.push((row as u32, number as u32));
            } else if let Err(e) = rows.unpack(row, record, scratch) {
                failures[row] = Some(named(delivered.ids[row], e));
            }
        }
        self.counters.in_place_samples_total.fetch_add(left.len() as u64, Relaxed);
        // Else all pins are let go of now, with one lock.
        let in_place = (!left.is_empty()).then(|| InPlace::new(residents, left));

        // A stopped batch wants nothing of others any more, and they need not read on for it.
        let over = Cell::new(false);
        let abandoned = |wanted: &[Wanted], answered: &[Cell<bool>]| {
            if !stopped() {
                return false;
            }
            if !over.replace(true) {
                joined.iter().for_each(|(_, flight)| flight.leave());
            }
            !wanted.iter().zip(answered).any(|(w, answered)| !answered.get() && w.is_waited_for())
        };
        let mut unanswered_rounds = 0;
        while !missing.is_empty() {
            let mut fetched_bytes = 0;
            // Beside what is wanted and not in it: a byte written into a record that is copied a moment later stalls the copy.
            let answered = vec![Cell::new(false); missing.len()];
            // Whether a pass is over is asked after every sample that had to be read, and now and then where that is only a copy.
            let in_memory = self.source.in_memory();
            let going = |k: usize| {
                let ends = (!in_memory || k.is_multiple_of(16)) && abandoned(&wanted, &answered);
                if ends { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            sheet.turn(Work::Source);
            let mut land = |k: usize, payload: Result<Payload<'_>>, again: Option<&mut Vec<usize>>| {
                let (id, Wanted { row, flight }) = (missing[k], &wanted[k]);
                answered[k].set(true);
                let landed = payload.and_then(|payload| {
                    fetched_bytes += payload.data.len() as u64;
                    self.land_one(id, *row, &payload, flight.as_ref(), &mut rows, scratch)
                });
                let landed = match (landed, again) {
                    (Ok(landed), _) => landed,
                    (Err(e), Some(again)) if e.kind() == ErrorKind::Sample => {
                        again.push(k);
                        return going(k);
                    }
                    (Err(e), _) => {
                        let e = named(id, e);
                        failures[*row] = Some(Arc::clone(&e));
                        Fetched::Failed(e)
                    }
                };
                if let Some(own) = flight {
                    owed.flights[own.number].2 = landed;
                }
                going(k)
            };
            // What came over a network and is no sample is asked for once more: damage on the way passes.
            let mut again = Vec::new();
            let remote = self.source.remote();
            let stop = || abandoned(&wanted, &answered);
            self.source.fetch_unless(&stop, &missing, &mut |k, payload| land(k, payload, remote.then_some(&mut again)));
            if !again.is_empty() {
                again.iter().for_each(|&k| answered[k].set(false));
                let ids: Vec<SampleId> = again.iter().map(|&k| missing[k]).collect();
                self.source.fetch_unless(&stop, &ids, &mut |k, payload| land(again[k], payload, None));
            }
            let count = answered.iter().filter(|answered| answered.get()).count();
            self.counters.fetched_samples_total.fetch_add(count as u64, Relaxed);
            self.counters.fetched_bytes_total.fetch_add(fetched_bytes, Relaxed);
            if count == missing.len() {
                break;
            }
            unanswered_rounds += usize::from(count == 0);
            let asked = std::mem::take(&mut missing).into_iter().zip(std::mem::take(&mut wanted)).zip(answered);
            for ((id, unanswered), _) in asked.filter(|(_, answered)| !answered.get()) {
                let alone = unanswered.flight.as_ref().filter(|_| over.get()).map(|own| own.flight.close_if_alone());
                match (alone, &unanswered.flight) {
                    // Left unread, and nobody will know.
                    (Some(true), Some(own)) => owed.flights[own.number].2 = Fetched::Passed(None),
                    // Somebody has joined at the last moment.
                    (Some(false), _) if unanswered_rounds < 3 => {
                        missing.push(id);
                        wanted.push(unanswered);
                    }
                    _ => {
                        let error = Error::internal("the source did not answer for this sample");
                        failures[unanswered.row] = Some(named(id, error));
                    }
                }
            }
        }
        sheet.turn(Work::Decide);
        drop(owed); // publishes
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
                Landing::Stored(record) => rows.unpack(row, &record, scratch).map_err(|e| named(delivered.ids[row], e)),
                Landing::Loose(record) => rows.unpack(row, &record, scratch).map_err(|e| named(delivered.ids[row], e)),
                Landing::Failed(e) => Err(e),
            };
            failures[row] = unpacked.err();
        }
        sheet.turn(Work::Copy);
        if let Some(in_place) = in_place {
            slot.leave_in_place(in_place);
        }
        self.finish(planned, delivered, failures, slot)
    }

    /// One fetched payload: into its row, and into the cache if it was admitted and there is memory.
    fn land_one(
        &self,
        id: SampleId,
        row: usize,
        payload: &Payload<'_>,
        own: Option<&Own>,
        rows: &mut Rows<'_>,
        scratch: &mut Scratch,
    ) -> Result<Fetched> {
        let stored = self.source.payload_bytes(id);
        if payload.data.len() as u64 != stored {
            return Err(Error::sample(format!(
                "the source gave {} bytes where {stored} were announced: it changed since it was opened; open it again",
                payload.data.len()
            )));
        }
        rows.write(row, payload, self.decoder.is_some(), scratch)?;
        let Some(own) = own else { return Ok(Fetched::Passed(None)) };
        if own.admitted
            && let Some(slot) = self.cache.reserve(self.record_bytes(id) as usize)
        {
            let before = rows.sheet.turn(Work::Copy);
            let packed = pack(slot, rows.kept(row, payload, scratch), payload.target);
            rows.sheet.turn(before);
            return Ok(packed);
        }
        if own.flight.close_if_alone() {
            return Ok(Fetched::Passed(None));
        }
        Ok(Fetched::Passed(Some([rows.kept(row, payload, scratch), payload.target].concat().into())))
    }
}
