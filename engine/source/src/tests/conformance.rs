//! What every source and every tier promises, held against a naive twin: the samples as they were made.
//!
//! A new source or tier is added to the lists here or in `conformance_kinds.rs`, and is asked what the loader may
//! ask it: any samples in any order, by several threads, by somebody who stops or has had enough, and while its store
//! or its disk fails.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use lossfeed_sync::Mutex;
use proptest::prelude::*;

use crate::tests::archive;
use crate::tune::circuit::Outcome;
use crate::types::Dtype;
use crate::types::{SampleId, TensorSpec};
use crate::wrap::on_disk::OnDisk;
use crate::wrap::tier::{Tier, TierNumbers};
use crate::wrap::tiered::Tiered;
use crate::*;
use lossfeed_disk::{Numbers, ReadAt};

pub(crate) const SAMPLES: u32 = 24;
const LONG: Duration = Duration::from_secs(600);

/// The bytes of a sample. None is like another. Its target is its label, or else its id.
pub(crate) fn bytes_of(id: SampleId) -> Vec<u8> {
    (0..40 + id * 7).map(|k| (id * 31 + k * 7) as u8).collect()
}

/// One call: whether every answer is right and comes once, and as often as it may. The answers that were no errors.
pub(crate) fn ask(source: &dyn Source, ids: &[SampleId], most: usize, stopped: &dyn Fn() -> bool) -> Vec<SampleId> {
    let (mut answered, mut good) = (vec![false; ids.len()], Vec::new());
    source.fetch_by(u64::MAX, stopped, ids, &mut |k, answer| {
        assert!(!std::mem::replace(&mut answered[k], true), "position {k} was answered twice");
        assert!(answered.iter().filter(|&&answered| answered).count() <= most, "it was enough");
        let id = ids[k];
        match answer {
            Ok(payload) => {
                let wanted = bytes_of(id);
                assert!(id < SAMPLES && payload.data[..] == wanted[..payload.data.len()], "sample {id} is another");
                if !source.facts().sized {
                    assert!([SIZE_UNKNOWN, payload.data.len() as u64].contains(&source.payload_bytes(id)));
                    source.delivered(id, payload.data);
                }
                assert_eq!(payload.data.len() as u64, source.payload_bytes(id));
                let target = source.labels().map_or(i64::from(id), |labels| labels[id as usize]);
                assert_eq!(payload.target, &target.to_ne_bytes());
                good.push(id);
            }
            Err(e) => assert!(!e.to_string().is_empty()),
        }
        if answered.iter().filter(|&&answered| answered).count() == most {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    let answers = answered.iter().filter(|&&answered| answered).count();
    assert!(stopped() || answers == most.min(ids.len()), "{answers} of {}", ids.len());
    good
}

pub(crate) fn source_keeps_its_promises(source: &dyn Source) {
    // Who decides about requests tells of it.
    let decisions = Arc::new(Decisions::default());
    source.tell(News::Listener(&decisions));
    assert_eq!(source.link().requests_ahead > 0, source.facts().remote);
    assert!(
        Arc::weak_count(&decisions) > 0 || !source.facts().remote,
        "decisions are not told of {}",
        source.facts().description
    );
    let all: Vec<SampleId> = (0..SAMPLES).collect();
    let mixed: Vec<SampleId> = (0..SAMPLES).map(|k| (k * 7 + 3) % (SAMPLES + 5)).collect();
    let everything = |good: Vec<SampleId>, wanted: &[SampleId]| {
        let there = wanted.iter().filter(|&&id| id < SAMPLES).count();
        assert_eq!(good.len(), there, "{good:?} of {wanted:?}");
    };
    for round in 0..3 {
        everything(ask(source, &all, usize::MAX, &|| false), &all);
        everything(ask(source, &mixed, usize::MAX, &|| false), &mixed);
        for most in [1, 2, 9] {
            ask(source, &mixed, most, &|| false);
        }
        // Whoever stops gets no wrong answer, and none twice.
        ask(source, &all, usize::MAX, &|| true);
        let looks = AtomicUsize::new(0);
        ask(source, &all, usize::MAX, &|| looks.fetch_add(1, Relaxed) >= round);
        assert!(ask(source, &[], usize::MAX, &|| false).is_empty());
        source.tell(News::Doubtful(&all[round..]));
        for first in [0, 3, mixed.len()] {
            let along = source.along(&mixed, first, u64::MAX);
            assert!(along.is_sorted() && along.iter().all(|&k| (first..mixed.len()).contains(&k)), "{along:?}");
            assert!(along.windows(2).all(|pair| pair[0] < pair[1]), "{along:?}");
        }
    }
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let (mixed, everything) = (&mixed, &everything);
            scope.spawn(move || {
                let own: Vec<SampleId> = mixed.iter().map(|id| (id + thread) % SAMPLES).collect();
                let mut own: Vec<SampleId> =
                    own.into_iter().collect::<std::collections::BTreeSet<_>>().into_iter().collect();
                own.reverse();
                for _ in 0..5 {
                    everything(ask(source, &own, usize::MAX, &|| false), &own);
                    ask(source, &own, 3, &|| false);
                }
            });
        }
    });
}

/// All samples as files of their own below `root`, and as members of a shard.
pub(crate) fn stored(root: &Path) -> [String; 2] {
    let (folder, shard) = (root.join("folder/class"), root.join("s.tar"));
    fs::create_dir_all(&folder).unwrap();
    let names: Vec<String> = (0..SAMPLES).map(|id| format!("class/{id:04}.png")).collect();
    let samples: Vec<Vec<u8>> = (0..SAMPLES).map(bytes_of).collect();
    let members: Vec<(&str, &[u8])> = names.iter().zip(&samples).map(|(n, b)| (n.as_str(), &b[..])).collect();
    fs::write(&shard, archive(&members)).unwrap();
    for (name, bytes) in members {
        fs::write(root.join("folder").join(name), bytes).unwrap();
    }
    [root.join("folder"), shard].map(|path| path.to_str().unwrap().to_owned())
}

pub(crate) fn far() -> Option<Throttle> {
    Some(Throttle { latency: Duration::from_micros(100), bandwidth_bytes_per_s: None })
}

/// Until the disk tier has written what it was offered.
pub(crate) fn kept(source: &dyn Source) {
    let begun = Instant::now();
    while source
        .counted()
        .disk
        .is_some_and(|(disk, _)| disk.written + disk.dropped + disk.declined < u64::from(SAMPLES))
    {
        assert!(begun.elapsed() < Duration::from_secs(120), "{:?}", source.counted().disk);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn every_source_keeps_its_promises() {
    let root = tempfile::tempdir().unwrap();
    for (number, path) in stored(root.path()).into_iter().enumerate() {
        let disk =
            |name: &str| Some(DiskTier { folder: root.path().join(format!("{name}-{number}")), bytes: 64 << 20 });
        let options = |throttle, chaos, disk| OpenOptions { throttle, chaos, disk, ..OpenOptions::default() };
        let with = |throttle, chaos, disk| open(&path, &options(throttle, chaos, disk)).unwrap();
        source_keeps_its_promises(&*with(None, None, None));
        source_keeps_its_promises(&*with(far(), None, None));
        // Requests that fail on purpose take their time: one call, with a tier and without.
        for disk in [None, disk("chaos")] {
            ask(&*with(far(), Some(5), disk), &(0..SAMPLES).collect::<Vec<_>>(), usize::MAX, &|| false);
        }
        for throttle in [far(), None] {
            let source = with(throttle, None, disk("tier"));
            source_keeps_its_promises(&*source);
            kept(&*source);
            source_keeps_its_promises(&*source);
        }
        let inner = with(None, None, disk("tier"));
        let subset = Subset::new(Arc::clone(&inner), (0..SAMPLES).collect()).unwrap();
        source_keeps_its_promises(&subset);
        let part =
            |from, to| Arc::new(Subset::new(Arc::clone(&inner), (from..to).collect()).unwrap()) as Arc<dyn Source>;
        let concat = Concat::new(vec![part(0, 5), part(5, 6), part(6, SAMPLES)]).unwrap();
        source_keeps_its_promises(&concat);
    }
    let short = 40;
    let rows: Vec<u8> = (0..SAMPLES).flat_map(|id| bytes_of(id)[..short].to_vec()).collect();
    let labels: Vec<u8> = (0..SAMPLES).flat_map(|id| i64::from(id).to_ne_bytes()).collect();
    let spec = TensorSpec::new(Dtype::U8, [short]);
    let arrays = Arrays::new(rows, spec, labels, TensorSpec::class_index(), SAMPLES as usize).unwrap();
    source_keeps_its_promises(&arrays);
}

/// Files that fail, flip bits and wait, by a rule of chance.
pub(crate) struct Faulty {
    pub(crate) reads: AtomicU64,
    /// Of a hundred reads so many fail, give flipped bits, or hang for good.
    pub(crate) shares: Mutex<[u64; 3]>,
    pub(crate) gate: (Mutex<bool>, lossfeed_sync::Condvar),
}

impl Faulty {
    pub(crate) fn new(shares: [u64; 3]) -> Arc<Self> {
        Arc::new(Self { reads: AtomicU64::new(0), shares: Mutex::new(shares), gate: Default::default() })
    }
    pub(crate) fn let_go(&self) {
        *self.gate.0.lock() = true;
        self.gate.1.notify_all();
    }
}

impl ReadAt for Faulty {
    fn cached(&self, _: &File, _: &mut [u8], _: &mut [u8], _: u64) -> bool {
        false
    }
    fn whole(&self, file: &File, head: &mut [u8], data: &mut [u8], at: u64) -> io::Result<()> {
        let chance = self.reads.fetch_add(1, Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let [fails, flips, hangs] = *self.shares.lock();
        if chance % 100 < fails {
            return Err(io::Error::from_raw_os_error(5));
        }
        let front = head.len() as u64;
        file.read_exact_at(head, at)?;
        file.read_exact_at(data, at + front)?;
        if chance % 100 < fails + flips {
            data[0] ^= 1;
        } else if chance % 100 < fails + flips + hangs {
            let mut gone = self.gate.0.lock();
            while !*gone {
                self.gate.1.wait(&mut gone);
            }
        }
        Ok(())
    }
}

#[test]
fn a_source_keeps_its_promises_while_its_disk_tier_fails() {
    let root = tempfile::tempdir().unwrap();
    let [_, path] = stored(root.path());
    for (number, shares) in [[0, 0, 0], [20, 20, 0], [100, 0, 0], [0, 100, 0], [5, 5, 5]].into_iter().enumerate() {
        let options = OpenOptions { throttle: far(), ..OpenOptions::default() };
        let (inner, faulty) = (open(&path, &options).unwrap(), Faulty::new(shares));
        let tier = DiskTier { folder: root.path().join(format!("tier-{number}")), bytes: 64 << 20 };
        let source = OnDisk::before(inner, "a store", &tier, Some(faulty.clone())).unwrap();
        ask(&source, &(0..SAMPLES).collect::<Vec<_>>(), usize::MAX, &|| false);
        kept(&source);
        source_keeps_its_promises(&source);
        let (disk, circuit) = (source.counted().disk.unwrap().0, source.counted().disk.unwrap().1);
        match number {
            0 => assert_eq!((disk.failed, disk.damaged), (0, 0)),
            2 => assert!(circuit.opened > 0 && disk.failed >= 4, "{circuit:?} {disk:?}"),
            3 => assert!(disk.damaged > 0 && disk.hits == 0, "{disk:?}"),
            _ => {}
        }
        faulty.let_go();
    }
}

/// A tier that remembers what it is offered: what others are held against.
#[derive(Default)]
pub(crate) struct Remembers(Mutex<HashMap<SampleId, Vec<u8>>>);

impl Tier for Remembers {
    type Flight = ();
    fn name(&self) -> &'static str {
        "a memory"
    }
    fn counted(&self) -> TierNumbers {
        TierNumbers::Disk(Numbers::default())
    }
    fn has(&self, id: SampleId) -> bool {
        self.0.lock().contains_key(&id)
    }
    fn read(
        &self,
        ids: &[SampleId],
        patience: &dyn Fn(usize) -> Duration,
        stopped: &dyn Fn() -> bool,
        sink: &mut dyn FnMut(usize, &[u8]) -> ControlFlow<()>,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        assert!(patience(ids.len()) <= LONG);
        for (k, id) in ids.iter().enumerate() {
            let Some(data) = self.0.lock().get(id).cloned().filter(|_| !stopped()) else { continue };
            outcome.answers += 1;
            if sink(k, &data).is_break() {
                break;
            }
        }
        outcome
    }
    fn offer(&self, _: Option<&mut ()>, id: SampleId, _: Duration, data: &[u8]) {
        self.0.lock().entry(id).or_insert_with(|| data.to_vec());
    }
    fn forget(&self, ids: &[SampleId]) {
        ids.iter().for_each(|id| _ = self.0.lock().remove(id));
    }
}

/// What a tier gives of `ids`, by position; each once, and never another's bytes.
fn given<T: Tier>(tier: &T, ids: &[SampleId], most: usize, stopped: bool) -> Vec<usize> {
    let mut came = Vec::new();
    let outcome = tier.read(ids, &|_| LONG, &|| stopped, &mut |k, data| {
        assert!(data == bytes_of(ids[k]) && !came.contains(&k) && came.len() < most, "{k} of {ids:?}");
        came.push(k);
        if came.len() == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(outcome.answers as usize == came.len() && !outcome.unfinished, "{outcome:?}");
    came.sort_unstable();
    came
}

#[derive(Debug, Clone)]
enum Step {
    Offer(SampleId),
    Forget(SampleId),
    Read(Vec<SampleId>, usize),
    Stopped(Vec<SampleId>),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let ids = || {
        Just((0..SAMPLES + 3).collect::<Vec<_>>())
            .prop_shuffle()
            .prop_flat_map(|ids| (0..ids.len()).prop_map(move |count| ids[..count].to_vec()))
    };
    let step = prop_oneof![
        6 => (0..SAMPLES).prop_map(Step::Offer),
        2 => (0..SAMPLES).prop_map(Step::Forget),
        4 => (ids(), 1..40usize).prop_map(|(ids, most)| Step::Read(ids, most)),
        1 => ids().prop_map(Step::Stopped),
    ];
    prop::collection::vec(step, 1..60)
}

/// Makes the steps with a tier and with its naive twin. `settle`: until what was offered can be read.
fn tier_keeps_its_promises<T: Tier>(tier: &T, settle: &dyn Fn(), steps: &[Step]) {
    let twin = Remembers::default();
    for step in steps {
        match step {
            Step::Offer(id) => {
                tier.offer(None, *id, Duration::from_millis(1), &bytes_of(*id));
                twin.offer(None, *id, Duration::from_millis(1), &bytes_of(*id));
            }
            Step::Forget(id) => {
                tier.forget(&[*id]);
                twin.forget(&[*id]);
                assert!(given(tier, &[*id], usize::MAX, false).is_empty(), "{id} was forgotten");
            }
            Step::Read(ids, most) => {
                // Offers are advice, and take a while: before that fewer come.
                let early = given(tier, ids, *most, false).len();
                settle();
                let there = given(&twin, ids, *most, false);
                assert!(early <= there.len());
                assert_eq!(given(tier, ids, *most, false).len(), there.len(), "{ids:?}");
                assert!(ids.iter().all(|&id| tier.has(id) == twin.has(id)));
            }
            Step::Stopped(ids) => assert!(given(tier, ids, usize::MAX, true).len() <= ids.len()),
        }
    }
    settle();
    let all: Vec<SampleId> = (0..SAMPLES).collect();
    let wanted = given(&twin, &all, usize::MAX, false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| assert_eq!(given(tier, &all, usize::MAX, false), wanted));
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_tier_keeps_its_promises(steps in steps(), cold in any::<bool>()) {
        tier_keeps_its_promises(&Remembers::default(), &|| {}, &steps);
        let root = tempfile::tempdir().unwrap();
        let [_, path] = stored(root.path());
        let tier = DiskTier { folder: root.path().join("tier"), bytes: 64 << 20 };
        let read: Option<Arc<dyn ReadAt>> = if cold { Some(Faulty::new([0; 3])) } else { None };
        let source = open(&path, &OpenOptions::default()).unwrap();
        let disk = OnDisk::before(source, "here", &tier, read).unwrap().into_tier();
        tier_keeps_its_promises(&disk, &|| disk.settle(), &steps);
    }
}

#[test]
fn a_tier_that_lies_costs_fetches_and_no_sample() {
    let root = tempfile::tempdir().unwrap();
    let [_, path] = stored(root.path());
    let source = Tiered::new(open(&path, &OpenOptions::default()).unwrap(), Lies, None);
    for _ in 0..20 {
        source_keeps_its_promises(&source);
    }
}

/// Answers twice, with other lengths, for positions that nobody asked for, and after it was enough.
struct Lies;

impl Tier for Lies {
    type Flight = ();
    fn name(&self) -> &'static str {
        "a liar"
    }
    fn counted(&self) -> TierNumbers {
        TierNumbers::Disk(Numbers::default())
    }
    fn has(&self, _: SampleId) -> bool {
        true
    }
    fn read(
        &self,
        ids: &[SampleId],
        _: &dyn Fn(usize) -> Duration,
        _: &dyn Fn() -> bool,
        sink: &mut dyn FnMut(usize, &[u8]) -> ControlFlow<()>,
    ) -> Outcome {
        for (k, &id) in ids.iter().enumerate() {
            _ = sink(k + ids.len(), &bytes_of(id));
            _ = sink(k, &bytes_of(id)[1..]);
            _ = sink(k, &bytes_of(id));
            _ = sink(k, &bytes_of(id));
        }
        Outcome { answers: u64::MAX, failures: 0, took_us: 0, unfinished: false }
    }
    fn offer(&self, _: Option<&mut ()>, _: SampleId, _: Duration, _: &[u8]) {}
    fn forget(&self, _: &[SampleId]) {}
}
