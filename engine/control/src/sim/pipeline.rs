//! What a run's time is made of: fetching, copying and computing, batch by batch.
//!
//! The model, exactly:
//! 1. The samples that missed are requested in the order of their rows, `in_flight` at once at most. A request waits
//!    `latency`, then its bytes cross the link, one request after the other in their order, at `bandwidth`. Its place
//!    is free when its last byte is there.
//! 2. A batch may be requested when the step `ahead` batches before it begins; the first ones when the epoch begins.
//! 3. A batch whose samples are all there is copied, hits and misses alike, at `copy_bandwidth`, one batch after the
//!    other.
//! 4. A step of `step` begins when its batch is copied and the step before it has ended. What it waits beyond that end
//!    is the stall.
//! 5. Nothing is fetched across the end of an epoch: the next order is drawn then.
//!
//! Requests and copies are served in their order, so the k-th request gets the place of request k − `in_flight`, and
//! every time follows from few earlier ones. Decoding is not in it: add it to the step if the step waits for it.

use std::collections::VecDeque;

use serde::Serialize;

use crate::error::{Error, Result};

/// The most requests or batches that may be under way.
const AT_ONCE_MAX: usize = 1 << 16;

/// What things take. Times in seconds, rates in bytes a second; a rate that is left out is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Costs {
    /// From a request to its first byte.
    pub latency_s: f64,
    /// Of the link to the source.
    pub bandwidth_bytes_per_s: Option<f64>,
    /// Of the copy to where the step computes.
    pub copy_bytes_per_s: Option<f64>,
    /// A batch's computation.
    pub step_s: f64,
    /// Requests at once.
    pub in_flight: usize,
    /// Batches that may be under way or wait for their step.
    pub ahead: usize,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            latency_s: 0.0,
            bandwidth_bytes_per_s: None,
            copy_bytes_per_s: None,
            step_s: 0.0,
            in_flight: 16,
            ahead: 4,
        }
    }
}

impl Costs {
    /// # Errors
    /// `Settings` if a time is negative, a rate not above 0, or a number of things at once not from 1 to 65,536.
    pub fn check(&self) -> Result<()> {
        for (name, at_once) in [("requests in flight", self.in_flight), ("batches ahead", self.ahead)] {
            if !(1..=AT_ONCE_MAX).contains(&at_once) {
                return Err(Error::settings(format!("{at_once} {name}: give 1 to {AT_ONCE_MAX}")));
            }
        }
        for (name, seconds) in [("latency", self.latency_s), ("step", self.step_s)] {
            if !(seconds >= 0.0 && seconds.is_finite()) {
                return Err(Error::settings(format!("the {name} is {seconds} s: give 0 or more")));
            }
        }
        for rate in [self.bandwidth_bytes_per_s, self.copy_bytes_per_s].into_iter().flatten() {
            if !(rate > 0.0 && rate.is_finite()) {
                return Err(Error::settings(format!("a bandwidth is {rate} bytes/s: give one above 0")));
            }
        }
        Ok(())
    }
}

/// How long something took, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Time {
    /// From its begin to the end of its last step.
    pub total_s: f64,
    /// Of that, how long steps waited for their batch.
    pub stall_s: f64,
}

/// The clock of a run; see the module's head.
#[derive(Debug, Clone)]
pub struct Pipeline {
    costs: Costs,
    /// When the last requests were complete, `in_flight` of them at most.
    done: VecDeque<f64>,
    /// When the last steps began, `ahead` of them at most.
    begun: VecDeque<f64>,
    fetched: f64,
    copied: f64,
    /// When the last step ended.
    ended: f64,
    epoch_began: f64,
    stall: f64,
}

impl Pipeline {
    /// At time 0. The costs must be [checked](Costs::check).
    pub fn new(costs: Costs) -> Self {
        let (done, begun) = (VecDeque::new(), VecDeque::new());
        Self { costs, done, begun, fetched: 0.0, copied: 0.0, ended: 0.0, epoch_began: 0.0, stall: 0.0 }
    }
    /// An epoch begins. Answers what the one before it took.
    pub fn next_epoch(&mut self) -> Time {
        let time = Time { total_s: self.ended - self.epoch_began, stall_s: self.stall };
        self.begun.clear();
        (self.epoch_began, self.stall) = (self.ended, 0.0);
        time
    }
    /// The next batch: the bytes of each of its misses, in their order, and of all its samples together.
    pub fn batch(&mut self, misses: impl Iterator<Item = u64>, bytes: u64) {
        let Costs { latency_s, bandwidth_bytes_per_s, copy_bytes_per_s, step_s, in_flight, ahead } = self.costs;
        let takes = |bytes: u64, rate: Option<f64>| rate.map_or(0.0, |rate| bytes as f64 / rate);
        let full = self.begun.len() == ahead;
        let open = if full { self.begun.pop_front() } else { None }.unwrap_or(self.epoch_began);
        let mut ready = open;
        for bytes in misses {
            let place = if self.done.len() == in_flight { self.done.pop_front() } else { None };
            let sent = place.map_or(open, |free| open.max(free));
            self.fetched = self.fetched.max(sent + latency_s) + takes(bytes, bandwidth_bytes_per_s);
            self.done.push_back(self.fetched);
            ready = self.fetched;
        }
        self.copied = self.copied.max(ready) + takes(bytes, copy_bytes_per_s);
        let begin = self.copied.max(self.ended);
        self.stall += begin - self.ended;
        self.begun.push_back(begin);
        self.ended = begin + step_s;
    }
}
