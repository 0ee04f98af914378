//! What comes of batches: scores, samples that could not be read, and samples that nobody scored.

use std::ops::Range;

use super::exchange::{News, What};
use super::snapshot::{Saved, Was};
use super::{Books, Control, PIECE, tell};
use crate::index::{ScoreTable, Standing};
use crate::types::SampleId;

impl Control {
    /// The samples `ids` could be read, except for those of which `failed` says that they could not (by position).
    /// `serial` is the batch's [`Decision::serial`]: under a buffer sampler this counts later.
    pub fn read(&mut self, serial: u64, ids: &[SampleId], failed: &dyn Fn(usize) -> bool) {
        match &mut self.buffered {
            Some(buffered) => {
                let read = ids.iter().enumerate().map(|(row, &id)| (id, failed(row)));
                buffered.outcome(serial).read.extend(read);
            }
            None => self.read_now(ids, failed),
        }
    }

    pub(super) fn read_now(&mut self, ids: &[SampleId], failed: &dyn Fn(usize) -> bool) {
        self.touched += ids.len() as u64;
        if self.scores.failed() == 0 && !(0..ids.len()).any(failed) {
            return;
        }
        for (row, &id) in ids.iter().enumerate() {
            save_belief(&mut self.saved, &self.scores, id);
            let was_failed = self.scores.standing(id) == Standing::Failed;
            if let Some(exchange) = self.exchange.as_mut().filter(|_| was_failed != failed(row)) {
                let what = if was_failed { What::Read } else { What::Failed };
                exchange.learned(News { id, what, step: self.step });
            }
            if failed(row) {
                self.scores.fail(id);
                if let Some(buffered) = &mut self.buffered {
                    buffered.buffer.drop_out(id);
                }
            } else {
                self.scores.recover(id);
            }
        }
    }

    /// The scores of one batch, by sample. Those that are not finite are none. Returns how many samples were scored.
    /// `serial` is the batch's [`Decision::serial`], if it is known: under a buffer sampler they count later.
    pub fn learn(&mut self, serial: Option<u64>, scores: impl Iterator<Item = (SampleId, f32)>) -> usize {
        let (Some(serial), Some(buffered)) = (serial, &mut self.buffered) else { return self.learn_now(scores) };
        let scores: Vec<_> = scores.filter(|(_, score)| score.is_finite()).collect();
        let scored = scores.len();
        if buffered.is_late(serial) {
            buffered.late += scored as u64;
        }
        buffered.outcome(serial).scores.extend(scores);
        self.touched += scored as u64;
        scored
    }

    pub(super) fn learn_now(&mut self, scores: impl Iterator<Item = (SampleId, f32)>) -> usize {
        let (mut rows, mut scored) = (0, 0);
        let alone = self.saved.is_none() && self.buffered.is_none() && self.exchange.is_none();
        if let (Books::Here(ledger), true) = (&mut self.books, alone) {
            // Nearly always: nobody but the policy has to know, and the loop asks nothing else.
            for (id, score) in scores {
                rows += 1;
                if let Some(belief) = self.scores.record(id, score, self.step) {
                    ledger.rescore(id, belief);
                    scored += 1;
                }
            }
        } else {
            for (id, score) in scores {
                rows += 1;
                save_belief(&mut self.saved, &self.scores, id);
                let Some(belief) = self.scores.record(id, score, self.step) else { continue };
                scored += 1;
                if let Some(exchange) = &mut self.exchange {
                    exchange.learned(News { id, what: What::Score(score), step: self.step });
                }
                if let Some(buffered) = &mut self.buffered {
                    buffered.buffer.rescore(id, belief);
                }
                tell(&mut self.books, id, belief);
            }
        }
        self.step = self.step.wrapping_add(1);
        self.touched += rows;
        scored
    }

    /// The rows at `places` of the order of pass `pass` were delivered; at most [`PIECE`] of them are looked at.
    /// Samples that have no score are unseen no more; those that were until now are answered.
    pub fn met(&mut self, pass: u64, places: Range<usize>) -> Vec<SampleId> {
        let Some(current) = self.pass.as_ref().filter(|_| self.passes == pass) else { return Vec::new() };
        // A buffer sampler's order holds the stream alone, and asks for no standing.
        if self.scores.seen() == 0 || self.buffered.is_some() {
            return Vec::new(); // nobody scores: no sample is told from another
        }
        let order = &current.plan.order.ids;
        let places = places.start..places.end.min(places.start + PIECE).min(order.len());
        self.touched += places.len() as u64;
        let first = current.substituted.partition_point(|&(place, _)| (place as usize) < places.start);
        let mut substituted = current.substituted[first..].iter().peekable();
        let delivered = places.map(|place| {
            let instead = substituted.next_if(|&&(at, _)| at as usize == place).map(|&(_, id)| id);
            instead.unwrap_or(order[place])
        });
        let unseen = |id: &SampleId| self.scores.standing(*id) == Standing::Unseen;
        let mut tried: Vec<SampleId> = delivered.filter(unseen).collect();
        tried.retain(|&id| self.tried(id));
        tried
    }

    /// `id` was delivered and nobody scored it. True if it was unseen until now.
    pub fn tried(&mut self, id: SampleId) -> bool {
        if self.scores.standing(id) != Standing::Unseen {
            return false;
        }
        let average = self.scores.mean().unwrap_or(0.0) as f32;
        save_belief(&mut self.saved, &self.scores, id);
        self.scores.tried(id);
        if let Some(exchange) = &mut self.exchange {
            exchange.learned(News { id, what: What::Tried, step: self.step });
        }
        // A policy that kept it for its first score need not any more.
        tell(&mut self.books, id, average);
        true
    }
}

/// What is believed of `id` is about to change.
#[inline]
fn save_belief(saved: &mut Option<Saved>, scores: &ScoreTable, id: SampleId) {
    if let Some(saved) = saved {
        saved.push(Was::Belief(id, scores.as_slice()[id as usize], scores.stamps()[id as usize]));
    }
}
