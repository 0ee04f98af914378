//! What the cache tells a run's journal: every verb, in the order in which the lock saw them.

use crate::arena::Arena;
use crate::control::{self, Plan};
use crate::error::Result;
use crate::sampler::SamplerSettings;
use crate::tune::decided::Decided;
use crate::types::{SIZE_UNKNOWN, SampleId};
use lossfeed_journal::{Event, Row, Scored, Summary, Writer};

/// The journal of a run, or none. It lies under the cache's lock. Handing an event over never waits for the disk.
#[derive(Default)]
pub(super) struct Journal(Option<Writer>);

impl Journal {
    pub(super) fn new(writer: Writer) -> Self {
        Self(Some(writer))
    }

    /// Whether anything is written. Who would have to collect something first asks this.
    pub(super) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    fn push(&self, event: impl FnOnce() -> Event) {
        if let Some(writer) = &self.0 {
            writer.push(event());
        }
    }

    /// Rows that are missing because the disk was slower than the run.
    pub(super) fn lost(&self) -> u64 {
        self.0.as_ref().map_or(0, Writer::lost)
    }

    /// The policy is about to be told of `plan` from batch `first` on.
    pub(super) fn begin(&self, plan: &Plan, first: usize) {
        self.push(|| Event::Begin { epoch: plan.epoch, step: first as u32, plan: plan.told(first).into() });
    }

    pub(super) fn decide(
        &self,
        epoch: u64,
        number: usize,
        rows: &[control::Row],
        record_bytes: &dyn Fn(SampleId) -> u64,
    ) {
        let row = |row: &control::Row| {
            let bytes = record_bytes(row.delivered);
            let bytes = if bytes < SIZE_UNKNOWN { Arena::footprint(bytes as usize) } else { 0 };
            Row { id: row.delivered, drawn: row.drawn, verdict: row.verdict, bytes, weight: row.weight }
        };
        self.push(|| Event::Decide { epoch, step: number as u32, rows: rows.iter().map(row).collect() });
    }

    /// `batch` is the batch's epoch and number.
    pub(super) fn learn(&self, batch: (u64, usize), rows: Vec<Scored>) {
        self.push(|| Event::Learn { epoch: batch.0, step: batch.1 as u32, rows });
    }

    pub(super) fn cancel(&self, ids: Vec<SampleId>) {
        if !ids.is_empty() {
            self.push(|| Event::Cancel(ids));
        }
    }

    pub(super) fn read(&self, ids: &[SampleId], failed: &dyn Fn(usize) -> bool) {
        self.push(|| Event::Read(ids.iter().enumerate().map(|(row, &id)| (id, !failed(row))).collect()));
    }

    pub(super) fn tried(&self, ids: Vec<SampleId>) {
        if !ids.is_empty() {
            self.push(|| Event::Tried(ids));
        }
    }

    /// The next passes are drawn by this sampler.
    pub(super) fn sampler(&self, sampler: &SamplerSettings) {
        self.push(|| Event::Sampler(spelled(sampler)));
    }

    /// The next passes are drawn with weights, or without.
    pub(super) fn weights(&self, used: bool) {
        self.push(|| Event::Weights(used));
    }

    /// Reading goes otherwise; `at` is the epoch and number of the batch that is delivered next.
    pub(super) fn io(&self, decided: &Decided, at: (u64, usize)) {
        let &Decided { knob, before, now, why, .. } = decided;
        let (epoch, step) = (at.0, at.1 as u32);
        self.push(|| Event::Io { epoch, step, knob: knob.about().name.to_owned(), before, now, why: why.to_owned() });
    }

    /// What a resumed run believes at its start. `standings` as in the score table.
    pub(super) fn believe(&self, beliefs: Vec<(SampleId, f32)>, tried: Vec<SampleId>, failed: Vec<SampleId>) {
        if !beliefs.is_empty() {
            self.push(|| Event::Believe(beliefs));
        }
        self.tried(tried);
        if !failed.is_empty() {
            self.read(&failed, &|_| true);
        }
    }

    /// Ends the file, once the lock is left; `None` if there is no journal, or it has ended.
    pub(super) fn take(&mut self) -> Option<Writer> {
        self.0.take()
    }
}

/// As the command line takes it: `replay:fresh=0.25:lag=64`.
fn spelled(sampler: &SamplerSettings) -> String {
    let mut text = sampler.name().to_owned();
    if let Ok(serde_json::Value::Object(options)) = serde_json::to_value(sampler) {
        let set = options.iter().filter(|(name, value)| *name != "name" && !value.is_null());
        text.extend(set.map(|(name, value)| format!(":{name}={value}")));
    }
    text
}

/// Writes what is queued and ends the file.
pub(super) fn close(writer: Option<Writer>) -> Result<Option<Summary>> {
    writer.map(Writer::close).transpose()
}
