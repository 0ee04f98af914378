//! The node cache.

use super::Settings;
use crate::error::{Error, Result};
use crate::source::{NodeOwner, NodeTier};

/// One cache for all processes of this user on this machine; see [`lossfeed_source::on_node`].
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct NodeSettings {
    /// Bytes for samples, if this process is the first one that uses it.
    pub bytes: u64,
    /// Starts the process that owns it: a program and its words.
    pub command: Vec<String>,
}

/// # Errors
/// `Settings` for a run that leaves its orders to the node cache and has none, or has several ranks.
pub(super) fn check_order(s: &Settings, samples: usize) -> Result<()> {
    if !s.sampler.is_by_node() {
        return Ok(());
    }
    let refused = match () {
        () if s.node.is_none() => {
            "no shared cache, whose owner makes the order: give cache=lf.Cache(\"32GiB\", share=\"node\")".into()
        }
        () if s.world_size > 1 || s.exchange => {
            format!("{} ranks, which share one order anyway: leave order= out", s.world_size)
        }
        () if samples > NodeOwner::SAMPLES_MAX => {
            format!("{samples} samples: {} are the most; leave order= out", NodeOwner::SAMPLES_MAX)
        }
        () => return Ok(()),
    };
    Err(Error::settings(format!("order=\"node\" with {refused}")))
}

impl NodeSettings {
    /// The tier that a run asks for; `job` is its name.
    pub fn tier(&self, job: Option<&str>, order: bool) -> NodeTier {
        NodeTier {
            folders: lossfeed_stats::candidates(),
            bytes: self.bytes,
            command: self.command.iter().map(Into::into).collect(),
            job: job.unwrap_or("lossfeed").to_owned(),
            order,
        }
    }
}
