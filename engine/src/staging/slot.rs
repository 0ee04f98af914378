//! A batch slot: one owner at a time, from the loader to the consumer and back.
#![allow(unsafe_code)]

use std::fmt;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;

use super::in_place::InPlace;
use super::layout::BatchLayout;
use super::pool::Shared;
use crate::arena::Mapping;
use crate::error::{Error, Result};
use crate::types::SampleId;
use lossfeed_control::ring::SlotState;

/// A slot's memory; it stays at its address as long as the pool lives.
pub(super) struct Descriptor {
    mapping: Mapping,
}

impl Descriptor {
    pub(super) fn new(mapping: Mapping) -> Self {
        Self { mapping }
    }
}

/// One batch's memory, owned. Dropping it returns it to its pool, on any thread.
pub struct BatchSlot {
    /// Keeps the descriptor alive.
    shared: Arc<Shared>,
    descriptor: NonNull<Descriptor>,
    index: u32,
    rows: usize,
    in_place: Option<InPlace>,
    tails: Vec<Box<[u8]>>,
}

// SAFETY: a batch slot is the only owner of its memory (see `bytes`), which is plain bytes; the descriptor is only
// read.
unsafe impl Send for BatchSlot {}
// SAFETY: through `&BatchSlot` memory and descriptor are only read.
unsafe impl Sync for BatchSlot {}

/// All parts of a batch at once, for its first rows: row k of each part belongs to the same sample.
#[derive(Debug)]
pub struct Parts<'a> {
    /// Samples, see [`BatchLayout::fields`].
    pub data: &'a mut [u8],
    /// Targets, `target_row_bytes` each.
    pub target: &'a mut [u8],
    /// Ids.
    pub ids: &'a mut [i64],
    /// Weights.
    pub weight: &'a mut [f32],
}

impl BatchSlot {
    /// The slot that the ring has just given out.
    pub(super) fn new(shared: Arc<Shared>, descriptor: Pin<&Descriptor>, index: u32) -> Self {
        let rows = shared.layout().rows();
        Self { shared, descriptor: NonNull::from(descriptor.get_ref()), index, rows, in_place: None, tails: Vec::new() }
    }

    fn mapping(&self) -> &Mapping {
        // SAFETY: the descriptor is an element of the pool's `PinnedVec`, whose elements never move and are never
        // removed, replaced or borrowed mutably; `shared` keeps the vector alive.
        unsafe { &self.descriptor.as_ref().mapping }
    }

    /// The whole slot, as it lies in memory: see [`Self::data`] for what may not be in it.
    pub fn bytes(&self) -> &[u8] {
        let mapping = self.mapping();
        // SAFETY:
        // - the mapping has `len` readable bytes, zeroed by the kernel when it was made, and lives in the descriptor;
        // - the ring gave its index to this value alone and gets it back only in Drop, so no other slot
        //   refers to these bytes, and they are written only through `&mut self`.
        unsafe { std::slice::from_raw_parts(mapping.base().as_ptr(), mapping.len()) }
    }

    /// The whole slot, for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let (base, len) = (self.mapping().base(), self.mapping().len());
        // SAFETY: as in `bytes`; `&mut self` makes this the only borrow.
        unsafe { std::slice::from_raw_parts_mut(base.as_ptr(), len) }
    }

    /// Address of the first byte, for tensors that keep the slot alive beside them. The memory belongs to the slot's
    /// owner, who may write through it.
    pub fn base(&self) -> NonNull<u8> {
        self.mapping().base()
    }

    /// What lies where.
    pub fn layout(&self) -> &BatchLayout {
        self.shared.layout()
    }

    /// How many samples the batch has.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Says how many samples the batch has; more than the layout has room for counts as that many.
    pub fn set_rows(&mut self, rows: usize) {
        self.rows = rows.min(self.layout().rows());
        self.tails.truncate(self.rows);
    }

    /// Gives it the tails of its samples, by row, as far as samples have any.
    pub fn set_tails(&mut self, tails: Vec<Box<[u8]>>) {
        self.tails = tails;
    }

    /// What of its samples is of no fixed size, by row; empty where samples have no tails.
    pub fn tails(&self) -> &[Box<[u8]>] {
        &self.tails
    }

    /// Whether samples have tails.
    pub fn has_tails(&self) -> bool {
        !self.tails.is_empty()
    }

    /// Copies a sample and its target from one row to another. Nothing may be left in place.
    pub fn copy_row(&mut self, from: usize, to: usize) {
        let layout = self.layout();
        let target = layout.target_offset();
        let target_bytes = layout.target_row_bytes();
        let fields = layout.fields().iter().map(|field| (field.row(from), field.row(to).start));
        let moves: Vec<_> = fields
            .chain([(target + from * target_bytes..target + (from + 1) * target_bytes, target + to * target_bytes)])
            .collect();
        let bytes = self.bytes_mut();
        moves.into_iter().for_each(|(from, to)| bytes.copy_within(from, to));
        if let Some(tail) = self.tails.get(from).cloned() {
            self.tails[to] = tail;
        }
    }

    /// Says which samples are not in the slot but in the cache's memory, for a device to read there.
    pub fn leave_in_place(&mut self, in_place: InPlace) {
        self.in_place = Some(in_place);
    }

    /// The rows whose samples lie in the cache's memory; what the slot itself holds of their data is an earlier
    /// batch's.
    pub fn in_place(&self) -> Option<&InPlace> {
        self.in_place.as_ref()
    }

    /// Copies what was left in place into the slot.
    pub fn gather(&mut self) {
        let Some(in_place) = self.in_place.take() else { return };
        let row_bytes = self.layout().data_row_bytes();
        for (row, record) in in_place.iter() {
            self.row_mut(row).0.copy_from_slice(&record[..row_bytes]);
        }
    }

    /// The sample of every row, wherever it lies.
    pub fn samples(&self) -> Vec<&[u8]> {
        let row_bytes = self.layout().data_row_bytes();
        let mut samples: Vec<&[u8]> = self.gathered_data().chunks_exact(row_bytes).collect();
        for (row, record) in self.in_place.iter().flat_map(InPlace::iter) {
            samples[row] = &record[..row_bytes];
        }
        samples
    }

    /// The samples: rows × `data_row_bytes`.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Usage`] while some of them lie in the cache's memory: the slot would give an earlier
    /// batch's.
    pub fn data(&self) -> Result<&[u8]> {
        match self.in_place.as_ref().map_or(0, |in_place| in_place.iter().count()) {
            0 => Ok(self.gathered_data()),
            left => Err(Error::usage(format!(
                "{left} of this batch's {} samples are in the cache, not in its slot: call `gather` \
                 first, read `samples`, or use copy_path \"gathered\"",
                self.rows
            ))),
        }
    }
    /// What the slot has of the samples. Rows of [`Self::in_place`] hold an earlier batch's.
    pub(crate) fn gathered_data(&self) -> &[u8] {
        &self.bytes()[self.layout().data_range(self.rows)]
    }
    /// The targets: rows × `target_row_bytes`.
    pub fn target(&self) -> &[u8] {
        &self.bytes()[self.layout().target_range(self.rows)]
    }
    /// The ids that are really in it.
    pub fn ids(&self) -> &[i64] {
        // Cannot fail: the part starts at a multiple of 64 of a page-aligned mapping and is a multiple of 8 long.
        bytemuck::cast_slice(&self.bytes()[self.layout().ids_range(self.rows)])
    }
    /// The weights.
    pub fn weight(&self) -> &[f32] {
        bytemuck::cast_slice(&self.bytes()[self.layout().weight_range(self.rows)])
    }

    /// All parts for writing, side by side.
    pub fn parts_mut(&mut self) -> Parts<'_> {
        let layout = self.layout();
        let (target_at, ids_at, weight_at) = (layout.target_offset(), layout.ids_offset(), layout.weight_offset());
        let (data, target) = (layout.data_range(self.rows).len(), layout.target_range(self.rows).len());
        let (ids, weight) = (layout.ids_range(self.rows).len(), layout.weight_range(self.rows).len());
        let (data_part, rest) = self.bytes_mut().split_at_mut(target_at);
        let (target_part, rest) = rest.split_at_mut(ids_at - target_at);
        let (ids_part, weight_part) = rest.split_at_mut(weight_at - ids_at);
        Parts {
            data: &mut data_part[..data],
            target: &mut target_part[..target],
            ids: bytemuck::cast_slice_mut(&mut ids_part[..ids]),
            weight: bytemuck::cast_slice_mut(&mut weight_part[..weight]),
        }
    }

    /// Row `k`'s sample, of one array, and its target, for writing. `k` must be below the layout's rows.
    pub fn row_mut(&mut self, k: usize) -> (&mut [u8], &mut [u8]) {
        let (data, target) = (self.layout().data_row_bytes(), self.layout().target_row_bytes());
        let target_at = self.layout().target_offset();
        let (data_part, rest) = self.bytes_mut().split_at_mut(target_at);
        (&mut data_part[k * data..][..data], &mut rest[k * target..][..target])
    }

    /// Puts ids and weights in place; both as long as the batch has rows (what is longer is left out).
    pub fn set_ids(&mut self, ids: &[SampleId], weight: &[f32]) {
        let parts = self.parts_mut();
        for (place, &id) in parts.ids.iter_mut().zip(ids) {
            *place = i64::from(id);
        }
        for (place, &w) in parts.weight.iter_mut().zip(weight) {
            *place = w;
        }
    }

    /// The loader is done: the batch waits for its consumer.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Internal`] if the slot is not being filled, as for each of these steps out of turn;
    /// [`crate::ErrorKind::Usage`] in a child process.
    pub fn ready(&mut self) -> Result<()> {
        self.shared.enter(self.index, SlotState::Ready)
    }
    /// The consumer takes it.
    ///
    /// # Errors
    /// As for [`Self::ready`], if the slot is not ready.
    pub fn lend(&mut self) -> Result<()> {
        self.shared.enter(self.index, SlotState::Lent)
    }
    /// Whether its consumer holds so many slots that the loader has fewer left than it began with: one that can do with
    /// a copy of this one should give it back.
    pub fn is_scarce(&self) -> bool {
        self.shared.is_scarce()
    }
    /// A copy to a device is about to be queued; who drops the slot has waited for the copy. By shared reference, for
    /// the consumer's views share a lent slot.
    ///
    /// # Errors
    /// As for [`Self::ready`], if the slot is not lent, or is being copied already.
    pub fn copying(&self) -> Result<()> {
        self.shared.enter(self.index, SlotState::Copying)
    }
    /// The same, where the call before may have been interrupted behind this: then it is copied once more.
    pub(crate) fn copying_again(&self) -> Result<()> {
        if self.shared.is(self.index, SlotState::Copying) { Ok(()) } else { self.copying() }
    }
}

/// The whole slot: what a copy to a device takes.
impl AsRef<[u8]> for BatchSlot {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl Drop for BatchSlot {
    fn drop(&mut self) {
        // Every owner may let go, so this fails in a forked child alone, where nothing is to be done.
        let _ = self.shared.enter(self.index, SlotState::Free);
    }
}

impl fmt::Debug for BatchSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchSlot").field("index", &self.index).field("rows", &self.rows).finish_non_exhaustive()
    }
}
