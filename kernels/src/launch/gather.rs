//! Scattered rows of page-locked host memory, read by the device itself.

use super::arguments::{Arguments, GATHER_ROWS_MAX, GatherArguments};
use super::{Launch, Step, THREADS};

/// Loads that a thread has under way.
const LOADS: u32 = 4;
/// Of this many multiprocessors one reads rows: 16 KB a block are under way, so that an eighth of a large GPU holds
/// more than a bus's bandwidth times its latency (some 100 KB), and the rest computes. Unmeasured.
const MULTIPROCESSORS_A_BLOCK: u32 = 8;
/// The words of a launch are counted in u32, steps beyond the last one too.
const WORDS_MAX: usize = 1 << 31;

/// Rows in, one piece of memory out.
#[derive(Clone, Copy, Debug)]
pub struct Gather<'a> {
    /// Where the rows lie: addresses that the device can read, which for page-locked memory are the host's own.
    pub from: &'a [u64],
    /// Bytes of each.
    pub row_bytes: usize,
    /// On the device: rows x `row_bytes`.
    pub out: u64,
}

/// The launches, of at most [`GATHER_ROWS_MAX`] rows each. Words are as wide as all addresses and `row_bytes` allow.
///
/// # Errors
/// `row_bytes`, if that is more than a launch counts (2 GiB of odd rows, 32 GiB of rows of whole 16 bytes).
pub fn gather(batch: &Gather<'_>, multiprocessors: u32) -> Result<Vec<Step>, usize> {
    let bits = batch.from.iter().fold(batch.out | batch.row_bytes as u64, |all, address| all | address);
    let (kernel, width) = match bits.trailing_zeros() {
        4.. => ("lossfeed_gather_b128", 16),
        2.. => ("lossfeed_gather_b32", 4),
        _ => ("lossfeed_gather_b8", 1),
    };
    let words = batch.row_bytes / width;
    if words > WORDS_MAX {
        return Err(batch.row_bytes);
    }
    if words == 0 {
        return Ok(Vec::new());
    }
    let rows = (WORDS_MAX / words).clamp(1, GATHER_ROWS_MAX);
    let steps = batch.from.chunks(rows).enumerate().map(|(number, from)| {
        let mut arguments = GatherArguments {
            out: batch.out + (number * rows * batch.row_bytes) as u64,
            rows: from.len() as u32,
            words: words as u32,
            from: [0; GATHER_ROWS_MAX],
        };
        arguments.from[..from.len()].copy_from_slice(from);
        let needed = ((from.len() * words) as u64).div_ceil(u64::from(THREADS * LOADS));
        let grid = needed.min(u64::from((multiprocessors / MULTIPROCESSORS_A_BLOCK).max(1))) as u32;
        let launch = Launch { kernel, grid, block: (THREADS, 1), shared_bytes: 0 };
        Step { launch, arguments: Arguments::Gather(Box::new(arguments)) }
    });
    Ok(steps.collect())
}
