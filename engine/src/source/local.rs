//! Samples in files of this machine: one positioned read a sample, no runtime between.

use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;

use super::catalog::{Catalog, Place, Shard, Stamp};
use super::files::{Reader, changed, short_read};
use super::tar::{self, ShardIndex};
use crate::error::{Error, Result};
use crate::types::SampleId;

/// Shards kept open. Each costs a file descriptor, of which a process has 1024 by default.
const HANDLES_MAX: usize = 256;

type Handle = RwLock<Option<(u32, Arc<File>)>>;

/// Reads shards through open handles, and files of their own by path.
pub(super) struct LocalReader {
    root: PathBuf,
    handles: Vec<Handle>,
}

impl LocalReader {
    /// `root` is what names of whole-file samples are relative to.
    pub(super) fn new(root: PathBuf, shards: usize) -> Self {
        Self { root, handles: (0..shards.min(HANDLES_MAX)).map(|_| RwLock::new(None)).collect() }
    }

    /// The shard's open file. Two shards that share a handle (there are more shards than handles) close each other's.
    fn shard(&self, catalog: &Catalog, number: u32) -> Result<Arc<File>> {
        let missing = || Error::internal(format!("shard {number} is not in the catalog"));
        let handle = self.handles.get(number as usize % self.handles.len().max(1)).ok_or_else(missing)?;
        if let Some((held, file)) = &*handle.read()
            && *held == number
        {
            return Ok(file.clone());
        }
        let shard = catalog.shards.get(number as usize).ok_or_else(missing)?;
        let (file, bytes, stamp) = open_file(&shard.path)?;
        if (bytes, &stamp) != (shard.bytes, &shard.stamp) {
            return Err(changed("shard", &shard.path, shard.bytes, bytes));
        }
        let file = Arc::new(file);
        *handle.write() = Some((number, file.clone()));
        Ok(file)
    }

    fn member<'b>(&self, catalog: &Catalog, id: SampleId, place: Place, buf: &'b mut Vec<u8>) -> Result<&'b [u8]> {
        let file = self.shard(catalog, place.shard)?;
        let wanted = place.bytes as usize;
        let into = room(buf, wanted);
        let got = read_at(&file, into, place.offset).map_err(|e| failed(&catalog.name(id), e))?;
        if got < wanted {
            let path = catalog.shards.get(place.shard as usize).map_or("", |s| &s.path);
            return Err(short_read(&catalog.name(id), path, place.offset, wanted as u64, got as u64));
        }
        Ok(into)
    }

    fn whole_file<'b>(
        &self,
        catalog: &Catalog,
        id: SampleId,
        place: Place,
        path: &mut PathBuf,
        buf: &'b mut Vec<u8>,
    ) -> Result<&'b [u8]> {
        path.clone_from(&self.root);
        path.push(catalog.names.get(id as usize));
        let file = File::open(&*path).map_err(|e| failed(&path.display().to_string(), e))?;
        let wanted = place.bytes as usize;
        // One byte more than expected tells a file that grew without asking for its size.
        let into = room(buf, wanted + 1);
        let got = read_at(&file, into, 0).map_err(|e| failed(&path.display().to_string(), e))?;
        if got < wanted {
            return Err(short_read(&catalog.name(id), &path.display().to_string(), 0, wanted as u64, got as u64));
        }
        if got > wanted {
            let now = file.metadata().map_or(got as u64, |m| m.len());
            return Err(changed(&catalog.name(id), &path.display().to_string(), wanted as u64, now));
        }
        Ok(into.get(..wanted).unwrap_or_default())
    }
}

impl Reader for LocalReader {
    fn read(
        &self,
        catalog: &Catalog,
        wanted: &[(usize, SampleId)],
        sink: &mut dyn FnMut(usize, SampleId, Result<&[u8]>) -> ControlFlow<()>,
    ) {
        // Both grow to the largest sample once and serve the whole call.
        let (mut buf, mut path) = (Vec::new(), PathBuf::new());
        for &(k, id) in wanted {
            let data = match catalog.place(id) {
                None => Err(super::files::out_of_range(id, catalog.places.len())),
                Some(place) if place.shard == Place::OWN_FILE => {
                    self.whole_file(catalog, id, place, &mut path, &mut buf)
                }
                Some(place) => self.member(catalog, id, place, &mut buf),
            };
            if sink(k, id, data).is_break() {
                return;
            }
        }
    }
}

/// The first `bytes` of `buf`, grown when needed.
fn room(buf: &mut Vec<u8>, bytes: usize) -> &mut [u8] {
    if buf.len() < bytes {
        buf.resize(bytes, 0);
    }
    buf.split_at_mut(bytes).0
}

/// Reads until `buf` is full or the file ends.
fn read_at(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut got = 0;
    while let Some(rest) = buf.get_mut(got..).filter(|r| !r.is_empty()) {
        match file.read_at(rest, offset + got as u64) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(got)
}

/// Opens a regular file and tells its size and stamp.
pub(super) fn open_file(path: &str) -> Result<(File, u64, Stamp)> {
    let file = File::open(path).map_err(|e| failed(path, e))?;
    let meta = file.metadata().map_err(|e| failed(path, e))?;
    if !meta.is_file() {
        return Err(Error::unreadable(format!("{path} is neither a tar file nor a directory: check the path")));
    }
    let modified_ns = i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec());
    Ok((file, meta.len(), Stamp { etag: None, modified_ns }))
}

/// Indexes a local shard by walking its headers.
pub(super) fn index_shard(path: &str) -> Result<(Shard, ShardIndex)> {
    let (file, bytes, stamp) = open_file(path)?;
    let index = tar::walk(&file, bytes, path)?;
    Ok((Shard { path: path.to_owned(), bytes, stamp }, index))
}

/// An I/O error on a path, with what to do about the common ones.
pub(super) fn failed(what: &str, e: io::Error) -> Error {
    let remedy = match e.kind() {
        io::ErrorKind::NotFound => "does not exist: check the path",
        io::ErrorKind::PermissionDenied => "may not be read by this user: change its permissions",
        _ => "cannot be read",
    };
    Error::unreadable(format!("{what} {remedy}")).because(e)
}

/// The path as text; names travel as text through errors and the index.
pub(super) fn utf8(path: &Path) -> Result<&str> {
    path.to_str().ok_or_else(|| Error::unreadable(format!("{} is not UTF-8: rename it", path.display())))
}
