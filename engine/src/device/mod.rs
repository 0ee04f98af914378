//! The machine a batch ends on: the CPU or a CUDA GPU, behind one trait.
//!
//! The CPU is a real device, not a mock: every room above works on it unchanged. Only this room calls a driver. What
//! a CPU has no counterpart of (copies on a stream, kernels, the mailbox) is [`Cuda`]'s own, which above this room only
//! `engine` calls (`courier.rs`, `copy_cost.rs`, `mail.rs`). A house test holds both.

mod cpu;
pub mod cuda;
pub(crate) mod nearby;

use std::fmt;
use std::sync::Arc;

pub use cpu::Cpu;
pub use cuda::{Cuda, Probe, probe};

use crate::error::{Error, Result};

/// Memory is page-locked in pieces of at most this many bytes, counted from its start: larger ones hold driver locks
/// for long (vLLM issue 42632) and fail from 512 GiB on. One copy does not cross from piece to piece.
pub const PINNED_PIECE_BYTES: usize = 1 << 30;

/// Which machine a device is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// Host memory; staging ends where it begins.
    Cpu,
    /// The CUDA device of this ordinal, as the driver counts them in this process.
    Cuda(usize),
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceKind::Cpu => f.write_str("cpu"),
            DeviceKind::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

/// A machine that batches are staged for.
///
/// # Duties
/// An implementation may be called from any thread. After a `fork` every call in the child must return an error rather
/// than touch a driver, and drops must leak: a driver's context does not survive a fork.
pub trait Device: Send + Sync + fmt::Debug {
    /// The name a person knows it by ("CPU", "NVIDIA H200").
    fn name(&self) -> String;
    /// Which machine it is.
    fn kind(&self) -> DeviceKind;
    /// The GPU's UUID as NVML prints it (`GPU-…`), or `None` where there is none.
    fn uuid(&self) -> Option<String> {
        None
    }
    /// Whether [`Device::register`] page-locks memory. Such memory is prefaulted and mapped shared by its owner,
    /// because a private page that moves (copy on write after a fork) would leave the device reading the old one.
    fn pins(&self) -> bool {
        false
    }
    /// The processors on the device's side of the machine, where memory for it is touched first. Empty: not known, or
    /// all the same.
    fn near_processors(&self) -> &[usize] {
        &[]
    }
    /// Makes `memory` fit for asynchronous copies (page-locks it); nothing to do on a CPU.
    ///
    /// The caller keeps the memory mapped until the registration is dropped: the device may go on reading pages that
    /// the process no longer sees.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Device`] if the driver refuses (the locked-memory limit, a child process after `fork`).
    fn register(&self, memory: &mut [u8]) -> Result<Registration>;
}

/// Memory registered with a device; dropping it ends the registration.
pub struct Registration {
    bytes: u64,
    _guard: Option<Box<dyn Send + Sync>>,
}

impl Registration {
    /// A registration that nothing has to end.
    pub fn none() -> Self {
        Self { bytes: 0, _guard: None }
    }
    /// `bytes` page-locked until `guard` is dropped.
    pub fn pinned(bytes: u64, guard: Box<dyn Send + Sync>) -> Self {
        Self { bytes, _guard: Some(guard) }
    }
    /// Bytes that are page-locked by it.
    pub fn pinned_bytes(&self) -> u64 {
        self.bytes
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration").field("pinned_bytes", &self.bytes).finish()
    }
}

/// A device that [`open`] has found.
#[derive(Debug)]
pub struct Opened {
    /// Any device, as most rooms use it.
    pub device: Arc<dyn Device>,
    /// The same one where it is a GPU, for the calls that only a GPU has.
    pub gpu: Option<Cuda>,
}

/// Reads a device's name: `cpu`, `cuda` (the first GPU) or `cuda:N`.
///
/// # Errors
/// [`crate::ErrorKind::Settings`] for anything else.
pub fn parse(spec: &str) -> Result<DeviceKind> {
    let unknown =
        || Error::settings(format!("device={spec:?} is not one of \"cpu\", \"cuda\" and \"cuda:N\" (N = 0, 1, …)"));
    match spec {
        "cpu" => Ok(DeviceKind::Cpu),
        "cuda" => Ok(DeviceKind::Cuda(0)),
        _ => {
            let ordinal = spec.strip_prefix("cuda:").ok_or_else(unknown)?;
            // `parse` alone would take "+1".
            if ordinal.is_empty() || !ordinal.bytes().all(|b| b.is_ascii_digit()) {
                return Err(unknown());
            }
            ordinal.parse().map(DeviceKind::Cuda).map_err(|_| unknown())
        }
    }
}

/// Opens the device of that name: `cpu`, `cuda` or `cuda:N`.
///
/// # Errors
/// [`crate::ErrorKind::Settings`] for an unknown name, [`crate::ErrorKind::Device`] if there is no such device, with
/// what is missing and what to do.
pub fn open(spec: &str) -> Result<Opened> {
    match parse(spec)? {
        DeviceKind::Cpu => Ok(Opened { device: Arc::new(Cpu), gpu: None }),
        DeviceKind::Cuda(ordinal) => {
            let gpu = Cuda::open(ordinal)?;
            Ok(Opened { device: Arc::new(gpu.clone()), gpu: Some(gpu) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn device_names_are_read_strictly() {
        assert_eq!(parse("cpu").unwrap(), DeviceKind::Cpu);
        assert_eq!(parse("cuda").unwrap(), DeviceKind::Cuda(0));
        assert_eq!(parse("cuda:12").unwrap(), DeviceKind::Cuda(12));
        for bad in ["", "CPU", "gpu", "cuda:", "cuda:+1", "cuda:-1", "cuda:1 ", "cuda:99999999999999999999999", "mps"] {
            let error = parse(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Settings, "{bad}");
            assert!(error.to_string().contains(&format!("{bad:?}")), "{error}");
        }
    }

    #[test]
    fn the_cpu_opens_anywhere_and_pins_nothing() {
        let cpu = open("cpu").unwrap().device;
        assert_eq!((cpu.kind(), cpu.pins(), cpu.uuid()), (DeviceKind::Cpu, false, None));
        assert_eq!(cpu.register(&mut [0; 64]).unwrap().pinned_bytes(), 0);
    }
}
