//! A source with a tier before it: what the tier has comes from there, the rest is fetched and offered to it.
//!
//! All that tiers have in common is here: who is asked for which positions, that each is answered once, the circuit
//! that leaves out a tier which costs more than it brings, and what a fetch costs. A tier itself is five methods.
//!
//! Lock: guards the circuit breaker; held when a call begins or ends, never across I/O.

use std::cell::Cell;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use lossfeed_disk::Whose;
use lossfeed_sync::Mutex;

use crate::error::Result;
use crate::process::Process;
use crate::sample::{CircuitNumbers, Counted, Facts, LimitBy, Link, Listeners, News, Payload, Size, Source, Traffic};
use crate::tune::circuit::{Change, Circuit, Leave, Outcome, PROBE_SAMPLES, State, Why};
use crate::tune::decided::Knob;
use crate::tune::fetch_plan::{Ask, Plan};
use crate::types::SampleId;
use crate::wrap::tier::{Tier, TierNumbers};

/// The fetch of a sample that came while the dataset was opened would have taken a request: this long at least.
const REQUEST: Duration = Duration::from_millis(1);

/// See the module's head.
pub(crate) struct Tiered<T> {
    source: Arc<dyn Source>,
    tier: T,
    circuit: Mutex<Circuit>,
    begun: Instant,
    opened: AtomicU64,
    why: AtomicU64,
    skipped: AtomicU64,
    listeners: Listeners,
    made_by: Process,
    /// Time that a test has let pass.
    #[cfg(test)]
    turned_us: AtomicU64,
}

/// A call of the tier; however it ends, the circuit is told.
struct Call<'a, T: Tier> {
    tiered: &'a Tiered<T>,
    leave: Leave,
    outcome: Outcome,
}

impl<T: Tier> Drop for Call<'_, T> {
    fn drop(&mut self) {
        let tiered = self.tiered;
        let (recorded, now_us) = (tiered.tier.fetched_in_us(), tiered.now_us());
        let mut circuit = tiered.circuit.lock();
        circuit.recorded(recorded);
        let change = circuit.told(self.leave, self.outcome, now_us);
        drop(circuit);
        if let Some(change) = change {
            tiered.note(change);
        }
    }
}

impl<T: Tier> Tiered<T> {
    /// `alone_us`: what the source took for a sample when the tier's were kept.
    pub(crate) fn new(source: Arc<dyn Source>, tier: T, alone_us: Option<f64>) -> Self {
        Self {
            source,
            tier,
            circuit: Mutex::new(Circuit::new(alone_us)),
            begun: Instant::now(),
            opened: AtomicU64::new(0),
            why: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
            listeners: Listeners::default(),
            made_by: Process::current(),
            #[cfg(test)]
            turned_us: AtomicU64::new(0),
        }
    }

    /// The tier does not work from the start: its circuit begins open.
    #[cfg(feature = "cloud")]
    pub(crate) fn begin_open(&self) {
        let failed = Outcome { failures: u64::MAX, ..Outcome::default() };
        if let Some(change) = self.circuit.lock().told(Leave::All, failed, self.now_us()) {
            self.why.store(change.why.code(), Relaxed);
            self.opened.fetch_add(1, Relaxed);
        }
    }

    fn own_circuit(&self) -> CircuitNumbers {
        let of = |number: &AtomicU64| number.load(Relaxed);
        let (opened, why, skipped) = (of(&self.opened), of(&self.why), of(&self.skipped));
        CircuitNumbers { state: self.state(), opened, why, skipped }
    }

    /// The tier alone.
    #[cfg(test)]
    pub(crate) fn into_tier(self) -> T {
        self.tier
    }

    /// So much time passes.
    #[cfg(test)]
    pub(crate) fn turn(&self, us: u64) {
        self.turned_us.fetch_add(us, Relaxed);
    }

    fn now_us(&self) -> u64 {
        let now_us = self.begun.elapsed().as_micros() as u64;
        #[cfg(test)]
        let now_us = now_us + self.turned_us.load(Relaxed);
        now_us
    }

    fn state(&self) -> State {
        self.circuit.lock().state(self.now_us())
    }

    fn note(&self, change: Change) {
        let (tier, knob) = (self.tier.name(), self.tier.counted().knob());
        self.why.store(change.why.code(), Relaxed);
        let pause_s = change.again_us.saturating_sub(self.now_us()) / 1_000_000;
        match (change.now, change.why) {
            (State::Open, why) => {
                self.opened.fetch_add(1, Relaxed);
                if why == Why::NoBetter {
                    tracing::debug!(%why, "{tier} is skipped for {pause_s} s");
                } else {
                    tracing::warn!(
                        %why,
                        "{tier} is skipped for {pause_s} s and samples are fetched from the source meanwhile: check \
                         its {}",
                        match knob {
                            Knob::Disk => "disk",
                            Knob::Node => "owner (`lossfeed node ls`)",
                            _ => "server",
                        }
                    );
                }
            }
            (_, why) => tracing::info!(%why, "{tier} is used again"),
        }
        self.listeners.tell(change.of(knob));
    }

    fn target(&self, id: SampleId) -> Option<&[u8]> {
        match self.source.labels() {
            Some(labels) => labels.get(id as usize).map(bytemuck::bytes_of),
            None => Some(&[0]),
        }
    }

    /// Positions of `ids` that the source is asked for, and these ids.
    fn absent(&self, ids: &[SampleId]) -> (Vec<usize>, Vec<SampleId>) {
        let asked = self.made_by.is_current() && self.state() == State::Closed;
        ids.iter().enumerate().filter(|&(_, &id)| !asked || !self.tier.has(id)).map(|(k, &id)| (k, id)).unzip()
    }

    /// Answers from the tier what it has of the positions `open`, ascending. What is left of them.
    fn ask_tier(
        &self,
        stopped: &dyn Fn() -> bool,
        ids: &[SampleId],
        open: &[usize],
        sink: &mut dyn FnMut(usize, Result<Payload<'_>>) -> ControlFlow<()>,
    ) -> ControlFlow<(), Vec<usize>> {
        let (leave, compares) = {
            let mut circuit = self.circuit.lock();
            let leave = circuit.ask(self.now_us());
            (leave, leave == Leave::All && circuit.compares())
        };
        let mut call = Call { tiered: self, leave, outcome: Outcome::default() };
        let mut answered = vec![false; ids.len()];
        let asked: Vec<usize> = match leave {
            Leave::All => open.get(if compares { PROBE_SAMPLES } else { 0 }..).unwrap_or_default().to_vec(),
            Leave::Probe => {
                let there = |&k: &usize| ids.get(k).is_some_and(|&id| self.tier.may_have(id));
                open.iter().copied().filter(there).take(PROBE_SAMPLES).collect()
            }
            Leave::Nothing => Vec::new(),
        };
        if leave != Leave::All {
            self.skipped.fetch_add((open.len() - asked.len()) as u64, Relaxed);
        }
        let mut flow = ControlFlow::Continue(());
        if !asked.is_empty() {
            let wanted: Vec<SampleId> = asked.iter().filter_map(|&k| ids.get(k).copied()).collect();
            let patience = |samples: usize| Duration::from_micros(self.circuit.lock().patience_us(leave, samples));
            call.outcome = self.tier.read(&wanted, &patience, stopped, &mut |at, data| {
                let (Some(&k), Some(&id)) = (asked.get(at), wanted.get(at)) else { return flow };
                let (Some(done), Some(target)) = (answered.get_mut(k), self.target(id)) else { return flow };
                // Whatever a tier says twice, late or in another length is not heard.
                if flow.is_break() || *done || data.len() as u64 != self.source.payload_bytes(id) {
                    return flow;
                }
                *done = true;
                flow = sink(k, Ok(Payload { data, target, near: true }));
                flow
            });
        }
        drop(call);
        flow?;
        ControlFlow::Continue(open.iter().copied().filter(|&k| answered.get(k) == Some(&false)).collect())
    }

    /// Answers the positions `left`, each fetched once among all processes that share the tier: fetches those that no
    /// other process is fetching, then waits for the others.
    fn ask_all(
        &self,
        request_bytes: u64,
        stopped: &dyn Fn() -> bool,
        ids: &[SampleId],
        mut left: Vec<usize>,
        sink: &mut dyn FnMut(usize, Result<Payload<'_>>) -> ControlFlow<()>,
    ) -> Traffic {
        let mut traffic = Traffic::default();
        let flow = Cell::new(ControlFlow::Continue(()));
        let mut sink = |k: usize, answer: Result<Payload<'_>>| {
            flow.set(sink(k, answer));
            flow.get()
        };
        let mut flight = if self.state() == State::Closed { self.tier.flight() } else { None };
        while !left.is_empty() {
            let wanted: Vec<SampleId> = left.iter().filter_map(|&k| ids.get(k).copied()).collect();
            let whose = flight.as_mut().map(|flight| self.tier.claim(flight, &wanted, stopped)).unwrap_or_default();
            if flight.is_some() && stopped() {
                break;
            }
            let of = |who: Whose| {
                let whose = whose.iter().copied().chain(std::iter::repeat(Whose::Ours));
                left.iter().zip(whose).filter(move |(_, w)| *w == who).map(|(&k, _)| k).collect::<Vec<usize>>()
            };
            let (mut ours, there, theirs) = (of(Whose::Ours), of(Whose::There), of(Whose::Theirs));
            if !there.is_empty() {
                match self.ask_tier(stopped, ids, &there, &mut sink) {
                    // What cannot be read is fetched.
                    ControlFlow::Continue(rest) => ours.extend(rest),
                    ControlFlow::Break(()) => break,
                }
                ours.sort_unstable();
            }
            if !ours.is_empty() {
                traffic += self.ask_source(request_bytes, stopped, ids, &ours, flight.as_mut(), &mut sink);
            }
            left = theirs;
            if flow.get().is_break() {
                break;
            }
        }
        traffic
    }

    /// Fetches the positions that are left, and offers what comes to the tier.
    fn ask_source(
        &self,
        request_bytes: u64,
        stopped: &dyn Fn() -> bool,
        ids: &[SampleId],
        left: &[usize],
        mut flight: Option<&mut T::Flight>,
        sink: &mut dyn FnMut(usize, Result<Payload<'_>>) -> ControlFlow<()>,
    ) -> Traffic {
        let wanted: Vec<SampleId> = left.iter().filter_map(|&k| ids.get(k).copied()).collect();
        // What the circuit leaves out is not written to either, until it is tried: it might have nothing to be tried
        // by.
        let keeps = self.state() != State::Open;
        // What the source made this thread wait for an answer so far: what a fetch of it costs.
        let (mut waited, mut answers, mut since) = (Duration::ZERO, 0, Instant::now());
        let traffic = self.source.fetch_by(request_bytes, stopped, &wanted, &mut |at, answer| {
            let near = answer.as_ref().is_ok_and(|payload| payload.near);
            if !near {
                (waited, answers) = (waited + since.elapsed(), answers + 1);
            }
            let (Some(&k), Some(&id)) = (left.get(at), wanted.get(at)) else { return ControlFlow::Continue(()) };
            if let Ok(payload) = &answer
                && keeps
                && payload.data.len() as u64 == self.source.payload_bytes(id)
            {
                let cost = if near { REQUEST } else { waited / answers };
                self.tier.offer(flight.as_deref_mut(), id, cost, payload.data);
            }
            let going = sink(k, answer);
            since = Instant::now();
            going
        });
        self.circuit.lock().source_took(u64::from(answers), waited.as_micros() as u64);
        traffic
    }
}

#[deny(clippy::missing_trait_methods)] // what is left out falls back to a default, silently
impl<T: Tier> Source for Tiered<T> {
    fn facts(&self) -> &Facts {
        self.source.facts()
    }
    fn name(&self, id: SampleId) -> String {
        self.source.name(id)
    }
    fn size(&self, id: SampleId) -> Size {
        self.source.size(id)
    }
    fn labels(&self) -> Option<&[i64]> {
        self.source.labels()
    }
    fn remember(&self, id: SampleId, payload_bytes: u32, tail_bytes: u32) {
        self.source.remember(id, payload_bytes, tail_bytes);
    }
    /// Taken apart it would lose its tier.
    fn parts(&self) -> Option<&[Arc<dyn Source>]> {
        None
    }
    fn digest(&self) -> String {
        self.source.digest()
    }
    fn proof(&self, id: SampleId) -> Option<[u8; 16]> {
        self.source.proof(id)
    }
    fn counted(&self) -> Counted {
        let inner = self.source.counted();
        match self.tier.counted() {
            TierNumbers::Disk(numbers) => Counted { disk: Some((numbers, self.own_circuit())), ..inner },
            TierNumbers::Pool(numbers) => Counted { pool: Some((numbers, self.own_circuit())), ..inner },
            TierNumbers::Node(numbers) => Counted { node: Some((numbers, self.own_circuit())), ..inner },
        }
    }
    fn link(&self) -> Link {
        self.source.link()
    }
    fn limit(&self, bytes_per_s: Option<u64>, by: LimitBy) -> bool {
        self.source.limit(bytes_per_s, by)
    }
    fn tell(&self, news: News<'_>) {
        match news {
            News::Listener(decisions) => self.listeners.add(decisions),
            // A child that was forked has no tier.
            _ if !self.made_by.is_current() => {}
            News::Room(_) => {}
            News::Doubtful(ids) => self.tier.forget(ids),
            News::Importances(run, importances) => self.tier.rate(run, importances),
        }
        self.source.tell(news);
    }
    fn is_near(&self, id: SampleId) -> bool {
        let near = || self.tier.is_near(id) && self.made_by.is_current() && self.state() == State::Closed;
        self.source.is_near(id) || near()
    }
    fn along(&self, ids: &[SampleId], first: usize, request_bytes: u64) -> Vec<usize> {
        // What the tier has needs no request and brings nobody along.
        let (absent, inner) = self.absent(ids);
        let inner_first = absent.partition_point(|&k| k < first);
        let along = self.source.along(&inner, inner_first, request_bytes);
        along.into_iter().filter_map(|at| absent.get(at).copied()).collect()
    }
    /// Samples that the tier has are asked for when they are urgent.
    fn plan(&self, ids: &[SampleId], call: Ask) -> Option<Plan> {
        let (absent, inner) = self.absent(ids);
        let before = |all: usize| absent.partition_point(|&k| k < all);
        let inner_call = Ask { first: before(call.first), urgent: before(call.urgent), ..call };
        let mut plan = self.source.plan(&inner, inner_call)?;
        let mut asked: Vec<bool> = (0..ids.len()).map(|k| k < call.urgent).collect();
        absent.iter().for_each(|&k| asked[k] = false);
        plan.samples.iter().filter_map(|&at| absent.get(at)).for_each(|&k| asked[k] = true);
        plan.samples = (0..ids.len()).filter(|&k| asked[k]).collect();
        Some(plan)
    }
    fn fetch_by(
        &self,
        request_bytes: u64,
        stopped: &dyn Fn() -> bool,
        ids: &[SampleId],
        sink: &mut dyn FnMut(usize, Result<Payload<'_>>) -> ControlFlow<()>,
    ) -> Traffic {
        if stopped() {
            return Traffic::default();
        }
        if !self.made_by.is_current() {
            // The tier's threads and locks are the parent's.
            return self.source.fetch_by(request_bytes, stopped, ids, sink);
        }
        let all: Vec<usize> = (0..ids.len()).collect();
        match self.ask_tier(stopped, ids, &all, sink) {
            ControlFlow::Continue(left) => self.ask_all(request_bytes, stopped, ids, left, sink),
            ControlFlow::Break(()) => Traffic::default(),
        }
    }
}
