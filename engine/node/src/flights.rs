//! The fetches under way: each sample is fetched by one connection. A decision without effects; times are milliseconds
//! and handed in.

use std::collections::HashMap;

use crate::message::Key;

/// A fetch that takes longer passes to the next one that wants the sample: its process was stopped, or its store hangs.
pub(crate) const OVERDUE_MS: u64 = 10_000;

/// Fetches of a connection that others wait for; more are made without.
const HELD_MAX: usize = 1 << 16;

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    by_key: HashMap<Key, (u64, u64)>,
    held: HashMap<u64, Vec<Key>>,
}

impl Flights {
    /// True if connection `by` is to fetch the sample; false while another one does.
    pub(crate) fn claim(&mut self, by: u64, key: Key, now_ms: u64) -> bool {
        match self.by_key.get(&key) {
            Some(&(other, since_ms)) if other != by && now_ms.saturating_sub(since_ms) < OVERDUE_MS => false,
            Some(&(other, _)) if other == by => true,
            _ => {
                let held = self.held.entry(by).or_default();
                if held.len() < HELD_MAX {
                    self.by_key.insert(key, (by, now_ms));
                    held.push(key);
                }
                true
            }
        }
    }

    /// Ends the fetches of a connection; true if there were any.
    pub(crate) fn end(&mut self, by: u64) -> bool {
        let Some(keys) = self.held.remove(&by) else { return false };
        for key in keys {
            if self.by_key.get(&key).is_some_and(|&(other, _)| other == by) {
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
        assert!(!flights.claim(2, key, 9));
        assert!(flights.end(1) && !flights.end(1));
        assert!(flights.claim(2, key, 10));
        assert!(!flights.claim(3, key, 10 + OVERDUE_MS - 1));
        assert!(flights.claim(3, key, 10 + OVERDUE_MS));
        // The end of the one that lost it takes nothing from the one that has it.
        assert!(flights.end(2));
        assert!(!flights.claim(4, key, 11 + OVERDUE_MS));
    }
}
