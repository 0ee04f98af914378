//! The very same CUDA text, run on the CPU: `fiber.h` plays the GPU, `driver.cpp` is the program, this is its other
//! end.
//!
//! A separate program, so that a kernel that crashes fails its test and nothing else, and so that this stays free of
//! `unsafe`.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};

use lossfeed_kernels::launch::Launch;
use proptest::prelude::*;

use crate::cases::any_case;
use crate::checks::{self, check};
use crate::gather_checks;
use crate::gradient_checks;
use crate::image_checks;
use crate::mail_checks;
use crate::mean_checks;
use crate::mixing_checks;
use crate::program::{Call, Kind, Machine, Memory, Program};
use crate::ptx::{self, Libraries};
use crate::retouch_checks;
use crate::shapes::{REDUCED, SHAPES};

/// Natural order, and two shuffled ones.
const SCHEDULES: [u64; 3] = [0, 0x5eed, 0xfeed_beef];
/// What the second build watches.
const SANITIZERS: [&str; 3] = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g1"];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Build {
    Plain,
    Sanitized,
    /// With libraries of translated PTX in place of the CUDA text.
    Translated,
}

/// The driver of each build, compiled once; `None` (said in one line) where that cannot be done.
fn driver(build: Build) -> Option<&'static PathBuf> {
    static DRIVERS: [OnceLock<Option<PathBuf>>; 3] = [const { OnceLock::new() }; 3];
    DRIVERS[build as usize].get_or_init(|| compile(build)).as_ref()
}

fn compile(build: Build) -> Option<PathBuf> {
    let (what, place) = ("the CUDA sources were not run", env!("CARGO_TARGET_TMPDIR"));
    let extra: &[&str] = match build {
        Build::Plain => &["-ldl"],
        Build::Sanitized => &[SANITIZERS[0], SANITIZERS[1], SANITIZERS[2], "-ldl"],
        Build::Translated => &["-DLOSSFEED_PTX", "-rdynamic", "-ldl"],
    };
    if build == Build::Sanitized {
        let compiler = &*lossfeed_tests::cpp_compiler(what)?;
        if !links(compiler, Path::new(place)) {
            eprintln!("{what} under sanitizers: {compiler} cannot link them (install libasan and libubsan)");
            return None;
        }
    }
    lossfeed_tests::cpp_built(what, place, "kernels/driver.cpp", "fiber-driver", extra)
}

/// Whether the compiler can build and run the smallest sanitized program.
fn links(compiler: &str, place: &Path) -> bool {
    let stem = place.join(format!("sanitizers-{}", std::process::id()));
    let source = stem.with_extension("cpp");
    std::fs::write(&source, "int main() { return 0; }\n").unwrap();
    let built = Command::new(compiler).args(SANITIZERS).arg(&source).arg("-o").arg(&stem).output();
    built.is_ok_and(|o| o.status.success()) && Command::new(&stem).output().is_ok_and(|o| o.status.success())
}

/// A running driver.
pub(crate) struct Fibers {
    child: Child,
    libraries: Option<Arc<Libraries>>,
}

impl Fibers {
    /// `None` when there is no compiler to build it with. Runs PTX if the environment asks for it.
    pub(crate) fn start(sanitized: bool) -> Option<Fibers> {
        if let Some((libraries, error)) = ptx::asked() {
            return if sanitized { None } else { Fibers::translated(Arc::new(libraries?), &error, 0) };
        }
        let build = if sanitized { Build::Sanitized } else { Build::Plain };
        Some(Fibers { child: spawn(&mut Command::new(driver(build)?)), libraries: None })
    }

    /// Runs translated PTX, with that error of the special functions and the planted fault of that number (0: none).
    pub(crate) fn translated(libraries: Arc<Libraries>, error: &str, fault: usize) -> Option<Fibers> {
        let mut command = Command::new(driver(Build::Translated)?);
        command.arg(libraries.folder()).arg(error).arg(fault.to_string());
        Some(Fibers { child: spawn(&mut command), libraries: Some(libraries) })
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        let got = self.child.stdout.as_mut().unwrap().read_exact(&mut bytes);
        assert!(got.is_ok(), "the driver died: {:?}", self.child.wait());
        bytes
    }

    fn planted(&mut self, kernel: &'static str, seed: u64) -> Result<Vec<f32>, String> {
        let mut program = Program::default();
        program.input(&[0u32; 16]);
        let out = program.output(256);
        let launch = Launch { kernel, grid: 1, block: (64, 1), shared_bytes: 256 };
        program.calls.push(Call { launch, arguments: out.to_ne_bytes().to_vec() });
        self.run(&program, seed).map(|memory| memory.column(out, 64))
    }
}

fn spawn(command: &mut Command) -> Child {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

impl Machine for Fibers {
    fn run(&mut self, program: &Program, seed: u64) -> Result<Memory, String> {
        if let Some(libraries) = &self.libraries {
            let kernels = program.calls.iter().map(|c| c.launch.kernel).filter(|k| !k.starts_with("planted_"));
            kernels.into_iter().try_for_each(|kernel| libraries.make(kernel))?;
        }
        let mut message = Vec::new();
        message.extend(seed.to_ne_bytes());
        message.extend((program.buffers.len() as u32).to_ne_bytes());
        message.extend((program.calls.len() as u32).to_ne_bytes());
        let (at, to, with) = program.meddle.map_or((u64::MAX, 0, [0; 8]), |m| (m.at, m.to, m.with));
        for word in [at, to, with.len() as u64] {
            message.extend(word.to_ne_bytes());
        }
        message.extend(with);
        message.extend([0; 8]);
        for buffer in &program.buffers {
            message.extend((buffer.bytes.len() as u64).to_ne_bytes());
            message.extend((buffer.kind as u32).to_ne_bytes());
            message.extend((buffer.offset as u32).to_ne_bytes());
            message.extend((buffer.hole as u64).to_ne_bytes());
            message.extend(&buffer.bytes);
        }
        for call in &program.calls {
            let mut name = [0u8; 48];
            name[..call.launch.kernel.len()].copy_from_slice(call.launch.kernel.as_bytes());
            message.extend(name);
            let (x, y) = call.launch.block;
            for word in [call.launch.grid, x, y, call.launch.shared_bytes] {
                message.extend(word.to_ne_bytes());
            }
            message.extend((call.arguments.len() as u64).to_ne_bytes());
            message.extend(&call.arguments);
        }
        let sent = self.child.stdin.as_mut().unwrap().write_all(&message);
        assert!(sent.is_ok(), "the driver died: {:?}", self.child.wait());
        let length = u32::from_ne_bytes(self.bytes(4).try_into().unwrap()) as usize;
        if length > 0 {
            return Err(String::from_utf8(self.bytes(length)).unwrap());
        }
        let content = |b: &crate::program::Buffer| if b.kind == Kind::Input { 0 } else { b.bytes.len() };
        Ok(Memory(program.buffers.iter().map(|b| self.bytes(content(b))).collect()))
    }

    fn seeds(&self) -> &'static [u64] {
        &SCHEDULES
    }
}

impl Drop for Fibers {
    fn drop(&mut self) {
        drop(self.child.stdin.take()); // end of requests: the driver leaves
        let _ = self.child.wait();
    }
}

/// For tests in other files.
pub(crate) fn machine() -> Option<impl Machine> {
    Fibers::start(false)
}

#[test]
fn the_kernel_text_equals_the_reference_on_any_batch() {
    let Some(machine) = Fibers::start(false) else { return };
    let machine = std::cell::RefCell::new(machine);
    let classes = prop_oneof![1..48usize, 60..70usize, 250..300usize];
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig { cases: 200, ..ProptestConfig::default() });
    let result = runner.run(&any_case(24, classes, true), |case| {
        // No rows is no launch.
        if case.rows == 0 {
            return Ok(());
        }
        check(&mut *machine.borrow_mut(), &case, 132).map_err(TestCaseError::fail)
    });
    result.unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn the_kernel_text_equals_the_reference_on_every_shape_and_type() {
    let Some(mut machine) = Fibers::start(false) else { return };
    checks::every_shape(&mut machine, &SHAPES, 1);
    checks::every_shape(&mut machine, &[(512, 10, 0, 0, 132), (513, 10, 1, 1, 132), (1300, 3, 0, 0, 132)], 2);
}

#[test]
fn the_kernel_text_gives_the_same_bits_in_every_order_of_blocks_and_threads() {
    let Some(mut machine) = Fibers::start(false) else { return };
    checks::every_schedule_gives_the_same_bits(&mut machine, &[(9, 10, 0, 0, 132), (3, 50_257, 0, 1, 132)]);
}

#[test]
fn the_kernel_text_finds_rows_more_than_2_31_elements_apart() {
    let Some(mut machine) = Fibers::start(false) else { return };
    checks::rows_far_apart(&mut machine);
}

#[test]
fn the_kernel_text_keeps_the_digits_of_losses_where_powers_are_flushed_or_exponents_are_not_fused() {
    let Some(mut machine) = Fibers::start(false) else { return };
    checks::edges_of_the_exponent(&mut machine);
}

#[test]
fn the_kernel_text_smooths_and_weights_as_the_definition() {
    let Some(mut machine) = Fibers::start(false) else { return };
    checks::terms(&mut machine, &SHAPES);
}

#[test]
fn the_kernel_text_makes_one_number_of_a_batch_and_starts_the_backward_from_it() {
    let Some(mut machine) = Fibers::start(false) else { return };
    mean_checks::means(&mut machine, &SHAPES);
    mean_checks::means(&mut machine, &[(1300, 3, 0, 0, 132), (515, 300, 0, 0, 132)]);
    mean_checks::backward_of_a_mean(&mut machine, &SHAPES);
}

#[test]
fn the_kernel_text_ranks_losses_bit_for_bit_as_their_definition() {
    let Some(mut machine) = Fibers::start(false) else { return };
    checks::ranks(&mut machine, &[1, 2, 31, 255, 513, 1025, 2048, 2049, 3000, 4097, 16_384, 40_000, 65_536, 70_000]);
}

#[test]
fn the_kernel_text_writes_the_gradient_of_the_definition() {
    let Some(mut machine) = Fibers::start(false) else { return };
    gradient_checks::backward(&mut machine, &SHAPES);
}

#[test]
fn a_backward_begins_with_the_rows_that_the_forward_read_last() {
    let Some(mut machine) = Fibers::start(false) else { return };
    gradient_checks::the_last_rows_come_first(&mut machine);
}

#[test]
fn the_kernel_text_of_losses_alone_gives_the_bits_of_the_whole() {
    let Some(mut machine) = Fibers::start(false) else { return };
    checks::losses_alone(&mut machine, &SHAPES);
}

#[test]
fn the_kernel_text_scores_probabilities_and_writes_their_gradient_as_the_definition() {
    let Some(mut machine) = Fibers::start(false) else { return };
    gradient_checks::probabilities(&mut machine, &SHAPES);
}

#[test]
fn the_kernel_text_scores_sequences_as_the_definition() {
    let Some(mut machine) = Fibers::start(false) else { return };
    mail_checks::sequences(&mut machine);
}

#[test]
fn the_kernel_text_mails_what_it_wrote_and_drops_what_has_no_room() {
    let Some(mut machine) = Fibers::start(false) else { return };
    mail_checks::mail(&mut machine, &[9, 512, 700, 5000, 66_000]);
    mail_checks::mail_of_losses(&mut machine, &[1, 100, 5000, 66_000]);
    mail_checks::a_closed_mailbox(&mut machine);
    mail_checks::what_the_device_remembers_of_the_host(&mut machine);
}

#[test]
fn a_mailbox_that_changes_under_a_running_kernel_gets_a_whole_batch_in_one_slot_or_none() {
    let Some(mut machine) = Fibers::start(false) else { return };
    mail_checks::emptied_meanwhile(&mut machine);
}

#[test]
fn the_kernel_text_reports_the_first_bad_row_of_every_generation() {
    let Some(mut machine) = Fibers::start(false) else { return };
    mail_checks::bad_rows(&mut machine);
}

#[test]
fn the_kernel_text_makes_images_as_the_definition() {
    let Some(mut machine) = Fibers::start(false) else { return };
    image_checks::trained_on(&mut machine, 5);
    let machine = std::cell::RefCell::new(machine);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig { cases: 150, ..ProptestConfig::default() });
    let made = |case| image_checks::check(&mut *machine.borrow_mut(), &case).map_err(TestCaseError::fail);
    runner.run(&image_checks::any_image(), made).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn the_kernel_text_erases_and_mixes_images_as_the_definition() {
    let Some(mut machine) = Fibers::start(false) else { return };
    mixing_checks::trained_on(&mut machine);
    let machine = std::cell::RefCell::new(machine);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig { cases: 200, ..ProptestConfig::default() });
    let made = |case| mixing_checks::check(&mut *machine.borrow_mut(), &case).map_err(TestCaseError::fail);
    runner.run(&mixing_checks::any_mixing(), made).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn the_kernel_text_retouches_images_as_loader_threads_do() {
    let Some(mut machine) = Fibers::start(false) else { return };
    retouch_checks::trained_on(&mut machine, 16);
    retouch_checks::every_operation(&mut machine, 31);
    retouch_checks::every_color(&mut machine);
    let machine = std::cell::RefCell::new(machine);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig { cases: 150, ..ProptestConfig::default() });
    let made = |case| retouch_checks::check(&mut *machine.borrow_mut(), &case).map_err(TestCaseError::fail);
    runner.run(&retouch_checks::any_retouch(), made).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn the_kernel_text_gathers_rows_of_every_width() {
    let Some(mut machine) = Fibers::start(false) else { return };
    gather_checks::every_width(&mut machine);
}

#[test]
fn a_target_outside_the_classes_raises_the_error_word_and_leaves_the_other_rows_alone() {
    let Some(mut machine) = Fibers::start(false) else { return };
    checks::bad_targets(&mut machine);
}

#[test]
fn the_kernel_text_runs_clean_under_address_and_undefined_behaviour_sanitizers() {
    let Some(mut machine) = Fibers::start(true) else { return };
    checks::every_shape(&mut machine, &REDUCED, 1);
    checks::losses_alone(&mut machine, &REDUCED);
    checks::terms(&mut machine, &REDUCED);
    mean_checks::means(&mut machine, &REDUCED);
    mean_checks::backward_of_a_mean(&mut machine, &REDUCED);
    checks::ranks(&mut machine, &[1, 513, 2049, 5000]);
    gradient_checks::backward(&mut machine, &REDUCED);
    gradient_checks::probabilities(&mut machine, &REDUCED);
    mail_checks::sequences(&mut machine);
    mail_checks::mail(&mut machine, &[9, 700]);
    image_checks::trained_on(&mut machine, 2);
    mixing_checks::trained_on(&mut machine);
    retouch_checks::trained_on(&mut machine, 3);
    retouch_checks::every_operation(&mut machine, 2);
    gather_checks::every_width(&mut machine);
    checks::bad_targets(&mut machine);
}

#[test]
fn the_fibers_find_planted_bugs() {
    let Some(mut machine) = Fibers::start(false) else { return };
    let sound: Vec<f32> = (0..64).map(|i| ((i + 1) % 64) as f32 + 100.0 * if i < 32 { 1.0 } else { 33.0 }).collect();
    for seed in SCHEDULES {
        assert_eq!(machine.planted("planted_sound", seed), Ok(sound.clone()));
    }
    for (kernel, message) in [
        ("planted_barrier_in_a_branch", "deadlock: a thread waits in __syncthreads"),
        ("planted_divergent_collective", "divergent warp"),
        ("planted_misaligned_load", "misaligned load of 16 bytes"),
        ("planted_load_behind_the_end", "a load outside the inputs"),
        ("planted_read_only_load_of_an_output", "a load outside the inputs"),
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
