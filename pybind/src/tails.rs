//! What a batch's samples have of no fixed size, taken apart.
//!
//! The tail of a sample, as `lossfeed/_data/structure.py` writes it: the shapes of its arrays, one 64-bit number a dimension,
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

/// Element sizes and numbers of dimensions of the arrays that tails consist of.
type Kinds = Vec<(usize, usize)>;

/// An array of a sample: its shape, and where its elements lie in the tail.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Part<'a> {
    shape: &'a [usize],
    bytes: Range<usize>,
}

/// The arrays of all tails of a batch, tail by tail.
#[derive(Debug, Default, PartialEq, Eq)]
struct Parts {
    shapes: Vec<usize>,
    bytes: Vec<Range<usize>>,
}

impl Parts {
    /// Adds the arrays of a tail; `None` if it is none.
    fn parse(&mut self, tail: &[u8], kinds: &Kinds) -> Option<()> {
        let dimensions: usize = kinds.iter().map(|kind| kind.1).sum();
        let numbers = tail.get(..dimensions.checked_mul(8)?)?;
        let first = self.shapes.len();
        for eight in numbers.chunks_exact(8) {
            self.shapes.push(usize::try_from(u64::from_ne_bytes(eight.try_into().ok()?)).ok()?);
        }
        let (mut at, mut shapes) = (dimensions * 8, &self.shapes[first..]);
        for &(size, dimensions) in kinds {
            let (shape, rest) = shapes.split_at(dimensions);
            shapes = rest;
            let bytes = shape.iter().try_fold(size, |all, &n| all.checked_mul(n))?;
            let end = at.checked_add(bytes).filter(|&end| end <= tail.len())?;
            self.bytes.push(at..end);
            at = end.checked_next_multiple_of(8)?;
        }
        (at >= tail.len()).then_some(())
    }
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
    parts: Parts,
    home: Process,
}

impl Tails {
    pub(crate) fn of(slot: &Arc<BatchSlot>, kinds: Vec<(String, usize)>) -> Result<Self> {
        let sizes = kinds.into_iter().map(|(dtype, n)| Ok((Dtype::from_name(&dtype)?.size_bytes(), n)));
        let kinds: Kinds = sizes.collect::<Result<_>>()?;
        let mut parts = Parts::default();
        for tail in slot.tails() {
            parts.parse(tail, &kinds).ok_or_else(|| Error::internal("a sample's tail is none"))?;
        }
        Ok(Self { slot: Arc::clone(slot), kinds, parts, home: Process::this() })
    }

    fn rows(&self) -> usize {
        self.slot.tails().len()
    }

    fn bytes(&self, row: usize, part: &Part<'_>) -> &[u8] {
        &self.slot.tails()[row][part.bytes.clone()]
    }

    /// Array `number` of the sample of `row`, if there are such.
    fn get(&self, row: usize, number: usize) -> Option<Part<'_>> {
        let before: usize = self.kinds.get(..number)?.iter().map(|kind| kind.1).sum();
        let each: usize = self.kinds.iter().map(|kind| kind.1).sum();
        let shape = row * each + before..row * each + before + self.kinds.get(number)?.1;
        let bytes = self.parts.bytes.get(row * self.kinds.len() + number)?.clone();
        Some(Part { shape: self.parts.shapes.get(shape)?, bytes })
    }

    /// Array `number` of every sample.
    fn all(&self, number: usize) -> impl Iterator<Item = (usize, Part<'_>)> {
        (0..self.rows()).filter_map(move |row| Some((row, self.get(row, number)?)))
    }

    fn padded(&self, number: usize, fill: &[u8]) -> Result<(Vec<u8>, Vec<usize>)> {
        let size = self.size(number)?;
        let mut largest: Vec<usize> = vec![0; self.kinds[number].1];
        for (_, part) in self.all(number) {
            largest.iter_mut().zip(part.shape).for_each(|(largest, &n)| *largest = n.max(*largest));
        }
        let too_large = || {
            let rows = self.rows();
            Error::memory(format!("{rows} samples padded to {largest:?} do not fit into memory: lower batch_size"))
        };
        let row = largest.iter().try_fold(size, |all, &n| all.checked_mul(n)).ok_or_else(too_large)?;
        let bytes = row.checked_mul(self.rows()).ok_or_else(too_large)?;
        let mut out = Vec::new();
        out.try_reserve_exact(bytes).map_err(|_| too_large())?;
        let even = fill.iter().all(|&byte| byte == fill[0]);
        let filled = |out: &mut Vec<u8>, to: usize| match even {
            true => out.resize(to, fill[0]),
            false => (out.len()..to).step_by(size).for_each(|_| out.extend_from_slice(fill)),
        };
        for (at, part) in self.all(number) {
            let (from, end) = (self.bytes(at, &part), (at + 1) * row);
            // Where only the first dimension is shorter, what is there comes first and the filling behind it.
            if part.shape.len() <= 1 || part.shape[1..] == largest[1..] {
                out.extend_from_slice(from);
                filled(&mut out, end);
            } else {
                filled(&mut out, end);
                place(from, part.shape, &mut out[end - row..], &largest, size);
            }
        }
        largest.insert(0, self.rows());
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
        self.all(number).map(|(_, part)| part.shape.to_vec()).collect()
    }

    /// Array `number` of the sample of `row`, without a copy, and its shape.
    fn part(&self, row: usize, number: usize) -> PyResult<(Buffer, Vec<usize>)> {
        let part = self.get(row, number).ok_or_else(|| contract(format!("no array {number} in row {row}")))?;
        Ok((Buffer::of_tail(&self.slot, row, part.bytes.clone()), part.shape.to_vec()))
    }

    /// Array `number` of the sample of `row` as bytes of Python's own.
    fn copied<'py>(&self, py: Python<'py>, row: usize, number: usize) -> PyResult<Bound<'py, PyBytes>> {
        let part = self.get(row, number).ok_or_else(|| contract(format!("no array {number} in row {row}")))?;
        Ok(PyBytes::new(py, self.bytes(row, &part)))
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
                out.extend_from_slice(self.bytes(row, &part));
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
        let parse = |tail: &[u8]| {
            let mut parts = Parts::default();
            parts.parse(tail, &kinds).map(|()| parts)
        };
        let parts = parse(&tail([3, 2, 5], 26)).unwrap();
        assert_eq!((parts.shapes, parts.bytes), (vec![3, 2, 5], vec![24..36, 40..50]));
        assert!(parse(&tail([0, 0, 9], 0)).is_some(), "arrays without elements");
        for (numbers, bytes) in
            [([3, 2, 5], 25), ([3, 2, 5], 40), ([u64::MAX, 0, 0], 0), ([0, 1 << 40, 1 << 40], 64), ([1, 1, 1], 0)]
        {
            assert_eq!(parse(&tail(numbers, bytes)), None, "{numbers:?} in {bytes} bytes");
        }
        assert_eq!(parse(&[0; 23]), None);
        assert_eq!(Parts::default().parse(&[], &Vec::new()), Some(()));
    }
}
