//! A value in the pool: a header and a sample's payload.
//!
//! ```text
//! 0  magic and version   8 bytes      28  payload bytes   u64
//! 8  the sample's key    16 bytes     36  CRC-32 of all that is before and after it   u32
//! 24 cost of its fetch, µs   u32      40  payload
//! ```
//!
//! Numbers are little endian. Whatever else comes under a key is a miss.

use std::time::Duration;

/// A sample's name: a digest of its store and of [`Source::proof`](crate::sample::Source::proof).
pub(crate) type Key = [u8; 16];

const MAGIC: [u8; 8] = *b"lossfd\0\x01";
const SUM: usize = 36;
pub(crate) const HEADER: usize = 40;

/// The kind of a value that was found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Seen<'a> {
    /// The sample, and the time that its fetch took.
    Sample(&'a [u8], Duration),
    /// One of our values, but truncated, changed, or another sample's.
    Damaged,
    /// Not a value of this version: it is left as it is.
    Foreign,
}

/// The value of a sample.
pub(crate) fn seal(key: &Key, cost: Duration, data: &[u8]) -> Vec<u8> {
    let cost_us = u32::try_from(cost.as_micros()).unwrap_or(u32::MAX);
    let mut value = Vec::with_capacity(HEADER + data.len());
    value.extend_from_slice(&MAGIC);
    value.extend_from_slice(key);
    value.extend_from_slice(&cost_us.to_le_bytes());
    value.extend_from_slice(&(data.len() as u64).to_le_bytes());
    let sum = sum(&value, data);
    value.extend_from_slice(&sum.to_le_bytes());
    value.extend_from_slice(data);
    value
}

/// Checks `value` against the key it was asked for and the payload's size.
pub(crate) fn unseal<'a>(key: &Key, bytes: u64, value: &'a [u8]) -> Seen<'a> {
    if !value.starts_with(&MAGIC) {
        return Seen::Foreign;
    }
    let (Some((head, data)), Some(field)) = (value.split_at_checked(HEADER), value.get(24..SUM)) else {
        return Seen::Damaged;
    };
    let stored = head.get(SUM..).and_then(|sum| Some(u32::from_le_bytes(*sum.first_chunk()?)));
    let cost_us = field.first_chunk().map_or(0, |cost| u32::from_le_bytes(*cost));
    let same = value.get(8..24) == Some(key) && data.len() as u64 == bytes && field.ends_with(&bytes.to_le_bytes());
    if same && stored == head.get(..SUM).map(|before| sum(before, data)) {
        Seen::Sample(data, Duration::from_micros(cost_us.into()))
    } else {
        Seen::Damaged
    }
}

fn sum(before: &[u8], data: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(before);
    sum.update(data);
    sum.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEY: Key = [7; 16];

    proptest! {
        #[test]
        fn a_value_is_what_was_sealed_or_nothing(
            data: Vec<u8>, cost: u32, at: prop::sample::Index, with: u8, junk: Vec<u8>,
        ) {
            let cost = Duration::from_micros(cost.into());
            let value = seal(&KEY, cost, &data);
            let bytes = data.len() as u64;
            prop_assert_eq!(unseal(&KEY, bytes, &value), Seen::Sample(&data, cost));
            prop_assert_eq!(unseal(&[8; 16], bytes, &value), Seen::Damaged);
            prop_assert_eq!(unseal(&KEY, bytes + 1, &value), Seen::Damaged);
            let cut = at.index(value.len());
            prop_assert!(!matches!(unseal(&KEY, bytes, &value[..cut]), Seen::Sample(..)));
            let mut changed = value.clone();
            changed[cut] ^= with.max(1);
            let expected = if cut < 8 { Seen::Foreign } else { Seen::Damaged };
            prop_assert_eq!(unseal(&KEY, bytes, &changed), expected);
            prop_assert_eq!(unseal(&KEY, bytes, &junk), Seen::Foreign);
        }
    }
}
