//! What a dataset made of files holds: every sample's name, place and label, in the order of ids.

use crate::error::{Error, Result, printable};
use crate::format::members::Members;
use crate::format::tar::Map;
use crate::request::identity::{Mark, Stamp};
use crate::types::{MAX_SAMPLES, SampleId};
use sha2::{Digest, Sha256};
use std::collections::HashMap;

/// Members and files that were seen and left out, by reason. Nothing is left out silently: the counts are part of
/// [`Facts::description`](crate::sample::Facts::description).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Ignored {
    /// Links that lead to no file of their folder or archive.
    pub(crate) links: u64,
    /// Names with `..` in them.
    pub(crate) escaping: u64,
    /// Hidden files, files that are neither images nor labels, devices, an archive's own label.
    pub(crate) others: u64,
}

impl Ignored {
    pub(crate) fn add(&mut self, other: Ignored) {
        self.links += other.links;
        self.escaping += other.escaping;
        self.others += other.others;
    }
}

/// A file that holds many samples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shard {
    /// Local path, or key in the store.
    pub(crate) path: String,
    /// Size when it was indexed.
    pub(crate) bytes: u64,
    /// What must not have changed since: see [`Stamp`].
    pub(crate) stamp: Stamp,
}

/// Where a sample lies. 16 bytes, because there may be a hundred million of them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// First byte within the shard; 0 for a file of its own.
    pub(crate) offset: u64,
    pub(crate) bytes: u32,
    /// Position in [`Catalog::shards`], or [`Place::OWN_FILE`].
    pub(crate) shard: u32,
}

impl Place {
    /// The sample is a whole file, called as its name says.
    pub(crate) const OWN_FILE: u32 = u32::MAX;
}

/// webdataset's key: everything before the first dot of the last component.
pub(crate) fn key(name: &str) -> &str {
    let start = name.rfind('/').map_or(0, |s| s + 1);
    let end = name.get(start..).and_then(|base| base.find('.')).map_or(name.len(), |dot| start + dot);
    name.get(..end).unwrap_or(name)
}

/// What follows the key's dot: `fine.cls` of `a/b.fine.cls`.
pub(crate) fn rest(name: &str) -> &str {
    name.get(key(name).len() + 1..).unwrap_or("")
}

/// Names of all samples in one allocation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    text: String,
    ends: Vec<usize>,
}

impl Names {
    pub(crate) fn push(&mut self, name: &str) {
        self.text.push_str(name);
        self.ends.push(self.text.len());
    }
    pub(crate) fn get(&self, at: usize) -> &str {
        let start = if at == 0 { 0 } else { self.ends.get(at - 1).copied().unwrap_or(0) };
        self.ends.get(at).and_then(|&end| self.text.get(start..end)).unwrap_or("")
    }
}

/// All samples of a dataset made of files.
#[derive(Debug, Default, Clone)]
pub(crate) struct Catalog {
    /// For people; carries no credentials.
    pub(crate) url: String,
    pub(crate) shards: Vec<Shard>,
    pub(crate) places: Vec<Place>,
    pub(crate) names: Names,
    /// How samples that are files of their own are recognised; empty where there are none.
    pub(crate) marks: Vec<Mark>,
    /// CRC-32 of every sample, if checksums were asked for; else empty.
    pub(crate) sums: Vec<u32>,
    pub(crate) labels: Vec<i64>,
    /// Samples have no labels, and are whole files.
    pub(crate) unlabelled: bool,
    /// Samples that are sparse files, of which a place has what is stored.
    pub(crate) sparse: HashMap<SampleId, Map>,
    /// Where samples have several members each, those that were chosen.
    pub(crate) members: Option<Members>,
    pub(crate) classes: Vec<String>,
    pub(crate) ignored: Ignored,
}

impl Catalog {
    /// Adds a sample. `shard` is [`Place::OWN_FILE`] for a file of its own.
    pub(crate) fn push(&mut self, name: &str, shard: u32, offset: u64, bytes: u64) -> Result<()> {
        if self.places.len() >= MAX_SAMPLES {
            return Err(Error::settings(format!(
                "{} holds more than {MAX_SAMPLES} samples, the most one dataset may have: open fewer shards",
                self.url
            )));
        }
        let bytes = u32::try_from(bytes).map_err(|_| {
            Error::sample(format!(
                "{name} in {} has {bytes} bytes; one sample may have at most {}: split it or leave it out",
                self.url,
                u32::MAX
            ))
        })?;
        self.places.push(Place { offset, bytes, shard });
        self.names.push(name);
        Ok(())
    }

    /// Adds a sample that is a file of its own.
    pub(crate) fn push_file(&mut self, name: &str, bytes: u64, stamp: &Stamp) -> Result<()> {
        self.push(name, Place::OWN_FILE, 0, bytes)?;
        self.marks.push(Mark::of(stamp));
        Ok(())
    }

    pub(crate) fn mark(&self, id: SampleId) -> Mark {
        self.marks.get(id as usize).copied().unwrap_or_default()
    }

    /// Holds a sample's bytes to its checksum, where there is one.
    ///
    /// # Errors
    /// `Sample` with both sums when they differ.
    pub(crate) fn verify(&self, id: SampleId, data: &[u8]) -> Result<()> {
        let Some(&wanted) = self.sums.get(id as usize) else { return Ok(()) };
        let got = crc32fast::hash(data);
        if got == wanted {
            return Ok(());
        }
        Err(Error::sample(format!(
            "{} has the checksum {got:08x} where the index has {wanted:08x} ({} bytes): its bytes changed or were damaged; restore it, or \
             open the dataset again if they are meant to be so",
            self.name(id),
            data.len()
        )))
    }

    /// See [`Source::proof`](crate::sample::Source::proof).
    pub(crate) fn proof(&self, id: SampleId) -> Option<[u8; 16]> {
        let place = self.place(id).filter(|place| place.bytes > 0)?;
        let mut digest = Sha256::new();
        let mut add = |part: &[u8]| {
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part);
        };
        if place.shard == Place::OWN_FILE {
            add(self.url.as_bytes());
            add(self.names.get(id as usize).as_bytes());
            add(&self.mark(id).proof()?);
        } else {
            let shard = self.shards.get(place.shard as usize).filter(|shard| shard.stamp.is_proof())?;
            add(shard.path.as_bytes());
            add(&shard.bytes.to_le_bytes());
            add(shard.stamp.etag.as_deref().unwrap_or("").as_bytes());
            add(&shard.stamp.modified_ns.to_le_bytes());
            add(&shard.stamp.changed_ns.to_le_bytes());
        }
        add(&place.offset.to_le_bytes());
        add(&place.bytes.to_le_bytes());
        if let Some(members) = &self.members {
            add(&members.proof(id));
        }
        if let Some(map) = self.sparse.get(&id) {
            add(&map.proof());
        }
        if let Some(sum) = self.sums.get(id as usize) {
            add(&sum.to_le_bytes());
        }
        digest.finalize().first_chunk().copied()
    }

    pub(crate) fn place(&self, id: SampleId) -> Option<Place> {
        self.places.get(id as usize).copied()
    }

    /// The sample's name for people, with its shard's file name before it. Whoever made the archive chose it.
    pub(crate) fn name(&self, id: SampleId) -> String {
        let name = printable(self.names.get(id as usize));
        match self.place(id).and_then(|p| self.shards.get(p.shard as usize)) {
            Some(shard) => format!("{}/{name}", printable(file_name(&shard.path))),
            None => name.into_owned(),
        }
    }
}

/// The last component of a path or key.
pub(crate) fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// True for names of Parquet files.
pub(crate) fn is_parquet(name: &str) -> bool {
    name.ends_with(".parquet")
}

pub(crate) fn is_shard(name: &str) -> bool {
    name.ends_with(".tar") || is_parquet(name)
}

/// Files nobody means as samples: dot files, among them the `._x.jpg` that macOS writes beside `x.jpg`.
pub(crate) fn is_hidden(name: &str) -> bool {
    file_name(name).starts_with('.')
}
