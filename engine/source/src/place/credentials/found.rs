//! Whether a cloud's machine lends credentials: asked once, within bounds, where nobody has said where they are.
//!
//! Outside of a cloud nothing answers at the address of its metadata, and some networks swallow what is sent there.
//! Without credentials a store may still be public.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lossfeed_sync::{Mutex, PerProcess};
use object_store::CredentialProvider;

use crate::error::Result;
use crate::process::pid;
use crate::runtime;

/// Whose metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cloud {
    Aws,
    Google,
    Azure,
}

/// The longest that a machine's metadata may take: it lies on the same machine or the next.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// That nobody answered is believed for so long.
const BELIEVED: Duration = Duration::from_secs(60);

/// Which clouds gave nothing, and when; of this process.
static NOTHING: PerProcess<Mutex<Vec<(Cloud, Instant)>>> = PerProcess::new();

impl Cloud {
    /// What turns the question off, as the cloud's own libraries have it.
    fn forbidden(self) -> bool {
        let on = |name: &str| std::env::var(name).is_ok_and(|value| value.trim().eq_ignore_ascii_case("true"));
        match self {
            Cloud::Aws => on("AWS_EC2_METADATA_DISABLED"),
            Cloud::Google => on("NO_GCE_CHECK"),
            Cloud::Azure => false,
        }
    }
}

/// Whether `provider` has credentials. `elsewhere`: the question goes to an address that was given, and says nothing of
/// this machine.
pub(crate) fn found<C: Send + Sync>(
    cloud: Cloud,
    elsewhere: bool,
    provider: &Arc<dyn CredentialProvider<Credential = C>>,
) -> Result<bool> {
    if cloud.forbidden() {
        return Ok(false);
    }
    let fresh = |(_, at): &(Cloud, Instant)| at.elapsed() < BELIEVED;
    if !elsewhere && NOTHING.of(pid()).lock().iter().any(|known| known.0 == cloud && fresh(known)) {
        return Ok(false);
    }
    let asked = async { tokio::time::timeout(ANSWER_WITHIN, provider.get_credential()).await };
    let answer = runtime::shared()?.block_on(asked);
    if let Ok(Ok(_)) = answer {
        return Ok(true);
    }
    let why = match answer {
        Ok(Err(e)) => e.to_string(),
        _ => format!("no answer within {ANSWER_WITHIN:?}"),
    };
    tracing::debug!(?cloud, why, "this machine lends no credentials");
    if !elsewhere {
        let mut nothing = NOTHING.of(pid()).lock();
        nothing.retain(|known| fresh(known) && known.0 != cloud);
        nothing.push((cloud, Instant::now()));
    }
    Ok(false)
}
