//! Samples in files of this machine: one positioned read a sample, no runtime between.
//!
//! A file's stamp is looked at behind the reads, before anybody sees what was read: times only grow, so the stamp of
//! the index, seen then, proves that nothing was written before or meanwhile. Members of shards are read together, a
//! few at a time, for one look.

use std::fs::{File, Metadata};
use std::io;
use std::ops::{ControlFlow, Range};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::io::Errno;

use super::catalog::{Catalog, Place, Shard};
use super::checksums;
use super::files::{changed, out_of_range, short_read};
use super::handles::Handles;
use super::identity::{Mark, Proof, Stamp};
use super::reader::Reader;
use super::tar::{self, ShardIndex};
use super::{Stop, Traffic};
use crate::error::{Error, Result};
use crate::types::SampleId;

/// Members read before their shards are looked at: as much as stays in a core's own cache until it is decoded.
const TOGETHER_BYTES: usize = 128 << 10;
/// Shards opened for members that are read together. They are held until somebody has looked at them, by each thread
/// that reads, beside those in [`Handles`]. Where all shards are open already, none is opened.
const OPENED_MAX: usize = 4;

/// Reads shards through open handles, and files of their own by path.
pub(super) struct LocalReader {
    root: PathBuf,
    handles: Handles,
}

impl LocalReader {
    /// `root` is what names of whole-file samples are relative to.
    pub(super) fn new(root: PathBuf, shards: usize) -> Self {
        Self { root, handles: Handles::of(shards) }
    }

    /// The shard's open file, and whether it had to be opened.
    fn shard(&self, catalog: &Catalog, number: u32) -> Result<(Arc<File>, bool)> {
        let shard = catalog.shards.get(number as usize);
        let shard = shard.ok_or_else(|| Error::internal(format!("shard {number} is not in the catalog")))?;
        self.handles.file(number as usize, || {
            let file = File::open(&shard.path).map_err(|e| failed(&shard.path, e))?;
            unchanged(shard, &file)?;
            Ok(file)
        })
    }

    fn member(&self, catalog: &Catalog, id: SampleId, place: Place, together: &mut Together) -> Result<Range<usize>> {
        let (file, opened) = self.shard(catalog, place.shard)?;
        together.opened += usize::from(opened);
        let start = together.used;
        let into = together.room(place.bytes as usize);
        let got = read_at(&file, into, place.offset).map_err(|e| failed(&catalog.name(id), e))?;
        let wanted = into.len();
        if !together.files.iter().any(|(number, _)| *number == place.shard) {
            together.files.push((place.shard, file.clone()));
        }
        if got < wanted {
            let now = file.metadata().map_or(0, |m| m.len());
            let (path, was) = catalog.shards.get(place.shard as usize).map_or(("", 0), |s| (s.path.as_str(), s.bytes));
            let (name, got) = (catalog.name(id), got.to_string());
            return Err(short_read(&name, path, place.offset, wanted as u64, &got, (was, now)));
        }
        together.used = start + wanted;
        Ok(start..start + wanted)
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
        let at = || path.display().to_string();
        let file = File::open(&*path).map_err(|e| failed(&at(), e))?;
        let wanted = u64::from(place.bytes);
        let into = room(buf, place.bytes as usize);
        let got = read_at(&file, into, 0).map_err(|e| failed(&at(), e))? as u64;
        let meta = file.metadata().map_err(|e| failed(&at(), e))?;
        if got < wanted {
            return Err(short_read(&catalog.name(id), &at(), 0, wanted, &got.to_string(), (wanted, meta.len())));
        }
        let proof = catalog.mark(id).proved_by(Mark::of(&Stamp::of_file(&meta)));
        if meta.len() != wanted || proof != Proof::Same {
            return Err(changed(&catalog.name(id), &at(), wanted, &now(&meta)));
        }
        Ok(into)
    }
}

/// Members that were read and are not handed out yet.
#[derive(Default)]
struct Together {
    buf: Vec<u8>,
    used: usize,
    read: Vec<(usize, SampleId, u32, Result<Range<usize>>)>,
    /// The shards they came from.
    files: Vec<(u32, Arc<File>)>,
    /// How many of these had to be opened.
    opened: usize,
}

impl Together {
    /// The next `bytes` of the buffer.
    fn room(&mut self, bytes: usize) -> &mut [u8] {
        let end = self.used + bytes;
        room(&mut self.buf, end.max(TOGETHER_BYTES)).get_mut(self.used..end).unwrap_or_default()
    }

    /// Looks at the shards, then hands the members out.
    fn hand_out(
        &mut self,
        catalog: &Catalog,
        sink: &mut dyn FnMut(usize, SampleId, Result<&[u8]>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let shard = |number: u32| catalog.shards.get(number as usize);
        self.files.retain(|(number, file)| shard(*number).is_some_and(|s| unchanged(s, file).is_err()));
        for (k, id, number, read) in self.read.drain(..) {
            // Nearly always nothing is left to look for.
            let stale = self.files.iter().find(|(n, _)| *n == number).and_then(|(n, f)| unchanged(shard(*n)?, f).err());
            let read = match stale {
                Some(error) => Err(Error::new(error.kind(), catalog.name(id)).because(error)),
                None => read,
            };
            sink(k, id, read.map(|range| self.buf.get(range).unwrap_or_default()))?;
        }
        (self.used, self.opened) = (0, 0);
        self.files.clear();
        ControlFlow::Continue(())
    }
}

/// Whether `file` is the shard as it was indexed.
pub(super) fn unchanged(shard: &Shard, file: &File) -> Result<()> {
    let meta = file.metadata().map_err(|e| failed(&shard.path, e))?;
    if meta.len() == shard.bytes && Stamp::of_file(&meta) == shard.stamp {
        return Ok(());
    }
    Err(changed("shard", &shard.path, shard.bytes, &now(&meta)))
}

fn now(meta: &Metadata) -> String {
    format!(
        "now {} bytes; its times are modified {}.{:09}, changed {}.{:09}",
        meta.len(),
        meta.mtime(),
        meta.mtime_nsec(),
        meta.ctime(),
        meta.ctime_nsec()
    )
}

impl Reader for LocalReader {
    fn in_turn(&self) -> bool {
        true
    }

    fn read(
        &self,
        catalog: &Arc<Catalog>,
        wanted: &[(usize, SampleId)],
        _request_bytes: u64,
        stopped: &dyn Fn() -> bool,
        sink: &mut dyn FnMut(usize, SampleId, Result<&[u8]>) -> ControlFlow<()>,
    ) -> Traffic {
        // All grow to what is needed once and serve the whole call.
        let (mut buf, mut path, mut together) = (Vec::new(), PathBuf::new(), Together::default());
        for &(k, id) in wanted {
            if stopped() {
                break;
            }
            let going = match catalog.place(id) {
                None => sink(k, id, Err(out_of_range(id, catalog.places.len()))),
                Some(place) if place.shard == Place::OWN_FILE => {
                    sink(k, id, self.whole_file(catalog, id, place, &mut path, &mut buf))
                }
                Some(place) => {
                    let full = together.used + place.bytes as usize > TOGETHER_BYTES || together.opened >= OPENED_MAX;
                    let going = if full { together.hand_out(catalog, sink) } else { ControlFlow::Continue(()) };
                    if going.is_continue() {
                        let read = self.member(catalog, id, place, &mut together);
                        together.read.push((k, id, place.shard, read));
                    }
                    going
                }
            };
            if going.is_break() {
                return Traffic::default();
            }
        }
        _ = together.hand_out(catalog, sink);
        Traffic::default()
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
pub(super) fn read_at(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
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
    let stamp = Stamp::of_file(&meta);
    settled(&stamp);
    Ok((file, meta.len(), stamp))
}

/// File systems keep time in ticks of a few milliseconds: a file written in this tick could be written again without
/// another time.
const TICK: Duration = Duration::from_millis(20);

/// Waits until whatever is written from now on has another time than `stamp`.
pub(super) fn settled(stamp: &Stamp) {
    let Ok(now) = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH) else { return };
    let age = now.as_nanos() as i128 - stamp.changed_ns;
    if let Ok(age) = u64::try_from(age)
        && let Some(left) = TICK.checked_sub(Duration::from_nanos(age))
    {
        std::thread::sleep(left);
    }
}

/// Indexes a local shard by walking its headers.
pub(super) fn index_shard(path: &str, stop: &Stop) -> Result<(Shard, ShardIndex)> {
    let (file, bytes, stamp) = open_file(path)?;
    let index = tar::walk(stop.reading(&file), bytes, path)?;
    let shard = Shard { path: path.to_owned(), bytes, stamp };
    unchanged(&shard, &file)?;
    Ok((shard, index))
}

/// Adds the checksums of a local shard's members.
pub(super) fn sum_shard(shard: &Shard, index: &mut ShardIndex, stop: &Stop) -> Result<()> {
    let file = File::open(&shard.path).map_err(|e| failed(&shard.path, e))?;
    checksums::of_members(stop.reading(&file), index).map_err(|e| failed(&shard.path, e))?;
    unchanged(shard, &file)
}

/// An I/O error on a path, with what to do about the common ones.
pub(super) fn failed(what: &str, e: io::Error) -> Error {
    let remedy = match e.kind() {
        io::ErrorKind::NotFound => "does not exist: check the path",
        io::ErrorKind::PermissionDenied => "may not be read by this user: change its permissions",
        _ if e.raw_os_error() == Some(Errno::MFILE.raw_os_error()) => {
            "cannot be opened, as this process has as many files open as it may: raise that number (ulimit -n)"
        }
        _ => "cannot be read",
    };
    Error::unreadable(format!("{} {remedy}", super::without_secrets(what))).because(e)
}

/// The path as text; names travel as text through errors and the index.
pub(super) fn utf8(path: &Path) -> Result<&str> {
    path.to_str().ok_or_else(|| Error::unreadable(format!("{} is not UTF-8: rename it", path.display())))
}
