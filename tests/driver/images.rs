//! From a slot to tensors: the pixels' copy on its own stream, the kernel behind it, and not a bit different from the
//! CPU's.

use std::sync::Arc;
use std::time::Duration;

use lossfeed::engine::{Courier, Dataset, Engine, ImagesBy, ImagesTo};
use lossfeed::error::ErrorKind;
use lossfeed::loader::Next;
use lossfeed::settings::CopyPath;
use lossfeed::source::{Arrays, ImageMode};
use lossfeed::{Dtype, Settings, TensorSpec};
use lossfeed_kernels::image::{
    Augment, AugmentKind, AugmentOptions, ColorJitter, Erase, ImageDtype, ImageMaker, ImageOptions, ImageTransform,
    JitterOptions, MixOptions, Mixing, Retouch, batch_key, mix_plain,
};

use crate::copies::fill;
use crate::double::Double;

const ROWS: usize = 12;
const SIDE: [usize; 3] = [7, 9, 3];

/// The first batch of another epoch.
fn next_epoch(engine: &Engine) -> lossfeed::Result<Next> {
    engine.next_batch(engine.start_epoch()?, Duration::from_secs(9))
}

fn transform(of: [usize; 3], dtype: ImageDtype, channels_first: bool) -> ImageTransform {
    let (mean, std): (&[f64], &[f64]) = if dtype == ImageDtype::U8 { (&[], &[]) } else { (&[0.4], &[0.25, 0.5, 1.0]) };
    let options =
        ImageOptions { dtype, channels_first, crop: Some([8, 8]), padding: 2, random_crop: true, flip: 0.5, mean, std };
    ImageTransform::new(of, &options).unwrap()
}

/// Changes of colours, and with `augments` automatic augmentation of a cut that is larger than the image: all that a
/// transform of those images then does without a crop.
fn retouch(augments: bool) -> (Retouch, [usize; 3]) {
    let (none, all) = (JitterOptions::default(), Some([0.5, 1.5]));
    let options = JitterOptions { brightness: all, contrast: all, hue: Some([-0.5, 0.5]), chance: 0.7, ..none };
    let jitter = ColorJitter::new(JitterOptions { grayscale: 0.2, ..options }).unwrap();
    if !augments {
        return (Retouch::new(SIDE, jitter, None, None).unwrap(), SIDE);
    }
    let bytes = ImageOptions {
        dtype: ImageDtype::U8,
        channels_first: false,
        crop: Some([9, 11]),
        padding: 2,
        random_crop: true,
        flip: 0.5,
        mean: &[],
        std: &[],
    };
    let cut = ImageTransform::new(SIDE, &bytes).unwrap();
    let made = cut.shape();
    let options = AugmentOptions { kind: AugmentKind::Rand { ops: 3, magnitude: 20 }, bins: 31, fill: &[1, 2, 3] };
    let augment = Augment::new(made, &options).unwrap();
    (Retouch::new(SIDE, jitter, Some(cut), Some(augment)).unwrap(), made)
}

/// A whole engine whose batches become images on the device: slots are few, streams are slow, pixels lie in one place.
#[test]
fn an_engines_batches_become_images_on_the_device_while_its_slots_are_filled_again() {
    let Some(double) = Double::load() else { return };
    let samples = 60;
    let spec = TensorSpec::new(Dtype::U8, SIDE);
    let mut pixels = vec![0u8; samples * spec.bytes()];
    fill(&mut pixels, 5);
    let labels: Vec<u8> = (0..samples as i64).flat_map(i64::to_ne_bytes).collect();
    let source = Arrays::new(pixels.clone(), spec.clone(), labels, TensorSpec::class_index(), samples).unwrap();
    let dataset = Dataset::new(Arc::new(source), ImageMode::Auto, None).unwrap();
    for (turn, dtype) in [ImageDtype::U8, ImageDtype::F16, ImageDtype::BF16, ImageDtype::F32].into_iter().enumerate() {
        double.set("delay_us", 300);
        let settings = Settings {
            batch_size: ROWS,
            device: "cuda:0".into(),
            workers: Some(turn % 3),
            prefetch_factor: 1,
            max_slots: Some(5),
            // Half of the samples on every path; one of the turns takes each.
            cache_bytes: 30 * (spec.bytes() as u64 + 14).next_multiple_of(64),
            copy_path: Some(CopyPath::ALL[turn % 3]),
            stats: false,
            ..Settings::default()
        };
        let engine = Engine::new(dataset.clone(), settings).unwrap();
        let courier = Courier::of(&engine).unwrap();
        let retouch = (turn > 0).then(|| retouch(turn > 1));
        let of = retouch.as_ref().map_or(SIDE, |(_, made)| *made);
        let retouch = retouch.as_ref().map(|(retouch, _)| retouch);
        let (transform, layout) = (transform(of, dtype, turn % 2 == 0), engine.layout().clone());
        let maker = ImageMaker::new(transform.clone());
        let consumer = double.stream();
        let erase = Erase::new(0.5).unwrap().filter(|_| turn > 0);
        let alphas = MixOptions { mixup: 0.5, cutmix: 1.0, chance: 0.8, switch: 0.5 };
        let mixing = Mixing::new(&alphas).unwrap().filter(|_| turn != 1);
        let rest_bytes = layout.total_bytes() - layout.target_offset();
        let places = [0, 1].map(|_| (double.allocate(rest_bytes), double.allocate(ROWS * transform.out_bytes())));
        let room = retouch.map_or(ROWS * spec.bytes(), |retouch| retouch.room(ROWS).bytes);
        let pixels_at = double.allocate(room);
        for epoch in 0..4 {
            let iteration = engine.start_epoch().unwrap();
            loop {
                let batch = match engine.next_batch(iteration, Duration::from_secs(30)).unwrap() {
                    Next::Batch(batch) => batch,
                    Next::Pending => continue,
                    Next::End => break,
                };
                let number = batch.ticket.number as u64;
                let key = batch_key(7, epoch, number);
                let mut expected = vec![0u8; batch.rows * transform.out_bytes()];
                for (&id, made) in batch.ticket.ids.iter().zip(expected.chunks_exact_mut(transform.out_bytes())) {
                    let source = &pixels[id as usize * spec.bytes()..][..spec.bytes()];
                    let source = retouch.map_or(source.to_vec(), |r| r.plain(key, i64::from(id), source));
                    maker.make(key, i64::from(id), &source, made);
                    erase.iter().for_each(|erase| erase.apply(&transform, key, i64::from(id), made));
                }
                let mixed = mixing.as_ref().and_then(|mixing| mixing.draw([8, 8], key, 0));
                mixed.iter().for_each(|mixed| mix_plain(&transform, mixed, &mut expected));
                let rest_digest = double.digest(&batch.slot.bytes()[layout.target_offset()..]);
                let (rest, made) = places[number as usize % 2];
                let to = ImagesTo { rest, pixels: pixels_at, made };
                let by = ImagesBy { retouch, transform: &transform, erase: erase.as_ref(), mixed, key };
                assert!(by.pixels_bytes(batch.rows) <= room);
                let sent = double.send_images(&courier, batch.slot, &by, &to, consumer).unwrap();
                double.courier_wait(&courier, consumer, &sent);
                double.check(consumer, made, expected.len(), double.digest(&expected));
                double.check(consumer, rest, rest_bytes, rest_digest);
            }
        }
        double.synchronize(consumer);
        double.is_clean();
        let gauges = engine.stats().into_iter().collect::<std::collections::HashMap<_, _>>();
        assert!(gauges["slots_total"] <= 5.0);
        engine.close();
        drop((courier, engine));
        for (rest, made) in places {
            double.free(rest);
            double.free(made);
        }
        double.free(pixels_at);
        double.close_stream(consumer);
    }
}

#[test]
fn a_slot_that_is_sent_to_no_gpu_or_by_another_transform_is_refused_and_one_that_is_sent_again_is_copied() {
    let Some(double) = Double::load() else { return };
    let spec = TensorSpec::new(Dtype::U8, SIDE);
    let labels = vec![0u8; 8 * ROWS];
    let source = |spec: &TensorSpec| {
        let rows =
            Arrays::new(vec![1u8; ROWS * spec.bytes()], spec.clone(), labels.clone(), TensorSpec::class_index(), ROWS);
        Dataset::new(Arc::new(rows.unwrap()), ImageMode::Auto, None).unwrap()
    };
    let settings = |device: &str| Settings {
        batch_size: ROWS,
        device: device.into(),
        workers: Some(0),
        stats: false,
        ..Settings::default()
    };
    let on_cpu = Engine::new(source(&spec), settings("cpu")).unwrap();
    assert_eq!(Courier::of(&on_cpu).err().map(|e| e.kind()), Some(ErrorKind::Usage));
    let smaller = Engine::new(source(&TensorSpec::new(Dtype::U8, [7, 9])), settings("cuda:0")).unwrap();
    let courier = Courier::of(&smaller).unwrap();
    let Ok(Next::Batch(batch)) = next_epoch(&smaller) else { panic!("a batch") };
    let consumer = double.stream();
    let at = double.allocate(1 << 14);
    let to = ImagesTo { rest: at, pixels: at, made: at };
    let slot = Arc::new(batch.slot);
    let other = transform(SIDE, ImageDtype::F32, true);
    let plainly = |transform| ImagesBy { retouch: None, transform, erase: None, mixed: None, key: 0 };
    let refused = double.send_images(&courier, slot.clone(), &plainly(&other), &to, consumer);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Internal);
    // A launch that the driver refuses behind copies under way: the batch is lost, its slot is not.
    let bytes = ImageOptions {
        dtype: ImageDtype::U8,
        channels_first: false,
        crop: None,
        padding: 0,
        random_crop: false,
        flip: 0.0,
        mean: &[],
        std: &[],
    };
    let own = ImageTransform::new([7, 9, 1], &bytes).unwrap();
    double.fail("cuLaunchKernel", 0, 1);
    let refused = double.send_images(&courier, slot.clone(), &plainly(&own), &to, consumer);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Device);
    drop(slot);
    let Ok(Next::Batch(batch)) = next_epoch(&smaller) else { panic!("another batch") };
    let slot = Arc::new(batch.slot);
    let sent = double.send(&courier, slot.clone(), at, consumer).unwrap();
    // As after a call that was interrupted once it had sent.
    let again = double.send(&courier, slot.clone(), at, consumer).unwrap();
    sent.wait().unwrap();
    again.wait().unwrap();
    double.is_clean();
    drop((slot, courier, smaller));
    double.free(at);
    double.close_stream(consumer);
}
