//! Faults on purpose, drawn from a seed: what a store does on a bad day, so that a run can show that it bears it.
//!
//! Which request fails, and how, follows from the seed, from what is asked for and from how often it was asked before.
//! Beside that the store is gone for a few requests in every few hundred. Every fault passes: whoever asks again as
//! `retry.rs` says gets the bytes in the end, so a run under chaos delivers what a run without it delivers.
//!
//! Faults strike where the answers of any store are looked at (`store.rs`), before the time limit, the retries and the
//! proofs: those are what is put to the test.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use lossfeed_sync::Mutex;
use object_store::Error as StoreError;

use crate::error::Result;
use crate::request::failure::Refused;
use crate::request::identity::hash;

/// One range of so many has trouble.
const TROUBLED: u64 = 4;
/// How often a range is asked for before its trouble comes again. Retries of one request, and of others for the same
/// range beside it, must not meet the next round of it: a wrong answer is asked for a few times only.
const ROUND: u8 = 16;
/// The store is gone for so many requests …
const GONE: u64 = 6;
/// … of so many.
const GONE_IN: u64 = 256;
/// Ranges whose requests are counted; others have no trouble of their own.
const RANGES_MAX: usize = 1 << 16;

/// What goes wrong with one request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Fault {
    /// The store does not serve, and may ask to be left alone.
    Busy { status: u16, retry_after: Option<Duration> },
    /// No connection.
    Lost,
    /// No answer within any limit.
    Silent,
    /// The answer comes late.
    Slow(Duration),
    /// Credentials that have ended.
    Expired,
    /// The answer is from another version of the object.
    Changed,
    /// The body breaks off after this part of it.
    Cut(f64),
    /// All of the object where a range was asked for: 200 instead of 206.
    Whole,
    /// One bit is wrong, at this part of the body.
    Flipped(f64),
}

impl Fault {
    /// What goes wrong with the `ask`-th request (from 0) for a range. `dice` is fixed by the seed and the range.
    fn drawn(dice: u64, ask: u8) -> Option<Self> {
        if !dice.is_multiple_of(TROUBLED) {
            return None;
        }
        let part = (dice >> 40) as f64 / (1u64 << 24) as f64;
        let (fault, times) = match (dice >> 8) % 9 {
            0 => (Self::Busy { status: [429, 500, 503][(dice >> 16) as usize % 3], retry_after: None }, 3),
            1 => (Self::Busy { status: 503, retry_after: Some(Duration::from_secs(1)) }, 1),
            2 => (Self::Lost, 2),
            3 => (Self::Silent, 1),
            4 => (Self::Slow(Duration::from_millis(20 + (dice >> 16) % 480)), 1),
            5 => (if dice & 0x80 == 0 { Self::Expired } else { Self::Changed }, 1),
            6 => (Self::Cut(part), 1),
            7 => (Self::Whole, 1),
            _ => (Self::Flipped(part), 1),
        };
        (ask % ROUND < times).then_some(fault)
    }

    /// Whether it may meet a request for no bytes, as for an object's size or a listing.
    fn is_of_the_store(self) -> bool {
        matches!(self, Self::Busy { .. } | Self::Lost | Self::Silent | Self::Slow(_))
    }

    /// What happens before the first byte.
    ///
    /// # Errors
    /// What a store's client says of it.
    pub(crate) async fn before_the_answer(self, key: &str) -> Result<(), StoreError> {
        let said = |source| StoreError::Generic { store: "chaos", source };
        let path = || key.to_owned();
        match self {
            Self::Busy { status, retry_after } => {
                Err(said(Box::new(Refused { status, retry_after, ..Refused::default() })))
            }
            Self::Lost => Err(said(std::io::Error::from(std::io::ErrorKind::ConnectionReset).into())),
            Self::Silent => std::future::pending().await,
            Self::Slow(wait) => {
                tokio::time::sleep(wait).await;
                Ok(())
            }
            Self::Expired => Err(StoreError::PermissionDenied { path: path(), source: "the token has expired".into() }),
            Self::Changed => Err(StoreError::Precondition { path: path(), source: "another version".into() }),
            Self::Cut(_) | Self::Whole | Self::Flipped(_) => Ok(()),
        }
    }

    /// What becomes of a body that arrived. `finds`: whether a check of the reader's refuses bytes. A wrong bit that
    /// nothing would find is no fault to bear but a wrong sample, so it is left out.
    ///
    /// # Errors
    /// How many bytes came instead, in words.
    pub(crate) fn of_the_body(self, bytes: Bytes, finds: impl Fn(&[u8]) -> bool) -> Result<Bytes, String> {
        match self {
            Self::Cut(part) if !bytes.is_empty() => Err(((bytes.len() as f64 * part) as usize).to_string()),
            Self::Whole => Err(format!("more than {}", bytes.len())),
            Self::Flipped(part) if !bytes.is_empty() => {
                let bit = ((bytes.len() * 8) as f64 * part) as usize;
                let mut flipped = bytes.to_vec();
                flipped[(bit / 8).min(bytes.len() - 1)] ^= 1 << (bit % 8);
                Ok(if finds(&flipped) { flipped.into() } else { bytes })
            }
            _ => Ok(bytes),
        }
    }
}

/// The faults of one store.
pub(crate) struct Chaos {
    seed: u64,
    /// Whether a request ends by itself where no answer comes.
    timed: bool,
    requests: AtomicU64,
    asked: Mutex<HashMap<u64, u8>>,
}

impl Chaos {
    /// `timed`: requests have a time limit. Without one no request stays without an answer.
    pub(crate) fn new(seed: u64, timed: bool) -> Self {
        Self { seed, timed, requests: AtomicU64::new(0), asked: Mutex::default() }
    }

    /// What goes wrong with this request for `bytes` bytes of an object; 0 for its size or a listing.
    pub(crate) fn strike(&self, key: &str, start: u64, bytes: u64) -> Option<Fault> {
        let request = self.requests.fetch_add(1, Ordering::Relaxed).wrapping_add(self.seed % GONE_IN);
        if request % GONE_IN < GONE {
            return Some(Fault::Lost);
        }
        let numbers = [self.seed, start, bytes];
        let range = hash(key.bytes().chain(numbers.iter().flat_map(|number| number.to_le_bytes())), 2);
        let ask = {
            let mut asked = self.asked.lock();
            if asked.len() >= RANGES_MAX && !asked.contains_key(&range) {
                return None;
            }
            let asked = asked.entry(range).or_insert(0);
            std::mem::replace(asked, asked.wrapping_add(1))
        };
        let fault = Fault::drawn(range, ask).filter(|fault| bytes > 0 || fault.is_of_the_store());
        fault.map(|fault| match fault {
            Fault::Silent if !self.timed => Fault::Slow(Duration::from_millis(500)),
            fault => fault,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_fault_comes_and_every_range_is_served_in_the_end() {
        let chaos = Chaos::new(7, true);
        let mut kinds = HashSet::new();
        for range in 0..2000u64 {
            let faults: Vec<_> = (0..ROUND).map(|_| chaos.strike("a.tar", range, 9)).collect();
            let own = faults.iter().flatten().filter(|&&fault| fault != Fault::Lost).count();
            assert!(own <= 3, "{faults:?}");
            // What is asked for only once more comes only once.
            let again = |fault: &&Fault| !fault.is_of_the_store();
            assert!(faults.iter().flatten().filter(again).count() <= 1, "{faults:?}");
            kinds.extend(faults.iter().flatten().map(std::mem::discriminant));
        }
        assert_eq!(kinds.len(), 9);
    }

    #[test]
    fn one_seed_is_one_run_and_another_is_another() {
        let faults = |seed| {
            let chaos = Chaos::new(seed, true);
            (0..3000u64).map(move |n| chaos.strike("x", n % 700, 5)).collect::<Vec<_>>()
        };
        assert_eq!(faults(3), faults(3));
        assert_ne!(faults(3), faults(4));
        // Some of the requests fail, and fewer than half.
        let failed = faults(3).iter().flatten().count();
        assert!((100..1500).contains(&failed), "{failed}");
    }

    #[test]
    fn requests_for_no_bytes_have_the_stores_faults_only_and_end_without_a_limit() {
        let (chaos, endless) = (Chaos::new(1, true), Chaos::new(1, false));
        for n in 0..4000u64 {
            let key = format!("{n}");
            assert!(chaos.strike(&key, 0, 0).is_none_or(Fault::is_of_the_store));
            assert_ne!(endless.strike(&key, 0, 9), Some(Fault::Silent));
        }
    }

    #[test]
    fn a_wrong_bit_is_made_only_where_it_is_found() {
        let body = Bytes::from_static(&[0, 0, 0]);
        for part in [0.0, 0.5, 0.999_999_9] {
            let found = Fault::Flipped(part).of_the_body(body.clone(), |bytes| bytes != [0, 0, 0]).unwrap();
            assert_eq!(found.iter().map(|byte| byte.count_ones()).sum::<u32>(), 1);
            assert_eq!(Fault::Flipped(part).of_the_body(body.clone(), |_| false).unwrap(), body);
        }
        assert_eq!(Fault::Cut(0.5).of_the_body(body.clone(), |_| true), Err("1".to_owned()));
        assert_eq!(Fault::Whole.of_the_body(body.clone(), |_| true), Err("more than 3".to_owned()));
        assert_eq!(Fault::Flipped(0.5).of_the_body(Bytes::new(), |_| true).unwrap(), Bytes::new());
    }
}
