//! The residents that leave first, in order as of the last look. A decision without effects.

use crate::message::Key;

/// So many residents are put in order at a time, or one of so many.
const SORTED: usize = 1024;
const SORTED_OF: usize = 16;

/// A pinned sample counts more than others; else the one that is drawn more.
pub(crate) type Worth = (bool, f32);

fn order(a: Worth, b: Worth) -> std::cmp::Ordering {
    a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
}

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct Victims {
    /// A worth, a slot and a key each; those before `gone` have been looked at.
    least: Vec<(Worth, u32, Key)>,
    gone: usize,
    /// The residents are to be looked at again: before the next one leaves, and when all of these have been looked at.
    pub(crate) stale: bool,
    pub(crate) more: bool,
}

impl Victims {
    pub(crate) fn is_old(&self) -> bool {
        self.stale || (self.gone >= self.least.len() && self.more)
    }

    /// Takes all residents.
    pub(crate) fn renew(&mut self, mut all: Vec<(Worth, u32, Key)>) {
        let sorted = (all.len() / SORTED_OF).max(SORTED);
        let more = sorted < all.len();
        if more {
            all.select_nth_unstable_by(sorted, |a, b| order(a.0, b.0));
            all.truncate(sorted);
        }
        all.sort_unstable_by(|a, b| order(a.0, b.0));
        *self = Self { least: all, gone: 0, stale: false, more };
    }

    /// The one that counts least, if it counts less than `worth` and may leave.
    pub(crate) fn next(&mut self, worth: Worth, may_leave: impl Fn(u32, &Key) -> bool) -> Option<u32> {
        while let Some((least, slot, key)) = self.least.get(self.gone) {
            if order(*least, worth).is_ge() {
                return None;
            }
            self.gone += 1;
            if may_leave(*slot, key) {
                return Some(*slot);
            }
        }
        None
    }
}
