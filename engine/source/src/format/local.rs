//! Samples in files of this machine: one positioned read a sample, no runtime between.
//!
//! A file's stamp is looked at behind the reads, before anybody sees what was read: times only grow, so the stamp of
//! the index, seen then, proves that nothing was written before or meanwhile. Members of shards are read together, a
//! few at a time, for one look.

use std::fs::File;
use std::ops::{ControlFlow, Range};
use std::path::PathBuf;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::format::catalog::{Catalog, Place, Shard};
use crate::format::checksums;
use crate::format::files::out_of_range;
use crate::format::reader::Reader;
use crate::format::tar::{self, ShardIndex};
use crate::request::changed::changed;
use crate::request::changed::short_read;
use crate::request::file::{failed, now, open_file, read_at};
use crate::request::handles::Handles;
use crate::request::identity::{Mark, Proof, Stamp};
use crate::sample::Traffic;
use crate::stop::Stop;
use crate::types::SampleId;

/// Members read before their shards are looked at: as much as stays in a core's own cache until it is decoded.
const TOGETHER_BYTES: usize = 128 << 10;
/// Shards opened for members that are read together. They are held until somebody has looked at them, by each thread
/// that reads, beside those in [`Handles`]. Where all shards are open already, none is opened.
const OPENED_MAX: usize = 4;

/// Reads shards through open handles, and files of their own by path.
pub(crate) struct LocalReader {
    root: PathBuf,
    handles: Handles,
}

impl LocalReader {
    /// `root` is what names of whole-file samples are relative to.
    pub(crate) fn new(root: PathBuf, shards: usize) -> Self {
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
pub(crate) fn unchanged(shard: &Shard, file: &File) -> Result<()> {
    let meta = file.metadata().map_err(|e| failed(&shard.path, e))?;
    if meta.len() == shard.bytes && Stamp::of_file(&meta) == shard.stamp {
        return Ok(());
    }
    Err(changed("shard", &shard.path, shard.bytes, &now(&meta)))
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

/// Indexes a local shard by walking its headers.
pub(crate) fn index_shard(path: &str, stop: &Stop) -> Result<(Shard, ShardIndex)> {
    let (file, bytes, stamp) = open_file(path)?;
    let index = tar::walk(stop.reading(&file), bytes, path)?;
    let shard = Shard { path: path.to_owned(), bytes, stamp };
    unchanged(&shard, &file)?;
    Ok((shard, index))
}

/// Adds the checksums of a local shard's members.
pub(crate) fn sum_shard(shard: &Shard, index: &mut ShardIndex, stop: &Stop) -> Result<()> {
    let file = File::open(&shard.path).map_err(|e| failed(&shard.path, e))?;
    checksums::of_members(stop.reading(&file), index).map_err(|e| failed(&shard.path, e))?;
    unchanged(shard, &file)
}
