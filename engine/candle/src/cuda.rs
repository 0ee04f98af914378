//! The scoring pass on a CUDA device: our PTX in candle's context, on candle's stream.
//!
//! Nothing here waits for the device except [`SideScores::to_host`]. Every launch goes through [`launch_pass`]: a
//! change of the kernels' arguments is a change of that function.
#![allow(unsafe_code)]

use std::sync::Arc;

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::cudarc::driver::{
    CudaEvent, CudaSlice, CudaStream, DevicePtr, DeviceRepr, LaunchConfig, PushKernelArg, sys,
};
use candle_core::cuda_backend::{CudaDType, CudaDevice, CudaStorage, DeviceId, WrapErr};
use candle_core::{DType, Error, Layout, Result, Shape, Storage, Tensor, WithDType};
use half::{bf16, f16};
use lossfeed_kernels::launch::{self, Home, Launch, Lent, Score, Step, TICKET_BYTES};
use lossfeed_kernels::{AnyScores, Dtype, ScoreError, Scores, ptx};
use lossfeed_sync::Mutex;

use crate::shape::row_shape;

/// Name of our module among candle's.
const MODULE: &str = "lossfeed";
/// What the error word holds while no target was bad.
const NO_ERROR: u32 = u32::MAX;

/// What a pass leaves on the device beside terms, maxima and log-sums.
pub(crate) struct SideScores {
    memory: CudaSlice<u8>,
    places: Places,
    rows: usize,
    classes: usize,
    /// The pass has ended.
    done: CudaEvent,
    device: CudaDevice,
}

/// Byte offsets in [`SideScores::memory`], far enough apart for any element.
#[derive(Clone, Copy)]
struct Places {
    loss: usize,
    grad_norm: usize,
    entropy: usize,
    correct: usize,
    count: usize,
    rank_score: usize,
    error: usize,
    bytes: usize,
}

impl Places {
    fn new(rows: usize, real_bytes: usize) -> Self {
        let mut bytes = 0;
        let mut place = |length: usize| {
            let here = bytes;
            bytes += length.next_multiple_of(256);
            here
        };
        let [loss, grad_norm, entropy] = [(); 3].map(|()| place(real_bytes * rows));
        let (correct, count, rank_score, error) = (place(rows), place(4 * rows), place(4 * rows), place(4));
        Self { loss, grad_norm, entropy, correct, count, rank_score, error, bytes }
    }
}

/// Scores `logits` against int64 `targets`: (3, rows) of term, max and log_sum, and the rest.
pub(crate) fn score(
    logits: &CudaStorage,
    logits_layout: &Layout,
    targets: &CudaStorage,
    targets_layout: &Layout,
    (ignore_index, label_smoothing, rank_base): (i64, f64, f32),
) -> Result<(CudaStorage, Shape, SideScores)> {
    let address = match logits.dtype() {
        DType::F16 => address::<f16>,
        DType::BF16 => address::<bf16>,
        DType::F32 => address::<f32>,
        DType::F64 => address::<f64>,
        other => return Err(Error::UnsupportedDTypeForOp(other, "lossfeed-score-rows").bt()),
    };
    if !(rank_base > 0.0 && rank_base.is_finite()) {
        return Err(Error::wrap(ScoreError::Base { b0: rank_base }));
    }
    let pass = Pass {
        logits,
        logits_layout,
        logits_address: address,
        targets,
        targets_layout,
        ignore_index,
        label_smoothing,
        rank_base,
    };
    if logits.dtype() == DType::F64 {
        pass.run::<f64>(Dtype::F64)
    } else {
        pass.run::<f32>(narrow_dtype(logits.dtype()))
    }
}

fn narrow_dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        _ => Dtype::F32,
    }
}

/// The device address of a layout's first element, good while the storage lives and for work on `stream`.
fn address<T: CudaDType + candle_core::cuda_backend::cudarc::driver::DeviceRepr>(
    storage: &CudaStorage,
    layout: &Layout,
    stream: &CudaStream,
) -> Result<u64> {
    let (base, _recorded) = storage.as_cuda_slice::<T>()?.device_ptr(stream);
    Ok(base + (layout.start_offset() * size_of::<T>()) as u64)
}

struct Pass<'a> {
    logits: &'a CudaStorage,
    logits_layout: &'a Layout,
    logits_address: fn(&CudaStorage, &Layout, &CudaStream) -> Result<u64>,
    targets: &'a CudaStorage,
    targets_layout: &'a Layout,
    ignore_index: i64,
    label_smoothing: f64,
    rank_base: f32,
}

impl Pass<'_> {
    /// `R`: the type of the scores.
    fn run<R>(&self, dtype: Dtype) -> Result<(CudaStorage, Shape, SideScores)>
    where
        R: CudaDType + candle_core::cuda_backend::cudarc::driver::DeviceRepr,
    {
        let device = self.logits.device().clone();
        let stream = device.cuda_stream();
        let (rows, classes, row_stride) = row_shape(self.logits_layout)?;
        let places = Places::new(rows, size_of::<R>());
        // SAFETY: both are written in full by the pass below (with no rows, they have no part that is read) before
        // anything reads them on this stream; the error word is set just below.
        let (found, mut memory) = unsafe { (device.alloc::<R>(3 * rows)?, device.alloc::<u8>(places.bytes)?) };
        let mut error_word = memory.slice_mut(places.error..places.error + 4);
        stream.memcpy_htod(&NO_ERROR.to_ne_bytes(), &mut error_word).w()?;
        if rows > 0 {
            let tickets = device.alloc_zeros::<u8>(TICKET_BYTES)?;
            // SAFETY: the kernels read nothing of it that they have not written.
            let scratch = unsafe { device.alloc::<u8>(launch::scratch_bytes(rows, classes))? };
            let sm = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
            let multiprocessors = stream.context().attribute(sm).w()?.unsigned_abs();
            let term = found.device_ptr(&stream).0;
            let column = (size_of::<R>() * rows) as u64;
            let side = memory.device_ptr(&stream).0;
            let at = |offset: usize| side + offset as u64;
            let batch = Score {
                logits: (self.logits_address)(self.logits, self.logits_layout, &stream)?,
                targets: address::<i64>(self.targets, self.targets_layout, &stream)?,
                rows,
                classes,
                row_stride: row_stride as i64,
                ignore_index: self.ignore_index,
                label_smoothing: self.label_smoothing,
                term,
                max: term + column,
                log_sum: term + 2 * column,
                loss: at(places.loss),
                grad_norm: at(places.grad_norm),
                entropy: at(places.entropy),
                correct: at(places.correct),
                error: at(places.error),
                home: Home {
                    count: at(places.count),
                    rank_score: at(places.rank_score),
                    b0: self.rank_base,
                    ..Home::default()
                },
                ..Score::default()
            };
            let lent = Lent {
                tickets: tickets.device_ptr(&stream).0,
                scratch: scratch.device_ptr(&stream).0,
                multiprocessors,
            };
            // SAFETY: logits and targets have the extent of their layouts, which the op's caller checked against each
            // other; the outputs were just allocated with the documented sizes; tickets are zeroed, and they and the
            // scratch are freed on this stream, after the pass.
            unsafe { launch_pass(&device, &launch::score(dtype, &batch, &lent)) }?;
        }
        let done = stream.record_event(None).w()?;
        let storage = CudaStorage::wrap_cuda_slice(found, device.clone());
        let side = SideScores { memory, places, rows, classes, done, device };
        Ok((storage, Shape::from((3, rows)), side))
    }
}

/// A kernel's structure as the launch takes it. The driver copies as much as the kernel's parameter is long.
#[repr(C, align(8))]
struct ByValue([u8; 512]);

// SAFETY: plain bytes, made by `lossfeed_kernels::launch` to be passed by value.
unsafe impl DeviceRepr for ByValue {}

/// Launches the steps in order.
///
/// # Safety
/// Every address in them is good for the extent that `kernels/README.md` gives it until the work on the device's stream
/// has ended.
unsafe fn launch_pass(device: &CudaDevice, steps: &[Step]) -> Result<()> {
    for step in steps {
        let kernel = device.get_or_load_custom_func(step.launch.kernel, MODULE, ptx::module())?;
        let bytes = step.arguments.bytes();
        let mut structure = ByValue([0; 512]);
        structure
            .0
            .get_mut(..bytes.len())
            .ok_or_else(|| Error::msg("a kernel's structure is too long"))?
            .copy_from_slice(bytes);
        let mut builder = kernel.builder();
        builder.arg(&structure);
        // SAFETY: the structure is the kernel's; the caller's promise covers the addresses in it.
        unsafe { builder.launch(shape(step.launch)) }.w()?;
    }
    Ok(())
}

fn shape(launch: Launch) -> LaunchConfig {
    LaunchConfig {
        grid_dim: (launch.grid, 1, 1),
        block_dim: (launch.block.0, launch.block.1, 1),
        shared_mem_bytes: launch.shared_bytes,
    }
}

impl SideScores {
    pub(crate) fn is_ready(&self) -> Result<bool> {
        self.done.try_is_complete().w()
    }

    /// Waits for the pass, not for what the consumer queued behind it.
    pub(crate) fn to_host(&self, found: &Tensor) -> Result<AnyScores> {
        self.done.synchronize().w()?;
        let stream = copy_stream(&self.device)?;
        let image = stream.clone_dtoh(&self.memory).w()?;
        let (storage, _) = found.storage_and_layout();
        let Storage::Cuda(storage) = &*storage else {
            return Err(Error::msg("the maxima are not on the device they were measured on").bt());
        };
        let double = found.dtype() == DType::F64;
        let scores = if double {
            let found = stream.clone_dtoh(storage.as_cuda_slice::<f64>()?).w()?;
            stream.synchronize().w()?;
            AnyScores::F64(self.columns(&found, &image))
        } else {
            let found = stream.clone_dtoh(storage.as_cuda_slice::<f32>()?).w()?;
            stream.synchronize().w()?;
            AnyScores::F32(self.columns(&found, &image))
        };
        match words(&image, self.places.error, 1)[0] {
            NO_ERROR => Ok(scores),
            row => Err(Error::msg(format!(
                "the target of row {row} names none of the {} classes; fix the label, or pass it as ignore_index to leave such rows out",
                self.classes
            ))),
        }
    }

    fn columns<R: WithDType + bytemuck::Pod>(&self, found: &[R], image: &[u8]) -> Scores<R> {
        let (rows, p) = (self.rows, &self.places);
        let reals = |at: usize| bytemuck::pod_collect_to_vec::<u8, R>(&image[at..at + size_of::<R>() * rows]);
        Scores {
            loss: reals(p.loss),
            max: found[rows..2 * rows].to_vec(),
            log_sum: found[2 * rows..].to_vec(),
            grad_norm: reals(p.grad_norm),
            entropy: reals(p.entropy),
            correct: image[p.correct..p.correct + rows].to_vec(),
            count: words(image, p.count, rows).into_iter().map(|w| w as i32).collect(),
            rank_score: words(image, p.rank_score, rows).into_iter().map(f32::from_bits).collect(),
        }
    }
}

fn words(image: &[u8], at: usize, n: usize) -> Vec<u32> {
    bytemuck::pod_collect_to_vec::<u8, u32>(&image[at..at + 4 * n])
}

/// A stream for reading scores, so that reading waits for none of the consumer's work. One a device, made once: making
/// it synchronises the device.
fn copy_stream(device: &CudaDevice) -> Result<Arc<CudaStream>> {
    static STREAMS: Mutex<Vec<(DeviceId, Arc<CudaStream>)>> = Mutex::new(Vec::new());
    let mut streams = STREAMS.lock();
    if let Some((_, stream)) = streams.iter().find(|(id, _)| *id == device.id()) {
        return Ok(Arc::clone(stream));
    }
    let made = device.cuda_stream().context().new_stream().w()?;
    streams.push((device.id(), Arc::clone(&made)));
    Ok(made)
}
