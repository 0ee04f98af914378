//! How a rank's order is cut into batches, so that every rank takes the same number of steps.

use std::ops::Range;

use crate::error::{Error, Result};

/// How many of `samples` samples fall to `rank`: the first `samples mod world_size` ranks get one more.
pub fn share(samples: usize, rank: u32, world_size: u32) -> usize {
    let (rank, world_size) = (rank as usize, world_size as usize);
    samples / world_size + usize::from(rank < samples % world_size)
}

/// The cut of one rank's share into batches.
///
/// Ranks that step together must step equally often, or the last one waits for ever in an all-reduce. Shares differ by
/// one sample, so a share may end exactly at a batch's end where a longer one begins another batch:
///
/// ```text
/// 9 samples, 2 ranks, batches of 2     rank 0 (5 samples)  [a b] [c d] [e]
///                                      rank 1 (4 samples)  [a b] [c]   [d]     its last batch is halved
/// ```
///
/// With `drop_last` every batch is full and every rank drops the rest of its share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batches {
    share: usize,
    batch_size: usize,
    count: usize,
    drop_last: bool,
}

impl Batches {
    /// The cut for `rank` of `world_size` over a dataset of `samples`.
    ///
    /// # Errors
    /// `Settings` if a rank would get no batch, or a batch no sample: `batch_size` 0, `rank ≥ world_size`, fewer
    /// samples than ranks (or than one full batch a rank, with `drop_last`), or `batch_size` 1 with unequal shares and
    /// no `drop_last`.
    pub fn new(samples: usize, batch_size: usize, drop_last: bool, rank: u32, world_size: u32) -> Result<Self> {
        if batch_size == 0 {
            return Err(Error::settings("batch_size is 0: give at least 1"));
        }
        if rank >= world_size {
            return Err(Error::settings(format!(
                "rank {rank} is not one of {world_size} ranks: ranks count from 0 to world_size - 1"
            )));
        }
        let ranks = world_size as usize;
        if samples < ranks {
            return Err(Error::settings(format!(
                "{samples} samples cannot be shared by {world_size} ranks: use at most as many ranks as samples"
            )));
        }
        let longest = samples.div_ceil(ranks);
        let count = if drop_last { samples / ranks / batch_size } else { longest.div_ceil(batch_size) };
        if count == 0 {
            return Err(Error::settings(format!(
                "drop_last leaves no batch: batch_size {batch_size} and world_size {world_size} need {} samples and there are {samples}; \
                 lower batch_size or set drop_last to false",
                batch_size.saturating_mul(ranks)
            )));
        }
        if !drop_last && samples / ranks < count {
            return Err(Error::settings(format!(
                "{samples} samples cannot be shared by {world_size} ranks in batches of {batch_size} so that all take {count} steps: \
                 set drop_last to true or choose a batch_size of at least 2"
            )));
        }
        Ok(Self { share: share(samples, rank, world_size), batch_size, count, drop_last })
    }
    /// Batches an epoch, the same on every rank; at least 1.
    pub fn len(&self) -> usize {
        self.count
    }
    /// Never: every rank has at least one batch.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
    /// Samples in this rank's share; an order must be as long.
    pub fn share(&self) -> usize {
        self.share
    }
    /// Samples this rank delivers an epoch: its share, less what `drop_last` drops.
    pub fn delivered(&self) -> usize {
        if self.drop_last { self.count * self.batch_size } else { self.share }
    }
    /// Where batch `number` lies in the order; empty from [`Batches::len`] on.
    pub fn range(&self, number: usize) -> Range<usize> {
        if number >= self.count {
            return self.delivered()..self.delivered();
        }
        let (start, last) = (number * self.batch_size, self.count - 1);
        if self.drop_last || self.share > last * self.batch_size {
            return start..(start + self.batch_size).min(self.delivered());
        }
        // This share is one batch short: what would be the batch before the last makes the last two.
        let halved = (self.count - 2) * self.batch_size;
        let middle = halved + (self.share - halved).div_ceil(2);
        match number {
            n if n == last => middle..self.share,
            n if n + 1 == last => halved..middle,
            _ => start..start + self.batch_size,
        }
    }
    /// All batches in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Range<usize>> + use<> {
        let this = *self;
        (0..self.count).map(move |number| this.range(number))
    }
}
