//! What was decided about a batch.

use crate::ledger::Access;
use crate::types::SampleId;

/// What becomes of one row's sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It is resident. Its bytes may still be on their way.
    Hit,
    /// It was not resident and is now: fetch it and keep it.
    Keep,
    /// It was not resident and stays out: fetch it and let it go.
    Pass,
    /// It became resident and gave way again within this batch. Fetch it and let it go: its memory is promised to its
    /// successor.
    Displaced,
}

impl Verdict {
    const NAMES: [(Self, &str); 4] =
        [(Self::Hit, "hit"), (Self::Keep, "keep"), (Self::Pass, "pass"), (Self::Displaced, "displaced")];

    /// Its name in files.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(verdict, _)| *verdict == self).map_or("", |(_, name)| name)
    }
    /// The verdict of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(_, known)| *known == name).map(|(verdict, _)| *verdict)
    }
}

impl From<Access> for Verdict {
    fn from(access: Access) -> Self {
        match access {
            Access::Hit => Self::Hit,
            Access::Admitted => Self::Keep,
            Access::Bypassed => Self::Pass,
        }
    }
}

/// One row of a batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row {
    /// The sample that the sampler drew. The weight belongs to this draw.
    pub drawn: SampleId,
    /// The sample that the row holds. Another one than `drawn` only under a policy that substitutes. Scores, labels
    /// and coverage are this sample's.
    pub delivered: SampleId,
    /// The weight of the draw.
    pub weight: f32,
    /// What becomes of the delivered sample.
    pub verdict: Verdict,
}

/// A resident that gave way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Evicted {
    /// The row whose sample took its place.
    pub row: u32,
    /// Who left.
    pub id: SampleId,
}

/// What was decided about one batch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Decision {
    /// The batch's position in its epoch.
    pub number: usize,
    /// Its position in the run, under a buffer sampler: what comes of the batch is told by it. 0 under others.
    pub serial: u64,
    /// Where in the epoch's order it ends: what batches after it draw lies behind.
    pub reach: usize,
    /// In the order of delivery.
    pub rows: Vec<Row>,
    /// In the order in which they left.
    pub evicted: Vec<Evicted>,
}

impl Decision {
    /// Samples that must be fetched for it, row by row.
    pub fn fetched(&self) -> impl Iterator<Item = SampleId> + '_ {
        self.rows.iter().filter(|row| row.verdict != Verdict::Hit).map(|row| row.delivered)
    }
}

/// The answer to "the next batch, please".
#[derive(Debug, Clone, PartialEq)]
pub enum Turn {
    /// Here it is.
    Decided(Decision),
    /// The pass has no batch left, or is not the current one.
    Over,
    /// The books are lent (see [`Control::lend`](super::Control::lend)): ask again when they are back.
    Lent,
}
