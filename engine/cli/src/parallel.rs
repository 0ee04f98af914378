//! Independent work on all processors.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// `work` of every item, in their order. A panic of one goes on in the caller.
pub fn in_parallel<T: Sync, U: Send>(items: &[T], work: impl Fn(&T) -> U + Sync) -> Vec<U> {
    let next = AtomicUsize::new(0);
    let threads = thread::available_parallelism().map_or(1, usize::from).min(items.len());
    let mut done: Vec<(usize, U)> = thread::scope(|scope| {
        let worker = || {
            let mut done = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some(item) = items.get(number) else { return done };
                done.push((number, work(item)));
            }
        };
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(worker)).collect();
        let mut done = worker();
        for other in others {
            match other.join() {
                Ok(more) => done.extend(more),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        done
    });
    done.sort_by_key(|&(number, _)| number);
    done.into_iter().map(|(_, answer)| answer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_come_in_the_order_of_the_items() {
        let items: Vec<u64> = (0..200).collect();
        let slow_first = |&item: &u64| {
            thread::sleep(std::time::Duration::from_micros(200 - item));
            item * item
        };
        assert_eq!(in_parallel(&items, slow_first), items.iter().map(|i| i * i).collect::<Vec<_>>());
        assert!(in_parallel(&[] as &[u64], slow_first).is_empty());
    }
}
