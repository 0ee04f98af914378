//! The host itself.

use super::{Device, DeviceKind, Registration};
use crate::error::Result;

/// The CPU: host memory is already where it is used.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cpu;

impl Device for Cpu {
    fn name(&self) -> String {
        "CPU".to_owned()
    }
    fn kind(&self) -> DeviceKind {
        DeviceKind::Cpu
    }
    fn register(&self, _memory: &mut [u8]) -> Result<Registration> {
        Ok(Registration::none())
    }
}
