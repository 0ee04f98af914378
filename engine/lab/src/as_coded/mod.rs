//! The authors' public code, whatever their papers say: whole simulations, quirks included.

mod dlcache;
mod icache;
mod shade;

pub use dlcache::{DlcacheAsCoded, DlcacheFile, DlcacheRule};
pub use icache::{IcacheAsCoded, IcacheRun};
pub use shade::{ShadeAsCoded, ShadeRun, planted_losses};
