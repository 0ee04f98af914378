//! What is said to AIStore and what it answers.
//!
//! Objects are read by ranges as a web server's are, with the bucket's provider in the query; a listing is a question
//! with a body, page after page; and many samples come by one request, GetBatch (`lists.rs`). Gateways answer with
//! redirects to the machine that has the data, which are followed. An object's checksum and version stand for its tag
//! where the answer has none. Written from AIStore's documentation of versions 4.0 to 4.3 (docs/get_batch.md,
//! docs/http_api.md), and tried against a server of the tests only.

use std::sync::Arc;

use async_trait::async_trait;
use futures::future::BoxFuture;
use futures::stream::{StreamExt, TryStreamExt};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse, HttpService,
};
use object_store::path::Path;
use object_store::{ClientOptions, HeaderValue, ObjectMeta, Result as Stored};
use serde::{Deserialize, Serialize};

use super::connector::Connector;
use super::listed::{Listing, Next};
use super::lister::{Entry, Lister, Pieces};
use super::pages::Pages;

/// What stands for an object's tag, in the order of trust.
const TAGS: [&str; 2] = ["ais-checksum-value", "ais-version"];

/// The connector of all stores, with what AIStore wants of a request and says in an answer.
#[derive(Debug)]
pub(super) struct Gateway {
    pub(super) inner: Connector,
    pub(super) provider: String,
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
    Bucket::failed(source)
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
pub(super) struct Bucket {
    pub(super) client: HttpClient,
    pub(super) url: String,
}

#[derive(Serialize)]
struct Action<'a> {
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

/// The objects of one page of a listing, and what the next page is asked for with.
fn page(body: &[u8], pages: &mut Pages) -> Stored<(Vec<ObjectMeta>, Page)> {
    let mut page: Page = serde_json::from_slice(body).map_err(failed)?;
    let entries = page.entries.take().unwrap_or_default().into_iter().filter(|entry| pages.takes(&entry.name));
    let objects = entries.map(Listed::meta).collect::<Stored<_>>()?;
    Ok((objects, page))
}

/// The objects of one page, for fuzzing.
///
/// # Errors
/// A page that is none.
#[cfg(any(test, fuzzing))]
pub(super) fn objects(body: &[u8]) -> Stored<Vec<ObjectMeta>> {
    page(body, &mut Pages::default()).map(|(objects, _)| objects)
}

#[async_trait]
impl Listing for Bucket {
    const STORE: &'static str = "AIStore";

    async fn page(&self, folder: &str, at: Option<Next>, pages: &mut Pages) -> Stored<(Vec<ObjectMeta>, Option<Next>)> {
        let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        let (uuid, continuation_token) = at.as_ref().map_or(("", ""), |next| (&next.uuid, &next.token));
        let value = PageWanted { prefix: &prefix, props: "name,size,checksum,version", uuid, continuation_token };
        let request = question(&self.url, &Action { action: "list", value })?;
        let answer = self.client.execute(request).await.map_err(failed)?;
        served(&answer, folder)?;
        let (objects, page) = page(&answer.into_body().bytes().await.map_err(failed)?, pages)?;
        let Page { uuid, continuation_token: token, .. } = page;
        Ok((objects, (!token.is_empty()).then_some(Next { token, uuid })))
    }
}

/// GetBatch: a list of objects and members of shards, answered with one TAR stream.
pub(super) struct Moss {
    pub(super) client: HttpClient,
    pub(super) url: String,
    pub(super) bucket: String,
    pub(super) by_name: bool,
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
