//! Loader threads and a consumer on a clock turned by hand: processors, a link, and who waits for whom.
//!
//! Exactly:
//! 1. A batch waits `latency_s`, then its bytes cross the link, which all batches in transfer share alike, then it is
//!    decoded. Decoding threads and the consumer's own share the processors alike.
//! 2. Threads may be in each other's way: each of r that decode at once on a processor is slower by 1 + r (r − 1) `crowd`, in the form of Gunther's
//!    universal law of scalability without contention.
//! 3. Batches are taken in order. A thread begins one only if fewer than `window` are begun and not taken.
//! 4. The consumer's step takes `step_s` if it has the processors it computes on, and longer if it shares them.
//! 5. Of a batch of 64 samples each takes `slow` times as long as others with chance 1 %, by its number alone.

use super::Seen;

/// What a run is like for a while.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Profile {
    pub(super) name: &'static str,
    pub(super) cores: usize,
    pub(super) step_s: f64,
    /// Processors that the step computes on; 0 on a GPU.
    pub(super) step_cores: f64,
    pub(super) latency_s: f64,
    pub(super) transfer_s: f64,
    pub(super) decode_s: f64,
    pub(super) crowd: f64,
    pub(super) slow: f64,
}

/// The rule that is tried.
pub(super) trait Tuner {
    fn threads(&self) -> usize;
    /// A batch was finished, after so many seconds of a thread.
    fn finished(&mut self, _work_s: f64) {}
    /// The consumer took a batch at `now`, and its step takes `step_s`. `seen`: since the last one.
    fn took(&mut self, now: f64, step_s: f64, seen: Seen);
}

/// Always as many.
pub(super) struct Fixed(pub(super) usize);

impl Tuner for Fixed {
    fn threads(&self) -> usize {
        self.0
    }
    fn took(&mut self, _: f64, _: f64, _: Seen) {}
}

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Idle,
    Latency,
    Transfer,
    Decode,
}

#[derive(Clone, Copy)]
struct Thread {
    phase: Phase,
    left: f64,
    batch: usize,
    since: f64,
    cpu_s: f64,
}

/// See the module's head.
pub(super) struct Model {
    pub(super) now: f64,
    threads: Vec<Thread>,
    begun: usize,
    /// Finished and not taken, by number.
    ready: std::collections::BTreeSet<usize>,
    pub(super) taken: usize,
    /// Of the step under way; `None`: the consumer waits.
    step: Option<f64>,
    step_began: f64,
    seen: Seen,
    waits_since: f64,
    seed: u64,
}

/// A number from 0 to 1 that depends on two others alone.
fn chance(seed: u64, at: u64) -> f64 {
    let mut x = seed ^ at.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for _ in 0..2 {
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^= x >> 31;
    }
    (x >> 11) as f64 / (1u64 << 53) as f64
}

const SAMPLES: u64 = 64;

impl Model {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            now: 0.0,
            threads: Vec::new(),
            begun: 0,
            ready: std::collections::BTreeSet::new(),
            taken: 0,
            step: None,
            step_began: 0.0,
            seen: Seen::default(),
            waits_since: 0.0,
            seed,
        }
    }

    /// How much longer than the mean a batch takes: a twentieth more or less, as means over 64 samples do, and by its slow samples.
    fn factor(&self, profile: Profile, batch: usize) -> f64 {
        let batch = batch as u64;
        let spread = 0.95 + 0.1 * chance(self.seed, batch);
        let is_slow = |k: &u64| chance(self.seed ^ 0x51, batch * SAMPLES + k) < 0.01;
        let slow = if profile.slow > 1.0 { (0..SAMPLES).filter(is_slow).count() as f64 } else { 0.0 };
        spread * (1.0 + slow * (profile.slow - 1.0) / SAMPLES as f64)
    }

    fn next_phase(&self, profile: Profile, batch: usize, after: Phase) -> (Phase, f64) {
        let factor = self.factor(profile, batch);
        let all = [
            (Phase::Latency, profile.latency_s * factor),
            (Phase::Transfer, profile.transfer_s),
            (Phase::Decode, profile.decode_s * factor),
        ];
        let from = match after {
            Phase::Idle => 0,
            Phase::Latency => 1,
            Phase::Transfer => 2,
            Phase::Decode => 3,
        };
        all[from..].iter().copied().find(|&(_, left)| left > 0.0).unwrap_or((Phase::Idle, 0.0))
    }

    /// Batches that are taken within `seconds`.
    pub(super) fn run(&mut self, profile: Profile, seconds: f64, tuner: &mut dyn Tuner) -> usize {
        let (end, before) = (self.now + seconds, self.taken);
        while self.now < end {
            self.begin(profile, tuner);
            self.advance(profile, end, tuner);
        }
        self.taken - before
    }

    /// Whoever is free begins, the consumer too.
    fn begin(&mut self, profile: Profile, tuner: &mut dyn Tuner) {
        if self.step.is_none() && self.ready.remove(&self.taken) {
            self.taken += 1;
            self.seen.taken += 1;
            self.seen.waited_s += self.now - self.waits_since;
            if self.taken == 1 {
                // As in the engine: everybody waits for the first batch, however many threads there are.
                self.seen = Seen::default();
            }
            tuner.took(self.now, self.now - self.step_began, std::mem::take(&mut self.seen));
            (self.step, self.step_began) = (Some(profile.step_s), self.now);
        }
        let threads = tuner.threads();
        let window = (3 * profile.cores + 1).max(2 * threads + 1);
        while self.threads.len() < threads {
            self.threads.push(Thread { phase: Phase::Idle, left: 0.0, batch: 0, since: 0.0, cpu_s: 0.0 });
        }
        for k in 0..threads {
            if self.threads[k].phase == Phase::Idle && self.begun - self.taken < window {
                let (phase, left) = self.next_phase(profile, self.begun, Phase::Idle);
                self.threads[k] = Thread { phase, left, batch: self.begun, since: self.now, cpu_s: 0.0 };
                self.begun += 1;
            }
        }
    }

    /// To the next moment in which something ends.
    fn advance(&mut self, profile: Profile, end: f64, tuner: &mut dyn Tuner) {
        let of = |phase| self.threads.iter().filter(|thread| thread.phase == phase).count() as f64;
        let (transfers, decodes) = (of(Phase::Transfer), of(Phase::Decode));
        let computing = decodes + if self.step.is_some() { profile.step_cores } else { 0.0 };
        let share = (profile.cores as f64 / computing.max(1.0)).min(1.0);
        let running = decodes.min(profile.cores as f64);
        let decode = share / (1.0 + profile.crowd * running * (running - 1.0).max(0.0));
        let step = if profile.step_cores > 0.0 { share } else { 1.0 };
        let speed = |phase| match phase {
            Phase::Idle => 0.0,
            Phase::Latency => 1.0,
            Phase::Transfer => 1.0 / transfers,
            Phase::Decode => decode,
        };
        let working = || self.threads.iter().filter(|thread| thread.phase != Phase::Idle);
        let ends = working().map(|t| t.left / speed(t.phase)).chain(self.step.map(|left| left / step));
        let dt = ends.fold(end - self.now, f64::min).max(0.0);
        self.now += dt;
        for k in 0..self.threads.len() {
            let thread = &mut self.threads[k];
            if thread.phase == Phase::Idle {
                continue;
            }
            thread.left -= dt * speed(thread.phase);
            if thread.phase == Phase::Decode {
                thread.cpu_s += dt * share;
            }
            if thread.left > 1e-9 {
                continue;
            }
            let (batch, after) = (thread.batch, thread.phase);
            let (phase, left) = self.next_phase(profile, batch, after);
            let thread = &mut self.threads[k];
            (thread.phase, thread.left) = (phase, left);
            if phase == Phase::Idle {
                let work_s = self.now - thread.since;
                self.seen.made += 1;
                self.seen.worked_s += work_s;
                self.seen.cpu_s += thread.cpu_s;
                self.ready.insert(batch);
                tuner.finished(work_s);
            }
        }
        if let Some(left) = self.step.as_mut() {
            *left -= dt * step;
            if *left <= 1e-9 {
                self.seen.own_s += self.now - self.step_began;
                (self.step, self.waits_since) = (None, self.now);
            }
        }
    }
}
