//! Where the parts of a batch lie in its slot.

use std::ops::Range;

use crate::arena::GRANULE_BYTES;
use crate::error::{Error, Result};
use crate::types::TensorSpec;

/// Byte offsets of a batch's parts in its slot. One slot holds, in this order and each starting at a multiple of 64:
///
/// | part | element | shape |
/// | --- | --- | --- |
/// | each field | its dtype | (rows, its shape…) |
/// | target | `target.dtype` | (rows, `target.shape`…) |
/// | ids | int64 | (rows) |
/// | weight | float32 | (rows) |
///
/// so that a whole batch is one contiguous copy to a device, and every part is aligned for any element type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchLayout {
    rows: usize,
    fields: Vec<Field>,
    target: TensorSpec,
    data_row_bytes: usize,
    target_row_bytes: usize,
    target_offset: usize,
    ids_offset: usize,
    weight_offset: usize,
    total_bytes: usize,
}

/// One of the arrays that a sample consists of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// One sample's array.
    pub spec: TensorSpec,
    /// Its bytes.
    pub row_bytes: usize,
    /// Where it begins in a sample's own bytes.
    pub at: usize,
    /// Where the first sample's begins in the slot; that of row k follows k times `row_bytes` later.
    pub offset: usize,
}

impl Field {
    /// Where row `k`'s array lies in the slot.
    pub fn row(&self, k: usize) -> Range<usize> {
        self.offset + k * self.row_bytes..self.offset + (k + 1) * self.row_bytes
    }

    /// Where it lies in a sample's own bytes.
    pub fn own(&self) -> Range<usize> {
        self.at..self.at + self.row_bytes
    }
}

impl BatchLayout {
    /// The layout of batches of at most `rows` samples of one array each.
    ///
    /// # Errors
    /// As [`Self::of_fields`].
    pub fn new(rows: usize, data: TensorSpec, target: TensorSpec) -> Result<Self> {
        Self::of_fields(rows, vec![data], target)
    }

    /// The layout of batches of at most `rows` samples of the arrays `fields`; without any, samples are all tail.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Settings`] if there are no rows, an array or target has no bytes, or a batch exceeds the
    /// address space.
    pub fn of_fields(rows: usize, fields: Vec<TensorSpec>, target: TensorSpec) -> Result<Self> {
        if rows == 0 {
            return Err(Error::settings("batch_size is 0: give at least 1"));
        }
        let arrays = fields.into_iter().map(|spec| Ok((row_bytes("sample", &spec)?, spec)));
        let arrays = arrays.collect::<Result<Vec<_>>>()?;
        let target_row_bytes = row_bytes("target", &target)?;
        let data_row_bytes = arrays.iter().fold(0_usize, |all, array| all.saturating_add(array.0));
        let place = || {
            let (mut fields, mut at, mut target_offset) = (Vec::with_capacity(arrays.len()), 0_usize, 0_usize);
            for (row_bytes, spec) in arrays {
                let end = aligned(target_offset.checked_add(row_bytes.checked_mul(rows)?)?)?;
                fields.push(Field { spec, row_bytes, at, offset: target_offset });
                (at, target_offset) = (at.checked_add(row_bytes)?, end);
            }
            let ids_offset = aligned(target_offset.checked_add(target_row_bytes.checked_mul(rows)?)?)?;
            let weight_offset = aligned(ids_offset.checked_add(rows.checked_mul(size_of::<i64>())?)?)?;
            let total_bytes = aligned(weight_offset.checked_add(rows.checked_mul(size_of::<f32>())?)?)?;
            // What a slice may span.
            (total_bytes <= isize::MAX as usize).then_some((
                fields,
                target_offset,
                ids_offset,
                weight_offset,
                total_bytes,
            ))
        };
        let (fields, target_offset, ids_offset, weight_offset, total_bytes) = place().ok_or_else(|| {
            Error::settings(format!(
                "a batch of {rows} samples of {data_row_bytes} bytes and targets of {target_row_bytes} bytes is larger than the address space: lower batch_size"
            ))
        })?;
        Ok(Self {
            rows,
            fields,
            target,
            data_row_bytes,
            target_row_bytes,
            target_offset,
            ids_offset,
            weight_offset,
            total_bytes,
        })
    }

    /// The most samples a batch holds.
    pub fn rows(&self) -> usize {
        self.rows
    }
    /// The arrays that a sample consists of.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }
    /// One sample's target.
    pub fn target(&self) -> &TensorSpec {
        &self.target
    }
    /// Bytes of one sample, all its arrays.
    pub fn data_row_bytes(&self) -> usize {
        self.data_row_bytes
    }
    /// Bytes of one target.
    pub fn target_row_bytes(&self) -> usize {
        self.target_row_bytes
    }
    /// Bytes of a slot, padding included.
    pub fn total_bytes(&self) -> usize {
        self.total_bytes
    }
    /// Offset of the targets.
    pub fn target_offset(&self) -> usize {
        self.target_offset
    }
    /// Offset of the ids.
    pub fn ids_offset(&self) -> usize {
        self.ids_offset
    }
    /// Offset of the weights.
    pub fn weight_offset(&self) -> usize {
        self.weight_offset
    }
    /// Where the samples of a batch of `rows` lie. Samples of several arrays are not all of it: see
    /// [`Self::field_range`].
    pub fn data_range(&self, rows: usize) -> Range<usize> {
        0..self.fields.last().map_or(0, |last| last.row(rows.min(self.rows)).start)
    }
    /// Where the arrays of `field` of a batch of `rows` lie.
    pub fn field_range(&self, field: &Field, rows: usize) -> Range<usize> {
        field.offset..field.row(rows.min(self.rows)).start
    }
    /// Where the targets of a batch of `rows` lie.
    pub fn target_range(&self, rows: usize) -> Range<usize> {
        self.target_offset..self.target_offset + self.target_row_bytes * rows.min(self.rows)
    }
    /// Where the ids of a batch of `rows` lie.
    pub fn ids_range(&self, rows: usize) -> Range<usize> {
        self.ids_offset..self.ids_offset + size_of::<i64>() * rows.min(self.rows)
    }
    /// Where the weights of a batch of `rows` lie.
    pub fn weight_range(&self, rows: usize) -> Range<usize> {
        self.weight_offset..self.weight_offset + size_of::<f32>() * rows.min(self.rows)
    }
}

fn aligned(offset: usize) -> Option<usize> {
    offset.checked_next_multiple_of(GRANULE_BYTES as usize)
}

fn row_bytes(what: &str, spec: &TensorSpec) -> Result<usize> {
    let bytes = spec.shape.iter().try_fold(spec.dtype.size_bytes(), |product, &n| product.checked_mul(n));
    match bytes {
        Some(0) => Err(Error::settings(format!(
            "a {what} of shape {:?} has no elements: nothing to put into a batch",
            spec.shape
        ))),
        Some(bytes) => Ok(bytes),
        None => Err(Error::settings(format!("a {what} of shape {:?} is larger than the address space", spec.shape))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Dtype;

    #[test]
    fn parts_are_aligned_do_not_overlap_and_fill_the_slot_in_order() {
        for (rows, shape, target) in [
            (1, vec![], TensorSpec::class_index()),
            (7, vec![3, 5], TensorSpec::new(Dtype::U8, [1])),
            (256, vec![32, 32, 3], TensorSpec::class_index()),
            (3, vec![224, 224, 3], TensorSpec::new(Dtype::F32, [1000])),
        ] {
            let layout = BatchLayout::new(rows, TensorSpec::new(Dtype::U8, shape), target).unwrap();
            let ranges =
                [layout.data_range(rows), layout.target_range(rows), layout.ids_range(rows), layout.weight_range(rows)];
            assert!(ranges.iter().all(|r| r.start % 64 == 0 && !r.is_empty()), "{layout:?}");
            assert!(ranges.windows(2).all(|w| w[0].end <= w[1].start && w[1].start < w[0].end + 64), "{layout:?}");
            assert_eq!(layout.total_bytes(), ranges[3].end.next_multiple_of(64));
            assert_eq!(layout.ids_range(rows).len(), rows * 8);
            assert_eq!(layout.weight_range(rows + 9).len(), rows * 4, "never beyond the slot");
        }
    }

    #[test]
    fn every_array_of_a_sample_has_a_place_of_its_own() {
        let specs = [TensorSpec::new(Dtype::U8, [5]), TensorSpec::class_index(), TensorSpec::new(Dtype::F32, [2, 3])];
        let layout = BatchLayout::of_fields(3, specs.to_vec(), TensorSpec::new(Dtype::U8, [])).unwrap();
        let [bytes, index, floats] = layout.fields() else { panic!("{layout:?}") };
        assert_eq!([bytes.own(), index.own(), floats.own()], [0..5, 5..13, 13..37]);
        assert_eq!([bytes.row(2), index.row(2), floats.row(1)], [10..15, 80..88, 152..176]);
        assert_eq!((layout.data_row_bytes(), layout.data_range(3), layout.target_offset()), (37, 0..200, 256));
        assert_eq!((layout.field_range(floats, 2), layout.field_range(floats, 9)), (128..176, 128..200));
        let bare = BatchLayout::of_fields(3, Vec::new(), TensorSpec::class_index()).unwrap();
        assert_eq!((bare.data_range(3), bare.data_row_bytes(), bare.target_range(3)), (0..0, 0, 0..24));
    }

    #[test]
    fn batches_without_bytes_or_beyond_memory_are_refused_with_their_shape() {
        let image = TensorSpec::new(Dtype::U8, [32, 32, 3]);
        let label = TensorSpec::class_index();
        assert!(BatchLayout::new(0, image.clone(), label.clone()).unwrap_err().to_string().contains("batch_size"));
        let empty = BatchLayout::new(4, TensorSpec::new(Dtype::U8, [0, 3]), label.clone()).unwrap_err();
        assert!(empty.to_string().contains("[0, 3]"), "{empty}");
        assert!(BatchLayout::new(usize::MAX / 1000, image.clone(), label.clone()).is_err());
        assert!(BatchLayout::new(1, TensorSpec::new(Dtype::F64, [usize::MAX / 4]), label).is_err());
    }
}
