//! How many requests for samples that are read ahead are in flight at once.
//!
//! A decision without effects. It begins with as many as the store has connections. Fewer bring as much where the link
//! is short: then each answer takes longer with every further request, and what is needed first shares the link with
//! what is needed last. More bring more where requests wait for their first byte. So it tries fewer as long as the rate
//! holds, but never fewer than *answers a second × latency*, which are needed for the wait alone; and more as long as
//! the rate follows. Then it rests, until the link is another one. Where each request takes a thread it begins with a
//! few, and tries more first.
//!
//! It is told what a quarter of a second showed, and changes the number once in that time at most. Where fewer requests
//! were in flight than allowed nobody asked for more, and nothing is learnt.

use super::decided::Requests as Why;

/// A quarter of a second.
pub const INTERVAL_S: f64 = 0.25;
/// This share of the allowed number is as good as all.
const FULL: f64 = 0.8;
/// Fewer are as good if this share of the rate is left.
const HOLDS: f64 = 0.95;
/// More are worth it if the rate grows by this share of what they grew by.
const FOLLOWS: f64 = 0.3;
/// A step that changes the number by less is not made.
const STEP: f64 = 0.25;
/// Requests beyond those that the wait alone needs.
const SPARE: f64 = 1.5;
/// How far the rate must move for the link to be another one, and how far for it to be so at once.
const MOVED: f64 = 1.12;
const MOVED_FAR: f64 = 1.6;
/// The same for the wait for the first byte, and for the size of a request.
const OTHER: f64 = 1.5;
/// After a search it rests so long, unless the rate moves far.
const REST_S: f64 = 10.0;
/// The least wait that was seen is forgotten by this share an interval.
const FORGOTTEN: f64 = 0.01;

/// What some time showed of requests that were made ahead of need.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Seen {
    /// How long it was.
    pub seconds: f64,
    /// Answers that came whole.
    pub answers: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// The median wait for an answer's first byte.
    pub first_byte_s: f64,
    /// Requests in flight on average.
    pub in_flight: f64,
}

/// Another number, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// Requests that may be in flight from now on.
    pub target: usize,
    /// See there.
    pub why: Why,
}

#[derive(Debug, Clone, Copy)]
struct Measured {
    bytes_per_s: f64,
    answers_per_s: f64,
    first_byte_s: f64,
}

impl Measured {
    fn request_bytes(&self) -> f64 {
        self.bytes_per_s / self.answers_per_s
    }
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    /// Nothing is known yet.
    New,
    /// The number was lowered from `at`, where `best` was seen.
    Fewer { at: usize, best: Measured },
    /// It was raised from `at`.
    More { at: usize, before: Measured },
    /// As it was when the rest began; `None`: the next interval tells.
    Rest(Option<Measured>),
}

/// See the module's head.
#[derive(Debug)]
pub struct Tuner {
    max: usize,
    target: usize,
    phase: Phase,
    /// Intervals in which requests still end that began before the last change.
    settling: u32,
    since_change_s: f64,
    /// Intervals in a row that showed another link.
    odd: u32,
    least_wait_s: f64,
}

impl Tuner {
    /// At most `max` requests, and `start` to begin with.
    pub fn new(start: usize, max: usize) -> Self {
        let (max, phase) = (max.max(1), Phase::New);
        let target = start.clamp(1, max);
        Self { max, target, phase, settling: 0, since_change_s: 0.0, odd: 0, least_wait_s: f64::INFINITY }
    }

    /// Requests that may be in flight.
    pub fn target(&self) -> usize {
        self.target
    }

    /// Takes in what an interval showed.
    pub fn follow(&mut self, seen: Seen) -> Option<Change> {
        self.since_change_s += seen.seconds;
        if self.settling > 0 {
            self.settling -= 1;
            return None;
        }
        if seen.in_flight < FULL * self.target as f64 || seen.answers == 0 || seen.bytes == 0 || seen.seconds <= 0.0 {
            return None;
        }
        let now = Measured {
            bytes_per_s: seen.bytes as f64 / seen.seconds,
            answers_per_s: seen.answers as f64 / seen.seconds,
            first_byte_s: seen.first_byte_s.max(1e-6),
        };
        self.least_wait_s = (self.least_wait_s * (1.0 + FORGOTTEN)).min(now.first_byte_s);
        let before = self.target;
        let why = match self.phase {
            Phase::New if before < self.max => self.more(now, Why::MayBeMore),
            Phase::New => self.fewer(before, now, Why::MayBeFewer),
            Phase::Fewer { at, best } => self.lowered(at, best, now),
            Phase::More { at, before } => self.raised(at, before, now),
            Phase::Rest(None) => {
                self.phase = Phase::Rest(Some(now));
                None
            }
            Phase::Rest(Some(was)) => self.rested(was, now),
        };
        let why = why.filter(|_| self.target != before)?;
        self.since_change_s = 0.0;
        let takes_s = seen.in_flight / now.answers_per_s;
        self.settling = ((takes_s / seen.seconds - 0.125).ceil() as u32).min(8);
        Some(Change { target: self.target, why })
    }

    /// Half of `at`, if the wait alone does not need more; else it rests at `at`.
    fn fewer(&mut self, at: usize, best: Measured, why: Why) -> Option<Why> {
        let needed = (SPARE * best.answers_per_s * self.least_wait_s).ceil() as usize + 1;
        let target = (at / 2).max(needed).max(1);
        if (target as f64) <= at as f64 * (1.0 - STEP) {
            (self.target, self.phase) = (target, Phase::Fewer { at, best });
        } else {
            (self.target, self.phase) = (at, Phase::Rest(None));
        }
        Some(why)
    }

    fn lowered(&mut self, at: usize, best: Measured, now: Measured) -> Option<Why> {
        if now.bytes_per_s >= HOLDS * best.bytes_per_s {
            let best = Measured { bytes_per_s: best.bytes_per_s.max(now.bytes_per_s), ..now };
            return self.fewer(self.target, best, Why::AsMuch);
        }
        // A quarter more than what held: a link that becomes faster shows.
        (self.target, self.phase) = ((at + at.div_ceil(4)).min(self.max), Phase::Rest(None));
        Some(Why::Less)
    }

    /// Twice as many as `at`, or fewer if there are as many as can be.
    fn more(&mut self, now: Measured, why: Why) -> Option<Why> {
        let (at, target) = (self.target, (self.target * 2).min(self.max));
        if (target as f64) < at as f64 * (1.0 + STEP) {
            return self.fewer(at, now, why);
        }
        (self.target, self.phase) = (target, Phase::More { at, before: now });
        Some(why)
    }

    fn raised(&mut self, at: usize, before: Measured, now: Measured) -> Option<Why> {
        let (grown, gain) = (self.target as f64 / at as f64 - 1.0, now.bytes_per_s / before.bytes_per_s - 1.0);
        if gain < 1.0 - HOLDS {
            return self.fewer(at, before, Why::NoMore);
        }
        if gain >= FOLLOWS * grown && (self.target as f64) * (1.0 + STEP) <= self.max as f64 {
            return self.more(now, Why::Follows);
        }
        self.phase = Phase::Rest(None);
        None
    }

    fn rested(&mut self, was: Measured, now: Measured) -> Option<Why> {
        let rate = now.bytes_per_s / was.bytes_per_s;
        let wait = now.first_byte_s / was.first_byte_s;
        let size = now.request_bytes() / was.request_bytes();
        let (more, fewer) = (true, false);
        let odd = if size < 1.0 / OTHER {
            Some((more, Why::Smaller))
        } else if size > OTHER {
            Some((fewer, Why::Larger))
        } else if rate > MOVED {
            Some((more, Why::Faster))
        } else if rate < 1.0 / MOVED {
            Some((more, Why::Slower))
        } else if wait > OTHER {
            Some((fewer, Why::Later))
        } else if wait < 1.0 / OTHER {
            Some((fewer, Why::Sooner))
        } else {
            None
        };
        let Some((more, why)) = odd else {
            self.odd = 0;
            return None;
        };
        self.odd += 1;
        let far = !(1.0 / MOVED_FAR..=MOVED_FAR).contains(&rate);
        if self.odd < 2 || (self.since_change_s < REST_S && !far) {
            return None;
        }
        self.odd = 0;
        if rate < 1.0 / MOVED {
            // The wait may have grown: what was the least before says nothing.
            self.least_wait_s = now.first_byte_s;
        }
        if more { self.more(now, why) } else { self.fewer(self.target, now, why) }
    }
}
