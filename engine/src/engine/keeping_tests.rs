//! Beliefs that outlive their engine: written by a clock that is turned here, taken up, merged, refused.

use super::buffer_tests::{SAMPLES, Seen, dataset, deliver, settings};
use super::{Dataset, Engine};
use crate::error::ErrorKind;
use crate::loader::checkpoint::Checkpoint;
use crate::sampler::{Importance, SamplerSettings, Uniform};
use crate::settings::{ScoreKind, Settings};
use crate::source::{Arrays, ImageMode};
use crate::types::{Dtype, TensorSpec};
use proptest::prelude::*;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// As long as a test waits for a thread that has nothing else to do.
const PATIENCE: Duration = Duration::from_secs(120);

fn kept(path: &Path, sampler: SamplerSettings) -> Settings {
    Settings { batch_size: 8, score_file: Some(path.to_owned()), ..settings(sampler, 0) }
}

fn importance() -> SamplerSettings {
    SamplerSettings::Importance(Importance::default())
}

fn uniform() -> SamplerSettings {
    SamplerSettings::Uniform(Uniform::default())
}

fn ranks(path: &Path, sampler: SamplerSettings, world_size: u32, exchange: bool) -> Vec<Engine> {
    let of = |rank| Settings { rank, world_size, exchange, ..kept(path, sampler) };
    (0..world_size).map(|rank| Engine::new(dataset(), of(rank)).unwrap()).collect()
}

fn beliefs(engine: &Engine) -> Vec<u32> {
    engine.importance().into_iter().map(f32::to_bits).collect()
}

fn known(engine: &Engine) -> usize {
    engine.importance().into_iter().filter(|belief| !belief.is_nan()).count()
}

fn stat(engine: &Engine, name: &str) -> f64 {
    engine.stats().into_iter().find(|(of, _)| of == name).unwrap().1
}

#[test]
fn beliefs_are_written_when_the_time_has_come_and_when_anything_was_learned() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("scores");
    let now = Arc::new(AtomicU64::new(0));
    let clock = Arc::clone(&now);
    let every = Settings { score_file_every: 60.0, ..kept(&path, uniform()) };
    let mut engine = Engine::new(dataset(), Settings { score_file: None, ..every.clone() }).unwrap();
    engine.settings.score_file = every.score_file;
    assert_eq!(engine.keep_beliefs(Arc::new(move || Duration::from_secs(clock.load(SeqCst)))).unwrap(), None);
    let turn = |seconds| {
        now.fetch_add(seconds, SeqCst);
        engine.keeper.look();
    };
    let mut seen = Seen::new();
    deliver(&engine, 2, &mut seen);
    turn(59);
    assert!(!path.exists(), "a minute is not over");
    turn(1);
    let until = Instant::now() + PATIENCE;
    while stat(&engine, "score_file_step") != 2.0 {
        assert!(Instant::now() < until, "nothing was written");
        std::thread::sleep(Duration::from_millis(1));
    }
    let first = fs::read(&path).unwrap();
    // Nothing is learned, so nothing is written, however long it takes.
    turn(600);
    let second = Engine::new(dataset(), kept(&path, uniform())).unwrap();
    assert_eq!(beliefs(&second), beliefs(&engine));
    second.close();
    assert_eq!(fs::read(&path).unwrap(), first, "what learned nothing writes nothing");
    deliver(&engine, 1, &mut seen);
    engine.close();
    assert_ne!(fs::read(&path).unwrap(), first, "the end is written");
    let third = Engine::new(dataset(), kept(&path, uniform())).unwrap();
    assert_eq!((beliefs(&third), known(&third)), (beliefs(&engine), 24));
}

#[test]
fn a_dropped_engine_writes_too_and_epochs_are_drawn_by_what_was_remembered() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("scores");
    let first = Engine::new(dataset(), kept(&path, importance())).unwrap();
    deliver(&first, usize::MAX, &mut Seen::new());
    let believed = beliefs(&first);
    drop(first);
    let until = Instant::now() + PATIENCE;
    while !path.exists() {
        assert!(Instant::now() < until, "nothing was written");
        std::thread::sleep(Duration::from_millis(1));
    }
    let second = Engine::new(dataset(), kept(&path, importance())).unwrap();
    assert_eq!((beliefs(&second), second.epoch()), (believed, 0));
    assert!(stat(&second, "score_age_steps") > 1.0);
    let unknowing = Engine::new(dataset(), settings(importance(), 0)).unwrap();
    assert_ne!(second.plan().unwrap().order, unknowing.plan().unwrap().order, "it draws by what it knows");
    // A state that is loaded counts more.
    second
        .load_state(&{
            let other = Engine::new(dataset(), Settings { score_file: None, ..kept(&path, importance()) }).unwrap();
            other.state().unwrap()
        })
        .unwrap();
    assert_eq!(known(&second), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// Ranks of any number leave files, and as many others as one likes know together all that was known, twice over.
    #[test]
    fn other_ranks_know_what_ranks_knew(
        before in 1u32..5, between in 1u32..5, after in 1u32..5, batches in 1usize..9, own_shares: bool,
    ) {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("scores-{rank}.bin");
        let sampler = || if own_shares { importance() } else { uniform() };
        let mut expected = vec![f32::NAN.to_bits(); SAMPLES as usize];
        for (world_size, batches) in [(before, batches), (between, 2)] {
            let lives = ranks(&path, sampler(), world_size, false);
            for (rank, engine) in lives.iter().enumerate() {
                prop_assert_eq!(&beliefs(engine), &expected, "rank {} of {}", rank, world_size);
            }
            for engine in &lives {
                let mut seen = Seen::new();
                deliver(engine, batches, &mut seen);
                let now = beliefs(engine);
                seen.iter().flat_map(|batch| &batch.2).for_each(|&id| expected[id as usize] = now[id as usize]);
            }
            lives.iter().for_each(Engine::close);
        }
        for engine in ranks(&path, sampler(), after, false) {
            prop_assert_eq!(&beliefs(&engine), &expected);
        }
        let files = fs::read_dir(place.path()).unwrap().count();
        prop_assert_eq!(files, before.max(between) as usize, "nothing else is left there");
    }
}

#[test]
fn ranks_that_exchange_scores_have_one_file_and_agree_on_what_it_holds() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("scores");
    let exchange = |ranks: &[Engine]| {
        let (proposals, words): (Vec<String>, Vec<Vec<u32>>) =
            ranks.iter().map(|rank| rank.begin_exchange().unwrap()).unzip();
        for rank in ranks {
            let agreed = rank.agree(&proposals).unwrap().unwrap();
            rank.end_exchange(&agreed, &words).unwrap();
        }
    };
    let first = ranks(&path, importance(), 2, true);
    exchange(&first);
    first.iter().for_each(|rank| _ = deliver(rank, usize::MAX, &mut Seen::new()));
    exchange(&first);
    let believed = beliefs(&first[1]);
    first.iter().for_each(Engine::close);
    let second = ranks(&path, importance(), 3, true);
    assert!(known(&second[0]) == SAMPLES as usize && known(&second[1]) == 0);
    exchange(&second);
    assert!(second.iter().all(|rank| beliefs(rank) == believed));
    let orders: Vec<_> = second.iter().map(|rank| rank.plan().unwrap().order.ids.clone()).collect();
    assert!(orders[0] != orders[1] && orders[1] != orders[2], "three parts of one order");
}

fn refused(settings: Settings) -> crate::Error {
    Engine::new(dataset(), settings).err().unwrap()
}

#[test]
fn what_is_another_runs_is_refused_and_what_is_damaged_is_said() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("scores");
    let first = Engine::new(dataset(), kept(&path, uniform())).unwrap();
    deliver(&first, 3, &mut Seen::new());
    first.close();
    let spec = TensorSpec::new(Dtype::U8, [4]);
    let source = Arrays::new(vec![7; 800], spec, vec![0; 1600], TensorSpec::class_index(), 200).unwrap();
    let other = Dataset::new(Arc::new(source), ImageMode::Auto, None).unwrap();
    let error = Engine::new(other, kept(&path, uniform())).err().unwrap();
    assert!(error.kind() == ErrorKind::Settings && error.to_string().contains("belongs to another dataset"), "{error}");
    let error = refused(Settings { score: Some(ScoreKind::GradientNorm), ..kept(&path, uniform()) });
    assert!(error.to_string().contains("score=\"loss\", or another file"), "{error}");
    let error = refused(Settings { world_size: 2, ..kept(&path, uniform()) });
    assert!(error.to_string().contains("one file for 2 ranks: put {rank} into its name"), "{error}");
    let error = refused(Settings { score_file_every: 0.0, ..kept(&path, uniform()) });
    assert!(error.to_string().contains("score_file_every 0 must be"), "{error}");
    let error = refused(kept(&place.path().join("no/such"), uniform()));
    assert!(error.to_string().contains("choose an existing folder"), "{error}");
    // Damage costs the beliefs, and is said; the next file is whole again.
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let second = Engine::new(dataset(), kept(&path, uniform())).unwrap();
    let said = second.damaged_scores().unwrap();
    assert!(said.contains("it is cut off") && said.contains("the scores in it are not used"), "{said}");
    assert_eq!(known(&second), 0);
    deliver(&second, 1, &mut Seen::new());
    second.close();
    let third = Engine::new(dataset(), kept(&path, uniform())).unwrap();
    assert_eq!((third.damaged_scores(), known(&third)), (None, 8));
    // Of two loaders the newer one has the file.
    let newer = Engine::new(dataset(), kept(&path, uniform())).unwrap();
    deliver(&newer, 5, &mut Seen::new());
    newer.close();
    deliver(&third, 2, &mut Seen::new());
    third.close();
    assert_eq!(known(&Engine::new(dataset(), kept(&path, uniform())).unwrap()), 40);
}

#[test]
fn a_batch_rank_is_known_by_its_old_name_in_settings_and_states() {
    assert_eq!(serde_json::from_str::<ScoreKind>("\"rank\"").unwrap(), ScoreKind::BatchRank);
    let made = || {
        let settings = Settings { score: Some(ScoreKind::BatchRank), ..settings(importance(), 0) };
        Engine::new(dataset(), settings).unwrap()
    };
    let mut state = Checkpoint::from_bytes(&made().state().unwrap()).unwrap();
    assert_eq!(state.header.identity["score"], "batch_rank");
    state.header.identity.insert("score".into(), "rank".into());
    state.header.measured = Some("rank".into());
    made().load_state(&state.to_bytes().unwrap()).unwrap();
    state.header.identity.insert("score".into(), "ranks".into());
    assert!(made().load_state(&state.to_bytes().unwrap()).unwrap_err().to_string().contains("score ranks"));
}
