//! Orders of more than 2²⁴ ids: from there on a float32 counts only every second number, and torch's multinomial stops.

use lossfeed::index::ScoreTable;
use lossfeed::sampler::{Order, Outlook, SamplerSettings};

const SAMPLES: u32 = (1 << 24) + 700_001;

/// What one rank of one draws in its fourth epoch.
fn draw(name: &str, owned: &[u32], scores: &ScoreTable) -> Order {
    let outlook =
        Outlook { owned, samples: SAMPLES, epoch: 3, seed: 11, rank: 0, world_size: 1, scores, resident: &|_| false };
    SamplerSettings::from_name(name).unwrap().build().unwrap().draw(&outlook).unwrap()
}

/// The part of the first half of an order that lies above 2²⁴: as large as of all ids.
fn assert_spread(ids: &[u32], expected: f64) {
    let half = &ids[..ids.len() / 2];
    let above = half.iter().filter(|&&id| id >= 1 << 24).count() as f64 / half.len() as f64;
    // A standard error is 0.00007.
    assert!((above - expected).abs() < 0.0006, "{above} of the first half lie above 2^24, not {expected}");
}

#[test]
fn above_two_to_the_24_uniform_is_a_permutation_and_importance_draws_each_id_as_often_as_its_weight_says() {
    let part_above = f64::from(SAMPLES - (1 << 24)) / f64::from(SAMPLES);
    let mut came = vec![0u8; SAMPLES as usize];
    let Order { ids, weights } = draw("uniform", &[], &ScoreTable::new(SAMPLES as usize, 0.0));
    assert_eq!(ids.len(), SAMPLES as usize);
    ids.iter().for_each(|&id| came[id as usize] += 1);
    assert!(came.iter().all(|&times| times == 1) && weights.iter().all(|&weight| weight == 1.0));
    assert!(ids[..1000].iter().zip(0..).filter(|&(&id, place)| id == place).count() < 5, "nothing was shuffled");
    assert_spread(&ids, part_above);
    drop((ids, weights));

    // Four beliefs, of which each id's own is known; their mean is 2.5.
    let belief = |id: u32| f64::from(1 + (id.wrapping_mul(0x9e37_79b9) >> 30));
    let mut scores = ScoreTable::new(SAMPLES as usize, 0.0);
    (0..SAMPLES).for_each(|id| _ = scores.record(id, belief(id) as f32, 0));
    let owned: Vec<u32> = (0..SAMPLES).collect();
    let mean = owned.iter().map(|&id| belief(id)).sum::<f64>() / f64::from(SAMPLES);
    let Order { ids, weights } = draw("importance", &owned, &scores);
    assert_eq!(ids.len(), SAMPLES as usize);
    came.fill(0);
    let floor = 0.2; // Its default.
    let expected = |id: u32| floor + (1.0 - floor) * belief(id) / mean;
    for (&id, &weight) in ids.iter().zip(&weights) {
        came[id as usize] += 1;
        assert!((f64::from(weight) * expected(id) - 1.0).abs() < 1e-3, "id {id} has the weight {weight}");
    }
    for id in 0..SAMPLES {
        let (times, expected) = (f64::from(came[id as usize]), expected(id));
        let (least, most) = ((expected - 1e-3).floor(), (expected + 1e-3).ceil());
        assert!(least <= times && times <= most, "id {id} came {times} times, {expected} expected");
    }
    assert_spread(&ids, part_above);
}
