//! Records of a call, read for as long as their caller likes to wait.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use crate::disk::{Disk, Found};
use crate::read_at::Trouble;

/// Records that were read and wait for the caller.
const AHEAD: usize = 8;
/// A caller tries so many reads in vain, and leaves the rest to a thread: each has the system begin to read, and one that
/// cannot even begin, because the device hangs with a full queue, holds up whoever tried.
const TRIES: usize = 8;
/// How often a caller that waits looks whether it still wants the answer.
const STOP_SOON: Duration = Duration::from_millis(50);

/// A record that was found, which answer it is, and its length.
pub type Wanted = (usize, Found, usize);

/// How a call went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reads {
    /// Records that came whole.
    pub answers: u64,
    /// Records that could not be read.
    pub failures: u64,
    /// How long the caller waited for them.
    pub took: Duration,
    /// Whether its patience ended before all had come.
    pub unfinished: bool,
}

impl Disk {
    /// Reads the records `wanted`: `sink` is called with the number of each that comes whole, on the calling thread, in
    /// any order, until it breaks. What memory has is read at once. What it has not is read by a thread of the tier, and
    /// waited for until `stopped` says so, and in all no longer than `patience` of the number that has come.
    ///
    /// What is no answer is not there, not whole, or late: the caller has to fetch it.
    pub fn read_all(
        &self,
        wanted: Vec<Wanted>,
        patience: &dyn Fn(u64) -> Duration,
        stopped: &dyn Fn() -> bool,
        sink: &mut dyn FnMut(usize, &[u8]) -> ControlFlow<()>,
    ) -> Reads {
        let mut reads = Reads::default();
        let (mut cold, mut room) = (Vec::new(), Vec::new());
        for (number, found, bytes) in wanted {
            if room.len() < bytes {
                room.resize(bytes, 0);
            }
            let data = room.get_mut(..bytes).unwrap_or_default();
            let begun = Instant::now();
            let tries = cold.len() < TRIES;
            let read =
                tries.then(|| found.segment.read_cached(&*self.shared.read, found.at, found.key, data)).flatten();
            reads.took += begun.elapsed();
            let Some(read) = read else {
                cold.push((number, found, bytes));
                continue;
            };
            if self.came(&found, &read, bytes, &mut reads) && sink(number, data).is_break() {
                return reads;
            }
        }
        if !cold.is_empty() {
            self.wait_for(cold, patience, stopped, sink, &mut reads);
        }
        reads
    }

    fn wait_for(
        &self,
        mut cold: Vec<Wanted>,
        patience: &dyn Fn(u64) -> Duration,
        stopped: &dyn Fn() -> bool,
        sink: &mut dyn FnMut(usize, &[u8]) -> ControlFlow<()>,
        reads: &mut Reads,
    ) {
        let mut left = cold.len();
        let (answer, answers) = sync_channel(AHEAD);
        let gone = Arc::new(AtomicBool::new(false));
        let (read, unwanted) = (Arc::clone(&self.shared.read), Gone(Arc::clone(&gone)));
        self.readers.submit(move || {
            // First all are tried without a wait, so that the device has them all to read at a time.
            for waits in [false, true] {
                for (number, found, bytes) in std::mem::take(&mut cold) {
                    if gone.load(Relaxed) {
                        return;
                    }
                    let mut data = vec![0; bytes];
                    let outcome = if waits {
                        found.segment.read(&*read, found.at, found.key, &mut data)
                    } else if let Some(outcome) = found.segment.read_cached(&*read, found.at, found.key, &mut data) {
                        outcome
                    } else {
                        cold.push((number, found, bytes));
                        continue;
                    };
                    // Nobody is there any more if it cannot be sent.
                    if answer.send((number, found, outcome, data)).is_err() {
                        return;
                    }
                }
            }
        });
        while left > 0 {
            let rest = patience(reads.answers).saturating_sub(reads.took);
            if rest.is_zero() {
                reads.unfinished = true;
                self.shared.counts.late.fetch_add(left as u64, Relaxed);
                break;
            }
            if stopped() {
                break;
            }
            let begun = Instant::now();
            let answer = answers.recv_timeout(rest.min(STOP_SOON));
            reads.took += begun.elapsed();
            match answer {
                Ok((number, found, outcome, data)) => {
                    left -= 1;
                    if self.came(&found, &outcome, data.len(), reads) && sink(number, &data).is_break() {
                        break;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                // No thread could be had.
                Err(RecvTimeoutError::Disconnected) => {
                    reads.failures += left as u64;
                    break;
                }
            }
        }
        drop(unwanted);
    }

    /// Counts a record that was read; whether it came whole.
    fn came(&self, found: &Found, outcome: &Result<u32, Trouble>, bytes: usize, reads: &mut Reads) -> bool {
        match outcome {
            Ok(_) => reads.answers += 1,
            Err(Trouble::Failed(_)) => reads.failures += 1,
            Err(Trouble::Damaged | Trouble::Gone) => {}
        }
        self.count(found, outcome, bytes)
    }
}

/// Tells the thread that reads, however its caller leaves.
struct Gone(Arc<AtomicBool>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
