//! URLs of object stores: which client, with which options, and which keys.

use std::str::FromStr;
use std::sync::Arc;

use object_store::aws::AmazonS3ConfigKey;
use object_store::azure::AzureConfigKey;
use object_store::gcp::GoogleConfigKey;
use object_store::{ClientConfigKey, ObjectStore, ObjectStoreScheme, parse_url_opts};
use url::Url;

use super::{OpenOptions, pattern};
use crate::error::{Error, Result};

/// A connected store and the keys a URL stands for.
pub(super) struct Target {
    pub(super) store: Arc<dyn ObjectStore>,
    /// Scheme and host, without credentials: names the store for people.
    pub(super) base: String,
    pub(super) paths: Vec<String>,
}

/// Opens the store of `url`, whose braces may stand for several keys of one store.
///
/// # Errors
/// `Settings` for a URL or option that makes no sense.
pub(super) fn connect(url: &str, options: &OpenOptions) -> Result<Target> {
    let mut target: Option<Target> = None;
    for name in pattern::braces(url)? {
        let parsed = Url::parse(&name)
            .map_err(|e| Error::settings(format!("{} is no valid URL", without_secrets(&name))).because(e))?;
        let shown = without_secrets(&name);
        if parsed.query().is_some() || parsed.fragment().is_some() {
            return Err(Error::settings(format!(
                "{shown} has a query or fragment, which shards and folders cannot use: pass credentials as store options or in the environment"
            )));
        }
        let (scheme, path) = ObjectStoreScheme::parse(&parsed)
            .map_err(|e| Error::settings(format!("{shown} names no store this engine knows")).because(e))?;
        let base = base(&parsed, path.as_ref());
        match &mut target {
            Some(target) if target.base == base => target.paths.push(path.to_string()),
            Some(target) => {
                return Err(Error::settings(format!(
                    "{} and {base} are two stores: open them as two datasets",
                    target.base
                )));
            }
            None => {
                let settings = settings(&scheme, &parsed, options)?;
                let (store, _) = parse_url_opts(&parsed, settings).map_err(|e| {
                    Error::settings(format!("{shown} cannot be opened: check the store options")).because(e)
                })?;
                target = Some(Target { store: store.into(), base, paths: vec![path.to_string()] });
            }
        }
    }
    target.ok_or_else(|| Error::settings("the URL stands for no name"))
}

/// Everything before the key.
fn base(url: &Url, key: &str) -> String {
    let shown = without_secrets(url.as_str());
    let decoded_len = key.len();
    let trimmed = shown.trim_end_matches('/');
    match trimmed.strip_suffix(key) {
        Some(base) if decoded_len > 0 => base.trim_end_matches('/').to_owned(),
        // The key is percent-encoded in the URL, or there is none: scheme and host name the store well enough.
        _ => format!("{}://{}", url.scheme(), url.host_str().unwrap_or("")),
    }
}

/// The URL without user, password, query and fragment.
fn without_secrets(url: &str) -> String {
    let end = url.find(['?', '#']).unwrap_or(url.len());
    let url = url.get(..end).unwrap_or(url);
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (host, path) = rest.find('/').map_or((rest, ""), |slash| rest.split_at(slash));
    // In abfs://container@account.host the part before @ is a name and no secret; a password has a colon.
    let host = match host.rsplit_once('@') {
        Some((user, host)) if user.contains(':') || scheme.starts_with("http") => host,
        _ => host,
    };
    format!("{scheme}://{host}{path}")
}

/// Client options: the environment's, then the caller's, which must all be known.
fn settings(scheme: &ObjectStoreScheme, url: &Url, options: &OpenOptions) -> Result<Vec<(String, String)>> {
    let (prefix, known): (&str, fn(&str) -> bool) = match scheme {
        ObjectStoreScheme::AmazonS3 => ("AWS_", |k| AmazonS3ConfigKey::from_str(k).is_ok()),
        ObjectStoreScheme::GoogleCloudStorage => ("GOOGLE_", |k| GoogleConfigKey::from_str(k).is_ok()),
        ObjectStoreScheme::MicrosoftAzure => ("AZURE_", |k| AzureConfigKey::from_str(k).is_ok()),
        ObjectStoreScheme::Http => ("\0", |k| ClientConfigKey::from_str(k).is_ok()),
        _ => {
            return Err(Error::settings(format!(
                "{}:// is no store this engine reads: use s3, gs, az, http, https or file",
                url.scheme()
            )));
        }
    };
    let mut settings: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)))
        .filter(|(k, _)| k.starts_with(prefix))
        .map(|(k, v)| (k.to_ascii_lowercase(), v))
        .filter(|(k, _)| known(k))
        .collect();
    if url.scheme() == "http" {
        settings.push(("allow_http".to_owned(), "true".to_owned()));
    }
    for (key, value) in &options.store_options {
        if !known(&key.to_ascii_lowercase()) {
            return Err(Error::settings(format!(
                "store option {key:?} is not known for {}://: see object_store's configuration keys",
                url.scheme()
            )));
        }
        settings.push((key.to_ascii_lowercase(), value.clone()));
    }
    Ok(settings)
}
