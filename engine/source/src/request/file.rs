//! Files of this machine.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::io::Errno;

use super::identity::Stamp;
use crate::error::{Error, Result};

/// A file's state now, for people.
pub(crate) fn now(meta: &Metadata) -> String {
    format!(
        "now {} bytes; its times are modified {}.{:09}, changed {}.{:09}",
        meta.len(),
        meta.mtime(),
        meta.mtime_nsec(),
        meta.ctime(),
        meta.ctime_nsec()
    )
}

/// Reads until `buf` is full or the file ends.
pub(crate) fn read_at(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
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
pub(crate) fn open_file(path: &str) -> Result<(File, u64, Stamp)> {
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
pub(crate) fn settled(stamp: &Stamp) {
    let Ok(now) = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH) else { return };
    let age = now.as_nanos() as i128 - stamp.changed_ns;
    if let Ok(age) = u64::try_from(age)
        && let Some(left) = TICK.checked_sub(Duration::from_nanos(age))
    {
        std::thread::sleep(left);
    }
}

/// An I/O error on a path, with what to do about the common ones.
pub(crate) fn failed(what: &str, e: io::Error) -> Error {
    let remedy = match e.kind() {
        io::ErrorKind::NotFound => "does not exist: check the path",
        io::ErrorKind::PermissionDenied => "may not be read by this user: change its permissions",
        _ if e.raw_os_error() == Some(Errno::MFILE.raw_os_error()) => {
            "cannot be opened, as this process has as many files open as it may: raise that number (ulimit -n)"
        }
        _ => "cannot be read",
    };
    Error::unreadable(format!("{} {remedy}", crate::shown::without_secrets(what))).because(e)
}

/// The path as text; names travel as text through errors and the index.
pub(crate) fn utf8(path: &Path) -> Result<&str> {
    path.to_str().ok_or_else(|| Error::unreadable(format!("{} is not UTF-8: rename it", path.display())))
}
