//! Device memory of our own: little, and not in the way of training. Batches go to memory of the framework.
#![allow(unsafe_code)]

use std::sync::Arc;

use cudarc::driver::sys;

use super::driver::Driver;
use crate::error::Result;

/// An allocation, freed when dropped.
pub struct DeviceMemory {
    driver: Arc<Driver>,
    address: u64,
}

impl DeviceMemory {
    pub(super) fn new(driver: Arc<Driver>, bytes: usize, what: &str) -> Result<Self> {
        let address = driver.zeroed(bytes, what)?;
        Ok(Self { driver, address })
    }

    /// Where it lies on the device.
    pub fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`, freed only here; the driver frees it when work that uses it has ended (cuMemFree
        // waits).
        let _ = self.driver.call("freeing device memory", || unsafe { sys::cuMemFree_v2(self.address) }.result());
    }
}

impl std::fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceMemory").field("address", &self.address).finish_non_exhaustive()
    }
}
