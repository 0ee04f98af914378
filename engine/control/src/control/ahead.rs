//! What batches to come will want from the source, told before they are decided.
//!
//! Nothing is decided here: who stays and who gives way is told by [`Control::decide`] at the batch's turn. So what was
//! read early changes no hit, and a run reads ahead or not with the same batches. What turns out not to be needed was
//! read in vain: a sample that an earlier batch has made resident meanwhile. What is needed all the same, because a
//! resident gave way meanwhile, is fetched at the batch's turn.
//!
//! Behind the order of the pass comes that of the next epoch, where it depends on seed and epoch alone: it is foreseen.
//! Its places are counted on from those of the pass. If another epoch begins all the same, nothing was decided by it.
//!
//! What a buffer sampler fetches is its stream, and an epoch begins in it where the one before stopped. A pass is
//! planned over as many places of it as the epoch has rows, and takes a part of them: the next one begins with the
//! others. Where the pass will stop is only supposed; where it did stop counts.

use super::{Books, Control, Cut, Drawing, PIECE, Plan};
use crate::policy::Needs;
use crate::sampler::{Blocks, Order};
use crate::types::SampleId;
use std::ops::Range;
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
    /// Places from this one on are the next pass's, as far as it is foreseen; of a stream, as far as can be told now.
    pub beyond: Option<usize>,
    /// Behind `next` comes an order that is not drawn yet: [`Control::to_foresee`].
    pub undrawn: bool,
    /// Whether there is nothing behind `next`.
    pub whole: bool,
    /// True for places of a stream, of which more and more is told from one pass to the next.
    pub stream: bool,
}

/// What comes behind a pass, if nobody asks for another.
#[derive(Debug)]
pub struct Foreseen(Behind);

#[derive(Debug)]
enum Behind {
    Epoch(Epoch),
    Stream(Stream),
}

/// The next epoch, where it has an order of its own.
#[derive(Debug)]
struct Epoch {
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

impl Epoch {
    /// The places of a pass over `plan` from batch `first` on, if it is this one.
    fn places_of(&self, plan: &Plan, first: usize) -> Option<Range<usize>> {
        let same = self.order.as_ref().is_some_and(|order| Arc::ptr_eq(order, &plan.order));
        (same && self.epoch == plan.epoch && first == 0).then(|| self.start..self.end())
    }

    /// Behind the last place that is known.
    fn end(&self) -> usize {
        self.start + self.order.as_ref().map_or(0, |_| self.draws)
    }
}

/// The part of a buffer sampler's stream that a pass is planned over, and what it was drawn by.
///
/// Not foreseen is what lies behind it: all of the next epoch while every row of a batch is new (`fresh` of 1, the
/// first epochs until the cache is full), and what a window could hold beyond the places that an epoch leaves over.
#[derive(Debug)]
struct Stream {
    /// Where in the stream it begins.
    position: u64,
    order: Arc<Order>,
    seed: u64,
    owned: Arc<[SampleId]>,
    blocks: Blocks,
}

impl Stream {
    /// The places from `from` on and before the one that is answered are what `drawing` draws there. Options may have
    /// changed since, and blocks may in passes over the dataset that had not begun.
    fn same_until(&self, from: usize, drawing: &Drawing) -> usize {
        let end = self.order.ids.len();
        if from >= end || drawing.seed != self.seed || !Arc::ptr_eq(&drawing.owned, &self.owned) {
            return from;
        }
        let pass_of = |place: usize| drawing.pass_of(self.position.saturating_add(place as u64));
        let other = |&pass: &u64| drawing.blocks.of(pass) != self.blocks.of(pass);
        let Some(pass) = (pass_of(from)..=pass_of(end - 1)).find(other) else { return end };
        (drawing.first_of(pass).saturating_sub(self.position) as usize).max(from)
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
        let (beyond, end) = match foreseen.map(|foreseen| &foreseen.0) {
            None => (None, to_come.end),
            Some(Behind::Epoch(next)) => (Some(next.start), next.end()),
            Some(Behind::Stream(stream)) => {
                (Some(to_come.end), stream.same_until(to_come.start, self.drawing.as_ref()?))
            }
        };
        let at = |place: usize| match foreseen.map(|foreseen| &foreseen.0) {
            Some(Behind::Epoch(next)) if place >= next.start => next.order.as_ref()?.ids.get(place - next.start),
            Some(Behind::Stream(stream)) => stream.order.ids.get(place),
            _ => current?.plan.order.ids.get(place),
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
        ahead.undrawn = through && self.next_epoch().is_some_and(|next| next.order.is_none());
        ahead.whole = through && !ahead.undrawn;
        ahead.stream = self.buffered.is_some() && foreseen.is_some();
        Some(ahead)
    }

    /// What comes behind a pass over `plan` that has begun: of a buffer sampler's the rest of its part of the stream;
    /// else the next epoch, if its order depends on seed and epoch alone and the dataset is not too large.
    pub(super) fn behind(&self, plan: &Plan) -> Option<Foreseen> {
        if let Some(buffered) = &self.buffered {
            let of = self.drawing.as_ref()?;
            let (order, owned) = (Arc::clone(&plan.order), Arc::clone(&of.owned));
            let stream = Stream { position: buffered.position(), order, seed: of.seed, owned, blocks: of.blocks };
            return Some(Foreseen(Behind::Stream(stream)));
        }
        let blind = |of: &Drawing| !of.adaptive() && !of.awaits_weights && of.samples <= FORESEEN_MAX;
        let known = self.drawing.as_ref().is_some_and(blind) && self.exchange.is_none();
        let (epoch, draws) = (plan.epoch.saturating_add(1), plan.drawn());
        let even = matches!(plan.cut, Cut::Even(_));
        let mut later = plan.behind.clone();
        let order = (!later.is_empty()).then(|| later.remove(0));
        let foreseen = even && (known || order.is_some());
        foreseen.then_some(Foreseen(Behind::Epoch(Epoch { epoch, start: draws, order, later, draws })))
    }

    /// The next epoch, if one with an order of its own is foreseen.
    fn next_epoch(&self) -> Option<&Epoch> {
        match &self.foreseen.as_ref()?.0 {
            Behind::Epoch(next) => Some(next),
            Behind::Stream(_) => None,
        }
    }

    /// Orders are drawn otherwise from now on: the next epoch's is not foreseen any more. Of a stream it is looked at,
    /// when that matters, what of it is still the same.
    pub(super) fn forget_next_epoch(&mut self) {
        self.foreseen.take_if(|foreseen| matches!(foreseen.0, Behind::Epoch(_)));
    }

    /// The epoch behind pass `pass`, to be drawn blindly, if it is foreseen and not drawn yet. Too much for a lock:
    /// [`Control::foresee`] takes the order.
    pub fn to_foresee(&self, pass: u64) -> Option<(Drawing, u64)> {
        let next = self.next_epoch().filter(|next| self.passes == pass && next.order.is_none())?;
        Some((self.drawing.clone()?, next.epoch))
    }

    /// The order of the epoch behind pass `pass`; `None`: it cannot be drawn. Hands out what is not of use any more, as
    /// another pass has begun.
    pub fn foresee(&mut self, pass: u64, order: Option<Arc<Order>>) -> Option<Arc<Order>> {
        let Some(Foreseen(Behind::Epoch(next))) = self.foreseen.as_mut().filter(|_| self.passes == pass) else {
            return order;
        };
        let none = order.is_none();
        let useless = std::mem::replace(&mut next.order, order);
        self.foreseen.take_if(|_| none);
        useless
    }

    /// The order of `epoch`, if it was foreseen and drawn.
    pub fn foreseen(&self, epoch: u64) -> Option<Arc<Order>> {
        let next = self.next_epoch()?;
        match usize::try_from(epoch.checked_sub(next.epoch)?).ok()?.checked_sub(1) {
            None => next.order.clone(),
            Some(later) => next.later.get(later).cloned(),
        }
    }

    /// Whether anything is foreseen behind the pass that began last, if that was delivered `whole`; a stream goes on
    /// wherever it was left.
    pub fn foresees(&self, whole: bool) -> bool {
        let of = self.foreseen.as_ref().map(|foreseen| &foreseen.0);
        of.is_some_and(|behind| whole || matches!(behind, Behind::Stream(_)))
    }

    /// Which of the places that [`Control::ahead`] told of behind the pass that began last are those of a pass over
    /// `plan` from batch `first` on, which is about to begin: its own are counted from the first of them. `None`: none.
    pub fn goes_on(&self, plan: &Plan, first: usize) -> Option<Range<usize>> {
        match &self.foreseen.as_ref()?.0 {
            Behind::Epoch(next) => next.places_of(plan, first),
            Behind::Stream(stream) => {
                let start = usize::try_from(self.stream(plan.epoch)?.checked_sub(stream.position)?).ok()?;
                let places = start..stream.same_until(start, self.drawing.as_ref()?);
                (!places.is_empty()).then_some(places)
            }
        }
    }

    /// What was foreseen, before another pass begins.
    pub fn take_foreseen(&mut self) -> Option<Foreseen> {
        self.foreseen.take()
    }

    /// The places of the order that batches to come will take from.
    fn to_come(&self) -> Range<usize> {
        let Some(pass) = &self.pass else {
            let taken = self.buffered.as_ref().map_or(0, |buffered| buffered.taken());
            let end = self.next_epoch().map_or(taken, |next| next.start);
            return end..end;
        };
        let rows = pass.plan.to_come(pass.next)..pass.plan.drawn();
        let Some(buffered) = &self.buffered else { return rows };
        // Each batch takes its new samples from the stream, and no more of it than that; those that a restored run
        // decided before have taken theirs. Only the last two may have fewer rows than the others.
        let (plan, taken) = (&pass.plan, buffered.taken());
        let next = pass.next.max(buffered.decided()).min(plan.len());
        let last = plan.len().saturating_sub(2).max(next);
        let fresh = |batches: Range<usize>| {
            let serials = buffered.base + batches.start as u64..buffered.base + batches.end as u64;
            buffered.buffer.fresh(plan.range(batches.start).len(), serials)
        };
        let new = fresh(next..last) + (last..plan.len()).map(|batch| fresh(batch..batch + 1)).sum::<usize>();
        taken..(taken + new.min(rows.len())).min(plan.order.ids.len())
    }
}
