//! A run's beliefs kept in a file while it goes on, and taken up by the next process.
//!
//! A thread writes them: training does not wait for a disk, and no lock is held for more than [`crate::control::PIECE`]
//! samples. A file is of the beliefs of a few moments, for what is learned while it is written may be in it or not.
//!
//! Several ranks write a file each. It has what a rank owns, and what it has learned since it began: together they have
//! everything, and of two beliefs about a sample the newer one counts. So any number of ranks takes up the files of any
//! other. Ranks that exchange scores know the same: the first one writes for all, and gives what it read to the others
//! at the first exchange.
//!
//! Lock: guards the order to end; held for a few instructions, never across I/O or the cache's lock.

use super::Engine;
use crate::control::{Held, News, What};
use crate::error::{Error, Result};
use crate::index::{ScoreTable, Standing};
use crate::loader::Feed;
use crate::scoring::Scale;
use crate::scoring::file::{self, Entry, Found, Head, Written};
use crate::settings::ScoreKind;
use crate::types::SampleId;
use lossfeed_sync::{Condvar, Mutex};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::{Duration, Instant, SystemTime};

/// Where `{rank}` stands in the name of a file is the rank's number.
const RANK: &str = "{rank}";

/// What tells the time since some moment.
pub(super) type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// Tells the thread that keeps beliefs what it has to know.
#[derive(Default)]
pub(super) struct Keeper {
    told: Mutex<Told>,
    wake: Condvar,
    /// Beliefs with stamps below this one were there before this process: who owns the sample writes them.
    before: AtomicU32,
}

#[derive(Default)]
struct Told {
    closing: bool,
}

/// What the thread writes, and where.
pub(super) struct Kept {
    path: PathBuf,
    head: Head,
    every: Duration,
    /// `None`: every sample is this rank's.
    owned: Option<Arc<[SampleId]>>,
    /// When it began, by the clock, and what was known then.
    begun: (Duration, (u32, usize, usize)),
}

/// Now, at a moment that no other loader of this process was made at, and later than `before` whatever the clock says.
fn made_after(before: u64) -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    let next = |last: u64| now.max(last.saturating_add(1)).max(before.saturating_add(1));
    LAST.fetch_update(Relaxed, Relaxed, |last| Some(next(last))).map_or(now, next)
}

/// The file of `rank` where `path` is that of all.
fn own(path: &Path, rank: u32) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(name.replace(RANK, &rank.to_string()))
}

/// All ranks' files that are there, whatever their number was, in order of rank.
fn siblings(path: &Path) -> Result<Vec<PathBuf>> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let Some((before, behind)) = name.split_once(RANK) else { return Ok(vec![path.to_owned()]) };
    let entries = match std::fs::read_dir(file::folder(path)) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => {
            let folder = file::folder(path).display();
            return Err(Error::settings(format!("score_file: {folder} cannot be looked through")).because(e));
        }
    };
    let mut ranks: Vec<u32> = entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            let rank = name.strip_prefix(before)?.strip_suffix(behind)?.parse().ok()?;
            (own(path, rank).file_name()?.to_string_lossy() == name).then_some(rank)
        })
        .collect();
    ranks.sort_unstable();
    Ok(ranks.into_iter().map(|rank| own(path, rank)).collect())
}

/// What was found in files, of all samples.
struct Remembered {
    beliefs: Vec<f32>,
    stamps: Vec<u32>,
    step: u32,
    measured: Option<ScoreKind>,
    /// Which files are damaged, and how.
    damaged: Vec<String>,
    any: bool,
    /// When the newest loader was made that wrote one.
    made_ns: u64,
}

impl Remembered {
    fn read(path: &Path, dataset: &str, samples: usize, scale: &Scale) -> Result<Self> {
        let (mut beliefs, mut stamps) = (vec![f32::NAN; samples], vec![0; samples]);
        let mut all = Self {
            beliefs: Vec::new(),
            stamps: Vec::new(),
            step: 0,
            measured: None,
            damaged: Vec::new(),
            any: false,
            made_ns: 0,
        };
        for path in siblings(path)? {
            let shown = path.display();
            let before = all.measured;
            let mut measured = None;
            let accept = |head: &Head| {
                if head.dataset != dataset || head.samples != samples {
                    return Err(Error::settings(format!(
                        "score_file {shown} belongs to another dataset, of {} samples (this one has {samples}): use \
                         one file per dataset, or remove it",
                        head.samples
                    )));
                }
                measured = head.measured.as_deref().map(ScoreKind::from_name).transpose()?;
                let clash =
                    |kind: ScoreKind| before.is_some_and(|before| before != kind) || scale.accepts(kind).is_err();
                if let Some(kind) = measured.filter(|kind| clash(*kind)) {
                    let other = before.or(scale.settled()).map_or("others", ScoreKind::name);
                    return Err(Error::settings(format!(
                        "score_file {shown} holds scores by {}, and this loader scores by {other}: use score={:?}, \
                         or another file",
                        kind.name(),
                        kind.name()
                    )));
                }
                Ok(())
            };
            let mut newest = 0;
            let known = |piece: &[Entry]| {
                for &(id, belief, stamp) in piece {
                    let id = id as usize;
                    if let (Some(b), Some(s)) = (beliefs.get_mut(id), stamps.get_mut(id)) {
                        (*b, *s) = ScoreTable::better((*b, *s), (belief, stamp));
                    }
                    newest = if belief.is_nan() { newest } else { newest.max(stamp.saturating_add(1)) };
                }
            };
            match file::read(&path, accept, known)? {
                Found::Nothing => {}
                Found::Damaged(what) => all.damaged.push(format!("{shown} ({what})")),
                Found::Whole(head) => {
                    all.any = true;
                    all.made_ns = all.made_ns.max(head.made_ns);
                    all.step = all.step.max(head.step).max(newest);
                    all.measured = all.measured.or(measured);
                }
            }
        }
        Ok(Self { beliefs, stamps, ..all })
    }
}

impl Engine {
    /// Begins with what [`crate::settings::Settings::score_file`] remembers, and keeps it from now on. Answers, in words,
    /// which files are damaged and nothing is known of.
    ///
    /// # Errors
    /// `Settings` for a file of another dataset, measurement or version, for what is not a score file, and where none
    /// can be written. `Source` for one that cannot be read.
    pub(super) fn keep_beliefs(&self, clock: Clock) -> Result<Option<String>> {
        let s = &self.settings;
        let Some(path) = s.score_file.as_ref().filter(|_| !s.exchange || s.rank == 0) else { return Ok(None) };
        let samples = self.feed.source.len();
        let dataset = self.digest.get_or_init(|| self.feed.source.digest()).clone();
        let found = Remembered::read(path, &dataset, samples, &self.scale)?;
        let own = own(path, s.rank);
        file::prepare(&own)?;
        let Remembered { beliefs, stamps, step, measured, damaged, any, made_ns } = found;
        if any {
            let mut table = ScoreTable::new(samples, s.smoothing_weight());
            table.restore(&beliefs, &stamps)?;
            drop((beliefs, stamps));
            if s.exchange {
                let nothing = ScoreTable::new(samples, s.smoothing_weight());
                self.feed.cache.restore_shared(nothing, Held::default(), news_of(&table), step);
            } else {
                self.feed.cache.replace_beliefs(table, step);
            }
            self.scale.replace(measured);
        }
        let several = s.world_size > 1 && !s.exchange;
        let kept = Kept {
            path: own,
            head: Head { dataset, samples, measured: None, step: 0, made_ns: made_after(made_ns) },
            every: Duration::try_from_secs_f64(s.score_file_every).unwrap_or(Duration::MAX),
            owned: several.then(|| self.feed.cache.owned()),
            begun: (clock(), self.feed.cache.learned()),
        };
        self.keeper.before.store(step, Relaxed);
        let (keeper, feed, scale) = (Arc::clone(&self.keeper), Arc::clone(&self.feed), Arc::clone(&self.scale));
        let shown = kept.path.display().to_string();
        let in_hand = move || format!("lossfeed-beliefs: writes {shown}");
        self.threads.spawn("lossfeed-beliefs".into(), "leave score_file out", in_hand, move || {
            keeper.keep(&kept, &feed, &scale, &clock);
        })?;
        let note = (!damaged.is_empty()).then(|| {
            format!(
                "score_file {} damaged, so the scores in {} are not used; new scores will replace it",
                if damaged.len() == 1 { format!("{} is", damaged[0]) } else { format!("{} are", damaged.join(", ")) },
                if damaged.len() == 1 { "it" } else { "them" }
            )
        });
        Ok(note)
    }
}

/// A table's beliefs as a rank would have learned them.
fn news_of(table: &ScoreTable) -> Vec<News> {
    let news = |id: SampleId| {
        let what = match table.standing(id) {
            Standing::Scored(belief) => What::Score(belief),
            Standing::Tried => What::Tried,
            Standing::Failed => What::Failed,
            Standing::Unseen => return None,
        };
        let step = if let What::Score(_) = what { table.stamps()[id as usize] } else { 0 };
        Some(News { id, what, step })
    };
    (0..table.len() as SampleId).filter_map(news).collect()
}

/// What has the time since now.
pub(super) fn clock() -> Clock {
    let begun = Instant::now();
    Arc::new(move || begun.elapsed())
}

impl Keeper {
    /// The thread: writes when it is time and something was learned, and once more at the end.
    fn keep(&self, kept: &Kept, feed: &Feed, scale: &Scale, clock: &Clock) {
        let (mut last, mut had) = kept.begun;
        let mut complained = false;
        loop {
            let closing = self.wait(kept.every, last, clock);
            let learned = feed.cache.learned();
            if learned != had {
                match kept.write(self, feed, scale) {
                    Ok(Written::Done) => {
                        had = learned;
                        complained = false;
                        feed.counters.score_file_step.store(u64::from(had.0), Relaxed);
                    }
                    Ok(Written::Another) => {
                        tracing::warn!(
                            file = %kept.path.display(),
                            "a newer loader writes this score_file, so this one stopped: give each loader its own file"
                        );
                        return;
                    }
                    Err(e) => {
                        feed.counters.score_file_failed_total.fetch_add(1, Relaxed);
                        if !complained {
                            tracing::warn!(file = %kept.path.display(), error = %e, "score_file cannot be written: \
                                 the run goes on and will try again");
                        }
                        complained = true;
                    }
                }
            }
            if closing {
                return;
            }
            last = clock();
        }
    }

    /// Waits until `every` has gone by since `last`, or the end has come: whether it has.
    fn wait(&self, every: Duration, last: Duration, clock: &Clock) -> bool {
        let mut told = self.told.lock();
        loop {
            let rest = every.saturating_sub(clock().saturating_sub(last));
            if told.closing || rest.is_zero() {
                return told.closing;
            }
            self.wake.wait_for(&mut told, rest);
        }
    }

    /// A state was loaded, of which no other rank may know: all of it is written.
    pub(super) fn replaced(&self) {
        self.before.store(0, Relaxed);
    }

    /// The clock was turned.
    #[cfg(test)]
    pub(super) fn look(&self) {
        let _told = self.told.lock();
        self.wake.notify_all();
    }

    /// The end has come: what was learned is written a last time.
    pub(super) fn close(&self) {
        self.told.lock().closing = true;
        self.wake.notify_all();
    }
}

impl Kept {
    fn write(&self, keeper: &Keeper, feed: &Feed, scale: &Scale) -> std::io::Result<Written> {
        let measured = scale.settled().map(|kind| kind.name().to_string());
        let head = Head { measured, step: feed.cache.learned().0, ..self.head.clone() };
        let (mut first, before) = (0, keeper.before.load(Relaxed));
        let mut owned = self.owned.as_deref().map(|owned| owned.iter().peekable());
        file::write(&self.path, &head, |into| {
            let more = feed.cache.known(first, into);
            first += crate::control::PIECE;
            if let Some(owned) = &mut owned {
                into.retain(|&(id, belief, stamp)| {
                    while owned.next_if(|own| **own < id).is_some() {}
                    owned.peek() == Some(&&id) || (!belief.is_nan() && stamp >= before)
                });
            }
            more
        })
    }
}
