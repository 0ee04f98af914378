//! What an engine is made over.

use crate::error::{Error, Result};
use crate::interrupt::Wait;
use crate::loader::RecordSizes;
use crate::settings::CacheForm;
use crate::source::{Concat, Decoder, Form, ImageMode, Resize, Scratch, Source, decoder_of, picture_and_tail};
use crate::types::{SampleId, TensorSpec};
use std::ops::ControlFlow;
use std::sync::Arc;

/// A source and how its samples are decoded.
#[derive(Clone)]
pub struct Dataset {
    /// Where samples are read from.
    pub source: Arc<dyn Source>,
    /// For sources of images.
    pub decoder: Option<Decoder>,
}

impl Dataset {
    /// Finds out what a sample of `source` looks like (images: by decoding the first one).
    ///
    /// # Errors
    /// [`crate::ErrorKind::Settings`] for a `resize` of samples that are no images; what decoding the first image
    /// gives.
    pub fn new(source: Arc<dyn Source>, mode: ImageMode, resize: Option<Resize>) -> Result<Self> {
        let decoder = match source.form() {
            Form::Images { .. } => Some(decoder_of(&*source, mode, resize)?),
            Form::Rows(_) | Form::Fields(_) if resize.is_some() => {
                return Err(Error::settings("resize= is for images, and this dataset holds tensors: remove it"));
            }
            Form::Rows(_) | Form::Fields(_) => None,
        };
        Ok(Self { source, decoder })
    }

    /// Several datasets one after the other: the ids of each follow on those of the one before.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Settings`] as [`Concat::new`], and for images that are delivered in several shapes.
    pub fn concat(parts: &[Self]) -> Result<Self> {
        let decoder = parts.first().and_then(|first| first.decoder.clone());
        let source = Concat::new(parts.iter().map(|part| Arc::clone(&part.source)).collect())?;
        if let Some(other) = parts.iter().position(|part| part.decoder != decoder) {
            return Err(Error::settings(format!(
                "images of part {other} become {:?} and those of part 0 {:?}: open all with the same resize=, crop= \
                 and mode=",
                parts[other].spec().shape,
                parts[0].spec().shape
            )));
        }
        Ok(Self { source: Arc::new(source), decoder })
    }

    /// Element type and shape of one delivered sample; the bytes of a row of several arrays, without its tail.
    pub fn spec(&self) -> &TensorSpec {
        match (&self.decoder, self.source.form()) {
            (Some(decoder), _) => decoder.spec(),
            (None, Form::Rows(spec)) => spec,
            (None, Form::Fields(fields)) => fields.row(),
            (None, Form::Images { .. }) => self.source.target_spec(), // unreachable by construction: images have a decoder
        }
    }

    /// The arrays of one delivered sample.
    pub fn fields(&self) -> &[TensorSpec] {
        match (&self.decoder, self.source.form()) {
            (None, Form::Fields(fields)) => fields.each(),
            _ => std::slice::from_ref(self.spec()),
        }
    }

    /// Data and target of one sample, as they are delivered; the data of one with a tail is the row and then the tail.
    ///
    /// # Errors
    /// Whatever reading or decoding it gives.
    pub fn read(&self, id: SampleId) -> Result<(Vec<u8>, Vec<u8>)> {
        self.read_with(id, true)
    }

    /// The same with a black picture, whatever the size of the sample's own: for what is beside it.
    ///
    /// # Errors
    /// Whatever reading it gives.
    pub fn read_beside(&self, id: SampleId) -> Result<(Vec<u8>, Vec<u8>)> {
        self.read_with(id, false)
    }

    fn read_with(&self, id: SampleId, picture: bool) -> Result<(Vec<u8>, Vec<u8>)> {
        let (mut found, wait) = (Err(Error::internal("a source left a sample out")), Wait::begin());
        self.source.fetch_by(u64::MAX, &|| wait.ends(), &[id], &mut |_, answer| {
            found = answer.and_then(|payload| {
                let Some(decoder) = &self.decoder else {
                    let (found, wanted) = (payload.data.len(), self.spec().bytes());
                    return match found == wanted || (found > wanted && self.source.form().tailed()) {
                        true => Ok((payload.data.to_vec(), payload.target.to_vec())),
                        false => {
                            Err(Error::sample(format!("it has {found} bytes, the dataset's samples have {wanted}")))
                        }
                    };
                };
                let tailed = self.source.form().tailed();
                let (encoded, tail) = if tailed { picture_and_tail(payload.data)? } else { (payload.data, &[][..]) };
                let mut data = vec![0; self.spec().bytes()];
                if picture {
                    decoder.decode(encoded, &mut data, &mut Scratch::default())?;
                }
                data.extend_from_slice(tail);
                Ok((data, payload.target.to_vec()))
            });
            ControlFlow::Break(())
        });
        if let Some(error) = wait.error() {
            return Err(error);
        }
        found.map_err(|e| Error::new(e.kind(), format!("sample {id} ({})", self.source.name(id))).because(e))
    }

    /// The form that is better in every respect, where there is one: decoded, where opening the dataset made all
    /// pictures one size and their pixels take no more memory than the source's bytes. Else encoded: then it is a
    /// question of what is short, memory or processors.
    pub fn better_form(&self) -> CacheForm {
        let resized = self.decoder.as_ref().is_some_and(Decoder::resizes);
        let bytes = |form| self.records(form).total_footprint();
        let (encoded, decoded) = if resized { (bytes(CacheForm::Encoded), bytes(CacheForm::Decoded)) } else { (0, 0) };
        // What samples take as they are stored may not be known before they are read.
        match resized && decoded <= encoded && encoded < u64::MAX {
            true => CacheForm::Decoded,
            false => CacheForm::Encoded,
        }
    }

    /// What its samples take in a cache that keeps them in `form`.
    pub fn records(&self, form: CacheForm) -> RecordSizes {
        RecordSizes::new(Arc::clone(&self.source), self.spec().bytes(), form)
    }
}
