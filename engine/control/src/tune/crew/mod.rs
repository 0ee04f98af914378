//! How many loader threads fill batches: the *crew*.
//!
//! It begins with one thread a processor, so that no run starts slowly. While the consumer does not wait, the threads
//! that are needed are counted: *batches a second × thread-seconds a batch*, and a quarter more. If that is fewer, the
//! others rest. When the consumer waits, twice as many are tried as long as the rate follows, up to one a processor;
//! above that only if threads wait more than they compute, which their processor-seconds tell. When it waits and more
//! bring nothing, fewer are tried between the numbers that are known: where threads stand in each other's way they
//! bring more, and where they do not the search ends where it began, and waits twice as long before the next.
//!
//! What is known is a rate at each number that was tried, and lines between them through the origin: n threads bring
//! at most n/m of what m bring. That is Lobster's piece-wise linear model (ICPP'22), with its bisection over it.
//!
//! A look takes a quarter of a second or longer, and changes the number once at most. Time is the consumer's: between
//! passes nothing is learnt.

mod cores;
mod curve;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod profile_tests;
mod rest;
#[cfg(test)]
mod rivals_tests;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

pub use cores::{Processors, share, shared};
use curve::{Curve, Next};
use rest::Rest;

/// A look is at least so long: a quarter of a second.
const LOOK_S: f64 = 0.25;
/// Where batches are slow it goes on for so long, until every thread has made one, and all of them sixteen.
const LOOK_MAX_S: f64 = 1.0;
const LOOK_BATCHES: u64 = 16;
/// Threads beyond those that are needed on average: batches differ.
const SPARE: f64 = 1.25;
/// Threads that bring less than so many times what the consumer takes have no reserve.
const SHORT: f64 = 1.05;
/// Threads that work for this share of the time do so all the time.
const BUSY: f64 = 0.7;
/// The number is lowered to this share of it or less, and else not.
const LOWER: f64 = 0.8;
/// The consumer waits if this share of its time goes into it, and does not any more below the second.
const WAITS: f64 = 0.03;
const SERVED: f64 = 0.01;
/// It is seen at once if it waits so much, and at the second look if it waits less.
const WAITS_MUCH: f64 = 0.25;
/// Waits are smoothed: what a look showed counts so much.
const FRESH: f64 = 0.3;
/// The number is lowered by the busiest of so many looks.
const LOOKS: usize = 8;
/// Threads that keep fewer of themselves than this at one processor compute all the time; and from so many on they may
/// be in each other's way nevertheless.
const COMPUTES: f64 = 1.2;
const CROWD: usize = 4;
/// At rest the number is lowered, or fewer are tried, no more often than this.
const REST_S: f64 = 10.0;
/// Searches that found nothing make the next one wait longer, up to this.
const REST_MAX_S: f64 = 320.0;
/// A share of the processors that differs less from the last one is the same.
const OTHER_SHARE: f64 = 0.75;

/// What some time of a pass showed. Seconds without another word are the consumer's.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Seen {
    /// Batches that the consumer took.
    pub taken: u64,
    /// Seconds of its own work.
    pub own_s: f64,
    /// Seconds in which it waited for loader threads; not for a batch slot, which it holds itself.
    pub waited_s: f64,
    /// Batches that threads have finished.
    pub made: u64,
    /// Thread-seconds that went into these: reading, decoding, copying and deciding.
    pub worked_s: f64,
    /// The part of these on a processor and, where known, in wait of one; 0 where it cannot be measured.
    pub cpu_s: f64,
}

impl Seen {
    fn add(&mut self, more: Self) {
        self.taken += more.taken;
        self.own_s += more.own_s;
        self.waited_s += more.waited_s;
        self.made += more.made;
        self.worked_s += more.worked_s;
        self.cpu_s += more.cpu_s;
    }

    fn seconds(&self) -> f64 {
        self.own_s + self.waited_s
    }
}

reasons! {
    /// Why the number changed.
    Why {
        Waits: "the consumer waits";
        NoReserve: "threads have too little spare time";
        Enough: "fewer threads are enough";
        Tries: "fewer threads may bring as much";
        AsMuch: "fewer threads bring as much";
        Less: "fewer threads bring less";
        Shared: "other processes want the processors";
    }
}

/// Another number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// Threads until now.
    pub before: usize,
    /// Threads from now on.
    pub threads: usize,
    /// See there.
    pub why: Why,
}

/// A look, in what decisions are made of.
#[derive(Debug, Clone, Copy)]
struct Look {
    /// Batches a second that came and will go on coming: what the consumer took, but no more than threads make.
    rate: f64,
    /// Batches a second that threads can make.
    capacity: f64,
    /// Batches a second that the consumer would take.
    demand: f64,
    /// Threads that are needed for the demand without reserve.
    load: f64,
    /// Share of the consumer's time in which it waited.
    waits: f64,
    /// Threads that keep one processor busy.
    per_core: f64,
    /// Thread-seconds a batch.
    work_s: f64,
}

/// See the module's head.
#[derive(Debug)]
pub struct Crew {
    cores: usize,
    most: usize,
    threads: usize,
    /// Since the last look.
    seen: Seen,
    /// Batches still come that were begun by another number of threads.
    settling_s: f64,
    since_change_s: f64,
    /// Smoothed.
    waits: f64,
    /// Of the last looks.
    loads: VecDeque<f64>,
    /// With so many threads, and with that load, the consumer had waited.
    short: (usize, f64),
    curve: Curve,
    rest: Option<Rest>,
    /// The number at which a search began that is under way.
    search: Option<usize>,
    /// How long the next search for fewer waits.
    patience_s: f64,
    /// Threads that kept one processor busy at the last look.
    per_core: f64,
    /// The consumer waited then.
    waited: bool,
    /// The rank has fewer processors than before.
    cut: bool,
    last: Option<Change>,
}

impl Crew {
    /// For a rank that has `cores` processors. At most `most` threads, which is as many as there is memory for.
    pub fn new(cores: usize, most: usize) -> Self {
        let most = most.max(1);
        let cores = cores.clamp(1, most);
        Self {
            cores,
            most,
            threads: cores,
            seen: Seen::default(),
            settling_s: 0.0,
            since_change_s: f64::INFINITY,
            waits: 0.0,
            loads: VecDeque::new(),
            short: (0, 0.0),
            curve: Curve::default(),
            rest: Some(Rest::served()),
            search: None,
            patience_s: REST_S,
            per_core: 1.0,
            waited: true,
            cut: false,
            last: None,
        }
    }

    /// Threads that fill batches now.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// The last change.
    pub fn last(&self) -> Option<Change> {
        self.last
    }

    /// Processors that the threads need, a quarter in reserve: infinitely many while the consumer waits. By the last
    /// looks alone, since other ranks wait for what this one does not need.
    pub fn wanted(&self) -> f64 {
        let load = self.loads.iter().rev().take(2).copied().fold(0.0, f64::max);
        if self.waited { f64::INFINITY } else { SPARE * load / self.per_core }
    }

    /// The rank has this number of processors from now on. Small changes are passed over.
    pub fn share(&mut self, cores: f64) {
        if (cores - self.cores as f64).abs() < OTHER_SHARE {
            return;
        }
        let cores = (cores.round() as usize).clamp(1, self.most);
        if cores != self.cores {
            // What was known is of another time.
            self.cut |= cores < self.cores;
            (self.cores, self.curve, self.rest, self.patience_s) = (cores, Curve::default(), None, REST_S);
        }
    }

    /// Takes in what happened since the last call.
    pub fn follow(&mut self, seen: Seen) -> Option<Change> {
        let seconds = seen.seconds();
        // A clock that says nonsense says nothing.
        if !(seconds.is_finite() && seconds >= 0.0 && seen.worked_s.is_finite() && seen.cpu_s.is_finite()) {
            return None;
        }
        self.since_change_s += seconds;
        if self.settling_s > 0.0 {
            self.settling_s -= seconds;
            return None;
        }
        self.seen.add(seen);
        let look = self.look()?;
        let limit = self.limit(look);
        let cut = std::mem::take(&mut self.cut) && self.threads > limit;
        let (threads, why) = if cut { (limit, Why::Shared) } else { self.decide(look)? };
        let threads = threads.clamp(1, self.most);
        if threads == self.threads {
            return None;
        }
        let change = Change { before: self.threads, threads, why };
        self.settling_s = self.settling(look, threads);
        (self.threads, self.last, self.since_change_s) = (threads, Some(change), 0.0);
        Some(change)
    }

    /// Until the batches have come that were begun among as many as before, and those that were begun beside these.
    fn settling(&self, look: Look, threads: usize) -> f64 {
        let slower = (threads as f64 / self.threads as f64).max(1.0);
        (2.0 * look.work_s * slower).min(LOOK_MAX_S)
    }

    /// What was seen since the last look, if that is enough to judge by. The next one begins.
    fn look(&mut self) -> Option<Look> {
        let seen = self.seen;
        let seconds = seen.seconds();
        let enough = seen.made >= LOOK_BATCHES.max(self.threads as u64) || seconds >= LOOK_MAX_S;
        if seconds < LOOK_S || !enough || seen.made == 0 || seen.taken == 0 {
            return None;
        }
        self.seen = Seen::default();
        let work_s = seen.worked_s / seen.made as f64;
        if !(work_s > 0.0) {
            return None;
        }
        let capacity = self.threads as f64 / work_s;
        let demand = if seen.own_s > 0.0 { seen.taken as f64 / seen.own_s } else { f64::INFINITY };
        let waits = seen.waited_s / seconds;
        self.waits += FRESH * (waits - self.waits);
        let load = demand * work_s;
        if self.loads.len() == LOOKS {
            self.loads.pop_front();
        }
        self.loads.push_back(load);
        let per_core = if seen.cpu_s > 0.0 { (seen.worked_s / seen.cpu_s).max(1.0) } else { 1.0 };
        (self.per_core, self.waited) = (per_core, waits > WAITS);
        // Threads that never rest bring all they can, and times of work differ less than moments of arrival.
        let busy = seen.worked_s >= BUSY * self.threads as f64 * seconds;
        let rate = if busy { capacity } else { (seen.taken as f64 / seconds).min(capacity) };
        Some(Look { rate, capacity, demand, load, waits, per_core, work_s })
    }

    /// As many as keep the processors busy.
    fn limit(&self, look: Look) -> usize {
        ((self.cores as f64 * look.per_core) as usize).clamp(self.cores, self.most)
    }

    /// So many that the consumer need not wait, as far as is known.
    fn needed(&self, load: f64) -> usize {
        (SPARE * load).ceil().min(self.most as f64) as usize
    }

    /// The next number above the present one: at once as many as are needed and have a processor, then twice as many.
    fn more(&self, limit: usize, needed: usize) -> usize {
        needed.clamp(self.threads + 1, limit.min(self.cores.max(2 * self.threads)).max(self.threads + 1))
    }

    fn decide(&mut self, look: Look) -> Option<(usize, Why)> {
        let Some(mut rest) = self.rest.take() else { return self.seek(look) };
        let other = if rest.hungry {
            let moved = rest.moved(look, self.since_change_s >= self.patience_s);
            if moved && self.since_change_s < self.patience_s {
                // Far from what it was.
                (self.patience_s, self.since_change_s) = (REST_S, f64::INFINITY);
            }
            moved || self.waits < SERVED
        } else {
            let waits = self.waits > WAITS && look.waits > WAITS;
            if look.waits > WAITS_MUCH && self.patience_s <= REST_S {
                self.since_change_s = f64::INFINITY;
            }
            rest.is_short(waits || look.capacity < SHORT * look.demand) || look.waits > WAITS_MUCH
        };
        if !other {
            let change = if rest.hungry { None } else { self.fewer(look) };
            self.rest = Some(rest);
            return change;
        }
        // What was known is of another time, and of this look a part is.
        self.curve = Curve::default();
        if look.waits > SERVED && self.threads < self.cores {
            self.short = (self.threads, look.load);
            self.search = Some(self.threads);
            let needed = if look.waits > WAITS_MUCH { self.cores } else { self.needed(look.load) };
            return Some((self.more(self.cores, needed), Why::Waits));
        }
        self.settling_s = self.settling(look, self.threads);
        None
    }

    /// Nothing is settled: the number is raised, or fewer are tried, or it rests.
    fn seek(&mut self, look: Look) -> Option<(usize, Why)> {
        self.curve.learn(self.threads, look.rate);
        let (threads, limit) = (self.threads, self.limit(look));
        let needed = self.needed(look.load);
        if look.waits <= WAITS {
            // The consumer is served.
            self.search = None;
            if look.capacity < SHORT * look.demand && threads < limit {
                self.short = (threads, look.load);
                return Some((self.more(limit, needed), Why::NoReserve));
            }
            self.rest = Some(Rest::served());
            return self.fewer(look);
        }
        match self.curve.next(limit, self.more(limit, needed)) {
            Next::Raise(to) => {
                self.short = (threads, look.load);
                self.search.get_or_insert(threads);
                Some((to, Why::Waits))
            }
            Next::Try(to) if self.search.is_some() || self.may_try(look) => {
                self.search.get_or_insert(threads);
                Some((to, if to < threads { Why::Tries } else { Why::Less }))
            }
            Next::Try(_) => {
                self.rest = Some(Rest::hungry(look.rate));
                None
            }
            Next::Settle { at, rate } => {
                let in_vain = self.search.take() == Some(at);
                self.patience_s = if in_vain { (2.0 * self.patience_s).min(REST_MAX_S) } else { REST_S };
                self.rest = Some(Rest::hungry(rate));
                Some((at, if at < threads { Why::AsMuch } else { Why::Less }))
            }
        }
    }

    /// Whether to begin a search for fewer that bring as much. Not if there are enough, and the consumer waits now and
    /// then for a slow batch; and two or three that compute are in nobody's way.
    fn may_try(&self, look: Look) -> bool {
        let crowd = self.threads >= CROWD || look.per_core >= COMPUTES;
        self.since_change_s >= self.patience_s && look.capacity < look.demand && crowd
    }

    /// Of a consumer that is served: whether fewer have time enough.
    fn fewer(&mut self, look: Look) -> Option<(usize, Why)> {
        if self.loads.len() < LOOKS || self.since_change_s < REST_S || look.waits > WAITS {
            return None;
        }
        let load = self.loads.iter().copied().fold(0.0, f64::max);
        if load < self.short.1 / SPARE {
            // It needs less than it did when so many were too few.
            self.short = (0, 0.0);
        }
        let to = self.needed(load).max(self.short.0 + 1);
        (to as f64 <= LOWER * self.threads as f64).then_some((to, Why::Enough))
    }
}
