//! What a name of this machine stands for: class folders, tar shards, or Parquet files.

#[cfg(feature = "cloud")]
use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result, printable};
use crate::format::catalog::{is_parquet, is_shard};
use crate::format::folder::{self, Contents};
use crate::format::pattern;
use crate::request::file;
use crate::stop::Stop;

/// What a local name stands for.
pub(crate) enum Found {
    /// A directory of class folders.
    Folder(PathBuf, Contents),
    /// Tar shards or Parquet files, in the order of ids.
    Shards(Vec<String>),
}

/// Looks at the file system. A name that exists is taken literally, whatever characters it has.
pub(crate) fn find(name: &str, stop: &Stop) -> Result<Found> {
    let path = Path::new(name);
    if path.is_dir() {
        return directory(path, stop);
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
                let listed = folder::contents(parent, stop)?;
                none_left_out(parent, &listed, |name| pattern::matches(wanted, name))?;
                for file in listed.files.iter().filter(|f| pattern::matches(wanted, f)) {
                    shards.push(file::utf8(&parent.join(file))?.to_owned());
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

fn directory(path: &Path, stop: &Stop) -> Result<Found> {
    let listed = folder::contents(path, stop)?;
    none_left_out(path, &listed, is_shard)?;
    let shards = shards_among(&listed.files);
    one_split(&path.display().to_string(), &shards)?;
    match (shards.is_empty(), listed.directories.is_empty()) {
        (true, _) => Ok(Found::Folder(path.to_owned(), listed)),
        (false, true) => shards
            .into_iter()
            .map(|s| Ok(file::utf8(&path.join(s))?.to_owned()))
            .collect::<Result<_>>()
            .map(Found::Shards),
        (false, false) => Err(ambiguous(&path.display().to_string(), shards.len(), listed.directories.len())),
    }
}

/// The file names that are tar shards or Parquet files.
pub(crate) fn shards_among<S: AsRef<str>>(files: &[S]) -> Vec<&str> {
    files.iter().map(AsRef::as_ref).filter(|f| is_shard(f)).collect()
}

/// A shard that cannot be reached is many samples, so it is not left out.
///
/// # Errors
/// `Source` with the first of them.
fn none_left_out(folder: &Path, listed: &Contents, wanted: impl Fn(&str) -> bool) -> Result<()> {
    match listed.left_out.iter().find(|entry| wanted(&entry.name)) {
        None => Ok(()),
        Some(entry) => {
            Err(Error::unreadable(format!("{} in {} {}", printable(&entry.name), folder.display(), entry.why.said())))
        }
    }
}

/// Whether shards are Parquet files.
///
/// # Errors
/// `Settings` for some that are and some that are not.
pub(crate) fn all_parquet<S: AsRef<str>>(shards: &[S]) -> Result<bool> {
    let names = || shards.iter().map(AsRef::as_ref);
    match (names().find(|name| is_parquet(name)), names().find(|name| !is_parquet(name))) {
        (Some(one), Some(other)) => {
            Err(Error::settings(format!("{one} is a Parquet file and {other} is not: open them apart")))
        }
        (parquet, _) => Ok(parquet.is_some()),
    }
}

/// The part that a file's name says it belongs to, as Hugging Face names files (`train-00000-of-00002.parquet`); empty
/// for other names.
fn part(name: &str) -> &str {
    match name.split_once('-') {
        Some((part, rest)) if rest.contains("-of-") && is_parquet(name) => part,
        _ => "",
    }
}

/// Files of a folder are one dataset, but not if they are a training and a test part.
///
/// # Errors
/// `Settings` with the parts.
pub(crate) fn one_split(folder: &str, shards: &[&str]) -> Result<()> {
    let parts: BTreeSet<&str> = shards.iter().map(|name| part(name)).collect();
    if parts.len() < 2 {
        return Ok(());
    }
    let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    Err(Error::settings(format!(
        "{folder} holds the parts {}: name the files of one, as {folder}/{}-*.parquet",
        parts.join(", "),
        parts.last().unwrap_or(&"train")
    )))
}

/// The shards of a repository whose files have these names, if they are of one folder and one part.
///
/// # Errors
/// `Settings` with what may be meant; `Source` where there are none.
#[cfg(feature = "cloud")]
pub(crate) fn of_repository(base: &str, names: &[String]) -> Result<Vec<String>> {
    let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for name in shards_among(names) {
        let (folder, file) = name.rsplit_once('/').map_or(("", name), |(folder, file)| (folder, file));
        let ending = if is_parquet(file) { "*.parquet" } else { "*.tar" };
        let begins = if part(file).is_empty() { String::new() } else { format!("{}-", part(file)) };
        let slash = if folder.is_empty() { "" } else { "/" };
        groups.entry(format!("{folder}{slash}{begins}{ending}")).or_default().push(name.to_owned());
    }
    if groups.len() > 1 {
        let meant: Vec<String> = groups.keys().take(8).map(|pattern| format!("{base}/{pattern}")).collect();
        let more = groups.len() - meant.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        return Err(Error::settings(format!("{base} holds several datasets: name one of {}{more}", meant.join(", "))));
    }
    let mut shards = groups.into_values().next().ok_or_else(|| {
        Error::unreadable(format!(
            "{base} has neither Parquet files nor tar shards: of most datasets the Hub keeps some, in the revision @~parquet"
        ))
    })?;
    shards.sort_unstable();
    Ok(shards)
}

/// Both layouts in one place.
pub(crate) fn ambiguous(what: &str, shards: usize, directories: usize) -> Error {
    Error::settings(format!(
        "{what} holds {shards} tar files and {directories} folders: say which is meant, for example {what}/*.tar"
    ))
}
