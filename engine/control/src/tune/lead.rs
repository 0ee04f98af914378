//! How many bytes are read ahead at most: the *lead* that samples get over the batches that need them.
//!
//! It is long enough if answers that come late come before their batch. How late they are is not estimated. A run shows
//! that its lead is short: its consumer waits for samples that are under way, although much of what it wants later has
//! come, and there is no room to ask for more. Where the link itself is short little of that has come, and a longer
//! lead would bring nothing. Little has come, too, where half of the lead does not outlast a usual answer (1.3 GB a
//! second behind 50 ms). That is not told from a short link, and the lead does not grow.
//!
//! So it doubles while that is seen, and is halved when it was not for long. If it must double again soon after it was
//! halved, that takes twice as long the next time. Time is the consumer's: between passes nothing is learnt.

/// What is judged at once.
const LOOK_S: f64 = 2.0;
/// After it has doubled, what was asked for with less room is waited for so long still, and says nothing.
const SETTLING_S: f64 = 6.0;
/// A consumer that waits for less of its time is served.
const WAITS: f64 = 0.01;
/// This share of the waits must be such as a longer lead makes shorter.
const SHORT: f64 = 0.5;
/// It is halved after so long without them, later up to after an hour.
const REST_S: f64 = 300.0;
const REST_MAX_S: f64 = 3600.0;

/// What some time of a pass showed, in seconds of the consumer.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Seen {
    /// Its own work.
    pub own_s: f64,
    /// Waiting for batches.
    pub waited_s: f64,
    /// In which a loader thread waited for what is under way, with much landed and no room to ask for more; of several
    /// threads the sum.
    pub short_s: f64,
}

reasons! {
    /// Why it changed: it was short, or was not for long.
    Why {
        Late: "responses came late";
        Enough: "no response was late for minutes";
    }
}

/// Another limit in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// Until now.
    pub before: u64,
    /// From now on.
    pub bytes: u64,
    /// See there.
    pub why: Why,
}

/// See the module's head.
#[derive(Debug)]
pub struct Lead {
    least: u64,
    most: u64,
    bytes: u64,
    /// Since the last look.
    seen: Seen,
    settling_s: f64,
    /// Since it was last short, or changed.
    enough_s: f64,
    patience_s: f64,
    halved: bool,
}

impl Lead {
    /// It begins with `least` bytes, and grows up to `most`.
    pub fn new(least: u64, most: u64) -> Self {
        let (seen, most) = (Seen::default(), most.max(least));
        Self { least, most, bytes: least, seen, settling_s: 0.0, enough_s: 0.0, patience_s: REST_S, halved: false }
    }

    /// Bytes that may be read ahead now.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes in what happened since the last call.
    pub fn follow(&mut self, seen: Seen) -> Option<Change> {
        // A clock that says nonsense says nothing.
        if ![seen.own_s, seen.waited_s, seen.short_s].iter().all(|s| s.is_finite() && *s >= 0.0) {
            return None;
        }
        if self.settling_s > 0.0 {
            self.settling_s -= seen.own_s + seen.waited_s;
            return None;
        }
        self.seen.own_s += seen.own_s;
        self.seen.waited_s += seen.waited_s;
        self.seen.short_s += seen.short_s;
        let seconds = self.seen.own_s + self.seen.waited_s;
        if seconds < LOOK_S {
            return None;
        }
        let Seen { waited_s, short_s, .. } = std::mem::take(&mut self.seen);
        let short = waited_s > WAITS * seconds && short_s >= SHORT * waited_s;
        self.enough_s = if short { 0.0 } else { self.enough_s + seconds };
        let (bytes, why) = match short {
            true => (self.bytes.saturating_mul(2).min(self.most), Why::Late),
            false if self.enough_s >= self.patience_s => ((self.bytes / 2).max(self.least), Why::Enough),
            false => return None,
        };
        if short && std::mem::take(&mut self.halved) {
            self.patience_s = (2.0 * self.patience_s).min(REST_MAX_S);
        }
        if bytes == self.bytes {
            return None;
        }
        (self.enough_s, self.halved) = (0.0, why == Why::Enough);
        self.settling_s = if short { SETTLING_S } else { 0.0 };
        Some(Change { before: std::mem::replace(&mut self.bytes, bytes), bytes, why })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Purpose, generator, unit};
    use proptest::prelude::*;
    use std::collections::VecDeque;

    const MB: u64 = 1 << 20;

    fn seen(own_s: f64, waited_s: f64, short_s: f64) -> Seen {
        Seen { own_s, waited_s, short_s }
    }

    fn look(lead: &mut Lead, seen: Seen) -> Option<(u64, Why)> {
        lead.follow(seen).map(|change| (change.bytes / MB, change.why))
    }

    #[test]
    fn it_doubles_while_it_is_short_and_no_further_than_it_may() {
        let mut lead = Lead::new(128 * MB, 300 * MB);
        // Too little time to tell, and then enough.
        assert_eq!(look(&mut lead, seen(1.0, 0.5, 0.5)), None);
        assert_eq!(look(&mut lead, seen(1.0, 0.5, 0.5)), Some((256, Why::Late)));
        // It settles first.
        assert_eq!([seen(3.0, 1.0, 2.0), seen(1.0, 1.5, 1.5)].map(|seen| look(&mut lead, seen)), [None, None]);
        assert_eq!(look(&mut lead, seen(3.0, 1.0, 2.0)), Some((300, Why::Late)));
        assert_eq!(look(&mut lead, seen(5.0, 5.0, 5.0)), None);
        assert_eq!(look(&mut lead, seen(3.0, 1.0, 2.0)), None);
        assert_eq!(lead.bytes(), 300 * MB);
        assert_eq!(Lead::new(128 * MB, MB).most, 128 * MB);
    }

    #[test]
    fn a_link_that_is_short_and_a_consumer_that_is_served_change_nothing() {
        let mut lead = Lead::new(128 * MB, 1024 * MB);
        for nothing in [seen(1.0, 9.0, 1.0), seen(9.95, 0.05, 0.05), seen(0.0, 10.0, 4.9), seen(f64::NAN, 9.0, 9.0)] {
            assert_eq!(look(&mut lead, nothing), None, "{nothing:?}");
        }
        assert_eq!(look(&mut lead, seen(-1.0, 9.0, 9.0)), None);
        assert_eq!(look(&mut lead, seen(9.0, f64::INFINITY, 9.0)), None);
    }

    #[test]
    fn it_is_halved_after_long_and_less_soon_if_that_was_wrong() {
        let mut lead = Lead::new(100 * MB, 1024 * MB);
        let (short, served) = (seen(5.0, 5.0, 5.0), seen(10.0, 0.0, 0.0));
        let rests = |lead: &mut Lead| (1..1000).find_map(|looks| look(lead, served).map(|change| (looks, change)));
        for grown in [200, 400] {
            assert_eq!(look(&mut lead, short), Some((grown, Why::Late)));
            assert_eq!(look(&mut lead, short), None, "it settles");
        }
        assert_eq!(rests(&mut lead), Some((30, (200, Why::Enough))));
        assert_eq!(look(&mut lead, short), Some((400, Why::Late)));
        // Of which one look is for settling.
        assert_eq!(rests(&mut lead), Some((61, (200, Why::Enough))));
        assert_eq!(rests(&mut lead), Some((60, (100, Why::Enough))));
        assert_eq!(rests(&mut lead), None, "never less than to begin with");
        for _ in 0..9 {
            (0..4).for_each(|_| _ = look(&mut lead, short));
            rests(&mut lead);
        }
        assert_eq!(lead.patience_s, REST_MAX_S);
    }

    /// A store whose answers take 50 ms and one in a hundred `late_s`, a consumer that takes a sample every `step_s`,
    /// and a lead that is asked for by halves, as the window does. Without a limit of bandwidth, samples of one MB.
    /// The share of the time that the consumer waited in the last of so many seconds.
    fn stall(late_s: f64, step_s: f64, lead: &mut Lead, seconds: f64, last_s: f64, seed: u64) -> f64 {
        let mut rng = generator(seed, 0, 0, Purpose::Order);
        // When each sample that was asked for comes, in the order of need.
        let mut coming: VecDeque<f64> = VecDeque::new();
        let (mut now, mut waited_last_s) = (0.0, 0.0);
        while now < seconds {
            let limit = (lead.bytes() / MB) as usize;
            if limit - limit.min(coming.len()) >= limit / 2 {
                while coming.len() < limit {
                    coming.push_back(now + if unit(&mut rng) < 0.01 { late_s } else { 0.05 });
                }
            }
            let Some(comes) = coming.pop_front() else { continue };
            let waited_s = (comes - now).max(0.0);
            let landed = || coming.iter().filter(|&&at| at <= now).count();
            let short_s = if waited_s > 0.0 && landed() * 4 >= limit { waited_s } else { 0.0 };
            now += waited_s + step_s;
            if now > seconds - last_s {
                waited_last_s += waited_s;
            }
            lead.follow(seen(step_s, waited_s, short_s));
        }
        waited_last_s / last_s
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        /// However late answers are and however fast samples are taken, as long as half of the least lead outlasts an
        /// answer that is not late: once it had time to grow, late answers cost less than a hundredth of the time, if
        /// that lead may be had; and it is no more than eight times what they need.
        #[test]
        fn late_answers_are_hardly_waited_for(late_s in 0.1f64..4.0, rate in 50f64..150.0, seed in 0u64..1000) {
            let mut lead = Lead::new(16 * MB, 1 << 40);
            let waited = stall(late_s, 1.0 / rate, &mut lead, 240.0, 60.0, seed);
            prop_assert!(waited < 0.01, "{waited} of the time, {} MB", lead.bytes() / MB);
            let needed = (late_s * rate).max(16.0);
            prop_assert!((lead.bytes() / MB) as f64 <= 8.0 * needed, "{} of {needed} MB", lead.bytes() / MB);
            let mut fixed = Lead::new(16 * MB, 0);
            // The control: without it they are waited for, where they are late by more than what 16 MB last.
            if late_s * rate > 64.0 {
                let waited = stall(late_s, 1.0 / rate, &mut fixed, 240.0, 60.0, seed);
                prop_assert!(waited > 0.1, "{waited} of the time");
            }
        }
    }
}
