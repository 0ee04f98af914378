//! The stats page: a file of fixed size and layout, native endian (it never leaves its machine).
//!
//! | offset | what |
//! | --- | --- |
//! | 0 | [`Header`]: magic, layout version, sizes, a hash of the counters' names; who publishes. Written once, magic first |
//! | `LIVE_AT` | [`Live`]: sequence, time of the last update, samples written so far, every counter |
//! | `RING_AT` | 120 samples of [`Second`]: time and the counters of [`HISTORY`]; sample k lies at k mod 120 |
//!
//! **Small**, because a page may outlive its process: it lies in memory, a run that is killed cannot remove it, and
//! where runs are killed all day their pages must not fill `/dev/shm` (64 MiB in a container). Two 4 KiB blocks each.
//!
//! **Sequence.** There is one writer. It makes `sequence` odd, writes, makes it even again. A reader takes `sequence`, the
//! rest, and `sequence` again: even and equal means the rest is of one moment.
//!
//! **Written and read by `pwrite`/`pread`, not through a mapping**, although it may be mapped: storing to a mapping kills
//! the training run with SIGBUS when the file system is full or someone truncates the file, and loading from one kills the
//! reader. A few hundred bytes a second do not need that risk. (So this file needs no `unsafe` either.)

use bytemuck::{Pod, Zeroable};

use super::counters::{Counters, HISTORY, Snapshot};

const MAGIC: [u8; 8] = *b"LOSSFEED";
/// Changes whenever an older reader would misread a page.
const VERSION: u32 = 2;
/// Two minutes of seconds.
pub(super) const RING: usize = 120;
const COUNTERS: usize = Counters::NAMES.len();

pub(super) const LIVE_AT: usize = size_of::<Header>();
/// The sequence word is the first of [`Live`].
pub(super) const SEQUENCE_AT: usize = LIVE_AT;
const RING_AT: usize = LIVE_AT + size_of::<Live>();
/// Size of a page in bytes.
pub(super) const PAGE_BYTES: usize = RING_AT + RING * size_of::<Second>();

// Atomic words must not straddle a cache line, and bytemuck casts need alignment.
const _: () = assert!(LIVE_AT.is_multiple_of(8) && RING_AT.is_multiple_of(8));
const _: () = assert!(PAGE_BYTES <= 8192, "more than two blocks: a shorter ring, or fewer counters in it");

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Header {
    magic: [u8; 8],
    version: u32,
    header_bytes: u32,
    page_bytes: u64,
    counters: u32,
    ring: u32,
    names_hash: u64,
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
    values: [u64; COUNTERS],
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Second {
    unix_ms: u64,
    values: [u64; HISTORY.len()],
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
    /// That device's UUID as NVML prints it, if it is a GPU: the one name that is the same inside and outside a container.
    pub gpu_uuid: Option<String>,
}

/// The process behind a page.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: u32,
    /// Start time in clock ticks since boot: tells a process from a later one with the same pid.
    pub(super) start_ticks: u64,
    pub(super) pid_namespace: u64,
    pub(super) boot: u32,
}

/// The counters of [`HISTORY`] at one second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// When, in milliseconds since 1970 UTC.
    pub unix_ms: u64,
    /// The counters then, in the order of [`HISTORY`].
    pub values: [u64; HISTORY.len()],
}

impl Sample {
    /// The number of that name, if it has a history.
    pub fn get(&self, name: &str) -> Option<u64> {
        HISTORY.iter().position(|&n| n == name).map(|k| self.values[k])
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
    pub(super) snapshot: Snapshot,
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
        names_hash: names_hash(),
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
    let live = Live { updated_unix_ms: now_unix_ms, ..Live::zeroed() };
    bytes.extend_from_slice(bytemuck::bytes_of(&live));
    bytes.resize(PAGE_BYTES, 0);
    bytes
}

/// One update, as (offset, bytes) to be written in this order.
pub(super) fn update(sequence: u64, seconds: u64, now_unix_ms: u64, snapshot: &Snapshot) -> [(usize, Vec<u8>); 4] {
    let odd = sequence | 1;
    let second = Second { unix_ms: now_unix_ms, values: snapshot.history() };
    let live = Live { sequence: odd, updated_unix_ms: now_unix_ms, seconds: seconds + 1, values: snapshot.values };
    let slot = RING_AT + (seconds % RING as u64) as usize * size_of::<Second>();
    [
        (SEQUENCE_AT, odd.to_ne_bytes().to_vec()),
        (slot, bytemuck::bytes_of(&second).to_vec()),
        (LIVE_AT, bytemuck::bytes_of(&live).to_vec()),
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
        return Err("no stats page: the magic bytes are missing".to_owned());
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
    if bytes.len() != PAGE_BYTES {
        return Err(format!("{} bytes long, a stats page of this version has {PAGE_BYTES}", bytes.len()));
    }
    let header: Header = bytemuck::pod_read_unaligned(&bytes[..LIVE_AT]);
    let sizes = (header.header_bytes, header.page_bytes, header.counters, header.ring, header.names_hash);
    if sizes != (size_of::<Header>() as u32, PAGE_BYTES as u64, COUNTERS as u32, RING as u32, names_hash()) {
        return Err("its sizes or counters are not those of this version".to_owned());
    }
    let live: Live = bytemuck::pod_read_unaligned(&bytes[LIVE_AT..RING_AT]);
    if live.sequence % 2 == 1 {
        return Err("half-written: its writer stopped in the middle of an update".to_owned());
    }
    let ring = &bytes[RING_AT..];
    let kept = live.seconds.min(RING as u64);
    let history = (0..kept).map(|k| {
        // Oldest first; `seconds - kept` does not underflow because kept ≤ seconds.
        let at = ((live.seconds - kept + k) % RING as u64) as usize * size_of::<Second>();
        let second: Second = bytemuck::pod_read_unaligned(&ring[at..at + size_of::<Second>()]);
        Sample { unix_ms: second.unix_ms, values: second.values }
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
        snapshot: Snapshot { values: live.values },
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

/// FNV-1a over the counters' names: two builds of one version that count differently must not read each other.
fn names_hash() -> u64 {
    Counters::NAMES
        .iter()
        .chain(&HISTORY)
        .flat_map(|name| name.bytes().chain([0]))
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn page_after(updates: u64) -> Vec<u8> {
        let identity = Identity { job: "j".into(), world_size: 1, ..Identity::default() };
        let mut bytes = fresh(&identity, Process::default(), 5);
        let samples_total = Counters::NAMES.iter().position(|&name| name == "samples_total").unwrap();
        for k in 0..updates {
            let mut snapshot = Snapshot::zero();
            snapshot.values[samples_total] = 10 * (k + 1);
            for (at, piece) in update(2 * k, k, 1000 + k, &snapshot) {
                bytes[at..at + piece.len()].copy_from_slice(&piece);
            }
        }
        bytes
    }

    #[test]
    fn the_ring_keeps_the_last_two_minutes_in_order() {
        for updates in [0, 1, 2, 119, 120, 121, 1234] {
            let contents = parse(&page_after(updates)).unwrap();
            let kept = updates.min(120);
            let expected: Vec<(u64, u64)> = (updates - kept..updates).map(|k| (1000 + k, 10 * (k + 1))).collect();
            let got: Vec<(u64, u64)> =
                contents.history.iter().map(|s| (s.unix_ms, s.get("samples_total").unwrap())).collect();
            assert_eq!(got, expected);
            assert_eq!(contents.snapshot.get("samples_total"), Some(10 * updates));
        }
    }

    #[test]
    fn a_reader_between_two_writes_of_an_update_sees_that_it_is_half_written() {
        let mut bytes = page_after(3);
        let pieces = update(6, 3, 2000, &Snapshot::zero());
        for (n, (at, piece)) in pieces.iter().enumerate() {
            bytes[*at..at + piece.len()].copy_from_slice(piece);
            assert_eq!(parse(&bytes).is_ok(), n == 3, "after write {n}");
        }
    }

    #[test]
    fn texts_are_cut_at_characters_and_cannot_steer_a_terminal() {
        assert_eq!(read_text(&text::<4>("aéé")), "aé");
        assert_eq!(read_text(&text::<3>("aéé")), "aé");
        assert_eq!(read_text(&text::<2>("aéé")), "a");
        assert_eq!(read_text(b"\x1b[2Jx\n"), "\u{fffd}[2Jx\u{fffd}");
        assert_eq!(read_text(b"\xff\xfe"), "\u{fffd}\u{fffd}");
        assert_eq!(read_text("a\u{202e}b\u{9b}2Jc".as_bytes()), "a\u{fffd}b\u{fffd}2Jc");
    }

    #[test]
    fn every_wrong_head_is_named() {
        let good = page_after(1);
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] ^= byte;
            parse(&bytes).unwrap_err()
        };
        assert!(with(0, 1).contains("magic"));
        assert!(with(8, 1).contains("a newer lossfeed (layout version 3, this program reads 2)"));
        assert!(with(8, 3).contains("an older lossfeed (layout version 1, this program reads 2)"));
        // Another version's page may have any size: the version is what is said of it.
        assert!(parse(&[&MAGIC[..], &[1, 0, 0, 0]].concat()).unwrap_err().contains("layout version 1"));
        for at in [12, 16, 24, 28, 32] {
            assert!(with(at, 1).contains("sizes or counters"), "byte {at}");
        }
        assert!(parse(&good[..good.len() - 1]).unwrap_err().contains("bytes long"));
        assert!(parse(&[]).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_of_a_pages_size_are_read_or_refused_but_never_panic(
            seed in proptest::collection::vec(any::<u8>(), 1..64),
            keep_head in any::<bool>(),
            seconds in any::<u64>(),
        ) {
            let mut bytes: Vec<u8> = seed.iter().copied().cycle().take(PAGE_BYTES).collect();
            if keep_head {
                bytes[..40].copy_from_slice(&page_after(0)[..40]);
                bytes[LIVE_AT] &= !1;
                bytes[LIVE_AT + 16..LIVE_AT + 24].copy_from_slice(&seconds.to_ne_bytes());
                let contents = parse(&bytes).unwrap();
                prop_assert_eq!(contents.history.len() as u64, seconds.min(RING as u64));
            } else {
                prop_assert!(parse(&bytes).is_err());
            }
        }
    }
}
