//! Samples that stay, leave and are kept from leaving.

use crate::books::Books;
use crate::message::{Hello, OfferHead};

fn hello(member: u64, job: &str, dataset: u64) -> Hello {
    Hello { member, dataset, samples: 100, bytes: 0, job: job.into(), name: format!("data {dataset}") }
}

fn head(dataset: u64, id: u32, bytes: u64) -> OfferHead {
    let mut key = [dataset as u8; 16];
    key[..4].copy_from_slice(&id.to_le_bytes());
    OfferHead { key, id, cost_us: 10, crc: 0, bytes }
}

fn keep(books: &mut Books, member: u64, head: &OfferHead) -> bool {
    books.offer(member, head, false).slot.is_some_and(|slot| books.publish(slot).is_some())
}

/// Room for ten samples of 64 bytes.
fn ten() -> Books {
    Books::new(10 * 128, 1000)
}

#[test]
fn uniform_jobs_keep_what_came_first_whatever_its_size() {
    let mut books = ten();
    books.join(&hello(1, "a", 5));
    let kept: Vec<bool> = (0..20).map(|id| keep(&mut books, 1, &head(5, id, 64))).collect();
    assert_eq!(kept, (0..20).map(|id| id < 10).collect::<Vec<_>>());
    assert_eq!((books.used(), books.residents(), books.declined), (1280, 10, 10));
    // A smaller one is drawn as often as the others.
    assert!(!keep(&mut books, 1, &head(5, 30, 1)));
    // A second job draws the dataset too, and the sample no more than the residents.
    books.join(&hello(2, "b", 5));
    assert!(!keep(&mut books, 2, &head(5, 31, 64)));
}

#[test]
fn the_least_drawn_over_all_jobs_leaves_for_one_that_is_drawn_more() {
    let mut books = ten();
    books.join(&hello(1, "a", 5));
    (0..10).for_each(|id| assert!(keep(&mut books, 1, &head(5, id, 64))));
    let draws: Vec<f32> = (0..100).map(|id| if id == 3 { 0.1 } else { 1.0 }).collect();
    books.rate(1, 0, &draws);
    // Another job draws that one often.
    books.join(&hello(2, "b", 5));
    let draws: Vec<f32> = (0..100)
        .map(|id| {
            if id == 3 {
                5.0
            } else if id == 4 {
                0.5
            } else {
                1.0
            }
        })
        .collect();
    books.rate(2, 0, &draws);
    assert!(keep(&mut books, 2, &head(5, 50, 64)));
    assert!(books.find(&head(5, 3, 64).key).is_some());
    assert!(books.find(&head(5, 4, 64).key).is_none());
    assert_eq!(books.evicted, 1);
    // It has gone: now the first job's word holds.
    books.leave(2);
    assert!(keep(&mut books, 1, &head(5, 51, 64)));
    assert!(books.find(&head(5, 3, 64).key).is_none());
}

#[test]
fn a_dataset_without_jobs_makes_room_for_one_that_is_read() {
    let mut books = ten();
    books.join(&hello(1, "a", 5));
    (0..10).for_each(|id| assert!(keep(&mut books, 1, &head(5, id, 64))));
    books.leave(1);
    books.join(&hello(2, "b", 6));
    (0..10).for_each(|id| assert!(keep(&mut books, 2, &head(6, id, 64))));
    assert_eq!((books.residents(), books.evicted), (10, 10));
}

#[test]
fn what_a_client_reads_neither_leaves_nor_is_overwritten() {
    let mut books = ten();
    books.join(&hello(1, "a", 5));
    (0..10).for_each(|id| assert!(keep(&mut books, 1, &head(5, id, 64))));
    let slot = books.lease(&head(5, 0, 64).key).unwrap().0;
    books.rate(1, 0, &[0.0; 10]);
    for id in 20..40 {
        keep(&mut books, 1, &head(5, id, 64));
    }
    assert!(books.find(&head(5, 0, 64).key).is_some(), "it is read");
    assert_eq!(books.evicted, 9);
    // Dropped, it is not given any more and keeps its place.
    let all = books.all_of("data 5").unwrap();
    assert_eq!(all.len(), 10);
    all.iter().for_each(|&slot| books.doom(slot));
    assert!(books.find(&head(5, 0, 64).key).is_none());
    assert_eq!(books.used(), 128);
    books.release(slot);
    assert_eq!(books.used(), 0);
    // All of it can be taken again.
    assert!(keep(&mut books, 1, &head(5, 60, 9 * 128)));
}

#[test]
fn a_limit_shrinks_what_a_job_brought_and_holds() {
    let mut books = ten();
    books.join(&hello(1, "a", 5));
    books.join(&hello(2, "b", 5));
    (0..5).for_each(|id| assert!(keep(&mut books, 1, &head(5, id, 64))));
    // A sample that is read keeps its bytes for a moment, and no other leaves in its place.
    let read = books.lease(&head(5, 0, 64).key).unwrap().0;
    assert_eq!((books.limit("c", None), books.limit("a", Some(256)).map(|beyond| beyond.len())), (None, Some(3)));
    books.limit("a", Some(256)).unwrap().iter().for_each(|&slot| books.doom(slot));
    books.release(read);
    assert_eq!(books.residents(), 2);
    assert!(!keep(&mut books, 1, &head(5, 20, 64)));
    assert!(keep(&mut books, 2, &head(5, 20, 64)));
    assert_eq!(books.limit("a", None), Some(vec![]));
    assert!(keep(&mut books, 1, &head(5, 21, 64)));
}

#[test]
fn samples_of_a_pinned_dataset_stay_and_take_the_place_of_others() {
    let mut books = ten();
    books.join(&hello(1, "a", 5));
    books.join(&hello(2, "b", 6));
    (0..5).for_each(|id| assert!(keep(&mut books, 1, &head(5, id, 64))));
    (0..5).for_each(|id| assert!(keep(&mut books, 2, &head(6, id, 64))));
    books.rate(1, 0, &[0.5; 50]);
    assert!(books.pin("data 5", true) && !books.pin("data 7", true));
    // Drawn less than the others, they stay all the same.
    assert!(!keep(&mut books, 2, &head(6, 20, 64)));
    assert!(keep(&mut books, 1, &head(5, 20, 64)));
    assert_eq!((books.all_of("data 5").map(|all| all.len()), books.all_of("data 7")), (Some(6), None));
    assert!(books.pin("data 5", false));
    assert!(keep(&mut books, 2, &head(6, 20, 64)));
}
