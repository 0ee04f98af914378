//! URLs of object stores: which client, with which options, and which keys.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;

use base64::prelude::{BASE64_STANDARD, Engine};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::{ClientConfigKey, ClientOptions, HeaderValue, ObjectStore, ObjectStoreScheme, RetryConfig};
use percent_encoding::percent_decode_str;
use url::Url;

use super::connector::Connector;
use super::{OpenOptions, pattern};
use crate::error::{Error, Result};

/// A connected store and the keys a URL stands for.
pub(super) struct Target {
    pub(super) store: Arc<dyn ObjectStore>,
    /// Scheme and host: names the store for people.
    pub(super) base: String,
    /// The base, and the endpoint that it is reached at: tells stores apart.
    pub(super) place: String,
    pub(super) paths: Vec<String>,
}

/// Opens the store of `url`, whose braces may stand for several keys of one store.
///
/// # Errors
/// `Settings` for a URL or option that makes no sense.
pub(super) fn connect(url: &str, options: &OpenOptions) -> Result<Target> {
    // From here on nobody holds the password but the client's header.
    let Address { url, login } = Address::of(url);
    if url.contains(['?', '#']) {
        return Err(Error::settings(format!(
            "{} has a query or fragment, which shards and folders cannot use: pass credentials as store options or in the environment",
            without_query(&url)
        )));
    }
    let mut target: Option<Target> = None;
    for name in pattern::braces(&url)? {
        let parsed = Url::parse(&name).map_err(|e| Error::settings(format!("{name} is no valid URL")).because(e))?;
        let (scheme, path) = ObjectStoreScheme::parse(&parsed).map_err(|_| {
            Error::settings(format!(
                "{} names no store this engine knows: use s3://, gs://, az://, http(s):// or file://",
                without_query(&name)
            ))
        })?;
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
                let login = authorization(&scheme, &base, login.as_ref())?;
                let place = place(&scheme, &base, &settings)?;
                let store = client(&scheme, &parsed, settings, Connector { authorization: login }).map_err(|e| {
                    Error::settings(format!("{name} cannot be opened: check the store options")).because(e)
                })?;
                target = Some(Target { store, base, place, paths: vec![path.to_string()] });
            }
        }
    }
    target.ok_or_else(|| Error::settings("the URL stands for no name"))
}

/// What tells the store of `url` apart from others, without asking it.
///
/// # Errors
/// As [`connect`].
pub(super) fn place_of(url: &str, options: &OpenOptions) -> Result<String> {
    Ok(connect(url, options)?.place)
}

/// The client of a store. It retries nothing by itself: `retry.rs` has the one budget. Time limits are the store's as
/// well.
fn client(
    scheme: &ObjectStoreScheme,
    url: &Url,
    settings: Vec<(String, String)>,
    connector: Connector,
) -> object_store::Result<Arc<dyn ObjectStore>> {
    let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
    macro_rules! built {
        ($builder:ty, $key:ty, $url:expr) => {{
            let mut builder = <$builder>::new()
                .with_client_options(ClientOptions::new().with_timeout_disabled())
                .with_url($url)
                .with_retry(retry)
                .with_http_connector(connector);
            for (key, value) in settings {
                builder = builder.with_config(<$key>::from_str(&key)?, value);
            }
            Ok(Arc::new(builder.build()?))
        }};
    }
    match scheme {
        ObjectStoreScheme::AmazonS3 => built!(AmazonS3Builder, AmazonS3ConfigKey, url.as_str()),
        ObjectStoreScheme::GoogleCloudStorage => built!(GoogleCloudStorageBuilder, GoogleConfigKey, url.as_str()),
        ObjectStoreScheme::MicrosoftAzure => built!(MicrosoftAzureBuilder, AzureConfigKey, url.as_str()),
        _ => built!(HttpBuilder, ClientConfigKey, &url[..url::Position::BeforePath]),
    }
}

/// A URL apart from the user and password in it.
struct Address {
    url: String,
    login: Option<Login>,
}

/// User and password. Prints as nothing: neither may be told.
struct Login {
    user: String,
    password: String,
}

impl Address {
    /// In `abfs://container@account.host` the part before @ is a name and no secret; a password has a colon before it.
    fn of(url: &str) -> Self {
        let whole = || Self { url: url.to_owned(), login: None };
        let Some((scheme, rest)) = url.split_once("://") else { return whole() };
        let web = scheme.starts_with("http");
        let host = rest.split(['/', '?', '#']).next().unwrap_or(rest);
        // A password with a slash in it ends the host too early: then what follows "user:" is no port.
        let broken = !host.contains('@')
            && rest.contains('@')
            && host.rsplit_once(':').is_some_and(|(_, port)| !port.chars().all(|c| c.is_ascii_digit()));
        let Some((login, after)) = (if broken { rest } else { host }).rsplit_once('@') else { return whole() };
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        if !web && !login.contains(':') {
            return whole();
        }
        let path = if broken { "" } else { rest.get(host.len()..).unwrap_or("") };
        let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        Self {
            url: format!("{scheme}://{after}{path}"),
            login: Some(Login { user: decoded(user), password: decoded(password) }),
        }
    }
}

/// The header that sends a login, to stores that take one.
fn authorization(scheme: &ObjectStoreScheme, base: &str, login: Option<&Login>) -> Result<Option<HeaderValue>> {
    let Some(Login { user, password }) = login else { return Ok(None) };
    if !matches!(scheme, ObjectStoreScheme::Http) {
        return Err(Error::settings(format!(
            "the URL of {base} has a user and password in it, which this kind of store does not take: pass its keys as store_options or in the \
             environment"
        )));
    }
    let encoded = BASE64_STANDARD.encode(format!("{user}:{password}"));
    let mut header = HeaderValue::try_from(format!("Basic {encoded}"))
        .map_err(|e| Error::settings(format!("the user and password for {base} make no header")).because(e))?;
    header.set_sensitive(true);
    Ok(Some(header))
}

/// The store's name with every option that says where it is. An option has several names (`endpoint`, `aws_endpoint_url`)
/// and may stand in the environment or in code: here it has one name, and the value that the client takes, the last.
fn place(scheme: &ObjectStoreScheme, base: &str, settings: &[(String, String)]) -> Result<String> {
    macro_rules! named {
        ($key:ty, $given:expr) => {
            <$key>::from_str($given).map(|key| key.as_ref().to_owned())
        };
    }
    let mut options = BTreeMap::new();
    for (key, value) in
        settings.iter().filter(|(k, _)| ["endpoint", "url", "account", "bucket"].iter().any(|w| k.contains(w)))
    {
        if key.contains("proxy") {
            continue;
        }
        if Address::of(value).login.is_some() {
            return Err(Error::settings(format!(
                "the store option {key} has a user and password in it, which are not sent: pass the store's keys as options of their own"
            )));
        }
        let name = match scheme {
            ObjectStoreScheme::AmazonS3 => named!(AmazonS3ConfigKey, key),
            ObjectStoreScheme::GoogleCloudStorage => named!(GoogleConfigKey, key),
            ObjectStoreScheme::MicrosoftAzure => named!(AzureConfigKey, key),
            _ => named!(ClientConfigKey, key),
        };
        options.insert(name.unwrap_or_else(|_| key.clone()), value.trim_end_matches('/'));
    }
    Ok(options.iter().fold(base.to_owned(), |place, (name, value)| format!("{place} {name}={value}")))
}

/// Everything before the key.
fn base(url: &Url, key: &str) -> String {
    let trimmed = url.as_str().trim_end_matches('/');
    match trimmed.strip_suffix(key) {
        Some(base) if !key.is_empty() => base.trim_end_matches('/').to_owned(),
        // The key is percent-encoded in the URL, or there is none: scheme and host name the store well enough.
        _ => url[..url::Position::BeforePath].to_owned(),
    }
}

/// The URL without query and fragment: there may be a signature in them.
fn without_query(url: &str) -> &str {
    url.split(['?', '#']).next().unwrap_or(url)
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
    let unsafe_key = |k: &str| k.ends_with("allow_invalid_certificates");
    let on = |v: &str| !matches!(v.trim().to_ascii_lowercase().as_str(), "" | "0" | "false" | "f" | "no" | "n" | "off");
    if let Some((key, _)) = settings.iter().find(|(k, v)| unsafe_key(k) && on(v))
        && !options.store_options.iter().any(|(k, _)| unsafe_key(&k.to_ascii_lowercase()))
    {
        return Err(Error::settings(format!(
            "{} in the environment turns off the verification of certificates, so anybody on the way could be the store: unset it, or ask for \
             it in code with store_options={{\"allow_invalid_certificates\": \"true\"}}",
            key.to_ascii_uppercase()
        )));
    }
    settings.retain(|(k, _)| !unsafe_key(k));
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
    // Whoever writes an address that begins with http:// has said so, unless he says otherwise.
    let plain = |(key, value): &(String, String)| {
        (key.contains("endpoint") || key.ends_with("base_url"))
            && value.trim_start().to_ascii_lowercase().starts_with("http://")
    };
    if settings.iter().any(plain) && !settings.iter().any(|(key, _)| key.ends_with("allow_http")) {
        settings.push(("allow_http".to_owned(), "true".to_owned()));
    }
    Ok(settings)
}
