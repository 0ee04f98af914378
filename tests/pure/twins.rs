//! A ledger with its policy in a few naive lines: every decision recomputed from lists.

use std::collections::HashMap;

use lossfeed::ledger::Access;

#[derive(Clone, Default)]
pub(crate) struct Twin {
    pub(crate) policy: &'static str,
    pub(crate) capacity: u64,
    /// By id.
    pub(crate) bytes: Vec<u64>,
    /// In order of arrival; of last use for lru, lfu and arc. For s3fifo those of the small queue, for arc those used
    /// once, for icache those of region H.
    pub(crate) residents: Vec<u32>,
    /// s3fifo: the main queue, oldest first. arc: those used again, in order of last use. icache: region L.
    main: Vec<u32>,
    /// s3fifo: who left the small queue, oldest first. arc: who left `residents`.
    ghosts: Vec<u32>,
    /// arc: who left `main`, oldest first.
    main_ghosts: Vec<u32>,
    /// arc: how many bytes `residents` should have.
    target: f64,
    /// arc: the newest candidate left `main` a short while ago.
    wants_main: bool,
    /// clrfu: plans so far.
    epoch: usize,
    /// clrfu: in which epochs a resident was used since it came.
    used_in: HashMap<u32, Vec<usize>>,
    /// icache: accesses to H and L since the plan, H's share, and the least belief that is important.
    accesses: [u64; 2],
    share: f64,
    threshold: f32,
    /// icache and quiver: who gave a turn away, the oldest first.
    owed: Vec<u32>,
    /// quiver: accesses asked for, and places in the plan whose samples were cached when the window reached them.
    asked: usize,
    ready: Vec<usize>,
    /// lobster: accesses since the plan, planned uses that are over, and where the next epoch ends.
    position: usize,
    used_up: HashMap<u32, usize>,
    horizon: usize,
    /// nopfs, quiver and lobster: the whole plan.
    whole: Vec<u32>,
    /// Uses since it came; for s3fifo since it came to its queue, for sieve since the hand came by.
    uses: HashMap<u32, u64>,
    /// sieve: who is looked at next; none for the oldest.
    hand: Option<u32>,
    /// s3fifo: somebody had to leave.
    was_full: bool,
    /// minio: the least id that may leave next.
    leaves_from: u32,
    /// By id.
    pub(crate) belief: Vec<Option<f32>>,
    /// What is still planned.
    pub(crate) future: Vec<u32>,
}

impl Twin {
    pub(crate) fn new(policy: &'static str, capacity: u64, bytes: Vec<u64>) -> Self {
        let horizon = usize::MAX;
        Self { policy, capacity, belief: vec![None; bytes.len()], bytes, share: 0.9, horizon, ..Self::default() }
    }
    /// All residents, ascending.
    pub(crate) fn all(&self) -> Vec<u32> {
        let mut all: Vec<u32> = self.residents.iter().chain(&self.main).copied().collect();
        all.sort();
        all
    }
    fn sum(&self, ids: &[u32]) -> u64 {
        ids.iter().map(|&id| self.bytes[id as usize]).sum()
    }
    pub(crate) fn used(&self) -> u64 {
        self.sum(&self.residents) + self.sum(&self.main)
    }
    fn next_use(&self, id: u32) -> usize {
        self.future.iter().position(|&f| f == id).unwrap_or(usize::MAX)
    }
    /// The accesses to come.
    pub(crate) fn plan(&mut self, order: &[u32]) {
        self.epoch += 1;
        self.future = order.to_vec();
        self.whole = order.to_vec();
        (self.position, self.horizon, self.asked) = (0, usize::MAX, 0);
        self.used_up.clear();
        self.owed.clear();
        self.ready.clear();
        let all = self.accesses[0] + self.accesses[1];
        if all > 0 {
            self.share = (self.accesses[0] as f64 / all as f64).clamp(1.0 - 0.9, 0.9);
        }
        self.accesses = [0, 0];
        let mut beliefs: Vec<f32> = order.iter().map(|&id| self.belief[id as usize].unwrap_or(f32::INFINITY)).collect();
        beliefs.sort_by(|a, b| b.total_cmp(a));
        let important = (0.7 * beliefs.len() as f64).ceil() as usize;
        let least = important.checked_sub(1).map_or(f32::INFINITY, |last| beliefs[last]);
        self.threshold = if least == f32::INFINITY { f32::NEG_INFINITY } else { least };
    }
    /// An epoch of so many accesses begins.
    pub(crate) fn begin(&mut self, accesses: usize) {
        self.horizon = self.position + 2 * accesses;
    }
    /// icache: whether `id` belongs to region H.
    fn important(&self, id: u32) -> bool {
        self.threshold == 0.0 || self.belief[id as usize].unwrap_or(f32::INFINITY) >= self.threshold
    }
    /// Who is delivered when `asked` is asked for.
    pub(crate) fn instead(&mut self, asked: u32) -> u32 {
        if !["icache", "quiver"].contains(&self.policy) {
            return asked;
        }
        let window = |asked: usize| (asked + self.whole.len() / 10).min(self.whole.len());
        let seen = if self.asked == 0 { 0 } else { window(self.asked) };
        let coming = seen..window(self.asked + 1);
        self.asked += 1;
        self.ready.extend(coming.filter(|&place| self.residents.contains(&self.whole[place])));
        self.ready.retain(|&place| place >= self.asked);
        let mut due = asked;
        if !self.future.contains(&asked) {
            self.owed.retain(|id| self.future.contains(id));
            if !self.owed.is_empty() {
                due = self.owed.remove(0);
            }
        }
        if self.all().contains(&due) || (self.policy == "icache" && self.important(due)) {
            return due;
        }
        let planned = |id: &u32| self.future.contains(id) && self.all().contains(id);
        let places = self.ready.clone();
        let early = if self.policy == "icache" {
            from(self.main.iter().copied().filter(planned).collect(), due)
        } else {
            let first = self.ready.iter().position(|&place| planned(&self.whole[place]));
            self.ready.drain(..first.map_or(self.ready.len(), |at| at + 1));
            first.map(|at| self.whole[places[at]])
        };
        if early.is_some() {
            self.owed.push(due);
        }
        early.unwrap_or(due)
    }
    /// lobster: planned uses until the next epoch's end, and how near the next use of all is.
    fn uses_to_come(&self, id: u32) -> (usize, std::cmp::Reverse<usize>) {
        let planned = self.whole.iter().enumerate().filter(|&(_, &planned)| planned == id).map(|(at, _)| at);
        let to_come: Vec<usize> = planned.skip(self.used_up.get(&id).copied().unwrap_or(0)).collect();
        let counted = to_come.iter().filter(|&&at| at < self.horizon).count();
        (counted, std::cmp::Reverse(to_come.first().copied().unwrap_or(usize::MAX)))
    }
    /// clrfu: what its uses count now.
    fn crf(&self, id: u32) -> f64 {
        self.used_in[&id].iter().map(|&epoch| 0.5f64.powi((self.epoch - epoch) as i32)).sum()
    }
    /// arc: what the paper does before it evicts by the target.
    fn arc_prepares(&mut self, id: u32, evicted: &mut Vec<u32>) {
        let bytes = self.bytes[id as usize];
        self.target = self.target.min(self.capacity as f64);
        let ratio = |a: u64, b: u64| (a as f64 / b as f64).max(1.0) * bytes as f64;
        let (once, again) = (self.sum(&self.ghosts), self.sum(&self.main_ghosts));
        self.wants_main = self.main_ghosts.contains(&id);
        if self.ghosts.contains(&id) {
            self.target = (self.target + ratio(again, once)).min(self.capacity as f64);
        } else if self.wants_main {
            self.target = (self.target - ratio(once, again)).max(0.0);
        } else {
            let room = self.capacity - bytes;
            while !self.ghosts.is_empty() && self.sum(&self.residents) + self.sum(&self.ghosts) > room {
                self.ghosts.remove(0);
            }
            while self.sum(&self.residents) > room {
                evicted.push(self.residents.remove(0));
            }
            while !self.main_ghosts.is_empty()
                && self.used() + self.sum(&self.ghosts) + self.sum(&self.main_ghosts) > room + self.capacity
            {
                self.main_ghosts.remove(0);
            }
        }
    }
    /// The answer, and who gave way.
    pub(crate) fn access(&mut self, id: u32) -> (Access, Vec<u32>) {
        if let Some(used_up) = self.future.iter().position(|&f| f == id) {
            self.future.remove(used_up);
            *self.used_up.entry(id).or_default() += 1;
        }
        self.position += 1;
        if self.all().contains(&id) {
            *self.uses.entry(id).or_default() += 1;
            self.used_in.entry(id).or_default().push(self.epoch);
            if self.policy == "arc" {
                self.residents.retain(|&r| r != id);
                self.main.retain(|&r| r != id);
                self.main.push(id);
            }
            if self.policy == "icache" {
                self.accesses[usize::from(!self.important(id))] += 1;
                self.residents.retain(|&r| r != id);
                self.main.retain(|&r| r != id);
                if self.important(id) { self.residents.push(id) } else { self.main.push(id) }
            }
            if ["lru", "lfu"].contains(&self.policy) {
                self.residents.retain(|&r| r != id);
                self.residents.push(id);
            }
            return (Access::Hit, vec![]);
        }
        let bytes = self.bytes[id as usize];
        if bytes > self.capacity {
            return (Access::Bypassed, vec![]);
        }
        let mut evicted = vec![];
        if self.policy == "arc" {
            self.arc_prepares(id, &mut evicted);
        }
        if self.policy == "icache" {
            self.accesses[usize::from(!self.important(id))] += 1;
        }
        let was_ghost = self.ghosts.contains(&id) || self.main_ghosts.contains(&id);
        self.ghosts.retain(|&g| g != id);
        self.main_ghosts.retain(|&g| g != id);
        let before = self.clone();
        while self.used() + bytes > self.capacity {
            let Some(victim) = self.victim(Some(id)) else {
                *self = before;
                return (Access::Bypassed, vec![]);
            };
            let was_small = self.residents.contains(&victim);
            self.leave(victim);
            match self.policy {
                "s3fifo" if was_small => self.remember(victim),
                "arc" if was_small => self.ghosts.push(victim),
                "arc" => self.main_ghosts.push(victim),
                _ => {}
            }
            evicted.push(victim);
        }
        let fills = self.policy == "s3fifo" && !self.was_full && self.sum(&self.residents) >= self.capacity / 10;
        let in_l = self.policy == "icache" && !self.important(id);
        let queue = if was_ghost || fills || in_l { &mut self.main } else { &mut self.residents };
        queue.push(id);
        self.uses.insert(id, u64::from(self.policy == "lfu"));
        self.used_in.insert(id, vec![self.epoch]);
        (Access::Admitted, evicted)
    }
    fn remember(&mut self, id: u32) {
        let share = self.capacity * 9 / 10;
        if self.bytes[id as usize] <= share {
            self.ghosts.push(id);
            while self.sum(&self.ghosts) > share {
                self.ghosts.remove(0);
            }
        }
    }
    /// Nothing happens if `id` is no resident.
    pub(crate) fn leave(&mut self, id: u32) {
        if self.hand == Some(id) {
            let place = self.residents.iter().position(|&r| r == id).unwrap();
            self.hand = self.residents.get(place + 1).copied();
        }
        self.residents.retain(|&r| r != id);
        self.main.retain(|&r| r != id);
        self.uses.remove(&id);
    }
    /// Who leaves so that no more than `capacity` is used, in order.
    pub(crate) fn resize(&mut self, capacity: u64) -> Vec<u32> {
        self.capacity = capacity;
        let mut left = vec![];
        while self.used() > capacity {
            let id = self.victim(None).or_else(|| self.unwilling()).unwrap();
            self.leave(id);
            left.push(id);
        }
        left
    }
    /// Who leaves a cache that becomes smaller although it would give way to nobody.
    fn unwilling(&mut self) -> Option<u32> {
        let all = self.all();
        let next = all.iter().copied().find(|&id| id >= self.leaves_from).or(all.first().copied())?;
        self.leaves_from = next;
        Some(next)
    }
    /// Who gives way to `candidate`, or to nobody in particular because the cache becomes smaller.
    fn victim(&mut self, candidate: Option<u32>) -> Option<u32> {
        let least = |ids: Vec<u32>, key: &dyn Fn(u32) -> f32| {
            ids.into_iter().map(|id| (key(id), id)).min_by(|a, b| a.partial_cmp(b).unwrap())
        };
        let belief = |id: u32| self.belief[id as usize];
        match self.policy {
            "lru" | "fifo" => self.residents.first().copied(),
            "lfu" => {
                let fewest = self.residents.iter().map(|id| self.uses[id]).min()?;
                self.residents.iter().copied().find(|id| self.uses[id] == fewest)
            }
            "sieve" => loop {
                let id = self.hand.or(self.residents.first().copied())?;
                if self.uses[&id] == 0 {
                    self.hand = Some(id);
                    return Some(id);
                }
                self.uses.insert(id, 0);
                let place = self.residents.iter().position(|&r| r == id)?;
                self.hand = self.residents.get(place + 1).copied();
            },
            "s3fifo" => {
                self.was_full = true;
                let main_share = self.capacity - self.capacity / 10;
                let from_main = self.sum(&self.main) > main_share;
                while let Some(&id) = self.residents.first().filter(|_| !from_main) {
                    if self.uses[&id] < 2 {
                        return Some(id);
                    }
                    self.residents.remove(0);
                    self.main.push(id);
                    self.uses.insert(id, 0);
                }
                while let Some(&id) = self.main.first() {
                    if self.uses[&id] == 0 {
                        return Some(id);
                    }
                    self.main.remove(0);
                    self.main.push(id);
                    let uses = self.uses[&id].min(3) - 1;
                    self.uses.insert(id, uses);
                }
                None
            }
            "arc" => {
                let once = self.sum(&self.residents) as f64;
                let wants_main = candidate.is_some() && self.wants_main;
                let from_once = once > self.target || (wants_main && once == self.target);
                let [first, second] =
                    if from_once { [&self.residents, &self.main] } else { [&self.main, &self.residents] };
                first.first().or(second.first()).copied()
            }
            "clrfu" => {
                let key = |id: u32| (self.crf(id), self.bytes[id as usize], id);
                self.residents.iter().copied().min_by(|&a, &b| key(a).partial_cmp(&key(b)).unwrap())
            }
            "nopfs" => {
                let uses = |id: u32| self.whole.iter().filter(|&&planned| planned == id).count();
                let id = self.residents.iter().copied().min_by_key(|&id| (uses(id), id))?;
                candidate.is_none_or(|c| uses(c) > uses(id)).then_some(id)
            }
            "minio" | "quiver" => None,
            "icache" => {
                let of_h = (self.capacity as f64 * self.share) as u64;
                let (spent, fresh) = self.main.iter().copied().partition(|id| !self.future.contains(id));
                let least = least(self.residents.clone(), &|id| belief(id).unwrap_or(f32::INFINITY));
                match candidate {
                    None => {
                        let next = from(spent, self.leaves_from).or(from(fresh, self.leaves_from));
                        self.leaves_from = next.unwrap_or(self.leaves_from);
                        next.or(least.map(|l| l.1))
                    }
                    Some(id) if self.important(id) => {
                        belief(id)?;
                        if self.sum(&self.main) > self.capacity - of_h {
                            return from(spent, id).or(from(fresh, id));
                        }
                        least.filter(|l| belief(id).is_some_and(|b| b > l.0)).map(|l| l.1)
                    }
                    Some(_) if self.sum(&self.residents) > of_h => least.map(|l| l.1),
                    Some(id) => from(spent, id),
                }
            }
            "lobster" => {
                let id = self.residents.iter().copied().min_by_key(|&id| (self.uses_to_come(id), id))?;
                candidate.is_none_or(|c| self.uses_to_come(c) > self.uses_to_come(id)).then_some(id)
            }
            "shade" => {
                let (score, id) = least(self.residents.clone(), &|id| belief(id).unwrap_or(0.0))?;
                candidate.is_none_or(|c| belief(c).is_some_and(|b| b >= score)).then_some(id)
            }
            "belady" => {
                let farthest = self.residents.iter().map(|&id| self.next_use(id)).max()?;
                let id = self.residents.iter().copied().filter(|&id| self.next_use(id) == farthest).min()?;
                candidate.is_none_or(|c| self.next_use(c) < farthest).then_some(id)
            }
            "importance" => {
                let unneeded = self.residents.iter().copied().filter(|id| !self.future.contains(id)).collect();
                let (score, id) = least(unneeded, &|id| belief(id).unwrap_or(f32::INFINITY))?;
                candidate.is_none_or(|c| belief(c).is_some_and(|b| b > score)).then_some(id)
            }
            other => panic!("no twin of {other}"),
        }
    }
}

/// The first of `ids` from `start` on; the least if there is none.
fn from(ids: Vec<u32>, start: u32) -> Option<u32> {
    ids.iter().copied().filter(|&id| id >= start).min().or(ids.iter().copied().min())
}
