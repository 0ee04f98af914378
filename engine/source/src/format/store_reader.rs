//! Samples behind an object store: those that lie near each other in one object come with one request.
//!
//! What comes together is taken apart here, and each sample is held to its own proof and checksum. Where a request for
//! several fails in another way than by an outage, or brings a sample that is not sound, the samples concerned are
//! asked for by themselves: one that is bad has an error of its own, and its neighbours come.

use std::collections::{BTreeSet, VecDeque};
use std::ops::ControlFlow;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use object_store::path::Path;
use tokio::task::JoinSet;

use crate::error::{Error, ErrorKind, Result};
use crate::format::catalog::{Catalog, Place, Shard};
use crate::format::reader::Reader;
use crate::format::runs::{RUN_BYTES_MAX, Run, Wish, in_a_row_bytes, runs};
use crate::request::identity::Mark;
use crate::request::link::Worth;
use crate::request::store::{Store, Wanted};
use crate::sample::{LimitBy, Link, News, Traffic};
use crate::tune::fetch_plan::{Ask, Plan, Shape, Spot, plan, ranges};
use crate::types::SampleId;

/// Time between two questions whether a waiting caller still wants its samples.
const STOP_SOON: Duration = Duration::from_millis(50);

/// Reads samples of a catalog from a store.
pub(crate) struct StoreReader(Arc<Stored>);

/// What its requests share.
struct Stored {
    store: Store,
    /// Keys of the catalog's shards.
    shards: Vec<Path>,
    /// What names of whole-object samples are relative to.
    root: Path,
    /// Whether one request may bring several samples.
    coalesce: bool,
    /// [`Shape::framing_bytes`], once it was asked for.
    framing_bytes: OnceLock<u64>,
}

/// What the requests of one call come to.
#[derive(Default)]
struct Sent {
    requests: AtomicU64,
    vain_bytes: AtomicU64,
    /// Nobody needs it yet.
    early: bool,
}

impl StoreReader {
    /// Over the `shards` of a catalog by their keys, or over objects below `root`.
    pub(crate) fn new(store: Store, shards: Vec<Path>, root: Path, coalesce: bool) -> Self {
        Self(Arc::new(Stored { store, shards, root, coalesce, framing_bytes: OnceLock::new() }))
    }
}

impl Stored {
    /// The samples of a run, in its order. `None` stands for one that is to be asked for by itself.
    async fn bring(&self, catalog: &Catalog, run: &Run, sent: &Sent) -> Vec<Option<Result<Bytes>>> {
        if let [only] = run.wishes[..] {
            return vec![Some(self.sample(catalog, only, sent).await)];
        }
        let brought = self.together(catalog, run, sent).await;
        match brought {
            Ok(bytes) => {
                sent.vain_bytes.fetch_add(run.vain_bytes, Ordering::Relaxed);
                let sound = |wish: &Wish| {
                    let from = (wish.place.offset - run.start) as usize;
                    let data = bytes.slice(from..from + wish.place.bytes as usize);
                    catalog.verify(wish.id, &data).is_ok().then_some(Ok(data))
                };
                run.wishes.iter().map(sound).collect()
            }
            // It holds for all of them, and each that asked again would wait as long once more.
            Err(e) if e.kind() == ErrorKind::Outage => {
                run.wishes.iter().map(|_| Some(Err(Error::new(e.kind(), e.to_string())))).collect()
            }
            Err(e) => {
                tracing::debug!(error = %e, samples = run.wishes.len(), "asking for each sample by itself");
                run.wishes.iter().map(|_| None).collect()
            }
        }
    }

    /// All bytes of a run of several samples.
    async fn together(&self, catalog: &Catalog, run: &Run, sent: &Sent) -> Result<Bytes> {
        let &Sent { ref requests, early, .. } = sent;
        let place = run.wishes[0].place;
        let (key, shard) = self.shard(catalog, place)?;
        let what = || format!("{} and {} samples behind it", catalog.name(run.wishes[0].id), run.wishes.len() - 1);
        let (start, bytes, total) = (run.start, run.end - run.start, shard.bytes);
        let (mark, if_match) = (Mark::of(&shard.stamp), shard.stamp.if_match());
        let if_match = if_match.as_deref();
        self.store
            .range(Wanted { key, start, bytes, total, mark, if_match, what: &what, requests, early }, &|_| Ok(()))
            .await
    }

    /// What is asked for, a request each, for the samples of a call: of about `request_bytes` at most, or more where
    /// they are needed one directly behind the other and nobody waits yet. Those from position `first` on only come
    /// along. All of them are in the catalog.
    fn requests(
        &self,
        catalog: &Catalog,
        wanted: impl Iterator<Item = (usize, SampleId)>,
        first: usize,
        request_bytes: u64,
    ) -> Vec<Run> {
        let wishes = wanted.filter_map(|(k, id)| Some(Wish { k, id, place: catalog.place(id)? }));
        if !self.coalesce {
            return wishes.map(Run::alone).collect();
        }
        let early = request_bytes < u64::MAX;
        let worth = self.store.worth(self.store.connections());
        if early && request_bytes > RUN_BYTES_MAX {
            let (placed, own): (Vec<Wish>, Vec<Wish>) = wishes.partition(|wish| wish.place.shard != Place::OWN_FILE);
            let shape = self.shape(catalog, request_bytes, worth);
            let spots: Vec<Spot> = placed.iter().map(|wish| spot(wish.place)).collect();
            let planned = ranges(&spots, shape).iter().map(|range| Run::planned(range, &placed)).collect::<Vec<_>>();
            return planned.into_iter().chain(own.into_iter().map(Run::alone)).collect();
        }
        let request_bytes_max = worth.request_bytes_max.min(request_bytes.max(worth.gap_bytes));
        let wishes: Vec<Wish> = wishes.collect();
        let bytes = wishes.iter().filter(|wish| early && wish.k < first).map(|wish| u64::from(wish.place.bytes)).sum();
        let in_a_row = in_a_row_bytes(bytes, self.store.lanes(), worth.request_bytes_max);
        runs(wishes, Worth { request_bytes_max, ..worth }, in_a_row)
    }

    /// Ranges of so many bytes at most read over headers and padding, and over other samples where that costs less than
    /// the work of a request, as runs do.
    fn shape(&self, catalog: &Catalog, range_bytes: u64, worth: Worth) -> Shape {
        let framing_bytes = *self.framing_bytes.get_or_init(|| framing_bytes(catalog));
        Shape {
            range_bytes: range_bytes.min(worth.request_bytes_max),
            framing_bytes: framing_bytes.max(worth.work_bytes),
        }
    }

    fn shard<'a>(&'a self, catalog: &'a Catalog, place: Place) -> Result<(&'a Path, &'a Shard)> {
        let at = place.shard as usize;
        let missing = || Error::internal(format!("shard {at} is not in the catalog"));
        self.shards.get(at).zip(catalog.shards.get(at)).ok_or_else(missing)
    }

    async fn sample(&self, catalog: &Catalog, wish: Wish, sent: &Sent) -> Result<Bytes> {
        let &Sent { ref requests, early, .. } = sent;
        let Wish { id, place, .. } = wish;
        let (start, bytes) = (place.offset, u64::from(place.bytes));
        let what = || catalog.name(id);
        let sound = |data: &[u8]| catalog.verify(id, data);
        if place.shard == Place::OWN_FILE {
            let key = below(&self.root, catalog.names.get(id as usize))?;
            let mark = catalog.mark(id);
            let wanted =
                Wanted { key: &key, start, bytes, total: bytes, mark, if_match: None, what: &what, requests, early };
            return self.store.range(wanted, &sound).await;
        }
        let (key, shard) = self.shard(catalog, place)?;
        let if_match = shard.stamp.if_match();
        let mark = Mark::of(&shard.stamp);
        let (total, if_match) = (shard.bytes, if_match.as_deref());
        let wanted = Wanted { key, start, bytes, total, mark, if_match, what: &what, requests, early };
        self.store.range(wanted, &sound).await
    }
}

fn spot(Place { shard, offset, bytes }: Place) -> Spot {
    Spot { shard, offset, bytes }
}

/// The most bytes between neighbours of one shard: the mean, and padding to blocks of 512 bytes if
/// that is a part of it. Another sample between two has this twice and itself.
fn framing_bytes(catalog: &Catalog) -> u64 {
    let all: u64 = catalog.shards.iter().map(|shard| shard.bytes).sum();
    let wanted: u64 = catalog.places.iter().map(|place| u64::from(place.bytes)).sum();
    let mean = all.saturating_sub(wanted) / catalog.places.len().max(1) as u64;
    (2 * mean).min(mean + 512)
}

/// The key of `name` below `root`.
pub(crate) fn below(root: &Path, name: &str) -> Result<Path> {
    let text = if root.as_ref().is_empty() { name.to_owned() } else { format!("{root}/{name}") };
    Path::parse(&text).map_err(|e| Error::unreadable(format!("{text} is no valid key: rename it")).because(e))
}

impl Reader for StoreReader {
    fn remote(&self) -> bool {
        true
    }

    fn retry_timeout(&self) -> Duration {
        self.0.store.health.budget()
    }

    fn limit(&self, bytes_per_s: Option<u64>, by: LimitBy) -> bool {
        self.0.store.limit(bytes_per_s, by);
        true
    }

    fn answers(&self) -> Option<(u64, u64)> {
        self.0.store.answers()
    }

    fn link(&self, catalog: &Catalog) -> Link {
        let Stored { store, shards, coalesce, .. } = &*self.0;
        let requests_ahead = store.lanes();
        let worth = store.worth(requests_ahead);
        // An object of its own has no neighbours.
        let alone = !coalesce || shards.len() * 2 > catalog.places.len();
        Link { requests_ahead, request_bytes: if alone { 0 } else { worth.gap_bytes + worth.work_bytes } }
    }

    fn tell(&self, catalog: &Catalog, news: News<'_>) {
        let Stored { store, shards, .. } = &*self.0;
        match news {
            News::Listener(decisions) => store.tell(decisions),
            News::Doubtful(ids) => {
                let of: BTreeSet<u32> =
                    ids.iter().filter_map(|&id| catalog.place(id)).map(|place| place.shard).collect();
                of.into_iter().filter_map(|at| shards.get(at as usize)).for_each(|key| store.doubt(key));
            }
            News::Importances(..) | News::Room(_) => {}
        }
    }

    fn along(&self, catalog: &Catalog, ids: &[SampleId], first: usize, request_bytes: u64) -> Vec<usize> {
        let runs = self.0.requests(catalog, ids.iter().copied().enumerate(), first, request_bytes);
        let wanted = runs.iter().filter(|run| run.wishes.iter().any(|wish| wish.k < first));
        let mut along: Vec<usize> =
            wanted.flat_map(|run| &run.wishes).map(|wish| wish.k).filter(|&k| k >= first).collect();
        along.sort_unstable();
        along
    }

    fn plan(&self, catalog: &Catalog, ids: &[SampleId], call: Ask) -> Option<Plan> {
        let Stored { store, coalesce, .. } = &*self.0;
        let shape = self.0.shape(catalog, call.range_bytes, store.worth(store.connections()));
        if !coalesce || shape.range_bytes <= RUN_BYTES_MAX {
            return None;
        }
        let placed = |&id: &SampleId| catalog.place(id).filter(|place| place.shard != Place::OWN_FILE).map(spot);
        let spots: Option<Vec<Spot>> = ids.iter().map(placed).collect();
        plan(&spots?, shape, call, store.bytes_per_s())
    }

    /// Every request is a task of the runtime, so that its answer comes in and its connection is free again while the
    /// calling thread is still busy with an earlier sample. Memory stays bounded: a call has at most as many requests
    /// under way, and answers that wait for it, as the store has connections, and each brings one sample or the bytes
    /// that `runs.rs` allows: what is needed now 512 KB, what is read ahead no more in all than its call is for. What a
    /// planned range takes beside its samples is in [`Plan::beside_bytes`].
    fn read(
        &self,
        catalog: &Arc<Catalog>,
        wanted: &[(usize, SampleId)],
        request_bytes: u64,
        stopped: &dyn Fn() -> bool,
        sink: &mut dyn FnMut(usize, SampleId, Result<&[u8]>) -> ControlFlow<()>,
    ) -> Traffic {
        let sent = Arc::new(Sent { early: request_bytes < u64::MAX, ..Sent::default() });
        let work = async {
            let to_ask = self.0.requests(catalog, wanted.iter().copied(), usize::MAX, request_bytes);
            let (mut to_ask, mut asked) = (VecDeque::from(to_ask), JoinSet::new());
            loop {
                while asked.len() < self.0.store.connections()
                    && let Some(run) = to_ask.pop_front()
                {
                    let (stored, catalog, sent) = (Arc::clone(&self.0), Arc::clone(catalog), Arc::clone(&sent));
                    asked.spawn(async move {
                        let brought = stored.bring(&catalog, &run, &sent).await;
                        (run, brought)
                    });
                }
                // A store that does not serve is asked for minutes: nobody may want its answer by then.
                let Ok(next) = tokio::time::timeout(STOP_SOON, asked.join_next()).await else {
                    if stopped() || self.0.store.stop.is_asked() {
                        return;
                    }
                    continue;
                };
                let (run, brought) = match next {
                    Some(Ok(answer)) => answer,
                    // As if it had happened on this thread, which knows what to do about it.
                    Some(Err(lost)) => match lost.try_into_panic() {
                        Ok(panic) => resume_unwind(panic),
                        Err(_) => return,
                    },
                    None => return,
                };
                for (wish, answer) in run.wishes.into_iter().zip(brought) {
                    let going = match answer {
                        Some(Ok(bytes)) => sink(wish.k, wish.id, Ok(&bytes)),
                        Some(Err(e)) => sink(wish.k, wish.id, Err(e)),
                        None => {
                            to_ask.push_back(Run::alone(wish));
                            continue;
                        }
                    };
                    // Requests under way end with the set that holds them.
                    if going.is_break() {
                        return;
                    }
                }
            }
        };
        if let Err(e) = self.0.store.wait(work) {
            // Nothing has run: every position gets the reason.
            for &(k, id) in wanted {
                if sink(k, id, Err(Error::new(e.kind(), e.to_string()))).is_break() {
                    break;
                }
            }
        }
        let total = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Traffic { requests: total(&sent.requests), vain_bytes: total(&sent.vain_bytes), ..Traffic::default() }
    }
}
