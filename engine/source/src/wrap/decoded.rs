//! A source of encoded images as one of decoded images, so that a tier before it keeps pixels.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::decode::{Decoder, Scratch};
use crate::error::{Error, Result};
use crate::sample::{Counted, Facts, Form, LimitBy, Link, News, Payload, Size, Source, Traffic};
use crate::tune::fetch_plan::{Ask, Plan};
use crate::types::SampleId;

/// Sample k is the decoded image k of the inner source.
pub(crate) struct Decoded {
    inner: Arc<dyn Source>,
    decoder: Decoder,
    facts: Facts,
    /// The decoder's settings and version, on which the pixels depend too.
    by: String,
}

/// The images of `source`, decoded.
///
/// # Errors
/// `Settings` for images that have something beside them.
pub fn decoded(source: Arc<dyn Source>, decoder: Decoder) -> Result<Arc<dyn Source>> {
    let facts = source.facts();
    if facts.form != (Form::Images { tailed: false }) {
        return Err(Error::settings(format!(
            "form=\"decoded\" with share=\"node\": the samples of {} have more than an image: remove form=",
            facts.description
        )));
    }
    let facts = Facts { form: Form::Rows(decoder.spec().clone()), sized: true, ..facts.clone() };
    // Another version may decode a sample otherwise.
    let by = format!("{} {decoder:?}", env!("CARGO_PKG_VERSION"));
    Ok(Arc::new(Decoded { inner: source, decoder, facts, by }))
}

thread_local! {
    static MEMORY: RefCell<(Vec<u8>, Scratch)> = RefCell::default();
}

impl Decoded {
    /// Fetches and decodes `ids`; positions whose bytes are no image are pushed to `broken`, or told if there is none.
    fn fetch_into(
        &self,
        request_bytes: u64,
        stopped: &dyn Fn() -> bool,
        ids: &[SampleId],
        mut broken: Option<&mut Vec<usize>>,
        sink: &mut dyn FnMut(usize, Result<Payload<'_>>) -> ControlFlow<()>,
    ) -> Traffic {
        self.inner.fetch_by(request_bytes, stopped, ids, &mut |k, answer| {
            let payload = match answer {
                Ok(payload) => payload,
                Err(e) => return sink(k, Err(e)),
            };
            // The sink may fetch on this thread.
            let (mut pixels, mut scratch) = MEMORY.take();
            pixels.resize(self.decoder.spec().bytes(), 0);
            let decoded = self.decoder.decode(payload.data, &mut pixels, &mut scratch);
            let flow = match (decoded, &mut broken) {
                (Ok(()), _) => sink(k, Ok(Payload { data: &pixels, ..payload })),
                (Err(_), Some(broken)) => {
                    broken.push(k);
                    ControlFlow::Continue(())
                }
                (Err(e), None) => sink(k, Err(e)),
            };
            MEMORY.set((pixels, scratch));
            flow
        })
    }
}

#[deny(clippy::missing_trait_methods)] // what is left out falls back to a default, silently
impl Source for Decoded {
    fn facts(&self) -> &Facts {
        &self.facts
    }
    fn name(&self, id: SampleId) -> String {
        self.inner.name(id)
    }
    fn size(&self, id: SampleId) -> Size {
        match self.inner.size(id).payload {
            0 => Size::default(),
            _ => Size::known(self.decoder.spec().bytes() as u64),
        }
    }
    fn labels(&self) -> Option<&[i64]> {
        self.inner.labels()
    }
    /// Sizes are known.
    fn remember(&self, _: SampleId, _: u32, _: u32) {}
    /// Taken apart it would be encoded.
    fn parts(&self) -> Option<&[Arc<dyn Source>]> {
        None
    }
    /// A run goes on with the images in either form.
    fn digest(&self) -> String {
        self.inner.digest()
    }
    fn proof(&self, id: SampleId) -> Option<[u8; 16]> {
        let mut digest = Sha256::new();
        digest.update(self.inner.proof(id)?);
        digest.update(&self.by);
        digest.finalize().first_chunk().copied()
    }
    fn counted(&self) -> Counted {
        self.inner.counted()
    }
    fn link(&self) -> Link {
        self.inner.link()
    }
    fn limit(&self, bytes_per_s: Option<u64>, by: LimitBy) -> bool {
        self.inner.limit(bytes_per_s, by)
    }
    fn tell(&self, news: News<'_>) {
        self.inner.tell(news);
    }
    fn is_near(&self, id: SampleId) -> bool {
        self.inner.is_near(id)
    }
    fn along(&self, ids: &[SampleId], first: usize, request_bytes: u64) -> Vec<usize> {
        self.inner.along(ids, first, request_bytes)
    }
    fn plan(&self, ids: &[SampleId], call: Ask) -> Option<Plan> {
        self.inner.plan(ids, call)
    }
    /// Bytes that are no image are fetched once more, as they may be right then.
    fn fetch_by(
        &self,
        request_bytes: u64,
        stopped: &dyn Fn() -> bool,
        ids: &[SampleId],
        sink: &mut dyn FnMut(usize, Result<Payload<'_>>) -> ControlFlow<()>,
    ) -> Traffic {
        let (mut broken, mut flow) = (Vec::new(), ControlFlow::Continue(()));
        let mut traffic = self.fetch_into(request_bytes, stopped, ids, Some(&mut broken), &mut |k, answer| {
            flow = sink(k, answer);
            flow
        });
        if broken.is_empty() || flow.is_break() || stopped() {
            return traffic;
        }
        let again: Vec<SampleId> = broken.iter().filter_map(|&k| ids.get(k).copied()).collect();
        self.inner.tell(News::Doubtful(&again));
        traffic += self.fetch_into(request_bytes, stopped, &again, None, &mut |at, answer| match broken.get(at) {
            Some(&k) => sink(k, answer),
            None => ControlFlow::Continue(()),
        });
        traffic
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::*;
    use crate::decode::ImageMode;
    use crate::sample::decoder_of;
    use crate::tests::png;
    use crate::types::TensorSpec;

    /// Three images, of which the second and third are damaged until they have been doubted so often.
    struct Damaged {
        facts: Facts,
        doubted: AtomicU32,
        heals_after: u32,
    }

    impl Damaged {
        fn new(heals_after: u32) -> Arc<Self> {
            let facts = Facts::new(3, "three", Form::Images { tailed: false }, TensorSpec::class_index());
            Arc::new(Self { facts, doubted: AtomicU32::new(0), heals_after })
        }
    }

    impl Source for Damaged {
        fn facts(&self) -> &Facts {
            &self.facts
        }
        fn name(&self, id: SampleId) -> String {
            format!("{id}.png")
        }
        fn size(&self, id: SampleId) -> Size {
            Size::known(if id < 3 { 100 } else { 0 })
        }
        fn proof(&self, id: SampleId) -> Option<[u8; 16]> {
            Some([id as u8; 16])
        }
        fn tell(&self, news: News<'_>) {
            if let News::Doubtful(ids) = news {
                assert_eq!(ids, [2, 1]);
                self.doubted.fetch_add(1, Relaxed);
            }
        }
        fn fetch_by(
            &self,
            _: u64,
            _: &dyn Fn() -> bool,
            ids: &[SampleId],
            sink: &mut dyn FnMut(usize, Result<Payload<'_>>) -> ControlFlow<()>,
        ) -> Traffic {
            let sound = self.doubted.load(Relaxed) >= self.heals_after;
            for (k, &id) in ids.iter().enumerate() {
                let image = if id == 0 || sound { png(id as u8) } else { vec![7; 100] };
                if sink(k, Ok(Payload::new(&image, &i64::from(id).to_ne_bytes()))).is_break() {
                    break;
                }
            }
            Traffic { requests: 1, ..Traffic::default() }
        }
    }

    fn of(inner: &Arc<Damaged>) -> (Arc<dyn Source>, Decoder) {
        let inner: Arc<dyn Source> = inner.clone();
        let decoder = decoder_of(&*inner, ImageMode::Rgb, None).unwrap();
        (decoded(inner, decoder.clone()).unwrap(), decoder)
    }

    #[test]
    fn images_come_decoded_and_bytes_that_are_none_are_fetched_once_more() {
        for (heals_after, errors) in [(0, 0), (1, 0), (2, 2)] {
            let inner = Damaged::new(heals_after);
            let (source, decoder) = of(&inner);
            let mut found = vec![None; 3];
            let traffic = source.fetch_by(u64::MAX, &|| false, &[2, 0, 1], &mut |k, answer| {
                assert!(found[k].is_none(), "one answer for each");
                found[k] = Some(answer.map(|p| (p.data.to_vec(), p.target.to_vec())).map_err(|e| e.kind()));
                ControlFlow::Continue(())
            });
            let answers: Vec<_> = found.into_iter().map(Option::unwrap).collect();
            assert_eq!(answers.iter().filter(|answer| answer.is_err()).count(), errors);
            for (answer, id) in answers.iter().zip([2u32, 0, 1]) {
                let Ok((data, target)) = answer else { continue };
                let mut pixels = vec![0; decoder.spec().bytes()];
                decoder.decode(&png(id as u8), &mut pixels, &mut Scratch::default()).unwrap();
                assert_eq!((data, target), (&pixels, &i64::from(id).to_ne_bytes().to_vec()));
            }
            assert_eq!(traffic.requests, 1 + u64::from(heals_after > 0));
        }
    }

    #[test]
    fn it_is_the_same_dataset_in_another_form() {
        let inner = Damaged::new(0);
        let (source, decoder) = of(&inner);
        assert_eq!(source.form(), &Form::Rows(decoder.spec().clone()));
        assert_eq!((source.size(0), source.size(3)), (Size::known(decoder.spec().bytes() as u64), Size::default()));
        assert_eq!((source.digest(), source.name(1)), (inner.digest(), inner.name(1)));
        let gray = decoder_of(&*source_of(&inner), ImageMode::Gray, None).unwrap();
        let gray = decoded(source_of(&inner), gray).unwrap();
        let proofs = [source.proof(0), source.proof(1), gray.proof(0), inner.proof(0)];
        assert!(proofs.iter().enumerate().all(|(k, proof)| !proofs[..k].contains(proof)), "{proofs:?}");
    }

    fn source_of(inner: &Arc<Damaged>) -> Arc<dyn Source> {
        inner.clone()
    }

    #[test]
    fn images_with_something_beside_them_are_refused() {
        let (_, decoder) = of(&Damaged::new(0));
        let facts = Facts::new(1, "texts", Form::Images { tailed: true }, TensorSpec::class_index());
        let tailed: Arc<dyn Source> = Arc::new(Damaged { facts, doubted: AtomicU32::new(0), heals_after: 0 });
        let refused = decoded(tailed, decoder).err().unwrap().to_string();
        assert!(refused.contains("form=\"decoded\" with share=\"node\"") && refused.contains("texts"), "{refused}");
    }
}
