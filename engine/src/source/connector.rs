//! The HTTP client beneath the cloud stores: bounds what an answer may hold in memory, keeps what the stores' clients
//! throw away, and sends the credentials of a URL: a login, or the query that signs it.

use std::fmt;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use base64::prelude::{BASE64_STANDARD, Engine};
use futures::StreamExt;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
    ReqwestConnector,
};
use object_store::{ClientOptions, HeaderValue};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

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
    /// Credentials that the client was given.
    pub(super) secrets: Secrets,
}

/// The query of a URL. Prints as nothing: there may be a signature in it.
#[derive(Clone)]
pub(super) struct Query(pub(super) String);

impl fmt::Debug for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Query")
    }
}

/// Texts that no message may have: servers quote what they were sent. Prints as nothing.
#[derive(Clone, Default)]
pub(super) struct Secrets(Vec<String>);

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets")
    }
}

impl Secrets {
    pub(super) fn of<'a>(texts: impl IntoIterator<Item = &'a str>) -> Self {
        Self(texts.into_iter().filter(|text| text.len() >= SECRET_BYTES_MIN).map(str::to_owned).collect())
    }

    /// What a request carries in secret, and these.
    fn and_of(&self, request: &HttpRequest, query: Option<&Query>) -> Self {
        let mut all = self.clone();
        if let Some(Query(query)) = query {
            all.0.extend(Self::of(std::iter::once(query.as_str()).chain(query.split(['&', '=']))).0);
        }
        let signs = |name: &str| ["sig", "token", "credential"].iter().any(|part| name.contains(part));
        let pairs = request
            .uri()
            .query()
            .into_iter()
            .flat_map(|query| query.split('&'))
            .filter_map(|pair| pair.split_once('='));
        all.0.extend(Self::of(pairs.filter(|(name, _)| signs(&name.to_ascii_lowercase())).map(|(_, value)| value)).0);
        let sent =
            request.headers().iter().filter(|(name, _)| *name == "authorization" || name.as_str().contains("token"));
        for value in sent.filter_map(|(_, value)| value.to_str().ok()) {
            // `Bearer TOKEN`, `Basic LOGIN`, `AWS4-HMAC-SHA256 Credential=ID/…, Signature=…`.
            let (_, word) = value.split_once(' ').unwrap_or(("", value));
            let parts = word.split([' ', ',', '=', '/', ':']).filter(|part| part.len() > 16);
            all.0.extend(Self::of(std::iter::once(word).chain(parts)).0);
            if let Some(login) = BASE64_STANDARD.decode(word).ok().and_then(|login| String::from_utf8(login).ok()) {
                all.0.extend(Self::of(std::iter::once(login.as_str()).chain(login.split(':'))).0);
            }
        }
        all
    }

    /// `text` without them.
    pub(super) fn hidden(&self, text: &str) -> String {
        let mut shown = text.to_owned();
        for part in &self.0 {
            let plain = percent_decode_str(part).decode_utf8_lossy();
            let coded = utf8_percent_encode(part, NON_ALPHANUMERIC).to_string();
            for secret in [part.as_str(), plain.as_ref(), &coded, &BASE64_STANDARD.encode(part)] {
                shown = shown.replace(secret, "…");
            }
        }
        shown
    }
}

/// Shorter texts are no secrets.
const SECRET_BYTES_MIN: usize = 6;

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = ReqwestConnector::default().connect(options)?;
        let Self { authorization, query, whole, secrets } = self;
        let (authorization, query, whole, secrets) = (authorization.clone(), query.clone(), *whole, secrets.clone());
        Ok(HttpClient::new(Service { client, authorization, query, whole, secrets }))
    }
}

#[derive(Debug)]
struct Service {
    client: HttpClient,
    authorization: Option<HeaderValue>,
    query: Option<Query>,
    whole: bool,
    secrets: Secrets,
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
        let secrets = self.secrets.and_of(&request, self.query.as_ref());
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
        let body = secrets.hidden(&body);
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
    fn nothing_of_what_was_sent_in_secret_is_told() {
        let query = Query("X-Amz-Credential=AKID%2Fday&X-Amz-Signature=0123456789&v=1".to_owned());
        let mut request = HttpRequest::new(object_store::client::HttpRequestBody::empty());
        *request.uri_mut() = "https://h/x?comp=list&sig=shared%2Baccess".parse().unwrap();
        let basic = BASE64_STANDARD.encode("someone:pass:word");
        for (name, value) in
            [("authorization", format!("Basic {basic}")), ("x-amz-security-token", "a session's token".to_owned())]
        {
            request.headers_mut().insert(name, value.parse().unwrap());
        }
        let secrets = Secrets::of(["the account's key", "short"]).and_of(&request, Some(&query));
        for page in [
            "no: X-Amz-Credential=AKID%2Fday&X-Amz-Signature=0123456789&v=1".to_owned(),
            "for AKID/day: <b>0123456789</b>".to_owned(),
            "AKID%2Fday".to_owned(),
            "shared%2Baccess or shared+access".to_owned(),
            format!("{basic} is someone:pass:word, or someone"),
            "a session's token, the account's key".to_owned(),
            BASE64_STANDARD.encode("the account's key"),
        ] {
            let told = secrets.hidden(&page);
            let words =
                ["AKID", "0123456789", "X-Amz", "shared", "access", "someone", "pass", "session", "key", &basic];
            assert!(!words.iter().any(|secret| told.contains(secret)) && told.contains('…'), "{told}");
        }
        assert_eq!(secrets.hidden("comp=list has expired, in short"), "comp=list has expired, in short");
        request.headers_mut().clear();
        let signed = "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20250101/r/s3/aws4_request, Signature=0123456789abcdef0123";
        request.headers_mut().insert("authorization", signed.parse().unwrap());
        let secrets = Secrets::default().and_of(&request, None);
        assert_eq!(
            secrets.hidden("use AWS4-HMAC-SHA256, AKIAIOSFODNN7EXAMPLE: 0123456789abcdef0123"),
            "use AWS4-HMAC-SHA256, …: …"
        );
        assert_eq!(format!("{query:?} {secrets:?}"), "Query Secrets");
    }
}
