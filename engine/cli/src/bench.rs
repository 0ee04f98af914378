//! The policies and file formats of `lossfeed replay`: ours, or those of `lossfeed-lab`.

use std::fs::File;
use std::path::Path;

use lossfeed_control::Result;
use lossfeed_control::policy::{self, Entry};
use lossfeed_control::sim::{Trace, Watch};

/// A program's policies, readers and counters for the command.
#[derive(Clone, Copy)]
pub struct Bench<'a> {
    /// The policies there are; all of them are replayed where none is named.
    pub policies: &'static [Entry],
    /// Reads a trace that is neither a journal nor our CSV, with sentences on what it does not say; `None` for a file
    /// that is one of these.
    pub read: &'a dyn Fn(&Path, &File) -> Result<Option<(Trace, Vec<String>)>>,
    /// Counts what a replay does not count by itself.
    pub watch: Option<fn() -> Box<dyn Watch>>,
}

impl Bench<'_> {
    /// The policy of a name that a user types; the paper calls `shade` `app`.
    pub(crate) fn find(&self, name: &str) -> Result<&'static Entry> {
        policy::find_in(self.policies, if name == "app" { "shade" } else { name })
    }
}
