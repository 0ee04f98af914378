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
use url::Url;

use crate::error::{Error, Result};
use crate::format::pattern;
use crate::options::OpenOptions;
use crate::place::address::{Address, Login, identity, without_query};
use crate::place::cloud_settings::{Given, given, is_on};
use crate::place::connector::{Connector, Query, Secrets};
use crate::place::credentials::{self, Chosen, Cloud};
use crate::place::target::Target;
use crate::request::failure::{Access, Maker, classified};
use crate::request::retry::Failure;
use crate::runtime;

/// What a URL stands for, before any store is asked.
struct Named {
    scheme: ObjectStoreScheme,
    /// The first name.
    url: Url,
    base: String,
    place: String,
    paths: Vec<String>,
    settings: Vec<(String, String)>,
    chosen: Chosen,
    connector: Connector,
}

/// Opens the store of `url`, whose braces may stand for several keys of one store.
///
/// # Errors
/// `Settings` for a URL or option that makes no sense; `Source` and `Outage` where credentials cannot be had.
pub(crate) fn connect(url: &str, options: &OpenOptions) -> Result<Target> {
    let Named { scheme, url, base, place, paths, settings, chosen, connector } = named(url, options)?;
    let signed = connector.query.is_some();
    // What a client says of a setting quotes its value.
    let elsewhere = |key: &str| says_where(&scheme, key).is_none_or(|name| name.contains("_use_"));
    let secrets = Secrets::of(settings.iter().filter(|(key, _)| elsewhere(key)).map(|(_, value)| value.as_str()));
    let told = |e: object_store::Error| {
        let said = secrets.hidden(&Error::settings("").because(e).to_string());
        Error::settings(format!("{base} cannot be opened: check the store options{said}"))
    };
    if let Some(provider) = &chosen.provider {
        // Now, and not in the middle of an epoch.
        let asked = object_store::CredentialProvider::get_credential(&**provider);
        let found = runtime::shared()?.block_on(options.stop.before(asked))?;
        found.map_err(|e| match classified(e, &base, false, Maker::Cloud(Access::Keys)) {
            Failure::Outage { error, .. } | Failure::Again(error) | Failure::Final(error) => error,
        })?;
    }
    let (store, mut access) = client(&scheme, &url, settings, chosen, connector).map_err(|e| match e {
        Met::Stores(e) => told(e),
        Met::Ours(e) => e,
    })?;
    if access == Access::NoneFound {
        tracing::warn!("no credentials were found for {base}: it is read as what everybody may read");
    }
    if signed {
        access = Access::Signed;
    }
    Ok(Target { store, base, place, paths, access, repository: false })
}

/// What tells the store of `url` apart from others, without asking it.
///
/// # Errors
/// As [`connect`].
pub(crate) fn place_of(url: &str, options: &OpenOptions) -> Result<String> {
    Ok(named(url, options)?.place)
}

fn named(url: &str, options: &OpenOptions) -> Result<Named> {
    // From here on nobody holds the password but the client's header, and the query but the client.
    let Address { url, login, query } = Address::of_data(url)?;
    let mut named: Option<Named> = None;
    for name in pattern::braces(&url)? {
        let parsed = Url::parse(&name).map_err(|e| Error::settings(format!("{name} is no valid URL")).because(e))?;
        let unknown = || {
            Error::settings(format!(
                "{} names no object of a store: write it as in s3://bucket/train-{{0000..0146}}.tar",
                without_query(&name)
            ))
        };
        // A signed URL is asked for as it is, whichever store it leads to.
        let (scheme, path) = match &query {
            None => ObjectStoreScheme::parse(&parsed).map_err(|_| unknown())?,
            Some(_) => {
                let path = object_store::path::Path::from_url_path(parsed.path()).map_err(|e| unknown().because(e))?;
                (ObjectStoreScheme::Http, path)
            }
        };
        if matches!(scheme, ObjectStoreScheme::Http) && (!parsed.username().is_empty() || parsed.password().is_some()) {
            return Err(Error::settings(
                "the URL has a user and password that cannot be told from its host: write https://USER:PASSWORD@HOST/…, with \
                 other characters of the password percent-encoded",
            ));
        }
        let base = base(&parsed, path.as_ref());
        match &mut named {
            Some(named) if named.base == base => named.paths.push(path.to_string()),
            Some(named) => {
                return Err(Error::settings(format!(
                    "{} and {base} are two stores: open them as two datasets",
                    named.base
                )));
            }
            None => {
                let Given { mut settings, of_environment, profile } = given(&scheme, &parsed, options)?;
                let chosen = match scheme {
                    ObjectStoreScheme::AmazonS3 => credentials::choose(&mut settings, of_environment, profile)?,
                    _ => Chosen { provider: None, unsaid: nobody_said(&scheme, &settings) },
                };
                crate::place::cloud_settings::allow_plain_endpoints(&mut settings);
                let authorization = authorization(&scheme, &base, login.as_ref())?;
                let whole = scheme == ObjectStoreScheme::Http;
                let given = settings.iter().filter(|(key, _)| is_secret(key)).map(|(_, value)| value.as_str());
                let secrets = Secrets::of(given);
                let connector = Connector { authorization, query: query.clone().map(Query), whole, secrets };
                let place = place(&scheme, &base, &settings, query.as_deref())?;
                let paths = vec![path.to_string()];
                named = Some(Named { scheme, url: parsed, base, place, paths, settings, chosen, connector });
            }
        }
    }
    named.ok_or_else(|| Error::settings("the URL stands for no name"))
}

/// Whether neither settings nor the cloud's own file say where credentials of Google or Azure are.
fn nobody_said(scheme: &ObjectStoreScheme, settings: &[(String, String)]) -> bool {
    let given = settings.iter().filter(|(_, value)| !value.is_empty()).map(|(key, _)| key.as_str());
    match scheme {
        ObjectStoreScheme::GoogleCloudStorage => {
            use GoogleConfigKey as K;
            let says = |key: &str| {
                matches!(
                    K::from_str(key),
                    Ok(K::ServiceAccount
                        | K::ServiceAccountKey
                        | K::ApplicationCredentials
                        | K::BearerToken
                        | K::SkipSignature)
                )
            };
            let file =
                |home: String| std::path::Path::new(&home).join(".config/gcloud/application_default_credentials.json");
            !given.into_iter().any(says) && !std::env::var("HOME").is_ok_and(|home| file(home).exists())
        }
        ObjectStoreScheme::MicrosoftAzure => {
            use AzureConfigKey as K;
            let elsewhere = |key: &str| {
                matches!(
                    K::from_str(key),
                    Ok(K::AccountName
                        | K::Endpoint
                        | K::UseFabricEndpoint
                        | K::ContainerName
                        | K::DisableTagging
                        | K::Client(_))
                )
            };
            given.into_iter().all(elsewhere)
        }
        _ => false,
    }
}

/// Whose mistake it was that there is no client.
enum Met {
    Stores(object_store::Error),
    Ours(Error),
}

impl From<object_store::Error> for Met {
    fn from(e: object_store::Error) -> Self {
        Met::Stores(e)
    }
}

impl From<Error> for Met {
    fn from(e: Error) -> Self {
        Met::Ours(e)
    }
}

/// The client of a store, and in whose name it asks. It retries nothing by itself: `retry.rs` has the one budget. Time
/// limits are the store's as well.
fn client(
    scheme: &ObjectStoreScheme,
    url: &Url,
    settings: Vec<(String, String)>,
    chosen: Chosen,
    connector: Connector,
) -> std::result::Result<(Arc<dyn ObjectStore>, Access), Met> {
    let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
    let unsigned = settings.iter().rev().find(|(key, _)| key.ends_with("skip_signature"));
    let unsigned = unsigned.is_some_and(|(_, value)| crate::place::cloud_settings::is_on(value));
    let elsewhere = settings.iter().any(|(key, _)| key.ends_with("metadata_endpoint"));
    macro_rules! builder {
        ($builder:ty, $key:ty, $url:expr) => {{
            let mut builder = <$builder>::new()
                .with_client_options(ClientOptions::new().with_timeout_disabled())
                .with_url($url)
                .with_retry(retry)
                .with_http_connector(connector);
            for (key, value) in settings {
                builder = builder.with_config(<$key>::from_str(&key)?, value);
            }
            builder
        }};
    }
    // Where nobody has said anything, this machine may lend credentials, and else nobody's name is left.
    macro_rules! built {
        ($builder:expr, $cloud:expr) => {{
            let builder = $builder;
            let store = builder.clone().build()?;
            if unsigned {
                (Arc::new(store) as Arc<dyn ObjectStore>, Access::Nobody)
            } else if chosen.unsaid && !credentials::found($cloud, elsewhere, store.credentials())? {
                (Arc::new(builder.with_skip_signature(true).build()?) as Arc<dyn ObjectStore>, Access::NoneFound)
            } else {
                (Arc::new(store) as Arc<dyn ObjectStore>, Access::Keys)
            }
        }};
    }
    Ok(match scheme {
        ObjectStoreScheme::AmazonS3 => {
            let mut builder = builder!(AmazonS3Builder, AmazonS3ConfigKey, url.as_str());
            if let Some(provider) = chosen.provider {
                builder = builder.with_credentials(provider);
            }
            built!(builder, Cloud::Aws)
        }
        ObjectStoreScheme::GoogleCloudStorage => {
            built!(builder!(GoogleCloudStorageBuilder, GoogleConfigKey, url.as_str()), Cloud::Google)
        }
        ObjectStoreScheme::MicrosoftAzure => {
            built!(builder!(MicrosoftAzureBuilder, AzureConfigKey, url.as_str()), Cloud::Azure)
        }
        _ => {
            let builder = builder!(HttpBuilder, ClientConfigKey, &url[..url::Position::BeforePath]);
            (Arc::new(builder.build()?) as Arc<dyn ObjectStore>, Access::Web)
        }
    })
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

/// Whether an option's value may be sent, and is nobody's business else.
fn is_secret(key: &str) -> bool {
    let parts = ["key", "secret", "token", "password", "credential", "service_account", "sas", "proxy", "user_agent"];
    parts.iter().any(|part| key.contains(part)) && !key.ends_with("credential_type")
}

/// The client's own name of an option that says where a store is: these alone tell stores apart, and are written into
/// indexes. An option has several names (`endpoint`, `aws_endpoint_url`).
fn says_where(scheme: &ObjectStoreScheme, key: &str) -> Option<String> {
    macro_rules! named {
        ($key:ident, $($where:ident)|+) => {
            $key::from_str(key).ok().filter(|key| matches!(key, $($key::$where)|+)).map(|key| key.as_ref().to_owned())
        };
    }
    match scheme {
        ObjectStoreScheme::AmazonS3 => named!(AmazonS3ConfigKey, Endpoint | S3Endpoint | Bucket),
        ObjectStoreScheme::GoogleCloudStorage => named!(GoogleConfigKey, BaseUrl | Bucket),
        ObjectStoreScheme::MicrosoftAzure => {
            named!(AzureConfigKey, AccountName | ContainerName | Endpoint | UseEmulator | UseFabricEndpoint)
        }
        _ => None,
    }
}

fn is_web(value: &str) -> bool {
    Url::parse(value).is_ok_and(|url| url.has_host() && matches!(url.scheme(), "http" | "https"))
}

/// The store's name with every option that says where it is: each with one name, and the value that the client takes,
/// the last, whether it stands in the environment or in code. Of a query it has a digest of what does not sign it.
fn place(scheme: &ObjectStoreScheme, base: &str, settings: &[(String, String)], query: Option<&str>) -> Result<String> {
    let mut options = BTreeMap::new();
    for (key, value) in settings {
        let is_url = ["endpoint", "url", "uri", "host"].iter().any(|part| key.contains(part)) && !key.contains("proxy");
        if is_url && (Address::of(value).login.is_some() || value.contains(['?', '#'])) {
            return Err(Error::settings(format!(
                "the store option {key} has a user and password or a query in it, which are not sent: pass the store's keys as \
                 options of their own"
            )));
        }
        let asked = ["endpoint", "endpoint_url", "_url_s3", "_url_sts", "base_url", "full_uri"]
            .iter()
            .any(|end| key.ends_with(end));
        if asked && !key.contains("_use_") && !key.starts_with("use_") && !is_web(value) {
            return Err(Error::settings(format!(
                "the store option {key} is no URL of a server: write it as in https://host:9000"
            )));
        }
        match says_where(scheme, key) {
            Some(name) if name.contains("_use_") && !is_on(value) => drop(options.remove(&name)),
            Some(name) if name.contains("_use_") => drop(options.insert(name, "true")),
            Some(name) => drop(options.insert(name, value.trim_end_matches('/'))),
            None => {}
        }
    }
    let place = options.iter().fold(base.to_owned(), |place, (name, value)| format!("{place} {name}={value}"));
    Ok(query.and_then(identity).iter().fold(place, |place, digest| format!("{place} query={digest}")))
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
