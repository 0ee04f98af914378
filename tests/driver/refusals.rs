//! The driver says no: every call that can fail does, once, and leaves a named error and nothing else behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lossfeed::device::Device;
use lossfeed::device::cuda::Cuda;
use lossfeed::engine::{Dataset, Engine};
use lossfeed::error::ErrorKind;
use lossfeed::sampler::{Pads, SamplerSettings};
use lossfeed::settings::{CopyPath, TransformSettings};
use lossfeed::source::{Arrays, ImageMode};
use lossfeed::staging::{BatchLayout, SlotPool};
use lossfeed::{Dtype, Settings, TensorSpec};

use crate::copies::{Counted, pool};
use crate::double::Double;
use crate::planted::{alone, is_alone};

const OUT_OF_MEMORY: i32 = 2;
const LAUNCH_FAILED: i32 = 719;

#[test]
fn a_device_that_cannot_be_opened_says_which_and_why_and_can_be_tried_again() {
    if !is_alone() {
        // The copy stream is made once a process.
        let name = "refusals::a_device_that_cannot_be_opened_says_which_and_why_and_can_be_tried_again";
        let (code, said) = alone(name);
        assert_eq!(code, Some(0), "{said}");
        return;
    }
    let Some(double) = Double::untouched() else { return };
    for call in ["cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2", "cuStreamCreate"] {
        double.fail(call, 0, OUT_OF_MEMORY);
        let refused = Cuda::open(0).expect_err(call);
        assert_eq!(refused.kind(), ErrorKind::Device, "{call}");
        assert!(refused.to_string().contains("out of memory"), "{call}: {refused}");
        double.nothing_is_left();
    }
    // Opened, it keeps one context and one copy stream, however often that is done.
    let once = [(); 3].map(|()| {
        drop(Cuda::open(0).unwrap());
        ["contexts", "streams"].map(|key| double.get(key))
    });
    assert_eq!(once, [[1, 1]; 3]);
    let refused = Cuda::open(7).unwrap_err();
    assert!(refused.to_string().contains("finds 1"), "{refused}");
    double.is_clean();
}

#[test]
fn a_copy_that_cannot_be_started_gives_its_slot_back_and_the_next_one_works() {
    let Some(double) = Double::load() else { return };
    let cuda = Cuda::open(0).unwrap();
    // Slots of 9 MiB are copied in three pieces.
    let spec = TensorSpec::new(Dtype::U8, [9 << 20]);
    let layout = BatchLayout::new(1, spec, TensorSpec::class_index()).unwrap();
    let device: Arc<dyn Device> = Arc::new(cuda.clone());
    let pool = SlotPool::new(layout, 1, 1, device).unwrap();
    let (place, consumer) = (double.allocate(pool.layout().total_bytes()), double.stream());
    double.set("delay_us", 2000);
    let calls = ["cuEventCreate", "cuEventRecord", "cuStreamWaitEvent", "cuMemcpyHtoDAsync_v2", "cuStreamIsCapturing"];
    for (call, after) in
        calls.map(|call| (call, 0)).into_iter().chain([("cuEventRecord", 1), ("cuMemcpyHtoDAsync_v2", 2)])
    {
        let slot = pool.acquire(Duration::from_secs(10)).unwrap().expect("the slot came back");
        double.fail(call, after, OUT_OF_MEMORY);
        let refused = double.copy(&cuda, slot, place, consumer).expect_err(call);
        assert_eq!(refused.kind(), ErrorKind::Device, "{call}");
        assert_eq!(pool.gauges().free, 1, "{call}: the slot is free as soon as the error is out");
        let slot = pool.acquire(Duration::ZERO).unwrap().unwrap();
        double.copy(&cuda, slot, place, consumer).unwrap().wait().unwrap();
    }
    double.is_clean();
    drop((pool, cuda));
    double.free(place);
    double.close_stream(consumer);
    double.nothing_is_left();
}

#[test]
fn page_locked_memory_that_is_not_to_be_had_is_an_error_with_the_number_and_the_remedy() {
    let Some(double) = Double::load() else { return };
    let cuda = Cuda::open(0).unwrap();
    let pinned = double.get("pinned_bytes");
    double.set("pinned_bytes", pinned + 100_000);
    let layout = BatchLayout::new(64, TensorSpec::new(Dtype::U8, [1000]), TensorSpec::class_index()).unwrap();
    let bytes = layout.total_bytes();
    let device: Arc<dyn Device> = Arc::new(cuda.clone());
    let refused = SlotPool::new(layout, 3, 3, device).unwrap_err();
    let said = format!("{refused:?}");
    assert!(said.contains("out of memory") && said.contains("batch_size"), "{said}");
    assert!(said.contains(&bytes.to_string()) || said.contains("page-locking"), "{said}");
    assert_eq!(double.get("pinned_bytes"), pinned, "the slot that could be had was given back");
    double.is_clean();
}

#[test]
fn device_memory_that_is_not_to_be_had_refuses_the_mailbox() {
    let Some(double) = Double::load() else { return };
    let cuda = Cuda::open(0).unwrap();
    // The first one of a process maps words that are never given back.
    assert!(cuda.mailbox(1, 1, |_| ()).unwrap().close());
    let pinned = double.get("pinned_bytes");
    double.set("device_bytes", double.get("device_bytes"));
    let refused = cuda.mailbox(16, 4, |_| ()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Device);
    assert!(refused.to_string().contains("out of memory"), "{refused}");
    assert_eq!(double.get("pinned_bytes"), pinned);
}

#[test]
fn a_slot_whose_copy_nobody_can_vouch_for_is_lost_and_the_others_go_on() {
    let Some(double) = Double::load() else { return };
    let cuda = Cuda::open(0).unwrap();
    let pool = pool(&cuda, 2);
    let (place, consumer) = (double.allocate(pool.layout().total_bytes()), double.stream());
    // The thread that waits for copies is told that the device is gone: the GPU may still be reading the slot.
    double.fail("cuEventSynchronize", 0, LAUNCH_FAILED);
    let gone: [Arc<AtomicUsize>; 2] = Default::default();
    let [event, _] = gone.each_ref().map(|gone| {
        let slot = pool.acquire(Duration::ZERO).unwrap().unwrap();
        double.copy(&cuda, Counted(slot, gone.clone()), place, consumer).unwrap()
    });
    // Copies are let go of in order: when the second has been, the first never will.
    for _ in 0..1000 {
        if gone[1].load(Ordering::SeqCst) == 1 {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(gone.map(|gone| gone.load(Ordering::SeqCst)), [0, 1], "the first slot must not be written again");
    double.fail("cuEventQuery", 0, LAUNCH_FAILED);
    assert_eq!(event.is_done().unwrap_err().kind(), ErrorKind::Device);
}

/// Every setting that can be wrong, each with a word of its refusal.
fn mistakes() -> Vec<(Settings, &'static str)> {
    let base = || Settings {
        device: "cuda:0".into(),
        cache_bytes: 1 << 20,
        batch_size: 8,
        stats: false,
        ..Settings::default()
    };
    let transform = TransformSettings {
        dtype: Dtype::F32,
        channels_first: true,
        crop: None,
        padding: 0,
        random_crop: false,
        flip: 0.0,
        mean: vec![],
        std: vec![],
        erase: 0.0,
        mix: None,
    };
    let pads = SamplerSettings::Pads(Pads { repeats: 0.0, ..Pads::default() });
    vec![
        (Settings { batch_size: 0, ..base() }, "batch_size is 0"),
        (Settings { batch_size: 65, ..base() }, "batch_size 65"),
        (Settings { rank: 2, world_size: 2, ..base() }, "rank 2"),
        (Settings { world_size: 0, ..base() }, "0 ranks"),
        (Settings { batch_size: 1, world_size: 3, ..base() }, "set drop_last to true"),
        (Settings { workers: Some(2000), ..base() }, "num_workers=2000"),
        (Settings { prefetch_factor: 0, ..base() }, "prefetch_factor 0"),
        (Settings { smoothing: Some(1.0), ..base() }, "smoothing 1"),
        (Settings { max_slots: Some(1), ..base() }, "max_slots 1"),
        (Settings { max_slots: Some(1 << 40), ..base() }, "max_slots"),
        (Settings { device: "tpu".into(), ..base() }, "\"tpu\""),
        (Settings { sampler: pads, ..base() }, "repeats is 0"),
        (Settings { policy: Some("best".into()), ..base() }, "\"best\""),
        (Settings { policy: Some("nopfs".into()), ..base() }, "program lossfeed-lab"),
        (Settings { policy: Some("belady".into()), ..base() }, "order of the next epoch"),
        (Settings { cache_bytes: 10, ..base() }, "smaller than one sample"),
        (Settings { cache_bytes: 1 << 50, ..base() }, "exceeds the 256"),
        (Settings { transform: Some(transform), ..base() }, "transform= needs uint8 images of shape"),
        (Settings { copy_path: Some(CopyPath::Mapped), batch_size: 8, device: "cpu".into(), ..base() }, "set device="),
    ]
}

#[test]
fn a_setting_that_cannot_be_is_refused_before_any_memory_is_page_locked() {
    let Some(double) = Double::load() else { return };
    let dataset = || {
        let spec = TensorSpec::new(Dtype::F32, [16]);
        let rows = Arrays::new(vec![0u8; 64 * spec.bytes()], spec, vec![0u8; 64 * 8], TensorSpec::class_index(), 64);
        Dataset::new(Arc::new(rows.unwrap()), ImageMode::Auto, None).unwrap()
    };
    for (settings, word) in mistakes() {
        // Page-locking would fail with an error of another kind.
        double.fail("cuMemHostRegister_v2", 0, OUT_OF_MEMORY);
        let refused = Engine::new(dataset(), settings).map(drop).expect_err(word);
        assert_eq!(refused.kind(), ErrorKind::Settings, "{word}: {refused}");
        assert!(refused.to_string().contains(word), "{word}: {refused}");
    }
    // The trap was set: settings without a mistake spring it.
    let good = Settings { device: "cuda:0".into(), batch_size: 8, stats: false, ..Settings::default() };
    let sprung = Engine::new(dataset(), good).map(drop).unwrap_err();
    assert_eq!(sprung.kind(), ErrorKind::Device, "{sprung}");
}
