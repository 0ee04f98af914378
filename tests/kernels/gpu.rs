//! The prebuilt images on a real GPU, where there is one: the same checks as on the fibers. Says so in one line where
//! there is none.
#![allow(unsafe_code)]

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaModule, CudaStream, DevicePtr, LaunchConfig, PushKernelArg, sys};
use cudarc::nvrtc::Ptx;
use lossfeed_kernels::{Dtype, ptx};
use proptest::prelude::*;

use crate::cases::{Flavour, any_case, case};
use crate::checks::{self, check};
use crate::gather_checks;
use crate::gradient_checks;
use crate::image_checks;
use crate::mail_checks;
use crate::mean_checks;
use crate::mixing_checks;
use crate::program::{Kind, Machine, Memory, Program, relocate};
use crate::retouch_checks;
use crate::shapes::SHAPES;

pub(crate) struct Gpu {
    pub(crate) stream: Arc<CudaStream>,
    pub(crate) module: Arc<CudaModule>,
}

impl Gpu {
    pub(crate) fn open() -> Option<Gpu> {
        // SAFETY: only opens and closes shared libraries by the driver's names; their initialisers are the driver's
        // own.
        let present = unsafe { sys::is_culib_present() };
        let context = if present { CudaContext::new(0).ok() } else { None };
        let Some(context) = context else {
            let why = "the kernels were not run on a GPU: no CUDA driver, or no device";
            // `make gpu` sets this: there, a test that finds no GPU has failed.
            assert!(std::env::var_os("LOSSFEED_REQUIRE_GPU").is_none(), "{why}");
            eprintln!("{why}");
            return None;
        };
        let (major, minor) = context.compute_capability().unwrap();
        let image = ptx::images_for((major as u32, minor as u32)).next().expect("the PTX is for every GPU");
        let module = match image.machine_code {
            Some(_) => context.load_module(Ptx::from_binary(image.unpack().unwrap())),
            None => context.load_module(ptx::module().into()),
        };
        let module = module.unwrap_or_else(|e| panic!("the driver loads {}: {e}", image.name));
        Some(Gpu { stream: context.default_stream(), module })
    }

    /// The same GPU with what the driver makes of the PTX.
    fn compiled_by_the_driver(self) -> Gpu {
        let context = self.stream.context();
        let module = context.load_module(ptx::module().into()).expect("the driver compiles the prebuilt PTX");
        Gpu { module, ..self }
    }
}

/// A kernel takes its structure by value: the driver copies as many bytes as the kernel declares from this address, so
/// none may be missing, and the structures hold 64-bit words.
pub(crate) fn aligned(arguments: &[u8]) -> Vec<u64> {
    let mut words = vec![0; arguments.len().div_ceil(8)];
    bytemuck::cast_slice_mut::<u64, u8>(&mut words)[..arguments.len()].copy_from_slice(arguments);
    words
}

impl Machine for Gpu {
    fn run(&mut self, program: &Program, _seed: u64) -> Result<Memory, String> {
        // Every buffer in one allocation, on boundaries of 256 bytes plus its offset, as separate ones would be.
        let mut places = Vec::new();
        let mut end = 0usize;
        for buffer in &program.buffers {
            places.push(end.next_multiple_of(256) + 256 + buffer.offset);
            end = places.last().unwrap() + buffer.bytes.len();
        }
        let mut image = vec![0xa5u8; end + 256];
        let memory = self.stream.clone_htod(&image).unwrap();
        let base = memory.device_ptr(&self.stream).0;
        // A buffer with a hole is too large for the image: it has memory of its own.
        let mut holes = std::collections::HashMap::new();
        for (number, buffer) in program.buffers.iter().enumerate().filter(|(_, b)| b.hole > 0) {
            let mut own = self.stream.alloc_zeros::<u8>(buffer.hole + buffer.bytes.len()).map_err(|e| e.to_string())?;
            self.stream.memcpy_htod(&buffer.bytes, &mut own.slice_mut(buffer.hole..)).map_err(|e| e.to_string())?;
            holes.insert(number, own);
        }
        let base_of = |number: usize| match holes.get(&number) {
            Some(own) => Some(own.device_ptr(&self.stream).0),
            None => places.get(number).map(|place| base + *place as u64),
        };
        for (buffer, &place) in program.buffers.iter().zip(&places) {
            let part = &mut image[place..][..buffer.bytes.len()];
            part.copy_from_slice(&buffer.bytes);
            if buffer.kind == Kind::State {
                relocate(part, base_of);
            }
        }
        let mut memory = memory;
        self.stream.memcpy_htod(&image, &mut memory).unwrap();
        for call in &program.calls {
            let mut arguments = call.arguments.clone();
            relocate(&mut arguments, base_of);
            let argument = aligned(&arguments);
            let function = self.module.load_function(call.launch.kernel).unwrap();
            let shape = LaunchConfig {
                grid_dim: (call.launch.grid, 1, 1),
                block_dim: (call.launch.block.0, call.launch.block.1, 1),
                shared_mem_bytes: call.launch.shared_bytes,
            };
            let mut builder = self.stream.launch_builder(&function);
            builder.arg(&argument[0]);
            // SAFETY: the one argument lies at the start of `argument`, which is as long as the kernel's structure; its
            // addresses lie in an allocation that outlives the copy below, which is on the same stream.
            unsafe { builder.launch(shape) }.map_err(|e| format!("{}: {e}", call.launch.kernel))?;
        }
        let after = self.stream.clone_dtoh(&memory).unwrap();
        self.stream.synchronize().map_err(|e| e.to_string())?;
        let mut owned = vec![false; after.len()];
        for (buffer, &place) in program.buffers.iter().zip(&places) {
            owned[place..][..buffer.bytes.len()].fill(buffer.kind != Kind::Input);
        }
        if let Some(at) = (0..after.len()).find(|&at| !owned[at] && after[at] != image[at]) {
            return Err(format!("a write outside the outputs, at byte {at}"));
        }
        let content = |(b, &place): (&crate::program::Buffer, &usize)| match b.kind {
            Kind::Input => Vec::new(),
            _ => after[place..][..b.bytes.len()].to_vec(),
        };
        Ok(Memory(program.buffers.iter().zip(&places).map(content).collect()))
    }

    fn seeds(&self) -> &'static [u64] {
        &[0, 1]
    }
}

#[test]
fn the_gpu_equals_the_reference_on_any_batch() {
    let Some(gpu) = Gpu::open() else { return };
    let gpu = std::cell::RefCell::new(gpu);
    let classes = prop_oneof![1..48usize, 60..70usize, 250..300usize, 4000..4200usize];
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig { cases: 300, ..ProptestConfig::default() });
    let result = runner.run(&any_case(24, classes, true), |case| {
        // No rows is no launch.
        if case.rows == 0 {
            return Ok(());
        }
        check(&mut *gpu.borrow_mut(), &case, 132).map_err(TestCaseError::fail)
    });
    result.unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn the_gpu_equals_the_reference_on_every_shape_and_type() {
    let Some(mut gpu) = Gpu::open() else { return };
    checks::every_shape(&mut gpu, &SHAPES, 4);
    let training = &[
        (128, 10, 0, 0, 132),
        (512, 100, 0, 0, 132),
        (513, 100, 1, 1, 132),
        (1024, 1000, 0, 0, 132),
        (64, 21_843, 0, 0, 132),
    ];
    checks::every_shape(&mut gpu, training, 2);
}

/// What a GPU without machine code of its own gets, and one whose driver refuses it.
#[test]
fn the_gpu_equals_the_reference_by_the_drivers_own_compilation_too() {
    let Some(gpu) = Gpu::open() else { return };
    let mut gpu = gpu.compiled_by_the_driver();
    checks::every_shape(&mut gpu, &SHAPES, 1);
    gradient_checks::backward(&mut gpu, &SHAPES);
    checks::ranks(&mut gpu, &[1, 513, 5000, 16_385]);
}

#[test]
fn the_gpu_gives_the_same_bits_every_time() {
    let Some(mut gpu) = Gpu::open() else { return };
    checks::every_schedule_gives_the_same_bits(&mut gpu, &[(300, 1000, 0, 0, 132), (3, 50_257, 0, 1, 132)]);
}

#[test]
fn the_gpu_gives_losses_alone_the_bits_of_the_whole() {
    let Some(mut gpu) = Gpu::open() else { return };
    checks::losses_alone(&mut gpu, &SHAPES);
}

#[test]
fn the_gpu_finds_rows_more_than_2_31_elements_apart() {
    let Some(mut gpu) = Gpu::open() else { return };
    checks::rows_far_apart(&mut gpu);
}

#[test]
fn the_gpu_keeps_the_digits_of_losses_where_powers_are_flushed_or_exponents_are_not_fused() {
    let Some(mut gpu) = Gpu::open() else { return };
    checks::edges_of_the_exponent(&mut gpu);
}

#[test]
fn the_gpu_smooths_and_weights_as_the_definition() {
    let Some(mut gpu) = Gpu::open() else { return };
    checks::terms(&mut gpu, &SHAPES);
}

#[test]
fn the_gpu_makes_one_number_of_a_batch_and_starts_the_backward_from_it() {
    let Some(mut gpu) = Gpu::open() else { return };
    mean_checks::means(&mut gpu, &SHAPES);
    mean_checks::means(&mut gpu, &[(1300, 3, 0, 0, 132), (70_000, 10, 0, 0, 132), (5000, 5000, 0, 0, 132)]);
    mean_checks::backward_of_a_mean(&mut gpu, &SHAPES);
}

#[test]
fn the_gpu_ranks_bit_for_bit_as_the_definition() {
    let Some(mut gpu) = Gpu::open() else { return };
    checks::ranks(&mut gpu, &[1, 2, 31, 512, 513, 2048, 2049, 16_384, 65_536, 65_537, 100_000, 1 << 20]);
}

#[test]
fn the_gpu_writes_the_gradient_of_the_definition() {
    let Some(mut gpu) = Gpu::open() else { return };
    gradient_checks::backward(&mut gpu, &SHAPES);
}

#[test]
fn the_gpu_scores_probabilities_and_writes_their_gradient_as_the_definition() {
    let Some(mut gpu) = Gpu::open() else { return };
    gradient_checks::probabilities(&mut gpu, &SHAPES);
}

#[test]
fn the_gpu_scores_sequences_as_the_definition() {
    let Some(mut gpu) = Gpu::open() else { return };
    mail_checks::sequences(&mut gpu);
}

#[test]
fn the_gpu_mails_what_it_wrote_and_drops_what_has_no_room() {
    let Some(mut gpu) = Gpu::open() else { return };
    mail_checks::mail(&mut gpu, &[9, 512, 700, 5000, 66_000]);
    mail_checks::mail_of_losses(&mut gpu, &[1, 100, 5000, 66_000]);
    mail_checks::a_closed_mailbox(&mut gpu);
    mail_checks::what_the_device_remembers_of_the_host(&mut gpu);
    mail_checks::bad_rows(&mut gpu);
}

#[test]
fn the_gpu_makes_images_as_the_definition() {
    let Some(mut gpu) = Gpu::open() else { return };
    image_checks::trained_on(&mut gpu, 256);
    let gpu = std::cell::RefCell::new(gpu);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig { cases: 500, ..ProptestConfig::default() });
    let made = |case| image_checks::check(&mut *gpu.borrow_mut(), &case).map_err(TestCaseError::fail);
    runner.run(&image_checks::any_image(), made).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn the_gpu_erases_and_mixes_images_as_the_definition() {
    let Some(mut gpu) = Gpu::open() else { return };
    mixing_checks::trained_on(&mut gpu);
    let gpu = std::cell::RefCell::new(gpu);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig { cases: 500, ..ProptestConfig::default() });
    let made = |case| mixing_checks::check(&mut *gpu.borrow_mut(), &case).map_err(TestCaseError::fail);
    runner.run(&mixing_checks::any_mixing(), made).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn the_gpu_retouches_images_as_loader_threads_do() {
    let Some(mut gpu) = Gpu::open() else { return };
    retouch_checks::trained_on(&mut gpu, 256);
    retouch_checks::every_operation(&mut gpu, 31);
    retouch_checks::every_color(&mut gpu);
    let gpu = std::cell::RefCell::new(gpu);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig { cases: 500, ..ProptestConfig::default() });
    let made = |case| retouch_checks::check(&mut *gpu.borrow_mut(), &case).map_err(TestCaseError::fail);
    runner.run(&retouch_checks::any_retouch(), made).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn the_gpu_gathers_rows_of_every_width() {
    let Some(mut gpu) = Gpu::open() else { return };
    gather_checks::every_width(&mut gpu);
}

#[test]
fn a_bad_target_on_the_gpu_names_its_row_and_the_context_survives() {
    let Some(mut gpu) = Gpu::open() else { return };
    checks::bad_targets(&mut gpu);
    check(&mut gpu, &case(Dtype::BF16, 300, 10, 10, 0, Flavour::Plain, 1), 132).unwrap();
}

/// Needs no GPU.
#[test]
fn the_argument_of_every_kernel_reaches_the_driver_whole() {
    let sizes: Vec<usize> = ptx::module()
        .lines()
        .filter_map(|line| line.trim().strip_prefix(".param .align 8 .b8 lossfeed_")?.strip_suffix(']'))
        .map(|declared| declared.split_once('[').unwrap().1.parse().unwrap())
        .collect();
    assert_eq!(sizes.len(), ptx::KERNELS.len(), "every kernel takes one structure");
    for size in sizes {
        let arguments: Vec<u8> = (0..size).map(|byte| byte as u8).collect();
        let argument = aligned(&arguments);
        assert_eq!(bytemuck::cast_slice::<u64, u8>(&argument)[..size], arguments[..], "{size} bytes");
    }
}
