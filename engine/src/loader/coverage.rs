//! Distinct coverage: a hit ratio means nothing without it.

use crate::types::SampleId;

/// Distinct samples delivered: this epoch, and ever.
#[derive(Debug)]
pub struct Coverage {
    epoch_of: Vec<u32>,
    epoch: u32,
    distinct_epoch: u64,
    distinct_ever: u64,
}

impl Coverage {
    /// For a dataset of `samples` samples.
    pub fn new(samples: usize) -> Self {
        Self { epoch_of: vec![0; samples], epoch: 0, distinct_epoch: 0, distinct_ever: 0 }
    }
    /// Counts a delivered batch.
    pub fn deliver(&mut self, epoch: u64, ids: &[SampleId]) {
        // 0 = never; epochs are stored plus one.
        let epoch = (epoch as u32).wrapping_add(1).max(1);
        if self.epoch != epoch {
            (self.epoch, self.distinct_epoch) = (epoch, 0);
        }
        for &id in ids {
            let last = &mut self.epoch_of[id as usize];
            self.distinct_ever += u64::from(*last == 0);
            self.distinct_epoch += u64::from(*last != self.epoch);
            *last = self.epoch;
        }
    }
    /// (this epoch, ever).
    pub fn distinct(&self) -> (u64, u64) {
        (self.distinct_epoch, self.distinct_ever)
    }
}
