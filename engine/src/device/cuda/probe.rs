//! What this machine offers, asked without risk.
#![allow(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use crate::process::pid;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use lossfeed_sync::PerProcess;

/// A GPU, as the driver describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// The driver's number for it in this process (after `CUDA_VISIBLE_DEVICES`).
    pub ordinal: usize,
    /// Product name.
    pub name: String,
    /// UUID as NVML prints it: `GPU-xxxxxxxx-xxxx-…`.
    pub uuid: Option<String>,
    /// Compute capability: (major, minor).
    pub compute: (u32, u32),
    /// Memory in bytes.
    pub memory_bytes: u64,
}

/// What there is, and if there is nothing, why.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Probe {
    /// CUDA version the driver supports: (major, minor). `None` without a working driver.
    pub driver_version: Option<(u32, u32)>,
    /// GPUs this process may use.
    pub gpus: Vec<Gpu>,
    /// What is wrong, in one line.
    pub problem: Option<String>,
}

/// Asks the driver, once per process; never panics, makes no context, touches no GPU memory.
pub fn probe() -> Probe {
    static CACHE: PerProcess<OnceLock<Probe>> = PerProcess::new();
    let asked = || {
        // A missing function of the driver is a panic in the bindings.
        catch_unwind(ask).unwrap_or_else(|_| Probe {
            problem: Some("the NVIDIA driver library lacks a function that CUDA 11 has: update the driver".to_owned()),
            ..Probe::default()
        })
    };
    CACHE.of(pid()).get_or_init(asked).clone()
}

fn ask() -> Probe {
    // SAFETY: loads the driver's library and lets go of it; its initialisers run, as they do in every CUDA program.
    #[cfg(not(feature = "cuda-linked"))]
    let present = unsafe { sys::is_culib_present() };
    // A program that the library is linked to does not start without it; the bindings have no such question then.
    #[cfg(feature = "cuda-linked")]
    let present = true;
    if !present {
        let problem = "no NVIDIA driver: libcuda.so.1 not found".to_owned();
        return Probe { problem: Some(problem), ..Probe::default() };
    }
    let mut found = Probe::default();
    if let Err(error) = ask_driver(&mut found) {
        found.problem = Some(describe(error));
    }
    found
}

fn ask_driver(found: &mut Probe) -> Result<(), DriverError> {
    result::init()?;
    let mut version = 0;
    // SAFETY: the pointer is to a local of the right type.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }.result()?;
    let version = version.max(0) as u32;
    found.driver_version = Some((version / 1000, version % 1000 / 10));
    for ordinal in 0..result::device::get_count()?.max(0) {
        let device = result::device::get(ordinal)?;
        let attribute = |which| {
            // SAFETY: `device` came from `get`.
            unsafe { result::device::get_attribute(device, which) }
        };
        use sys::CUdevice_attribute_enum::{
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR,
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
        };
        found.gpus.push(Gpu {
            ordinal: ordinal as usize,
            name: result::device::get_name(device)?,
            uuid: result::device::get_uuid(device).ok().map(|uuid| uuid_text(uuid.bytes.map(|b| b as u8))),
            compute: (attribute(MAJOR)?.max(0) as u32, attribute(MINOR)?.max(0) as u32),
            // SAFETY: `device` came from `get`.
            memory_bytes: unsafe { result::device::total_mem(device)? } as u64,
        });
    }
    Ok(())
}

/// A driver's error in one line: its name, its words.
pub(super) fn describe(error: DriverError) -> String {
    // Asking for the words is itself a call that may not be there.
    let words = catch_unwind(AssertUnwindSafe(|| {
        let name = error.error_name().ok()?.to_string_lossy().into_owned();
        let text = error.error_string().ok()?.to_string_lossy().into_owned();
        Some(format!("{name}: {text}"))
    }));
    words.ok().flatten().unwrap_or_else(|| format!("driver error {}", error.0 as u32))
}

fn uuid_text(bytes: [u8; 16]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_uuid_reads_as_nvml_prints_it() {
        let bytes = std::array::from_fn(|k| (k * 17) as u8);
        assert_eq!(super::uuid_text(bytes), "GPU-00112233-4455-6677-8899-aabbccddeeff");
    }
}
