//! One file of records.

use std::fs::{File, FileTimes};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use lossfeed_sync::Mutex;

use crate::Key;
use crate::folder::{Folder, Listed, Name};
use crate::format::{self, ALIGNMENT, Entry, HEAD, RECORD_HEAD, TAIL};
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
    pub(crate) file: File,
    bytes: AtomicU64,
    /// What its records have saved since that was last folded into its worth, µs.
    saved_us: AtomicU64,
    value: Mutex<Value>,
}

struct Value {
    worth: Worth,
    used: Duration,
}

/// What was found in a file.
pub(crate) struct Contents {
    pub(crate) entries: Vec<Entry>,
    pub(crate) cost_us: u64,
}

impl Segment {
    pub(crate) fn new(number: u32, listed: &Listed, file: File, cost_us: u64) -> Self {
        Self {
            number,
            born: listed.name.born,
            complete: listed.name.complete.into(),
            file,
            bytes: listed.bytes.into(),
            saved_us: AtomicU64::new(0),
            value: Mutex::new(Value { worth: Worth::new(cost_us, listed.used), used: listed.used }),
        }
    }

    pub(crate) fn name(&self) -> Name {
        Name { born: self.born, complete: self.complete.load(Relaxed) }
    }

    /// It is complete now, with so many bytes, whose fetches took `cost_us` in all.
    pub(crate) fn ended(&self, bytes: u64, cost_us: u64, now: Duration) {
        self.bytes.store(bytes, Relaxed);
        self.complete.store(true, Relaxed);
        *self.value.lock() = Value { worth: Worth::new(cost_us, now), used: now };
    }

    /// Reads the record at `at` into `into`, which has its length, and tells what its fetch had cost. What stands in
    /// `into` after an error is to be forgotten.
    pub(crate) fn read(&self, read: &dyn ReadAt, at: u32, key: Key, into: &mut [u8]) -> Result<u32, Trouble> {
        let mut head = [0; RECORD_HEAD];
        read.whole(&self.file, &mut head, into, u64::from(at) * ALIGNMENT)?;
        self.checked(&head, key, into)
    }

    /// The same without waiting for a device; `None` if memory has not all of it.
    pub(crate) fn read_cached(
        &self,
        read: &dyn ReadAt,
        at: u32,
        key: Key,
        into: &mut [u8],
    ) -> Option<Result<u32, Trouble>> {
        let mut head = [0; RECORD_HEAD];
        let there = read.cached(&self.file, &mut head, into, u64::from(at) * ALIGNMENT);
        there.then(|| self.checked(&head, key, into))
    }

    fn checked(&self, head: &[u8; RECORD_HEAD], key: Key, data: &[u8]) -> Result<u32, Trouble> {
        let said = format::record_head(head).ok_or(Trouble::Damaged)?;
        if said.key != key || !format::is_sound(head, &said, data) {
            return Err(Trouble::Damaged);
        }
        self.saved_us.fetch_add(u64::from(said.cost_us).max(1), Relaxed);
        Ok(said.cost_us)
    }

    /// Folds what was read since the last time into its worth, and lets other processes know that it is in use;
    /// `used_by_others` is what they let know.
    pub(crate) fn fold(&self, now: Duration, used_by_others: Duration) {
        let saved = self.saved_us.swap(0, Relaxed);
        let mut value = self.value.lock();
        value.used = value.used.max(used_by_others);
        if saved > 0 {
            value.worth.add(saved, now);
            value.used = value.used.max(now);
            // Advice to others: if it cannot be given, they think it out of use.
            let _ = self.file.set_times(FileTimes::new().set_modified(SystemTime::UNIX_EPOCH + now));
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
        contents(&self.file)
    }
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
    Some(Contents { entries: format::entries(&footer, tail.footer_at)?, cost_us: tail.cost_us })
}

/// Reads a file without a whole footer record by record, up to the first that is not sound. Also tells where it is.
pub(crate) fn scan(file: &File) -> io::Result<(Contents, u64)> {
    scan_from(file, HEAD.len() as u64)
}

/// The same from a record on that begins at `at`, which is where an earlier scan ended.
pub(crate) fn scan_from(file: &File, mut at: u64) -> io::Result<(Contents, u64)> {
    let bytes = file.metadata()?.len();
    let mut found = Contents { entries: Vec::new(), cost_us: 0 };
    let mut head = [0; HEAD.len()];
    if file.read_exact_at(&mut head, 0).is_err() || head != *HEAD {
        return Ok((found, at));
    }
    let mut reader = BufReader::with_capacity(PIECE, At { file, position: at });
    let mut data = Vec::new();
    loop {
        let mut head = [0; RECORD_HEAD];
        if reader.read_exact(&mut head).is_err() {
            break;
        }
        let Some(said) = format::record_head(&head) else { break };
        let next = at + format::padded(said.bytes as usize);
        // A length that the file does not hold is not believed, nor given memory.
        if next > bytes {
            break;
        }
        data.resize((next - at) as usize - RECORD_HEAD, 0);
        if reader.read_exact(&mut data).is_err()
            || !format::is_sound(&head, &said, data.get(..said.bytes as usize).unwrap_or_default())
        {
            break;
        }
        let Ok(units) = u32::try_from(at / ALIGNMENT) else { break };
        found.entries.push(Entry { key: said.key, at: units, bytes: said.bytes });
        found.cost_us += u64::from(said.cost_us);
        at = next;
    }
    Ok((found, at))
}

/// Ends a file whose records end at `end`, and gives it its complete name.
pub(crate) fn end(folder: &Folder, name: Name, file: &File, contents: &Contents, end: u64) -> io::Result<u64> {
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
