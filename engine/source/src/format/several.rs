//! The same work on several items at once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use lossfeed_sync::Mutex;

use crate::error::{Error, Result};
use crate::options::OpenOptions;
use crate::process::{LIMIT_REMEDY, no_thread};
use crate::stop::Stop;

/// `work` of every shard, as [`several`], and the caller of `options` is told of each that is done.
///
/// # Errors
/// As [`several`].
pub(crate) fn shards<T: Sync, U: Send>(
    items: &[T],
    at_once: usize,
    options: &OpenOptions,
    work: impl Fn(&T) -> Result<U> + Sync,
) -> Result<Vec<U>> {
    let done = AtomicUsize::new(0);
    several(items, at_once, &options.stop, |item| {
        let result = work(item)?;
        if let Some(told) = &options.on_shard {
            (told.0)(done.fetch_add(1, Ordering::Relaxed) + 1, items.len());
        }
        Ok(result)
    })
}

/// `work` of every item, in their order, on `at_once` threads at most, the caller's among them.
///
/// # Errors
/// The first failure by order of those that came; no item is begun after one. `Interrupted` once `stop` was asked for,
/// `Source` where threads may not be started.
pub(crate) fn several<T: Sync, U: Send>(
    items: &[T],
    at_once: usize,
    stop: &Stop,
    work: impl Fn(&T) -> Result<U> + Sync,
) -> Result<Vec<U>> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(items.len())));
    let lane = || {
        while let Some((number, item)) =
            Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|number| Some((number, items.get(number)?)))
        {
            let result = stop.check().and_then(|()| work(item));
            if result.is_err() {
                // No use in going on: the failure is what the caller gets.
                next.store(items.len(), Ordering::Relaxed);
            }
            done.lock().push((number, result));
        }
    };
    thread::scope(|scope| {
        for _ in 1..at_once.min(items.len()) {
            if let Err(e) = thread::Builder::new().spawn_scoped(scope, lane) {
                next.store(items.len(), Ordering::Relaxed);
                return Err(Error::unreadable(no_thread("opening the dataset", LIMIT_REMEDY, &e)).because(e));
            }
        }
        lane();
        Ok(())
    })?;
    let mut done = done.into_inner();
    done.sort_unstable_by_key(|&(number, _)| number);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_come_in_order_and_a_failure_ends_it() {
        let items: Vec<usize> = (0..300).collect();
        for at_once in [0, 1, 2, 16] {
            assert_eq!(
                several(&items, at_once, &Stop::default(), |&item| Ok(item * 3)).unwrap(),
                items.iter().map(|i| i * 3).collect::<Vec<_>>()
            );
            let begun = AtomicUsize::new(0);
            let failed = several(&items, at_once, &Stop::default(), |&item| {
                begun.fetch_add(1, Ordering::Relaxed);
                if item >= 5 { Err(Error::settings(item.to_string())) } else { Ok(()) }
            });
            assert!(failed.unwrap_err().to_string().parse::<usize>().unwrap() < 5 + at_once.max(1));
            assert!(begun.into_inner() <= 5 + 2 * at_once.max(1), "went on after a failure");
        }
        assert!(several(&[] as &[u8], 4, &Stop::default(), |_| Ok(())).unwrap().is_empty());
    }
}
