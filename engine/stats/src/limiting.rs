//! The other end of a limits file: a program that sets an engine's limits, or takes them back.

use std::os::fd::AsFd;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::directory::Directory;
use super::discover::JobPage;
use super::limits::{Limits, name_of};
use super::publisher::write_all;

impl JobPage {
    /// Sets the limits of this engine, which reads them within a second. Root may do it for other users.
    ///
    /// # Errors
    /// One line, if the directory cannot be trusted or the file cannot be written.
    pub fn set_limits(&self, limits: Limits) -> Result<(), String> {
        let Some((directory, page)) = self.place()? else { return Ok(()) };
        let (name, passing) = (name_of(page), format!("{}.new", name_of(page)));
        let failed = |what: &str, errno: Errno| format!("{}: {what}: {errno}", directory.path.join(&name).display());
        let unlink = |name: &str| rustix::fs::unlinkat(&directory.fd, name, AtFlags::empty());
        // Left over from a program that was killed here.
        let _ = unlink(&passing);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(directory.fd.as_fd(), &passing, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|errno| failed("cannot be made", errno))?;
        let written = (|| {
            if !directory.is_own() {
                let owner = rustix::process::Uid::from_raw(directory.uid);
                rustix::fs::fchown(&file, Some(owner), None).map_err(|errno| failed("cannot be given away", errno))?;
            }
            write_all(&file, limits.text().as_bytes(), 0).map_err(|errno| failed("cannot be written", errno))?;
            rustix::fs::renameat(&directory.fd, &passing, &directory.fd, &name)
                .map_err(|errno| failed("cannot be renamed", errno))
        })();
        if written.is_err() {
            let _ = unlink(&passing);
        }
        // The engine may have ended meanwhile, and removed its page and its limits.
        let gone = rustix::fs::statat(&directory.fd, page, AtFlags::SYMLINK_NOFOLLOW).is_err();
        if written.is_ok() && gone {
            let _ = unlink(&name);
        }
        written
    }

    /// Takes the limits back: the engine is then as it was made.
    ///
    /// # Errors
    /// The same as for [`Self::set_limits`].
    pub fn release_limits(&self) -> Result<(), String> {
        let Some((directory, page)) = self.place()? else { return Ok(()) };
        match rustix::fs::unlinkat(&directory.fd, name_of(page), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(format!("{}: cannot be removed: {errno}", directory.path.join(name_of(page)).display())),
        }
    }

    /// The page's directory and name; `None` if the directory is gone.
    fn place(&self) -> Result<Option<(Directory, &str)>, String> {
        let (Some(parent), Some(page)) = (self.path.parent(), self.path.file_name().and_then(|name| name.to_str()))
        else {
            return Err(format!("{}: no page's path", self.path.display()));
        };
        Ok(Directory::open(parent)?.map(|directory| (directory, page)))
    }
}
