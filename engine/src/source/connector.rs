//! The HTTP client beneath the cloud stores: bounds what an answer may hold in memory, keeps what the stores' clients
//! throw away, and sends the credentials of a URL.

use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use futures::StreamExt;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
    ReqwestConnector,
};
use object_store::{ClientOptions, HeaderValue};

use super::failure::Refused;

/// As much of an error's page is kept as a person reads.
const ERROR_BYTES: usize = 4 << 10;
/// A page of a listing has a thousand objects, of a kilobyte at most each.
const LISTING_BYTES: usize = 64 << 20;

/// Makes clients for one store.
#[derive(Debug, Default)]
pub(super) struct Connector {
    /// The header that basic authentication sends. Marked as sensitive: it prints as such.
    pub(super) authorization: Option<HeaderValue>,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(Service { client, authorization: self.authorization.clone() }))
    }
}

#[derive(Debug)]
struct Service {
    client: HttpClient,
    authorization: Option<HeaderValue>,
}

#[async_trait]
impl HttpService for Service {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        if let Some(authorization) = &self.authorization {
            request.headers_mut().insert("authorization", authorization.clone());
        }
        // What is asked for in parts is read in parts, by `store.rs`; so is nothing else.
        let in_parts = request.headers().contains_key("range");
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
        if matches!(status, 304 | 401 | 403 | 404 | 409 | 412) {
            // These become errors of their own in the store's client.
            return Ok(HttpResponse::from_parts(parts, HttpResponseBody::from(bytes)));
        }
        let retry_after =
            parts.headers.get("retry-after").and_then(|v| v.to_str().ok()).and_then(|v| pause(v, SystemTime::now()));
        let body = String::from_utf8_lossy(&bytes).into_owned();
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
