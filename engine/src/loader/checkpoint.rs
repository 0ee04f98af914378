//! The state of a run as bytes: enough to deliver exactly the rest of an epoch on another process.
//!
//! Layout, all little-endian: magic `LFCK` · version u32 · header length u32 · header (JSON, [`Header`]) · beliefs f32
//! × samples · stamps u32 × samples · ids u32 × planned · weights f32 × planned · u32 × buffer · FNV-1a 64 of
//! everything before. Beliefs (NaN = no score) and stamps are there only if anything is known of any sample, the plan
//! only if the epoch is under way and its order depends on more than the seed. The parser trusts nothing: every length
//! is checked before it is used.

use crate::error::{Error, Result};
use crate::sampler::{Blocks, Order, Part};
use fnv::FnvHasher;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::hash::Hasher;

const MAGIC: &[u8; 4] = b"LFCK";
const VERSION: u32 = 3;
/// What had no parts of epochs, and is understood too.
const VERSION_BEFORE: u32 = 2;

/// What must agree before a state is taken, and where it goes on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Samples in the dataset.
    pub samples: usize,
    /// Everything that shapes the orders of a run, by name: a fingerprint of the dataset, and the settings.
    pub identity: BTreeMap<String, String>,
    /// Epoch to go on with.
    pub epoch: u64,
    /// Batches of it already delivered.
    pub delivered: usize,
    /// Batches scored so far.
    pub step: u32,
    /// Whether beliefs follow.
    pub scored: bool,
    /// The measurement that the beliefs are on, by name; `None` before the first scores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<String>,
    /// What other numbers of ranks delivered of the epoch; `None`: nothing. Then a stored plan is of what they left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<Part>,
    /// Draws of the stored plan, 0 if none is stored.
    pub planned: usize,
    /// Numbers of a buffer sampler's memory, of what a rank has to share, or of a caller's own cut; else 0.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub buffer: usize,
    /// How many of those, at their end, are what samples take, where the source knows it only once it has read them.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub sizes: usize,
    /// How far a run is that awaits weights; other runs await none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<WeightUse>,
    /// What was set between epochs.
    #[serde(flatten)]
    pub tuned: Tuned,
}

/// What the things have come to that are set between epochs; a run has none, some or all of them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Tuned {
    /// The pace, of a run that is to wait little or that has a budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pace: Option<[u32; 2]>,
    /// Of the budget: bytes and samples read before the epoch, and in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<[u64; 4]>,
    /// The stream's blocks, where they are found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<Blocks>,
}

/// What a training loop does with batches' weights, in a run that waits until they are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WeightUse {
    /// It was not seen to read them. Every sample counts alike.
    Unread,
    /// It was: the next epoch is drawn by score.
    Read,
    /// Draws go by score.
    Used,
}

/// A parsed state.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    /// Identity and position.
    pub header: Header,
    /// Beliefs and stamps by id, if anything is known of any sample.
    pub scores: Option<(Vec<f32>, Vec<u32>)>,
    /// The epoch's order, if it cannot be drawn again.
    pub order: Option<Order>,
    /// A buffer sampler's memory, what a rank has to share, or where the caller cut the epoch under way.
    pub buffer: Vec<u32>,
}

fn is_nothing(count: &usize) -> bool {
    *count == 0
}

/// FNV-1a.
fn digest(bytes: &[u8]) -> u64 {
    let mut hasher = FnvHasher::default();
    hasher.write(bytes);
    hasher.finish()
}

fn words<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> + '_ {
    bytes.as_chunks::<N>().0.iter().copied()
}

impl Checkpoint {
    /// Serialises.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let header = serde_json::to_vec(&self.header)
            .map_err(|e| Error::internal("the state's header could not be written").because(e))?;
        let mut out = Vec::with_capacity(64 + header.len() + 8 * (self.header.samples + self.header.planned));
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&(header.len() as u32).to_le_bytes());
        out.extend_from_slice(&header);
        if let Some((beliefs, stamps)) = &self.scores {
            out.extend(beliefs.iter().flat_map(|v| v.to_le_bytes()));
            out.extend(stamps.iter().flat_map(|v| v.to_le_bytes()));
        }
        if let Some(order) = &self.order {
            out.extend(order.ids.iter().flat_map(|v| v.to_le_bytes()));
            out.extend(order.weights.iter().flat_map(|v| v.to_le_bytes()));
        }
        out.extend(self.buffer.iter().flat_map(|v| v.to_le_bytes()));
        let digest = digest(&out);
        out.extend_from_slice(&digest.to_le_bytes());
        Ok(out)
    }

    /// Parses what [`Self::to_bytes`] made. Anything else is an error that says where it stopped.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let bad = |what: String| Error::settings(format!("this is not a loader state of this version: {what}"));
        let short = || bad(format!("{} bytes are too few", bytes.len()));
        let (body, tail) = bytes.split_last_chunk::<8>().ok_or_else(short)?;
        if digest(body) != u64::from_le_bytes(*tail) {
            return Err(bad("its checksum does not match (truncated or changed)".into()));
        }
        let rest = body.strip_prefix(MAGIC).ok_or_else(|| bad("it does not begin with LFCK".into()))?;
        let (version, rest) = rest.split_first_chunk::<4>().ok_or_else(short)?;
        let version = u32::from_le_bytes(*version);
        if ![VERSION_BEFORE, VERSION].contains(&version) {
            return Err(bad(format!("version {version} where {VERSION} is understood")));
        }
        let (length, rest) = rest.split_first_chunk::<4>().ok_or_else(short)?;
        let (header, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or_else(short)?;
        let header: Header = serde_json::from_slice(header).map_err(|e| bad(format!("its header: {e}")))?;
        let scored = if header.scored { header.samples } else { 0 };
        let pairs = scored.checked_add(header.planned).and_then(|n| n.checked_mul(8));
        let wanted = header.buffer.checked_mul(4).and_then(|buffer| pairs?.checked_add(buffer));
        if wanted != Some(rest.len()) {
            return Err(bad(format!(
                "{} bytes follow the header of {} samples and {} draws",
                rest.len(),
                scored,
                header.planned
            )));
        }
        let (beliefs, rest) = rest.split_at(4 * scored);
        let (stamps, rest) = rest.split_at(4 * scored);
        let (ids, rest) = rest.split_at(4 * header.planned);
        let (weights, buffer) = rest.split_at(4 * header.planned);
        let buffer: Vec<u32> = words(buffer).map(u32::from_le_bytes).collect();
        let ids: Vec<u32> = words(ids).map(u32::from_le_bytes).collect();
        if let Some(id) = ids.iter().find(|&&id| id as usize >= header.samples) {
            return Err(bad(format!("its plan names sample {id} of {}", header.samples)));
        }
        let scores: Option<(Vec<f32>, Vec<u32>)> = header.scored.then(|| {
            (words(beliefs).map(f32::from_le_bytes).collect(), words(stamps).map(u32::from_le_bytes).collect())
        });
        let weights: Vec<f32> = words(weights).map(f32::from_le_bytes).collect();
        if let Some(draw) = weights.iter().position(|w| !(w.is_finite() && *w > 0.0)) {
            return Err(bad(format!("draw {draw} of its plan has weight {}", weights[draw])));
        }
        if let Some((beliefs, _)) = &scores
            && let Some(id) = beliefs.iter().position(|b: &f32| b.is_infinite())
        {
            return Err(bad(format!("its belief about sample {id} is {}", beliefs[id])));
        }
        let order = (header.planned > 0).then_some(Order { ids, weights });
        Ok(Self { header, scores, order, buffer })
    }
}
