//! Processors that each client's loader threads may use: as many as the others leave. A decision without effects.
//!
//! Clients that have enough say how many they use; those whose training waits say that they want more. A client gets
//! the largest number of which all that want more could have as many, once the others have theirs. So threads go to the
//! ranks that are late, as in Lobster (Liu et al., ICPP'22, Algorithm 1), and together have one processor each.

use std::collections::HashMap;

/// A client that says nothing for so long, as between epochs, uses none.
const SILENT_MS: u64 = 10_000;

#[derive(Debug, Clone, Copy)]
struct Told {
    wanted: f32,
    at_ms: u64,
}

/// The wishes of all clients.
#[derive(Debug, Default)]
pub(crate) struct Processors(HashMap<u64, Told>);

impl Processors {
    /// The number of the machine's `all` processors that a client may use. It wants so many, infinitely many if its
    /// training waits.
    pub(crate) fn share(&mut self, member: u64, all: u32, wanted: f32, now_ms: u64) -> f32 {
        let wanted = if wanted.is_nan() { 0.0 } else { wanted.max(0.0) };
        self.0.insert(member, Told { wanted, at_ms: now_ms });
        self.0.retain(|_, told| told.at_ms + SILENT_MS > now_ms);
        let others = self.0.iter().filter(|(other, _)| **other != member);
        level(all as f32, others.map(|(_, told)| told.wanted).collect())
    }

    pub(crate) fn leave(&mut self, member: u64) {
        self.0.remove(&member);
    }
}

/// The share of one that wants all, beside others that want so much each.
fn level(mut left: f32, mut others: Vec<f32>) -> f32 {
    others.sort_unstable_by(f32::total_cmp);
    let mut sharing = others.len() + 1;
    for wanted in others {
        if wanted > left / sharing as f32 {
            break;
        }
        left -= wanted;
        sharing -= 1;
    }
    left / sharing as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WAITS: f32 = f32::INFINITY;

    #[test]
    fn those_that_wait_get_what_the_others_leave() {
        for (all, others, mine) in [
            (8.0, vec![], 8.0),
            (8.0, vec![WAITS], 4.0),
            (8.0, vec![1.0], 7.0),
            (8.0, vec![1.0, WAITS], 3.5),
            (8.0, vec![6.0], 4.0),
            (8.0, vec![0.5, 0.5, 0.5, WAITS], 3.25),
            (2.0, vec![0.2; 7], 0.6),
        ] {
            assert!((level(all, others.clone()) - mine).abs() < 1e-5, "{all} beside {others:?}");
        }
    }

    #[test]
    fn a_client_that_leaves_or_is_silent_takes_nothing() {
        let mut processors = Processors::default();
        assert_eq!(processors.share(1, 8, WAITS, 0), 8.0);
        assert_eq!(processors.share(2, 8, WAITS, 0), 4.0);
        processors.leave(1);
        assert_eq!(processors.share(2, 8, WAITS, 1), 8.0);
        assert_eq!(processors.share(3, 8, f32::NAN, 2), 4.0);
        assert_eq!(processors.share(4, 8, WAITS, SILENT_MS + 1), 8.0);
    }

    proptest! {
        /// The naive twin hands out a thousandth at a time.
        #[test]
        fn the_share_is_what_small_pieces_come_to(
            all in 1u32..64, others in prop::collection::vec(prop_oneof![0.0f32..80.0, Just(WAITS)], 0..9),
        ) {
            let piece = 0.001;
            let (mut left, mut have, mut mine) = (f64::from(all), vec![0.0; others.len()], 0.0);
            while left > 0.0 {
                let hungry = have.iter().zip(&others).filter(|(have, wanted)| **have < f64::from(**wanted)).count();
                left -= piece * (hungry + 1) as f64;
                mine += piece;
                have.iter_mut().zip(&others).filter(|(have, w)| **have < f64::from(**w)).for_each(|(h, _)| *h += piece);
            }
            prop_assert!((f64::from(level(all as f32, others)) - mine).abs() < 0.02);
        }
    }
}
