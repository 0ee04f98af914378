//! CLRFU, the policy of DLCache: uses count less the older they are, and of equals the one that is cheaper to fetch
//! again gives way. The frequency part is LRFU (Lee, Choi, Kim, Noh, Min, Cho and Kim, IEEE ToC 2001).

use super::{Entry, Needs, Policy, Suits, View, check_members, take_least};
use crate::index::{NextUse, PriorityQueue};
use crate::types::SampleId;

/// For the registry.
pub(super) const ENTRY: Entry = Entry {
    name: "clrfu",
    help: "CLRFU: evicts the least used sample, uses halved each epoch; among equals the smallest",
    needs: Needs::NOTHING,
    suits: Suits::Nobody,
    make: |samples| Box::new(Clrfu::new(samples)),
};

/// Epochs after which all values are scaled down, so that they stay far below the largest float32.
const SCALED_AFTER: u32 = 64;

/// Evicts the resident with the least combined recency and frequency, CRF = Σ (1/p)^(step · age) over its uses since it
/// entered; of equals the one with fewer bytes, and of those the smallest id. p is 2 and step 1, and age is counted in
/// epochs, so that a use counts half of what it counted an epoch ago.
///
/// DLCache evicts whole datasets by this rule and does not say what age is counted in; its authors' simulation has p =
/// 2 and step ½, and takes the time from its caller. For samples it is epochs here: with finer ages no two would be
/// equal, and the cost would never be asked. The cost of a sample is its bytes.
///
/// What costs are worth: in that simulation ([`DlcacheAsCoded`](crate::sim::DlcacheAsCoded)) they break the ties of
/// files that are read in a loop, and costs that differ by thousandths do most of it. Who lets the newest of equals go,
/// and asks for no cost, fetches for 3 % less time (`lossfeed papers`).
///
/// Relative to each other, CRFs only change when a sample is used. So what is kept is Σ 2^(epoch of the use), in
/// float32: uses 24 epochs older than the newest are lost to rounding. 9 bytes a sample.
#[derive(Debug)]
pub struct Clrfu {
    /// Keyed by (CRF, bytes).
    residents: PriorityQueue<u64>,
    /// What a use adds now.
    weight: f32,
    /// Epochs since all values were scaled.
    epochs: u32,
}

impl Clrfu {
    /// No residents; ids `0..samples`.
    pub fn new(samples: usize) -> Self {
        Self { residents: PriorityQueue::new(samples), weight: 1.0, epochs: 0 }
    }
    fn use_now(&mut self, id: SampleId, bytes: u64) {
        let crf = self.residents.key(id).map_or(0.0, crf_of);
        self.residents.insert(id, key_of(crf + self.weight, bytes));
    }
}

/// Positive floats are ordered as their bits are. A sample of 4 GiB or more is never placed.
fn key_of(crf: f32, bytes: u64) -> u64 {
    u64::from(crf.to_bits()) << 32 | bytes & u64::from(u32::MAX)
}

fn crf_of(key: u64) -> f32 {
    f32::from_bits((key >> 32) as u32)
}

impl Policy for Clrfu {
    fn name(&self) -> &'static str {
        ENTRY.name
    }
    fn needs(&self) -> Needs {
        ENTRY.needs
    }
    fn hit(&mut self, id: SampleId, view: &View<'_>) {
        self.use_now(id, view.sizes.bytes(id));
    }
    fn place(&mut self, id: SampleId, view: &View<'_>, victims: &mut Vec<SampleId>) -> bool {
        let made = take_least(&mut self.residents, view.missing(id), view.sizes, victims, |_| true);
        if made {
            self.use_now(id, view.sizes.bytes(id));
        }
        made
    }
    fn weakest(&mut self, _view: &View<'_>) -> Option<SampleId> {
        self.residents.peek().map(|(id, _)| id)
    }
    fn left(&mut self, id: SampleId) {
        self.residents.remove(id);
    }
    fn planned(&mut self, _next_use: &NextUse, _order: &[SampleId]) {
        self.weight *= 2.0;
        self.epochs += 1;
        if self.epochs >= SCALED_AFTER {
            self.residents.rekey(|_, key| key_of(crf_of(key) / self.weight, key));
            (self.weight, self.epochs) = (1.0, 0);
        }
    }
    fn prefetch(&self, ids: &[SampleId]) {
        self.residents.prefetch(ids);
    }
    fn metadata_bytes(&self) -> usize {
        self.residents.metadata_bytes()
    }
    fn check(&self, view: &View<'_>) -> Result<(), String> {
        self.residents.check()?;
        check_members(self.residents.ids(), view)
    }
}
