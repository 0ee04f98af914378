//! Every CUDA launch as pure functions: which kernels, in which shapes, with which arguments. `kernels/README.md`
//! documents them.
//!
//! [`score`], [`backward`], [`probabilities`], [`backward_probabilities`], [`sequences`], [`ranks`], [`retouch`],
//! [`images`], [`erase`], [`mix`] and [`gather`] turn addresses on the device into [`Step`]s, to be launched in order on
//! one stream. The kernels themselves check nothing the host can check: use these steps and no others.

pub mod arguments;
mod gather;
mod gradient;
mod image;
pub mod mail;
mod mixing;
mod probability;
mod rank;
mod retouch;
mod score;
mod sequence;

pub use gather::{Gather, gather};
pub use gradient::{Gradient, ProbabilityGradient, backward, backward_probabilities};
pub use image::{Images, images};
pub use mixing::{erase, mix};
pub use probability::{Probabilities, probabilities};
pub use rank::{FUSED_RANK_ROWS, TILE_ROWS, TILED_ROWS, ranks};
pub use retouch::{Retouching, retouch};
pub use score::{Reduction, Score, score};
pub use sequence::{RankBy, Sequences, sequences};

use crate::Dtype;
use arguments::{Arguments, Finish};

/// Threads of every kernel that gives a row less than a block, and of the backward.
const THREADS: u32 = 256;
/// From this many classes on a row gets a block of its own.
const BLOCK_CLASSES: usize = 4096;
/// Shared memory in front of the per-kernel part: words of the block that comes last.
const HEAD_BYTES: u32 = 16;
/// The keys of [`FUSED_RANK_ROWS`] rows; the sums of a row's warps (at most 16 x 64 bytes) lie over them.
const KEY_BYTES: u32 = 4 * FUSED_RANK_ROWS as u32;
/// Most rows whose pieces share blocks: each has a ticket of its own.
const SPLIT_ROWS: usize = 1024;
/// Most pieces a row is split into: a warp merges them.
const PIECES_MAX: usize = 32;
/// Most pieces of a batch.
const PARTIALS_MAX: usize = 2 * SPLIT_ROWS;
/// Seven sums of at most 8 bytes.
const PARTIAL_BYTES: usize = 56;
/// The sums of a block's rows for a mean: two doubles.
const PART_BYTES: usize = 16;
/// Multiprocessors beyond this do not change a shape.
const MULTIPROCESSORS_MAX: u32 = (SPLIT_ROWS / 2) as u32;

/// Device memory for tickets, one for every stream: zeroed once, ready again after every launch, whatever its shape.
/// Launches that may run at the same time must not share it. The first bytes of every call's scratch are as good,
/// zeroed before the call on its stream ([`scratch_tickets`]).
pub const TICKET_BYTES: usize = 8192;

/// Grid and block of one launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Name of the entry point in [`crate::ptx::module`].
    pub kernel: &'static str,
    /// Blocks (x only).
    pub grid: u32,
    /// Threads in x (the lanes that share a row) and y (rows of a block).
    pub block: (u32, u32),
    /// Dynamic shared memory.
    pub shared_bytes: u32,
}

/// One launch with its argument.
#[derive(Clone, Debug)]
pub struct Step {
    /// What to launch.
    pub launch: Launch,
    /// The structure to pass by value.
    pub arguments: Arguments,
}

/// What the caller lends to a call: addresses on the device.
#[derive(Clone, Copy, Debug)]
pub struct Lent {
    /// [`TICKET_BYTES`] of the stream, zeroed before their first use; or [`scratch_tickets`], zeroed for this call.
    pub tickets: u64,
    /// [`scratch_bytes`] of any content, 256-aligned, nobody else's until the call's launches have ended.
    pub scratch: u64,
    /// Multiprocessors of the GPU: few rows are split until they fill them.
    pub multiprocessors: u32,
}

/// Where ranks and scores of a batch go. Addresses on the device; 0 = not wanted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Home {
    /// int32 rank counts.
    pub count: u64,
    /// float32 rank scores.
    pub rank_score: u64,
    /// Offset of the rank score, above 0.
    pub b0: f32,
    /// A [`mail::State`].
    pub mail: u64,
    /// Comes home with the mail.
    pub tag: u64,
    /// int64 ids, a row each, to come home with the mail.
    pub ids: u64,
}

impl Default for Home {
    fn default() -> Self {
        Home { count: 0, rank_score: 0, b0: 10.0, mail: 0, tag: 0, ids: 0 }
    }
}

impl Home {
    fn ranks(&self) -> bool {
        self.count != 0 || self.rank_score != 0 || self.mail != 0
    }
}

/// Addresses of the scratch's parts.
#[derive(Clone, Copy, Debug)]
struct Scratch {
    /// For calls that have no other tickets.
    tickets: u64,
    keys: u64,
    counts: u64,
    /// Two buffers of keys (the first also of sorted tiles) and the offsets of the radix sort.
    sort: [u64; 3],
    partials: u64,
    /// Sums for the mean, a score block or a row each.
    parts: u64,
    end: u64,
}

/// Most blocks of a score launch that rows do not share, each of which leaves its part of the mean.
fn parts_max(rows: usize, classes: usize) -> usize {
    // Short rows share a block; the first few thousand need not.
    if classes > 256 { rows } else { rows.min(4096.max(rows.div_ceil(8))) }
}

impl Scratch {
    fn new(base: u64, rows: usize, classes: usize) -> Scratch {
        let mut end = base;
        let mut place = |bytes: usize| {
            let here = end;
            end += bytes.next_multiple_of(256) as u64;
            here
        };
        let tickets = place(TICKET_BYTES);
        let (keys, counts) = (place(4 * rows), place(4 * rows));
        let tiled = if rows > TILE_ROWS { rows.next_multiple_of(TILE_ROWS) } else { 0 };
        let sorted = if rows > TILED_ROWS { rows } else { 0 };
        let sort = [place(4 * tiled), place(4 * sorted), place(rank::offset_bytes(sorted))];
        let split = rows <= SPLIT_ROWS && classes > BLOCK_CLASSES;
        let partials = place(if split { (rows * PIECES_MAX).min(PARTIALS_MAX) * PARTIAL_BYTES } else { 0 });
        let parts = place(PART_BYTES * parts_max(rows, classes));
        Scratch { tickets, keys, counts, sort, partials, parts, end }
    }
}

/// Scratch that one call on `rows` rows (or sequences) of `classes` classes needs; its content does not matter.
pub fn scratch_bytes(rows: usize, classes: usize) -> usize {
    Scratch::new(0, rows, classes).end as usize
}

/// Where a call's own tickets lie in its scratch: [`TICKET_BYTES`], to be zeroed on the stream before every call that
/// is lent them. For launches that nothing else keeps apart: those of a captured graph, which may be replayed on any
/// stream.
pub fn scratch_tickets(scratch: u64) -> u64 {
    Scratch::new(scratch, 0, 1).tickets
}

/// Columns that mail takes home, as addresses.
struct Columns {
    loss: u64,
    grad_norm: u64,
    entropy: u64,
}

fn finish(rows: usize, real: Dtype, home: &Home, columns: &Columns, keys: u64, counts: u64, lent: &Lent) -> Finish {
    let count = if home.count != 0 { home.count } else { counts };
    Finish {
        keys,
        count: if home.ranks() { count } else { 0 },
        rank_score: home.rank_score,
        loss: columns.loss,
        grad_norm: columns.grad_norm,
        entropy: columns.entropy,
        ids: home.ids,
        mail: home.mail,
        tickets: lent.tickets,
        tag: home.tag,
        b0: home.b0,
        rows: rows as i32,
        real_bytes: real_bytes(real),
        unused: 0,
    }
}

/// Bytes of a score: double for f64 logits, float for others.
fn real_bytes(dtype: Dtype) -> u32 {
    if dtype == Dtype::F64 { 8 } else { 4 }
}

/// Lanes of a row that has less than a block. A warp is more than a short row can use; fewer lanes leave room for more
/// rows.
fn lanes(classes: usize) -> u32 {
    match classes {
        0..=16 => 4,
        17..=64 => 8,
        65..=256 => 16,
        _ => 32,
    }
}

/// Block and number of blocks that give every row `lanes(classes)` lanes.
fn rows_per_block(rows: usize, classes: usize) -> ((u32, u32), u32) {
    let lanes = lanes(classes);
    let block_rows = THREADS / lanes;
    ((lanes, block_rows), (rows as u32).div_ceil(block_rows))
}

/// How many blocks share a row, and how many classes each takes. `wanted` pieces at most, none below `smallest`
/// classes.
fn pieces(classes: usize, wanted: usize, smallest: usize) -> (u32, u32) {
    let wanted = wanted.clamp(1, classes.div_ceil(smallest).max(1));
    // A multiple of 64 elements: every piece is aligned as its row is.
    let piece = classes.div_ceil(wanted).next_multiple_of(64);
    (classes.div_ceil(piece) as u32, piece.min(i32::MAX as usize) as u32)
}

fn by_dtype(dtype: Dtype, names: [&'static str; 4]) -> &'static str {
    match dtype {
        Dtype::F16 => names[0],
        Dtype::BF16 => names[1],
        Dtype::F32 => names[2],
        Dtype::F64 => names[3],
    }
}

/// The four entry points of a family.
macro_rules! family {
    ($name:literal) => {
        [
            concat!("lossfeed_", $name, "_f16"),
            concat!("lossfeed_", $name, "_bf16"),
            concat!("lossfeed_", $name, "_f32"),
            concat!("lossfeed_", $name, "_f64"),
        ]
    };
}
use family;

#[cfg(test)]
mod tests;
