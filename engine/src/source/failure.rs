//! A store's errors: what each says, in words, and what it means for the next request.

use std::error::Error as StdError;
use std::time::Duration;

use crate::error::Error;
use crate::source::retry::Failure;

/// A status that no error of `object_store` stands for, as our connector saw it.
#[derive(Debug, thiserror::Error)]
#[error("the store answered {status}{}", said(body))]
pub(super) struct Refused {
    pub(super) status: u16,
    pub(super) retry_after: Option<Duration>,
    /// Its first bytes.
    pub(super) body: String,
}

fn said(body: &str) -> String {
    let body = body.trim();
    if body.is_empty() { String::new() } else { format!(": {body}") }
}

/// Who made the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Maker {
    /// We: a client of `object_store` above our connector.
    Cloud,
    /// The caller of `open_in`: what its errors mean is not known.
    Caller,
    /// The file system of this machine behind a throttle.
    Files,
}

/// What `e`, met while reading `what`, means. `known`: the index says that the object is there.
pub(super) fn classified(e: object_store::Error, what: &str, known: bool, maker: Maker) -> Failure {
    use object_store::Error as E;
    let named = |words: &str| format!("{what} {words}");
    let once_more = |error: Error| if known { Failure::Again(error) } else { Failure::Final(error) };
    match &e {
        E::NotFound { .. } if known => Failure::Again(
            Error::unreadable(named("is gone: it was there when it was indexed; open the dataset again")).because(e),
        ),
        E::NotFound { .. } => Failure::Final(Error::unreadable(named("does not exist: check the URL")).because(e)),
        E::PermissionDenied { .. } | E::Unauthenticated { .. } => once_more(
            Error::unreadable(named("may not be read: check the credentials and their permissions")).because(e),
        ),
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
    if let Some(refused) = cause::<Refused>(&e) {
        let (status, retry_after) = (refused.status, refused.retry_after);
        if status >= 500 || status == 429 || status == 408 {
            let error = Error::outage(format!("{what}: the store does not serve ({status})")).because(e);
            return Failure::Outage { error, answered: true, retry_after };
        }
        if (300..400).contains(&status) {
            return Failure::Final(
                Error::unreadable(format!("{what} is elsewhere ({status}): check the URL, region and endpoint"))
                    .because(e),
            );
        }
        return Failure::Again(
            Error::unreadable(format!("{what} was refused ({status}): check the URL and the store options")).because(e),
        );
    }
    let transport = transport(&e);
    let has = |words: &[&str]| transport.as_ref().is_some_and(|text| words.iter().any(|w| text.contains(w)));
    if has(&["certificate", "UnknownIssuer", "CertExpired", "CertNotValid"]) {
        return Failure::Final(
            Error::unreadable(format!(
                "{what} was not read: the store's certificate is not accepted; add its issuer's certificate to those of this machine (or name \
                 it in SSL_CERT_FILE), check the clock and the host's name"
            ))
            .because(e),
        );
    }
    if has(&["redirect"]) {
        return Failure::Again(
            Error::unreadable(format!("{what} leads from one URL to the next and back: check the URL")).because(e),
        );
    }
    if has(&["corrupt message", "TLS", "tls", "handshake", "fatal alert"]) {
        return Failure::silence(
            Error::outage(format!("{what} was not read: no TLS could be agreed on; does this port speak https?"))
                .because(e),
        );
    }
    if maker == Maker::Cloud && transport.is_none() {
        return Failure::Again(Error::unreadable(format!("{what}: the store's answer makes no sense")).because(e));
    }
    Failure::silence(Error::outage(format!("{what} could not be read from the store")).because(e))
}

/// What the HTTP client says below the store's client, which names the URL: a key may have any word in it.
#[cfg(feature = "cloud")]
fn transport(e: &object_store::Error) -> Option<String> {
    cause::<object_store::client::HttpError>(e).map(|e| chain(e))
}

#[cfg(not(feature = "cloud"))]
fn transport(_: &object_store::Error) -> Option<String> {
    None
}

/// The first `T` among the causes.
fn cause<'a, T: StdError + 'static>(e: &'a (dyn StdError + 'static)) -> Option<&'a T> {
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
