//! Where stats pages lie, and whether that place can be trusted.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;

/// Directories that may hold stats pages, best first.
///
/// `$LOSSFEED_RUNTIME_DIR` alone if it is set (who names a place wants that one, for writers and readers alike);
/// otherwise `$XDG_RUNTIME_DIR/lossfeed`, `/dev/shm/lossfeed-UID`, `/tmp/lossfeed-UID`. Writers take the first that
/// works, readers look into all.
pub fn candidates() -> Vec<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    candidates_from(set("LOSSFEED_RUNTIME_DIR"), set("XDG_RUNTIME_DIR"), rustix::process::geteuid().as_raw())
}

fn candidates_from(own: Option<PathBuf>, xdg: Option<PathBuf>, uid: u32) -> Vec<PathBuf> {
    if let Some(own) = own {
        return vec![own];
    }
    // The XDG specification: a relative path is invalid and must be ignored.
    let xdg = xdg.filter(|dir| dir.is_absolute()).map(|dir| dir.join("lossfeed"));
    let shared = ["/dev/shm", "/tmp"].map(|dir| Path::new(dir).join(format!("lossfeed-{uid}")));
    xdg.into_iter().chain(shared).collect()
}

/// More entries than this in one directory are not looked at.
const MOST_PAGES: usize = 4096;

/// More pages than this in one directory of another user are not looked at: they could be made to be slow to read.
const MOST_FOREIGN_PAGES: usize = 64;

/// A directory that only its owner can write to: this user, or anyone if this user is root.
#[derive(Debug)]
pub(super) struct Directory {
    pub(super) fd: OwnedFd,
    pub(super) path: PathBuf,
    pub(super) uid: u32,
}

impl Directory {
    /// Opens `path`, making it (0700) if it is not there.
    pub(super) fn create(path: &Path) -> Result<Self, String> {
        match rustix::fs::mkdir(path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(format!("{}: cannot be made: {errno}", path.display())),
        }
        match Self::open(path)? {
            Some(directory) if directory.is_own() => Ok(directory),
            Some(directory) => Err(foreign(path, directory.uid)),
            None => Err(format!("{}: vanished", path.display())),
        }
    }

    /// Opens `path`; `None` if it is not there.
    ///
    /// # Errors
    /// One line, if it is a link, no directory, someone else's (root may read those), or writable by others: they could
    /// plant pages, or put a link where a page is about to be made.
    pub(super) fn open(path: &Path) -> Result<Option<Self>, String> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            // What the kernel says to O_DIRECTORY | O_NOFOLLOW on a link differs between file systems.
            Err(Errno::LOOP | Errno::NOTDIR) => return Err(format!("{}: not a directory, or a link", path.display())),
            Err(errno) => return Err(format!("{}: {errno}", path.display())),
        };
        let stat = rustix::fs::fstat(&fd).map_err(|errno| format!("{}: {errno}", path.display()))?;
        let uid = rustix::process::geteuid().as_raw();
        if stat.st_uid != uid && uid != 0 {
            return Err(foreign(path, stat.st_uid));
        }
        if stat.st_mode & 0o022 != 0 {
            let mode = stat.st_mode & 0o7777;
            return Err(format!("{}: others can write to it (mode {mode:04o}): chmod go-w", path.display()));
        }
        Ok(Some(Self { fd, path: path.to_owned(), uid: stat.st_uid }))
    }

    /// True if it belongs to this user.
    pub(super) fn is_own(&self) -> bool {
        self.uid == rustix::process::geteuid().as_raw()
    }

    /// Names in it that may be pages: no more than are worth a look.
    pub(super) fn pages(&self) -> Result<Vec<String>, String> {
        let most = if self.is_own() { MOST_PAGES } else { MOST_FOREIGN_PAGES };
        let entries =
            rustix::fs::Dir::read_from(&self.fd).map_err(|errno| format!("{}: {errno}", self.path.display()))?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().to_str().ok().map(str::to_owned));
        Ok(names.filter(|name| name.ends_with(".page") || name.ends_with(".page.new")).take(most).collect())
    }

    /// Opens a file in it for reading, without following a link and without waiting for a pipe's other end.
    pub(super) fn read(&self, name: &str) -> Result<(OwnedFd, Stat), String> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(self.fd.as_fd(), name, flags, Mode::empty()).map_err(|errno| match errno {
            Errno::LOOP => "a link".to_owned(),
            errno => errno.to_string(),
        })?;
        let stat = rustix::fs::fstat(&fd).map_err(|errno| errno.to_string())?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err("no regular file".to_owned());
        }
        if stat.st_uid != self.uid {
            return Err(format!("belongs to user {}, its directory to user {}", stat.st_uid, self.uid));
        }
        Ok((fd, stat))
    }
}

fn foreign(path: &Path, uid: u32) -> String {
    format!("{}: belongs to user {uid}, this is user {}", path.display(), rustix::process::geteuid().as_raw())
}

/// Fills `bytes` from the file's byte `at` on.
pub(super) fn read_exact(file: &OwnedFd, mut bytes: &mut [u8], mut at: u64) -> Result<(), String> {
    while !bytes.is_empty() {
        match rustix::io::pread(file, &mut *bytes, at) {
            Ok(0) => return Err("shorter than it was a moment ago".to_owned()),
            Ok(n) => {
                bytes = &mut bytes[n..];
                at += n as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.to_string()),
        }
    }
    Ok(())
}

/// Whether an engine holds the page's lock. Trying for a shared lock disturbs nobody: writers take theirs before the
/// page has its name, and other readers share.
pub(super) fn is_locked(file: &OwnedFd) -> bool {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => {
            let _ = rustix::fs::flock(file, FlockOperation::Unlock);
            false
        }
        Err(errno) => errno == Errno::WOULDBLOCK,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_named_directory_stands_alone_and_the_others_come_in_order() {
        let names = |own: Option<&str>, xdg: Option<&str>| {
            candidates_from(own.map(PathBuf::from), xdg.map(PathBuf::from), 7)
                .into_iter()
                .map(|p| p.display().to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(names(Some("/x"), Some("/run/user/7")), ["/x"]);
        let shared = ["/dev/shm/lossfeed-7", "/tmp/lossfeed-7"];
        assert_eq!(names(None, Some("/run/user/7")), [&["/run/user/7/lossfeed"], &shared[..]].concat());
        assert_eq!(names(None, Some("relative")), shared);
        assert_eq!(names(None, None), shared);
    }

    #[test]
    fn a_directory_is_made_private_and_refused_when_it_is_a_link_a_file_or_open_to_others() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        let made = Directory::create(&at("made")).unwrap();
        assert_eq!(std::fs::metadata(&made.path).unwrap().permissions().mode() & 0o777, 0o700);
        Directory::create(&at("made")).unwrap();

        symlink(at("made"), at("link")).unwrap();
        assert!(Directory::create(&at("link")).unwrap_err().contains("a link"));
        symlink(at("nowhere"), at("dangling")).unwrap();
        assert!(Directory::create(&at("dangling")).is_err());
        assert!(!at("nowhere").exists(), "the link was not followed");
        std::fs::write(at("file"), "").unwrap();
        assert!(Directory::create(&at("file")).unwrap_err().contains("not a directory"));
        std::fs::set_permissions(at("made"), PermissionsExt::from_mode(0o770)).unwrap();
        assert!(Directory::open(&at("made")).unwrap_err().contains("0770"));
        assert!(Directory::open(&at("missing")).unwrap().is_none());
        assert!(Directory::create(&at("no/parent")).unwrap_err().contains("cannot be made"));
    }
}
