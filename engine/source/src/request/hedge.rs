//! A second request beside one whose answer is late, as the tail at scale is cut (Dean and Barroso, "The Tail at Scale",
//! Communications of the ACM 56(2), 2013): whichever answers first is read, the other is dropped.
//!
//! Late is what takes longer than 19 of 20 answers did, and twice the median, so that a store whose answers take equally
//! long is asked nothing twice. Second requests are one in twenty at most, take a connection that is free, and none is
//! sent to a store that fails: where the store itself is slow they would only add to its load. Requests ahead of need
//! leave a few connections free for them ([`kept_free`]): else reading ahead, which uses all it may, would leave none.
//!
//! Lock: guards recent response times; held when a request begins or ends, and to sort 256 numbers once in 16 responses.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use lossfeed_sync::Mutex;
use tokio::select;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

use crate::request::answers::Recent;

/// Before so many are known, nothing is late.
const KNOWN_MIN: usize = 64;
/// Less is not worth a request: a thread that waits for a processor is late by as much.
const LATE_MIN: Duration = Duration::from_millis(20);
/// Second requests that each first one pays for …
const SHARE: f64 = 0.05;
/// … and how many may be saved up for a bad moment.
const SAVED_MAX: f64 = 8.0;

/// How many of a store's connections are kept free of requests ahead of need: one in sixteen, as a late answer in a
/// hundred that takes ten times as long holds a tenth of them anyway. None where there are few.
pub(crate) fn kept_free(connections: usize) -> usize {
    if connections < 4 { 0 } else { (connections / 16).max(1) }
}

/// How long answers take, and what may be asked twice.
#[derive(Default)]
struct Tail {
    waits: Recent,
    late: Option<Duration>,
    saved: f64,
}

impl Tail {
    /// When a request that is sent now is late; `None` while that is not known.
    fn begin(&mut self) -> Option<Duration> {
        self.saved = (self.saved + SHARE).min(SAVED_MAX);
        self.late
    }

    fn learn(&mut self, wait: Duration) {
        if let Some(sorted) = self.waits.learn(wait).filter(|sorted| sorted.len() >= KNOWN_MIN) {
            let late = sorted.at(0.95).max(sorted.at(0.5).saturating_mul(2));
            self.late = Some(Duration::from_micros(late.into()).max(LATE_MIN));
        }
    }

    fn pays(&mut self) -> bool {
        let pays = self.saved >= 1.0;
        if pays {
            self.saved -= 1.0;
        }
        pays
    }
}

/// The requests of one store, as far as they may be sent twice.
#[derive(Default)]
pub(crate) struct Hedge {
    tail: Mutex<Tail>,
}

impl Hedge {
    /// The first good answer to what `ask` asks. It is asked a second time where the first answer is late, `permits`
    /// has one that is free, and `may` agrees; each time `ask` is called, one request is sent. Where both fail the first
    /// one's error counts. Times are the clock of the runtime that polls it.
    pub(crate) async fn run<T, E, F: Future<Output = Result<T, E>>>(
        &self,
        permits: &Semaphore,
        may: impl Fn() -> bool,
        ask: impl Fn() -> F,
    ) -> Result<T, E> {
        let started = Instant::now();
        let late = self.tail.lock().begin();
        let mut first = pin!(ask());
        let answer = 'answer: {
            let Some(late) = late else { break 'answer first.await };
            select! {
                biased;
                answer = &mut first => break 'answer answer,
                () = sleep(late) => {}
            }
            let Ok(_permit) = permits.try_acquire() else { break 'answer first.await };
            if !may() || !self.tail.lock().pays() {
                break 'answer first.await;
            }
            tracing::debug!(?late, "an answer is late: asking a second time");
            let mut second = pin!(ask());
            select! {
                biased;
                answer = &mut first => match answer {
                    Ok(answer) => Ok(answer),
                    Err(e) => second.await.or(Err(e)),
                },
                answer = &mut second => match answer {
                    Ok(answer) => Ok(answer),
                    Err(_) => first.await,
                },
            }
        };
        // Where the second one won, the first would have taken longer still.
        if answer.is_ok() {
            self.tail.lock().learn(started.elapsed());
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

    use super::*;

    /// Answers after `waits`, one request after the other; how many were sent and how long all took.
    async fn run(hedge: &Hedge, permits: &Semaphore, waits: &[Result<u64, u64>]) -> (Vec<Result<u64, u64>>, u32, u64) {
        let (sent, start) = (AtomicU32::new(0), Instant::now());
        let mut answers = Vec::new();
        let next = AtomicU64::new(0);
        while (next.load(Relaxed) as usize) < waits.len() {
            let ask = || {
                sent.fetch_add(1, Relaxed);
                let wait = waits[next.fetch_add(1, Relaxed) as usize % waits.len()];
                async move {
                    sleep(Duration::from_millis(wait.unwrap_or_else(|wait| wait))).await;
                    wait
                }
            };
            answers.push(hedge.run(permits, || true, ask).await);
        }
        (answers, sent.load(Relaxed), start.elapsed().as_millis() as u64)
    }

    async fn known() -> (Hedge, Semaphore) {
        let (hedge, permits) = (Hedge::default(), Semaphore::new(1));
        let (_, sent, _) = run(&hedge, &permits, &[Ok(50); 200]).await;
        assert_eq!(sent, 200, "equal answers: none is late");
        (hedge, permits)
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_answer_is_overtaken_and_a_first_one_that_comes_after_all_counts() {
        let (hedge, permits) = known().await;
        // Late after 100 ms; the second takes 50.
        assert_eq!(run(&hedge, &permits, &[Ok(500), Ok(50)]).await, (vec![Ok(50)], 2, 150));
        // The first one comes while the second is under way.
        assert_eq!(run(&hedge, &permits, &[Ok(120), Ok(90)]).await, (vec![Ok(120)], 2, 120));
        // One that fails leaves the other its time.
        assert_eq!(run(&hedge, &permits, &[Err(110), Ok(90)]).await, (vec![Ok(90)], 2, 190));
        assert_eq!(run(&hedge, &permits, &[Ok(300), Err(50)]).await, (vec![Ok(300)], 2, 300));
        assert_eq!(run(&hedge, &permits, &[Err(300), Err(50)]).await, (vec![Err(300)], 2, 300));
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_sent_twice_without_a_free_connection_or_to_a_store_that_fails() {
        let (hedge, permits) = known().await;
        let taken = permits.try_acquire().unwrap();
        assert_eq!(run(&hedge, &permits, &[Ok(500)]).await.1, 1);
        drop(taken);
        let sent = AtomicU32::new(0);
        let ask = || {
            sent.fetch_add(1, Relaxed);
            async {
                sleep(Duration::from_millis(500)).await;
                Ok::<_, ()>(())
            }
        };
        hedge.run(&permits, || false, ask).await.unwrap();
        assert_eq!(sent.load(Relaxed), 1);
        hedge.run(&permits, || true, ask).await.unwrap();
        assert_eq!(sent.load(Relaxed), 3);
        assert_eq!(permits.available_permits(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_becomes_slow_is_asked_a_twentieth_more_and_is_no_longer_late_after_a_while() {
        let (hedge, permits) = known().await;
        let (_, sent, _) = run(&hedge, &permits, &[Ok(400); 2000]).await;
        // Of 2000 waits those that belong to second requests are few.
        assert_eq!(sent, 2000);
        assert!(hedge.tail.lock().late.unwrap() >= Duration::from_millis(400));
        let few = |saved: f64, firsts: u32, seconds: u32| f64::from(seconds) <= saved + SHARE * f64::from(firsts);
        let (hedge, permits) = known().await;
        let (mut firsts, mut seconds) = (0, 0);
        for _ in 0..3000 {
            // Every answer is late by what is known, since the usual ones are believed.
            hedge.tail.lock().late = Some(Duration::from_millis(100));
            let sent = AtomicU32::new(0);
            let ask = || {
                sent.fetch_add(1, Relaxed);
                async {
                    sleep(Duration::from_millis(400)).await;
                    Ok::<_, ()>(())
                }
            };
            hedge.run(&permits, || true, ask).await.unwrap();
            firsts += 1;
            seconds += sent.load(Relaxed) - 1;
            assert!(few(SAVED_MAX + 1.0, firsts, seconds), "{seconds} of {firsts}");
        }
        assert!(seconds > 100, "{seconds}");
    }
}
