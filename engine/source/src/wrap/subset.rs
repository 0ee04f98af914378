//! Some samples of another source, under ids of their own.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use lossfeed_disk::Numbers;

use crate::error::{Error, Result};
use crate::random::{Purpose, generator, shuffle};
use crate::sample::{
    CircuitNumbers, Decisions, Fingerprint, Form, LimitBy, Payload, Piece, PoolNumbers, Source, Traffic,
};
use crate::tune::fetch_plan::{Ask, Plan};
use crate::types::{SampleId, TensorSpec};

/// Sample k is sample `ids[k]` of the inner source.
pub struct Subset {
    inner: Arc<dyn Source>,
    ids: Arc<[SampleId]>,
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
        Ok(Self { inner, ids: ids.into(), labels })
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

    /// Positions that are in range, with the inner source's ids; the others are answered at once.
    fn inner_ids(
        &self,
        ids: &[SampleId],
        sink: &mut dyn FnMut(usize, Result<Payload<'_>>) -> ControlFlow<()>,
    ) -> ControlFlow<(), (Vec<usize>, Vec<SampleId>)> {
        let mut found = (Vec::with_capacity(ids.len()), Vec::with_capacity(ids.len()));
        for (k, &id) in ids.iter().enumerate() {
            match self.inner(id) {
                Some(inner) => {
                    found.0.push(k);
                    found.1.push(inner);
                }
                None => sink(k, Err(Error::internal(format!("id {id} is not one of {} samples", self.ids.len()))))?,
            }
        }
        ControlFlow::Continue(found)
    }
}

#[deny(clippy::missing_trait_methods)] // what is left out falls back to a default, silently
impl Source for Subset {
    fn len(&self) -> usize {
        self.ids.len()
    }
    fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }
    fn describe(&self) -> String {
        let all = self.inner.len();
        // The whole's number is said once.
        let whole = self.inner.describe().replacen(&format!(": {all} samples"), "", 1);
        format!("{} of the {all} samples of {whole}", self.ids.len())
    }
    fn payload_bytes(&self, id: SampleId) -> u64 {
        self.inner(id).map_or(0, |id| self.inner.payload_bytes(id))
    }
    fn sized(&self) -> bool {
        self.inner.sized()
    }
    fn delivered(&self, id: SampleId, payload: &[u8]) {
        if let Some(id) = self.inner(id) {
            self.inner.delivered(id, payload);
        }
    }
    fn remember(&self, id: SampleId, payload_bytes: u32, tail_bytes: u32) {
        if let Some(id) = self.inner(id) {
            self.inner.remember(id, payload_bytes, tail_bytes);
        }
    }
    fn expected_bytes(&self, id: SampleId) -> Option<u64> {
        self.inner.expected_bytes(self.inner(id)?)
    }
    fn tail_bytes(&self, id: SampleId) -> u64 {
        self.inner(id).map_or(0, |id| self.inner.tail_bytes(id))
    }
    fn name(&self, id: SampleId) -> String {
        self.inner(id).map_or_else(String::new, |id| self.inner.name(id))
    }
    fn form(&self) -> &Form {
        self.inner.form()
    }
    fn target_spec(&self) -> &TensorSpec {
        self.inner.target_spec()
    }
    fn pieces(&self) -> &[Piece] {
        self.inner.pieces()
    }
    /// Some samples of several sources are no source after the other.
    fn parts(&self) -> Option<&[Arc<dyn Source>]> {
        None
    }
    fn classes(&self) -> &[String] {
        self.inner.classes()
    }
    fn labels(&self) -> Option<&[i64]> {
        self.labels.as_deref()
    }
    fn in_memory(&self) -> bool {
        self.inner.in_memory()
    }
    fn remote(&self) -> bool {
        self.inner.remote()
    }
    fn retry_timeout(&self) -> Duration {
        self.inner.retry_timeout()
    }
    fn in_turn(&self) -> bool {
        self.inner.in_turn()
    }
    fn proof(&self, id: SampleId) -> Option<[u8; 16]> {
        self.inner.proof(self.inner(id)?)
    }
    fn doubt(&self, ids: &[SampleId]) {
        let ids: Vec<SampleId> = ids.iter().filter_map(|&id| self.inner(id)).collect();
        self.inner.doubt(&ids);
    }
    fn disk(&self) -> Option<Numbers> {
        self.inner.disk()
    }
    fn circuit(&self) -> Option<CircuitNumbers> {
        self.inner.circuit()
    }
    fn node(&self) -> Option<(lossfeed_node::Numbers, CircuitNumbers)> {
        self.inner.node()
    }
    fn pool(&self) -> Option<(PoolNumbers, CircuitNumbers)> {
        self.inner.pool()
    }
    fn rate(&self, run: &str, importances: &[f32]) {
        let mut inner = vec![f32::NAN; self.inner.len()];
        for (&id, &importance) in self.ids.iter().zip(importances) {
            if let Some(place) = inner.get_mut(id as usize) {
                *place = importance;
            }
        }
        self.inner.rate(run, &inner);
    }
    fn tell(&self, decisions: &Arc<Decisions>) {
        self.inner.tell(decisions);
    }
    fn digest(&self) -> String {
        let mut digest = Fingerprint::new(self.len(), self.form(), self.target_spec(), self.classes());
        digest.add(self.inner.digest().as_bytes());
        self.ids.iter().for_each(|id| digest.add(&id.to_le_bytes()));
        digest.finish()
    }
    fn fetch(&self, ids: &[SampleId], sink: &mut dyn FnMut(usize, Result<Payload<'_>>) -> ControlFlow<()>) {
        if let ControlFlow::Continue((places, inner)) = self.inner_ids(ids, sink) {
            self.inner.fetch(&inner, &mut |k, answer| sink(places[k], answer));
        }
    }
    fn limit(&self, bytes_per_s: Option<u64>, by: LimitBy) -> bool {
        self.inner.limit(bytes_per_s, by)
    }
    fn answers(&self) -> Option<(u64, u64)> {
        self.inner.answers()
    }
    fn requests_ahead(&self) -> usize {
        self.inner.requests_ahead()
    }
    fn request_bytes(&self) -> u64 {
        self.inner.request_bytes()
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
        match self.inner_ids(ids, sink) {
            ControlFlow::Continue((places, inner)) => {
                self.inner.fetch_by(request_bytes, stopped, &inner, &mut |k, answer| sink(places[k], answer))
            }
            ControlFlow::Break(()) => Traffic::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Arrays;
    use crate::types::Dtype;

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
        assert_eq!((subset.len(), subset.name(0), subset.in_memory()), (3, rows(50).name(40), true));
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
        assert_eq!((most.len(), rest.len(), all.len()), (80, 20, 100));
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
