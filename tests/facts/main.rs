//! Numbers that follow from the setting alone (or were measured of the originals) and that policies and samplers must
//! meet.

mod shade;
mod tuning;

use lossfeed::index::ScoreTable;
use lossfeed::ledger::{Access, Ledger};
use lossfeed::sampler::{Outlook, Sampler, SamplerSettings, Uniform};
use lossfeed::sim::{ClosedLoop, Losses, closed_loop};
use lossfeed_lab::policies;

/// Hit ratio of each epoch for orders drawn by `sampler`, with room for `fraction` of the samples.
fn hit_ratios(policy: &str, sampler: &dyn Sampler, samples: u32, fraction: f64, epochs: u64) -> Vec<f64> {
    let scores = ScoreTable::new(samples as usize, 0.0);
    let owned: Vec<u32> = (0..samples).collect();
    let orders: Vec<Vec<u32>> = (0..epochs)
        .map(|epoch| {
            let (scores, resident) = (&scores, &|_| false);
            let outlook = Outlook { owned: &owned, samples, epoch, seed: 9, rank: 0, world_size: 1, scores, resident };
            sampler.draw(&outlook).unwrap().ids
        })
        .collect();
    let capacity = (fraction * f64::from(samples)) as u64;
    let mut ledger = Ledger::new(capacity, samples as usize, policies::from_name(policy, samples as usize).unwrap());
    ledger.plan(&orders.concat());
    let mut hits = |order: &Vec<u32>| {
        let hit = |&&id: &&u32| ledger.access(id, &|_| 1, &scores, &mut vec![]) == Access::Hit;
        order.iter().filter(hit).count() as f64 / order.len() as f64
    };
    orders.iter().map(&mut hits).collect()
}

fn uniform(replacement: bool) -> Box<dyn Sampler> {
    SamplerSettings::Uniform(Uniform { replacement, ..Default::default() }).build().unwrap()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Also the "Default" bars of iCACHE (HPCA'23, Fig. 16).
#[test]
fn lru_on_permutations_hits_c_plus_1_minus_c_times_ln_1_minus_c() {
    for (c, expected) in [(0.1, 0.0052), (0.2, 0.0215), (0.4, 0.0935), (0.5, 0.1534), (0.6, 0.2335), (0.8, 0.4781)] {
        let formula: f64 = c + (1.0 - c) * f64::ln(1.0 - c);
        assert!((formula - expected).abs() < 1e-4);
        let ratio = mean(&hit_ratios("lru", &*uniform(false), 20_000, c, 6)[1..]);
        assert!((ratio - expected).abs() < 0.005, "{c}: {ratio}");
    }
}

#[test]
fn minio_and_belady_on_permutations_hit_exactly_c_from_the_second_epoch_on() {
    for policy in ["minio", "belady"] {
        for c in [0.1, 0.2, 0.5, 0.75] {
            let ratios = hit_ratios(policy, &*uniform(false), 4000, c, 5);
            assert_eq!(ratios[0], 0.0);
            if policy == "minio" {
                assert!(ratios[1..].iter().all(|&r| r == c), "{ratios:?}");
            }
            // Belady may hit a little more in one epoch and less in the next; all together it is c to the last hit.
            assert!((mean(&ratios[1..]) - c).abs() < 1e-12, "{policy} {c}: {ratios:?}");
        }
    }
}

/// One of several ranks that shuffle together reads a sample in some epochs and not in others: who knows when, keeps
/// better (Lobster, ICPP'22, over NoPFS and LRU).
#[test]
fn on_one_rank_of_shuffled_epochs_lobster_hits_more_than_nopfs_and_nopfs_more_than_lru() {
    let hits = |policy| {
        let samples = 8_000u32;
        let scores = ScoreTable::new(samples as usize, 0.0);
        let order = |epoch| {
            let (scores, resident) = (&scores, &|_| false);
            let outlook = Outlook { owned: &[], samples, epoch, seed: 9, rank: 2, world_size: 4, scores, resident };
            uniform(false).draw(&outlook).unwrap().ids
        };
        let orders: Vec<Vec<u32>> = (0..24).map(order).collect();
        let mut ledger = Ledger::new(400, samples as usize, policies::from_name(policy, samples as usize).unwrap());
        ledger.plan(&orders.concat());
        let mut hits = 0;
        for order in &orders {
            ledger.begin(order.len());
            let hit = |&&id: &&u32| ledger.access(id, &|_| 1, &scores, &mut vec![]) == Access::Hit;
            hits += order.iter().filter(hit).count();
        }
        hits
    };
    let [belady, lobster, nopfs, lru] = ["belady", "lobster", "nopfs", "lru"].map(hits);
    assert!(belady >= lobster && lobster > nopfs && nopfs > lru, "{belady} {lobster} {nopfs} {lru}");
}

/// What a training run gains by knowing as many epochs ahead as there are ranks: decision 40. With one rank nothing: all
/// reuse crosses the epoch's border, where no more than the cache holds can wait.
#[test]
fn a_rank_of_several_that_looks_ahead_hits_two_to_five_times_as_often_as_one_that_keeps_what_it_has() {
    let hits_of = |fixed_shares, policy, ranks, fraction: f64| {
        let samples = 8_000;
        let (found, _) = closed_loop(&ClosedLoop {
            sampler: SamplerSettings::Uniform(Uniform { fixed_shares, ..Uniform::default() }),
            policy: policies::find(policy).unwrap(),
            capacity: (fraction, (fraction * samples as f64) as u64),
            epochs: 24,
            batch: 100,
            ranks,
            seed: 3,
            losses: Losses::Planted { samples, decay: 1.0 },
            noise: false,
            costs: None,
            watch: None,
        })
        .unwrap();
        // From the epoch on in which the rank has seen most samples.
        let late = &found.epochs[12..];
        late.iter().map(|e| e.hits).sum::<u64>() as f64 / late.iter().map(|e| e.hits + e.misses).sum::<u64>() as f64
    };
    let hits = |policy, ranks, fraction| hits_of(false, policy, ranks, fraction);
    for (ranks, fraction, least, most) in [
        (1, 0.2, 1.0, 1.0),
        (2, 0.2, 1.9, 2.1),
        (4, 0.05, 3.7, 4.1),
        (4, 0.2, 2.3, 2.6),
        (8, 0.05, 4.6, 5.2),
        (8, 0.2, 2.4, 2.7),
    ] {
        let kept = hits("minio", ranks, fraction);
        assert!((kept / fraction - 1.0).abs() < 0.05, "{ranks} ranks, {fraction}: minio {kept}");
        let [belady, lobster] = ["belady", "lobster"].map(|policy| hits(policy, ranks, fraction) / kept);
        assert!((least..=most).contains(&belady), "{ranks} ranks, {fraction}: belady {belady} times minio");
        assert!(lobster <= belady + 0.01 && lobster >= 0.99, "{ranks} ranks, {fraction}: lobster {lobster}");
        // Shares that do not change hit as often as one rank with a dataset of that size.
        let fixed = hits_of(true, "minio", ranks, fraction);
        let held = (f64::from(ranks) * fraction).min(1.0);
        assert!((fixed / held - 1.0).abs() < 0.01, "{ranks} ranks, {fraction}: fixed shares {fixed}");
    }
}

#[test]
fn lru_on_draws_with_replacement_hits_c() {
    for c in [0.1, 0.2, 0.5, 0.8] {
        // Draws with replacement need 1.6 epochs to fill four fifths.
        let ratio = mean(&hit_ratios("lru", &*uniform(true), 20_000, c, 10)[4..]);
        assert!((ratio - c).abs() < 0.005, "{c}: {ratio}");
    }
}

/// 1 − 2/e. SHADE (FAST'23, Fig. 2) offers 26.5, 26.6 and 26.2 % as locality from importance.
#[test]
fn an_epoch_drawn_with_replacement_meets_26_4_percent_of_samples_twice_or_more() {
    let samples = 200_000;
    let scores = ScoreTable::new(samples, 0.0);
    let outlook = Outlook {
        owned: &[],
        samples: samples as u32,
        epoch: 0,
        seed: 1,
        rank: 0,
        world_size: 1,
        scores: &scores,
        resident: &|_| false,
    };
    let mut times = vec![0; samples];
    uniform(true).draw(&outlook).unwrap().ids.iter().for_each(|&id| times[id as usize] += 1);
    let share = |n| times.iter().filter(|&&t| t >= n).count() as f64 / samples as f64;
    assert!((share(2) - 0.264).abs() < 0.003, "{}", share(2));
    assert!((share(3) - 0.080).abs() < 0.003, "{}", share(3));
    assert!((1.0 - share(1) - 0.368).abs() < 0.003);
}
