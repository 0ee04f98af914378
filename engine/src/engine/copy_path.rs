//! Which way batches take to a GPU: as the settings say, or the fastest of those that were measured (`copy_cost.rs`).
//!
//! A batch's period is the longer of two times: the loader threads' to gather it, and the device's to get it. Only the
//! gathered path has the first. Which path has the shorter period depends on the length of rows, on the bus and on how
//! many threads there are for how much memory bandwidth, so nobody knows it beforehand; `decisions/0015` has the
//! reasons.

use crate::arena::human;
use crate::device::{DeviceKind, PINNED_PIECE_BYTES};
use crate::error::{Error, Result};
use crate::settings::{CopyPath, Settings};

/// A path is chosen over one that takes less from the training if it is faster by more than this.
const GAIN: f64 = 1.1;

/// What a batch of full size costs on a path.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CopyCost {
    /// The path.
    pub path: CopyPath,
    /// One thread's time to gather the rows (µs); 0 where that is not done.
    pub gather_us: f64,
    /// From batch to batch while the device gets many in a row (µs): to queue one, or to copy it, whichever is longer.
    pub copy_us: f64,
}

impl CopyCost {
    /// From batch to batch with so many loader threads (µs).
    pub fn period_us(&self, threads: usize) -> f64 {
        self.copy_us.max(self.gather_us / threads.max(1) as f64)
    }
}

/// The path in force, and what led to it: empty if nothing was measured.
#[derive(Debug, Clone, PartialEq)]
pub struct CopyChoice {
    /// Taken by every batch of the engine.
    pub path: CopyPath,
    /// By path.
    pub measured: Vec<CopyCost>,
}

/// The path that is clearly the fastest, or the first of those that are as fast.
pub(super) fn fastest(measured: &[CopyCost], threads: usize) -> CopyPath {
    let mut best: Option<&CopyCost> = None;
    for path in CopyPath::ALL {
        let Some(cost) = measured.iter().find(|cost| cost.path == path) else { continue };
        if best.is_none_or(|best| cost.period_us(threads) * GAIN < best.period_us(threads)) {
            best = Some(cost);
        }
    }
    best.map_or(CopyPath::Gathered, |cost| cost.path)
}

/// What stands between a batch and the paths that take rows from the cache.
#[derive(Debug, Clone, Copy)]
pub(super) struct Obstacles {
    /// Where batches go.
    pub(super) device: DeviceKind,
    /// Bytes of a batch slot.
    pub(super) slot_bytes: usize,
    /// Cached samples are decoded by the loader's threads.
    pub(super) decoded: bool,
    /// Samples are transformed by the loader's threads.
    pub(super) transformed: bool,
    /// A sample is not one array of a fixed shape.
    pub(super) scattered: bool,
}

impl Obstacles {
    /// Whether there is none.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Settings`] with the one that `path` meets first, and what to do.
    pub(super) fn none_for(&self, path: CopyPath) -> Result<()> {
        let why = match self.device {
            DeviceKind::Cpu => "is for GPUs, and the device is \"cpu\": remove it, or set device=\"cuda\"".to_owned(),
            // A row of a slot that is page-locked in pieces may lie in two.
            DeviceKind::Cuda(_) if self.slot_bytes > PINNED_PIECE_BYTES => format!(
                "allows batches of at most {}, and these have {}: lower batch_size, or use copy_path \"gathered\"",
                human(PINNED_PIECE_BYTES as u64),
                human(self.slot_bytes as u64)
            ),
            DeviceKind::Cuda(_) if self.transformed => {
                "copies cached rows unchanged, but loader threads transform them: use copy_path \"gathered\"".to_owned()
            }
            DeviceKind::Cuda(_) if self.decoded => {
                "copies cached rows unchanged, but loader threads decode them: use cache_form \"decoded\", or \
                 copy_path \"gathered\""
                    .to_owned()
            }
            DeviceKind::Cuda(_) if self.scattered => {
                "needs samples of one array of fixed size, and these have several or vary: use copy_path \
                 \"gathered\""
                    .to_owned()
            }
            DeviceKind::Cuda(_) => return Ok(()),
        };
        Err(Error::settings(format!("copy_path {:?} {why}", path.name())))
    }
}

/// The path to take without measuring anything; `None` if it takes measurements.
///
/// # Errors
/// As for [`Obstacles::none_for`], for a path that was asked for.
pub(super) fn settled(settings: &Settings, obstacles: &Obstacles) -> Result<Option<CopyPath>> {
    match settings.copy_path {
        Some(CopyPath::Gathered) => Ok(Some(CopyPath::Gathered)),
        Some(path) => obstacles.none_for(path).map(|()| Some(path)),
        // Nothing lies in place that another path could take from there.
        None if settings.cache_bytes == 0 => Ok(Some(CopyPath::Gathered)),
        None => {
            Ok(CopyPath::ALL[1..].iter().all(|&path| obstacles.none_for(path).is_err()).then_some(CopyPath::Gathered))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(path: CopyPath, gather_us: f64, copy_us: f64) -> CopyCost {
        CopyCost { path, gather_us, copy_us }
    }

    #[test]
    fn another_path_must_be_clearly_faster_and_threads_count() {
        use CopyPath::{Batched, Gathered, Mapped};
        let all = |gather, gathered, batched, mapped| {
            [cost(Gathered, gather, gathered), cost(Batched, 0.0, batched), cost(Mapped, 0.0, mapped)]
        };
        // Bound by the bus: all alike.
        assert_eq!(fastest(&all(100.0, 100.0, 100.0, 95.0), 4), Gathered);
        // Bound by one thread's gather; four of them do it.
        assert_eq!(fastest(&all(300.0, 100.0, 110.0, 200.0), 1), Batched);
        assert_eq!(fastest(&all(300.0, 100.0, 110.0, 200.0), 4), Gathered);
        // Short rows cost a copy each; the kernel reads them.
        assert_eq!(fastest(&all(80.0, 15.0, 250.0, 20.0), 2), Mapped);
        // Mapped beats gathered, but not the batched path that beats it too.
        assert_eq!(fastest(&all(200.0, 50.0, 100.0, 95.0), 1), Batched);
        assert_eq!(fastest(&all(200.0, 50.0, 100.0, 90.0), 1), Mapped);
        // What could not be measured is not taken.
        assert_eq!(fastest(&all(200.0, 50.0, 1.0, 1.0)[..1], 0), Gathered);
        assert_eq!(fastest(&[], 1), Gathered);
    }

    #[test]
    fn every_obstacle_is_named_with_its_remedy_and_settles_what_is_left_open() {
        let free = Obstacles {
            device: DeviceKind::Cuda(0),
            slot_bytes: 1 << 20,
            decoded: false,
            transformed: false,
            scattered: false,
        };
        let with = |cache_bytes, copy_path| Settings { cache_bytes, copy_path, ..Settings::default() };
        assert_eq!(settled(&with(1, None), &free).unwrap(), None);
        assert_eq!(settled(&with(0, None), &free).unwrap(), Some(CopyPath::Gathered), "there is nothing to take");
        for (obstacle, remedy) in [
            (Obstacles { device: DeviceKind::Cpu, ..free }, "set device=\"cuda\""),
            (Obstacles { slot_bytes: PINNED_PIECE_BYTES + 64, ..free }, "lower batch_size"),
            (Obstacles { scattered: true, ..free }, "samples of one array"),
            (Obstacles { decoded: true, ..free }, "cache_form \"decoded\""),
            (Obstacles { decoded: true, transformed: true, ..free }, "transform them: use copy_path \"gathered\""),
        ] {
            assert_eq!(settled(&with(1, None), &obstacle).unwrap(), Some(CopyPath::Gathered), "{obstacle:?}");
            assert_eq!(settled(&with(1, Some(CopyPath::Gathered)), &obstacle).unwrap(), Some(CopyPath::Gathered));
            for path in [CopyPath::Batched, CopyPath::Mapped] {
                assert_eq!(settled(&with(1, Some(path)), &free).unwrap(), Some(path));
                let refused = settled(&with(1, Some(path)), &obstacle).unwrap_err();
                assert_eq!(refused.kind(), crate::ErrorKind::Settings);
                assert!(refused.to_string().contains(remedy) && refused.to_string().contains(path.name()), "{refused}");
            }
        }
    }
}
