//! What was decided about reading while a run goes on, and why: for its journal, its page of numbers and `smi`.
//!
//! None of it changes who is in a batch. What does, the sampler, is decided at the borders of epochs and has events of
//! its own.

pub use super::Knob;
use super::{circuit, crew, lead};

/// A decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decided {
    /// What was set otherwise.
    pub knob: Knob,
    /// To what it was set before.
    pub before: u64,
    /// To what it is set.
    pub now: u64,
    /// Why, for a page of numbers.
    pub code: u64,
    /// Why, in words without a colon.
    pub why: &'static str,
}

impl From<crew::Change> for Decided {
    fn from(change: crew::Change) -> Self {
        let (before, now) = (change.before as u64, change.threads as u64);
        Self { knob: Knob::Threads, before, now, code: change.why.code(), why: change.why.words() }
    }
}

impl From<lead::Change> for Decided {
    fn from(change: lead::Change) -> Self {
        let lead::Change { before, bytes: now, why } = change;
        Self { knob: Knob::Lead, before, now, code: why.code(), why: why.words() }
    }
}

impl From<circuit::Change> for Decided {
    fn from(change: circuit::Change) -> Self {
        let (before, now) = (change.before.code(), change.now.code());
        Self { knob: Knob::Disk, before, now, code: change.why.code(), why: change.why.words() }
    }
}

reasons! {
    /// Why the number of requests in flight ahead of need changed.
    Requests {
        MayBeFewer: "fewer may bring as much";
        AsMuch: "fewer bring as much";
        Less: "fewer bring less";
        NoMore: "more bring nothing";
        Follows: "the rate grows with them";
        Smaller: "requests became smaller";
        Larger: "requests became larger";
        Faster: "the rate rose";
        Slower: "the rate fell";
        Later: "responses take longer at the same rate";
        Sooner: "responses come sooner";
        MayBeMore: "more may bring more";
        Slow: "file reads are slow";
        Quick: "file reads are fast";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_number_and_words_of_its_own() {
        let requests: Vec<(u64, &str)> = Requests::ALL.iter().map(|why| (why.code(), why.words())).collect();
        assert_eq!(requests.iter().map(|(code, _)| *code).collect::<Vec<_>>(), (1..=14).collect::<Vec<_>>());
        for (code, words) in requests {
            assert_eq!(Requests::of_code(code).map(Requests::words), Some(words));
            assert!(!words.contains(':') && words.len() < 60);
        }
        assert_eq!((Requests::of_code(0), Requests::of_code(15)), (None, None));
        assert_eq!([1, 2].map(lead::Why::of_code), [Some(lead::Why::Late), Some(lead::Why::Enough)]);
        assert_eq!([0, 3].map(lead::Why::of_code), [None, None]);
    }
}
