//! From a slot to tensors: the pixels' copy on its own stream, the kernel behind it, and not a bit different from the CPU's.

use std::sync::Arc;
use std::time::Duration;

use lossfeed::device::Device;
use lossfeed::device::cuda::Cuda;
use lossfeed::error::ErrorKind;
use lossfeed::staging::{BatchLayout, SlotPool};
use lossfeed::{Dtype, TensorSpec};
use lossfeed_kernels::image::{ImageDtype, ImageMaker, ImageOptions, ImageTransform, batch_key};
use lossfeed_kernels::launch::Images;

use crate::copies::fill;
use crate::double::Double;

const ROWS: usize = 12;
const SIDE: [usize; 3] = [7, 9, 3];

fn transform(dtype: ImageDtype, channels_first: bool) -> ImageTransform {
    let (mean, std): (&[f64], &[f64]) = if dtype == ImageDtype::U8 { (&[], &[]) } else { (&[0.4], &[0.25, 0.5, 1.0]) };
    let options =
        ImageOptions { dtype, channels_first, crop: Some([8, 8]), padding: 2, random_crop: true, flip: 0.5, mean, std };
    ImageTransform::new(SIDE, &options).unwrap()
}

#[test]
fn batches_become_images_on_the_device_while_slots_are_filled_again() {
    let Some(double) = Double::load() else { return };
    double.set("delay_us", 300);
    let cuda = Cuda::open(0).unwrap();
    let kernels = cuda.kernels().unwrap();
    let device: Arc<dyn Device> = Arc::new(cuda.clone());
    let layout = BatchLayout::new(ROWS, TensorSpec::new(Dtype::U8, SIDE), TensorSpec::class_index()).unwrap();
    let pool = SlotPool::new(layout.clone(), 2, 2, device).unwrap();
    let consumer = double.stream();
    let places: Vec<u64> = (0..2).map(|_| double.allocate(layout.total_bytes())).collect();
    let out = double.allocate(ROWS * 8 * 8 * 3 * 4);
    let dtypes = [ImageDtype::U8, ImageDtype::F16, ImageDtype::BF16, ImageDtype::F32];
    for number in 0..200u64 {
        let transform = transform(dtypes[number as usize % 4], number % 8 < 4);
        let rows = if number % 5 == 0 { ROWS - 5 } else { ROWS };
        let mut slot = pool.acquire(Duration::from_secs(30)).unwrap().expect("slots come back");
        slot.set_rows(rows);
        fill(slot.bytes_mut(), number);
        let ids: Vec<u32> = (0..rows as u32).map(|row| row * 31 + number as u32).collect();
        slot.set_ids(&ids, &vec![1.0; rows]);
        let key = batch_key(1, 2, number);
        let maker = ImageMaker::new(transform.clone());
        let mut expected = vec![0u8; rows * transform.out_bytes()];
        for (row, made) in expected.chunks_exact_mut(transform.out_bytes()).enumerate() {
            let pixels = &slot.data()[row * layout.data_row_bytes()..][..layout.data_row_bytes()];
            maker.make(key, i64::from(ids[row]), pixels, made);
        }
        let place = places[number as usize % 2];
        let event = double.copy(&cuda, slot, place, consumer).unwrap();
        double.wait(&cuda, consumer, &event).unwrap();
        let batch = Images { rows, key, source: place, ids: place + layout.ids_offset() as u64, out };
        double.images(&kernels, consumer, &transform, &batch).unwrap();
        double.check(consumer, out, expected.len(), double.digest(&expected));
    }
    double.synchronize(consumer);
    double.is_clean();
    let batch = Images { rows: 1, key: 0, source: places[0], ids: places[0], out: out + 1 };
    let refused = double.images(&kernels, consumer, &transform(ImageDtype::F16, true), &batch).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Usage, "{refused}");
    drop((pool, cuda));
    places.into_iter().chain([out]).for_each(|place| double.free(place));
    double.close_stream(consumer);
    double.nothing_is_left();
}
