//! What short bodies show of a link's bandwidth, where nothing long is read.
//!
//! A short body comes in one burst with its answer's head: how long it took itself shows nothing. But where the link is
//! short of bandwidth its requests stand in one line, and each waits for the bytes that were under way when it was
//! sent. So the time of an answer is held against *those* bytes, by least squares: the slope is what a byte costs. Its
//! own size would not do: larger requests may be sent when more are under way, which then looks as if bytes cost as
//! many times more as there are requests side by side.
//!
//! A server that takes time for each request, and none for bytes, has a line too. So the number of requests under way
//! is held apart: a byte costs what the bytes explain and their requests do not. Where all are of one size nobody can
//! tell the two apart, and nothing is concluded.

/// Where nothing long is read, nothing is learnt of bandwidth: after some thousands of short bodies it is assumed
/// again. Else a link that was slow for a moment would be held to be slow for ever, since nothing long is read from a
/// slow one.
pub const FORGOTTEN: f64 = 1.0 / 2048.0;
/// So many short bodies are looked at before anything is concluded from them.
const COUNT_MIN: f64 = 64.0;
/// They show that a byte takes time if the slope of time over bytes is so many standard errors above 0.
const SURE: f64 = 4.0;
/// An answer that took longer counts as this many times the usual: one in a hundred takes ten times as long.
pub const TIMES_MAX: f64 = 4.0;
/// Bytes under way that hardly differ, but for what their number explains, show nothing but rounding.
const SPREAD_MIN: f64 = 1e-6;

/// What was under way when a request had just been sent, itself included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Requests.
    pub requests: u64,
    /// Bytes that these had asked for.
    pub bytes: u64,
}

/// Sums over short answers of what was under way, of their time, and of the products of these. Older ones are forgotten
/// as slowly as what long bodies showed.
#[derive(Debug, Default)]
pub struct Short {
    count: f64,
    requests: f64,
    bytes: f64,
    seconds: f64,
    requests_requests: f64,
    requests_bytes: f64,
    requests_seconds: f64,
    bytes_bytes: f64,
    bytes_seconds: f64,
    seconds_seconds: f64,
}

impl Short {
    /// An answer took `seconds`.
    pub fn learn(&mut self, load: Load, seconds: f64) {
        // Single slow answers say little.
        let usual = if self.count < COUNT_MIN { f64::INFINITY } else { TIMES_MAX * self.seconds / self.count };
        let (requests, bytes, seconds) = (load.requests as f64, load.bytes as f64, seconds.min(usual));
        for (sum, more) in [
            (&mut self.count, 1.0),
            (&mut self.requests, requests),
            (&mut self.bytes, bytes),
            (&mut self.seconds, seconds),
            (&mut self.requests_requests, requests * requests),
            (&mut self.requests_bytes, requests * bytes),
            (&mut self.requests_seconds, requests * seconds),
            (&mut self.bytes_bytes, bytes * bytes),
            (&mut self.bytes_seconds, bytes * seconds),
            (&mut self.seconds_seconds, seconds * seconds),
        ] {
            *sum += more - *sum * FORGOTTEN;
        }
    }

    /// The time that one byte more takes; `None` if that may be chance.
    pub fn seconds_per_byte(&self) -> Option<f64> {
        let mean = |sum: f64| sum / self.count;
        let (requests, bytes, seconds) = (mean(self.requests), mean(self.bytes), mean(self.seconds));
        let of_requests = mean(self.requests_requests) - requests * requests;
        // What a number of requests explains of bytes and of time is taken out of both.
        let explains = |with_requests: f64| if of_requests > SPREAD_MIN { with_requests / of_requests } else { 0.0 };
        let requests_bytes = mean(self.requests_bytes) - requests * bytes;
        let requests_seconds = mean(self.requests_seconds) - requests * seconds;
        let spread = mean(self.bytes_bytes) - bytes * bytes - requests_bytes * explains(requests_bytes);
        let together = mean(self.bytes_seconds) - bytes * seconds - requests_seconds * explains(requests_bytes);
        let slope = together / spread;
        let of_seconds = mean(self.seconds_seconds) - seconds * seconds;
        let left = (of_seconds - requests_seconds * explains(requests_seconds) - slope * together).max(0.0);
        let error = (left / (self.count * spread)).sqrt();
        let shows = self.count >= COUNT_MIN && spread > SPREAD_MIN * bytes * bytes;
        (shows && slope > SURE * error && slope > 0.0).then_some(slope)
    }
}
