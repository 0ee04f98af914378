//! Fetches of a call.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::{ANSWER, Inner, Offer, Whose};
use crate::flights::OVERDUE_MS;
use crate::link::Link;
use crate::message::{KEYS_MAX, Key, OfferHead, SAMPLE_MAX, frame, kind, offer};
use crate::planted::planted;
use crate::serving::{OURS, THERE};

/// Fetches of a call, each made by one process. Dropping it ends them.
pub struct Flight {
    pub(super) inner: Arc<Inner>,
    pub(super) link: Option<Link>,
    pub(super) again: bool,
}

impl Flight {
    /// Claims `keys`. The first call answers at once. Later ones end the claims before, and wait for a bounded time
    /// until one of `keys` is no longer another's; after `stopped` they may answer anything.
    pub fn claim(&mut self, keys: &[Key], stopped: &dyn Fn() -> bool) -> Vec<Whose> {
        let mut whose = Vec::with_capacity(keys.len());
        let mut wait = std::mem::replace(&mut self.again, true);
        for keys in keys.chunks(KEYS_MAX) {
            let patience = if wait { ANSWER + Duration::from_millis(OVERDUE_MS) } else { ANSWER };
            let message = frame(kind::CLAIM, &[&[u8::from(wait)], keys.as_flattened()]);
            wait = false;
            let until = Instant::now() + patience;
            let asked = match &self.link {
                Some(link) => link.ask(&message, until, stopped).map(|answer| answer.bytes),
                None => self.inner.ask(&message, kind::WHOSE, until, stopped).map(|(link, bytes)| {
                    self.link = Some(link);
                    bytes
                }),
            };
            match asked {
                Ok(answer) if answer.len() == keys.len() => whose.extend(answer.iter().map(|&who| match who {
                    OURS => Whose::Ours,
                    THERE => Whose::There,
                    _ => Whose::Theirs,
                })),
                failed => {
                    self.link = None;
                    if failed.is_err_and(|e| e.kind() == ErrorKind::TimedOut) && !stopped() {
                        self.inner.rest();
                    }
                    whose.resize(whose.len() + keys.len(), Whose::Ours);
                }
            }
        }
        whose
    }

    /// Offers a sample. Advice: it may be kept.
    pub fn offer(&mut self, offered: &Offer<'_>) {
        let counts = &self.inner.counts;
        let head = OfferHead {
            key: offered.key,
            id: offered.id,
            cost_us: u32::try_from(offered.cost.as_micros()).unwrap_or(u32::MAX),
            crc: crc32fast::hash(offered.data),
            bytes: offered.data.len() as u64,
        };
        let fits = (1..=SAMPLE_MAX).contains(&head.bytes);
        let sent = self.link.as_ref().filter(|_| fits).map(|link| {
            link.send(&offer(&head))?;
            planted("offer begun");
            link.send(offered.data)
        });
        match sent {
            Some(Ok(())) => counts.offered.fetch_add(1, Relaxed),
            Some(Err(e)) => {
                self.link = None;
                if e.kind() == ErrorKind::TimedOut {
                    self.inner.rest();
                }
                counts.dropped.fetch_add(1, Relaxed)
            }
            None => counts.dropped.fetch_add(1, Relaxed),
        };
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if let Some(link) = self.link.take()
            && link.send(&frame(kind::END, &[])).is_ok()
        {
            self.inner.idle(link);
        }
    }
}
