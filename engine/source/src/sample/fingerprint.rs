//! What a dataset holds, as a fingerprint.

use crate::sample::{Facts, Form};
use crate::types::TensorSpec;
use sha2::{Digest, Sha256};

/// A running SHA-256 over the parts of a dataset, each preceded by its length, so that no two lists of parts look
/// alike.
pub struct Fingerprint(Sha256);

impl Fingerprint {
    /// Begins with what every dataset has.
    pub fn new(samples: usize, form: &Form, target: &TensorSpec, classes: &[String]) -> Self {
        let mut begun = Self(Sha256::new());
        begun.add(&(samples as u64).to_le_bytes());
        match form {
            Form::Images { tailed: false } => begun.add(b"images"),
            Form::Images { tailed: true } => begun.add(b"images and a tail"),
            Form::Rows(spec) => begun.add_spec(spec),
            Form::Fields(fields) => {
                begun.add(if fields.tailed() { b"fields and a tail" } else { b"fields" });
                begun.add(&(fields.each().len() as u64).to_le_bytes());
                fields.each().iter().for_each(|spec| begun.add_spec(spec));
            }
        }
        begun.add_spec(target);
        begun.add(&(classes.len() as u64).to_le_bytes());
        classes.iter().for_each(|class| begun.add(class.as_bytes()));
        begun
    }

    /// The same of a source.
    pub fn of(facts: &Facts) -> Self {
        Self::new(facts.samples, &facts.form, &facts.target, &facts.classes)
    }

    /// Adds a part.
    pub fn add(&mut self, part: &[u8]) {
        self.0.update((part.len() as u64).to_le_bytes());
        self.0.update(part);
    }

    fn add_spec(&mut self, spec: &TensorSpec) {
        self.add(format!("{} {:?}", spec.dtype.name(), spec.shape).as_bytes());
    }

    /// The first 128 bits, in hexadecimal.
    pub fn finish(self) -> String {
        self.0.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
    }
}
