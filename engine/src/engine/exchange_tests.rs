//! Ranks that share what they learn, as engines of one process.

use super::buffer_tests::{SAMPLES, Seen, dataset, deliver, settings};
use super::{Engine, refusal};
use crate::error::ErrorKind;
use crate::sampler::{Auto, CostAware, Echo, Importance, Ods, Pads, SamplerSettings, Selective, Uniform};
use crate::settings::Settings;

fn importance() -> SamplerSettings {
    SamplerSettings::Importance(Importance::default())
}

fn shared(sampler: SamplerSettings, rank: u32, world_size: u32) -> Settings {
    Settings { rank, world_size, exchange: true, batch_size: 8, ..settings(sampler, 0) }
}

fn ranks(sampler: SamplerSettings, world_size: u32) -> Vec<Engine> {
    (0..world_size).map(|rank| Engine::new(dataset(), shared(sampler, rank, world_size)).unwrap()).collect()
}

/// Whether anything was exchanged.
fn exchange(ranks: &[Engine]) -> bool {
    let (proposals, words): (Vec<String>, Vec<Vec<u32>>) =
        ranks.iter().map(|rank| rank.begin_exchange().unwrap()).unzip();
    let agreed: Vec<_> = ranks.iter().map(|rank| rank.agree(&proposals).unwrap()).collect();
    assert!(agreed.windows(2).all(|two| two[0] == two[1]));
    ranks.iter().zip(&agreed).for_each(|(rank, agreed)| {
        agreed.iter().for_each(|agreed| rank.end_exchange(agreed, &words).unwrap());
    });
    agreed[0].is_some()
}

fn beliefs(rank: &Engine) -> Vec<u32> {
    rank.importance().into_iter().map(f32::to_bits).collect()
}

fn epoch(ranks: &[Engine]) -> Vec<Seen> {
    exchange(ranks);
    assert!(ranks.iter().all(|rank| beliefs(rank) == beliefs(&ranks[0])));
    let mut seen = vec![Seen::new(); ranks.len()];
    ranks.iter().zip(&mut seen).for_each(|(rank, seen)| _ = deliver(rank, usize::MAX, seen));
    seen
}

/// The draws of all ranks, in the order in which they were drawn.
fn together(seen: &[Seen]) -> Vec<(u32, u32)> {
    let of = |seen: &Seen| -> Vec<(u32, u32)> {
        seen.iter().flat_map(|batch| batch.2.iter().copied().zip(batch.3.iter().copied())).collect()
    };
    let parts: Vec<_> = seen.iter().map(of).collect();
    (0..parts[0].len()).flat_map(|at| parts.iter().map(move |part| part[at])).collect()
}

#[test]
fn ranks_take_their_parts_of_the_order_that_one_rank_would_draw() {
    for sampler in [importance(), SamplerSettings::Selective(Selective { stale: 2, ..Selective::default() })] {
        let (one, two, five) = (ranks(sampler, 1), ranks(sampler, 2), ranks(sampler, 5));
        let mut owners = vec![0u8; SAMPLES as usize];
        for number in 0..6 {
            let [of_one, of_two, of_five] = [&one, &two, &five].map(|ranks| epoch(ranks));
            // A sample's score depends on the epoch alone here, so it does not matter in which steps it was learned.
            assert_eq!(together(&of_two), together(&of_one), "epoch {number} of {}", sampler.name());
            assert_eq!(together(&of_five), together(&of_one), "epoch {number} of {}", sampler.name());
            for (rank, seen) in of_two.iter().enumerate() {
                seen.iter().flat_map(|batch| &batch.2).for_each(|&id| owners[id as usize] |= 1 << rank);
            }
        }
        assert!(owners.iter().filter(|&&both| both == 3).count() > 150, "samples belong to no rank");
    }
}

#[test]
fn ranks_that_are_not_of_one_run_are_refused_on_all_of_them_with_what_differs() {
    let usual = shared(importance(), 1, 2);
    let other_seed = Settings { seed: 12, ..usual.clone() };
    let other_sampler = Settings { sampler: SamplerSettings::Uniform(Uniform::default()), ..usual.clone() };
    let other_size = Settings { batch_size: 4, ..usual.clone() };
    for (settings, said) in [
        (other_seed, "seed is 11 on rank 0 and 12 on rank 1"),
        (other_sampler, "sampler.name is"),
        (other_size, "batch_size is 8"),
    ] {
        let pair =
            [Engine::new(dataset(), shared(importance(), 0, 2)).unwrap(), Engine::new(dataset(), settings).unwrap()];
        let proposals: Vec<String> = pair.iter().map(|rank| rank.begin_exchange().unwrap().0).collect();
        for rank in &pair {
            let refused = rank.agree(&proposals).unwrap_err();
            assert!(refused.kind() == ErrorKind::Settings && refused.to_string().contains(said), "{refused}");
        }
    }
    let pair = ranks(importance(), 2);
    pair[1].set_epoch(3).unwrap();
    let mut proposals: Vec<String> = pair.iter().map(|rank| rank.begin_exchange().unwrap().0).collect();
    let refused = pair[0].agree(&proposals).unwrap_err().to_string();
    assert!(refused.contains("epoch is 0 on rank 0 and 3 on rank 1"), "{refused}");
    proposals[1] = refusal(1, "this loader is closed");
    for rank in &pair {
        let refused = rank.agree(&proposals).unwrap_err();
        assert!(refused.kind() == ErrorKind::Usage && refused.to_string().contains("process 1: this loader is closed"));
    }
    proposals[1] = proposals[0].clone();
    let refused = pair[0].agree(&proposals).unwrap_err().to_string();
    assert!(refused.contains("ranks [0, 0]") && refused.contains("each of the 2 must appear once"), "{refused}");
    assert_eq!(pair[0].agree(&["{".into()]).unwrap_err().kind(), ErrorKind::Settings);
}

#[test]
fn damaged_news_change_nothing() {
    let pair = ranks(importance(), 2);
    epoch(&pair);
    let before = beliefs(&pair[0]);
    let (proposals, mut words): (Vec<String>, Vec<Vec<u32>>) =
        pair.iter().map(|rank| rank.begin_exchange().unwrap()).unzip();
    let agreed = pair[0].agree(&proposals).unwrap().unwrap();
    assert!(pair[0].end_exchange(&agreed, &words[..1]).is_err());
    words[1][0] = SAMPLES;
    assert_eq!(pair[0].end_exchange(&agreed, &words).unwrap_err().kind(), ErrorKind::Settings);
    assert_eq!(beliefs(&pair[0]), before);
    assert!(exchange(&pair) && beliefs(&pair[0]) == beliefs(&pair[1]));
}

#[test]
fn a_resumed_rank_is_the_rank_that_went_on() {
    for (before, taken) in [(1u64, 0), (2, 5), (3, 13), (3, 1)] {
        let whole = ranks(importance(), 2);
        let mut expected = [Seen::new(), Seen::new()];
        for _ in 0..6 {
            exchange(&whole);
            whole.iter().zip(&mut expected).for_each(|(rank, seen)| _ = deliver(rank, usize::MAX, seen));
        }
        let first = ranks(importance(), 2);
        let mut seen = [Seen::new(), Seen::new()];
        for _ in 0..before {
            exchange(&first);
            first.iter().zip(&mut seen).for_each(|(rank, seen)| _ = deliver(rank, usize::MAX, seen));
        }
        if taken > 0 {
            exchange(&first);
            first.iter().zip(&mut seen).for_each(|(rank, seen)| _ = deliver(rank, taken, seen));
        }
        let states: Vec<Vec<u8>> = first.iter().map(|rank| rank.state().unwrap()).collect();
        let second = ranks(importance(), 2);
        second.iter().zip(&states).for_each(|(rank, state)| rank.load_state(state).unwrap());
        assert_eq!(second.iter().map(|rank| rank.state().unwrap()).collect::<Vec<_>>(), states);
        let rest = 6 - before - u64::from(taken == 13);
        for number in 0..rest {
            // What was left of an epoch goes on as it began.
            assert_eq!(exchange(&second), number > 0 || taken == 0 || taken == 13, "{before} {taken}");
            second.iter().zip(&mut seen).for_each(|(rank, seen)| _ = deliver(rank, usize::MAX, seen));
        }
        assert!(seen == expected, "{before} epochs and {taken} batches");
    }
}

#[test]
fn what_looks_at_a_ranks_own_cache_is_refused() {
    let looks = [
        SamplerSettings::CostAware(CostAware::default()),
        SamplerSettings::Pads(Pads::default()),
        SamplerSettings::Ods(Ods::default()),
        SamplerSettings::Echo(Echo::default()),
        SamplerSettings::Auto(Auto::default()),
    ];
    for sampler in looks {
        let refused = Engine::new(dataset(), shared(sampler, 0, 1)).err().unwrap();
        assert!(refused.kind() == ErrorKind::Settings && refused.to_string().contains("importance"), "{refused}");
    }
    let recorded = Settings { journal: Some("/nowhere/run.csv".into()), ..shared(importance(), 0, 1) };
    assert!(Engine::new(dataset(), recorded).err().unwrap().to_string().contains("journal"));
    let alone = Engine::new(dataset(), settings(importance(), 0)).unwrap();
    assert_eq!(alone.begin_exchange().unwrap_err().kind(), ErrorKind::Usage);
}
