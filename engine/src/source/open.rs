//! A URL or path becomes a [`Source`].

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::catalog::{Catalog, Shard};
use super::files::Files;
use super::folder::{self, Contents};
use super::local::{self, LocalReader};
use super::tar::ShardIndex;
use super::{Source, index_cache, label, pattern, store_open};
use crate::error::{Error, Result};

/// Makes a store behave like one that is far away, for demonstrations and experiments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Throttle {
    /// Added before every request is answered.
    pub latency: Duration,
    /// Payload bytes a second over all connections together; `None` is unlimited.
    pub bandwidth_bytes_per_s: Option<u64>,
}

/// How a dataset is opened and read.
#[derive(Debug, Clone)]
pub struct OpenOptions {
    /// Slows reading down as a remote store would; a local path is then read as if it were one. Default: none.
    pub throttle: Option<Throttle>,
    /// Requests in flight at once to a store, over all threads; 1 to 4096. Local files without a throttle are read by
    /// the calling threads instead. Default: 64.
    pub connections: usize,
    /// Directory for the indexes of tar shards, so that opening them again reads no headers; created for its owner
    /// alone when it does not exist. Default: none, nothing is kept.
    pub index_cache: Option<PathBuf>,
    /// Options for the store in `object_store`'s words, such as `("region", "eu-west-1")` or `("endpoint", URL)`; they
    /// take precedence over the environment (`AWS_*`, `GOOGLE_*`, `AZURE_*`).
    pub store_options: Vec<(String, String)>,
    /// The longest one request may take. Default: 30 s; `None` waits for ever.
    pub timeout: Option<Duration>,
    /// How long a store is asked again when it does not serve (no connection, no answer, 5xx, 429): its requests
    /// share this budget, which counts from the first failure after its last answer. A store that has never answered
    /// gets 10 s of it. Zero asks once. Default: two minutes.
    pub retry_timeout: Duration,
    /// Take a CRC-32 of every sample when the dataset is opened and hold every later read against it. Reads the whole
    /// dataset once; with `index_cache` the sums of shards are kept there. Default: no.
    pub checksums: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            throttle: None,
            connections: 64,
            index_cache: None,
            store_options: Vec::new(),
            timeout: Some(Duration::from_secs(30)),
            retry_timeout: Duration::from_secs(120),
            checksums: false,
        }
    }
}

impl OpenOptions {
    pub(super) fn check(&self) -> Result<()> {
        if !(1..=4096).contains(&self.connections) {
            return Err(Error::settings(format!("connections={} is not possible: use 1 to 4096", self.connections)));
        }
        if self.timeout == Some(Duration::ZERO) {
            return Err(Error::settings(
                "timeout=0 would let no request finish: use a positive time, or None to wait for ever",
            ));
        }
        if self.retry_timeout > Duration::from_secs(7 * 24 * 3600) {
            return Err(Error::settings(format!(
                "retry_timeout={:?} is not possible: use at most a week",
                self.retry_timeout
            )));
        }
        match self.throttle {
            Some(Throttle { bandwidth_bytes_per_s: Some(0), .. }) => Err(Error::settings(
                "a bandwidth of 0 bytes a second would deliver nothing: use a positive number, or none for no limit",
            )),
            Some(Throttle { latency, .. }) if latency > Duration::from_secs(3600) => {
                Err(Error::settings(format!("a latency of {latency:?} is not possible: use at most an hour")))
            }
            _ => Ok(()),
        }
    }
}

/// Opens a dataset of images:
///
/// - a directory with one folder a class, or one with `.tar` files;
/// - tar shards by name, with `{0000..0146}`, `{a,b}`, `*` and `?` for several (the order of names is the order of
///   ids);
/// - the same behind `file://`, and, where the crate is built with the feature `cloud`, `s3://`, `gs://`, `az://`,
///   `http://` and `https://`.
///
/// Labels of shards are numbers in `key.cls` beside `key.jpg` where there are any, otherwise the directory an image
/// lies in, numbered in the order of names.
///
/// # Errors
/// `Source` when something is missing, unreadable or empty; `Sample` when the data contradicts itself (labels missing,
/// names twice); `Settings` for options or URLs that make no sense. Shards are indexed here, so a truncated one is
/// found here and not in the middle of an epoch.
pub fn open(url_or_path: &str, options: &OpenOptions) -> Result<Arc<dyn Source>> {
    options.check()?;
    if url_or_path.is_empty() {
        return Err(Error::settings("the dataset's path is empty: pass a directory, tar shards or a URL"));
    }
    let local = match url_or_path.split_once("://") {
        None => url_or_path,
        Some(("file", path)) if path.starts_with('/') => path,
        Some(("file", _)) => {
            return Err(Error::settings(format!(
                "{url_or_path} is no file URL of this machine: write file:///absolute/path"
            )));
        }
        Some(_) => return store_open::remote(url_or_path, options),
    };
    if options.throttle.is_some() {
        return store_open::local(local, options);
    }
    match find(local)? {
        Found::Folder(root, listed) => {
            let catalog = folder::catalog(&root, listed)?;
            Ok(Arc::new(Files::new(catalog, LocalReader::new(root, 0), options.checksums)?))
        }
        Found::Shards(paths) => {
            let cache = options.index_cache.as_deref();
            let mut shards = Vec::with_capacity(paths.len());
            for path in paths {
                let (_, bytes, stamp) = local::open_file(&path)?;
                let shard = Shard { path, bytes, stamp };
                let key = || index_cache::local_key(&shard);
                let sum = |index: &mut ShardIndex| local::sum_shard(&shard, index);
                let sum: Option<&dyn Fn(&mut ShardIndex) -> Result<()>> =
                    if options.checksums { Some(&sum) } else { None };
                shards.push(index_cache::through(cache, key, &shard, || local::index_shard(&shard.path), sum)?);
            }
            let reader = LocalReader::new(PathBuf::new(), shards.len());
            let mut catalog = Catalog { url: local.to_owned(), ..Catalog::default() };
            label::assemble(&mut catalog, shards)?;
            Ok(Arc::new(Files::new(catalog, reader, options.checksums)?))
        }
    }
}

/// What a local name stands for.
pub(super) enum Found {
    /// A directory of class folders.
    Folder(PathBuf, Contents),
    /// Tar shards, in the order of ids.
    Shards(Vec<String>),
}

/// Looks at the file system. A name that exists is taken literally, whatever characters it has.
pub(super) fn find(name: &str) -> Result<Found> {
    let path = Path::new(name);
    if path.is_dir() {
        return directory(path);
    }
    if path.exists() {
        return Ok(Found::Shards(vec![name.to_owned()]));
    }
    let mut shards = Vec::new();
    for name in pattern::braces(name)? {
        let path = Path::new(&name);
        match path.file_name().and_then(|n| n.to_str()).filter(|n| pattern::has_wildcard(n) && !path.exists()) {
            None => shards.push(name),
            Some(wanted) => {
                let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
                let before = shards.len();
                for file in folder::contents(parent)?.files.iter().filter(|f| pattern::matches(wanted, f)) {
                    shards.push(local::utf8(&parent.join(file))?.to_owned());
                }
                if shards.len() == before {
                    return Err(Error::unreadable(format!(
                        "no file in {} matches {wanted:?}: check the pattern",
                        parent.display()
                    )));
                }
            }
        }
    }
    Ok(Found::Shards(shards))
}

fn directory(path: &Path) -> Result<Found> {
    let listed = folder::contents(path)?;
    let shards = shards_among(&listed.files);
    match (shards.is_empty(), listed.directories.is_empty()) {
        (true, _) => Ok(Found::Folder(path.to_owned(), listed)),
        (false, true) => shards
            .into_iter()
            .map(|s| Ok(local::utf8(&path.join(s))?.to_owned()))
            .collect::<Result<_>>()
            .map(Found::Shards),
        (false, false) => Err(ambiguous(&path.display().to_string(), shards.len(), listed.directories.len())),
    }
}

/// The file names that are tar shards.
pub(super) fn shards_among<S: AsRef<str>>(files: &[S]) -> Vec<&str> {
    files.iter().map(AsRef::as_ref).filter(|f| f.ends_with(".tar")).collect()
}

/// Both layouts in one place.
pub(super) fn ambiguous(what: &str, shards: usize, directories: usize) -> Error {
    Error::settings(format!(
        "{what} holds {shards} tar files and {directories} folders: say which is meant, for example {what}/*.tar"
    ))
}
