//! Credentials of AWS as people keep them: profiles of `~/.aws`, roles, commands, logins. What the environment says is
//! the client's own business (`object_store`).
//!
//! `profiles.rs` reads the files, `chain.rs` decides where credentials come from, `ways.rs` fetches them and
//! `answers.rs` takes apart what it gets. Here they are kept, and fetched anew before they end: once, however many
//! requests wait. Decision 43 says why this is ours.

pub(crate) mod answers;
pub(crate) mod chain;
mod found;
mod process;
pub(crate) mod profiles;
#[cfg(test)]
mod tests;
mod ways;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use lossfeed_sync::Mutex;
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;

use self::chain::{Asked, Plan};
pub(crate) use self::found::{Cloud, found};
use self::profiles::{Kind, Profiles};
use self::ways::Ways;
use crate::error::{Error, Result};
use crate::request::failure::NoCredentials;

/// Credentials are fetched anew when so much of their time is left, or a quarter of it.
const EARLY: Duration = Duration::from_secs(300);
/// Where that fails and the old ones still serve: not again before.
const PAUSE: Duration = Duration::from_secs(30);
/// All who waited for an attempt that failed get its answer.
const SHARED: Duration = Duration::from_secs(1);
/// No file of profiles is larger.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// What was decided for a store of S3.
pub(crate) struct Chosen {
    /// Where the client's own ways do not reach.
    pub(crate) provider: Option<Arc<Provider>>,
    /// Whether nobody has said anything: then there may be no credentials at all.
    pub(crate) unsaid: bool,
}

/// Decides where credentials come from, and adds to the client's settings what a profile says of the store.
/// `of_environment`: how many of the settings are the environment's, which come first.
///
/// # Errors
/// `Settings` for files and profiles that make no sense.
pub(crate) fn choose(
    settings: &mut Vec<(String, String)>,
    of_environment: usize,
    profile: Option<String>,
) -> Result<Chosen> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
    let home = variable("HOME").map(PathBuf::from);
    let place = |name: &str, usual: &str| match variable(name) {
        Some(path) => Some(tilde(&path, home.as_deref())),
        None => Some(home.as_ref()?.join(usual)),
    };
    let mut files = Profiles::default();
    for (name, usual, kind) in [
        ("AWS_CONFIG_FILE", ".aws/config", Kind::Config),
        ("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials", Kind::Credentials),
    ] {
        if let Some(path) = place(name, usual)
            && let Some(text) = read(&path)?
        {
            files.add(&text, kind, &path.display().to_string())?;
        }
    }
    let decided = chain::decide(&Asked { profile, variable: &variable, settings, of_environment }, &files)?;
    drop(settings.splice(0..0, decided.settings.into_iter().map(|(key, value)| (key.to_owned(), value))));
    let setting = |names: &[&str]| {
        let named = |key: &str| names.contains(&key.trim_start_matches("aws_"));
        settings.iter().rev().find(|(key, value)| named(key) && !value.is_empty()).map(|(_, value)| value.clone())
    };
    let unsaid = matches!(decided.plan, Plan::Machine);
    let ways = Ways {
        sts: setting(&["endpoint_url_sts"]).or_else(|| variable("AWS_ENDPOINT_URL")),
        sso: variable("AWS_ENDPOINT_URL_SSO").or_else(|| variable("AWS_ENDPOINT_URL")),
        region: setting(&["region"]).or_else(|| setting(&["default_region"])),
        metadata_endpoint: setting(&["metadata_endpoint"]),
        logins: home.map(|home| home.join(".aws/sso/cache")),
        process_limit: process::LIMIT,
    };
    let provider = match decided.plan {
        Plan::Machine => None,
        Plan::Client(own) if own.is_empty() => None,
        plan => Some(Arc::new(Provider::new(plan, ways))),
    };
    Ok(Chosen { provider, unsaid })
}

/// A path that may begin at home.
fn tilde(path: &str, home: Option<&Path>) -> PathBuf {
    match (path.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => PathBuf::from(path),
    }
}

/// The text of a file, if it is there.
fn read(path: &Path) -> Result<Option<String>> {
    let told = |what: &str| Error::settings(format!("{}, where AWS's profiles are, {what}", path.display()));
    match std::fs::metadata(path) {
        Ok(meta) if meta.len() > FILE_BYTES_MAX => return Err(told("is too large to be such a file")),
        Ok(meta) if meta.is_file() => {}
        Ok(_) => return Ok(None),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(told("cannot be looked at").because(e)),
    }
    let bytes = std::fs::read(path).map_err(|e| told("cannot be read").because(e))?;
    String::from_utf8(bytes).map(Some).map_err(|_| told("is no UTF-8 text"))
}

/// Credentials that are kept, and fetched anew before they end.
pub(crate) struct Provider(Arc<Inner>);

struct Inner {
    plan: Plan,
    ways: Ways,
    kept: Mutex<Kept>,
    /// Held by whoever fetches.
    fetching: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Kept {
    keys: Option<Arc<AwsCredential>>,
    until: Option<DateTime<Utc>>,
    /// When to fetch anew.
    due: Option<DateTime<Utc>>,
    failed: Option<(Instant, NoCredentials)>,
}

impl Provider {
    fn new(plan: Plan, ways: Ways) -> Self {
        Self(Arc::new(Inner { plan, ways, kept: Mutex::default(), fetching: tokio::sync::Mutex::new(()) }))
    }
}

/// Neither keys nor commands.
impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Provider")
    }
}

impl Inner {
    /// What serves now; `None` where it must be fetched first. `busy`: somebody fetches already.
    fn kept(&self, busy: bool) -> Option<Arc<AwsCredential>> {
        let now = DateTime::<Utc>::from(SystemTime::now());
        let kept = self.kept.lock();
        let serves = kept.until.is_none_or(|until| now < until);
        let due = kept.due.is_some_and(|due| now >= due);
        kept.keys.clone().filter(|_| serves && (!due || busy))
    }

    async fn fetched(&self, asked: Instant) -> Result<Arc<AwsCredential>, NoCredentials> {
        let _fetching = self.fetching.lock().await;
        if let Some(keys) = self.kept(false) {
            return Ok(keys);
        }
        if let Some((at, why)) = &self.kept.lock().failed
            && (*at >= asked || at.elapsed() < SHARED)
        {
            return Err(why.clone());
        }
        let lent = self.ways.lent(&self.plan).await;
        let now = DateTime::<Utc>::from(SystemTime::now());
        let mut kept = self.kept.lock();
        let lent = lent.and_then(|lent| match lent.until {
            Some(until) if until <= now => Err(NoCredentials::lasting(format!(
                "what gives the credentials gave some that ended at {until}: check it, and this machine's clock"
            ))),
            _ => Ok(lent),
        });
        match lent {
            Ok(lent) => {
                let keys = Arc::new(lent.keys);
                let early = |until: DateTime<Utc>| {
                    until - ((until - now) / 4).min(chrono::TimeDelta::seconds(EARLY.as_secs() as i64))
                };
                *kept = Kept { keys: Some(keys.clone()), until: lent.until, due: lent.until.map(early), failed: None };
                Ok(keys)
            }
            Err(why) => match kept.keys.clone().filter(|_| kept.until.is_some_and(|until| now < until)) {
                Some(keys) => {
                    tracing::warn!(error = %why, "credentials could not be fetched anew; the old ones serve until they end");
                    kept.due = Some(now + PAUSE);
                    Ok(keys)
                }
                None => {
                    kept.failed = Some((Instant::now(), why.clone()));
                    Err(why)
                }
            },
        }
    }
}

#[async_trait]
impl CredentialProvider for Provider {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let inner = &self.0;
        let busy = inner.fetching.try_lock().is_err();
        if let Some(keys) = inner.kept(busy) {
            return Ok(keys);
        }
        let (inner, asked) = (inner.clone(), Instant::now());
        // A task of its own: the request that began it may be given up meanwhile, and others wait for it.
        let fetched = tokio::spawn(async move { inner.fetched(asked).await }).await;
        let fetched =
            fetched.unwrap_or_else(|_| Err(NoCredentials::lasting("the task that fetches credentials was lost")));
        fetched.map_err(|why| object_store::Error::Generic { store: "S3", source: Box::new(why) })
    }
}
