//! What is drawn from the buffer, held to lists and to sums over all beginnings.

use super::*;
use crate::index::{Fenwick, Weight};
use crate::random::below_u128;
use crate::sampler::Block;

fn setup(by_score: bool, residents_max: usize) -> BufferSetup {
    BufferSetup {
        options: BufferOptions { fresh: 0.25, lag: 8, by_score, block: Block::default() },
        residents_max,
        seed: 3,
        rank: 0,
        share_weight: 1.0,
        owned: (0..64).collect(),
        awaits_weights: false,
    }
}

/// Weights are 1 over (residents × chance): over the chances they add up to the mean over the buffer.
#[test]
fn weights_undo_the_chances() {
    for weights in [vec![0, 0, 0], vec![1, 5, 0, 2], vec![7], vec![0, 9], vec![3, 3, 3, 30]] {
        let mut tree = Fenwick::new(weights.len() + 2);
        weights.iter().enumerate().for_each(|(place, &weight)| tree.set(place + 1, Some(Weight::Of(weight))));
        for place in 0..weights.len() {
            let chance = tree.chance_of(place + 1) as f64 / tree.span() as f64;
            assert!((tree.fair(place + 1) * chance * weights.len() as f64 - 1.0).abs() < 1e-12);
        }
        assert_eq!((0..weights.len()).map(|place| tree.chance_of(place + 1)).sum::<u128>(), tree.span());
    }
}

/// The tree after many changes is the tree built anew, and finds what a walk over the places finds.
#[test]
fn a_tree_that_was_changed_is_the_tree_built_anew() {
    let rng = &mut generator(1, 0, 0, Purpose::Replay);
    let mut tree = Fenwick::new(37);
    let mut weights = vec![None; 37];
    for round in 0..400u32 {
        let place = crate::random::below(rng, 37) as usize;
        weights[place] = match round % 5 {
            0 => None,
            1 if round < 300 => Some(Weight::Average),
            _ => Some(Weight::Of(crate::random::below(rng, 1 << 31))),
        };
        tree.set(place, weights[place]);
        let mut anew = Fenwick::new(37);
        weights.iter().enumerate().for_each(|(place, &weight)| anew.set(place, weight));
        assert_eq!(tree, anew);
        if tree.count() == 0 {
            continue;
        }
        let mark = below_u128(rng, tree.span());
        let weighed: Vec<u32> = weights
            .iter()
            .flatten()
            .filter_map(|weight| match weight {
                Weight::Of(weight) => Some(*weight),
                Weight::Average => None,
            })
            .collect();
        let (total, weighed) = (weighed.iter().map(|&w| u128::from(w)).sum::<u128>(), weighed.len() as u128);
        let mut below = 0;
        let walked = weights.iter().position(|weight| {
            below += match weight {
                None => 0,
                Some(_) if total == 0 => 1,
                Some(Weight::Of(weight)) => total + 4 * weighed * u128::from(*weight),
                Some(Weight::Average) => 5 * total,
            };
            mark < below
        });
        assert_eq!(Some(tree.find(mark)), walked);
    }
}

/// A part of the rows is that part over batches of any size, and what is asked for many at once is what they take one
/// by one.
#[test]
fn new_rows_are_as_many_over_batches_as_were_asked_for() {
    for part in [0.25, 0.14, 1.0 / 64.0, 1.0, 0.333] {
        for rows in [1usize, 2, 3, 6, 32, 128] {
            let owned = (0..400).collect();
            let mut buffer = Buffer::new(BufferSetup { owned, ..setup(false, 200) }, 400);
            buffer.setup.options.fresh = part;
            (0..200).for_each(|id| buffer.enter(id, None));
            assert_eq!(buffer.fresh(rows, 5..12), 7 * rows, "it fills at first");
            buffer.full = true;
            let each: Vec<usize> = (0..6400).map(|serial| buffer.fresh(rows, serial..serial + 1)).collect();
            assert_eq!(each[100..300].iter().sum::<usize>(), buffer.fresh(rows, 100..300));
            let due = 6400.0 * rows as f64 * part;
            assert!((each.iter().sum::<usize>() as f64 - due).abs() <= 1.0, "{part} of {rows}");
            let one = rows as f64 * part;
            assert!(each.iter().all(|&of| (of as f64 - one).abs() < 1.0), "{part} of {rows}");
        }
    }
    // Nobody is used again where the whole share is resident.
    let mut all = Buffer::new(setup(false, 64), 64);
    (0..64).for_each(|id| all.enter(id, None));
    all.full = true;
    assert_eq!((all.setup.owned.len(), all.fresh(8, 3..5)), (64, 16));
    all.leave(0);
    assert_eq!(all.fresh(8, 3..5), 4);
    // As many as are missing of those that could be used again.
    let mut few = Buffer::new(setup(false, 4), 8);
    (0..3).for_each(|id| few.enter(id, None));
    few.full = true;
    assert_eq!((few.fresh(8, 0..1), few.fresh(8, 0..10), few.fresh(2, 0..10)), (5, 50, 5));
}

/// A run whose seed was left open draws what that seed draws.
#[test]
fn a_seed_that_comes_late_draws_what_it_draws() {
    let mut late = Buffer::new(BufferSetup { seed: 0, ..setup(true, 50) }, 64);
    late.reseed(3);
    let mut known = Buffer::new(setup(true, 50), 64);
    for id in 0..50 {
        late.enter(id, Some(id as f32));
        known.enter(id, Some(id as f32));
    }
    (0..20).for_each(|serial| assert_eq!(late.draw(7, serial), known.draw(7, serial)));
}

#[test]
fn a_pass_draws_everybody_once_and_arrivals_wait_for_the_next() {
    let mut buffer = Buffer::new(setup(false, 12), 64);
    (0..10).for_each(|id| buffer.enter(id, None));
    let mut seen: Vec<SampleId> = (0..3).flat_map(|serial| buffer.draw(3, serial)).map(|(id, _)| id).collect();
    buffer.enter(10, None);
    seen.extend(buffer.draw(1, 3).iter().map(|&(id, _)| id));
    seen.sort_unstable();
    assert_eq!(seen, (0..10).collect::<Vec<_>>());
    // The next pass: 0 has left, 5 cannot be read.
    buffer.leave(0);
    buffer.drop_out(5);
    let mut next: Vec<SampleId> = buffer.draw(9, 4).iter().map(|&(id, _)| id).collect();
    next.sort_unstable();
    assert_eq!(next, [1, 2, 3, 4, 6, 7, 8, 9, 10]);
}

#[test]
fn what_was_written_is_read_back_and_draws_the_same() {
    for by_score in [false, true] {
        let mut buffer = Buffer::new(setup(by_score, 9), 64);
        for id in 0..40u32 {
            if id >= 9 {
                buffer.leave(id - 9);
            }
            buffer.enter(id, Some((id % 7) as f32));
            buffer.rescore(id.saturating_sub(3), (id % 5) as f32);
            if id % 6 == 0 {
                buffer.drop_out(id);
            }
            if id > 12 {
                buffer.draw(3, u64::from(id));
            }
        }
        let mut words = Words::default();
        buffer.write(&mut words);
        let mut again = Buffer::new(setup(by_score, 9), 64);
        let mut reader = Reader::new(&words.0);
        assert_eq!(again.read(&mut reader).unwrap(), (31..40).collect::<Vec<_>>());
        reader.end().unwrap();
        for id in 40..60u32 {
            assert_eq!(buffer.draw(4, u64::from(id)), again.draw(4, u64::from(id)));
            for buffer in [&mut buffer, &mut again] {
                buffer.leave(id - 9);
                buffer.enter(id, None);
            }
        }
        // Whatever is cut off or changed is an error or another buffer, never a panic.
        for length in 0..words.0.len() {
            let read = Buffer::new(setup(by_score, 9), 64).read(&mut Reader::new(&words.0[..length]));
            assert!(read.is_err());
        }
        for at in 0..words.0.len() {
            for change in [1, 1 << 31, u32::MAX] {
                let mut changed = words.0.clone();
                changed[at] ^= change;
                let _ = Buffer::new(setup(by_score, 9), 64).read(&mut Reader::new(&changed));
            }
        }
    }
}

/// Over complete stays every sample weighs the same in all, B / fresh, whatever its score: also where a score follows
/// from being used, and where it is learnt only some batches later.
#[test]
fn over_complete_stays_every_sample_weighs_the_same() {
    let (places, samples, rows, fresh, lag) = (300u32, 100_000u32, 32u32, 4u32, 6usize);
    let mut buffer = Buffer::new(setup(true, places as usize), samples as usize);
    // Hard samples stay hard, others are learnt with every use; both are measured with noise.
    let score = |id: SampleId, uses: u32| {
        let noise = 0.5 + f64::from((id * 31 + uses * 17) % 16) / 16.0;
        noise * if id.is_multiple_of(4) { 4.0 } else { 2.0 * 0.7f64.powi(uses as i32) }
    };
    let (mut mass, mut uses) = (vec![1.0f64; samples as usize], vec![1u32; samples as usize]);
    let mut late = std::collections::VecDeque::new();
    for batch in 0..samples / fresh {
        let mut drawn = Vec::new();
        if batch * fresh >= places {
            for (id, weight) in buffer.draw((rows - fresh) as usize, u64::from(batch)) {
                mass[id as usize] += f64::from(weight);
                uses[id as usize] += 1;
                drawn.push(id);
            }
        }
        for id in batch * fresh..(batch + 1) * fresh {
            if id >= places {
                buffer.leave(id - places);
            }
            buffer.enter(id, None);
            drawn.push(id);
        }
        late.push_back(drawn);
        if late.len() > lag {
            for id in late.pop_front().unwrap() {
                buffer.rescore(id, score(id, uses[id as usize]) as f32);
            }
        }
    }
    // Whose stay began when the buffer was full, and ended.
    let whole = 2 * places..samples - 2 * places;
    for kind in 0..4 {
        let of: Vec<f64> = whole.clone().filter(|id| id % 4 == kind).map(|id| mass[id as usize]).collect();
        let mean = of.iter().sum::<f64>() / of.len() as f64;
        let spread = (of.iter().map(|m| (m - mean).powi(2)).sum::<f64>() / of.len() as f64).sqrt();
        let expected = f64::from(rows) / f64::from(fresh);
        println!("{kind}: {mean:.3} ± {spread:.3}");
        assert!((mean / expected - 1.0).abs() < 0.04, "kind {kind}: {mean} instead of {expected}");
    }
}

/// The promise of a batch, summed over every beginning that differs: for any function of the samples the weighted draws
/// have the mean over the buffer, times what a sample of this rank's share weighs. Exactly, and for every batch of a
/// run.
#[test]
fn over_all_beginnings_every_batch_has_the_mean_of_the_buffer() {
    const GRID: [(usize, u32); 3] = [(2, 20), (1, 6), (3, 14)];
    // Chances of 5, 1, 9 and 5 in 20: the first two have 6 of them, the last two 14. So a node's fraction of a draw is a
    // whole number of twentieths, sixths or fourteenths, and a beginning in the middle of each stands for all in it.
    let beliefs = [1.0, 0.0, 2.0, 1.0];
    let of: [f64; 4] = [3.0, -8.0, 0.25, 100.0];
    let share_weight = 1.5;
    let batches = [3usize, 1, 6, 2];
    let (mut sums, mut times) = ([0.0f64; 4], [[0u32; 4]; 4]);
    let middle = |part: u32, parts: u32| (((2 * u64::from(part) + 1) << 31) / u64::from(parts)) as u32;
    for (a, b, c) in (0..20).flat_map(|a| (0..6).flat_map(move |b| (0..14).map(move |c| (a, b, c)))) {
        let mut buffer = Buffer::new(BufferSetup { share_weight, ..setup(true, 4) }, 64);
        (0..4).for_each(|id| buffer.enter(id, Some(beliefs[id as usize])));
        let mut behind = vec![1 << 31; 5];
        GRID.iter().zip([a, b, c]).for_each(|(&(node, parts), part)| behind[node] = middle(part, parts));
        assert!(buffer.by_score.as_mut().unwrap().spread.restore(behind));
        for (batch, &rows) in batches.iter().enumerate() {
            for (id, weight) in buffer.draw(rows, batch as u64) {
                times[batch][id as usize] += 1;
                sums[batch] += f64::from(weight) * of[id as usize] / rows as f64;
            }
        }
    }
    let beginnings = GRID.iter().map(|&(_, parts)| parts).product::<u32>();
    for (batch, &rows) in batches.iter().enumerate() {
        assert_eq!(times[batch], [5, 1, 9, 5].map(|chance| beginnings * rows as u32 * chance / 20));
        let mean = sums[batch] / f64::from(beginnings);
        let expected = f64::from(share_weight) * of.iter().sum::<f64>() / 4.0;
        assert!((mean / expected - 1.0).abs() < 1e-6, "batch {batch}: {mean} instead of {expected}");
    }
}
