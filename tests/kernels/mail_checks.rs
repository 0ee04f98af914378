//! What must hold of sequences and of mail, whatever runs the kernels.

use bytemuck::Zeroable;
use lossfeed_kernels::launch::mail::{
    self, HAS_ENTROPY, HAS_GRAD_NORM, HAS_IDS, MAIL_BIT, NO_ROW, Slot, SlotHead, State, Words,
};
use lossfeed_kernels::launch::{self, Home, RankBy, Sequences};
use lossfeed_kernels::{Dtype, NOT_SCORED, rank};

use crate::cases::{Flavour, Lcg, case};
use crate::checks::{B0, Scoring, load, losses, real, reals};
use crate::program::{Kind, Machine, Meddle, Memory, Program};

/// A ring without a host behind it.
struct Mailbox {
    state: u64,
    ring: u64,
    words: u64,
    places: Slot,
}

impl Mailbox {
    fn new(program: &mut Program, rows_max: usize, slots: u32, head: u32) -> Mailbox {
        let places = Slot::new(rows_max);
        let ring = program.buffer(Kind::Output, 0, vec![0; slots as usize * places.bytes]);
        let words = Words { consumed: head, ..Words::default() };
        Mailbox::with(program, rows_max, slots, ring, head, head, words)
    }
    /// With a host that has come as far as `words`, and a device that has seen it at `seen`.
    fn with(
        program: &mut Program,
        rows_max: usize,
        slots: u32,
        ring: u64,
        head: u32,
        seen: u32,
        words: Words,
    ) -> Mailbox {
        let words = program.buffer(Kind::Output, 0, bytemuck::bytes_of(&words).to_vec());
        let gate = MAIL_BIT | u64::from(head);
        let state = State { gate, dropped: 0, slots, rows_max: rows_max as u32, seen, ring, words };
        let state = program.buffer(Kind::State, 0, bytemuck::bytes_of(&state).to_vec());
        Mailbox { state, ring, words, places: Slot::new(rows_max) }
    }
    /// Claims so far, drops so far, and whether it is open.
    fn count(&self, memory: &Memory) -> (u32, u32, bool) {
        let state: State = memory.column(self.state, 1)[0];
        (state.gate as u32, state.dropped, state.gate & MAIL_BIT != 0)
    }
    fn head(&self, memory: &Memory, slot: usize) -> SlotHead {
        memory.column(self.ring + (slot * self.places.bytes) as u64, 1)[0]
    }
    fn column<T: bytemuck::AnyBitPattern>(&self, memory: &Memory, slot: usize, part: usize, n: usize) -> Vec<T> {
        memory.column(self.ring + (slot * self.places.bytes + part) as u64, n)
    }
}

fn same_floats(actual: &[f32], expected: &[f64]) -> bool {
    let same = |(a, e): (&f32, &f64)| (a.is_nan() && e.is_nan()) || *a == *e as f32;
    actual.len() == expected.len() && actual.iter().zip(expected).all(same)
}

/// Three batches into a ring of two: two come home with all that belongs to them, the third is counted, and so is one
/// that is too large. Numbers wrap.
pub(crate) fn mail(machine: &mut dyn Machine, sizes: &[usize]) {
    for (turn, &rows) in sizes.iter().enumerate() {
        let dtype = [Dtype::F32, Dtype::F64, Dtype::BF16][turn % 3];
        let mut case = case(dtype, rows, 10, 10, 0, Flavour::Nasty, 4);
        if turn % 2 == 0 {
            case.ignore_index = -100;
            case.targets.iter_mut().for_each(|t| *t = t.rem_euclid(10));
            (case.targets[rows / 2], case.targets[rows - 1]) = (10, -3);
        }
        let mut scoring = Scoring::new(&case, 132, 0);
        let program = &mut scoring.program;
        let first = u32::MAX - turn as u32;
        let mailbox = Mailbox::new(program, rows + turn, 2, first);
        let small = Mailbox::new(program, rows - 1, 2, 0);
        let ids: Vec<i64> = (0..rows as i64).map(|i| 7 * i - 3).collect();
        let ids_at = program.input(&ids);
        let lent = program.lend(rows, 10, 132);
        let batch = &mut scoring.batch;
        batch.home.mail = mailbox.state;
        for tag in [40, 41, 42] {
            batch.home.tag = tag;
            batch.home.ids = if tag == 40 { ids_at } else { 0 };
            program.call(launch::score(dtype, batch, &lent));
        }
        batch.home.mail = small.state;
        program.call(launch::score(dtype, batch, &lent));
        for &seed in machine.seeds() {
            let memory = machine.run(&scoring.program, seed).unwrap();
            assert_eq!(mailbox.count(&memory), (first.wrapping_add(2), 1, true));
            assert_eq!(small.count(&memory), (0, 1, true), "{rows} rows into slots of {}", rows - 1);
            for k in 0..2u32 {
                let number = first.wrapping_add(k);
                let slot = (number & 1) as usize;
                let head = mailbox.head(&memory, slot);
                let columns = HAS_GRAD_NORM | HAS_ENTROPY | if k == 0 { HAS_IDS } else { 0 };
                let bad_row = if turn % 2 == 0 { rows as u32 / 2 } else { NO_ROW };
                let expected = SlotHead {
                    sequence: number.wrapping_add(1),
                    rows: rows as u32,
                    tag: 40 + u64::from(k),
                    bad_row,
                    columns,
                    ..SlotHead::zeroed()
                };
                assert_eq!(head, expected, "{rows} rows");
                let (batch, p, double) = (&scoring.batch, &mailbox.places, dtype == Dtype::F64);
                for (part, column) in [(p.loss, batch.loss), (p.grad_norm, batch.grad_norm), (p.entropy, batch.entropy)]
                {
                    let home: Vec<f32> = mailbox.column(&memory, slot, part, rows);
                    assert!(same_floats(&home, &memory.reals(column, rows, double)), "a column of {rows} rows");
                }
                let count: Vec<i32> = mailbox.column(&memory, slot, p.count, rows);
                assert_eq!(count, memory.column::<i32>(batch.home.count, rows));
                if k == 0 {
                    assert_eq!(mailbox.column::<i64>(&memory, slot, p.ids, rows), ids);
                }
            }
            assert!(memory.bytes(lent.tickets).iter().all(|&byte| byte == 0));
        }
    }
}

/// Rows of one batch into mailboxes of one slot size: what the checks below share.
fn small_batch(program: &mut Program, rows: usize) -> (launch::Score, Dtype) {
    let mut case = case(Dtype::F32, rows, 10, 10, 0, Flavour::Plain, 4);
    case.ignore_index = -100;
    case.targets.iter_mut().for_each(|t| *t = t.rem_euclid(10));
    let (logits, targets) = load(program, &case, Kind::Input);
    let batch = launch::Score {
        logits,
        targets,
        rows,
        classes: 10,
        row_stride: 10,
        ignore_index: -100,
        loss: program.output(4 * rows),
        home: Home { b0: B0, tag: 5, ..Home::default() },
        ..launch::Score::default()
    };
    (batch, Dtype::F32)
}

/// Behind the launch that closes it nothing is claimed, and the host is told how much was; closing again changes
/// nothing.
pub(crate) fn a_closed_mailbox(machine: &mut dyn Machine) {
    let mut program = Program::default();
    let (mut batch, dtype) = small_batch(&mut program, 9);
    let first = u32::MAX;
    let mailbox = Mailbox::new(&mut program, 9, 2, first);
    let lent = program.lend(9, 10, 132);
    batch.home.mail = mailbox.state;
    program.call(launch::score(dtype, &batch, &lent));
    for _ in 0..2 {
        program.call([mail::close(mailbox.state)]);
        program.call(launch::score(dtype, &batch, &lent));
    }
    for &seed in machine.seeds() {
        let memory = machine.run(&program, seed).unwrap();
        assert_eq!(mailbox.count(&memory), (0, 2, false), "one claim, number 2^32 - 1");
        let words: Words = memory.column(mailbox.words, 1)[0];
        assert_eq!((words.closed, words.consumed), (MAIL_BIT, first));
        assert_eq!(mailbox.head(&memory, 1).sequence, 0);
        assert_eq!((mailbox.head(&memory, 1).rows, mailbox.head(&memory, 0).rows), (9, 0));
    }
}

/// The host's word is asked for only when the ring looks full, and may be ahead of the gate that was read before it.
pub(crate) fn what_the_device_remembers_of_the_host(machine: &mut dyn Machine) {
    // Claims and `seen` on the device, `consumed` of the host; claims, drops and `seen` afterwards. Rings of 2.
    for (head, seen, consumed, after) in [
        (7, 7, 7, (8, 0, 7)),
        (7, 6, 7, (8, 0, 6)), // room as far as is known: the host is not asked
        (7, 5, 6, (8, 0, 6)), // full as far as was known
        (7, 5, 7, (8, 0, 7)),
        (7, 5, 5, (7, 1, 5)), // full
        (7, 8, 8, (8, 0, 8)), // others claimed and the host read since the gate was looked at
        (0, u32::MAX - 1, u32::MAX, (1, 0, u32::MAX)),
        (0, 1, 1, (1, 0, 1)),
    ] {
        let mut program = Program::default();
        let (mut batch, dtype) = small_batch(&mut program, 5);
        let ring = program.buffer(Kind::Output, 0, vec![0; 2 * Slot::new(5).bytes]);
        let words = Words { consumed, ..Words::default() };
        let mailbox = Mailbox::with(&mut program, 5, 2, ring, head, seen, words);
        batch.home.mail = mailbox.state;
        let lent = program.lend(5, 10, 132);
        program.call(launch::score(dtype, &batch, &lent));
        let memory = machine.run(&program, 0).unwrap();
        let (claims, drops, _) = mailbox.count(&memory);
        let state: State = memory.column(mailbox.state, 1)[0];
        assert_eq!((claims, drops, state.seen), after, "{head} claims, {seen} seen, {consumed} consumed");
    }
}

/// Whenever somebody empties the mailbox's fields, a launch that is under way writes all of its batch to one slot, or
/// nothing.
pub(crate) fn emptied_meanwhile(machine: &mut dyn Machine) {
    let (rows, slots) = (9, 2);
    let mut came = [0; 2];
    for at in 0..400 {
        let mut program = Program::default();
        let (mut batch, dtype) = small_batch(&mut program, rows);
        let mailbox = Mailbox::new(&mut program, rows, slots, 1);
        batch.home.mail = mailbox.state;
        let lent = program.lend(rows, 10, 132);
        program.call(launch::score(dtype, &batch, &lent));
        // The words `slots` and `rows_max`.
        program.meddle = Some(Meddle { at: 23 * at, to: mailbox.state + 12, with: [0; 8] });
        let seed = machine.seeds()[at as usize % machine.seeds().len()];
        let memory = machine.run(&program, seed).unwrap_or_else(|e| panic!("{e}, emptied at {}", 23 * at));
        let head = mailbox.head(&memory, 1);
        let losses: Vec<f32> = mailbox.column(&memory, 1, mailbox.places.loss, rows);
        let whole = head.sequence == 2 && losses == memory.column::<f32>(batch.loss, rows);
        let nothing = head == SlotHead::zeroed() && losses.iter().all(|&loss| loss == 0.0);
        assert!(whole || nothing, "{head:?} and {losses:?}, emptied at {}", 23 * at);
        assert_eq!(mailbox.head(&memory, 0), SlotHead::zeroed());
        came[usize::from(whole)] += 1;
    }
    assert!(came.iter().all(|&n| n > 0), "{came:?}: it was emptied before and after the claim");
}

/// Launches report the first bad row since the host began a generation, and go on doing so in the next.
pub(crate) fn bad_rows(machine: &mut dyn Machine) {
    let mut told_in = |generation: u32, bad: &[usize], before: u64| {
        let mut program = Program::default();
        let rows = 300;
        let mut case = case(Dtype::F32, rows, 10, 10, 0, Flavour::Plain, 4);
        case.ignore_index = -100;
        case.targets.iter_mut().for_each(|t| *t = t.rem_euclid(10));
        bad.iter().for_each(|&row| case.targets[row] = 10);
        let (logits, targets) = load(&mut program, &case, Kind::Input);
        let told = program.buffer(Kind::Output, 0, before.to_ne_bytes().to_vec());
        let now = program.buffer(Kind::Output, 0, generation.to_ne_bytes().to_vec());
        let place = mail::BadRows { worst: before, told, generation: now };
        let bad_rows = program.buffer(Kind::State, 0, bytemuck::bytes_of(&place).to_vec());
        let loss = program.output(4 * rows);
        let batch = launch::Score {
            logits,
            targets,
            rows,
            classes: 10,
            row_stride: 10,
            ignore_index: -100,
            loss,
            bad_rows,
            ..launch::Score::default()
        };
        let lent = program.lend(rows, 10, 132);
        program.call(launch::score(Dtype::F32, &batch, &lent));
        let each = machine.seeds().iter().map(|&seed| machine.run(&program, seed).unwrap().column::<u64>(told, 1)[0]);
        let all: Vec<u64> = each.collect();
        assert!(all.windows(2).all(|w| w[0] == w[1]));
        (all[0], ((all[0] >> 32) as u32, !(all[0] as u32)))
    };
    assert_eq!(told_in(1, &[], 0).0, 0, "nothing to tell");
    let (first, said) = told_in(1, &[250, 7, 90], 0);
    assert_eq!(said, (1, 7));
    assert_eq!(told_in(1, &[8], first).1, (1, 7), "a later one of the same generation");
    assert_eq!(told_in(1, &[3], first).1, (1, 3), "an earlier one");
    assert_eq!(told_in(2, &[299], first).1, (2, 299), "any of the next");
}

/// Losses that somebody else computed: ranked and mailed, with no column but theirs and no count wanted elsewhere.
pub(crate) fn mail_of_losses(machine: &mut dyn Machine, sizes: &[usize]) {
    let mut rng = Lcg::new(8);
    for &rows in sizes {
        let losses = losses(rows, &mut rng);
        let mut program = Program::default();
        let mailbox = Mailbox::new(&mut program, rows, 1, 0);
        let at = program.input(&losses);
        let lent = program.lend(rows, 1, 132);
        let home = Home { mail: mailbox.state, tag: u64::MAX >> 8, b0: B0, ..Home::default() };
        program.call(launch::ranks(rows, at, 0, 0, &home, &lent));
        for &seed in machine.seeds() {
            let memory = machine.run(&program, seed).unwrap();
            let head = mailbox.head(&memory, 0);
            assert_eq!((head.sequence, head.rows, head.tag, head.columns), (1, rows as u32, u64::MAX >> 8, 0));
            assert_eq!(head.bad_row, NO_ROW);
            let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            let home: Vec<f32> = mailbox.column(&memory, 0, mailbox.places.loss, rows);
            assert_eq!(bits(&home), bits(&losses));
            let count: Vec<i32> = mailbox.column(&memory, 0, mailbox.places.count, rows);
            assert_eq!(count, rank::counts(&losses));
        }
    }
}

/// Sequences of tokens: means, maxima and sums over the tokens that count, and ranks of the sequences.
pub(crate) fn sequences(machine: &mut dyn Machine) {
    let shapes = [(1, 1), (9, 7), (37, 45), (5, 1000), (600, 3)];
    for (turn, (sequences, length)) in shapes.into_iter().enumerate() {
        for double in [false, true] {
            let dtype = if double { Dtype::F64 } else { Dtype::F32 };
            let tokens = sequences * length;
            let mut rng = Lcg::new(turn as u64);
            let mut column = |negative: f64| -> Vec<f64> {
                (0..tokens).map(|_| f64::from((rng.unit() + negative) as f32)).collect()
            };
            let (mut loss, grad_norm, entropy) = (column(1.0), column(1.0), column(2.0));
            let correct: Vec<u8> = (0..tokens)
                .map(|t| if t / length == 3 || rng.below(3) == 0 { NOT_SCORED } else { rng.below(2) as u8 })
                .collect();
            if sequences > 5 {
                loss[5 * length] = f64::NAN; // hides nothing, and is hidden by nothing
            }
            let rank_by = [RankBy::Mean, RankBy::Max, RankBy::Sum][turn % 3];
            let mut program = Program::default();
            let lent = program.lend(sequences, 1, 132);
            let mut out = || program.output(sequences * real(dtype));
            let columns = [out(), out(), out(), out(), out()];
            let batch = Sequences {
                sequences,
                length,
                loss: reals(&mut program, dtype, &loss),
                grad_norm: reals(&mut program, dtype, &grad_norm),
                entropy: reals(&mut program, dtype, &entropy),
                correct: program.input(&correct),
                mean: columns[0],
                max: columns[1],
                sum: columns[2],
                mean_grad_norm: columns[3],
                mean_entropy: columns[4],
                counted: program.output(4 * sequences),
                rank_by,
                home: Home { count: program.output(4 * sequences), b0: B0, ..Home::default() },
            };
            program.call(launch::sequences(double, &batch, &lent));
            for &seed in machine.seeds() {
                let memory = machine.run(&program, seed).unwrap();
                let actual = columns.map(|c| memory.reals(c, sequences, double));
                let counted: Vec<i32> = memory.column(batch.counted, sequences);
                for s in 0..sequences {
                    let own: Vec<usize> =
                        (s * length..(s + 1) * length).filter(|&t| correct[t] != NOT_SCORED).collect();
                    let sum = |c: &[f64]| own.iter().map(|&t| c[t]).sum::<f64>();
                    let n = own.len() as f64;
                    let nan = own.is_empty() || own.iter().any(|&t| loss[t].is_nan());
                    let max = own.iter().map(|&t| loss[t]).fold(f64::NEG_INFINITY, f64::max);
                    let expected = [
                        sum(&loss) / n,
                        if nan { f64::NAN } else { max },
                        if own.is_empty() { f64::NAN } else { sum(&loss) },
                        sum(&grad_norm) / n,
                        sum(&entropy) / n,
                    ];
                    assert_eq!(counted[s] as usize, own.len());
                    for (a, e) in actual.iter().map(|c| c[s]).zip(expected) {
                        let close = (a - e).abs() <= if double { 1e-12 } else { 1e-6 } * (1.0 + e.abs());
                        assert!(
                            close || (a.is_nan() && e.is_nan()),
                            "{a}, not {e}: sequence {s} of {sequences} x {length}"
                        );
                    }
                }
                let ranked = [0, 1, 2][turn % 3];
                let keys: Vec<f32> = actual[ranked].iter().map(|&v| v as f32).collect();
                assert_eq!(memory.column::<i32>(batch.home.count, sequences), rank::naive::counts(&keys));
            }
        }
    }
}
