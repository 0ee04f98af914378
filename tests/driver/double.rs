//! Builds the driver double, loads it in the driver's place, and hands out what a framework would have: memory and
//! streams.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use libloading::Library;
use lossfeed::device::cuda::{CopyEvent, Cuda, CudaKernels};
use lossfeed::engine::{Courier, Engine, ImagesBy, ImagesTo};
use lossfeed::error::Result;
use lossfeed::settings::CopyPath;
use lossfeed::staging::BatchSlot;
use lossfeed_kernels::Dtype;
use lossfeed_kernels::launch::{Gather, Score, scratch_bytes};

/// The loaded library; the tests of one process share it.
static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The double, reset, and for the holder alone.
pub(crate) struct Double {
    library: &'static Library,
    /// What was there at the start: loaded kernels stay, and threads of the test before may still be letting go.
    before: [u64; 5],
    _alone: MutexGuard<'static, ()>,
}

/// Compiles the library.
fn build() -> Option<PathBuf> {
    // The bindings ask the loader for `libcuda.so`; a library of that name that is there already is the answer.
    let library = ["-g1", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread", "-Wl,-soname,libcuda.so"];
    let place = env!("CARGO_TARGET_TMPDIR");
    lossfeed_tests::cpp_built("the driver double was not built", place, "driver/double.cpp", "libcuda.so", &library)
}

/// Whether a mailbox of this process still has its thread.
fn scores_are_read() -> bool {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    threads
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok())
        .any(|name| name.trim_end() == "lossfeed-scores")
}

impl Double {
    /// `None`, said in one line, where there is no compiler for it. The device has been opened before: what it keeps
    /// for the life of the process is there.
    pub(crate) fn load() -> Option<Double> {
        let mut double = Double::untouched()?;
        drop(Cuda::open(0).unwrap());
        double.before = double.held();
        Some(double)
    }

    /// Likewise, before anybody has opened the device in this process.
    pub(crate) fn untouched() -> Option<Double> {
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let library = LIBRARY.get_or_init(|| {
            // SAFETY: our own library; its initialisers make empty tables.
            build().map(|path| unsafe { Library::new(path) }.unwrap())
        });
        let mut double = Double { library: library.as_ref()?, before: [0; 5], _alone: alone };
        // SAFETY: the signature is the library's.
        unsafe { double.call::<unsafe extern "C" fn()>("reset")() };
        // A mailbox that was dropped lets go of its ring on a thread of its own.
        (0..500).take_while(|_| scores_are_read()).for_each(|_| std::thread::sleep(Duration::from_millis(10)));
        double.before = double.held();
        Some(double)
    }

    /// Likewise, with the kernels loaded, which stay.
    pub(crate) fn with_kernels() -> Option<Double> {
        Double::load().map(|_alone| drop(Cuda::open(0).unwrap().kernels().unwrap()))?;
        Double::load()
    }

    /// # Safety
    /// `F` is the function's type.
    unsafe fn call<F: Copy + 'static>(&self, name: &str) -> F {
        // SAFETY: the caller's promise; the library is never unloaded.
        unsafe { *self.library.get::<F>(format!("lossfeed_double_{name}\0").as_bytes()).unwrap() }
    }

    pub(crate) fn set(&self, key: &str, value: u64) {
        let key = CString::new(key).unwrap();
        // SAFETY: the signature is the library's; the text outlives the call.
        unsafe { self.call::<unsafe extern "C" fn(*const i8, u64)>("set")(key.as_ptr().cast(), value) }
    }
    pub(crate) fn get(&self, key: &str) -> u64 {
        let key = CString::new(key).unwrap();
        // SAFETY: likewise.
        unsafe { self.call::<unsafe extern "C" fn(*const i8) -> u64>("get")(key.as_ptr().cast()) }
    }
    /// The `after`-th call of that name from now on, counted from 0, gives `code`.
    pub(crate) fn fail(&self, name: &str, after: u64, code: i32) {
        let name = CString::new(name).unwrap();
        // SAFETY: likewise.
        unsafe { self.call::<unsafe extern "C" fn(*const i8, u64, i32)>("fail")(name.as_ptr().cast(), after, code) }
    }
    /// What a real driver would have punished with wrong bytes, a line each.
    pub(crate) fn violations(&self) -> String {
        let mut text = vec![0u8; 64 << 10];
        let (at, room) = (text.as_mut_ptr(), text.len() as u64);
        // SAFETY: likewise; the room is as long as said.
        unsafe { self.call::<unsafe extern "C" fn(*mut u8, u64) -> u64>("violations")(at, room) };
        let end = text.iter().position(|&b| b == 0).unwrap();
        String::from_utf8(text[..end].to_vec()).unwrap()
    }
    fn held(&self) -> [u64; 5] {
        ["pinned_bytes", "device_bytes", "events", "streams", "contexts"].map(|key| self.get(key))
    }
    /// Everything that was taken since the start has been given back. Threads may need a moment to let go.
    pub(crate) fn nothing_is_left(&self) {
        for _ in 0..500 {
            if self.held().iter().zip(self.before).all(|(&now, before)| now <= before) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let (now, before) = (self.held(), self.before);
        panic!("left behind: {now:?} pinned bytes, device bytes, events, streams, contexts; {before:?} at the start");
    }
    /// Nothing was wrong.
    pub(crate) fn is_clean(&self) {
        assert_eq!(self.violations(), "");
        assert_eq!(self.get("mismatches"), 0, "bytes were wrong on the device");
        assert_eq!(
            self.get("current"),
            0,
            "a framework takes its device from the current context: it must be left alone"
        );
    }

    pub(crate) fn allocate(&self, bytes: usize) -> u64 {
        // SAFETY: likewise.
        unsafe { self.call::<unsafe extern "C" fn(u64) -> u64>("allocate")(bytes as u64) }
    }
    pub(crate) fn free(&self, at: u64) {
        // SAFETY: likewise.
        assert!(unsafe { self.call::<unsafe extern "C" fn(u64) -> bool>("free")(at) });
    }
    pub(crate) fn stream(&self) -> u64 {
        // SAFETY: likewise.
        unsafe { self.call::<unsafe extern "C" fn() -> u64>("stream")() }
    }
    pub(crate) fn close_stream(&self, stream: u64) {
        // SAFETY: likewise.
        assert!(unsafe { self.call::<unsafe extern "C" fn(u64) -> bool>("close_stream")(stream) });
    }
    /// What an allocator does when memory is dropped that was used on `stream`.
    pub(crate) fn record(&self, stream: u64) -> bool {
        // SAFETY: likewise.
        unsafe { self.call::<unsafe extern "C" fn(u64) -> bool>("record")(stream) }
    }
    pub(crate) fn synchronize(&self, stream: u64) {
        // SAFETY: likewise.
        assert!(unsafe { self.call::<unsafe extern "C" fn(u64) -> bool>("synchronize")(stream) });
    }
    pub(crate) fn digest(&self, bytes: &[u8]) -> u64 {
        // SAFETY: likewise; the bytes are a live borrow.
        unsafe {
            self.call::<unsafe extern "C" fn(*const u8, u64) -> u64>("digest")(bytes.as_ptr(), bytes.len() as u64)
        }
    }
    /// Work on `stream` that writes `bytes`.
    pub(crate) fn write(&self, stream: u64, at: u64, bytes: &[u8]) {
        type Write = unsafe extern "C" fn(u64, u64, *const u8, u64) -> bool;
        // SAFETY: likewise.
        assert!(unsafe { self.call::<Write>("write")(stream, at, bytes.as_ptr(), bytes.len() as u64) });
    }
    /// Work on `stream` that reads, and counts a mismatch if the digest is another.
    pub(crate) fn check(&self, stream: u64, at: u64, bytes: usize, digest: u64) {
        type Check = unsafe extern "C" fn(u64, u64, u64, u64) -> bool;
        // SAFETY: likewise.
        assert!(unsafe { self.call::<Check>("check")(stream, at, bytes as u64, digest) });
    }
    /// What is on the device when `stream` has come so far.
    pub(crate) fn read(&self, stream: u64, at: u64, count: usize) -> Vec<u8> {
        let mut bytes = vec![0u8; count];
        type Read = unsafe extern "C" fn(u64, u64, *mut u8, u64) -> bool;
        // SAFETY: likewise; the room is as long as said, and the call waits for the work.
        assert!(unsafe { self.call::<Read>("read")(stream, at, bytes.as_mut_ptr(), count as u64) });
        bytes
    }
    pub(crate) fn read_floats(&self, stream: u64, at: u64, count: usize) -> Vec<f32> {
        self.read(stream, at, 4 * count).chunks_exact(4).map(|b| f32::from_ne_bytes(b.try_into().unwrap())).collect()
    }

    /// Starts a copy as a careful caller does: the memory belongs to the test until the end, `after` is a stream of the
    /// double.
    pub(crate) fn copy<S>(&self, cuda: &Cuda, source: S, to: u64, after: u64) -> Result<CopyEvent>
    where
        S: AsRef<[u8]> + Send + 'static,
    {
        // SAFETY: tests free device memory only when its streams are idle; sources are slots, whose bytes stay where
        // they are.
        unsafe { cuda.copy_async(source, to, after) }
    }
    pub(crate) fn wait(&self, cuda: &Cuda, stream: u64, event: &CopyEvent) -> Result<()> {
        // SAFETY: a stream of the double.
        unsafe { cuda.consumer_wait(stream, event) }
    }
    /// Launches the forward; scratch is allocated and left to the test's end.
    pub(crate) fn forward(&self, kernels: &CudaKernels, stream: u64, batch: &Score) -> Result<()> {
        self.forward_in(kernels, stream, batch, self.allocate(scratch_bytes(batch.rows, batch.classes)))
    }
    /// Likewise, with this scratch.
    pub(crate) fn forward_in(&self, kernels: &CudaKernels, stream: u64, batch: &Score, scratch: u64) -> Result<()> {
        // SAFETY: addresses are the double's, which checks every access of the kernels to them.
        unsafe { kernels.forward(stream, Dtype::F32, batch, scratch) }
    }
    /// As a framework does with its own memory and stream.
    pub(crate) fn send_images(
        &self,
        courier: &Courier,
        slot: impl Into<Arc<BatchSlot>>,
        by: &ImagesBy<'_>,
        to: &ImagesTo,
        after: u64,
    ) -> Result<CopyEvent> {
        // SAFETY: as for `copy`.
        unsafe { courier.send_images(slot.into(), by, to, after) }
    }
    /// Likewise.
    pub(crate) fn send(&self, courier: &Courier, slot: Arc<BatchSlot>, to: u64, after: u64) -> Result<CopyEvent> {
        // SAFETY: as for `copy`.
        unsafe { courier.send(slot, to, after) }
    }
    pub(crate) fn courier_wait(&self, courier: &Courier, stream: u64, sent: &CopyEvent) {
        // SAFETY: a stream of the double.
        unsafe { courier.wait(stream, sent) }.unwrap();
    }
    /// Brings the samples that a slot has left in place to where they belong, and keeps nobody from writing over them:
    /// the mistake of [`crate::paths`].
    pub(crate) fn bring_unowned(
        &self,
        engine: &Engine,
        slot: &BatchSlot,
        path: CopyPath,
        to: u64,
        after: u64,
    ) -> Result<CopyEvent> {
        let row_bytes = slot.layout().data_row_bytes();
        let rows = slot.in_place().unwrap().iter();
        // SAFETY: none for the bytes' values, which is the point; the memory lives as long as the engine, which the
        // test holds.
        let forever = |bytes: &[u8]| unsafe { std::slice::from_raw_parts(bytes.as_ptr(), row_bytes) };
        let rows: Vec<(&'static [u8], u64)> =
            rows.map(|(row, record)| (forever(record), to + (row * row_bytes) as u64)).collect();
        let cuda = engine.gpu().unwrap();
        let kernels = cuda.kernels().unwrap();
        // SAFETY: as for `copy`.
        unsafe {
            cuda.queue((), after, |queue| match path {
                CopyPath::Mapped => rows.iter().try_for_each(|(row, to)| {
                    kernels.gather(queue.stream(), &Gather { from: &[row.as_ptr() as u64], row_bytes, out: *to })
                }),
                _ => queue.copy_batch(&rows),
            })
        }
    }
    /// The calling thread has the device's context current from now on, as torch's threads do; or none again.
    pub(crate) fn hold_context(&self, hold: bool) {
        type Set = unsafe extern "C" fn(usize) -> i32;
        // SAFETY: the signature is the library's; the handle is that of its one context, or null.
        let code = unsafe { self.library.get::<Set>(b"cuCtxSetCurrent\0").unwrap()(if hold { 0xc0de } else { 0 }) };
        assert_eq!(code, 0);
    }
    /// A slot's bytes for as long as the test runs, whatever becomes of the slot: the mistake of [`crate::planted`].
    pub(crate) fn forever(&self, slot: &lossfeed::staging::BatchSlot) -> &'static [u8] {
        let bytes = slot.bytes();
        // SAFETY: none for the bytes' values, which is the point; the memory lives as long as the pool, which the test
        // holds.
        unsafe { std::slice::from_raw_parts(bytes.as_ptr(), bytes.len()) }
    }
    /// Calls a function of the driver that the double only knows by name.
    pub(crate) fn unknown(&self) {
        // SAFETY: it takes nothing and ends the process.
        unsafe { self.library.get::<unsafe extern "C" fn() -> i32>(b"cuGraphLaunch\0").unwrap()() };
    }
    /// Touches device memory from the host, which ends the process.
    pub(crate) fn touch(&self, at: u64) -> u8 {
        // SAFETY: none: this is the mistake that the double must catch.
        unsafe { std::ptr::read_volatile(std::ptr::without_provenance::<u8>(at as usize)) }
    }
}
