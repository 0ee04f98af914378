//! Limits from outside: a text file beside a stats page, which the engine reads once a second.
//!
//! ```text
//! limit="20MB"
//! resize="8GiB"
//! ```
//!
//! `limit` is bytes a second from the store, `resize` the cache's limit in bytes. A key that is left out sets nothing,
//! and without the file the engine is as it was made. `lossfeed allocate --apply` writes it. `$LOSSFEED_LIMITS` names
//! another file instead: a pod's annotations, as Kubernetes' downward API writes them. There our keys begin with
//! `lossfeed.dev/`, and those of other programs are skipped.
//!
//! **Trust.** The file beside the page must be a regular file of the page's owner that no other user can read or write;
//! no link is followed. The named file may be reached through links, as Kubernetes makes them, but must belong to this
//! user or root, and only its owner may write it. A file that is refused, or does not say what is expected, changes
//! nothing: the last limits hold.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::directory::{Directory, read_exact};

/// Before our keys among a pod's annotations.
const PREFIX: &str = "lossfeed.dev/";
/// A longer file beside a page is not ours.
const BESIDE_MAX: usize = 4096;
/// A pod's annotations have 256 KiB at most; escapes make them longer.
const NAMED_MAX: usize = 1 << 20;

/// Limits that another program sets. `None`: not set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes a second from the store.
    pub limit: Option<u64>,
    /// The cache's limit in bytes.
    pub resize: Option<u64>,
}

impl Limits {
    pub(super) fn text(self) -> String {
        let line = |key: &str, value: Option<u64>| value.map(|value| format!("{key}=\"{value}\"\n"));
        [line("limit", self.limit), line("resize", self.resize)].into_iter().flatten().collect()
    }
}

/// "64KiB", "20MB", "1.5GiB" or plain bytes → bytes.
///
/// # Errors
/// The form that is expected.
pub fn bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let cut = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(cut);
    let unit = unit.trim();
    let scale = match unit.trim_end_matches("/s").to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "kb" | "k" => 1e3,
        "mb" | "m" => 1e6,
        "gb" | "g" => 1e9,
        "tb" | "t" => 1e12,
        "kib" => 1024.0,
        "mib" => 1024.0 * 1024.0,
        "gib" => 1024.0 * 1024.0 * 1024.0,
        "tib" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        _ => return Err(format!("unit {unit:?} is not one of B, kB, MB, GB, TB, KiB, MiB, GiB, TiB")),
    };
    match number.parse::<f64>() {
        Ok(x) if x >= 0.0 && x * scale < u64::MAX as f64 => Ok((x * scale).round() as u64),
        _ => Err("must be a size such as 64MiB or 20MB".to_owned()),
    }
}

/// The limits that a file sets. `annotations`: a pod's, of which only ours count.
///
/// # Errors
/// One line that names the first line that is wrong, and why.
pub(super) fn parse(text: &[u8], annotations: bool) -> Result<Limits, String> {
    let text = std::str::from_utf8(text).map_err(|_| "it is not UTF-8 text".to_owned())?;
    let mut found = Limits::default();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
        let wrong = |why: &str| {
            let start: String = line.chars().take(60).collect();
            format!("line {}, {start:?}: {why}", number + 1)
        };
        let Some((key, value)) = line.split_once('=') else {
            return Err(wrong("expected KEY=\"VALUE\""));
        };
        let own = key.strip_prefix(PREFIX);
        if annotations && own.is_none() {
            continue;
        }
        let place = match own.unwrap_or(key) {
            "limit" => &mut found.limit,
            "resize" => &mut found.resize,
            _ => return Err(wrong("unknown key: limit and resize are known")),
        };
        let plain = match value.strip_prefix('"') {
            Some(rest) => rest.strip_suffix('"').ok_or_else(|| wrong("the closing quote is missing"))?,
            None => value,
        };
        let value = bytes(plain).map_err(|why| wrong(&why))?;
        if value == 0 && own.unwrap_or(key) == "limit" {
            return Err(wrong("a limit of 0 would stop the job: leave the line out for no limit"));
        }
        if place.replace(value).is_some() {
            return Err(wrong("this key comes twice"));
        }
    }
    Ok(found)
}

/// Device, inode, size and times of a file: another stamp means that it changed.
type Stamp = (u64, u64, i64, (i64, u64), (i64, u64));

/// The last look at the limits file.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Absent,
    Read(Stamp),
    /// It could not be opened, or may not be trusted.
    Refused(String),
}

/// The limits file of one engine.
#[derive(Debug)]
pub(super) struct LimitsFile {
    /// `$LOSSFEED_LIMITS`, else the file beside the page.
    named: Option<PathBuf>,
    seen: Seen,
}

impl LimitsFile {
    pub(super) fn new(named: Option<PathBuf>) -> Self {
        Self { named, seen: Seen::Absent }
    }

    /// The limits in the file; `None` if it is the same as at the last look.
    ///
    /// # Errors
    /// One line that says why it is refused; once for each state of the file.
    pub(super) fn look(&mut self, directory: &Directory, page: &str) -> Option<Result<Limits, String>> {
        let opened = match &self.named {
            Some(path) => open_named(path),
            None => open_beside(directory, &name_of(page)),
        };
        let (seen, found) = match opened {
            Ok(None) => (Seen::Absent, Ok(Limits::default())),
            Ok(Some((file, stat))) => {
                let seen = Seen::Read(stamp(&stat));
                if seen == self.seen {
                    return None;
                }
                (seen, self.read(&file, &stat))
            }
            Err(why) => (Seen::Refused(why.clone()), Err(why)),
        };
        if seen == self.seen {
            return None;
        }
        self.seen = seen;
        Some(found)
    }

    /// The path, for messages.
    pub(super) fn path(&self, directory: &Directory, page: &str) -> PathBuf {
        self.named.clone().unwrap_or_else(|| directory.path.join(name_of(page)))
    }

    fn read(&self, file: &OwnedFd, stat: &Stat) -> Result<Limits, String> {
        let annotations = self.named.is_some();
        let most = if annotations { NAMED_MAX } else { BESIDE_MAX };
        let size = usize::try_from(stat.st_size).unwrap_or(usize::MAX);
        if size > most {
            return Err(format!("{size} bytes long: limits have at most {most}"));
        }
        let mut text = vec![0; size];
        read_exact(file, &mut text, 0)?;
        parse(&text, annotations)
    }
}

fn stamp(stat: &Stat) -> Stamp {
    let (written, changed) = ((stat.st_mtime, stat.st_mtime_nsec), (stat.st_ctime, stat.st_ctime_nsec));
    (stat.st_dev, stat.st_ino, stat.st_size, written, changed)
}

/// The limits file's name, by its page's.
pub(super) fn name_of(page: &str) -> String {
    format!("{}.limits", page.strip_suffix(".page").unwrap_or(page))
}

type Opened = Result<Option<(OwnedFd, Stat)>, String>;

fn open_beside(directory: &Directory, name: &str) -> Opened {
    match directory.read(name) {
        Ok((_, stat)) if stat.st_mode & 0o077 != 0 => {
            Err(format!("others can read or write it (mode {:04o}): chmod 600", stat.st_mode & 0o7777))
        }
        Ok(opened) => Ok(Some(opened)),
        Err(why) if why == Errno::NOENT.to_string() => Ok(None),
        Err(why) => Err(why),
    }
}

fn open_named(path: &Path) -> Opened {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(errno.to_string()),
    };
    let stat = rustix::fs::fstat(&file).map_err(|errno| errno.to_string())?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err("no regular file".to_owned());
    }
    let uid = rustix::process::geteuid().as_raw();
    if stat.st_uid != uid && stat.st_uid != 0 {
        return Err(format!("belongs to user {}, this is user {uid}", stat.st_uid));
    }
    if stat.st_mode & 0o022 != 0 {
        return Err(format!("others can write to it (mode {:04o}): chmod go-w", stat.st_mode & 0o7777));
    }
    Ok(Some((file, stat)))
}

#[cfg(test)]
mod tests;
