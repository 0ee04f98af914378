//! One fetch in the air, and everyone who waits for it.
//!
//! Lock: one per fetch, held to wait for its end.

use crate::arena::Slot;
use crate::error::Error;
use lossfeed_sync::{Condvar, Mutex};
use std::sync::Arc;
use std::time::Duration;

/// How long a joiner waits before it looks whether it should stop.
const PATIENCE: Duration = Duration::from_millis(50);

/// How a fetch ended.
#[derive(Clone)]
pub enum Landing {
    /// The record is in the cache.
    Stored(Slot),
    /// The record is not kept, but somebody was waiting for it.
    Loose(Arc<[u8]>),
    /// The sample is bad or unreachable.
    Failed(Arc<Error>),
}

/// A fetch in the air: one owner lands it, any number of joiners wait. Two requests for one sample at one time never
/// read it twice.
#[derive(Default)]
pub struct Flight {
    state: Mutex<FlightState>,
    landed: Condvar,
}

#[derive(Default)]
struct FlightState {
    landing: Option<Landing>,
    joiners: usize,
    closed: bool,
}

impl Flight {
    /// Joins, unless the owner has already closed the flight because nobody was waiting.
    pub(super) fn try_join(&self) -> bool {
        let mut state = self.state.lock();
        state.joiners += usize::from(!state.closed);
        !state.closed
    }

    /// Closes a flight that nobody joined, so that its owner need not leave the record for anyone.
    pub fn close_if_alone(&self) -> bool {
        let mut state = self.state.lock();
        state.closed |= state.joiners == 0;
        state.closed
    }

    /// Ends the flight. Called once, by the owner, on every path (an owner that fails lands `Failed`), so that joiners
    /// cannot wait for ever.
    pub(super) fn land(&self, landing: Landing) {
        self.state.lock().landing = Some(landing);
        self.landed.notify_all();
    }

    /// Whether somebody has joined and is still waiting.
    pub fn is_waited_for(&self) -> bool {
        self.state.lock().joiners > 0
    }

    /// A joiner that will not come to [`Self::join`] lets the owner know that it wants nothing any more.
    pub fn leave(&self) {
        let mut state = self.state.lock();
        state.joiners = state.joiners.saturating_sub(1);
    }

    /// Waits for the owner, or until `stopped`: then the joiner has left. Owners land their own flights before they
    /// join others', so waits form no cycle.
    pub fn join(&self, stopped: &dyn Fn() -> bool) -> Option<Landing> {
        let mut state = self.state.lock();
        loop {
            if let Some(landing) = &state.landing {
                return Some(landing.clone());
            }
            if stopped() {
                state.joiners = state.joiners.saturating_sub(1);
                return None;
            }
            self.landed.wait_for(&mut state, PATIENCE);
        }
    }
}
