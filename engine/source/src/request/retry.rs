//! When a store fails: how long it is asked again, and who asks.
//!
//! There is one budget, in time, for a store: from the first failure after the last answer on, all its requests
//! together have it to get an answer, and a request that fails while others succeed has as much for itself. Nothing
//! below this file retries.
//!
//! After a few failures without an answer between, the store is taken to be down: one request probes it, with growing
//! pauses, and all others wait for what the probe finds. When the budget is spent everyone gets the last error at
//! once, and later requests get it without asking, but for one probe a pause: a store that comes back is found again.

use std::collections::hash_map::RandomState;
use std::future::Future;
use std::hash::{BuildHasher, Hasher};
use std::pin::pin;
use std::time::Duration;

use lossfeed_sync::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout_at};

use crate::error::{Error, Result};

/// The first pause; each further one is twice as long, each with chance in its upper half.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// Failures in a row that make a store be taken to be down.
const DOWN_AFTER: u32 = 4;
/// Failures that lie further apart, and further than a budget, belong to two troubles.
const FORGOTTEN: Duration = Duration::from_secs(60);
/// The most for a store that has never answered: most likely its name is wrong.
const FIRST_CONTACT: Duration = Duration::from_secs(10);
/// Of this, the most for its first request. What is left is for a second one: an answer may be lost.
const FIRST_REQUEST: Duration = Duration::from_secs(7);
/// A longer `timeout` says that the store is as slow as that.
const USUAL_TIMEOUT: Duration = Duration::from_secs(30);
/// How often an answer that is wrong is asked for again, within the budget.
const AGAIN: u32 = 3;

/// What a failed request means for the next.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The store did not serve: nothing is known about the data.
    Outage {
        error: Error,
        /// Whether the store said anything at all.
        answered: bool,
        /// How long it asks to be left alone.
        retry_after: Option<Duration>,
    },
    /// An answer that is wrong, and may be right the next time: asked for a few times more.
    Again(Error),
    /// Asking again cannot help.
    Final(Error),
}

impl Failure {
    /// An outage of a store that said nothing.
    pub(crate) fn silence(error: Error) -> Self {
        Self::Outage { error, answered: false, retry_after: None }
    }

    /// The same, with its cause.
    pub(crate) fn because(self, cause: impl std::error::Error + Send + Sync + 'static) -> Self {
        match self {
            Self::Outage { error, answered, retry_after } => {
                Self::Outage { error: error.because(cause), answered, retry_after }
            }
            Self::Again(error) => Self::Again(error.because(cause)),
            Self::Final(error) => Self::Final(error.because(cause)),
        }
    }
}

/// A store's health, as all its requests see it.
pub(crate) struct Health {
    budget: Duration,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    /// Whether it has ever said anything.
    reached: bool,
    /// Of the first failure since the last answer.
    failing_since: Option<Instant>,
    failures: u32,
    /// When it failed last.
    failed_at: Option<Instant>,
    /// Probes since it was taken to be down.
    probes: u32,
    /// Down: when the next probe is due.
    due: Option<Instant>,
    probing: bool,
    /// The last failure in words.
    last: String,
}

/// The right to send one request.
struct Turn<'a> {
    health: &'a Health,
    probe: bool,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.probe {
            self.health.state.lock().probing = false;
            self.health.changed.notify_waiters();
        }
    }
}

impl Health {
    pub(crate) fn new(budget: Duration) -> Self {
        Self { budget, state: Mutex::default(), changed: Notify::new() }
    }

    /// The longest that one request may take: `timeout`, and less for a store that has never answered.
    pub(crate) fn limit(&self, timeout: Option<Duration>) -> Option<Duration> {
        let state = self.state.lock();
        let limit = timeout.filter(|limit| !state.reached && *limit <= USUAL_TIMEOUT);
        limit.map_or(timeout, |limit| {
            Some(limit.min(if state.failures == 0 { FIRST_REQUEST } else { FIRST_CONTACT - FIRST_REQUEST }))
        })
    }

    /// It has said something, and more of the same answer is to come.
    pub(crate) fn reached(&self) {
        self.state.lock().reached = true;
    }

    /// Sends requests until one is answered, cannot be, or the budget is spent. `what` is asked for.
    pub(crate) async fn run<T, F: Future<Output = Result<T, Failure>>>(
        &self,
        what: &(dyn Fn() -> String + Sync),
        mut request: impl FnMut() -> F,
    ) -> Result<T> {
        let (mut first, mut failed, mut wrong) = (None, 0u32, 0);
        loop {
            let started = Instant::now();
            let turn = self.turn(what).await?;
            let outcome = request().await;
            let (error, retry_after, stores) = match outcome {
                Ok(answer) => {
                    self.answered();
                    return Ok(answer);
                }
                Err(Failure::Final(error)) => {
                    self.answered();
                    return Err(error);
                }
                Err(Failure::Again(error)) => {
                    self.answered();
                    let spent = started - *first.get_or_insert(started);
                    let Some(pause) = again(wrong, spent, self.budget) else { return Err(error) };
                    wrong += 1;
                    tracing::debug!(error = %error, wrong, "asking again");
                    drop(turn);
                    sleep(pause).await;
                    continue;
                }
                Err(Failure::Outage { error, answered, retry_after }) => {
                    let left = self.failed(&error, started, answered, turn.probe, retry_after);
                    (error, retry_after, left)
                }
            };
            drop(turn);
            failed += 1;
            let now = Instant::now();
            let left = self.budget_now().saturating_sub(now - *first.get_or_insert(started)).min(stores);
            let pause = retry_after.unwrap_or_else(|| jittered(backoff(failed - 1)).min(left));
            if left.is_zero() || pause > left {
                let asked = retry_after.map_or(String::new(), |s| format!(", it asks to be left alone for {s:?}"));
                return Err(self.given_up(what, &format!("{error} ({failed} requests{asked})")));
            }
            sleep(pause).await;
        }
    }

    /// Waits until a request may be sent.
    async fn turn(&self, what: &(dyn Fn() -> String + Sync)) -> Result<Turn<'_>> {
        loop {
            let mut changed = pin!(self.changed.notified());
            // From here on no change is missed.
            changed.as_mut().enable();
            let until = {
                let mut state = self.state.lock();
                let (Some(due), Some(since)) = (state.due, state.failing_since) else {
                    return Ok(Turn { health: self, probe: false });
                };
                let (now, end) = (Instant::now(), since + self.budget_of(&state));
                if state.probing || now < due {
                    if now >= end || (due > end && !state.probing) {
                        let last = format!("{} ({} requests)", state.last, state.failures);
                        drop(state);
                        return Err(self.given_up(what, &last));
                    }
                    if state.probing { end } else { due.min(end) }
                } else {
                    state.probing = true;
                    return Ok(Turn { health: self, probe: true });
                }
            };
            // Either way the state is looked at anew.
            let _ = timeout_at(until, changed).await;
        }
    }

    fn budget_of(&self, state: &State) -> Duration {
        if state.reached { self.budget } else { self.budget.min(FIRST_CONTACT) }
    }

    /// Whether it has less than the budget because it never answered.
    fn is_unknown(&self) -> bool {
        self.budget_now() < self.budget
    }

    fn budget_now(&self) -> Duration {
        self.budget_of(&self.state.lock())
    }

    /// Time in which a request gets an answer, or is given up.
    pub(crate) fn budget(&self) -> Duration {
        self.budget
    }

    /// Whether nothing failed since the last answer.
    pub(crate) fn is_good(&self) -> bool {
        self.state.lock().failures == 0
    }

    /// The store serves.
    fn answered(&self) {
        let mut state = self.state.lock();
        let was_down = state.due.is_some();
        if state.failures > 0 || !state.reached {
            *state = State { reached: true, probing: state.probing, ..State::default() };
        }
        drop(state);
        if was_down {
            tracing::warn!("the store answers again");
            self.changed.notify_waiters();
        }
    }

    /// What is left of the store's budget after this failure of a request that was sent at `started`.
    fn failed(
        &self,
        error: &Error,
        started: Instant,
        answered: bool,
        probe: bool,
        retry_after: Option<Duration>,
    ) -> Duration {
        let mut state = self.state.lock();
        let now = Instant::now();
        // A trouble that nobody has seen for long is another one, with a budget of its own.
        if state.failed_at.is_some_and(|at| now - at > self.budget.max(FORGOTTEN)) {
            *state = State { reached: state.reached, probing: state.probing, ..State::default() };
        }
        state.failed_at = Some(now);
        state.reached |= answered;
        // A store that has never answered was not there before either.
        let since = if state.reached { now } else { started };
        state.failing_since.get_or_insert(since);
        state.failures += 1;
        state.last = error.to_string();
        let opened = state.due.is_none() && state.failures >= DOWN_AFTER;
        if opened || probe {
            state.probes += u32::from(probe);
            let pause = retry_after.unwrap_or_else(|| jittered(backoff(state.probes)));
            state.due = Some(now + pause);
        } else if let (Some(due), Some(wanted)) = (state.due, retry_after) {
            state.due = Some(due.max(now + wanted));
        }
        // The last probe falls on the end of the budget, not behind it.
        if let (Some(due), Some(since), None) = (state.due, state.failing_since, retry_after) {
            let end = since + self.budget_of(&state);
            state.due = Some(if now < end { due.min(end) } else { due });
        }
        let budget = self.budget_of(&state);
        let left = state.failing_since.map_or(budget, |since| budget.saturating_sub(now - since));
        drop(state);
        if opened {
            tracing::warn!(error = %error, "the store does not serve; it is asked again for up to {budget:?} (retry_timeout)");
        }
        left
    }

    fn given_up(&self, what: &(dyn Fn() -> String + Sync), last: &str) -> Error {
        let budget = self.budget_now();
        let unknown = self.is_unknown();
        let short = if unknown { " (it has never answered: check its name)" } else { "" };
        // A budget of 0 is one request and no second.
        let within = if budget.is_zero() { String::new() } else { format!(" within {budget:?}") };
        Error::outage(format!(
            "{}: the store did not serve it{within}{short}; nothing is known to be wrong with the data: check the network \
             and the store, or {}; the last failure: {last}",
            what(),
            if unknown { "give a timeout of more than 30 s if it is that slow" } else { "raise retry_timeout" }
        ))
    }
}

/// The pause before an answer that was wrong `wrong` times is asked for again; `None`: no more. The first request
/// began `spent` ago; a second one follows in any case.
pub fn again(wrong: u32, spent: Duration, budget: Duration) -> Option<Duration> {
    let pause = jittered(backoff(wrong));
    (wrong < AGAIN && (wrong == 0 || spent + pause <= budget)).then_some(pause)
}

fn backoff(number: u32) -> Duration {
    PAUSE.saturating_mul(1 << number.min(10)).min(PAUSE_MAX)
}

/// Between half of it and all of it, so that many clients do not come back at once.
fn jittered(pause: Duration) -> Duration {
    let chance = RandomState::new().build_hasher().finish() >> 32;
    pause.mul_f64(0.5 + 0.5 * (chance as f64 / f64::from(u32::MAX)))
}
