//! The kinds of URLs that a dataset is opened by: one table, from which opening, what it says and Python's docs follow.
//!
//! To add one: a file here with a `connect` and a `place_of`, and a row.

use crate::error::{Error, Result};
#[cfg(feature = "cloud")]
use crate::options::OpenOptions;
#[cfg(feature = "cloud")]
use crate::place::{cloud, hub, target::Target};
use crate::shown::without_secrets;

/// A kind of URL.
#[derive(Debug)]
pub struct Scheme {
    /// The prefix as it is written, such as `s3://`.
    pub name: &'static str,
    /// The kind of store or place that it reaches.
    pub help: &'static str,
    /// The words that may stand before `://`.
    spellings: &'static [&'static str],
    /// The connection to its store. None for files of this machine.
    #[cfg(feature = "cloud")]
    pub(crate) reach: Option<Reach>,
}

/// A store's connection.
#[cfg(feature = "cloud")]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reach {
    /// The store of a URL, and the keys that it stands for.
    pub(crate) connect: fn(&str, &OpenOptions) -> Result<Target>,
    /// A name that tells the store from others, found without asking it.
    pub(crate) place: fn(&str, &OpenOptions) -> Result<String>,
}

#[cfg(feature = "cloud")]
const CLOUD: Option<Reach> = Some(Reach { connect: cloud::connect, place: cloud::place_of });

/// All there are.
pub static SCHEMES: [Scheme; 6] = [
    Scheme {
        name: "s3://",
        help: "Amazon S3, and stores with its interface",
        spellings: &["s3", "s3a"],
        #[cfg(feature = "cloud")]
        reach: CLOUD,
    },
    Scheme {
        name: "gs://",
        help: "Google Cloud Storage",
        spellings: &["gs"],
        #[cfg(feature = "cloud")]
        reach: CLOUD,
    },
    Scheme {
        name: "az://",
        help: "Azure Blob Storage",
        spellings: &["az", "azure", "abfs", "abfss", "adl"],
        #[cfg(feature = "cloud")]
        reach: CLOUD,
    },
    Scheme {
        name: "hf://",
        help: "datasets of the Hugging Face Hub",
        spellings: &["hf"],
        #[cfg(feature = "cloud")]
        reach: Some(Reach { connect: hub::connect, place: hub::place_of }),
    },
    Scheme {
        name: "http(s)://",
        help: "web servers, and signed URLs",
        spellings: &["http", "https"],
        #[cfg(feature = "cloud")]
        reach: CLOUD,
    },
    Scheme {
        name: FILES,
        help: "files of this machine",
        spellings: &["file"],
        #[cfg(feature = "cloud")]
        reach: None,
    },
];

const FILES: &str = "file://";

impl Scheme {
    /// The scheme of a URL; `None` for a path.
    ///
    /// # Errors
    /// `Settings` for a scheme that is not in the table.
    pub(crate) fn of(url_or_path: &str) -> Result<Option<&'static Self>> {
        let Some((spelt, _)) = url_or_path.split_once("://") else { return Ok(None) };
        let spelt = spelt.trim_start().to_ascii_lowercase();
        let found = SCHEMES.iter().find(|scheme| scheme.spellings.contains(&spelt.as_str()));
        found.map(Some).ok_or_else(|| {
            Error::settings(format!(
                "{} names no store this engine knows: use {}, or {FILES} and a path of this machine",
                without_login(url_or_path),
                stores()
            ))
        })
    }

    /// True for files of this machine.
    pub(crate) fn is_local(&self) -> bool {
        self.name == FILES
    }
}

/// The names of all kinds of stores.
pub(crate) fn stores() -> String {
    let names = SCHEMES.iter().filter(|scheme| !scheme.is_local()).map(|scheme| scheme.name);
    names.collect::<Vec<_>>().join(", ")
}

/// A URL of a kind that nobody knows may have a login without a colon, too.
fn without_login(url: &str) -> String {
    let shown = without_secrets(url);
    let Some((scheme, rest)) = shown.split_once("://") else { return shown };
    let host_ends = rest.find('/').unwrap_or(rest.len());
    match rest.get(..host_ends).and_then(|host| host.rsplit_once('@')) {
        Some((_, host)) => format!("{scheme}://***@{host}{}", rest.get(host_ends..).unwrap_or_default()),
        None => shown,
    }
}
