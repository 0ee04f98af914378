//! Requests to an object store: a bounded number of them in flight, each with a time limit, asked again as `retry.rs`
//! says. Every answer must prove that it is from the object that was indexed, and is read to its range's end and no
//! further. Of a server that gives no parts, objects are read whole (`whole.rs`).

use std::collections::HashSet;
use std::fs::File;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::stream::StreamExt;
use object_store::path::Path;
use object_store::{GetOptions, GetResult, GetResultPayload, ObjectMeta, ObjectStore, ObjectStoreExt};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;

use crate::error::{Error, Result};
use crate::options::OpenOptions;
use crate::process::Process;
use crate::request::answers::Answers;
use crate::request::changed::changed;
use crate::request::changed::short_read;
use crate::request::chaos::{Chaos, Fault};
use crate::request::failure::{Access, Maker, classified, incomplete};
use crate::request::hedge::{self, Hedge};
use crate::request::identity::{Mark, Proof, Stamp};
use crate::request::lanes::Lanes;
use crate::request::link::{Link, Worth};
use crate::request::pacer::Pacer;
use crate::request::retry::{Failure, Health};
use crate::request::whole::{Wholes, says_nothing};
use crate::runtime;
use crate::sample::{Decisions, LimitBy};
use crate::stop::Stop;

/// Requests to one store.
pub(crate) struct Store {
    runtime: Arc<Runtime>,
    made_by: Process,
    pub(crate) inner: Arc<dyn ObjectStore>,
    pub(crate) maker: Maker,
    pub(crate) health: Health,
    pub(crate) permits: Semaphore,
    /// Of these, those for requests ahead of need.
    pub(crate) lanes: Lanes,
    connections: usize,
    latency: Duration,
    pacer: Pacer,
    pub(crate) timeout: Option<Duration>,
    pub(crate) link: Link,
    /// Unless nothing is to be asked twice.
    hedge: Option<Hedge>,
    answers: Answers,
    chaos: Option<Chaos>,
    /// Of a plain web server: it may give no parts of objects.
    pub(crate) wholes: Option<Wholes>,
    /// The end of the opening.
    pub(crate) stop: Stop,
}

/// A range of an object, and how the object is recognised.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) key: &'a Path,
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    /// Of the whole object, when it was indexed.
    pub(crate) total: u64,
    pub(crate) mark: Mark,
    pub(crate) if_match: Option<&'a str>,
    /// Names it in errors.
    pub(crate) what: &'a (dyn Fn() -> String + Sync),
    /// Counts the requests that it takes.
    pub(crate) requests: &'a AtomicU64,
    /// Whether nobody waits for it yet: then it takes a lane.
    pub(crate) early: bool,
}

impl Store {
    pub(crate) fn new(inner: Arc<dyn ObjectStore>, maker: Maker, options: &OpenOptions) -> Result<Self> {
        // A file is read by one thread, and no second one reads it sooner.
        let hedged = options.hedge && maker != Maker::Files;
        let kept_free = if hedged { hedge::kept_free(options.connections) } else { 0 };
        Ok(Self {
            runtime: options.runtime.clone().map_or_else(runtime::shared, Ok)?,
            made_by: Process::current(),
            inner,
            maker,
            health: Health::new(options.retry_timeout),
            permits: Semaphore::new(options.connections),
            lanes: Lanes::new(options.connections - kept_free),
            connections: options.connections,
            latency: options.throttle.map_or(Duration::ZERO, |t| t.latency),
            pacer: Pacer::new(options.throttle.and_then(|t| t.bandwidth_bytes_per_s)),
            timeout: options.timeout,
            link: Link::new(options.timeout),
            hedge: hedged.then(Hedge::default),
            answers: Answers::default(),
            chaos: options.chaos.map(|seed| Chaos::new(seed, options.timeout.is_some())),
            wholes: maker.is_web().then(|| Wholes::new(options)).transpose()?,
            stop: options.stop.clone(),
        })
    }

    /// Requests that may be in flight at once.
    pub(crate) fn connections(&self) -> usize {
        self.connections
    }

    /// Requests for what nobody needs yet that may be in flight at once.
    pub(crate) fn lanes(&self) -> usize {
        self.lanes.target()
    }

    /// As [`Source::tell`](crate::sample::Source::tell).
    pub(crate) fn tell(&self, decisions: &Arc<Decisions>) {
        self.lanes.listeners.add(decisions);
    }

    /// What is worth reading from here, as far as it is known, where `lanes` requests run side by side.
    pub(crate) fn worth(&self, lanes: usize) -> Worth {
        self.link.worth(lanes, self.pacer.bytes_per_s())
    }

    /// Bytes a second that come from here, as far as it is known.
    pub(crate) fn bytes_per_s(&self) -> f64 {
        self.link.bytes_per_s(self.pacer.bytes_per_s())
    }

    /// See [`Counted::answers`](crate::sample::Counted::answers).
    pub(crate) fn answers(&self) -> Option<(u64, u64)> {
        self.answers.quantiles()
    }

    /// Sets the most bytes a second that come from here, for requests under way too; `None`: no limit.
    pub(crate) fn limit(&self, bytes_per_s: Option<u64>, by: LimitBy) {
        self.pacer.limit(bytes_per_s, by, tokio::time::Instant::now());
    }

    /// Runs `work` on the calling thread, to its end or until the opening is stopped.
    pub(crate) fn wait<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        self.made_by.check(|of, _| {
            Error::usage(format!("this source was opened before a fork and its connections belong to the parent process {of}: open it again in the child"))
        })?;
        self.runtime.block_on(self.stop.before(work))
    }

    /// A range of an object, whole or an error. `sound` may refuse the bytes: then they are asked for again.
    pub(crate) async fn range(
        &self,
        wanted: Wanted<'_>,
        sound: &(dyn Fn(&[u8]) -> Result<()> + Sync),
    ) -> Result<Bytes> {
        self.health
            .run(&|| (wanted.what)(), || async move {
                if let Some(bytes) =
                    self.wholes.as_ref().and_then(|wholes| wholes.held(wanted.key, wanted.start, wanted.bytes))
                {
                    sound(&bytes).map_err(|e| self.damaged(wanted.key, e))?;
                    return Ok(bytes);
                }
                // Held while a request is under way: not while one waits for the next, nor while an answer waits for
                // its reader.
                let closed = |e| Failure::Final(Error::internal("the store's permits are closed").because(e));
                let lane = if wanted.early { Some(self.lanes.enter().await.map_err(closed)?) } else { None };
                let permit = self.permits.acquire().await.map_err(closed)?;
                let in_parts = || self.wholes.as_ref().is_none_or(Wholes::in_parts);
                if in_parts() {
                    match self.in_part(wanted, sound).await {
                        Err(_) if !in_parts() => {}
                        Err(e) => return Err(e),
                        Ok((bytes, first_byte)) => {
                            drop(permit);
                            if let Some(lane) = lane {
                                lane.answered(first_byte, wanted.bytes);
                            }
                            sound(&bytes).map_err(Failure::Again)?;
                            return Ok(bytes);
                        }
                    }
                }
                let bytes = self.of_whole(wanted).await?;
                drop(permit);
                sound(&bytes).map_err(|e| self.damaged(wanted.key, e))?;
                Ok(bytes)
            })
            .await
    }

    /// A sample of an object that was read whole is not sound: the next attempt shall not find the same bytes.
    fn damaged(&self, key: &Path, why: Error) -> Failure {
        self.doubt(key);
        Failure::Again(why)
    }

    /// The bytes by one request for this range, let through and measured, and how long the first one took.
    async fn in_part(
        &self,
        wanted: Wanted<'_>,
        sound: &(dyn Fn(&[u8]) -> Result<()> + Sync),
    ) -> Result<(Bytes, Duration), Failure> {
        let asked = || format!("{} bytes at offset {} of {}", wanted.bytes, wanted.start, (wanted.what)());
        let paced = self.sent_in_turn(wanted.bytes).await;
        wanted.requests.fetch_add(1, Ordering::Relaxed);
        let (started, sent) = (Instant::now(), self.link.send(wanted.bytes));
        let fault = self.fault(wanted.key, wanted.start, wanted.bytes);
        let once = async {
            self.strikes(fault, wanted.key, &(wanted.what)()).await?;
            self.once(wanted, paced).await
        };
        let (mut bytes, first_byte, before) = self.limited(&asked, once).await?;
        if let Some(fault) = fault {
            let spoiled = fault.of_the_body(bytes, |bytes| sound(bytes).is_err());
            bytes = spoiled.map_err(|got| Failure::Again(wanted.wrong_length(&got, wanted.total)))?;
        }
        self.let_through(wanted.bytes, paced).await;
        let body = started.elapsed().saturating_sub(first_byte);
        sent.answered(first_byte, body, before);
        Ok((bytes, first_byte))
    }

    /// Waits until a request for so many bytes may be sent. Whether a throttle lets its bytes through.
    pub(crate) async fn sent_in_turn(&self, bytes: u64) -> bool {
        self.pacer.send(bytes).await
    }

    /// Waits until so many bytes may have come. Waiting for the link is waiting with the connection busy: the permit is
    /// held.
    pub(crate) async fn let_through(&self, bytes: u64, paced: bool) {
        self.pacer.pass(bytes, paced).await;
        if paced {
            self.link.count(bytes);
        }
    }

    /// What a request waits for before it is sent.
    pub(crate) async fn delayed(&self) {
        if !self.latency.is_zero() {
            tokio::time::sleep(self.latency).await;
        }
    }

    /// The bytes, how long the first one took, and how many the link had brought by then.
    async fn once(&self, wanted: Wanted<'_>, paced: bool) -> Result<(Bytes, Duration, u64), Failure> {
        let started = Instant::now();
        self.delayed().await;
        let range = wanted.start..wanted.start + wanted.bytes;
        let options = GetOptions {
            range: Some(range.clone().into()),
            if_match: wanted.if_match.map(str::to_owned),
            ..GetOptions::default()
        };
        let failed = |e| classified(e, &(wanted.what)(), true, self.maker);
        let answer = match self.answer(wanted, options).await {
            Ok(answer) => answer,
            Err(e) => {
                self.learnt_of_parts(&e);
                return Err(self.diagnosed(e, wanted).await);
            }
        };
        if let Some(wholes) = &self.wholes {
            wholes.learn(true);
        }
        let (first_byte, before) = (started.elapsed(), self.link.brought());
        self.answers.learn(first_byte);
        let GetResult { payload, meta, .. } = answer;
        let file = match payload {
            GetResultPayload::File(file, _) => file,
            GetResultPayload::Stream(mut pieces) => {
                wanted.proved(meta.size, Mark::of(&Stamp::of_object(&meta)), &meta)?;
                // One piece is handed on as it came.
                let (mut only, mut joined, mut got) = (None, Vec::new(), 0);
                while let Some(piece) = pieces.next().await {
                    let piece = piece.map_err(failed)?;
                    got += piece.len() as u64;
                    // Behind a throttle bytes have come when they are let through.
                    if !paced {
                        self.link.count(piece.len() as u64);
                    }
                    if got > wanted.bytes {
                        // Whatever else would come is not waited for: the connection is dropped here.
                        let more = format!("more than {}", wanted.bytes);
                        return Err(Failure::Again(wanted.wrong_length(&more, meta.size)));
                    }
                    if got == piece.len() as u64 {
                        only = Some(piece);
                    } else {
                        joined.extend_from_slice(&only.take().unwrap_or_default());
                        joined.extend_from_slice(&piece);
                    }
                }
                if got != wanted.bytes {
                    return Err(Failure::Again(wanted.wrong_length(&got.to_string(), meta.size)));
                }
                return Ok((only.unwrap_or_else(|| joined.into()), first_byte, before));
            }
        };
        let read = tokio::task::spawn_blocking(move || read_file(&file, range));
        let (bytes, size, mark) = match read.await {
            Ok(Ok(read)) => read,
            Ok(Err(e)) => return Err(Failure::Final(crate::request::file::failed(&(wanted.what)(), e))),
            Err(e) => return Err(Failure::Final(Error::internal("a thread that reads files was lost").because(e))),
        };
        if (bytes.len() as u64) < wanted.bytes {
            return Err(Failure::Final(wanted.wrong_length(&bytes.len().to_string(), size)));
        }
        wanted.proved(size, mark, &meta)?;
        Ok((bytes.into(), first_byte, before))
    }

    /// The head of the answer, maybe of a second request where the first one's is late.
    async fn answer(&self, wanted: Wanted<'_>, options: GetOptions) -> object_store::Result<GetResult> {
        let Some(hedge) = &self.hedge else { return self.inner.get_opts(wanted.key, options).await };
        let sent = AtomicBool::new(false);
        let ask = || {
            // The first one is counted already.
            if sent.swap(true, Ordering::Relaxed) {
                wanted.requests.fetch_add(1, Ordering::Relaxed);
            }
            self.inner.get_opts(wanted.key, options.clone())
        };
        hedge.run(&self.permits, || self.health.is_good(), ask).await
    }

    /// A range beyond an object's end is refused by other stores in words of their own: the object's size tells it
    /// apart from trouble that passes.
    async fn diagnosed(&self, e: object_store::Error, wanted: Wanted<'_>) -> Failure {
        if !matches!(self.maker, Maker::Cloud(_))
            && matches!(e, object_store::Error::Generic { .. })
            && let Ok(meta) = self.inner.head(wanted.key).await
            && meta.size < wanted.start + wanted.bytes
        {
            let got = meta.size.saturating_sub(wanted.start);
            return Failure::Final(wanted.wrong_length(&got.to_string(), meta.size));
        }
        classified(e, &(wanted.what)(), true, self.maker)
    }

    /// What goes wrong with a request on purpose.
    pub(crate) fn fault(&self, key: &Path, start: u64, bytes: u64) -> Option<Fault> {
        self.chaos.as_ref()?.strike(key.as_ref(), start, bytes)
    }

    /// What `fault` does before an answer comes. Whoever's store it is, nobody answers for what is done on purpose.
    pub(crate) async fn strikes(&self, fault: Option<Fault>, key: &Path, what: &str) -> Result<(), Failure> {
        let Some(fault) = fault else { return Ok(()) };
        tracing::debug!(?fault, what, "a fault on purpose");
        fault.before_the_answer(key.as_ref()).await.map_err(|e| classified(e, what, true, Maker::Caller))
    }

    /// One request within the time that one may take.
    pub(crate) async fn limited<T>(
        &self,
        what: &(dyn Fn() -> String + Sync),
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let Some(limit) = self.health.limit(self.timeout) else { return work.await };
        tokio::time::timeout(limit, work).await.unwrap_or_else(|_| {
            Err(Failure::silence(Error::outage(format!("no answer for {} within {limit:?} (timeout)", what()))))
        })
    }

    /// Size and stamp of an object; `None` when there is none.
    pub(crate) fn head(&self, key: &Path) -> Result<Option<(u64, Stamp)>> {
        let what = || key.to_string();
        self.wait(self.health.run(&what, || {
            self.limited(&what, async {
                self.strikes(self.fault(key, 0, 0), key, key.as_ref()).await?;
                // A signature may be good for nothing but GET.
                if self.maker == Maker::Cloud(Access::Signed) {
                    return self.looked_at(key).await;
                }
                match self.inner.head(key).await {
                    // Servers that make their answers while they send them know no length when they send its head.
                    Ok(meta) if meta.size == 0 && self.maker.is_web() => self.looked_at(key).await,
                    Ok(meta) => Ok(Some((meta.size, Stamp::of_object(&meta)))),
                    Err(object_store::Error::NotFound { .. }) => Ok(None),
                    Err(e) if matches!(self.maker, Maker::Cloud(_)) && says_nothing(&e) => self.looked_at(key).await,
                    Err(e) => Err(classified(e, key.as_ref(), false, self.maker)),
                }
            })
        }))?
    }

    /// Asks for an object's first byte: the answer shows whether the store gives parts.
    pub(crate) fn look(&self, key: &Path) -> Result<Option<(u64, Stamp)>> {
        let what = || key.to_string();
        self.wait(self.health.run(&what, || self.limited(&what, self.looked_at(key))))?
    }

    /// Every object below a prefix, sorted by key.
    ///
    /// # Errors
    /// As a request; `Source` for a listing that contradicts itself or names an object twice.
    pub(crate) fn list(&self, prefix: &Path) -> Result<Vec<ObjectMeta>> {
        let what = || format!("the listing of {prefix}/");
        // A listing has many pages: no limit on the whole, one on each.
        let mut found = self.wait(self.health.run(&what, || async {
            let mut found: Vec<ObjectMeta> = Vec::new();
            // Of stores that do not list in order, from the first name on that is not behind the one before.
            let mut seen: Option<HashSet<Path>> = None;
            self.limited(&what, self.strikes(self.fault(prefix, 0, 0), prefix, &what())).await?;
            let mut objects = self.inner.list(Some(prefix));
            loop {
                let next = async { Ok(objects.next().await) };
                let Some(object) = self.limited(&what, next).await? else { return Ok(found) };
                let object = object.map_err(|e| classified(e, &what(), false, self.maker))?;
                self.health.reached();
                if found.last().is_some_and(|last| last.location >= object.location) {
                    seen.get_or_insert_with(|| found.iter().map(|object| object.location.clone()).collect());
                }
                if seen.as_mut().is_some_and(|seen| !seen.insert(object.location.clone())) {
                    let why = format!("it names {} twice (its pages overlap)", object.location);
                    return Err(Failure::Final(incomplete(&what(), &why)));
                }
                found.push(object);
            }
        }))??;
        found.sort_unstable_by(|a, b| a.location.cmp(&b.location));
        Ok(found)
    }
}

impl Wanted<'_> {
    /// Whether an answer from an object of `size` bytes with `mark` is from the object that was indexed.
    pub(crate) fn proved(&self, size: u64, mark: Mark, meta: &ObjectMeta) -> Result<(), Failure> {
        let what = || (self.what)();
        match self.mark.proved_by(mark) {
            Proof::Same if size == self.total => Ok(()),
            Proof::Missing => Err(Failure::Again(Error::unreadable(format!(
                "{}: the answer has neither the entity tag nor the date that {} had when it was indexed, so nothing tells whose bytes these \
                 are: the store, or a proxy before it, must pass ETag or Last-Modified on",
                what(),
                self.key
            )))),
            Proof::Same | Proof::Differs => {
                let now =
                    format!("now {size} of {}, tag {}", meta.last_modified, meta.e_tag.as_deref().unwrap_or("none"));
                Err(Failure::Again(changed(&what(), self.key.as_ref(), self.total, &now)))
            }
        }
    }

    pub(crate) fn wrong_length(&self, got: &str, total: u64) -> Error {
        short_read(&(self.what)(), self.key.as_ref(), self.start, self.bytes, got, (self.total, total))
    }
}

/// A range of a local file, its size and its mark, which is looked at after reading: an overwrite meanwhile shows.
fn read_file(file: &File, range: Range<u64>) -> std::io::Result<(Vec<u8>, u64, Mark)> {
    let mut bytes = vec![0; (range.end - range.start) as usize];
    let got = crate::request::file::read_at(file, &mut bytes, range.start)?;
    bytes.truncate(got);
    let meta = file.metadata()?;
    Ok((bytes, meta.len(), Mark::of(&Stamp::of_file(&meta))))
}
