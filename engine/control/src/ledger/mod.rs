//! What is resident and how many bytes it takes: the one set of books, kept for the live cache and the simulator alike.
//!
//! The ledger owns no sample's bytes, and no list of their sizes either: the caller knows those. It counts, asks its
//! [`Policy`] who gives way, and tells the caller what it decided; the caller moves the bytes. One ledger lives under one lock,
//! taken once a batch.

mod residents;

use crate::index::ScoreTable;
use crate::policy::Policy;
use crate::types::SampleId;
use residents::Residents;

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

/// Totals since the ledger was made. `hits_total + misses_total` is the number of accesses and
/// `admitted_total + bypassed_total` the number of misses.
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
    capacity_bytes: u64,
    used_bytes: u64,
    residents: Residents,
    counts: Counts,
    /// Victims of the candidate at hand; kept between calls for its allocation.
    victims: Vec<SampleId>,
}

impl Ledger {
    /// An empty cache of `capacity_bytes` for ids `0..samples`. `policy` must be made for the same number of samples.
    pub fn new(capacity_bytes: u64, samples: usize, policy: Box<dyn Policy>) -> Self {
        Self {
            policy,
            capacity_bytes,
            used_bytes: 0,
            residents: Residents::new(samples),
            counts: Counts::default(),
            victims: Vec::new(),
        }
    }

    /// One access. `bytes(id)` is what a sample takes in the cache, always the same; it is asked on a miss, for the candidate
    /// and for those who give way.
    /// Residents that gave way are appended to `evicted`; their bytes must be freed before the candidate's are kept.
    /// A sample larger than the whole cache, or than 4 GiB − 1, always passes through.
    pub fn access(
        &mut self,
        id: SampleId,
        bytes: &dyn Fn(SampleId) -> u64,
        scores: &ScoreTable,
        evicted: &mut Vec<SampleId>,
    ) -> Access {
        let resident = self.residents.contains(id);
        self.policy.access(id, resident);
        if resident {
            self.counts.hits += 1;
            return Access::Hit;
        }
        self.counts.misses += 1;
        if self.make_room(id, bytes, scores) {
            self.counts.evicted += self.victims.len() as u64;
            evicted.append(&mut self.victims);
            self.residents.insert(id);
            self.used_bytes += bytes(id);
            self.policy.insert(id, scores);
            self.counts.admitted += 1;
            Access::Admitted
        } else {
            self.counts.bypassed += 1;
            Access::Bypassed
        }
    }

    /// Brings the books about a batch's `ids` into the processor's caches before [`Ledger::access`] asks for them one by one.
    /// Changes nothing. At millions of samples every look at a random id is a cache miss: these loads do not depend on each
    /// other, so a dozen misses overlap where the accesses would wait for one after the other.
    pub fn prefetch(&self, ids: &[SampleId], scores: &ScoreTable) {
        self.residents.prefetch(ids);
        self.policy.prefetch(ids);
        scores.prefetch(ids);
    }

    /// Leaves the victims that `id` needs in `self.victims`, or puts all of them back and answers `false`.
    fn make_room(&mut self, id: SampleId, bytes: &dyn Fn(SampleId) -> u64, scores: &ScoreTable) -> bool {
        self.victims.clear();
        let needed = bytes(id);
        if needed > self.capacity_bytes || needed > u64::from(u32::MAX) {
            return false;
        }
        if self.used_bytes + needed <= self.capacity_bytes {
            return self.policy.admits(id, scores);
        }
        while self.used_bytes + needed > self.capacity_bytes {
            let Some(victim) = self.policy.victim(id, scores) else {
                while let Some(victim) = self.victims.pop() {
                    self.used_bytes += bytes(victim);
                    self.residents.insert(victim);
                    self.policy.insert(victim, scores);
                }
                return false;
            };
            self.used_bytes -= bytes(victim);
            self.residents.remove(victim);
            self.victims.push(victim);
        }
        true
    }

    /// An admitted resident leaves because its bytes never came or could not be kept. Nothing happens if `id` is no
    /// resident (it may have given way to another in the meantime). `bytes` is what `id` took.
    pub fn cancel(&mut self, id: SampleId, bytes: u64) {
        if self.residents.contains(id) {
            self.policy.remove(id);
            self.used_bytes -= bytes;
            self.residents.remove(id);
            self.counts.cancelled += 1;
        }
    }
    /// The belief about `id`, resident or not, is now `importance`. Call it after [`ScoreTable::record`].
    #[inline]
    pub fn rescore(&mut self, id: SampleId, importance: f32) {
        self.policy.rescore(id, importance);
    }
    /// Every belief may have changed, as when a run is resumed: residents enter the policy anew, in the order of their ids.
    pub fn rekey(&mut self, scores: &ScoreTable) {
        let residents: Vec<SampleId> = self.residents.iter().collect();
        for id in residents {
            self.policy.remove(id);
            self.policy.insert(id, scores);
        }
    }
    /// The accesses to come, in order; replaces any earlier plan.
    pub fn plan(&mut self, order: &[SampleId]) {
        self.policy.plan(order);
    }
    /// Whether `id` is resident.
    #[inline]
    pub fn contains(&self, id: SampleId) -> bool {
        self.residents.contains(id)
    }
    /// Number of residents.
    pub fn residents(&self) -> usize {
        self.residents.count()
    }
    /// The residents, ascending.
    pub fn residents_iter(&self) -> impl Iterator<Item = SampleId> + '_ {
        self.residents.iter()
    }
    /// The residents among the ids 64 × `words`, a bit each, the lowest id in the lowest bit.
    pub fn resident_words(&self, words: std::ops::Range<usize>) -> &[u64] {
        self.residents.words(words)
    }
    /// Bytes of all residents.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }
    /// The limit of [`Ledger::used_bytes`].
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
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
        self.residents.metadata_bytes() + self.policy.metadata_bytes() + self.victims.capacity() * 4
    }
    /// Recounts the books from scratch, the policy's too. `bytes` as in [`Ledger::access`]. O(samples), for tests.
    pub fn check(&self, bytes: &dyn Fn(SampleId) -> u64) -> Result<(), String> {
        let recounted: u64 = self.residents.iter().map(bytes).sum();
        if recounted != self.used_bytes {
            return Err(format!("{recounted} bytes are resident, {} are booked", self.used_bytes));
        }
        if self.used_bytes > self.capacity_bytes {
            return Err(format!("{} bytes are used of {}", self.used_bytes, self.capacity_bytes));
        }
        let (counted, booked) = (self.residents.iter().count(), self.residents.count());
        if counted != booked {
            return Err(format!("{counted} samples are resident, {booked} are booked"));
        }
        let Counts { hits: _, misses, admitted, bypassed, evicted, cancelled } = self.counts;
        if admitted + bypassed != misses || admitted != evicted + cancelled + counted as u64 {
            return Err(format!("the counts do not add up with {counted} residents: {:?}", self.counts));
        }
        self.policy.check(&|id| self.residents.contains(id), counted)
    }
}
