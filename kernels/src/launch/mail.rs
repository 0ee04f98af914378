//! The mail's layout: a state on the device, a ring of slots in host memory (`cuda/mail.cu` writes, the host reads).

use bytemuck::{Pod, Zeroable};

/// `struct MailState`, in device memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct State {
    /// Slots claimed so far; wraps.
    pub head: u32,
    /// Batches that found no free slot; wraps.
    pub dropped: u32,
    /// Slots of the ring, a power of two.
    pub slots: u32,
    /// Most rows a slot holds.
    pub rows_max: u32,
    /// The first slot as the device sees it.
    pub ring: u64,
    /// The host's word, a u32: slots it has read so far; wraps.
    pub consumed: u64,
}

/// `struct SlotHead`: the first bytes of a slot.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct SlotHead {
    /// Written last: the number of the claim, plus 1 (wraps).
    pub sequence: u32,
    /// Rows of the batch.
    pub rows: u32,
    /// The launch's tag.
    pub tag: u64,
    /// The first row whose target names no class, or [`NO_ROW`].
    pub bad_row: u32,
    /// [`State::dropped`] as it was.
    pub dropped: u32,
    /// Which columns were written: [`HAS_IDS`] and so on.
    pub columns: u32,
    /// Nothing.
    pub unused: u32,
}

/// `bad_row` of a batch without one.
pub const NO_ROW: u32 = u32::MAX;
/// The ids were written.
pub const HAS_IDS: u32 = 1;
/// The gradient-norm bounds were written.
pub const HAS_GRAD_NORM: u32 = 2;
/// The entropies were written.
pub const HAS_ENTROPY: u32 = 4;

/// Byte offsets of a slot's parts, for at most `rows_max` rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// int64 ids.
    pub ids: usize,
    /// float32 losses.
    pub loss: usize,
    /// float32 gradient-norm bounds.
    pub grad_norm: usize,
    /// float32 entropies.
    pub entropy: usize,
    /// int32 rank counts.
    pub count: usize,
    /// The whole slot.
    pub bytes: usize,
}

impl Slot {
    /// A multiple of 64 for every part: no cache line belongs to two.
    pub const fn new(rows_max: usize) -> Slot {
        let column = (4 * rows_max).next_multiple_of(64);
        let loss = 64 + (8 * rows_max).next_multiple_of(64);
        Slot {
            ids: 64,
            loss,
            grad_norm: loss + column,
            entropy: loss + 2 * column,
            count: loss + 3 * column,
            bytes: loss + 4 * column,
        }
    }
}
