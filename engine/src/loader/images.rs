//! From an image, encoded or not, to a row: decoded, cropped, augmented, transformed, as far as the run asks for it;
//! and the rows of a batch, mixed.

use crate::error::Result;
use crate::settings::ImageSteps;
use crate::source::{Decoder, Scratch, resample};
use lossfeed_kernels::image::{Augment, ColorJitter, Erase, ImageMaker, Mixing, ResizedCrop, mix_rows};

/// Makes the rows of batches from images.
pub struct Images {
    crop: Option<ResizedCrop>,
    jitter: Option<ColorJitter>,
    /// Cuts and mirrors what is augmented then.
    cut: Option<ImageMaker>,
    augment: Option<Augment>,
    maker: Option<ImageMaker>,
    erase: Option<Erase>,
    mixing: Option<Mixing>,
    /// Mixing draws by it too.
    rank: u32,
    /// Crops are taken of encoded images as they are, of any size. Else of the dataset's one size.
    own_size: bool,
    /// Height, width and channels of that.
    source: [usize; 3],
}

/// By what chance decides for a row: the batch's key and the sample's id.
pub(super) type Draw = (u64, i64);

impl Images {
    /// For `steps`, at least one. Crops are taken of images of their own size if `own_size` says so.
    pub fn new(steps: ImageSteps, own_size: bool, rank: u32) -> Self {
        let ImageSteps { crop, jitter, augment, transform, erase, mixing, source, .. } = steps;
        let (cut, augment) = augment.map_or((None, None), |a| (a.cut.map(ImageMaker::new), Some(a.augment)));
        let maker = transform.map(ImageMaker::new);
        Self { crop, jitter, cut, augment, maker, erase, mixing, rank, own_size, source }
    }

    /// Makes a row of an encoded image. Unless crops are taken of images as they are, `scratch.decoded` is then the
    /// sample, decoded to the dataset's size.
    pub(super) fn decode(
        &self,
        draw: Draw,
        decoder: &Decoder,
        encoded: &[u8],
        out: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<()> {
        if let Some(crop) = self.crop.filter(|_| self.own_size) {
            return self
                .cropped(draw, out, scratch, |out, scratch| decoder.decode_crop(encoded, &crop, draw, out, scratch));
        }
        let mut decoded = std::mem::take(&mut scratch.decoded);
        decoded.resize(decoder.spec().bytes(), 0);
        let done =
            decoder.decode(encoded, &mut decoded, scratch).and_then(|()| self.make(draw, &decoded, out, scratch));
        scratch.decoded = decoded;
        done
    }

    /// Makes a row of a sample's pixels, of the dataset's size.
    pub(super) fn make(&self, draw: Draw, pixels: &[u8], out: &mut [u8], scratch: &mut Scratch) -> Result<()> {
        match (&self.crop, &self.maker) {
            (Some(crop), _) => self.cropped(draw, out, scratch, |out, scratch| {
                let [height, width, channels] = self.source;
                let region = crop.region([height, width], draw.0, draw.1);
                resample(&mut scratch.resizer, pixels, [height, width], region, out, crop.size(), channels)
            }),
            (None, Some(maker)) if self.jitter.is_none() && self.augment.is_none() => {
                self.finish(maker, draw, pixels, out);
                Ok(())
            }
            (None, _) => self.cropped(draw, out, scratch, |out, _| {
                out.copy_from_slice(pixels);
                Ok(())
            }),
        }
    }

    /// Crops into the row itself, or on the way there if more is made of it, changes colours there and augments.
    fn cropped(
        &self,
        draw: Draw,
        out: &mut [u8],
        scratch: &mut Scratch,
        crop: impl FnOnce(&mut [u8], &mut Scratch) -> Result<()>,
    ) -> Result<()> {
        let (key, id) = draw;
        let colored = |out: &mut [u8], scratch: &mut Scratch| {
            crop(out, scratch)?;
            if let Some(jitter) = &self.jitter {
                jitter.apply(key, id, self.source[2], out);
            }
            Ok(())
        };
        let augmented = |out: &mut [u8], scratch: &mut Scratch| {
            match &self.cut {
                Some(cut) => {
                    let mut uncut = std::mem::take(&mut scratch.uncut);
                    uncut.resize(cut.transform().source_bytes(), 0);
                    let done = colored(&mut uncut, scratch).map(|()| cut.make(key, id, &uncut, out));
                    scratch.uncut = uncut;
                    done?;
                }
                None => colored(out, scratch)?,
            }
            if let Some(augment) = &self.augment {
                augment.apply(key, id, out, &mut scratch.before);
            }
            Ok(())
        };
        let Some(maker) = &self.maker else { return augmented(out, scratch) };
        let mut cropped = std::mem::take(&mut scratch.cropped);
        cropped.resize(maker.transform().source_bytes(), 0);
        let done = augmented(&mut cropped, scratch).map(|()| self.finish(maker, draw, &cropped, out));
        scratch.cropped = cropped;
        done
    }

    /// Mixes the images of a whole batch, if the run asks for it and chance says so.
    pub(super) fn mix(&self, key: u64, data: &mut [u8]) {
        let (Some(mixing), Some(maker)) = (&self.mixing, &self.maker) else { return };
        if let Some(mixed) = mixing.draw(maker.transform().out_sides(), key, self.rank) {
            mix_rows(maker.transform(), &mixed, data);
        }
    }

    fn finish(&self, maker: &ImageMaker, (key, id): Draw, pixels: &[u8], out: &mut [u8]) {
        maker.make(key, id, pixels, out);
        if let Some(erase) = &self.erase {
            erase.apply(maker.transform(), key, id, out);
        }
    }
}
