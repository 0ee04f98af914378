//! What a policy that substitutes owes: it delivers each sample as often as the plan has it, only not always when the
//! plan has it. A run that is resumed within an epoch begins without debts: its state has the rest of the order with
//! who is owed in place of who came early ([`Plan::settled`](crate::control::Plan::settled)).

use std::collections::VecDeque;

use super::View;
use crate::types::SampleId;

/// Samples that were asked for while others came in their place, the oldest first. Each will find a place: that of a
/// sample which came too early.
#[derive(Debug, Default)]
pub struct Debts {
    owed: VecDeque<SampleId>,
}

impl Debts {
    /// Who is due now that `asked` is asked for: that one, if the plan still has a delivery of it; else, because it came
    /// early, who is owed for longest. Without a debt it is `asked` again, as after a pass that was not planned so.
    pub fn due(&mut self, asked: SampleId, view: &View<'_>) -> SampleId {
        if view.next_use.is_planned(asked) {
            return asked;
        }
        while let Some(owed) = self.owed.pop_front() {
            // One that is planned more than once may have been delivered since, when it was asked for again.
            if view.next_use.is_planned(owed) {
                return owed;
            }
        }
        asked
    }
    /// Another one is delivered in place of `id`.
    pub fn owe(&mut self, id: SampleId) {
        self.owed.push_back(id);
    }
    /// Whether the resident `id` may come now, ahead of its time.
    pub fn may_come_early(id: SampleId, view: &View<'_>) -> bool {
        view.next_use.is_planned(id) && view.next_use.is_exact(id)
    }
    /// A new plan: who was owed under the last one is in this one, or is not wanted.
    pub fn forget(&mut self) {
        self.owed = VecDeque::new();
    }
    /// Heap bytes held.
    pub fn metadata_bytes(&self) -> usize {
        self.owed.capacity() * size_of::<SampleId>()
    }
}
