//! Runs that go on with another number of ranks, as engines of one process: nothing lost, nothing twice.

use super::buffer_tests::{Seen, deliver};
use super::{Dataset, Engine};
use crate::loader::Next;
use crate::sampler::{CostAware, Echo, Given, Importance, Ods, SamplerSettings, Uniform, in_turn};
use crate::settings::{ScoreKind, Settings};
use crate::source::{Arrays, ImageMode};
use crate::types::{Dtype, SampleId, TensorSpec};
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;

fn dataset(samples: u32) -> Dataset {
    let data: Vec<u8> = (0..samples).flat_map(u32::to_ne_bytes).collect();
    let target: Vec<u8> = (0..samples).flat_map(|id| i64::from(id).to_ne_bytes()).collect();
    let spec = TensorSpec::new(Dtype::U8, [4]);
    let source = Arrays::new(data, spec, target, TensorSpec::class_index(), samples as usize).unwrap();
    Dataset::new(Arc::new(source), ImageMode::Auto, None).unwrap()
}

/// A run, but for its ranks.
#[derive(Debug, Clone, Copy)]
struct Run {
    samples: u32,
    sampler: SamplerSettings,
    seed: u64,
    drop_last: bool,
    exchange: bool,
    cached: bool,
}

/// How far ranks come before they are killed, and what is saved of them.
#[derive(Debug, Clone, Copy)]
struct Life {
    ranks: u32,
    batch_size: usize,
    batches: usize,
    /// The state of this rank alone, if it is enough.
    saved: u32,
}

impl Run {
    fn engine(&self, rank: u32, life: Life) -> Option<Engine> {
        let settings = Settings {
            batch_size: life.batch_size,
            drop_last: self.drop_last,
            seed: self.seed,
            rank,
            world_size: life.ranks,
            exchange: self.exchange,
            sampler: self.sampler,
            workers: Some(0),
            cache_bytes: if self.cached { 4096 } else { 0 },
            score: Some(ScoreKind::Loss),
            stats: false,
            ..Settings::default()
        };
        Engine::new(dataset(self.samples), settings).ok()
    }
    fn engines(&self, life: Life) -> Option<Vec<Engine>> {
        (0..life.ranks).map(|rank| self.engine(rank, life)).collect()
    }
}

fn exchange(ranks: &[Engine]) {
    let (proposals, words): (Vec<String>, Vec<Vec<u32>>) =
        ranks.iter().map(|rank| rank.begin_exchange().unwrap()).unzip();
    for rank in ranks {
        if let Some(agreed) = rank.agree(&proposals).unwrap() {
            rank.end_exchange(&agreed, &words).unwrap();
        }
    }
}

/// The next epoch, or what is left of it, up to so many batches a rank.
fn lives(run: &Run, ranks: &[Engine], most: usize) -> Vec<Seen> {
    if run.exchange {
        exchange(ranks);
    }
    let mut seen = vec![Seen::new(); ranks.len()];
    ranks.iter().zip(&mut seen).for_each(|(rank, seen)| _ = deliver(rank, most, seen));
    assert!(seen.iter().all(|of| of.len() == seen[0].len()), "ranks step alike");
    seen
}

fn ids(seen: &[Seen]) -> Vec<SampleId> {
    seen.iter().flatten().flat_map(|batch| batch.2.iter().copied()).collect()
}

/// A state, or all of them, into every rank. Answers the note of one rank; all must say the same.
fn load(ranks: &[Engine], states: &[Vec<u8>]) -> Option<String> {
    let states: Vec<&[u8]> = states.iter().map(Vec::as_slice).collect();
    let notes: Vec<Option<String>> = ranks.iter().map(|rank| rank.load_states(&states).unwrap()).collect();
    assert!(notes.iter().all(|note| *note == notes[0]), "{notes:?}");
    notes[0].clone()
}

fn states(ranks: &[Engine], saved: Option<u32>) -> Vec<Vec<u8>> {
    let all: Vec<Vec<u8>> = ranks.iter().map(|rank| rank.state().unwrap()).collect();
    match saved {
        Some(rank) => vec![all[rank as usize % ranks.len()].clone()],
        None => all.into_iter().rev().collect(), // in any order
    }
}

fn life() -> impl Strategy<Value = Life> {
    (1u32..6, 1usize..8, 0usize..7, 0u32..6).prop_map(|(ranks, batch_size, batches, saved)| Life {
        ranks,
        batch_size,
        batches,
        saved,
    })
}

fn sampler() -> impl Strategy<Value = (SamplerSettings, bool)> {
    let uniform = |replacement, in_order, fixed_shares| {
        SamplerSettings::Uniform(Uniform { replacement, in_order, fixed_shares, ..Uniform::default() })
    };
    let importance = SamplerSettings::Importance(Importance::default());
    prop::sample::select(vec![
        (uniform(false, false, false), false),
        (uniform(false, true, false), false),
        (uniform(true, false, false), false),
        (uniform(false, false, true), false),
        (uniform(false, false, false), true),
        (importance, true),
        (importance, false),
        (SamplerSettings::CostAware(CostAware::default()), true),
        (SamplerSettings::Ods(Ods::default()), true),
    ])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Ranks are killed within an epoch again and again, and as many others go on: together they deliver the epoch's
    /// draws once, but for what `drop_last` drops and what cannot be shared, which is said. The epoch after it is an
    /// ordinary one of the last ranks.
    #[test]
    fn an_epoch_is_delivered_once_however_often_its_ranks_change(
        samples in 8u32..70, (sampler, exchange) in sampler(), seed in 0u64..4, drop_last: bool, cached: bool,
        all_saved: bool, scored: bool, first in life(), others in prop::collection::vec(life(), 1..4),
    ) {
        let run = Run { samples, sampler, seed, drop_last, exchange, cached };
        let adaptive = !matches!(sampler, SamplerSettings::Uniform(_));
        // An epoch of which nothing was delivered begins anew, by the beliefs and the chance of other ranks.
        let own = adaptive || matches!(sampler, SamplerSettings::Uniform(Uniform { replacement: true, .. }));
        let first = Life { batches: first.batches.max(usize::from(own)), ..first };
        let Some(mut ranks) = run.engines(first) else { return Ok(()) };
        let epoch = u64::from(scored);
        if scored {
            // With scores, the epoch's order is of these ranks' beliefs.
            lives(&run, &ranks, usize::MAX);
        }
        let whole: Vec<SampleId> = {
            if exchange {
                self::exchange(&ranks);
            }
            let plans: Vec<Vec<SampleId>> = ranks.iter().map(|rank| rank.plan().unwrap().order.ids.clone()).collect();
            in_turn(&plans.iter().map(Vec::as_slice).collect::<Vec<_>>())
        };
        let mut delivered = ids(&lives(&run, &ranks, first.batches));
        let mut before = first;
        let mut dropped = 0;
        for mut next in others {
            if next.ranks == before.ranks {
                next.batch_size = before.batch_size; // as many ranks are the same run
            }
            let Some(made) = run.engines(next) else { continue };
            // One state where that is enough: always, or now and then.
            let one = ((!adaptive || exchange) && (!all_saved || next.saved % 2 == 1)).then_some(before.saved);
            let all = states(&ranks, one);
            let note = load(&made, &all);
            // Once more, from what was just loaded: a state that nobody has gone on from yet is a state.
            let copied = run.engines(next).unwrap();
            prop_assert_eq!(load(&copied, &states(&made, one.map(|_| next.saved))), None);
            ranks = if all_saved { copied } else { made };
            if ranks[0].epoch() > epoch || note.is_some() {
                let named = |note: String| note.split(": ").nth(1)?.split(' ').next()?.parse().ok();
                let out: usize = note.map_or(0, |note| named(note).unwrap());
                let left = whole.len() - delivered.len();
                // An epoch that ranks have ended leaves what they could not share, which was said when they took it up.
                let told = if out > 0 { out } else { dropped };
                prop_assert!(drop_last || ranks[0].epoch() == epoch || told == left, "{} of {}", told, left);
                prop_assert!(out < next.ranks as usize);
                dropped = if ranks[0].epoch() > epoch { left } else { out };
                if ranks[0].epoch() > epoch {
                    break;
                }
            } else if next.ranks != before.ranks {
                // All that was left could be shared anew.
                dropped = 0;
            }
            let numbers: Vec<usize> = {
                let seen = lives(&run, &ranks, next.batches);
                delivered.extend(ids(&seen));
                seen[0].iter().map(|batch| batch.1).collect()
            };
            prop_assert!(numbers.windows(2).all(|two| two[0] + 1 == two[1]));
            before = next;
        }
        if ranks[0].epoch() == epoch || ranks[0].plan().unwrap().epoch == epoch {
            // Those who are there end it.
            let rest = states(&ranks, None);
            let last = run.engines(before).unwrap();
            prop_assert_eq!(load(&last, &rest), None);
            if last[0].epoch() == epoch {
                let seen = lives(&run, &last, usize::MAX);
                prop_assert_eq!(seen[0].last().unwrap().1 + 1, last[0].batches_per_epoch());
                delivered.extend(ids(&seen));
            }
            ranks = last;
        }
        let mut missing = whole.clone();
        for id in &delivered {
            let at = missing.iter().position(|of| of == id);
            prop_assert!(at.is_some(), "{} came more often than it was drawn", id);
            missing.swap_remove(at.unwrap());
        }
        let most = if drop_last { before.ranks as usize * before.batch_size } else { before.ranks as usize };
        prop_assert!(missing.len() < most.max(dropped + 1), "{} of {} are missing", missing.len(), whole.len());
        if !drop_last && dropped == 0 {
            prop_assert!(missing.len() < before.ranks as usize && (missing.is_empty() || before.batch_size == 1));
        }
        // The next epoch.
        if !adaptive {
            let fresh = run.engines(Life { ranks: ranks.len() as u32, ..ranks_of(&ranks) }).unwrap();
            fresh.iter().for_each(|rank| rank.set_epoch(epoch + 1).unwrap());
            let (found, expected) = (lives(&run, &ranks, usize::MAX), lives(&run, &fresh, usize::MAX));
            if exchange {
                // A rank that has a sample is dealt it, and fresh ranks have none.
                prop_assert_eq!(steps(&found), steps(&expected));
            } else {
                prop_assert_eq!(found, expected);
            }
        }
    }
}

/// The rows of each step, whichever rank delivered them.
fn steps(seen: &[Seen]) -> Vec<Vec<(SampleId, u32)>> {
    let step = |at: usize| {
        let of = |seen: &Seen| seen[at].2.iter().copied().zip(seen[at].3.iter().copied()).collect::<Vec<_>>();
        let mut rows: Vec<_> = seen.iter().flat_map(of).collect();
        rows.sort_unstable();
        rows
    };
    (0..seen[0].len()).map(step).collect()
}

fn ranks_of(ranks: &[Engine]) -> Life {
    Life { ranks: ranks.len() as u32, batch_size: ranks[0].settings().batch_size, batches: 0, saved: 0 }
}

fn run(samples: u32, sampler: SamplerSettings) -> Run {
    Run { samples, sampler, seed: 3, drop_last: false, exchange: false, cached: true }
}

fn four() -> Life {
    Life { ranks: 4, batch_size: 4, batches: 3, saved: 0 }
}

#[test]
fn beliefs_of_all_ranks_come_together_and_later_epochs_are_drawn_by_them() {
    let run = run(64, SamplerSettings::Importance(Importance::default()));
    let ranks = run.engines(four()).unwrap();
    lives(&run, &ranks, usize::MAX);
    lives(&run, &ranks, 2);
    let alone = run.engine(0, Life { ranks: 1, ..four() }).unwrap();
    assert_eq!(load(std::slice::from_ref(&alone), &states(&ranks, None)), None);
    let beliefs = alone.importance();
    for (rank, engine) in ranks.iter().enumerate() {
        for (id, belief) in engine.importance().into_iter().enumerate().filter(|(_, belief)| !belief.is_nan()) {
            assert_eq!(beliefs[id].to_bits(), belief.to_bits(), "sample {id} of rank {rank}");
        }
    }
    assert!(beliefs.iter().all(|belief| !belief.is_nan()), "every sample was scored by its rank");
}

#[test]
fn one_state_of_ranks_with_orders_of_their_own_is_refused_with_what_helps() {
    let run = run(64, SamplerSettings::Importance(Importance::default()));
    let ranks = run.engines(four()).unwrap();
    lives(&run, &ranks, 2);
    let all = states(&ranks, None);
    let two = run.engine(1, Life { ranks: 2, ..four() }).unwrap();
    let refused = two.load_states(&[all[0].as_slice()]).unwrap_err().to_string();
    assert!(refused.contains("rank 3 of 4") && refused.contains("Load the states of all 4 ranks"), "{refused}");
    assert!(refused.contains("set_epoch(1)"), "{refused}");
    let other = run.engine(1, four()).unwrap();
    let refused = other.load_states(&[all[0].as_slice()]).unwrap_err().to_string();
    assert!(refused.contains("rank 3 of 4") && refused.contains("this is rank 1 of 4"), "{refused}");
    let some: Vec<&[u8]> = all[..3].iter().map(Vec::as_slice).collect();
    let refused = two.load_states(&some).unwrap_err().to_string();
    assert!(refused.contains("3 states given, of ranks [1, 2, 3] of 4"), "{refused}");
    assert!(two.load_states(&[]).unwrap_err().to_string().contains("pass the result of state_dict"));
    // Of two moments.
    lives(&run, &ranks[..1], 1);
    let torn: Vec<Vec<u8>> = states(&ranks[..1], None).into_iter().chain(all[..3].iter().cloned()).collect();
    let torn: Vec<&[u8]> = torn.iter().map(Vec::as_slice).collect();
    let refused = two.load_states(&torn).unwrap_err().to_string();
    assert!(
        refused.contains("the states are not from the same step of one run")
            && refused.contains("batches of it delivered"),
        "{refused}"
    );
    // Everything else that shapes orders stays.
    let other = Run { seed: 4, ..run }.engine(0, Life { ranks: 2, ..four() }).unwrap();
    let all: Vec<&[u8]> = all.iter().map(Vec::as_slice).collect();
    let refused = other.load_states(&all).unwrap_err().to_string();
    assert!(refused.contains("seed 3 (this loader: 4)") && !refused.contains("world_size"), "{refused}");
}

#[test]
fn between_epochs_one_state_is_enough_and_says_whose_beliefs_it_has() {
    let run = run(64, SamplerSettings::Importance(Importance::default()));
    let ranks = run.engines(four()).unwrap();
    lives(&run, &ranks, usize::MAX);
    let two = run.engines(Life { ranks: 2, ..four() }).unwrap();
    let note = load(&two, &states(&ranks, Some(0))).unwrap();
    assert!(note.contains("rank 0 of 4"), "{note}");
    assert_eq!(two[0].epoch(), 1);
    let mut came = ids(&lives(&run, &two, usize::MAX));
    came.sort_unstable();
    came.dedup();
    assert!(came.len() > 32, "an epoch of two ranks");
}

#[test]
fn what_some_ranks_could_not_share_is_dealt_to_others() {
    let given = SamplerSettings::Given(Given::default());
    for sampler in
        [SamplerSettings::Uniform(Uniform::default()), SamplerSettings::Importance(Importance::default()), given]
    {
        let run = run(20, sampler);
        let life = |ranks, batch_size| Life { ranks, batch_size, batches: 0, saved: 0 };
        let one = run.engines(life(1, 5)).unwrap();
        let mut seen = Seen::new();
        if run.sampler.given().is_some() {
            let pass = one[0].start_given(&(0..20).collect::<Vec<_>>(), None).unwrap();
            let Next::Batch(batch) = one[0].next_batch(pass, Duration::from_secs(60)).unwrap() else {
                panic!("no batch")
            };
            assert_eq!(*batch.ticket.ids, [0, 1, 2, 3, 4]);
        } else {
            deliver(&one[0], 1, &mut seen);
        }
        // 15 samples cannot be four equal shares. Nobody steps, and 5 ranks can share all of them.
        let four = run.engines(life(4, 1)).unwrap();
        let note = load(&four, &states(&one, None));
        assert!(
            note.as_ref().is_some_and(|note| note.contains(": 3 of them are skipped")),
            "{} {note:?}",
            sampler.name()
        );
        let five = run.engines(life(5, 1)).unwrap();
        assert_eq!(load(&five, &states(&four, None)), None, "{}", sampler.name());
        assert_eq!(ids(&lives(&run, &five, usize::MAX)).len(), 15, "{}", sampler.name());
    }
}

/// All states at first and one at the next change: where halved last batches differ in length, what the ranks' orders have
/// left is not in the order of the list that one state tells of.
#[test]
fn ranks_that_exchange_go_by_the_list_with_all_states_too() {
    let run = Run { exchange: true, ..run(66, SamplerSettings::Importance(Importance::default())) };
    let life = |ranks, batch_size| Life { ranks, batch_size, batches: 0, saved: 0 };
    let four = run.engines(life(4, 8)).unwrap();
    exchange(&four);
    let plans: Vec<Vec<SampleId>> = four.iter().map(|rank| rank.plan().unwrap().order.ids.clone()).collect();
    let mut left = plans.concat();
    let mut came = ids(&lives(&run, &four, 2));
    let two = run.engines(life(2, 1)).unwrap();
    assert_eq!(load(&two, &states(&four, None)), None);
    came.extend(ids(&lives(&run, &two, 1)));
    let three = run.engines(life(3, 2)).unwrap();
    load(&three, &states(&two, Some(1)));
    came.extend(ids(&lives(&run, &three, usize::MAX)));
    for id in came {
        left.swap_remove(left.iter().position(|of| *of == id).unwrap_or_else(|| panic!("{id} came too often")));
    }
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_buffer_goes_on_with_the_next_epoch_and_says_so() {
    let run = run(64, SamplerSettings::Echo(Echo { lag: 16, ..Echo::default() }));
    let ranks = run.engines(four()).unwrap();
    lives(&run, &ranks, 2);
    let two = run.engines(Life { ranks: 2, ..four() }).unwrap();
    let note = load(&two, &states(&ranks, None)).unwrap();
    assert!(note.contains("sampler=\"echo\"") && note.contains("epoch 1 comes next"), "{note}");
    assert_eq!(two[0].epoch(), 1);
    let again = run.engines(Life { ranks: 2, ..four() }).unwrap();
    for (again, of) in again.iter().zip(&two) {
        again.load_state(&of.state().unwrap()).unwrap();
    }
    assert_eq!(lives(&run, &again, usize::MAX), lives(&run, &two, usize::MAX));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Orders of the ranks' own, of any lengths.
    #[test]
    fn what_ranks_were_given_and_did_not_deliver_is_dealt_to_others(
        given in prop::collection::vec(prop::collection::vec(0i64..50, 0..20), 1..4),
        first in life(), next in life(), third in life(),
    ) {
        let run = run(50, SamplerSettings::Given(Given::default()));
        let first = Life { ranks: given.len() as u32, ..first };
        let ranks = run.engines(first).unwrap();
        let mut delivered = Vec::new();
        for (rank, given) in ranks.iter().zip(&given) {
            let pass = rank.start_given(given, None).unwrap();
            for _ in 0..first.batches.min(given.len().saturating_sub(1) / first.batch_size) {
                let Next::Batch(batch) = rank.next_batch(pass, Duration::from_secs(60)).unwrap() else {
                    panic!("no batch")
                };
                delivered.extend(batch.ticket.ids.iter().map(|&id| i64::from(id)));
            }
        }
        if given.iter().any(Vec::is_empty) {
            return Ok(()); // an epoch without a batch is over before it begins
        }
        let mut ranks = ranks;
        for life in [next, third] {
            if life.ranks == ranks.len() as u32 {
                continue;
            }
            let made = run.engines(life).unwrap();
            load(&made, &states(&ranks, None));
            ranks = made;
            if ranks[0].epoch() == 1 {
                break;
            }
            prop_assert!(ranks.iter().all(|rank| rank.has_order().unwrap()));
            delivered.extend(ids(&lives(&run, &ranks, life.batches)).into_iter().map(i64::from));
        }
        if ranks.len() != given.len() && (ranks[0].epoch() == 0 || ranks[0].plan().is_ok_and(|plan| plan.epoch == 0)) {
            let last = run.engines(ranks_of(&ranks)).unwrap();
            load(&last, &states(&ranks, None));
            if last[0].epoch() == 0 {
                delivered.extend(ids(&lives(&run, &last, usize::MAX)).into_iter().map(i64::from));
            }
            let mut missing = given.concat();
            for id in delivered {
                let at = missing.iter().position(|of| *of == id);
                prop_assert!(at.is_some(), "{} came more often than it was given", id);
                missing.swap_remove(at.unwrap());
            }
            prop_assert!(missing.is_empty() || missing.len() < last.len(), "{:?}", missing);
        }
    }

    /// A state that was changed, with its checksum mended, is refused or obeyed, and nothing else happens.
    #[test]
    fn a_changed_state_ends_nothing(
        first in life(), next in life(),
        places in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        digits in prop::collection::vec((any::<prop::sample::Index>(), 0u8..10), 0..3), importance: bool,
    ) {
        let kind = if importance {
            SamplerSettings::Importance(Importance::default())
        } else {
            SamplerSettings::Uniform(Uniform::default())
        };
        let run = run(60, kind);
        let next = if next.ranks == first.ranks { first } else { next };
        let ranks = run.engines(first);
        let middle = run.engines(next);
        let (Some(ranks), Some(middle), Some(last)) = (ranks, middle, run.engines(first)) else { return Ok(()) };
        lives(&run, &ranks, first.batches);
        load(&middle, &states(&ranks, None));
        lives(&run, &middle, 1);
        let mut all = states(&middle, None);
        for state in &mut all {
            let body = state.len() - 8;
            let numbers: Vec<usize> = (12..body).filter(|&at| state[at].is_ascii_digit()).collect();
            digits.iter().for_each(|(place, digit)| state[numbers[place.index(numbers.len())]] = b'0' + digit);
            if digits.is_empty() {
                places.iter().for_each(|(place, byte)| state[place.index(body)] = *byte);
            }
            let mut digest = fnv::FnvHasher::default();
            std::hash::Hasher::write(&mut digest, &state[..body]);
            let digest = std::hash::Hasher::finish(&digest).to_le_bytes();
            state[body..].copy_from_slice(&digest);
        }
        let all: Vec<&[u8]> = all.iter().map(Vec::as_slice).collect();
        for rank in &last {
            if rank.load_states(&all).is_ok() {
                let mut seen = Seen::new();
                deliver(rank, 3, &mut seen);
            }
        }
    }
}
