//! The file that beliefs are kept in: where, and how often.

use super::Settings;
use crate::error::{Error, Result};

/// Often enough to lose little, and for the largest table (170 MB at 14 million samples) 3 MB a second.
pub(super) fn a_minute() -> f64 {
    60.0
}

pub(super) fn check(settings: &Settings) -> Result<()> {
    let every = settings.score_file_every;
    if !(0.01..=1e9).contains(&every) {
        return Err(Error::settings(format!("score_file_every {every} must be 0.01 to 1e9 seconds")));
    }
    let Some(path) = &settings.score_file else { return Ok(()) };
    let several = settings.world_size > 1 && !settings.exchange;
    if several && !path.file_name().unwrap_or_default().to_string_lossy().contains("{rank}") {
        return Err(Error::settings(format!(
            "score_file={} is one file for {} ranks: put {{rank}} into its name, so that each rank writes its own",
            path.display(),
            settings.world_size
        )));
    }
    Ok(())
}
