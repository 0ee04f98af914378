//! The ring, with plain memory and a test in the GPU's place.

use super::*;
use std::sync::mpsc;

/// Plain memory, with the test in the place of the GPU.
struct Plain {
    base: NonNull<u8>,
    layout: std::alloc::Layout,
}
// SAFETY: plain memory.
unsafe impl Send for Plain {}
// SAFETY: plain memory.
unsafe impl Sync for Plain {}
impl Plain {
    fn new(len: usize) -> Arc<Self> {
        let layout = std::alloc::Layout::from_size_align(len, 64).unwrap();
        // SAFETY: the layout has a size.
        Arc::new(Self { base: NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).unwrap(), layout })
    }
}
impl Drop for Plain {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { std::alloc::dealloc(self.base.as_ptr(), self.layout) };
    }
}
impl Shared for Plain {
    fn host(&self) -> NonNull<u8> {
        self.base
    }
    fn len(&self) -> usize {
        self.layout.size()
    }
}

type Home = (u64, Option<Vec<i64>>, Vec<f32>, Option<Vec<f32>>, Option<usize>, u32);

/// A ring and the kernel's side of it, as cuda/mail.cu and finish.cu have it.
struct Gpu {
    words: Arc<Plain>,
    memory: Arc<Plain>,
    ring: Ring,
    slots: u32,
    rows_max: usize,
    head: u32,
    dropped: u32,
    told: mpsc::Receiver<Home>,
}

impl Gpu {
    fn new(rows_max: usize, slots: u32, first: u32) -> Gpu {
        let (tell, told) = mpsc::channel();
        let memory = Plain::new(Ring::bytes(rows_max, slots as usize));
        let words = Plain::new(LINE_BYTES);
        word(&*words, 0).store(first, Ordering::Relaxed);
        // As the mail before the first has left the slots: in new memory the claim u32::MAX would look written.
        for back in 1..=slots {
            let claim = first.wrapping_sub(back);
            let at = (claim % slots) as usize * Slot::new(rows_max).bytes;
            word(&*memory, at).store(claim.wrapping_add(1), Ordering::Relaxed);
        }
        let sink = move |m: &Mail<'_>| {
            let ids = m.ids.map(<[i64]>::to_vec);
            let _ = tell.send((m.tag, ids, m.loss.to_vec(), m.grad_norm.map(<[f32]>::to_vec), m.bad_row, m.dropped));
        };
        let ring = Ring::start(words.clone(), memory.clone(), rows_max, slots as usize, sink).unwrap();
        Gpu { words, memory, ring, slots, rows_max, head: first, dropped: 0, told }
    }

    fn claim(&mut self) -> Option<u32> {
        if self.head.wrapping_sub(word(&*self.words, 0).load(Ordering::Acquire)) >= self.slots {
            self.dropped += 1;
            return None;
        }
        self.head = self.head.wrapping_add(1);
        Some(self.head.wrapping_sub(1))
    }

    fn write(&self, claim: u32, tag: u64, loss: &[f32], ids: Option<&[i64]>, bad_row: u32) {
        let places = Slot::new(self.rows_max);
        let at = (claim % self.slots) as usize * places.bytes;
        let columns = if ids.is_some() { HAS_IDS } else { 0 };
        let rows = loss.len() as u32;
        let head = SlotHead { sequence: 0, rows, tag, bad_row, dropped: self.dropped, columns, unused: 0 };
        // SAFETY: the slot is claimed; its parts hold this many values; the sequence word is left to the last.
        unsafe {
            let base = self.memory.host().as_ptr().add(at);
            let bytes = bytemuck::bytes_of(&head);
            std::ptr::copy_nonoverlapping(bytes[4..].as_ptr(), base.add(4), bytes.len() - 4);
            std::ptr::copy_nonoverlapping(loss.as_ptr(), base.add(places.loss).cast(), loss.len());
            if let Some(ids) = ids {
                std::ptr::copy_nonoverlapping(ids.as_ptr(), base.add(places.ids).cast(), ids.len());
            }
        }
        word(&*self.memory, at).store(claim.wrapping_add(1), Ordering::Release);
    }

    /// As `lossfeed_mail_close` does.
    fn shut(&self) {
        long_word(&*self.words, CLOSED).store(MAIL_BIT | u64::from(self.head), Ordering::Release);
    }

    fn close(&mut self) {
        self.shut();
        assert!(self.ring.close(true));
    }

    fn wait_until_consumed(&self, n: u32) {
        while self.ring.consumed() != n {
            std::thread::yield_now();
        }
    }
}

#[test]
fn scores_come_home_only_when_the_sequence_word_is_written() {
    let mut gpu = Gpu::new(4, 2, 0);
    let claim = gpu.claim().unwrap();
    assert!(gpu.told.recv_timeout(Duration::from_millis(30)).is_err(), "nothing is home yet");
    gpu.write(claim, 77, &[0.5, 2.0, 1.0], Some(&[9, 8, 7]), 1);
    assert_eq!(gpu.told.recv().unwrap(), (77, Some(vec![9, 8, 7]), vec![0.5, 2.0, 1.0], None, Some(1), 0));
    gpu.close();
}

#[test]
fn mail_written_out_of_order_is_read_in_order() {
    let mut gpu = Gpu::new(1, 4, 0);
    let (a, b) = (gpu.claim().unwrap(), gpu.claim().unwrap());
    gpu.write(b, 2, &[2.0], None, NO_ROW);
    assert!(gpu.told.recv_timeout(Duration::from_millis(30)).is_err(), "the first is not home yet");
    gpu.write(a, 1, &[1.0], None, NO_ROW);
    assert_eq!((gpu.told.recv().unwrap().0, gpu.told.recv().unwrap().0), (1, 2));
    gpu.close();
}

#[test]
fn a_full_ring_drops_and_the_next_mail_says_how_many() {
    let mut gpu = Gpu::new(1, 2, 0);
    let (a, b) = (gpu.claim().unwrap(), gpu.claim().unwrap());
    assert!(gpu.claim().is_none() && gpu.claim().is_none());
    gpu.write(a, 1, &[1.0], None, NO_ROW);
    assert_eq!(gpu.told.recv().unwrap().5, 2);
    gpu.wait_until_consumed(1);
    let again = gpu.claim().unwrap();
    gpu.write(b, 2, &[1.0], None, NO_ROW);
    gpu.write(again, 3, &[1.0], None, NO_ROW);
    let (second, third) = (gpu.told.recv().unwrap(), gpu.told.recv().unwrap());
    assert_eq!((second.0, second.5, third.0, third.5), (2, 0, 3, 0), "a drop is told once");
    gpu.close();
}

#[test]
fn numbers_wrap_and_a_slot_used_again_does_not_take_its_last_word_for_the_next() {
    let first = u32::MAX - 5;
    let mut gpu = Gpu::new(1, 2, first);
    for round in 0..12u32 {
        let claim = gpu.claim().unwrap();
        assert!(gpu.told.recv_timeout(Duration::from_millis(3)).is_err(), "round {round} is not home yet");
        gpu.write(claim, u64::from(round), &[round as f32], None, NO_ROW);
        assert_eq!(gpu.told.recv().unwrap().0, u64::from(round));
        gpu.wait_until_consumed(first.wrapping_add(round + 1));
    }
    gpu.close();
}

#[test]
fn closing_reads_what_is_there_and_twice_is_fine() {
    let mut gpu = Gpu::new(1, 4, 0);
    for tag in 0..3 {
        let claim = gpu.claim().unwrap();
        gpu.write(claim, tag, &[0.0], None, NO_ROW);
    }
    gpu.close();
    assert_eq!(gpu.told.try_iter().map(|home| home.0).collect::<Vec<_>>(), [0, 1, 2]);
    gpu.close();
}

#[test]
fn a_closed_ring_waits_for_the_slot_that_a_kernel_still_writes_and_then_lets_its_memory_go() {
    let mut gpu = Gpu::new(1, 4, u32::MAX);
    let (a, b) = (gpu.claim().unwrap(), gpu.claim().unwrap());
    gpu.write(a, 1, &[1.0], None, NO_ROW);
    gpu.shut();
    assert_eq!(gpu.told.recv().unwrap().0, 1);
    assert!(gpu.told.recv_timeout(Duration::from_millis(30)).is_err());
    assert_eq!(Arc::strong_count(&gpu.memory), 3, "the thread keeps what is still written");
    gpu.write(b, 2, &[2.0], None, NO_ROW);
    assert!(gpu.ring.close(true));
    assert_eq!(gpu.told.recv().unwrap().0, 2);
    assert_eq!(Arc::strong_count(&gpu.memory), 2, "the ring's and the test's");
}

#[test]
fn a_device_that_is_lost_ends_the_thread_and_keeps_the_memory() {
    let mut gpu = Gpu::new(1, 4, 0);
    let (a, _never_written) = (gpu.claim().unwrap(), gpu.claim().unwrap());
    gpu.write(a, 1, &[1.0], None, NO_ROW);
    assert!(!gpu.ring.close(false));
    assert_eq!(gpu.told.recv().unwrap().0, 1, "what was there came");
    assert_eq!((Arc::strong_count(&gpu.memory), Arc::strong_count(&gpu.words)), (3, 3), "one is held for ever");
}

#[test]
fn a_mailbox_of_no_rows_or_of_slots_that_cannot_wrap_is_refused() {
    for (rows, slots) in [(0, 4), (10, 0), (10, 3), (10, 2048), (Rows::MAX + 1, 4)] {
        assert_eq!(check(rows, slots).unwrap_err().kind(), crate::ErrorKind::Settings);
    }
    check(1, 1).unwrap();
}

#[test]
fn settling_returns_when_the_sink_has_had_what_was_written() {
    let mut gpu = Gpu::new(4, 2, u32::MAX - 3); // the numbers wrap on the way
    gpu.ring.settle().unwrap(); // nothing to wait for
    for tag in 0..6 {
        let claim = gpu.claim().unwrap();
        gpu.write(claim, tag, &[tag as f32], None, NO_ROW);
        gpu.ring.settle().unwrap();
        assert_eq!(gpu.told.try_recv().unwrap().0, tag, "it had come home when settling returned");
    }
}
