//! What iCACHE's packages would make of a run's requests, at best.
//!
//! The paper packs samples that are not important into packages of 1 MB and more, in the background, reads each package
//! in one piece, and packs those that were missed anew. So bytes are not saved, but requests are, and what comes with a
//! package before it is asked for is no hit of the cache: it is fetched like any other. Here packages are as good as
//! they can be: each has what will be fetched next, in the order of its delivery, and closes when it has 1 MB (2²⁰
//! bytes) or its epoch ends. What they cost is not in it: the samples are written to the store a second time, in a new
//! order each epoch, and an open package lies in memory beside the cache.

use serde::Serialize;

use crate::ledger::Ledger;
use crate::types::SampleId;

/// A package closes when it has so many bytes.
pub const PACKAGE_BYTES: u64 = 1 << 20;

/// What came in packages, of what was fetched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Packed {
    /// Samples. Without packages each is a request.
    pub samples: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packages, each of which is one request.
    pub packages: u64,
}

/// Counts them.
#[derive(Debug, Default)]
pub(super) struct Packages {
    packed: Packed,
    /// Bytes in the package that is open.
    open: Option<u64>,
}

impl Packages {
    pub(super) fn begin_epoch(&mut self) {
        self.open = None;
    }
    /// Takes in what is packed of the samples that a batch fetches.
    pub(super) fn batch(
        &mut self,
        fetched: impl Iterator<Item = SampleId>,
        ledger: Option<&Ledger>,
        bytes: impl Fn(SampleId) -> u64,
    ) {
        let Some(ledger) = ledger else { return };
        for id in fetched.filter(|&id| ledger.is_packed(id)) {
            self.fetch(bytes(id));
        }
    }
    fn fetch(&mut self, bytes: u64) {
        self.packed.samples += 1;
        self.packed.bytes += bytes;
        self.packed.packages += u64::from(self.open.is_none());
        let filled = self.open.unwrap_or(0) + bytes;
        self.open = (filled < PACKAGE_BYTES).then_some(filled);
    }
    /// Nothing, if nothing was packed.
    pub(super) fn finish(self) -> Option<Packed> {
        (self.packed.samples > 0).then_some(self.packed)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The twin cuts each epoch's list from its beginning, package by package.
        #[test]
        fn packages_are_the_shortest_beginnings_of_what_is_left(
            epochs in prop::collection::vec(prop::collection::vec(1..2_000_000u64, 0..40), 0..5),
        ) {
            let mut packages = Packages::default();
            for epoch in &epochs {
                packages.begin_epoch();
                epoch.iter().for_each(|&bytes| packages.fetch(bytes));
            }
            let mut expected = Packed::default();
            for epoch in &epochs {
                let mut left = &epoch[..];
                while !left.is_empty() {
                    let enough = |&count: &usize| left[..count].iter().sum::<u64>() >= PACKAGE_BYTES;
                    let (package, rest) = left.split_at((1..left.len()).find(enough).unwrap_or(left.len()));
                    expected.samples += package.len() as u64;
                    expected.bytes += package.iter().sum::<u64>();
                    expected.packages += 1;
                    left = rest;
                }
            }
            prop_assert_eq!(packages.finish(), (expected.samples > 0).then_some(expected));
            // However they are packed, a request brings less than a package and one more sample.
            prop_assert!(expected.packages * (PACKAGE_BYTES + 2_000_000) >= expected.bytes);
            prop_assert!(expected.packages <= expected.bytes / PACKAGE_BYTES + epochs.len() as u64);
        }
    }
}
