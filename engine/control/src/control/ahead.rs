//! What batches to come will want from the source, told before they are decided.
//!
//! Nothing is decided here: who stays and who gives way is told by [`Control::decide`] at the batch's turn. So what was
//! read early changes no hit, and a run reads ahead or not with the same batches. What turns out not to be needed was
//! read in vain: a sample that an earlier batch has made resident meanwhile. What is needed all the same, because a
//! resident gave way meanwhile, is fetched at the batch's turn.

use super::{Books, Control, PIECE};
use crate::policy::Needs;
use crate::types::SampleId;

/// How much may be wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// The most bytes that there is room for.
    pub free_bytes: u64,
    /// A sample of more bytes is left to its batch.
    pub sample_bytes_max: u64,
}

/// A sample that a batch to come will want.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Want {
    /// Its place in the epoch's order.
    pub place: usize,
    /// Who.
    pub id: SampleId,
}

/// What batches to come will want, as far as it was looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ahead {
    /// In the order of need. A sample that the order has twice is wanted twice.
    pub wants: Vec<Want>,
    /// The place to go on from.
    pub next: usize,
    /// Whether there is nothing behind that place in this pass.
    pub whole: bool,
}

impl Control {
    /// What batches of pass `pass` will want that are not decided yet, from place `from` of the order on: samples that
    /// are not resident now. `bytes(id)` is what a sample takes where it lands. Looks at [`PIECE`] places at most.
    ///
    /// `None` if another pass has begun, while the books are lent, and under a policy that delivers other samples than
    /// those drawn, of which nothing is known ahead.
    pub fn ahead(&self, pass: u64, from: usize, room: Room, bytes: &dyn Fn(SampleId) -> u64) -> Option<Ahead> {
        let (Books::Here(ledger), Some(current)) = (&self.books, &self.pass) else { return None };
        if self.passes != pass || ledger.needs().contains(Needs::SUBSTITUTES) {
            return None;
        }
        let to_come = self.to_come();
        let mut ahead = Ahead { next: from.max(to_come.start), ..Ahead::default() };
        let (mut wanted_bytes, piece) = (0, ahead.next.saturating_add(PIECE).min(to_come.end));
        while ahead.next < piece {
            let Some(&id) = current.plan.order.ids.get(ahead.next) else { break };
            let bytes = if ledger.contains(id) { 0 } else { bytes(id) };
            if bytes > 0 && bytes <= room.sample_bytes_max {
                if wanted_bytes + bytes > room.free_bytes {
                    break;
                }
                wanted_bytes += bytes;
                ahead.wants.push(Want { place: ahead.next, id });
            }
            ahead.next += 1;
        }
        ahead.whole = ahead.next >= to_come.end;
        Some(ahead)
    }

    /// The places of the order that batches to come will take from.
    fn to_come(&self) -> std::ops::Range<usize> {
        let Some(pass) = &self.pass else { return 0..0 };
        let last = pass.plan.len().saturating_sub(1);
        let rows = pass.plan.to_come(pass.next)..pass.plan.range(last).end;
        let Some(buffered) = &self.buffered else { return rows };
        // Each batch takes its new samples from the stream, and no more of it than that.
        let batches = pass.plan.len().saturating_sub(pass.next);
        let fresh = buffered.buffer.fresh(pass.plan.range(pass.next).len());
        let taken = buffered.taken();
        taken..(taken + (fresh * batches).min(rows.len())).min(pass.plan.order.ids.len())
    }
}
