//! A dataset's decoder, by its first images.

use std::ops::ControlFlow;

use super::{png, refusal};
use crate::error::{ErrorKind, Result};
use crate::types::{Dtype, SampleId, TensorSpec};
use crate::{Arrays, Facts, Form, ImageMode, Payload, Resize, Size, Source, Traffic, decoder_of};

/// Encoded images in memory, all of class 0.
struct Images(Vec<Vec<u8>>, Facts);

impl Images {
    fn new(images: Vec<Vec<u8>>) -> Self {
        let form = Form::Images { tailed: false };
        let facts = Facts::new(images.len(), "images", form, TensorSpec::no_target());
        Self(images, facts)
    }
}

impl Source for Images {
    fn facts(&self) -> &Facts {
        &self.1
    }
    fn name(&self, id: SampleId) -> String {
        format!("image {id}")
    }
    fn size(&self, id: SampleId) -> Size {
        Size::known(self.0[id as usize].len() as u64)
    }
    fn fetch_by(
        &self,
        _: u64,
        _: &dyn Fn() -> bool,
        ids: &[SampleId],
        sink: &mut dyn FnMut(usize, Result<Payload<'_>>) -> ControlFlow<()>,
    ) -> Traffic {
        for (k, &id) in ids.iter().enumerate() {
            if sink(k, Ok(Payload::new(&self.0[id as usize], &[]))).is_break() {
                return Traffic::default();
            }
        }
        Traffic::default()
    }
}

#[test]
fn the_shape_comes_from_the_first_image_that_decodes() {
    let images = Images::new(vec![b"junk".to_vec(), png(7)]);
    assert_eq!(decoder_of(&images, ImageMode::Rgb, None).unwrap().spec().shape, [2, 3, 3]);
    let junk = Images::new(vec![b"junk".to_vec(); 20]);
    let words = ["first 16 samples", "image 0", "6a 75 6e 6b"];
    refusal(decoder_of(&junk, ImageMode::Auto, None), ErrorKind::Sample, &words);
    refusal(decoder_of(&Images::new(vec![]), ImageMode::Auto, None), ErrorKind::Source, &["no samples"]);
}

#[test]
fn what_cannot_be_decoded_is_refused_whatever_its_samples_are() {
    let rows =
        Arrays::new(vec![0; 4], TensorSpec::new(Dtype::U8, [4]), vec![0; 8], TensorSpec::class_index(), 1).unwrap();
    refusal(decoder_of(&rows, ImageMode::Auto, None), ErrorKind::Usage, &["rows"]);
    let resize = Some(Resize { to: (0, 5), crop: None });
    for images in [vec![], vec![b"junk".to_vec()], vec![png(7)]] {
        refusal(decoder_of(&Images::new(images), ImageMode::Auto, resize), ErrorKind::Settings, &["resize=(0, 5)"]);
    }
}
