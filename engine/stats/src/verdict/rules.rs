//! The words of a verdict and their limits, as data: the docs print this table.

/// A verdict in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Word {
    /// Too few steps to say.
    Incomplete,
    /// One rank holds the others up.
    RankBehind,
    /// The training waits for batches.
    InputBound,
    /// It waits for samples that the cache had and gave up.
    CacheSmall,
    /// It waits for copies to the device.
    CopyBound,
    /// Scores arrive after the sampler needs them.
    ScoresLate,
    /// Computing takes the whole step.
    ComputeBound,
    /// Nothing is wrong.
    Ok,
}

impl Word {
    /// Its name on screens and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Word::Incomplete => "incomplete",
            Word::RankBehind => "rank-behind",
            Word::InputBound => "input-bound",
            Word::CacheSmall => "cache-small",
            Word::CopyBound => "copy-bound",
            Word::ScoresLate => "scores-late",
            Word::ComputeBound => "compute-bound",
            Word::Ok => "ok",
        }
    }

    /// True if something should change.
    pub fn is_wrong(self) -> bool {
        !matches!(self, Word::Incomplete | Word::ComputeBound | Word::Ok)
    }
}

/// A row of the table of rules.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    /// The verdict.
    pub word: Word,
    /// When it is given.
    pub when: &'static str,
    /// The numbers shown with it.
    pub evidence: &'static str,
    /// The subject of the line to write.
    pub next: &'static str,
}

/// Fewer steps are no window.
pub(super) const STEPS_MIN: u64 = 20;
/// Share of the time that waits must take before the input is named.
pub(super) const WAIT_SHARE: f64 = 0.10;
/// Share of the time for copies.
pub(super) const COPY_SHARE: f64 = 0.15;
/// Shorter losses a step (µs) are the loop's own overhead.
pub(super) const STEP_FLOOR_US: f64 = 1000.0;
/// Waits for the hand-over alone count from so much a step (µs): what a worker process costs.
pub(super) const HANDOVER_FLOOR_US: f64 = 5000.0;
/// Below this a sample (µs) and [`STEP_CEILING_US`] a step, a wait is the price of indexing samples in memory.
pub(super) const SAMPLE_FLOOR_US: f64 = 15.0;
/// See [`SAMPLE_FLOOR_US`].
pub(super) const STEP_CEILING_US: f64 = 5000.0;
/// Share of a step by which a rank must be slower than the middle one.
pub(super) const SLOWER_SHARE: f64 = 0.10;
/// Share of the scored samples whose scores came too late or were lost.
pub(super) const LATE_SHARE: f64 = 0.10;
/// A first cause that explains so much is named alone.
pub(super) const EXPLAINS: f64 = 0.80;
/// Share of the step that computing must take.
pub(super) const COMPUTE_SHARE: f64 = 0.90;
/// Shorter steps (µs) are not called bound by anything.
pub(super) const COMPUTE_FLOOR_US: f64 = 5000.0;
/// A cache this full is full.
pub(super) const FULL: f64 = 0.85;
/// Share of the reads that repeat earlier reads.
pub(super) const REPEATED: f64 = 0.30;

/// The rules in the order in which they are tried.
pub const RULES: [Rule; 8] = [
    Rule { word: Word::Incomplete, when: "fewer than 20 steps were measured", evidence: "steps", next: "" },
    Rule {
        word: Word::RankBehind,
        when: "one rank's own time a step is at least 10 % of a step and 1 ms longer than the middle rank's, and that \
               difference is larger than what the middle rank itself loses to waits and copies",
        evidence: "the rank, its own time, the middle rank's, the part that differs",
        next: "that part, on that rank",
    },
    Rule {
        word: Word::CacheSmall,
        when: "as input-bound, most of it reading, with a full cache, and at least 30 % of the reads repeat earlier \
               ones",
        evidence: "wait, hits, the cache's limit, the dataset's size",
        next: "a larger `cache=`",
    },
    Rule {
        word: Word::InputBound,
        when: "waits for batches, without the first of each pass, take at least 10 % of the time and 1 ms a step; or \
               the first batches of later passes take 10 %. Less than 5 ms a step for the hand-over alone, or with \
               less than 15 µs a sample, is the price of samples in memory",
        evidence: "wait by cause: source, decode, python, hand-over, pass start",
        next: "workers, cache or pass start, whichever the cause needs and is not set",
    },
    Rule {
        word: Word::CopyBound,
        when: "copies to the device take at least 15 % of the time and 1 ms a step, and more than the waits",
        evidence: "copies, how much of them from memory that is not pinned",
        next: "`pin_memory=True` with `non_blocking=True`, or fewer bytes",
    },
    Rule {
        word: Word::ScoresLate,
        when: "at least 10 % of the scores came later than the sampler's `lag` or were lost, and nothing above holds",
        evidence: "scores, late scores",
        next: "a larger `lag`",
    },
    Rule {
        word: Word::ComputeBound,
        when: "nothing above holds, a step takes at least 5 ms, and the GPU's own clock (without a GPU: the training \
               thread's processor time) fills 90 % of it",
        evidence: "compute",
        next: "",
    },
    Rule { word: Word::Ok, when: "nothing above holds", evidence: "wait, copies", next: "" },
];
