//! AIStore: `ais://BUCKET/KEY`, through its own interface. `AIS_ENDPOINT` says where a gateway listens,
//! `AIS_AUTHN_TOKEN` in whose name it is asked; both are what its own programs read. What is said over the wire:
//! `ais_wire.rs`.

use std::fmt;
use std::sync::Arc;

use object_store::client::HttpConnector;
use object_store::{ClientOptions, HeaderValue};

use super::ais_wire::{Bucket, Gateway, Moss};
use super::cloud::Target;
use super::connector::Connector;
use super::failure::Access;
use super::listed::Listed;
use super::lister::Lister;
use super::{OpenOptions, pattern, without_secrets};
use crate::error::{Error, Result};

/// Options that are known, and what each is.
const OPTIONS: &str = "endpoint, token, provider (ais, aws, gcp, azure, oci, ht: whose bucket it is) and get_batch \
     (\"checksums\": where samples have some; \"names\": always; \"never\")";

/// When samples come in lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GetBatch {
    Checksums,
    Names,
    Never,
}

/// A bucket, and what is meant of it.
#[derive(PartialEq, Eq)]
struct Place {
    endpoint: String,
    bucket: String,
    provider: String,
    token: Option<String>,
    get_batch: GetBatch,
    paths: Vec<String>,
}

/// Without its token.
impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown())
    }
}

impl Place {
    fn of(url: &str, options: &[(String, String)], said: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let rest = url.strip_prefix("ais://").filter(|_| !url.contains(['?', '#', '@', '\\']));
        let (bucket, path) = rest.map_or(("", ""), |rest| rest.split_once('/').unwrap_or((rest, "")));
        if bucket.is_empty() || !bucket.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)) {
            return Err(Error::settings(format!(
                "{} names no bucket of AIStore: write ais://BUCKET/PATH, as in ais://images/train-{{0000..0146}}.tar",
                without_secrets(url)
            )));
        }
        let mut place = Self {
            endpoint: said("AIS_ENDPOINT").unwrap_or_default(),
            bucket: bucket.to_owned(),
            provider: "ais".to_owned(),
            token: said("AIS_AUTHN_TOKEN"),
            get_batch: GetBatch::Checksums,
            paths: pattern::braces(path.trim_matches('/'))?,
        };
        for (name, value) in options {
            match (name.to_ascii_lowercase().as_str(), value.as_str()) {
                ("endpoint", _) => value.clone_into(&mut place.endpoint),
                ("token", _) => place.token = Some(value.clone()),
                ("provider", "ais" | "aws" | "gcp" | "azure" | "oci" | "ht") => value.clone_into(&mut place.provider),
                ("get_batch", "checksums") => place.get_batch = GetBatch::Checksums,
                ("get_batch", "names") => place.get_batch = GetBatch::Names,
                ("get_batch", "never") => place.get_batch = GetBatch::Never,
                ("provider" | "get_batch", _) => {
                    return Err(Error::settings(format!(
                        "store option {name}={value:?} is not possible for ais://: {OPTIONS}"
                    )));
                }
                _ => {
                    return Err(Error::settings(format!(
                        "store option {name:?} is not known for ais://: there are {OPTIONS}"
                    )));
                }
            }
        }
        place.endpoint.truncate(place.endpoint.trim_end_matches('/').len());
        let host = ["http://", "https://"].iter().find_map(|scheme| place.endpoint.strip_prefix(scheme));
        if host.is_none_or(|host| host.is_empty() || host.contains(['@', '?', '#'])) {
            return Err(Error::settings(
                "AIS_ENDPOINT (or store_options={\"endpoint\": …}) must say where AIStore's gateway is, as in \
                 http://ais-gateway:51080; a token is given by AIS_AUTHN_TOKEN",
            ));
        }
        Ok(place)
    }

    fn shown(&self) -> String {
        format!("ais://{}", self.bucket)
    }
}

/// The store of a bucket, the keys that its URL stands for, and its lists, unless they are not wanted.
///
/// # Errors
/// `Settings` for a URL, an endpoint, a token or an option that makes no sense.
pub(super) fn connect(url: &str, options: &OpenOptions) -> Result<(Target, Option<Arc<dyn Lister>>)> {
    let said = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
    let place = Place::of(url, &options.store_options, said)?;
    let authorization = place.token.as_ref().map(|token| {
        let header = HeaderValue::try_from(format!("Bearer {}", token.trim()));
        let mut header =
            header.map_err(|_| Error::settings("AIStore's token makes no header: set it as AuthN gave it"))?;
        header.set_sensitive(true);
        Ok(header)
    });
    let authorization = authorization.transpose()?;
    let client_options =
        ClientOptions::new().with_timeout_disabled().with_allow_http(place.endpoint.starts_with("http://"));
    let connector = |whole| Gateway {
        inner: Connector { authorization: authorization.clone(), whole, ..Connector::default() },
        provider: place.provider.clone(),
    };
    let told = |e| {
        Error::settings(format!("{} cannot be reached at {}: check AIS_ENDPOINT", place.shown(), place.endpoint))
            .because(e)
    };
    let at = |what: &str| format!("{}/v1/{what}/{}", place.endpoint, place.bucket);
    let client = connector(false).connect(&client_options).map_err(told)?;
    let streams = connector(true).connect(&client_options).map_err(told)?;
    let lists = match place.get_batch {
        GetBatch::Never => None,
        get_batch => Some(Arc::new(Moss {
            client: streams,
            url: at("ml/moss"),
            bucket: place.bucket.clone(),
            by_name: get_batch == GetBatch::Names,
        }) as Arc<dyn Lister>),
    };
    let access = if authorization.is_some() { Access::Keys } else { Access::Nobody };
    let (base, tells) = (place.shown(), tells(&place));
    let listing = Bucket { client, url: at("buckets") };
    let store = Listed::new(at("objects"), client_options, connector(false), listing, base.clone()).map_err(told)?;
    Ok((Target { store: Arc::new(store), base, place: tells, paths: place.paths, access }, lists))
}

/// What tells a bucket from another of the same name.
fn tells(place: &Place) -> String {
    format!("{} endpoint={} provider={}", place.shown(), place.endpoint, place.provider)
}

/// As [`cloud::place_of`](super::cloud::place_of).
///
/// # Errors
/// As [`connect`].
pub(super) fn place_of(url: &str, options: &OpenOptions) -> Result<String> {
    let said = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
    Ok(tells(&Place::of(url, &options.store_options, said)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(url: &str, options: &[(&str, &str)]) -> Result<Place> {
        let options: Vec<_> = options.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        Place::of(url, &options, |name| (name == "AIS_ENDPOINT").then(|| "http://gateway:51080/".to_owned()))
    }

    #[test]
    fn a_bucket_its_keys_and_its_options_are_read() {
        let plain = place("ais://images/a/train-{0..2}.tar", &[]).unwrap();
        assert_eq!(
            (plain.endpoint.as_str(), plain.bucket.as_str(), plain.provider.as_str()),
            ("http://gateway:51080", "images", "ais")
        );
        assert_eq!(plain.paths, ["a/train-0.tar", "a/train-1.tar", "a/train-2.tar"]);
        assert_eq!((plain.token, plain.get_batch), (None, GetBatch::Checksums));
        let said = [("endpoint", "https://other"), ("token", "secret"), ("provider", "aws"), ("get_batch", "names")];
        let other = place("ais://images", &said).unwrap();
        assert_eq!(
            (other.endpoint.as_str(), other.provider.as_str(), other.get_batch),
            ("https://other", "aws", GetBatch::Names)
        );
        assert_eq!(other.token.as_deref(), Some("secret"));
        assert!(!tells(&other).contains("secret") && tells(&other) != tells(&place("ais://images", &[]).unwrap()));
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        for (url, options, told) in [
            ("ais://", &[][..], "ais://BUCKET/PATH"),
            ("ais://b?x=1", &[], "ais://BUCKET/PATH"),
            ("ais://me@b/x", &[], "ais://BUCKET/PATH"),
            ("ais://b/x", &[("region", "x")], "\"region\" is not known"),
            ("ais://b/x", &[("provider", "a&b")], "provider=\"a&b\" is not possible"),
            ("ais://b/x", &[("get_batch", "yes")], "get_batch=\"yes\" is not possible"),
            ("ais://b/x", &[("endpoint", "gateway:51080")], "must say where"),
            ("ais://b/x", &[("endpoint", "http://user:pass@gateway")], "must say where"),
        ] {
            let e = place(url, options).unwrap_err().to_string();
            assert!(e.contains(told), "{url} {options:?}: {e}");
            assert!(!e.contains("pass@"), "{e}");
        }
    }
}
