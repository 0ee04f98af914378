//! A ledger with its policy in a few naive lines: every decision recomputed from lists.

use lossfeed::ledger::Access;

pub(crate) struct Twin {
    pub(crate) policy: &'static str,
    pub(crate) capacity: u64,
    /// By id.
    pub(crate) bytes: Vec<u64>,
    /// In order of arrival; of last use for lru.
    pub(crate) residents: Vec<u32>,
    /// By id.
    pub(crate) belief: Vec<Option<f32>>,
    /// What is still planned.
    pub(crate) future: Vec<u32>,
}

impl Twin {
    pub(crate) fn used(&self) -> u64 {
        self.residents.iter().map(|&id| self.bytes[id as usize]).sum()
    }
    fn next_use(&self, id: u32) -> usize {
        self.future.iter().position(|&f| f == id).unwrap_or(usize::MAX)
    }
    /// The answer, and who gave way.
    pub(crate) fn access(&mut self, id: u32) -> (Access, Vec<u32>) {
        if let Some(used_up) = self.future.iter().position(|&f| f == id) {
            self.future.remove(used_up);
        }
        if self.residents.contains(&id) {
            if self.policy == "lru" {
                self.residents.retain(|&r| r != id);
                self.residents.push(id);
            }
            return (Access::Hit, vec![]);
        }
        let before = self.residents.clone();
        let bytes = self.bytes[id as usize];
        let mut evicted = vec![];
        while self.used() + bytes > self.capacity {
            let Some(victim) = self.victim(id).filter(|_| bytes <= self.capacity) else {
                self.residents = before;
                return (Access::Bypassed, vec![]);
            };
            self.residents.retain(|&r| r != victim);
            evicted.push(victim);
        }
        self.residents.push(id);
        (Access::Admitted, evicted)
    }
    fn victim(&self, candidate: u32) -> Option<u32> {
        let belief = |id: u32| self.belief[id as usize];
        let least = |ids: Vec<u32>, key: &dyn Fn(u32) -> f32| {
            ids.into_iter().map(|id| (key(id), id)).min_by(|a, b| a.partial_cmp(b).unwrap())
        };
        match self.policy {
            "lru" | "fifo" => self.residents.first().copied(),
            "minio" => None,
            "shade" => {
                let (score, id) = least(self.residents.clone(), &|id| belief(id).unwrap_or(0.0))?;
                (belief(candidate)? >= score).then_some(id)
            }
            "belady" => {
                let farthest = self.residents.iter().map(|&id| self.next_use(id)).max()?;
                let id = self.residents.iter().copied().filter(|&id| self.next_use(id) == farthest).min()?;
                (self.next_use(candidate) < farthest).then_some(id)
            }
            "importance" => {
                let unneeded = self.residents.iter().copied().filter(|id| !self.future.contains(id)).collect();
                let (score, id) = least(unneeded, &|id| belief(id).unwrap_or(f32::INFINITY))?;
                (belief(candidate)? > score).then_some(id)
            }
            other => panic!("no twin of {other}"),
        }
    }
}
