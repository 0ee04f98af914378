//! Several sources one after the other, as one.

use std::ops::ControlFlow;
use std::sync::Arc;

use lossfeed_disk::Numbers;
use lossfeed_node::Numbers as NodeNumbers;

use crate::error::{Error, Result};
use crate::sample::{
    Counted, Facts, Fingerprint, Form, LimitBy, Link, News, Payload, PieceKind, Size, Source, Traffic,
};
use crate::tune::fetch_plan::{Ask, Plan};
use crate::types::{MAX_SAMPLES, SampleId, TensorSpec};

/// The samples of the first source, then those of the second, and so on. A batch that has samples of several is read
/// from one after the other.
pub struct Concat {
    parts: Vec<Arc<dyn Source>>,
    /// The end of each part.
    ends: Vec<usize>,
    facts: Facts,
    labels: Option<Vec<i64>>,
}

impl Concat {
    /// `parts` one after the other. Those that are concatenations themselves are taken apart: (a, b), c is a, b, c.
    ///
    /// # Errors
    /// `Settings` if there is no part, if samples or targets are of several kinds, if labels mean several classes, or
    /// if there are more samples than ids.
    pub fn new(parts: Vec<Arc<dyn Source>>) -> Result<Self> {
        let parts: Vec<Arc<dyn Source>> = parts
            .into_iter()
            .flat_map(|part| part.parts().map(<[_]>::to_vec).unwrap_or_else(|| vec![Arc::clone(&part)]))
            .collect();
        let Some((first, others)) = parts.split_first() else {
            return Err(Error::settings("nothing to concatenate: give at least one dataset"));
        };
        for (number, part) in others.iter().enumerate() {
            let number = number + 1;
            if (part.form(), part.target_spec()) != (first.form(), first.target_spec()) {
                return Err(Error::settings(format!(
                    "part {number} holds {} and part 0 {}: only datasets of one kind can follow each other",
                    kind(&**part),
                    kind(&**first)
                )));
            }
            if !tail(&**part).eq(tail(&**first)) {
                return Err(Error::settings(format!(
                    "part {number} has the fields {} and part 0 {}: open all parts with the same fields=",
                    said(&**part),
                    said(&**first)
                )));
            }
            if part.classes() != first.classes() {
                return Err(Error::settings(format!(
                    "part {number} has the classes {:?} and part 0 {:?}: a label would mean two things",
                    part.classes(),
                    first.classes()
                )));
            }
        }
        let mut end = 0usize;
        let ends: Vec<usize> = parts
            .iter()
            .map(|part| {
                end = end.saturating_add(part.len());
                end
            })
            .collect();
        if end > MAX_SAMPLES {
            return Err(Error::settings(format!("{end} samples are more than ids can name ({MAX_SAMPLES})")));
        }
        let labels: Option<Vec<&[i64]>> = parts.iter().map(|part| part.labels()).collect();
        let labels = labels.map(|labels| labels.concat());
        let each = || parts.iter().map(|part| part.facts());
        // What the parts are called is as in the first.
        let facts = Facts {
            samples: end,
            description: each().map(|facts| facts.description.as_str()).collect::<Vec<_>>().join(" + "),
            sized: each().all(|facts| facts.sized),
            in_memory: each().all(|facts| facts.in_memory),
            in_turn: each().all(|facts| facts.in_turn),
            remote: each().any(|facts| facts.remote),
            retry_timeout: each().map(|facts| facts.retry_timeout).max().unwrap_or_default(),
            ..first.facts().clone()
        };
        Ok(Self { parts, ends, facts, labels })
    }

    /// The part that has sample `id`, and what the sample is called there.
    fn place(&self, id: SampleId) -> Option<(usize, SampleId)> {
        let part = self.ends.partition_point(|&end| end <= id as usize);
        let start = part.checked_sub(1).map_or(0, |before| self.ends[before]);
        (part < self.parts.len()).then(|| (part, (id as usize - start) as SampleId))
    }

    fn of<T>(&self, id: SampleId, ask: impl Fn(&dyn Source, SampleId) -> T) -> Option<T> {
        self.place(id).map(|(part, id)| ask(&*self.parts[part], id))
    }
}

/// Of two that may be there, `join` of both.
fn both<T>(a: Option<T>, b: Option<T>, join: impl Fn(T, T) -> T) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(join(a, b)),
        (a, b) => a.or(b),
    }
}

fn of_disks(a: Numbers, b: Numbers) -> Numbers {
    Numbers {
        hits: a.hits + b.hits,
        hit_bytes: a.hit_bytes + b.hit_bytes,
        misses: a.misses + b.misses,
        damaged: a.damaged + b.damaged,
        failed: a.failed + b.failed,
        late: a.late + b.late,
        written: a.written + b.written,
        written_bytes: a.written_bytes + b.written_bytes,
        dropped: a.dropped + b.dropped,
        declined: a.declined + b.declined,
        evicted_segments: a.evicted_segments + b.evicted_segments,
        bytes: a.bytes.max(b.bytes),
    }
}

fn of_nodes(a: NodeNumbers, b: NodeNumbers) -> NodeNumbers {
    NodeNumbers {
        hits: a.hits + b.hits,
        hit_bytes: a.hit_bytes + b.hit_bytes,
        misses: a.misses + b.misses,
        damaged: a.damaged + b.damaged,
        failed: a.failed + b.failed,
        offered: a.offered + b.offered,
        dropped: a.dropped + b.dropped,
        owners: a.owners + b.owners,
        bytes: a.bytes.max(b.bytes),
    }
}

/// What lies in the tail of each sample. What the parts are called may differ from source to source.
fn tail(source: &dyn Source) -> impl Iterator<Item = PieceKind> {
    source.pieces().iter().map(|piece| piece.kind).filter(|kind| kind.in_tail())
}

fn said(source: &dyn Source) -> String {
    let each: Vec<String> =
        tail(source).map(|kind| format!("{} {}", kind.dtype().map_or("", |dtype| dtype.name()), kind.name())).collect();
    format!("[{}]", each.iter().map(|kind| kind.trim()).collect::<Vec<_>>().join(", "))
}

fn kind(source: &dyn Source) -> String {
    let words = |spec: &TensorSpec| format!("{} {:?}", spec.dtype.name(), spec.shape);
    let samples = match source.form() {
        Form::Images { tailed } => format!("encoded images{}", if *tailed { " and what differs in size" } else { "" }),
        Form::Rows(spec) => words(spec),
        Form::Fields(fields) => {
            let each: Vec<String> = fields.each().iter().map(words).collect();
            format!("rows of {}{}", each.join(", "), if fields.tailed() { " and what differs in size" } else { "" })
        }
    };
    format!("{samples} with targets {}", words(source.target_spec()))
}

#[deny(clippy::missing_trait_methods)] // what is left out falls back to a default, silently
impl Source for Concat {
    fn facts(&self) -> &Facts {
        &self.facts
    }
    fn name(&self, id: SampleId) -> String {
        self.of(id, |part, id| part.name(id)).unwrap_or_default()
    }
    fn size(&self, id: SampleId) -> Size {
        self.of(id, |part, id| part.size(id)).unwrap_or_default()
    }
    fn labels(&self) -> Option<&[i64]> {
        self.labels.as_deref()
    }
    fn remember(&self, id: SampleId, payload_bytes: u32, tail_bytes: u32) {
        self.of(id, |part, id| part.remember(id, payload_bytes, tail_bytes));
    }
    fn parts(&self) -> Option<&[Arc<dyn Source>]> {
        Some(&self.parts)
    }
    fn digest(&self) -> String {
        let mut digest = Fingerprint::of(&self.facts);
        self.parts.iter().for_each(|part| digest.add(part.digest().as_bytes()));
        digest.finish()
    }
    fn proof(&self, id: SampleId) -> Option<[u8; 16]> {
        self.of(id, |part, id| part.proof(id)).flatten()
    }
    /// Summed over the parts. Parts that share a folder or a node cache show its bytes once each: the largest is told.
    /// Answers are those of the slowest part.
    fn counted(&self) -> Counted {
        let mut all = Counted::default();
        for part in self.parts.iter().map(|part| part.counted()) {
            all.disk = both(all.disk, part.disk, |a, b| (of_disks(a.0, b.0), a.1 + b.1));
            all.pool = both(all.pool, part.pool, |a, b| (a.0 + b.0, a.1 + b.1));
            all.node = both(all.node, part.node, |a, b| (of_nodes(a.0, b.0), a.1 + b.1));
            all.answers = both(all.answers, part.answers, |a, b| if b.1 >= a.1 { b } else { a });
        }
        all
    }
    /// What a request costs is weighed by the samples of each part.
    fn link(&self) -> Link {
        let links: Vec<(Link, usize)> = self.parts.iter().map(|part| (part.link(), part.len())).collect();
        let all: u128 = links.iter().map(|(link, samples)| u128::from(link.request_bytes) * *samples as u128).sum();
        Link {
            requests_ahead: links.iter().map(|(link, _)| link.requests_ahead).sum(),
            request_bytes: u64::try_from(all / self.facts.samples.max(1) as u128).unwrap_or(u64::MAX),
        }
    }
    /// Of several stores each has a limit of its own.
    fn limit(&self, _: Option<u64>, _: LimitBy) -> bool {
        false
    }
    fn tell(&self, news: News<'_>) {
        match news {
            News::Listener(_) | News::Room(_) => self.parts.iter().for_each(|part| part.tell(news)),
            News::Doubtful(ids) => {
                for &id in ids {
                    self.of(id, |part, id| part.tell(News::Doubtful(&[id])));
                }
            }
            News::Importances(run, importances) => {
                let mut rest = importances;
                for part in &self.parts {
                    let (own, more) = rest.split_at_checked(part.len()).unwrap_or((rest, &[]));
                    part.tell(News::Importances(run, own));
                    rest = more;
                }
            }
        }
    }
    fn fetch_by(
        &self,
        request_bytes: u64,
        stopped: &dyn Fn() -> bool,
        ids: &[SampleId],
        sink: &mut dyn FnMut(usize, Result<Payload<'_>>) -> ControlFlow<()>,
    ) -> Traffic {
        let mut traffic = Traffic::default();
        let mut shares: Vec<(Vec<usize>, Vec<SampleId>)> = vec![Default::default(); self.parts.len()];
        for (k, &id) in ids.iter().enumerate() {
            if let Some((part, inner)) = self.place(id) {
                shares[part].0.push(k);
                shares[part].1.push(inner);
            } else if sink(k, Err(Error::internal(format!("id {id} is not one of {} samples", self.facts.samples))))
                .is_break()
            {
                return traffic;
            }
        }
        for (part, (places, inner)) in self.parts.iter().zip(shares).filter(|(_, (places, _))| !places.is_empty()) {
            let mut flow = ControlFlow::Continue(());
            if !stopped() {
                traffic += part.fetch_by(request_bytes, stopped, &inner, &mut |k, answer| {
                    flow = sink(places[k], answer);
                    flow
                });
            }
            if flow.is_break() {
                break;
            }
        }
        traffic
    }
    fn is_near(&self, id: SampleId) -> bool {
        self.of(id, |part, id| part.is_near(id)).unwrap_or(false)
    }
    fn along(&self, ids: &[SampleId], first: usize, request_bytes: u64) -> Vec<usize> {
        let mut along = Vec::new();
        for number in 0..self.parts.len() {
            let here = |&k: &usize| self.place(ids[k]).is_some_and(|(part, _)| part == number);
            let places: Vec<usize> = (0..ids.len()).filter(here).collect();
            let inner: Vec<SampleId> = places.iter().filter_map(|&k| self.place(ids[k])).map(|(_, id)| id).collect();
            let inner_first = places.partition_point(|&k| k < first);
            let with = self.parts[number].along(&inner, inner_first, request_bytes);
            along.extend(with.into_iter().filter_map(|at| places.get(at).copied()));
        }
        along.sort_unstable();
        along
    }
    /// If there is one for every part, and all are of one kind. Parts share the room.
    fn plan(&self, ids: &[SampleId], call: Ask) -> Option<Plan> {
        let placed: Vec<(usize, SampleId)> = ids.iter().filter_map(|&id| self.place(id)).collect();
        let mut parts: Vec<Vec<usize>> = vec![Vec::new(); self.parts.len()];
        placed.iter().enumerate().for_each(|(k, &(part, _))| parts[part].push(k));
        let asked = parts.iter().filter(|places| !places.is_empty()).count() as u64;
        let mut all: Option<Plan> = None;
        for (part, places) in self.parts.iter().zip(&parts).filter(|(_, places)| !places.is_empty()) {
            let inner: Vec<SampleId> = places.iter().map(|&k| placed[k].1).collect();
            let before = |all: usize| places.partition_point(|&k| k < all);
            let (first, urgent) = (before(call.first), before(call.urgent));
            let mut plan = part.plan(&inner, Ask { first, urgent, free_bytes: call.free_bytes / asked, ..call })?;
            plan.samples = plan.samples.into_iter().filter_map(|at| places.get(at).copied()).collect();
            if let Some(before) = all.take() {
                if before.by_ranges != plan.by_ranges {
                    return None;
                }
                plan.samples.extend(before.samples);
                plan.beside_bytes += before.beside_bytes;
            }
            all = Some(plan);
        }
        all.iter_mut().for_each(|plan| plan.samples.sort_unstable());
        all.filter(|_| placed.len() == ids.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Arrays;
    use crate::types::Dtype;
    use crate::wrap::Subset;
    use proptest::prelude::*;

    fn rows(ids: std::ops::Range<u32>) -> Arc<dyn Source> {
        let (count, data): (_, Vec<u8>) = (ids.len(), ids.clone().flat_map(u32::to_ne_bytes).collect());
        let target: Vec<u8> = ids.flat_map(|id| i64::from(id).to_ne_bytes()).collect();
        let spec = TensorSpec::new(Dtype::U8, [4]);
        Arc::new(Arrays::new(data, spec, target, TensorSpec::class_index(), count).unwrap())
    }

    /// What was read, by position, until `most` had come.
    fn read(source: &dyn Source, ids: &[SampleId], most: usize) -> Vec<Option<u32>> {
        let (mut found, mut left) = (vec![None; ids.len()], most);
        source.fetch(ids, &mut |k, answer| {
            assert!(found[k].is_none() && left > 0, "answered once, and never after it was enough");
            left -= 1;
            found[k] = Some(answer.map_or(u32::MAX, |p| u32::from_ne_bytes(p.data.try_into().unwrap())));
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        found
    }

    proptest! {
        #[test]
        fn every_sample_is_that_of_its_part(
            sizes in prop::collection::vec(1u32..7, 1..6), ids in prop::collection::vec(0u32..45, 1..30), most in 1usize..40,
        ) {
            let mut start = 0;
            let parts = sizes.iter().map(|&size| { start += size; rows(start - size..start) }).collect();
            let concat = Concat::new(parts).unwrap();
            prop_assert_eq!((concat.facts.samples, concat.facts.in_memory), (start as usize, true));
            let naive = |id: &u32| if *id < start { *id } else { u32::MAX };
            let found = read(&concat, &ids, most);
            prop_assert_eq!(found.iter().flatten().count(), most.min(ids.len()));
            for (id, found) in ids.iter().zip(found) {
                prop_assert!(found.is_none_or(|found| found == naive(id)), "{}: {:?}", id, found);
            }
        }
    }

    #[test]
    fn parts_of_several_kinds_are_refused_and_the_order_is_in_the_digest() {
        let spec = TensorSpec::new(Dtype::U8, [8]);
        let other = Arrays::new(vec![0; 8], spec, vec![0; 8], TensorSpec::class_index(), 1).unwrap();
        let refused = |parts| Concat::new(parts).err().unwrap().to_string();
        assert!(refused(vec![rows(0..2), Arc::new(other)]).contains("part 1 holds"));
        assert!(refused(vec![]).contains("nothing to concatenate"));
        let digest = |parts: [std::ops::Range<u32>; 2]| Concat::new(parts.map(rows).into()).unwrap().digest();
        assert_eq!(digest([0..2, 2..5]), digest([0..2, 2..5]));
        assert_ne!(digest([0..2, 2..5]), digest([2..5, 0..2]));
        assert_ne!(digest([0..2, 2..5]), digest([0..3, 3..5]));
        let nested = |parts: [Arc<dyn Source>; 2]| Arc::new(Concat::new(parts.into()).unwrap()) as Arc<dyn Source>;
        let [a, b, c] = [rows(0..2), rows(2..5), rows(5..6)];
        let left = nested([nested([a.clone(), b.clone()]), c.clone()]);
        assert_eq!(left.digest(), nested([a, nested([b, c])]).digest());
        assert_eq!(left.parts().unwrap().len(), 3);
    }

    #[test]
    fn parts_of_subsets_keep_their_names_and_labels() {
        let part = |ids| Arc::new(Subset::new(rows(0..50), ids).unwrap()) as Arc<dyn Source>;
        let concat = Concat::new(vec![part(vec![7, 3]), part(vec![3])]).unwrap();
        assert_eq!(read(&concat, &[2, 0, 1], 9), [Some(3), Some(7), Some(3)]);
        assert_eq!((concat.name(0), concat.name(2)), (rows(0..50).name(7), rows(0..50).name(3)));
        assert_eq!(concat.labels(), Some(&[7, 3, 3][..]));
        assert_eq!((concat.size(1), concat.size(3), concat.name(3)), (Size::known(4), Size::default(), String::new()));
    }
}
