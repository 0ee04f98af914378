//! A run's state, taken and put back: what is left of an epoch is delivered, exactly.

use super::Engine;
use crate::error::{Error, Result};
use crate::loader::Iteration;
use crate::loader::checkpoint::{Checkpoint, Header};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::Relaxed;

impl Engine {
    /// The run's state: position, beliefs and, where it cannot be drawn again, the epoch's order.
    pub fn state(&self) -> Result<Vec<u8>> {
        self.state_held(0)
    }

    /// As [`Self::state`], as of `held` batches ago: a consumer that prefetches has taken batches which nobody has seen.
    ///
    /// A pass that ended early, by its consumer, an error or [`Engine::close`], keeps its position until another starts.
    pub fn state_held(&self, held: usize) -> Result<Vec<u8>> {
        self.same_process()?;
        let identity = self.identity();
        let clock = self.clock.lock();
        if let (None, Some(restored)) = (&clock.current, &clock.resume) {
            return restored.to_bytes();
        }
        let seen = |i: &Iteration| i.seen().min(i.taken().saturating_sub(held));
        // An epoch whose last batch was delivered is over, also if nobody asked for the end yet.
        let live = clock.current.as_ref().filter(|i| seen(i) < i.len());
        let (epoch, delivered) = match &live {
            Some(i) => (i.epoch(), seen(i)),
            None => (clock.next_epoch, 0),
        };
        let order = live.filter(|_| self.sampler.adaptive()).map(|i| i.order().clone());
        let state = self.feed.cache.lock();
        let scored = state.scores.seen() > 0 || state.scores.failed() > 0;
        Checkpoint {
            header: Header {
                samples: self.feed.source.len(),
                identity,
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

    /// Everything that shapes the orders of this run, by name. What only decides how fast batches come is not in it: threads, the size
    /// and form of the cache, the device, `on_error`, the transform.
    fn identity(&self) -> BTreeMap<String, String> {
        let s = &self.settings;
        let dataset = self.digest.get_or_init(|| self.feed.source.digest());
        let mut all: BTreeMap<String, String> = [
            ("dataset", dataset.clone()),
            ("samples", self.feed.source.len().to_string()),
            ("batch_size", s.batch_size.to_string()),
            ("drop_last", s.drop_last.to_string()),
            ("seed", s.seed.to_string()),
            ("rank", s.rank.to_string()),
            ("world_size", s.world_size.to_string()),
            ("score", s.score_kind().name().to_string()),
            ("smoothing", s.smoothing_weight().to_string()),
            ("policy", s.policy_name().to_string()),
        ]
        .map(|(name, value)| (name.to_string(), value))
        .into();
        // The sampler's options one by one, so that a difference is named: sampler.name, sampler.kappa, …
        if let Ok(serde_json::Value::Object(options)) = serde_json::to_value(s.sampler) {
            all.extend(options.into_iter().map(|(name, value)| (format!("sampler.{name}"), value.to_string())));
        }
        all
    }

    /// Goes on where [`Self::state`] was taken: the next epoch started delivers exactly the batches that were left.
    /// An iteration under way ends.
    ///
    /// # Errors
    /// `Settings` for bytes that are no state, and for the state of another run: one with another dataset, or with other
    /// settings of those that shape orders. All that differ are named.
    pub fn load_state(&self, bytes: &[u8]) -> Result<()> {
        self.usable()?;
        let checkpoint = Checkpoint::from_bytes(bytes)?;
        let (h, mine) = (&checkpoint.header, self.identity());
        let none = String::from("none");
        let names: BTreeSet<&String> = h.identity.keys().chain(mine.keys()).collect();
        let differs = |name: &&String| h.identity.get(*name) != mine.get(*name);
        let differing: Vec<String> = names
            .into_iter()
            .filter(differs)
            .map(|name| {
                let (was, is) = (h.identity.get(name).unwrap_or(&none), mine.get(name).unwrap_or(&none));
                format!("{name} {was} (this loader: {is})")
            })
            .collect();
        if !differing.is_empty() {
            return Err(Error::settings(format!(
                "the state is another run's: it was taken with {}; make the loader as it was, or start an epoch afresh",
                differing.join(", ")
            )));
        }
        if h.samples != self.feed.source.len() {
            return Err(Error::settings(format!(
                "the state covers {} samples of {}: it is damaged",
                h.samples,
                self.feed.source.len()
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
            let crate::cache::State { scores, ledger, .. } = &mut *state;
            match &checkpoint.scores {
                Some((beliefs, stamps)) => scores.restore(beliefs, stamps)?,
                None => scores.clear(),
            }
            ledger.rekey(scores);
            state.step = h.step;
            let age = state.scores.mean_age(h.step).unwrap_or(0.0);
            self.feed.counters.score_age_steps.store(age as u64, Relaxed);
        }
        clock.next_epoch = h.epoch;
        clock.iteration += 1;
        clock.resume = Some(checkpoint);
        Ok(())
    }
}
