//! What batches to come will want from the source, told before they are decided.
//!
//! Nothing is decided here: who stays and who gives way is told by [`Control::decide`] at the batch's turn. So what was
//! read early changes no hit, and a run reads ahead or not with the same batches. What turns out not to be needed was
//! read in vain: a sample that an earlier batch has made resident meanwhile. What is needed all the same, because a
//! resident gave way meanwhile, is fetched at the batch's turn.
//!
//! Behind the order of the pass comes that of the next epoch, where it depends on seed and epoch alone: it is foreseen.
//! Its places are counted on from those of the pass. If another epoch begins all the same, nothing was decided by it.

use super::{Books, Control, Cut, Drawing, PIECE, Plan};
use crate::policy::Needs;
use crate::sampler::Order;
use crate::types::SampleId;
use std::sync::Arc;

/// The largest dataset whose next order is foreseen: it lies in memory beside the one under way, 8 bytes a draw. Passes
/// over larger ones take hours, and wait a moment when they begin.
const FORESEEN_MAX: u32 = 1 << 24;

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
    /// Of the next pass's, those that somebody is fetching for this one: whoever knows that puts them here.
    pub busy: Vec<Want>,
    /// The place to go on from.
    pub next: usize,
    /// Places from this one on are the next pass's, as far as it is foreseen.
    pub beyond: Option<usize>,
    /// Behind `next` comes an order that is not drawn yet: [`Control::to_foresee`].
    pub undrawn: bool,
    /// Whether there is nothing behind `next`.
    pub whole: bool,
}

/// The epoch that comes behind a pass, if nobody asks for another.
#[derive(Debug)]
pub struct Foreseen {
    epoch: u64,
    /// Its first place, counted on from those of the pass.
    start: usize,
    /// Once it is drawn.
    order: Option<Arc<Order>>,
    /// Those of the epochs behind it that are drawn already.
    later: Vec<Arc<Order>>,
    /// Draws of it that make batches.
    draws: usize,
}

impl Foreseen {
    /// Where a pass over `plan` from batch `first` on begins among the places that were told, if it is this one.
    pub fn start_of(&self, plan: &Plan, first: usize) -> Option<usize> {
        let same = self.order.as_ref().is_some_and(|order| Arc::ptr_eq(order, &plan.order));
        (same && self.epoch == plan.epoch && first == 0).then_some(self.start)
    }

    /// Behind the last place that is known.
    fn end(&self) -> usize {
        self.start + self.order.as_ref().map_or(0, |_| self.draws)
    }
}

impl Control {
    /// What batches of pass `pass` will want that are not decided yet, and behind them those of the pass that is
    /// foreseen, from place `from` on: samples that are not resident now. `bytes(id)` is what a sample takes where it
    /// lands. Looks at [`PIECE`] places at most.
    ///
    /// `None` if another pass has begun, or it has ended and none is foreseen; while the books are lent; and under a
    /// policy that delivers other samples than those drawn, of which nothing is known ahead.
    pub fn ahead(&self, pass: u64, from: usize, room: Room, bytes: &dyn Fn(SampleId) -> u64) -> Option<Ahead> {
        let Books::Here(ledger) = &self.books else { return None };
        let (current, foreseen) = (self.pass.as_ref(), self.foreseen.as_ref());
        let over = current.is_none() && foreseen.is_none();
        if over || self.passes != pass || ledger.needs().contains(Needs::SUBSTITUTES) {
            return None;
        }
        let to_come = self.to_come();
        let beyond = foreseen.map(|foreseen| foreseen.start);
        let end = foreseen.map_or(to_come.end, Foreseen::end);
        let at = |place: usize| match foreseen.and_then(|next| Some((place.checked_sub(next.start)?, next))) {
            Some((place, next)) => next.order.as_ref()?.ids.get(place),
            None => current?.plan.order.ids.get(place),
        };
        let mut ahead = Ahead { next: from.max(to_come.start), beyond, ..Ahead::default() };
        let (mut wanted_bytes, piece) = (0, ahead.next.saturating_add(PIECE).min(end));
        while ahead.next < piece {
            let Some(&id) = at(ahead.next) else { break };
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
        let through = ahead.next >= end;
        ahead.undrawn = through && foreseen.is_some_and(|foreseen| foreseen.order.is_none());
        ahead.whole = through && !ahead.undrawn;
        Some(ahead)
    }

    /// What comes behind a pass over `plan`, if its order depends on seed and epoch alone and the dataset is not too
    /// large.
    pub(super) fn behind(&self, plan: &Plan) -> Option<Foreseen> {
        let blind = |of: &Drawing| !of.adaptive() && !of.awaits_weights && of.samples <= FORESEEN_MAX;
        let known = self.drawing.as_ref().is_some_and(blind) && self.buffered.is_none() && self.exchange.is_none();
        let (epoch, draws) = (plan.epoch.saturating_add(1), plan.drawn());
        let even = matches!(plan.cut, Cut::Even(_));
        let mut later = plan.behind.clone();
        let order = (!later.is_empty()).then(|| later.remove(0));
        (even && (known || order.is_some())).then_some(Foreseen { epoch, start: draws, order, later, draws })
    }

    /// The epoch behind pass `pass`, to be drawn blindly, if it is foreseen and not drawn yet. Too much for a lock:
    /// [`Control::foresee`] takes the order.
    pub fn to_foresee(&self, pass: u64) -> Option<(Drawing, u64)> {
        let foreseen = self.foreseen.as_ref().filter(|next| self.passes == pass && next.order.is_none())?;
        Some((self.drawing.clone()?, foreseen.epoch))
    }

    /// The order of the epoch behind pass `pass`; `None`: it cannot be drawn. Hands out what is not of use any more, as
    /// another pass has begun.
    pub fn foresee(&mut self, pass: u64, order: Option<Arc<Order>>) -> Option<Arc<Order>> {
        let Some(foreseen) = self.foreseen.as_mut().filter(|_| self.passes == pass) else { return order };
        match order {
            Some(order) => foreseen.order.replace(order),
            None => self.foreseen.take().and_then(|foreseen| foreseen.order),
        }
    }

    /// The order of `epoch`, if it was foreseen and drawn.
    pub fn foreseen(&self, epoch: u64) -> Option<Arc<Order>> {
        let foreseen = self.foreseen.as_ref()?;
        match usize::try_from(epoch.checked_sub(foreseen.epoch)?).ok()?.checked_sub(1) {
            None => foreseen.order.clone(),
            Some(later) => foreseen.later.get(later).cloned(),
        }
    }

    /// Whether an epoch is foreseen behind the pass that began last.
    pub fn foresees(&self) -> bool {
        self.foreseen.is_some()
    }

    /// What was foreseen, before another pass begins.
    pub fn take_foreseen(&mut self) -> Option<Foreseen> {
        self.foreseen.take()
    }

    /// The places of the order that batches to come will take from.
    fn to_come(&self) -> std::ops::Range<usize> {
        let Some(pass) = &self.pass else {
            let end = self.foreseen.as_ref().map_or(0, |foreseen| foreseen.start);
            return end..end;
        };
        let rows = pass.plan.to_come(pass.next)..pass.plan.drawn();
        let Some(buffered) = &self.buffered else { return rows };
        // Each batch takes its new samples from the stream, and no more of it than that.
        let batches = pass.plan.len().saturating_sub(pass.next);
        let fresh = buffered.buffer.fresh(pass.plan.range(pass.next).len());
        let taken = buffered.taken();
        taken..(taken + (fresh * batches).min(rows.len())).min(pass.plan.order.ids.len())
    }
}
