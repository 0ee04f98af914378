//! What must hold of sequences and of mail, whatever runs the kernels.

use bytemuck::Zeroable;
use lossfeed_kernels::launch::mail::{HAS_ENTROPY, HAS_GRAD_NORM, HAS_IDS, NO_ROW, Slot, SlotHead, State};
use lossfeed_kernels::launch::{self, Home, RankBy, Sequences};
use lossfeed_kernels::{Dtype, NOT_SCORED, rank};

use crate::cases::{Flavour, Lcg, case};
use crate::checks::{B0, Scoring, losses, real, reals};
use crate::program::{Kind, Machine, Memory, Program};

/// A ring without a host behind it.
struct Mailbox {
    state: u64,
    ring: u64,
    places: Slot,
}

impl Mailbox {
    fn new(program: &mut Program, rows_max: usize, slots: u32, head: u32) -> Mailbox {
        let places = Slot::new(rows_max);
        let ring = program.buffer(Kind::Output, 0, vec![0; slots as usize * places.bytes]);
        let consumed = program.buffer(Kind::Output, 0, head.to_ne_bytes().to_vec());
        let state = State { head, dropped: 0, slots, rows_max: rows_max as u32, ring, consumed };
        let state = program.buffer(Kind::State, 0, bytemuck::bytes_of(&state).to_vec());
        Mailbox { state, ring, places }
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

/// Three batches into a ring of two: two come home with all that belongs to them, the third is counted, and so is one that
/// is too large. Numbers wrap.
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
            let state: State = memory.column(mailbox.state, 1)[0];
            assert_eq!((state.head, state.dropped), (first.wrapping_add(2), 1));
            let state: State = memory.column(small.state, 1)[0];
            assert_eq!((state.head, state.dropped), (0, 1), "{rows} rows into slots of {}", rows - 1);
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
