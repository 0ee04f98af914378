//! The HTTP client beneath the cloud stores: bounds what an answer may hold in memory, keeps what the stores' clients
//! throw away, and sends the credentials of a URL: a login, or the query that signs it.

use std::fmt;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use futures::StreamExt;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
    ReqwestConnector,
};
use object_store::{ClientOptions, HeaderValue};
use percent_encoding::percent_decode_str;

use super::failure::{Refused, words};

/// As much of an error's page is kept as a person reads.
const ERROR_BYTES: usize = 4 << 10;
/// A page of a listing has a thousand objects, of a kilobyte at most each.
const LISTING_BYTES: usize = 64 << 20;

/// Makes clients for one store.
#[derive(Debug, Default)]
pub(super) struct Connector {
    /// The header that basic authentication sends. Marked as sensitive: it prints as such.
    pub(super) authorization: Option<HeaderValue>,
    /// What is asked of every object beside its name. Only here, below everything that names a URL in an error.
    pub(super) query: Option<Query>,
    /// Whether an object may be asked for as a whole, to be read in pieces.
    pub(super) whole: bool,
}

/// The query of a URL. Prints as nothing: there may be a signature in it.
#[derive(Clone)]
pub(super) struct Query(pub(super) String);

impl fmt::Debug for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Query")
    }
}

impl Query {
    /// `text` without what is in the query: some servers quote what they were asked.
    fn hidden(&self, text: &str) -> String {
        let mut shown = text.to_owned();
        for part in std::iter::once(self.0.as_str())
            .chain(self.0.split(['&', '=']))
            .filter(|part| part.len() >= SECRET_BYTES_MIN)
        {
            let plain = percent_decode_str(part).decode_utf8_lossy();
            for secret in [part, plain.as_ref()] {
                shown = shown.replace(secret, "…");
            }
        }
        shown
    }
}

/// Shorter values of a query are no secrets.
const SECRET_BYTES_MIN: usize = 6;

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = ReqwestConnector::default().connect(options)?;
        let Self { authorization, query, whole } = self;
        let (authorization, query, whole) = (authorization.clone(), query.clone(), *whole);
        Ok(HttpClient::new(Service { client, authorization, query, whole }))
    }
}

#[derive(Debug)]
struct Service {
    client: HttpClient,
    authorization: Option<HeaderValue>,
    query: Option<Query>,
    whole: bool,
}

#[async_trait]
impl HttpService for Service {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        if let Some(authorization) = &self.authorization {
            request.headers_mut().insert("authorization", authorization.clone());
        }
        if let Some(query) = &self.query {
            let asked = format!("{}?{}", request.uri(), query.0);
            let wrong =
                |_| HttpError::new(HttpErrorKind::Request, std::io::Error::other("the URL's query makes no request"));
            *request.uri_mut() = asked.parse().map_err(wrong)?;
        }
        // What is asked for in parts is read in parts, by `store.rs`, and so are whole objects by `whole.rs`. Nothing
        // else is.
        let in_parts = request.headers().contains_key("range") || (self.whole && request.method().as_str() == "GET");
        let (parts, body) = self.client.execute(request).await?.into_parts();
        let status = parts.status.as_u16();
        if parts.status.is_success() && in_parts {
            return Ok(HttpResponse::from_parts(parts, body));
        }
        if parts.status.is_success() {
            let (bytes, whole) = first(body, LISTING_BYTES).await?;
            if !whole {
                let error = std::io::Error::other(format!(
                    "an answer of more than {LISTING_BYTES} bytes to a question about objects"
                ));
                return Err(HttpError::new(HttpErrorKind::Decode, error));
            }
            return Ok(HttpResponse::from_parts(parts, HttpResponseBody::from(bytes)));
        }
        // Of an error's page the first bytes will do, and a page that breaks off is as good.
        let (bytes, _) = first(body, ERROR_BYTES).await.unwrap_or_default();
        let body = String::from_utf8_lossy(&bytes);
        let body = self.query.as_ref().map_or_else(|| body.to_string(), |query| query.hidden(&body));
        if matches!(status, 304 | 401 | 403 | 404 | 409 | 412) {
            // These become errors of their own in the store's client, which show all that they get: stores quote the
            // request that they refuse, with its signature.
            return Ok(HttpResponse::from_parts(parts, HttpResponseBody::from(words(&body).into_bytes())));
        }
        let retry_after =
            parts.headers.get("retry-after").and_then(|v| v.to_str().ok()).and_then(|v| pause(v, SystemTime::now()));
        Err(HttpError::new(HttpErrorKind::Unknown, Refused { status, retry_after, body }))
    }
}

/// The first `limit` bytes of a body, and whether that was all. The rest is not read: its connection is dropped.
async fn first(body: HttpResponseBody, limit: usize) -> Result<(Vec<u8>, bool), HttpError> {
    let mut stream = body.bytes_stream();
    let mut bytes = Vec::new();
    while let Some(piece) = stream.next().await {
        let piece = piece?;
        let room = limit - bytes.len();
        bytes.extend_from_slice(piece.get(..room.min(piece.len())).unwrap_or_default());
        if piece.len() > room {
            return Ok((bytes, false));
        }
    }
    Ok((bytes, true))
}

/// Retry-After: seconds, or a date.
pub(super) fn pause(text: &str, now: SystemTime) -> Option<Duration> {
    let text = text.trim();
    if let Ok(seconds) = text.parse::<u32>() {
        return Some(Duration::from_secs(u64::from(seconds)));
    }
    // The form of HTTP's dates is that of mail.
    let then = SystemTime::from(chrono::DateTime::parse_from_rfc2822(text).ok()?);
    Some(then.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_query_is_told() {
        let query = Query("X-Amz-Credential=AKID%2Fday&X-Amz-Signature=0123456789&v=1".to_owned());
        for page in [
            "no: X-Amz-Credential=AKID%2Fday&X-Amz-Signature=0123456789&v=1",
            "for AKID/day: <b>0123456789</b>",
            "AKID%2Fday",
        ] {
            let told = query.hidden(page);
            assert!(!["AKID", "0123456789", "X-Amz"].iter().any(|secret| told.contains(secret)), "{told}");
        }
        assert_eq!(query.hidden("Request has expired"), "Request has expired");
        assert_eq!(format!("{query:?}"), "Query");
    }
}
