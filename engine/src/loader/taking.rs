//! What a batch takes of what was read ahead, and how it comes to the rest.

use super::look;
use super::read_ahead::ReadAhead;
use crate::error::Result;
use crate::source::{Payload, Source, Traffic};
use crate::types::SampleId;
use std::cell::Cell;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// How long a batch waits for what is under way before it looks whether anybody still wants it.
const PATIENCE: Duration = Duration::from_millis(50);
/// So many times it looks whether the prefetch threads have begun.
const STARTS: usize = 20;

/// What a batch found of what it needs, by its own positions.
#[derive(Default)]
struct Taken {
    /// How many had come.
    landed: u64,
    /// Of these, those that had stayed for this pass.
    repeated: Traffic,
    under_way: Vec<usize>,
    /// Those that nobody asked for, or that did not come.
    absent: Vec<usize>,
}

impl ReadAhead {
    /// As [`Source::fetch_by`] for the samples of a batch: from what was read ahead, and from `source` what was
    /// not.
    pub(super) fn fetch_unless(
        &self,
        source: &dyn Source,
        stopped: &dyn Fn() -> bool,
        ids: &[SampleId],
        sink: &mut dyn FnMut(usize, Result<Payload<'_>>) -> ControlFlow<()>,
    ) -> Traffic {
        let traffic = Cell::new(Traffic::default());
        let add = |more: Traffic| {
            let mut sum = traffic.get();
            sum += more;
            traffic.set(sum);
        };
        if !self.is_on() {
            return self.ask(source, stopped, ids, sink);
        }
        let ControlFlow::Continue(at_first) = self.take((0..ids.len()).collect(), ids, sink) else {
            return traffic.get();
        };
        self.counters.read_ahead_samples_total.fetch_add(at_first.landed, Relaxed);
        add(at_first.repeated);
        // First, so that they are under way too while the others are waited for.
        let mut broken = false;
        let mut ask = |absent: &[usize], sink: &mut dyn FnMut(usize, Result<Payload<'_>>) -> ControlFlow<()>| {
            if absent.is_empty() {
                return false;
            }
            let wanted: Vec<SampleId> = absent.iter().filter_map(|&k| ids.get(k).copied()).collect();
            add(self.ask(source, stopped, &wanted, &mut |at, payload| {
                let going = absent.get(at).map_or(ControlFlow::Continue(()), |&k| sink(k, payload));
                broken |= going.is_break();
                going
            }));
            broken
        };
        if ask(&at_first.absent, sink) {
            return traffic.get();
        }
        let (mut under_way, mut missed) = (at_first.under_way, Vec::new());
        while !under_way.is_empty() {
            if stopped() {
                return traffic.get();
            }
            self.wait(&under_way, ids);
            let ControlFlow::Continue(taken) = self.take(under_way, ids, sink) else { return traffic.get() };
            self.counters.read_ahead_late_total.fetch_add(taken.landed, Relaxed);
            add(taken.repeated);
            missed.extend(taken.absent);
            under_way = taken.under_way;
        }
        ask(&missed, sink);
        traffic.get()
    }

    /// Asks for samples of a batch that were not read ahead. Of files, on this thread while reads are quick, and by
    /// several beside each other once they are slow.
    fn ask(
        &self,
        source: &dyn Source,
        stopped: &dyn Fn() -> bool,
        ids: &[SampleId],
        sink: &mut dyn FnMut(usize, Result<Payload<'_>>) -> ControlFlow<()>,
    ) -> Traffic {
        let Some(readers) = &self.readers else { return source.fetch_by(u64::MAX, stopped, ids, sink) };
        let target_bytes = self.target_bytes as usize;
        if readers.read() {
            return match readers.is_quick() {
                true => source.fetch_by(u64::MAX, stopped, ids, sink),
                false => readers.fetch(source, target_bytes, stopped, ids, sink),
            };
        }
        let judge = |reads, cost_s| {
            if let Some(decided) = readers.judged(reads, cost_s) {
                self.turned(readers, decided);
            }
            readers.read()
        };
        let (mut traffic, left) = readers.fetch_while_quick(source, &judge, stopped, ids, sink);
        if !left.is_empty() {
            let wanted: Vec<SampleId> = left.iter().filter_map(|&k| ids.get(k).copied()).collect();
            traffic += readers.fetch(source, target_bytes, stopped, &wanted, &mut |at, payload| {
                left.get(at).map_or(ControlFlow::Continue(()), |&k| sink(k, payload))
            });
        }
        traffic
    }

    /// Hands what has come of the positions `wanted` to `sink`.
    fn take(
        &self,
        wanted: Vec<usize>,
        ids: &[SampleId],
        sink: &mut dyn FnMut(usize, Result<Payload<'_>>) -> ControlFlow<()>,
    ) -> ControlFlow<(), Taken> {
        let (mut here, mut taken, mut free_bytes) = (Vec::new(), Taken::default(), 0);
        {
            let mut window = self.window.lock();
            for k in wanted {
                match ids.get(k).map_or(look::Taken::Nothing, |&id| window.take(id)) {
                    look::Taken::Landed { landed, stays, used } => {
                        free_bytes += if stays { 0 } else { landed.len() as u64 };
                        if used {
                            taken.repeated.repeated_samples += 1;
                            taken.repeated.repeated_bytes += (landed.len() as u64).saturating_sub(self.target_bytes);
                        }
                        here.push((k, landed));
                    }
                    look::Taken::UnderWay => taken.under_way.push(k),
                    look::Taken::Nothing => taken.absent.push(k),
                }
            }
        }
        taken.landed = here.len() as u64;
        let mut going = ControlFlow::Continue(());
        for (k, landed) in here {
            let data = landed.len().saturating_sub(self.target_bytes as usize);
            let (data, target) = landed.split_at(data);
            going = sink(k, Ok(Payload { data, target, near: true }));
            if going.is_break() {
                break;
            }
        }
        if taken.landed > 0 {
            let mut window = self.window.lock();
            window.give_back(free_bytes);
            drop(window);
            self.room.notify_all();
        }
        going?;
        ControlFlow::Continue(taken)
    }

    /// Waits until the pass is planned, or over: at most a second, whatever the prefetch threads do. Before a batch is
    /// decided, so that its samples are in the plan. The `first` batch waits until its own samples are asked for.
    pub(super) fn wait_for_start(&self, first: bool, stopped: &dyn Fn() -> bool) {
        if !self.is_on() {
            return;
        }
        for _ in 0..STARTS {
            {
                let mut window = self.window.lock();
                if !window.awaits(first) {
                    return;
                }
                self.landed.wait_for(&mut window, PATIENCE);
            }
            if stopped() {
                return;
            }
        }
        self.window.lock().start();
    }

    /// Until one of the positions `under_way` has come or will not, or for a moment.
    fn wait(&self, under_way: &[usize], ids: &[SampleId]) {
        let mut window = self.window.lock();
        let is_there = |k: &usize| ids.get(*k).is_none_or(|&id| !window.is_under_way(id));
        if !under_way.iter().any(is_there) {
            let (short, began) = (window.is_short(), Instant::now());
            self.landed.wait_for(&mut window, PATIENCE);
            if short {
                self.short_us.fetch_add(began.elapsed().as_micros() as u64, Relaxed);
            }
        }
    }
}
