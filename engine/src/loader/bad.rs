//! What becomes of a batch in which samples are bad: left out, replaced by others of the batch, or the end of the pass.

use super::fill::{Delivered, Planned, Rowful};
use super::{Batch, Feed, Ticket};
use crate::error::{Error, ErrorKind, Result};
use crate::settings::OnError;
use crate::staging::BatchSlot;
use crate::types::SampleId;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

impl Feed {
    /// Applies the bad-sample policy and writes ids and weights.
    pub(super) fn finish(
        &self,
        planned: &Planned<'_>,
        rows: Delivered,
        failures: Vec<Option<Arc<Error>>>,
        mut slot: BatchSlot,
    ) -> Result<Rowful> {
        let Delivered { mut ids, mut weights, serial, mut came } = rows;
        let bad: Vec<usize> = (0..ids.len()).filter(|&row| failures[row].is_some()).collect();
        self.note_failures(serial, &ids, &failures, &bad, planned)?;
        if !bad.is_empty() {
            let good: Vec<usize> = (0..ids.len()).filter(|&row| failures[row].is_none()).collect();
            if good.is_empty() {
                let first = failures.iter().flatten().next().map_or_else(String::new, |e| e.to_string());
                return Ok(Rowful::Nothing(
                    slot,
                    Error::sample(format!(
                        "batch {} of epoch {}: all {} samples are bad; the first: {first}",
                        planned.number,
                        planned.plan.epoch,
                        ids.len(),
                    )),
                ));
            }
            // Rows are moved about below.
            slot.gather();
            match self.on_error {
                OnError::Skip => {
                    for (to, &from) in good.iter().enumerate() {
                        slot.copy_row(from, to);
                        came.copy(from, to);
                        (ids[to], weights[to]) = (ids[from], weights[from]);
                    }
                    ids.truncate(good.len());
                    weights.truncate(good.len());
                }
                // How the row came stays: the batch waited for it, and got another.
                _ => {
                    for (&to, &from) in bad.iter().zip(good.iter().cycle()) {
                        slot.copy_row(from, to);
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
            epoch: planned.plan.epoch,
            number: planned.number,
            serial,
            ids: ids.into(),
            scored: Arc::new(AtomicBool::new(false)),
        };
        Ok(Rowful::Batch(Batch { slot, ticket, rows, punctual: came.count(rows) }))
    }

    /// Ends the pass at the first failure that is not to be passed over; the others are counted, listed, and told to
    /// the score table: samplers weigh their draws by what can be read.
    fn note_failures(
        &self,
        serial: u64,
        ids: &[SampleId],
        failures: &[Option<Arc<Error>>],
        bad: &[usize],
        planned: &Planned<'_>,
    ) -> Result<()> {
        for &row in bad {
            let Some(error) = &failures[row] else { continue };
            // An outage says nothing about the data, nor does the end of a pass.
            let other = matches!(error.kind(), ErrorKind::Internal | ErrorKind::Interrupted | ErrorKind::Outage);
            if self.on_error == OnError::Raise || other {
                let batch = format!("batch {} of epoch {}", planned.number, planned.plan.epoch);
                return Err(Error::new(error.kind(), batch).because(Arc::clone(error)));
            }
            self.report_bad(ids[row], error);
        }
        // Nothing ever failed: nothing to tell, and no lock to take.
        if self.counters.bad_samples_total.load(Relaxed) == 0 {
            return Ok(());
        }
        self.cache.read(serial, ids, &|row| failures[row].is_some());
        Ok(())
    }
}
