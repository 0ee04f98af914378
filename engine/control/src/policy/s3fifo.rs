//! S3-FIFO (Yang, Zhang, Qiu, Yue and Vigfusson, SOSP'23): three plain queues are all it takes.

use super::list::Lists;
use super::{Entry, Left, Needs, Policy, Suits, View, check_members};
use crate::index::Sizes;
use crate::types::SampleId;

/// For the registry.
pub(super) const ENTRY: Entry = Entry {
    name: "s3fifo",
    help: "S3-FIFO: newcomers prove themselves in a small queue, who comes back soon enters the main one",
    needs: Needs::NOTHING,
    suits: Suits::Nobody,
    make: |samples| Box::new(S3Fifo::new(samples)),
};

/// Residents that have been used too seldom to stay.
const SMALL: u32 = 0;
/// Residents that have proved themselves.
const MAIN: u32 = 1;
/// Samples that left the small queue a short while ago, by name only.
const GHOST: u32 = 2;
/// In no queue.
const NOWHERE: u32 = 3;

/// What the small queue's share of the cache is divided by.
const SMALL_SHARE: u64 = 10;
/// Uses after which a sample leaves the small queue for the main one, not the cache.
const PROVEN: u8 = 2;
/// Where uses end to be counted.
const USES_MAX: u8 = 3;

/// A sample enters the small queue, or the main one if it left the small one a short while ago (it is a *ghost*). At
/// the small queue's end it goes to the main queue if it was used twice or more meanwhile, and else becomes a ghost. At
/// the main queue's end it goes round again, with one use less, until it has none.
///
/// The small queue has a tenth of the cache's bytes, the main queue and the ghosts nine tenths each. Two rules are the
/// authors' code's and not the paper's: the small queue gives way unless the main one is above its share or the small
/// one empty; and until somebody has had to leave, newcomers enter the main queue once the small one has its share. One
/// is ours: a sample as large as the small queue's share is admitted, which their code refuses. In a cache of a few
/// samples nothing would enter else.
///
/// 9 bytes a sample, and 8 for each that left between two decisions (a cancelled or lost one).
#[derive(Debug)]
pub struct S3Fifo {
    queues: Lists,
    /// By id: in which queue (two bits), and uses since it came there (two bits more).
    states: Vec<u8>,
    /// Of the samples in each queue, and of those in `gone`.
    bytes: [u64; 3],
    /// Somebody had to leave: the cache was full once.
    was_full: bool,
    /// Who left, and which queue: not yet taken off its bytes, because sizes are at hand only where it is decided.
    gone: Vec<(SampleId, u32)>,
}

impl S3Fifo {
    /// No residents; ids `0..samples`.
    pub fn new(samples: usize) -> Self {
        Self {
            queues: Lists::new(samples, 3),
            states: vec![NOWHERE as u8; samples],
            bytes: [0; 3],
            was_full: false,
            gone: Vec::new(),
        }
    }
    fn queue(&self, id: SampleId) -> u32 {
        u32::from(self.states[id as usize] & 3)
    }
    fn uses(&self, id: SampleId) -> u8 {
        self.states[id as usize] >> 2
    }
    /// Adds `id`, which must be nowhere, as the newest.
    fn push(&mut self, queue: u32, id: SampleId, uses: u8, sizes: &Sizes) {
        self.states[id as usize] = uses << 2 | queue as u8;
        self.queues.push_newest(queue, id);
        self.bytes[queue as usize] += sizes.bytes(id);
    }
    /// Takes `id` out of `queue`, in which it is.
    fn take(&mut self, queue: u32, id: SampleId, sizes: &Sizes) {
        self.bytes[queue as usize] -= sizes.bytes(id);
        self.queues.remove(id);
        self.states[id as usize] = NOWHERE as u8;
    }
    fn settle_gone(&mut self, sizes: &Sizes) {
        for (id, queue) in self.gone.drain(..) {
            self.bytes[queue as usize] -= sizes.bytes(id);
        }
    }
    /// Moves queues on until the resident to be evicted stands at the end of one, and answers it.
    fn find(&mut self, view: &View<'_>) -> Option<SampleId> {
        self.was_full = true;
        let main_share = view.capacity - view.capacity / SMALL_SHARE;
        let mut queue = if self.bytes[MAIN as usize] > main_share { MAIN } else { SMALL };
        loop {
            let Some(id) = self.queues.oldest(queue) else {
                if queue == SMALL && self.queues.oldest(MAIN).is_some() {
                    queue = MAIN;
                    continue;
                }
                return None;
            };
            let uses = self.uses(id);
            let stays = if queue == SMALL { uses >= PROVEN } else { uses > 0 };
            if !stays {
                return Some(id);
            }
            self.take(queue, id, view.sizes);
            self.push(MAIN, id, if queue == SMALL { 0 } else { uses - 1 }, view.sizes);
        }
    }
    /// Remembers that `id` was here, as far as there is room for ghosts.
    fn remember(&mut self, id: SampleId, view: &View<'_>) {
        let share = view.capacity - view.capacity.div_ceil(SMALL_SHARE);
        let bytes = view.sizes.bytes(id);
        if bytes > share {
            return;
        }
        while self.bytes[GHOST as usize] + bytes > share {
            let Some(oldest) = self.queues.oldest(GHOST) else { break };
            self.take(GHOST, oldest, view.sizes);
        }
        self.push(GHOST, id, 0, view.sizes);
    }
}

impl Policy for S3Fifo {
    fn name(&self) -> &'static str {
        ENTRY.name
    }
    fn needs(&self) -> Needs {
        ENTRY.needs
    }
    fn hit(&mut self, id: SampleId, _view: &View<'_>) {
        self.states[id as usize] = (self.uses(id) + 1).min(USES_MAX) << 2 | self.queue(id) as u8;
    }
    fn place(&mut self, id: SampleId, view: &View<'_>, victims: &mut Vec<SampleId>) -> bool {
        self.settle_gone(view.sizes);
        let was_ghost = self.queue(id) == GHOST;
        if was_ghost {
            self.take(GHOST, id, view.sizes);
        }
        // It fits into the empty cache, so the search ends before the residents do: nothing is refused here.
        let (missing, mut freed) = (view.missing(id), 0);
        while freed < missing {
            let Some(victim) = self.find(view) else { break };
            freed += view.sizes.bytes(victim);
            let left = self.queue(victim);
            self.take(left, victim, view.sizes);
            if left == SMALL {
                self.remember(victim, view);
            }
            victims.push(victim);
        }
        let small_is_full = self.bytes[SMALL as usize] >= view.capacity / SMALL_SHARE;
        let proven = was_ghost || (!self.was_full && small_is_full);
        self.push(if proven { MAIN } else { SMALL }, id, 0, view.sizes);
        true
    }
    fn weakest(&mut self, view: &View<'_>) -> Option<SampleId> {
        self.settle_gone(view.sizes);
        self.find(view)
    }
    fn left(&mut self, id: SampleId, _why: Left) {
        self.gone.push((id, self.queue(id)));
        self.queues.remove(id);
        self.states[id as usize] = NOWHERE as u8;
    }
    fn prefetch(&self, ids: &[SampleId]) {
        self.queues.prefetch(ids);
    }
    fn metadata_bytes(&self) -> usize {
        self.queues.metadata_bytes() + self.states.capacity() + self.gone.capacity() * size_of::<(SampleId, u32)>()
    }
    fn check(&self, view: &View<'_>) -> Result<(), String> {
        for queue in [SMALL, MAIN, GHOST] {
            let gone = self.gone.iter().filter(|gone| gone.1 == queue).map(|gone| gone.0);
            let bytes: u64 = self.queues.iter(queue).chain(gone).map(|id| view.sizes.bytes(id)).sum();
            if bytes != self.bytes[queue as usize] {
                return Err(format!("queue {queue} holds {bytes} bytes, {} are booked", self.bytes[queue as usize]));
            }
            if let Some(id) = self.queues.iter(queue).find(|&id| self.queue(id) != queue) {
                return Err(format!("{id} stands in queue {queue} and is booked in {}", self.queue(id)));
            }
        }
        if let Some(id) = self.queues.iter(GHOST).find(|&id| view.residents.contains(id)) {
            return Err(format!("the resident {id} is a ghost"));
        }
        check_members(self.queues.iter(SMALL).chain(self.queues.iter(MAIN)), view)
    }
}
