//! The kernels of one device on borrowed streams: `kernels/README.md` has their arguments, `lossfeed_kernels::launch`
//! their shapes.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys;
use lossfeed_kernels::image::{Erased, ImageTransform, Mixed, Retouch};
use lossfeed_kernels::launch::{
    self, Gather, Gradient, Home, Images, Probabilities, ProbabilityGradient, Retouching, Score, Sequences, Step,
};
use lossfeed_kernels::{Dtype, Rows};
use lossfeed_sync::{Mutex, PerProcess};

use super::copy::Event;
use super::driver::{Driver, is_capturing};
use super::lend::Lending;
use super::lines::Lines;
use super::module::{self, Loaded};
use crate::error::{Error, Result};
use crate::process::pid;

/// The kernels of a device. Loaded once a process and never unloaded: a captured graph may hold them.
///
/// A call launches on the caller's stream, waits for nothing and allocates nothing on the device, so it can be
/// captured. Any number of streams may score at a time, and graphs be replayed on any of them (see [`super::lend`]).
pub struct CudaKernels {
    driver: Arc<Driver>,
    image: &'static str,
    functions: Vec<(&'static str, sys::CUfunction)>,
    lending: Lending,
    /// A stream of our own for what is no framework's business. It never waits for another.
    quiet: u64,
    lines: Arc<Lines>,
}

// SAFETY: functions may be used from any thread; the handles are only passed to the driver.
unsafe impl Send for CudaKernels {}
// SAFETY: as above.
unsafe impl Sync for CudaKernels {}

/// Kernels by device.
static LOADED: PerProcess<Mutex<Vec<(usize, Arc<CudaKernels>)>>> = PerProcess::new();

impl CudaKernels {
    /// The kernels of device `ordinal`.
    pub(super) fn of(driver: &Arc<Driver>, ordinal: usize) -> Result<Arc<Self>> {
        let mut loaded = LOADED.of(pid()).lock();
        if let Some((_, kernels)) = loaded.iter().find(|(device, _)| *device == ordinal) {
            return Ok(kernels.clone());
        }
        let kernels = Arc::new(Self::load(driver.clone())?);
        loaded.push((ordinal, kernels.clone()));
        Ok(kernels)
    }

    /// Multiprocessors of the GPU.
    pub fn multiprocessors(&self) -> u32 {
        self.lending.multiprocessors()
    }

    /// Words for mailboxes.
    pub(super) fn lines(&self) -> &Arc<Lines> {
        &self.lines
    }

    /// Queues the closing of the mailbox with this state, behind no work of anybody's. Gives its end.
    ///
    /// # Safety
    /// `state` is a mailbox's, in memory that is never freed.
    pub(super) unsafe fn close_mail(&self, state: u64) -> Result<Event> {
        let done = Event::new(self.driver.clone())?;
        // SAFETY: the caller's promise; the stream is ours and alive.
        unsafe { self.launch(self.quiet, &[launch::mail::close(state)])? };
        done.record(self.quiet)?;
        Ok(done)
    }

    /// The image that the driver took, by its name in `kernels/prebuilt`.
    pub fn image(&self) -> &'static str {
        self.image
    }

    /// Scores logits against class indices. `scratch` is [`launch::scratch_bytes`] of device memory that nobody else
    /// uses until the work has ended (memory of a stream-ordered allocator may be given back at once). Without `error`
    /// and `bad_rows`, bad targets are reported to the stream's own place, see [`Self::take_error`].
    ///
    /// # Safety
    /// `stream` is 0 or a live stream of the device; every address is 0 where that is allowed, or device memory of the
    /// extent and alignment that [`Score`] says, valid on that stream for the work given to it by this call.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Usage`] for shapes the kernels do not take, or in a forked child;
    /// [`crate::ErrorKind::Device`] if the driver refuses.
    pub unsafe fn forward(&self, stream: u64, dtype: Dtype, batch: &Score, scratch: u64) -> Result<()> {
        check_shape(batch.rows, batch.classes, &[batch.row_stride])?;
        check_smoothing(batch.label_smoothing)?;
        check_samples(batch.rows, batch.reduction.sample_rows)?;
        check_home(&batch.home)?;
        // SAFETY: the caller's promises.
        let (lent, bad_rows) = unsafe { self.lending.lend(stream, scratch)? };
        let mut batch = *batch;
        if batch.error == 0 && batch.bad_rows == 0 {
            batch.bad_rows = bad_rows;
        }
        // SAFETY: the caller's promises are the callee's.
        unsafe { self.launch(stream, &launch::score(dtype, &batch, &lent)) }
    }

    /// The gradient of [`Self::forward`]'s terms.
    ///
    /// # Safety
    /// As for [`Self::forward`], with [`Gradient`].
    ///
    /// # Errors
    /// As for [`Self::forward`].
    pub unsafe fn backward(&self, stream: u64, dtype: Dtype, batch: &Gradient) -> Result<()> {
        check_shape(batch.rows, batch.classes, &[batch.row_stride])?;
        check_gradient(batch.rows, batch.classes, batch.gradient_stride)?;
        check_gradient_place(batch.logits, batch.row_stride, batch.gradient, batch.gradient_stride)?;
        check_smoothing(batch.label_smoothing)?;
        check_upstream(&[batch.upstream_stride, batch.upstream_lse_stride])?;
        check_samples(batch.rows, batch.sample_rows)?;
        let step = launch::backward(dtype, batch, self.multiprocessors());
        // SAFETY: the caller's promises are the callee's.
        unsafe { self.launch(stream, step.as_slice()) }
    }

    /// Scores logits against probabilities.
    ///
    /// # Safety
    /// As for [`Self::forward`], with [`Probabilities`].
    ///
    /// # Errors
    /// As for [`Self::forward`].
    pub unsafe fn probabilities(&self, stream: u64, dtype: Dtype, batch: &Probabilities, scratch: u64) -> Result<()> {
        check_shape(batch.rows, batch.classes, &[batch.row_stride, batch.probability_stride])?;
        check_smoothing(batch.label_smoothing)?;
        check_home(&batch.home)?;
        // SAFETY: the caller's promises.
        let (lent, _) = unsafe { self.lending.lend(stream, scratch)? };
        // SAFETY: the caller's promises are the callee's.
        unsafe { self.launch(stream, &launch::probabilities(dtype, batch, &lent)) }
    }

    /// The gradient of [`Self::probabilities`]' losses.
    ///
    /// # Safety
    /// As for [`Self::forward`], with [`ProbabilityGradient`].
    ///
    /// # Errors
    /// As for [`Self::forward`].
    pub unsafe fn backward_probabilities(&self, stream: u64, dtype: Dtype, batch: &ProbabilityGradient) -> Result<()> {
        check_shape(batch.rows, batch.classes, &[batch.row_stride, batch.probability_stride])?;
        check_gradient(batch.rows, batch.classes, batch.gradient_stride)?;
        check_gradient_place(batch.logits, batch.row_stride, batch.gradient, batch.gradient_stride)?;
        check_smoothing(batch.label_smoothing)?;
        check_upstream(&[batch.upstream_stride])?;
        let step = launch::backward_probabilities(dtype, batch, self.multiprocessors());
        // SAFETY: the caller's promises are the callee's.
        unsafe { self.launch(stream, step.as_slice()) }
    }

    /// Scores sequences from their tokens' scores, double if `double`. Scratch is that of `sequences` rows of one
    /// class.
    ///
    /// # Safety
    /// As for [`Self::forward`], with [`Sequences`].
    ///
    /// # Errors
    /// As for [`Self::forward`].
    pub unsafe fn sequences(&self, stream: u64, double: bool, batch: &Sequences, scratch: u64) -> Result<()> {
        check_shape(batch.sequences, batch.length.max(1), &[])?;
        check_home(&batch.home)?;
        // SAFETY: the caller's promises.
        let (lent, _) = unsafe { self.lending.lend(stream, scratch)? };
        // SAFETY: the caller's promises are the callee's.
        unsafe { self.launch(stream, &launch::sequences(double, batch, &lent)) }
    }

    /// Ranks `rows` float32 losses, and mails them with the columns given (float32 or 0) if `home` says so. Scratch is
    /// that of `rows` rows of one class.
    ///
    /// # Safety
    /// As for [`Self::forward`], with `rows` values at every address.
    ///
    /// # Errors
    /// As for [`Self::forward`].
    pub unsafe fn ranks(
        &self,
        stream: u64,
        rows: usize,
        [losses, grad_norm, entropy]: [u64; 3],
        home: &Home,
        scratch: u64,
    ) -> Result<()> {
        check_shape(rows, 1, &[])?;
        check_home(home)?;
        // SAFETY: the caller's promises.
        let (lent, _) = unsafe { self.lending.lend(stream, scratch)? };
        // SAFETY: the caller's promises are the callee's.
        unsafe { self.launch(stream, &launch::ranks(rows, losses, grad_norm, entropy, home, &lent)) }
    }

    /// Retouches the bytes of a batch.
    ///
    /// # Safety
    /// As for [`Self::forward`], with [`Retouching`] and the room that `retouch` takes.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Usage`] beyond what one launch can do; [`crate::ErrorKind::Device`] if the driver refuses.
    pub unsafe fn retouch(&self, stream: u64, retouch: &Retouch, batch: &Retouching) -> Result<()> {
        let step = launch::retouch(retouch, batch).map_err(|blocks| too_many(batch.rows, blocks))?;
        // SAFETY: the caller's promises are the callee's.
        unsafe { self.launch(stream, step.as_slice()) }
    }

    /// Makes the images of a batch.
    ///
    /// # Safety
    /// As for [`Self::forward`], with [`Images`] and the extents of `transform`.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Usage`] for a result not aligned to its elements or beyond what one launch can make;
    /// [`crate::ErrorKind::Device`] if the driver refuses.
    pub unsafe fn images(&self, stream: u64, transform: &ImageTransform, batch: &Images) -> Result<()> {
        if !batch.out.is_multiple_of(transform.dtype().bytes() as u64) {
            return Err(Error::usage(format!(
                "images at {:#x}: need {}-byte alignment",
                batch.out,
                transform.dtype().bytes()
            )));
        }
        let step = launch::images(transform, batch).map_err(|blocks| too_many(batch.rows, blocks))?;
        // SAFETY: the caller's promises are the callee's.
        unsafe { self.launch(stream, step.as_slice()) }
    }

    /// Erases rectangles of rows of images that [`Self::images`] has made at `out`.
    ///
    /// # Safety
    /// As for [`Self::images`]; every row lies within what was made.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Device`] if the driver refuses.
    pub unsafe fn erase(
        &self,
        stream: u64,
        transform: &ImageTransform,
        erased: &[(usize, Erased)],
        out: u64,
    ) -> Result<()> {
        // SAFETY: the caller's promises are the callee's.
        unsafe { self.launch(stream, &launch::erase(transform, erased, out)) }
    }

    /// Mixes `rows` images that [`Self::images`] has made at `out`, in pairs.
    ///
    /// # Safety
    /// As for [`Self::images`].
    ///
    /// # Errors
    /// As for [`Self::images`].
    pub unsafe fn mix(
        &self,
        stream: u64,
        transform: &ImageTransform,
        mixed: &Mixed,
        rows: usize,
        out: u64,
    ) -> Result<()> {
        let step = launch::mix(transform, mixed, rows, out).map_err(|blocks| too_many(rows, blocks))?;
        // SAFETY: the caller's promises are the callee's.
        unsafe { self.launch(stream, step.as_slice()) }
    }

    /// Reads scattered rows of page-locked host memory into one piece of device memory.
    ///
    /// # Safety
    /// As for [`Self::forward`], with [`Gather`]; and the rows stay as they are until the work has ended.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Usage`] for rows longer than a launch counts; [`crate::ErrorKind::Device`] if the driver
    /// refuses.
    pub unsafe fn gather(&self, stream: u64, batch: &Gather<'_>) -> Result<()> {
        let steps = launch::gather(batch, self.multiprocessors())
            .map_err(|bytes| Error::usage(format!("rows of {bytes} bytes are longer than one launch gathers")))?;
        // SAFETY: the caller's promises are the callee's.
        unsafe { self.launch(stream, &steps) }
    }

    /// The first row whose target named no class in the calls on `stream` that have run since this was last asked; else
    /// in those that ran out of captured graphs, or on streams beyond the first 80. Waits for nothing: a call that has
    /// not run yet is told later.
    pub fn take_error(&self, stream: u64) -> Option<u32> {
        self.lending.take_error(stream)
    }

    /// Whether a graph is being captured on `stream`.
    ///
    /// # Safety
    /// `stream` is 0 or a live stream of the device.
    ///
    /// # Errors
    /// As for [`Self::forward`].
    pub unsafe fn is_capturing(&self, stream: u64) -> Result<bool> {
        // SAFETY: the caller's promise.
        self.driver.queue("asking about a capture", || unsafe { is_capturing(stream as sys::CUstream) })
    }

    /// # Safety
    /// Every address in the steps is valid, as [`Self::forward`] says; `stream` is 0 or a live stream of the device.
    unsafe fn launch(&self, stream: u64, steps: &[Step]) -> Result<()> {
        for step in steps {
            let kernel = step.launch.kernel;
            let Some(&(_, function)) = self.functions.iter().find(|(name, _)| *name == kernel) else {
                return Err(Error::internal(format!("no kernel {kernel:?} in the module")));
            };
            // The driver copies the structure during the call.
            let mut parameters = [step.arguments.bytes().as_ptr().cast_mut().cast::<c_void>()];
            self.driver.queue(kernel, || {
                let (grid, (x, y), shared) = (step.launch.grid, step.launch.block, step.launch.shared_bytes);
                let (stream, extra) = (stream as sys::CUstream, std::ptr::null_mut());
                // SAFETY: the caller's promises; shape and argument are made for the kernel by
                // `lossfeed_kernels::launch`.
                unsafe {
                    sys::cuLaunchKernel(function, grid, 1, 1, x, y, 1, shared, stream, parameters.as_mut_ptr(), extra)
                }
                .result()
            })?;
        }
        Ok(())
    }

    fn load(driver: Arc<Driver>) -> Result<Self> {
        let Loaded { image, functions } = module::load(&driver)?;
        let lending = Lending::new(driver.clone(), driver.multiprocessors()?)?;
        let stream = driver.call("making a stream for mailboxes", || driver.context().new_stream())?;
        let quiet = stream.cu_stream() as u64;
        // Like the kernels, for the life of the process.
        std::mem::forget(stream);
        let lines = Arc::new(Lines::new(driver.clone()));
        Ok(Self { driver, image, functions, lending, quiet, lines })
    }
}

impl std::fmt::Debug for CudaKernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaKernels")
            .field("image", &self.image)
            .field("multiprocessors", &self.multiprocessors())
            .finish_non_exhaustive()
    }
}

fn too_many(rows: usize, blocks: u64) -> Error {
    Error::usage(format!("{rows} images need {blocks} blocks, more than one launch has: lower batch_size"))
}

fn check_shape(rows: usize, classes: usize, strides: &[i64]) -> Result<()> {
    if rows > Rows::MAX || classes == 0 || classes > Rows::MAX {
        return Err(Error::usage(format!("{rows} rows of {classes} classes: need at most {} of either", Rows::MAX)));
    }
    match strides.iter().find(|&&stride| stride < 0) {
        Some(stride) => Err(Error::usage(format!("a row stride of {stride}: negative strides are not read"))),
        None => Ok(()),
    }
}

fn check_gradient(rows: usize, classes: usize, stride: i64) -> Result<()> {
    if rows > 1 && stride < classes as i64 {
        return Err(Error::usage(format!(
            "a gradient with a row stride of {stride} for {classes} classes overlaps itself"
        )));
    }
    Ok(())
}

/// In place means the same elements: other overlaps would be written before they are read.
fn check_gradient_place(logits: u64, row_stride: i64, gradient: u64, gradient_stride: i64) -> Result<()> {
    if logits == gradient && row_stride != gradient_stride {
        return Err(Error::usage(format!(
            "a gradient in place with a row stride of {gradient_stride}, the logits' is {row_stride}"
        )));
    }
    Ok(())
}

fn check_smoothing(label_smoothing: f64) -> Result<()> {
    if (0.0..=1.0).contains(&label_smoothing) {
        return Ok(());
    }
    Err(Error::settings(format!("label_smoothing is {label_smoothing}: need 0 to 1")))
}

fn check_upstream(strides: &[i32]) -> Result<()> {
    match strides.iter().find(|stride| !(0..=1).contains(*stride)) {
        Some(stride) => Err(Error::usage(format!("upstream gradients with a stride of {stride}: need 0 or 1"))),
        None => Ok(()),
    }
}

fn check_samples(rows: usize, sample_rows: usize) -> Result<()> {
    if sample_rows == 0 || rows.is_multiple_of(sample_rows) {
        return Ok(());
    }
    Err(Error::usage(format!("{rows} rows are no whole number of samples of {sample_rows} rows each")))
}

fn check_home(home: &Home) -> Result<()> {
    if home.b0 > 0.0 && home.b0.is_finite() {
        return Ok(());
    }
    Err(Error::settings(format!("b0 is {}: need a finite number above 0", home.b0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn what_the_kernels_do_not_check_is_refused_here() {
        let usage = |result: Result<()>| assert_eq!(result.unwrap_err().kind(), ErrorKind::Usage);
        usage(check_shape(1, 0, &[]));
        usage(check_shape(Rows::MAX + 1, 1, &[]));
        usage(check_shape(1, 1, &[4, -1]));
        usage(check_gradient(2, 10, 9));
        usage(check_gradient_place(64, 10, 64, 11));
        usage(check_upstream(&[0, 2]));
        usage(check_samples(10, 3));
        assert_eq!(check_smoothing(f64::NAN).unwrap_err().kind(), ErrorKind::Settings);
        assert_eq!(check_home(&Home { b0: 0.0, ..Home::default() }).unwrap_err().kind(), ErrorKind::Settings);
        check_shape(0, 1, &[0]).unwrap();
        check_gradient(1, 10, 0).unwrap();
        check_gradient_place(64, 10, 64, 10).unwrap();
        check_smoothing(1.0).unwrap();
        check_samples(12, 3).unwrap();
        check_home(&Home::default()).unwrap();
    }
}
