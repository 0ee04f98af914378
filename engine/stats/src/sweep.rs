//! Pages that nobody publishes any more: the kernel let go of their lock, or their process is known to be gone.
//!
//! A killed engine cannot remove its page. So every engine that starts, and every reader, removes the pages of the
//! dead, but for the last few of the last minutes, whose numbers somebody may want to see.
//!
//! **What is removed.** Only a regular file of this user whose first bytes are a stats page's, looked at through an
//! open descriptor that no link led to, in a directory that only this user can write to, and only if its name still
//! means that file. Whatever else lies there, under whatever name, stays.

use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Stat};

use super::directory::{Directory, is_locked, read_exact};
use super::limits;
use super::page;
use super::process::{is_gone, unix_ms};

/// How long the page of a dead engine is kept, so that its last numbers can be read.
const KEEP_DEAD_MS: u64 = 15 * 60 * 1000;
/// How many of them are kept, at most: the last to have been written.
const KEEP_DEAD: usize = 8;

/// A page that nobody publishes.
struct Dead {
    name: String,
    stat: Stat,
    modified_ms: u64,
}

/// Removes what dead engines left behind in our directory.
pub(super) fn sweep(directory: &Directory) {
    let names = directory.pages().unwrap_or_default();
    let mut dead: Vec<Dead> = names.into_iter().filter_map(|name| dead(directory, name)).collect();
    // The youngest first. Half-made pages come last: they have nothing to show.
    dead.sort_by_key(|page| (page.name.ends_with(".new"), std::cmp::Reverse(page.modified_ms)));
    let now = unix_ms();
    for (place, page) in dead.iter().enumerate() {
        // No engine reads them any more.
        let _ = rustix::fs::unlinkat(&directory.fd, limits::name_of(&page.name), AtFlags::empty());
        let young = now.saturating_sub(page.modified_ms) < KEEP_DEAD_MS;
        if young && place < KEEP_DEAD && !page.name.ends_with(".new") {
            continue;
        }
        // The name must still mean the file that was looked at.
        let same = rustix::fs::statat(&directory.fd, &page.name, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|s| (s.st_dev, s.st_ino) == (page.stat.st_dev, page.stat.st_ino));
        if same {
            let _ = rustix::fs::unlinkat(&directory.fd, &page.name, AtFlags::empty());
        }
    }
}

/// The page of that name, if it is one and its engine is dead.
fn dead(directory: &Directory, name: String) -> Option<Dead> {
    let (file, stat) = directory.read(&name).ok()?;
    let head = beginning(&file, &stat)?;
    // A page in the making has its lock before it has its first byte. One whose lock is held by a forked child that
    // outlived the engine tells by its process.
    let ended = page::is_page(&head) && (!is_locked(&file) || page::process(&head).is_some_and(is_gone));
    ended.then(|| Dead { name, stat, modified_ms: modified_ms(&stat) })
}

/// What of a file says whose page it is.
fn beginning(file: &OwnedFd, stat: &Stat) -> Option<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(stat.st_size).ok()?.min(page::LIVE_AT)];
    read_exact(file, &mut bytes, 0).ok()?;
    Some(bytes)
}

fn modified_ms(stat: &Stat) -> u64 {
    let seconds = u64::try_from(stat.st_mtime).unwrap_or(0).saturating_mul(1000);
    seconds.saturating_add(stat.st_mtime_nsec / 1_000_000)
}
