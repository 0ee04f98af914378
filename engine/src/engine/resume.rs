//! A run's state, taken and put back: what is left of an epoch is delivered, exactly.

use super::Engine;
use super::other_ranks::Taken;
use crate::control::{Cut, Held, News};
use crate::error::{Error, Result};
use crate::index::ScoreTable;
use crate::loader::Iteration;
use crate::loader::checkpoint::{Checkpoint, Header, WeightUse};
use crate::sampler::{Block, Given};
use crate::settings::ScoreKind;
use crate::source::SIZE_UNKNOWN;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Options of a sampler that a pace sets.
const SET_BY_PACE: [&str; 2] = ["sampler.fresh", "sampler.fetches"];

impl Engine {
    /// The run's state: position, beliefs and, where it cannot be drawn again, the epoch's order.
    pub fn state(&self) -> Result<Vec<u8>> {
        self.state_held(0)
    }

    /// As [`Self::state`], as of `held` batches ago: whoever has the batches that were seen last has not passed them on.
    ///
    /// A pass that ended early, by its consumer, an error or [`Engine::close`], keeps its position until another
    /// starts.
    pub fn state_held(&self, held: usize) -> Result<Vec<u8>> {
        self.same_process()?;
        let identity = self.identity();
        let clock = self.clock.lock();
        if let (None, Some(restored)) = (&clock.current, &clock.resume) {
            return restored.to_bytes();
        }
        let seen = |i: &Iteration| i.seen_but(held);
        // An epoch whose last batch was delivered is over, also if nobody asked for the end yet.
        let live = clock.current.as_ref().filter(|i| seen(i) < i.len());
        let (epoch, delivered) = match &live {
            Some(i) => (i.epoch(), seen(i)),
            None => (clock.next_epoch, 0),
        };
        let order = live.and_then(|i| {
            let settled = self.feed.cache.settled(i.plan(), i.plan().to_come(seen(i)));
            let drawn = || self.feed.cache.adaptive().then(|| i.plan().order.clone());
            settled.map(Arc::new).or_else(drawn)
        });
        let (now, shared);
        let (scores, step, buffer) = if self.settings.exchange {
            shared = self.feed.cache.shared_state(live.map(|i| (i.epoch(), seen(i))))?;
            // Before an epoch nothing was drawn by what caches had.
            let held = if live.is_some() { Arc::clone(&shared.0.held) } else { Arc::default() };
            let mut words = super::exchange::to_state(&shared.1, &held);
            words.extend(&shared.3);
            (&*shared.0.table, shared.2, words)
        } else {
            now = self.feed.cache.state(live.map(|i| (i.epoch(), seen(i))))?;
            (now.0.scores(), now.0.step(), now.1.clone())
        };
        // A caller's own cut cannot be made again from the batch size.
        let buffer = match live.map(|i| &i.plan().cut) {
            Some(Cut::At(ends)) if self.given_batches() => ends.iter().map(|&end| end as u32).collect(),
            _ => buffer,
        };
        let (mut buffer, sizes) = (buffer, self.sizes_read());
        buffer.extend(&sizes);
        let next = live.is_none().then_some(epoch);
        let tuned = self.tuning.as_ref().map(|tuning| tuning.lock().stored(next, &self.feed));
        let scored = scores.seen() > 0 || scores.failed() > 0;
        Checkpoint {
            header: Header {
                samples: self.feed.source.len(),
                identity,
                epoch,
                delivered,
                step,
                scored,
                measured: self.scale.settled().map(|kind| kind.name().to_string()),
                buffer: buffer.len(),
                sizes: sizes.len(),
                weights: self.weights.as_ref().map(|weights| *weights.lock()),
                tuned: tuned.unwrap_or_default(),
                part: live.and(clock.part.clone()),
                planned: order.as_ref().map_or(0, |o| o.ids.len()),
            },
            scores: scored.then(|| (scores.as_slice().to_vec(), scores.stamps().to_vec())),
            order: order.map(Arc::unwrap_or_clone),
            buffer,
        }
        .to_bytes()
    }

    /// What a source knows of its samples' sizes since it has read them, for a buffer sampler's state: who is kept depends
    /// on it. By sample its payload, then by sample its tail if there is one; empty where sizes are known from the start.
    fn sizes_read(&self) -> Vec<u32> {
        let source = &self.feed.source;
        if self.settings.sampler.buffer().is_none() || source.facts().sized {
            return Vec::new();
        }
        let ids = 0..source.len() as u32;
        let mut sizes: Vec<u32> = ids.clone().map(|id| source.payload_bytes(id).min(SIZE_UNKNOWN) as u32).collect();
        if ids.clone().any(|id| source.size(id).tail > 0) {
            sizes.extend(ids.map(|id| source.size(id).tail.min(SIZE_UNKNOWN) as u32));
        }
        sizes
    }

    /// Tells the source what [`Self::sizes_read`] wrote, of samples that it has not read itself.
    fn remember_sizes(&self, sizes: &[u32]) {
        let source = &self.feed.source;
        let (payloads, tails) = sizes.split_at(source.len().min(sizes.len()));
        for (id, &payload) in (0..).zip(payloads) {
            if u64::from(payload) != SIZE_UNKNOWN && source.payload_bytes(id) == SIZE_UNKNOWN {
                source.remember(id, payload, tails.get(id as usize).copied().unwrap_or(0));
            }
        }
    }

    pub(super) fn given_batches(&self) -> bool {
        self.settings.sampler.given().is_some_and(|given| given.batches)
    }

    /// How a restored epoch's order is cut.
    ///
    /// # Errors
    /// `Settings` for a state that is damaged.
    pub(super) fn restored_cut(&self, state: &Checkpoint) -> Result<Cut> {
        let s = &self.settings;
        if let Some(part) = &state.header.part {
            return Ok(Cut::At(part.dealt(s.batch_size, s.drop_last, s.rank, s.world_size)?.ends()));
        }
        if s.sampler.given().is_none() && !s.sampler.is_short() {
            return Ok(Cut::Even(self.batches));
        }
        let by_size = |draws| Given::ends(draws, s.batch_size, s.drop_last);
        Ok(Cut::At(match self.given_batches() {
            true => state.buffer.iter().map(|&end| end as usize).collect(),
            false => by_size(state.header.planned),
        }))
    }

    /// Whether the position and the order of a state can be those of a run like this one.
    fn check_position(&self, state: &Checkpoint) -> Result<()> {
        let (h, planned) = (&state.header, state.header.planned);
        let of_plan = |share: usize| match state.order.is_some() && planned != share {
            true => {
                Err(Error::settings(format!("the state holds a plan of {planned} draws where an epoch has {share}")))
            }
            false => Ok(()),
        };
        let cut = self.restored_cut(state)?;
        let batches = match (&h.part, cut) {
            (Some(part), Cut::At(ends)) => {
                let s = &self.settings;
                let dealt = part.dealt(s.batch_size, s.drop_last, s.rank, s.world_size)?;
                if h.delivered < dealt.first() {
                    return Err(Error::settings(format!(
                        "the state names batch {}, which other ranks delivered: it is damaged",
                        h.delivered
                    )));
                }
                of_plan(dealt.share())?;
                ends.len()
            }
            (None, Cut::At(ends)) => {
                Given::check_ends(&ends, planned, self.settings.batch_size)
                    .map_err(|e| Error::settings("the state's batches are damaged").because(e))?;
                ends.len()
            }
            (_, Cut::Even(_)) => {
                of_plan(self.batches.share())?;
                self.batches.len()
            }
        };
        if h.delivered > batches {
            return Err(Error::settings(format!("the state names batch {} of {batches}", h.delivered)));
        }
        Ok(())
    }

    /// One name for all ranks of this run, in all its processes.
    pub(super) fn run_name(&self) -> String {
        let mut identity = self.identity();
        identity.remove("rank");
        format!("{identity:?}")
    }

    /// Everything that shapes the orders of this run, by name. What only decides how fast batches come is not in it:
    /// threads, the size and form of the cache if it is no sampler's buffer, the device, `on_error`, the transform.
    pub(super) fn identity(&self) -> BTreeMap<String, String> {
        let s = &self.settings;
        let dataset = self.digest.get_or_init(|| self.feed.source.digest());
        let mut all: BTreeMap<String, String> = [
            ("dataset", dataset.clone()),
            ("samples", self.feed.source.len().to_string()),
            ("batch_size", s.batch_size.to_string()),
            ("drop_last", s.drop_last.to_string()),
            ("seed", self.seed.load(Relaxed).to_string()),
            ("rank", s.rank.to_string()),
            ("world_size", s.world_size.to_string()),
            ("score", s.score_kind().name().to_string()),
            ("smoothing", s.smoothing_weight().to_string()),
            ("policy", self.policy_name.to_string()),
        ]
        .map(|(name, value)| (name.to_string(), value))
        .into();
        // A buffer's size shapes its orders, the one that it was made with and the one that it has; elsewhere the cache
        // only decides how fast batches come.
        if s.sampler.buffer().is_some() {
            all.insert("cache_bytes".into(), s.cache_bytes.to_string());
            all.extend(self.feed.cache.resized().map(|now| ("cache_bytes_now".into(), now.to_string())));
            all.insert("cache_form".into(), s.cache_form.name().into());
        }
        if s.sampler.buffer().is_some_and(|buffer| buffer.block != Block::Of(1)) {
            // As no state has it of before passes did so.
            all.insert("sampler.block_order".into(), "begins anywhere".into());
        }
        if s.exchange {
            all.insert("ranks".into(), "exchange".into());
        }
        if self.weights.is_some() {
            all.insert("sampler.chosen_by".into(), "auto".into());
        }
        // The sampler's options one by one, so that a difference is named: sampler.name, sampler.kappa, …
        if let Ok(serde_json::Value::Object(options)) = serde_json::to_value(s.sampler) {
            all.extend(options.into_iter().map(|(name, value)| (format!("sampler.{name}"), value.to_string())));
        }
        if let Some(pace) = self.pace_told() {
            all.insert("sampler.pace".into(), pace);
            // What may be fetched is set by it before each epoch, for each rank by the size of its share.
            SET_BY_PACE.iter().for_each(|name| _ = all.remove(*name));
        }
        all
    }

    fn pace_told(&self) -> Option<String> {
        self.tuning.as_ref().and_then(|tuning| tuning.lock().told())
    }

    /// Whether a state is of a run like this one, but for the settings `free`.
    ///
    /// # Errors
    /// `Settings`, with all that differ.
    pub(super) fn check_identity(&self, header: &Header, free: &[&str]) -> Result<()> {
        let mine = self.identity();
        let none = String::from("none");
        let names: BTreeSet<&String> = header.identity.keys().chain(mine.keys()).collect();
        // A seed that nobody chose is taken from the state. States of before have what a pace had set.
        let paced = self.pace_told().is_some();
        let taken = |name: &String| {
            let name = name.as_str();
            free.contains(&name)
                || (self.settings.open_seed && name == "seed")
                || (paced && SET_BY_PACE.contains(&name))
        };
        let differs = |name: &&String| !taken(name) && header.identity.get(*name) != mine.get(*name);
        let differing: Vec<String> = names
            .into_iter()
            .filter(differs)
            .map(|name| {
                let (was, is) = (header.identity.get(name).unwrap_or(&none), mine.get(name).unwrap_or(&none));
                format!("{name} {was} (this loader: {is})")
            })
            .collect();
        if differing.is_empty() {
            return Ok(());
        }
        Err(Error::settings(format!(
            "the state belongs to another run: it was saved with {}; make the loader with these settings, or start a \
             new epoch",
            differing.join(", ")
        )))
    }

    /// Goes on where [`Self::state`] was taken: the next epoch started delivers exactly the batches that were left.
    /// An iteration under way ends. The state may be another rank's, as for [`Self::load_states`].
    ///
    /// # Errors
    /// As there.
    pub fn load_state(&self, bytes: &[u8]) -> Result<()> {
        self.load_states(&[bytes]).map(drop)
    }

    /// Goes on where a run of any number of ranks stood: `states` is one rank's, or all ranks', in any order. What was
    /// left of its epoch is delivered by the ranks that load it, each sample as often as it was left; later epochs are
    /// their own. With another number of ranks the batch size may be another one too. An iteration under way ends.
    ///
    /// One state is enough where it is this rank's of as many ranks, and where the epoch's order follows from the seed
    /// alone (`uniform`; ranks that exchange scores), if all ranks stood where that one did.
    ///
    /// Answers, in words, what is not delivered, if anything is not: see decision 45.
    ///
    /// # Errors
    /// `Settings` for bytes that are no state, for the state of another run (one with another dataset, or with
    /// other settings of those that shape orders; all that differ are named), and for one state where those of all
    /// ranks are needed.
    pub fn load_states(&self, states: &[&[u8]]) -> Result<Option<String>> {
        self.usable()?;
        let cache = &self.feed.cache;
        if cache.is_recorded() && (!cache.is_new() || self.settings.sampler.buffer().is_some()) {
            return Err(Error::usage(
                "a journal must record a run from its first batch: make a new loader with journal= for the resumed run \
                 (without it for sampler \"echo\" and \"replay\", whose state includes the cache)",
            ));
        }
        let mut states: Vec<Checkpoint> =
            states.iter().map(|bytes| Checkpoint::from_bytes(bytes)).collect::<Result<_>>()?;
        // Old states have a score's old name.
        for score in states.iter_mut().filter_map(|state| state.header.identity.get_mut("score")) {
            if let Ok(kind) = ScoreKind::from_name(score) {
                *score = kind.name().to_owned();
            }
        }
        let Taken { state: checkpoint, note } = self.taken(states)?;
        let h = &checkpoint.header;
        self.check_identity(h, &[])?;
        self.check_sizes(&checkpoint)?;
        let brought = h.identity.get("seed").filter(|_| self.settings.open_seed);
        let brought: Option<u64> = brought.and_then(|seed| seed.parse().ok());
        self.check_position(&checkpoint)?;
        let measured = h.measured.as_deref().map(ScoreKind::from_name).transpose()?;
        measured.map_or(Ok(()), |kind| self.scale.accepts(kind))?;
        let (scores, news, held) = self.beliefs_of(&checkpoint)?;
        let mut clock = self.clock.lock();
        let (buffer, sizes) = self.buffer_of(&checkpoint)?;
        if !buffer.is_empty() && !self.feed.cache.is_new() {
            return Err(Error::usage(format!(
                "a state of sampler={:?} can be loaded only before the first epoch: make a new loader",
                self.settings.sampler.name()
            )));
        }
        if let Some(old) = clock.current.take() {
            old.stop();
            self.feed.cache.end(old.pass(), 0..0);
        }
        // What another state had put there before is none of this run's.
        self.feed.cache.clear_buffer();
        if let Some(seed) = brought {
            self.reseed(seed);
        }
        if self.settings.exchange {
            self.feed.cache.restore_shared(scores, held, news, h.step);
        } else {
            self.feed.cache.replace_beliefs(scores, h.step);
        }
        self.keeper.replaced();
        self.scale.replace(measured);
        if let Some(weights) = &self.weights {
            let was = h.weights.unwrap_or(WeightUse::Unread);
            *weights.lock() = was;
            cache.use_weights(was == WeightUse::Used);
        }
        self.remember_sizes(sizes);
        if !buffer.is_empty() {
            self.feed.cache.restore_buffer(buffer, &|id| self.feed.record_bytes(id))?;
        }
        self.restore_tuning(&h.tuned, h.epoch)?;
        clock.next_epoch = h.epoch;
        clock.iteration += 1;
        clock.resume = Some(checkpoint);
        Ok(note)
    }

    /// The beliefs of a state, what its rank had learned since the last exchange, and what caches had at it.
    fn beliefs_of(&self, checkpoint: &Checkpoint) -> Result<(ScoreTable, Vec<News>, Held)> {
        let samples = checkpoint.header.samples;
        let mut scores = ScoreTable::new(samples, self.settings.smoothing_weight());
        if let Some((beliefs, stamps)) = &checkpoint.scores {
            scores.restore(beliefs, stamps)?;
        }
        let cut = self.given_batches() && checkpoint.order.is_some();
        let remembers = self.settings.sampler.buffer().is_some() || self.settings.exchange || cut;
        if remembers == checkpoint.buffer.is_empty() {
            return Err(Error::settings(
                "the state has a buffer and the sampler has none, or the other way round: it is damaged",
            ));
        }
        if !self.settings.exchange {
            return Ok((scores, Vec::new(), Held::default()));
        }
        let (news, held, _) = super::exchange::of_state(&checkpoint.buffer, samples)?;
        Ok((scores, news, held))
    }

    /// The buffer sampler's part of a state, and the sizes of the samples it held; both empty under other samplers.
    fn buffer_of<'a>(&self, checkpoint: &'a Checkpoint) -> Result<(&'a [u32], &'a [u32])> {
        if self.settings.sampler.buffer().is_none() {
            return Ok((&[], &[]));
        }
        let header = &checkpoint.header;
        let words = match self.settings.exchange {
            true => super::exchange::of_state(&checkpoint.buffer, header.samples)?.2,
            false => &checkpoint.buffer,
        };
        let (buffer, sizes) = words.split_at(words.len().saturating_sub(header.sizes));
        if ![0, header.samples, 2 * header.samples].contains(&sizes.len()) {
            return Err(Error::settings(format!(
                "the state has {} sizes of {} samples: it is damaged",
                sizes.len(),
                header.samples
            )));
        }
        Ok((buffer, sizes))
    }
}
