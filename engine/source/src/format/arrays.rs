//! Samples that already lie in memory: rows of one array or of several, targets in another.

use crate::error::{Error, Result};
use crate::sample::{Facts, Fields, Fingerprint, Form, Payload, Size, Source, Traffic};
use crate::types::{Dtype, MAX_SAMPLES, SampleId, TensorSpec};
use lossfeed_kernels::fast::prefetch_row;
use std::ops::ControlFlow;

/// Rows that the fingerprint looks at, and how far into each: a million bytes at most.
const DIGEST_ROWS: usize = 256;
const DIGEST_ROW_BYTES: usize = 4096;

/// Memory that somebody keeps alive and unchanged.
type Buffer = Box<dyn AsRef<[u8]> + Send + Sync>;

/// A dataset of C-contiguous buffers: `samples` rows of data, in one or several, and as many targets. The buffers may
/// be owned vectors or anything that keeps foreign memory alive and unchanged (a NumPy array's holder).
pub struct Arrays {
    /// With the bytes of a row.
    data: Vec<(Buffer, usize)>,
    target: Buffer,
    facts: Facts,
    row_bytes: usize,
    target_bytes: usize,
    labels: Option<Vec<i64>>,
}

impl Arrays {
    /// `data` holds `samples` rows of `data_spec`, `target` as many of `target_spec`, native endian.
    ///
    /// # Errors
    /// `Settings` when there is no sample or too many, when a row has no bytes, or when a buffer's length is not
    /// `samples` rows.
    pub fn new(
        data: impl AsRef<[u8]> + Send + Sync + 'static,
        data_spec: TensorSpec,
        target: impl AsRef<[u8]> + Send + Sync + 'static,
        target_spec: TensorSpec,
        samples: usize,
    ) -> Result<Self> {
        let form = Form::Rows(data_spec.clone());
        Self::make(form, vec![(Box::new(data), data_spec)], Box::new(target), target_spec, samples)
    }

    /// Samples of several arrays: every one of `data` holds `samples` rows of its spec.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn of_fields(
        data: Vec<(Buffer, TensorSpec)>,
        target: impl AsRef<[u8]> + Send + Sync + 'static,
        target_spec: TensorSpec,
        samples: usize,
    ) -> Result<Self> {
        let form = Form::Fields(Fields::new(data.iter().map(|(_, spec)| spec.clone()).collect(), false)?);
        Self::make(form, data, Box::new(target), target_spec, samples)
    }

    fn make(
        form: Form,
        data: Vec<(Buffer, TensorSpec)>,
        target: Buffer,
        target_spec: TensorSpec,
        samples: usize,
    ) -> Result<Self> {
        if samples == 0 {
            return Err(Error::settings("the arrays hold 0 samples: pass at least one row"));
        }
        if samples > MAX_SAMPLES {
            return Err(Error::settings(format!(
                "the arrays hold {samples} samples, one dataset may have at most {MAX_SAMPLES}: split them"
            )));
        }
        let row_of = |(buffer, spec): (Buffer, TensorSpec)| {
            let bytes = checked("data", &spec, samples, (*buffer).as_ref().len())?;
            Ok((buffer, bytes))
        };
        let data = data.into_iter().map(row_of).collect::<Result<Vec<_>>>()?;
        let row_bytes = data.iter().map(|(_, bytes)| bytes).sum();
        let target_bytes = checked("target", &target_spec, samples, (*target).as_ref().len())?;
        let labels = (target_spec.dtype == Dtype::I64 && target_spec.shape.is_empty())
            .then(|| bytemuck::pod_collect_to_vec::<u8, i64>((*target).as_ref()));
        let description = match &form {
            Form::Rows(_) => format!("arrays: {samples} rows"),
            Form::Fields(_) | Form::Images { .. } => format!("arrays: {samples} rows of {} arrays each", data.len()),
        };
        let facts = Facts { in_memory: true, ..Facts::new(samples, description, form, target_spec) };
        Ok(Self { data, target, facts, row_bytes, target_bytes, labels })
    }

    /// Row `at` of every array of the data.
    fn parts(&self, at: usize) -> impl Iterator<Item = &[u8]> {
        self.data.iter().map(move |(buffer, bytes)| &(**buffer).as_ref()[at * bytes..(at + 1) * bytes])
    }

    /// A sample; one of several arrays is put together in `whole`.
    fn row<'a>(&'a self, id: SampleId, whole: &'a mut Vec<u8>) -> Option<Payload<'a>> {
        let at = id as usize;
        if at >= self.facts.samples {
            return None;
        }
        let target = (*self.target).as_ref().get(at * self.target_bytes..(at + 1) * self.target_bytes)?;
        if self.data.len() == 1 {
            return self.parts(at).next().map(|data| Payload::new(data, target));
        }
        whole.clear();
        self.parts(at).for_each(|part| whole.extend_from_slice(part));
        Some(Payload::new(whole, target))
    }
}

/// Bytes of one row, once `rows` of them are known to fill `len` exactly.
fn checked(what: &str, spec: &TensorSpec, rows: usize, len: usize) -> Result<usize> {
    let row = spec.shape.iter().try_fold(spec.dtype.size_bytes(), |a, &b| a.checked_mul(b));
    match row {
        Some(0) => {
            Err(Error::settings(format!("{what} has shape {:?}: a sample must have at least one element", spec.shape)))
        }
        Some(row) if row.checked_mul(rows) == Some(len) => Ok(row),
        _ => Err(Error::settings(format!(
            "{what}: {rows} rows of shape {:?} and {} do not make {len} bytes: pass arrays whose first dimension is the number of samples",
            spec.shape,
            spec.dtype.name()
        ))),
    }
}

impl Source for Arrays {
    fn facts(&self) -> &Facts {
        &self.facts
    }
    fn name(&self, id: SampleId) -> String {
        format!("row {id}")
    }
    fn size(&self, id: SampleId) -> Size {
        Size::known(if (id as usize) < self.facts.samples { self.row_bytes as u64 } else { 0 })
    }
    fn labels(&self) -> Option<&[i64]> {
        self.labels.as_deref()
    }
    /// Rows have no names: the targets and some rows of the data, evenly spread, stand for them.
    fn digest(&self) -> String {
        let mut digest = Fingerprint::of(&self.facts);
        digest.add((*self.target).as_ref());
        let step = self.facts.samples.div_ceil(DIGEST_ROWS);
        for at in (0..self.facts.samples).step_by(step) {
            self.parts(at).for_each(|part| digest.add(&part[..part.len().min(DIGEST_ROW_BYTES)]));
        }
        digest.finish()
    }
    fn fetch_by(
        &self,
        _: u64,
        stopped: &dyn Fn() -> bool,
        ids: &[SampleId],
        sink: &mut dyn FnMut(usize, Result<Payload<'_>>) -> ControlFlow<()>,
    ) -> Traffic {
        if stopped() {
            return Traffic::default();
        }
        // The first bytes of all rows and targets at once: misses of memory overlap here, and follow each other in the
        // sink's copies.
        let target = (*self.target).as_ref();
        let inside = || ids.iter().map(|&id| id as usize).filter(|&at| at < self.facts.samples);
        let touched = |(buffer, bytes): &(Buffer, usize)| {
            let rows = (**buffer).as_ref();
            inside().fold(0, |all, at| all ^ rows.get(at * bytes).unwrap_or(&0))
        };
        let of_target = inside().fold(0, |all, at| all ^ target.get(at * self.target_bytes).unwrap_or(&0));
        std::hint::black_box(self.data.iter().fold(of_target, |all, column| all ^ touched(column)));
        let mut whole = Vec::new();
        for (k, &id) in ids.iter().enumerate() {
            if let (Some(&next), [(buffer, bytes)]) = (ids.get(k + 1), &self.data[..]) {
                let rows = (**buffer).as_ref();
                prefetch_row(rows.get(next as usize * bytes..(next as usize + 1) * bytes).unwrap_or_default());
            }
            if sink(
                k,
                self.row(id, &mut whole).ok_or_else(|| crate::format::files::out_of_range(id, self.facts.samples)),
            )
            .is_break()
            {
                break;
            }
        }
        Traffic::default()
    }
}
