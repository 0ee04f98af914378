//! Samples of a batch that stay where the cache has them.

use crate::arena::Pins;

/// Rows of a batch whose samples a device reads in the cache's memory. While this lives, the records stay as they are.
#[derive(Debug)]
pub struct InPlace {
    records: Pins,
    /// A row, and the number of its record.
    rows: Vec<(u32, u32)>,
}

impl InPlace {
    /// `rows` are pairs of a row and the number of its record, which starts with the row's sample, in the order of
    /// rows.
    pub fn new(records: Pins, rows: Vec<(u32, u32)>) -> Self {
        Self { records, rows }
    }

    /// Every row with its record, in the order of rows.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (usize, &[u8])> {
        self.rows.iter().map(|&(row, number)| (row as usize, self.records.get(number as usize)))
    }
}
