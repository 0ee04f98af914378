//! Memory for the words that mailboxes share with kernels.

use std::sync::Arc;

use lossfeed_sync::Mutex;

use super::driver::Driver;

/// Lines of mapped words, for the life of the process: kernels may read those of mailboxes that are gone.
pub(super) struct Lines {
    pub(super) driver: Arc<Driver>,
    /// Those that no mailbox has: addresses on the host and on the device.
    pub(super) free: Mutex<Vec<(usize, u64)>>,
}

impl Lines {
    pub(super) fn new(driver: Arc<Driver>) -> Self {
        Self { driver, free: Mutex::default() }
    }
}
