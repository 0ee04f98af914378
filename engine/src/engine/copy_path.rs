//! Which way batches take to a GPU: measured when the engine is made, on its own memory, or as the settings say.
//!
//! A batch's period is the longer of two times: the loader threads' to gather it, and the device's to get it. Only the gathered path has
//! the first. Which path has the shorter period depends on the length of rows, on the bus and on how many threads there are for how much
//! memory bandwidth, so nobody knows it beforehand; `decisions/0015` has the reasons.

use super::courier::Road;
use crate::arena::{Arena, human};
use crate::device::{Device, PINNED_PIECE_BYTES};
use crate::error::{Error, Result};
use crate::random::{Purpose, generator};
use crate::settings::{CacheForm, CopyPath, Settings};
use crate::staging::{BatchLayout, BatchSlot, SlotPool};
use rand::Rng;
use std::time::{Duration, Instant};

/// A path is chosen over one that takes less from the training if it is faster by more than this.
const GAIN: f64 = 1.1;
/// Batches a measurement copies: some, and as many as move this much, which a bus takes a few milliseconds for.
const BATCHES: std::ops::RangeInclusive<usize> = 3..=32;
const MEASURED_BYTES: usize = 128 << 20;

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
fn fastest(measured: &[CopyCost], threads: usize) -> CopyPath {
    let mut best: Option<&CopyCost> = None;
    for path in CopyPath::ALL {
        let Some(cost) = measured.iter().find(|cost| cost.path == path) else { continue };
        if best.is_none_or(|best| cost.period_us(threads) * GAIN < best.period_us(threads)) {
            best = Some(cost);
        }
    }
    best.map_or(CopyPath::Gathered, |cost| cost.path)
}

/// Decides for an engine under construction, whose cache is still empty. `keeps_rows`: cached records start with the very bytes that
/// rows have.
///
/// # Errors
/// [`crate::ErrorKind::Settings`] for a path that this engine's batches cannot take, [`crate::ErrorKind::Device`] for one that its GPU
/// cannot.
pub(super) fn choose(
    settings: &Settings,
    keeps_rows: bool,
    arena: &mut Arena,
    pool: &SlotPool,
    device: &dyn Device,
) -> Result<CopyChoice> {
    let without = |path| CopyChoice { path, measured: Vec::new() };
    match settings.copy_path {
        Some(CopyPath::Gathered) => Ok(without(CopyPath::Gathered)),
        Some(path) => {
            possible(path, settings, keeps_rows, pool.layout(), device)?;
            Road::open(device, path)?;
            Ok(without(path))
        }
        // Nothing lies in place that another path could take from there.
        None if !keeps_rows || arena.limit_bytes() == 0 || device.cuda().is_none() || too_large(pool.layout()) => {
            Ok(without(CopyPath::Gathered))
        }
        None => measure(settings, arena, pool, device),
    }
}

/// Whether a slot is page-locked in several pieces, so that a row of it may lie in two.
fn too_large(layout: &BatchLayout) -> bool {
    layout.total_bytes() > PINNED_PIECE_BYTES
}

/// Whether batches of these settings can take a path other than the gathered one.
fn possible(
    path: CopyPath,
    settings: &Settings,
    keeps_rows: bool,
    layout: &BatchLayout,
    device: &dyn Device,
) -> Result<()> {
    let name = path.name();
    if device.cuda().is_none() {
        return Err(Error::settings(format!(
            "copy_path {name:?} is a way to a GPU, and the device is {}: leave it out, or set device to cuda",
            device.kind()
        )));
    }
    if too_large(layout) {
        return Err(Error::settings(format!(
            "copy_path {name:?} takes batches of at most {}, and these have {}: lower batch_size, or use copy_path \"gathered\"",
            human(PINNED_PIECE_BYTES as u64),
            human(layout.total_bytes() as u64)
        )));
    }
    if !keeps_rows {
        let why = match settings.cache_form {
            CacheForm::Encoded if settings.transform.is_none() => {
                "cached samples are decoded by the loader's threads (cache_form \"encoded\"): use cache_form \"decoded\""
            }
            _ => "the loader's threads transform the samples, as the GPU's kernels cannot be had",
        };
        return Err(Error::settings(format!(
            "copy_path {name:?} takes rows as the cache has them, but {why}, or copy_path \"gathered\""
        )));
    }
    Ok(())
}

fn measure(settings: &Settings, arena: &mut Arena, pool: &SlotPool, device: &dyn Device) -> Result<CopyChoice> {
    // There is one: the pool begins with several.
    let Some(mut slot) = pool.acquire(Duration::ZERO)? else {
        return Err(Error::internal("no batch slot is free in an engine that has not begun"));
    };
    let memory = arena.whole();
    let mut measured = Vec::new();
    for path in CopyPath::ALL {
        // A GPU that cannot go one way has another; one that can go none says so when the first batch is sent.
        match cost(path, memory, &mut slot, device) {
            Ok(cost) => measured.push(cost),
            Err(error) => tracing::info!(path = path.name(), %error, "a way to the GPU is left out"),
        }
    }
    let threads = settings.worker_count().max(1);
    let path = fastest(&measured, threads);
    tracing::info!(path = path.name(), ?measured, threads, "the way batches take to the GPU");
    Ok(CopyChoice { path, measured })
}

/// Batches of rows that lie anywhere in `memory`, one after the other.
fn cost(path: CopyPath, memory: &[u8], slot: &mut BatchSlot, device: &dyn Device) -> Result<CopyCost> {
    let road = Road::open(device, path)?;
    let layout = slot.layout().clone();
    let (row_bytes, bytes) = (layout.data_row_bytes(), layout.data_range(layout.rows()).len());
    let room = memory.len().checked_sub(row_bytes).ok_or_else(|| {
        Error::usage(format!("a cache of {} holds no row of {row_bytes} bytes", human(memory.len() as u64)))
    })?;
    let batches = (MEASURED_BYTES / bytes.max(1)).clamp(*BATCHES.start(), *BATCHES.end());
    let rows_of = |batch: usize| rows(memory, row_bytes, room, batch, &layout);
    let mut gather_us = 0.0;
    if path == CopyPath::Gathered {
        for batch in 0..batches {
            let rows = rows_of(batch);
            let begun = Instant::now();
            for (to, row) in slot.parts_mut().data.chunks_exact_mut(row_bytes).zip(rows) {
                to.copy_from_slice(row);
            }
            // The first one meets memory that no cache of the processor has heard of, as on a cold start.
            gather_us = if batch == 0 { 0.0 } else { gather_us + microseconds(begun) / (batches - 1) as f64 };
        }
    }
    let to = road.cuda().memory(bytes, "memory to measure copies with")?;
    let mut copies = Vec::with_capacity(batches);
    let mut begun = Instant::now();
    for batch in 0..=batches {
        let rows = if path == CopyPath::Gathered { Vec::new() } else { rows_of(batch) };
        copies.push(road.rehearse(&slot.data()[..bytes], &rows, row_bytes, to.address())?);
        if batch == 0 {
            // Loads what is loaded at the first use.
            copies[0].wait()?;
            begun = Instant::now();
        }
    }
    copies.iter().try_for_each(|copy| copy.wait())?;
    Ok(CopyCost { path, gather_us, copy_us: microseconds(begun) / batches as f64 })
}

fn microseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e6
}

/// As many rows as a batch has, at random aligned places that lie in one page-locked piece each.
fn rows<'a>(memory: &'a [u8], row_bytes: usize, room: usize, batch: usize, layout: &BatchLayout) -> Vec<&'a [u8]> {
    let mut random = generator(batch as u64, 0, 0, Purpose::Draw);
    let place = |_| {
        let at = random.next_u64() as usize % (room / 64 + 1) * 64;
        let piece_end = (at / PINNED_PIECE_BYTES + 1) * PINNED_PIECE_BYTES;
        let at = if at + row_bytes > piece_end { piece_end.saturating_sub(row_bytes) / 64 * 64 } else { at };
        &memory[at..at + row_bytes]
    };
    (0..layout.rows()).map(place).collect()
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
    fn measured_rows_lie_in_the_memory_and_in_one_piece_and_differ_from_batch_to_batch() {
        let memory = vec![0u8; 1000];
        let spec = crate::TensorSpec::new(crate::Dtype::U8, [90]);
        let layout = BatchLayout::new(50, spec, crate::TensorSpec::class_index()).unwrap();
        let places = |batch| {
            let rows = rows(&memory, 90, memory.len() - 90, batch, &layout);
            rows.iter().map(|row| row.as_ptr() as usize - memory.as_ptr() as usize).collect::<Vec<usize>>()
        };
        let first = places(0);
        assert!(first.len() == 50 && first.iter().all(|&at| at % 64 == 0 && at + 90 <= 1000), "{first:?}");
        assert_ne!(first, places(1));
        assert!((0..=14).all(|k| (0..9).any(|batch| places(batch).contains(&(k * 64)))), "every place is met");
    }
}
