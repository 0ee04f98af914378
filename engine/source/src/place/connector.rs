//! The HTTP client beneath the cloud stores: bounds what an answer may hold in memory, keeps what the stores' clients
//! throw away, looks at the pages of listings, and sends the credentials of a URL: a login, or the query that signs it.

use std::fmt;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use base64::prelude::{BASE64_STANDARD, Engine};
use chrono::{DateTime, NaiveDateTime, Utc};
use futures::StreamExt;
use lossfeed_sync::Mutex;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
};
use object_store::{ClientOptions, HeaderValue};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use super::redirects;
use crate::request::failure::{CLOCK_OFF_S, Refused, code, in_our_words, words};
use crate::request::pages::Pages;

/// As much of an error's page is kept as a person reads.
const ERROR_BYTES: usize = 4 << 10;
/// A page of a listing has a thousand objects, of a kilobyte at most each.
const LISTING_BYTES: usize = 64 << 20;

/// Makes clients for one store.
#[derive(Debug, Default)]
pub(crate) struct Connector {
    /// The header that basic authentication sends. Marked as sensitive: it prints as such.
    pub(crate) authorization: Option<HeaderValue>,
    /// What is asked of every object beside its name. Only here, below everything that names a URL in an error.
    pub(crate) query: Option<Query>,
    /// Whether an object may be asked for as a whole, to be read in pieces.
    pub(crate) whole: bool,
    /// Credentials that the client was given.
    pub(crate) secrets: Secrets,
}

/// The query of a URL. Prints as nothing: there may be a signature in it.
#[derive(Clone)]
pub(crate) struct Query(pub(crate) String);

impl fmt::Debug for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Query")
    }
}

/// Texts that no message may have: servers quote what they were sent. Prints as nothing.
#[derive(Clone, Default)]
pub(crate) struct Secrets(Vec<String>);

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets")
    }
}

impl Secrets {
    pub(crate) fn of<'a>(texts: impl IntoIterator<Item = &'a str>) -> Self {
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
    pub(crate) fn hidden(&self, text: &str) -> String {
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
        let client = HttpClient::new(redirects::client(options)?);
        let Self { authorization, query, whole, secrets } = self;
        let (authorization, query, whole, secrets) = (authorization.clone(), query.clone(), *whole, secrets.clone());
        Ok(HttpClient::new(Service { client, authorization, query, whole, secrets, pages: Mutex::default() }))
    }
}

#[derive(Debug)]
struct Service {
    client: HttpClient,
    authorization: Option<HeaderValue>,
    query: Option<Query>,
    whole: bool,
    /// Of the listing under way: a store is asked for one at a time.
    pages: Mutex<Pages>,
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
        let by_time = request.headers().get("authorization").map(HeaderValue::as_bytes);
        let by_time = by_time.is_some_and(|how| how.starts_with(b"AWS4") || how.starts_with(b"SharedKey"));
        let page = page_asked_for(request.uri().query().unwrap_or_default());
        let (mut parts, body) = redirects::send(&self.client, request).await?.into_parts();
        let now = SystemTime::now();
        let said = |name| parts.headers.get(name).and_then(|value| value.to_str().ok());
        let (modified, date) = (said("last-modified").map(date), said("date").and_then(date));
        let retry_after = said("retry-after").and_then(|text| pause(text, now));
        // The stores' clients know one of HTTP's three forms. A date that is none is as good as no date.
        match modified {
            Some(Some(date)) => {
                let usual = date.format("%a, %d %b %Y %H:%M:%S GMT").to_string();
                if let Ok(usual) = HeaderValue::try_from(usual) {
                    parts.headers.insert("last-modified", usual);
                }
            }
            Some(None) => drop(parts.headers.remove("last-modified")),
            None => {}
        }
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
            let Some(first) = page else {
                return Ok(HttpResponse::from_parts(parts, HttpResponseBody::from(bytes)));
            };
            let mut pages = self.pages.lock();
            if first {
                *pages = Pages::default();
            }
            let bytes = pages.page(bytes).map_err(|e| HttpError::new(HttpErrorKind::Decode, e))?;
            return Ok(HttpResponse::from_parts(parts, HttpResponseBody::from(bytes)));
        }
        // Of an error's page the first bytes will do, and a page that breaks off is as good.
        let (bytes, _) = first(body, ERROR_BYTES).await.unwrap_or_default();
        let body = String::from_utf8_lossy(&bytes);
        let body = secrets.hidden(&body);
        let clock_ahead_s = date.map_or(0, |date| (DateTime::<Utc>::from(now) - date).num_seconds());
        let clock_off = by_time && matches!(status, 401 | 403) && clock_ahead_s.abs() >= CLOCK_OFF_S;
        // Of a listing that was refused the stores' clients make no error of its own.
        let ours = in_our_words(code(&body)) || clock_off || page.is_some();
        if matches!(status, 304 | 401 | 403 | 404 | 409 | 412) && !ours {
            // These become errors of their own in the store's client, which show all that they get: stores quote the
            // request that they refuse, with its signature.
            return Ok(HttpResponse::from_parts(parts, HttpResponseBody::from(words(&body).into_bytes())));
        }
        Err(HttpError::new(HttpErrorKind::Unknown, Refused { status, retry_after, body, clock_ahead_s }))
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
pub(crate) fn pause(text: &str, now: SystemTime) -> Option<Duration> {
    let text = text.trim();
    if let Ok(seconds) = text.parse::<u32>() {
        return Some(Duration::from_secs(u64::from(seconds)));
    }
    Some(SystemTime::from(date(text)?).duration_since(now).unwrap_or_default())
}

/// A date in one of HTTP's three forms (RFC 9110, 5.6.7). The day of the week may be wrong.
pub(crate) fn date(text: &str) -> Option<DateTime<Utc>> {
    if let Ok(date) = DateTime::parse_from_rfc2822(text) {
        return Some(date.with_timezone(&Utc));
    }
    let day = text.trim().trim_end_matches("GMT").trim_end();
    let (_, day) = day.split_once(", ").or_else(|| day.split_once(' '))?;
    // Two digits of a year mean 1970 to 2069.
    let forms = ["%d %b %Y %H:%M:%S", "%d-%b-%y %H:%M:%S", "%b %e %H:%M:%S %Y"];
    forms.iter().find_map(|form| NaiveDateTime::parse_from_str(day.trim(), form).ok()).map(|date| date.and_utc())
}

/// Of the query of a request: whether it asks for the first page of a listing, or for a later one; `None` for one that
/// asks for none.
fn page_asked_for(query: &str) -> Option<bool> {
    let has = |names: &[&str]| query.split('&').any(|part| names.iter().any(|name| part.starts_with(name)));
    has(&["list-type=2", "comp=list"]).then(|| !has(&["continuation-token=", "marker="]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_has_three_forms_and_one_meaning() {
        let meant = "2023-11-14T22:13:20Z".parse::<DateTime<Utc>>().unwrap();
        for text in [
            "Tue, 14 Nov 2023 22:13:20 GMT",
            "Mon, 14 Nov 2023 22:13:20 GMT",
            "Tuesday, 14-Nov-23 22:13:20 GMT",
            "Tue Nov 14 22:13:20 2023",
            "Tue, 14 Nov 2023 23:13:20 +0100",
        ] {
            assert_eq!(date(text), Some(meant), "{text}");
        }
        assert_eq!(date("Sun Nov  6 08:49:37 1994"), "1994-11-06T08:49:37Z".parse().ok());
        assert_eq!(date("Sunday, 06-Nov-94 08:49:37 GMT"), "1994-11-06T08:49:37Z".parse().ok());
        for text in ["", "yesterday", "0", "Tue, 31 Feb 2023 22:13:20 GMT"] {
            assert_eq!(date(text), None, "{text}");
        }
    }

    #[test]
    fn pages_are_told_from_other_answers() {
        for (query, page) in [
            ("list-type=2&prefix=data%2F", Some(true)),
            ("continuation-token=x&list-type=2&prefix=data%2F", Some(false)),
            ("restype=container&comp=list&prefix=a", Some(true)),
            ("restype=container&comp=list&prefix=a&marker=x", Some(false)),
            ("versionId=list-type", None),
            ("", None),
        ] {
            assert_eq!(page_asked_for(query), page, "{query}");
        }
    }

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
