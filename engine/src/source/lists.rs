//! Many samples with one request, of a store that takes a list of them and answers with one TAR stream in their order.
//!
//! Every member is handed on as it comes, so no more than one is in memory. The stream is not believed: a member must
//! have the name and the length that stand next in the list, and the checksum that the index has, since nothing else in
//! such an answer tells whether the object is still the one that was indexed (decision 49). What the stream does not
//! bring, brings wrongly or calls missing is asked for by its range, as in any store: there it comes, or gets an error
//! of its own. A stream that ends early is followed by another list of what is left.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::future::BoxFuture;
use object_store::path::Path;

use super::catalog::{Catalog, Place};
use super::failure::classified;
use super::lanes::Lane;
use super::list_stream::{Broken, Members, Step};
use super::lister::{Entry, Lister, Pieces};
use super::retry::Failure;
use super::store::Store;
use crate::error::{Error, Result, printable};
use crate::types::SampleId;

/// How often a wait for a store looks whether anybody still wants the answer.
pub(super) const STOP_SOON: Duration = Duration::from_millis(50);
/// Fewer are not worth a list: their store has to gather them from all its machines.
const ENTRIES_MIN: usize = 16;
const ENTRIES_MAX: usize = 1024;
/// What a list may come to: what is asked for again if its stream is lost.
const LIST_BYTES_MAX: u64 = 64 << 20;
/// As many that nobody needs yet come with those that somebody does.
const ALONG: usize = 128;
/// Streams of one call that may end early, before the rest is asked for by ranges.
const LOST_MAX: usize = 3;
/// What is read behind the last member, so that the connection can be used again.
const TAIL_BYTES_MAX: usize = 64 << 10;
/// How a store names what it does not find.
const MISSING: &str = "__404__/";

/// A store's lists, until it turns out not to take them.
pub(super) struct Lists {
    lister: Arc<dyn Lister>,
    refused: AtomicBool,
}

/// What a member's name says.
#[derive(Debug, PartialEq, Eq)]
enum Named {
    AsAsked,
    Missing,
    Otherwise,
}

/// Whether a member of this name is what was asked for.
fn named(entry: &Entry, bucket: &str, name: &str) -> Named {
    let is = |name: &str| {
        let inside = |rest: &str| entry.member.as_deref().is_some_and(|member| rest.strip_prefix('/') == Some(member));
        name.strip_prefix(entry.object.as_str()).is_some_and(|rest| match &entry.member {
            None => rest.is_empty(),
            Some(_) => inside(rest),
        })
    };
    // With the bucket's name before it or not, as the store is set.
    let either =
        |name: &str| is(name) || name.strip_prefix(bucket).and_then(|rest| rest.strip_prefix('/')).is_some_and(is);
    match name.strip_prefix(MISSING) {
        _ if either(name) => Named::AsAsked,
        Some(name) if either(name) || name.ends_with(entry.object.as_str()) => Named::Missing,
        _ => Named::Otherwise,
    }
}

/// How a stream ended.
enum End {
    /// As it should.
    Whole,
    /// Before all had come: the rest may come with another list.
    Early(String),
    /// It is not what was asked for.
    Broken(Broken),
    Stopped,
}

/// Where a call reads from, and what it counts.
pub(super) struct From<'a> {
    pub(super) store: &'a Store,
    pub(super) shards: &'a [Path],
    pub(super) root: &'a Path,
    pub(super) catalog: &'a Catalog,
    /// Counts requests.
    pub(super) requests: &'a AtomicU64,
    /// Nobody needs it yet.
    pub(super) early: bool,
    pub(super) stopped: &'a dyn Fn() -> bool,
}

type Wanted = (usize, SampleId);
type Sink<'a> = dyn FnMut(usize, SampleId, Result<&[u8]>) -> ControlFlow<()> + 'a;

impl Lists {
    pub(super) fn new(lister: Arc<dyn Lister>) -> Self {
        Self { lister, refused: AtomicBool::new(false) }
    }

    /// Whether samples of this catalog come in lists.
    fn serves(&self, catalog: &Catalog) -> bool {
        let proved = !catalog.sums.is_empty() || self.lister.by_name();
        proved && catalog.members.is_none() && catalog.sparse.is_empty() && !self.refused.load(Ordering::Relaxed)
    }

    /// As [`Reader::along`](super::reader::Reader::along): in a list everybody comes along.
    pub(super) fn along(&self, catalog: &Catalog, ids: &[SampleId], first: usize) -> Option<Vec<usize>> {
        if !self.serves(catalog) {
            return None;
        }
        let mut bytes = 0;
        let room = |&(k, id): &(usize, &SampleId)| {
            bytes += catalog.place(*id).map_or(0, |place| u64::from(place.bytes));
            k < first || bytes <= LIST_BYTES_MAX
        };
        let taken = ids.iter().enumerate().take(first.max(ALONG)).take_while(room);
        Some(taken.map(|(k, _)| k).filter(|&k| k >= first).collect())
    }

    /// Brings what it can of `wanted`. What is left is to be asked for by ranges; `Break`: nobody wants the rest.
    pub(super) async fn bring(
        &self,
        from: &From<'_>,
        wanted: &[Wanted],
        sink: &mut Sink<'_>,
    ) -> ControlFlow<(), Vec<Wanted>> {
        if wanted.len() < ENTRIES_MIN || !self.serves(from.catalog) {
            return ControlFlow::Continue(wanted.to_vec());
        }
        let (mut waiting, mut left) = (VecDeque::from(wanted.to_vec()), Vec::new());
        let mut lost = 0;
        while waiting.len() >= ENTRIES_MIN && lost < LOST_MAX && self.serves(from.catalog) {
            let list = next_list(from, &mut waiting);
            let Some((list, entries)) = list.filter(|(list, _)| list.len() >= ENTRIES_MIN) else { break };
            let mut came = 0;
            match self.list(from, &list, entries, &mut came, &mut left, sink).await {
                Ok(End::Whole) => continue,
                Ok(End::Stopped) => return ControlFlow::Break(()),
                Ok(End::Early(why)) => {
                    tracing::debug!(why, came, listed = list.len(), "a stream of samples ended early");
                    let rest = list.get(came..).unwrap_or_default();
                    rest.iter().rev().for_each(|&wanted| waiting.push_front(wanted));
                    lost += 1;
                }
                Ok(End::Broken(why)) => {
                    tracing::warn!(
                        %why,
                        came,
                        listed = list.len(),
                        "the store's stream of samples is not what was asked for: what is left of it is read by ranges"
                    );
                    left.extend_from_slice(list.get(came..).unwrap_or_default());
                    lost = LOST_MAX;
                }
                Err(e) => {
                    // An outage is no refusal: the ranges meet it as well, and tell of it.
                    if e.kind() != crate::error::ErrorKind::Outage && !self.refused.swap(true, Ordering::Relaxed) {
                        tracing::warn!(error = %e, "the store takes no lists of samples (GetBatch): they are read by ranges");
                    }
                    left.extend_from_slice(list.get(came..).unwrap_or_default());
                    break;
                }
            }
        }
        left.extend(waiting);
        ControlFlow::Continue(left)
    }

    /// One list: `came` counts the entries that are done with, of which those in `left` are to be asked for again.
    async fn list(
        &self,
        from: &From<'_>,
        list: &[Wanted],
        entries: Arc<[Entry]>,
        came: &mut usize,
        left: &mut Vec<Wanted>,
        sink: &mut Sink<'_>,
    ) -> Result<End> {
        let Some(first) = entries.first() else { return Ok(End::Whole) };
        let what = || format!("{} and {} samples behind it", printable(&first.object), list.len() - 1);
        let key = Path::from(first.object.as_str());
        let (mut pieces, held) = begun(from, &key, &what, || self.lister.ask(Arc::clone(&entries))).await?;
        let (mut members, paced) = (Members::new(), from.store.is_paced());
        let (mut quiet, mut bytes, mut behind) = (Duration::ZERO, 0u64, 0usize);
        loop {
            let piece = match tokio::time::timeout(STOP_SOON, pieces.next()).await {
                Err(_) if (from.stopped)() => return Ok(End::Stopped),
                Err(_) => {
                    quiet += STOP_SOON;
                    if from.store.timeout.is_some_and(|limit| quiet >= limit) {
                        return Ok(End::Early(format!("nothing came for {quiet:?} (timeout)")));
                    }
                    continue;
                }
                Ok(None) if *came == list.len() => break,
                Ok(None) => return Ok(End::Early("it ended".to_owned())),
                Ok(Some(Err(_))) if *came == list.len() => break,
                Ok(Some(Err(e))) => return Ok(End::Early(e.to_string())),
                Ok(Some(Ok(piece))) => piece,
            };
            quiet = Duration::ZERO;
            bytes += piece.len() as u64;
            if !paced {
                from.store.link.count(piece.len() as u64);
            }
            from.store.let_through(piece.len() as u64, paced).await;
            let mut rest = piece.as_ref();
            while *came < list.len() {
                let (Some(&(k, id)), Some(entry)) = (list.get(*came), entries.get(*came)) else { break };
                match members.step(&mut rest) {
                    Err(broken) => return Ok(End::Broken(broken)),
                    Ok(Step::More) => break,
                    Ok(Step::End) => {
                        return Ok(End::Early(format!("its archive ended after {came} of {}", list.len())));
                    }
                    Ok(Step::Begins { name, bytes }) => {
                        match self.announced(from.catalog, id, entry, &name, bytes) {
                            Ok(true) => {}
                            // Nothing of it comes: the next step makes it whole.
                            Ok(false) => left.push((k, id)),
                            Err(broken) => return Ok(End::Broken(broken)),
                        }
                    }
                    Ok(Step::Whole) => {
                        *came += 1;
                        if left.last() == Some(&(k, id)) {
                            continue;
                        }
                        if from.catalog.verify(id, members.body()).is_err() {
                            left.push((k, id));
                        } else if sink(k, id, Ok(members.body())).is_break() {
                            return Ok(End::Stopped);
                        }
                    }
                }
            }
            if *came == list.len() {
                behind += rest.len();
                if behind > TAIL_BYTES_MAX {
                    break;
                }
            }
        }
        held.answered(bytes);
        Ok(End::Whole)
    }

    /// Whether the sample comes with the member that begins; false where the store says that it has it not.
    fn announced(
        &self,
        catalog: &Catalog,
        id: SampleId,
        entry: &Entry,
        name: &str,
        bytes: u64,
    ) -> Result<bool, Broken> {
        let wanted = catalog.place(id).map_or(0, |place| u64::from(place.bytes));
        match named(entry, self.lister.bucket(), name) {
            Named::AsAsked if bytes == wanted => Ok(true),
            Named::AsAsked => {
                Err(Broken(format!("{} has {bytes} bytes there and {wanted} in the index", printable(name))))
            }
            Named::Missing if bytes == 0 => Ok(false),
            Named::Missing | Named::Otherwise => {
                let asked = entry.member.as_deref().unwrap_or(&entry.object);
                Err(Broken(format!("{} comes where {} should", printable(name), printable(asked))))
            }
        }
    }
}

/// The next samples that go into one list, and what they are called there; `None` if there is none.
fn next_list(from: &From<'_>, waiting: &mut VecDeque<Wanted>) -> Option<(Vec<Wanted>, Arc<[Entry]>)> {
    let entries: Vec<(Entry, u64)> = waiting.iter().take(ENTRIES_MAX).map_while(|&(_, id)| entry(from, id)).collect();
    let mut bytes = 0;
    let fits = |(_, more): &&(Entry, u64)| {
        bytes += more;
        bytes <= LIST_BYTES_MAX
    };
    let count = entries.iter().take_while(fits).count();
    if count < ENTRIES_MIN {
        return None;
    }
    let list = waiting.drain(..count).collect();
    Some((list, entries.into_iter().take(count).map(|(entry, _)| entry).collect()))
}

/// What a sample is called in a list, and its size.
fn entry(from: &From<'_>, id: SampleId) -> Option<(Entry, u64)> {
    let place = from.catalog.place(id)?;
    let name = from.catalog.names.get(id as usize);
    let entry = if place.shard == Place::OWN_FILE {
        let root = from.root.as_ref();
        let object = if root.is_empty() { name.to_owned() } else { format!("{root}/{name}") };
        Entry { object, member: None }
    } else {
        Entry { object: from.shards.get(place.shard as usize)?.to_string(), member: Some(name.to_owned()) }
    };
    Some((entry, u64::from(place.bytes)))
}

/// What a stream that is being read keeps busy.
struct Held<'a> {
    _permit: tokio::sync::SemaphorePermit<'a>,
    lane: Option<Lane<'a>>,
    first_byte: Duration,
}

impl Held<'_> {
    fn answered(self, bytes: u64) {
        if let Some(lane) = self.lane {
            lane.answered(self.first_byte, bytes);
        }
    }
}

/// Asks until an answer begins, within the time that one may take.
async fn begun<'a>(
    from: &From<'a>,
    key: &Path,
    what: &(dyn Fn() -> String + Sync),
    ask: impl Fn() -> BoxFuture<'static, object_store::Result<Pieces>>,
) -> Result<(Pieces, Held<'a>)> {
    let store = from.store;
    let once = || async {
        let closed = |e| Failure::Final(Error::internal("the store's permits are closed").because(e));
        let lane = if from.early { Some(store.lanes.enter().await.map_err(closed)?) } else { None };
        let permit = store.permits.acquire().await.map_err(closed)?;
        from.requests.fetch_add(1, Ordering::Relaxed);
        let started = Instant::now();
        let asked = async {
            store.strikes(store.fault(key, 0, 0), key, &what()).await?;
            store.delayed().await;
            ask().await.map_err(|e| classified(e, &what(), true, store.maker))
        };
        let pieces = store.limited(what, asked).await?;
        Ok((pieces, Held { _permit: permit, lane, first_byte: started.elapsed() }))
    };
    store.health.run(what, once).await
}
