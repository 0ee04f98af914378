//! Settings of a store's client: the environment's, then the caller's.

use std::str::FromStr;

use object_store::aws::AmazonS3ConfigKey;
use object_store::azure::AzureConfigKey;
use object_store::gcp::GoogleConfigKey;
use object_store::{ClientConfigKey, ObjectStoreScheme};
use url::Url;

use crate::error::{Error, Result};
use crate::options::OpenOptions;
use crate::request::whole::WHOLE_BYTES;

/// What was given for a store.
pub(crate) struct Given {
    /// Names in lower case, the last of several counts: the environment's come first.
    pub(crate) settings: Vec<(String, String)>,
    /// How many of them are the environment's.
    pub(crate) of_environment: usize,
    /// AWS's profile, where code names one.
    pub(crate) profile: Option<String>,
}

/// Options of ours, which no client knows.
const PROFILE: [&str; 2] = ["profile", "aws_profile"];

/// Names of what a client puts into headers.
const SENT: [&str; 7] =
    ["access_key_id", "secret_access_key", "session_token", "token", "bearer_token", "sas_key", "sas_token"];

/// Client settings: the environment's, then the caller's, which must all be known.
///
/// # Errors
/// `Settings` with the option and the remedy.
pub(crate) fn given(scheme: &ObjectStoreScheme, url: &Url, options: &OpenOptions) -> Result<Given> {
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
    let s3 = *scheme == ObjectStoreScheme::AmazonS3;
    let mut settings: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)))
        .filter(|(k, _)| k.starts_with(prefix))
        .map(|(k, v)| (k.to_ascii_lowercase(), v))
        // What AWS's own libraries call it.
        .map(|(k, v)| {
            (if k == "aws_ec2_metadata_service_endpoint" { "aws_metadata_endpoint".to_owned() } else { k }, v)
        })
        .filter(|(k, v)| known(k) && !v.is_empty())
        .collect();
    if let Some((key, _)) = settings.iter().find(|(k, v)| unsafe_key(k) && is_on(v))
        && !options.store_options.iter().any(|(k, _)| unsafe_key(&k.to_ascii_lowercase()))
    {
        return Err(Error::settings(format!(
            "{} in the environment turns off the verification of certificates, so anybody on the way could be the store: unset it, or ask for \
             it in code with store_options={{\"allow_invalid_certificates\": \"true\"}}",
            key.to_ascii_uppercase()
        )));
    }
    settings.retain(|(k, _)| !unsafe_key(k));
    let ignored =
        std::env::var("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS").is_ok_and(|value| value.eq_ignore_ascii_case("true"));
    settings.retain(|(k, _)| !(ignored && s3 && k.starts_with("aws_endpoint_url")));
    let given: Vec<(String, String)> =
        options.store_options.iter().map(|(key, value)| (key.to_ascii_lowercase(), value.clone())).collect();
    // A token belongs to the keys that it came with.
    let gives = |names: &[&str]| given.iter().any(|(k, _)| names.contains(&k.trim_start_matches("aws_")));
    if s3 && gives(&["access_key_id"]) && !gives(&["session_token", "token"]) {
        settings.retain(|(k, _)| !matches!(k.as_str(), "aws_session_token" | "aws_token"));
    }
    if url.scheme() == "http" {
        settings.push(("allow_http".to_owned(), "true".to_owned()));
    }
    let of_environment = settings.len();
    let mut profile = None;
    for (key, value) in given {
        if s3 && PROFILE.contains(&key.as_str()) {
            profile = Some(value);
            continue;
        }
        if *scheme == ObjectStoreScheme::Http && key == WHOLE_BYTES {
            continue;
        }
        if !known(&key) {
            return Err(Error::settings(format!(
                "store option {key:?} is not known for {}://: see object_store's configuration keys",
                url.scheme()
            )));
        }
        settings.push((key, value));
    }
    // The clients put these into headers without looking.
    let unsendable = |(key, value): &&(String, String)| {
        SENT.iter().any(|name| key.ends_with(name)) && value.bytes().any(|b| !b.is_ascii_graphic() && b != b' ')
    };
    if let Some((key, _)) = settings.iter().find(unsendable) {
        return Err(Error::settings(format!(
            "{key} (of store_options, or {} in the environment) has characters that no header takes, as a line's end: write it anew",
            key.to_ascii_uppercase()
        )));
    }
    Ok(Given { settings, of_environment, profile })
}

fn unsafe_key(key: &str) -> bool {
    key.ends_with("allow_invalid_certificates")
}

/// Whether a setting says yes.
pub(crate) fn is_on(value: &str) -> bool {
    !matches!(value.trim().to_ascii_lowercase().as_str(), "" | "0" | "false" | "f" | "no" | "n" | "off")
}

/// Whoever writes an address that begins with http:// has said so, unless he says otherwise.
pub(crate) fn allow_plain_endpoints(settings: &mut Vec<(String, String)>) {
    let plain = |(key, value): &(String, String)| {
        (key.contains("endpoint") || key.ends_with("base_url"))
            && !key.contains("metadata")
            && !key.ends_with("_sts")
            && value.trim_start().to_ascii_lowercase().starts_with("http://")
    };
    if settings.iter().any(plain) && !settings.iter().any(|(key, _)| key.ends_with("allow_http")) {
        settings.push(("allow_http".to_owned(), "true".to_owned()));
    }
}
