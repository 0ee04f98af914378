//! The granules that are withdrawn: see [`super::fence`].

use std::collections::BTreeMap;

/// Ranges of granules, by where they end. None touches another.
#[derive(Debug, Default)]
pub(super) struct Withdrawn(BTreeMap<u32, u32>);

impl Withdrawn {
    /// Where the range begins that ends at `end` or goes on behind it.
    pub(super) fn start_of(&self, end: u32) -> Option<u32> {
        self.0.range(end..).next().map(|(_, &start)| start).filter(|&start| start < end)
    }

    pub(super) fn add(&mut self, start: u32, end: u32) {
        let (mut start, mut end) = (start, end);
        if let Some(before) = self.0.remove(&start) {
            start = before;
        }
        if let Some((&behind, _)) = self.0.range(end..).next().filter(|&(_, &from)| from == end) {
            self.0.remove(&behind);
            end = behind;
        }
        self.0.insert(end, start);
    }

    /// Takes out what lies before `fence`, ascending.
    pub(super) fn take_before(&mut self, fence: u32) -> Vec<(u32, u32)> {
        let behind = self.0.split_off(&fence.saturating_add(1));
        let mut taken: Vec<(u32, u32)> =
            std::mem::replace(&mut self.0, behind).into_iter().map(|(e, s)| (s, e)).collect();
        let parted = self.0.iter().next().map(|(&end, &start)| (start, end)).filter(|&(start, _)| start < fence);
        if let Some((start, end)) = parted {
            self.0.insert(end, fence);
            taken.push((start, fence));
        }
        taken
    }

    /// All of them, ascending.
    pub(super) fn ranges(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.0.iter().map(|(&end, &start)| (start, end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranges_are_those_of_a_list_of_granules(
            steps in proptest::collection::vec((0u32..200, 1u32..30, any::<bool>()), 1..60),
        ) {
            let (mut ranges, mut twin) = (Withdrawn::default(), vec![false; 256]);
            for (at, size, add) in steps {
                if add {
                    let free = twin[at as usize..(at + size) as usize].iter().all(|taken| !taken);
                    if free {
                        ranges.add(at, at + size);
                        twin[at as usize..(at + size) as usize].fill(true);
                    }
                } else {
                    let taken = ranges.take_before(at);
                    prop_assert!(taken.is_sorted() && taken.iter().all(|&(start, end)| start < end && end <= at));
                    let granules: Vec<u32> = taken.iter().flat_map(|&(start, end)| start..end).collect();
                    let expected: Vec<u32> = (0..at).filter(|&g| twin[g as usize]).collect();
                    prop_assert_eq!(granules, expected);
                    twin[..at as usize].fill(false);
                }
                let held: Vec<u32> = ranges.ranges().flat_map(|(start, end)| start..end).collect();
                let expected: Vec<u32> = (0..256).filter(|&g| twin[g as usize]).collect();
                prop_assert_eq!(held, expected);
                let touching = ranges.ranges().zip(ranges.ranges().skip(1)).any(|(a, b)| a.1 >= b.0);
                prop_assert!(!touching);
                for end in 1..256u32 {
                    let start = ranges.ranges().find(|&(start, to)| start < end && end <= to).map(|(start, _)| start);
                    prop_assert_eq!(ranges.start_of(end), start);
                }
            }
        }
    }
}
