//! A few queues of which a sample is in one at most, with the bytes of each: for policies that split the cache.

use lossfeed_control::SampleId;
use lossfeed_control::index::Sizes;
use lossfeed_control::policy::Lists;

/// Low bits of a state: the queue. The others are the policy's mark.
const QUEUE_BITS: u32 = 3;
/// In no queue.
const NOWHERE: u8 = (1 << QUEUE_BITS) - 1;

/// The queues, each from oldest to newest. 9 bytes a sample however many there are, and 8 for each that was
/// [dropped](Queues::drop_out) since the last [settling](Queues::settle).
#[derive(Debug)]
pub(super) struct Queues<const COUNT: usize> {
    lists: Lists,
    /// By id: the queue, and the mark that it came with or was given since.
    states: Vec<u8>,
    /// Of the samples in each queue, and of those in `gone`.
    bytes: [u64; COUNT],
    /// Who left, and which queue: not yet taken off its bytes, because sizes are at hand only where it is decided.
    gone: Vec<(SampleId, u32)>,
}

impl<const COUNT: usize> Queues<COUNT> {
    /// All empty; ids `0..samples`.
    pub(super) fn new(samples: usize) -> Self {
        const { assert!(COUNT <= NOWHERE as usize) }
        Self {
            lists: Lists::new(samples, COUNT as u32),
            states: vec![NOWHERE; samples],
            bytes: [0; COUNT],
            gone: Vec::new(),
        }
    }
    /// Where `id` is, if anywhere.
    #[inline]
    pub(super) fn queue(&self, id: SampleId) -> Option<u32> {
        let queue = self.states[id as usize] & NOWHERE;
        (queue != NOWHERE).then_some(u32::from(queue))
    }
    /// The mark of `id`: 0 to 31, and 0 outside.
    #[inline]
    pub(super) fn mark(&self, id: SampleId) -> u8 {
        self.states[id as usize] >> QUEUE_BITS
    }
    #[inline]
    pub(super) fn set_mark(&mut self, id: SampleId, mark: u8) {
        self.states[id as usize] = mark << QUEUE_BITS | self.states[id as usize] & NOWHERE;
    }
    /// The bytes of all in `queue`, as of the last settling.
    #[inline]
    pub(super) fn bytes(&self, queue: u32) -> u64 {
        self.bytes[queue as usize]
    }
    #[inline]
    pub(super) fn oldest(&self, queue: u32) -> Option<SampleId> {
        self.lists.oldest(queue)
    }
    /// Adds `id`, which must be nowhere, as the newest.
    pub(super) fn push(&mut self, queue: u32, id: SampleId, mark: u8, sizes: &Sizes) {
        self.states[id as usize] = mark << QUEUE_BITS | queue as u8;
        self.lists.push_newest(queue, id);
        self.bytes[queue as usize] += sizes.bytes(id);
    }
    /// Takes `id` out of where it is; answers that queue.
    pub(super) fn take(&mut self, id: SampleId, sizes: &Sizes) -> Option<u32> {
        let queue = self.queue(id)?;
        self.bytes[queue as usize] -= sizes.bytes(id);
        self.lists.remove(id);
        self.states[id as usize] = NOWHERE;
        Some(queue)
    }
    /// Takes `id` out where sizes are not at hand: [`settle`](Self::settle) before the next look at bytes.
    pub(super) fn drop_out(&mut self, id: SampleId) {
        let Some(queue) = self.queue(id) else { return };
        self.gone.push((id, queue));
        self.lists.remove(id);
        self.states[id as usize] = NOWHERE;
    }
    pub(super) fn settle(&mut self, sizes: &Sizes) {
        for (id, queue) in self.gone.drain(..) {
            self.bytes[queue as usize] -= sizes.bytes(id);
        }
    }
    /// The members of `queue`, oldest first.
    pub(super) fn iter(&self, queue: u32) -> impl Iterator<Item = SampleId> + '_ {
        self.lists.iter(queue)
    }
    pub(super) fn prefetch(&self, ids: &[SampleId]) {
        self.lists.prefetch(ids);
    }
    pub(super) fn metadata_bytes(&self) -> usize {
        self.lists.metadata_bytes() + self.states.capacity() + self.gone.capacity() * size_of::<(SampleId, u32)>()
    }
    /// Recounts bytes and members. O(samples), for tests.
    pub(super) fn check(&self, sizes: &Sizes) -> Result<(), String> {
        for queue in 0..COUNT as u32 {
            let gone = self.gone.iter().filter(|gone| gone.1 == queue).map(|gone| gone.0);
            let bytes: u64 = self.iter(queue).chain(gone).map(|id| sizes.bytes(id)).sum();
            if bytes != self.bytes(queue) {
                return Err(format!("queue {queue} holds {bytes} bytes, {} are booked", self.bytes(queue)));
            }
            if let Some(id) = self.iter(queue).find(|&id| self.queue(id) != Some(queue)) {
                return Err(format!("{id} stands in queue {queue} and is booked in {:?}", self.queue(id)));
            }
        }
        Ok(())
    }
}
