//! One seed, one order, for ever and on every machine. A change here makes every resumed run deliver other samples.

use lossfeed::index::ScoreTable;
use lossfeed::sampler::{Order, Outlook, SamplerSettings, owned_ids};

fn draw(name: &str, epoch: u64, rank: u32, seen: bool) -> Order {
    let mut scores = ScoreTable::new(12, 0.5);
    if seen {
        (0..12).for_each(|id| _ = scores.record(id, 0.25 * id as f32, 0));
    }
    let outlook = Outlook {
        owned: &owned_ids(12, 2026, rank, 2, 1),
        samples: 12,
        epoch,
        seed: 2026,
        rank,
        world_size: 2,
        scores: &scores,
        resident: &|id| id % 3 == 0,
    };
    SamplerSettings::from_name(name).unwrap().build().unwrap().draw(&outlook).unwrap()
}

#[test]
fn a_seed_gives_the_same_epoch_for_ever() {
    let ids = |name, rank, seen| draw(name, 3, rank, seen).ids;
    assert_eq!(ids("uniform", 0, false), [2, 5, 10, 4, 0, 7]);
    assert_eq!(ids("uniform", 1, false), [3, 6, 8, 1, 9, 11]);
    assert_eq!(owned_ids(12, 2026, 0, 2, 1), [0, 2, 6, 9, 10, 11]);
    assert_eq!(owned_ids(12, 2026, 1, 2, 1), [1, 3, 4, 5, 7, 8]);
    assert_eq!(ids("pads", 1, true), [3, 5, 5, 3, 5, 8]);
    assert_eq!(ids("importance", 1, true), [3, 8, 8, 7, 4, 5]);
    assert_eq!(ids("cost-aware", 1, true), [3, 7, 3, 3, 5, 3]);
    // Epochs in which they leave samples out.
    let later = |name, epoch| draw(name, epoch, 1, true).ids;
    assert_eq!(later("iis", 7), [8, 3, 4, 8, 5, 7]);
    assert_eq!(later("infobatch", 7), [8, 3, 4, 8, 5, 7]);
    assert_eq!(later("selective", 7), [8, 7, 8, 5, 8, 5]);
    assert_eq!(later("curriculum", 1), [1, 3, 3, 1, 1, 3]);
    assert_eq!(later("shade-as-coded", 7), [8, 5, 4, 7, 5, 8]);
    assert_eq!(later("ods", 7), [3, 7, 1, 5, 4, 8]);
    for name in ["pads", "importance", "cost-aware"] {
        assert_eq!(draw(name, 0, 1, false).ids, [8, 5, 1, 3, 4, 7], "{name}: a pass over what rank 1 owns");
    }
}

#[test]
fn weights_are_pinned_with_the_order() {
    // Owned by rank 1: 1 3 4 5 7 8 with beliefs a quarter of that, mean 7/6; residents 3. g = 0.2 + 0.8 belief / mean.
    let weights = draw("importance", 3, 1, true).weights;
    for (weight, expected) in weights.iter().zip([1.4, 0.636_363_6, 0.636_363_6, 0.714_285_7, 1.129_032_3, 0.945_945_9])
    {
        assert!((weight - expected).abs() < 1e-6, "{weights:?}");
    }
    let weights = draw("cost-aware", 3, 1, true).weights;
    for (weight, expected) in weights.iter().zip([0.29, 1.479_591_8, 0.29, 0.29, 1.959_459_5, 0.29]) {
        assert!((weight - expected).abs() < 1e-6, "{weights:?}");
    }
}

/// Long enough for draws to be mixed: samples that come more than once, and weights of both kinds.
#[test]
fn a_mixed_order_is_the_same_for_ever() {
    let mut scores = ScoreTable::new(32, 0.0);
    (0..32).for_each(|id| _ = scores.record(id, 1.0 + (id % 4) as f32, 1));
    let owned: Vec<u32> = (0..32).collect();
    let outlook = Outlook {
        owned: &owned,
        samples: 32,
        epoch: 3,
        seed: 2026,
        rank: 0,
        world_size: 1,
        scores: &scores,
        resident: &|id| id % 8 == 3,
    };
    let order = SamplerSettings::from_name("cost-aware").unwrap().build().unwrap().draw(&outlook).unwrap();
    let mixed = [
        19, 11, 19, 27, 3, 29, 6, 3, 19, 27, 7, 3, 11, 19, 2, 19, 3, 27, 1, 11, 11, 3, 31, 9, 27, 27, 3, 19, 11, 18,
        11, 26,
    ];
    assert_eq!(order.ids, mixed);
}
