//! The connection to a Redis or Valkey server or cluster: samples by key, one request a node.
//!
//! Keys are `lossfeed:{DATASET}:KEY`; in a cluster `lossfeed:{DATASET-SHARD}:KEY`, so that a script may touch a shard's
//! samples and its accounting together, and the shards are spread over the nodes by hash.

use std::time::Duration;

use futures::future::join_all;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, ErrorKind, RedisError, RedisFuture, RedisResult, Value};
use tokio::sync::Mutex;

use super::admit;
use super::value::{Key, seal};
use crate::error::{Error, Result};
use crate::options::PoolTier;
use crate::types::SampleId;

/// A connection that takes longer is a failure.
pub(crate) const CONNECT: Duration = Duration::from_secs(2);
/// Shards of a dataset in a cluster.
const SHARDS: u8 = 64;
/// Bytes that the client gathers before it writes.
const WRITE_BYTES: usize = 1 << 20;

/// See the module's head.
pub(crate) struct Server {
    client: Client,
    dataset: String,
    budget: u64,
    ttl: Duration,
    link: Mutex<Option<Link>>,
}

#[derive(Clone)]
enum Link {
    One(MultiplexedConnection),
    Cluster(ClusterConnection),
}

/// The answer for a key.
pub(crate) enum Got {
    Value(Vec<u8>),
    Nothing,
    /// Its node did not answer, or with an error.
    Failed,
}

/// A sample to be kept.
pub(crate) struct Item {
    pub(crate) id: SampleId,
    pub(crate) key: Key,
    pub(crate) cost: Duration,
    pub(crate) data: Vec<u8>,
    /// Our value under this key is damaged: replace it.
    pub(crate) replace: bool,
    /// Its importance to the run that draws by it.
    pub(crate) worth: Option<f32>,
}

/// The end of an item.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Put {
    /// So many less important samples were removed for it.
    Written {
        evicted: u64,
    },
    /// It is there already, or there is no room.
    Declined,
    Failed,
}

impl Server {
    /// # Errors
    /// `Settings` for an address that is none.
    pub(crate) fn new(pool: &PoolTier, dataset: String) -> Result<Self> {
        let refused = |e: &RedisError| {
            Error::settings(format!(
                "pool={:?} is no address of Redis or Valkey ({e}): write redis://host:6379, rediss:// for TLS or \
                 redis+unix:///path/of/socket",
                pool.shown()
            ))
        };
        let mut client = Client::open(pool.url.as_str()).map_err(|e| refused(&e))?;
        let info = client.get_connection_info();
        if let Some(password) =
            std::env::var("REDISCLI_AUTH").ok().filter(|_| info.redis_settings().password().is_none())
        {
            let settings = info.redis_settings().clone().set_password(password);
            client = Client::open(info.clone().set_redis_settings(settings)).map_err(|e| refused(&e))?;
        }
        Ok(Self { client, dataset, budget: pool.bytes, ttl: pool.ttl, link: Mutex::new(None) })
    }

    /// Connects, and asks for a key and for a script, which this user may not be allowed to.
    pub(crate) async fn check(&self) -> RedisResult<()> {
        let mut link = self.link().await?;
        let shards = link.shards();
        let names = self.names(shards, 0, "");
        link.ask(Cmd::new().arg("MGET").arg(&names[0])).await?.extract_error()?;
        link.ask(&admit::command(&names, self.ttl, self.budget / u64::from(shards), "")).await?.extract_error()?;
        Ok(())
    }

    /// The values of `keys`. A connection that was closed meanwhile, as servers close idle ones, is made once more.
    pub(crate) async fn get(&self, keys: &[Key]) -> RedisResult<Vec<Got>> {
        match self.try_get(keys).await {
            Err(e) if e.is_io_error() || e.is_unrecoverable_error() => {
                self.disconnect();
                self.try_get(keys).await
            }
            answer => answer,
        }
    }

    async fn try_get(&self, keys: &[Key]) -> RedisResult<Vec<Got>> {
        let link = self.link().await?;
        let shards = link.shards();
        let groups = by_shard(keys.iter(), shards);
        let asked = groups.iter().map(|(shard, group)| {
            let mut command = Cmd::new();
            command.arg("MGET");
            group.iter().filter_map(|&k| keys.get(k)).for_each(|key| {
                command.arg(self.name(shards, *shard, &hex(key)));
            });
            let mut link = link.clone();
            async move { link.ask(&command).await }
        });
        let mut got: Vec<Got> = keys.iter().map(|_| Got::Failed).collect();
        let mut failed = None;
        for ((_, group), answer) in groups.iter().zip(join_all(asked).await) {
            match answer.and_then(Value::extract_error) {
                Ok(Value::Array(values)) if values.len() == group.len() => {
                    for (&k, value) in group.iter().zip(values) {
                        if let Some(got) = got.get_mut(k) {
                            *got = match value {
                                Value::BulkString(value) => Got::Value(value),
                                _ => Got::Nothing,
                            };
                        }
                    }
                }
                Ok(_) => failed = Some((ErrorKind::UnexpectedReturnType, "MGET was answered in another form").into()),
                Err(e) => failed = Some(e),
            }
        }
        match failed {
            Some(e) if got.iter().all(|got| matches!(got, Got::Failed)) => Err(e),
            _ => Ok(got),
        }
    }

    /// Keeps `items`, as far as there is room, or as `run` finds them more important than what it has there.
    pub(crate) async fn put(&self, items: &[Item], run: &str) -> RedisResult<Vec<Put>> {
        let link = self.link().await?;
        let shards = link.shards();
        let groups = by_shard(items.iter().map(|item| &item.key), shards);
        let asked = groups.iter().map(|(shard, group)| {
            let names = self.names(shards, *shard, run);
            let mut command = admit::command(&names, self.ttl, self.budget / u64::from(shards), run);
            for item in group.iter().filter_map(|&k| items.get(k)) {
                let value = seal(&item.key, item.cost, &item.data);
                admit::item(&mut command, &hex(&item.key), item.replace, item.worth, &value);
            }
            let mut link = link.clone();
            async move { link.ask(&command).await }
        });
        let mut put = vec![Put::Failed; items.len()];
        for ((_, group), answer) in groups.iter().zip(join_all(asked).await) {
            let answers = match answer.and_then(Value::extract_error) {
                Ok(Value::Array(answers)) => answers,
                // The server's own limit is reached, and its policy evicts nothing.
                Err(e) if e.code() == Some("OOM") => vec![Value::Int(0); group.len()],
                Err(e) if e.is_unrecoverable_error() || e.is_io_error() => return Err(e),
                _ => continue,
            };
            for (&k, answer) in group.iter().zip(answers) {
                if let Some(put) = put.get_mut(k) {
                    *put = match answer {
                        Value::Int(written @ 1..) => Put::Written { evicted: written as u64 - 1 },
                        _ => Put::Declined,
                    };
                }
            }
        }
        Ok(put)
    }

    /// `run` has other importances for samples that it put here.
    pub(crate) async fn rate(&self, keys: &[(Key, f32)], run: &str) -> RedisResult<()> {
        let link = self.link().await?;
        let shards = link.shards();
        let groups = by_shard(keys.iter().map(|(key, _)| key), shards);
        let asked = groups.iter().map(|(shard, group)| {
            let mut command = admit::again(&self.names(shards, *shard, run));
            for (key, worth) in group.iter().filter_map(|&k| keys.get(k)) {
                command.arg(worth).arg(hex(key));
            }
            let mut link = link.clone();
            async move { link.ask(&command).await }
        });
        join_all(asked).await.into_iter().try_for_each(|answer| answer.and_then(Value::extract_error).map(drop))
    }

    /// Drops the connection: the next request makes another one.
    pub(crate) fn disconnect(&self) {
        // While the lock is held another request is connecting already.
        if let Ok(mut link) = self.link.try_lock() {
            *link = None;
        }
    }

    async fn link(&self) -> RedisResult<Link> {
        let mut link = self.link.lock().await;
        if let Some(link) = &*link {
            return Ok(link.clone());
        }
        let late = |_| RedisError::from((ErrorKind::Io, "the server did not answer in time"));
        Ok(link.insert(tokio::time::timeout(CONNECT, self.connect()).await.map_err(late)??).clone())
    }

    async fn connect(&self) -> RedisResult<Link> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT))
            .set_response_timeout(None)
            .set_write_backpressure_boundary(WRITE_BYTES);
        let mut one = self.client.get_multiplexed_async_connection_with_config(&config).await?;
        // Servers before version 6 do not know the command, and then it is none of a cluster to us.
        let hello = one.req_packed_command(Cmd::new().arg("HELLO")).await.unwrap_or(Value::Nil);
        let words = if let Value::Array(words) = hello { words } else { Vec::new() };
        if !words.iter().any(|word| matches!(word, Value::BulkString(word) if word == b"cluster")) {
            return Ok(Link::One(one));
        }
        let info = self.client.get_connection_info().clone();
        let cluster = ClusterClient::builder([info])
            .connection_timeout(CONNECT)
            .response_timeout(CONNECT)
            .retries(3)
            .min_retry_wait(5)
            .max_retry_wait(50)
            .write_backpressure_boundary(WRITE_BYTES)
            .build()?;
        Ok(Link::Cluster(cluster.get_async_connection().await?))
    }

    fn name(&self, shards: u8, shard: u8, last: &str) -> String {
        match shards {
            1 => format!("lossfeed:{{{}}}:{last}", self.dataset),
            _ => format!("lossfeed:{{{}-{shard:02}}}:{last}", self.dataset),
        }
    }

    /// A shard's accounting for a run, and what the names of its samples begin with.
    fn names(&self, shards: u8, shard: u8, run: &str) -> [String; 4] {
        ["sizes", "due", &format!("worths-{run}"), ""].map(|last| self.name(shards, shard, last))
    }
}

impl Link {
    fn shards(&self) -> u8 {
        match self {
            Self::One(_) => 1,
            Self::Cluster(_) => SHARDS,
        }
    }

    fn ask<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::One(link) => link.req_packed_command(command),
            Self::Cluster(link) => link.req_packed_command(command),
        }
    }
}

/// Positions by the shard of their keys.
fn by_shard<'a>(keys: impl Iterator<Item = &'a Key>, shards: u8) -> Vec<(u8, Vec<usize>)> {
    let mut groups: Vec<(u8, Vec<usize>)> = (0..shards).map(|shard| (shard, Vec::new())).collect();
    for (k, key) in keys.enumerate() {
        let shard = key.first().map_or(0, |first| first % shards);
        if let Some((_, group)) = groups.get_mut(usize::from(shard)) {
            group.push(k);
        }
    }
    groups.retain(|(_, group)| !group.is_empty());
    groups
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
