//! Truths about the fetch plan: every needed sample once, bytes and memory bounded, the first batch no later.

use super::fetch_plan::{Ask, Plan, Shape, Spot, plan, ranges};
use proptest::prelude::*;
use std::collections::HashSet;

const MB: u64 = 1 << 20;

/// A tar of `samples` of `bytes` each, read in an order of chance.
fn tar(samples: usize, bytes: u32) -> (Vec<Spot>, Shape) {
    let block = u64::from(bytes).next_multiple_of(512) + 512;
    let mut spots: Vec<Spot> = (0..samples as u64).map(|n| Spot { shard: 0, offset: 512 + n * block, bytes }).collect();
    spots.sort_by_key(|spot| spot.offset.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17));
    (spots, Shape { range_bytes: 2 * MB, framing_bytes: block - u64::from(bytes) + 256 })
}

fn call(first: usize) -> Ask {
    Ask { first, urgent: first, free_bytes: 128 * MB, range_bytes: 2 * MB }
}

#[test]
fn a_shard_that_has_room_is_read_whole() {
    let (spots, shape) = tar(5000, 2000);
    let made = plan(&spots, shape, call(64), 200e6).unwrap();
    assert!(made.by_ranges && made.samples == (0..5000).collect::<Vec<_>>());
    let all = ranges(&spots, shape);
    assert!(all.len() <= 7, "{}", all.len());
    let bytes: u64 = all.iter().map(|range| range.bytes()).sum();
    assert!(bytes <= 5000 * 2560, "headers and padding alone");
}

#[test]
fn a_rank_that_needs_half_of_a_shard_leaves_the_other_half() {
    let (spots, shape) = tar(5000, 2000);
    let half: Vec<Spot> = spots.into_iter().filter(|spot| spot.offset / 2560 % 2 == 0).collect();
    assert_eq!(plan(&half, shape, call(0), 200e6), None);
    // Long neighbourhoods are ranges, and what another rank needs is leapt over by 2 % at most.
    let (spots, shape) = tar(5000, 2000);
    let runs: Vec<Spot> = spots.into_iter().filter(|spot| spot.offset / (2560 * 100) % 2 == 0).collect();
    let made = plan(&runs, shape, call(0), 200e6).unwrap();
    assert_eq!((made.samples.len(), made.by_ranges), (runs.len(), true));
    let bytes: u64 = ranges(&runs, shape).iter().map(|range| range.bytes()).sum();
    assert!(bytes <= runs.len() as u64 * 2560 * 51 / 50);
}

#[test]
fn a_gap_that_costs_less_than_a_request_is_read_over() {
    let (spots, shape) = tar(50_000, 900);
    // A cache has a fifth of them.
    let cached =
        |spot: &Spot| (spot.offset / 1536).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(21).is_multiple_of(5);
    let absent: Vec<Spot> = spots.into_iter().filter(|spot| !cached(spot)).collect();
    assert_eq!(plan(&absent, shape, call(0), 200e6), None);
    let shape = Shape { framing_bytes: 4096, ..shape };
    let made = plan(&absent, shape, call(0), 200e6).unwrap();
    assert_eq!((made.samples.len(), made.by_ranges), (absent.len(), true));
    let all = ranges(&absent, shape);
    assert!(all.len() * 100 <= absent.len(), "{}", all.len());
    let bytes: u64 = all.iter().map(|range| range.bytes()).sum();
    assert!(bytes <= 50_000 * 1536, "no more than everything");
}

#[test]
fn a_first_batch_that_ranges_would_delay_is_asked_for_by_itself() {
    let (spots, shape) = tar(20_000, 2000);
    let direct = |first: usize| Some(Plan { samples: (0..first).collect(), beside_bytes: 0, by_ranges: false });
    // 51 MB take a quarter of a second at 200 MB/s.
    assert_eq!(plan(&spots, shape, call(64), 200e6), direct(64));
    assert!(plan(&spots, shape, call(256), 200e6).unwrap().by_ranges, "as many requests as that saves time");
    assert_eq!(plan(&spots, shape, call(256), 40e6), direct(256), "a second and more");
    assert_eq!(plan(&spots, shape, call(64), 1e9), direct(64), "however fast the link is");
    assert!(plan(&spots, shape, call(0), 40e6).unwrap().by_ranges, "no batch waits");
    assert_eq!(plan(&spots, shape, call(0), 10e6), None, "what comes in seconds comes in the order of need");
}

#[test]
fn a_call_takes_half_a_second_of_the_link_and_the_room_that_there_is() {
    let (spots, shape) = tar(20_000, 2000);
    let bytes_of = |made: &Plan| made.samples.len() as u64 * 2560;
    assert!((17 * MB..20 * MB).contains(&bytes_of(&plan(&spots, shape, call(0), 40e6).unwrap())));
    let little = Ask { free_bytes: 9 * MB, ..call(0) };
    let made = plan(&spots, shape, little, 1e9).unwrap();
    assert!((5 * MB..=7 * MB).contains(&bytes_of(&made)), "{}", bytes_of(&made));
    assert_eq!(plan(&spots, shape, Ask { free_bytes: MB, ..call(0) }, 1e9), None);
}

/// The definition: the longest piece of a shard from the first sample that no range has yet.
fn naively(spots: &[Spot], shape: Shape) -> Vec<Vec<usize>> {
    let end = |at: usize| spots[at].offset + u64::from(spots[at].bytes);
    let allowed = |piece: &[usize]| {
        let last = piece.iter().map(|&at| end(at)).max().unwrap();
        let ends = (1..piece.len()).map(|n| piece[..n].iter().map(|&at| end(at)).max().unwrap());
        let gaps = ends.zip(&piece[1..]).map(|(end, &at)| spots[at].offset.saturating_sub(end));
        let leapt: u64 = gaps.filter(|&gap| gap > shape.framing_bytes).sum();
        let wanted: u64 = piece.iter().map(|&at| u64::from(spots[at].bytes)).sum();
        last - spots[piece[0]].offset <= shape.range_bytes && 50 * leapt <= wanted.min(shape.range_bytes)
    };
    let shards: HashSet<u32> = spots.iter().map(|spot| spot.shard).collect();
    let mut all = Vec::new();
    for shard in shards {
        let mut left: Vec<usize> = (0..spots.len()).filter(|&at| spots[at].shard == shard).collect();
        left.sort_by_key(|&at| (spots[at].offset, at));
        while !left.is_empty() {
            let most = (2..=left.len()).rev().find(|&n| allowed(&left[..n])).unwrap_or(1);
            all.push(left.drain(..most).collect::<Vec<_>>());
        }
    }
    all.sort_by_key(|piece| piece.iter().copied().min());
    all
}

fn any_spots() -> impl Strategy<Value = Vec<Spot>> {
    let offset = prop_oneof![0u64..20_000, 0u64..2_000_000, (0u64..64).prop_map(|n| n * 2560)];
    let bytes = prop_oneof![1u32..5000, 1u32..700_000, Just(2000)];
    let spot = (0u32..3, offset, bytes).prop_map(|(shard, offset, bytes)| Spot { shard, offset, bytes });
    prop::collection::vec(spot, 0..80)
}

proptest! {
    #[test]
    fn ranges_are_what_their_definition_says(
        spots in any_spots(),
        range_bytes in prop_oneof![1u64..4096, 1u64..1 << 21],
        framing_bytes in prop_oneof![Just(0u64), 1u64..3000],
    ) {
        let shape = Shape { range_bytes, framing_bytes };
        let made = ranges(&spots, shape);
        let pieces: Vec<Vec<usize>> = made.iter().map(|range| range.samples.clone()).collect();
        prop_assert_eq!(&pieces, &naively(&spots, shape));
        let mut all = pieces.concat();
        all.sort_unstable();
        prop_assert_eq!(all, (0..spots.len()).collect::<Vec<_>>(), "each once");
        for range in &made {
            let inside = |at: &usize| {
                let spot = spots[*at];
                range.start <= spot.offset && spot.offset + u64::from(spot.bytes) <= range.end
            };
            prop_assert!(range.samples.iter().all(inside));
        }
    }

    #[test]
    fn a_call_keeps_to_its_memory_and_its_first_batch_is_not_late(
        samples in 1usize..3000,
        bytes in 100u32..9000,
        keep in 1u64..8,
        first in 0usize..300,
        free_bytes in prop_oneof![0u64..1 << 20, 0u64..64 << 20],
        bytes_per_s in 1e5f64..1e9,
    ) {
        let (spots, shape) = tar(samples, bytes);
        // What others hold or need is missing.
        let spots: Vec<Spot> = spots.into_iter().filter(|spot| spot.offset / 8192 % 8 < keep).collect();
        let Some(made) = plan(&spots, shape, Ask { free_bytes, ..call(first) }, bytes_per_s) else { return Ok(()) };
        prop_assert!(made.samples.windows(2).all(|pair| pair[0] < pair[1]) && !made.samples.is_empty());
        let wanted: u64 = made.samples.iter().map(|&at| u64::from(spots[at].bytes)).sum();
        if !made.by_ranges {
            prop_assert_eq!(made.samples.len(), first.min(spots.len()), "the first batch and nothing else");
            return Ok(());
        }
        prop_assert!(wanted + made.beside_bytes <= free_bytes);
        // Whole ranges in the order of need: what is needed first is in one of them.
        prop_assert_eq!(made.samples[0], 0);
        let all = ranges(&spots, shape);
        let asked: HashSet<usize> = made.samples.iter().copied().collect();
        let whole = |samples: &[usize]| samples.iter().all(|at| asked.contains(at));
        let none = |samples: &[usize]| !samples.iter().any(|at| asked.contains(at));
        prop_assert!(all.iter().all(|range| whole(&range.samples) || none(&range.samples)));
        // As the link is: a second at most, and not at all unless its requests would be more than a two-hundredth.
        let touched = all.iter().filter(|range| range.samples.iter().any(|&at| at < first));
        let waits_s = touched.map(|range| range.bytes()).sum::<u64>() as f64 / bytes_per_s;
        prop_assert!(waits_s <= 1.0 && (first == 0 || first * 200 > spots.len()));
    }
}
