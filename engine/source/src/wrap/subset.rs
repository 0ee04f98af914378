//! Some samples of another source, under ids of their own.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::random::{Purpose, generator, shuffle};
use crate::sample::{Counted, Facts, Fingerprint, LimitBy, Link, News, Payload, Size, Source, Traffic};
use crate::tune::fetch_plan::{Ask, Plan};
use crate::types::SampleId;

/// Sample k is sample `ids[k]` of the inner source.
pub struct Subset {
    inner: Arc<dyn Source>,
    ids: Arc<[SampleId]>,
    facts: Facts,
    labels: Option<Vec<i64>>,
}

impl Subset {
    /// The samples `ids` of `inner`, in that order.
    ///
    /// # Errors
    /// `Settings`, with the id, if there is none, one is out of range, or one comes twice: a source answers every id
    /// once, and what is to come more often is the sampler's business.
    pub fn new(inner: Arc<dyn Source>, ids: Vec<SampleId>) -> Result<Self> {
        let samples = inner.len();
        if ids.is_empty() {
            return Err(Error::settings("a subset of no samples: give at least one id"));
        }
        let mut seen = HashSet::with_capacity(ids.len());
        for &id in &ids {
            if id as usize >= samples {
                return Err(Error::settings(format!("id {id} is not one of {samples} samples: ids count from 0")));
            }
            if !seen.insert(id) {
                return Err(Error::settings(format!(
                    "id {id} comes twice in a subset: give each once; a sampler decides how often a sample comes"
                )));
            }
        }
        let labels =
            inner.labels().map(|labels| ids.iter().filter_map(|&id| labels.get(id as usize).copied()).collect());
        // The whole's number is said once.
        let whole = inner.facts().description.replacen(&format!(": {samples} samples"), "", 1);
        let description = format!("{} of the {samples} samples of {whole}", ids.len());
        let facts = Facts { samples: ids.len(), description, ..inner.facts().clone() };
        Ok(Self { inner, ids: ids.into(), facts, labels })
    }

    /// `first` samples of `inner` chosen at random by `seed`, and all others; both in the order of `inner`. One seed is
    /// one choice on any machine.
    ///
    /// # Errors
    /// `Settings` if a part would be empty.
    pub fn split(inner: Arc<dyn Source>, first: usize, seed: u64) -> Result<(Self, Self)> {
        let samples = inner.len();
        if first == 0 || first >= samples {
            return Err(Error::settings(format!(
                "a split of {samples} samples into {first} and {}: leave at least one in each part",
                samples.saturating_sub(first)
            )));
        }
        let mut ids: Vec<SampleId> = (0..samples as SampleId).collect();
        shuffle(&mut ids, &mut generator(seed, 0, 0, Purpose::Split));
        let mut rest = ids.split_off(first);
        ids.sort_unstable();
        rest.sort_unstable();
        Ok((Self::new(Arc::clone(&inner), ids)?, Self::new(inner, rest)?))
    }

    fn inner(&self, id: SampleId) -> Option<SampleId> {
        self.ids.get(id as usize).copied()
    }
}

#[deny(clippy::missing_trait_methods)] // what is left out falls back to a default, silently
impl Source for Subset {
    fn facts(&self) -> &Facts {
        &self.facts
    }
    fn name(&self, id: SampleId) -> String {
        self.inner(id).map_or_else(String::new, |id| self.inner.name(id))
    }
    fn size(&self, id: SampleId) -> Size {
        self.inner(id).map_or_else(Size::default, |id| self.inner.size(id))
    }
    fn labels(&self) -> Option<&[i64]> {
        self.labels.as_deref()
    }
    fn remember(&self, id: SampleId, payload_bytes: u32, tail_bytes: u32) {
        if let Some(id) = self.inner(id) {
            self.inner.remember(id, payload_bytes, tail_bytes);
        }
    }
    /// Some samples of several sources are no source after the other.
    fn parts(&self) -> Option<&[Arc<dyn Source>]> {
        None
    }
    fn digest(&self) -> String {
        let mut digest = Fingerprint::of(&self.facts);
        digest.add(self.inner.digest().as_bytes());
        self.ids.iter().for_each(|id| digest.add(&id.to_le_bytes()));
        digest.finish()
    }
    fn proof(&self, id: SampleId) -> Option<[u8; 16]> {
        self.inner.proof(self.inner(id)?)
    }
    fn counted(&self) -> Counted {
        self.inner.counted()
    }
    fn link(&self) -> Link {
        self.inner.link()
    }
    fn limit(&self, bytes_per_s: Option<u64>, by: LimitBy) -> bool {
        self.inner.limit(bytes_per_s, by)
    }
    fn tell(&self, news: News<'_>) {
        match news {
            News::Listener(_) | News::Room(_) => self.inner.tell(news),
            News::Doubtful(ids) => {
                let ids: Vec<SampleId> = ids.iter().filter_map(|&id| self.inner(id)).collect();
                self.inner.tell(News::Doubtful(&ids));
            }
            News::Importances(run, importances) => {
                let mut inner = vec![f32::NAN; self.inner.len()];
                for (&id, &importance) in self.ids.iter().zip(importances) {
                    if let Some(place) = inner.get_mut(id as usize) {
                        *place = importance;
                    }
                }
                self.inner.tell(News::Importances(run, &inner));
            }
        }
    }
    fn is_near(&self, id: SampleId) -> bool {
        self.inner(id).is_some_and(|id| self.inner.is_near(id))
    }
    fn along(&self, ids: &[SampleId], first: usize, request_bytes: u64) -> Vec<usize> {
        // All or none are in range: whoever asks has them from an order.
        let inner: Option<Vec<SampleId>> = ids.iter().map(|&id| self.inner(id)).collect();
        inner.map_or(Vec::new(), |inner| self.inner.along(&inner, first, request_bytes))
    }
    fn plan(&self, ids: &[SampleId], call: Ask) -> Option<Plan> {
        let inner: Option<Vec<SampleId>> = ids.iter().map(|&id| self.inner(id)).collect();
        self.inner.plan(&inner?, call)
    }
    fn fetch_by(
        &self,
        request_bytes: u64,
        stopped: &dyn Fn() -> bool,
        ids: &[SampleId],
        sink: &mut dyn FnMut(usize, Result<Payload<'_>>) -> ControlFlow<()>,
    ) -> Traffic {
        let (mut places, mut inner) = (Vec::with_capacity(ids.len()), Vec::with_capacity(ids.len()));
        for (k, &id) in ids.iter().enumerate() {
            if let Some(id) = self.inner(id) {
                places.push(k);
                inner.push(id);
            } else if sink(k, Err(Error::internal(format!("id {id} is not one of {} samples", self.ids.len()))))
                .is_break()
            {
                return Traffic::default();
            }
        }
        self.inner.fetch_by(request_bytes, stopped, &inner, &mut |k, answer| sink(places[k], answer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Arrays;
    use crate::types::{Dtype, TensorSpec};

    fn rows(count: u32) -> Arc<dyn Source> {
        let data: Vec<u8> = (0..count).flat_map(u32::to_ne_bytes).collect();
        let target: Vec<u8> = (0..count).flat_map(|id| i64::from(id).to_ne_bytes()).collect();
        let spec = TensorSpec::new(Dtype::U8, [4]);
        Arc::new(Arrays::new(data, spec, target, TensorSpec::class_index(), count as usize).unwrap())
    }

    fn read(source: &dyn Source, ids: &[SampleId]) -> Vec<std::result::Result<u32, String>> {
        let mut found = vec![Err("no answer".to_owned()); ids.len()];
        source.fetch(ids, &mut |k, answer| {
            found[k] = answer
                .map(|payload| u32::from_ne_bytes(payload.data.try_into().unwrap()))
                .map_err(|error| error.to_string());
            ControlFlow::Continue(())
        });
        found
    }

    #[test]
    fn its_samples_are_those_named_in_their_order() {
        let subset = Subset::new(rows(50), vec![40, 3, 7]).unwrap();
        assert_eq!(read(&subset, &[2, 0, 1]), [Ok(7), Ok(40), Ok(3)]);
        assert_eq!((subset.facts.samples, subset.name(0), subset.facts.in_memory), (3, rows(50).name(40), true));
        let answers = read(&subset, &[1, 3]);
        assert!(answers[0] == Ok(3) && answers[1].as_ref().unwrap_err().contains("id 3 is not one of 3"));
        // A subset of a subset counts in the inner one's ids.
        let inner = Subset::new(Arc::new(subset), vec![2]).unwrap();
        assert_eq!(read(&inner, &[0]), [Ok(7)]);
    }

    #[test]
    fn a_split_has_every_sample_once_and_its_seed_is_its_choice() {
        let split = |seed| Subset::split(rows(100), 80, seed).unwrap();
        let (most, rest) = split(5);
        let all: HashSet<SampleId> = most.ids.iter().chain(rest.ids.iter()).copied().collect();
        assert_eq!((most.ids.len(), rest.ids.len(), all.len()), (80, 20, 100));
        assert!(most.ids.is_sorted() && rest.ids.is_sorted());
        assert_eq!(most.digest(), split(5).0.digest());
        assert_ne!(most.digest(), split(6).0.digest());
        for first in [0, 100, 101] {
            assert!(Subset::split(rows(100), first, 5).err().unwrap().to_string().contains("at least one"));
        }
    }

    #[test]
    fn another_choice_is_another_dataset() {
        let digest = |ids: Vec<SampleId>| Subset::new(rows(9), ids).unwrap().digest();
        assert_eq!(digest(vec![1, 2]), digest(vec![1, 2]));
        assert!(digest(vec![1, 2]) != digest(vec![2, 1]) && digest(vec![1, 2]) != digest(vec![1, 2, 3]));
        assert_ne!(digest((0..9).collect()), rows(9).digest());
    }

    #[test]
    fn what_is_no_choice_is_refused_with_the_id() {
        for (ids, says) in [(vec![], "no samples"), (vec![9], "id 9 is not one of 9"), (vec![2, 2], "id 2 comes twice")]
        {
            let error = Subset::new(rows(9), ids).err().unwrap();
            assert!(error.to_string().contains(says), "{error}");
        }
    }
}
