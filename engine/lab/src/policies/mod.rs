//! Policies that are only compared on recorded runs, beside those a training run can use.

mod arc;
mod lfu;
mod nopfs;
mod queues;
mod quiver;
mod s3fifo;
mod sieve;

use lossfeed_control::Result;
use lossfeed_control::policy::{self, Entry, Policy};

/// Those of this crate.
const OWN: [Entry; 6] = [sieve::ENTRY, s3fifo::ENTRY, lfu::ENTRY, arc::ENTRY, quiver::ENTRY, nopfs::ENTRY];

/// All policies, in the order in which they are listed and replayed: those of training runs first.
pub static ALL: [Entry; policy::ALL.len() + OWN.len()] = {
    let mut all = [OWN[0]; policy::ALL.len() + OWN.len()];
    let mut k = 0;
    while k < all.len() {
        all[k] = if k < policy::ALL.len() { policy::ALL[k] } else { OWN[k - policy::ALL.len()] };
        k += 1;
    }
    all
};

/// The policy of that name (`app`, the paper's name for it, is `shade`).
///
/// # Errors
/// `Settings` if there is no such policy.
pub fn find(name: &str) -> Result<&'static Entry> {
    policy::find_in(&ALL, if name == "app" { "shade" } else { name })
}

/// The same, empty, for ids `0..samples`.
///
/// # Errors
/// As [`find`].
pub fn from_name(name: &str, samples: usize) -> Result<Box<dyn Policy>> {
    Ok((find(name)?.make)(samples))
}
