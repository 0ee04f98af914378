//! A class-per-folder directory, as torchvision's `ImageFolder` means it: the directories directly below the root are
//! the classes, in the order of their names; images may lie deeper; links are followed. In each directory its files
//! come first, then what lies in its directories. Hidden files and directories are passed over.
//!
//! What cannot be a sample does not stand in the way of those that are: a link that leads nowhere, or a name that is not
//! UTF-8, is left out, counted, and told of once.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::fs::{self, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::io::Errno;

use crate::decode::endings_said;
use crate::decode::is_image;
use crate::error::{Error, Result, printable};
use crate::format::catalog::{Catalog, is_hidden, is_parquet, is_shard};
use crate::request::file::{failed, settled};
use crate::request::identity::Stamp;
use crate::stop::Stop;

/// Directories below a class; deeper trees are a mistake or an attack.
const DEPTH_MAX: usize = 32;

/// What lies directly in a directory.
pub(crate) struct Contents {
    /// Names of directories, sorted, without hidden ones.
    pub(crate) directories: Vec<String>,
    /// Names of files, sorted, without hidden ones.
    pub(crate) files: Vec<String>,
    /// What can be neither, sorted.
    pub(crate) left_out: Vec<LeftOut>,
}

/// An entry of a directory that cannot be used.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LeftOut {
    /// Its name, with marks in place of what is not UTF-8.
    pub(crate) name: String,
    pub(crate) why: Why,
}

/// Why an entry of a directory cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Why {
    /// It is a link, or was gone when it was looked at.
    LeadsNowhere,
    NotUtf8,
}

impl Why {
    /// What is wrong with it, and the remedy.
    pub(crate) fn said(self) -> &'static str {
        match self {
            Self::LeadsNowhere => "is a broken link: repair or remove it",
            Self::NotUtf8 => "has a name that is not UTF-8: rename it",
        }
    }
}

/// Lists a directory, following links.
pub(crate) fn contents(path: &Path, stop: &Stop) -> Result<Contents> {
    let mut found = Contents { directories: Vec::new(), files: Vec::new(), left_out: Vec::new() };
    let at = || path.display().to_string();
    for entry in fs::read_dir(path).map_err(|e| failed(&at(), e))? {
        stop.check()?;
        let entry = entry.map_err(|e| failed(&at(), e))?;
        let name = match entry.file_name().into_string() {
            Ok(name) if is_hidden(&name) => continue,
            Ok(name) => name,
            Err(name) => {
                found.left_out.push(LeftOut { name: name.to_string_lossy().into_owned(), why: Why::NotUtf8 });
                continue;
            }
        };
        let mut kind = entry.file_type().map_err(|e| failed(&entry.path().display().to_string(), e))?;
        if kind.is_symlink() {
            match there(&entry.path())? {
                Some(meta) => kind = meta.file_type(),
                None => {
                    found.left_out.push(LeftOut { name, why: Why::LeadsNowhere });
                    continue;
                }
            }
        }
        if kind.is_dir() {
            found.directories.push(name);
        } else {
            found.files.push(name);
        }
    }
    found.directories.sort_unstable();
    found.files.sort_unstable();
    found.left_out.sort_unstable();
    Ok(found)
}

/// What lies at a path or where it leads; `None` if it leads nowhere.
fn there(path: &Path) -> Result<Option<Metadata>> {
    match fs::metadata(path) {
        Ok(meta) => Ok(Some(meta)),
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        // A link to itself.
        Err(e) if e.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => Ok(None),
        Err(e) => Err(failed(&path.display().to_string(), e)),
    }
}

/// Catalogs the images below `root`.
///
/// # Errors
/// `Sample` for a class without images; `Source` when a directory cannot be read.
pub(crate) fn catalog(root: &Path, listed: Contents, stop: &Stop) -> Result<Catalog> {
    let mut catalog = Catalog { url: root.display().to_string(), ..Catalog::default() };
    catalog.ignored.others += listed.files.len() as u64;
    let mut newest = Stamp::default();
    let mut strangers = Strangers::default();
    strangers.add("", &listed.left_out);
    for (label, class) in (0i64..).zip(&listed.directories) {
        let before = catalog.places.len();
        let mut shard = None;
        let mut found = |name: &str, meta: Option<&Metadata>| {
            match meta.filter(|_| is_image(name)) {
                None => catalog.ignored.others += 1,
                Some(meta) => {
                    let stamp = Stamp::of_file(meta);
                    catalog.push_file(name, meta.len(), &stamp)?;
                    if stamp.changed_ns > newest.changed_ns {
                        newest = stamp;
                    }
                }
            }
            if is_shard(name) {
                shard = Some(name.to_owned());
            }
            Ok(())
        };
        let mut walk =
            Walk { root, found: &mut found, all: false, above: HashSet::new(), strangers: &mut strangers, stop };
        walk.directory(class, 0)?;
        if catalog.places.len() == before {
            return Err(empty_class(class, &catalog.url, shard.as_deref()));
        }
        catalog.labels.resize(catalog.places.len(), label);
    }
    strangers.tell(root);
    catalog.ignored.links += strangers.nowhere;
    catalog.ignored.others += strangers.not_utf8;
    catalog.classes = listed.directories;
    settled(&newest);
    Ok(catalog)
}

/// The names of all files below `root`, in the order of ids, without hidden ones.
///
/// # Errors
/// `Source` when a directory cannot be read.
pub(crate) fn below(root: &Path, stop: &Stop) -> Result<Vec<String>> {
    let (mut names, mut strangers) = (Vec::new(), Strangers::default());
    let mut found = |name: &str, meta: Option<&Metadata>| {
        names.extend(meta.map(|_| name.to_owned()));
        Ok(())
    };
    Walk { root, found: &mut found, all: true, above: HashSet::new(), strangers: &mut strangers, stop }
        .directory("", 0)?;
    strangers.tell(root);
    Ok(names)
}

/// The order of ids, of two files by their paths below the root.
pub(crate) fn order(mut a: &str, mut b: &str) -> Ordering {
    loop {
        match (a.split_once('/'), b.split_once('/')) {
            (Some((above_a, below_a)), Some((above_b, below_b))) if above_a == above_b => (a, b) = (below_a, below_b),
            (Some((above_a, _)), Some((above_b, _))) => return above_a.cmp(above_b),
            (None, Some(_)) => return Ordering::Less,
            (Some(_), None) => return Ordering::Greater,
            (None, None) => return a.cmp(b),
        }
    }
}

/// A class nobody can learn: most likely a wrong directory or a broken copy, or the folder of the file `shard`.
pub(crate) fn empty_class(class: &str, root: &str, shard: Option<&str>) -> Error {
    if let Some((folder, file)) = shard.and_then(|shard| shard.rsplit_once('/')) {
        let columns = if folder.contains('=') {
            "; the columns that names of folders stand for, as in partitioned Parquet, are not read: write them into the files"
        } else {
            ""
        };
        let ending = if is_parquet(file) { "parquet" } else { "tar" };
        return Error::settings(format!(
            "{root} holds {} files in folders ({folder}/{file}): name those of one folder, as {root}/{folder}/*.{ending}, or of several, as \
             {root}/{{A,B}}/*.{ending}{columns}",
            if is_parquet(file) { "Parquet" } else { "tar" },
        ));
    }
    Error::sample(format!(
        "the class folder {class} in {root} holds no images ({}): add some or remove the folder",
        endings_said()
    ))
}

/// What was left out of a folder.
#[derive(Default)]
struct Strangers {
    nowhere: u64,
    not_utf8: u64,
    first: Option<String>,
}

impl Strangers {
    /// Those of one directory, whose name below the root is `relative`.
    fn add(&mut self, relative: &str, left_out: &[LeftOut]) {
        for LeftOut { name, why } in left_out {
            match why {
                Why::LeadsNowhere => self.nowhere += 1,
                Why::NotUtf8 => self.not_utf8 += 1,
            }
            self.first.get_or_insert_with(|| {
                printable(&format!("{} {}", below_root(relative, name), why.said())).into_owned()
            });
        }
    }

    fn tell(&self, root: &Path) {
        if let Some(first) = &self.first {
            tracing::warn!(
                "{} entries of {} are left out ({} links that lead nowhere, {} names that are not UTF-8); the first: {first}",
                self.nowhere + self.not_utf8,
                root.display(),
                self.nowhere,
                self.not_utf8,
            );
        }
    }
}

/// A name in the directory `relative`, which is empty for the root.
fn below_root(relative: &str, name: &str) -> String {
    if relative.is_empty() { name.to_owned() } else { format!("{relative}/{name}") }
}

struct Walk<'a> {
    root: &'a Path,
    /// Gets each name below the root, and what is there if that is a file.
    found: &'a mut dyn FnMut(&str, Option<&Metadata>) -> Result<()>,
    /// Files that are no images are looked at too.
    all: bool,
    /// Device and inode of the directories we are in, so that a link to one of them is an error and not a loop.
    above: HashSet<(u64, u64)>,
    strangers: &'a mut Strangers,
    stop: &'a Stop,
}

impl Walk<'_> {
    fn directory(&mut self, relative: &str, depth: usize) -> Result<()> {
        let path = self.root.join(relative);
        let meta = fs::metadata(&path).map_err(|e| failed(&path.display().to_string(), e))?;
        let identity = (meta.dev(), meta.ino());
        if depth > DEPTH_MAX || !self.above.insert(identity) {
            return Err(Error::unreadable(format!(
                "{} leads back to a directory above it, or lies more than {DEPTH_MAX} deep: remove the link",
                path.display()
            )));
        }
        let found = contents(&path, self.stop)?;
        self.strangers.add(relative, &found.left_out);
        for file in &found.files {
            self.stop.check()?;
            let name = below_root(relative, file);
            if !is_image(file) && !self.all {
                (self.found)(&name, None)?;
                continue;
            }
            let Some(meta) = there(&path.join(file))? else {
                // It was there a moment ago.
                self.strangers.add(relative, &[LeftOut { name: file.clone(), why: Why::LeadsNowhere }]);
                continue;
            };
            (self.found)(&name, Some(&meta).filter(|meta| meta.is_file()))?;
        }
        for below in &found.directories {
            self.directory(&below_root(relative, below), depth + 1)?;
        }
        self.above.remove(&identity);
        Ok(())
    }
}
