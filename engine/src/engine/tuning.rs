//! What is set between epochs, from what reading was seen to cost: how much is fetched ([`Pace`]), and how many
//! neighbours are new together ([`Blocks`]). Ranks that exchange scores tell each other what they saw, and set the
//! same.

use super::Engine;
use crate::error::Result;
use crate::loader::Feed;
use crate::loader::checkpoint::Tuned;
use crate::sampler::{Blocks, Observed, Pace, ReadCost};
use std::sync::atomic::Ordering::Relaxed;

/// What is set, and what had been counted when it was last set.
pub(super) struct Tuning {
    pace: Option<Pace>,
    blocks: Blocks,
    /// What samples have in the mean, if blocks are found by what a request costs.
    sample_bytes: Option<u64>,
    counted: Counted,
    /// Read in the epoch under way by the process that a state is of.
    carried: Observed,
    /// The epoch for which a state has set everything already.
    set_for: Option<u64>,
    /// Set for a rank that exchanges scores.
    shared: Option<Offer>,
}

/// The sums that a rank has told the others, and what all of them saw.
#[derive(Default)]
struct Offer {
    counted: Counted,
    agreed: Option<Seen>,
}

/// A rank's measurements before an epoch.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub(super) struct Seen {
    seconds: f64,
    waited_s: f64,
    rows: u64,
    fetched: u64,
    bytes: u64,
    /// A request, beside the bytes that it brings.
    request_bytes: u64,
    /// The first pass of its stream of which it has taken nothing.
    pass: Option<u64>,
}

impl Seen {
    /// The measurements of all ranks. They step together, so the one that waited the largest part of its time tells
    /// how long all did.
    pub(super) fn of_all(ranks: impl Iterator<Item = Self>) -> Option<Self> {
        let waits = |of: &Self| if of.seconds > 0.0 { of.waited_s / of.seconds } else { 0.0 };
        let (mut count, mut requests) = (0u64, 0u128);
        let all = ranks.inspect(|of| (count, requests) = (count + 1, requests + u128::from(of.request_bytes)));
        let all = all.reduce(|a, b| Self {
            rows: a.rows.saturating_add(b.rows),
            fetched: a.fetched.saturating_add(b.fetched),
            bytes: a.bytes.saturating_add(b.bytes),
            pass: a.pass.max(b.pass),
            ..if waits(&b) > waits(&a) { b } else { a }
        });
        all.map(|all| Self { request_bytes: (requests / u128::from(count.max(1))) as u64, ..all })
    }
    fn observed(self) -> Observed {
        let Self { seconds, waited_s, rows, fetched, bytes, .. } = self;
        Observed { seconds, waited_s, rows, fetched, bytes }
    }
}

/// Sums since the run's start.
#[derive(Clone, Copy, Default)]
struct Counted {
    us: u64,
    waited_us: u64,
    rows: u64,
    fetched: u64,
    bytes: u64,
}

impl Counted {
    fn now(feed: &Feed) -> Self {
        let of = |counter: &std::sync::atomic::AtomicU64| counter.load(Relaxed);
        let counters = &feed.counters;
        let read = of(&counters.fetched_bytes_total) + of(&counters.store_vain_bytes_total);
        let tiers = feed.source.counted();
        Self {
            us: of(&counters.wait_us_total) + of(&counters.busy_us_total),
            waited_us: of(&counters.wait_source_us_total),
            rows: of(&counters.samples_total),
            fetched: of(&counters.fetched_samples_total),
            // Hits of the disk tier of the pool and of the node cache cost nothing of a budget.
            bytes: read
                .saturating_sub(tiers.disk.map_or(0, |(disk, _)| disk.hit_bytes))
                .saturating_sub(tiers.pool.map_or(0, |(pool, _)| pool.hit_bytes))
                .saturating_sub(tiers.node.map_or(0, |(node, _)| node.hit_bytes)),
        }
    }

    fn since(&self, earlier: &Self) -> Observed {
        Observed {
            seconds: self.us.saturating_sub(earlier.us) as f64 / 1e6,
            waited_s: self.waited_us.saturating_sub(earlier.waited_us) as f64 / 1e6,
            rows: self.rows.saturating_sub(earlier.rows),
            fetched: self.fetched.saturating_sub(earlier.fetched),
            bytes: self.bytes.saturating_sub(earlier.bytes),
        }
    }
}

impl Tuning {
    /// `sample_bytes`: what samples have in the mean, if blocks are to be found.
    /// `shared`: together with other ranks.
    pub(super) fn new(pace: Option<Pace>, blocks: Blocks, sample_bytes: Option<u64>, shared: bool) -> Self {
        let (counted, carried) = (Counted::default(), Observed::default());
        Self { pace, blocks, sample_bytes, counted, carried, set_for: None, shared: shared.then(Offer::default) }
    }
    /// This rank's measurements before `epoch`, for the others.
    pub(super) fn offer(&mut self, feed: &Feed, epoch: u64) -> Seen {
        let now = Counted::now(feed);
        let Observed { seconds, waited_s, rows, fetched, bytes } = self.seen(now);
        if let Some(offer) = &mut self.shared {
            offer.counted = now;
        }
        let (request_bytes, pass) = (feed.source.link().request_bytes, feed.cache.pass_to_come(epoch));
        Seen { seconds, waited_s, rows, fetched, bytes, request_bytes, pass }
    }
    /// Takes the measurements of all ranks: the next epoch is set by them.
    pub(super) fn agree(&mut self, seen: Option<Seen>) {
        if let Some(offer) = &mut self.shared {
            offer.agreed = seen;
        }
    }
    /// Target, bound and budget, for a run's identity.
    pub(super) fn told(&self) -> Option<String> {
        self.pace.map(|pace| pace.told())
    }
    /// For a run's state. Between two epochs (`next`) what the one that has ended showed counts already: the run that
    /// goes on from the state has not seen it.
    pub(super) fn stored(&self, next: Option<u64>, feed: &Feed) -> Tuned {
        let (mut pace, mut blocks) = (self.pace, self.blocks);
        let mut since = self.seen(Counted::now(feed));
        if let Some(epoch) = next.filter(|&epoch| self.set_for != Some(epoch) && self.shared.is_none()) {
            if let Some(pace) = &mut pace {
                pace.follow(std::mem::take(&mut since));
            }
            self.look(&mut blocks, epoch, feed);
        }
        let (pace, spent) = pace.map(|pace| pace.stored()).unzip();
        let budget = spent.flatten().map(|[bytes, fetched]| [bytes, fetched, since.bytes, since.fetched]);
        Tuned { pace, budget, blocks: self.sample_bytes.map(|_| blocks) }
    }

    /// What was seen of the epoch under way.
    fn seen(&self, now: Counted) -> Observed {
        let (seen, carried) = (now.since(&self.counted), self.carried);
        Observed { fetched: seen.fetched + carried.fetched, bytes: seen.bytes + carried.bytes, ..seen }
    }

    fn look(&self, blocks: &mut Blocks, epoch: u64, feed: &Feed) {
        self.look_at(blocks, feed.cache.pass_to_come(epoch), feed.source.link().request_bytes);
    }

    fn look_at(&self, blocks: &mut Blocks, pass: Option<u64>, request_bytes: u64) {
        if let (Some(sample_bytes), Some(pass)) = (self.sample_bytes, pass) {
            blocks.look(pass, ReadCost { request_bytes, sample_bytes });
        }
    }
}

impl Engine {
    /// `epoch` is about to be drawn. `anew`: from its first batch on; what was left of a restored one goes on as it
    /// began.
    pub(super) fn tune_epoch(&self, epoch: u64, anew: bool) -> Result<()> {
        let Some(mut tuning) = self.tuning.as_ref().map(lossfeed_sync::Mutex::lock) else { return Ok(()) };
        let set = tuning.set_for.take_if(|_| anew) == Some(epoch);
        if !anew || (set && tuning.shared.is_none()) {
            return Ok(());
        }
        if let Some(offer) = &mut tuning.shared {
            // Without an exchange before it an epoch goes on with what was set.
            let (Some(agreed), counted) = (offer.agreed.take(), offer.counted) else { return Ok(()) };
            (tuning.counted, tuning.carried) = (counted, Observed::default());
            if let Some(pace) = &mut tuning.pace {
                pace.follow(agreed.observed());
            }
            let mut blocks = tuning.blocks;
            tuning.look_at(&mut blocks, agreed.pass, agreed.request_bytes);
            tuning.blocks = blocks;
            return self.apply(&tuning, epoch);
        }
        let now = Counted::now(&self.feed);
        let seen = tuning.seen(now);
        (tuning.counted, tuning.carried) = (now, Observed::default());
        if let Some(pace) = &mut tuning.pace {
            pace.follow(seen);
        }
        let mut blocks = tuning.blocks;
        tuning.look(&mut blocks, epoch, &self.feed);
        tuning.blocks = blocks;
        self.apply(&tuning, epoch)
    }

    /// Goes on with what a state has come to that is of `epoch`, under way or the next.
    pub(super) fn restore_tuning(&self, stored: &Tuned, epoch: u64) -> Result<()> {
        let Some(mut tuning) = self.tuning.as_ref().map(lossfeed_sync::Mutex::lock) else { return Ok(()) };
        if let (Some(pace), Some(come_to)) = (&mut tuning.pace, stored.pace) {
            pace.restore(come_to, stored.budget.map(|[bytes, fetched, ..]| [bytes, fetched]))?;
        }
        if let (Some(blocks), Some(_)) = (stored.blocks, tuning.sample_bytes) {
            tuning.blocks.restore(blocks)?;
        }
        tuning.set_for = Some(epoch);
        let [_, _, bytes, fetched] = stored.budget.unwrap_or_default();
        tuning.carried = Observed { bytes, fetched, ..Observed::default() };
        tuning.counted = Counted::now(&self.feed);
        self.apply(&tuning, epoch)
    }

    fn apply(&self, tuning: &Tuning, epoch: u64) -> Result<()> {
        let (mut sampler, counters) = (self.settings.sampler, &self.feed.counters);
        if let Some(pace) = &tuning.pace {
            let fetches = pace.fetches(epoch);
            counters.fetches_ppm.store((fetches * 1e6).round() as u64, Relaxed);
            sampler = sampler.with_fetches(fetches);
        }
        if let (Some(pass), Some(_)) = (self.feed.cache.pass_to_come(epoch), tuning.sample_bytes) {
            let block = tuning.blocks.of(pass);
            counters.block_samples.store(block.into(), Relaxed);
            sampler = sampler.with_block(block);
        }
        self.feed.cache.retune(sampler, tuning.blocks)
    }
}
