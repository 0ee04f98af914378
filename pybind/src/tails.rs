//! What a batch's samples have of no fixed size, taken apart.
//!
//! The tail of a sample, as `lossfeed/_structure.py` writes it: the shapes of its arrays, one 64-bit number a dimension,
//! then the arrays, each beginning at a multiple of 8. Numbers are native-endian. How many arrays there are, and how
//! many dimensions each has, is the same for all samples of a dataset.

use std::ops::Range;
use std::sync::Arc;

use lossfeed::staging::BatchSlot;
use lossfeed::{Dtype, Error, Result};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffer::{Buffer, Input};
use crate::errors::{contract, outside, raise};
use crate::process::Process;

/// An array of a sample: its shape, and where its elements lie in the tail.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Part {
    shape: Vec<usize>,
    bytes: Range<usize>,
}

/// Element sizes and numbers of dimensions of the arrays that tails consist of.
type Kinds = Vec<(usize, usize)>;

/// The arrays of a tail; `None` if it is none.
fn parse(tail: &[u8], kinds: &Kinds) -> Option<Vec<Part>> {
    let dimensions: usize = kinds.iter().map(|kind| kind.1).sum();
    let numbers = tail.get(..dimensions.checked_mul(8)?)?;
    let mut numbers = numbers.chunks_exact(8).filter_map(|eight| Some(u64::from_ne_bytes(eight.try_into().ok()?)));
    let mut at = dimensions * 8;
    let mut parts = Vec::with_capacity(kinds.len());
    for &(size, dimensions) in kinds {
        let shape: Vec<usize> =
            numbers.by_ref().take(dimensions).map(|n| usize::try_from(n).ok()).collect::<Option<_>>()?;
        let bytes = shape.iter().try_fold(size, |all, &n| all.checked_mul(n))?;
        let end = at.checked_add(bytes).filter(|&end| end <= tail.len())?;
        parts.push(Part { shape, bytes: at..end });
        at = end.checked_next_multiple_of(8)?;
    }
    (at.min(tail.len()) == tail.len()).then_some(parts)
}

/// Copies `from`, an array of `shape`, into the corner of one of the shape `to`.
fn place(from: &[u8], shape: &[usize], out: &mut [u8], to: &[usize], size: usize) {
    match (shape, to) {
        ([_, inner @ ..], [_, outer @ ..]) if inner != outer => {
            let (step, row) = (inner.iter().product::<usize>() * size, outer.iter().product::<usize>() * size);
            if step > 0 && row > 0 {
                for (from, out) in from.chunks_exact(step).zip(out.chunks_exact_mut(row)) {
                    place(from, inner, out, outer, size);
                }
            }
        }
        _ => out[..from.len()].copy_from_slice(from),
    }
}

/// The tails of one batch. Arrays that are shown to Python keep the batch's slot.
#[pyclass(frozen, module = "lossfeed._native")]
pub(crate) struct Tails {
    slot: Arc<BatchSlot>,
    kinds: Kinds,
    /// By row.
    rows: Vec<Vec<Part>>,
    home: Process,
}

impl Tails {
    pub(crate) fn of(slot: &Arc<BatchSlot>, kinds: Vec<(String, usize)>) -> Result<Self> {
        let kinds = kinds
            .into_iter()
            .map(|(dtype, n)| Ok((Dtype::from_name(&dtype)?.size_bytes(), n)))
            .collect::<Result<_>>()?;
        let rows = slot.tails().iter().map(|tail| parse(tail, &kinds));
        let rows = rows.collect::<Option<_>>().ok_or_else(|| Error::internal("a sample's tail is none"))?;
        Ok(Self { slot: Arc::clone(slot), kinds, rows, home: Process::this() })
    }

    fn bytes(&self, row: usize, part: &Part) -> &[u8] {
        &self.slot.tails()[row][part.bytes.clone()]
    }

    /// Array `number` of every sample.
    fn all(&self, number: usize) -> impl Iterator<Item = (usize, &Part)> {
        self.rows.iter().enumerate().filter_map(move |(row, parts)| Some((row, parts.get(number)?)))
    }

    fn padded(&self, number: usize, fill: &[u8]) -> Result<(Vec<u8>, Vec<usize>)> {
        let size = self.size(number)?;
        let mut largest: Vec<usize> = vec![0; self.kinds[number].1];
        for (_, part) in self.all(number) {
            largest.iter_mut().zip(&part.shape).for_each(|(largest, &n)| *largest = n.max(*largest));
        }
        let row = largest.iter().try_fold(size, |all, &n| all.checked_mul(n));
        let bytes = row.and_then(|row| row.checked_mul(self.rows.len())).filter(|&bytes| bytes <= isize::MAX as usize);
        let (Some(row), Some(bytes)) = (row, bytes) else {
            return Err(Error::memory(format!(
                "{} samples padded to {largest:?} are larger than the address space",
                self.rows.len()
            )));
        };
        let mut out = Vec::new();
        out.try_reserve_exact(bytes).map_err(|_| {
            Error::memory(format!("{bytes} bytes for {} samples padded to {largest:?}", self.rows.len()))
        })?;
        if fill.len() != size || fill.iter().all(|&byte| byte == fill[0]) {
            out.resize(bytes, fill.first().copied().unwrap_or(0));
        } else {
            (0..bytes / size).for_each(|_| out.extend_from_slice(fill));
        }
        if row > 0 {
            for ((at, part), out) in self.all(number).zip(out.chunks_exact_mut(row)) {
                place(self.bytes(at, part), &part.shape, out, &largest, size);
            }
        }
        largest.insert(0, self.rows.len());
        Ok((out, largest))
    }

    fn size(&self, number: usize) -> Result<usize> {
        self.kinds.get(number).map(|kind| kind.0).ok_or_else(|| Error::internal(format!("no array {number}")))
    }
}

impl Drop for Tails {
    fn drop(&mut self) {
        self.home.leak_elsewhere(&self.slot);
    }
}

#[pymethods]
impl Tails {
    /// The shape of array `number` of every sample.
    fn shapes(&self, number: usize) -> Vec<Vec<usize>> {
        self.all(number).map(|(_, part)| part.shape.clone()).collect()
    }

    /// Array `number` of the sample of `row`, without a copy, and its shape.
    fn part(&self, row: usize, number: usize) -> PyResult<(Buffer, Vec<usize>)> {
        let part = self.rows.get(row).and_then(|parts| parts.get(number));
        let part = part.ok_or_else(|| contract(format!("no array {number} in row {row}")))?;
        Ok((Buffer::of_tail(&self.slot, row, part.bytes.clone()), part.shape.clone()))
    }

    /// Array `number` of the sample of `row` as bytes of Python's own.
    fn copied<'py>(&self, py: Python<'py>, row: usize, number: usize) -> PyResult<Bound<'py, PyBytes>> {
        let part = self.rows.get(row).and_then(|parts| parts.get(number));
        let part = part.ok_or_else(|| contract(format!("no array {number} in row {row}")))?;
        Ok(PyBytes::new(py, self.bytes(row, part)))
    }

    /// Array `number` of all samples in one, filled up with `fill` (one element) to the largest of the batch in each
    /// dimension; and its shape.
    fn padded_with(&self, py: Python<'_>, number: usize, fill: &Bound<'_, PyAny>) -> PyResult<(Buffer, Vec<usize>)> {
        let fill = Input::get(fill)?.to_vec::<u8>();
        if fill.len() != self.size(number).map_err(raise)? {
            return Err(contract("the filling is not one element"));
        }
        let (out, shape) = outside(py, || self.padded(number, &fill))?;
        Ok((Buffer::from_vec(out), shape))
    }

    /// Array `number` of all samples one after the other, and where each begins, in units of the first dimension, with
    /// the end of the last.
    fn packed(&self, py: Python<'_>, number: usize) -> PyResult<(Buffer, Buffer)> {
        let (out, offsets) = outside(py, || {
            let (mut out, mut offsets) = (Vec::new(), vec![0_i64]);
            for (row, part) in self.all(number) {
                out.extend_from_slice(self.bytes(row, part));
                let last = offsets.last().copied().unwrap_or(0);
                offsets.push(last + part.shape.first().copied().unwrap_or(1) as i64);
            }
            Ok((out, offsets))
        })?;
        Ok((Buffer::from_vec(out), Buffer::from_vec(offsets)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_tail_is_none_and_never_read_beyond_its_end() {
        let kinds: Kinds = vec![(4, 1), (1, 2)];
        let tail = |numbers: [u64; 3], bytes: usize| {
            let mut tail: Vec<u8> = numbers.iter().flat_map(|n| n.to_ne_bytes()).collect();
            tail.resize(24 + bytes, 7);
            tail
        };
        let parts = parse(&tail([3, 2, 5], 26), &kinds).unwrap();
        assert_eq!(parts[0], Part { shape: vec![3], bytes: 24..36 });
        assert_eq!(parts[1], Part { shape: vec![2, 5], bytes: 40..50 });
        assert!(parse(&tail([0, 0, 9], 0), &kinds).is_some(), "arrays without elements");
        for (numbers, bytes) in
            [([3, 2, 5], 25), ([3, 2, 5], 40), ([u64::MAX, 0, 0], 0), ([0, 1 << 40, 1 << 40], 64), ([1, 1, 1], 0)]
        {
            assert_eq!(parse(&tail(numbers, bytes), &kinds), None, "{numbers:?} in {bytes} bytes");
        }
        assert_eq!(parse(&[0; 23], &kinds), None);
        assert_eq!(parse(&[], &Vec::new()), Some(Vec::new()));
    }
}
