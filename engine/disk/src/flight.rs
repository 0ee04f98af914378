//! A call's fetches, made once among all processes that share the folder.
//!
//! Before a call fetches samples it claims them. It leaves to another process what that one is fetching, and waits
//! until the record can be read, or the other has given it up, stopped or died. The tier's thread keeps the claims: it
//! reads what the others have written anyway, and a disk that hangs holds up no caller.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use crate::Key;
use crate::claims::Whose;
use crate::disk::Disk;
use crate::shared::{Item, Request, Shared};

/// A first answer that does not come in this time is not waited for: the thread's disk hangs.
const ANSWER: Duration = Duration::from_millis(500);
/// The same of an answer that may take long, where the thread does not move.
const STILL: Duration = Duration::from_secs(2);
/// How often a caller that waits looks whether it still wants the answer.
const STOP_SOON: Duration = Duration::from_millis(50);

/// See the module's head. Dropping it ends its claims, once what was offered before is written.
pub struct Flight {
    shared: Arc<Shared>,
    /// Number of its last claims.
    ticket: Option<u64>,
    since: Option<Instant>,
}

impl Disk {
    /// A call that is to fetch samples; `None` where nothing is shared, or nothing would be written.
    pub fn flight(&self) -> Option<Flight> {
        let shared = &self.shared;
        if shared.table.is_none() || shared.off.load(Relaxed) || shared.stuck.load(Relaxed) || shared.declines() {
            return None;
        }
        Some(Flight { shared: Arc::clone(shared), ticket: None, since: None })
    }
}

impl Flight {
    /// Claims `keys`. The first call answers at once. Later ones end the claims before, and wait for a bounded time
    /// until one of `keys` is no longer another's; after `stopped` they may answer anything.
    pub fn claim(&mut self, keys: &[Option<Key>], stopped: &dyn Fn() -> bool) -> Vec<Whose> {
        let ours = || vec![Whose::Ours; keys.len()];
        let waits = self.land();
        if waits {
            self.since.get_or_insert_with(Instant::now);
        }
        let ticket = self.shared.tickets.fetch_add(1, Relaxed);
        self.ticket = Some(ticket);
        let (answer, answers) = sync_channel(1);
        let company = self.shared.table.as_ref().is_some_and(|table| table.has_company());
        // When the last of the others has gone there is one look more, at what it has left.
        let company = self.shared.company.swap(company, Relaxed) || company;
        let request = Request { ticket, keys: keys.to_vec(), since: self.since, answer };
        {
            let mut queue = self.shared.queue.lock();
            queue.requests.push(request);
            self.shared.requested.store(true, Relaxed);
        }
        self.shared.news.notify_one();
        // Alone it does not wait: the others will know in a moment.
        if !company && !waits {
            return ours();
        }
        self.wait(&answers, stopped).filter(|whose| whose.len() == keys.len()).unwrap_or_else(ours)
    }

    /// Ends the claims; true if there were any.
    fn land(&mut self) -> bool {
        let Some(ticket) = self.ticket.take() else { return false };
        self.shared.queue.lock().items.push_back(Item::Landed { ticket });
        self.shared.news.notify_one();
        true
    }

    fn wait(&self, answers: &Receiver<Vec<Whose>>, stopped: &dyn Fn() -> bool) -> Option<Vec<Whose>> {
        let patience = if self.since.is_some() { STILL } else { ANSWER };
        let (mut seen, mut moved) = (self.shared.beats.load(Relaxed), Instant::now());
        while !stopped() {
            match answers.recv_timeout(STOP_SOON) {
                Ok(whose) => return Some(whose),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => {}
            }
            let beats = self.shared.beats.load(Relaxed);
            if self.since.is_some() && beats != std::mem::replace(&mut seen, beats) {
                moved = Instant::now();
            }
            if moved.elapsed() >= patience {
                self.shared.stuck.store(true, Relaxed);
                return None;
            }
        }
        None
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.land();
    }
}
