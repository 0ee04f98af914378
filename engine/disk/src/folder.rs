//! The folder of the disk tier: whose it is, what lies in it, and its lock.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use lossfeed_control::error::{Error, Result};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT};
use rustix::io::Errno;

/// A lock is asked for so often, with a pause between: its holder may be a process that was stopped.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// What a file is called: when it was begun, nanoseconds since 1970, and whether it is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name {
    pub(crate) born: u64,
    pub(crate) complete: bool,
}

impl Name {
    fn text(self) -> String {
        format!("{:016x}.{}", self.born, if self.complete { "seg" } else { "open" })
    }

    fn of(text: &str) -> Option<Self> {
        let (born, kind) = text.split_once('.')?;
        let name = Self { born: u64::from_str_radix(born, 16).ok()?, complete: kind == "seg" };
        (name.text() == text).then_some(name)
    }
}

/// A segment's file as the folder lists it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Listed {
    pub(crate) name: Name,
    pub(crate) bytes: u64,
    /// When anybody read it last, since 1970.
    pub(crate) used: Duration,
}

/// Free space that is reserved on the disk: this part of it, at most so many bytes and at most the tier's limit.
const FREE_PART: u64 = 20;
const FREE_MAX: u64 = 10 << 30;

/// A directory that belongs to us and that nobody else can write to.
pub(crate) struct Folder {
    fd: OwnedFd,
    path: PathBuf,
}

/// The folder's lock; dropping it lets go.
pub(crate) struct Locked(OwnedFd);

impl Drop for Locked {
    fn drop(&mut self) {
        // Closing is not enough. The lock belongs to the open file, and a child that was forked meanwhile has a copy of
        // the descriptor: it would hold the lock as long as it lives. The child itself drops none of these: the thread
        // that has one does not exist there.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

impl Folder {
    /// Opens `path`, making it for its owner alone (0700) if it is not there.
    ///
    /// # Errors
    /// `Settings` if it cannot be made, is a link or no directory, is another user's, or others can write to it: they
    /// could put samples into a training.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let refused = |why: String| Error::settings(format!("disk folder {}: {why}", path.display()));
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|e| {
            refused("cannot be made: choose a folder on a local disk that you can write to".into()).because(e)
        })?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| match errno {
            Errno::LOOP | Errno::NOTDIR => refused("not a directory, or a link: name the directory itself".into()),
            errno => refused("cannot be opened".into()).because(io::Error::from(errno)),
        })?;
        let stat =
            rustix::fs::fstat(&fd).map_err(|e| refused("cannot be looked at".into()).because(io::Error::from(e)))?;
        let uid = rustix::process::geteuid().as_raw();
        if stat.st_uid != uid {
            return Err(refused(format!(
                "belongs to user {}, this is user {uid}: choose a folder of your own",
                stat.st_uid
            )));
        }
        if stat.st_mode & 0o022 != 0 {
            let mode = stat.st_mode & 0o7777;
            return Err(refused(format!("others can write to it (mode {mode:04o}): chmod go-w, or choose another")));
        }
        Ok(Self { fd, path: path.to_owned() })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Takes the folder's lock, or gives up after a fifth of a second: `WouldBlock`.
    pub(crate) fn lock(&self) -> io::Result<Locked> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(self.fd.as_fd(), "lock", flags, Mode::RUSR | Mode::WUSR)?;
        for _ in 0..LOCK_TRIES {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Locked(file)),
                Err(Errno::WOULDBLOCK | Errno::INTR) => std::thread::sleep(LOCK_PAUSE),
                Err(errno) => return Err(errno.into()),
            }
        }
        Err(io::Error::from(io::ErrorKind::WouldBlock))
    }

    /// The segments in it, oldest first.
    pub(crate) fn list(&self) -> io::Result<Vec<Listed>> {
        let mut found = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.fd)? {
            let entry = entry?;
            let Some(name) = entry.file_name().to_str().ok().and_then(Name::of) else { continue };
            // It may be gone by now.
            let Ok(stat) = rustix::fs::statat(&self.fd, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) else { continue };
            let used =
                Duration::new(u64::try_from(stat.st_mtime).unwrap_or(0), stat.st_mtime_nsec as u32 % 1_000_000_000);
            found.push(Listed { name, bytes: u64::try_from(stat.st_size).unwrap_or(0), used });
        }
        found.sort_unstable_by_key(|listed| listed.name);
        Ok(found)
    }

    /// Opens a segment's file without following a link.
    ///
    /// # Errors
    /// `PermissionDenied` if it is not a regular file of this user that nobody else may touch.
    pub(crate) fn file(&self, name: Name) -> io::Result<File> {
        self.ours(&name.text(), OFlags::empty())
    }

    /// Opens the file of claims, making it if it is not there.
    ///
    /// # Errors
    /// As [`Self::file`].
    pub(crate) fn claims(&self) -> io::Result<File> {
        self.ours("claims", OFlags::CREATE)
    }

    fn ours(&self, name: &str, more: OFlags) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | more;
        let file = File::from(rustix::fs::openat(self.fd.as_fd(), name, flags, Mode::RUSR | Mode::WUSR)?);
        let meta = file.metadata()?;
        let ours = meta.is_file() && meta.uid() == rustix::process::geteuid().as_raw() && meta.mode() & 0o077 == 0;
        if ours { Ok(file) } else { Err(io::ErrorKind::PermissionDenied.into()) }
    }

    /// Opens the file of a segment that was complete when it was looked at, or was not.
    pub(crate) fn either(&self, name: Name) -> io::Result<File> {
        match self.file(name) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => self.file(Name { complete: !name.complete, ..name }),
            opened => opened,
        }
    }

    /// Marks a segment as read at `used`.
    pub(crate) fn touch(&self, name: Name, used: Duration) -> io::Result<()> {
        let omitted = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let used = Timespec { tv_sec: used.as_secs() as i64, tv_nsec: used.subsec_nanos().into() };
        let times = Timestamps { last_access: omitted, last_modification: used };
        Ok(rustix::fs::utimensat(&self.fd, name.text(), &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Bytes that may be written before the reserve of a tier with this limit is touched.
    pub(crate) fn spare(&self, limit_bytes: u64) -> io::Result<u64> {
        let disk = rustix::fs::fstatvfs(&self.fd)?;
        let reserve = (disk.f_blocks * disk.f_frsize / FREE_PART).min(FREE_MAX).min(limit_bytes);
        Ok((disk.f_bavail * disk.f_frsize).saturating_sub(reserve))
    }

    /// Makes a segment's file and locks it, with a name that the folder does not have.
    pub(crate) fn create(&self, name: Name) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat(self.fd.as_fd(), name.text(), flags, Mode::RUSR | Mode::WUSR)?);
        if !own(&file) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(file)
    }

    /// Gives a segment the name of a complete one.
    pub(crate) fn complete(&self, name: Name) -> io::Result<Name> {
        let complete = Name { complete: true, ..name };
        rustix::fs::renameat(&self.fd, name.text(), &self.fd, complete.text())?;
        Ok(complete)
    }

    /// The other way round, for who owns it: more is written to it.
    pub(crate) fn reopen(&self, name: Name) -> io::Result<()> {
        let open = Name { complete: false, ..name };
        Ok(rustix::fs::renameat(&self.fd, name.text(), &self.fd, open.text())?)
    }

    pub(crate) fn remove(&self, name: Name) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.fd, name.text(), AtFlags::empty())?)
    }
}

/// Locks a segment's file for its writer; false if another one lives.
pub(crate) fn own(file: &File) -> bool {
    rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
}

/// The time since 1970.
pub(crate) fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fork copies descriptors, and so does `dup`: whoever has a copy holds the same open file.
    #[test]
    fn a_lock_that_was_let_go_is_not_held_by_copies_of_its_descriptor() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("tier");
        let folder = Folder::open(&path).unwrap();
        let locked = folder.lock().unwrap();
        let inherited = locked.0.try_clone().unwrap();
        let tries = || {
            let file = File::open(path.join("lock")).unwrap();
            rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
        };
        assert_eq!(tries(), Err(Errno::WOULDBLOCK));
        drop(locked);
        assert_eq!(tries(), Ok(()));
        drop(inherited);
    }
}
