//! The step with another number of workers, from the times of a run.
//!
//! A step is the longest of three times: that of the loop, which computes and takes a batch over; that of a worker for
//! its share of the batches; and that of the processors for all that is computed. Waiting overlaps over workers,
//! computing only over processors.

use super::measured::{Loader, Measured};

/// More workers than this are not proposed.
const WORKERS_MAX: u64 = 32;
/// Workers are planned for batches that take so many times as long.
const SPARE: f64 = 1.15;
/// Handing a batch over costs the loop and the worker so much each (µs), and so much for each tensor in it, where the
/// run has no worker process that would show it.
const HANDED_US: f64 = 100.0;
const PIECE_US: f64 = 150.0;

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
    /// Processors that others leave to the run.
    processors: f64,
    /// The part of a processor that a thread of the run has, in the mean, beside other programs.
    share: f64,
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
        let threads = m.loader == Loader::Lossfeed && processes.is_none() && (m.settings.processes, workers) != (Some(0), 0);
        let each = |us: u64, n: u64| us as f64 / n.max(1) as f64;
        let made = |us: u64| each(us, m.work.batches);
        let (fetch, computes, queued) = (made(m.work.total_us), made(m.work.processor_us), made(m.work.queued_us));
        let crossing = HANDED_US + PIECE_US * m.work.pieces.max(1) as f64;
        let (packs, takes) = match (threads, workers) {
            (true, _) => (0.0, 0.0),
            (_, 0) => (crossing, crossing),
            _ => (made(m.work.packed_us), each(m.work.taken_us, m.steps)),
        };
        let all = m.settings.processors.unwrap_or(1).max(1) as f64;
        let (now, own) = (m.step_us(), each(m.own_processor_us, m.steps));
        // Of threads that want a processor, the run's own have one if there are as many processors. What they wait
        // beyond that is for other programs.
        let wanted = (computes + queued + own + takes) / now.max(1.0);
        let ran = computes / (computes + queued).max(1e-9);
        let share = if computes > 0.0 { (ran * (wanted / all).max(1.0)).min(1.0) } else { 1.0 };
        Some(Self {
            now,
            workers,
            busy: each(m.busy_us, m.steps),
            own,
            fetch,
            waits: (fetch - computes - queued).max(0.0),
            computes,
            packs,
            takes,
            processors: all * share,
            share,
        })
    }

    /// The step with so many workers.
    pub(super) fn with(&self, workers: u64) -> f64 {
        match workers {
            0 => self.busy + self.fetch,
            n => (self.busy + self.takes).max(self.made() / n as f64).max(self.computed()),
        }
    }

    /// The step with so many in place of those there are. What the model does not explain stays as it is.
    pub(super) fn changed(&self, workers: u64) -> f64 {
        let unexplained = (self.now - self.with(self.workers)).clamp(0.0, 0.2 * self.now);
        self.with(workers) + unexplained
    }

    /// The fewest workers that keep up, with a little to spare for batches that take longer. Processors that are the
    /// limit have none to spare.
    pub(super) fn enough(&self) -> u64 {
        let (loops, computed) = ((self.busy + self.takes).max(1.0), self.computed());
        let spare = if computed > loops { 1.0 } else { SPARE };
        ((spare * self.made() / loops.max(computed)).ceil() as u64).clamp(1, WORKERS_MAX)
    }

    /// A worker's time for a batch.
    fn made(&self) -> f64 {
        self.waits + self.computes / self.share + self.packs
    }

    /// The processors' time for a step.
    fn computed(&self) -> f64 {
        (self.own + self.takes + self.computes + self.packs) / self.processors
    }
}
