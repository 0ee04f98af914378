//! Other launch shapes and other builds of the kernels, timed on a GPU by its own events: what a missed goal can be
//! mended with. A part of `.ci/gpu` (LOSSFEED_GPU_CHECK=sweep); figures go to the file that LOSSFEED_GPU_FIGURES names,
//! beside the paper model of `kernels/README.md`.
#![allow(unsafe_code)]

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::{CudaModule, CudaSlice, DevicePtr, LaunchConfig, PushKernelArg, sys};
use cudarc::nvrtc::Ptx;
use lossfeed_kernels::Dtype;
use lossfeed_kernels::launch::arguments::Arguments;
use lossfeed_kernels::launch::{self, Gradient, Launch, Lent, Score, Step, TICKET_BYTES, scratch_bytes};
use serde_json::json;

use crate::cases::{Flavour, Lcg};
use crate::checks::{B0, Scoring, case_of};
use crate::compare::same;
use crate::fiber;
use crate::gpu::{Gpu, aligned};
use crate::program::{Kind, Machine};

/// Rows and classes.
const BATCHES: [(usize, usize); 4] = [(4096, 32_000), (16_384, 8192), (4096, 128_256), (8192, 151_936)];
/// Threads of a row's block (32: eight rows share a block) and pieces of a row.
const SHAPES: [(u32, usize); 10] =
    [(32, 1), (64, 1), (64, 2), (64, 4), (128, 1), (128, 2), (128, 4), (256, 1), (256, 2), (256, 4)];
const ROUNDS: usize = 10;
/// The check has 15 seconds.
const TIME: Duration = Duration::from_secs(13);
/// Sums of a piece.
const PARTIAL_BYTES: usize = 56;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Pass {
    Loss,
    Score,
    Backward,
}

impl Pass {
    fn name(self) -> &'static str {
        match self {
            Pass::Loss => "loss",
            Pass::Score => "score",
            Pass::Backward => "backward",
        }
    }

    /// Instructions a logit of a full round, of one that looks, and a row and lane (`machine_code.csv`, the README).
    fn instructions(self, dtype: Dtype) -> [f64; 3] {
        let wide = dtype == Dtype::F32;
        match self {
            Pass::Loss => [if wide { 5.81 } else { 5.47 }, 8.0, 300.0],
            Pass::Score => [if wide { 8.81 } else { 8.47 }, 11.0, 330.0],
            Pass::Backward => {
                let every = 1.3 * if wide { 4.69 } else { 5.31 };
                [every, every, 150.0]
            }
        }
    }
}

/// What the model asks of a GPU.
struct Card {
    multiprocessors: f64,
    clock_mhz: f64,
    /// Bytes a microsecond that a kernel which only reads may reach.
    read: f64,
}

impl Card {
    fn of(gpu: &Gpu) -> Card {
        use sys::CUdevice_attribute::*;
        let get = |what| f64::from(gpu.stream.context().attribute(what).unwrap());
        let peak =
            2.0 * get(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE) * get(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH) / 8e3;
        Card {
            multiprocessors: get(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
            clock_mhz: get(CU_DEVICE_ATTRIBUTE_CLOCK_RATE) / 1e3,
            read: 0.92 * peak,
        }
    }

    /// The README's paper model, in microseconds.
    fn predicted(&self, pass: Pass, dtype: Dtype, (rows, classes): (usize, usize), launch: &Launch) -> f64 {
        let bytes = (rows * classes * dtype.bytes()) as f64;
        let (blocks, threads) = (f64::from(launch.grid), f64::from(launch.block.0 * launch.block.1));
        let logits = (rows * classes) as f64 / (blocks * threads);
        let [plain, looking, once] = pass.instructions(dtype);
        let looked = logits.min(2.5 * 4.0 * 16.0 / dtype.bytes() as f64);
        let instructions = blocks * threads * (looked * looking + (logits - looked) * plain + once);
        let issued = 0.85 * self.multiprocessors.min(blocks) * 128.0 * self.clock_mhz;
        let moved = if pass == Pass::Backward { 2.0 * bytes / (0.956 * self.read) } else { bytes / self.read };
        let flight = bytes * 0.75 / ((blocks * threads).min(768.0 * self.multiprocessors) * 64.0);
        let waves = blocks * threads / (768.0 * self.multiprocessors);
        let tail = if waves > 1.0 { 0.2 / waves } else { 0.0 };
        2.5 + moved.max(instructions / issued).max(flight) * (1.0 + tail)
    }
}

/// `step` with blocks of another size and rows in other pieces. `lent`: room for the pieces' sums, and zeroed tickets
/// of rows.
fn reshaped(step: &Step, classes: usize, threads: u32, pieces: usize, lent: [u64; 2]) -> Step {
    let mut step = step.clone();
    let piece = classes.div_ceil(pieces).next_multiple_of(64);
    let pieces = classes.div_ceil(piece) as u32;
    let rows = match &mut step.arguments {
        Arguments::Score(a) => {
            (a.pieces, a.piece_classes, [a.partials, a.row_tickets]) = (pieces as i32, piece as i32, lent);
            a.rows as u32
        }
        Arguments::Gradient(a) => {
            (a.pieces, a.piece_classes) = (pieces as i32, piece as i32);
            a.rows as u32
        }
        other => panic!("{other:?} has one shape"),
    };
    let (grid, block) = if threads == 32 { (rows.div_ceil(8), (32, 8)) } else { (rows * pieces, (threads, 1)) };
    step.launch = Launch { grid, block, ..step.launch };
    step
}

/// A figure's line. Nothing is demanded of a time; `met` says whether the results were those of the shipped launch.
fn figure(name: &str, times: &mut [f64], predicted: f64, met: bool) -> String {
    times.sort_by(f64::total_cmp);
    let n = times.len();
    let value = times[n / 2];
    let spread = (times[n - 1 - n / 10] - times[n / 10]) / value;
    let check = std::env::var("LOSSFEED_GPU_CHECK").unwrap_or_else(|_| "sweep".into());
    let rounded = |v: f64, to: f64| (v * to).round() / to;
    json!({
        "check": check, "name": name, "value": rounded(value, 100.0), "unit": "us", "limit": null, "at_least": false,
        "met": met, "n": n, "spread": rounded(spread, 1000.0), "predicted": rounded(predicted, 100.0),
    })
    .to_string()
}

/// Memory of the largest batch, and what the rows are written to.
struct Bench {
    gpu: Gpu,
    logits: CudaSlice<u8>,
    gradient: CudaSlice<u8>,
    columns: CudaSlice<u8>,
    lent: CudaSlice<u8>,
    ends: Instant,
    written: usize,
}

impl Bench {
    fn new(gpu: Gpu) -> Bench {
        let ends = Instant::now() + TIME;
        let stream = &gpu.stream;
        let most = BATCHES.map(|(rows, classes)| 4 * rows * classes).into_iter().max().unwrap();
        // Finite numbers in -8..8, read as bf16 and, two and two, as f32.
        let mut rng = Lcg::new(1);
        let some: Vec<u8> =
            (0..1 << 22).flat_map(|_| half::bf16::from_f64(8.0 * rng.unit()).to_bits().to_ne_bytes()).collect();
        let mut logits = stream.alloc_zeros::<u8>(most).unwrap();
        stream.memcpy_htod(&some, &mut logits.slice_mut(..some.len())).unwrap();
        let mut filled = some.len();
        while filled < most {
            let (from, mut to) = logits.split_at_mut(filled);
            let more = filled.min(most - filled);
            stream.memcpy_dtod(&from.slice(..more), &mut to.slice_mut(..more)).unwrap();
            filled += more;
        }
        let rows = BATCHES.map(|(rows, _)| rows).into_iter().max().unwrap();
        let gradient = stream.alloc_zeros::<u8>(most).unwrap();
        // Loss, max, log_sum, grad_norm, entropy, upstream; targets.
        let columns = stream.alloc_zeros::<u8>(rows * (6 * 4 + 8)).unwrap();
        let scratch = BATCHES.map(|(rows, classes)| scratch_bytes(rows, classes)).into_iter().max().unwrap();
        let lent = stream.alloc_zeros::<u8>(TICKET_BYTES + 4 * rows + 4 * rows * PARTIAL_BYTES + scratch).unwrap();
        Bench { gpu, logits, gradient, columns, lent, ends, written: 0 }
    }

    fn at(&self, memory: &CudaSlice<u8>) -> u64 {
        memory.device_ptr(&self.gpu.stream).0
    }

    /// The shipped launch of a pass, with the places of `reshaped`.
    fn step(&self, pass: Pass, dtype: Dtype, (rows, classes): (usize, usize)) -> (Step, [u64; 2]) {
        let column = |number: usize| self.at(&self.columns) + (4 * rows * number) as u64;
        let [logits, tickets] = [&self.logits, &self.lent].map(|memory| self.at(memory));
        let row_tickets = tickets + TICKET_BYTES as u64;
        let partials = row_tickets + 4 * rows as u64;
        let scratch = (partials + (4 * rows * PARTIAL_BYTES) as u64).next_multiple_of(256);
        let multiprocessors = Card::of(&self.gpu).multiprocessors as u32;
        let (targets, row_stride, ignore_index) = (column(6), classes as i64, -100);
        let (loss, max, log_sum) = (column(0), column(1), column(2));
        if pass == Pass::Backward {
            let batch = Gradient {
                logits,
                targets,
                max,
                log_sum,
                upstream: column(5),
                upstream_stride: 1,
                gradient: self.at(&self.gradient),
                rows,
                classes,
                row_stride,
                gradient_stride: row_stride,
                ignore_index,
                ..Gradient::default()
            };
            return (launch::backward(dtype, &batch, multiprocessors).unwrap(), [0, 0]);
        }
        let mut batch =
            Score { logits, targets, rows, classes, row_stride, ignore_index, loss, max, log_sum, ..Score::default() };
        if pass == Pass::Score {
            (batch.grad_norm, batch.entropy) = (column(3), column(4));
        }
        let steps = launch::score(dtype, &batch, &Lent { tickets, scratch, multiprocessors });
        (steps.into_iter().next().unwrap(), [partials, row_tickets])
    }

    /// Sets targets and upstream gradients of a batch.
    fn begin(&mut self, (rows, classes): (usize, usize)) {
        let mut columns = vec![0f32; 6 * rows];
        columns[5 * rows..].fill(1.0);
        let mut image: Vec<u8> = bytemuck::cast_slice(&columns).to_vec();
        image.extend((0..rows).flat_map(|row| ((row * 7919 % classes) as i64).to_ne_bytes()));
        self.gpu.stream.memcpy_htod(&image, &mut self.columns.slice_mut(..image.len())).unwrap();
    }

    /// Microseconds of these steps in a row, each round of them.
    fn time(&self, module: &Arc<CudaModule>, steps: &[&Step]) -> Result<Vec<f64>, String> {
        let stream = &self.gpu.stream;
        let ready: Vec<_> = steps
            .iter()
            .map(|step| Ok((module.load_function(step.launch.kernel)?, aligned(step.arguments.bytes()), step.launch)))
            .collect::<Result<_, cudarc::driver::DriverError>>()
            .map_err(|e| e.to_string())?;
        let round = || -> Result<(), cudarc::driver::DriverError> {
            for (function, argument, launch) in &ready {
                let mut builder = stream.launch_builder(function);
                builder.arg(&argument[0]);
                let shape = LaunchConfig {
                    grid_dim: (launch.grid, 1, 1),
                    block_dim: (launch.block.0, launch.block.1, 1),
                    shared_mem_bytes: launch.shared_bytes,
                };
                // SAFETY: as in gpu.rs; every address is in memory of this bench, as long as the largest batch.
                unsafe { builder.launch(shape) }?;
            }
            Ok(())
        };
        let timing = || stream.record_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT));
        let measured = || -> Result<Vec<f64>, cudarc::driver::DriverError> {
            round()?;
            round()?;
            let mut marks = vec![];
            for _ in 0..ROUNDS {
                marks.push((timing()?, round()?, timing()?));
            }
            stream.synchronize()?;
            marks.iter().map(|(from, (), to)| Ok(f64::from(from.elapsed_ms(to)?) * 1e3)).collect()
        };
        measured().map_err(|e| e.to_string())
    }

    /// What a pass wrote: losses, or both ends of the gradient.
    fn results(&self, pass: Pass, dtype: Dtype, (rows, classes): (usize, usize)) -> Vec<u8> {
        let stream = &self.gpu.stream;
        let read = |memory: &CudaSlice<u8>, from: usize, bytes: usize| {
            stream.clone_dtoh(&memory.slice(from..from + bytes)).unwrap()
        };
        if pass != Pass::Backward {
            return read(&self.columns, 0, 4 * rows);
        }
        let (bytes, some) = (rows * classes * dtype.bytes(), 1 << 16);
        [read(&self.gradient, 0, some), read(&self.gradient, bytes - some, some)].concat()
    }

    fn write(&mut self, line: &str) {
        self.written += 1;
        match std::env::var_os("LOSSFEED_GPU_FIGURES") {
            Some(file) => {
                let mut file = std::fs::OpenOptions::new().create(true).append(true).open(file).unwrap();
                file.write_all(format!("{line}\n").as_bytes()).unwrap();
                println!("{line}");
            }
            None => println!("FIGURE {line}"),
        }
    }
}

/// Losses that differ by no more than the order of sums may make them; gradients, by nothing.
fn agree(pass: Pass, expected: &[u8], actual: &[u8]) -> bool {
    if pass == Pass::Backward {
        return expected == actual;
    }
    let of = |bytes: &[u8]| -> Vec<f32> { bytemuck::pod_collect_to_vec(bytes) };
    of(expected).iter().zip(of(actual)).all(|(e, a)| (e - a).abs() <= 1e-5 * (1.0 + e.abs()))
}

/// The kernels as they are shipped, under no name, then what the bundle has beside them.
fn builds(gpu: &Gpu) -> Vec<(String, Arc<CudaModule>)> {
    let folder = std::env::var("LOSSFEED_GPU_VARIANTS").unwrap_or_else(|_| ".gpu-bundle/variants".into());
    let mut found = vec![(String::new(), gpu.module.clone())];
    let mut files: Vec<_> =
        std::fs::read_dir(&folder).into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    for file in files.iter().filter(|file| file.extension().is_some_and(|ending| ending == "cubin")) {
        let name = format!(" {}", file.file_stem().unwrap().to_string_lossy());
        match gpu.stream.context().load_module(Ptx::from_binary(std::fs::read(file).unwrap())) {
            Ok(module) => found.push((name, module)),
            Err(e) => println!("the driver refuses {}: {e}", file.display()),
        }
    }
    found
}

#[test]
fn gpu_sweep_of_launch_shapes_and_builds() {
    if std::env::var("LOSSFEED_GPU_CHECK").as_deref() != Ok("sweep") {
        eprintln!("the launch shapes were not swept: LOSSFEED_GPU_CHECK is not \"sweep\"");
        return;
    }
    let Some(gpu) = Gpu::open() else { return };
    let (builds, card) = (builds(&gpu), Card::of(&gpu));
    let mut bench = Bench::new(gpu);
    for (dtype, batch) in [Dtype::BF16, Dtype::F32].into_iter().flat_map(|dtype| BATCHES.map(|batch| (dtype, batch))) {
        bench.begin(batch);
        let of = format!("{} {}x{}", dtype.name(), batch.0, batch.1);
        for pass in [Pass::Loss, Pass::Score, Pass::Backward] {
            let (shipped, lent) = bench.step(pass, dtype, batch);
            let mut expected = None;
            let shapes = SHAPES.map(|(threads, pieces)| reshaped(&shipped, batch.1, threads, pieces, lent));
            let shapes = shapes
                .iter()
                .filter(|step| (step.launch.grid, step.launch.block) != (shipped.launch.grid, shipped.launch.block));
            let tries = builds.iter().map(|build| (build, &shipped)).chain(shapes.map(|step| (&builds[0], step)));
            for ((name, module), step) in tries {
                if Instant::now() > bench.ends {
                    println!("no time for the rest: from {} {of} on", pass.name());
                    return;
                }
                let Launch { grid, block: (threads, rows), .. } = step.launch;
                let label = format!("{} {of} {grid} blocks of {threads}x{rows}{name}", pass.name());
                let mut times = match bench.time(module, &[step]) {
                    Ok(times) => times,
                    Err(e) => panic!("{label}: {e}"),
                };
                let results = bench.results(pass, dtype, batch);
                let met = agree(pass, expected.get_or_insert_with(|| results.clone()), &results);
                let line = figure(&label, &mut times, card.predicted(pass, dtype, batch, &step.launch), met);
                bench.write(&line);
            }
        }
        // A backward behind its forward: what the second-level cache still holds of the logits.
        let [(forward, _), (backward, _)] = [Pass::Loss, Pass::Backward].map(|pass| bench.step(pass, dtype, batch));
        for (name, module) in &builds {
            let mut times = bench.time(module, &[&forward, &backward]).unwrap_or_else(|e| panic!("{of}{name}: {e}"));
            let predicted = [(Pass::Loss, &forward), (Pass::Backward, &backward)]
                .map(|(pass, step)| card.predicted(pass, dtype, batch, &step.launch));
            let line = figure(&format!("loss and backward {of}{name}"), &mut times, predicted[0] + predicted[1], true);
            bench.write(&line);
        }
    }
    assert!(bench.written > 0);
}

/// Needs no GPU, as what follows.
#[test]
fn a_launch_of_another_shape_gives_the_same_scores_and_gradients() {
    let Some(mut machine) = fiber::machine() else { return };
    let case = case_of(Dtype::BF16, (5, 5000, 1, 1, 132), Flavour::Plain, 3);
    let expected = lossfeed_kernels::reference::score(&case.view(), &case.targets, case.ignore_index, B0).unwrap();
    for (threads, pieces) in SHAPES {
        let mut scoring = Scoring::new(&case, 132, 0);
        let program = &mut scoring.program;
        let lent = program.lend(case.rows, case.classes, 132);
        let places =
            [program.output(case.rows * 4 * PARTIAL_BYTES), program.buffer(Kind::Output, 0, vec![0; 4 * case.rows])];
        let steps = launch::score(case.dtype, &scoring.batch, &lent);
        let step = reshaped(&steps[0], case.classes, threads, pieces, places);
        assert_eq!(step.launch.grid as usize, if threads == 32 { 1 } else { case.rows * pieces });
        let gradient = |program: &mut crate::program::Program| Gradient {
            logits: scoring.batch.logits,
            targets: scoring.batch.targets,
            max: scoring.batch.max,
            log_sum: scoring.batch.log_sum,
            upstream: scoring.batch.loss,
            gradient: program.output(case.rows * case.classes * 2),
            rows: case.rows,
            classes: case.classes,
            row_stride: case.row_stride as i64,
            gradient_stride: case.classes as i64,
            ignore_index: case.ignore_index,
            ..Gradient::default()
        };
        let [shipped, other] = [gradient(program), gradient(program)];
        program.call([step]);
        let backward = |batch: &Gradient| launch::backward(case.dtype, batch, 132).unwrap();
        program.call([backward(&shipped), reshaped(&backward(&other), case.classes, threads, pieces, [0, 0])]);
        let memory = machine.run(&scoring.program, 1).unwrap();
        same(&expected, &scoring.answer(&memory).scores, B0).unwrap_or_else(|e| panic!("{e}: {threads} x {pieces}"));
        assert!(memory.bytes(shipped.gradient) == memory.bytes(other.gradient), "{threads} x {pieces}");
    }
}

#[test]
fn the_model_predicts_what_the_readme_says() {
    let h200 = Card { multiprocessors: 132.0, clock_mhz: 1980.0, read: 4.5e6 };
    let of = |pass, dtype, batch: (usize, usize)| {
        let score =
            Score { rows: batch.0, classes: batch.1, grad_norm: u64::from(pass == Pass::Score), ..Score::default() };
        let step = match pass {
            Pass::Backward => {
                let batch = Gradient { rows: batch.0, classes: batch.1, ..Gradient::default() };
                launch::backward(dtype, &batch, 132).unwrap()
            }
            _ => launch::score(dtype, &score, &Lent { tickets: 0, scratch: 0, multiprocessors: 132 }).remove(0),
        };
        h200.predicted(pass, dtype, batch, &step.launch)
    };
    let readme = include_str!("../../kernels/README.md");
    for ((rows, classes), dtype) in BATCHES.into_iter().flat_map(|batch| [(batch, Dtype::F32), (batch, Dtype::BF16)]) {
        let thousands = |n: usize| format!("{},{:03}", n / 1000, n % 1000);
        let start = format!("| {} x {} | {} |", thousands(rows), thousands(classes), dtype.name());
        let line = readme.lines().find(|line| line.starts_with(&start)).unwrap_or_else(|| panic!("no line {start}"));
        let cells: Vec<f64> =
            line.split('|').map(|cell| cell.trim().replace(',', "").parse().unwrap_or(f64::NAN)).collect();
        let expected = [Pass::Loss, Pass::Score, Pass::Backward].map(|pass| of(pass, dtype, (rows, classes)));
        for (cell, expected) in [cells[8], cells[11], cells[16]].into_iter().zip(expected) {
            assert!((cell - expected).abs() <= 0.03 * expected, "{cell}, not {expected:.0}: {line}");
        }
    }
}

#[test]
fn a_figure_is_a_line_of_json() {
    let line = figure("loss", &mut [3.0, 1.0, 2.0], 1.5, true);
    let read: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!((read["value"].as_f64(), read["n"].as_u64(), read["met"].as_bool()), (Some(2.0), Some(3), Some(true)));
    assert_eq!((read["spread"].as_f64(), read["limit"].is_null(), line.contains('\n')), (Some(1.0), true, false));
    let losses: Vec<u8> = bytemuck::cast_slice(&[1f32, 2.0]).to_vec();
    let off: Vec<u8> = bytemuck::cast_slice(&[1f32, 2.1]).to_vec();
    assert!(
        agree(Pass::Loss, &losses, &losses)
            && !agree(Pass::Loss, &losses, &off)
            && !agree(Pass::Backward, &losses, &off)
    );
}
