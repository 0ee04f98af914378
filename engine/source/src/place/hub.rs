//! Datasets of the Hugging Face Hub: `hf://datasets/OWNER/NAME@REVISION/PATTERN`, spelt as its own file system does.
//!
//! A file of a repository is a URL, which redirects to where its bytes lie; a listing is a question to the Hub's
//! interface, page after page. Nothing is written. `HF_TOKEN` is sent for private and gated datasets, `HF_ENDPOINT`
//! says which Hub is meant; both are what the Hub's own programs read. A redirect to another host gets no token.

use std::sync::Arc;

use async_trait::async_trait;
use object_store::client::{HttpClient, HttpConnector, HttpRequest, HttpRequestBody};
use object_store::path::Path;
use object_store::{ClientOptions, HeaderValue, ObjectMeta, Result as Stored};
use serde::Deserialize;

use crate::error::{Error, Result};
use crate::format::pattern;
use crate::options::OpenOptions;
use crate::place::connector::Connector;
use crate::place::listed::{Listed, Listing};
use crate::place::target::Target;
use crate::request::failure::Access;
use crate::request::pages::Contradiction;
use crate::shown::without_secrets;

const ENDPOINT: &str = "https://huggingface.co";
/// The revision that the Hub makes itself of datasets that are no Parquet, and its short name.
const CONVERTED: [&str; 2] = ["~parquet", "refs/convert/parquet"];

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
                "{} names no dataset of the Hub: write hf://datasets/OWNER/NAME, with @REVISION and a path or pattern as \
                 they are needed, as in hf://datasets/OWNER/NAME/data/train-*.parquet",
                without_secrets(url)
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
pub(crate) fn connect(url: &str, _: &OpenOptions) -> Result<Target> {
    let place = Place::of(url)?;
    let said = |name| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
    let endpoint = said("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
    let endpoint = endpoint.trim_end_matches('/').to_owned();
    if endpoint.contains(['@', '?', '#']) {
        return Err(Error::settings(
            "HF_ENDPOINT has a user or a query in it, which are not sent: a token is given by HF_TOKEN",
        ));
    }
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
    let client = connector().connect(&options).map_err(told)?;
    let tree = Tree { client, url: at("api/", "tree") };
    let store = Listed::new(at("", "resolve"), options, connector(), tree, place.shown()).map_err(told)?;
    let base = place.shown();
    let tells = if endpoint == ENDPOINT { base.clone() } else { format!("{base} endpoint={endpoint}") };
    Ok(Target {
        store: Arc::new(store),
        base,
        place: tells,
        paths: place.paths,
        access: Access::Nobody,
        repository: true,
    })
}

/// What tells the dataset apart from others: its name, and the Hub's where that is another.
///
/// # Errors
/// As [`connect`].
pub(crate) fn place_of(url: &str, options: &OpenOptions) -> Result<String> {
    Ok(connect(url, options)?.place)
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

#[async_trait]
impl Listing for Tree {
    const STORE: &'static str = "Hub";

    async fn page(&self, folder: &str, at: Option<String>) -> Stored<(Vec<ObjectMeta>, Option<String>)> {
        let mut url = url::Url::parse(&self.url).map_err(Self::failed)?;
        let host = url.host_str().map(str::to_owned);
        if let Some(next) = at {
            url = url.join(&next).map_err(Self::failed)?;
        } else {
            if let Ok(mut segments) = url.path_segments_mut() {
                segments.extend(folder.split('/').filter(|part| !part.is_empty()));
            }
            url.set_query(Some("recursive=true"));
        }
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.uri_mut() = url.as_str().parse().map_err(Self::failed)?;
        let answer = self.client.execute(request).await.map_err(Self::failed)?;
        let (status, path) = (answer.status().as_u16(), folder.to_owned());
        let said = match status {
            200 => None,
            404 => {
                return Err(object_store::Error::NotFound { path, source: "the Hub has no such folder".into() });
            }
            401 | 403 => Some(
                "the Hub gives it to nobody but those who may read it: set HF_TOKEN, and accept the dataset's terms if it has some",
            ),
            _ => Some("the Hub does not list it"),
        };
        if let Some(said) = said {
            let source = format!("{said} (status {status})").into();
            return Err(object_store::Error::PermissionDenied { path, source });
        }
        let link = answer.headers().get("link").and_then(|link| link.to_str().ok()).and_then(following);
        let next = match link.map(|link| url.join(link)) {
            None => None,
            // A token goes to the Hub that was asked, and nowhere else.
            Some(Ok(next)) if next.host_str() == host.as_deref() => Some(String::from(next)),
            Some(_) => return Err(Self::failed(Contradiction("its next page is no URL of the Hub".to_owned()))),
        };
        Ok((files(&answer.into_body().bytes().await.map_err(Self::failed)?)?, next))
    }
}

/// The files of one page of a listing.
///
/// # Errors
/// A page that is none, or names what can be no file.
pub(crate) fn files(page: &[u8]) -> Stored<Vec<ObjectMeta>> {
    let entries: Vec<Entry> = serde_json::from_slice(page).map_err(Tree::failed)?;
    let files = entries.into_iter().filter(|entry| entry.kind == "file").map(|entry| {
        // Which version it is, an answer about the file itself says.
        let location = Path::parse(&entry.path).map_err(Tree::failed)?;
        Ok(ObjectMeta { location, last_modified: Default::default(), size: entry.size, e_tag: None, version: None })
    });
    files.collect()
}

/// The next page that a header of links names.
fn following(link: &str) -> Option<&str> {
    let next = link.split(',').find(|link| link.contains("rel=\"next\""))?;
    next.split_once('<')?.1.split_once('>').map(|(url, _)| url)
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
