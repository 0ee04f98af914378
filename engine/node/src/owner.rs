//! The owner process: one thread that waits for its clients' messages and answers them.
//!
//! It never waits for one client: sockets do not block, a client that does not read its answers is dropped, and an
//! offered sample goes to the arena piece by piece as it comes.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::adoption::Adoption;
use crate::arena::Arena;
use crate::books::Books;
use crate::flights::Flights;
use crate::message::{Key, Parser, frame, kind};
use crate::orders::ORDERED_MAX;
use crate::processors::Processors;
use crate::{start, wire};

/// Connections at a time.
const CONNECTIONS_MAX: usize = 1000;
/// Answers that wait for a client to read them; a client with more is dropped. The longest is an order.
pub(crate) const UNREAD_MAX: usize = 4 * ORDERED_MAX as usize + (4 << 20);
/// Bytes read of a connection before the others have their turn.
const TURN_BYTES: usize = 1 << 20;
/// Samples that are adopted while nothing else is to do, before sockets are looked at again.
const ADOPTED_AT_ONCE: usize = 64;

/// The settings of [`serve`].
#[derive(Debug, Clone)]
pub struct Serve {
    /// The folder of the socket.
    pub folder: PathBuf,
    /// Bytes for samples.
    pub bytes: u64,
    /// Leaves after so long without clients.
    pub idle: Duration,
}

/// A connected process.
pub(crate) struct Peer {
    pub(crate) socket: UnixStream,
    pub(crate) out: Vec<u8>,
    /// Goes with the first byte of `out`.
    pub(crate) file_out: Option<OwnedFd>,
    pub(crate) file_in: Option<OwnedFd>,
    /// The client's number, once it said it.
    pub(crate) member: Option<u64>,
    pub(crate) leases: Vec<u32>,
    pub(crate) coming: Option<Coming>,
}

impl Peer {
    pub(crate) fn new(socket: UnixStream) -> Self {
        Self { socket, out: Vec::new(), file_out: None, file_in: None, member: None, leases: Vec::new(), coming: None }
    }
}

type Peers = HashMap<u64, (Peer, Parser)>;

/// An offered sample on its way.
pub(crate) struct Coming {
    /// `None`: it is not kept.
    pub(crate) slot: Option<u32>,
    pub(crate) at: u64,
    pub(crate) came: u64,
    pub(crate) crc: u32,
    pub(crate) sum: crc32fast::Hasher,
}

/// A connection that waits until one of these is no longer fetched by another.
pub(crate) struct Waiter {
    pub(crate) peer: u64,
    pub(crate) keys: Vec<Key>,
    pub(crate) until_ms: u64,
}

/// The owner's state.
pub(crate) struct Owner {
    pub(crate) arena: Arena,
    pub(crate) books: Books,
    pub(crate) flights: Flights,
    pub(crate) processors: Processors,
    pub(crate) waiters: Vec<Waiter>,
    /// Arenas that are being taken over, the newest first.
    pub(crate) adoptions: Vec<Adoption>,
    pub(crate) adopted: Vec<u64>,
    pub(crate) bytes: u64,
    pub(crate) refused: u64,
    pub(crate) last_refusal: String,
    pub(crate) begun: Instant,
    /// Something was published, given up or ended: waiters are looked at.
    pub(crate) news: bool,
}

impl Owner {
    /// # Errors
    /// The reason why the memory cannot be had.
    pub(crate) fn new(bytes: u64) -> Result<Self, String> {
        let id = start::random();
        let arena = Arena::new(bytes, id).map_err(|e| format!("an arena of {bytes} bytes: {e}"))?;
        Ok(Self {
            books: Books::new(bytes, arena.slots()),
            arena,
            flights: Flights::default(),
            processors: Processors::default(),
            waiters: Vec::new(),
            adoptions: Vec::new(),
            adopted: vec![id],
            bytes,
            refused: 0,
            last_refusal: String::new(),
            begun: Instant::now(),
            news: false,
        })
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }
}

/// Serves until it was idle for so long. Returns at once if another owner serves the folder.
///
/// # Errors
/// The reason why the folder, the socket or the memory cannot be had.
pub fn serve(asked: &Serve) -> Result<(), String> {
    let Some((_held, listener)) = start::listen(&asked.folder)? else { return Ok(()) };
    let mut owner = Owner::new(asked.bytes)?;
    let mut peers = Peers::new();
    let (mut next, mut idle_since) = (0u64, Instant::now());
    let mut buffer = vec![0; 64 << 10];
    loop {
        if owner.books.has_members() {
            idle_since = Instant::now();
        } else if idle_since.elapsed() >= asked.idle {
            return Ok(());
        }
        let ready = wait(&owner, &peers, &listener, asked.idle.saturating_sub(idle_since.elapsed()))?;
        if ready.is_empty() {
            owner.adopt_some(ADOPTED_AT_ONCE);
        }
        for number in ready {
            match number {
                None => accept(&listener, &mut peers, &mut next),
                Some(number) => {
                    let Some(mut peer) = peers.remove(&number) else { continue };
                    match turn(&mut owner, number, &mut peer, &mut buffer) {
                        Ok(true) => {
                            peers.insert(number, peer);
                        }
                        Ok(false) => owner.gone(number, &mut peer.0),
                        Err(reason) => {
                            owner.refused += 1;
                            tracing::warn!(%reason, "a client is refused");
                            // Advice for the other end, if there is room for it.
                            let _ = wire::send(&peer.0.socket, &frame(kind::REFUSED, &[reason.as_bytes()]), None);
                            owner.last_refusal = reason;
                            owner.gone(number, &mut peer.0);
                        }
                    }
                }
            }
        }
        for (number, answer) in owner.answer_waiters() {
            if let Some((peer, _)) = peers.get_mut(&number) {
                peer.out.extend_from_slice(&answer);
                // What does not go now goes when the socket can be written.
                let _ = flush(peer);
            }
        }
    }
}

/// Waits for sockets: those that are ready, `None` for the listener.
fn wait(owner: &Owner, peers: &Peers, listener: &UnixListener, idle: Duration) -> Result<Vec<Option<u64>>, String> {
    let now_ms = owner.now_ms();
    let due = owner.waiters.iter().map(|waiter| waiter.until_ms.saturating_sub(now_ms)).min();
    let mut timeout = due.map_or(idle, |ms| idle.min(Duration::from_millis(ms)));
    if !owner.adoptions.is_empty() {
        timeout = Duration::ZERO;
    }
    let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) + 1 };
    let (mut numbers, mut sockets) = (vec![None], vec![PollFd::new(listener, PollFlags::IN)]);
    for (&number, (peer, _)) in peers {
        let writes = if peer.out.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
        numbers.push(Some(number));
        sockets.push(PollFd::new(&peer.socket, PollFlags::IN | writes));
    }
    match poll(&mut sockets, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(errno) => return Err(format!("poll: {errno}")),
    }
    Ok(numbers.into_iter().zip(&sockets).filter(|(_, socket)| !socket.revents().is_empty()).map(|(n, _)| n).collect())
}

fn accept(listener: &UnixListener, peers: &mut Peers, next: &mut u64) {
    while let Ok((socket, _)) = listener.accept() {
        // No other user can open the folder; the system's word on it is asked for all the same.
        let own = start::check_user(socket.as_fd()).is_ok() && socket.set_nonblocking(true).is_ok();
        if peers.len() >= CONNECTIONS_MAX || !own {
            continue;
        }
        *next += 1;
        peers.insert(*next, (Peer::new(socket), Parser::default()));
    }
}

/// Reads and writes what there is; false if the other end has gone.
fn turn(
    owner: &mut Owner,
    number: u64,
    (peer, parser): &mut (Peer, Parser),
    buffer: &mut [u8],
) -> Result<bool, String> {
    let mut came = 0;
    while came < TURN_BYTES {
        match wire::receive(&peer.socket, buffer, &mut peer.file_in) {
            Ok(0) => return Ok(false),
            Ok(bytes) => {
                came += bytes;
                let now = buffer.get(..bytes).unwrap_or_default();
                parser.feed(now, &mut |part| owner.hear(number, peer, part))?;
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => break,
            Err(_) => return Ok(false),
        }
    }
    Ok(flush(peer))
}

/// Writes what the socket takes; false if the other end has gone.
fn flush(peer: &mut Peer) -> bool {
    while !peer.out.is_empty() {
        match wire::send(&peer.socket, &peer.out, peer.file_out.as_ref().map(AsFd::as_fd)) {
            Ok(sent) => {
                peer.file_out = None;
                peer.out.drain(..sent);
            }
            Err(e) => return e.kind() == ErrorKind::WouldBlock,
        }
    }
    true
}
