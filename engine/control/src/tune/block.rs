//! How many neighbours come from a stream together: said by the user, or found from what a request costs.
//!
//! Neighbours that are wanted together come with one request. What a request costs beside its bytes, in bytes that the
//! link would have brought meanwhile, the source knows (lossfeed-source, `request/link.rs`). A run of neighbours is long
//! enough when that is a quarter of what it takes to read them, and no longer, since what is new in a batch is then
//! alike wherever neighbours are.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// How many neighbouring samples are new together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Block {
    /// So many, 1 to 65536.
    Of(u32),
    /// As many as make the requests cheap: see [`Blocks`].
    Auto,
}

impl Default for Block {
    fn default() -> Self {
        Self::Of(1)
    }
}

/// As a number, or the word `auto`.
#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a whole number or \"auto\"")]
enum Spelled {
    Of(u32),
    Word(Word),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Word {
    Auto,
}

impl Serialize for Block {
    fn serialize<S: serde::Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        match *self {
            Self::Of(count) => Spelled::Of(count),
            Self::Auto => Spelled::Word(Word::Auto),
        }
        .serialize(to)
    }
}

impl<'de> Deserialize<'de> for Block {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        Ok(match Spelled::deserialize(from)? {
            Spelled::Of(count) => Self::Of(count),
            Spelled::Word(Word::Auto) => Self::Auto,
        })
    }
}

/// Of blocks that are found, none is larger: half of a usual batch's new rows.
pub(super) const MOST: u32 = 64;
/// A request may cost this part of what its bytes take.
const PART: u64 = 4;

impl Block {
    /// In what pieces ranks share a dataset: whole blocks, of whatever size is found later.
    pub fn granule(self) -> u32 {
        match self {
            Self::Of(count) => count,
            Self::Auto => MOST,
        }
    }

    pub(crate) fn check(self, name: &str) -> Result<()> {
        match self {
            Self::Of(count) if !(1..=65_536).contains(&count) => Err(Error::settings(format!(
                "{name}: block is {count}: give how many neighbouring samples are new together, 1 to 65536, or \"auto\""
            ))),
            _ => Ok(()),
        }
    }
}

/// What reading samples costs, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadCost {
    /// A request, beside the bytes that it brings.
    pub request_bytes: u64,
    /// A sample, in the mean.
    pub sample_bytes: u64,
}

impl ReadCost {
    /// The smallest power of two of samples that take four times as long as their request.
    pub fn block(self) -> u32 {
        let enough = self.request_bytes.saturating_mul(PART).div_ceil(self.sample_bytes.max(1));
        enough.min(u64::from(MOST)).next_power_of_two() as u32
    }
}

/// The blocks of a stream's passes. Where they are found, each pass has one size from its start to its end: what was
/// found while it was under way counts for the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocks {
    /// Of passes before `from`.
    before: u32,
    /// Of pass `from` and those behind it.
    after: u32,
    from: u64,
    /// What the last look found, if it was another.
    seen: Option<u32>,
}

impl Default for Blocks {
    fn default() -> Self {
        Self::new(Block::default())
    }
}

impl Blocks {
    /// Of a stream that is to come in such blocks; 1 until the first look where they are found.
    pub fn new(block: Block) -> Self {
        let at_first = if let Block::Of(count) = block { count } else { 1 };
        Self { before: at_first, after: at_first, from: 0, seen: None }
    }

    /// The blocks of `pass`.
    pub fn of(&self, pass: u64) -> u32 {
        if pass < self.from { self.before } else { self.after }
    }

    /// Takes what reading costs into account before an epoch is drawn. `pass` is the first that has not begun. In a new
    /// stream, before pass 0, the first look counts. Later two looks in a row must find another size, and the same:
    /// what is measured of a link comes and goes.
    pub fn look(&mut self, pass: u64, cost: ReadCost) {
        let found = cost.block();
        if found == self.after {
            self.seen = None;
        } else if pass == 0 || self.seen == Some(found) {
            *self = Self {
                before: if pass == 0 { found } else { self.of(pass - 1) },
                after: found,
                from: pass,
                seen: None,
            };
        } else {
            self.seen = Some(found);
        }
    }

    /// Goes on with what another had come to.
    ///
    /// # Errors
    /// `Settings` for numbers that none can come to.
    pub fn restore(&mut self, stored: Self) -> Result<()> {
        let possible = |block: u32| block.is_power_of_two() && block <= MOST;
        if ![Some(stored.before), Some(stored.after), stored.seen].into_iter().flatten().all(possible) {
            return Err(Error::settings(format!(
                "the state's blocks are damaged: {} and {}, where powers of two up to {MOST} can be",
                stored.before, stored.after
            )));
        }
        *self = stored;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cost(request_bytes: u64, sample_bytes: u64) -> ReadCost {
        ReadCost { request_bytes, sample_bytes }
    }

    #[test]
    fn small_samples_behind_dear_requests_come_in_blocks() {
        // 20 ms, 50 MB/s and 64 requests side by side, and the work of a request: a picture of CIFAR-10, a row of 3 KB,
        // a photograph.
        assert_eq!([920, 3000, 110_000].map(|bytes| cost(18_100, bytes).block()), [64, 32, 1]);
        assert_eq!(cost(0, 3000).block(), 1, "requests that cost nothing");
        assert_eq!(cost(u64::MAX, 0).block(), MOST);
    }

    #[test]
    fn a_pass_keeps_its_size_and_one_look_changes_nothing() {
        let (dear, cheap) = (cost(12_000, 1000), cost(1000, 1000));
        let mut blocks = Blocks::default();
        blocks.look(0, dear);
        assert_eq!((blocks.of(0), blocks.of(9)), (64, 64));
        blocks.look(1, cheap);
        blocks.look(2, dear);
        blocks.look(2, cheap);
        assert_eq!((blocks.of(1), blocks.of(2), blocks.of(9)), (64, 64, 64), "cheap once, and once again later");
        blocks.look(3, cheap);
        assert_eq!((blocks.of(2), blocks.of(3), blocks.of(9)), (64, 4, 4));
        // Two changes before pass 4 begins: pass 3 is under way and stays as it is.
        blocks.look(4, dear);
        blocks.look(4, dear);
        assert_eq!((blocks.of(3), blocks.of(4)), (4, 64));
        blocks.look(4, cheap);
        blocks.look(4, cheap);
        assert_eq!((blocks.of(3), blocks.of(4)), (4, 4));
    }

    #[test]
    fn numbers_and_a_word_are_blocks() {
        for (text, block) in [("1", Block::Of(1)), ("64", Block::Of(64)), ("\"auto\"", Block::Auto)] {
            assert_eq!(serde_json::from_str::<Block>(text).unwrap(), block);
            assert_eq!(serde_json::to_string(&block).unwrap(), text);
        }
        for text in ["\"many\"", "-1", "1.5", "null"] {
            let refused = serde_json::from_str::<Block>(text).unwrap_err().to_string();
            assert!(refused.contains("a whole number or \"auto\""), "{refused}");
        }
        let stored = |before| Blocks { before, ..Blocks::default() };
        for damaged in [stored(0), stored(3), stored(128), Blocks { seen: Some(5), ..stored(1) }] {
            assert!(Blocks::default().restore(damaged).unwrap_err().to_string().contains("damaged"));
        }
    }

    proptest! {
        /// Whatever is found when: a pass that has begun never changes, and what is stored comes back.
        #[test]
        fn a_pass_that_began_never_changes(
            looks in prop::collection::vec((0u64..3, 0u64..1 << 20, 1u64..10_000), 1..40),
        ) {
            let (mut blocks, mut pass) = (Blocks::default(), 0);
            let mut begun: Vec<u32> = Vec::new();
            for (passes, request, sample) in looks {
                blocks.look(pass, cost(request, sample));
                // The epoch that is drawn now ends so many passes later, or within the one that had begun.
                (0..passes).for_each(|k| begun.push(blocks.of(pass + k)));
                pass += passes;
                // Only the last pass that has begun is ever asked for again.
                if let Some(last) = pass.checked_sub(1) {
                    prop_assert_eq!(blocks.of(last), begun[last as usize]);
                }
                let mut other = Blocks::default();
                other.restore(serde_json::from_str(&serde_json::to_string(&blocks).unwrap()).unwrap()).unwrap();
                prop_assert_eq!(other, blocks);
            }
        }
    }
}
