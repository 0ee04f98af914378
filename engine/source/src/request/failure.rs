//! A store's errors: what each says, in words, and what it means for the next request.

use std::error::Error as StdError;
use std::time::Duration;

use crate::error::Error;
use crate::request::retry::Failure;

/// A status that no error of `object_store` stands for, as our connector saw it.
#[derive(Debug, Default, thiserror::Error)]
#[error("the store answered {status}{}", behind(words(body)))]
pub(crate) struct Refused {
    pub(crate) status: u16,
    pub(crate) retry_after: Option<Duration>,
    /// Its first bytes.
    pub(crate) body: String,
    /// By how much this machine's clock is ahead of the store's.
    pub(crate) clock_ahead_s: i64,
}

/// Why there are no credentials, in words that carry none.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{words}")]
#[cfg_attr(not(feature = "cloud"), allow(dead_code, reason = "only stores behind URLs ask for some"))]
pub(crate) struct NoCredentials {
    words: String,
    /// Whether it may be otherwise soon: a service does not answer.
    passes: bool,
}

#[cfg(feature = "cloud")]
impl NoCredentials {
    /// It will not pass by itself.
    pub(crate) fn lasting(words: impl Into<String>) -> Self {
        Self { words: words.into(), passes: false }
    }
    /// It may be otherwise soon.
    pub(crate) fn passing(words: impl Into<String>) -> Self {
        Self { words: words.into(), passes: true }
    }
}

/// What a person can use of an answer's body: of a page its title, of a store's XML its code and message, else its first
/// line.
pub(crate) fn words(body: &str) -> String {
    let body = body.trim();
    let within = |tag: &str| {
        let (_, rest) = body.split_once(&format!("<{tag}>"))?;
        rest.split_once(&format!("</{tag}>")).map(|(text, _)| text.trim()).filter(|text| !text.is_empty())
    };
    let words: Vec<&str> = match body.starts_with('<') {
        true => ["title", "Code", "Message"].into_iter().filter_map(within).collect(),
        false => body.lines().next().into_iter().collect(),
    };
    let mut words = words.join(": ");
    if let Some((cut, _)) = words.char_indices().nth(BODY_CHARS_MAX) {
        words.truncate(cut);
        words.push('…');
    }
    words
}

/// The code of a store's XML, without its message.
pub(crate) fn code(body: &str) -> &str {
    let code = body.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>"));
    code.map_or("", |(code, _)| code.trim())
}

fn behind(words: String) -> String {
    if words.is_empty() { words } else { format!(": {words}") }
}

/// Characters of a body that are shown.
const BODY_CHARS_MAX: usize = 200;

/// What asks this machine's cloud for credentials, and fails outside of one.
const ASKS_FOR_CREDENTIALS: [&str; 2] = ["/latest/api/token", "169.254.169.254"];

/// Who made the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Maker {
    /// We: a client of `object_store` above our connector.
    Cloud(Access),
    /// The caller of `open_in`: what its errors mean is not known.
    Caller,
    /// The file system of this machine behind a throttle.
    Files,
}

/// What S3 answers where credentials were lent and have ended.
const ENDED: [&str; 2] = ["ExpiredToken", "TokenRefreshRequired"];
const ENDED_REMEDY: &str = "was refused, since the credentials (a session token) have ended: get new ones and go on from the      last state, or name a profile (AWS_PROFILE, store_options={\"profile\": …}), whose credentials are fetched anew before they end";

/// What S3 and Azure answer for an object that lies in an archive.
const ARCHIVED: [&str; 2] = ["InvalidObjectState", "BlobArchived"];
/// What S3 answers to a request whose time is not its own.
const CLOCK: &str = "RequestTimeTooSkewed";
/// Seconds by which a clock is off when a store refuses what it signed: stores allow 15 minutes.
#[cfg_attr(not(feature = "cloud"), allow(dead_code, reason = "only stores behind URLs check times"))]
pub(crate) const CLOCK_OFF_S: i64 = 14 * 60;

/// Whether a refusal with this code means something that its status does not say.
#[cfg_attr(not(feature = "cloud"), allow(dead_code, reason = "only stores behind URLs have codes"))]
pub(crate) fn in_our_words(code: &str) -> bool {
    ARCHIVED.contains(&code) || code == CLOCK
}

/// In whose name a store is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "cloud"), allow(dead_code, reason = "only stores behind URLs have one"))]
pub(crate) enum Access {
    /// With credentials.
    Keys,
    /// In nobody's, since no credentials were found.
    NoneFound,
    /// In nobody's, since somebody said so.
    Nobody,
    /// A web server, with what its URL carries.
    Web,
    /// A web server, with a signature in the URL. It may be good for GET only, and it ends.
    Signed,
}

impl Access {
    /// What may be the matter where a store does not let us in.
    fn refused(self) -> &'static str {
        match self {
            Access::Keys => {
                "may not be read with these credentials: check them, their permissions, and the name (stores also \
                 answer so for missing objects when listing is not allowed); read public data without credentials by \
                 store_options={\"skip_signature\": \"true\"}"
            }
            Access::NoneFound => {
                "is not public, and no credentials were found (store_options, environment, profile, this machine's \
                 role): give some, or check the name (stores also answer so for missing objects)"
            }
            Access::Signed => {
                "was refused: the signature in its URL expired or does not match; sign the URL again and open it. \
                 The dataset stays the same: index, disk tier and saved states remain valid"
            }
            Access::Nobody | Access::Web => "may not be read: check the credentials and their permissions",
        }
    }
}

impl Maker {
    /// Whether it is a plain web server.
    pub(crate) fn is_web(self) -> bool {
        matches!(self, Maker::Cloud(Access::Web | Access::Signed))
    }
}

/// What `e`, met while reading `what`, means. `known`: the index says that the object is there.
pub(crate) fn classified(e: object_store::Error, what: &str, known: bool, maker: Maker) -> Failure {
    use object_store::Error as E;
    let named = |words: &str| format!("{what} {words}");
    let once_more = |error: Error| if known { Failure::Again(error) } else { Failure::Final(error) };
    match &e {
        E::NotFound { .. } if known => Failure::Again(
            Error::unreadable(named("is gone: it was there when it was indexed; open the dataset again")).because(e),
        ),
        E::NotFound { .. } => Failure::Final(Error::unreadable(named("does not exist: check the URL")).because(e)),
        // Nothing is wrong with the data: no sample is skipped for it.
        E::PermissionDenied { .. } | E::Unauthenticated { .. } if known && maker == Maker::Cloud(Access::Signed) => {
            Failure::Final(Error::outage(named(Access::Signed.refused())).because(e))
        }
        E::PermissionDenied { .. } | E::Unauthenticated { .. } => {
            let access = if let Maker::Cloud(access) = maker { access } else { Access::Nobody };
            once_more(Error::unreadable(named(access.refused())).because(e))
        }
        E::Precondition { .. } | E::NotModified { .. } => {
            once_more(Error::unreadable(named("changed since it was indexed: open the dataset again")).because(e))
        }
        E::InvalidPath { .. } | E::NotImplemented { .. } | E::UnknownConfigurationKey { .. } => {
            Failure::Final(Error::unreadable(named("cannot be read from this store")).because(e))
        }
        E::NotSupported { .. } => Failure::Again(
            Error::unreadable(named("cannot be read in parts: the store ignores ranges, use one that serves them"))
                .because(e),
        ),
        _ if maker == Maker::Files => Failure::Final(Error::unreadable(named("cannot be read")).because(e)),
        _ => in_words(e, what, maker),
    }
}

fn in_words(e: object_store::Error, what: &str, maker: Maker) -> Failure {
    if let Some(NoCredentials { words, passes }) = cause::<NoCredentials>(&e) {
        let error = Error::outage(format!("{what} was not asked for, as there are no credentials: {words}"));
        return if *passes { Failure::silence(error) } else { Failure::Final(error) };
    }
    if let Some(refused) = cause::<Refused>(&e) {
        return of_status(refused, what, maker).because(e);
    }
    #[cfg(feature = "cloud")]
    if let Some(contradiction) = cause::<crate::request::pages::Contradiction>(&e) {
        return Failure::Final(incomplete(what, &contradiction.to_string()));
    }
    without_answer(&e, what, maker).because(e)
}

/// The failure that an answer's status, code and clock stand for.
fn of_status(refused: &Refused, what: &str, maker: Maker) -> Failure {
    let Refused { status, retry_after, ref body, clock_ahead_s } = *refused;
    let unreadable = |words: String| Failure::Final(Error::unreadable(words));
    let outage = |words: String| Failure::Final(Error::outage(words));
    if status == 501 || status == 405 {
        return unreadable(format!(
            "{what}: the server does not do this ({status}): a plain web server lists nothing, name its files"
        ));
    }
    if status >= 500 || status == 429 || status == 408 {
        let error = Error::outage(format!("{what}: the store does not serve ({status})"));
        return Failure::Outage { error, answered: true, retry_after };
    }
    if (300..400).contains(&status) {
        return unreadable(format!("{what} is elsewhere ({status}): check the URL, region and endpoint"));
    }
    if status == 400 && maker == Maker::Cloud(Access::Signed) {
        return outage(format!("{what} {}", Access::Signed.refused()));
    }
    let code = code(body);
    if ARCHIVED.contains(&code) {
        return unreadable(format!(
            "{what} is archived (storage class GLACIER, DEEP_ARCHIVE or alike) and cannot be read where it is: restore it, or \
             copy it to another storage class"
        ));
    }
    if code == CLOCK || (matches!(status, 401 | 403) && clock_ahead_s.abs() >= CLOCK_OFF_S) {
        let (off, side) = (clock_ahead_s.abs(), if clock_ahead_s > 0 { "ahead of" } else { "behind" });
        let off =
            if off >= CLOCK_OFF_S { format!("{} minutes {side} the store's", off / 60) } else { "off".to_owned() };
        return outage(format!("{what} was refused ({status}): this machine's clock is {off}; set it right (NTP)"));
    }
    if status == 404 {
        return unreadable(format!("{what} does not exist: check the URL"));
    }
    if ENDED.contains(&code) {
        return outage(format!("{what} {ENDED_REMEDY}"));
    }
    if let (401 | 403, Maker::Cloud(access)) = (status, maker) {
        return unreadable(format!("{what} {}", access.refused()));
    }
    // The answer to HEAD has no words that would tell.
    let or_ended = if status == 400 && maker == Maker::Cloud(Access::Keys) && body.is_empty() {
        ", and whether the credentials' session token has ended"
    } else {
        ""
    };
    let words = format!("{what} was refused ({status}): check the URL and the store options{or_ended}");
    Failure::Again(Error::unreadable(words))
}

/// The failure of a request that got no answer, or none that makes sense.
fn without_answer(e: &object_store::Error, what: &str, maker: Maker) -> Failure {
    let transport = transport(e);
    let has = |words: &[&str]| transport.as_ref().is_some_and(|text| words.iter().any(|w| text.contains(w)));
    if has(&["certificate", "UnknownIssuer", "CertExpired", "CertNotValid"]) {
        return Failure::Final(Error::unreadable(format!(
            "{what} was not read: the store's certificate is not accepted; add its issuer's certificate to those of this machine (or name \
             it in SSL_CERT_FILE), check the clock and the host's name"
        )));
    }
    if has(&["redirect"]) {
        let words = format!("{what} leads from one URL to the next and back: check the URL");
        return Failure::Again(Error::unreadable(words));
    }
    if has(&["corrupt message", "TLS", "tls", "handshake", "fatal alert"]) {
        let words = format!("{what} was not read: no TLS could be agreed on; does this port speak https?");
        return Failure::silence(Error::outage(words));
    }
    if ASKS_FOR_CREDENTIALS.iter().any(|words| e.to_string().contains(words)) {
        return Failure::Final(Error::unreadable(format!(
            "{what} was not asked for: no credentials were found (store_options, environment, profile, this machine's role); set \
             AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give store_options={{\"skip_signature\": \"true\"}} for what \
             is public"
        )));
    }
    if matches!(maker, Maker::Cloud(_)) && transport.is_none() {
        return Failure::Again(Error::unreadable(format!("{what}: the store's answer makes no sense")));
    }
    Failure::silence(Error::outage(format!("{what} could not be read from the store")))
}

/// The error of a listing that may lack objects, or have some twice.
pub(crate) fn incomplete(what: &str, why: &str) -> Error {
    Error::unreadable(format!(
        "{what} cannot be trusted, as {why}: samples would be missing or come twice; this is a fault of the store or of a \
         proxy before it, read the dataset from another copy or as shards by name"
    ))
}

/// What the HTTP client says below the store's client, which names the URL: a key may have any word in it.
#[cfg(feature = "cloud")]
pub(crate) fn transport(e: &object_store::Error) -> Option<String> {
    cause::<object_store::client::HttpError>(e).map(|e| chain(e))
}

#[cfg(not(feature = "cloud"))]
pub(crate) fn transport(_: &object_store::Error) -> Option<String> {
    None
}

/// The first `T` among the causes.
pub(crate) fn cause<'a, T: StdError + 'static>(e: &'a (dyn StdError + 'static)) -> Option<&'a T> {
    let mut at = Some(e);
    while let Some(e) = at {
        if let Some(found) = e.downcast_ref::<T>() {
            return Some(found);
        }
        at = e.source();
    }
    None
}

/// Everything the causes say.
#[cfg(feature = "cloud")]
fn chain(e: &(dyn StdError + 'static)) -> String {
    let mut text = String::new();
    let mut at = Some(e);
    while let Some(e) = at {
        text.push_str(&e.to_string());
        text.push('\n');
        at = e.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_page_only_its_words_are_shown() {
        let said = |body: &str| behind(words(body));
        assert_eq!(said(" \n"), "");
        assert_eq!(said("try later\nstack trace"), ": try later");
        assert_eq!(
            said("<!DOCTYPE HTML><html><head><title>Error response</title></head><h1>No</h1>"),
            ": Error response"
        );
        let xml = "<?xml version=\"1.0\"?><Error><Code>SlowDown</Code><Message>Reduce your rate.</Message><RequestId>7</RequestId></Error>";
        assert_eq!(said(xml), ": SlowDown: Reduce your rate.");
        assert_eq!((code(xml), code("<Code>"), code("no")), ("SlowDown", "", ""));
        assert_eq!(said("<html><body>nothing to quote"), "");
        assert_eq!(said(&"é".repeat(500)).chars().count(), 2 + BODY_CHARS_MAX + 1);
    }

    #[test]
    fn credentials_that_have_ended_are_no_matter_of_the_url() {
        let refused = |code: &str| {
            let body = format!("<Error><Code>{code}</Code><Message>The provided token has expired.</Message></Error>");
            let source = Box::new(Refused { status: 400, body, ..Refused::default() });
            let e = object_store::Error::Generic { store: "S3", source };
            match classified(e, "a.tar", true, Maker::Cloud(Access::Keys)) {
                Failure::Outage { error, .. } | Failure::Again(error) | Failure::Final(error) => error.to_string(),
            }
        };
        for code in ENDED {
            assert!(refused(code).contains("get new ones"), "{}", refused(code));
        }
        assert!(refused("InvalidArgument").contains("check the URL"), "{}", refused("InvalidArgument"));
    }
}
