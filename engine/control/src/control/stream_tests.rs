//! What a buffer sampler's next epoch takes of the stream is told before that epoch begins.

use super::*;
use crate::policy;
use crate::sampler::{Batches, Block, Blocks, Echo, Order, ReadCost, Replay, Sampler, Uniform};
use proptest::prelude::*;
use std::sync::Arc;

const ROOM: Room = Room { free_bytes: u64::MAX, sample_bytes_max: u64::MAX };

/// A run of a buffer sampler, with a cache of `kept` samples.
struct Run {
    control: Control,
    batch: usize,
    drop_last: bool,
    /// Of the pass under way.
    pass: u64,
    order: Arc<Order>,
    taken: usize,
}

fn bytes(_: SampleId) -> u64 {
    1
}

fn drawing(samples: u32, seed: u64, blocks: Blocks) -> Drawing {
    let sampler: Arc<dyn Sampler> = Arc::new(Echo::default());
    let owned = (0..samples).collect();
    Drawing { sampler, samples, owned, seed, rank: 0, world_size: 1, blocks, awaits_weights: false, together: None }
}

impl Run {
    fn new(samples: u32, kept: u64, batch: usize, drop_last: bool, fresh: f64, by_score: bool, block: u32) -> Self {
        let block = Block::Of(block);
        let echo = Echo { fresh, lag: 3, block }.options();
        let options = if by_score { Replay { fresh, lag: 3, block, ..Replay::default() }.options() } else { echo };
        let drawing = drawing(samples, 5, Blocks::new(block));
        let all = samples as usize;
        let setup = BufferSetup {
            options,
            residents_max: (kept as usize).min(all),
            seed: 5,
            rank: 0,
            share_weight: 1.0,
            owned: Arc::clone(&drawing.owned),
            awaits_weights: false,
        };
        let ledger = Ledger::new(kept, all, policy::from_name("fifo", all).unwrap());
        let control = Control::new(ScoreTable::new(all, 0.5), ledger).with_drawing(drawing).with_buffer(setup);
        Self { control, batch, drop_last, pass: 0, order: Arc::default(), taken: 0 }
    }

    /// A quarter is new.
    fn echo() -> Self {
        Self::new(60, 20, 8, false, 0.25, false, 1)
    }

    fn plan(&self, epoch: u64) -> Plan {
        let drawing = self.control.drawing().unwrap();
        let order = Arc::new(drawing.draw_stream(self.control.stream(epoch).unwrap(), drawing.owned.len()));
        let batches = Batches::new(order.ids.len(), self.batch, self.drop_last, 0, 1).unwrap();
        Plan { epoch, order, cut: Cut::Even(batches), behind: Vec::new() }
    }

    /// As a cache begins a pass. Which places of the one before are its own.
    fn begin(&mut self, epoch: u64, first: usize) -> Option<std::ops::Range<usize>> {
        let plan = self.plan(epoch);
        let goes_on = self.control.goes_on(&plan, first);
        drop(self.control.take_foreseen());
        self.order = Arc::clone(&plan.order);
        self.pass = self.control.plan_and_begin(plan, first);
        self.taken = self.control.buffered.as_ref().unwrap().taken();
        goes_on
    }

    /// Decides batches, at most so many. What was new in them, and how many there were.
    fn take(&mut self, most: usize) -> (Vec<SampleId>, usize) {
        let (mut new, mut batches) = (Vec::new(), 0);
        while batches < most
            && let Turn::Decided(decision) = self.control.decide(self.pass, &bytes)
        {
            let rows = &decision.rows[decision.rows.len() - (decision.reach - self.taken)..];
            new.extend(rows.iter().map(|row| row.drawn));
            (self.taken, batches) = (decision.reach, batches + 1);
        }
        (new, batches)
    }

    /// All that is told from place 0 on, and where the next pass is supposed to begin.
    fn told(&self) -> (Vec<(usize, SampleId)>, usize) {
        let (mut wants, mut from) = (Vec::new(), 0);
        loop {
            let ahead = self.control.ahead(self.pass, from, ROOM, &bytes).unwrap();
            assert!(!ahead.undrawn && self.control.to_foresee(self.pass).is_none());
            wants.extend(ahead.wants.iter().map(|want| (want.place, want.id)));
            if ahead.whole {
                return (wants, ahead.beyond.unwrap());
            }
            from = ahead.next;
        }
    }

    /// The same, by a walk over the stream.
    fn naive(&self) -> Vec<(usize, SampleId)> {
        let rest = self.order.ids.iter().copied().enumerate().skip(self.taken);
        rest.filter(|&(_, id)| !self.control.contains(id)).collect()
    }
}

proptest! {
    /// Whatever was supposed, and wherever each pass was left: what is told behind its end is what the next one takes
    /// first, in this order, less who is cached.
    #[test]
    fn the_next_pass_takes_what_was_told_behind_the_end_of_the_one_before(
        samples in 8u32..80,
        kept in 1u64..90,
        batch in 1usize..9,
        drop_last: bool,
        fresh in prop::sample::select(vec![0.1, 0.25, 0.5, 1.0]),
        by_score: bool,
        block in prop::sample::select(vec![1u32, 4, 16]),
        passes in prop::collection::vec((0u64..9, prop_oneof![Just(usize::MAX), 0usize..9]), 1..6),
    ) {
        let mut run = Run::new(samples, kept, batch, drop_last, fresh, by_score, block);
        let mut told_before: Option<Vec<SampleId>> = None;
        for (epoch, batches) in passes {
            let (before, taken) = (Arc::clone(&run.order), run.taken);
            let goes_on = run.begin(epoch, 0);
            let expected = taken..before.ids.len();
            prop_assert_eq!(goes_on, (!expected.is_empty()).then(|| expected.clone()));
            prop_assert_eq!(&run.order.ids[..expected.len()], &before.ids[expected]);
            let steady = run.control.buffered.as_ref().unwrap().buffer.full && kept >= batch as u64;
            let (told, supposed) = run.told();
            prop_assert_eq!(&told, &run.naive());
            // Who was told before the pass began is what it takes first.
            if let Some(before) = &told_before {
                let ids: Vec<SampleId> = told.iter().map(|&(_, id)| id).collect();
                prop_assert!(ids.starts_with(before), "{:?} does not begin with {:?}", ids, before);
            }
            // In two halves, so that it is looked at in the middle too.
            let mut new = run.take(batches.min(3)).0;
            prop_assert_eq!(run.told().0, run.naive());
            new.extend(run.take(batches.saturating_sub(3)).0);
            prop_assert_eq!(&new, &run.order.ids[..run.taken]);
            let whole = run.control.next_batch() == run.plan(epoch).len();
            if steady && whole {
                prop_assert_eq!(supposed, run.taken, "nothing came in between");
            }
            drop(run.control.end(run.pass));
            prop_assert!(run.control.foresees(whole) && run.control.foreseen(epoch + 1).is_none());
            let (told, beyond) = run.told();
            prop_assert_eq!(&told, &run.naive());
            prop_assert_eq!(beyond, run.taken);
            told_before = Some(told.into_iter().map(|(_, id)| id).collect());
        }
    }
}

#[test]
fn a_quarter_of_an_epoch_is_taken_and_the_next_three_are_foreseen() {
    let mut run = Run::echo();
    for epoch in 0..6 {
        let goes_on = run.begin(epoch, 0);
        run.take(usize::MAX);
        drop(run.control.end(run.pass));
        // The first is filled with new samples alone; later ones take 2 of 8 rows, and 1 of the last 4.
        if epoch > 1 {
            assert_eq!((goes_on, run.taken), (Some(15..60), 15));
            assert!(run.told().0.len() >= 25, "less the 20 that are cached");
        }
    }
}

#[test]
fn a_stream_goes_on_as_far_as_it_is_drawn_alike() {
    let found = |blocks: &mut Blocks, pass| {
        let cost = ReadCost { request_bytes: 1000, sample_bytes: 1000 };
        (0..2).for_each(|_| blocks.look(pass, cost));
    };
    // Two whole epochs take 48 of the first pass over the dataset.
    let run = || {
        let mut run = Run::echo();
        (0..2).for_each(|epoch| {
            run.begin(epoch, 0);
            run.take(usize::MAX);
            drop(run.control.end(run.pass));
        });
        run
    };
    let sampler = || -> Arc<dyn Sampler> { Arc::new(Echo::default()) };
    let options = |fresh| Some(Echo { fresh, lag: 3, ..Echo::default() }.options());
    let mut same = run();
    let rest = same.taken..60;
    same.control.retune(sampler(), options(0.5), Blocks::default());
    same.control.use_weights(true);
    assert!(!same.told().0.is_empty());
    assert_eq!(same.begin(7, 0), Some(rest.clone()), "neither options, nor weights, nor an epoch's number draw");

    // Blocks change with the next pass over the dataset, in the middle of what was foreseen.
    let mut other = run();
    let (before, position) = (Arc::clone(&other.order), other.control.stream(3).unwrap() as usize);
    let mut blocks = Blocks::default();
    found(&mut blocks, other.control.drawing().unwrap().pass_to_come(position as u64));
    other.control.retune(sampler(), options(0.25), blocks);
    let border = rest.start + 60 - position % 60;
    assert!(border < 60, "{border}");
    assert!(other.told().0.iter().all(|&(place, _)| place < border), "nothing is told that will not come");
    assert_eq!(other.begin(3, 0), Some(rest.start..border));
    let kept = border - rest.start;
    assert_eq!(other.order.ids[..kept], before.ids[rest.start..border]);
    assert_ne!(other.order.ids[kept..60 - rest.start], before.ids[border..]);

    // Another seed, other samples: another stream.
    let mut seeded = run();
    seeded.control.reseed(6);
    assert!(seeded.told().0.is_empty());
    assert_eq!(seeded.begin(3, 0), None);
    let mut others = run();
    others.control = others.control.with_drawing(drawing(60, 5, Blocks::default()));
    assert_eq!(others.begin(3, 0), None);
}

#[test]
fn a_restored_run_tells_what_the_one_that_went_on_does() {
    let mut run = Run::echo();
    for epoch in 0..3 {
        run.begin(epoch, 0);
        run.take(usize::MAX);
        drop(run.control.end(run.pass));
    }
    run.begin(3, 0);
    run.take(5);
    // Two of the five were delivered: three are decided and take nothing any more.
    let words = run.control.buffer_state(Some((3, 2))).unwrap();
    let mut restored = Run::echo();
    restored.control.restore_buffer(&words, &bytes).unwrap();
    assert_eq!(restored.begin(3, 2), None, "nothing was told of it before");
    assert_eq!(restored.told(), run.told());
    assert_eq!(restored.told().1, 15);
    _ = run.take(usize::MAX);
    _ = restored.take(usize::MAX);
    assert_eq!((restored.taken, run.taken), (15, 15));
    for run in [&mut run, &mut restored] {
        drop(run.control.end(run.pass));
        assert_eq!(run.begin(4, 0), Some(15..60));
    }
    assert_eq!(restored.take(usize::MAX), run.take(usize::MAX));
    // Of another epoch than the restored one the stream goes on behind what was decided.
    let mut elsewhere = Run::echo();
    elsewhere.control.restore_buffer(&words, &bytes).unwrap();
    elsewhere.begin(9, 0);
    assert_eq!(elsewhere.take(1).0, elsewhere.order.ids[..2]);
}

#[test]
fn no_stream_goes_on_where_there_is_no_buffer() {
    let uniform: Arc<dyn Sampler> = Arc::new(Uniform::default());
    let ledger = Ledger::new(20, 60, policy::from_name("fifo", 60).unwrap());
    let drawing = Drawing { sampler: uniform, ..drawing(60, 5, Blocks::default()) };
    let mut control = Control::new(ScoreTable::new(60, 0.5), ledger).with_drawing(drawing.clone());
    let order = Arc::new(drawing.draw_blind(0).unwrap());
    let cut = Cut::Even(Batches::new(60, 8, false, 0, 1).unwrap());
    let pass = control.plan_and_begin(Plan { epoch: 0, order, cut, behind: Vec::new() }, 0);
    drop(control.end(pass));
    assert!(control.foresees(true) && !control.foresees(false));
}
