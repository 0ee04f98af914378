//! What each way to a GPU costs here: batches of the run's own shape, out of its own cache memory, before the run
//! begins.
#![allow(unsafe_code)]

use super::copy_path::{CopyChoice, CopyCost, Obstacles, fastest, settled};
use super::courier::Road;
use crate::arena::{Arena, human};
use crate::device::{Cuda, PINNED_PIECE_BYTES};
use crate::error::{Error, Result};
use crate::random::{Purpose, generator};
use crate::settings::{CopyPath, Settings};
use crate::staging::{BatchLayout, BatchSlot, SlotPool};
use rand::Rng;
use std::time::{Duration, Instant};

/// Batches a measurement copies: some, and as many as move this much, which a bus takes a few milliseconds for.
const BATCHES: std::ops::RangeInclusive<usize> = 3..=32;
const MEASURED_BYTES: usize = 128 << 20;

/// The path that is taken without measuring, or `None` where measurements decide. It takes no memory.
///
/// # Errors
/// [`crate::ErrorKind::Settings`] for a path that this engine's batches cannot take, [`crate::ErrorKind::Device`] for
/// one that its GPU cannot.
pub(super) fn settled_on(settings: &Settings, obstacles: &Obstacles, gpu: Option<&Cuda>) -> Result<Option<CopyPath>> {
    let path = settled(settings, obstacles)?;
    if let Some(path) = path.filter(|&path| path != CopyPath::Gathered) {
        Road::open(gpu, path)?;
    }
    Ok(path)
}

/// Measures every path in the memory of an engine under construction, whose cache is still empty, and takes the
/// fastest.
///
/// # Errors
/// What [`SlotPool::acquire`] gives.
pub(super) fn measure(
    settings: &Settings,
    arena: &mut Arena,
    pool: &SlotPool,
    gpu: Option<&Cuda>,
) -> Result<CopyChoice> {
    // There is one: the pool begins with several.
    let Some(mut slot) = pool.acquire(Duration::ZERO)? else {
        return Err(Error::internal("no batch slot is free in an engine that has not begun"));
    };
    let memory = arena.whole();
    let mut measured = Vec::new();
    for path in CopyPath::ALL {
        // A GPU that cannot go one way has another; one that can go none says so when the first batch is sent.
        match cost(path, memory, &mut slot, gpu) {
            Ok(cost) => measured.push(cost),
            Err(error) => tracing::info!(path = path.name(), %error, "a copy path to the GPU was skipped"),
        }
    }
    let threads = settings.worker_count().max(1);
    let path = fastest(&measured, threads);
    tracing::info!(path = path.name(), ?measured, threads, "copy path to the GPU");
    Ok(CopyChoice { path, measured })
}

/// Batches of rows that lie anywhere in `memory`, one after the other.
fn cost(path: CopyPath, memory: &[u8], slot: &mut BatchSlot, gpu: Option<&Cuda>) -> Result<CopyCost> {
    let road = Road::open(gpu, path)?;
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
    let to = road.cuda().memory(bytes, "memory to measure copy paths")?;
    let mut copies = Vec::with_capacity(batches);
    let mut begun = Instant::now();
    for batch in 0..=batches {
        let rows = if path == CopyPath::Gathered { Vec::new() } else { rows_of(batch) };
        // SAFETY: slot, cache memory and `to` outlive the copies, each of which is waited for below; where one fails,
        // dropping `to` waits for the device.
        copies.push(unsafe { road.rehearse(&slot.gathered_data()[..bytes], &rows, row_bytes, to.address()) }?);
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
