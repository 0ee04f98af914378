//! Mistakes made on purpose: a double that does not notice them would prove nothing.

use std::process::Command;
use std::time::Duration;

use lossfeed::device::cuda::Cuda;

use crate::copies::{fill, pool};
use crate::double::Double;

#[test]
fn a_missing_event_wait_shows_as_wrong_bytes() {
    let Some(double) = Double::load() else { return };
    double.set("delay_us", 2000);
    let cuda = Cuda::open(0).unwrap();
    let pool = pool(&cuda, 3);
    let bytes = pool.layout().total_bytes();
    let (place, consumer) = (double.allocate(bytes), double.stream());
    for number in 0..50 {
        let mut slot = pool.acquire(Duration::from_secs(30)).unwrap().unwrap();
        fill(slot.bytes_mut(), number);
        let digest = double.digest(slot.bytes());
        let _not_waited_for = double.copy(&cuda, slot, place, consumer).unwrap();
        double.check(consumer, place, bytes, digest);
    }
    double.synchronize(consumer);
    assert!(double.get("mismatches") > 0);
}

/// Refers to bytes that its owner writes again.
struct Early(&'static [u8]);

impl AsRef<[u8]> for Early {
    fn as_ref(&self) -> &[u8] {
        self.0
    }
}

#[test]
fn a_slot_returned_too_early_is_a_violation() {
    let Some(double) = Double::load() else { return };
    let cuda = Cuda::open(0).unwrap();
    let pool = pool(&cuda, 1);
    let (place, consumer) = (double.allocate(pool.layout().total_bytes()), double.stream());
    let mut slot = pool.acquire(Duration::ZERO).unwrap().unwrap();
    fill(slot.bytes_mut(), 1);
    double.set("delay_us", 50_000);
    // Something slow in front of the copy.
    (0..8).for_each(|_| double.check(consumer, place, 0, double.digest(&[])));
    let event = double.copy(&cuda, Early(double.forever(&slot)), place, consumer).unwrap();
    fill(slot.bytes_mut(), 2);
    event.wait().unwrap();
    assert!(double.violations().contains("its source changed before the copy ended"), "{}", double.violations());
}

#[test]
fn a_copy_from_memory_that_is_not_page_locked_is_a_violation() {
    let Some(double) = Double::load() else { return };
    let cuda = Cuda::open(0).unwrap();
    let (place, consumer) = (double.allocate(64), double.stream());
    double.copy(&cuda, vec![1u8; 64], place, consumer).unwrap().wait().unwrap();
    assert!(double.violations().contains("not page-locked"), "{}", double.violations());
}

#[test]
fn an_event_on_a_stream_that_was_destroyed_is_a_violation() {
    let Some(double) = Double::load() else { return };
    let stream = double.stream();
    assert!(double.record(stream));
    double.close_stream(stream);
    assert!(!double.record(stream));
    assert!(double.violations().contains("on a stream that was destroyed"), "{}", double.violations());
}

#[test]
fn memory_is_poisoned_until_something_has_been_copied_there() {
    let Some(double) = Double::load() else { return };
    let (place, stream) = (double.allocate(100), double.stream());
    assert_eq!(double.read(stream, place, 100), [0xdb; 100]);
    double.write(stream, place, &[7; 100]);
    assert_eq!(double.read(stream, place, 100), [7; 100]);
}

/// Runs a test of this program again, alone in a process in which `CHILD` is set; what became of it, and what it said.
pub(crate) fn alone(test: &str) -> (Option<i32>, String) {
    let program = std::env::current_exe().unwrap();
    let child = Command::new(program).args(["--exact", test, "--nocapture"]).env(CHILD, "1").output().unwrap();
    (child.status.code(), String::from_utf8_lossy(&child.stderr).into_owned())
}

pub(crate) fn is_alone() -> bool {
    std::env::var_os(CHILD).is_some()
}

const CHILD: &str = "LOSSFEED_ALONE";

#[test]
fn the_host_cannot_touch_device_memory() {
    let Some(double) = Double::load() else { return };
    if is_alone() {
        drop(Cuda::open(0).unwrap());
        let place = double.allocate(64);
        eprintln!("it read {}", double.touch(place));
        return;
    }
    let (code, said) = alone("planted::the_host_cannot_touch_device_memory");
    assert_eq!(code, Some(86), "{said}");
    assert!(said.contains("the host touched device memory"), "{said}");
}

#[test]
fn a_function_that_the_double_does_not_have_ends_the_process_with_its_name() {
    let Some(double) = Double::load() else { return };
    if is_alone() {
        double.unknown();
        return;
    }
    let (code, said) = alone("planted::a_function_that_the_double_does_not_have_ends_the_process_with_its_name");
    assert_eq!(code, None, "a signal ends it: {said}");
    assert!(said.contains("cuGraphLaunch is not known here"), "{said}");
}

#[test]
fn a_process_may_exit_while_streams_still_work() {
    let name = "planted::a_process_may_exit_while_streams_still_work";
    let Some(double) = Double::load() else { return };
    if !is_alone() {
        let (code, said) = alone(name);
        assert_eq!(code, Some(0), "{said}");
        return;
    }
    let cuda = Cuda::open(0).unwrap();
    let stream = double.stream();
    let one = crate::scores::batch(16, 5);
    // A launch that has ended, so that what launches share was made; then one that begins when the process exits.
    crate::scores::launch(&double, &cuda, stream, &one, 0, 0);
    double.synchronize(stream);
    double.set("outlives", 1);
    double.set("delay_us", 200_000);
    (0..16).for_each(|_| double.check(stream, 0, 0, 0));
    crate::scores::launch(&double, &cuda, stream, &one, 0, 0);
}
