//! The pool before a source: fetched samples are kept on a Redis or Valkey server that several machines share.
//!
//! ```text
//! server.rs  the connection, and samples by key      admit.rs  the script that keeps the budget and what matters
//! writer.rs  the task that writes fetched samples     value.rs  a sample's bytes there      keys.rs  their keys
//! ```
//!
//! Advice, never a dependency: a value that is not exactly what was offered is a miss, and a server that fails, hangs
//! or is slower than the source is left out by the circuit breaker of [`Tiered`]. There is no directory: a sample's
//! place follows from its key, and one request to each node asks for all samples of a call. A sample that the server
//! does not have counts as an answer for the breaker, since the question cost what an answer costs.

mod admit;
mod keys;
mod server;
mod value;
mod writer;

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use redis::{ErrorKind, RedisError, ServerErrorKind};
use sha2::{Digest, Sha256};
use tokio::runtime::Runtime;

use crate::error::{Error, Result};
use crate::options::PoolTier;
use crate::process::Process;
use crate::runtime;
use crate::sample::{PoolNumbers, Source};
use crate::tune::circuit::Outcome;
use crate::types::SampleId;
use crate::wrap::tier::{Tier, TierNumbers, check_kept};
use crate::wrap::tiered::Tiered;
use keys::Keys;
use lossfeed_sync::Mutex;
use server::{Got, Item, Server};
use value::{Key, Seen};
use writer::{Job, Writer};

/// Bytes of samples that are asked for at once.
const ASKED_BYTES: u64 = 16 << 20;
/// Interval at which a waiting thread checks whether it was stopped.
const LOOK: Duration = Duration::from_millis(20);
/// Requests without an answer open the breaker when two fail, as its failures are weighed by the sample.
const FAILED_LEAST: u64 = 2;
/// The mean cost of a fetch is smoothed over about so many samples.
const SMOOTHED: f64 = 256.0;

/// See the module's head.
pub(crate) struct InPool {
    source: Arc<dyn Source>,
    server: Arc<Server>,
    runtime: Arc<Runtime>,
    writer: Writer,
    counts: Arc<Counts>,
    keys: Arc<Keys>,
    rated: Mutex<Option<Arc<Rated>>>,
    memory: Mutex<Memory>,
    made_by: Process,
}

/// Facts about samples that reading found.
#[derive(Default)]
struct Memory {
    /// Their values are damaged, or decoded to nothing: they are not asked for, and are replaced.
    doubted: HashSet<SampleId>,
    /// The mean time that their fetches took, in µs.
    fetched_in_us: Option<f64>,
}

/// The importances of samples to a run that draws by them.
struct Rated {
    run: String,
    /// NaN: none yet.
    importances: Vec<f32>,
}

impl Rated {
    /// One without a score may enter where there is room.
    fn worth(&self, id: SampleId) -> f32 {
        self.importances.get(id as usize).copied().filter(|worth| worth.is_finite()).unwrap_or(0.0)
    }
}

/// Counters; see [`PoolNumbers`].
#[derive(Default)]
struct Counts {
    hits: AtomicU64,
    hit_bytes: AtomicU64,
    misses: AtomicU64,
    damaged: AtomicU64,
    failed: AtomicU64,
    written: AtomicU64,
    dropped: AtomicU64,
    declined: AtomicU64,
    evicted: AtomicU64,
}

/// The end of a request.
enum Answer {
    Got(Vec<Got>),
    Failed,
    Late,
    Stopped,
}

impl InPool {
    /// `source` with a pool before it. `place` tells names apart that are equal in two stores.
    ///
    /// # Errors
    /// `Settings` for an address that is none, a server that refuses this user, and a source whose samples cannot be
    /// kept. A server that does not answer is no error: it is left out until it does.
    pub(crate) fn before(source: Arc<dyn Source>, place: &str, pool: &PoolTier) -> Result<Tiered<Self>> {
        check_kept(source.as_ref(), "pool")?;
        let place: [u8; 32] = Sha256::digest(place).into();
        let dataset = Sha256::new().chain_update(place).chain_update(source.digest()).finalize();
        let server = Arc::new(Server::new(pool, server::hex(dataset.get(..8).unwrap_or_default()))?);
        let runtime = runtime::shared()?;
        let checked = runtime.block_on(async { tokio::time::timeout(server::CONNECT, server.check()).await });
        let failed = match checked {
            Ok(Ok(())) => None,
            Ok(Err(e)) if is_refusal(&e) => {
                return Err(Error::settings(format!(
                    "pool={:?} refuses this user: {e}; give a user and password that may run MGET and EVAL on keys \
                     lossfeed:* (the password in the address or in REDISCLI_AUTH), or leave pool out",
                    pool.shown()
                )));
            }
            Ok(Err(e)) => Some(e.to_string()),
            Err(_) => Some(format!("no answer in {} s", server::CONNECT.as_secs())),
        };
        let counts = Arc::<Counts>::default();
        let keys = Arc::new(Keys::new(Arc::clone(&source), place));
        let tier = Self {
            writer: Writer::start(&runtime, Arc::clone(&server), Arc::clone(&keys), Arc::clone(&counts)),
            keys,
            rated: Mutex::default(),
            memory: Mutex::default(),
            made_by: Process::current(),
            source: Arc::clone(&source),
            server,
            runtime,
            counts,
        };
        let tiered = Tiered::new(source, tier, None);
        if let Some(why) = failed {
            let shown = pool.shown();
            tracing::warn!(pool = %shown, why, "the pool does not answer: samples come from the source until it does");
            tiered.begin_open();
        }
        Ok(tiered)
    }

    /// Asks the server, until `until` or until the caller wants no more.
    fn ask(&self, keys: &[Key], until: Instant, stopped: &dyn Fn() -> bool) -> Answer {
        let answer = self.runtime.block_on(async {
            let mut asked = std::pin::pin!(self.server.get(keys));
            loop {
                let now = Instant::now();
                let wait = LOOK.min(until.saturating_duration_since(now));
                match tokio::time::timeout(wait, asked.as_mut()).await {
                    Ok(Ok(got)) => return Answer::Got(got),
                    Ok(Err(e)) => {
                        tracing::debug!(error = %e, "the pool failed");
                        return Answer::Failed;
                    }
                    Err(_) if stopped() => return Answer::Stopped,
                    Err(_) if Instant::now() >= until => return Answer::Late,
                    Err(_) => {}
                }
            }
        });
        if matches!(answer, Answer::Failed | Answer::Late) {
            // Its answers would only delay those to come.
            self.server.disconnect();
        }
        answer
    }

    /// Checks what came for a sample and hands it on.
    fn take(&self, id: SampleId, key: &Key, got: &Got, give: &mut dyn FnMut(&[u8])) {
        let counts = &self.counts;
        let (seen, bytes) = match got {
            Got::Failed => return,
            Got::Nothing => (None, 0),
            Got::Value(value) => {
                let bytes = self.source.payload_bytes(id);
                (Some(value::unseal(key, bytes, value)), bytes)
            }
        };
        let hit = matches!(seen, Some(Seen::Sample(..)));
        self.keys.set(id, hit);
        (if hit { &counts.hits } else { &counts.misses }).fetch_add(1, Relaxed);
        match seen {
            Some(Seen::Sample(data, cost)) => {
                counts.hit_bytes.fetch_add(bytes, Relaxed);
                let mut memory = self.memory.lock();
                let (before, cost) = (memory.fetched_in_us, cost.as_micros() as f64);
                memory.fetched_in_us = Some(before.map_or(cost, |us| us + (cost - us) / SMOOTHED));
                drop(memory);
                give(data);
            }
            Some(wrong) => {
                counts.damaged.fetch_add(1, Relaxed);
                if wrong == Seen::Damaged {
                    self.memory.lock().doubted.insert(id);
                }
            }
            None => {}
        }
    }
}

/// True if the server answers and never will serve this user.
fn is_refusal(e: &RedisError) -> bool {
    let kinds = [ErrorKind::AuthenticationFailed, ErrorKind::Server(ServerErrorKind::NoPerm)];
    kinds.contains(&e.kind()) || matches!(e.code(), Some("NOAUTH" | "WRONGPASS" | "NOPERM" | "DENIED"))
}

impl Drop for InPool {
    fn drop(&mut self) {
        if !self.made_by.is_current() {
            self.writer.abandon();
        }
    }
}

impl Tier for InPool {
    type Flight = ();

    fn name(&self) -> &'static str {
        "the pool"
    }

    fn counted(&self) -> TierNumbers {
        let of = |number: &AtomicU64| number.load(Relaxed);
        let c = &self.counts;
        TierNumbers::Pool(PoolNumbers {
            hits: of(&c.hits),
            hit_bytes: of(&c.hit_bytes),
            misses: of(&c.misses),
            damaged: of(&c.damaged),
            failed: of(&c.failed),
            written: of(&c.written),
            dropped: of(&c.dropped),
            declined: of(&c.declined),
            evicted: of(&c.evicted),
        })
    }

    fn has(&self, id: SampleId) -> bool {
        self.keys.has(id)
    }

    fn may_have(&self, id: SampleId) -> bool {
        !self.memory.lock().doubted.contains(&id)
    }

    fn fetched_in_us(&self) -> Option<f64> {
        self.memory.lock().fetched_in_us
    }

    fn read(
        &self,
        ids: &[SampleId],
        patience: &dyn Fn(usize) -> Duration,
        stopped: &dyn Fn() -> bool,
        sink: &mut dyn FnMut(usize, &[u8]) -> ControlFlow<()>,
    ) -> Outcome {
        let wanted: Vec<(usize, SampleId, Key)> = {
            let memory = self.memory.lock();
            let asked = ids.iter().enumerate().filter(|(_, id)| !memory.doubted.contains(id));
            asked.filter_map(|(k, &id)| Some((k, id, self.keys.of(id)?))).collect()
        };
        let (mut outcome, mut took, mut came, mut left) = (Outcome::default(), Duration::ZERO, 0, wanted.as_slice());
        while !left.is_empty() {
            let mut bytes = 0;
            let fits = left.iter().take_while(|(_, id, _)| {
                bytes += self.source.payload_bytes(*id);
                bytes <= ASKED_BYTES
            });
            let (now, later) = left.split_at_checked(fits.count().max(1)).unwrap_or((left, &[]));
            left = later;
            let keys: Vec<Key> = now.iter().map(|(.., key)| *key).collect();
            let begun = Instant::now();
            let until = begun + patience(came).saturating_sub(took);
            let answer = self.ask(&keys, until, stopped);
            took += begun.elapsed();
            let got = match answer {
                Answer::Got(got) => got,
                Answer::Stopped => break,
                Answer::Late => {
                    self.counts.failed.fetch_add(now.len() as u64, Relaxed);
                    outcome.unfinished = true;
                    break;
                }
                Answer::Failed => {
                    self.counts.failed.fetch_add(now.len() as u64, Relaxed);
                    outcome.failures += (now.len() as u64).max(FAILED_LEAST);
                    break;
                }
            };
            let mut flow = ControlFlow::Continue(());
            for ((k, id, key), got) in now.iter().zip(&got) {
                if matches!(got, Got::Failed) {
                    self.counts.failed.fetch_add(1, Relaxed);
                    outcome.failures += 1;
                } else {
                    outcome.answers += 1;
                }
                self.take(*id, key, got, &mut |data| {
                    came += 1;
                    flow = sink(*k, data);
                });
                if flow.is_break() {
                    break;
                }
            }
            if flow.is_break() {
                break;
            }
        }
        outcome.took_us = took.as_micros() as u64;
        outcome
    }

    fn offer(&self, _: Option<&mut ()>, id: SampleId, cost: Duration, data: &[u8]) {
        let Some(key) = self.keys.of(id) else { return };
        let replace = self.memory.lock().doubted.contains(&id);
        let rated = self.rated.lock().clone();
        let item = || {
            let worth = rated.as_ref().map(|rated| rated.worth(id));
            Job::Keep(Item { id, key, cost, data: data.to_vec(), replace, worth }, rated.clone())
        };
        if self.writer.offer(data.len(), item) {
            self.memory.lock().doubted.remove(&id);
        } else {
            self.counts.dropped.fetch_add(1, Relaxed);
        }
    }

    fn forget(&self, ids: &[SampleId]) {
        self.memory.lock().doubted.extend(ids);
        ids.iter().for_each(|&id| self.keys.set(id, false));
    }

    fn rate(&self, run: &str, importances: &[f32]) {
        let run = server::hex(Sha256::digest(run).get(..8).unwrap_or_default());
        let new = Arc::new(Rated { run: run.clone(), importances: importances.to_vec() });
        let old = self.rated.lock().replace(Arc::clone(&new));
        // Those that the run put there under another importance.
        let changed = |old: &Rated, id: &SampleId| self.keys.has(*id) && old.worth(*id) != new.worth(*id);
        let Some(old) = old.filter(|old| old.run == run) else { return };
        let ids: Vec<SampleId> = (0..importances.len() as SampleId).filter(|id| changed(&old, id)).collect();
        if !ids.is_empty() {
            // Where there is no room for the news, the pool keeps what mattered before.
            self.writer.offer(size_of_val(ids.as_slice()), || Job::Rate(ids, new));
        }
    }
}
