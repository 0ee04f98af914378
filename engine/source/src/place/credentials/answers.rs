//! What services and commands say of credentials, taken apart. Nothing of an answer is ever quoted.

use chrono::{DateTime, Utc};
use object_store::aws::AwsCredential;
use serde::Deserialize;

use super::chain::sendable;

/// Credentials, and when they end.
pub(crate) struct Lent {
    pub(crate) keys: AwsCredential,
    pub(crate) until: Option<DateTime<Utc>>,
}

impl Lent {
    fn of(key_id: String, secret_key: String, token: Option<String>, until: Option<DateTime<Utc>>) -> Option<Self> {
        let keys = AwsCredential { key_id, secret_key, token: token.filter(|token| !token.is_empty()) };
        sendable(&keys).is_ok().then_some(Self { keys, until })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct OfProcess {
    version: u32,
    access_key_id: String,
    secret_access_key: String,
    session_token: Option<String>,
    expiration: Option<String>,
}

/// What a `credential_process` prints; `None` for what is no such thing.
pub(crate) fn of_process(answer: &[u8]) -> Option<Lent> {
    let said: OfProcess = serde_json::from_slice(answer).ok()?;
    let until = match &said.expiration {
        None => None,
        Some(text) => Some(time(text)?),
    };
    (said.version == 1).then_some(())?;
    Lent::of(said.access_key_id, said.secret_access_key, said.session_token, until)
}

#[derive(Deserialize)]
struct AssumeRoleResponse {
    #[serde(rename = "AssumeRoleResult")]
    result: AssumeRoleResult,
}

#[derive(Deserialize)]
struct AssumeRoleResult {
    #[serde(rename = "Credentials")]
    credentials: OfRole,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct OfRole {
    access_key_id: String,
    secret_access_key: String,
    session_token: String,
    expiration: String,
}

/// What STS answers to AssumeRole; `None` for what is no such thing.
pub(crate) fn of_role(answer: &[u8]) -> Option<Lent> {
    let text = std::str::from_utf8(answer).ok()?;
    let said: AssumeRoleResponse = quick_xml::de::from_str(text).ok()?;
    let OfRole { access_key_id, secret_access_key, session_token, expiration } = said.result.credentials;
    Lent::of(access_key_id, secret_access_key, Some(session_token), Some(time(&expiration)?))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RoleCredentials {
    role_credentials: OfSession,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OfSession {
    access_key_id: String,
    secret_access_key: String,
    session_token: String,
    /// Milliseconds since 1970.
    expiration: i64,
}

/// What Identity Center answers to GetRoleCredentials; `None` for what is no such thing.
pub(crate) fn of_session(answer: &[u8]) -> Option<Lent> {
    let RoleCredentials { role_credentials: said } = serde_json::from_slice(answer).ok()?;
    let until = DateTime::from_timestamp_millis(said.expiration)?;
    Lent::of(said.access_key_id, said.secret_access_key, Some(said.session_token), Some(until))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CachedToken {
    access_token: String,
    expires_at: String,
}

/// The token of a login, as `aws sso login` keeps it, and when it ends; `None` for what is no such thing.
pub(crate) fn of_login(file: &[u8]) -> Option<(String, DateTime<Utc>)> {
    let CachedToken { access_token, expires_at } = serde_json::from_slice(file).ok()?;
    let visible = !access_token.is_empty() && access_token.bytes().all(|b| b.is_ascii_graphic());
    visible.then_some((access_token, time(&expires_at)?))
}

/// A time as AWS writes it; old versions of its command line wrote `UTC` for `Z`.
fn time(text: &str) -> Option<DateTime<Utc>> {
    let text = text.trim().replace("UTC", "Z");
    DateTime::parse_from_rfc3339(&text).ok().map(|time| time.with_timezone(&Utc))
}
