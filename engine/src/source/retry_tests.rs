//! Truths about retries, on a clock of their own: no test here waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::Instant;

use super::retry::{Failure, Health};
use crate::error::{Error, ErrorKind, Result};

const BUDGET: Duration = Duration::from_secs(120);

fn busy(answered: bool, retry_after: Option<u64>) -> Failure {
    Failure::Outage { error: Error::outage("busy"), answered, retry_after: retry_after.map(Duration::from_secs) }
}

fn what() -> String {
    "x.tar".to_owned()
}

/// What came of a request whose attempts fail so and then succeed, how many were made, and how long that took.
async fn run(health: &Health, failures: Vec<Failure>) -> (Result<u8>, u32, Duration) {
    let (start, made) = (Instant::now(), AtomicU32::new(0));
    let failures = std::cell::RefCell::new(failures.into_iter());
    let answer = health
        .run(&what, || {
            made.fetch_add(1, Relaxed);
            let next = failures.borrow_mut().next();
            async move { next.map_or(Ok(7), Err) }
        })
        .await;
    (answer, made.load(Relaxed), start.elapsed())
}

fn again() -> Failure {
    Failure::Again(Error::sample("wrong length"))
}

#[tokio::test(start_paused = true)]
async fn a_request_is_sent_again_while_that_can_help_and_no_longer() {
    let health = Health::new(BUDGET);
    let (answer, made, _) = run(&health, (0..9).map(|_| busy(true, None)).collect()).await;
    assert_eq!((answer.unwrap(), made), (7, 10));
    let gone = || Failure::Final(Error::unreadable("gone"));
    let (answer, made, _) = run(&health, vec![busy(true, None), gone()]).await;
    assert_eq!((answer.unwrap_err().to_string().as_str(), made), ("gone", 2));
    let (answer, made, _) = run(&health, vec![again()]).await;
    assert_eq!((answer.unwrap(), made), (7, 2), "a wrong answer is asked for once more");
    let (answer, made, _) = run(&health, vec![again(), again()]).await;
    assert_eq!((answer.unwrap_err().kind(), made), (ErrorKind::Sample, 2));
}

#[tokio::test(start_paused = true)]
async fn one_budget_ends_all_requests_of_a_store_together() {
    let health = Arc::new(Health::new(BUDGET));
    run(&health, vec![]).await.0.unwrap();
    let (start, sent) = (Instant::now(), Arc::new(AtomicU32::new(0)));
    let requests: Vec<_> = (0..64)
        .map(|_| {
            let (health, sent) = (health.clone(), sent.clone());
            tokio::spawn(async move {
                let request = || {
                    sent.fetch_add(1, Relaxed);
                    async { Err::<u8, _>(busy(false, None)) }
                };
                health.run(&what, request).await.unwrap_err()
            })
        })
        .collect();
    for request in requests {
        let error = request.await.unwrap();
        assert_eq!(error.kind(), ErrorKind::Outage);
        assert!(error.to_string().contains("within 120s") && error.to_string().contains("busy"), "{error}");
    }
    let took = start.elapsed();
    assert!((BUDGET..BUDGET + Duration::from_secs(1)).contains(&took), "{took:?}");
    // Each asked once at most before anybody knew; from then on there was one probe at a time.
    let sent = sent.load(Relaxed);
    assert!((8..64 + 40).contains(&sent), "{sent} requests");

    // Whoever comes later is told at once, and the first probe that is answered opens the store again.
    let (answer, made, took) = run(&health, vec![]).await;
    assert_eq!((answer.unwrap_err().kind(), made, took), (ErrorKind::Outage, 0, Duration::ZERO));
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert_eq!(run(&health, vec![]).await.0.unwrap(), 7);
    assert_eq!(run(&health, vec![]).await.1, 1);
}

#[tokio::test(start_paused = true)]
async fn everyone_goes_on_when_the_probe_is_answered() {
    let health = Arc::new(Health::new(BUDGET));
    run(&health, vec![]).await.0.unwrap();
    let start = Instant::now();
    let back = start + Duration::from_secs(30);
    let requests: Vec<_> = (0..64)
        .map(|n| {
            let health = health.clone();
            tokio::spawn(async move {
                let request = || async { if Instant::now() < back { Err(busy(true, None)) } else { Ok(n) } };
                health.run(&what, request).await.unwrap()
            })
        })
        .collect();
    for (n, request) in requests.into_iter().enumerate() {
        assert_eq!(request.await.unwrap(), n);
    }
    assert!(start.elapsed() <= Duration::from_secs(30 + 11), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_probe_leaves_its_place_to_another() {
    let health = Arc::new(Health::new(BUDGET));
    let (answer, ..) = run(&health, vec![busy(true, None), busy(true, None), busy(true, None)]).await;
    answer.unwrap();
    for _ in 0..4 {
        let failing = health.run(&what, || async { Err::<u8, _>(busy(true, None)) });
        tokio::time::timeout(Duration::from_millis(1), failing).await.unwrap_err();
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let hung = health.run(&what, std::future::pending::<std::result::Result<u8, Failure>>);
    tokio::time::timeout(Duration::from_secs(1), hung).await.unwrap_err();
    assert_eq!(run(&health, vec![]).await.0.unwrap(), 7);
}

#[tokio::test(start_paused = true)]
async fn an_old_failure_takes_nothing_from_a_new_budget() {
    let health = Health::new(BUDGET);
    let stopped = health.run(&what, || async { Err::<u8, _>(busy(true, None)) });
    tokio::time::timeout(Duration::from_millis(10), stopped).await.unwrap_err();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let (answer, made, _) = run(&health, vec![busy(true, None)]).await;
    assert_eq!((answer.unwrap(), made), (7, 2));
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_honoured_within_the_budget() {
    let health = Health::new(BUDGET);
    let (answer, made, took) = run(&health, vec![busy(true, Some(20))]).await;
    assert_eq!((answer.unwrap(), made, took), (7, 2, Duration::from_secs(20)));
    let (answer, made, took) = run(&health, vec![busy(true, Some(3600))]).await;
    let message = answer.unwrap_err().to_string();
    assert!(message.contains("asks to be left alone for 3600s"), "{message}");
    assert_eq!((made, took), (1, Duration::ZERO), "no wait that cannot help");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_has_never_answered_is_given_up_soon() {
    let health = Health::new(BUDGET);
    let (answer, _, took) = run(&health, (0..999).map(|_| busy(false, None)).collect()).await;
    let message = answer.unwrap_err().to_string();
    assert!(message.contains("has never answered: check its name"), "{message}");
    assert!((Duration::from_secs(10)..Duration::from_secs(11)).contains(&took), "{took:?}");
    let once = Health::new(Duration::ZERO);
    assert_eq!(run(&once, vec![busy(true, None)]).await.1, 1, "a budget of zero asks once");
}

/// Of a store that has never answered: attempts that fail after so many seconds each, and then one that is answered.
async fn first_contact(budget: Duration, failures: &[u64]) -> (Result<u8>, u32) {
    let (health, made) = (Health::new(budget), AtomicU32::new(0));
    let answer = health
        .run(&what, || {
            let seconds = failures.get(made.fetch_add(1, Relaxed) as usize).copied();
            async move {
                let Some(seconds) = seconds else { return Ok(7) };
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                Err(Failure::silence(Error::outage("no answer")))
            }
        })
        .await;
    (answer, made.load(Relaxed))
}

#[tokio::test(start_paused = true)]
async fn one_lost_answer_is_no_store_that_is_not_there() {
    for lost in [&[30][..], &[0, 30], &[10, 0]] {
        assert_eq!(first_contact(BUDGET, lost).await.0.unwrap(), 7, "{lost:?}");
    }
    let (answer, made) = first_contact(BUDGET, &[30, 30, 30]).await;
    assert!(answer.unwrap_err().to_string().contains("has never answered: check its name"));
    assert_eq!(made, 2);
    // Who allows less time than that has said so.
    let (answer, made) = first_contact(Duration::from_secs(5), &[30]).await;
    assert!(!answer.unwrap_err().to_string().contains("has never answered"));
    assert_eq!(made, 1);
}

#[tokio::test(start_paused = true)]
async fn an_object_that_alone_fails_has_the_same_budget_and_stops_nobody() {
    let health = Arc::new(Health::new(BUDGET));
    let start = Instant::now();
    let broken = {
        let health = health.clone();
        tokio::spawn(async move { health.run(&what, || async { Err::<u8, _>(busy(true, None)) }).await })
    };
    while !broken.is_finished() {
        assert_eq!(run(&health, vec![]).await.2, Duration::ZERO);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(broken.await.unwrap().unwrap_err().kind(), ErrorKind::Outage);
    assert!((BUDGET..BUDGET + Duration::from_secs(1)).contains(&start.elapsed()), "{:?}", start.elapsed());
}
