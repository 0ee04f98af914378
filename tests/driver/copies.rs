//! Batches on their way: slots, copies, events, under delays and faults.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lossfeed::device::Device;
use lossfeed::device::cuda::Cuda;
use lossfeed::error::ErrorKind;
use lossfeed::staging::{BatchLayout, SlotPool};
use lossfeed::{Dtype, TensorSpec};

use crate::double::Double;

pub(crate) const ROWS: usize = 16;

pub(crate) fn pool(cuda: &Cuda, slots: usize) -> SlotPool {
    let layout = BatchLayout::new(ROWS, TensorSpec::new(Dtype::U8, [48]), TensorSpec::class_index()).unwrap();
    let device: Arc<dyn Device> = Arc::new(cuda.clone());
    SlotPool::new(layout, slots, slots, device).unwrap()
}

/// Bytes that no other batch has.
pub(crate) fn fill(bytes: &mut [u8], number: u64) {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for word in bytes.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_ne_bytes()[..word.len()]);
    }
}

/// `batches` batches through `slots` slots and as many places on the device, read by a consumer's stream that is slow
/// or fast at random. Places are used again as a framework's allocator does: as soon as the consumer's stream has been
/// given the work that reads them.
fn stream_through(double: &Double, batches: u64, slots: usize, delay_us: u64) {
    double.set("delay_us", delay_us);
    let cuda = Cuda::open(0).unwrap();
    let pool = pool(&cuda, slots);
    let bytes = pool.layout().total_bytes();
    let places: Vec<u64> = (0..slots).map(|_| double.allocate(bytes)).collect();
    let consumer = double.stream();
    for number in 0..batches {
        let mut slot = pool.acquire(Duration::from_secs(30)).unwrap().expect("slots come back");
        fill(slot.bytes_mut(), number);
        slot.ready().and_then(|()| slot.lend()).and_then(|()| slot.copying()).unwrap();
        let digest = double.digest(slot.bytes());
        let place = places[number as usize % slots];
        let event = double.copy(&cuda, slot, place, consumer).unwrap();
        double.wait(&cuda, consumer, &event).unwrap();
        double.check(consumer, place, bytes, digest);
    }
    double.synchronize(consumer);
    double.is_clean();
    drop((pool, cuda));
    places.into_iter().for_each(|place| double.free(place));
    double.close_stream(consumer);
}

#[test]
fn a_hundred_thousand_batches_and_not_one_wrong_byte() {
    let Some(double) = Double::load() else { return };
    stream_through(&double, 100_000, 3, 0);
    double.nothing_is_left();
}

#[test]
fn streams_that_run_past_each_other_change_nothing() {
    let Some(double) = Double::load() else { return };
    for (slots, delay_us) in [(1, 200), (2, 500), (3, 100), (8, 1000)] {
        stream_through(&double, 1500, slots, delay_us);
        double.nothing_is_left();
    }
}

/// Counts those that were let go.
pub(crate) struct Counted(pub(crate) lossfeed::staging::BatchSlot, pub(crate) Arc<AtomicUsize>);

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        self.0.as_ref()
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_slot_is_let_go_of_when_its_copy_has_ended_and_not_before_also_when_the_device_is_closed_first() {
    let Some(double) = Double::load() else { return };
    let (cuda, gone) = (Cuda::open(0).unwrap(), Arc::new(AtomicUsize::new(0)));
    let pool = pool(&cuda, 4);
    let place = double.allocate(pool.layout().total_bytes());
    let consumer = double.stream();
    double.set("delay_us", 100_000);
    let mut events = Vec::new();
    for _ in 0..4 {
        let slot = pool.acquire(Duration::ZERO).unwrap().unwrap();
        events.push(double.copy(&cuda, Counted(slot, gone.clone()), place, consumer).unwrap());
        assert!(pool.gauges().free < 4);
    }
    let waited: Vec<bool> = events.iter().map(|event| event.is_done().unwrap()).collect();
    assert!(waited.contains(&false), "four delayed copies cannot be done at once");
    drop(cuda);
    drop(events);
    drop(pool);
    for _ in 0..500 {
        std::thread::sleep(Duration::from_millis(10));
        if gone.load(Ordering::SeqCst) == 4 {
            break;
        }
    }
    assert_eq!(gone.load(Ordering::SeqCst), 4, "a slot was lost");
    double.is_clean();
    double.free(place);
    double.close_stream(consumer);
    double.nothing_is_left();
}

#[test]
fn a_batch_outlives_the_device_it_came_through_and_its_memory_is_dropped_in_any_order() {
    let Some(double) = Double::load() else { return };
    let consumer = double.stream();
    let mut streams = Vec::new();
    for delay_us in [0, 20_000] {
        double.set("delay_us", delay_us);
        let cuda = Cuda::open(0).unwrap();
        let pool = pool(&cuda, 2);
        let place = double.allocate(pool.layout().total_bytes());
        let slot = pool.acquire(Duration::from_secs(30)).unwrap().unwrap();
        let event = double.copy(&cuda, slot, place, consumer).unwrap();
        double.wait(&cuda, consumer, &event).unwrap();
        streams.push(cuda.copy_stream());
        drop((pool, event, cuda));
        // The allocator was told that the memory is used on the copy stream: it records its event when the batch is
        // dropped.
        assert!(double.record(streams[0]), "the copy stream is gone");
        double.synchronize(consumer);
        double.free(place);
    }
    assert_eq!(streams[0], streams[1], "one a device");
    double.is_clean();
    double.close_stream(consumer);
    double.nothing_is_left();
}

#[test]
fn a_capture_on_the_consumers_stream_is_refused_and_one_elsewhere_is_not_disturbed() {
    let Some(double) = Double::load() else { return };
    let cuda = Cuda::open(0).unwrap();
    let pool = pool(&cuda, 2);
    let place = double.allocate(pool.layout().total_bytes());
    let (consumer, other) = (double.stream(), double.stream());
    let take = || pool.acquire(Duration::from_secs(30)).unwrap().unwrap();
    double.set("capturing", consumer);
    let refused = double.copy(&cuda, take(), place, consumer).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Usage);
    assert!(refused.to_string().contains("graph capture"), "{refused}");
    let legacy = double.copy(&cuda, take(), place, 0).unwrap_err();
    assert_eq!(legacy.kind(), ErrorKind::Usage, "the legacy stream cannot be used beside a capture: {legacy}");
    double.set("capturing", other);
    let event = double.copy(&cuda, take(), place, consumer).unwrap();
    event.wait().unwrap();
    assert!(event.is_done().unwrap());
    // A batch that was sent before the capture: waiting for it inside would end the capture.
    double.set("capturing", consumer);
    let refused = double.wait(&cuda, consumer, &event).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Usage, "{refused}");
    double.set("capturing", u64::MAX);
    double.wait(&cuda, consumer, &event).unwrap();
    double.is_clean();
    drop(event);
    drop((pool, cuda));
    double.free(place);
    double.close_stream(consumer);
    double.close_stream(other);
    double.nothing_is_left();
}
