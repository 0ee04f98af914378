//! A process that reads samples of the owner's arena and offers those that it fetched.
//!
//! Each call has a connection to itself, out of those that wait for the next one. A connection that fails or is late is
//! closed, and its answers with it. An owner that has gone is replaced by the next call that needs one; one that does
//! not answer is left alone for a while.
//!
//! Locks: `state` guards the idle connections, held for moments; `joining` is held while a connection is made, so that
//! the arena of a dead owner is handed over before anything is asked of the next one.

mod flight;

pub use flight::Flight;

use std::ffi::OsString;
use std::io::{Error, ErrorKind};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use lossfeed_sync::Mutex;

use crate::adoption::ARENAS_MAX;
use crate::arena::Shown;
use crate::link::{Answer, Link, answer};
use crate::message::{Fields, Hello, KEYS_MAX, Key, WORTHS_MAX, frame, hello, kind};
use crate::numbers::{Counts, Numbers};
use crate::planted::planted;
use crate::{start, wire};

/// A question that is not answered in this time is given up, and its owner left alone for a while.
const ANSWER: Duration = Duration::from_millis(500);
/// The first such while, and the longest.
const REST: Duration = Duration::from_secs(1);
const REST_MAX: Duration = Duration::from_secs(30);
/// Connections that wait for the next call.
const IDLE_MAX: usize = 32;

/// The identity and the wishes of a client.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Folders for the socket, best first.
    pub folders: Vec<PathBuf>,
    /// Bytes of the arena, if this client starts the owner.
    pub bytes: u64,
    /// Starts an owner, with `--folder` and `--bytes` after it.
    pub command: Vec<OsString>,
    /// The job's name.
    pub job: String,
    /// A digest of the dataset.
    pub dataset: u64,
    /// The dataset for people.
    pub name: String,
    /// Its samples.
    pub samples: u32,
}

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

/// The outcome of [`Client::read`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Read {
    /// Samples that the owner was asked for and answered.
    pub answers: u64,
    /// Time that was waited for answers.
    pub took: Duration,
    /// An answer did not come in time.
    pub unfinished: bool,
}

/// A fetched sample.
#[derive(Debug, Clone, Copy)]
pub struct Offer<'a> {
    /// Its name.
    pub key: Key,
    /// Its id in the dataset.
    pub id: u32,
    /// The time that its fetch took.
    pub cost: Duration,
    /// The sample.
    pub data: &'a [u8],
}

/// See the module's head. Clones are the same client.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    settings: Settings,
    folder: PathBuf,
    member: u64,
    state: Mutex<State>,
    joining: Mutex<()>,
    counts: Counts,
}

#[derive(Default)]
struct State {
    idle: Vec<Link>,
    shown: Option<Arc<Shown>>,
    /// Arenas of owners before with the number of their samples, until an owner after them has them all.
    older: Vec<(usize, Arc<Shown>)>,
    /// The owner does not answer: it is not asked until then.
    resting_until: Option<Instant>,
    rest: Duration,
    fetched_in_us: Option<f64>,
    capacity: u64,
}

impl Client {
    /// A client with a connection to the owner, which is started if there is none.
    ///
    /// # Errors
    /// The reason why no folder can be used: another user's, a link, writable by others. An owner that does not come is
    /// no error: it is tried again; the second value is the reason.
    pub fn new(settings: Settings) -> Result<(Self, Option<String>), String> {
        let folder = start::usable(&settings.folders)?;
        let client = Self(Arc::new(Inner {
            folder,
            member: start::random(),
            settings,
            state: Mutex::default(),
            joining: Mutex::default(),
            counts: Counts::default(),
        }));
        let failed = match client.0.join(Instant::now() + Duration::from_secs(15), &|| false) {
            Ok(link) => {
                client.0.idle(link);
                None
            }
            Err(e) => Some(e.to_string()),
        };
        Ok((client, failed))
    }

    /// The mean time in µs that the fetches of the dataset's samples took that the owner had at the start.
    pub fn fetched_in_us(&self) -> Option<f64> {
        self.0.state.lock().fetched_in_us
    }

    /// Bytes that the owner's arena has; the first client of a machine says how many.
    pub fn capacity(&self) -> u64 {
        self.0.state.lock().capacity
    }

    /// Counts.
    pub fn numbers(&self) -> Numbers {
        self.0.counts.numbers()
    }

    /// Reads what the owner has of `keys`: `sink(k, data)` once for a position `k`, until it breaks. Waits no longer in
    /// all than `patience` of the number of samples that have come.
    pub fn read(
        &self,
        keys: &[(usize, Key, u64)],
        patience: &dyn Fn(usize) -> Duration,
        stopped: &dyn Fn() -> bool,
        sink: &mut dyn FnMut(usize, &[u8]) -> ControlFlow<()>,
    ) -> Read {
        let (counts, mut read, mut came) = (&self.0.counts, Read::default(), 0);
        for now in keys.chunks(KEYS_MAX) {
            let begun = Instant::now();
            let until = begun + patience(came).saturating_sub(read.took);
            let message: Vec<&[u8]> = now.iter().map(|(_, key, _)| &key[..]).collect();
            let asked = self.0.ask(&frame(kind::ASK, &message), kind::FOUND, until, stopped);
            read.took += begun.elapsed();
            let (mut link, found) = match asked {
                Ok(asked) => asked,
                // An owner that is not there costs what was waited for it; then it is left alone for a while.
                Err(_) => {
                    if !stopped() {
                        counts.failed.fetch_add(now.len() as u64, Relaxed);
                        read.unfinished = Instant::now() >= until;
                    }
                    return read;
                }
            };
            let mut fields = Fields(&found);
            counts.bytes.store(fields.u64().unwrap_or(0), Relaxed);
            link.adopted = fields.u64() == Ok(0);
            let mut flow = ControlFlow::Continue(());
            for &(k, _, bytes) in now {
                let (Ok(offset), Ok(length)) = (fields.u64(), fields.u64()) else { break };
                read.answers += 1;
                if length == 0 {
                    counts.misses.fetch_add(1, Relaxed);
                    continue;
                }
                // The owner has held them to their checksum, and no process can change them while they are leased.
                let data = link.shown.at(offset, length).filter(|_| length == bytes);
                let Some(data) = data else {
                    counts.damaged.fetch_add(1, Relaxed);
                    continue;
                };
                counts.hits.fetch_add(1, Relaxed);
                counts.hit_bytes.fetch_add(length, Relaxed);
                came += 1;
                planted("lease");
                flow = sink(k, data);
                if flow.is_break() {
                    break;
                }
            }
            // Its leases end.
            if link.send(&frame(kind::END, &[])).is_ok() {
                self.0.idle(link);
            }
            if flow.is_break() {
                break;
            }
        }
        read
    }

    /// A call that is to fetch samples; `None` while there is no owner.
    pub fn flight(&self) -> Option<Flight> {
        let resting = self.0.state.lock().resting_until.is_some_and(|until| Instant::now() < until);
        (!resting).then(|| Flight { inner: Arc::clone(&self.0), link: None, again: false })
    }

    /// The order of the epoch that begins now, in which other clients of the dataset read too: each id once.
    /// `None`: there is no owner, it does not answer in time, or its answer is no such order.
    pub fn order(&self, stopped: &dyn Fn() -> bool) -> Option<Vec<u32>> {
        let asked = self.0.ask(&frame(kind::ORDER, &[]), kind::ORDERED, Instant::now() + 4 * ANSWER, stopped);
        let (link, bytes) = asked.ok()?;
        self.0.idle(link);
        let (ids, rest) = bytes.as_chunks::<4>();
        let ids: Vec<u32> = ids.iter().map(|&id| u32::from_le_bytes(id)).collect();
        let mut seen = vec![false; self.0.settings.samples as usize];
        let new = |id: &u32| seen.get_mut(*id as usize).is_some_and(|seen| !std::mem::replace(seen, true));
        (rest.is_empty() && ids.len() == self.0.settings.samples as usize && ids.iter().all(new)).then_some(ids)
    }

    /// So many samples of the order have been read.
    pub fn read_to(&self, at: u32) {
        let Ok(link) = self.0.link(Instant::now() + ANSWER, &|| false) else { return };
        if link.send(&frame(kind::AT, &[&at.to_le_bytes()])).is_ok() {
            self.0.idle(link);
        }
    }

    /// The number of the machine's `all` processors that this client's threads may use. It wants so many, infinitely
    /// many if its training waits. `None`: there is no owner, or it does not answer in time.
    pub fn processors(&self, all: u32, wanted: f32, stopped: &dyn Fn() -> bool) -> Option<f32> {
        let message = frame(kind::PROCESSORS, &[&all.to_le_bytes(), &wanted.to_le_bytes()]);
        let (link, share) = self.0.ask(&message, kind::SHARE, Instant::now() + ANSWER, stopped).ok()?;
        self.0.idle(link);
        Fields(&share).array().map(f32::from_le_bytes).ok().filter(|share| share.is_finite())
    }

    /// The expected draws of all samples, by id.
    pub fn rate(&self, draws: &[f32]) {
        let Ok(link) = self.0.link(Instant::now() + ANSWER, &|| false) else { return };
        for (k, draws) in draws.chunks(WORTHS_MAX).enumerate() {
            let bytes: Vec<u8> = draws.iter().flat_map(|draws| draws.to_le_bytes()).collect();
            let first = (k * WORTHS_MAX) as u32;
            if link.send(&frame(kind::RATE, &[&first.to_le_bytes(), &bytes])).is_err() {
                return;
            }
        }
        self.0.idle(link);
    }

    /// These are not what they should be.
    pub fn forget(&self, keys: &[Key]) {
        let Ok(link) = self.0.link(Instant::now() + ANSWER, &|| false) else { return };
        let sent = keys.chunks(KEYS_MAX).all(|keys| link.send(&frame(kind::FORGET, &[keys.as_flattened()])).is_ok());
        if sent {
            self.0.idle(link);
        }
    }
}

impl Inner {
    fn idle(&self, link: Link) {
        let mut state = self.state.lock();
        let current = state.shown.as_ref().is_some_and(|shown| shown.id == link.shown.id);
        if current && link.adopted {
            state.older.clear();
        }
        if current && state.idle.len() < IDLE_MAX {
            state.idle.push(link);
        }
    }

    /// The owner does not answer.
    fn rest(&self) {
        let mut state = self.state.lock();
        state.idle.clear();
        state.rest = (state.rest * 2).clamp(REST, REST_MAX);
        state.resting_until = Some(Instant::now() + state.rest);
    }

    fn link(&self, until: Instant, stopped: &dyn Fn() -> bool) -> Result<Link, Error> {
        if let Some(link) = self.state.lock().idle.pop() {
            return Ok(link);
        }
        self.join(until, stopped)
    }

    /// A question that is asked again of the next owner, if the one before has gone.
    fn ask(
        &self,
        message: &[u8],
        kind: u8,
        until: Instant,
        stopped: &dyn Fn() -> bool,
    ) -> Result<(Link, Vec<u8>), Error> {
        let mut again = true;
        loop {
            let link = self.link(until, stopped)?;
            match link.ask(message, until, stopped) {
                Ok(answer) if answer.kind == kind => return Ok((link, answer.bytes)),
                Ok(_) => return Err(ErrorKind::InvalidData.into()),
                Err(e) if e.kind() == ErrorKind::TimedOut => {
                    if !stopped() {
                        self.rest();
                    }
                    return Err(e);
                }
                Err(e) if !again => return Err(e),
                Err(_) => {
                    again = false;
                    // The others are connections to the one that has gone.
                    self.state.lock().idle.clear();
                }
            }
        }
    }

    /// Makes a connection, starts an owner if there is none, and hands it the arena of the one before.
    fn join(&self, until: Instant, stopped: &dyn Fn() -> bool) -> Result<Link, Error> {
        let _joining = loop {
            if let Some(joining) = self.joining.try_lock() {
                break joining;
            }
            if stopped() || Instant::now() >= until {
                return Err(ErrorKind::WouldBlock.into());
            }
            std::thread::sleep(Duration::from_micros(200));
        };
        if self.state.lock().resting_until.is_some_and(|until| Instant::now() < until) {
            return Err(ErrorKind::WouldBlock.into());
        }
        let joined = self.joined(until, stopped);
        match &joined {
            Ok(_) => {
                let mut state = self.state.lock();
                (state.rest, state.resting_until) = (Duration::ZERO, None);
            }
            Err(e) if !stopped() => {
                tracing::debug!(error = %e, "no owner of the node cache");
                self.rest();
            }
            Err(_) => {}
        }
        joined
    }

    fn joined(&self, until: Instant, stopped: &dyn Fn() -> bool) -> Result<Link, Error> {
        let s = &self.settings;
        let mut command = s.command.clone();
        command.extend(["--folder".into(), self.folder.clone().into_os_string()]);
        command.extend(["--bytes".into(), s.bytes.to_string().into()]);
        let socket = start::connect_or_start(&self.folder, &command, until, stopped).map_err(Error::other)?;
        let greeting = Hello {
            member: self.member,
            dataset: s.dataset,
            samples: s.samples,
            bytes: s.bytes,
            job: s.job.clone(),
            name: s.name.clone(),
        };
        let send = |mut bytes: &[u8], file: Option<&Shown>| -> Result<Answer, Error> {
            let mut file = file.map(Shown::file);
            while !bytes.is_empty() {
                let sent = wire::send(&socket, bytes, file.take())?;
                bytes = bytes.get(sent..).unwrap_or_default();
            }
            answer(&socket, Instant::now() + 4 * ANSWER, stopped)
        };
        let welcome = send(&hello(&greeting), None)?;
        let wrong = |reason: String| Error::new(ErrorKind::InvalidData, reason);
        let mut fields = Fields(&welcome.bytes);
        let (id, capacity) = (fields.u64().map_err(wrong)?, fields.u64().map_err(wrong)?);
        let fetched_in_us = fields.u64().map(f64::from_bits).map_err(wrong)?;
        let known = self.state.lock().shown.clone();
        let shown = match known {
            Some(shown) if shown.id == id => shown,
            before => {
                let file = welcome.file.ok_or_else(|| wrong("an owner without an arena".into()))?;
                let shown = Arc::new(Shown::map(file).map_err(wrong)?);
                if let Some(before) = before {
                    self.counts.owners.fetch_add(1, Relaxed);
                    let older = {
                        let mut state = self.state.lock();
                        keep(&mut state.older, before);
                        state.older.clone()
                    };
                    for (_, before) in &older {
                        let _ = send(&frame(kind::ADOPT, &[]), Some(before))?;
                    }
                }
                let mut state = self.state.lock();
                state.idle.clear();
                state.shown = Some(Arc::clone(&shown));
                state.capacity = capacity;
                state.fetched_in_us = Some(fetched_in_us).filter(|us| us.is_finite());
                shown
            }
        };
        Ok(Link { socket, shown, adopted: false })
    }
}

/// Keeps an arena too; of many those with most samples.
fn keep(older: &mut Vec<(usize, Arc<Shown>)>, arena: Arc<Shown>) {
    if older.iter().all(|(_, known)| known.id != arena.id) {
        older.push((arena.tags().count(), arena));
        older.sort_by_key(|(samples, _)| std::cmp::Reverse(*samples));
        older.truncate(ARENAS_MAX);
    }
}
