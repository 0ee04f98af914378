//! Mail of the GPU's kernels, credited to the samples it is about.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

use lossfeed_sync::Mutex;

use super::Engine;
use crate::device::cuda::{Cuda, Mail, Mailbox};
use crate::error::{Error, Result};
use crate::loader::Ticket;
use crate::scoring::{self, Measured};

/// Tickets that wait for their mail; more than a GPU's queue holds launches. Those of dropped batches leave as new ones
/// come.
const TICKETS_MAX: usize = 1024;

impl Engine {
    /// Credits measured scores to the samples with these ids, a row each (see [`scoring::credit_ids`]). Returns how
    /// many were scored.
    pub fn apply_scores_to_ids(&self, ids: &[i64], measured: &Measured<'_>) -> Result<usize> {
        self.usable()?;
        let samples = self.feed.source.len();
        scoring::credit_ids(&self.feed.cache, &self.feed.counters, self.belief(), samples, ids, measured)
    }
}

/// Who mail is about: tickets by tag, else the mail's own ids.
pub struct Credits {
    engine: Weak<Engine>,
    waiting: Mutex<Waiting>,
    kept: Mutex<BTreeMap<u64, Kept>>,
}

/// The owner of something that captured launches read.
pub type Kept = Box<dyn Send>;

#[derive(Default)]
struct Waiting {
    last_tag: u64,
    tickets: VecDeque<(u64, Ticket)>,
    problem: Option<Error>,
}

impl Credits {
    /// For mail to `engine`, which it does not keep alive.
    pub fn new(engine: &Arc<Engine>) -> Self {
        Self { engine: Arc::downgrade(engine), waiting: Mutex::default(), kept: Mutex::default() }
    }

    /// The tag to launch with: mail that brings it is credited to this ticket's batch.
    pub fn register(&self, ticket: Ticket) -> u64 {
        let mut waiting = self.waiting.lock();
        waiting.last_tag += 1;
        let tag = waiting.last_tag;
        if waiting.tickets.len() == TICKETS_MAX {
            waiting.tickets.pop_front();
        }
        waiting.tickets.push_back((tag, ticket));
        tag
    }

    /// Keeps the owner of the memory at `address` (ids that a captured launch reads: its graph knows them by their
    /// address alone) until [`Self::take_kept`], or until the mailbox is gone and the last mail has been read. Gives
    /// what was kept for that address before.
    pub fn keep(&self, address: u64, owner: Kept) -> Option<Kept> {
        self.kept.lock().insert(address, owner)
    }

    /// What was kept. Once the mailbox is closed nobody reads it any more.
    pub fn take_kept(&self) -> BTreeMap<u64, Kept> {
        std::mem::take(&mut self.kept.lock())
    }

    /// Takes a batch's scores home. A problem is kept for [`Self::take_problem`]: nobody is there to be told.
    pub fn deliver(&self, mail: &Mail<'_>) {
        let Some(engine) = self.engine.upgrade() else { return };
        // Lost batches leave nothing but their number: each counts for as many samples as the batch that tells of it.
        let rows = mail.count.len() as u64;
        let lost = |batches: u64| engine.feed.counters.scores_dropped_total.fetch_add(batches * rows, Relaxed);
        lost(u64::from(mail.dropped));
        let ticket = {
            let mut waiting = self.waiting.lock();
            let found = waiting.tickets.iter().position(|(tag, _)| *tag == mail.tag);
            found.and_then(|at| waiting.tickets.remove(at)).map(|(_, ticket)| ticket)
        };
        let measured =
            Measured { loss: mail.loss, grad_norm: mail.grad_norm, entropy: mail.entropy, count: mail.count };
        let credited = match (&ticket, mail.ids) {
            (Some(ticket), _) => engine.apply_scores(ticket, &measured),
            (None, Some(ids)) => engine.apply_scores_to_ids(ids, &measured),
            // Its ticket has left, and it brings no ids.
            (None, None) => {
                lost(1);
                Ok(0)
            }
        };
        let of = ticket.map_or(String::new(), |t| format!(" of batch {} of epoch {}", t.number, t.epoch));
        let bad = mail.bad_row.map(|row| Error::sample(format!("the target of row {row}{of} names no class")));
        if let Some(problem) = bad.or(credited.err()) {
            self.waiting.lock().problem.get_or_insert(problem);
        }
    }

    /// [`Engine::losses_suffice`] of the engine that is mailed to.
    pub fn losses_suffice(&self) -> bool {
        self.engine.upgrade().is_some_and(|engine| engine.losses_suffice())
    }

    /// The first problem since this was last asked: a target that names no class, scores that fit no batch.
    pub fn take_problem(&self) -> Option<Error> {
        self.waiting.lock().problem.take()
    }
}

/// An engine's mailbox on a GPU.
pub struct ScoreMailbox {
    mailbox: Mutex<Mailbox>,
    address: u64,
    credits: Arc<Credits>,
}

impl ScoreMailbox {
    /// For batches of at most `rows_max` rows, `slots` (a power of two) of them on their way at most, on device
    /// `ordinal`.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Device`] if there is no such device, [`crate::ErrorKind::Settings`] for sizes it cannot
    /// have.
    pub fn open(engine: &Arc<Engine>, ordinal: usize, rows_max: usize, slots: usize) -> Result<Self> {
        engine.usable()?;
        let own = engine.gpu.as_ref().filter(|gpu| gpu.gpu().ordinal == ordinal);
        let cuda = own.map_or_else(|| Cuda::open(ordinal), |gpu| Ok(gpu.clone()))?;
        let credits = Arc::new(Credits::new(engine));
        let sink = credits.clone();
        let mailbox = cuda.mailbox(rows_max, slots, move |mail| sink.deliver(mail))?;
        Ok(Self { address: mailbox.address(), mailbox: Mutex::new(mailbox), credits })
    }

    /// What launches name it by: an address on the device, valid for ever.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Tickets and problems.
    pub fn credits(&self) -> &Credits {
        &self.credits
    }

    /// Batches that came home.
    pub fn delivered_total(&self) -> u32 {
        self.mailbox.lock().delivered_total()
    }

    /// Waits for scores under way, see [`Mailbox::settle`].
    ///
    /// # Errors
    /// As there.
    pub fn settle(&self) -> Result<()> {
        self.mailbox.lock().settle()
    }

    /// Ends it, see [`Mailbox::close`].
    pub fn close(&self) -> bool {
        self.mailbox.lock().close()
    }
}
