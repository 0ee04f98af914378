//! What a sample of several parts is as a payload: the picture, if there is one, then the tail, then the picture's
//! length. Without a picture it is the tail alone, and without a tail the picture.
//!
//! A tail has the lengths of its parts, a number for each that may differ in length, and then the parts, each at a
//! multiple of eight from where the first begins. `pybind/src/tails.rs` reads it.

use crate::error::{Error, Result};
use crate::sample::{Piece, PieceKind};

const ALIGNMENT: usize = 8;
const NUMBER_BYTES: usize = 8;

/// A part of a tail.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TailPart<'a> {
    pub(crate) bytes: &'a [u8],
    /// How many elements that is, where it differs from sample to sample.
    pub(crate) length: Option<u64>,
}

/// Makes a payload of its parts.
pub(crate) fn join(picture: Option<&[u8]>, tail: &[TailPart<'_>], into: &mut Vec<u8>) {
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
pub(crate) fn tail_bytes(parts: impl Iterator<Item = u64>) -> u64 {
    let (mut numbers, mut bytes) = (0, 0u64);
    for part in parts {
        numbers += NUMBER_BYTES as u64;
        bytes = bytes.next_multiple_of(ALIGNMENT as u64) + part;
    }
    numbers + bytes
}

/// Bytes of a payload, see [`join`].
pub(crate) fn payload_bytes(picture: Option<u64>, tail_bytes: u64, has_tail: bool) -> u64 {
    let length = if has_tail { NUMBER_BYTES as u64 } else { 0 };
    tail_bytes + picture.map_or(0, |picture| picture + length)
}

/// The picture and the tail of a payload that has both.
///
/// # Errors
/// `Sample` for bytes that are no such payload.
pub fn picture_and_tail(payload: &[u8]) -> Result<(&[u8], &[u8])> {
    let parts = payload.split_last_chunk::<NUMBER_BYTES>().and_then(|(rest, length)| {
        usize::try_from(u64::from_ne_bytes(*length)).ok().and_then(|length| rest.split_at_checked(length))
    });
    parts.ok_or_else(|| Error::sample("its picture is longer than the sample: it is damaged"))
}

/// What of a payload belongs to each of `pieces`, in their order; nothing for labels, which are targets.
///
/// # Errors
/// `Sample` for a payload that is not made of them.
pub fn apart<'a>(pieces: &[Piece], payload: &'a [u8]) -> Result<Vec<&'a [u8]>> {
    let tail_of = || pieces.iter().map(|piece| piece.kind).filter(|kind| kind.in_tail());
    let pictured = pieces.iter().any(|piece| piece.kind == PieceKind::Picture);
    let (picture, mut tail) = match (pictured, tail_of().next()) {
        (true, None) => (payload, &[][..]),
        (true, Some(_)) => picture_and_tail(payload)?,
        (false, _) => (&[][..], payload),
    };
    let broken = || Error::sample("it has other parts than its dataset: it is damaged");
    let mut bytes = Vec::new();
    for kind in tail_of() {
        let each = kind.dtype().map_or(1, |dtype| dtype.size_bytes());
        let count = match kind {
            PieceKind::Number(_) => 1,
            _ => {
                let (count, rest) = tail.split_first_chunk::<NUMBER_BYTES>().ok_or_else(broken)?;
                tail = rest;
                usize::try_from(u64::from_ne_bytes(*count)).map_err(|_| broken())?
            }
        };
        bytes.push(count.checked_mul(each).ok_or_else(broken)?);
    }
    let (mut at, mut parts) = (0usize, Vec::with_capacity(bytes.len()));
    for bytes in bytes {
        at = at.next_multiple_of(ALIGNMENT);
        let end = at.checked_add(bytes).ok_or_else(broken)?;
        parts.push(tail.get(at..end).ok_or_else(broken)?);
        at = end;
    }
    let mut parts = parts.into_iter();
    let part = |piece: &Piece| match piece.kind {
        PieceKind::Label => &[][..],
        PieceKind::Picture => picture,
        _ => parts.next().unwrap_or_default(),
    };
    Ok(pieces.iter().map(part).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Dtype;

    #[test]
    fn the_parts_of_a_payload_are_those_that_were_joined() {
        let piece = |name: &str, kind| Piece { name: name.to_owned(), kind };
        let numbers = [1i32, 2, 3].map(i32::to_ne_bytes).concat();
        let half = 0.5f64.to_ne_bytes();
        let tail = [
            TailPart { bytes: b"words", length: Some(5) },
            TailPart { bytes: &half, length: None },
            TailPart { bytes: &numbers, length: Some(3) },
        ];
        let others =
            [("t", PieceKind::Text), ("h", PieceKind::Number(Dtype::F64)), ("n", PieceKind::Numbers(Dtype::I32))];
        let mut pieces: Vec<Piece> = others.map(|(name, kind)| piece(name, kind)).into();
        let mut payload = Vec::new();
        join(None, &tail, &mut payload);
        assert_eq!(apart(&pieces, &payload).unwrap(), [&b"words"[..], &half, &numbers]);
        pieces.insert(1, piece("label", PieceKind::Label));
        pieces.insert(2, piece("img", PieceKind::Picture));
        join(Some(b"picture"), &tail, &mut payload);
        assert_eq!(apart(&pieces, &payload).unwrap(), [&b"words"[..], b"", b"picture", &half, &numbers]);
        for cut in 0..payload.len() {
            let found = apart(&pieces, &payload[..cut]);
            assert!(found.is_err() || found.is_ok_and(|parts| parts.len() == pieces.len()));
        }
        let only = [piece("img", PieceKind::Picture), piece("y", PieceKind::Label)];
        assert_eq!(apart(&only, b"picture").unwrap(), [&b"picture"[..], b""]);
    }

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
