//! Fields of a header, and what is wrong with one.

use std::io;

pub(super) fn invalid(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.into())
}

/// What is sound and not read.
pub(super) fn unsupported(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, what.into())
}

pub(super) fn until_zero(text: &[u8]) -> &[u8] {
    text.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// A number in octal digits, or in bytes where the first has its highest bit set; nothing is 0.
pub(super) fn number(field: &[u8]) -> Option<u64> {
    match field.split_first() {
        Some((&first, rest)) if first & 0x80 != 0 => {
            let add = |sum: u64, &byte: &u8| sum.checked_mul(256)?.checked_add(byte.into());
            rest.iter().try_fold(u64::from(first & 0x7f), add)
        }
        _ => {
            let text = std::str::from_utf8(until_zero(field)).ok()?.trim();
            if text.is_empty() { Some(0) } else { u64::from_str_radix(text, 8).ok() }
        }
    }
}
