//! S3-FIFO (Yang, Zhang, Qiu, Yue and Vigfusson, SOSP'23): three plain queues are all it takes.

use super::queues::Queues;
use super::{Entry, Needs, Policy, Suits, View, check_members};
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
    /// A mark is the number of uses since the sample came to its queue.
    queues: Queues<3>,
    /// Somebody had to leave: the cache was full once.
    was_full: bool,
}

impl S3Fifo {
    /// No residents; ids `0..samples`.
    pub fn new(samples: usize) -> Self {
        Self { queues: Queues::new(samples), was_full: false }
    }
    /// Moves queues on until the resident to be evicted stands at the end of one, and answers it.
    fn find(&mut self, view: &View<'_>) -> Option<SampleId> {
        self.was_full = true;
        let main_share = view.capacity - view.capacity / SMALL_SHARE;
        let mut queue = if self.queues.bytes(MAIN) > main_share { MAIN } else { SMALL };
        loop {
            let Some(id) = self.queues.oldest(queue) else {
                if queue == SMALL && self.queues.oldest(MAIN).is_some() {
                    queue = MAIN;
                    continue;
                }
                return None;
            };
            let uses = self.queues.mark(id);
            let stays = if queue == SMALL { uses >= PROVEN } else { uses > 0 };
            if !stays {
                return Some(id);
            }
            self.queues.take(id, view.sizes);
            self.queues.push(MAIN, id, if queue == SMALL { 0 } else { uses - 1 }, view.sizes);
        }
    }
    /// Remembers that `id` was here, as far as there is room for ghosts.
    fn remember(&mut self, id: SampleId, view: &View<'_>) {
        let share = view.capacity - view.capacity.div_ceil(SMALL_SHARE);
        let bytes = view.sizes.bytes(id);
        if bytes > share {
            return;
        }
        while self.queues.bytes(GHOST) + bytes > share {
            let Some(oldest) = self.queues.oldest(GHOST) else { break };
            self.queues.take(oldest, view.sizes);
        }
        self.queues.push(GHOST, id, 0, view.sizes);
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
        self.queues.set_mark(id, (self.queues.mark(id) + 1).min(USES_MAX));
    }
    fn place(&mut self, id: SampleId, view: &View<'_>, victims: &mut Vec<SampleId>) -> bool {
        self.queues.settle(view.sizes);
        let was_ghost = self.queues.queue(id) == Some(GHOST);
        if was_ghost {
            self.queues.take(id, view.sizes);
        }
        // It fits into the empty cache, so the search ends before the residents do: nothing is refused here.
        let (missing, mut freed) = (view.missing(id), 0);
        while freed < missing {
            let Some(victim) = self.find(view) else { break };
            freed += view.sizes.bytes(victim);
            if self.queues.take(victim, view.sizes) == Some(SMALL) {
                self.remember(victim, view);
            }
            victims.push(victim);
        }
        let small_is_full = self.queues.bytes(SMALL) >= view.capacity / SMALL_SHARE;
        let proven = was_ghost || (!self.was_full && small_is_full);
        self.queues.push(if proven { MAIN } else { SMALL }, id, 0, view.sizes);
        true
    }
    fn weakest(&mut self, view: &View<'_>) -> Option<SampleId> {
        self.queues.settle(view.sizes);
        self.find(view)
    }
    fn left(&mut self, id: SampleId) {
        self.queues.drop_out(id);
    }
    fn prefetch(&self, ids: &[SampleId]) {
        self.queues.prefetch(ids);
    }
    fn metadata_bytes(&self) -> usize {
        self.queues.metadata_bytes()
    }
    fn check(&self, view: &View<'_>) -> Result<(), String> {
        self.queues.check(view.sizes)?;
        if let Some(id) = self.queues.iter(GHOST).find(|&id| view.residents.contains(id)) {
            return Err(format!("the resident {id} is a ghost"));
        }
        check_members(self.queues.iter(SMALL).chain(self.queues.iter(MAIN)), view)
    }
}
