//! What batches to come will want, held to a walk over the rest of the order and over the next one.

use std::sync::Arc;

use lossfeed::control::{Ahead, Control, Cut, Drawing, Plan, Room, Turn};
use lossfeed::index::ScoreTable;
use lossfeed::ledger::Ledger;
use lossfeed::sampler::{Batches, Blocks, CostAware, Order, Sampler, Uniform};
use lossfeed::types::SampleId;
use lossfeed_lab::policies;
use proptest::prelude::*;

const ROOM: Room = Room { free_bytes: u64::MAX, sample_bytes_max: u64::MAX };

fn bytes(id: SampleId) -> u64 {
    3 + u64::from(id % 5)
}

fn drawing(sampler: Arc<dyn Sampler>, samples: u32) -> Drawing {
    let owned = (0..samples).collect();
    Drawing {
        sampler,
        samples,
        owned,
        seed: 5,
        rank: 0,
        world_size: 1,
        blocks: Blocks::default(),
        awaits_weights: false,
        together: None,
    }
}

fn control(drawing: &Drawing, name: &str, capacity: u64) -> Control {
    let samples = drawing.samples as usize;
    let ledger = Ledger::new(capacity, samples, policies::from_name(name, samples).unwrap());
    Control::new(ScoreTable::new(samples, 0.5), ledger).with_drawing(drawing.clone())
}

fn plan(order: Arc<Order>, epoch: u64, batch_size: usize, drop_last: bool) -> Plan {
    let batches = Batches::new(order.ids.len(), batch_size, drop_last, 0, 1).unwrap();
    Plan { epoch, order, cut: Cut::Even(batches), behind: Vec::new() }
}

/// As the reading thread does: from the start, with the next order as soon as it is asked for.
fn walk(control: &mut Control, pass: u64) -> Option<Vec<(usize, SampleId)>> {
    let (mut wants, mut from) = (Vec::new(), 0);
    loop {
        let ahead = control.ahead(pass, from, ROOM, &bytes)?;
        wants.extend(ahead.wants.iter().map(|want| (want.place, want.id)));
        if ahead.whole {
            return Some(wants);
        }
        if ahead.undrawn {
            let (drawing, epoch) = control.to_foresee(pass).unwrap();
            assert!(control.foresee(pass, Some(Arc::new(drawing.draw_blind(epoch).unwrap()))).is_none());
        }
        from = ahead.next;
    }
}

proptest! {
    #[test]
    fn it_goes_on_with_the_next_epochs_order_and_leaves_out_who_is_resident(
        samples in 1u32..60,
        batch_size in 1usize..9,
        drop_last: bool,
        decided in prop::collection::vec(0usize..8, 1..5),
        name in prop::sample::select(vec!["lru", "minio", "sieve"]),
        capacity in 0u64..150,
        uniform in prop_oneof![
            Just(Uniform::default()),
            Just(Uniform { in_order: true, ..Uniform::default() }),
            Just(Uniform { replacement: true, ..Uniform::default() }),
        ],
    ) {
        prop_assume!(!drop_last || batch_size <= samples as usize);
        let drawing = drawing(Arc::new(uniform), samples);
        let mut control = control(&drawing, name, capacity);
        let orders: Vec<Order> = (0..6).map(|epoch| drawing.draw_blind(epoch).unwrap()).collect();
        let mut known: Option<Arc<Order>> = None;
        for (epoch, batches) in decided.into_iter().enumerate() {
            let order = known.take().unwrap_or_else(|| Arc::new(orders[epoch].clone()));
            let plan = plan(order, epoch as u64, batch_size, drop_last);
            let (draws, places) = (plan.drawn(), plan.clone());
            let places_of = |first| control.goes_on(&plan, first);
            prop_assert_eq!(places_of(0), (epoch > 0).then_some(draws..2 * draws), "the order that was foreseen");
            prop_assert_eq!(places_of(1), None);
            drop(control.take_foreseen());
            let pass = control.plan_and_begin(plan, 0);
            for _ in 0..batches.min(places.len()) {
                prop_assert!(matches!(control.decide(pass, &bytes), Turn::Decided(_)));
            }
            let naive = |from: usize, control: &Control| -> Vec<(usize, SampleId)> {
                let both = places.order.ids[..draws].iter().chain(&orders[epoch + 1].ids[..draws]);
                let all = both.copied().enumerate().skip(from);
                all.filter(|&(_, id)| !control.contains(id)).collect()
            };
            let expected = naive(places.range(batches.min(places.len())).start, &control);
            if batches < places.len() {
                prop_assert_eq!(walk(&mut control, pass), Some(expected));
            }
            // Also when the pass has ended.
            drop(control.end(pass));
            prop_assert_eq!(walk(&mut control, pass), Some(naive(draws, &control)));
            prop_assert_eq!(control.ahead(pass + 1, 0, ROOM, &bytes), None);
            known = control.foreseen(epoch as u64 + 1);
            prop_assert_eq!(known.as_deref(), Some(&orders[epoch + 1]));
            prop_assert_eq!(control.foreseen(epoch as u64), None);
        }
    }
}

#[test]
fn an_order_is_foreseen_only_where_seed_and_epoch_decide_it() {
    let uniform = drawing(Arc::new(Uniform::default()), 20);
    let order = || Arc::new(uniform.draw_blind(0).unwrap());
    let begun = |drawing: &Drawing, cut: Option<Cut>| {
        let mut control = control(drawing, "lru", 40);
        let mut plan = plan(order(), 0, 4, false);
        plan.cut = cut.unwrap_or(plan.cut);
        let pass = control.plan_and_begin(plan, 0);
        (control, pass)
    };
    let (mut first, pass) = begun(&uniform, None);
    assert!(first.foresees(true) && first.to_foresee(pass).is_some() && first.to_foresee(pass + 1).is_none());
    // An order that comes too late is handed back, one that cannot be drawn ends it, and so does another seed.
    assert!(first.foresee(pass + 1, Some(order())).is_some());
    assert!(first.foresee(pass, None).is_none() && !first.foresees(true));
    let ahead = first.ahead(pass, 0, ROOM, &bytes).unwrap();
    assert_eq!((ahead.wants.len(), ahead.whole, ahead.beyond), (20, true, None));
    drop(first.end(pass));
    assert_eq!(first.ahead(pass, 0, ROOM, &bytes), None::<Ahead>);
    let (mut other, _) = begun(&uniform, None);
    other.reseed(6);
    assert!(!other.foresees(true));
    // By scores, by weights that may come, by a caller, or of too many samples.
    assert!(!begun(&drawing(Arc::new(CostAware::default()), 20), None).0.foresees(true));
    assert!(!begun(&Drawing { awaits_weights: true, ..uniform.clone() }, None).0.foresees(true));
    assert!(!begun(&uniform, Some(Cut::At(vec![7, 20]))).0.foresees(true));
    let large = Drawing { samples: (1 << 24) + 1, ..uniform.clone() };
    let mut vast = control(&uniform, "lru", 40).with_drawing(large);
    vast.plan_and_begin(plan(Arc::new(Order { ids: vec![1], weights: vec![1.0] }), 0, 4, false), 0);
    assert!(!vast.foresees(true));
}
