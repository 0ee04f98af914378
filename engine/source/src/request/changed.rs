//! What is said of files that are not as they were indexed.

use crate::error::Error;

/// Another number of bytes than the index promised; `totals` are the file's sizes when it was indexed and now.
pub(crate) fn short_read(name: &str, file: &str, offset: u64, wanted: u64, got: &str, totals: (u64, u64)) -> Error {
    Error::unreadable(format!(
        "{name}: wanted {wanted} bytes at offset {offset} of {file}, got {got}; the file had {} bytes when it was indexed and has {}: restore \
         it, or open the dataset again",
        totals.0, totals.1
    ))
}

/// A file that is not the one that was indexed; `now` says what it is.
pub(crate) fn changed(name: &str, file: &str, was_bytes: u64, now: &str) -> Error {
    Error::unreadable(format!("{name}: {}", is_another(file, was_bytes, now)))
}

/// What [`changed`] says, without whose file it is.
pub(crate) fn is_another(file: &str, was_bytes: u64, now: &str) -> String {
    format!(
        "{file} changed since it was indexed (it had {was_bytes} bytes; {now}): restore it, or open the dataset again"
    )
}
