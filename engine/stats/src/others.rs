//! Other users' engines: root reads their pages, anyone else may only count them.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A place where another user's engines publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Home {
    /// The directory of the pages. It may be missing, a link, or unreadable.
    pub(super) pages: PathBuf,
    uid: u32,
    /// The file system's device number, if locks on it are the engines': `/tmp` has locks of any program.
    device: Option<u64>,
}

/// The places of all users but this one, as their names claim.
pub(super) fn homes() -> Vec<Home> {
    let shared = ["/dev/shm", "/tmp"].map(Path::new);
    let mut homes: Vec<Home> = shared.iter().flat_map(|base| homes_in(base, "lossfeed-", "")).collect();
    homes.extend(homes_in(Path::new("/run/user"), "", "lossfeed"));
    homes
}

/// The homes `BASE/PREFIXuid/BELOW`.
fn homes_in(base: &Path, prefix: &str, below: &str) -> Vec<Home> {
    let own = rustix::process::geteuid().as_raw();
    let entries = fs::read_dir(base).into_iter().flatten().flatten();
    let home = |entry: fs::DirEntry| {
        let uid = entry.file_name().to_str()?.strip_prefix(prefix)?.parse().ok().filter(|&uid| uid != own)?;
        let stat = fs::symlink_metadata(entry.path()).ok().filter(|stat| stat.is_dir() && stat.uid() == uid)?;
        let device = (base != Path::new("/tmp")).then(|| stat.dev());
        Some(Home { pages: entry.path().join(below), uid, device })
    };
    entries.filter_map(home).collect()
}

/// The number of engines that publish in `homes`: every engine holds an exclusive lock on its page, and the kernel
/// tells all users which process holds a lock on which file system.
pub(super) fn count(homes: &[Home]) -> usize {
    let places: HashSet<(u32, u64)> = homes.iter().filter_map(|home| Some((home.uid, home.device?))).collect();
    let uid_of = |pid: u32| fs::metadata(format!("/proc/{pid}")).ok().map(|stat| stat.uid());
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    if places.is_empty() { 0 } else { locks.lines().filter(|lock| is_engine(lock, &places, uid_of)).count() }
}

/// True if a line of `/proc/locks` is an exclusive `flock` of one of these users on that user's device.
fn is_engine(line: &str, places: &HashSet<(u32, u64)>, uid_of: impl Fn(u32) -> Option<u32>) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_, "FLOCK", _, "WRITE", pid, file, ..] = words[..] else { return false };
    let mut numbers = file.split(':').map(|part| u32::from_str_radix(part, 16));
    let (Some(Ok(major)), Some(Ok(minor)), Ok(pid)) = (numbers.next(), numbers.next(), pid.parse()) else {
        return false;
    };
    uid_of(pid).is_some_and(|uid| places.contains(&(uid, rustix::fs::makedev(major, minor))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exclusive_locks_of_users_with_a_home_are_counted_and_no_others() {
        let places = HashSet::from([(1000, rustix::fs::makedev(0, 0x1b))]);
        let uid_of = |pid: u32| (pid < 100).then_some(if pid < 50 { 1000 } else { 7 });
        for (line, counts) in [
            ("1: FLOCK  ADVISORY  WRITE 41 00:1b:417783 0 EOF", true),
            ("1: FLOCK  ADVISORY  READ 41 00:1b:417783 0 EOF", false),
            ("1: POSIX  ADVISORY  WRITE 41 00:1b:417783 0 EOF", false),
            ("1: FLOCK  ADVISORY  WRITE 41 fe:01:417783 0 EOF", false),
            ("1: FLOCK  ADVISORY  WRITE 77 00:1b:417783 0 EOF", false),
            ("1: FLOCK  ADVISORY  WRITE 400 00:1b:417783 0 EOF", false),
            ("1: -> FLOCK  ADVISORY  WRITE 41 00:1b:417783 0 EOF", false),
            ("", false),
        ] {
            assert_eq!(is_engine(line, &places, uid_of), counts, "{line}");
        }
    }

    #[test]
    fn a_home_is_a_directory_that_belongs_to_the_user_its_name_claims() {
        let root = tempfile::tempdir().unwrap();
        let own = rustix::process::geteuid().as_raw();
        for name in ["lossfeed-1", "lossfeed-me", "lossfeed-", &format!("lossfeed-{own}")] {
            fs::create_dir(root.path().join(name)).unwrap();
        }
        std::os::unix::fs::symlink("/", root.path().join("lossfeed-2")).unwrap();
        // Only root can give a directory away; without that, lossfeed-1 claims another's name.
        let given = std::os::unix::fs::chown(root.path().join("lossfeed-1"), Some(1), Some(1)).is_ok();
        let found: Vec<u32> = homes_in(root.path(), "lossfeed-", "").into_iter().map(|home| home.uid).collect();
        assert_eq!(found, if given { vec![1] } else { vec![] });
        assert_eq!(homes_in(&root.path().join("none"), "", ""), []);
    }
}
