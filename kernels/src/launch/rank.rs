//! Ranks of what has losses already, and the launches after a score launch of many rows.

use super::arguments::{Arguments, Finish, RadixArguments, TileArguments};
use super::{Columns, HEAD_BYTES, Home, Launch, Lent, Scratch, Step, THREADS, finish};
use crate::Dtype;

/// Up to this many rows the launch that writes the losses ranks the batch itself, in its last block.
pub const FUSED_RANK_ROWS: usize = 512;
/// Up to this many, one block sorts the losses.
pub const TILE_ROWS: usize = 2048;
/// Up to this many, blocks sort a tile each and every loss is looked up in every tile; above, a radix sort. A search in
/// 32 tiles costs about what nine launches do.
pub const TILED_ROWS: usize = 65_536;

/// Keys of a block of the radix sort.
const RADIX_TILE: usize = 4096;
const DIGITS: usize = 256;
/// Warps of a block of the radix sort.
const RADIX_WARPS: u32 = 8;
/// Words a thread sorts.
const THREAD_WORDS: usize = 4;
/// Rows and warps of a block of the search.
const SEARCH: (u32, u32) = (32, 8);

/// Offsets of the radix sort.
pub(super) fn offset_bytes(rows: usize) -> usize {
    4 * DIGITS * rows.div_ceil(RADIX_TILE)
}

/// The launches that rank `rows` float32 losses at `losses` (NaN and infinity take no part) and mail them if asked to.
/// `grad_norm` and `entropy` (float32 too, or 0) only travel.
pub fn ranks(rows: usize, losses: u64, grad_norm: u64, entropy: u64, home: &Home, lent: &Lent) -> Vec<Step> {
    let mut steps = Vec::new();
    if rows > 0 && home.ranks() {
        let scratch = Scratch::new(lent.scratch, rows, 1);
        let columns = Columns { loss: losses, grad_norm, entropy };
        let finish = finish(rows, Dtype::F32, home, &columns, losses, scratch.counts, lent);
        push(&mut steps, &finish, &scratch);
    }
    steps
}

/// What has to follow a launch that wrote every key.
pub(super) fn follow(steps: &mut Vec<Step>, finish: &Finish, scratch: &Scratch) {
    if finish.count != 0 && finish.rows as usize > FUSED_RANK_ROWS {
        push(steps, finish, scratch);
    }
}

fn push(steps: &mut Vec<Step>, finish: &Finish, scratch: &Scratch) {
    let rows = finish.rows as usize;
    if rows <= TILE_ROWS {
        let launch = sort("lossfeed_rank_sort", 1, rows);
        steps.push(Step { launch, arguments: Arguments::Rank(*finish) });
    } else if rows <= TILED_ROWS {
        let tiles = rows.div_ceil(TILE_ROWS) as u32;
        let arguments = TileArguments { finish: *finish, sorted: scratch.sort[0], tiles, unused: 0 };
        let search = Launch {
            kernel: "lossfeed_rank_search",
            grid: (rows as u32).div_ceil(SEARCH.0),
            block: SEARCH,
            shared_bytes: HEAD_BYTES + 4 * SEARCH.0 * SEARCH.1,
        };
        for launch in [sort("lossfeed_rank_tiles", tiles, TILE_ROWS), search] {
            steps.push(Step { launch, arguments: Arguments::Tile(arguments) });
        }
    } else {
        radix(steps, finish, scratch);
    }
}

fn radix(steps: &mut Vec<Step>, finish: &Finish, scratch: &Scratch) {
    let rows = finish.rows as usize;
    let blocks = rows.div_ceil(RADIX_TILE) as u32;
    let [a, b, offsets] = scratch.sort;
    let mut from = 0;
    for (pass, to) in [a, b, a, b].into_iter().enumerate() {
        let arguments = RadixArguments { finish: *finish, from, to, offsets, shift: 8 * pass as u32, blocks };
        let words = DIGITS as u32;
        for launch in [
            launch("lossfeed_radix_count", blocks, THREADS, 4 * words),
            launch("lossfeed_radix_scatter", blocks, THREADS, 4 * words * (1 + RADIX_WARPS)),
        ] {
            steps.push(Step { launch, arguments: Arguments::Radix(arguments) });
        }
        from = to;
    }
    let arguments = RadixArguments { finish: *finish, from, to: 0, offsets, shift: 0, blocks };
    let launch = launch("lossfeed_radix_search", (rows as u32).div_ceil(THREADS), THREADS, 0);
    steps.push(Step { launch, arguments: Arguments::Radix(arguments) });
}

/// Blocks that sort `rows` each, through shared memory that holds them twice.
fn sort(kernel: &'static str, grid: u32, rows: usize) -> Launch {
    let threads = rows.next_power_of_two().div_ceil(THREAD_WORDS).max(32);
    launch(kernel, grid, threads as u32, (2 * 4 * THREAD_WORDS * threads) as u32)
}

fn launch(kernel: &'static str, grid: u32, threads: u32, bytes: u32) -> Launch {
    Launch { kernel, grid, block: (threads, 1), shared_bytes: HEAD_BYTES + bytes }
}
