//! Other rules for the number of threads, as their authors have them.

use super::Seen;
use super::model_tests::Tuner;
use crate::jobs::{Loading, workers};

/// tf.data's hill climb (tensorflow/core/framework/model.cc: `OptimizeHillClimb`, `AsyncRatio::OutputTimeLocked`,
/// `ComputeWaitTime`) over the pipeline that a loader thread stands for: a parallel map, and a prefetch behind it.
///
/// Both knobs go to their minimum, then the one goes up by 1 that lowers the output time most, the buffer only for more
/// than a nanosecond, until the output time is below the processing time divided by the processors, or all are at their
/// maximum, or nothing helps. Rounds come after 10 ms, then twice as late each time, up to a minute. The time that the
/// consumer takes is given as 0, as there. Processing times are means since the start.
pub(super) struct HillClimb {
    cores: usize,
    threads: usize,
    next_s: f64,
    period_s: f64,
    worked_s: f64,
    made: f64,
}

const PERIOD_MIN_S: f64 = 0.01;
const PERIOD_MAX_S: f64 = 60.0;
const BUFFER_MAX: f64 = 512.0;
/// In nanoseconds, as all times there.
const BUFFER_LEAST_GAIN: f64 = 1.0;

impl HillClimb {
    pub(super) fn new(cores: usize) -> Self {
        Self { cores, threads: 1, next_s: PERIOD_MIN_S, period_s: PERIOD_MIN_S, worked_s: 0.0, made: 0.0 }
    }

    fn climb(&self, work_ns: f64) -> usize {
        let (most, mut threads, mut buffer) = (self.cores as f64, 1.0, 0.0);
        let output = |threads: f64, buffer: f64| {
            // The map's input is in memory: it is always there, and the map never waits for it.
            let map = work_ns / threads + wait_ns(0.0, 0.0, threads);
            wait_ns(map, 0.0, buffer)
        };
        loop {
            let now = output(threads, buffer);
            if now < work_ns / most || (threads >= most && buffer >= BUFFER_MAX) {
                break;
            }
            let by_thread = if threads < most { Some(now - output(threads + 1.0, buffer)) } else { None };
            let by_buffer = if buffer < BUFFER_MAX { Some(now - output(threads, buffer + 1.0)) } else { None };
            let by_buffer = by_buffer.filter(|&gain| gain > BUFFER_LEAST_GAIN);
            match (by_thread, by_buffer) {
                (Some(a), Some(b)) if b > a => buffer += 1.0,
                (Some(_), _) => threads += 1.0,
                (None, Some(_)) => buffer += 1.0,
                (None, None) => break,
            }
        }
        threads as usize
    }
}

/// The wait for a buffer of `n` places whose producer takes `producer` for an element and whose consumer `consumer`.
fn wait_ns(producer: f64, consumer: f64, n: f64) -> f64 {
    if producer == 0.0 {
        return 0.0;
    }
    if consumer == 0.0 {
        return producer;
    }
    let empty = if consumer == producer {
        1.0 / (n + 1.0)
    } else {
        let ratio = consumer / producer;
        (1.0 - ratio) / (1.0 - ratio.powf(n + 1.0))
    };
    empty * producer
}

impl Tuner for HillClimb {
    fn threads(&self) -> usize {
        self.threads
    }
    fn finished(&mut self, work_s: f64) {
        self.worked_s += work_s;
        self.made += 1.0;
    }
    fn took(&mut self, now: f64, _: f64, _: Seen) {
        while now >= self.next_s {
            self.period_s = (2.0 * self.period_s).min(PERIOD_MAX_S);
            self.next_s += self.period_s;
            if self.made > 0.0 {
                self.threads = self.climb(1e9 * self.worked_s / self.made);
            }
        }
    }
}

/// DLCache's rule (`jobs::workers`), asked as its loader asks it: it begins with all processors, and asks at every
/// second batch, of the times since its lists were emptied, which they are when they hold two a worker. Memory is no
/// limit.
pub(super) struct DlCache {
    cores: usize,
    threads: usize,
    fetch_s: Vec<f64>,
    request_s: Vec<f64>,
    batches: u64,
}

impl DlCache {
    pub(super) fn new(cores: usize) -> Self {
        Self { cores, threads: cores, fetch_s: Vec::new(), request_s: Vec::new(), batches: 0 }
    }

    fn note(list: &mut Vec<f64>, most: usize, value: f64) {
        if list.len() >= most {
            list.clear();
        }
        list.push(value);
    }
}

impl Tuner for DlCache {
    fn threads(&self) -> usize {
        self.threads
    }
    fn finished(&mut self, work_s: f64) {
        Self::note(&mut self.fetch_s, 2 * self.threads, work_s);
    }
    fn took(&mut self, _: f64, _: f64, seen: Seen) {
        self.batches += 1;
        if self.batches > 1 {
            Self::note(&mut self.request_s, 2 * self.threads, seen.own_s);
        }
        if self.batches.is_multiple_of(2) {
            let loading = Loading {
                fetch_s: &self.fetch_s,
                request_s: &self.request_s,
                workers: self.threads as u32,
                cores: self.cores as u32,
                memory: 0.0,
                memory_max: 1.0,
            };
            self.threads = workers(&loading).unwrap() as usize;
        }
    }
}

#[test]
fn the_climb_takes_as_many_as_there_are_processors_and_prefers_the_map() {
    assert_eq!(HillClimb::new(8).climb(1e6), 8);
    assert_eq!(HillClimb::new(1).climb(1e6), 1);
    // By hand: a ratio of a half and one place leave the buffer empty for two thirds of the time.
    assert!((wait_ns(2.0, 1.0, 1.0) - 2.0 * 2.0 / 3.0).abs() < 1e-12);
    assert_eq!((wait_ns(2.0, 2.0, 3.0), wait_ns(0.0, 1.0, 1.0), wait_ns(5.0, 0.0, 9.0)), (0.5, 0.0, 5.0));
}
