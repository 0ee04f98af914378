//! The devices by NVML; a field it will not tell is `None`, a device it cannot open keeps its row.

use std::sync::OnceLock;

use nvml_wrapper::Nvml as Library;
use nvml_wrapper::enum_wrappers::device::{PcieUtilCounter, TemperatureSensor};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;

use super::snapshot::{Gpu, Nvml, NvmlStatus, Process};

/// Bytes of a process's name.
const NAME_BYTES: usize = 64;

/// NVML is loaded once a process: loading costs milliseconds and `--watch` asks every second.
static LIBRARY: OnceLock<Result<Library, NvmlError>> = OnceLock::new();

/// Asks NVML about itself and about every device.
pub(super) fn read() -> (Nvml, Vec<Gpu>) {
    let library = match LIBRARY.get_or_init(Library::init) {
        Ok(library) => library,
        Err(e) => return (unavailable(e), Vec::new()),
    };
    let nvml = Nvml {
        status: NvmlStatus::Ok,
        detail: None,
        driver: library.sys_driver_version().ok(),
        cuda: library.sys_cuda_driver_version().ok().map(|v| format!("{}.{}", v / 1000, v % 1000 / 10)),
    };
    let count = match library.device_count() {
        Ok(count) => count,
        Err(e) => return (Nvml { status: NvmlStatus::Failed, detail: Some(e.to_string()), ..nvml }, Vec::new()),
    };
    // One PCIe counter takes 20 ms of sampling a direction: the devices are read side by side.
    let gpus = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..count).map(|index| scope.spawn(move || device(library, index))).collect();
        let lost = || Gpu { error: Some("its reader thread ended".to_owned()), ..Gpu::default() };
        readers.into_iter().map(|reader| reader.join().unwrap_or_else(|_| lost())).collect()
    });
    (nvml, gpus)
}

fn unavailable(e: &NvmlError) -> Nvml {
    let (status, detail) = match e {
        NvmlError::LibloadingError(_) => (NvmlStatus::LibraryNotFound, "libnvidia-ml.so.1 not found".to_owned()),
        NvmlError::LibraryNotFound => (NvmlStatus::LibraryNotFound, "libnvidia-ml.so.1 not found".to_owned()),
        NvmlError::DriverNotLoaded => {
            (NvmlStatus::DriverNotLoaded, "the NVIDIA kernel module is not loaded".to_owned())
        }
        other => (NvmlStatus::Failed, other.to_string()),
    };
    Nvml { status, detail: Some(detail), driver: None, cuda: None }
}

fn device(library: &Library, index: u32) -> Gpu {
    let device = match library.device_by_index(index) {
        Ok(device) => device,
        Err(e) => return Gpu { index, error: Some(e.to_string()), ..Gpu::default() },
    };
    let memory = device.memory_info().ok();
    let process = |found: ProcessInfo| Process {
        pid: found.pid,
        name: library.sys_process_name(found.pid, NAME_BYTES).ok(),
        memory_bytes: match found.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        },
        has_page: None,
    };
    // NVML counts PCIe traffic in kB/s.
    let pcie = |counter| device.pcie_throughput(counter).ok().map(|kb| u64::from(kb) * 1000);
    Gpu {
        index,
        uuid: device.uuid().ok(),
        name: device.name().ok(),
        error: None,
        temperature_celsius: device.temperature(TemperatureSensor::Gpu).ok(),
        power_watts: device.power_usage().ok().map(|mw| f64::from(mw) / 1000.0),
        power_limit_watts: device.enforced_power_limit().ok().map(|mw| f64::from(mw) / 1000.0),
        utilization_ratio: device.utilization_rates().ok().map(|u| f64::from(u.gpu) / 100.0),
        memory_used_bytes: memory.as_ref().map(|m| m.used),
        memory_total_bytes: memory.as_ref().map(|m| m.total),
        pcie_rx_bytes_per_s: pcie(PcieUtilCounter::Receive),
        pcie_tx_bytes_per_s: pcie(PcieUtilCounter::Send),
        pcie_generation: device.current_pcie_link_gen().ok(),
        pcie_lanes: device.current_pcie_link_width().ok(),
        processes: device.running_compute_processes().unwrap_or_default().into_iter().map(process).collect(),
        idle_seconds: None,
    }
}
