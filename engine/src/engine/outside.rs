//! Limits that another program sets while the run goes on: of the link to the store, and of the cache.

use crate::loader::Feed;
use crate::source::LimitBy;
use crate::stats::{Counters, Publisher};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Names a file of limits instead of the one beside the stats page.
const NAMED: &str = "LOSSFEED_LIMITS";

/// Puts limits from outside in force from now on. They are taken back with their file.
pub(super) fn obey(feed: &Arc<Feed>, publisher: &Publisher) {
    let named = std::env::var_os(NAMED).filter(|name| !name.is_empty()).map(Into::into);
    let feed = Arc::downgrade(feed);
    // The cache's limit from before it was first changed from outside.
    let mut before = None;
    publisher.obey(named, move |limits| {
        let Some(feed) = feed.upgrade() else { return Ok(()) };
        let link = link(&feed, limits.limit);
        link.and(cache(&feed, limits.resize, &mut before))
    });
}

fn link(feed: &Feed, limit: Option<u64>) -> Result<(), String> {
    if !feed.source.limit(limit, LimitBy::Outside) && limit.is_some() {
        return Err("limit: this data comes from no single store: only its cache can be resized".to_owned());
    }
    Counters::set(&feed.counters.link_limit_bytes, limit.unwrap_or(0));
    Ok(())
}

fn cache(feed: &Feed, resize: Option<u64>, before: &mut Option<u64>) -> Result<(), String> {
    let (now, most) = (feed.counters.cache_capacity_bytes.load(Relaxed), feed.counters.cache_most_bytes.load(Relaxed));
    let Some(wanted) = resize.or_else(|| before.take()).filter(|&wanted| wanted != now) else { return Ok(()) };
    if wanted > most {
        return Err(format!("resize=\"{wanted}\" exceeds the {most} bytes that the loader was made with: give less"));
    }
    if feed.cache.is_recorded() {
        return Err(
            "resize: this run writes a journal, whose replay could not repeat it: only its link can be limited"
                .to_owned(),
        );
    }
    if resize.is_some() {
        before.get_or_insert(now);
    }
    feed.cache.resize(wanted);
    Ok(())
}
