//! The hook on the device: launches on borrowed streams, scores in the mail, under delays and without a wait.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lossfeed::device::cuda::{Cuda, Mail};
use lossfeed::error::ErrorKind;
use lossfeed_kernels::launch::{Home, Score};
use lossfeed_kernels::{Dtype, Rows, Scores, fast};

use crate::double::Double;
use crate::planted::{alone, is_alone};

const CLASSES: usize = 37;

/// Logits and targets of a batch, and what must be said of it.
pub(crate) struct Batch {
    logits: Vec<f32>,
    targets: Vec<i64>,
    ids: Vec<i64>,
    expected: Scores<f32>,
}

pub(crate) fn batch(rows: usize, seed: u64) -> Batch {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut unit = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32
    };
    let logits: Vec<f32> = (0..rows * CLASSES).map(|_| 8.0 * unit() - 4.0).collect();
    let targets: Vec<i64> = (0..rows).map(|_| (unit() * CLASSES as f32) as i64).collect();
    let ids = (0..rows as i64).map(|row| row + 1000 * seed as i64).collect();
    let view = Rows::new(bytemuck::cast_slice(&logits), Dtype::F32, rows, CLASSES, CLASSES).unwrap();
    let expected = fast::score(&view, &targets, -100, 10.0).unwrap().into_f32();
    Batch { logits, targets, ids, expected }
}

/// A launch of `batch` on `stream`; returns the address of the losses.
pub(crate) fn launch(double: &Double, cuda: &Cuda, stream: u64, batch: &Batch, mail: u64, tag: u64) -> u64 {
    let rows = batch.targets.len();
    let place = |bytes: &[u8]| {
        let at = double.allocate(bytes.len().max(1));
        double.write(stream, at, bytes);
        at
    };
    let logits = place(bytemuck::cast_slice(&batch.logits));
    let targets = place(bytemuck::cast_slice(&batch.targets));
    let ids = place(bytemuck::cast_slice(&batch.ids));
    let [loss, grad_norm, entropy] = [0; 3].map(|_| double.allocate(4 * rows));
    let home = Home { mail, tag, ids, ..Home::default() };
    let score = Score {
        logits,
        targets,
        rows,
        classes: CLASSES,
        row_stride: CLASSES as i64,
        ignore_index: -100,
        loss,
        grad_norm,
        entropy,
        home,
        ..Score::default()
    };
    double.forward(&cuda.kernels().unwrap(), stream, &score).unwrap();
    loss
}

fn near(actual: &[f32], expected: &[f32]) {
    assert_eq!(actual.len(), expected.len());
    for (row, (a, e)) in actual.iter().zip(expected).enumerate() {
        assert!((a - e).abs() <= 1e-5 * (1.0 + e.abs()), "row {row}: {a} for {e}");
    }
}

/// What arrived: tag, ids, losses, gradient norms, counts.
type Arrived = Arc<Mutex<Vec<(u64, Vec<i64>, Vec<f32>, Vec<f32>, Vec<i32>)>>>;

fn sink(into: &Arrived) -> impl FnMut(&Mail<'_>) + Send + 'static {
    let into = into.clone();
    move |mail: &Mail<'_>| {
        let norms = mail.grad_norm.unwrap().to_vec();
        into.lock().unwrap().push((
            mail.tag,
            mail.ids.unwrap().to_vec(),
            mail.loss.to_vec(),
            norms,
            mail.count.to_vec(),
        ));
    }
}

#[test]
fn scores_of_two_delayed_streams_arrive_under_their_own_tags_and_ids() {
    let Some(double) = Double::load() else { return };
    let cuda = Cuda::open(0).unwrap();
    cuda.kernels().unwrap(); // loading waits; the steps below do not
    double.set("delay_us", 3000);
    let arrived = Arrived::default();
    let mailbox = cuda.mailbox(64, 64, sink(&arrived)).unwrap();
    let streams = [double.stream(), double.stream()];
    let batches: Vec<Batch> = (0..24).map(|seed| batch(1 + (seed as usize * 7) % 64, seed)).collect();
    let started = Instant::now();
    for (tag, batch) in batches.iter().enumerate() {
        launch(&double, &cuda, streams[tag % 2], batch, mailbox.address(), tag as u64);
    }
    // 24 launches of four pieces of delayed work each take some 70 ms a stream: nobody waited for them.
    let handed_over = started.elapsed();
    mailbox.settle().unwrap();
    assert!(handed_over < started.elapsed());
    assert_eq!(mailbox.delivered_total(), 24);
    let mut arrived = std::mem::take(&mut *arrived.lock().unwrap());
    arrived.sort_by_key(|mail| mail.0);
    for ((tag, ids, loss, norms, count), (number, batch)) in arrived.iter().zip(batches.iter().enumerate()) {
        assert_eq!((*tag, ids), (number as u64, &batch.ids));
        near(loss, &batch.expected.loss);
        near(norms, &batch.expected.grad_norm);
        // The counts are those of the device's own losses; rounding may order near ties differently from the CPU's.
        assert_eq!(count, &lossfeed_kernels::rank::counts(loss));
    }
    assert_eq!(arrived.len(), 24);
    double.is_clean();
}

#[test]
fn losses_alone_come_home_from_a_kernel_of_their_own() {
    let Some(double) = Double::load() else { return };
    let cuda = Cuda::open(0).unwrap();
    let kernels = cuda.kernels().unwrap();
    let came = Arc::new(Mutex::new(Vec::new()));
    let into = came.clone();
    let sink =
        move |m: &Mail<'_>| into.lock().unwrap().push((m.loss.to_vec(), m.grad_norm.is_some(), m.entropy.is_some()));
    let mailbox = cuda.mailbox(64, 4, sink).unwrap();
    let (stream, one) = (double.stream(), batch(40, 9));
    let launched = || ["lossfeed_score_f32", "lossfeed_loss_f32"].map(|kernel| double.get(kernel));
    let before = launched();
    launch(&double, &cuda, stream, &one, mailbox.address(), 0);
    let place = |bytes: &[u8]| {
        let at = double.allocate(bytes.len());
        double.write(stream, at, bytes);
        at
    };
    let score = Score {
        logits: place(bytemuck::cast_slice(&one.logits)),
        targets: place(bytemuck::cast_slice(&one.targets)),
        rows: 40,
        classes: CLASSES,
        row_stride: CLASSES as i64,
        ignore_index: -100,
        loss: double.allocate(4 * 40),
        home: Home { mail: mailbox.address(), tag: 1, ids: place(bytemuck::cast_slice(&one.ids)), ..Home::default() },
        ..Score::default()
    };
    double.forward(&kernels, stream, &score).unwrap();
    mailbox.settle().unwrap();
    assert_eq!(launched(), [before[0] + 1, before[1] + 1]);
    let came = came.lock().unwrap();
    assert_eq!((came[0].0.len(), &came[0].0), (40, &came[1].0), "the same losses");
    assert_eq!([(came[0].1, came[0].2), (came[1].1, came[1].2)], [(true, true), (false, false)]);
    double.is_clean();
}

#[test]
fn a_launch_switches_no_context_that_is_current_and_no_capture_mode() {
    let Some(double) = Double::with_kernels() else { return };
    let cuda = Cuda::open(0).unwrap();
    let (stream, one) = (double.stream(), batch(16, 5));
    // The first launch of all asks the driver what it can do.
    launch(&double, &cuda, stream, &one, 0, 0);
    let switches = |held| {
        double.hold_context(held);
        let before = double.get("switches");
        let loss = launch(&double, &cuda, stream, &one, 0, 0);
        let made = double.get("switches") - before;
        double.hold_context(false);
        near(&double.read_floats(stream, loss, 16), &one.expected.loss);
        made
    };
    assert_eq!(switches(true), 0);
    assert!(switches(false) > 0, "where no context is current, the launch brings its own");
    double.is_clean();
}

#[test]
fn a_full_ring_drops_counts_and_says_so_with_the_next_mail() {
    let Some(double) = Double::load() else { return };
    let cuda = Cuda::open(0).unwrap();
    let (open, gate) = std::sync::mpsc::channel::<()>();
    let dropped = Arc::new(Mutex::new(0));
    let told = dropped.clone();
    let mailbox = cuda
        .mailbox(8, 2, move |mail: &Mail<'_>| {
            let _ = gate.recv_timeout(Duration::from_secs(20));
            *told.lock().unwrap() += mail.dropped;
        })
        .unwrap();
    let stream = double.stream();
    let one = batch(8, 3);
    for tag in 0..10 {
        launch(&double, &cuda, stream, &one, mailbox.address(), tag);
    }
    double.synchronize(stream);
    drop(open); // the sink goes on, and at once from now on
    mailbox.settle().unwrap();
    let came = mailbox.delivered_total();
    assert!((2..10).contains(&came), "{came} of 10 fit into a ring of 2");
    launch(&double, &cuda, stream, &one, mailbox.address(), 10);
    mailbox.settle().unwrap();
    assert_eq!(mailbox.delivered_total(), came + 1);
    assert_eq!(*dropped.lock().unwrap(), 10 - came, "those that found no room are counted");
    double.is_clean();
}

#[test]
fn mail_to_a_closed_box_is_dropped_and_touches_nothing() {
    let Some(double) = Double::load() else { return };
    let cuda = Cuda::open(0).unwrap();
    let arrived = Arrived::default();
    let mut mailbox = cuda.mailbox(16, 4, sink(&arrived)).unwrap();
    let (stream, one) = (double.stream(), batch(16, 5));
    double.set("delay_us", 20_000);
    let address = mailbox.address();
    for tag in 0..3 {
        launch(&double, &cuda, stream, &one, address, tag);
    }
    assert!(mailbox.close(), "closing waits for what is under way");
    let before = arrived.lock().unwrap().len();
    let loss = launch(&double, &cuda, stream, &one, address, 9);
    near(&double.read_floats(stream, loss, 16), &one.expected.loss);
    assert_eq!(arrived.lock().unwrap().len(), before, "nobody is there to take it");
    double.is_clean();
}

#[test]
fn a_target_that_names_no_class_is_told_at_a_later_call_and_the_others_are_scored() {
    let Some(double) = Double::load() else { return };
    let cuda = Cuda::open(0).unwrap();
    let kernels = cuda.kernels().unwrap();
    let stream = double.stream();
    let good = batch(16, 8);
    let mut bad = batch(16, 8);
    bad.targets[5] = CLASSES as i64;
    let loss = launch(&double, &cuda, stream, &bad, 0, 0);
    let losses = double.read_floats(stream, loss, 16);
    near(&losses[..5], &good.expected.loss[..5]);
    near(&losses[6..], &good.expected.loss[6..]);
    assert_eq!(kernels.take_error(stream), Some(5));
    assert_eq!(kernels.take_error(stream), None, "told once");
    double.is_clean();
}

#[test]
fn a_mailbox_of_impossible_sizes_is_refused() {
    let Some(_double) = Double::load() else { return };
    let cuda = Cuda::open(0).unwrap();
    for (rows, slots) in [(0, 2), (8, 3), (8, 2048)] {
        assert_eq!(cuda.mailbox(rows, slots, |_| ()).unwrap_err().kind(), ErrorKind::Settings);
    }
}

#[test]
fn any_number_of_streams_score_and_their_bad_targets_are_told() {
    let Some(double) = Double::load() else { return };
    if !is_alone() {
        // Kernels live as long as the process, and so do the streams they have met: other tests need theirs.
        let (code, said) = alone("scores::any_number_of_streams_score_and_their_bad_targets_are_told");
        assert_eq!(code, Some(0), "{said}");
        return;
    }
    let cuda = Cuda::open(0).unwrap();
    let kernels = cuda.kernels().unwrap();
    let arrived = Arrived::default();
    let mailbox = cuda.mailbox(16, 256, sink(&arrived)).unwrap();
    let mut bad = batch(16, 8);
    bad.targets[5] = CLASSES as i64;
    let streams: Vec<u64> = (0..100).map(|_| double.stream()).collect();
    for (tag, &stream) in streams.iter().enumerate() {
        launch(&double, &cuda, stream, &batch(16, 7), mailbox.address(), tag as u64);
    }
    mailbox.settle().unwrap();
    let expected = batch(16, 7).expected;
    let mut tags: Vec<u64> = Vec::new();
    for (tag, _, loss, _, count) in &*arrived.lock().unwrap() {
        near(loss, &expected.loss);
        assert_eq!(count, &lossfeed_kernels::rank::counts(loss));
        tags.push(*tag);
    }
    tags.sort_unstable();
    assert_eq!(tags, (0..100).collect::<Vec<u64>>());
    for stream in [streams[0], streams[99]] {
        assert_eq!(kernels.take_error(stream), None);
        launch(&double, &cuda, stream, &bad, 0, 0);
        double.synchronize(stream);
        assert_eq!(kernels.take_error(stream), Some(5));
        assert_eq!(kernels.take_error(stream), None, "told once");
    }
    double.is_clean();
}

#[test]
fn a_captured_call_has_tickets_of_its_own() {
    let Some(double) = Double::load() else { return };
    let cuda = Cuda::open(0).unwrap();
    let kernels = cuda.kernels().unwrap();
    let (stream, rows, one) = (double.stream(), 16, batch(16, 3));
    let place = |bytes: &[u8]| {
        let at = double.allocate(bytes.len());
        double.write(stream, at, bytes);
        at
    };
    let home = Home { count: double.allocate(4 * rows), ..Home::default() };
    let score = Score {
        logits: place(bytemuck::cast_slice(&one.logits)),
        targets: place(bytemuck::cast_slice(&one.targets)),
        rows,
        classes: CLASSES,
        row_stride: CLASSES as i64,
        ignore_index: -100,
        loss: double.allocate(4 * rows),
        home,
        ..Score::default()
    };
    let before = double.get("zeroed_at");
    double.forward(&kernels, stream, &score).unwrap();
    assert_eq!(double.get("zeroed_at"), before, "a stream's own tickets are ready after every call");
    // Two graphs, captured on the same stream and perhaps replayed on others at the same time.
    double.set("capturing", stream);
    for _ in 0..2 {
        let scratch = double.allocate(lossfeed_kernels::launch::scratch_bytes(rows, CLASSES));
        double.forward_in(&kernels, stream, &score, scratch).unwrap();
        assert_eq!(double.get("zeroed_at"), lossfeed_kernels::launch::scratch_tickets(scratch));
    }
    double.set("capturing", u64::MAX);
    let counts: Vec<i32> = bytemuck::pod_collect_to_vec(&double.read(stream, home.count, 4 * rows));
    assert_eq!(counts, lossfeed_kernels::rank::counts(&double.read_floats(stream, score.loss, rows)));
    double.is_clean();
}

#[test]
fn a_mailbox_dropped_in_the_middle_of_a_capture_waits_for_nothing_and_its_mail_still_comes() {
    let Some(double) = Double::with_kernels() else { return };
    let cuda = Cuda::open(0).unwrap();
    let (stream, other) = (double.stream(), double.stream());
    for capturing in [u64::MAX, other] {
        let arrived = Arrived::default();
        let mailbox = cuda.mailbox(16, 4, sink(&arrived)).unwrap();
        let pinned = double.get("pinned_bytes");
        for tag in 0..3 {
            launch(&double, &cuda, stream, &batch(16, 5), mailbox.address(), tag);
        }
        double.synchronize(stream);
        double.set("capturing", capturing);
        drop(mailbox);
        for _ in 0..1000 {
            if double.get("pinned_bytes") < pinned {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(double.get("pinned_bytes") < pinned, "the ring goes when nobody can write to it any more");
        assert_eq!(arrived.lock().unwrap().len(), 3, "what was claimed before came home");
        double.set("capturing", u64::MAX);
        double.is_clean();
    }
}

#[test]
fn scores_come_home_from_a_device_that_has_other_addresses_for_the_hosts_memory() {
    let Some(double) = Double::untouched() else { return };
    if !is_alone() {
        // The kernels' own words are registered once a process.
        drop(double);
        let (code, said) =
            alone("scores::scores_come_home_from_a_device_that_has_other_addresses_for_the_hosts_memory");
        assert_eq!(code, Some(0), "{said}");
        return;
    }
    double.set("host_addresses", 0);
    let cuda = Cuda::open(0).unwrap();
    let kernels = cuda.kernels().unwrap();
    let (arrived, stream, mut one) = (Arrived::default(), double.stream(), batch(16, 5));
    let mut mailbox = cuda.mailbox(16, 4, sink(&arrived)).unwrap();
    for tag in 0..9 {
        launch(&double, &cuda, stream, &one, mailbox.address(), tag);
        mailbox.settle().unwrap();
    }
    one.targets[5] = CLASSES as i64;
    launch(&double, &cuda, stream, &one, 0, 0);
    double.synchronize(stream);
    assert_eq!(kernels.take_error(stream), Some(5));
    assert!(mailbox.close());
    assert_eq!(arrived.lock().unwrap().iter().map(|mail| mail.0).collect::<Vec<u64>>(), (0..9).collect::<Vec<u64>>());
    double.is_clean();
}

/// A framework may drop its last reference to a mailbox, or none, while the process exits: the driver then takes away
/// what it allocated, and the thread still looks for mail.
#[test]
fn a_process_may_exit_while_scores_are_waited_for() {
    let Some(double) = Double::load() else { return };
    if !is_alone() {
        let (code, said) = alone("scores::a_process_may_exit_while_scores_are_waited_for");
        assert_eq!(code, Some(0), "{said}");
        return;
    }
    std::mem::forget(Cuda::open(0).unwrap().mailbox(16, 4, |_| ()).unwrap());
    double.set("unmaps", 1);
}
