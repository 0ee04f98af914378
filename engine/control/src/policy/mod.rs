//! Who stays: cache policies, one file each.
//!
//! To add one: a file with the policy and its [`Entry`], `mod` and a line of [`ALL`] below, and its name for Python's
//! type checkers in `pybind/python/lossfeed/_base/literals.py`. Its naive twin is in `tests/pure/twins.rs`. Policies of
//! other crates are made of the same parts: `engine/lab/src/policies`.

mod belady;
mod clrfu;
mod debts;
mod entry;
mod fifo;
mod icache;
mod importance;
mod list;
mod lobster;
mod lru;
mod minio;
mod shade;

pub use debts::Debts;
pub use entry::{Entry, Suits};
pub use list::{Lists, ONLY};
pub use minio::MinIo;

use crate::error::{Error, Result};
use crate::index::queue::Key;
use crate::index::{NextUse, PriorityQueue, Residents, ScoreTable, Sizes};
use crate::types::SampleId;

/// The policies a training run can use, in the order in which they are listed and replayed. Code that lists, checks or
/// makes one asks here: the command line, Python, settings and errors.
pub const ALL: [Entry; 9] = [
    lru::ENTRY,
    fifo::ENTRY,
    minio::ENTRY,
    shade::ENTRY,
    importance::ENTRY,
    clrfu::ENTRY,
    icache::ENTRY,
    lobster::ENTRY,
    belady::ENTRY,
];

/// Policies that are only compared on recorded runs, by the program `lossfeed-lab`: not in [`ALL`].
pub const IN_THE_LAB: [&str; 6] = ["sieve", "s3fifo", "lfu", "arc", "quiver", "nopfs"];

/// The policy of that name.
///
/// # Errors
/// `Settings` if there is no such policy.
pub fn find(name: &str) -> Result<&'static Entry> {
    find_in(const { &ALL }, name)
}

/// The policy of that name among `all`.
///
/// # Errors
/// `Settings` if there is no such policy.
pub fn find_in(all: &'static [Entry], name: &str) -> Result<&'static Entry> {
    all.iter().find(|entry| entry.name == name).ok_or_else(|| {
        let names: Vec<_> = all.iter().map(|entry| entry.name).collect();
        let names = names.join(", ");
        Error::settings(if IN_THE_LAB.contains(&name) {
            format!(
                "policy {name} is in the program lossfeed-lab (`lossfeed-lab replay` compares it): use one of {names}"
            )
        } else {
            format!("there is no cache policy {name:?}: choose one of {names}")
        })
    })
}

/// The policy that suits a sampler, where a rank draws from the same samples in every epoch.
pub fn default_for(sampler: &str) -> &'static Entry {
    let all = const { &ALL };
    let suits = |entry: &&Entry| matches!(entry.suits, Suits::Samplers(names) if names.contains(&sampler));
    let otherwise = |entry: &&Entry| entry.suits == Suits::TheRest;
    all.iter().find(suits).or_else(|| all.iter().find(otherwise)).unwrap_or(&all[0])
}

/// The policy of that name, empty, for ids `0..samples`.
///
/// # Errors
/// `Settings` if there is no such policy.
pub fn from_name(name: &str, samples: usize) -> Result<Box<dyn Policy>> {
    Ok((find(name)?.make)(samples))
}

/// What a policy asks of the run it serves, beside the accesses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Needs(u8);

impl Needs {
    /// Nothing.
    pub const NOTHING: Self = Self(0);
    /// Scores: without any it keeps no better than chance.
    pub const SCORES: Self = Self(1);
    /// The accesses to come, as far as they are planned: whether a sample is needed again.
    pub const PLAN: Self = Self(2);
    /// The same, and when it is needed.
    pub const NEXT_USE: Self = Self(4 | 2);
    /// The same, and the plan must reach to the end of the next epoch: a training run has it where orders depend on the
    /// seed alone.
    pub const NEXT_EPOCH: Self = Self(8 | 4 | 2);
    /// The plan must reach to the end of the run, which a training run does not know.
    pub const WHOLE_FUTURE: Self = Self(32 | 8 | 4 | 2);
    /// The right to deliver another sample than the one that was asked for. The run is then biased, and says so by
    /// name.
    pub const SUBSTITUTES: Self = Self(16);

    /// Both.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
    /// Whether all of `other` is needed.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// What a policy sees when it decides. The ledger keeps all of it.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// What is believed about every sample.
    pub beliefs: &'a ScoreTable,
    /// When samples are needed again, as far as the policy [needs](Policy::needs) to know.
    pub next_use: &'a NextUse,
    /// What each sample takes in the cache: of every resident, of every sample that was one, and of the candidate.
    pub sizes: &'a Sizes,
    /// Who is in the cache.
    pub residents: &'a Residents,
    /// Bytes of all residents.
    pub used: u64,
    /// The limit of `used`.
    pub capacity: u64,
}

impl View<'_> {
    /// Bytes that have to be freed before `candidate` fits.
    #[inline]
    pub fn missing(&self, candidate: SampleId) -> u64 {
        (self.used + self.sizes.bytes(candidate)).saturating_sub(self.capacity)
    }
}

/// A cache policy: it orders residents and says who gives way. It owns no byte and does not count: the
/// [`Ledger`](crate::ledger::Ledger) does, and calls it.
///
/// For every access of the stream, in order, it is called once: [`hit`](Policy::hit) if the sample is resident,
/// [`place`](Policy::place) if it is not and could fit into the empty cache. After a batch's accesses, its scores come
/// through [`believed`](Policy::believed). The implementation keeps exactly the residents it was told of: a successful
/// `place` adds the candidate and takes away its victims, [`left`](Policy::left) takes away one, and nothing else
/// changes them.
pub trait Policy: Send {
    /// The name users type.
    fn name(&self) -> &'static str;
    /// What it asks of the run.
    fn needs(&self) -> Needs;
    /// The resident `id` is used.
    fn hit(&mut self, id: SampleId, view: &View<'_>);
    /// `id`, which is no resident, is used. True: it becomes a resident, and those who give way to it are appended to
    /// `victims`; they take [`View::missing`] bytes or more together. False: it passes through, `victims` is as it was,
    /// and no resident changes in anything that a later decision looks at. What is remembered of samples that are not
    /// resident may change either way.
    fn place(&mut self, id: SampleId, view: &View<'_>, victims: &mut Vec<SampleId>) -> bool;
    /// The sample to be delivered in place of `asked`: a resident, or one that is owed because another was delivered in
    /// its place before; `None` to deliver what was asked for. Asked only of a policy that needs
    /// [`Needs::SUBSTITUTES`], for every access of the stream and before its `hit` or `place`; these are then told what
    /// is delivered.
    fn instead(&mut self, _asked: SampleId, _view: &View<'_>) -> Option<SampleId> {
        None
    }
    /// Whether `id`, if it is fetched now, would come in a package with others by the policy's paper. The engine reads no
    /// packages: the simulator counts what they would be.
    fn is_packed(&self, _id: SampleId) -> bool {
        false
    }
    /// The resident that goes first when the cache becomes smaller. It stays until it is told to have `left`. `None`
    /// only if there is no resident.
    fn weakest(&mut self, view: &View<'_>) -> Option<SampleId>;
    /// The resident `id` left without giving way to a candidate: its bytes never came or could not be kept, or the cache
    /// became smaller.
    fn left(&mut self, id: SampleId);
    /// The belief about `id` (resident or not) is now `importance`.
    fn believed(&mut self, _id: SampleId, _importance: f32) {}
    /// Any belief may have changed, as when a run is resumed.
    fn rebelieved(&mut self, _view: &View<'_>) {}
    /// There is a new plan: the accesses to come are `order`, as [`NextUse`] has them too.
    fn planned(&mut self, _next_use: &NextUse, _order: &[SampleId]) {}
    /// An epoch of so many accesses begins. Its plan was told before: alone, or in the plan of the whole run.
    fn begins(&mut self, _accesses: usize, _next_use: &NextUse) {}
    /// Reads what [`Policy::hit`] and [`Policy::place`] will need of `ids`, and does nothing with it: see
    /// [`Ledger::prefetch`](crate::ledger::Ledger::prefetch).
    fn prefetch(&self, _ids: &[SampleId]) {}
    /// Heap bytes of this policy's own state, for honest metadata accounting.
    fn metadata_bytes(&self) -> usize;
    /// Recounts this policy's state from scratch: it must hold exactly the view's residents. O(samples), for tests.
    fn check(&self, view: &View<'_>) -> Result<(), String>;
}

/// The part of [`Policy::check`] that every policy shares: `ids` are the view's residents, each once.
///
/// # Errors
/// What differs.
pub fn check_members(ids: impl Iterator<Item = SampleId>, view: &View<'_>) -> Result<(), String> {
    let mut ids: Vec<_> = ids.collect();
    ids.sort_unstable();
    let (members, residents) = (ids.len(), view.residents.count());
    ids.dedup();
    if ids.len() != members || members != residents {
        return Err(format!("the policy holds {members} ids ({} distinct) of {residents} residents", ids.len()));
    }
    match ids.into_iter().find(|&id| !view.residents.contains(id)) {
        Some(id) => Err(format!("the policy holds {id}, which is no resident")),
        None => Ok(()),
    }
}

/// Takes the least of `queue`, one after the other, until they free `missing` bytes together. Takes none and returns
/// false if one of them does not give way, or if all are not enough.
#[inline]
pub fn take_least<K: Key>(
    queue: &mut PriorityQueue<K>,
    missing: u64,
    sizes: &Sizes,
    victims: &mut Vec<SampleId>,
    gives_way: impl Fn(K) -> bool,
) -> bool {
    let (mut freed, mut taken) = (0, Vec::new());
    while freed < missing {
        let Some((id, key)) = queue.peek().filter(|&(_, key)| gives_way(key)) else {
            // The queue is known by (key, id) alone: with the same keys it is the same queue.
            taken.into_iter().for_each(|(id, key)| queue.insert(id, key));
            return false;
        };
        queue.remove(id);
        freed += sizes.bytes(id);
        if freed >= missing && taken.is_empty() {
            victims.push(id);
            return true;
        }
        taken.push((id, key));
    }
    victims.extend(taken.into_iter().map(|(id, _)| id));
    true
}
