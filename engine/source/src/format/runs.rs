//! Which samples one request brings: of those that one call wants, the ones that lie near each other in one object.
//!
//! A decision without effects. What a request is worth comes from [`Link`](crate::request::link::Link). A request that already
//! brings as much as its wait is worth keeps the link as busy as it can be: it leaps over nothing more, but for what
//! the work of a request is worth. And it never leaps over more than it brings, so that an estimate that is wrong at
//! most doubles the bytes.

use crate::format::catalog::Place;
use crate::request::link::Worth;
use crate::tune::fetch_plan::Range;
use crate::types::SampleId;

/// The longest request for several samples; a larger sample is asked for by itself. Sixty and more small pictures, so
/// that requests are few, and as many requests under way as a store has connections (64) hold 32 MB at most.
pub(crate) const RUN_BYTES_MAX: u64 = 512 << 10;

/// The longest request for samples that are needed one directly behind the other, where nobody waits for them yet:
/// such a one keeps nobody waiting for what is needed later. Stores are read fastest by 8 to 16 MB (AWS's guidelines).
const IN_A_ROW_BYTES_MAX: u64 = 8 << 20;

/// A sample that a call wants.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wish {
    /// Its position in the call.
    pub(crate) k: usize,
    pub(crate) id: SampleId,
    pub(crate) place: Place,
}

impl Wish {
    fn end(&self) -> u64 {
        self.place.offset.saturating_add(u64::from(self.place.bytes))
    }
}

/// Samples that one request brings.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Bytes between samples, which nobody wanted.
    pub(crate) vain_bytes: u64,
    /// In the order they lie; never empty, and all of one shard.
    pub(crate) wishes: Vec<Wish>,
    /// Of the vain bytes, those that more than the work of a request was saved for.
    leapt_bytes: u64,
    wanted_bytes: u64,
    /// Each is needed directly behind the one before.
    in_a_row: bool,
}

impl Run {
    /// One sample by itself.
    pub(crate) fn alone(wish: Wish) -> Self {
        let wanted_bytes = u64::from(wish.place.bytes);
        let (start, end) = (wish.place.offset, wish.end());
        Self { start, end, vain_bytes: 0, wishes: vec![wish], leapt_bytes: 0, wanted_bytes, in_a_row: true }
    }

    /// A planned range; `wishes` as the plan was made for.
    pub(crate) fn planned(range: &Range, wishes: &[Wish]) -> Self {
        let wishes: Vec<Wish> = range.samples.iter().filter_map(|&at| wishes.get(at).copied()).collect();
        let wanted_bytes = wishes.iter().map(|wish| u64::from(wish.place.bytes)).sum();
        let &Range { start, end, .. } = range;
        let vain_bytes = (end - start).saturating_sub(wanted_bytes);
        Self { start, end, vain_bytes, wishes, leapt_bytes: 0, wanted_bytes, in_a_row: false }
    }

    /// Takes the next sample in, if that is worth it.
    fn takes(&mut self, next: Wish, worth: Worth, in_a_row_bytes: u64) -> bool {
        let one_object = next.place.shard != Place::OWN_FILE
            && self.wishes.last().is_some_and(|last| last.place.shard == next.place.shard);
        let gap = next.place.offset.saturating_sub(self.end);
        let near = gap <= worth.work_bytes;
        let leapt_bytes = self.leapt_bytes + if near { 0 } else { gap };
        let wanted_bytes = self.wanted_bytes + u64::from(next.place.bytes);
        let end = self.end.max(next.end());
        let in_a_row = self.in_a_row && self.wishes.last().is_some_and(|last| last.k + 1 == next.k);
        let fits = end - self.start <= if in_a_row { most(worth).max(in_a_row_bytes) } else { most(worth) };
        let waits = self.end - self.start < worth.gap_bytes && gap <= worth.gap_bytes;
        let taken = one_object && fits && (near || (waits && leapt_bytes <= wanted_bytes));
        if taken {
            self.vain_bytes += gap;
            (self.end, self.leapt_bytes, self.wanted_bytes) = (end, leapt_bytes, wanted_bytes);
            self.in_a_row = in_a_row;
            self.wishes.push(next);
        }
        taken
    }
}

/// Bytes of a request for samples of which some are needed later than others that do not come with it.
fn most(worth: Worth) -> u64 {
    RUN_BYTES_MAX.min(worth.request_bytes_max)
}

/// What one request of a call for `bytes` may bring of samples that are needed one directly behind the other: with as
/// many requests as run side by side the call waits once. `fits_bytes`: what one can be expected to bring in time.
pub(crate) fn in_a_row_bytes(bytes: u64, lanes: usize, fits_bytes: u64) -> u64 {
    (bytes / lanes.max(1) as u64).min(IN_A_ROW_BYTES_MAX).min(fits_bytes)
}

/// Puts what a call wants into requests, in the order of need: by the position of the first sample that each brings.
/// `in_a_row_bytes`: as [`in_a_row_bytes`], or 0 where somebody waits for all of it.
pub(crate) fn runs(mut wishes: Vec<Wish>, worth: Worth, in_a_row_bytes: u64) -> Vec<Run> {
    wishes.sort_unstable_by_key(|wish| (wish.place.shard, wish.place.offset, wish.k));
    let mut runs: Vec<Run> = Vec::new();
    for wish in wishes {
        if !runs.last_mut().is_some_and(|run| run.takes(wish, worth, in_a_row_bytes)) {
            runs.push(Run::alone(wish));
        }
    }
    runs.sort_by_cached_key(|run| run.wishes.iter().map(|wish| wish.k).min());
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition: from the first sample in its shard on, one after the other, everything computed anew.
    fn naively(wishes: &[Wish], worth: Worth, in_a_row_bytes: u64) -> Vec<Vec<usize>> {
        let before = |a: &Wish, b: &Wish| (a.place.offset, a.k) < (b.place.offset, b.k);
        let mut runs: Vec<Vec<Wish>> = Vec::new();
        for first in wishes {
            let alone = first.place.shard == Place::OWN_FILE;
            if alone {
                runs.push(vec![*first]);
                continue;
            }
            // Each shard once, with its first sample in the call.
            let shard: Vec<Wish> = wishes.iter().filter(|w| w.place.shard == first.place.shard).copied().collect();
            if shard[0].k != first.k {
                continue;
            }
            let mut left = shard;
            let mut run: Vec<Wish> = Vec::new();
            while !left.is_empty() {
                let at =
                    (0..left.len()).find(|&a| left.iter().all(|b| b.k == left[a].k || before(&left[a], b))).unwrap();
                let next = left.remove(at);
                let mut longer = run.clone();
                longer.push(next);
                if run.is_empty() || allowed(&longer, worth, in_a_row_bytes) {
                    run = longer;
                } else {
                    runs.push(std::mem::replace(&mut run, vec![next]));
                }
            }
            runs.push(run);
        }
        let mut by_k: Vec<Vec<usize>> = runs.iter().map(|run| run.iter().map(|w| w.k).collect()).collect();
        by_k.sort_by_key(|run| run.iter().copied().min());
        by_k
    }

    /// Whether one request may bring these, which lie in this order.
    fn allowed(run: &[Wish], worth: Worth, in_a_row_bytes: u64) -> bool {
        let end = |run: &[Wish]| run.iter().map(|w| w.place.offset + u64::from(w.place.bytes)).max().unwrap();
        let gaps: Vec<u64> = (1..run.len()).map(|n| run[n].place.offset.saturating_sub(end(&run[..n]))).collect();
        let leapt: u64 = gaps.iter().filter(|&&gap| gap > worth.work_bytes).sum();
        let wanted: u64 = run.iter().map(|w| u64::from(w.place.bytes)).sum();
        let bytes = end(run) - run[0].place.offset;
        let gap = *gaps.last().unwrap();
        let shorter = end(&run[..run.len() - 1]) - run[0].place.offset < worth.gap_bytes;
        let in_a_row = (1..run.len()).all(|n| run[n].k == run[n - 1].k + 1);
        ((bytes <= 512 << 10 && bytes <= worth.request_bytes_max) || (in_a_row && bytes <= in_a_row_bytes))
            && (gap <= worth.work_bytes || (gap <= worth.gap_bytes && shorter && leapt <= wanted))
    }

    fn any_wishes() -> impl Strategy<Value = Vec<Wish>> {
        let shard = prop_oneof![8 => 0u32..3, 1 => Just(Place::OWN_FILE)];
        let offset = prop_oneof![0u64..20_000, 0u64..2_000_000, Just(4096), Just(u64::from(u32::MAX) * 8)];
        let bytes = prop_oneof![1u32..5000, 1u32..700_000, Just(u32::MAX)];
        prop::collection::vec((shard, offset, bytes), 0..60).prop_map(|places| {
            let wish =
                |(k, (shard, offset, bytes))| Wish { k, id: k as SampleId, place: Place { offset, bytes, shard } };
            places.into_iter().enumerate().map(wish).collect()
        })
    }

    proptest! {
        #[test]
        fn requests_are_what_their_definition_says(
            wishes in any_wishes(),
            gap_bytes in prop_oneof![Just(0u64), 1u64..10_000, 1u64..1 << 20],
            work_bytes in prop_oneof![Just(0u64), 1u64..4096, Just(4096)],
            request_bytes_max in prop_oneof![Just(u64::MAX), 64u64 << 10..1 << 20],
            in_a_row_bytes in prop_oneof![Just(0u64), 1u64..4 << 20],
        ) {
            let worth = Worth { gap_bytes, work_bytes, request_bytes_max };
            let made = runs(wishes.clone(), worth, in_a_row_bytes);
            let by_k: Vec<Vec<usize>> = made.iter().map(|run| run.wishes.iter().map(|w| w.k).collect()).collect();
            prop_assert_eq!(&by_k, &naively(&wishes, worth, in_a_row_bytes));
            let mut all: Vec<usize> = by_k.concat();
            all.sort_unstable();
            prop_assert_eq!(all, (0..wishes.len()).collect::<Vec<_>>(), "each once");
            for run in &made {
                prop_assert!(run.wishes.iter().all(|w| run.start <= w.place.offset && w.end() <= run.end));
                let covered = |at: u64| run.wishes.iter().any(|w| (w.place.offset..w.end()).contains(&at));
                prop_assert!(covered(run.start) && covered(run.end - 1));
                let wanted: u64 = run.wishes.iter().map(|w| u64::from(w.place.bytes)).sum();
                let between = work_bytes * (run.wishes.len() as u64 - 1);
                prop_assert!(run.vain_bytes <= wanted + between, "at most doubled");
                // Overlaps only make what was wanted count twice.
                prop_assert!(run.end - run.start <= wanted + run.vain_bytes);
            }
        }
    }
}
