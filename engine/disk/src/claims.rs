//! The file in which the processes of a folder tell each other what they are fetching.
//!
//! Each has a block of it: a count of its steps, which are what it has written or given up, a pulse, and the keys that
//! it is fetching. A process holds its block by a lock on a range of the file, which the system lets go of when the
//! process dies. Another such lock is held while keys are claimed, so that two processes never claim the same one.
//! Where a process was stopped with that lock the others claim without it, and two may.
//!
//! All of it is advice. A file that cannot be had, that is damaged or full, and a process that is stopped or slow, cost
//! fetches that are made twice, and a bounded time.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

use crate::Key;
use crate::folder::Folder;

/// So many processes tell what they fetch; more go without.
const BLOCKS: usize = 64;
const BLOCK_BYTES: usize = 8192;
/// Magic, steps, pulse, and the number of slots that are written.
const HEAD: usize = 32;
const MAGIC: &[u8; 8] = b"lfclaim\x01";
/// So many keys a process claims at a time; more are fetched without.
pub(crate) const SLOTS: usize = (BLOCK_BYTES - HEAD) / 8;
/// The locks' place in the file, where no bytes are: first the one for claiming, then one for each block.
const LOCKS: i64 = 1 << 40;
/// The lock for claiming is asked for so often, with a pause between: a process may have been stopped while it had it.
const LOCK_TRIES: u32 = 100;
const LOCK_PAUSE: Duration = Duration::from_micros(500);
/// Claims are made without that lock for so long where it could not be had.
const LOCK_REST: Duration = Duration::from_secs(1);
/// A process gives a sign of life so often while it has claims.
pub(crate) const PULSE: Duration = Duration::from_secs(1);
/// One that gives none for so long was stopped, or its disk hangs.
const QUIET: Duration = Duration::from_secs(3);
/// The longest wait for what another process fetches.
const PATIENCE: Duration = Duration::from_secs(15);
/// The claims of a process that was waited for in vain are ignored for so long.
const IGNORED: Duration = Duration::from_secs(60);

/// The process that fetches a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// This one has to.
    Ours,
    /// Another one, or another call of this one.
    Theirs,
    /// It was fetched, and can be read.
    There,
}

/// The open file.
pub(crate) struct Table(File);

impl Table {
    fn set(&self, kind: libc::c_int, byte: i64) -> bool {
        fcntl(&self.0, FcntlArg::F_OFD_SETLK(&range(kind, byte, 1))).is_ok()
    }

    /// True if another open file has a lock on one of these bytes.
    fn is_locked(&self, byte: i64, bytes: i64) -> bool {
        let mut found = range(libc::F_WRLCK, byte, bytes);
        fcntl(&self.0, FcntlArg::F_OFD_GETLK(&mut found)).is_ok() && found.l_type != libc::F_UNLCK as libc::c_short
    }

    /// True while other processes have this folder open. The system answers from memory.
    pub(crate) fn has_company(&self) -> bool {
        self.is_locked(LOCKS + 1, BLOCKS as i64)
    }
}

fn range(kind: libc::c_int, byte: i64, bytes: i64) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: byte,
        l_len: bytes,
        l_pid: 0,
    }
}

/// A key as it is told to others; 0 is none.
fn told(key: Key) -> u64 {
    (key as u64).max(1)
}

/// The keys that other processes fetch, as of the last look.
pub(crate) struct Others {
    /// Keys, and the blocks of those who fetch them.
    fetched: HashMap<u64, usize>,
    /// They have written something, or given it up.
    pub(crate) news: bool,
}

/// This process's block, and what it knows of the others'.
pub(crate) struct Claims {
    table: Arc<Table>,
    block: usize,
    steps: u64,
    pulse: u64,
    pulsed: Instant,
    /// Keys by slot.
    slots: Vec<u64>,
    free: Vec<usize>,
    /// Tickets by claimed key.
    mine: HashMap<u64, u64>,
    /// Slots by ticket.
    held: HashMap<u64, Vec<usize>>,
    /// The block in the file is behind.
    dirty: bool,
    others: Vec<Other>,
    bytes: Vec<u8>,
    /// The lock for claiming could not be had: it is not asked for until then.
    resting_until: Option<Instant>,
}

/// Another process, as of the last look.
#[derive(Clone, Copy)]
struct Other {
    steps: u64,
    pulse: u64,
    /// Its last sign of life.
    lived: Instant,
    ignored_until: Option<Instant>,
}

impl Claims {
    /// Takes a block; `None` if there is none, or the file cannot be had: then nothing is shared.
    pub(crate) fn open(folder: &Folder) -> Option<Self> {
        let table = Table(folder.claims().ok()?);
        let block = (0..BLOCKS).find(|&block| table.set(libc::F_WRLCK, lock_of(block)))?;
        let now = Instant::now();
        let other = Other { steps: 0, pulse: 0, lived: now, ignored_until: None };
        let mut claims = Self {
            table: Arc::new(table),
            block,
            steps: 0,
            pulse: 0,
            pulsed: now,
            slots: Vec::new(),
            free: Vec::new(),
            mine: HashMap::new(),
            held: HashMap::new(),
            dirty: true,
            others: vec![other; BLOCKS],
            bytes: Vec::new(),
            resting_until: None,
        };
        // One more than the block's owner before, so that the others see a change.
        claims.read();
        claims.steps = claims.head(block).map_or(0, |(steps, ..)| steps) + 1;
        claims.written().then_some(claims)
    }

    pub(crate) fn table(&self) -> Arc<Table> {
        Arc::clone(&self.table)
    }

    /// Looks at what the others fetch, and keeps them from claiming more until [`Self::looked`], if it gets the lock.
    /// A process that was stopped with it keeps it: then two may claim the same in the moment of a look, no more.
    pub(crate) fn look(&mut self, now: Instant) -> Others {
        if self.resting_until.is_none_or(|until| now >= until) {
            let mut tries = 0..LOCK_TRIES;
            while !self.table.set(libc::F_WRLCK, LOCKS) {
                if tries.next().is_none() {
                    self.resting_until = Some(now + LOCK_REST);
                    break;
                }
                std::thread::sleep(LOCK_PAUSE);
            }
        }
        self.read();
        let mut others = Others { fetched: HashMap::new(), news: false };
        for block in (0..BLOCKS).filter(|&block| block != self.block) {
            let Some((steps, pulse, used)) = self.head(block) else { continue };
            let Some(other) = self.others.get_mut(block) else { continue };
            others.news |= other.steps != steps;
            if (other.steps, other.pulse) != (steps, pulse) {
                (other.steps, other.pulse, other.lived) = (steps, pulse, now);
            }
            let at = block * BLOCK_BYTES + HEAD;
            let slots = self.bytes.get(at..at + 8 * used.min(SLOTS)).unwrap_or_default();
            let keys = slots.chunks_exact(8).filter_map(|key| key.try_into().ok().map(u64::from_le_bytes));
            let mut keys = keys.filter(|&key| key != 0).peekable();
            let ignored = other.ignored_until.is_some_and(|until| now < until);
            // The dead let go of their locks.
            if keys.peek().is_some() && !ignored && self.table.is_locked(lock_of(block), 1) {
                // Of two that fetch it, one has given the other up.
                let last = |at: usize| self.others.get(at).map(|other| other.lived);
                for key in keys {
                    let by = others.fetched.entry(key).or_insert(block);
                    if last(*by) < last(block) {
                        *by = block;
                    }
                }
            }
        }
        others
    }

    /// Tells the others what was claimed, and lets them claim.
    pub(crate) fn looked(&mut self) {
        self.write();
        self.table.set(libc::F_UNLCK, LOCKS);
    }

    /// Claims `keys` for the call `ticket`, except those that others fetch. A call that has waited `since` then waits
    /// no longer than is of use.
    pub(crate) fn claim(
        &mut self,
        others: &Others,
        ticket: u64,
        keys: &[Option<Key>],
        since: Option<Instant>,
        now: Instant,
    ) -> Vec<Whose> {
        let mut whose = Vec::with_capacity(keys.len());
        for key in keys {
            let Some(key) = key.map(told) else {
                whose.push(Whose::Ours);
                continue;
            };
            let fetched_by = match self.mine.get(&key) {
                Some(by) => (*by != ticket).then_some(self.block),
                None => others.fetched.get(&key).copied(),
            };
            if let Some(block) = fetched_by
                && !self.is_overdue(block, since, now)
            {
                whose.push(Whose::Theirs);
                continue;
            }
            whose.push(Whose::Ours);
            self.hold(ticket, key);
        }
        whose
    }

    /// True if a call that waits `since` waits for this process in vain, which then is ignored for a while.
    fn is_overdue(&mut self, block: usize, since: Option<Instant>, now: Instant) -> bool {
        let (Some(since), Some(other)) = (since, self.others.get_mut(block)) else { return false };
        let quiet = block != self.block && now.saturating_duration_since(other.lived.max(since)) >= QUIET;
        let overdue = quiet || now.saturating_duration_since(since) >= PATIENCE;
        if overdue && block != self.block {
            other.ignored_until = Some(now + IGNORED);
        }
        overdue
    }

    fn hold(&mut self, ticket: u64, key: u64) {
        if self.mine.contains_key(&key) {
            return;
        }
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.slots.len() < SLOTS => {
                self.slots.push(0);
                self.slots.len() - 1
            }
            // The others do not know of it.
            None => return,
        };
        let Some(place) = self.slots.get_mut(slot) else { return };
        *place = key;
        self.mine.insert(key, ticket);
        self.held.entry(ticket).or_default().push(slot);
        self.dirty = true;
    }

    /// The call `ticket` does not fetch `key`.
    pub(crate) fn let_go(&mut self, ticket: u64, key: Key) {
        let Some(held) = self.held.get_mut(&ticket) else { return };
        let at = held.iter().position(|&slot| self.slots.get(slot) == Some(&told(key)));
        if let Some(at) = at {
            let slot = held.swap_remove(at);
            self.vacate(slot);
        }
    }

    /// The call `ticket` has ended.
    pub(crate) fn end(&mut self, ticket: u64) {
        if let Some(held) = self.held.remove(&ticket) {
            held.into_iter().for_each(|slot| self.vacate(slot));
            self.step();
        }
    }

    fn vacate(&mut self, slot: usize) {
        if let Some(place) = self.slots.get_mut(slot) {
            self.mine.remove(&std::mem::take(place));
            self.free.push(slot);
            self.dirty = true;
        }
        if self.mine.is_empty() {
            self.slots.clear();
            self.free.clear();
        }
    }

    /// Something was written, or given up.
    pub(crate) fn step(&mut self) {
        self.steps += 1;
        self.dirty = true;
    }

    /// True while something is claimed.
    pub(crate) fn any(&self) -> bool {
        !self.mine.is_empty()
    }

    /// Brings the block in the file up to date, and gives a sign of life if one is due.
    pub(crate) fn write(&mut self) {
        self.dirty |= self.any() && self.pulsed.elapsed() >= PULSE;
        if std::mem::take(&mut self.dirty) {
            // What cannot be told is fetched twice.
            self.written();
        }
    }

    fn written(&mut self) -> bool {
        self.pulsed = Instant::now();
        self.pulse += 1;
        let mut bytes = Vec::with_capacity(HEAD + 8 * self.slots.len());
        bytes.extend_from_slice(MAGIC);
        for number in [self.steps, self.pulse, self.slots.len() as u64] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        self.slots.iter().for_each(|key| bytes.extend_from_slice(&key.to_le_bytes()));
        self.dirty = false;
        self.table.0.write_all_at(&bytes, (self.block * BLOCK_BYTES) as u64).is_ok()
    }

    /// Reads the whole file, which another process may be writing.
    fn read(&mut self) {
        let bytes = self.table.0.metadata().map_or(0, |meta| meta.len());
        self.bytes.resize(usize::try_from(bytes).unwrap_or(usize::MAX).min(BLOCKS * BLOCK_BYTES), 0);
        if self.table.0.read_exact_at(&mut self.bytes, 0).is_err() {
            self.bytes.clear();
        }
    }

    /// Steps, pulse and written slots of a block, if it is one.
    fn head(&self, block: usize) -> Option<(u64, u64, usize)> {
        let head = self.bytes.get(block * BLOCK_BYTES..)?.get(..HEAD)?;
        let number = |at: usize| head.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
        let used = usize::try_from(number(24)?).ok()?;
        head.starts_with(MAGIC).then_some((number(8)?, number(16)?, used))
    }
}

impl Drop for Claims {
    fn drop(&mut self) {
        self.slots.clear();
        self.step();
        self.written();
        // Closing is not enough where a child was forked: see `Locked`.
        self.table.set(libc::F_UNLCK, lock_of(self.block));
    }
}

fn lock_of(block: usize) -> i64 {
    LOCKS + 1 + block as i64
}
