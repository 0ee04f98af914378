//! The very same CUDA text, run on the CPU: `fiber.h` plays the GPU, `driver.cpp` is the program, this is its other end.
//!
//! A separate program, so that a kernel that crashes fails its test and nothing else, and so that this stays free of `unsafe`.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use lossfeed_kernels::launch::{self, FUSED_RANK_ROWS, Launch};
use lossfeed_kernels::{AnyScores, Dtype, NOT_SCORED, Scores, rank, reference};
use proptest::prelude::*;

use crate::cases::{Case, Flavour, any_case, case};
use crate::compare::{Answer, same};

const B0: f32 = 10.0;
/// Natural order, and two shuffled ones.
const SCHEDULES: [u64; 3] = [0, 0x5eed, 0xfeed_beef];

/// Compiles the driver once; `None` (said in one line) without a C++ compiler.
fn driver() -> Option<&'static PathBuf> {
    static DRIVER: OnceLock<Option<PathBuf>> = OnceLock::new();
    let compile = || {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let chosen = std::env::var("CXX").ok();
        let compilers = chosen.iter().map(String::as_str).chain(["c++", "g++", "clang++"]);
        let works = |name: &&str| Command::new(name).arg("--version").output().is_ok_and(|o| o.status.success());
        let Some(compiler) = compilers.into_iter().find(works) else {
            eprintln!("the CUDA sources were not run: no C++ compiler (set CXX, or install g++ or clang++)");
            return None;
        };
        let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("fiber-driver-{}", std::process::id()));
        let done = Command::new(compiler)
            .args(["-std=c++17", "-O1", "-Wall", "-Wextra", "-Wno-unknown-pragmas", "-ffp-contract=off"])
            .arg("-I")
            .arg(root.join("../kernels/cuda"))
            .arg(root.join("kernels/driver.cpp"))
            .arg("-o")
            .arg(&program)
            .output()
            .unwrap();
        assert!(
            done.status.success(),
            "{compiler} refuses the CUDA sources:\n{}",
            String::from_utf8_lossy(&done.stderr)
        );
        Some(program)
    };
    DRIVER.get_or_init(compile).as_ref()
}

/// A running driver.
struct Machine {
    child: Child,
}

/// One launch (and the rank launch after it) as the driver reads it.
struct Request<'a> {
    kernel: &'a str,
    score: Launch,
    rank: Option<Launch>,
    dtype: Dtype,
    offset_bytes: u32,
    launches: u32,
    seed: u64,
    logits: &'a [u8],
    row_stride: usize,
    ignore_index: i64,
    rows: usize,
    classes: usize,
    targets: &'a [i64],
}

impl Machine {
    /// `None` when there is no compiler to build it with.
    fn start() -> Option<Machine> {
        let child = Command::new(driver()?).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        Some(Machine { child })
    }

    fn send(&mut self, q: &Request<'_>) {
        let none = Launch { kernel: "", grid: 0, block: (0, 0), shared_bytes: 0 };
        let rank = q.rank.unwrap_or(none);
        let mut message = Vec::with_capacity(128 + q.logits.len());
        let mut name = [0u8; 40];
        name[..q.kernel.len()].copy_from_slice(q.kernel.as_bytes());
        message.extend(name);
        let words = [q.score.grid, q.score.block.0, q.score.block.1, q.score.shared_bytes, rank.grid, rank.block.0];
        let dtype = Dtype::ALL.iter().position(|d| *d == q.dtype).unwrap() as u32;
        for word in words.into_iter().chain([rank.shared_bytes, dtype, q.offset_bytes, q.launches]) {
            message.extend(word.to_ne_bytes());
        }
        for word in [q.seed, q.logits.len() as u64, q.row_stride as u64, q.ignore_index as u64] {
            message.extend(word.to_ne_bytes());
        }
        for word in [q.rows as u32, q.classes as u32, B0.to_bits(), 0] {
            message.extend(word.to_ne_bytes());
        }
        message.extend(q.logits);
        message.extend(q.targets.iter().flat_map(|t| t.to_ne_bytes()));
        let sent = self.child.stdin.as_mut().unwrap().write_all(&message);
        assert!(sent.is_ok(), "the driver died before {}: {:?}", q.kernel, self.child.wait());
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        let got = self.child.stdout.as_mut().unwrap().read_exact(&mut bytes);
        assert!(got.is_ok(), "the driver died: {:?}", self.child.wait());
        bytes
    }

    fn column<const N: usize, T>(&mut self, rows: usize, from: fn([u8; N]) -> T) -> Vec<T> {
        self.bytes(rows * N).chunks_exact(N).map(|b| from(b.try_into().unwrap())).collect()
    }

    /// What went wrong in the launch, or nothing.
    fn verdict(&mut self) -> Result<(), String> {
        let length = self.column(1, u32::from_ne_bytes)[0] as usize;
        let message = String::from_utf8(self.bytes(length)).unwrap();
        if length == 0 { Ok(()) } else { Err(message) }
    }

    /// Scores a case `launches` times over with the same workspace.
    fn score(&mut self, case: &Case, seed: u64, launches: u32) -> Result<Answer, String> {
        let score = launch::plan(case.rows, case.classes, case.dtype);
        self.send(&Request {
            kernel: score.kernel,
            score,
            rank: (case.rows > FUSED_RANK_ROWS).then(|| launch::rank(case.rows)),
            dtype: case.dtype,
            offset_bytes: case.offset_bytes as u32,
            launches,
            seed,
            logits: &case.bytes[case.offset_bytes..],
            row_stride: case.row_stride,
            ignore_index: case.ignore_index,
            rows: case.rows,
            classes: case.classes,
            targets: &case.targets,
        });
        self.answer(case.rows, case.dtype)
    }

    /// Ranks losses with the rank kernel alone.
    fn rank(&mut self, losses: &[f32], seed: u64) -> Result<Answer, String> {
        let rank = launch::rank(losses.len());
        let bytes: Vec<u8> = losses.iter().flat_map(|l| l.to_ne_bytes()).collect();
        self.send(&Request {
            kernel: rank.kernel,
            score: rank,
            rank: Some(rank),
            dtype: Dtype::F32,
            offset_bytes: 0,
            launches: 2,
            seed,
            logits: &bytes,
            row_stride: 1,
            ignore_index: -100,
            rows: losses.len(),
            classes: 1,
            targets: &vec![0; losses.len()],
        });
        self.answer(losses.len(), Dtype::F32)
    }

    fn answer(&mut self, rows: usize, dtype: Dtype) -> Result<Answer, String> {
        self.verdict()?;
        let scores = if dtype == Dtype::F64 {
            AnyScores::F64(self.scores(rows, f64::from_ne_bytes))
        } else {
            AnyScores::F32(self.scores(rows, f32::from_ne_bytes))
        };
        let words = self.column(4, u32::from_ne_bytes);
        Ok(Answer { scores, error: words[0], done: words[1], ticket: words[2], batches: words[3] })
    }

    fn scores<const N: usize, R>(&mut self, rows: usize, from: fn([u8; N]) -> R) -> Scores<R> {
        Scores {
            loss: self.column(rows, from),
            lse: self.column(rows, from),
            grad_norm: self.column(rows, from),
            entropy: self.column(rows, from),
            correct: self.bytes(rows),
            count: self.column(rows, i32::from_ne_bytes),
            rank_score: self.column(rows, f32::from_ne_bytes),
        }
    }

    fn planted(&mut self, kernel: &str, seed: u64) -> Result<Vec<f32>, String> {
        let launch = Launch { kernel: "", grid: 1, block: (64, 1), shared_bytes: 256 };
        self.send(&Request {
            kernel,
            score: launch,
            rank: None,
            dtype: Dtype::F32,
            offset_bytes: 0,
            launches: 1,
            seed,
            logits: &[0; 64],
            row_stride: 1,
            ignore_index: -100,
            rows: 0,
            classes: 1,
            targets: &[],
        });
        self.verdict()?;
        Ok(self.column(64, f32::from_ne_bytes))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        drop(self.child.stdin.take()); // end of requests: the driver leaves
        let _ = self.child.wait();
    }
}

/// Two launches under every schedule give the reference's scores, and leave the words as the contract says.
fn check(machine: &mut Machine, case: &Case) -> Result<(), String> {
    let expected = reference::score(&case.view(), &case.targets, case.ignore_index, B0).unwrap();
    for seed in SCHEDULES {
        let context = |e: String| format!("{e} in {case:?}, schedule {seed:#x}");
        machine.score(case, seed, 2).and_then(|answer| answer.check(&expected, B0, 2)).map_err(context)?;
    }
    Ok(())
}

#[test]
fn the_kernel_text_equals_the_reference_on_any_batch() {
    let Some(machine) = Machine::start() else { return };
    let machine = std::cell::RefCell::new(machine);
    let classes = prop_oneof![1..48usize, 60..70usize, 250..300usize];
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig { cases: 300, ..ProptestConfig::default() });
    let result = runner.run(&any_case(24, classes, true), |case| {
        // No rows is no launch.
        if case.rows == 0 {
            return Ok(());
        }
        check(&mut machine.borrow_mut(), &case).map_err(TestCaseError::fail)
    });
    result.unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn the_kernel_text_equals_the_reference_with_a_block_per_row_and_with_many_rows() {
    let Some(mut machine) = Machine::start() else { return };
    for dtype in Dtype::ALL {
        for (rows, classes) in [(3, 4097), (2, 16_385), (2, 50_257), (8, 1000), (512, 10), (513, 10), (1300, 3)] {
            for flavour in [Flavour::Plain, Flavour::Tied, Flavour::Nasty] {
                let case = case(dtype, rows, classes, classes, dtype.bytes(), flavour, 11);
                check(&mut machine, &case).unwrap_or_else(|e| panic!("{e}"));
            }
        }
    }
}

#[test]
fn the_kernel_text_ranks_losses_bit_for_bit_as_their_definition() {
    let Some(mut machine) = Machine::start() else { return };
    let mut rng = crate::cases::Lcg::new(5);
    for n in [1, 2, 31, 255, 256, 257, 511, 512, 513, 1025, 3000] {
        let special = [f32::NAN, 0.0, -0.0, 1.0, 1.0, 0.5];
        let draw = |rng: &mut crate::cases::Lcg| match rng.below(3) {
            0 => special[rng.below(6) as usize],
            1 => rng.below(20) as f32 * 0.25,
            _ => rng.unit() as f32,
        };
        let losses: Vec<f32> = (0..n).map(|_| draw(&mut rng)).collect();
        for seed in SCHEDULES {
            let answer = machine.rank(&losses, seed).unwrap();
            let AnyScores::F32(scores) = answer.scores else { panic!("ranks are of f32 losses") };
            assert_eq!(scores.count, rank::naive::counts(&losses), "{n} losses");
            let expected: Vec<u32> = rank::scores(&scores.count, B0).iter().map(|s| s.to_bits()).collect();
            let ranked = |bits: &u32| !f32::from_bits(*bits).is_nan();
            let actual: Vec<u32> = scores.rank_score.iter().map(|s| s.to_bits()).collect();
            assert_eq!(
                actual.iter().filter(|b| ranked(b)).collect::<Vec<_>>(),
                expected.iter().filter(|b| ranked(b)).collect::<Vec<_>>()
            );
            assert_eq!((answer.done, answer.ticket, answer.batches), (2, 0, 2));
        }
    }
}

#[test]
fn a_target_outside_the_classes_raises_the_error_word_and_leaves_the_other_rows_alone() {
    let Some(mut machine) = Machine::start() else { return };
    for (rows, classes) in [(40, 10), (40, 300), (5, 5000), (600, 4)] {
        let mut case = case(Dtype::F32, rows, classes, classes, 0, Flavour::Plain, 2);
        case.ignore_index = -100;
        case.targets.iter_mut().for_each(|t| *t = t.rem_euclid(classes as i64));
        let mut sound = case.clone();
        for (row, target) in [(2, classes as i64), (3, -1), (rows - 1, i64::MAX)] {
            case.targets[row] = target;
            sound.targets[row] = sound.ignore_index;
        }
        let expected = reference::score(&sound.view(), &sound.targets, -100, B0).unwrap().into_f32();
        for seed in SCHEDULES {
            let answer = machine.score(&case, seed, 1).unwrap();
            assert_eq!(answer.error, 2, "the first bad row is named");
            let AnyScores::F32(mut scores) = answer.scores else { panic!("f32 logits are scored in f32") };
            for row in [2, 3, rows - 1] {
                assert!(scores.loss[row].is_nan() && scores.grad_norm[row].is_nan());
                assert_eq!((scores.correct[row], scores.count[row]), (NOT_SCORED, -1));
                scores.loss[row] = 0.0; // as if ignored, for the comparison
            }
            same(&AnyScores::F32(expected.clone()), &AnyScores::F32(scores), B0).unwrap();
        }
    }
}

#[test]
fn the_fibers_find_planted_bugs() {
    let Some(mut machine) = Machine::start() else { return };
    let sound: Vec<f32> = (0..64).map(|i| ((i + 1) % 64) as f32 + 100.0 * if i < 32 { 1.0 } else { 33.0 }).collect();
    for seed in SCHEDULES {
        assert_eq!(machine.planted("planted_sound", seed), Ok(sound.clone()));
    }
    for (kernel, message) in [
        ("planted_barrier_in_a_branch", "deadlock: a thread waits in __syncthreads"),
        ("planted_divergent_collective", "divergent warp"),
        ("planted_misaligned_load", "misaligned load of 16 bytes"),
        ("planted_load_behind_the_end", "a load outside the logits"),
        ("planted_write_behind_the_end", "a write outside the outputs"),
        ("planted_write_behind_shared_memory", "a write outside shared memory"),
    ] {
        for seed in SCHEDULES {
            let failure = machine.planted(kernel, seed).unwrap_err();
            assert!(failure.starts_with(message), "{kernel}: {failure}");
        }
    }
    assert!(machine.planted("planted_unwritten_shared_memory", 0).unwrap().iter().all(|v| v.is_nan()));
    let orders: Vec<_> = SCHEDULES
        .iter()
        .map(|&seed| {
            machine.planted("planted_missing_barrier", seed).unwrap().iter().map(|v| v.to_bits()).collect::<Vec<_>>()
        })
        .collect();
    assert!(
        orders[0] != orders[1] && orders[1] != orders[2],
        "a missing barrier shows as a result that depends on the order"
    );
}
