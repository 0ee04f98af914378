//! What an epoch was seen to take, for what is set before the next one.

/// What was seen of an epoch, or of the part of it that was delivered.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Observed {
    /// From the first batch to the last, without what the consumer did between epochs.
    pub seconds: f64,
    /// Of these, the time in which the consumer waited because of the source.
    pub waited_s: f64,
    /// Rows delivered.
    pub rows: u64,
    /// Of these, those that were read from the source.
    pub fetched: u64,
    /// Bytes that the source read for them, those in vain included.
    pub bytes: u64,
}
