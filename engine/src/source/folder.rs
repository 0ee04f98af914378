//! A class-per-folder directory, as torchvision's `ImageFolder` means it: the directories directly below the root are
//! the classes, in the order of their names; images may lie deeper; links are followed.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::catalog::{Catalog, is_hidden, is_image};
use super::identity::Stamp;
use super::local::{failed, settled, utf8};
use crate::error::{Error, Result};

/// Directories below a class; deeper trees are a mistake or an attack.
const DEPTH_MAX: usize = 32;

/// What lies directly in a directory.
pub(super) struct Contents {
    /// Names of directories, sorted, without hidden ones.
    pub(super) directories: Vec<String>,
    /// Names of files, sorted, without hidden ones.
    pub(super) files: Vec<String>,
}

/// Lists a directory, following links.
pub(super) fn contents(path: &Path) -> Result<Contents> {
    let mut found = Contents { directories: Vec::new(), files: Vec::new() };
    let at = || path.display().to_string();
    for entry in fs::read_dir(path).map_err(|e| failed(&at(), e))? {
        let entry = entry.map_err(|e| failed(&at(), e))?;
        let name = entry.file_name();
        let name = utf8(Path::new(&name))?.to_owned();
        if is_hidden(&name) {
            continue;
        }
        let mut kind = entry.file_type().map_err(|e| failed(&entry.path().display().to_string(), e))?;
        if kind.is_symlink() {
            kind = fs::metadata(entry.path()).map_err(|e| failed(&entry.path().display().to_string(), e))?.file_type();
        }
        if kind.is_dir() {
            found.directories.push(name);
        } else {
            found.files.push(name);
        }
    }
    found.directories.sort_unstable();
    found.files.sort_unstable();
    Ok(found)
}

/// Catalogs the images below `root`.
///
/// # Errors
/// `Sample` for a class without images; `Source` when a directory cannot be read.
pub(super) fn catalog(root: &Path, listed: Contents) -> Result<Catalog> {
    let mut catalog = Catalog { url: root.display().to_string(), ..Catalog::default() };
    catalog.ignored.others += listed.files.len() as u64;
    let mut newest = Stamp::default();
    for (label, class) in (0i64..).zip(&listed.directories) {
        let before = catalog.places.len();
        let mut walk = Walk { root, catalog: &mut catalog, above: HashSet::new(), newest: &mut newest };
        walk.directory(class, 0)?;
        if catalog.places.len() == before {
            return Err(empty_class(class, &catalog.url));
        }
        catalog.labels.resize(catalog.places.len(), label);
    }
    catalog.classes = listed.directories;
    settled(&newest);
    Ok(catalog)
}

/// A class nobody can learn: most likely a wrong directory or a broken copy.
pub(super) fn empty_class(class: &str, root: &str) -> Error {
    Error::sample(format!(
        "the class folder {class} in {root} holds no .jpg, .jpeg or .png files: add some or remove the folder"
    ))
}

struct Walk<'a> {
    root: &'a Path,
    catalog: &'a mut Catalog,
    /// Device and inode of the directories we are in, so that a link to one of them is an error and not a loop.
    above: HashSet<(u64, u64)>,
    /// Of the file that was written last.
    newest: &'a mut Stamp,
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
        let found = contents(&path)?;
        for file in &found.files {
            let name = format!("{relative}/{file}");
            if !is_image(file) {
                self.catalog.ignored.others += 1;
                continue;
            }
            let path = path.join(file);
            let meta = fs::metadata(&path).map_err(|e| failed(&path.display().to_string(), e))?;
            if meta.is_file() {
                let stamp = Stamp::of_file(&meta);
                self.catalog.push_file(&name, meta.len(), &stamp)?;
                if stamp.changed_ns > self.newest.changed_ns {
                    *self.newest = stamp;
                }
            } else {
                self.catalog.ignored.others += 1;
            }
        }
        for below in &found.directories {
            self.directory(&format!("{relative}/{below}"), depth + 1)?;
        }
        self.above.remove(&identity);
        Ok(())
    }
}
