//! A run's state, taken and put back: what is left of an epoch is delivered, exactly.

use super::Engine;
use crate::error::{Error, Result};
use crate::loader::Iteration;
use crate::loader::checkpoint::{Checkpoint, Header};
use crate::types::SampleId;

impl Engine {
    /// The run's state: position, beliefs and, where it cannot be drawn again, the epoch's order.
    pub fn state(&self) -> Result<Vec<u8>> {
        self.state_held(0)
    }

    /// As [`Self::state`], as of `held` batches ago: a consumer that prefetches has taken batches which nobody has seen.
    pub fn state_held(&self, held: usize) -> Result<Vec<u8>> {
        self.usable()?;
        let clock = self.clock.lock();
        let s = &self.settings;
        let seen = |i: &Iteration| i.taken().saturating_sub(held);
        // An epoch whose last batch was delivered is over, also if nobody asked for the end yet.
        let live = clock.current.as_ref().filter(|i| seen(i) < i.len());
        let (epoch, delivered) = match (&live, &clock.resume) {
            (Some(i), _) => (i.epoch(), seen(i)),
            (None, Some(c)) => return c.to_bytes(),
            (None, None) => (clock.next_epoch, 0),
        };
        let order = live.filter(|_| self.sampler.adaptive()).map(|i| i.order().clone());
        let state = self.feed.cache.lock();
        let scored = state.scores.seen() > 0;
        Checkpoint {
            header: Header {
                samples: self.feed.source.len(),
                batch_size: s.batch_size,
                drop_last: s.drop_last,
                seed: s.seed,
                rank: s.rank,
                world_size: s.world_size,
                sampler: s.sampler.name().to_string(),
                epoch,
                delivered,
                step: state.step,
                scored,
                planned: order.as_ref().map_or(0, |o| o.ids.len()),
            },
            scores: scored.then(|| (state.scores.as_slice().to_vec(), state.scores.stamps().to_vec())),
            order,
        }
        .to_bytes()
    }

    /// Goes on where [`Self::state`] was taken: the next epoch started delivers exactly the batches that were left.
    /// An iteration under way ends.
    pub fn load_state(&self, bytes: &[u8]) -> Result<()> {
        self.usable()?;
        let checkpoint = Checkpoint::from_bytes(bytes)?;
        let (h, s) = (&checkpoint.header, &self.settings);
        let same = [
            ("samples", h.samples.to_string(), self.feed.source.len().to_string()),
            ("batch_size", h.batch_size.to_string(), s.batch_size.to_string()),
            ("drop_last", h.drop_last.to_string(), s.drop_last.to_string()),
            ("seed", h.seed.to_string(), s.seed.to_string()),
            ("rank", h.rank.to_string(), s.rank.to_string()),
            ("world_size", h.world_size.to_string(), s.world_size.to_string()),
            ("sampler", h.sampler.clone(), s.sampler.name().to_string()),
        ];
        if let Some((name, was, is)) = same.iter().find(|(_, was, is)| was != is) {
            return Err(Error::settings(format!(
                "the state was taken with {name} {was}, this loader has {is}: make the loader as it was, or start an epoch afresh"
            )));
        }
        if h.delivered > self.batches.len() {
            return Err(Error::settings(format!("the state names batch {} of {}", h.delivered, self.batches.len())));
        }
        if let Some(order) = checkpoint.order.as_ref().filter(|o| o.ids.len() != self.batches.share()) {
            return Err(Error::settings(format!(
                "the state holds a plan of {} draws where an epoch has {}",
                order.ids.len(),
                self.batches.share()
            )));
        }
        let mut clock = self.clock.lock();
        if let Some(old) = clock.current.take() {
            old.stop();
        }
        {
            let mut state = self.feed.cache.lock();
            state.step = h.step;
            if let Some((beliefs, stamps)) = &checkpoint.scores {
                let crate::cache::State { scores, ledger, .. } = &mut *state;
                scores.restore(beliefs, stamps);
                for (id, &belief) in beliefs.iter().enumerate().filter(|(_, b)| !b.is_nan()) {
                    ledger.rescore(id as SampleId, belief);
                }
            }
        }
        clock.next_epoch = h.epoch;
        clock.iteration += 1;
        clock.resume = Some(checkpoint);
        Ok(())
    }
}
