//! Whether a tier is asked at all: the *circuit* before it.
//!
//! A tier keeps samples nearer than their source. One that fails, hangs or is slower than what lies behind it must not
//! cost more than it brings. What it may cost is a time: what it took, less what the source alone would have taken for
//! the same samples, [`LOSS_US`] in all. What it gains is counted against that, but never saved up. Beyond it the
//! circuit *opens*, and everything is asked of the source. After a pause it is *half open*: one call asks for a few
//! samples, and if these come without a failure and no later than the source's, the circuit is *closed* again. Else it
//! opens for twice as long.
//!
//! What the source would have taken is what a sample of it took lately, on average over whoever waited for it, so that
//! requests side by side count as what they save. Before the first it is what the tier was told when it kept its
//! samples. A pool's samples may have been kept by a machine that is farther from the source, so when a pool took
//! [`LOSS_US`] and nothing was asked of the source meanwhile, it is asked for [`PROBE_SAMPLES`]: at most a hundredth of
//! the time goes to that.
//!
//! A decision without effects. Times are microseconds since any moment, and handed in.

#[cfg(test)]
mod tests;

use std::fmt;

/// A tier may cost so much more time than the source alone: one second. A machine that is busy takes a quarter of that
/// from a thread now and then.
pub const LOSS_US: u64 = 1_000_000;
/// A probe may be so much later than the source: the noise of one call on a busy machine.
const PROBE_LOSS_US: u64 = 20_000;
/// A probe is waited for so much longer than the source would take.
const PROBE_PATIENCE_US: u64 = 100_000;
/// A probe asks for so many samples.
pub const PROBE_SAMPLES: usize = 4;
/// A read that fails weighs as much as so many that do not, and so much weight opens: four failures in a row, or more
/// than one in nine for long.
const FAILURE: u64 = 8;
const FAILURES_MAX: u64 = 4 * FAILURE;
/// The first pause: five seconds.
pub const PAUSE_US: u64 = 5_000_000;
/// The longest: five minutes.
pub const PAUSE_MAX_US: u64 = 300_000_000;
/// A circuit that was closed for so long begins with the first pause again.
const STEADY_US: u64 = 60_000_000;
/// A tier takes so many times as long as the check of its source before the next one.
const CHECKS: u64 = 100;
/// The source's time for a sample is smoothed over about so many.
const SMOOTHED: f64 = 256.0;

/// What may be asked of the tier in one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leave {
    /// Everything.
    All,
    /// [`PROBE_SAMPLES`] at most. Nobody else asks until it is told how that went.
    Probe,
    /// Nothing.
    Nothing,
}

/// How a call went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Samples that the tier gave, or was asked for over a network and does not have: such a question costs as much.
    pub answers: u64,
    /// Samples that it has and could not read.
    pub failures: u64,
    /// How long it was waited for.
    pub took_us: u64,
    /// Whether the time was over before it had answered for all that it has.
    pub unfinished: bool,
}

/// Whether the tier is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It is.
    Closed,
    /// It is not.
    Open,
    /// One call may try.
    HalfOpen,
}

impl State {
    /// For a page of numbers.
    pub fn code(self) -> u64 {
        self as u64
    }
    /// All states, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Closed, Self::Open, Self::HalfOpen];
    /// The state of that number; `None` for one that a newer version may know.
    pub fn of_code(code: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.code() == code)
    }
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half-open",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words())
    }
}

reasons! {
    /// Why a circuit opened or closed.
    Why {
        Late: "it was slower than the source";
        Hangs: "it did not answer";
        Fails: "its reads failed";
        NoBetter: "it is still no better";
        Serves: "it works again";
    }
}

/// The circuit is in another state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// Before.
    pub before: State,
    /// From now on.
    pub now: State,
    /// Why.
    pub why: Why,
    /// If it opened, when it is tried again.
    pub again_us: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Closed { since_us: u64 },
    Open { until_us: u64 },
    Probing,
}

/// See the module's head.
#[derive(Debug, Clone)]
pub struct Circuit {
    phase: Phase,
    /// Time lost against the source alone.
    lost_us: u64,
    failures: u64,
    /// The last pause; 0 before the first.
    pause_us: u64,
    /// What the source takes for a sample; `None`: nobody knows yet.
    alone_us: Option<f64>,
    /// The same as others measured it: used until it is known.
    recorded_us: Option<f64>,
    /// Time that the tier took since the source was asked last, and after which it is asked again.
    unchecked_us: u64,
    check_us: u64,
}

impl Circuit {
    /// Closed. `alone_us`: what the source took for a sample when the tier's were kept.
    pub fn new(alone_us: Option<f64>) -> Self {
        let alone_us = alone_us.filter(|us| us.is_finite() && *us >= 0.0);
        let phase = Phase::Closed { since_us: 0 };
        let (recorded_us, unchecked_us, check_us) = (None, 0, LOSS_US);
        Self { phase, lost_us: 0, failures: 0, pause_us: 0, alone_us, recorded_us, unchecked_us, check_us }
    }

    /// As it is at `now_us`.
    pub fn state(&self, now_us: u64) -> State {
        match self.phase {
            Phase::Closed { .. } => State::Closed,
            Phase::Open { until_us } if now_us < until_us => State::Open,
            Phase::Open { .. } | Phase::Probing => State::HalfOpen,
        }
    }

    /// What may be asked now. Whoever gets [`Leave::Probe`] must tell how it went, whatever happens.
    pub fn ask(&mut self, now_us: u64) -> Leave {
        match self.phase {
            Phase::Closed { .. } => Leave::All,
            Phase::Open { until_us } if now_us >= until_us => {
                self.phase = Phase::Probing;
                Leave::Probe
            }
            Phase::Open { .. } | Phase::Probing => Leave::Nothing,
        }
    }

    /// How long a call with `leave` may have waited when so many samples have come: as long as the source would take for
    /// them, and what is left to lose. So it never costs more than that, however many it still waits for.
    pub fn patience_us(&self, leave: Leave, samples: usize) -> u64 {
        let spare = match leave {
            Leave::All => LOSS_US - self.lost_us.min(LOSS_US),
            Leave::Probe => PROBE_PATIENCE_US,
            Leave::Nothing => return 0,
        };
        self.alone(samples as u64).saturating_add(spare)
    }

    fn alone(&self, samples: u64) -> u64 {
        (self.alone_us.or(self.recorded_us).unwrap_or(0.0) * samples as f64) as u64
    }

    /// True if a call that may ask for everything leaves [`PROBE_SAMPLES`] to the source, to know what it takes now.
    pub fn compares(&mut self) -> bool {
        let due = self.recorded_us.is_some() && self.unchecked_us >= self.check_us;
        if due {
            self.unchecked_us = 0;
        }
        due
    }

    /// The source gave `answers` samples, which were waited for so long.
    pub fn source_took(&mut self, answers: u64, took_us: u64) {
        if answers == 0 {
            return;
        }
        (self.unchecked_us, self.check_us) = (0, took_us.saturating_mul(CHECKS).max(LOSS_US));
        let each = took_us as f64 / answers as f64;
        let share = (answers as f64 / SMOOTHED).min(1.0);
        self.alone_us = Some(self.alone_us.map_or(each, |us| us + share * (each - us)));
    }

    /// The source's time for a sample as the tier has recorded it: used until the source itself was asked.
    pub fn recorded(&mut self, us: Option<f64>) {
        self.recorded_us = us.filter(|us| us.is_finite() && *us >= 0.0);
    }

    /// A call that had `leave` is over.
    pub fn told(&mut self, leave: Leave, outcome: Outcome, now_us: u64) -> Option<Change> {
        match (leave, self.phase) {
            (Leave::Probe, Phase::Probing) => self.probed(outcome, now_us),
            (Leave::All, Phase::Closed { .. }) => self.asked(outcome, now_us),
            // It began before the circuit opened: that is known by now.
            _ => None,
        }
    }

    fn asked(&mut self, outcome: Outcome, now_us: u64) -> Option<Change> {
        let Outcome { answers, failures, took_us, unfinished } = outcome;
        self.unchecked_us = self.unchecked_us.saturating_add(took_us);
        self.lost_us = self.lost_us.saturating_add(took_us).saturating_sub(self.alone(answers));
        self.failures = self.failures.saturating_add(failures.saturating_mul(FAILURE)).saturating_sub(answers);
        // A tier that answered late before has little patience left, and does not hang.
        let why = if unfinished && answers == 0 && took_us >= LOSS_US / 2 {
            Why::Hangs
        } else if self.failures >= FAILURES_MAX {
            Why::Fails
        } else if unfinished || self.lost_us > LOSS_US {
            Why::Late
        } else {
            return None;
        };
        Some(self.open(why, State::Closed, now_us))
    }

    fn probed(&mut self, outcome: Outcome, now_us: u64) -> Option<Change> {
        let Outcome { answers, failures, took_us, unfinished } = outcome;
        if failures > 0 || unfinished || took_us > self.alone(answers).saturating_add(PROBE_LOSS_US) {
            return Some(self.open(Why::NoBetter, State::HalfOpen, now_us));
        }
        if answers == 0 {
            // It had none of these: another call tries.
            self.phase = Phase::Open { until_us: now_us };
            return None;
        }
        (self.phase, self.lost_us, self.failures) = (Phase::Closed { since_us: now_us }, 0, 0);
        Some(Change { before: State::HalfOpen, now: State::Closed, why: Why::Serves, again_us: now_us })
    }

    fn open(&mut self, why: Why, before: State, now_us: u64) -> Change {
        let steady = matches!(self.phase, Phase::Closed { since_us } if now_us.saturating_sub(since_us) >= STEADY_US);
        let next = self.pause_us.saturating_mul(2).clamp(PAUSE_US, PAUSE_MAX_US);
        self.pause_us = if steady { PAUSE_US } else { next };
        let until_us = now_us.saturating_add(self.pause_us);
        (self.phase, self.lost_us, self.failures) = (Phase::Open { until_us }, 0, 0);
        Change { before, now: State::Open, why, again_us: until_us }
    }
}
