//! The kernels on a borrowed stream: `kernels/README.md` has their arguments, `lossfeed_kernels::launch` their shapes.
#![allow(unsafe_code)]

use std::ffi::{CString, c_void};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::sys;
use lossfeed_kernels::launch::{self, FUSED_RANK_ROWS, Launch, workspace_bytes};
use lossfeed_kernels::{Dtype, Rows, ptx};
use parking_lot::Mutex;

use super::driver::{Driver, Mapped, is_capturing};
use super::mailbox::{HostScores, Mailbox, Places, SLOTS_MAX, Shared};
use crate::error::{Error, Result};

/// Streams a scorer keeps a workspace for. One job scores on one, rarely two.
const STREAMS_MAX: usize = 8;
/// Room for what the driver's compiler says about the kernels.
const LOG_BYTES: usize = 8192;

/// What to score: a matrix of logits and its targets, on the device.
#[derive(Debug, Clone, Copy)]
pub struct ScoreArgs {
    /// Address of the logits: `rows` rows of `classes` elements, `row_stride` elements apart.
    pub logits: u64,
    /// Element type of the logits.
    pub dtype: Dtype,
    /// Address of `rows` int64 class indices.
    pub targets: u64,
    /// Rows.
    pub rows: usize,
    /// Classes.
    pub classes: usize,
    /// Elements between the starts of two rows; 0 is allowed.
    pub row_stride: i64,
    /// Rows with this target are left out.
    pub ignore_index: i64,
    /// Offset of the rank score, above 0.
    pub b0: f32,
}

/// Scores batches on the GPU and brings the scores home, without ever waiting for either.
pub struct Scorer<T: Send + 'static> {
    driver: Arc<Driver>,
    kernels: Kernels,
    rows_max: usize,
    slots: usize,
    workspaces: Mutex<Vec<Workspace>>,
    mailbox: Mailbox<T>,
    dropped: AtomicU64,
}

/// What a stream lends to its launches.
struct Workspace {
    stream: u64,
    memory: u64,
    /// Launches so far, as the kernels count them (they wrap alike).
    launches: u32,
}

impl<T: Send + 'static> Scorer<T> {
    pub(super) fn new<F>(driver: Arc<Driver>, rows_max: usize, slots: usize, sink: F) -> Result<Self>
    where
        F: FnMut(T, &HostScores<'_>) + Send + 'static,
    {
        if rows_max == 0 || rows_max > Rows::MAX || slots == 0 || slots > SLOTS_MAX {
            return Err(Error::settings(format!(
                "scores for batches of {rows_max} rows, {slots} at a time: need 1 to {} rows and 1 to {SLOTS_MAX} batches",
                Rows::MAX
            )));
        }
        let kernels = Kernels::load(driver.clone())?;
        let memory = Arc::new(Mapped::new(driver.clone(), slots * Places::new(rows_max).slot_bytes)?);
        let mailbox = Mailbox::new(memory, rows_max, slots, sink)?;
        let workspaces = Mutex::new(Vec::new());
        Ok(Self { driver, kernels, rows_max, slots, workspaces, mailbox, dropped: AtomicU64::new(0) })
    }

    /// Scores a batch on `stream`; `ticket` comes back with the scores. `false`: no room, the scores are dropped and
    /// counted, and so they are while a graph is being captured (a replay would write into slots that have moved on).
    ///
    /// # Safety
    /// - `stream` is 0 or a live stream of the device.
    /// - `logits` and `targets` are readable on that stream, in the stated extent, until the work given to the stream so
    ///   far and by this call has ended; logits are aligned for their type, targets for int64.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Usage`] for shapes that cannot be scored and in a forked child; [`crate::ErrorKind::Device`] if
    /// the driver refuses.
    pub unsafe fn score(&self, stream: u64, args: &ScoreArgs, ticket: T) -> Result<bool> {
        self.check(args)?;
        if args.rows == 0 {
            return Ok(true);
        }
        // Both without waiting: a score is advice.
        let (Some(claim), Some(mut workspaces)) = (self.mailbox.claim(), self.workspaces.try_lock()) else {
            return Ok(self.drop_one());
        };
        let capturing = self.driver.call("asking whether a graph is being captured", || {
            // SAFETY: the stream is by the caller's promise.
            unsafe { is_capturing(stream as sys::CUstream) }
        })?;
        if capturing {
            return Ok(self.drop_one());
        }
        let workspace = match workspaces.iter_mut().position(|w| w.stream == stream) {
            Some(at) => &mut workspaces[at],
            None => {
                if workspaces.len() == STREAMS_MAX {
                    return Err(Error::usage(format!(
                        "batches were scored on {STREAMS_MAX} streams, this is one more: score on one stream"
                    )));
                }
                let made = self.make_workspace(stream)?;
                workspaces.push(made);
                let last = workspaces.len() - 1;
                &mut workspaces[last]
            }
        };
        let expected = workspace.launches.wrapping_add(1);
        let slot = self.mailbox.arm(&claim, expected);
        // SAFETY: the caller's promises cover logits, targets and stream; the slot is claimed and armed, and its memory
        // and the workspace's live until the sequence word is written or for ever (see Drop).
        match unsafe { self.launch(stream, args, workspace.memory, slot) } {
            Ok(()) => {
                workspace.launches = expected;
                self.mailbox.send(claim, expected, args.rows, args.dtype == Dtype::F64, ticket)?;
                Ok(true)
            }
            Err(error) => {
                // A first launch may be under way although a second was refused: it writes into slot and workspace, and
                // nobody can tell when. Neither is used again.
                std::mem::forget(claim);
                workspaces.retain(|w| w.stream != stream);
                Err(error)
            }
        }
    }

    /// Batches whose scores were dropped for want of room.
    pub fn dropped_total(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Batches whose scores are on their way.
    pub fn away(&self) -> usize {
        self.mailbox.busy(self.slots)
    }

    fn drop_one(&self) -> bool {
        self.dropped.fetch_add(1, Ordering::Relaxed);
        false
    }

    fn check(&self, args: &ScoreArgs) -> Result<()> {
        if args.rows > self.rows_max {
            return Err(Error::usage(format!(
                "{} rows, the loader's batches have at most {}",
                args.rows, self.rows_max
            )));
        }
        if args.classes == 0 || args.classes > Rows::MAX {
            return Err(Error::usage(format!("{} classes: need 1 to {}", args.classes, Rows::MAX)));
        }
        if args.row_stride < 0 {
            return Err(Error::usage(format!("a row stride of {}: negative strides are not read", args.row_stride)));
        }
        if !(args.b0 > 0.0 && args.b0.is_finite()) {
            return Err(Error::settings(format!("b0 is {}: need a finite number above 0", args.b0)));
        }
        Ok(())
    }

    fn make_workspace(&self, stream: u64) -> Result<Workspace> {
        let bytes = workspace_bytes(self.rows_max);
        let memory = self.driver.call("allocating a workspace for scores", || {
            let mut memory = 0;
            // SAFETY: the pointer is to a local.
            unsafe { sys::cuMemAlloc_v2(&raw mut memory, bytes) }.result()?;
            // SAFETY: just allocated, `bytes` long; zeroed on the stream that will use it, before its first use.
            let zeroed = unsafe { sys::cuMemsetD8Async(memory, 0, bytes, stream as sys::CUstream) }.result();
            if let Err(error) = zeroed {
                // SAFETY: just allocated, nobody has it.
                let _ = unsafe { sys::cuMemFree_v2(memory) };
                return Err(error);
            }
            Ok(memory)
        })?;
        Ok(Workspace { stream, memory, launches: 0 })
    }

    /// # Safety
    /// As for [`Self::score`]; `workspace` and `slot` (device addresses) live until the launches have ended.
    unsafe fn launch(&self, stream: u64, args: &ScoreArgs, workspace: u64, slot: u64) -> Result<()> {
        let places = self.mailbox.places();
        let at = |offset: usize| slot + offset as u64;
        // Types and order: kernels/README.md, "lossfeed_score_…". The checks above make the narrowings exact.
        let (logits, targets) = (args.logits, args.targets);
        let (rows, classes) = (args.rows as i32, args.classes as i32);
        let (row_stride, ignore_index, b0) = (args.row_stride, args.ignore_index, args.b0);
        let (loss, lse) = (at(places.loss), at(places.lse));
        let (grad_norm, entropy, correct) = (at(places.grad_norm), at(places.entropy), at(places.correct));
        let (count, rank_score) = (at(places.count), at(places.rank_score));
        let (error, done) = (at(places.error), at(places.done));
        let score = [
            arg(&logits),
            arg(&targets),
            arg(&rows),
            arg(&classes),
            arg(&row_stride),
            arg(&ignore_index),
            arg(&b0),
            arg(&loss),
            arg(&lse),
            arg(&grad_norm),
            arg(&entropy),
            arg(&correct),
            arg(&count),
            arg(&rank_score),
            arg(&workspace),
            arg(&error),
            arg(&done),
        ];
        // SAFETY: the arguments have the types and order of the entry point and outlive the call, which copies them.
        unsafe { self.kernels.launch(stream, &launch::plan(args.rows, args.classes, args.dtype), &score)? };
        if args.rows > FUSED_RANK_ROWS {
            let rank = [arg(&workspace), arg(&rows), arg(&b0), arg(&count), arg(&rank_score), arg(&done)];
            // SAFETY: as above, for `lossfeed_rank`.
            unsafe { self.kernels.launch(stream, &launch::rank(args.rows), &rank)? };
        }
        Ok(())
    }
}

impl<T: Send + 'static> Drop for Scorer<T> {
    fn drop(&mut self) {
        if self.driver.forked() {
            self.mailbox.abandon();
            return;
        }
        if self.mailbox.close() {
            for workspace in self.workspaces.get_mut() {
                // SAFETY: allocated by us; every launch that used it has ended (its sequence word was written).
                let free = || unsafe { sys::cuMemFree_v2(workspace.memory) }.result();
                let _ = self.driver.call("freeing a workspace", free);
            }
        } else {
            // Kernels may be running: what they use is left to the end of the process.
            self.kernels.keep_loaded();
        }
    }
}

impl<T: Send + 'static> std::fmt::Debug for Scorer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scorer").field("rows_max", &self.rows_max).field("dropped", &self.dropped_total()).finish()
    }
}

/// A kernel argument: the driver reads the value through this address during the launch call.
fn arg<V>(value: &V) -> *mut c_void {
    std::ptr::from_ref(value).cast_mut().cast()
}

impl Shared for Mapped {
    fn host(&self) -> NonNull<u8> {
        Mapped::host(self)
    }
    fn device(&self) -> u64 {
        Mapped::device(self)
    }
    fn len(&self) -> usize {
        Mapped::len(self)
    }
}

/// The module and its entry points.
struct Kernels {
    driver: Arc<Driver>,
    /// Null once it is to stay loaded.
    module: sys::CUmodule,
    functions: Vec<(&'static str, sys::CUfunction)>,
}

// SAFETY: modules and functions may be used from any thread; the handles are only passed to the driver.
unsafe impl Send for Kernels {}
// SAFETY: as above.
unsafe impl Sync for Kernels {}

impl Kernels {
    fn load(driver: Arc<Driver>) -> Result<Self> {
        let image =
            CString::new(ptx::module()).map_err(|nul| Error::internal("the shipped PTX holds a zero").because(nul))?;
        let mut log = vec![0u8; LOG_BYTES];
        let mut options =
            [sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER, sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        // The size travels in the pointer's place (cuModuleLoadDataEx).
        let mut values = [log.as_mut_ptr().cast::<c_void>(), std::ptr::without_provenance_mut(LOG_BYTES)];
        let loaded = driver.call("loading the kernels", || {
            let mut module = std::ptr::null_mut();
            let (n, options, values) = (options.len() as u32, options.as_mut_ptr(), values.as_mut_ptr());
            // SAFETY: the image ends with a zero; the two options have their two values; log and arrays outlive the call.
            unsafe { sys::cuModuleLoadDataEx(&raw mut module, image.as_ptr().cast(), n, options, values) }.result()?;
            Ok(module)
        });
        let module = loaded.map_err(|error| {
            let end = log.iter().position(|&b| b == 0).unwrap_or(log.len());
            let said = String::from_utf8_lossy(&log[..end]).trim().to_owned();
            Error::device(if said.is_empty() { "the GPU's driver refuses the kernels".to_owned() } else { said })
                .because(error)
        })?;
        // From here on Drop unloads.
        let mut kernels = Self { driver, module, functions: Vec::with_capacity(ptx::KERNELS.len()) };
        for name in ptx::KERNELS {
            let c_name =
                CString::new(name).map_err(|nul| Error::internal("a kernel's name holds a zero").because(nul))?;
            let function = kernels.driver.call(name, || {
                let mut function = std::ptr::null_mut();
                // SAFETY: the module is loaded; the name ends with a zero; the pointer is to a local.
                unsafe { sys::cuModuleGetFunction(&raw mut function, module, c_name.as_ptr()) }.result()?;
                let mut registers = 0;
                let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_NUM_REGS;
                // The driver loads code when it is first needed; asking about it now keeps that out of a training step and
                // out of a graph capture.
                // SAFETY: the function was just got; the pointer is to a local.
                unsafe { sys::cuFuncGetAttribute(&raw mut registers, attribute, function) }.result()?;
                Ok(function)
            })?;
            kernels.functions.push((name, function));
        }
        Ok(kernels)
    }

    /// # Safety
    /// `arguments` are those of the entry point, in type and order, and what they point to on the device lives until the
    /// launch has ended; `stream` is 0 or a live stream of the device.
    unsafe fn launch(&self, stream: u64, shape: &Launch, arguments: &[*mut c_void]) -> Result<()> {
        let Some(&(_, function)) = self.functions.iter().find(|(name, _)| *name == shape.kernel) else {
            return Err(Error::internal(format!("no kernel {:?} in the module", shape.kernel)));
        };
        let mut arguments = arguments.to_vec();
        self.driver.call(shape.kernel, || {
            let (grid, (x, y)) = (shape.grid, shape.block);
            let stream = stream as sys::CUstream;
            let (parameters, extra) = (arguments.as_mut_ptr(), std::ptr::null_mut());
            // SAFETY: the caller's promises; the shape is the one the kernel is made for (`lossfeed_kernels::launch`).
            unsafe { sys::cuLaunchKernel(function, grid, 1, 1, x, y, 1, shape.shared_bytes, stream, parameters, extra) }
                .result()
        })
    }

    /// Drop will not unload.
    fn keep_loaded(&mut self) {
        self.module = std::ptr::null_mut();
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        if !self.module.is_null() {
            // SAFETY: loaded in `load`, unloaded only here; no launch is under way (`Scorer::drop`).
            let _ = self.driver.call("unloading the kernels", || unsafe { sys::cuModuleUnload(self.module) }.result());
        }
    }
}
