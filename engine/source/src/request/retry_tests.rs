//! Truths about retries, on a clock of their own: no test here waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::Instant;

use crate::error::{Error, ErrorKind, Result};
use crate::request::retry::{Failure, Health};

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
    assert_eq!((answer.unwrap(), made), (7, 2), "a wrong answer is asked for again");
    let (answer, made, _) = run(&health, vec![again(), busy(true, None), again(), again()]).await;
    assert_eq!((answer.unwrap(), made), (7, 5), "three times in a row are not too many");
    let (answer, made, took) = run(&health, (0..9).map(|_| again()).collect()).await;
    assert_eq!((answer.unwrap_err().kind(), made), (ErrorKind::Sample, 4));
    assert!(took < Duration::from_secs(1), "{took:?}");
    let hurried = Health::new(Duration::from_millis(20));
    assert_eq!(run(&hurried, vec![again(), again()]).await.1, 2, "once more in any case, and then within the budget");
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

/// Requests at once to a store that has never answered and takes so many seconds for each answer, in turn; 0: none comes.
/// What came of them, how many were made, and how long it took.
async fn first_contact(
    timeout: Option<Duration>,
    at_once: usize,
    answers: &'static [u64],
) -> (Vec<Result<u8>>, u32, u64) {
    let (health, made) = (Arc::new(Health::new(BUDGET)), Arc::new(AtomicU32::new(0)));
    let start = Instant::now();
    let requests: Vec<_> = (0..at_once)
        .map(|_| {
            let (health, made) = (health.clone(), made.clone());
            tokio::spawn(async move {
                let request = || {
                    let seconds = answers.get(made.fetch_add(1, Relaxed) as usize).copied().unwrap_or(0);
                    let limit = health.limit(timeout).unwrap_or(Duration::from_secs(9999));
                    async move {
                        let takes = Duration::from_secs(if seconds == 0 { 99_999 } else { seconds });
                        let late = |_| Failure::silence(Error::outage(format!("no answer within {limit:?}")));
                        tokio::time::timeout(limit, tokio::time::sleep(takes)).await.map(|()| 7).map_err(late)
                    }
                };
                health.run(&what, request).await
            })
        })
        .collect();
    let mut came = Vec::new();
    for request in requests {
        came.push(request.await.unwrap());
    }
    (came, made.load(Relaxed), start.elapsed().as_secs())
}

#[tokio::test(start_paused = true)]
async fn one_lost_answer_is_no_store_that_is_not_there_and_a_deaf_one_is_given_up_when_the_message_says() {
    let usual = Some(Duration::from_secs(30));
    for (answers, made, took) in [(&[0, 2][..], 2, 9), (&[6], 1, 6), (&[1], 1, 1)] {
        let (came, asked, seconds) = first_contact(usual, 1, answers).await;
        assert_eq!((came[0].as_ref().unwrap(), asked, seconds), (&7, made, took), "{answers:?}");
    }
    for at_once in [1, 3, 16] {
        let (came, _, seconds) = first_contact(usual, at_once, &[]).await;
        assert!(seconds <= 12, "{seconds} s for {at_once}");
        for error in came.into_iter().map(Result::unwrap_err) {
            let error = error.to_string();
            assert!(error.contains("within 10s (it has never answered: check its name)"), "{error}");
            assert!(error.contains("no answer within"), "{error}");
        }
    }
    // Who gives more time than is usual has said that the store is slow, and who gives less has said so too.
    assert_eq!(first_contact(Some(Duration::from_secs(60)), 1, &[50]).await.0[0].as_ref().unwrap(), &7);
    assert_eq!(first_contact(None, 1, &[500]).await.0[0].as_ref().unwrap(), &7);
    assert_eq!(first_contact(Some(Duration::from_secs(1)), 1, &[0, 0, 1]).await.1, 3);
    // Once it has said anything the usual limit holds.
    let health = Health::new(BUDGET);
    assert!(health.limit(usual) < usual);
    health.reached();
    assert_eq!(health.limit(usual), usual);
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
