//! The step with another number of workers, from the times of a run.
//!
//! A step is the longest of three times: that of the loop, which computes and takes a batch over; that of a worker for
//! its share of the batches; and that of the processors for all that is computed. Waiting overlaps over workers,
//! computing only over processors. The constants are from runs on a machine of two processors; what it foretold there
//! and what came is in the records `why-planted` (`benches/scenarios/why/accept.py`).

use super::measured::{Loader, Measured};

/// More workers than this are not proposed.
const WORKERS_MAX: u64 = 32;
/// Workers are planned for batches that take so many times as long.
const SPARE: f64 = 1.15;
/// To hand a batch over costs the loop so much (µs), and so much for each tensor in it, where the run has no worker
/// process that would show it; and the worker's processor a half of that.
const HANDED_US: f64 = 300.0;
const PIECE_US: f64 = 400.0;
/// The three times overlap only where batches take equally long: two that are equal make a step a tenth longer.
const OVERLAP: f64 = 8.0;
/// The unexplained part of a step is at most this share of the explained one.
const UNEXPLAINED: f64 = 0.25;
/// To let a tensor go that came from a worker process costs the loop so much (µs).
const RELEASE_US: f64 = 9.0;

/// Times of one step (µs).
#[derive(Debug, Clone, Copy)]
pub(super) struct Model {
    /// The step now.
    pub(super) now: f64,
    /// The workers now; 0: the loop makes its batches itself.
    pub(super) workers: u64,
    /// Between two batches.
    busy: f64,
    /// Part of it: computing.
    own: f64,
    /// Making a batch: all of it, the part that waits, and the part that computes.
    fetch: f64,
    waits: f64,
    computes: f64,
    /// Computing to hand a batch over: in the worker, and in the loop.
    packs: f64,
    takes: f64,
    /// Part of the busy time: to let go of what came from worker processes.
    releases: f64,
    /// Processors, and how many of them other programs use.
    processors: f64,
    taken: f64,
}

impl Model {
    /// From what a run showed; `None` if nothing did.
    pub(super) fn of(m: &Measured) -> Option<Self> {
        if m.work.batches == 0 || m.steps == 0 {
            return None;
        }
        let processes = m.settings.processes.filter(|&n| n > 0);
        let workers = processes.or(m.settings.workers)?;
        // The loop that reads a Python dataset itself is helped by processes.
        let threads =
            m.loader == Loader::Lossfeed && processes.is_none() && (m.settings.processes, workers) != (Some(0), 0);
        let each = |us: u64, n: u64| us as f64 / n.max(1) as f64;
        let made = |us: u64| each(us, m.work.batches);
        let (fetch, computes, queued) = (made(m.work.total_us), made(m.work.processor_us), made(m.work.queued_us));
        let crossing = HANDED_US + PIECE_US * m.work.pieces.max(1) as f64;
        let (packs, takes) = match (threads, workers) {
            (true, _) => (0.0, 0.0),
            (_, 0) => (0.5 * crossing, crossing),
            _ => (made(m.work.packed_us), each(m.work.taken_us, m.steps)),
        };
        let processors = m.settings.processors.unwrap_or(1).max(1) as f64;
        let (busy, own) = (each(m.busy_us, m.steps), each(m.own_processor_us, m.steps));
        Some(Self {
            now: m.step_us(),
            workers,
            busy,
            own,
            fetch,
            waits: (fetch - computes - queued).max(0.0),
            computes,
            packs,
            takes,
            releases: if threads || workers == 0 { 0.0 } else { (RELEASE_US * m.work.pieces as f64).min(0.8 * busy) },
            processors,
            taken: m.settings.taken_permille as f64 / 1e3,
        })
    }

    /// The step with so many workers.
    pub(super) fn with(&self, workers: u64) -> f64 {
        match workers {
            0 => self.busy - self.releases + self.fetch,
            n => {
                let times = [self.loops(), self.made() / n as f64, self.computed(n)];
                times.map(|us| us.powf(OVERLAP)).iter().sum::<f64>().powf(1.0 / OVERLAP)
            }
        }
    }

    /// The step with so many in place of those there are. What the model does not explain stays as large a part of it.
    pub(super) fn changed(&self, workers: u64) -> f64 {
        let unexplained = self.now / self.with(self.workers) - 1.0;
        self.with(workers) * (1.0 + unexplained.clamp(0.0, UNEXPLAINED))
    }

    /// The fewest workers that keep up, with a little to spare for batches that take longer. Processors that are the
    /// limit have none to spare.
    pub(super) fn enough(&self) -> u64 {
        let keeps_up = |&n: &u64| {
            let (loops, computed) = (self.loops(), self.computed(n));
            let spare = if computed > loops { 1.0 } else { SPARE };
            spare * self.made() / n as f64 <= loops.max(computed)
        };
        (1..WORKERS_MAX).find(keeps_up).unwrap_or(WORKERS_MAX)
    }

    /// The loop's time for a step.
    fn loops(&self) -> f64 {
        (self.busy + self.takes).max(1.0)
    }

    /// A worker's time for a batch.
    fn made(&self) -> f64 {
        self.waits + self.computes + self.packs
    }

    /// The processors' time for a step. Other programs keep theirs while there are enough for all; if not, all threads
    /// that compute have equal shares.
    fn computed(&self, workers: u64) -> f64 {
        let threads = (workers as f64).max(self.processors);
        let fair = self.processors * threads / (threads + self.taken);
        let left = fair.max(self.processors - self.taken);
        (self.own + self.takes + self.computes + self.packs) / left
    }
}
