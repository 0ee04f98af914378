//! A program: buffers and launches, to be run by the fibers or by a GPU alike.

use lossfeed_kernels::launch::{Launch, Lent, Step, TICKET_BYTES, scratch_bytes};

/// What a kernel may do with a buffer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    /// Only read.
    Input = 0,
    /// Written, and perhaps read again.
    Output = 1,
    /// Likewise, and it holds addresses.
    State = 2,
}

#[derive(Clone)]
pub(crate) struct Buffer {
    pub(crate) kind: Kind,
    /// From a 256-byte boundary.
    pub(crate) offset: usize,
    /// Bytes of zeros in front of `bytes`, never touched by anybody but a kernel: memory that only has an address until
    /// then.
    pub(crate) hole: usize,
    pub(crate) bytes: Vec<u8>,
}

#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) launch: Launch,
    pub(crate) arguments: Vec<u8>,
}

/// A write in the middle of a launch, as a host or another stream would: where it can be timed, before the `at`-th time
/// that a thread goes on.
#[derive(Clone, Copy)]
pub(crate) struct Meddle {
    pub(crate) at: u64,
    pub(crate) to: u64,
    pub(crate) with: [u8; 8],
}

#[derive(Clone, Default)]
pub(crate) struct Program {
    pub(crate) buffers: Vec<Buffer>,
    pub(crate) calls: Vec<Call>,
    pub(crate) meddle: Option<Meddle>,
}

/// Byte `offset` of buffer `number`, until somebody who knows where it lies puts the true address in its place.
fn address(number: usize, offset: u64) -> u64 {
    0x00f1 << 48 | (number as u64) << 36 | offset
}

/// Puts true addresses in the place of all in `bytes`. A word that begins like one by chance, as a key drawn at random
/// may, has the number of a buffer that is not there.
pub(crate) fn relocate(bytes: &mut [u8], base_of: impl Fn(usize) -> Option<u64>) {
    for word in bytes.chunks_exact_mut(8) {
        let value = u64::from_ne_bytes(word.try_into().unwrap());
        if value >> 48 == 0x00f1
            && let Some(base) = base_of((value >> 36 & 0xfff) as usize)
        {
            word.copy_from_slice(&(base + (value & 0xf_ffff_ffff)).to_ne_bytes());
        }
    }
}

#[test]
fn a_word_that_begins_like_an_address_is_one_where_its_buffer_is() {
    let key = address(2, 7);
    let mut bytes: Vec<u8> = [address(1, 3), key, 5].iter().flat_map(|word| word.to_ne_bytes()).collect();
    relocate(&mut bytes, |number| [100, 200].get(number).copied());
    let words: Vec<u64> = bytes.chunks_exact(8).map(bytemuck::pod_read_unaligned).collect();
    assert_eq!(words, [203, key, 5]);
}

impl Program {
    /// A buffer with this content; returns its address.
    pub(crate) fn buffer(&mut self, kind: Kind, offset: usize, bytes: Vec<u8>) -> u64 {
        self.buffers.push(Buffer { kind, offset, hole: 0, bytes });
        address(self.buffers.len() - 1, 0)
    }
    /// An input with this content behind `hole` bytes of zeros; returns the content's address.
    pub(crate) fn input_behind(&mut self, hole: usize, bytes: Vec<u8>) -> u64 {
        self.buffers.push(Buffer { kind: Kind::Input, offset: 0, hole, bytes });
        address(self.buffers.len() - 1, hole as u64)
    }
    pub(crate) fn input<T: bytemuck::NoUninit>(&mut self, values: &[T]) -> u64 {
        self.buffer(Kind::Input, 0, bytemuck::cast_slice(values).to_vec())
    }
    /// Room for `bytes`, full of NaN.
    pub(crate) fn output(&mut self, bytes: usize) -> u64 {
        self.buffer(Kind::Output, 0, vec![0xff; bytes])
    }
    /// Tickets, zeroed, and scratch, full of NaN.
    pub(crate) fn lend(&mut self, rows: usize, classes: usize, multiprocessors: u32) -> Lent {
        let tickets = self.buffer(Kind::Output, 0, vec![0; TICKET_BYTES]);
        let scratch = self.output(scratch_bytes(rows, classes));
        Lent { tickets, scratch, multiprocessors }
    }
    pub(crate) fn call(&mut self, steps: impl IntoIterator<Item = Step>) {
        let call = |s: Step| Call { launch: s.launch, arguments: s.arguments.bytes().to_vec() };
        self.calls.extend(steps.into_iter().map(call));
    }
}

/// What every buffer holds after a program; an input's is empty.
pub(crate) struct Memory(pub(crate) Vec<Vec<u8>>);

impl Memory {
    pub(crate) fn bytes(&self, address: u64) -> &[u8] {
        &self.0[(address >> 36 & 0xfff) as usize][(address & 0xf_ffff_ffff) as usize..]
    }
    pub(crate) fn column<T: bytemuck::AnyBitPattern>(&self, address: u64, n: usize) -> Vec<T> {
        let bytes = &self.bytes(address)[..n * size_of::<T>()];
        bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
    }
    /// A column of floats or doubles, as doubles.
    pub(crate) fn reals(&self, address: u64, n: usize, double: bool) -> Vec<f64> {
        if double {
            self.column::<f64>(address, n)
        } else {
            self.column::<f32>(address, n).into_iter().map(f64::from).collect()
        }
    }
}

/// Something that runs programs.
pub(crate) trait Machine {
    /// `seed` chooses the order of threads and blocks, where that can be chosen.
    fn run(&mut self, program: &Program, seed: u64) -> Result<Memory, String>;
    /// The orders worth trying.
    fn seeds(&self) -> &'static [u64];
}
