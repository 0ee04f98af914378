//! Every wrapper answers every question as the source that it wraps would, and passes on whatever is done to it.
//!
//! The wrapped source answers nothing as a default would, so that a method that a wrapper forgets shows. That none is
//! forgotten when the trait gets another one, clippy sees to: the wrappers and the source here may leave none out.

use std::ops::ControlFlow::{self, Continue};
use std::sync::Arc;
use std::time::Duration;

use lossfeed_disk::Numbers;
use lossfeed_node::Numbers as NodeNumbers;
use lossfeed_sync::Mutex;

use crate::error::Result;
use crate::tune::circuit::{Outcome, State};
use crate::tune::fetch_plan::{Ask, Plan};
use crate::types::Dtype;
use crate::types::{SampleId, TensorSpec};
use crate::wrap::tier::{Tier, TierNumbers};
use crate::wrap::tiered::Tiered;
use crate::*;

/// Answers by its number and the sample's, and notes what it is told.
struct Odd {
    number: u64,
    facts: Facts,
    labels: Vec<i64>,
    heard: Mutex<Vec<String>>,
}

const SAMPLES: u32 = 5;

impl Odd {
    fn new(number: u64) -> Arc<Self> {
        let named = |name: &str, kind| Piece { name: format!("{name}{number}"), kind };
        Arc::new(Self {
            number,
            facts: Facts {
                samples: SAMPLES as usize,
                description: format!("odd {number}"),
                form: Form::Images { tailed: true },
                target: TensorSpec::new(Dtype::I64, [1]),
                pieces: vec![named("picture", PieceKind::Picture), named("text", PieceKind::Text)],
                classes: vec!["a".to_owned()],
                sized: false,
                in_memory: true,
                in_turn: true,
                remote: true,
                retry_timeout: Duration::from_secs(number),
            },
            labels: (0..SAMPLES).map(|id| number as i64 * 10 + i64::from(id)).collect(),
            heard: Mutex::default(),
        })
    }

    fn hears(&self, what: impl Into<String>) {
        self.heard.lock().push(what.into());
    }

    fn heard(&self) -> Vec<String> {
        std::mem::take(&mut self.heard.lock())
    }

    /// What is asked about sample `id` is about this one's.
    fn of(&self, id: SampleId) -> u64 {
        self.number * 100 + u64::from(id) + 1
    }
}

#[deny(clippy::missing_trait_methods)]
impl Source for Odd {
    fn facts(&self) -> &Facts {
        &self.facts
    }
    fn name(&self, id: SampleId) -> String {
        if id < SAMPLES { format!("{} of {}", id, self.number) } else { String::new() }
    }
    fn size(&self, id: SampleId) -> Size {
        if id < SAMPLES {
            Size { payload: 8, tail: self.of(id), expected: Some(1000 + self.of(id)) }
        } else {
            Size::default()
        }
    }
    fn labels(&self) -> Option<&[i64]> {
        Some(&self.labels)
    }
    fn remember(&self, id: SampleId, payload_bytes: u32, tail_bytes: u32) {
        self.hears(format!("remember {id} {payload_bytes} {tail_bytes}"));
    }
    /// None: a concatenation would take it apart.
    fn parts(&self) -> Option<&[Arc<dyn Source>]> {
        None
    }
    fn digest(&self) -> String {
        format!("digest {}", self.number)
    }
    fn proof(&self, id: SampleId) -> Option<[u8; 16]> {
        (id < SAMPLES).then(|| u128::from(self.of(id)).to_le_bytes())
    }
    fn counted(&self) -> Counted {
        let circuit = CircuitNumbers { state: State::Open, opened: self.number, why: 2, skipped: 3 };
        Counted {
            disk: Some((Numbers { hits: self.number, misses: 7, ..Numbers::default() }, circuit)),
            pool: Some((PoolNumbers { hits: self.number, misses: 7, ..PoolNumbers::default() }, circuit)),
            node: Some((NodeNumbers { hits: self.number, misses: 7, ..NodeNumbers::default() }, circuit)),
            answers: Some((self.number, 10 * self.number)),
        }
    }
    fn link(&self) -> Link {
        Link { requests_ahead: 10 + self.number as usize, request_bytes: 1000 * self.number }
    }
    fn limit(&self, bytes_per_s: Option<u64>, by: LimitBy) -> bool {
        self.hears(format!("limit {bytes_per_s:?} {by:?}"));
        true
    }
    fn tell(&self, news: News<'_>) {
        match news {
            News::Doubtful(ids) => ids.iter().for_each(|id| self.hears(format!("doubtful {id}"))),
            News::Importances(run, importances) => self.hears(format!("importances {run} {importances:?}")),
            News::Room(bytes) => self.hears(format!("room {bytes}")),
            News::Listener(decisions) => self.hears(format!("listener {:p}", Arc::as_ptr(decisions))),
        }
    }
    fn fetch_by(
        &self,
        request_bytes: u64,
        stopped: &dyn Fn() -> bool,
        ids: &[SampleId],
        sink: &mut dyn FnMut(usize, Result<Payload<'_>>) -> ControlFlow<()>,
    ) -> Traffic {
        self.hears(format!("fetch_by {request_bytes} {} {ids:?}", stopped()));
        let _ = ids.iter().enumerate().try_for_each(|(k, &id)| {
            sink(k, Ok(Payload::new(&self.of(id).to_le_bytes(), bytemuck::bytes_of(&self.labels[id as usize]))))
        });
        Traffic { requests: self.number, vain_bytes: 1, repeated_samples: 2, repeated_bytes: 3 }
    }
    fn is_near(&self, id: SampleId) -> bool {
        id < SAMPLES && self.of(id) % 2 == 1
    }
    fn plan(&self, ids: &[SampleId], call: Ask) -> Option<Plan> {
        self.hears(format!("plan {ids:?} {call:?}"));
        Some(Plan { samples: (0..ids.len()).collect(), beside_bytes: self.number, by_ranges: true })
    }
    /// Everybody comes along.
    fn along(&self, ids: &[SampleId], first: usize, request_bytes: u64) -> Vec<usize> {
        self.hears(format!("along {ids:?} {first} {request_bytes}"));
        (first..ids.len()).collect()
    }
}

/// A tier that has nothing.
struct Empty(TierNumbers);

impl Tier for Empty {
    type Flight = ();
    fn name(&self) -> &'static str {
        "nothing"
    }
    fn counted(&self) -> TierNumbers {
        self.0
    }
    fn has(&self, _: SampleId) -> bool {
        false
    }
    fn read(
        &self,
        _: &[SampleId],
        _: &dyn Fn(usize) -> Duration,
        _: &dyn Fn() -> bool,
        _: &mut dyn FnMut(usize, &[u8]) -> ControlFlow<()>,
    ) -> Outcome {
        Outcome::default()
    }
    fn offer(&self, _: Option<&mut ()>, _: SampleId, _: Duration, _: &[u8]) {}
    fn forget(&self, _: &[SampleId]) {}
}

/// Where each sample of a wrapper is from.
type Places = [(Arc<Odd>, SampleId)];

fn read(source: &dyn Source, ids: &[SampleId], by: Option<u64>) -> (Vec<(u64, i64)>, Traffic) {
    let mut found = vec![(0, 0); ids.len()];
    let mut sink = |k: usize, answer: Result<Payload<'_>>| {
        let answer = answer.unwrap();
        let (data, target) = (answer.data.try_into().unwrap(), answer.target.try_into().unwrap());
        found[k] = (u64::from_le_bytes(data), i64::from_ne_bytes(target));
        Continue(())
    };
    let traffic = match by {
        Some(request_bytes) => source.fetch_by(request_bytes, &|| false, ids, &mut sink),
        None => {
            source.fetch(ids, &mut sink);
            Traffic::default()
        }
    };
    (found, traffic)
}

/// What was heard by each of the sources that are wrapped, in their order.
fn heard(wrapped: &[Arc<Odd>]) -> Vec<Vec<String>> {
    wrapped.iter().map(|odd| odd.heard()).collect()
}

/// All questions about samples, and everything that is done to one or to several.
fn answers_as_what_it_wraps(wrapper: &dyn Source, places: &Places, wrapped: &[Arc<Odd>]) {
    heard(wrapped);
    let first = &wrapped[0];
    let facts = wrapper.facts();
    assert!(facts.description.contains("odd 1"), "{}", facts.description);
    let expected = Facts {
        samples: places.len(),
        description: facts.description.clone(),
        retry_timeout: wrapped.iter().map(|odd| odd.facts.retry_timeout).max().unwrap(),
        ..first.facts.clone()
    };
    assert_eq!(*facts, expected);
    assert_eq!(wrapper.counted().answers, wrapped.iter().filter_map(|odd| odd.counted().answers).max());
    let labels: Vec<i64> = places.iter().map(|(odd, id)| odd.labels[*id as usize]).collect();
    assert_eq!(wrapper.labels(), Some(&labels[..]));
    for (id, (odd, inner)) in (0..).zip(places) {
        let (id, inner) = (id as SampleId, *inner);
        assert_eq!(wrapper.size(id), odd.size(inner));
        assert_eq!(wrapper.name(id), odd.name(inner));
        assert_eq!(wrapper.proof(id), odd.proof(inner));
        assert_eq!(wrapper.is_near(id), odd.is_near(inner));
        wrapper.remember(id, 9, 4);
        wrapper.tell(News::Doubtful(&[id]));
        // A picture of 3 bytes, a tail of 2, and the picture's length.
        wrapper.delivered(id, &[&[1; 5][..], &3u64.to_ne_bytes()].concat());
        let heard = ["remember {} 9 4", "doubtful {}", "remember {} 13 2"];
        let heard = heard.map(|words| words.replace("{}", &inner.to_string()));
        assert_eq!(odd.heard(), heard, "{id}");
    }
    let none = places.len() as SampleId;
    assert_eq!((wrapper.size(none), wrapper.name(none), wrapper.proof(none)), (Size::default(), String::new(), None));
    // Several at once, in an order that is not theirs.
    let ids: Vec<SampleId> = (0..none).rev().collect();
    let share = |odd: &Arc<Odd>| -> Vec<SampleId> {
        let here = ids.iter().map(|&id| &places[id as usize]);
        here.filter(|(of, _)| Arc::ptr_eq(of, odd)).map(|(_, id)| *id).collect()
    };
    let each = |what: &dyn Fn(&Arc<Odd>) -> Vec<String>| -> Vec<Vec<String>> { wrapped.iter().map(what).collect() };
    let expected: Vec<(u64, i64)> = ids
        .iter()
        .map(|&id| &places[id as usize])
        .map(|(odd, inner)| (odd.of(*inner), odd.labels[*inner as usize]))
        .collect();
    let (came, traffic) = read(wrapper, &ids, Some(99));
    assert_eq!(came, expected);
    assert_eq!(heard(wrapped), each(&|odd| vec![format!("fetch_by 99 false {:?}", share(odd))]));
    let mut sum = Traffic::default();
    wrapped.iter().for_each(|odd| {
        sum += Traffic { requests: odd.number, vain_bytes: 1, repeated_samples: 2, repeated_bytes: 3 };
    });
    assert_eq!(traffic, sum);
    assert_eq!(read(wrapper, &ids, None).0, expected);
    heard(wrapped);
    // Everybody behind the first two comes along; which of them are the first is counted for each.
    assert_eq!(wrapper.along(&ids, 2, 55), (2..ids.len()).collect::<Vec<_>>());
    let before = |odd: &Arc<Odd>| ids[..2].iter().filter(|id| Arc::ptr_eq(&places[**id as usize].0, odd)).count();
    assert_eq!(heard(wrapped), each(&|odd| vec![format!("along {:?} {} 55", share(odd), before(odd))]));
    let importances: Vec<f32> = (0..places.len()).map(|k| k as f32).collect();
    wrapper.tell(News::Importances("run", &importances));
    let rated = |odd: &Arc<Odd>| -> Vec<f32> {
        let of = |id| places.iter().position(|(of, inner)| Arc::ptr_eq(of, odd) && *inner == id);
        (0..SAMPLES).map(|id| of(id).map_or(f32::NAN, |k| k as f32)).collect()
    };
    assert_eq!(heard(wrapped), each(&|odd| vec![format!("importances run {:?}", rated(odd))]));
    let asked = wrapped.iter().filter(|odd| !share(odd).is_empty()).count() as u64;
    let call = Ask { first: 1, urgent: 2, free_bytes: 600, range_bytes: 8 };
    let beside_bytes = wrapped.iter().filter(|odd| !share(odd).is_empty()).map(|odd| odd.number).sum();
    let all = Plan { samples: (0..ids.len()).collect(), beside_bytes, by_ranges: true };
    assert_eq!(wrapper.plan(&ids, call), Some(all));
    let first = |odd: &Arc<Odd>| ids[..1].iter().filter(|id| Arc::ptr_eq(&places[**id as usize].0, odd)).count();
    let of = |odd: &Arc<Odd>| Ask { first: first(odd), urgent: before(odd), free_bytes: 600 / asked, ..call };
    assert_eq!(heard(wrapped), each(&|odd| vec![format!("plan {:?} {:?}", share(odd), of(odd))]));
    wrapper.tell(News::Room(77));
    assert_eq!(heard(wrapped), each(&|_| vec![String::from("room 77")]));
    let decisions = Arc::new(Decisions::default());
    wrapper.tell(News::Listener(&decisions));
    assert_eq!(heard(wrapped), each(&|_| vec![format!("listener {:p}", Arc::as_ptr(&decisions))]));
}

#[test]
fn a_subset_answers_as_what_it_wraps() {
    let odd = Odd::new(1);
    let subset = Subset::new(odd.clone(), vec![3, 0, 4]).unwrap();
    let places = [3, 0, 4].map(|id| (Arc::clone(&odd), id));
    answers_as_what_it_wraps(&subset, &places, &[Arc::clone(&odd)]);
    assert!(subset.limit(Some(5), LimitBy::Outside) && odd.heard() == ["limit Some(5) Outside"]);
    assert_eq!((subset.link(), subset.counted()), (odd.link(), odd.counted()));
    assert!(subset.parts().is_none());
    let digest = |number, ids| Subset::new(Odd::new(number), ids).unwrap().digest();
    assert_eq!(digest(1, vec![3, 0, 4]), subset.digest());
    assert_ne!(digest(2, vec![3, 0, 4]), subset.digest());
}

#[test]
fn a_concatenation_answers_as_what_it_wraps() {
    let (one, two) = (Odd::new(1), Odd::new(2));
    let concat = Concat::new(vec![one.clone(), two.clone()]).unwrap();
    let of = |odd: &Arc<Odd>| (0..SAMPLES).map(|id| (Arc::clone(odd), id)).collect::<Vec<_>>();
    answers_as_what_it_wraps(&concat, &[of(&one), of(&two)].concat(), &[one.clone(), two.clone()]);
    // Of several stores each has a limit of its own.
    assert!(!concat.limit(Some(5), LimitBy::User) && one.heard().is_empty() && two.heard().is_empty());
    assert_eq!(concat.link(), Link { requests_ahead: 11 + 12, request_bytes: 1500 }, "of parts of one length");
    assert_eq!(concat.parts().unwrap().len(), 2);
    let circuit = CircuitNumbers { state: State::Open, opened: 3, why: 2, skipped: 6 };
    let counted = concat.counted();
    assert_eq!(counted.disk, Some((Numbers { hits: 3, misses: 14, ..Numbers::default() }, circuit)));
    assert_eq!(counted.pool, Some((PoolNumbers { hits: 3, misses: 14, ..PoolNumbers::default() }, circuit)));
    assert_eq!(counted.node, Some((NodeNumbers { hits: 3, misses: 14, ..NodeNumbers::default() }, circuit)));
    let digest = |a, b| Concat::new(vec![Odd::new(a), Odd::new(b)]).unwrap().digest();
    assert!(digest(1, 2) == concat.digest() && digest(1, 3) != concat.digest());
}

#[test]
fn a_source_with_a_tier_answers_as_what_it_wraps() {
    let odd = Odd::new(1);
    let tiered = Tiered::new(odd.clone(), Empty(TierNumbers::Disk(Numbers::default())), None);
    let places: Vec<_> = (0..SAMPLES).map(|id| (Arc::clone(&odd), id)).collect();
    answers_as_what_it_wraps(&tiered, &places, &[Arc::clone(&odd)]);
    assert!(tiered.limit(None, LimitBy::User) && odd.heard() == ["limit None User"]);
    assert_eq!((tiered.link(), tiered.digest(), tiered.facts()), (odd.link(), odd.digest(), odd.facts()));
    assert!(tiered.parts().is_none());
    // The tier's own counts, and those of the tiers before the same source.
    let hits = |counted: Counted| {
        let disk = counted.disk.map(|(disk, circuit)| (disk.hits, circuit.state));
        let pool = counted.pool.map(|(pool, circuit)| (pool.hits, circuit.state));
        [disk, pool, counted.node.map(|(node, circuit)| (node.hits, circuit.state))]
    };
    let tiers = [
        TierNumbers::Disk(Numbers { hits: 40, ..Numbers::default() }),
        TierNumbers::Pool(PoolNumbers { hits: 40, ..PoolNumbers::default() }),
        TierNumbers::Node(NodeNumbers { hits: 40, ..NodeNumbers::default() }),
    ];
    for (at, tier) in tiers.into_iter().enumerate() {
        let counted = Tiered::new(odd.clone(), Empty(tier), None).counted();
        let mut expected = [Some((1, State::Open)); 3];
        expected[at] = Some((40, State::Closed));
        assert_eq!((hits(counted), counted.answers), (expected, odd.counted().answers));
    }
}

/// The loader plans by these.
#[test]
fn a_concatenation_is_what_all_parts_are_and_remote_if_one_is() {
    for near in [[true, true], [true, false], [false, true], [false, false]] {
        let parts = near.map(|near| -> Arc<dyn Source> {
            let mut odd = Arc::into_inner(Odd::new(1)).unwrap();
            odd.facts = Facts { sized: near, in_memory: near, in_turn: near, remote: !near, ..odd.facts };
            Arc::new(odd)
        });
        let all = near[0] && near[1];
        let concat = Concat::new(parts.into()).unwrap();
        let Facts { sized, in_memory, in_turn, remote, .. } = *concat.facts();
        assert_eq!([sized, in_memory, in_turn, !remote], [all; 4], "{near:?}");
    }
}

#[test]
fn parts_whose_tails_hold_other_things_are_refused() {
    let other = |kinds: &[PieceKind]| -> Arc<dyn Source> {
        let mut odd = Arc::into_inner(Odd::new(2)).unwrap();
        odd.facts.pieces = kinds.iter().map(|&kind| Piece { name: "x".to_owned(), kind }).collect();
        Arc::new(odd)
    };
    let concat = |kinds: &[PieceKind]| Concat::new(vec![Odd::new(1), other(kinds)]).err().map(|e| e.to_string());
    // Names do not matter, nor what lies in no tail.
    assert_eq!(concat(&[PieceKind::Text]), None);
    assert_eq!(concat(&[PieceKind::Label, PieceKind::Text, PieceKind::Picture]), None);
    for (kinds, told) in [
        (&[PieceKind::Json][..], "[json]"),
        (&[PieceKind::Text, PieceKind::Text], "[text, text]"),
        (&[PieceKind::Numbers(Dtype::F32)], "[float32 numbers]"),
        (&[], "[]"),
    ] {
        let error = concat(kinds).unwrap();
        assert!(error.contains("part 1") && error.contains(told) && error.contains("part 0 [text]"), "{error}");
    }
}
