//! Ranks that share what they learn, as engines of one process.

use super::buffer_tests::{SAMPLES, Seen, dataset, deliver, settings, stored};
use super::{Engine, refusal};
use crate::error::ErrorKind;
use crate::sampler::{Auto, CostAware, Echo, Importance, Ods, Pads, Replay, SamplerSettings, Selective, Uniform};
use crate::settings::Settings;
use std::collections::HashSet;
use std::sync::Arc;

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

/// The draws of all ranks in pieces of 80, which are whole steps of 1, 2 and 5 ranks, whichever rank got them.
fn together(seen: &[Seen]) -> Vec<Vec<(u32, u32)>> {
    let of = |seen: &Seen| -> Vec<(u32, u32)> {
        seen.iter().flat_map(|batch| batch.2.iter().copied().zip(batch.3.iter().copied())).collect()
    };
    let parts: Vec<_> = seen.iter().map(of).collect();
    let all: Vec<(u32, u32)> = (0..parts[0].len()).flat_map(|at| parts.iter().map(move |part| part[at])).collect();
    let sorted = |piece: &[(u32, u32)]| {
        let mut piece = piece.to_vec();
        piece.sort_unstable();
        piece
    };
    all.chunks(80).map(sorted).collect()
}

fn stat(rank: &Engine, name: &str) -> f64 {
    rank.stats().into_iter().find(|(stat, _)| stat == name).unwrap().1
}

/// Samplers that do not look at caches, which differ between runs of one rank and of several.
#[test]
fn ranks_draw_together_what_one_rank_would_draw() {
    for sampler in [importance(), SamplerSettings::Selective(Selective { stale: 2, ..Selective::default() })] {
        let (one, two, five) = (ranks(sampler, 1), ranks(sampler, 2), ranks(sampler, 5));
        for number in 0..6 {
            let [of_one, of_two, of_five] = [&one, &two, &five].map(|ranks| epoch(ranks));
            // A sample's score depends on the epoch alone here, so it does not matter in which steps it was learned.
            assert_eq!(together(&of_two), together(&of_one), "epoch {number} of {}", sampler.name());
            assert_eq!(together(&of_five), together(&of_one), "epoch {number} of {}", sampler.name());
        }
    }
}

/// Each of two ranks has room for a fifth of the samples. Drawn in turn, half of what is cached would meet its rank.
#[test]
fn a_draw_goes_to_the_rank_that_has_it() {
    let uniform = SamplerSettings::Uniform(Uniform::default());
    for sampler in [uniform, SamplerSettings::Ods(Ods::default())] {
        let pair = ranks(sampler, 2);
        epoch(&pair);
        for number in 1..5 {
            let hits = || pair.iter().map(|rank| stat(rank, "hits_total")).sum::<f64>();
            let before = hits();
            let seen = epoch(&pair);
            let all: HashSet<u32> = seen.iter().flatten().flat_map(|batch| batch.2.iter().copied()).collect();
            assert_eq!(all.len(), SAMPLES as usize, "each once in epoch {number}");
            // Of 80 that are cached; some step draws more of one rank's than it has room for.
            let hits = hits() - before;
            assert!(hits >= 60.0, "{hits} hits of {} in epoch {number}", sampler.name());
        }
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

/// Samplers that draw by what is cached draw the epoch under way again: the restored caches are empty, and later epochs
/// differ. A buffer is part of the state.
#[test]
fn a_resumed_rank_is_the_rank_that_went_on() {
    let replay = SamplerSettings::Replay(Replay { lag: 16, ..Replay::default() });
    let echo = SamplerSettings::Echo(Echo { lag: 16, ..Echo::default() });
    let looks = [SamplerSettings::CostAware(CostAware::default()), SamplerSettings::Ods(Ods::default())];
    let looks = looks.into_iter().chain([SamplerSettings::Pads(Pads::default()), importance()]).map(|of| (of, false));
    for (sampler, whole_run) in looks.chain([(replay, true), (echo, true)]) {
        for (before, taken) in [(1u64, 0), (2, 5), (3, 13), (3, 1)] {
            let whole = ranks(sampler, 2);
            let mut expected = [Seen::new(), Seen::new()];
            for _ in 0..6 {
                exchange(&whole);
                whole.iter().zip(&mut expected).for_each(|(rank, seen)| _ = deliver(rank, usize::MAX, seen));
            }
            let first = ranks(sampler, 2);
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
            let second = ranks(sampler, 2);
            second.iter().zip(&states).for_each(|(rank, state)| rank.load_state(state).unwrap());
            assert_eq!(second.iter().map(|rank| rank.state().unwrap()).collect::<Vec<_>>(), states);
            let rest = 6 - before - u64::from(taken == 13);
            for number in 0..rest {
                // What was left of an epoch goes on as it began.
                assert_eq!(exchange(&second), number > 0 || taken == 0 || taken == 13, "{before} {taken}");
                second.iter().zip(&mut seen).for_each(|(rank, seen)| _ = deliver(rank, usize::MAX, seen));
            }
            let until = if whole_run { 6 } else { before + u64::from(taken > 0) };
            let of =
                |seen: &[Seen; 2]| seen.clone().map(|seen| seen.into_iter().filter(|b| b.0 < until).collect::<Seen>());
            assert!(of(&seen) == of(&expected), "{}: {before} epochs and {taken} batches", sampler.name());
        }
    }
}

/// The state of one rank is enough for all of them, in mid-epoch too, where each epoch has an order: it holds what
/// caches had when that was drawn.
#[test]
fn one_ranks_state_tells_the_others_what_they_have_left() {
    for sampler in [SamplerSettings::CostAware(CostAware::default()), SamplerSettings::Ods(Ods::default())] {
        let first = ranks(sampler, 2);
        epoch(&first);
        epoch(&first);
        exchange(&first);
        let mut seen = [Seen::new(), Seen::new()];
        first.iter().zip(&mut seen).for_each(|(rank, seen)| _ = deliver(rank, 4, seen));
        let state = first[0].state().unwrap();
        let second = ranks(sampler, 2);
        second.iter().for_each(|rank| rank.load_state(&state).unwrap());
        assert!(!exchange(&second));
        let mut rest = [Seen::new(), Seen::new()];
        for (rank, rest) in first.iter().zip(&mut rest) {
            // What the ranks that were killed would have delivered.
            let plan = rank.plan().unwrap();
            let batch = |number: usize| {
                let range = plan.range(number);
                let weights = plan.order.weights[range.clone()].iter().map(|weight| weight.to_bits()).collect();
                (plan.epoch, number, plan.order.ids[range].to_vec(), weights)
            };
            rest.extend((4..plan.len()).map(batch));
        }
        let mut found = [Seen::new(), Seen::new()];
        second.iter().zip(&mut found).for_each(|(rank, seen)| _ = deliver(rank, usize::MAX, seen));
        assert_eq!(found, rest, "{}", sampler.name());
    }
    let buffered = ranks(SamplerSettings::Echo(Echo { lag: 16, ..Echo::default() }), 2);
    epoch(&buffered);
    let refused = ranks(SamplerSettings::Echo(Echo { lag: 16, ..Echo::default() }), 2)[1]
        .load_state(&buffered[0].state().unwrap())
        .unwrap_err();
    assert!(refused.to_string().contains("only that rank's state"), "{refused}");
}

/// One rank's loop, and the time that it waited, decide nothing for that rank alone.
#[test]
fn ranks_of_a_chosen_sampler_choose_alike() {
    for augmented in [true, false] {
        let auto = Auto { augmented: Some(augmented), ..Auto::default() };
        let pair = ranks(SamplerSettings::Auto(auto), 2);
        let weighted = |seen: &[Seen]| {
            let weights = |seen: &Seen| seen.iter().any(|batch| batch.3.iter().any(|&weight| weight != 1f32.to_bits()));
            seen.iter().map(weights).collect::<Vec<_>>()
        };
        for _ in 0..4 {
            epoch(&pair);
        }
        pair[0].weights_are_read();
        epoch(&pair);
        assert_eq!(weighted(&epoch(&pair)), [false; 2], "one of two loops reads weights");
        pair[1].weights_are_read();
        epoch(&pair);
        assert_eq!(weighted(&epoch(&pair)), [true; 2]);
    }
    // A budget is spent by all ranks together, and what may be fetched is the same on all.
    let bytes = 4 * u64::from(SAMPLES) * 3;
    let auto = Auto { augmented: Some(true), bytes: Some(bytes), epochs: Some(8), ..Auto::default() };
    let make = |rank| Engine::new(stored(false, &Arc::default(), || ()), shared(SamplerSettings::Auto(auto), rank, 2));
    let pair = [0, 1].map(|rank| make(rank).unwrap());
    for _ in 0..8 {
        epoch(&pair);
        assert_eq!(stat(&pair[0], "fetches_ppm"), stat(&pair[1], "fetches_ppm"));
    }
    let read: f64 = pair.iter().map(|rank| stat(rank, "fetched_bytes_total")).sum();
    assert!(read > 0.8 * bytes as f64 && read < 1.1 * bytes as f64, "{read} of {bytes}");
}

#[test]
fn a_journal_and_a_run_of_its_own_are_refused() {
    let recorded = Settings { journal: Some("/nowhere/run.csv".into()), ..shared(importance(), 0, 1) };
    assert!(Engine::new(dataset(), recorded).err().unwrap().to_string().contains("journal"));
    let alone = Engine::new(dataset(), settings(importance(), 0)).unwrap();
    assert_eq!(alone.begin_exchange().unwrap_err().kind(), ErrorKind::Usage);
}
