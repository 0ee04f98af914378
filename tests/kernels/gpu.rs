//! The prebuilt PTX on a real GPU, where there is one: the same cases, the same reference. Says so in one line where there is none.
#![allow(unsafe_code)]

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaModule, CudaStream, DevicePtr, LaunchConfig, PushKernelArg, sys};
use lossfeed_kernels::launch::{self, FUSED_RANK_ROWS, Launch};
use lossfeed_kernels::{AnyScores, Dtype, Scores, ptx, rank, reference};
use proptest::prelude::*;

use crate::cases::{Case, Flavour, Lcg, any_case, case};
use crate::compare::Answer;

const B0: f32 = 10.0;

struct Gpu {
    stream: Arc<CudaStream>,
    module: Arc<CudaModule>,
}

impl Gpu {
    fn open() -> Option<Gpu> {
        // SAFETY: only opens and closes shared libraries by the driver's names; their initialisers are the driver's own.
        let present = unsafe { sys::is_culib_present() };
        let context = if present { CudaContext::new(0).ok() } else { None };
        let Some(context) = context else {
            let why = "the kernels were not run on a GPU: no CUDA driver, or no device";
            // `make gpu` sets this: there, a test that finds no GPU has failed.
            assert!(std::env::var_os("LOSSFEED_REQUIRE_GPU").is_none(), "{why}");
            eprintln!("{why}");
            return None;
        };
        let module = context.load_module(ptx::module().into()).expect("the driver loads the prebuilt PTX");
        Some(Gpu { stream: context.default_stream(), module })
    }

    /// Scores a case `launches` times over with the same workspace.
    fn score(&self, case: &Case, launches: u32) -> Answer {
        if case.dtype == Dtype::F64 {
            self.run(case, launches, f64::from_ne_bytes, AnyScores::F64)
        } else {
            self.run(case, launches, f32::from_ne_bytes, AnyScores::F32)
        }
    }

    fn run<const N: usize, R>(
        &self,
        case: &Case,
        launches: u32,
        from: fn([u8; N]) -> R,
        wrap: fn(Scores<R>) -> AnyScores,
    ) -> Answer {
        let rows = case.rows;
        // Every output in one allocation, 256 bytes apart as separate allocations would be, red where nothing is written yet.
        let sizes =
            [N * rows, N * rows, N * rows, N * rows, rows, 4 * rows, 4 * rows, launch::workspace_bytes(rows), 8];
        let mut at = [0usize; 9];
        let mut image = Vec::new();
        for (at, bytes) in at.iter_mut().zip(sizes) {
            image.resize(image.len().next_multiple_of(256), 0xa5);
            *at = image.len();
            image.resize(image.len() + bytes, 0xa5);
        }
        image[at[7]..][..16].fill(0);
        image[at[8]..][..4].fill(0xff);
        image[at[8] + 4..][..4].fill(0);

        let logits = self.stream.clone_htod(&case.bytes).unwrap();
        let targets = self.stream.clone_htod(&case.targets).unwrap();
        let outputs = self.stream.clone_htod(&image).unwrap();
        let base = outputs.device_ptr(&self.stream).0;
        let pointers = at.map(|offset| base + offset as u64);
        let [loss, lse, grad_norm, entropy, correct, count, rank_score, workspace, error] = pointers;
        let done = error + 4;
        let first = logits.device_ptr(&self.stream).0 + case.offset_bytes as u64;
        let targets = targets.device_ptr(&self.stream).0;
        let (rows_i32, classes, stride) = (rows as i32, case.classes as i32, case.row_stride as i64);
        for _ in 0..launches {
            let plan = launch::plan(rows, case.classes, case.dtype);
            let function = self.module.load_function(plan.kernel).unwrap();
            let mut arguments = self.stream.launch_builder(&function);
            arguments
                .arg(&first)
                .arg(&targets)
                .arg(&rows_i32)
                .arg(&classes)
                .arg(&stride)
                .arg(&case.ignore_index)
                .arg(&B0);
            arguments.arg(&loss).arg(&lse).arg(&grad_norm).arg(&entropy).arg(&correct).arg(&count).arg(&rank_score);
            arguments.arg(&workspace).arg(&error).arg(&done);
            // SAFETY: arguments are in the documented order; every pointer lies in an allocation of the documented size that outlives
            // the copy below, which is on the same stream.
            unsafe { arguments.launch(shape(plan)) }.unwrap();
            if rows > FUSED_RANK_ROWS {
                let plan = launch::rank(rows);
                let function = self.module.load_function(plan.kernel).unwrap();
                let mut arguments = self.stream.launch_builder(&function);
                arguments.arg(&workspace).arg(&rows_i32).arg(&B0).arg(&count).arg(&rank_score).arg(&done);
                // SAFETY: as above.
                unsafe { arguments.launch(shape(plan)) }.unwrap();
            }
        }
        let image = self.stream.clone_dtoh(&outputs).unwrap();
        self.stream.synchronize().unwrap();

        let floats = |k: usize| -> Vec<R> {
            image[at[k]..][..N * rows].chunks_exact(N).map(|b| from(b.try_into().unwrap())).collect()
        };
        let word = |offset: usize| u32::from_ne_bytes(image[offset..][..4].try_into().unwrap());
        let scores = Scores {
            loss: floats(0),
            lse: floats(1),
            grad_norm: floats(2),
            entropy: floats(3),
            correct: image[at[4]..][..rows].to_vec(),
            count: (0..rows).map(|i| word(at[5] + 4 * i) as i32).collect(),
            rank_score: (0..rows).map(|i| f32::from_bits(word(at[6] + 4 * i))).collect(),
        };
        Answer {
            scores: wrap(scores),
            error: word(at[8]),
            done: word(at[8] + 4),
            ticket: word(at[7]),
            batches: word(at[7] + 4),
        }
    }

    fn check(&self, case: &Case) -> Result<(), String> {
        let expected = reference::score(&case.view(), &case.targets, case.ignore_index, B0).unwrap();
        self.score(case, 2).check(&expected, B0, 2).map_err(|e| format!("{e} in {case:?} on the GPU"))
    }
}

fn shape(launch: Launch) -> LaunchConfig {
    LaunchConfig {
        grid_dim: (launch.grid, 1, 1),
        block_dim: (launch.block.0, launch.block.1, 1),
        shared_mem_bytes: launch.shared_bytes,
    }
}

#[test]
fn the_gpu_equals_the_reference_on_any_batch() {
    let Some(gpu) = Gpu::open() else { return };
    let classes = prop_oneof![1..48usize, 60..70usize, 250..300usize, 4000..4200usize];
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig { cases: 300, ..ProptestConfig::default() });
    let result = runner.run(&any_case(24, classes, true), |case| {
        // No rows is no launch.
        if case.rows == 0 { Ok(()) } else { gpu.check(&case).map_err(TestCaseError::fail) }
    });
    result.unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn the_gpu_equals_the_reference_on_the_shapes_of_real_training() {
    let Some(gpu) = Gpu::open() else { return };
    for dtype in Dtype::ALL {
        for (rows, classes) in
            [(128, 10), (512, 100), (513, 100), (1024, 1000), (64, 21_843), (16, 50_257), (4, 128_256)]
        {
            for flavour in [Flavour::Plain, Flavour::Confident, Flavour::Tied, Flavour::Nasty] {
                gpu.check(&case(dtype, rows, classes, classes + 1, dtype.bytes(), flavour, 11))
                    .unwrap_or_else(|e| panic!("{e}"));
            }
        }
    }
}

#[test]
fn the_gpu_ranks_a_large_batch_bit_for_bit_as_its_definition() {
    let Some(gpu) = Gpu::open() else { return };
    let mut case = case(Dtype::F32, 20_000, 2, 2, 0, Flavour::Tied, 4);
    let mut rng = Lcg::new(9);
    case.targets.iter_mut().for_each(|t| *t = i64::from(rng.below(2)));
    case.ignore_index = -100;
    let scores = gpu.score(&case, 1).scores.into_f32();
    assert_eq!(scores.count, rank::counts(&scores.loss));
}

#[test]
fn a_bad_target_on_the_gpu_names_its_row_and_the_context_survives() {
    let Some(gpu) = Gpu::open() else { return };
    let mut bad = case(Dtype::BF16, 300, 10, 10, 0, Flavour::Plain, 1);
    bad.ignore_index = -100;
    bad.targets.iter_mut().for_each(|t| *t = t.rem_euclid(10));
    (bad.targets[17], bad.targets[200]) = (10, -7);
    assert_eq!(gpu.score(&bad, 1).error, 17);
    gpu.check(&case(Dtype::BF16, 300, 10, 10, 0, Flavour::Plain, 1)).unwrap();
}
