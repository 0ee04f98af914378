//! How a dataset is opened and read.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;

use crate::error::{Error, Result};
use crate::sample::Piece;
use crate::stop::Stop;

/// Makes a store behave like one that is far away, for demonstrations and experiments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Throttle {
    /// Added before every request is answered.
    pub latency: Duration,
    /// Payload bytes a second over all connections together; `None` is unlimited.
    pub bandwidth_bytes_per_s: Option<u64>,
}

/// How a dataset is opened and read. Of the store options `Debug` shows the names.
#[derive(Clone)]
pub struct OpenOptions {
    /// Slows reading down as a remote store would; a local path is then read as if it were one. Default: none.
    pub throttle: Option<Throttle>,
    /// Requests in flight at once to a store, over all threads; 1 to 4096. Local files without a throttle are read by
    /// the calling threads instead. Default: 64.
    pub connections: usize,
    /// Directory for the indexes of tar shards, so that opening them again reads no headers; created for its owner
    /// alone when it does not exist. Default: none, nothing is kept.
    pub index_cache: Option<PathBuf>,
    /// Options for the store in `object_store`'s words, such as `("region", "eu-west-1")` or `("endpoint", URL)`; they
    /// take precedence over the environment (`AWS_*`, `GOOGLE_*`, `AZURE_*`).
    pub store_options: Vec<(String, String)>,
    /// The longest one request may take. Default: 30 s; `None` waits for ever.
    pub timeout: Option<Duration>,
    /// How long a store is asked again when it does not serve (no connection, no answer, 5xx, 429): its requests
    /// share this budget, which counts from the first failure after its last answer. A store that has never answered
    /// gets 10 s of it, 7 s of them for its first request; the first request gets all of a `timeout` of more than 30 s.
    /// Zero asks once. Default: two minutes.
    pub retry_timeout: Duration,
    /// Take a CRC-32 of every sample when the dataset is opened and hold every later read against it. Reads the whole
    /// dataset once; with `index_cache` the sums of shards are kept there. Default: no.
    pub checksums: bool,
    /// Whether samples that lie near each other in a shard of a store may come with one request, which then reads what
    /// lies between them in vain: no more than the request is measured to cost, and never more than it brings, headers
    /// and padding apart. Local files without a throttle are read sample by sample: there is no request to save.
    /// Default: yes.
    pub coalesce: bool,
    /// Whether a request to a store is sent a second time where its answer is late: later than 19 of 20 others and than
    /// twice the median. One in twenty at most is, and none while the store fails. Default: yes.
    pub hedge: bool,
    /// What of the samples is delivered, by name: members of shards, see [`Piece::of_members`](crate::sample::Piece::of_members),
    /// or columns of Parquet files. Default: none; samples of shards are images and their labels.
    pub fields: Vec<String>,
    /// Keep what was fetched on a local disk, and read it there the next time. Default: none.
    pub disk: Option<DiskTier>,
    /// Keep what was fetched on a server that several machines share, and read it there. Default: none.
    pub pool: Option<PoolTier>,
    /// Is told of every shard that was indexed while a dataset is opened. Default: none.
    pub on_shard: Option<OnShard>,
    /// Makes requests fail on purpose, drawn from this seed: refused, without an answer, late, cut off, from another
    /// version, with a wrong bit where `checksums` finds it. All of it passes, so what is delivered is the same; for
    /// tests of whoever reads. A local path is then read as if it were a store. Default: none.
    pub chaos: Option<u64>,
    /// What requests of [`open_in`](crate::open_in) run on. Default: the process's own runtime. For tests that turn its clock.
    #[doc(hidden)]
    pub runtime: Option<Arc<Runtime>>,
    /// Ends the opening from another thread. Default: nobody does.
    pub stop: Stop,
}

impl fmt::Debug for OpenOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.store_options.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("OpenOptions")
            .field("throttle", &self.throttle)
            .field("connections", &self.connections)
            .field("index_cache", &self.index_cache)
            .field("store_options", &names)
            .field("timeout", &self.timeout)
            .field("retry_timeout", &self.retry_timeout)
            .field("checksums", &self.checksums)
            .field("coalesce", &self.coalesce)
            .field("hedge", &self.hedge)
            .field("fields", &self.fields)
            .field("disk", &self.disk)
            .field("pool", &self.pool)
            .field("chaos", &self.chaos)
            .finish_non_exhaustive()
    }
}

/// Is called with how many shards were indexed and how many there are, from the threads that index them, several at
/// once.
#[derive(Clone)]
pub struct OnShard(pub Arc<dyn Fn(usize, usize) + Send + Sync>);

impl fmt::Debug for OnShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnShard")
    }
}

/// A disk tier below memory: see [`lossfeed_disk`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskTier {
    /// Its folder, on a disk of this machine; created for its owner alone when it does not exist. Datasets and
    /// processes may share it.
    pub folder: PathBuf,
    /// What all of them together may take there: 64 MiB to 2 TiB.
    pub bytes: u64,
}

/// The node cache: one copy of fetched samples for all processes of this user on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeTier {
    /// Folders for its socket, best first.
    pub folders: Vec<PathBuf>,
    /// Bytes for samples, if this process is the first one.
    pub bytes: u64,
    /// Starts its owner, with options after it.
    pub command: Vec<OsString>,
    /// The job's name.
    pub job: String,
    /// The order of the job's epochs comes from its owner.
    pub order: bool,
}

/// A pool on a Redis or Valkey server or cluster.
#[derive(Clone, PartialEq, Eq)]
pub struct PoolTier {
    /// Its address: `redis://`, `rediss://` (TLS) or `redis+unix://`, with user and password where they are needed; the
    /// environment's `REDISCLI_AUTH` is the password of an address without one.
    pub url: String,
    /// Bytes that samples of this dataset may take there, over all runs.
    pub bytes: u64,
    /// Time after which a sample leaves.
    pub ttl: Duration,
}

impl PoolTier {
    /// The address without user, password and query.
    pub(crate) fn shown(&self) -> String {
        let (scheme, rest) = self.url.split_once("://").unwrap_or(("", &self.url));
        let rest = rest.split(['?', '#']).next().unwrap_or_default();
        let rest = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
        if scheme.is_empty() { String::from("…") } else { format!("{scheme}://{rest}") }
    }
}

impl fmt::Debug for PoolTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolTier")
            .field("url", &self.shown())
            .field("bytes", &self.bytes)
            .field("ttl", &self.ttl)
            .finish()
    }
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            throttle: None,
            connections: 64,
            index_cache: None,
            store_options: Vec::new(),
            timeout: Some(Duration::from_secs(30)),
            retry_timeout: Duration::from_secs(120),
            checksums: false,
            coalesce: true,
            hedge: true,
            fields: Vec::new(),
            disk: None,
            pool: None,
            on_shard: None,
            chaos: None,
            runtime: None,
            stop: Stop::default(),
        }
    }
}

impl OpenOptions {
    /// Whether checksums are taken when a shard is indexed. Those of samples of several members are taken of what is
    /// read of them.
    pub(crate) fn sums_of_members(&self) -> bool {
        self.checksums && self.fields.is_empty()
    }
    /// # Errors
    /// `Settings` for fields that name no members of shards.
    pub(crate) fn check_members(&self) -> Result<()> {
        if !self.fields.is_empty() {
            Piece::of_members(&self.fields)?;
        }
        Ok(())
    }
    /// # Errors
    /// `Settings` for fields of a dataset that is a folder of files.
    pub(crate) fn check_fields_of(&self, folder: &str) -> Result<()> {
        if self.fields.is_empty() {
            return Ok(());
        }
        Err(Error::settings(format!(
            "fields: {folder} is a folder of images, and members of samples are those of tar shards: leave fields out, or name the shards"
        )))
    }
    /// # Errors
    /// `Settings` for checksums of rows: there is no read of one row to hold against one.
    #[cfg(feature = "parquet")]
    pub(crate) fn check_rows(&self, what: &str) -> Result<()> {
        if !self.checksums {
            return Ok(());
        }
        Err(Error::settings(format!(
            "checksums: {what} is Parquet, whose pages are read and not its rows: leave checksums out"
        )))
    }
    pub(crate) fn check(&self) -> Result<()> {
        if !(1..=4096).contains(&self.connections) {
            return Err(Error::settings(format!("connections={} is not possible: use 1 to 4096", self.connections)));
        }
        if self.timeout == Some(Duration::ZERO) {
            return Err(Error::settings(
                "timeout=0 would let no request finish: use a positive time, or None to wait for ever",
            ));
        }
        if self.retry_timeout > Duration::from_secs(7 * 24 * 3600) {
            return Err(Error::settings(format!(
                "retry_timeout={:?} is not possible: use at most a week",
                self.retry_timeout
            )));
        }
        match self.throttle {
            Some(Throttle { bandwidth_bytes_per_s: Some(0), .. }) => Err(Error::settings(
                "a bandwidth of 0 bytes a second would deliver nothing: use a positive number, or none for no limit",
            )),
            Some(Throttle { latency, .. }) if latency > Duration::from_secs(3600) => {
                Err(Error::settings(format!("a latency of {latency:?} is not possible: use at most an hour")))
            }
            _ => Ok(()),
        }
    }
}

/// What an engine says that was built without Parquet.
#[cfg(not(feature = "parquet"))]
pub(crate) fn without_parquet(what: &str) -> Error {
    Error::settings(format!("{what}: Parquet is not built in; build lossfeed with the feature \"parquet\""))
}
