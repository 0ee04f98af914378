//! The parts of a loss: what a wait was for, and which rank holds the others up.

use super::measured::{Measured, share};
use super::rules::{SLOWER_SHARE, STEP_FLOOR_US};

/// Shares of the time that a full processor shows.
const ONE_PROCESSOR: (f64, f64) = (0.6, 1.2);

/// The cause of lost time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// Reading: the store, the network, the disk.
    Source,
    /// Decoding and transforming.
    Decode,
    /// Python code of the dataset or its `collate_fn`.
    Python,
    /// No free batch slot: the training keeps batches.
    Slot,
    /// Queues, pipes, pinning, thread wake-ups, cache decisions, copies of rows.
    Handover,
    /// The first batch of a pass.
    PassStart,
    /// Copies to the device.
    Copy,
    /// Computing.
    Compute,
}

impl Cause {
    /// Its name on screens and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Cause::Source => "source",
            Cause::Decode => "decode",
            Cause::Python => "python",
            Cause::Slot => "slot",
            Cause::Handover => "hand-over",
            Cause::PassStart => "pass-start",
            Cause::Copy => "copy",
            Cause::Compute => "compute",
        }
    }
}

/// The waits of a rank by cause (µs), first batches apart, largest first; causes of nothing are left out.
pub(super) fn waits(m: &Measured) -> Vec<(Cause, f64)> {
    let w = &m.wait;
    let shares = [
        (Cause::Source, w.source_us),
        (Cause::Decode, w.decode_us),
        (Cause::Python, w.python_us),
        (Cause::Slot, w.slot_us),
        (Cause::Handover, w.handover_us.saturating_add(w.copy_us).saturating_add(w.decide_us)),
    ];
    let whole: u64 = shares.iter().map(|&(_, us)| us).sum();
    let pace = m.pace_wait_us() as f64;
    if whole == 0 {
        return if pace > 0.0 { vec![(Cause::Handover, pace)] } else { Vec::new() };
    }
    // A Python dataset of our own loader reads and computes in one call; its processor time tells them apart. Threads
    // that compute in Python take turns, so together they fill about one processor.
    let filled = share(m.work.processor_us, m.pace_us());
    let computes = m.settings.processes == Some(0)
        && (2 * m.work.processor_us > m.work.total_us || (ONE_PROCESSOR.0..ONE_PROCESSOR.1).contains(&filled));
    let renamed = |cause| if computes && cause == Cause::Source { Cause::Python } else { cause };
    let mut found: Vec<(Cause, f64)> = Vec::new();
    for (cause, us) in shares {
        let (cause, us) = (renamed(cause), pace * us as f64 / whole as f64);
        match found.iter_mut().find(|(known, _)| *known == cause) {
            Some((_, sum)) => *sum += us,
            None => found.push((cause, us)),
        }
    }
    found.retain(|&(_, us)| us > 0.0);
    found.sort_by(|a, b| b.1.total_cmp(&a.1));
    found
}

/// A rank that holds the others up.
pub(super) struct SlowRank {
    /// Its place among the ranks.
    pub(super) at: usize,
    /// Its own time a step (µs).
    pub(super) own_us: f64,
    /// The middle rank's.
    pub(super) middle_us: f64,
    /// The part that makes the difference.
    pub(super) cause: Cause,
}

/// The slowest rank, if it is slower than the middle one by more than the middle one loses itself.
///
/// Ranks that step together take equally long: the fast ones wait in backward passes and collectives. A rank's own time
/// is its step without what it spends there more than the rank that spends least.
pub(super) fn slow_rank(ranks: &[Measured]) -> Option<SlowRank> {
    if ranks.len() < 2 {
        return None;
    }
    let a_step = |m: &Measured, us: f64| us / m.steps.max(1) as f64;
    let least = ranks.iter().map(|m| a_step(m, m.sync_us as f64)).fold(f64::INFINITY, f64::min);
    let timed = ranks.iter().any(|m| m.sync_us > 0);
    let lost = |m: &Measured| a_step(m, m.pace_wait_us() as f64 + m.copies_us as f64);
    // Without the times of collectives only waits and copies are known to be a rank's own.
    let own = |m: &Measured| if timed { m.step_us() - (a_step(m, m.sync_us as f64) - least) } else { lost(m) };
    let mut order: Vec<usize> = (0..ranks.len()).collect();
    order.sort_by(|&a, &b| own(&ranks[a]).total_cmp(&own(&ranks[b])));
    let (at, middle) = (*order.last()?, &ranks[order[(ranks.len() - 1) / 2]]);
    let worst = &ranks[at];
    let gap = own(worst) - own(middle);
    if gap < STEP_FLOOR_US || gap < SLOWER_SHARE * worst.step_us() || gap <= lost(middle) {
        return None;
    }
    let differs = |of: fn(&Measured) -> u64| a_step(worst, of(worst) as f64) - a_step(middle, of(middle) as f64);
    let (waits_more, copies_more) = (differs(Measured::pace_wait_us), differs(|m| m.copies_us));
    let cause = if waits_more >= 0.5 * gap {
        waits(worst).first().map_or(Cause::Handover, |&(cause, _)| cause)
    } else if copies_more >= 0.5 * gap {
        Cause::Copy
    } else {
        Cause::Compute
    };
    Some(SlowRank { at, own_us: own(worst), middle_us: own(middle), cause })
}
