//! The engine's warnings become records of Python's `logging`, under the logger `lossfeed`.
//!
//! A loader thread must never wait for the interpreter lock, so it only leaves its words in a queue. Whoever of Python
//! is in our code next, and holds that lock anyway, takes them out (`errors::outside`). The queue is bounded; what
//! finds no room is counted, and the count is told.
//!
//! Messages quote names from archives and words of servers: characters that steer a terminal are escaped, and what an
//! address may carry in secret (user and password, the query of a signed URL) is left out.

use std::fmt::{Debug, Write as _};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use lossfeed::process::pid;
use lossfeed::source::without_secrets;
use lossfeed::stats::steers_terminal;
use lossfeed_sync::{Mutex, PerProcess};
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::interpreter;

/// Messages that may wait.
const ROOM: usize = 256;
/// The longest message, in bytes. A server's answer may be quoted in one.
const LONGEST: usize = 2000;

struct Message {
    error: bool,
    text: String,
}

/// The queue between the engine's threads and Python.
struct Queue {
    sender: SyncSender<Message>,
    receiver: Mutex<Receiver<Message>>,
    waiting: AtomicUsize,
    lost: AtomicUsize,
}

impl Default for Queue {
    fn default() -> Self {
        let (sender, receiver) = sync_channel(ROOM);
        Self { sender, receiver: Mutex::new(receiver), waiting: AtomicUsize::new(0), lost: AtomicUsize::new(0) }
    }
}

impl Queue {
    /// Never waits.
    fn push(&self, message: Message) {
        let count = if self.sender.try_send(message).is_ok() { &self.waiting } else { &self.lost };
        count.fetch_add(1, Ordering::Release);
    }

    /// Whatever waits, and how many found no room since the last time.
    fn take(&self) -> (Vec<Message>, usize) {
        if self.waiting.load(Ordering::Acquire) == 0 && self.lost.load(Ordering::Relaxed) == 0 {
            return (Vec::new(), 0);
        }
        // Another thread is at it: it will tell.
        let Some(receiver) = self.receiver.try_lock() else { return (Vec::new(), 0) };
        self.waiting.store(0, Ordering::Release);
        (receiver.try_iter().take(ROOM).collect(), self.lost.swap(0, Ordering::Relaxed))
    }
}

fn queue() -> &'static Queue {
    static QUEUE: PerProcess<Queue> = PerProcess::new();
    QUEUE.of(pid())
}

/// Hears warnings and errors of our own crates. Those of libraries below (HTTP, TLS) quote requests, and stay unheard.
struct Ear;

impl Subscriber for Ear {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let crate_name = metadata.target().split("::").next().unwrap_or_default();
        let ours = crate_name == "lossfeed" || crate_name.starts_with("lossfeed_");
        ours && metadata.is_event() && *metadata.level() <= Level::WARN
    }
    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::WARN)
    }
    fn event(&self, event: &Event<'_>) {
        let mut words = Words::default();
        event.record(&mut words);
        let text = presentable(&words.whole());
        queue().push(Message { error: *event.metadata().level() == Level::ERROR, text });
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// An event's message, and its other fields as `name=value`.
#[derive(Default)]
struct Words {
    message: String,
    fields: String,
}

impl Words {
    fn whole(self) -> String {
        if self.fields.is_empty() { self.message } else { format!("{}: {}", self.message, self.fields) }
    }
}

impl Visit for Words {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a string does not fail.
        if field.name() == "message" {
            let _ = write!(self.message, "{value:?}");
        } else {
            let gap = if self.fields.is_empty() { "" } else { ", " };
            let _ = write!(self.fields, "{gap}{}={value:?}", field.name());
        }
    }
}

/// `text` without secrets of addresses and without characters that steer a terminal, at most [`LONGEST`] bytes or so.
pub(crate) fn presentable(text: &str) -> String {
    let mut out = String::with_capacity(text.len().min(LONGEST));
    for c in without_secrets(text).chars() {
        if out.len() >= LONGEST {
            out.push('…');
            break;
        }
        if steers_terminal(c) { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}

/// Begins to listen. Once a process; Python's own logging is asked for nothing yet.
pub(crate) fn listen() {
    // Refused when this library is loaded a second time into one process: then somebody listens already.
    let _ = tracing::subscriber::set_global_default(Ear);
}

/// Hands to Python's `logging` what waits. Costs two loads where nothing does.
pub(crate) fn deliver(py: Python<'_>) -> PyResult<()> {
    let (messages, lost) = queue().take();
    let mut signal = Ok(());
    for Message { error, text } in messages {
        signal = signal.and(warn(py, if error { "error" } else { "warning" }, &text));
    }
    if lost > 0 {
        signal = signal.and(warn(py, "warning", &format!("{lost} more warnings found no room and are lost")));
    }
    signal
}

/// One record. Whatever somebody's handler or filter raises costs neither our caller's result nor the other records; what
/// a signal raised in there is returned.
fn warn(py: Python<'_>, method: &str, text: &str) -> PyResult<()> {
    let told = py
        .import("logging")
        .and_then(|logging| logging.call_method1("getLogger", ("lossfeed",)))
        // As an argument: a per cent sign in a name is no format.
        .and_then(|logger| logger.call_method1(method, ("%s", text)));
    match told {
        Ok(_) => {}
        Err(error) if error.is_instance_of::<PyKeyboardInterrupt>(py) || interpreter::of_signal(py, &error) => {
            return Err(error);
        }
        Err(error) => error.write_unraisable(py, None),
    }
    Ok(())
}
