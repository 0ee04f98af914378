//! The threads of an engine that load and read ahead: waited for at the end, and left behind if they hang.
//!
//! Lock: guards the handles of the loader threads; held for a few instructions.

use crate::error::{Error, Result};
use crate::loader::{Feed, Hand, Iteration};
use crate::process::no_thread;
use lossfeed_sync::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// How long a wait for threads sleeps before it looks again.
const TICK: Duration = Duration::from_millis(1);

/// Threads that read ahead: one goes on while the last answers to another's call are slow.
const READERS: usize = 2;
/// The same of a source that reads on the thread which asks it.
const LOCAL_READERS: usize = 4;
/// The stack of a thread that only reads files.
const READERS_STACK_BYTES: usize = 512 << 10;

/// A thread, and who tells in words what it has in hand. What that holds owns all memory that the thread writes to.
struct Running {
    handle: JoinHandle<()>,
    in_hand: Box<dyn Fn() -> String + Send>,
}

/// All that were started and may still run.
#[derive(Default)]
pub(super) struct Threads {
    running: Mutex<Vec<Running>>,
    reading: AtomicBool,
}

impl Threads {
    /// Starts threads of a pass, those of these numbers. If one cannot be had, those that were started run until the
    /// pass is stopped.
    pub(super) fn start(&self, pass: &Arc<Iteration>, workers: Range<usize>) -> Result<()> {
        self.running.lock().retain(|thread| !thread.handle.is_finished());
        for worker in workers {
            let (shared, pass) = (Arc::clone(pass), Arc::clone(pass));
            let in_hand = move || format!("lossfeed-{worker}: {}", pass.work_in_hand(worker));
            self.spawn(format!("lossfeed-{worker}"), "lower num_workers", in_hand, move || shared.work(worker))?;
        }
        Ok(())
    }

    /// Starts the threads that read ahead for `feed`, if it does that and they were not started yet. They end with
    /// [`crate::loader::ReadAhead::close`].
    /// Where files are read one after the other they are started when that turns out to be slow.
    pub(super) fn start_reading(self: &Arc<Self>, feed: &Arc<Feed>) -> Result<()> {
        let Some(ahead) = feed.read_ahead.as_ref().filter(|_| !self.reading.swap(true, Relaxed)) else {
            return Ok(());
        };
        if ahead.is_beside() {
            // What is lent here must not keep what it belongs to.
            let (threads, lent) = (Arc::downgrade(self), Arc::downgrade(feed));
            return ahead.hire_by(Box::new(move |hand| match (threads.upgrade(), lent.upgrade()) {
                (Some(threads), Some(feed)) => threads.hire(hand, feed),
                _ => Ok(()),
            }));
        }
        let readers = if feed.source.facts().remote { READERS } else { LOCAL_READERS };
        for reader in 0..readers {
            let feed = Arc::clone(feed);
            let work = move || {
                if let Some(ahead) = &feed.read_ahead {
                    ahead.work(&feed.cache, &*feed.source);
                }
            };
            let in_hand = move || format!("lossfeed-ahead-{reader}: samples that it reads ahead");
            self.spawn(format!("lossfeed-ahead-{reader}"), "set read_ahead to 0", in_hand, work)?;
        }
        Ok(())
    }

    /// Starts a thread for a source that reads in turn.
    fn hire(&self, hand: Hand, feed: Arc<Feed>) -> Result<()> {
        let name = match hand {
            Hand::Looks => "lossfeed-ahead-0".to_owned(),
            Hand::Reads(number) => format!("lossfeed-read-{number}"),
        };
        let work = move || match (hand, &feed.read_ahead) {
            (Hand::Looks, Some(ahead)) => ahead.work(&feed.cache, &*feed.source),
            (Hand::Reads(_), Some(ahead)) => ahead.serve(&*feed.source),
            (_, None) => {}
        };
        let shown = name.clone();
        let in_hand = move || format!("{shown}: samples that it reads");
        let builder = Builder::new().stack_size(READERS_STACK_BYTES);
        self.spawn_by(builder, name, "set read_ahead to 0", in_hand, work)
    }

    pub(super) fn spawn(
        &self,
        name: String,
        remedy: &str,
        in_hand: impl Fn() -> String + Send + 'static,
        work: impl FnOnce() + Send + 'static,
    ) -> Result<()> {
        self.spawn_by(Builder::new(), name, remedy, in_hand, work)
    }

    fn spawn_by(
        &self,
        builder: Builder,
        name: String,
        remedy: &str,
        in_hand: impl Fn() -> String + Send + 'static,
        work: impl FnOnce() + Send + 'static,
    ) -> Result<()> {
        let handle = builder
            .name(name)
            .spawn(work)
            .map_err(|e| Error::memory(no_thread("the loader", remedy, &e)).because(e))?;
        self.running.lock().push(Running { handle, in_hand: Box::new(in_hand) });
        Ok(())
    }

    /// Waits until all have ended, or `patience` is over. Returns those that have not: their names, and what they have
    /// in hand.
    pub(super) fn wait(&self, patience: Duration) -> Vec<String> {
        let entered = Instant::now();
        loop {
            let mut left = Vec::new();
            {
                let mut running = self.running.lock();
                let (ended, still): (Vec<_>, Vec<_>) =
                    std::mem::take(&mut *running).into_iter().partition(|thread| thread.handle.is_finished());
                *running = still;
                left.extend(running.iter().map(|thread| (thread.in_hand)()));
                // Ended already: joining them waits for nothing.
                ended.into_iter().for_each(|thread| drop(thread.handle.join()));
            }
            let over = entered.elapsed();
            if left.is_empty() || over >= patience {
                return left;
            }
            std::thread::sleep(TICK.min(patience - over));
        }
    }
}
