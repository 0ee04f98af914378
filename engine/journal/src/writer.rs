//! Writes events from a thread of its own. Handing one over costs a short lock and never waits for the disk, unless
//! asked to.

use std::collections::VecDeque;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use lossfeed_control::{Error, Result};
use lossfeed_sync::{Condvar, Mutex};

use crate::line::{self, COLUMNS, END, Line};
use crate::{Event, Meta};

/// Events that wait for the disk may take about so many bytes: a few hundred thousand rows.
const QUEUE_BYTES: usize = 64 << 20;
/// Text is written in blocks of this size. With gzip each is a member of its own, so that a killed run leaves a file
/// that any program can read up to its last whole block.
const BLOCK_BYTES: usize = 1 << 20;
/// What is not a whole block is written after this time.
const PATIENCE: Duration = Duration::from_secs(1);

/// What happens to an event when the queue is full because the disk is slower than the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WhenBehind {
    /// It is lost. The journal says where and how many rows, and so does [`Summary`].
    #[default]
    Lose,
    /// Whoever hands it over waits: nothing is missing, and training is as fast as the disk.
    Wait,
}

/// What a closed journal holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// Rows written.
    pub rows: u64,
    /// Rows that were lost.
    pub lost: u64,
}

/// The journal of a run that is under way. Dropping it closes it, too; [`Writer::close`] tells of failures.
pub struct Writer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    /// There is something to write, or it is over.
    news: Condvar,
    /// The queue has room again.
    room: Condvar,
    when_behind: WhenBehind,
    queue_bytes: usize,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Event>,
    queued_bytes: usize,
    /// Rows lost since the last event that was taken.
    losing: u64,
    summary: Summary,
    over: bool,
    failure: Option<Arc<io::Error>>,
}

impl Writer {
    /// Makes the file and writes the run's description, so that a place that cannot be written is found out now. Gzip
    /// if the name ends in `.gz`.
    ///
    /// # Errors
    /// `Settings` if the file exists already (it may be the only record of another run) or cannot be made.
    pub fn create(path: &Path, meta: &Meta, when_behind: WhenBehind) -> Result<Self> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(|e| {
            let remedy = match e.kind() {
                io::ErrorKind::AlreadyExists => "the file exists: choose another name, or remove it",
                _ => "the journal cannot be created: choose an existing folder that you can write to",
            };
            Error::settings(format!("journal {}: {remedy}", path.display())).because(e)
        })?;
        let packed = path.extension().is_some_and(|extension| extension == "gz");
        Self::start(file, meta, when_behind, packed, QUEUE_BYTES)
            .map_err(|e| Error::settings(format!("journal {}", path.display())).because(e))
    }

    /// The same into anything that can be written, with a queue of about `queue_bytes`.
    pub(crate) fn start(
        out: impl Write + Send + 'static,
        meta: &Meta,
        when_behind: WhenBehind,
        packed: bool,
        queue_bytes: usize,
    ) -> io::Result<Self> {
        let mut blocks = Blocks { out, packed, block_bytes: BLOCK_BYTES.min(queue_bytes) };
        let mut text = format!("# {}\n", serde_json::to_string(meta)?).into_bytes();
        text.extend_from_slice(COLUMNS.join(",").as_bytes());
        text.push(b'\n');
        blocks.write(&text)?;
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            news: Condvar::new(),
            room: Condvar::new(),
            when_behind,
            queue_bytes,
        });
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("lossfeed-journal".into()).spawn(move || theirs.run(blocks))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Hands over an event. Call it in the order of the calls of the books, that is, under their lock. After a failure
    /// events are counted as lost; [`Writer::failure`] says why.
    pub fn push(&self, event: Event) {
        let mut state = self.shared.state.lock();
        let bytes = event.bytes();
        let full = |state: &State| !state.queue.is_empty() && state.queued_bytes + bytes > self.shared.queue_bytes;
        if self.shared.when_behind == WhenBehind::Wait {
            while full(&state) && state.failure.is_none() {
                self.shared.room.wait(&mut state);
            }
        }
        if state.failure.is_some() || full(&state) {
            // At least one, so that an event without rows leaves its mark, too.
            let rows = event.rows().max(1) as u64;
            state.losing += rows;
            state.summary.lost += rows;
            return;
        }
        let losing = std::mem::take(&mut state.losing);
        if losing > 0 {
            state.queue.push_back(Event::Lost(losing));
        }
        state.queued_bytes += bytes;
        state.summary.rows += event.rows() as u64;
        state.queue.push_back(event);
        drop(state);
        self.shared.news.notify_one();
    }

    /// Rows that were lost so far.
    pub fn lost(&self) -> u64 {
        self.shared.state.lock().summary.lost
    }

    /// Why nothing more is written, if so. The run goes on without its journal.
    pub fn failure(&self) -> Option<Arc<io::Error>> {
        self.shared.state.lock().failure.clone()
    }

    /// Writes what is queued and ends the file.
    ///
    /// # Errors
    /// `Source` if not everything could be written: what was written before stays.
    pub fn close(mut self) -> Result<Summary> {
        self.join();
        let state = self.shared.state.lock();
        match &state.failure {
            None => Ok(state.summary),
            Some(e) => Err(Error::unreadable(format!(
                "the journal is incomplete ({} rows were lost): make room on its disk, and record the run again if you need all of it",
                state.summary.lost
            ))
            .because(Arc::clone(e))),
        }
    }

    fn join(&mut self) {
        self.shared.state.lock().over = true;
        self.shared.news.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            let gone = io::Error::other("the thread that writes the journal ended unexpectedly");
            self.shared.state.lock().failure.get_or_insert(Arc::new(gone));
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.join();
            if let Some(e) = self.failure() {
                tracing::warn!(error = %e, lost = self.lost(), "the journal is incomplete");
            }
        }
    }
}

impl Shared {
    fn run(&self, mut blocks: Blocks<impl Write>) {
        if let Err(e) = self.write_all(&mut blocks) {
            let mut state = self.state.lock();
            // What was queued, and what was taken and did not reach the disk, is not told apart from what was not.
            state.summary.lost += state.queue.iter().map(|event| event.rows().max(1) as u64).sum::<u64>();
            state.queue.clear();
            state.queued_bytes = 0;
            state.failure = Some(Arc::new(e));
            self.room.notify_all();
        }
    }

    fn write_all(&self, blocks: &mut Blocks<impl Write>) -> io::Result<()> {
        let mut text = Vec::new();
        loop {
            let (events, over) = self.next(!text.is_empty());
            let idle = events.is_empty();
            for event in &events {
                encode(&mut text, |lines| line::write(lines, event))?;
                if text.len() >= blocks.block_bytes {
                    blocks.write(&text)?;
                    text.clear();
                }
            }
            if over {
                encode(&mut text, |lines| lines.serialize(Line { event: END, ..Line::default() }))?;
            }
            if (idle || over) && !text.is_empty() {
                blocks.write(&text)?;
                text.clear();
            }
            if over {
                return blocks.out.flush();
            }
        }
    }

    /// All that is queued, and whether it is over. Empty if nothing came for a while and `waiting` text is to be
    /// written.
    fn next(&self, waiting: bool) -> (VecDeque<Event>, bool) {
        let mut state = self.state.lock();
        while state.queue.is_empty() && !state.over {
            if !waiting {
                self.news.wait(&mut state);
            } else if self.news.wait_for(&mut state, PATIENCE).timed_out() {
                break;
            }
        }
        let mut events = std::mem::take(&mut state.queue);
        state.queued_bytes = 0;
        // Only what came before it is counted as lost before an event; at the end nothing comes any more.
        if state.over && state.losing > 0 {
            events.push_back(Event::Lost(std::mem::take(&mut state.losing)));
        }
        self.room.notify_all();
        (events, state.over)
    }
}

fn encode(text: &mut Vec<u8>, write: impl FnOnce(&mut csv::Writer<&mut Vec<u8>>) -> csv::Result<()>) -> io::Result<()> {
    let mut lines = csv::WriterBuilder::new().has_headers(false).from_writer(text);
    write(&mut lines).map_err(io::Error::from)?;
    lines.flush()
}

/// Writes blocks of text, each whole or, when the process is killed meanwhile, not.
struct Blocks<W> {
    out: W,
    packed: bool,
    block_bytes: usize,
}

impl<W: Write> Blocks<W> {
    fn write(&mut self, text: &[u8]) -> io::Result<()> {
        if !self.packed {
            return self.out.write_all(text);
        }
        let mut member = GzEncoder::new(Vec::with_capacity(text.len() / 3), Compression::fast());
        member.write_all(text)?;
        self.out.write_all(&member.finish()?)
    }
}
