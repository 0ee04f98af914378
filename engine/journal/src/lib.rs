//! The journal of a run: every decision about the cache and every score, in the order in which they were made.
//!
//! The engine hands [`Event`]s to a [`Writer`], which writes them from a thread of its own. A [`Reader`] gives them
//! back, and [`replay`] makes the same calls of the same books once more. So a replay counts exactly the hits of the
//! run, whatever the number of its threads: they called the books one after the other, and the journal has that order.
//!
//! # The file
//! Text, so that spreadsheets, pandas, polars and DuckDB read it; gzip if the name ends in `.gz`.
//! The first line is `# ` and a JSON object ([`Meta`]). The second is the CSV header:
//!
//! ```text
//! event,epoch,step,row,id,drawn,verdict,bytes,weight,score,loss,gradient_norm
//! ```
//!
//! A line is one row of an event, `row` is its position in the event, and the rows of one event stand together. An
//! event without rows is a line without `row`. What an event does not say is left empty.
//!
//! | event | columns | meaning |
//! | --- | --- | --- |
//! | `begin` | epoch, step, [row, id] | a pass begins with batch `step`; the rows, if any, are the accesses planned for it, and for the epochs behind it where the policy knows them |
//! | `decide` | epoch, step, row, id, drawn, verdict, bytes, weight | batch `step` of the epoch, row by row |
//! | `learn` | epoch, step, row, id, score, loss, gradient_norm | the scores of that batch arrived |
//! | `cancel` | row, id | it was to be kept, and its bytes never came or found no room |
//! | `read` | row, id, verdict | whether its bytes could be read: `read` or `failed` |
//! | `tried` | row, id | delivered, and no score came |
//! | `believe` | row, id, score | what a resumed run believed at its start |
//! | `sampler` | verdict | from here on orders are drawn by this sampler and these options, as `NAME:option=value…` |
//! | `weights` | verdict | from here on they are drawn with weights, `used`, or without, `unused` |
//! | `io` | epoch, step, verdict | reading goes otherwise from here on, as `NAME:before=N:now=N:why=WORDS`: loader `threads`, `requests` in flight ahead of need, the `lead` (bytes that are read ahead at most), the `disk` tier's circuit (0 closed, 1 open, 2 half open); a replay passes over it |
//! | `lost` | row | `row` rows are missing here: the disk was slower than the run |
//! | `end` | | the run closed its journal |
//!
//! `id` is the sample that was delivered, `drawn` the one that the sampler chose: they differ where a policy
//! substitutes. The verdict of a decision is `hit`, `keep` (fetched and kept), `pass` (fetched and let go) or
//! `displaced` (kept, and evicted by the same batch). `step` is the batch's number in its epoch. `bytes` is what the
//! sample takes in the cache. A loss may be `inf`, as it was measured; `NaN` is never written, and refused.
//!
//! In pandas: `pandas.read_csv("run.csv.gz", comment="#")`.

mod event;
mod line;
mod losses;
mod reader;
mod recording;
mod short_lines;
mod trace;
mod writer;

#[cfg(test)]
mod bomb_tests;
#[cfg(test)]
mod tests;

pub use event::{Event, Meta, Row, Scored};
pub use losses::{Measured, losses};
pub use lossfeed_control::control::Verdict;
pub use reader::{Ending, Limits, Reader, is_journal};
pub use recording::{Recording, Replayed, replay, replay_with};
pub use short_lines::ShortLines;
pub use trace::{ROWS_MAX, next_line, read_trace};
pub use writer::{Summary, WhenBehind, Writer};
