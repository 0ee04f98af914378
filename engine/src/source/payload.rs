//! What a sample of several parts is as a payload: the picture, if there is one, then the tail, then the picture's
//! length. Without a picture it is the tail alone, and without a tail the picture.
//!
//! A tail has the lengths of its parts, a number for each that may differ in length, and then the parts, each at a
//! multiple of eight from where the first begins. `pybind/src/tails.rs` reads it.

use crate::error::{Error, Result};

const ALIGNMENT: usize = 8;
const NUMBER_BYTES: usize = 8;

/// A part of a tail.
#[derive(Debug, Clone, Copy)]
pub(super) struct TailPart<'a> {
    pub(super) bytes: &'a [u8],
    /// How many elements that is, where it differs from sample to sample.
    pub(super) length: Option<u64>,
}

/// Makes a payload of its parts.
pub(super) fn join(picture: Option<&[u8]>, tail: &[TailPart<'_>], into: &mut Vec<u8>) {
    into.clear();
    into.extend_from_slice(picture.unwrap_or_default());
    for length in tail.iter().filter_map(|part| part.length) {
        into.extend_from_slice(&length.to_ne_bytes());
    }
    let start = into.len();
    for part in tail {
        into.resize(start + (into.len() - start).next_multiple_of(ALIGNMENT), 0);
        into.extend_from_slice(part.bytes);
    }
    if let Some(picture) = picture.filter(|_| !tail.is_empty()) {
        into.extend_from_slice(&(picture.len() as u64).to_ne_bytes());
    }
}

/// Bytes of a tail whose parts have so many bytes each and all differ in length.
pub(super) fn tail_bytes(parts: impl Iterator<Item = u64>) -> u64 {
    let (mut numbers, mut bytes) = (0, 0u64);
    for part in parts {
        numbers += NUMBER_BYTES as u64;
        bytes = bytes.next_multiple_of(ALIGNMENT as u64) + part;
    }
    numbers + bytes
}

/// Bytes of a payload, see [`join`].
pub(super) fn payload_bytes(picture: Option<u64>, tail_bytes: u64, has_tail: bool) -> u64 {
    let length = if has_tail { NUMBER_BYTES as u64 } else { 0 };
    tail_bytes + picture.map_or(0, |picture| picture + length)
}

/// The picture and the tail of a payload that has both.
///
/// # Errors
/// `Sample` for bytes that are no such payload.
pub(crate) fn picture_and_tail(payload: &[u8]) -> Result<(&[u8], &[u8])> {
    let parts = payload.split_last_chunk::<NUMBER_BYTES>().and_then(|(rest, length)| {
        usize::try_from(u64::from_ne_bytes(*length)).ok().and_then(|length| rest.split_at_checked(length))
    });
    parts.ok_or_else(|| Error::sample("its picture is longer than the sample: it is damaged"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_has_the_bytes_that_are_announced_and_comes_apart_again() {
        let part = |bytes, length| TailPart { bytes, length };
        let mut payload = vec![7; 3];
        join(
            Some(b"picture"),
            &[part(b"abc", Some(3)), part(b"", Some(0)), part(b"0123456789", Some(10))],
            &mut payload,
        );
        let tail = tail_bytes([3, 0, 10].into_iter());
        assert_eq!(payload.len() as u64, payload_bytes(Some(7), tail, true));
        let (picture, found) = picture_and_tail(&payload).unwrap();
        assert_eq!(
            (picture, found.len() as u64, &found[24..27], &found[32..]),
            (&b"picture"[..], tail, &b"abc"[..], &b"0123456789"[..])
        );
        join(Some(b"alone"), &[], &mut payload);
        assert_eq!(payload, b"alone");
        // A number has no length of its own.
        join(None, &[part(&[1; 8], None), part(b"x", Some(1))], &mut payload);
        assert_eq!(payload, [&1u64.to_ne_bytes()[..], &[1; 8], b"x"].concat());
    }

    #[test]
    fn bytes_that_are_no_payload_are_told() {
        for payload in [&[][..], &[1; 7], &u64::MAX.to_ne_bytes(), &[&[7; 3][..], &4u64.to_ne_bytes()].concat()] {
            assert!(picture_and_tail(payload).is_err(), "{payload:?}");
        }
        assert_eq!(picture_and_tail(&0u64.to_ne_bytes()).unwrap(), (&[][..], &[][..]));
    }
}
