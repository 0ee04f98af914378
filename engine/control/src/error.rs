//! One error type: a prescriptive kind, a message with numbers and the remedy, and the cause.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::sync::Arc;

/// What the reader should do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// A setting or argument is wrong: change it.
    Settings,
    /// The source could not be read: check the path or the network, then retry.
    Source,
    /// A store did not serve for as long as it was asked: nothing is known to be wrong with the data, so no sample is
    /// skipped for it. Check the network and the store, then go on from the last checkpoint.
    Outage,
    /// A sample is bad (corrupt, ragged, wrong label): fix the data or choose `on_error`.
    Sample,
    /// Not enough memory under the configured limits: raise the limit or hold fewer batches.
    Memory,
    /// The device or its driver refused: see the message; `lossfeed doctor` tells more.
    Device,
    /// The API was called in a way it does not allow (closed loader, scores for an unknown batch, after fork).
    Usage,
    /// Something took longer than the configured `timeout`.
    Timeout,
    /// Somebody asked for the end (Ctrl-C, an exit) while a sample was read: let it pass. No fault of the sample's, so
    /// never skipped.
    Interrupted,
    /// An invariant of the engine broke: report a bug.
    Internal,
}

/// The engine's error: [`ErrorKind`] tells what to do, the message tells what happened, with numbers.
#[derive(Debug, thiserror::Error)]
#[error("{}", self.told())]
pub struct Error {
    kind: ErrorKind,
    message: String,
    #[source]
    cause: Option<Box<dyn StdError + Send + Sync>>,
}

/// The engine's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// A new error of `kind`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), cause: None }
    }
    /// The same error with its cause attached; the cause is shown after the message.
    pub fn because(mut self, cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.cause = Some(cause.into());
        self
    }
    /// What the reader should do.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
    /// Wrong setting.
    pub fn settings(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Settings, message)
    }
    /// Unreadable source.
    pub fn unreadable(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Source, message)
    }
    /// A store that did not serve.
    pub fn outage(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Outage, message)
    }
    /// Bad sample.
    pub fn sample(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Sample, message)
    }
    /// Out of configured memory.
    pub fn memory(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Memory, message)
    }
    /// Device trouble.
    pub fn device(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Device, message)
    }
    /// Misuse.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Usage, message)
    }
    /// Too slow.
    pub fn timeout(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Timeout, message)
    }
    /// A broken invariant.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, message)
    }

    /// The message, and what it was because of.
    fn told(&self) -> String {
        let mut text = self.message.clone();
        let mut cause = self.source();
        while let Some(c) = cause {
            // Our own errors say their causes themselves; said by both, every cause would come twice. Many foreign
            // ones do as well.
            let said = match c.downcast_ref::<Error>().or_else(|| c.downcast_ref::<Arc<Error>>().map(|e| &**e)) {
                Some(ours) => ours.message.clone(),
                None => c.to_string(),
            };
            if !text.contains(&said) {
                text.push_str(": ");
                text.push_str(&said);
            }
            cause = c.source();
        }
        text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
    }
}

/// `text` as a terminal may have it: characters that command one, or turn the direction of writing, are written as
/// escapes. Names come from archives, stores and other processes, so whatever becomes text for people passes through
/// here.
pub fn printable(text: &str) -> Cow<'_, str> {
    let commands = |c: char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    if !text.chars().any(commands) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if commands(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_commands_a_terminal_is_told() {
        let named = Error::sample("sample 3 (s.tar/a\x1b]0;owned\x07\u{9b}2J\r\u{202e}gpj.é)")
            .because(std::io::Error::other("\x1b[31m"));
        assert_eq!(named.to_string(), "sample 3 (s.tar/a\\u{1b}]0;owned\\u{7}\\u{9b}2J\\r\\u{202e}gpj.é): \\u{1b}[31m");
        assert_eq!(Error::usage("two\nlines").to_string(), "two\nlines");
        assert!(matches!(printable("plain é"), Cow::Borrowed(_)));
    }

    #[test]
    fn every_cause_is_told_once_and_stays_reachable() {
        let io = std::io::Error::other("disk on fire");
        let inner = Arc::new(Error::unreadable("sample 3 (cat/3.png)").because(io));
        let outer = Error::unreadable("batch 0 of epoch 1").because(inner);
        assert_eq!(outer.to_string(), "batch 0 of epoch 1: sample 3 (cat/3.png): disk on fire");
        let mut deepest: &dyn StdError = &outer;
        while let Some(cause) = deepest.source() {
            deepest = cause;
        }
        assert!(deepest.downcast_ref::<std::io::Error>().is_some());
    }
}
