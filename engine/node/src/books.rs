//! The residents, the jobs that draw them, and the resident that leaves. A decision without effects.
//!
//! A resident is judged by how often each of its bytes is expected to be drawn in an epoch: the sum, over all clients
//! of its dataset, of the draws that each has told. Clients of a job that draws uniformly tell nothing and draw
//! everything once, so no sample displaces an equal one: the first ones stay, as in MinIO. A sample enters a full arena
//! only in place of samples that are drawn less. One of a pinned dataset counts more than any of the others. Clients
//! that leave their order to the owner ([`crate::orders`]) draw together: half a draw, and one more for a sample that
//! one of them reads next.

use std::collections::{HashMap, HashSet};

use crate::message::{Hello, Key, OfferHead};
use crate::orders::{ORDERED_MAX, Walk};
use crate::resident::{Resident, State};
use crate::room::{GRANULE, Room, rounded};
use crate::victims::{Victims, Worth};

/// One sample displaces at most so many.
const VICTIMS_MAX: usize = 64;
/// Samples of a dataset that are rated; larger datasets are judged as if drawn uniformly.
const RATED_MAX: u32 = 1 << 26;

/// A job of a dataset, over all its processes.
#[derive(Debug, Default, Clone)]
pub(crate) struct Job {
    pub(crate) name: String,
    pub(crate) dataset: u64,
    pub(crate) dataset_name: String,
    /// Bytes of residents that it brought.
    pub(crate) bytes: u64,
    pub(crate) residents: u64,
    pub(crate) hits: u64,
    pub(crate) hit_bytes: u64,
    pub(crate) misses: u64,
    pub(crate) clients: u32,
    pub(crate) limit: Option<u64>,
}

#[derive(Debug)]
struct Member {
    job: u32,
    dataset: u64,
    samples: u32,
    connections: u32,
    draws: Option<Box<[f32]>>,
    /// Its epoch, if it leaves the order to the owner.
    walk: Option<Walk>,
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Books {
    bytes: u64,
    used: u64,
    room: Room,
    slots: Vec<Option<Resident>>,
    free: Vec<u32>,
    slots_max: usize,
    by_key: HashMap<Key, u32>,
    pub(crate) jobs: HashMap<u32, Job>,
    next_job: u32,
    members: HashMap<u64, Member>,
    /// Names of datasets whose samples stay.
    pinned: HashSet<String>,
    victims: Victims,
    /// Orders that were given.
    begun: u64,
    pub(crate) declined: u64,
    pub(crate) evicted: u64,
}

/// Slots, whose tags are cleared before anything is written.
pub(crate) type Slots = Vec<u32>;

/// The outcome of an offer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Offered {
    /// Its slot, if it is kept.
    pub(crate) slot: Option<u32>,
    pub(crate) freed: Slots,
}

impl Books {
    pub(crate) fn new(bytes: u64, slots_max: usize) -> Self {
        Self {
            bytes,
            used: 0,
            room: Room::new(bytes),
            slots: Vec::new(),
            free: Vec::new(),
            slots_max,
            by_key: HashMap::new(),
            jobs: HashMap::new(),
            next_job: 0,
            members: HashMap::new(),
            pinned: HashSet::new(),
            victims: Victims::default(),
            begun: 0,
            declined: 0,
            evicted: 0,
        }
    }

    /// Bytes in use, tags included.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    pub(crate) fn has_members(&self) -> bool {
        !self.members.is_empty()
    }

    /// A connection of a client begins.
    pub(crate) fn join(&mut self, hello: &Hello) {
        let job = self.job(&hello.job, hello.dataset, &hello.name);
        let member = self.members.entry(hello.member).or_insert_with(|| Member {
            job,
            dataset: hello.dataset,
            samples: hello.samples,
            connections: 0,
            draws: None,
            walk: None,
        });
        member.connections += 1;
        if member.connections == 1 {
            self.victims.stale = true;
            if let Some(job) = self.jobs.get_mut(&job) {
                job.clients += 1;
            }
        }
    }

    /// A connection of a client has ended. True if it was its last.
    pub(crate) fn leave(&mut self, member: u64) -> bool {
        let Some(left) = self.members.get_mut(&member) else { return false };
        left.connections -= 1;
        if left.connections == 0 {
            let job = left.job;
            self.members.remove(&member);
            self.victims.stale = true;
            if let Some(job) = self.jobs.get_mut(&job) {
                job.clients = job.clients.saturating_sub(1);
            }
            self.prune();
            return true;
        }
        false
    }

    /// Forgets jobs of which nothing is left, beyond a number.
    fn prune(&mut self) {
        if self.jobs.len() > 1024 {
            self.jobs.retain(|_, job| job.clients > 0 || job.residents > 0);
        }
    }

    /// The number of the job of that name and dataset.
    pub(crate) fn job(&mut self, name: &str, dataset: u64, dataset_name: &str) -> u32 {
        if let Some((&number, _)) = self.jobs.iter().find(|(_, job)| job.dataset == dataset && job.name == name) {
            return number;
        }
        let number = self.next_job;
        self.next_job = self.next_job.wrapping_add(1);
        let limit = self.jobs.values().find(|job| job.name == name).and_then(|job| job.limit);
        let job =
            Job { name: name.to_owned(), dataset, dataset_name: dataset_name.to_owned(), limit, ..Job::default() };
        self.jobs.insert(number, job);
        number
    }

    pub(crate) fn rate(&mut self, member: u64, first: u32, draws: &[f32]) {
        let Some(member) = self.members.get_mut(&member).filter(|member| member.samples <= RATED_MAX) else { return };
        let all = member.draws.get_or_insert_with(|| vec![1.0; member.samples as usize].into());
        for (place, draws) in all.iter_mut().skip(first as usize).zip(draws) {
            *place = if draws.is_finite() && *draws >= 0.0 { *draws } else { 1.0 };
        }
        self.victims.stale = true;
    }

    /// The order of an epoch that a client begins.
    ///
    /// # Errors
    /// The reason why it has none.
    pub(crate) fn order(&mut self, member: u64, seed: u64) -> Result<&[u32], String> {
        let asks = self.members.get(&member).ok_or("an order for a client that has gone")?;
        let (dataset, samples) = (asks.dataset, asks.samples);
        if samples > ORDERED_MAX {
            return Err(format!("an order of {samples} samples: {ORDERED_MAX} are the most"));
        }
        self.begun += 1;
        let others = self.members.iter().filter(|(number, other)| **number != member && other.dataset == dataset);
        let walk = Walk::new(others.filter_map(|(_, other)| other.walk.as_ref()), samples, self.begun, seed);
        self.victims.stale = true;
        let asks = self.members.get_mut(&member).ok_or("an order for a client that has gone")?;
        Ok(&asks.walk.insert(walk).ids)
    }

    /// A client has read so many samples of its order.
    pub(crate) fn read_to(&mut self, member: u64, at: usize) {
        let walk = self.members.get_mut(&member).and_then(|member| member.walk.as_mut());
        self.victims.stale |= walk.is_some_and(|walk| walk.read(at));
    }

    /// Pins the dataset of that name, or no longer; false if there is none.
    pub(crate) fn pin(&mut self, name: &str, pinned: bool) -> bool {
        let known = self.knows(name);
        if pinned && known {
            self.pinned.insert(name.to_owned());
        } else {
            self.pinned.remove(name);
        }
        self.victims.stale = true;
        known
    }

    /// The digests of the datasets of that name.
    pub(crate) fn digests(&self, dataset: &str) -> Vec<u64> {
        self.jobs.values().filter(|job| job.dataset_name == dataset).map(|job| job.dataset).collect()
    }

    fn knows(&self, dataset: &str) -> bool {
        self.jobs.values().any(|job| job.dataset_name == dataset)
    }

    pub(crate) fn is_pinned(&self, job: &Job) -> bool {
        self.pinned.contains(&job.dataset_name)
    }

    /// The worth of a sample of a job.
    fn worth(&self, job: u32, dataset: u64, id: u32) -> Worth {
        let pinned = !self.pinned.is_empty() && self.jobs.get(&job).is_some_and(|job| self.is_pinned(job));
        (pinned, self.draws(dataset, id))
    }

    fn draws(&self, dataset: u64, id: u32) -> f32 {
        let (mut told, mut soonest) = (0.0, 0.0f32);
        for member in self.members.values().filter(|member| member.dataset == dataset) {
            match (&member.walk, &member.draws) {
                (Some(walk), _) => soonest = soonest.max(0.5 + walk.soon(id)),
                (None, Some(draws)) => told += draws.get(id as usize).copied().unwrap_or(0.0),
                (None, None) => told += 1.0,
            }
        }
        told + soonest
    }

    /// A resident that can be read.
    pub(crate) fn find(&self, key: &Key) -> Option<(u32, &Resident)> {
        let slot = *self.by_key.get(key)?;
        let resident = self.slots.get(slot as usize)?.as_ref()?;
        resident.is_here().then_some((slot, resident))
    }

    /// The same, which stays until the lease ends.
    pub(crate) fn lease(&mut self, key: &Key) -> Option<(u32, &Resident)> {
        let slot = *self.by_key.get(key)?;
        let resident = self.slots.get_mut(slot as usize)?.as_mut().filter(|resident| resident.is_here())?;
        resident.leases += 1;
        Some((slot, resident))
    }

    /// Counts what a client found, these bytes of it, and what it did not.
    pub(crate) fn count(&mut self, member: Option<u64>, hits: u64, hit_bytes: u64, misses: u64) {
        let job = member.and_then(|member| self.members.get(&member)).map(|member| member.job);
        if let Some(job) = job.and_then(|job| self.jobs.get_mut(&job)) {
            job.hits += hits;
            job.hit_bytes += hit_bytes;
            job.misses += misses;
        }
    }

    /// A lease ends.
    pub(crate) fn release(&mut self, slot: u32) {
        let Some(resident) = self.at_mut(slot) else { return };
        resident.leases = resident.leases.saturating_sub(1);
        if resident.leases == 0 && resident.state == State::Doomed {
            self.free(slot);
        }
    }

    /// A client offers a sample; `wanted`: another one waits for it.
    pub(crate) fn offer(&mut self, member: u64, head: &OfferHead, wanted: bool) -> Offered {
        let Some(member) = self.members.get(&member) else { return Offered::default() };
        let (job, dataset) = (member.job, member.dataset);
        self.enter(job, dataset, head, wanted)
    }

    /// The same for a job.
    pub(crate) fn enter(&mut self, job: u32, dataset: u64, head: &OfferHead, wanted: bool) -> Offered {
        if self.by_key.contains_key(&head.key) {
            return Offered::default();
        }
        let mut freed = Slots::new();
        let slot = self.place(job, dataset, head, wanted, &mut freed);
        self.evicted += freed.len() as u64;
        self.declined += u64::from(slot.is_none());
        Offered { slot, freed }
    }

    fn place(&mut self, job: u32, dataset: u64, head: &OfferHead, wanted: bool, freed: &mut Slots) -> Option<u32> {
        let needed = cost(head.bytes);
        let of = self.jobs.get(&job)?;
        let limited = of.limit.is_some_and(|limit| of.bytes.saturating_add(needed) > limit);
        if limited || needed > self.bytes || (self.free.is_empty() && self.slots.len() >= self.slots_max) {
            return None;
        }
        let at = loop {
            if self.used + needed <= self.bytes
                && let Some(at) = self.room.take(head.bytes)
            {
                break at;
            }
            if freed.len() >= VICTIMS_MAX {
                return None;
            }
            // A sample that another client waits for enters, unless pinned ones fill the arena.
            let worth = if wanted { (false, f32::INFINITY) } else { self.worth(job, dataset, head.id) };
            let victim = self.victim(worth)?;
            self.free(victim);
            freed.push(victim);
        };
        self.used += needed;
        let resident = Resident {
            key: head.key,
            dataset,
            id: head.id,
            at,
            bytes: head.bytes,
            cost_us: head.cost_us,
            crc: head.crc,
            job,
            leases: 0,
            state: State::Coming,
        };
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            (self.slots.len() - 1) as u32
        });
        if let Some(place) = self.slots.get_mut(slot as usize) {
            *place = Some(resident);
        }
        self.by_key.insert(head.key, slot);
        if let Some(job) = self.jobs.get_mut(&job) {
            job.bytes += needed;
            job.residents += 1;
        }
        Some(slot)
    }

    /// The place of a slot's data.
    pub(crate) fn place_of(&self, slot: u32) -> Option<u64> {
        Some(self.slots.get(slot as usize)?.as_ref()?.at)
    }

    /// All bytes of an offered sample have come: it can be read.
    pub(crate) fn publish(&mut self, slot: u32) -> Option<Resident> {
        self.victims.more = true;
        let resident = self.at_mut(slot)?;
        resident.state = State::Here;
        Some(resident.clone())
    }

    /// The sample in `slot` is not given any more, and leaves when no client reads it.
    pub(crate) fn doom(&mut self, slot: u32) {
        let Some(resident) = self.at_mut(slot) else { return };
        let key = resident.key;
        if resident.leases == 0 {
            self.free(slot);
            return;
        }
        resident.state = State::Doomed;
        if self.by_key.get(&key) == Some(&slot) {
            self.by_key.remove(&key);
        }
    }

    /// The samples of the dataset of that name; `None` if there is none.
    pub(crate) fn all_of(&self, dataset: &str) -> Option<Slots> {
        let named = |job: &u32| self.jobs.get(job).is_some_and(|job| job.dataset_name == dataset);
        let slots = || self.here().filter(|(_, r)| named(&r.job)).map(|(slot, _)| slot).collect();
        self.knows(dataset).then(slots)
    }

    /// Limits the bytes that a job may bring; the samples that it has beyond them, least drawn first. `None` if there
    /// is no job of that name.
    pub(crate) fn limit(&mut self, name: &str, bytes: Option<u64>) -> Option<Slots> {
        let (mut known, mut beyond) = (false, Slots::new());
        for job in self.jobs.values_mut().filter(|job| job.name == name) {
            (known, job.limit) = (true, bytes);
        }
        for (&number, job) in self.jobs.iter().filter(|(_, job)| job.name == name) {
            let mut own: Vec<(f32, u32, u64)> = self
                .here()
                .filter(|(_, resident)| resident.job == number)
                .map(|(slot, r)| (self.draws(r.dataset, r.id), slot, cost(r.bytes)))
                .collect();
            own.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
            let mut left = job.bytes;
            for (_, slot, bytes) in own {
                if job.limit.is_none_or(|limit| left <= limit) {
                    break;
                }
                left = left.saturating_sub(bytes);
                beyond.push(slot);
            }
        }
        known.then_some(beyond)
    }

    /// The mean time that the fetches of a dataset's residents took, in µs.
    pub(crate) fn fetched_in_us(&self, dataset: u64) -> Option<f64> {
        let (mut sum, mut count) = (0u64, 0u64);
        for (_, resident) in self.here().filter(|(_, resident)| resident.dataset == dataset) {
            sum += u64::from(resident.cost_us);
            count += 1;
        }
        (count > 0).then(|| sum as f64 / count as f64)
    }

    pub(crate) fn residents(&self) -> u64 {
        self.by_key.len() as u64
    }

    fn here(&self) -> impl Iterator<Item = (u32, &Resident)> {
        let slots = self.slots.iter().enumerate();
        slots.filter_map(|(slot, resident)| Some((slot as u32, resident.as_ref().filter(|r| r.is_here())?)))
    }

    fn at_mut(&mut self, slot: u32) -> Option<&mut Resident> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    /// The resident that counts least, if it counts less than `worth` and no client reads it.
    fn victim(&mut self, worth: Worth) -> Option<u32> {
        if self.victims.is_old() {
            let all = self.here().map(|(slot, r)| (self.worth(r.job, r.dataset, r.id), slot, r.key)).collect();
            self.victims.renew(all);
        }
        let slots = &self.slots;
        let is_free = |r: &Resident, key: &Key| r.key == *key && r.is_here() && r.leases == 0;
        self.victims.next(worth, |slot, key| {
            slots.get(slot as usize).and_then(Option::as_ref).is_some_and(|resident| is_free(resident, key))
        })
    }

    fn free(&mut self, slot: u32) {
        let Some(gone) = self.slots.get_mut(slot as usize).and_then(Option::take) else { return };
        self.room.give(gone.at, gone.bytes);
        self.used -= cost(gone.bytes);
        self.free.push(slot);
        if self.by_key.get(&gone.key) == Some(&slot) {
            self.by_key.remove(&gone.key);
        }
        if let Some(job) = self.jobs.get_mut(&gone.job) {
            job.bytes = job.bytes.saturating_sub(cost(gone.bytes));
            job.residents = job.residents.saturating_sub(1);
        }
    }
}

#[cfg(any(test, fuzzing))]
impl Books {
    /// All residents by slot, after the sums were compared with them.
    pub(crate) fn checked(&self) -> Vec<(u32, &Resident)> {
        let all = self.slots.iter().enumerate();
        let all: Vec<(u32, &Resident)> = all.filter_map(|(slot, r)| Some((slot as u32, r.as_ref()?))).collect();
        assert_eq!(self.used, all.iter().map(|(_, r)| cost(r.bytes)).sum::<u64>());
        let named = all.iter().filter(|(_, r)| r.state != State::Doomed);
        assert!(named.clone().all(|(slot, r)| self.by_key.get(&r.key) == Some(slot)));
        assert_eq!(self.by_key.len(), named.count());
        for (number, job) in &self.jobs {
            let own = all.iter().filter(|(_, r)| r.job == *number);
            assert_eq!(
                (job.residents, job.bytes),
                own.fold((0, 0), |(n, bytes), (_, r)| (n + 1, bytes + cost(r.bytes)))
            );
        }
        let mut places: Vec<(u64, u64)> = all.iter().map(|(_, r)| (r.at, r.at + r.bytes)).collect();
        places.sort_unstable();
        assert!(places.windows(2).all(|two| two[0].1 <= two[1].0), "residents overlap");
        all
    }

    pub(crate) fn is_leased(&self) -> bool {
        self.slots.iter().flatten().any(|resident| resident.leases > 0)
    }
}

/// Bytes that a sample takes with its tag.
fn cost(bytes: u64) -> u64 {
    rounded(bytes) + GRANULE
}
