//! The launch shape of every kernel, as pure functions. `kernels/README.md` documents the arguments.
//!
//! The kernels themselves check nothing the host can check: use these shapes and no others.

use crate::Dtype;

/// Up to this many rows the score kernel ranks the batch itself, in its last block; above, launch [`rank`] after it.
pub const FUSED_RANK_ROWS: usize = 512;

/// Threads of every kernel that gives a row less than a block.
const THREADS: u32 = 256;
/// From this many classes on a row gets a block of its own.
const BLOCK_CLASSES: usize = 4096;
/// Shared memory in front of the per-kernel part: the flag that tells a block it is the last.
const HEAD_BYTES: u32 = 16;
/// Five sums of a row, at most 8 bytes each, one set per warp.
const PARTIAL_BYTES: u32 = 40;
/// The keys of [`FUSED_RANK_ROWS`] rows, or one tile of the rank kernel.
const KEY_BYTES: u32 = 4 * FUSED_RANK_ROWS as u32;

/// Grid and block of one launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Name of the entry point in [`crate::ptx::module`].
    pub kernel: &'static str,
    /// Blocks (x only). 0 when there are no rows: launch nothing then.
    pub grid: u32,
    /// Threads in x (the lanes that share a row) and y (rows of a block).
    pub block: (u32, u32),
    /// Dynamic shared memory.
    pub shared_bytes: u32,
}

/// The score launch for `rows` x `classes` logits (both at most [`crate::Rows::MAX`]).
pub fn plan(rows: usize, classes: usize, dtype: Dtype) -> Launch {
    let shared_bytes = HEAD_BYTES + KEY_BYTES;
    if classes > BLOCK_CLASSES {
        let lanes = if classes > 4 * BLOCK_CLASSES { 512 } else { 256 };
        debug_assert!(lanes / 32 * PARTIAL_BYTES <= KEY_BYTES);
        let kernel = match dtype {
            Dtype::F16 => "lossfeed_score_block_f16",
            Dtype::BF16 => "lossfeed_score_block_bf16",
            Dtype::F32 => "lossfeed_score_block_f32",
            Dtype::F64 => "lossfeed_score_block_f64",
        };
        return Launch { kernel, grid: rows as u32, block: (lanes, 1), shared_bytes };
    }
    // A warp is more than a short row can use; fewer lanes leave room for more rows.
    let lanes: u32 = match classes {
        0..=16 => 4,
        17..=64 => 8,
        65..=256 => 16,
        _ => 32,
    };
    let kernel = match dtype {
        Dtype::F16 => "lossfeed_score_warp_f16",
        Dtype::BF16 => "lossfeed_score_warp_bf16",
        Dtype::F32 => "lossfeed_score_warp_f32",
        Dtype::F64 => "lossfeed_score_warp_f64",
    };
    let block_rows = THREADS / lanes;
    Launch { kernel, grid: (rows as u32).div_ceil(block_rows), block: (lanes, block_rows), shared_bytes }
}

/// The rank launch that follows a score launch of more than [`FUSED_RANK_ROWS`] rows.
pub fn rank(rows: usize) -> Launch {
    Launch {
        kernel: "lossfeed_rank",
        grid: (rows as u32).div_ceil(THREADS),
        block: (THREADS, 1),
        shared_bytes: HEAD_BYTES + KEY_BYTES,
    }
}

/// Device memory a stream lends to its score and rank launches. Zeroed once; the kernels leave it ready for the next launch.
/// Launches that may run at the same time must not share one.
pub const fn workspace_bytes(rows: usize) -> usize {
    16 + 4 * rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_gets_its_lanes_and_no_block_is_idle() {
        for dtype in Dtype::ALL {
            for classes in [1, 10, 16, 17, 64, 65, 100, 256, 257, 1000, 4096, 4097, 16_384, 16_385, 50_257] {
                for rows in [1, 2, 31, 64, 65, 512, 513, 100_000] {
                    let launch = plan(rows, classes, dtype);
                    let (lanes, block_rows) = (launch.block.0 as usize, launch.block.1 as usize);
                    assert!(launch.grid as usize * block_rows >= rows, "{launch:?} misses rows of {rows}");
                    assert!((launch.grid as usize - 1) * block_rows < rows, "{launch:?} has an idle block for {rows}");
                    assert!(
                        lanes.is_power_of_two()
                            && (lanes * block_rows).is_multiple_of(32)
                            && lanes * block_rows <= 1024
                    );
                    assert!(launch.kernel.ends_with(dtype.name()));
                }
            }
        }
    }

    #[test]
    fn no_rows_is_no_launch() {
        assert_eq!(plan(0, 10, Dtype::F32).grid, 0);
        assert_eq!(rank(0).grid, 0);
    }
}
