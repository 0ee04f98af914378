//! Filling one batch: decide, gather, fetch, publish, join.

use super::came;
use super::filling::{Filling, Outcome};
use super::origin::Origins;
use super::rows::Rows;
use super::timesheet::{Timesheet, Work};
use super::{Batch, Feed};
use crate::cache::Decision;
use crate::control::Plan;
use crate::error::{Error, Result};
use crate::source::Scratch;
use crate::staging::BatchSlot;
use crate::types::SampleId;
use lossfeed_kernels::image::batch_key;
use std::cell::Cell;
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
    pub(super) came: came::Rows,
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

/// Other batches that are asked for in place of one in which nothing is good, where the number of steps must stay: a
/// sampler with a buffer remembers only the last ones.
pub(crate) const NEAREST_MAX: usize = 64;

impl Feed {
    /// Fills `slot` with the planned batch as it was decided. Once `stopped` says so nobody wants the batch: what was
    /// not read is left unread, unless others wait for it.
    ///
    /// A batch in which nothing is good is left out, unless every rank must take as many steps as the others, or the
    /// batches are to stay full: then another batch of the epoch comes a second time, in its place.
    pub(super) fn fill(
        &self,
        planned: &Planned<'_>,
        decision: Decision,
        slot: BatchSlot,
        scratch: &mut Scratch,
        sheet: &Timesheet,
        stopped: &dyn Fn() -> bool,
    ) -> Result<Filled> {
        if let Some(ahead) = &self.read_ahead {
            ahead.settle(planned.pass, &decision);
        }
        let (mut slot, first) = match self.fill_rows(planned, decision, slot, scratch, sheet, stopped)? {
            Rowful::Batch(batch) => return Ok(Filled::Batch(batch)),
            Rowful::Nothing(slot, error) => (slot, error),
        };
        if !self.keeps_steps {
            return Ok(Filled::NothingGood(first));
        }
        let others = (0..planned.number).rev().chain(planned.number + 1..planned.plan.len());
        // Other numbers of ranks may have delivered the first batches of a resumed epoch: this one has none of them.
        let others = others.filter(|&number| !planned.plan.range(number).is_empty());
        // None is decided if the pass is over; or if the sampler has a buffer and has forgotten that batch.
        let again = |number| self.cache.decide_again(planned.pass, number, &|id| self.record_bytes(id));
        for decision in others.take(NEAREST_MAX).filter_map(again).take(self.stand_ins) {
            slot = match self.fill_rows(planned, decision, slot, scratch, sheet, stopped)? {
                Rowful::Batch(batch) => return Ok(Filled::Batch(batch)),
                Rowful::Nothing(slot, _) => slot,
            };
        }
        Err(Error::sample(format!(
            "batch {} of epoch {}: all of its samples are bad, and so are those of the {} nearest batches, so nothing can \
             replace it: repair the data",
            planned.number, planned.plan.epoch, self.stand_ins
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
        let Decision { ids, weights, hits, serial, lookups, owned, joined, residents, .. } = decision;
        let came = came::Rows::decided(&hits);
        sheet.turn(Work::Copy);
        slot.set_rows(ids.len());
        let tails = if self.records.tailed() { vec![Box::default(); ids.len()] } else { Vec::new() };
        let key = batch_key(self.seed.load(Relaxed), planned.plan.epoch, planned.number as u64);
        let parts = slot.parts_mut();
        let rows = Rows {
            feed: self,
            data: parts.data,
            target: parts.target,
            fields: self.layout().fields(),
            tails,
            data_bytes: self.layout().data_row_bytes(),
            target_bytes: self.layout().target_row_bytes(),
            ids: &ids,
            key,
            sheet,
        };
        let mut filling = Filling {
            feed: self,
            origins: Origins::new(self, lookups, owned, joined),
            sheet,
            stopped,
            over: Cell::new(false),
            rows,
            scratch,
            failures: vec![None; ids.len()],
            came,
        };
        if self.decoder.is_none() && filling.origins.all_pass() {
            let Outcome { failures, tails, came } = filling.copy_all()?;
            slot.set_tails(tails);
            let finished = self.finish(planned, Delivered { ids, weights, serial, came }, failures, slot)?;
            return Ok(self.mixed(finished, key, sheet));
        }
        // Residents first: their pins are short, and memory that evictions promised comes back before it is needed.
        let in_place = filling.unpack_residents(residents);
        filling.fetch();
        let Outcome { failures, tails, came } = filling.publish_and_join()?;
        slot.set_tails(tails);
        if let Some(in_place) = in_place {
            slot.leave_in_place(in_place);
        }
        let finished = self.finish(planned, Delivered { ids, weights, serial, came }, failures, slot)?;
        Ok(self.mixed(finished, key, sheet))
    }

    /// The same with its images mixed, which must wait until it is known which rows there are.
    fn mixed(&self, finished: Rowful, key: u64, sheet: &Timesheet) -> Rowful {
        match (finished, &self.images) {
            (Rowful::Batch(mut batch), Some(images)) => {
                let before = sheet.turn(Work::Decode);
                images.mix(key, batch.slot.parts_mut().data);
                sheet.turn(before);
                Rowful::Batch(batch)
            }
            (finished, _) => finished,
        }
    }
}
