//! Requests of people to a running owner: list, drop, pin, limit.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::books::Job;
use crate::link::{Answer, answer};
use crate::message::{Fields, frame, kind, text};
use crate::{start, wire};

/// An owner answers in this time.
const PATIENCE: Duration = Duration::from_secs(5);

/// An owner, as it describes itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Listed {
    /// Its process.
    pub pid: u32,
    /// Bytes in use.
    pub bytes: u64,
    /// The most bytes.
    pub capacity_bytes: u64,
    /// Samples that it has.
    pub samples: u64,
    /// Samples of a dead owner that are still to be taken over.
    pub adoptable: u64,
    /// Samples that left for others.
    pub evicted: u64,
    /// Offered samples that were not kept.
    pub declined: u64,
    /// Connections that were ended because of what came over them.
    pub refused: u64,
    /// The reason of the last one.
    pub last_refusal: String,
    /// The jobs, by dataset and name.
    pub jobs: Vec<ListedJob>,
}

/// A job of a dataset, over all its processes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ListedJob {
    /// The dataset.
    pub dataset: String,
    /// The job's name.
    pub job: String,
    /// Processes that read now.
    pub clients: u32,
    /// Bytes of samples that it brought.
    pub bytes: u64,
    /// These samples.
    pub samples: u64,
    /// Samples that it found.
    pub hits: u64,
    /// Their bytes.
    pub hit_bytes: u64,
    /// Samples that it did not find.
    pub misses: u64,
    /// The most bytes that it may bring.
    pub limit_bytes: Option<u64>,
    /// The dataset's samples stay.
    pub pinned: bool,
}

impl ListedJob {
    pub(crate) fn of(job: &Job, pinned: bool) -> Self {
        Self {
            dataset: job.dataset_name.clone(),
            job: job.name.clone(),
            clients: job.clients,
            bytes: job.bytes,
            samples: job.residents,
            hits: job.hits,
            hit_bytes: job.hit_bytes,
            misses: job.misses,
            limit_bytes: job.limit,
            pinned,
        }
    }
}

/// A connection to the running owner.
pub struct Admin(UnixStream);

impl Admin {
    /// The owner of the first of `folders` that has one; `None` where none runs.
    ///
    /// # Errors
    /// The reason why a folder cannot be trusted.
    pub fn connect(folders: &[PathBuf]) -> Result<Option<Self>, String> {
        for folder in folders {
            if let Some(socket) = start::connect(folder)? {
                return Ok(Some(Self(socket)));
            }
        }
        Ok(None)
    }

    /// Its contents and its jobs.
    ///
    /// # Errors
    /// The owner does not answer.
    pub fn list(&self) -> Result<Listed, String> {
        let answer = self.ask(&frame(kind::LIST, &[]))?;
        serde_json::from_slice(&answer.bytes).map_err(|e| format!("an answer that is no list: {e}"))
    }

    /// Drops a dataset's samples and returns how many; `None` for a dataset that it does not know.
    ///
    /// # Errors
    /// The owner does not answer.
    pub fn drop_dataset(&self, dataset: &str) -> Result<Option<u64>, String> {
        let count = self.count(&frame(kind::DROP, &[&text(dataset)]))?;
        Ok((count != u64::MAX).then_some(count))
    }

    /// Limits the bytes that a job may bring; false for a job that it does not know.
    ///
    /// # Errors
    /// The owner does not answer.
    pub fn limit(&self, job: &str, bytes: Option<u64>) -> Result<bool, String> {
        let bytes = bytes.unwrap_or(u64::MAX).to_le_bytes();
        Ok(self.count(&frame(kind::LIMIT, &[&bytes, &text(job)]))? > 0)
    }

    /// Pins a dataset: its samples leave for none of another. False for a dataset that it does not know.
    ///
    /// # Errors
    /// The owner does not answer.
    pub fn pin(&self, dataset: &str, pinned: bool) -> Result<bool, String> {
        Ok(self.count(&frame(kind::PIN, &[&[u8::from(pinned)], &text(dataset)]))? > 0)
    }

    fn count(&self, message: &[u8]) -> Result<u64, String> {
        Fields(&self.ask(message)?.bytes).u64()
    }

    fn ask(&self, message: &[u8]) -> Result<Answer, String> {
        let mut left = message;
        while !left.is_empty() {
            let sent = wire::send(&self.0, left, None).map_err(|e| format!("the node cache's owner: {e}"))?;
            left = left.get(sent..).unwrap_or_default();
        }
        let until = std::time::Instant::now() + PATIENCE;
        answer(&self.0, until, &|| false).map_err(|e| format!("the node cache's owner: {e}"))
    }
}
