//! A line on the terminal while a dataset is opened for more than two seconds: how many shards were read, and how long
//! it has taken. It is gone when the opening ends.

use std::io::{IsTerminal, Write, stderr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lossfeed::source::OnShard;

use crate::logging::presentable;

/// An opening that ends sooner shows nothing.
const AFTER: Duration = Duration::from_secs(2);
const EVERY: Duration = Duration::from_millis(200);
/// Characters of the line, and of the bar in it.
const COLUMNS: usize = 79;
const BAR: usize = 20;

/// Shards read so far, and all of them; 0 and 0 before the first, and for what has none.
#[derive(Debug, Default)]
struct Shards {
    done: AtomicUsize,
    total: AtomicUsize,
}

/// Dropping it erases the line.
pub(crate) struct Progress {
    name: String,
    shards: Arc<Shards>,
    began: Instant,
    drawn: Option<Instant>,
    terminal: bool,
}

impl Progress {
    /// `name`: what is opened; secrets of URLs are left out.
    pub(crate) fn of(name: &str) -> Self {
        let terminal = stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
        Self { name: presentable(name), shards: Arc::default(), began: Instant::now(), drawn: None, terminal }
    }

    /// The callback that counts shards, for the engine.
    pub(crate) fn on_shard(&self) -> OnShard {
        let shards = Arc::clone(&self.shards);
        OnShard(Arc::new(move |done, total| {
            // Threads come in any order.
            shards.done.fetch_max(done, Ordering::Relaxed);
            shards.total.store(total, Ordering::Relaxed);
        }))
    }

    /// Draws the line if it is time to.
    pub(crate) fn show(&mut self) {
        let now = Instant::now();
        let due = self.drawn.map_or(self.began + AFTER, |drawn| drawn + EVERY);
        if !self.terminal || now < due {
            return;
        }
        self.drawn = Some(now);
        let (done, total) = (self.shards.done.load(Ordering::Relaxed), self.shards.total.load(Ordering::Relaxed));
        write(&format!("\r\x1b[K{}", line(&self.name, done, total, now - self.began)));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.drawn.is_some() {
            write("\r\x1b[K");
        }
    }
}

/// A terminal that is gone costs the opening nothing.
fn write(text: &str) {
    let mut terminal = stderr().lock();
    let _ = terminal.write_all(text.as_bytes()).and_then(|()| terminal.flush());
}

fn line(name: &str, done: usize, total: usize, time: Duration) -> String {
    let mut end = format!(" {} s", time.as_secs());
    if let Some(full) = (BAR * done.min(total)).checked_div(total) {
        end = format!(" [{}{}] {done} of {total} shards{end}", "#".repeat(full), " ".repeat(BAR - full));
    }
    let room = COLUMNS.saturating_sub("opening ".len() + end.len());
    let length = name.chars().count();
    // A path's end tells more than its beginning.
    let tail: String = name.chars().skip(length.saturating_sub(room)).collect();
    format!("opening {tail}{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_how_far_and_how_long() {
        let at = Duration::from_millis(5_900);
        assert_eq!(line("train/", 0, 0, at), "opening train/ 5 s");
        assert_eq!(line("s-{0..3}.tar", 1, 4, at), "opening s-{0..3}.tar [#####               ] 1 of 4 shards 5 s");
        let long = line(&"x".repeat(300), 147, 147, at);
        assert_eq!(long.chars().count(), COLUMNS);
        assert!(long.contains("[####################] 147 of 147 shards"));
    }

    #[test]
    fn shards_are_counted_by_the_furthest_thread() {
        let progress = Progress::of("s3://id:key@bucket/x");
        let OnShard(tell) = progress.on_shard();
        tell(2, 3);
        tell(1, 3);
        let Shards { done, total } = &*progress.shards;
        assert_eq!((done.load(Ordering::Relaxed), total.load(Ordering::Relaxed)), (2, 3));
    }
}
