//! What must hold of gathered rows: their bytes, in their order, from wherever they lie, and nothing written beside
//! them.

use lossfeed_kernels::launch::{Gather, gather};

use crate::cases::Lcg;
use crate::program::{Kind, Machine, Program};

/// `rows` rows of `row_bytes`, some of them twice, out of two buffers, at multiples of `apart` from a place that is
/// `offset` bytes from a boundary.
fn check(machine: &mut dyn Machine, rows: usize, row_bytes: usize, apart: usize, offset: usize) {
    let mut rng = Lcg::new((rows * 31 + row_bytes) as u64);
    let apart = row_bytes.next_multiple_of(apart);
    let places = rows.min(7);
    let memory = [(); 2].map(|()| (0..offset + places * apart).map(|_| rng.below(256) as u8).collect::<Vec<u8>>());
    let mut program = Program::default();
    let bases = memory.each_ref().map(|bytes| program.buffer(Kind::Input, 0, bytes.clone()));
    let (mut from, mut expected) = (Vec::new(), vec![0xee; offset]);
    for _ in 0..rows {
        let (buffer, at) = (rng.below(2) as usize, offset + rng.below(places as u32) as usize * apart);
        from.push(bases[buffer] + at as u64);
        expected.extend_from_slice(&memory[buffer][at..at + row_bytes]);
    }
    let out = program.buffer(Kind::Output, 0, vec![0xee; offset + rows * row_bytes]);
    program.call(gather(&Gather { from: &from, row_bytes, out: out + offset as u64 }, 20).unwrap());
    for &seed in machine.seeds() {
        let memory = machine.run(&program, seed).unwrap_or_else(|e| panic!("{rows} x {row_bytes}: {e}"));
        let wrong = memory.bytes(out).iter().zip(&expected).position(|(a, e)| a != e);
        assert_eq!(wrong, None, "{rows} rows of {row_bytes} bytes, {apart} apart, offset {offset}");
    }
}

/// Every width, one launch and several, rows smaller than a block and larger than all of them.
pub(crate) fn every_width(machine: &mut dyn Machine) {
    for (rows, row_bytes, apart, offset) in [
        (1, 16, 64, 0),
        (5, 3072, 64, 0),
        (40, 784, 64, 16),
        (3, 40_000, 64, 0),
        (9, 20, 4, 0),
        (2, 5000, 4, 4),
        (7, 27, 1, 0),
        (500, 16, 64, 0),
        (1000, 5, 1, 0),
        (1, 1, 1, 3),
    ] {
        check(machine, rows, row_bytes, apart, offset);
    }
}
