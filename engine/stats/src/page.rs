//! The stats page: a file of fixed size and layout, native endian (it never leaves its machine).
//!
//! | offset | what |
//! | --- | --- |
//! | 0 | [`Header`]: magic, layout version, sizes; who publishes. Written once, magic first |
//! | `header_bytes` | [`Live`]: sequence, time of the last update, samples written so far; then every counter |
//! | | 100 samples: time and the counters of [`HISTORY`]; sample k lies at k mod 100 |
//! | | the names of the counters, then of those with a history, each ended by a zero. Written once |
//!
//! **Versions.** A page names its counters itself. A reader of another build finds those it knows, shows the others by
//! their names, and finds those that are not there missing. Only a change of the layout above raises the version; a
//! page of another version is refused with the advice to read it with its own program.
//!
//! **Small**, because a page may outlive its process: it lies in memory, a run that is killed cannot remove it, and
//! where runs are killed all day their pages must not fill `/dev/shm` (64 MiB in a container). Two 4 KiB blocks each.
//!
//! **Sequence.** There is one writer. It makes `sequence` odd, writes, makes it even again. A reader takes `sequence`,
//! the rest, and `sequence` again: even and equal means the rest is of one moment.
//!
//! **Written and read by `pwrite`/`pread`, not through a mapping**, although it may be mapped: storing to a mapping
//! kills the training run with SIGBUS when the file system is full or someone truncates the file, and loading from one
//! kills the reader. A few hundred bytes a second do not need that risk. (So this file needs no `unsafe` either.)

use bytemuck::{Pod, Zeroable};

use super::counters::{Counters, HISTORY, Snapshot};
use super::numbers::Numbers;
use super::process::Process;

const MAGIC: [u8; 8] = *b"LOSSFEED";
/// Changes whenever an older reader would misread a page.
const VERSION: u32 = 4;
/// A hundred seconds.
pub(super) const RING: usize = 100;
const COUNTERS: usize = Counters::NAMES.len();

/// The names' bytes, the zeros behind them included.
const NAMES_BYTES: usize = text_bytes(Counters::NAMES) + text_bytes(&HISTORY);

pub(super) const LIVE_AT: usize = size_of::<Header>();
/// The sequence word is the first of [`Live`].
pub(super) const SEQUENCE_AT: usize = LIVE_AT;
/// Where this build's own pages have what follows.
const OWN: Places = Places::new(COUNTERS, HISTORY.len());
/// Size of the pages of this build in bytes.
pub(super) const PAGE_BYTES: usize = OWN.names_at + NAMES_BYTES;
/// No page of any build is larger: whoever claims so is not believed.
pub(super) const PAGE_BYTES_MAX: usize = 64 << 10;

// Atomic words must not straddle a cache line.
const _: () = assert!(LIVE_AT.is_multiple_of(8) && OWN.ring_at.is_multiple_of(8));
const _: () = assert!(PAGE_BYTES <= 12288, "more than three blocks: a shorter ring, or fewer counters in it");

const fn text_bytes(names: &[&str]) -> usize {
    let (mut bytes, mut k) = (0, 0);
    while k < names.len() {
        bytes += names[k].len() + 1;
        k += 1;
    }
    bytes
}

/// Where the parts of a page lie that has so many counters, and so many with a history.
struct Places {
    ring_at: usize,
    second_bytes: usize,
    names_at: usize,
}

impl Places {
    const fn new(counters: usize, history: usize) -> Self {
        let ring_at = LIVE_AT + size_of::<Live>() + 8 * counters;
        let second_bytes = 8 + 8 * history;
        Self { ring_at, second_bytes, names_at: ring_at + RING * second_bytes }
    }
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Header {
    magic: [u8; 8],
    version: u32,
    header_bytes: u32,
    page_bytes: u64,
    counters: u32,
    ring: u32,
    history: u32,
    names_bytes: u32,
    pid: u32,
    rank: u32,
    world_size: u32,
    /// First 32 bits of the boot id: a page of an earlier boot can be told apart on a file system that survives it.
    boot: u32,
    /// Inode of the pid namespace: pids compare only within one.
    pid_namespace: u64,
    start_ticks: u64,
    started_unix_ms: u64,
    version_text: [u8; 24],
    job: [u8; 128],
    policy: [u8; 64],
    sampler: [u8; 64],
    device: [u8; 64],
    gpu_uuid: [u8; 64],
    source: [u8; 512],
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Live {
    sequence: u64,
    updated_unix_ms: u64,
    /// How many seconds were ever written into the ring.
    seconds: u64,
}

/// Who publishes: what an engine says about itself. Texts that are too long for the page are cut.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    /// The job's name.
    pub job: String,
    /// Rank in the job.
    pub rank: u32,
    /// Ranks in the job.
    pub world_size: u32,
    /// Cache policy.
    pub policy: String,
    /// Sampler.
    pub sampler: String,
    /// Where the data lies, without secrets.
    pub source: String,
    /// Name of the device the batches go to.
    pub device: String,
    /// That device's UUID as NVML prints it, if it is a GPU: the one name that is the same inside and outside a
    /// container.
    pub gpu_uuid: Option<String>,
}

/// The counters of [`HISTORY`] at one second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// When, in milliseconds since 1970 UTC.
    pub unix_ms: u64,
    /// The counters then, in the order of [`HISTORY`]. `None`: the page does not have that one.
    pub values: [Option<u64>; HISTORY.len()],
}

impl Sample {
    /// The number of that name, if it has a history.
    pub fn get(&self, name: &str) -> Option<u64> {
        HISTORY.iter().position(|&n| n == name).and_then(|k| self.values[k])
    }
}

/// A page, taken apart.
#[derive(Debug, Clone)]
pub(super) struct Contents {
    pub(super) identity: Identity,
    pub(super) process: Process,
    pub(super) version: String,
    pub(super) started_unix_ms: u64,
    pub(super) updated_unix_ms: u64,
    pub(super) numbers: Numbers,
    pub(super) history: Vec<Sample>,
}

/// The bytes of a fresh page.
pub(super) fn fresh(identity: &Identity, process: Process, now_unix_ms: u64) -> Vec<u8> {
    let header = Header {
        magic: MAGIC,
        version: VERSION,
        header_bytes: size_of::<Header>() as u32,
        page_bytes: PAGE_BYTES as u64,
        counters: COUNTERS as u32,
        ring: RING as u32,
        history: HISTORY.len() as u32,
        names_bytes: NAMES_BYTES as u32,
        pid: process.pid,
        rank: identity.rank,
        world_size: identity.world_size,
        boot: process.boot,
        pid_namespace: process.pid_namespace,
        start_ticks: process.start_ticks,
        started_unix_ms: now_unix_ms,
        version_text: text(env!("CARGO_PKG_VERSION")),
        job: text(&identity.job),
        policy: text(&identity.policy),
        sampler: text(&identity.sampler),
        device: text(&identity.device),
        gpu_uuid: text(identity.gpu_uuid.as_deref().unwrap_or("")),
        source: text(&identity.source),
    };
    let mut bytes = bytemuck::bytes_of(&header).to_vec();
    bytes.extend_from_slice(bytemuck::bytes_of(&Live { updated_unix_ms: now_unix_ms, ..Live::zeroed() }));
    bytes.resize(OWN.names_at, 0);
    for name in Counters::NAMES.iter().chain(&HISTORY) {
        bytes.extend_from_slice(name.as_bytes());
        bytes.push(0);
    }
    bytes
}

/// One update, as (offset, bytes) to be written in this order.
pub(super) fn update(sequence: u64, seconds: u64, now_unix_ms: u64, snapshot: &Snapshot) -> [(usize, Vec<u8>); 4] {
    let odd = sequence | 1;
    let live = Live { sequence: odd, updated_unix_ms: now_unix_ms, seconds: seconds + 1 };
    let live = [bytemuck::bytes_of(&live), bytemuck::bytes_of(&snapshot.values)].concat();
    let second = [&[now_unix_ms][..], &snapshot.history()].concat();
    let slot = OWN.ring_at + (seconds % RING as u64) as usize * OWN.second_bytes;
    [
        (SEQUENCE_AT, odd.to_ne_bytes().to_vec()),
        (slot, bytemuck::cast_slice(&second).to_vec()),
        (LIVE_AT, live),
        (SEQUENCE_AT, odd.wrapping_add(1).to_ne_bytes().to_vec()),
    ]
}

/// Whether a file that begins like this is a page of this version, as far as its first 12 bytes tell. Magic and
/// version lie there in every version: only after them do sizes say anything.
///
/// # Errors
/// One line that says what it is instead.
pub(super) fn check_head(bytes: &[u8]) -> Result<(), String> {
    if !is_page(bytes) {
        return Err("not a stats page: the magic bytes are missing".to_owned());
    }
    if let Some(version) = version(bytes).filter(|&version| version != VERSION) {
        let whose = if version < VERSION { "an older" } else { "a newer" };
        return Err(format!(
            "a page of {whose} lossfeed (layout version {version}, this program reads {VERSION}): watch that run with its own `lossfeed smi`"
        ));
    }
    Ok(())
}

/// Takes a page apart. The bytes may be anything.
///
/// # Errors
/// One line that says why they are no page of this program's version.
pub(super) fn parse(bytes: &[u8]) -> Result<Contents, String> {
    check_head(bytes)?;
    let Some(head) = bytes.get(..LIVE_AT) else {
        return Err(format!("{} bytes long: shorter than a stats page's head of {LIVE_AT}", bytes.len()));
    };
    let header: Header = bytemuck::pod_read_unaligned(head);
    let (counters, history) = (header.counters as usize, header.history as usize);
    let sizes = [header.header_bytes as usize, header.ring as usize];
    if sizes != [LIVE_AT, RING] || counters.max(history) > PAGE_BYTES_MAX || header.page_bytes > PAGE_BYTES_MAX as u64 {
        return Err("its sizes do not belong to a stats page".to_owned());
    }
    let places = Places::new(counters, history);
    let page_bytes = places.names_at + header.names_bytes as usize;
    if header.page_bytes != page_bytes as u64 {
        return Err("its sizes do not add up".to_owned());
    }
    if bytes.len() != page_bytes {
        return Err(format!("{} bytes long, this stats page has {page_bytes}", bytes.len()));
    }
    let names = names(&bytes[places.names_at..]).filter(|names| names.len() == counters + history);
    let names = names.ok_or_else(|| "the names of its counters are damaged".to_owned())?;
    let live: Live = bytemuck::pod_read_unaligned(&bytes[LIVE_AT..LIVE_AT + size_of::<Live>()]);
    if live.sequence % 2 == 1 {
        return Err("half-written: its writer stopped in the middle of an update".to_owned());
    }
    let values = words(&bytes[LIVE_AT + size_of::<Live>()..places.ring_at]);
    let (names, with_history) = names.split_at(counters);
    let columns = HISTORY.map(|name| with_history.iter().position(|&n| n == name));
    let kept = live.seconds.min(RING as u64);
    let history = (0..kept).map(|k| {
        // Oldest first; `seconds - kept` does not underflow because kept ≤ seconds.
        let at = places.ring_at + ((live.seconds - kept + k) % RING as u64) as usize * places.second_bytes;
        let second: Vec<u64> = words(&bytes[at..at + places.second_bytes]).collect();
        Sample { unix_ms: second[0], values: columns.map(|column| column.map(|k| second[1 + k])) }
    });
    let gpu_uuid = read_text(&header.gpu_uuid);
    Ok(Contents {
        identity: Identity {
            job: read_text(&header.job),
            rank: header.rank,
            world_size: header.world_size,
            policy: read_text(&header.policy),
            sampler: read_text(&header.sampler),
            source: read_text(&header.source),
            device: read_text(&header.device),
            gpu_uuid: (!gpu_uuid.is_empty()).then_some(gpu_uuid),
        },
        process: Process {
            pid: header.pid,
            start_ticks: header.start_ticks,
            pid_namespace: header.pid_namespace,
            boot: header.boot,
        },
        version: read_text(&header.version_text),
        started_unix_ms: header.started_unix_ms,
        updated_unix_ms: live.updated_unix_ms,
        numbers: Numbers::new(names.iter().copied().zip(values)),
        history: history.collect(),
    })
}

/// Whether a file that begins like this is a stats page of any version.
pub(super) fn is_page(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

fn version(bytes: &[u8]) -> Option<u32> {
    bytes.get(8..12)?.try_into().ok().map(u32::from_ne_bytes)
}

/// The process behind a whole page of this version.
pub(super) fn process(bytes: &[u8]) -> Option<Process> {
    let header: Header = bytemuck::pod_read_unaligned(bytes.get(..LIVE_AT)?);
    let known = header.magic == MAGIC && header.version == VERSION && header.header_bytes == size_of::<Header>() as u32;
    known.then_some(Process {
        pid: header.pid,
        start_ticks: header.start_ticks,
        pid_namespace: header.pid_namespace,
        boot: header.boot,
    })
}

/// The sequence word of a page's bytes, which must be a page long.
pub(super) fn sequence(bytes: &[u8]) -> Option<u64> {
    bytes.get(SEQUENCE_AT..SEQUENCE_AT + 8)?.try_into().ok().map(u64::from_ne_bytes)
}

/// The 8-byte numbers of a part of a page.
fn words(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.chunks_exact(8).map(bytemuck::pod_read_unaligned)
}

/// Names, each ended by a zero. `None` if one has other characters than ours have: whatever shows a name may believe
/// it.
fn names(bytes: &[u8]) -> Option<Vec<&str>> {
    let bytes = bytes.strip_suffix(&[0])?;
    let plain = |name: &&str| {
        let known = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_';
        (1..=64).contains(&name.len()) && name.bytes().all(known)
    };
    bytes.split(|&b| b == 0).map(|name| std::str::from_utf8(name).ok().filter(plain)).collect()
}

/// Text cut at a character boundary, zero-filled.
fn text<const N: usize>(s: &str) -> [u8; N] {
    let mut field = [0; N];
    let end = (0..=N.min(s.len())).rev().find(|&end| s.is_char_boundary(end)).unwrap_or(0);
    field[..end].copy_from_slice(&s.as_bytes()[..end]);
    field
}

/// Text up to the first zero. A page must not be able to steer the reader's terminal.
fn read_text(field: &[u8]) -> String {
    let end = field.iter().position(|&b| b == 0).unwrap_or(field.len());
    harmless(&String::from_utf8_lossy(&field[..end]))
}

fn harmless(text: &str) -> String {
    text.chars().map(|c| if steers_terminal(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// Whether a character does something to a terminal instead of being shown by it: control characters (escape sequences
/// begin with one), and the invisible marks that turn the direction of text or end its line.
pub fn steers_terminal(c: char) -> bool {
    let turns = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || turns || matches!(c, '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests;
