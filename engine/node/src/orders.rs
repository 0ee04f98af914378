//! Orders for clients that leave theirs to the owner, so that they read the same samples at about the same time. A
//! decision without effects.
//!
//! A client that begins an epoch takes first what the one that began last has still to read, in that order, and then
//! all other samples, shuffled. So each epoch has every sample once, clients that begin together read alike, and one
//! that begins later joins them where they are: what one fetches the others find, though it stays for a short while.

/// Orders of at most so many samples are given: 16 MiB each.
pub const ORDERED_MAX: u32 = 4_000_000;

/// A client's way through an epoch.
#[derive(Debug)]
pub(crate) struct Walk {
    pub(crate) ids: Vec<u32>,
    /// The place of each id among them.
    places: Vec<u32>,
    /// Samples that it has read.
    at: usize,
    /// The number of the beginning: later ones are larger.
    begun: u64,
}

impl Walk {
    /// An epoch of `samples` that begins beside the walks of other clients.
    pub(crate) fn new<'a>(others: impl Iterator<Item = &'a Self>, samples: u32, begun: u64, seed: u64) -> Self {
        let beside = others.filter(|walk| walk.ids.len() == samples as usize);
        let mut ids: Vec<u32> = beside.max_by_key(|walk| walk.begun).map_or(Vec::new(), |walk| walk.left().to_vec());
        let joined = ids.len();
        let mut taken = vec![false; samples as usize];
        for &id in &ids {
            if let Some(taken) = taken.get_mut(id as usize) {
                *taken = true;
            }
        }
        ids.extend((0..samples).zip(&taken).filter(|(_, taken)| !**taken).map(|(id, _)| id));
        shuffle(ids.get_mut(joined..).unwrap_or_default(), seed);
        let mut places = vec![0; samples as usize];
        for (place, &id) in (0..).zip(&ids) {
            if let Some(known) = places.get_mut(id as usize) {
                *known = place;
            }
        }
        Self { ids, places, at: 0, begun }
    }

    fn left(&self) -> &[u32] {
        self.ids.get(self.at..).unwrap_or_default()
    }

    /// The client has read so many. True each 64th part of the epoch.
    pub(crate) fn read(&mut self, at: usize) -> bool {
        let part = |at: usize| at * 64 / self.ids.len().max(1);
        let (before, at) = (self.at, at.min(self.ids.len()).max(self.at));
        self.at = at;
        part(before) != part(at)
    }

    /// Nearness of the next read of a sample, from 1 for the next one down to 0 for an epoch and a half. A sample that
    /// it has read comes again in the next epoch, at a place that is not known yet: its middle is taken.
    pub(crate) fn soon(&self, id: u32) -> f32 {
        let (all, at) = (self.ids.len() as f32, self.at as f32);
        let place = self.places.get(id as usize).map_or(all, |&place| place as f32);
        let ahead = if place >= at { place - at } else { 1.5 * all - at };
        1.0 - ahead / (1.5 * all).max(1.0)
    }
}

/// Fisher and Yates', by the numbers of splitmix64.
fn shuffle(ids: &mut [u32], mut seed: u64) {
    for last in (1..ids.len()).rev() {
        seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut drawn = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        drawn = (drawn ^ (drawn >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        drawn ^= drawn >> 31;
        ids.swap(last, ((u128::from(drawn) * (last as u128 + 1)) >> 64) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sorted(ids: &[u32]) -> Vec<u32> {
        let mut ids = ids.to_vec();
        ids.sort_unstable();
        ids
    }

    proptest! {
        /// Clients that begin and read at any time: each epoch has every sample once, and begins with what the client
        /// that began last has left.
        #[test]
        fn every_epoch_has_each_sample_once_and_joins_the_last_that_began(
            samples in 1u32..60, steps in prop::collection::vec((0usize..4, 0usize..70, any::<u64>()), 1..40),
        ) {
            let mut walks: Vec<Option<Walk>> = vec![None, None, None, None];
            for (begun, (who, at, seed)) in (1u64..).zip(steps) {
                let last = walks.iter().enumerate().filter(|(k, _)| *k != who).filter_map(|(_, walk)| walk.as_ref());
                let expected = last.clone().max_by_key(|walk| walk.begun);
                let expected = expected.map_or(Vec::new(), |walk| walk.left().to_vec());
                let walk = Walk::new(last, samples, begun, seed);
                prop_assert_eq!(sorted(&walk.ids), (0..samples).collect::<Vec<u32>>());
                prop_assert_eq!(&walk.ids[..expected.len()], &expected[..]);
                for (place, &id) in walk.ids.iter().enumerate() {
                    prop_assert_eq!(walk.places[id as usize], place as u32);
                }
                let walk = walks[who].insert(walk);
                walk.read(at);
                prop_assert_eq!(walk.left().len(), (samples as usize).saturating_sub(at));
                // The next one is the soonest, and one that was read later than those that are left.
                let soon: Vec<f32> = walk.left().iter().map(|&id| walk.soon(id)).collect();
                prop_assert!(soon.is_sorted_by(|a, b| a > b) && soon.first().is_none_or(|first| *first == 1.0));
                let read = walk.ids[..walk.at].iter().map(|&id| walk.soon(id));
                let least = soon.last().copied().unwrap_or(1.0);
                prop_assert!(read.into_iter().all(|read| (0.0..least).contains(&read) || walk.left().is_empty()));
            }
        }
    }

    /// Three jobs at different places of their epochs, each with room for a twentieth of the samples: what is fetched
    /// of a store serves all three.
    #[test]
    fn jobs_that_begin_at_different_times_come_to_read_alike() {
        let samples = 600u32;
        let (mut walks, mut begun) = (Vec::<Walk>::new(), 0);
        let mut fetched_at = vec![u64::MAX; samples as usize];
        let (mut reads, mut fetches) = (0u64, 0u64);
        let mut begin = |others: &[Walk], seed: u64| {
            begun += 1;
            Walk::new(others.iter(), samples, begun, seed)
        };
        for tick in 0..6 * u64::from(samples) {
            if walks.len() < 3 && tick == 137 * walks.len() as u64 {
                let walk = begin(&walks, tick);
                walks.push(walk);
            }
            for k in 0..walks.len() {
                if walks[k].left().is_empty() {
                    let mut others: Vec<Walk> = std::mem::take(&mut walks);
                    others.remove(k);
                    let walk = begin(&others, 7 * tick + k as u64);
                    others.insert(k, walk);
                    walks = others;
                }
                let id = walks[k].left()[0];
                let at = walks[k].at + 1;
                walks[k].read(at);
                if tick >= 2 * u64::from(samples) {
                    reads += 1;
                    fetches += u64::from(tick.wrapping_sub(fetched_at[id as usize]) > u64::from(samples) / 20);
                }
                fetched_at[id as usize] = tick;
            }
        }
        let share = fetches as f64 / reads as f64;
        assert!((0.33..0.36).contains(&share), "{share}");
    }

    #[test]
    fn one_client_alone_has_a_new_order_each_time() {
        let mut walk = Walk::new(std::iter::empty(), 1000, 1, 1);
        walk.read(1000);
        let next = Walk::new(std::iter::empty(), 1000, 2, 2);
        assert_ne!(walk.ids, next.ids);
        // Where each id went is spread over all places.
        let moved = (0..1000).filter(|&id| walk.places[id].abs_diff(next.places[id]) > 250).count();
        assert!((480..650).contains(&moved), "{moved}");
    }
}
