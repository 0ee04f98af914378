//! What iCACHE's packages would make of a run's requests, at best.
//!
//! The paper packs samples that are not important into packages of 1 MB and more, in the background, reads each package
//! in one piece, and packs those that were missed anew. So bytes are not saved, but requests are, and what comes with a
//! package before it is asked for is no hit of the cache: it is fetched like any other. Here packages are as good as
//! they can be: each has what will be fetched next, in the order of its delivery, and closes when it has 1 MB (2²⁰
//! bytes) or its epoch ends. What they cost is not in it: the samples are written to the store a second time, in a new
//! order each epoch, and an open package lies in memory beside the cache.

use std::collections::BTreeMap;

use lossfeed_control::SampleId;
use lossfeed_control::ledger::Ledger;
use lossfeed_control::sim::Watch;

/// A package closes when it has so many bytes.
pub const PACKAGE_BYTES: u64 = 1 << 20;

/// Counts what comes in packages, of what is fetched.
#[derive(Debug, Default)]
pub struct Packages {
    /// Each of these is a request without packages.
    samples: u64,
    bytes: u64,
    /// Each of these is one request.
    packages: u64,
    /// Bytes in the package that is open.
    open: Option<u64>,
}

impl Packages {
    /// None yet.
    pub fn watch() -> Box<dyn Watch> {
        Box::<Self>::default()
    }
    fn fetch(&mut self, bytes: u64) {
        self.samples += 1;
        self.bytes += bytes;
        self.packages += u64::from(self.open.is_none());
        let filled = self.open.unwrap_or(0) + bytes;
        self.open = (filled < PACKAGE_BYTES).then_some(filled);
    }
}

impl Watch for Packages {
    fn begin_epoch(&mut self) {
        self.open = None;
    }
    fn fetched(&mut self, id: SampleId, bytes: u64, books: &Ledger) {
        if books.is_packed(id) {
            self.fetch(bytes);
        }
    }
    /// Nothing, if nothing was packed.
    fn counted(&self) -> BTreeMap<&'static str, u64> {
        let all = [("packed", self.samples), ("packed_bytes", self.bytes), ("packages", self.packages)];
        if self.samples > 0 { BTreeMap::from(all) } else { BTreeMap::new() }
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
            let mut expected = Packages::default();
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
            prop_assert_eq!(packages.counted(), expected.counted());
            // However they are packed, a request brings less than a package and one more sample.
            prop_assert!(expected.packages * (PACKAGE_BYTES + 2_000_000) >= expected.bytes);
            prop_assert!(expected.packages <= expected.bytes / PACKAGE_BYTES + epochs.len() as u64);
        }
    }
}
