//! One file of records.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use lossfeed_sync::Mutex;

use crate::Key;
use crate::folder::{Folder, Listed, Name};
use crate::format::{self, ALIGNMENT, Entry, HEAD, RECORD_HEAD, TAIL};
use crate::open_files::OpenFile;
use crate::policy::{Resident, Worth};
use crate::read_at::{ReadAt, Trouble};

/// Torn segments are read in pieces of this size.
const PIECE: usize = 1 << 20;

/// A segment that can be read.
pub(crate) struct Segment {
    /// Its number in this process.
    pub(crate) number: u32,
    pub(crate) born: u64,
    pub(crate) complete: AtomicBool,
    folder: Arc<Folder>,
    file: Arc<OpenFile>,
    bytes: AtomicU64,
    /// What its records have saved since that was last folded into its worth, µs.
    saved_us: AtomicU64,
    value: Mutex<Value>,
}

struct Value {
    worth: Worth,
    used: Duration,
    /// The end of its records, and the cost of their fetches, when it was complete.
    known: (u64, u64),
}

/// What was found in a file.
pub(crate) struct Contents {
    pub(crate) entries: Vec<Entry>,
    pub(crate) cost_us: u64,
    /// The end of its records, in bytes from the file's start (exclusive).
    pub(crate) end: u64,
}

impl Segment {
    pub(crate) fn new(number: u32, listed: &Listed, folder: &Arc<Folder>, cost_us: u64) -> Self {
        Self {
            number,
            folder: Arc::clone(folder),
            file: Arc::default(),
            born: listed.name.born,
            complete: listed.name.complete.into(),
            bytes: listed.bytes.into(),
            saved_us: AtomicU64::new(0),
            value: Mutex::new(Value {
                worth: Worth::new(cost_us, listed.used),
                used: listed.used,
                known: (HEAD.len() as u64, 0),
            }),
        }
    }

    pub(crate) fn name(&self) -> Name {
        Name { born: self.born, complete: self.complete.load(Relaxed) }
    }

    /// Its file, open.
    pub(crate) fn file(&self) -> io::Result<Arc<File>> {
        self.file.get(|| self.folder.either(self.name()))
    }

    /// Its file is open as `file`.
    pub(crate) fn is_open(&self, file: &Arc<File>) {
        self.file.is(file);
    }

    fn readable(&self) -> Result<Arc<File>, Trouble> {
        self.file().map_err(|e| if e.kind() == io::ErrorKind::NotFound { Trouble::Gone } else { Trouble::Failed(e) })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// It is complete, and holds this.
    pub(crate) fn knows(&self, contents: &Contents) {
        self.value.lock().known = (contents.end, contents.cost_us);
    }

    /// The end of its records when it was complete, and the cost of their fetches.
    pub(crate) fn known(&self) -> (u64, u64) {
        self.value.lock().known
    }

    /// It is complete now, with so many bytes. Its records end at `end`, and their fetches took `cost_us` in all.
    pub(crate) fn ended(&self, bytes: u64, end: u64, cost_us: u64, now: Duration) {
        self.bytes.store(bytes, Relaxed);
        self.complete.store(true, Relaxed);
        *self.value.lock() = Value { worth: Worth::new(cost_us, now), used: now, known: (end, cost_us) };
    }

    /// Reads the record at `at` into `into`, which has its length, and tells what its fetch had cost. What stands in
    /// `into` after an error is to be forgotten.
    pub(crate) fn read(&self, read: &dyn ReadAt, at: u32, key: Key, into: &mut [u8]) -> Result<u32, Trouble> {
        self.saved(read_record(read, &*self.readable()?, at, key, into))
    }

    /// The same without waiting for a device; `None` if memory has not all of it.
    pub(crate) fn read_cached(
        &self,
        read: &dyn ReadAt,
        at: u32,
        key: Key,
        into: &mut [u8],
    ) -> Option<Result<u32, Trouble>> {
        let file = match self.readable() {
            Ok(file) => file,
            Err(trouble) => return Some(Err(trouble)),
        };
        let mut head = [0; RECORD_HEAD];
        let there = read.cached(&file, &mut head, into, u64::from(at) * ALIGNMENT);
        there.then(|| self.saved(sound(&head, key, into)))
    }

    fn saved(&self, read: Result<u32, Trouble>) -> Result<u32, Trouble> {
        if let Ok(cost_us) = read {
            self.saved_us.fetch_add(u64::from(cost_us).max(1), Relaxed);
        }
        read
    }

    /// Folds what was read since the last time into its worth, and lets other processes know that it is in use;
    /// `used_by_others` is what they let know.
    pub(crate) fn fold(&self, now: Duration, used_by_others: Duration) {
        let saved = self.saved_us.swap(0, Relaxed);
        let mut value = self.value.lock();
        // The clock may have been set back.
        value.used = value.used.max(used_by_others).min(now);
        value.worth.add(saved, now);
        if saved > 0 {
            value.used = now;
            // Advice to others: if it cannot be given, they think it out of use.
            let _ = self.folder.touch(self.name(), now);
        }
    }

    /// As the choice of who gives way sees it.
    pub(crate) fn resident(&self, now: Duration) -> Resident {
        let value = self.value.lock();
        Resident {
            number: self.number,
            born: self.born,
            bytes: self.bytes.load(Relaxed),
            log2_us: value.worth.log2_at(now),
            idle: now.saturating_sub(value.used),
        }
    }

    /// Its records by its footer.
    pub(crate) fn contents(&self) -> Option<Contents> {
        contents(&*self.file().ok()?)
    }
}

/// Reads the record at `at` of a segment's file, as [`Segment::read`].
pub(crate) fn read_record(read: &dyn ReadAt, file: &File, at: u32, key: Key, into: &mut [u8]) -> Result<u32, Trouble> {
    let mut head = [0; RECORD_HEAD];
    read.whole(file, &mut head, into, u64::from(at) * ALIGNMENT)?;
    sound(&head, key, into)
}

/// What the fetch of a record had cost, if it is whole and of `key`.
fn sound(head: &[u8; RECORD_HEAD], key: Key, data: &[u8]) -> Result<u32, Trouble> {
    let said = format::record_head(head).ok_or(Trouble::Damaged)?;
    if said.key != key || !format::is_sound(head, &said, data) {
        return Err(Trouble::Damaged);
    }
    Ok(said.cost_us)
}

/// What a complete file holds, by its footer; `None` if that is not whole.
pub(crate) fn contents(file: &File) -> Option<Contents> {
    let bytes = file.metadata().ok()?.len();
    let mut tail = [0; TAIL];
    file.read_exact_at(&mut tail, bytes.checked_sub(TAIL as u64)?).ok()?;
    let tail = format::tail(&tail, bytes)?;
    let mut head = [0; HEAD.len()];
    file.read_exact_at(&mut head, 0).ok()?;
    if head != *HEAD {
        return None;
    }
    let mut footer = vec![0; usize::try_from(bytes - tail.footer_at).ok()?];
    file.read_exact_at(&mut footer, tail.footer_at).ok()?;
    Some(Contents { entries: format::entries(&footer, tail.footer_at)?, cost_us: tail.cost_us, end: tail.footer_at })
}

/// Reads a file without a whole footer record by record, up to the first that is not sound.
pub(crate) fn scan(file: &File) -> io::Result<Contents> {
    scan_from(file, HEAD.len() as u64)
}

/// The same from a record on that begins at `at`, which is where an earlier scan ended.
pub(crate) fn scan_from(file: &File, at: u64) -> io::Result<Contents> {
    let bytes = file.metadata()?.len();
    let mut found = Contents { entries: Vec::new(), cost_us: 0, end: at };
    let mut head = [0; HEAD.len()];
    if file.read_exact_at(&mut head, 0).is_err() || head != *HEAD {
        return Ok(found);
    }
    let mut reader = BufReader::with_capacity(PIECE, At { file, position: at });
    let mut data = Vec::new();
    loop {
        let mut head = [0; RECORD_HEAD];
        if reader.read_exact(&mut head).is_err() {
            break;
        }
        let Some(said) = format::record_head(&head) else { break };
        let next = found.end + format::padded(said.bytes as usize);
        // A length that the file does not hold is not believed, nor given memory.
        if next > bytes {
            break;
        }
        data.resize((next - found.end) as usize - RECORD_HEAD, 0);
        if reader.read_exact(&mut data).is_err()
            || !format::is_sound(&head, &said, data.get(..said.bytes as usize).unwrap_or_default())
        {
            break;
        }
        let Ok(units) = u32::try_from(found.end / ALIGNMENT) else { break };
        found.entries.push(Entry { key: said.key, at: units, bytes: said.bytes });
        found.cost_us += u64::from(said.cost_us);
        found.end = next;
    }
    Ok(found)
}

/// Ends a file, and gives it its complete name. Answers how many bytes it has.
pub(crate) fn end(folder: &Folder, name: Name, file: &File, contents: &Contents) -> io::Result<u64> {
    let end = contents.end;
    let footer = format::footer(&contents.entries, end, contents.cost_us);
    // What lies behind the records, of a write that was cut, must not be behind the footer.
    file.set_len(end)?;
    file.write_all_at(&footer, end)?;
    if !name.complete {
        folder.complete(name)?;
    }
    Ok(end + footer.len() as u64)
}

/// A file read from its start, without its own position, which all who share it share.
struct At<'a> {
    file: &'a File,
    position: u64,
}

impl Read for At<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let got = self.file.read_at(into, self.position)?;
        self.position += got as u64;
        Ok(got)
    }
}
