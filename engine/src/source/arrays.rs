//! Samples that already lie in memory: rows of one array, targets in another.

use super::{Fingerprint, Form, Payload, Source};
use crate::error::{Error, Result};
use crate::types::{Dtype, MAX_SAMPLES, SampleId, TensorSpec};
use std::ops::ControlFlow;

/// Rows that the fingerprint looks at, and how far into each: a million bytes at most.
const DIGEST_ROWS: usize = 256;
const DIGEST_ROW_BYTES: usize = 4096;

type Buffer = Box<dyn AsRef<[u8]> + Send + Sync>;

/// A dataset of two C-contiguous buffers: `samples` rows of `data` and as many targets. The buffers may be owned
/// vectors or anything that keeps foreign memory alive and unchanged (a NumPy array's holder).
pub struct Arrays {
    data: Buffer,
    target: Buffer,
    form: Form,
    row_bytes: usize,
    target_spec: TensorSpec,
    target_bytes: usize,
    samples: usize,
    labels: Option<Vec<i64>>,
    classes: Vec<String>,
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
        if samples == 0 {
            return Err(Error::settings("the arrays hold 0 samples: pass at least one row"));
        }
        if samples > MAX_SAMPLES {
            return Err(Error::settings(format!(
                "the arrays hold {samples} samples, one dataset may have at most {MAX_SAMPLES}: split them"
            )));
        }
        let row_bytes = checked("data", &data_spec, samples, data.as_ref().len())?;
        let target_bytes = checked("target", &target_spec, samples, target.as_ref().len())?;
        let labels = (target_spec.dtype == Dtype::I64 && target_spec.shape.is_empty())
            .then(|| bytemuck::pod_collect_to_vec::<u8, i64>(target.as_ref()));
        Ok(Self {
            data: Box::new(data),
            target: Box::new(target),
            form: Form::Rows(data_spec),
            row_bytes,
            target_spec,
            target_bytes,
            samples,
            labels,
            classes: Vec::new(),
        })
    }

    /// The same arrays with names for their labels.
    pub fn with_classes(mut self, classes: Vec<String>) -> Self {
        self.classes = classes;
        self
    }

    fn row(&self, id: SampleId) -> Option<Payload<'_>> {
        let at = id as usize;
        if at >= self.samples {
            return None;
        }
        Some(Payload {
            data: (*self.data).as_ref().get(at * self.row_bytes..(at + 1) * self.row_bytes)?,
            target: (*self.target).as_ref().get(at * self.target_bytes..(at + 1) * self.target_bytes)?,
        })
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
    fn len(&self) -> usize {
        self.samples
    }
    fn describe(&self) -> String {
        match &self.form {
            Form::Rows(spec) => format!("arrays: {} rows of {} {:?}", self.samples, spec.dtype.name(), spec.shape),
            Form::Images => format!("arrays: {} images", self.samples),
        }
    }
    fn payload_bytes(&self, id: SampleId) -> u64 {
        if (id as usize) < self.samples { self.row_bytes as u64 } else { 0 }
    }
    fn name(&self, id: SampleId) -> String {
        format!("row {id}")
    }
    fn form(&self) -> &Form {
        &self.form
    }
    fn target_spec(&self) -> &TensorSpec {
        &self.target_spec
    }
    fn classes(&self) -> &[String] {
        &self.classes
    }
    fn labels(&self) -> Option<&[i64]> {
        self.labels.as_deref()
    }
    fn in_memory(&self) -> bool {
        true
    }
    /// Rows have no names: the targets and some rows of the data, evenly spread, stand for them.
    fn digest(&self) -> String {
        let mut digest = Fingerprint::new(self.samples, &self.form, &self.target_spec, &self.classes);
        digest.add((*self.target).as_ref());
        let step = self.samples.div_ceil(DIGEST_ROWS);
        for row in (0..self.samples).step_by(step).filter_map(|id| self.row(id as SampleId)) {
            digest.add(&row.data[..row.data.len().min(DIGEST_ROW_BYTES)]);
        }
        digest.finish()
    }

    fn fetch(&self, ids: &[SampleId], sink: &mut dyn FnMut(usize, Result<Payload<'_>>) -> ControlFlow<()>) {
        // The first bytes of all rows and targets at once: misses of memory overlap here, and follow each other in the
        // sink's copies.
        let first =
            |id: &SampleId| self.row(*id).map(|row| row.data.first().unwrap_or(&0) ^ row.target.first().unwrap_or(&0));
        std::hint::black_box(ids.iter().filter_map(first).fold(0, |all, byte| all ^ byte));
        for (k, &id) in ids.iter().enumerate() {
            if sink(k, self.row(id).ok_or_else(|| super::files::out_of_range(id, self.samples))).is_break() {
                return;
            }
        }
    }
}
