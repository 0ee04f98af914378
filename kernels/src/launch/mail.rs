//! The mail's layout: a state on the device, a ring of slots and some words in host memory (`cuda/mail.cu` has who
//! writes what).

use bytemuck::{Pod, Zeroable};

use super::arguments::{Arguments, MailArguments};
use super::{Launch, Step};

/// In [`State::gate`]: the mailbox is open. In [`Words::closed`]: the count below it is the last.
pub const MAIL_BIT: u64 = 1 << 32;

/// `struct MailState`, in device memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct State {
    /// [`MAIL_BIT`] while open, and the slots claimed so far: 32 bits that wrap.
    pub gate: u64,
    /// Batches that found no free slot; wraps.
    pub dropped: u32,
    /// Slots of the ring, a power of two.
    pub slots: u32,
    /// Most rows a slot holds.
    pub rows_max: u32,
    /// [`Words::consumed`] as a kernel last saw it.
    pub seen: u32,
    /// The first slot as the device sees it.
    pub ring: u64,
    /// [`Words`], likewise. They are never freed: a kernel may read them when the ring is gone.
    pub words: u64,
}

/// `struct MailWords`, in host memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Words {
    /// Slots the host has read so far; wraps. Only the host writes it.
    pub consumed: u32,
    /// Nothing.
    pub unused: u32,
    /// [`MAIL_BIT`] and the number of claims, once there will be no more. Only the device writes it.
    pub closed: u64,
}

/// `struct BadRows`, in device memory: where launches report targets that name no class. The host reads `told`: the
/// generation above, and below it the complement of the row; a new generation begins when it writes another number.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct BadRows {
    /// The device's own.
    pub worst: u64,
    /// Address of a u64 of the host. Only the device writes it.
    pub told: u64,
    /// Address of a u32 of the host. Only the host writes it.
    pub generation: u64,
}

/// The launch that closes the mailbox with this [`State`]: what is claimed is still written, nothing more is claimed.
pub fn close(state: u64) -> Step {
    let launch = Launch { kernel: "lossfeed_mail_close", grid: 1, block: (1, 1), shared_bytes: 0 };
    Step { launch, arguments: Arguments::Mail(MailArguments { mail: state }) }
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
