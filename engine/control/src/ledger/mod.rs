//! What is resident and how many bytes it takes: the one set of books, kept for the live cache and the simulator alike.
//!
//! The ledger owns no sample's bytes. It counts, asks its [`Policy`] who gives way, and tells the caller what it
//! decided; the caller moves the bytes. What policies decide by (residents, sizes, next uses) is kept here, once for
//! all of them. One ledger lives under one lock, taken once a batch.

use crate::index::{NextUse, Residents, ScoreTable, Sizes};
use crate::policy::{Needs, Policy, View};
use crate::types::SampleId;

/// The most residents that leave in one [`Ledger::resize`], so that a lock is not held for long.
pub const LEAVE_MAX: usize = 2048;

/// What the ledger decided about one access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// The sample is resident (its bytes may still be on their way: single flight is the cache's job).
    Hit,
    /// The sample was not resident and is now: fetch its bytes and keep them, or [`Ledger::cancel`].
    Admitted,
    /// The sample was not resident and stays out: fetch its bytes, use them, drop them.
    Bypassed,
}

/// Totals since the ledger was made. `hits + misses` is the number of accesses, `admitted + bypassed` the number of
/// misses, and `admitted − evicted − cancelled − shrunk − lost` the number of residents.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Accesses that found their sample resident.
    pub hits: u64,
    /// Accesses that did not.
    pub misses: u64,
    /// Misses that made their sample resident.
    pub admitted: u64,
    /// Misses that left their sample outside.
    pub bypassed: u64,
    /// Residents that gave way to an admitted sample.
    pub evicted: u64,
    /// Residents whose bytes never came or could not be kept.
    pub cancelled: u64,
    /// Residents that left because the cache became smaller.
    pub shrunk: u64,
}

/// The books of one cache: capacity, residents, and the policy that orders them.
///
/// Invariant: `used_bytes() ≤ capacity_bytes()` after every call.
///
/// ```
/// use lossfeed_control::{index::ScoreTable, ledger::{Access, Ledger}, policy};
/// let scores = ScoreTable::new(4, 0.0);
/// let mut ledger = Ledger::new(200, 4, policy::from_name("lru", 4)?);
/// let mut evicted = Vec::new();
/// let bytes = |_| 100;
/// assert_eq!(ledger.access(0, &bytes, &scores, &mut evicted), Access::Admitted);
/// assert_eq!(ledger.access(1, &bytes, &scores, &mut evicted), Access::Admitted);
/// assert_eq!(ledger.access(0, &bytes, &scores, &mut evicted), Access::Hit);
/// assert_eq!(ledger.access(2, &bytes, &scores, &mut evicted), Access::Admitted);
/// assert_eq!(evicted, [1]);
/// # Ok::<(), lossfeed_control::Error>(())
/// ```
pub struct Ledger {
    policy: Box<dyn Policy>,
    substitutes: bool,
    /// Whether the policy looks at beliefs.
    scored: bool,
    books: Books,
    counts: Counts,
}

/// What policies decide by.
struct Books {
    residents: Residents,
    sizes: Sizes,
    next_use: NextUse,
    used: u64,
    capacity: u64,
}

impl Books {
    #[inline]
    fn view<'a>(&'a self, beliefs: &'a ScoreTable) -> View<'a> {
        let Self { residents, sizes, next_use, used, capacity } = self;
        View { beliefs, next_use, sizes, residents, used: *used, capacity: *capacity }
    }
    /// Takes the resident `id` out.
    #[inline]
    fn leave(&mut self, id: SampleId) {
        self.residents.remove(id);
        self.used -= self.sizes.bytes(id);
    }
}

impl Ledger {
    /// An empty cache of `capacity_bytes` for ids `0..samples`. `policy` must be made for the same number of samples.
    pub fn new(capacity_bytes: u64, samples: usize, policy: Box<dyn Policy>) -> Self {
        let needs = policy.needs();
        Self {
            policy,
            substitutes: needs.contains(Needs::SUBSTITUTES),
            scored: needs.contains(Needs::SCORES),
            books: Books {
                residents: Residents::new(samples),
                sizes: Sizes::new(samples),
                next_use: match needs {
                    needs if needs.contains(Needs::NEXT_USE) => NextUse::placed(samples),
                    needs if needs.contains(Needs::PLAN) => NextUse::counted(samples),
                    _ => NextUse::nothing(),
                },
                used: 0,
                capacity: capacity_bytes,
            },
            counts: Counts::default(),
        }
    }

    /// One access. `bytes(id)` is what the sample takes in the cache, always the same; it is asked on a miss, and of
    /// `id` alone. Residents that gave way are appended to `evicted`; their bytes must be freed before the candidate's
    /// are kept. A sample larger than the whole cache, or than 4 GiB − 1, always passes through.
    pub fn access(
        &mut self,
        id: SampleId,
        bytes: &dyn Fn(SampleId) -> u64,
        scores: &ScoreTable,
        evicted: &mut Vec<SampleId>,
    ) -> Access {
        self.books.next_use.advance(id);
        if self.books.residents.contains(id) {
            self.counts.hits += 1;
            let view = self.books.view(scores);
            self.policy.hit(id, &view);
            return Access::Hit;
        }
        self.counts.misses += 1;
        let before = evicted.len();
        let admitted = match u32::try_from(bytes(id)) {
            Ok(bytes) if u64::from(bytes) <= self.books.capacity => {
                self.books.sizes.learn(id, bytes);
                let view = self.books.view(scores);
                self.policy.place(id, &view, evicted)
            }
            _ => false,
        };
        if !admitted {
            self.counts.bypassed += 1;
            return Access::Bypassed;
        }
        for &victim in &evicted[before..] {
            self.books.leave(victim);
        }
        self.counts.evicted += (evicted.len() - before) as u64;
        self.books.residents.insert(id);
        self.books.used += self.books.sizes.bytes(id);
        self.counts.admitted += 1;
        Access::Admitted
    }

    /// The sample that the policy delivers in place of `asked`; `None` to deliver what was asked for, as under every
    /// policy that does not [substitute](Needs::SUBSTITUTES). Call it once an access. Changes no books: what is
    /// delivered is then [accessed](Self::access).
    pub fn instead(&mut self, asked: SampleId, scores: &ScoreTable) -> Option<SampleId> {
        if !self.substitutes {
            return None;
        }
        let view = self.books.view(scores);
        self.policy.instead(asked, &view).filter(|&id| id != asked)
    }

    /// Whether the policy's paper would read `id` in a package with others; see [`Policy::is_packed`].
    pub fn is_packed(&self, id: SampleId) -> bool {
        self.policy.is_packed(id)
    }

    /// Sets the limit. Residents that have to leave for it are answered; their bytes are to be freed. At most
    /// [`LEAVE_MAX`] leave in one call: if that is not enough, the limit stays at what is still used, and the call is
    /// to be repeated until [`Self::capacity_bytes`] is what was asked for.
    pub fn resize(&mut self, capacity_bytes: u64, scores: &ScoreTable) -> Vec<SampleId> {
        let mut left = Vec::new();
        self.books.capacity = capacity_bytes;
        while self.books.used > capacity_bytes && left.len() < LEAVE_MAX {
            let view = self.books.view(scores);
            let Some(id) = self.policy.weakest(&view).filter(|&id| self.books.residents.contains(id)) else { break };
            self.policy.left(id);
            self.books.leave(id);
            left.push(id);
        }
        self.counts.shrunk += left.len() as u64;
        self.books.capacity = capacity_bytes.max(self.books.used);
        left
    }

    /// Brings the books about a batch's `ids` into the processor's caches before [`Ledger::access`] asks for them one
    /// by one. Changes nothing. At millions of samples every look at a random id is a cache miss: these loads do not
    /// depend on each other, so a dozen misses overlap where the accesses would wait for one after the other.
    pub fn prefetch(&self, ids: &[SampleId], scores: &ScoreTable) {
        self.books.residents.prefetch(ids);
        self.books.sizes.prefetch(ids);
        self.books.next_use.prefetch(ids);
        self.policy.prefetch(ids);
        if self.scored {
            scores.prefetch(ids);
        }
    }

    /// An admitted resident leaves because its bytes never came or could not be kept. Nothing happens if `id` is no
    /// resident (it may have given way to another in the meantime).
    pub fn cancel(&mut self, id: SampleId) {
        if self.books.residents.contains(id) {
            self.policy.left(id);
            self.books.leave(id);
            self.counts.cancelled += 1;
        }
    }
    /// The belief about `id`, resident or not, is now `importance`. Call it after [`ScoreTable::record`].
    #[inline]
    pub fn rescore(&mut self, id: SampleId, importance: f32) {
        self.policy.believed(id, importance);
    }
    /// Every belief may have changed, as when a run is resumed.
    pub fn rekey(&mut self, scores: &ScoreTable) {
        let view = self.books.view(scores);
        self.policy.rebelieved(&view);
    }
    /// The accesses to come, in order; replaces any earlier plan.
    pub fn plan(&mut self, order: &[SampleId]) {
        self.books.next_use.plan(order);
        self.policy.planned(&self.books.next_use, order);
    }
    /// An epoch of so many accesses begins; its plan is known.
    pub fn begin(&mut self, accesses: usize) {
        self.policy.begins(accesses, &self.books.next_use);
    }
    /// Whether `id` is resident.
    #[inline]
    pub fn contains(&self, id: SampleId) -> bool {
        self.books.residents.contains(id)
    }
    /// Number of residents.
    pub fn residents(&self) -> usize {
        self.books.residents.count()
    }
    /// The residents, ascending.
    pub fn residents_iter(&self) -> impl Iterator<Item = SampleId> + '_ {
        self.books.residents.iter()
    }
    /// Bytes of all residents.
    pub fn used_bytes(&self) -> u64 {
        self.books.used
    }
    /// The limit of [`Ledger::used_bytes`].
    pub fn capacity_bytes(&self) -> u64 {
        self.books.capacity
    }
    /// What a resident takes, or a sample that was one.
    pub fn bytes(&self, id: SampleId) -> u64 {
        self.books.sizes.bytes(id)
    }
    /// Who is resident.
    pub fn resident_set(&self) -> &Residents {
        &self.books.residents
    }
    /// What the policy asks of the run.
    pub fn needs(&self) -> Needs {
        self.policy.needs()
    }
    /// The policy's name.
    pub fn policy_name(&self) -> &'static str {
        self.policy.name()
    }
    /// Totals since the start.
    pub fn counts(&self) -> Counts {
        self.counts
    }
    /// Heap bytes of the ledger and its policy (the score table counts its own).
    pub fn metadata_bytes(&self) -> usize {
        self.books.residents.metadata_bytes()
            + self.books.sizes.metadata_bytes()
            + self.books.next_use.metadata_bytes()
            + self.policy.metadata_bytes()
    }
    /// Recounts the books from scratch, the policy's too. O(samples), for tests.
    pub fn check(&self, scores: &ScoreTable) -> Result<(), String> {
        let recounted: u64 = self.books.residents.iter().map(|id| self.books.sizes.bytes(id)).sum();
        if recounted != self.books.used {
            return Err(format!("{recounted} bytes are resident, {} are booked", self.books.used));
        }
        if self.books.used > self.books.capacity {
            return Err(format!("{} bytes are used of {}", self.books.used, self.books.capacity));
        }
        let (counted, booked) = (self.books.residents.iter().count(), self.books.residents.count());
        if counted != booked {
            return Err(format!("{counted} samples are resident, {booked} are booked"));
        }
        let Counts { hits: _, misses, admitted, bypassed, evicted, cancelled, shrunk } = self.counts;
        if admitted + bypassed != misses || admitted != evicted + cancelled + shrunk + counted as u64 {
            return Err(format!("the counts do not add up with {counted} residents: {:?}", self.counts));
        }
        let view = self.books.view(scores);
        self.policy.check(&view)
    }
}
