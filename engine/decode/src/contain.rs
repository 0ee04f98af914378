//! The net under decoders that are not ours: a panic in one of them is a bad sample.
//!
//! The inputs that are known to make one panic do not reach it (`jpeg.rs`, `png.rs`). What
//! falls through to here is new: the process's panic hook has then said its line on standard error, as it would for
//! any panic. We leave the hook alone, since it belongs to the program that we are a guest of, and that line is what a
//! report to the decoder's authors needs.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::Scratch;
use crate::error::{Error, Result};

/// Runs `decode`, a decoder of `format`, on an image of `bytes` bytes.
///
/// After a panic the scratch memory is new: what the decoder and the resizer left half-done in it is dropped.
///
/// # Errors
/// What `decode` says; `Sample` if it panics.
pub(super) fn contained<T>(
    format: &str,
    bytes: usize,
    scratch: &mut Scratch,
    decode: impl FnOnce(&mut Scratch) -> Result<T>,
) -> Result<T> {
    catch_unwind(AssertUnwindSafe(|| decode(scratch))).unwrap_or_else(|panic| {
        scratch.renew();
        Err(Error::sample(format!(
            "the {format} of {bytes} bytes makes its decoder fail ({}): copy it again, save it with another program, \
             or remove it",
            message(&*panic)
        )))
    })
}

/// What a panic said, if it said it in words.
fn message(panic: &(dyn Any + Send)) -> &str {
    let owned = || panic.downcast_ref::<String>().map(String::as_str);
    panic.downcast_ref::<&str>().copied().or_else(owned).unwrap_or("it did not say why")
}
