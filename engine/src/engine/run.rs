//! The passes of a run: which epoch comes, who is in it, where the consumer stands in it, and how it ends.

use super::Engine;
use crate::control::{Cut, Plan};
use crate::error::{Error, Result};
use crate::loader::checkpoint::{Checkpoint, WeightUse};
use crate::loader::{Batch, Iteration, Next};
use crate::sampler::{self, Given, Order, Part};
use crate::source::News;
use crate::types::TensorSpec;
use lossfeed_sync::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Where the run is.
#[derive(Default)]
pub(super) struct Clock {
    /// The epoch that starts next.
    pub(super) next_epoch: u64,
    /// A restored position, until its epoch starts or another epoch is asked for.
    pub(super) resume: Option<Checkpoint>,
    /// Number of passes begun; a stale iterator is recognised by it.
    pub(super) iteration: u64,
    /// The pass under way. One that ended early stays, stopped: it is the run's position until another pass starts.
    pub(super) current: Option<Arc<Iteration>>,
    /// What other numbers of ranks delivered of its epoch.
    pub(super) part: Option<Part>,
    /// When the consumer got its last answer; `None` outside a pass.
    pub(super) last_return: Option<Instant>,
}

impl Engine {
    /// Chooses the epoch that starts next. Without it epochs count up from 0.
    pub fn set_epoch(&self, epoch: u64) -> Result<()> {
        self.usable()?;
        let mut clock = self.clock.lock();
        clock.next_epoch = epoch;
        clock.resume.take_if(|c| c.header.epoch != epoch);
        // Somebody who names another epoch has given up the rest of the one that ended early.
        let given_up = clock.current.take_if(|c| c.stopped() && c.epoch() != epoch);
        drop(clock);
        if let Some(given_up) = given_up {
            self.end_pass(&given_up);
        }
        Ok(())
    }

    /// The epoch under way, or the next one if none is.
    pub fn epoch(&self) -> u64 {
        let clock = self.clock.lock();
        clock.current.as_ref().filter(|i| !i.stopped()).map_or(clock.next_epoch, |i| i.epoch())
    }

    /// The run's seed; `None` while it is open ([`crate::settings::Settings::open_seed`]).
    pub fn seed(&self) -> Option<u64> {
        (!self.seed_is_open.load(Relaxed)).then(|| self.seed.load(Relaxed))
    }

    /// Sets a seed that was left open. Nothing was drawn by it yet.
    ///
    /// # Errors
    /// `Usage` if the run has its seed.
    pub fn settle_seed(&self, seed: u64) -> Result<()> {
        self.usable()?;
        let _clock = self.clock.lock();
        if let Some(settled) = self.seed() {
            return Err(Error::usage(format!("this run's seed is already {settled} and cannot change")));
        }
        self.reseed(seed);
        Ok(())
    }

    /// Sets what the cache may hold while the run goes on, at most what it was made with. Who has to leave for it is
    /// chosen by the policy, and the memory that becomes free goes back to the system: answers the bytes that did, 0
    /// where a device has page-locked them. Any thread; it copies residents, and other threads wait a moment at a time.
    ///
    /// # Errors
    /// `Settings` for more than the cache was made with. `Usage` while a journal is written, which could not repeat it,
    /// and if the engine is closed, or another process's.
    pub fn resize_cache(&self, bytes: u64) -> Result<u64> {
        self.usable()?;
        let made_with = self.settings.cache_bytes;
        if bytes > made_with {
            return Err(Error::settings(format!(
                "a cache limit of {bytes} bytes exceeds the {made_with} this loader was made with: make the loader \
                 with the largest size you need"
            )));
        }
        if self.feed.cache.is_recorded() {
            return Err(Error::usage(
                "this run writes a journal, whose replay could not repeat that its cache changes: leave journal= out",
            ));
        }
        Ok(self.feed.cache.resize(bytes))
    }

    /// From now on the seed of everything that is drawn. Whoever calls it holds the clock, and no pass is under way.
    pub(super) fn reseed(&self, seed: u64) {
        self.seed.store(seed, Relaxed);
        self.seed_is_open.store(false, Relaxed);
        self.feed.seed.store(seed, Relaxed);
        self.feed.cache.reseed(seed);
    }

    /// Draws the next epoch and starts filling it. An iteration under way ends. Returns the new iteration's number.
    ///
    /// # Errors
    /// `Usage` where the caller brings the order ([`Given`]) and no restored epoch goes on.
    pub fn start_epoch(&self) -> Result<u64> {
        self.start(None)
    }

    /// Whether the epoch that starts next goes on with the order that a restored state brought: then none is handed
    /// over.
    ///
    /// # Errors
    /// `Usage` if the engine is closed, or another process's.
    pub fn has_order(&self) -> Result<bool> {
        self.usable()?;
        let clock = self.clock.lock();
        Ok(clock.resume.as_ref().is_some_and(|c| c.header.epoch == clock.next_epoch && c.order.is_some()))
    }

    /// As [`Self::start_epoch`], in the caller's own order: these ids, cut at `ends` (the end of each batch) if the
    /// sampler is [`Given`] with `batches`, else by the batch size. An epoch without ids has no batch.
    ///
    /// # Errors
    /// `Settings` for ids that no sample has, and for batches that are empty or larger than the batch size. `Usage` for
    /// another sampler, which draws by itself.
    pub fn start_given(&self, ids: &[i64], ends: Option<&[usize]>) -> Result<u64> {
        let Some(given) = self.settings.sampler.given() else {
            return Err(Error::usage(format!(
                "sampler={:?} draws its own order: none can be given",
                self.settings.sampler.name()
            )));
        };
        let mut order = Given::order(ids, self.feed.source.len())?;
        let ends = match ends {
            Some(ends) if given.batches => {
                Given::check_ends(ends, ids.len(), self.settings.batch_size)?;
                ends.to_vec()
            }
            _ => Given::ends(ids.len(), self.settings.batch_size, self.settings.drop_last),
        };
        // What is dropped is no draw: nobody is told of it.
        order.ids.truncate(ends.last().copied().unwrap_or(0));
        order.weights.truncate(order.ids.len());
        self.start(Some((order, Cut::At(ends))))
    }

    /// Ids of the epoch that starts next, drawn with replacement in proportion to `weights`, one a sample: as many on
    /// every rank, of all samples. For [`Self::start_given`].
    ///
    /// # Errors
    /// `Settings` for another number of weights than there are samples, and as [`sampler::weighted`].
    pub fn draw_weighted(&self, weights: &[f64]) -> Result<Vec<i64>> {
        self.usable()?;
        let samples = self.feed.source.len();
        if weights.len() != samples {
            return Err(Error::settings(format!("{} weights for {samples} samples: give one a sample", weights.len())));
        }
        let draws = samples.div_ceil(self.settings.world_size as usize);
        let (seed, epoch) = (self.seed.load(Relaxed), self.clock.lock().next_epoch);
        let ids = sampler::weighted(weights, draws, seed, epoch, self.settings.rank)?;
        Ok(ids.into_iter().map(i64::from).collect())
    }

    /// The order of an epoch, and its cut.
    pub(super) fn drawn(&self, epoch: u64) -> Result<(Arc<Order>, Cut)> {
        let (order, s) = (self.feed.cache.draw(epoch)?, &self.settings);
        let cut = Cut::of(&order, s.sampler.is_short(), self.batches, s.batch_size, s.drop_last);
        Ok((order, cut))
    }

    /// The order of an epoch that begins: the one from elsewhere, the node cache's, or one that is drawn.
    fn order_of(&self, epoch: u64, from_elsewhere: Option<(Order, Cut)>) -> Result<(Arc<Order>, Cut)> {
        if let Some((order, cut)) = from_elsewhere {
            self.feed.node.iter().for_each(|node| node.pass_over());
            return Ok((Arc::new(order), cut));
        }
        self.ordered_by_node(epoch).map_or_else(|| self.drawn(epoch), Ok)
    }

    /// The order of an epoch from the node cache, if that is to give it and does.
    fn ordered_by_node(&self, epoch: u64) -> Option<(Arc<Order>, Cut)> {
        let ids = self.feed.node.as_ref().filter(|_| self.settings.sampler.is_by_node())?.begin();
        let Some(ids) = ids else {
            tracing::warn!(epoch, "the node cache gives no order: this job draws its own");
            return None;
        };
        let s = &self.settings;
        let order = Order { weights: vec![1.0; ids.len()], ids };
        let cut = Cut::of(&order, false, self.batches, s.batch_size, s.drop_last);
        Some((Arc::new(order), cut))
    }

    fn start(&self, handed: Option<(Order, Cut)>) -> Result<u64> {
        self.usable()?;
        let mut clock = self.clock.lock();
        if let Some(old) = clock.current.take() {
            old.stop();
            self.end_pass(&old);
        }
        let epoch = clock.next_epoch;
        let resume = clock.resume.take();
        let (first, part, stored) = match resume {
            Some(c) if c.header.epoch == epoch => {
                let (order, cut) = self.restored_plan(&c)?;
                (c.header.delivered, c.header.part, order.map(|order| (order, cut)))
            }
            _ => (0, None, None),
        };
        let anew = first == 0 && part.is_none();
        // What was left of a restored epoch goes on as it began.
        if let Some(mut weights) = self.weights.as_ref().map(Mutex::lock)
            && anew
            && *weights == WeightUse::Read
            && !self.settings.exchange
        // all ranks at once: see `exchange`
        {
            *weights = WeightUse::Used;
            self.feed.cache.use_weights(true);
        }
        self.tune_epoch(epoch, anew)?;
        let (order, cut) = self.order_of(epoch, stored.or(handed))?;
        // A pool and the node cache keep what this epoch draws often.
        let tiers = self.feed.source.counted();
        if (tiers.pool.is_some() || tiers.node.is_some())
            && self.feed.cache.adaptive()
            && !self.settings.sampler.is_by_node()
        {
            let snapshot = self.feed.cache.snapshot();
            self.feed.source.tell(News::Importances(&self.run_name(), snapshot.scores().as_slice()));
        }
        let behind = self.feed.cache.draw_behind(epoch)?;
        let plan = Plan { epoch, order, cut, behind };
        let batches = plan.len();
        let begun = self.feed.cache.begin(plan.clone(), first);
        let pass = begun.pass;
        if let Some(ahead) = &self.feed.read_ahead {
            self.threads.start_reading(&self.feed)?;
            ahead.begin(begun);
        }
        let (workers, most, slot_bytes) = {
            let threading = self.threading.lock();
            (threading.workers(), threading.most(), threading.slot_bytes())
        };
        let (feed, window) = (Arc::clone(&self.feed), self.settings.window(workers, slot_bytes));
        let iteration = Arc::new(Iteration::new(feed, pass, plan, first, window, workers, most));
        self.deliveries.lock().begin(epoch, first);
        if let Some(leading) = &self.leading {
            leading.lock().begin();
        }
        self.start_threads(&iteration).inspect_err(|_| iteration.stop())?;
        clock.next_epoch = epoch + 1;
        clock.iteration += 1;
        clock.current = Some(iteration);
        clock.part = part;
        clock.last_return = None;
        self.feed.counters.epoch.store(epoch, Relaxed);
        self.feed.counters.passes_total.fetch_add(1, Relaxed);
        self.feed.counters.batches_per_epoch.store(batches as u64, Relaxed);
        self.feed.counters.batch.store(first as u64, Relaxed);
        Ok(clock.iteration)
    }

    /// Ends a pass in the cache too, which notes which samples were delivered without getting a score: they are unseen
    /// no more. Once an epoch, because only the next draw asks.
    pub(super) fn end_pass(&self, iteration: &Iteration) {
        let delivered = iteration.seen().checked_sub(1).map_or(0, |last| iteration.plan().range(last).end);
        self.feed.cache.end(iteration.pass(), 0..delivered);
        // Behind a pass that was delivered to its end reading goes on with the next; a stream goes on where it was
        // left.
        let goes_on = self.feed.cache.foresees(iteration.is_over());
        if let Some(ahead) = self.feed.read_ahead.as_ref().filter(|_| !goes_on) {
            ahead.end();
        }
    }

    /// The next batch of `iteration`, within `wait`; [`Next::Pending`] if it is not there by then. [`Next::End`] means
    /// that every batch was delivered: a pass that ended otherwise is an error.
    pub fn next_batch(&self, iteration: u64, wait: Duration) -> Result<Next> {
        let next = self.take_batch(iteration, wait);
        if let Ok(Next::Batch(batch)) = &next
            && let Some(current) = self.iteration(iteration)?
        {
            current.saw(batch.ticket.number);
        }
        next
    }

    /// As [`Self::next_batch`], for a caller that may lose the batch on its way to the consumer: the run's position stays
    /// before it until [`Iteration::saw`].
    pub fn take_batch(&self, iteration: u64, wait: Duration) -> Result<Next> {
        self.usable()?;
        let Some(current) = self.ask(iteration)? else { return Ok(Next::End) };
        let next = current.next(wait, self.settings.workers == Some(0));
        match &next {
            Ok(Next::Batch(batch)) => {
                self.cover(batch);
                self.tune(&current);
                self.lead();
                self.answered(iteration);
            }
            Ok(Next::End) if current.taken() < current.len() => {
                // Somebody else ended it while this thread was waiting.
                self.usable()?;
                if self.clock.lock().iteration != iteration {
                    return Err(superseded());
                }
                return Err(Error::usage(format!(
                    "this pass over epoch {} ended after {} of {} batches because it was dropped or failed: begin \
                     another, or resume from a state",
                    current.epoch(),
                    current.taken(),
                    current.len()
                )));
            }
            Ok(Next::End) => self.finish(&current),
            Err(_) if current.stopped() => self.finish(&current),
            // The consumer goes about its work and asks again. Running out of slots ends nothing either: it may let go
            // of batches first.
            Ok(Next::Pending) | Err(_) => self.answered(iteration),
        }
        self.gauge();
        self.note_decisions();
        next
    }

    /// Pass `iteration`; `None` after its end.
    ///
    /// # Errors
    /// `Usage` if another began after it, or the engine is closed, or another process's.
    pub fn iteration(&self, iteration: u64) -> Result<Option<Arc<Iteration>>> {
        self.usable()?;
        let clock = self.clock.lock();
        if clock.iteration == iteration { Ok(clock.current.clone()) } else { Err(superseded()) }
    }

    /// The consumer asks for a batch of pass `iteration`: what it did since the last answer was its own work. `None`
    /// after the pass's end.
    fn ask(&self, iteration: u64) -> Result<Option<Arc<Iteration>>> {
        let mut clock = self.clock.lock();
        if clock.iteration != iteration {
            return Err(superseded());
        }
        let Some(current) = clock.current.clone() else { return Ok(None) };
        if let Some(last) = clock.last_return.take() {
            self.feed.counters.busy_us_total.fetch_add(last.elapsed().as_micros() as u64, Relaxed);
        }
        Ok(Some(current))
    }

    /// The consumer has its answer, a batch or not, and pass `iteration` goes on.
    fn answered(&self, iteration: u64) {
        let mut clock = self.clock.lock();
        if clock.iteration == iteration {
            clock.last_return = Some(Instant::now());
        }
    }

    /// The consumer asks for a batch of pass `iteration` whose samples are read outside of the engine, by the ids of
    /// batches that were taken before.
    pub fn asks(&self, iteration: u64) -> Result<()> {
        self.usable()?;
        self.ask(iteration).map(drop)
    }

    /// It has that batch, or an error, having waited so long for its samples.
    pub fn answered_after(&self, iteration: u64, waited: Duration) {
        let us = waited.as_micros() as u64;
        self.feed.counters.wait_us_total.fetch_add(us, Relaxed);
        self.feed.counters.wait_source_us_total.fetch_add(us, Relaxed);
        self.answered(iteration);
    }

    fn cover(&self, batch: &Batch) {
        let slot = &batch.slot;
        let classes = *slot.layout().target() == TensorSpec::class_index();
        let labels = classes.then(|| slot.target().as_chunks().0.iter().copied().map(i64::from_ne_bytes));
        let mut deliveries = self.deliveries.lock();
        deliveries.deliver(&batch.ticket.ids, slot.weight(), labels);
        let (epoch, ever) = deliveries.distinct();
        let ess = deliveries.ess().unwrap_or(0.0);
        drop(deliveries);
        self.feed.counters.distinct_epoch.store(epoch, Relaxed);
        self.feed.counters.distinct_ever.store(ever, Relaxed);
        self.feed.counters.ess_ppm.store((ess * 1e6) as u64, Relaxed);
    }

    fn finish(&self, iteration: &Arc<Iteration>) {
        let mut clock = self.clock.lock();
        if clock.current.as_ref().is_some_and(|c| Arc::ptr_eq(c, iteration)) {
            iteration.stop();
            clock.last_return = None;
            if iteration.is_over() {
                clock.current = None;
                self.end_pass(iteration);
            }
        }
    }

    /// Ends iteration `iteration` if it is still under way (its consumer let go of it). The run's position stays behind
    /// the batches that were seen.
    pub fn abandon(&self, iteration: u64) {
        let current = {
            let clock = self.clock.lock();
            if clock.iteration == iteration { clock.current.clone() } else { None }
        };
        if let Some(current) = current {
            self.finish(&current);
        }
    }
}

fn superseded() -> Error {
    Error::usage("this iterator ended when a newer one over the same loader began: one pass at a time")
}
