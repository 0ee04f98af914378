//! AIStore: `ais://BUCKET/KEY`, through its own interface. `AIS_ENDPOINT` says where a gateway listens, `AIS_AUTHN_TOKEN`
//! in whose name it is asked; both are what its own programs read.
//!
//! Objects are read by ranges as a web server's are, with the bucket's provider in the query; a listing is a question
//! with a body, page after page; and many samples come by one request, GetBatch (`lists.rs`). Gateways answer with
//! redirects to the machine that has the data, which are followed. An object's checksum and version stand for its tag
//! where the answer has none. Written from AIStore's documentation of versions 4.0 to 4.3 (docs/get_batch.md,
//! docs/http_api.md), and tried against a server of the tests only.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, StreamExt, TryStreamExt, iter, once};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse, HttpService,
};
use object_store::http::HttpBuilder;
use object_store::path::Path;
use object_store::{
    ClientOptions, CopyOptions, GetOptions, GetResult, HeaderValue, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result as Stored, RetryConfig,
};
use serde::{Deserialize, Serialize};

use super::cloud::Target;
use super::connector::Connector;
use super::failure::Access;
use super::lister::{Entry, Lister, Pieces};
use super::{OpenOptions, pattern};
use crate::error::{Error, Result};

/// No listing has so many pages.
const PAGES_MAX: usize = 100_000;
/// What stands for an object's tag, in the order of trust.
const TAGS: [&str; 2] = ["ais-checksum-value", "ais-version"];
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
#[derive(Debug, PartialEq, Eq)]
struct Place {
    endpoint: String,
    bucket: String,
    provider: String,
    token: Option<String>,
    get_batch: GetBatch,
    paths: Vec<String>,
}

impl Place {
    fn of(url: &str, options: &[(String, String)], said: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let rest = url.strip_prefix("ais://").filter(|_| !url.contains(['?', '#', '@', '\\']));
        let (bucket, path) = rest.map_or(("", ""), |rest| rest.split_once('/').unwrap_or((rest, "")));
        if bucket.is_empty() || !bucket.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)) {
            return Err(Error::settings(format!(
                "{url} names no bucket of AIStore: write ais://BUCKET/PATH, as in ais://images/train-{{0000..0146}}.tar"
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
    let files = HttpBuilder::new()
        .with_url(at("objects"))
        .with_client_options(client_options.clone())
        .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() })
        .with_http_connector(connector(false))
        .build()
        .map_err(told)?;
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
    let store =
        Arc::new(Bucket { files: Arc::new(files), pages: Pages { client, url: at("buckets") }, shown: base.clone() });
    Ok((Target { store, base, place: tells, paths: place.paths, access }, lists))
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

/// The connector of all stores, with what AIStore wants of a request and says in an answer.
#[derive(Debug)]
struct Gateway {
    inner: Connector,
    provider: String,
}

impl HttpConnector for Gateway {
    fn connect(&self, options: &ClientOptions) -> Stored<HttpClient> {
        Ok(HttpClient::new(Asked { client: self.inner.connect(options)?, provider: self.provider.clone() }))
    }
}

#[derive(Debug)]
struct Asked {
    client: HttpClient,
    provider: String,
}

#[async_trait]
impl HttpService for Asked {
    async fn call(&self, mut request: HttpRequest) -> std::result::Result<HttpResponse, HttpError> {
        let asked = format!("{}?provider={}", request.uri(), self.provider);
        let wrong = |_| HttpError::new(HttpErrorKind::Request, std::io::Error::other("the URL makes no request"));
        *request.uri_mut() = asked.parse().map_err(wrong)?;
        // What stands for its tags here is none to AIStore. Every answer's is compared.
        request.headers_mut().remove("if-match");
        let mut answer = self.client.execute(request).await?;
        let headers = answer.headers_mut();
        if !headers.contains_key("etag")
            && let Some(tag) = TAGS.iter().find_map(|name| headers.get(*name)).and_then(|tag| tag.to_str().ok())
        {
            let quoted: String = tag.chars().filter(char::is_ascii_alphanumeric).collect();
            if let Ok(tag) = HeaderValue::try_from(format!("\"{quoted}\"")) {
                headers.insert("etag", tag);
            }
        }
        Ok(answer)
    }
}

fn failed(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> object_store::Error {
    object_store::Error::Generic { store: "AIStore", source: source.into() }
}

/// A request with a question in its body, which AIStore asks of GET as well.
fn question(url: &str, body: &impl Serialize) -> Stored<HttpRequest> {
    let body = serde_json::to_vec(body).map_err(failed)?;
    let mut request = HttpRequest::new(HttpRequestBody::from(body));
    *request.uri_mut() = url.parse().map_err(failed)?;
    let headers = request.headers_mut();
    headers.insert("content-type", HeaderValue::from_static("application/json"));
    headers.insert("accept", HeaderValue::from_static("*/*"));
    Ok(request)
}

/// What an answer's status says, where our connector passes it on.
fn served(answer: &HttpResponse, path: &str) -> Stored<()> {
    let (status, path) = (answer.status().as_u16(), path.to_owned());
    let source = format!("status {status}").into();
    match status {
        200 | 206 => Ok(()),
        401 | 403 => Err(object_store::Error::PermissionDenied { path, source }),
        404 => Err(object_store::Error::NotFound { path, source }),
        _ => Err(failed(format!("status {status}"))),
    }
}

/// The listing of a bucket.
#[derive(Debug, Clone)]
struct Pages {
    client: HttpClient,
    url: String,
}

#[derive(Serialize)]
struct Listing<'a> {
    action: &'static str,
    value: PageWanted<'a>,
}

#[derive(Serialize)]
struct PageWanted<'a> {
    prefix: &'a str,
    props: &'static str,
    uuid: &'a str,
    continuation_token: &'a str,
}

#[derive(Default, Deserialize)]
struct Page {
    #[serde(default)]
    uuid: String,
    #[serde(default)]
    entries: Option<Vec<Listed>>,
    #[serde(default)]
    continuation_token: String,
}

#[derive(Deserialize)]
struct Listed {
    name: String,
    #[serde(default)]
    size: Size,
    #[serde(default)]
    checksum: Option<String>,
    #[serde(default)]
    version: Option<String>,
}

/// AIStore writes it as text.
#[derive(Deserialize)]
#[serde(untagged)]
enum Size {
    Number(u64),
    Text(String),
}

impl Default for Size {
    fn default() -> Self {
        Self::Number(0)
    }
}

impl Listed {
    fn meta(self) -> Stored<ObjectMeta> {
        let size = match self.size {
            Size::Number(size) => size,
            Size::Text(text) => text.parse().map_err(failed)?,
        };
        let tag = [self.checksum, self.version].into_iter().flatten().find(|tag| !tag.is_empty());
        let e_tag =
            tag.map(|tag| format!("\"{}\"", tag.chars().filter(char::is_ascii_alphanumeric).collect::<String>()));
        let location = Path::parse(&self.name).map_err(failed)?;
        Ok(ObjectMeta { location, last_modified: Default::default(), size, e_tag, version: None })
    }
}

impl Pages {
    async fn all(self, prefix: String) -> Stored<Vec<ObjectMeta>> {
        let (mut found, mut before) = (Vec::new(), Page::default());
        let folder = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        for _ in 0..PAGES_MAX {
            let value = PageWanted {
                prefix: &folder,
                props: "name,size,checksum,version",
                uuid: &before.uuid,
                continuation_token: &before.continuation_token,
            };
            let request = question(&self.url, &Listing { action: "list", value })?;
            let answer = self.client.execute(request).await.map_err(failed)?;
            served(&answer, &prefix)?;
            let page: Page =
                serde_json::from_slice(&answer.into_body().bytes().await.map_err(failed)?).map_err(failed)?;
            for object in page.entries.unwrap_or_default() {
                found.push(object.meta()?);
            }
            if page.continuation_token.is_empty() || page.continuation_token == before.continuation_token {
                return Ok(found);
            }
            before = Page { entries: None, ..page };
        }
        Err(failed(format!("a listing of more than {PAGES_MAX} pages")))
    }
}

/// GetBatch: a list of objects and members of shards, answered with one TAR stream.
struct Moss {
    client: HttpClient,
    url: String,
    bucket: String,
    by_name: bool,
}

#[derive(Serialize)]
struct Wanted<'a> {
    mime: &'static str,
    #[serde(rename = "in")]
    entries: Vec<Item<'a>>,
    /// What is missing comes under another name, and the rest behind it.
    coer: bool,
    onob: bool,
    strm: bool,
}

#[derive(Serialize)]
struct Item<'a> {
    objname: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    archpath: Option<&'a str>,
}

impl Lister for Moss {
    fn ask(&self, entries: Arc<[Entry]>) -> BoxFuture<'static, Stored<Pieces>> {
        let (client, url, bucket) = (self.client.clone(), self.url.clone(), self.bucket.clone());
        Box::pin(async move {
            let items = entries
                .iter()
                .map(|entry| Item { objname: &entry.object, archpath: entry.member.as_deref() })
                .collect();
            let wanted = Wanted { mime: ".tar", entries: items, coer: true, onob: false, strm: true };
            let answer = client.execute(question(&url, &wanted)?).await.map_err(failed)?;
            served(&answer, &bucket)?;
            Ok(answer.into_body().bytes_stream().map_err(failed).boxed())
        })
    }
    fn bucket(&self) -> &str {
        &self.bucket
    }
    fn by_name(&self) -> bool {
        self.by_name
    }
}

/// One bucket.
#[derive(Debug)]
struct Bucket {
    files: Arc<dyn ObjectStore>,
    pages: Pages,
    shown: String,
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

fn only_read<T>() -> Stored<T> {
    Err(object_store::Error::NotImplemented { operation: "writing".to_owned(), implementer: "AIStore".to_owned() })
}

#[async_trait]
impl ObjectStore for Bucket {
    async fn get_opts(&self, from: &Path, options: GetOptions) -> Stored<GetResult> {
        self.files.get_opts(from, options).await
    }
    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Stored<ObjectMeta>> {
        let all = self.pages.clone().all(prefix.map(|prefix| prefix.as_ref().to_owned()).unwrap_or_default());
        once(all).map_ok(|found| iter(found.into_iter().map(Ok))).try_flatten().boxed()
    }
    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Stored<ListResult> {
        let objects = self.list(prefix).try_collect().await?;
        Ok(ListResult { common_prefixes: Vec::new(), objects, extensions: Default::default() })
    }
    async fn put_opts(&self, _: &Path, _: PutPayload, _: PutOptions) -> Stored<PutResult> {
        only_read()
    }
    async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Stored<Box<dyn MultipartUpload>> {
        only_read()
    }
    fn delete_stream(&self, _: BoxStream<'static, Stored<Path>>) -> BoxStream<'static, Stored<Path>> {
        once(async { only_read() }).boxed()
    }
    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Stored<()> {
        only_read()
    }
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
