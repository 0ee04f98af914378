//! Filling one batch: decide, gather, fetch, publish, join.

use super::timesheet::{Timesheet, Work};
use super::{Batch, Feed, Ticket};
use crate::arena::{Pins, SlotMut};
use crate::cache::{Fetched, Flight, Landing, Lookup};
use crate::error::{Error, ErrorKind, Result};
use crate::settings::OnError;
use crate::source::{Payload, Scratch};
use crate::staging::{BatchSlot, InPlace};
use crate::types::SampleId;
use lossfeed_kernels::image::batch_key;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// One batch as planned.
pub(super) struct Planned<'a> {
    pub(super) epoch: u64,
    pub(super) number: usize,
    pub(super) ids: &'a [SampleId],
    pub(super) weights: &'a [f32],
}

/// Flights this batch owes to others. Whatever happens, they land: a joiner must not wait for ever.
struct Owed<'a> {
    feed: &'a Feed,
    flights: Vec<(SampleId, Arc<Flight>, Fetched)>,
}

impl Drop for Owed<'_> {
    fn drop(&mut self) {
        let feed = self.feed;
        feed.cache.publish(std::mem::take(&mut self.flights), &|id| feed.record_bytes(id));
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
    answered: bool,
}

/// The rows of a batch while they are being filled.
struct Rows<'a> {
    feed: &'a Feed,
    data: &'a mut [u8],
    target: &'a mut [u8],
    data_bytes: usize,
    target_bytes: usize,
    ids: &'a [SampleId],
    /// What the batch's draws have in common.
    key: u64,
    sheet: &'a Timesheet,
}

impl Rows<'_> {
    fn at(&mut self, row: usize) -> (&mut [u8], &mut [u8]) {
        let (d, t) = (self.data_bytes, self.target_bytes);
        (&mut self.data[row * d..(row + 1) * d], &mut self.target[row * t..(row + 1) * t])
    }

    /// Fills a row from a cached record.
    fn unpack(&mut self, row: usize, record: &[u8], scratch: &mut Scratch) -> Result<()> {
        let (payload, target) = record.split_at(record.len() - self.target_bytes);
        let encoded = self.feed.keeps_encoded();
        self.write(row, &Payload { data: payload, target }, encoded, scratch)
    }

    /// Takes the target of a record whose sample stays where it is; false for a record of another size than the row's.
    fn leave(&mut self, row: usize, record: &[u8]) -> bool {
        let (data_bytes, target_bytes) = (self.data_bytes, self.target_bytes);
        let fits = record.len() == data_bytes + target_bytes;
        if fits {
            self.at(row).1.copy_from_slice(&record[data_bytes..]);
        }
        fits
    }

    /// Fills a row from a payload, decoding it if it is encoded.
    fn write(&mut self, row: usize, payload: &Payload<'_>, encoded: bool, scratch: &mut Scratch) -> Result<()> {
        let feed = self.feed;
        if payload.target.len() != self.target_bytes {
            return Err(Error::sample(format!(
                "target has {} bytes, the dataset's targets have {}",
                payload.target.len(),
                self.target_bytes
            )));
        }
        let (sheet, key, id) = (self.sheet, self.key, i64::from(self.ids[row]));
        let (data, target) = self.at(row);
        target.copy_from_slice(payload.target);
        let decoder = feed.decoder.as_ref().filter(|_| encoded);
        // A plain copy stays on the account it is done for: reading the clock twice a row would cost as much.
        let before = (decoder.is_some() || feed.images.is_some()).then(|| sheet.turn(Work::Decode));
        let written = match (decoder, &feed.images) {
            (Some(decoder), None) => decoder.decode(payload.data, data, scratch),
            (Some(decoder), Some(images)) => {
                let mut decoded = std::mem::take(&mut scratch.decoded);
                decoded.resize(feed.decoded_bytes, 0);
                let done = decoder.decode(payload.data, &mut decoded, scratch);
                if done.is_ok() {
                    images.maker.make(key, id, &decoded, data);
                }
                scratch.decoded = decoded;
                done
            }
            (None, _) if payload.data.len() != feed.decoded_bytes => Err(Error::sample(format!(
                "sample has {} bytes, the dataset's samples have {}",
                payload.data.len(),
                feed.decoded_bytes
            ))),
            (None, None) => {
                data.copy_from_slice(payload.data);
                Ok(())
            }
            (None, Some(images)) => {
                images.maker.make(key, id, payload.data, data);
                Ok(())
            }
        };
        if let Some(before) = before {
            sheet.turn(before);
        }
        written
    }

    /// What the cache keeps of the payload just written to `row`.
    fn kept<'b>(&'b mut self, row: usize, payload: &Payload<'b>, scratch: &'b Scratch) -> &'b [u8] {
        match (&self.feed.decoder, &self.feed.images) {
            (None, _) => payload.data,
            _ if self.feed.keeps_encoded() => payload.data,
            (Some(_), Some(_)) => &scratch.decoded,
            (Some(_), None) => self.at(row).0,
        }
    }
}

/// Copies a record (payload, then target) into arena memory.
fn pack(mut slot: SlotMut, payload: &[u8], target: &[u8]) -> Fetched {
    slot[..payload.len()].copy_from_slice(payload);
    slot[payload.len()..].copy_from_slice(target);
    Fetched::Kept(slot.freeze())
}

/// Copies a sample and its target from one row to another.
fn copy_row(slot: &mut BatchSlot, from: usize, to: usize) {
    let (data, target) = (slot.layout().data_row_bytes(), slot.layout().target_row_bytes());
    let parts = slot.parts_mut();
    parts.data.copy_within(from * data..(from + 1) * data, to * data);
    parts.target.copy_within(from * target..(from + 1) * target, to * target);
}

impl Feed {
    /// Fills `slot` with the planned batch. `lookups` are the cache's decisions for its ids, in order, and `residents` the
    /// records it has found.
    pub(super) fn fill(
        &self,
        planned: &Planned<'_>,
        lookups: Vec<Lookup>,
        residents: Pins,
        mut slot: BatchSlot,
        scratch: &mut Scratch,
        sheet: &Timesheet,
    ) -> Result<Batch> {
        sheet.turn(Work::Copy);
        let count = planned.ids.len();
        slot.set_rows(count);
        let parts = slot.parts_mut();
        let mut rows = Rows {
            feed: self,
            data: parts.data,
            target: parts.target,
            data_bytes: self.layout().data_row_bytes(),
            target_bytes: self.layout().target_row_bytes(),
            ids: planned.ids,
            key: self.images.as_ref().map_or(0, |i| batch_key(i.seed, planned.epoch, planned.number as u64)),
            sheet,
        };
        let mut failures: Vec<Option<Arc<Error>>> = vec![None; count];
        let named = |id: SampleId, e: Error| {
            let kind = e.kind();
            Arc::new(Error::new(kind, format!("sample {id} ({})", self.source.name(id))).because(e))
        };

        // Whatever is pushed to it lands, also if a decoder panics.
        let mut owed = Owed { feed: self, flights: Vec::new() };
        let unfetched = Arc::new(Error::internal("the source did not answer for this sample"));
        let (mut resident_rows, mut joined, mut missing, mut wanted) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (row, lookup) in lookups.into_iter().enumerate() {
            let id = planned.ids[row];
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
            wanted.push(Wanted { row, flight, answered: false });
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
                failures[row] = Some(named(planned.ids[row], e));
            }
        }
        self.in_place_total.fetch_add(left.len() as u64, Relaxed);
        // Else all pins are let go of now, with one lock.
        let in_place = (!left.is_empty()).then(|| InPlace::new(residents, left));

        if !missing.is_empty() {
            let mut fetched_bytes = 0;
            sheet.turn(Work::Source);
            let mut land = |k: usize, payload: Result<Payload<'_>>, again: Option<&mut Vec<usize>>| {
                let (id, Wanted { row, flight, answered }) = (missing[k], &mut wanted[k]);
                *answered = true;
                let landed = payload.and_then(|payload| {
                    fetched_bytes += payload.data.len() as u64;
                    self.land_one(id, *row, &payload, flight.as_ref(), &mut rows, scratch)
                });
                let landed = match (landed, again) {
                    (Ok(landed), _) => landed,
                    (Err(e), Some(again)) if e.kind() == ErrorKind::Sample => return again.push(k),
                    (Err(e), _) => {
                        let e = named(id, e);
                        failures[*row] = Some(Arc::clone(&e));
                        Fetched::Failed(e)
                    }
                };
                if let Some(own) = flight {
                    owed.flights[own.number].2 = landed;
                }
            };
            // What came over a network and is no sample is asked for once more: damage on the way passes.
            let mut again = Vec::new();
            let remote = self.source.remote();
            self.source.fetch(&missing, &mut |k, payload| land(k, payload, remote.then_some(&mut again)));
            if !again.is_empty() {
                let ids: Vec<SampleId> = again.iter().map(|&k| missing[k]).collect();
                self.source.fetch(&ids, &mut |k, payload| land(again[k], payload, None));
            }
            self.counters.fetched_samples_total.fetch_add(missing.len() as u64, Relaxed);
            self.counters.fetched_bytes_total.fetch_add(fetched_bytes, Relaxed);
            for (&id, wanted) in missing.iter().zip(&wanted).filter(|(_, wanted)| !wanted.answered) {
                failures[wanted.row] = Some(named(id, Error::internal("the source did not answer for this sample")));
            }
        }
        sheet.turn(Work::Score);
        drop(owed); // publishes

        for (row, flight) in joined {
            sheet.turn(Work::Source);
            let landing = flight.join();
            sheet.turn(Work::Copy);
            let unpacked = match landing {
                Landing::Stored(record) => rows.unpack(row, &record, scratch).map_err(|e| named(planned.ids[row], e)),
                Landing::Loose(record) => rows.unpack(row, &record, scratch).map_err(|e| named(planned.ids[row], e)),
                Landing::Failed(e) => Err(e),
            };
            failures[row] = unpacked.err();
        }
        sheet.turn(Work::Copy);
        if let Some(in_place) = in_place {
            slot.leave_in_place(in_place);
        }
        self.finish(planned, failures, slot)
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

    /// Applies the bad-sample policy and writes ids and weights.
    fn finish(&self, planned: &Planned<'_>, failures: Vec<Option<Arc<Error>>>, mut slot: BatchSlot) -> Result<Batch> {
        let mut ids = planned.ids.to_vec();
        let mut weights = planned.weights.to_vec();
        if failures.iter().any(Option::is_some) {
            // Rows are moved about below.
            slot.gather();
            for (row, error) in failures.iter().enumerate() {
                let Some(error) = error else { continue };
                // An outage says nothing about the data.
                if self.on_error == OnError::Raise || matches!(error.kind(), ErrorKind::Internal | ErrorKind::Outage) {
                    let batch = format!("batch {} of epoch {}", planned.number, planned.epoch);
                    return Err(Error::new(error.kind(), batch).because(Arc::clone(error)));
                }
                self.report_bad(ids[row], error);
            }
            let good: Vec<usize> = (0..ids.len()).filter(|&r| failures[r].is_none()).collect();
            if good.is_empty() {
                return Err(Error::sample(format!(
                    "batch {} of epoch {}: all {} samples are bad; the first: {}",
                    planned.number,
                    planned.epoch,
                    ids.len(),
                    failures.iter().flatten().next().map_or_else(String::new, |e| e.to_string())
                )));
            }
            match self.on_error {
                OnError::Skip => {
                    for (to, &from) in good.iter().enumerate() {
                        copy_row(&mut slot, from, to);
                        (ids[to], weights[to]) = (ids[from], weights[from]);
                    }
                    ids.truncate(good.len());
                    weights.truncate(good.len());
                }
                _ => {
                    let bad = (0..ids.len()).filter(|&r| failures[r].is_some());
                    for (k, to) in bad.enumerate() {
                        let from = good[k % good.len()];
                        copy_row(&mut slot, from, to);
                        (ids[to], weights[to]) = (ids[from], weights[from]);
                        self.counters.substituted_total.fetch_add(1, Relaxed);
                    }
                }
            }
        }
        slot.set_rows(ids.len());
        slot.set_ids(&ids, &weights);
        let rows = ids.len();
        let ticket = Ticket {
            engine: self.engine,
            epoch: planned.epoch,
            number: planned.number,
            ids: ids.into(),
            scored: Arc::new(AtomicBool::new(false)),
        };
        Ok(Batch { slot, ticket, rows })
    }
}
