//! Datasets of the Hugging Face Hub: `hf://datasets/OWNER/NAME@REVISION/PATTERN`, spelt as its own file system does.
//!
//! A file of a repository is a URL, which redirects to where its bytes lie; a listing is a question to the Hub's
//! interface, page after page. Nothing is written. `HF_TOKEN` is sent for private and gated datasets, `HF_ENDPOINT` says
//! which Hub is meant; both are what the Hub's own programs read. A redirect to another host gets no token.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use futures::stream::{BoxStream, StreamExt, TryStreamExt, iter, once};
use object_store::client::{HttpClient, HttpConnector, HttpRequest, HttpRequestBody};
use object_store::http::HttpBuilder;
use object_store::path::Path;
use object_store::{
    ClientOptions, CopyOptions, GetOptions, GetResult, HeaderValue, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result as Stored, RetryConfig,
};
use serde::Deserialize;

use super::cloud::Target;
use super::connector::Connector;
use super::failure::Access;
use super::pattern;
use crate::error::{Error, Result};

const ENDPOINT: &str = "https://huggingface.co";
/// The revision that the Hub makes itself of datasets that are no Parquet, and its short name.
const CONVERTED: [&str; 2] = ["~parquet", "refs/convert/parquet"];
/// No listing has so many pages of a thousand files.
const PAGES_MAX: usize = 10_000;

/// A dataset at one revision, and what is meant of it.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    repository: String,
    revision: String,
    paths: Vec<String>,
}

impl Place {
    fn of(url: &str) -> Result<Self> {
        let told = || {
            Error::settings(format!(
                "{url} names no dataset of the Hub: write hf://datasets/OWNER/NAME, with @REVISION and a path or pattern as \
                 they are needed, as in hf://datasets/OWNER/NAME/data/train-*.parquet"
            ))
        };
        let rest = url.strip_prefix("hf://datasets/").filter(|_| !url.contains(['?', '#', '\\'])).ok_or_else(told)?;
        let (owner, rest) = rest.split_once('/').ok_or_else(told)?;
        let named = |name: &str| {
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            !name.is_empty() && name.chars().all(plain) && !name.starts_with('.')
        };
        let end = rest.find(['/', '@']).unwrap_or(rest.len());
        let (name, rest) = rest.split_at(end);
        if !named(owner) || !named(name) {
            return Err(told());
        }
        let (revision, path) = match rest.strip_prefix('@') {
            None => ("main".to_owned(), rest),
            Some(rest) => revision(rest),
        };
        if revision.is_empty() || revision.split('/').any(|part| part == "..") {
            return Err(told());
        }
        let paths = pattern::braces(path.trim_matches('/'))?;
        Ok(Self { repository: format!("{owner}/{name}"), revision, paths })
    }

    fn shown(&self) -> String {
        let at = if self.revision == "main" { String::new() } else { format!("@{}", self.revision) };
        format!("hf://datasets/{}{at}", self.repository)
    }
}

/// A revision, which may have slashes in it where the Hub makes it, and the path behind.
fn revision(rest: &str) -> (String, &str) {
    for converted in CONVERTED {
        if let Some(path) = rest.strip_prefix(converted).filter(|path| path.is_empty() || path.starts_with('/')) {
            return (CONVERTED[1].to_owned(), path);
        }
    }
    if let Some(request) = rest.strip_prefix("refs/pr/") {
        let end = request.find('/').unwrap_or(request.len());
        return (format!("refs/pr/{}", &request[..end]), &request[end..]);
    }
    let end = rest.find('/').unwrap_or(rest.len());
    (rest[..end].to_owned(), &rest[end..])
}

/// The store of a dataset on the Hub, and the keys that its URL stands for.
///
/// # Errors
/// `Settings` for a URL that names no dataset, and for a token or endpoint that make no request.
pub(super) fn connect(url: &str) -> Result<Target> {
    let place = Place::of(url)?;
    let said = |name| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
    let endpoint = said("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
    let endpoint = endpoint.trim_end_matches('/').to_owned();
    let authorization = said("HF_TOKEN").map(|token| {
        let header = HeaderValue::try_from(format!("Bearer {}", token.trim()));
        let mut header = header.map_err(|_| Error::settings("HF_TOKEN makes no header: set it as the Hub gave it"))?;
        header.set_sensitive(true);
        Ok(header)
    });
    let authorization = authorization.transpose()?;
    let encoded = place.revision.replace('/', "%2F");
    let at = |what: &str, action: &str| format!("{endpoint}/{what}datasets/{}/{action}/{encoded}", place.repository);
    let options = ClientOptions::new().with_timeout_disabled().with_allow_http(endpoint.starts_with("http://"));
    let connector = || Connector { authorization: authorization.clone(), ..Connector::default() };
    let told = |e: object_store::Error| {
        Error::settings(format!("{} cannot be reached at {endpoint}: check HF_ENDPOINT", place.shown())).because(e)
    };
    let files = HttpBuilder::new()
        .with_url(at("", "resolve"))
        .with_client_options(options.clone())
        .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() })
        .with_http_connector(connector())
        .build()
        .map_err(told)?;
    let client = connector().connect(&options).map_err(told)?;
    let store = Hub { files: Arc::new(files), tree: Tree { client, url: at("api/", "tree") }, shown: place.shown() };
    let base = place.shown();
    let tells = if endpoint == ENDPOINT { base.clone() } else { format!("{base} endpoint={endpoint}") };
    Ok(Target { store: Arc::new(store), base, place: tells, paths: place.paths, access: Access::Nobody })
}

/// One dataset at one revision.
#[derive(Debug)]
struct Hub {
    files: Arc<dyn ObjectStore>,
    tree: Tree,
    shown: String,
}

/// The Hub's listing.
#[derive(Debug, Clone)]
struct Tree {
    client: HttpClient,
    url: String,
}

#[derive(Debug, Deserialize)]
struct Entry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    size: u64,
}

fn failed(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> object_store::Error {
    object_store::Error::Generic { store: "Hub", source: source.into() }
}

impl Tree {
    /// All files below `prefix`.
    async fn files(self, prefix: String) -> Stored<Vec<ObjectMeta>> {
        let mut url = url::Url::parse(&self.url).map_err(failed)?;
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.extend(prefix.split('/').filter(|part| !part.is_empty()));
        }
        url.set_query(Some("recursive=true"));
        let host = url.host_str().map(str::to_owned);
        let (mut found, mut next) = (Vec::new(), Some(url));
        for _ in 0..PAGES_MAX {
            let Some(url) = next else { return Ok(found) };
            let mut request = HttpRequest::new(HttpRequestBody::empty());
            *request.uri_mut() = url.as_str().parse().map_err(failed)?;
            let answer = self.client.execute(request).await.map_err(failed)?;
            let status = answer.status().as_u16();
            let said = match status {
                200 => None,
                404 => {
                    return Err(object_store::Error::NotFound {
                        path: prefix,
                        source: "the Hub has no such folder".into(),
                    });
                }
                401 | 403 => Some(
                    "the Hub gives it to nobody but those who may read it: set HF_TOKEN, and accept the dataset's terms if it has some",
                ),
                _ => Some("the Hub does not list it"),
            };
            if let Some(said) = said {
                let source = format!("{said} (status {status})").into();
                return Err(object_store::Error::PermissionDenied { path: prefix, source });
            }
            // A token goes to the Hub that was asked, and nowhere else.
            let link = answer.headers().get("link").and_then(|link| link.to_str().ok()).and_then(following);
            next = link.and_then(|link| url.join(link).ok()).filter(|url| url.host_str() == host.as_deref());
            let entries: Vec<Entry> =
                serde_json::from_slice(&answer.into_body().bytes().await.map_err(failed)?).map_err(failed)?;
            for entry in entries.into_iter().filter(|entry| entry.kind == "file") {
                // Which version it is, an answer about the file itself says.
                let location = Path::parse(&entry.path).map_err(failed)?;
                found.push(ObjectMeta {
                    location,
                    last_modified: Default::default(),
                    size: entry.size,
                    e_tag: None,
                    version: None,
                });
            }
        }
        Err(failed(format!("a listing of more than {PAGES_MAX} pages")))
    }
}

/// The next page that a header of links names.
fn following(link: &str) -> Option<&str> {
    let next = link.split(',').find(|link| link.contains("rel=\"next\""))?;
    next.split_once('<')?.1.split_once('>').map(|(url, _)| url)
}

impl fmt::Display for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

fn only_read<T>() -> Stored<T> {
    Err(object_store::Error::NotImplemented { operation: "writing".to_owned(), implementer: "Hub".to_owned() })
}

#[async_trait]
impl ObjectStore for Hub {
    async fn get_opts(&self, from: &Path, options: GetOptions) -> Stored<GetResult> {
        self.files.get_opts(from, options).await
    }
    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Stored<ObjectMeta>> {
        let files = self.tree.clone().files(prefix.map(|prefix| prefix.as_ref().to_owned()).unwrap_or_default());
        once(files).map_ok(|found| iter(found.into_iter().map(Ok))).try_flatten().boxed()
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

    #[test]
    fn a_place_is_spelt_as_the_hubs_own_file_system_does() {
        let place = |url| Place::of(url).map(|p| (p.repository, p.revision, p.paths.join(" "))).unwrap();
        let made = |repository: &str, revision: &str, path: &str| {
            (repository.to_owned(), revision.to_owned(), path.to_owned())
        };
        assert_eq!(place("hf://datasets/o/n"), made("o/n", "main", ""));
        assert_eq!(place("hf://datasets/o/n/data/train-*.parquet"), made("o/n", "main", "data/train-*.parquet"));
        assert_eq!(place("hf://datasets/o/n.x@v1.0/a.tar"), made("o/n.x", "v1.0", "a.tar"));
        assert_eq!(
            place("hf://datasets/o/n@~parquet/d/t/0.parquet"),
            made("o/n", "refs/convert/parquet", "d/t/0.parquet")
        );
        assert_eq!(place("hf://datasets/o/n@refs/convert/parquet"), made("o/n", "refs/convert/parquet", ""));
        assert_eq!(place("hf://datasets/o/n@refs/pr/7/x"), made("o/n", "refs/pr/7", "x"));
        assert_eq!(place("hf://datasets/o/n/{a,b}.tar"), made("o/n", "main", "a.tar b.tar"));
        for wrong in [
            "hf://o/n",
            "hf://datasets/o",
            "hf://datasets//n",
            "hf://datasets/o/n@",
            "hf://datasets/o/../x",
            "hf://models/o/n",
            "hf://datasets/o/n?x=1",
            "hf://datasets/o/n@../x",
        ] {
            assert!(Place::of(wrong).unwrap_err().to_string().contains("hf://datasets/OWNER/NAME"), "{wrong}");
        }
    }

    #[test]
    fn the_next_page_is_what_the_header_links_to() {
        let header = "<https://hub/a?cursor=x>; rel=\"prev\", <https://hub/b?cursor=y>; rel=\"next\"";
        assert_eq!(following(header), Some("https://hub/b?cursor=y"));
        assert_eq!((following("<https://hub/a>; rel=\"prev\""), following("")), (None, None));
    }
}
