//! The socket's folder, who may use it, and who starts an owner.
//!
//! The folder belongs to this user and no other may write it. A lock on `node.owner` makes a process the owner; a lock
//! on `node.start` keeps clients from starting several, which would do no harm: all but one leave at once.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

const SOCKET: &str = "node.sock";
/// An owner that was started answers in this time.
const START: Duration = Duration::from_secs(10);
const WAIT: Duration = Duration::from_millis(20);
const LOOK: Duration = Duration::from_millis(5);

/// Checks the folder, and makes it if it is not there.
fn folder(path: &Path) -> Result<(), String> {
    match rustix::fs::mkdir(path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(format!("{}: cannot be made: {errno}", path.display())),
    }
    check(path)
}

fn check(path: &Path) -> Result<(), String> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(folder) => folder,
        Err(Errno::LOOP | Errno::NOTDIR) => return Err(format!("{}: not a directory, or a link", path.display())),
        Err(errno) => return Err(format!("{}: {errno}", path.display())),
    };
    let meta = File::from(folder).metadata().map_err(|e| format!("{}: {e}", path.display()))?;
    let user = rustix::process::geteuid().as_raw();
    if meta.uid() != user {
        return Err(format!("{}: belongs to user {}, this is user {user}", path.display(), meta.uid()));
    }
    if meta.mode() & 0o022 != 0 {
        return Err(format!("{}: others can write to it: chmod go-w", path.display()));
    }
    Ok(())
}

/// The first of `folders` that can be used.
///
/// # Errors
/// Why the last one cannot.
pub(crate) fn usable(folders: &[PathBuf]) -> Result<PathBuf, String> {
    let mut why = String::from("no folder for its socket");
    for path in folders {
        match folder(path) {
            Ok(()) => return Ok(path.clone()),
            Err(reason) => why = reason,
        }
    }
    Err(why)
}

fn lock(folder: &Path, name: &str) -> Result<Option<OwnedFd>, String> {
    let path = folder.join(name);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file =
        rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR).map_err(|e| format!("{}: {e}", path.display()))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(errno) => Err(format!("{}: {errno}", path.display())),
    }
}

/// The owner's lock and socket; `None` if another process is the owner.
pub(crate) fn listen(path: &Path) -> Result<Option<(OwnedFd, UnixListener)>, String> {
    folder(path)?;
    let Some(held) = lock(path, "node.owner")? else { return Ok(None) };
    let socket = path.join(SOCKET);
    let failed = |e: std::io::Error| format!("{}: {e}", socket.display());
    // A killed owner left it.
    match std::fs::remove_file(&socket) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(failed(e)),
        _ => {}
    }
    let listener = UnixListener::bind(&socket).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(Some((held, listener)))
}

/// A connection to the owner; `None` if there is none.
///
/// # Errors
/// The folder or the owner is another user's.
pub(crate) fn connect(path: &Path) -> Result<Option<UnixStream>, String> {
    if !path.exists() {
        return Ok(None);
    }
    check(path)?;
    let Ok(socket) = UnixStream::connect(path.join(SOCKET)) else { return Ok(None) };
    check_user(socket.as_fd())?;
    // Who waits looks now and then whether it still wants the answer.
    let timed = socket.set_read_timeout(Some(WAIT)).and_then(|()| socket.set_write_timeout(Some(WAIT)));
    timed.map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(Some(socket))
}

/// # Errors
/// The other end belongs to another user.
pub(crate) fn check_user(socket: BorrowedFd<'_>) -> Result<(), String> {
    let other = rustix::net::sockopt::socket_peercred(socket).map_err(|e| format!("peer credentials: {e}"))?;
    same_user(other.uid.as_raw(), rustix::process::geteuid().as_raw())
}

fn same_user(other: u32, own: u32) -> Result<(), String> {
    if other == own {
        return Ok(());
    }
    Err(format!("the node cache of user {own} does not serve user {other}: a cache is shared by the jobs of one user"))
}

/// A connection to the owner, which is started by `command` if there is none. `command` returns at once, or serves.
///
/// # Errors
/// The reason why there is none.
pub(crate) fn connect_or_start(
    path: &Path,
    command: &[OsString],
    until: Instant,
    stopped: &dyn Fn() -> bool,
) -> Result<UnixStream, String> {
    let until = until.min(Instant::now() + START);
    let mut starting: Option<(OwnedFd, Started)> = None;
    loop {
        if let Some(socket) = connect(path)? {
            return Ok(socket);
        }
        if stopped() || Instant::now() >= until {
            return Err(format!("{}: no owner answers", path.join(SOCKET).display()));
        }
        if starting.is_none()
            && let Some(held) = lock(path, "node.start")?
        {
            // One may have come between the look and the lock.
            if let Some(socket) = connect(path)? {
                return Ok(socket);
            }
            starting = Some((held, start(command)?));
        }
        if let Some((_, started)) = &mut starting
            && let Ok(Some(status)) = started.0.try_wait()
            && !status.success()
        {
            return Err(format!("{}: {status}", command.join(" ".as_ref()).display()));
        }
        std::thread::sleep(LOOK);
    }
}

/// The process that was started. Most leave their place to a process of their own at once.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        if let Ok(Some(_)) = self.0.try_wait() {
            return;
        }
        let pid = self.0.id();
        // It is waited for by a thread, so that no dead process stays.
        let _ = std::thread::Builder::new().name("lossfeed-node".into()).spawn(move || {
            let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
            rustix::process::waitpid(pid, rustix::process::WaitOptions::empty())
        });
    }
}

fn start(command: &[OsString]) -> Result<Started, String> {
    let Some((program, words)) = command.split_first() else { return Err("no command starts its owner".into()) };
    let child =
        Command::new(program).args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    child.map(Started).map_err(|e| format!("{}: {e}", program.display()))
}

/// A number that no other process has.
pub(crate) fn random() -> u64 {
    let mut bytes = [0; 8];
    let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    if read.is_err() {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        return now.as_nanos() as u64 ^ u64::from(std::process::id()) << 32;
    }
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_user_is_refused_by_name() {
        assert!(same_user(7, 7).is_ok());
        assert!(same_user(8, 7).unwrap_err().contains("user 7 does not serve user 8"));
    }

    #[test]
    fn a_folder_that_is_a_link_or_open_to_others_is_refused() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        folder(&at("own")).unwrap();
        symlink(at("own"), at("link")).unwrap();
        assert!(folder(&at("link")).unwrap_err().contains("a link"));
        std::fs::set_permissions(at("own"), PermissionsExt::from_mode(0o777)).unwrap();
        assert!(connect(&at("own")).unwrap_err().contains("chmod go-w"));
        assert!(connect(&at("none")).unwrap().is_none());
    }
}
