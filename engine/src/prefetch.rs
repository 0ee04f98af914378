//! Asking for memory a little before it is read.
#![allow(unsafe_code)]

/// How much of a row is asked for ahead of its copy. From there on the processor reads ahead by itself, and more lines
/// than it can wait for at once only hold up the copy under way: of rows of 3 KB, a whole row ahead cost as much as it
/// gained, 512 bytes made an epoch from the cache 8 % cheaper than none or all (x86-64, 2026-11-23).
const AHEAD_BYTES: usize = 512;

/// Brings the first 512 bytes of a row on their way into the processor's caches. For whoever copies the row before it:
/// a copy of a few KB ends before the processor has seen that it should read ahead, and then waits for memory again at
/// the next row.
pub(crate) fn begin(row: &[u8]) {
    row.iter().take(AHEAD_BYTES).step_by(64).for_each(line);
}

#[cfg(target_arch = "x86_64")]
fn line(byte: &u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a hint about an address; it is that of a byte that may be read.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(byte).cast()) }
}

/// The standard library has no such hint for this architecture.
#[cfg(not(target_arch = "x86_64"))]
fn line(_byte: &u8) {}
