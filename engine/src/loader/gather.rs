//! A batch that is only copied: all its samples lie in memory, none is to be kept, nobody waits for any.

use super::rows::Rows;
use crate::error::{Error, Result};
use crate::source::{Payload, Scratch, Source};
use std::ops::ControlFlow;

/// Rows between two looks at whether the pass has ended: one copy is shorter than asking.
const ROWS_BETWEEN: usize = 16;

/// What a gathered batch came to.
#[derive(Default)]
pub(super) struct Gathered {
    /// Rows the source answered for, and their bytes.
    pub(super) rows: usize,
    pub(super) bytes: u64,
    /// Rows that could not be filled, and why.
    pub(super) failures: Vec<(usize, Error)>,
    /// Whether the pass ended meanwhile: the other rows were left out.
    pub(super) stopped: bool,
}

/// Copies every sample of `rows` out of `source`, unless `stopped` says so meanwhile.
pub(super) fn gather(
    source: &dyn Source,
    rows: &mut Rows<'_>,
    scratch: &mut Scratch,
    stopped: &dyn Fn() -> bool,
) -> Gathered {
    let mut gathered = Gathered { stopped: stopped(), ..Gathered::default() };
    if gathered.stopped {
        return gathered;
    }
    let ids = rows.ids;
    source.fetch(ids, &mut |row, payload: Result<Payload<'_>>| {
        gathered.rows += 1;
        // By reference: moving it costs a read of what was written just before, in other pieces than it was written in,
        // and a processor may make such a read wait for the stores before it, here the copy of another row.
        let copied = match payload {
            Ok(ref payload) => rows.copy(row, payload, scratch).map(|()| payload.data.len()),
            Err(e) => Err(e),
        };
        match copied {
            Ok(bytes) => gathered.bytes += bytes as u64,
            Err(e) => gathered.failures.push((row, e)),
        }
        gathered.stopped = gathered.rows.is_multiple_of(ROWS_BETWEEN) && gathered.rows < ids.len() && stopped();
        if gathered.stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    gathered
}
