//! The fetches under way: each sample is fetched by one connection. A decision without effects; times are milliseconds
//! and handed in.

use std::collections::HashMap;

use crate::message::Key;

/// A fetch that takes longer passes to the next one that wants the sample: its process was stopped, or its store hangs.
pub(crate) const OVERDUE_MS: u64 = 10_000;

/// Fetches of a connection that others wait for; more are made without.
const HELD_MAX: usize = 1 << 16;

#[derive(Debug)]
struct Fetch {
    by: u64,
    since_ms: u64,
    /// Another connection has asked for it.
    wanted: bool,
}

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    by_key: HashMap<Key, Fetch>,
    held: HashMap<u64, Vec<Key>>,
}

impl Flights {
    /// True if connection `by` is to fetch the sample; false while another one does.
    pub(crate) fn claim(&mut self, by: u64, key: Key, now_ms: u64) -> bool {
        match self.by_key.get_mut(&key) {
            Some(fetch) if fetch.by != by && now_ms.saturating_sub(fetch.since_ms) < OVERDUE_MS => {
                fetch.wanted = true;
                false
            }
            Some(fetch) if fetch.by == by => true,
            _ => {
                let held = self.held.entry(by).or_default();
                if held.len() < HELD_MAX {
                    self.by_key.insert(key, Fetch { by, since_ms: now_ms, wanted: false });
                    held.push(key);
                }
                true
            }
        }
    }

    /// True if another connection than the one that fetches the sample has asked for it.
    pub(crate) fn is_wanted(&self, key: &Key) -> bool {
        self.by_key.get(key).is_some_and(|fetch| fetch.wanted)
    }

    /// Ends the fetches of a connection; true if there were any.
    pub(crate) fn end(&mut self, by: u64) -> bool {
        let Some(keys) = self.held.remove(&by) else { return false };
        for key in keys {
            if self.by_key.get(&key).is_some_and(|fetch| fetch.by == by) {
                self.by_key.remove(&key);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_fetched_by_one_until_that_one_ends_or_is_overdue() {
        let mut flights = Flights::default();
        let key = [1; 16];
        assert!(flights.claim(1, key, 0) && flights.claim(1, key, 5));
        assert!(!flights.is_wanted(&key));
        assert!(!flights.claim(2, key, 9) && flights.is_wanted(&key) && !flights.is_wanted(&[2; 16]));
        assert!(flights.end(1) && !flights.end(1));
        assert!(flights.claim(2, key, 10));
        assert!(!flights.claim(3, key, 10 + OVERDUE_MS - 1));
        assert!(flights.claim(3, key, 10 + OVERDUE_MS));
        // The end of the one that lost it takes nothing from the one that has it.
        assert!(flights.end(2));
        assert!(!flights.claim(4, key, 11 + OVERDUE_MS));
    }
}
