//! The end of an arena that is not handed out, since its cache was made smaller.
//!
//! Granules behind the *fence* are **withdrawn** as they become free: they lie in no bin and carry no numbers, so that
//! the system may have their memory back.

use super::granules::Granules;

impl Granules {
    /// From now on nothing behind `fence` stays free: what is freed there is withdrawn. What is free there already is
    /// withdrawn by [`Self::withdraw`].
    pub(super) fn set_fence(&mut self, fence: u32) {
        self.fence = fence;
    }

    /// Whether a block that ends at `end` lies behind the fence, if only with a part.
    pub(super) fn is_behind(&self, end: u32) -> bool {
        end > self.fence
    }

    /// Withdraws free blocks behind the fence, from the one that ends at `from` down; looks at `most` blocks. Where to
    /// go on, or `None` when it has come to the fence.
    pub(super) fn withdraw(&mut self, from: u32, most: usize) -> Option<u32> {
        let mut end = from;
        for _ in 0..most {
            if end <= self.fence {
                return None;
            }
            if let Some(start) = self.withdrawn.start_of(end) {
                end = start;
                continue;
            }
            let (start, free) = self.block_before(end);
            if free {
                self.unlink(start);
                self.set_aside(start, end);
            }
            end = start;
        }
        Some(end)
    }

    /// Makes a block, which lies in no bin, withdrawn as far as it lies behind the fence, and free otherwise.
    pub(super) fn set_aside(&mut self, start: u32, end: u32) {
        self.withdrawn.add(start.max(self.fence), end);
        if start < self.fence {
            self.make_free(start, self.fence);
        }
    }

    /// Moves the fence to `fence`: what was withdrawn before it is free again. [`Self::withdraw`] must have come to the
    /// fence before that.
    pub(super) fn restore(&mut self, fence: u32) {
        self.fence = fence;
        for (start, end) in self.withdrawn.take_before(fence) {
            self.make_free(start, end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::granules::tests::books;
    use proptest::prelude::*;

    proptest! {
        /// Records come and go while the fence moves up and down, and its blocks are withdrawn a few at a time.
        #[test]
        fn books_with_a_fence_hold_together_and_hand_nothing_out_behind_it(
            total in 40u32..600,
            steps in proptest::collection::vec((0..9u8, 0u32..2000, any::<prop::sample::Index>()), 1..200),
        ) {
            let (mut books, _memory) = books(total);
            let (mut held, mut fence, mut at): (Vec<u32>, u32, Option<u32>) = (Vec::new(), total, None);
            for (what, number, pick) in steps {
                match what {
                    0..4 => held.extend(books.allocate(number).inspect(|&end| {
                        assert!(at.is_some() || end <= fence, "a block was handed out behind the fence");
                    })),
                    4..6 if !held.is_empty() => {
                        let end = held.swap_remove(pick.index(held.len()));
                        books.unpin(end);
                    }
                    6 if at.is_none() => {
                        fence = number % (total + 1);
                        books.restore(fence);
                        at = Some(total);
                    }
                    7 => at = at.and_then(|at| books.withdraw(at, 2)),
                    8 => {
                        while let Some(from) = at {
                            at = books.withdraw(from, 3);
                        }
                        let behind = |(start, end): (u32, u32)| end - start;
                        let aside: u32 = books.withdrawn.ranges().map(behind).sum();
                        let kept: u32 = held.iter().map(|&end| end - books.block_before(end).0.max(fence).min(end)).sum();
                        prop_assert_eq!(aside + kept, total - fence, "nothing behind the fence is free");
                    }
                    _ => {}
                }
                books.check(total);
            }
            // With the fence at the end again everything can be had.
            held.drain(..).for_each(|end| books.unpin(end));
            while let Some(from) = at {
                at = books.withdraw(from, 3);
            }
            books.restore(total);
            books.check(total);
            prop_assert_eq!(books.large_free(), total);
        }
    }
}
