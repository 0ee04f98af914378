//! A dataset made of files: a catalog says what there is, a reader brings the bytes.

use crate::decode::endings_said;
use crate::error::{Error, Result, printable};
use crate::format::catalog::Catalog;
use crate::format::checksums;
use crate::format::reader::Reader;
use crate::format::walked::Walked;
use crate::options::OpenOptions;
use crate::sample::{Counted, Facts, Fields, Fingerprint, Form, LimitBy, Link, News, Payload, Size, Source, Traffic};
use crate::tune::fetch_plan::{Ask, Plan};
use crate::types::{SampleId, TensorSpec};
use std::ops::ControlFlow;
use std::sync::Arc;

/// The [`Source`] of folders and shards, local or remote.
pub(crate) struct Files<R> {
    catalog: Arc<Catalog>,
    reader: R,
    walked: Walked,
    facts: Facts,
}

impl<R: Reader> Files<R> {
    /// Takes the checksums that `options` wants and the catalog has not, by reading every sample.
    ///
    /// # Errors
    /// `Source` when the catalog is empty; for checksums also as reading.
    pub(crate) fn new(catalog: Catalog, reader: R, options: &OpenOptions) -> Result<Self> {
        if catalog.places.is_empty() {
            let seen = catalog.ignored;
            return Err(Error::unreadable(format!(
                "{} holds no samples: expected class folders of images ({}), or tar shards of them; members of other kinds are samples where fields names them ({} other files, {} links, \
                 {} names with '..' were ignored); check the path",
                catalog.url,
                endings_said(),
                seen.others,
                seen.links,
                seen.escaping
            )));
        }
        let labelled = !catalog.unlabelled && catalog.members.as_ref().is_none_or(|members| members.labelled);
        if labelled && catalog.labels.len() != catalog.places.len() {
            return Err(Error::internal(format!(
                "{} labels for {} samples",
                catalog.labels.len(),
                catalog.places.len()
            )));
        }
        let mut catalog = Arc::new(catalog);
        if options.checksums && catalog.sums.is_empty() {
            let sums = checksums::of_samples(&catalog, &reader, &options.stop)?;
            Arc::make_mut(&mut catalog).sums = sums;
        }
        let form = match &catalog.members {
            None => Form::Images { tailed: false },
            Some(members) if members.picture => Form::Images { tailed: members.has_tail() },
            Some(_) => Form::Fields(Fields::new(Vec::new(), true)?),
        };
        let target = if labelled { TensorSpec::class_index() } else { TensorSpec::no_target() };
        let facts = Facts {
            pieces: catalog.members.as_ref().map_or_else(Vec::new, |members| members.pieces.clone()),
            classes: catalog.classes.clone(),
            sized: true,
            remote: reader.remote(),
            retry_timeout: reader.retry_timeout(),
            in_turn: reader.in_turn(),
            ..Facts::new(catalog.places.len(), described(&catalog), form, target)
        };
        Ok(Self { catalog, reader, walked: Walked::default(), facts })
    }

    /// The same with samples that are there already.
    pub(crate) fn with(self, walked: Walked) -> Self {
        Self { walked, ..self }
    }

    fn target(&self, id: SampleId) -> Option<&[u8]> {
        if self.catalog.labels.is_empty() {
            return Some(&[0]);
        }
        self.catalog.labels.get(id as usize).map(bytemuck::bytes_of)
    }

    /// The payload of a sample that is stored as `data`; `joined` is for what is put together.
    fn payload<'a>(&'a self, id: SampleId, data: &'a [u8], joined: &'a mut Vec<u8>) -> Result<Payload<'a>> {
        let target = self.target(id).ok_or_else(|| out_of_range(id, self.facts.samples))?;
        match (&self.catalog.members, self.catalog.sparse.get(&id)) {
            (None, None) => return Ok(Payload::new(data, target)),
            (None, Some(map)) => map.spread(data, joined),
            (Some(members), _) => members.payload(id, data, joined)?,
        }
        Ok(Payload::new(joined, target))
    }
}

/// The dataset in words for people.
fn described(c: &Catalog) -> String {
    let mut text = format!("{}: {} samples", printable(&c.url), c.places.len());
    for (count, one, many) in [
        (c.shards.len() as u64, "shard", "shards"),
        (c.classes.len() as u64, "class", "classes"),
        (c.ignored.others, "other file ignored", "other files ignored"),
        (c.ignored.links, "link ignored", "links ignored"),
        (c.ignored.escaping, "name with '..' ignored", "names with '..' ignored"),
    ] {
        if count > 0 {
            text.push_str(&format!(", {count} {}", if count == 1 { one } else { many }));
        }
    }
    text
}

impl<R: Reader> Source for Files<R> {
    fn facts(&self) -> &Facts {
        &self.facts
    }
    fn name(&self, id: SampleId) -> String {
        self.catalog.name(id)
    }
    fn size(&self, id: SampleId) -> Size {
        match (self.catalog.place(id), &self.catalog.members) {
            (None, _) => Size::known(0),
            (Some(place), None) => {
                Size::known(self.catalog.sparse.get(&id).map_or(place.bytes.into(), |map| map.bytes))
            }
            (Some(_), Some(members)) => Size { tail: members.tail_bytes(id), ..Size::known(members.payload_bytes(id)) },
        }
    }
    fn labels(&self) -> Option<&[i64]> {
        (!self.catalog.labels.is_empty()).then_some(&self.catalog.labels)
    }
    fn digest(&self) -> String {
        let catalog = &self.catalog;
        let mut digest = Fingerprint::of(&self.facts);
        for (id, place) in catalog.places.iter().enumerate() {
            digest.add(catalog.names.get(id).as_bytes());
            digest.add(&place.bytes.to_le_bytes());
            if let Some(map) = catalog.sparse.get(&(id as SampleId)) {
                digest.add(&map.proof());
            }
        }
        digest.add(bytemuck::cast_slice(&catalog.labels));
        if let Some(members) = &catalog.members {
            members.pieces.iter().for_each(|piece| digest.add(piece.name.as_bytes()));
            (0..catalog.places.len() as SampleId).for_each(|id| digest.add(&members.payload_bytes(id).to_le_bytes()));
        }
        digest.finish()
    }
    fn proof(&self, id: SampleId) -> Option<[u8; 16]> {
        self.catalog.proof(id)
    }
    fn counted(&self) -> Counted {
        Counted { answers: self.reader.answers(), ..Counted::default() }
    }
    fn link(&self) -> Link {
        self.reader.link(&self.catalog)
    }
    fn limit(&self, bytes_per_s: Option<u64>, by: LimitBy) -> bool {
        self.reader.limit(bytes_per_s, by)
    }
    fn tell(&self, news: News<'_>) {
        if let News::Room(bytes) = news {
            self.walked.trim(bytes);
        }
        self.reader.tell(&self.catalog, news);
    }
    fn is_near(&self, id: SampleId) -> bool {
        self.walked.has(id)
    }
    fn along(&self, ids: &[SampleId], first: usize, request_bytes: u64) -> Vec<usize> {
        self.reader.along(&self.catalog, ids, first, request_bytes)
    }
    fn plan(&self, ids: &[SampleId], call: Ask) -> Option<Plan> {
        self.reader.plan(&self.catalog, ids, call)
    }
    fn fetch_by(
        &self,
        request_bytes: u64,
        stopped: &dyn Fn() -> bool,
        ids: &[SampleId],
        sink: &mut dyn FnMut(usize, Result<Payload<'_>>) -> ControlFlow<()>,
    ) -> Traffic {
        let (mut wanted, mut joined) = (Vec::with_capacity(ids.len()), Vec::new());
        for (k, &id) in ids.iter().enumerate() {
            let walked = self.walked.take(id).filter(|data| self.catalog.verify(id, data).is_ok());
            let answer = match (self.catalog.place(id), &walked) {
                (None, _) => Err(out_of_range(id, self.facts.samples)),
                (Some(p), _) if p.bytes == 0 => Err(Error::sample(format!(
                    "{} is empty (0 bytes): remove it or choose on_error=\"skip\" or \"substitute\"",
                    self.catalog.name(id)
                ))),
                (Some(_), Some(data)) => {
                    self.payload(id, data, &mut joined).map(|payload| Payload { near: true, ..payload })
                }
                (Some(_), None) => {
                    wanted.push((k, id));
                    continue;
                }
            };
            if sink(k, answer).is_break() {
                return Traffic::default();
            }
        }
        if wanted.is_empty() {
            return Traffic::default();
        }
        let verified = self.facts.remote;
        self.reader.read(&self.catalog, &wanted, request_bytes, stopped, &mut |k, id, data| {
            let sound =
                data.and_then(|data| if verified { Ok(data) } else { self.catalog.verify(id, data).map(|()| data) });
            sink(k, sound.and_then(|data| self.payload(id, data, &mut joined)))
        })
    }
}

/// An id that names no sample.
pub(crate) fn out_of_range(id: SampleId, samples: usize) -> Error {
    Error::usage(format!("sample {id} does not exist: ids of this dataset are 0 to {}", samples.saturating_sub(1)))
}
