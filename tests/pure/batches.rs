//! Ranks, batches and ownership: nothing lost, nothing doubled, everyone in step.

use std::collections::HashSet;

use lossfeed::index::ScoreTable;
use lossfeed::sampler::{Batches, Outlook, SamplerSettings, owned_ids};
use proptest::prelude::*;

/// What all ranks deliver in an epoch under `uniform`, batch by batch.
fn deliver(samples: usize, batch: usize, drop_last: bool, world: u32, epoch: u64) -> Vec<Vec<Vec<u32>>> {
    let sampler = SamplerSettings::from_name("uniform").unwrap().build().unwrap();
    let scores = ScoreTable::new(samples, 0.0);
    (0..world)
        .map(|rank| {
            let outlook = Outlook {
                owned: &[],
                samples: samples as u32,
                epoch,
                seed: 1,
                rank,
                world_size: world,
                scores: &scores,
                resident: &|_| false,
            };
            let order = sampler.draw(&outlook).unwrap();
            let batches = Batches::new(samples, batch, drop_last, rank, world).unwrap();
            assert_eq!(order.ids.len(), batches.share());
            assert!(order.weights.iter().all(|&w| w == 1.0));
            batches.iter().map(|range| order.ids[range].to_vec()).collect()
        })
        .collect()
}

#[test]
fn uniform_delivers_every_id_exactly_once_over_all_ranks() {
    for samples in [7usize, 60, 97, 128] {
        for world in [1u32, 2, 3, 5] {
            for batch in [2usize, 3, 8, 32, 200] {
                let ranks = deliver(samples, batch, false, world, 4);
                let steps: HashSet<_> = ranks.iter().map(Vec::len).collect();
                assert_eq!(steps.len(), 1, "{samples} samples, {world} ranks, batches of {batch}: {steps:?}");
                let mut all: Vec<u32> = ranks.into_iter().flatten().flatten().collect();
                all.sort();
                assert!(
                    all.iter().copied().eq(0..samples as u32),
                    "{samples} samples, {world} ranks, batches of {batch}"
                );
            }
        }
    }
}

#[test]
fn drop_last_delivers_full_batches_and_drops_less_than_one_a_rank() {
    for (samples, world, batch) in [(97usize, 1u32, 8usize), (97, 2, 8), (97, 3, 1), (128, 4, 32), (60, 5, 7)] {
        let ranks = deliver(samples, batch, true, world, 0);
        assert!(ranks.iter().flatten().all(|b| b.len() == batch));
        assert!(ranks.iter().all(|r| r.len() == samples / (batch * world as usize)));
        let all: Vec<u32> = ranks.into_iter().flatten().flatten().collect();
        let distinct: HashSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len(), "nothing comes twice");
    }
}

#[test]
fn two_epochs_come_in_different_orders() {
    assert_ne!(deliver(60, 8, false, 1, 0), deliver(60, 8, false, 1, 1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn every_rank_takes_as_many_steps_over_all_of_its_share(
        samples in 1..400usize, batch in 1..50usize, world in 1..9u32, drop_last in any::<bool>()
    ) {
        let ranks: Vec<_> = (0..world).map(|rank| Batches::new(samples, batch, drop_last, rank, world)).collect();
        let possible = if drop_last {
            samples / world as usize >= batch
        } else {
            samples >= world as usize && (batch > 1 || samples % world as usize == 0)
        };
        prop_assert_eq!(ranks.iter().all(Result::is_ok), possible);
        prop_assert!(possible || ranks.iter().all(Result::is_err), "ranks disagree whether it can be done");
        let ranks: Vec<Batches> = ranks.into_iter().filter_map(Result::ok).collect();
        let mut total = 0;
        for batches in &ranks {
            prop_assert_eq!(batches.len(), ranks[0].len());
            let mut next = 0;
            for range in batches.iter() {
                prop_assert_eq!(range.start, next);
                prop_assert!(!range.is_empty() && range.len() <= batch);
                prop_assert!(!drop_last || range.len() == batch);
                next = range.end;
            }
            prop_assert_eq!(next, batches.delivered());
            prop_assert!(drop_last || next == batches.share());
            prop_assert!(batches.range(batches.len()).is_empty());
            total += batches.share();
        }
        prop_assert!(ranks.is_empty() || total == samples);
    }

    #[test]
    fn ownership_is_a_partition_with_sizes_one_apart(
        samples in 1..500usize,
        world in 1..9u32,
        seed in any::<u64>(),
        block in prop_oneof![Just(1), 1..100u32, Just(u32::MAX)],
    ) {
        let owned: Vec<Vec<u32>> = (0..world).map(|rank| owned_ids(samples, seed, rank, world, block)).collect();
        let mut all = owned.concat();
        all.sort();
        prop_assert!(all.into_iter().eq(0..samples as u32));
        for (rank, ids) in owned.iter().enumerate() {
            prop_assert_eq!(ids.len(), samples / world as usize + usize::from(rank < samples % world as usize));
            prop_assert!(ids.is_sorted());
            // A rank shares at most the blocks at the two ends of its share.
            let whole = |of: &[u32]| of.len() as u32 == block.min(samples as u32 - of[0] / block * block);
            let cut = ids.chunk_by(|a, b| a / block == b / block).filter(|of| !whole(of)).count();
            prop_assert!(cut <= 2, "{} of rank {}'s blocks of {} are cut", cut, rank, block);
        }
    }
}

#[test]
fn ownership_mixes_a_dataset_that_is_sorted_by_class() {
    let (low, half) = (owned_ids(10_000, 3, 0, 2, 1).into_iter().filter(|&id| id < 5000).count(), 2500);
    assert!(low.abs_diff(half) < 150, "{low} of the first 5000");
    assert_ne!(owned_ids(100, 3, 0, 2, 1), owned_ids(100, 4, 0, 2, 1), "another seed, another partition");
}

#[test]
fn impossible_cuts_are_refused_with_the_remedy() {
    let said = |samples, batch, drop_last, rank, world| {
        Batches::new(samples, batch, drop_last, rank, world).unwrap_err().to_string()
    };
    assert!(said(10, 0, false, 0, 1).contains("at least 1"));
    assert!(said(10, 2, false, 3, 2).contains("rank 3"));
    assert!(said(3, 2, false, 0, 4).contains("at most as many ranks as samples"));
    assert!(said(10, 8, true, 0, 2).contains("need 16 samples and there are 10"));
    assert!(said(3, 1, false, 0, 2).contains("batch_size of at least 2"));
    assert!(said(0, 1, false, 0, 1).contains("0 samples"));
}
