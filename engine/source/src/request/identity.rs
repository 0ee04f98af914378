//! What proves that bytes are those of the file that was indexed.
//!
//! A tag decides where both sides have one: a store's entity tag, or, for a local file, both its times. Else the date
//! decides, to the second, since listings and answers round it differently. The size is compared by whoever reads.
//! `decisions/0016` has the reasons.

use fnv::FnvHasher;
use std::fs::Metadata;
use std::hash::Hasher;
use std::os::unix::fs::MetadataExt;

use object_store::ObjectMeta;

/// How a file is recognised as the one that was indexed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// The store's entity tag, where it has one.
    pub(crate) etag: Option<String>,
    /// Time of the last change of the contents, nanoseconds since 1970; 0 where it is not known.
    pub(crate) modified_ns: i128,
    /// Local files: time of the last change of contents or metadata. Programs that put an old time on a file they
    /// have overwritten (`cp -p`, `rsync --inplace`, archives with fixed times) cannot set this one. 0 in stores.
    pub(crate) changed_ns: i128,
}

impl Stamp {
    pub(crate) fn of_file(meta: &Metadata) -> Self {
        let ns = |s: i64, ns: i64| i128::from(s) * 1_000_000_000 + i128::from(ns);
        Self {
            etag: None,
            modified_ns: ns(meta.mtime(), meta.mtime_nsec()),
            changed_ns: ns(meta.ctime(), meta.ctime_nsec()),
        }
    }

    pub(crate) fn of_object(meta: &ObjectMeta) -> Self {
        let modified_ns = i128::from(meta.last_modified.timestamp_nanos_opt().unwrap_or(0));
        Self { etag: meta.e_tag.clone(), modified_ns, changed_ns: 0 }
    }

    /// Whether there is anything to recognise the file by beside its size.
    pub(crate) fn is_proof(&self) -> bool {
        self.etag.is_some() || self.modified_ns != 0
    }

    /// The tag as a request may ask for it. A weak tag (`W/"…"`) never matches there, and Azure lists tags without
    /// quotes.
    pub(crate) fn if_match(&self) -> Option<String> {
        let tag = self.etag.as_deref().filter(|t| !t.starts_with("W/"))?;
        Some(if tag.starts_with('"') { tag.to_owned() } else { format!("\"{tag}\"") })
    }
}

/// A [`Stamp`] in 12 bytes, for samples that are files of their own: there may be a hundred million of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Hash of the tag, or of a local file's times; 0 for none.
    tag: [u32; 2],
    /// The date in seconds since 1970; 0 for none.
    seconds: u32,
}

/// What an answer's mark says of the one in the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Proof {
    Same,
    Differs,
    /// The index knows a tag or a date, the answer has neither.
    Missing,
}

impl Mark {
    pub(crate) fn of(stamp: &Stamp) -> Self {
        let tag = match &stamp.etag {
            Some(etag) => {
                let bare = etag.strip_prefix("W/").unwrap_or(etag).trim_matches('"');
                hash(bare.bytes(), 0)
            }
            None if stamp.changed_ns != 0 => {
                let times = [stamp.modified_ns, stamp.changed_ns];
                hash(times.iter().flat_map(|t| t.to_le_bytes()), 1)
            }
            None => 0,
        };
        let seconds = if stamp.changed_ns != 0 { 0 } else { (stamp.modified_ns / 1_000_000_000) as u32 };
        Self { tag: [tag as u32, (tag >> 32) as u32], seconds }
    }

    /// Its bytes; `None` if nothing but the size is known.
    pub(crate) fn proof(self) -> Option<[u8; 12]> {
        let mut bytes = [0; 12];
        let words = [self.tag[0], self.tag[1], self.seconds];
        bytes.chunks_exact_mut(4).zip(words).for_each(|(place, word)| place.copy_from_slice(&word.to_le_bytes()));
        (self != Mark::default()).then_some(bytes)
    }

    /// Whether `answer` is from the file that this mark was made of.
    pub(crate) fn proved_by(self, answer: Mark) -> Proof {
        let none = [0, 0];
        let same = if self.tag != none && answer.tag != none {
            self.tag == answer.tag
        } else if self.seconds != 0 && answer.seconds != 0 {
            self.seconds == answer.seconds
        } else if self == Mark::default() {
            // Nothing was known when it was indexed: the size is all there is.
            true
        } else {
            return Proof::Missing;
        };
        if same { Proof::Same } else { Proof::Differs }
    }
}

/// FNV-1a; `variant` makes independent functions of it.
pub(crate) fn hash(bytes: impl IntoIterator<Item = u8>, variant: u8) -> u64 {
    let mut hasher = FnvHasher::default();
    std::iter::once(variant).chain(bytes).for_each(|byte| hasher.write_u8(byte));
    hasher.finish()
}
