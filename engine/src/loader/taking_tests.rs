//! A batch that waits for what is under way: whether more read ahead would have spared it that.

use super::look::Chosen;
use super::read_ahead::ReadAhead;
use crate::control::{Ahead, Want};
use crate::source::{Arrays, Source};
use crate::stats::Counters;
use crate::types::{Dtype, SampleId, TensorSpec};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

const SAMPLE: u64 = 8;
const TARGET: u64 = 8;

/// Samples 0 to 63 are under way, and there is room for no more of the hundred.
fn asked(source: &dyn Source) -> ReadAhead {
    let ahead = ReadAhead::new(64 * (SAMPLE + TARGET), TARGET as usize, [1, 100], Arc::new(Counters::default()));
    let mut window = ahead.window.lock();
    window.begin(1, None);
    let bytes = |_| SAMPLE + TARGET;
    let mut next = 0;
    while let Some(look) = window.look() {
        let wants = (next..source.len()).map(|place| Want { place, id: place as SampleId }).collect();
        let found = Some(Ahead { wants, next: source.len(), ..Ahead::default() });
        let found = window.looked(&look, found, &bytes);
        next += window.asked(&look, found, Chosen::Along(Vec::new()), &bytes).0.len();
        window.cede();
    }
    assert_eq!(next, 64);
    drop(window);
    ahead
}

#[test]
fn a_wait_counts_as_one_that_more_ahead_would_spare_only_where_others_have_come() {
    let spec = TensorSpec::new(Dtype::U8, [SAMPLE as usize]);
    let data = vec![3; 100 * SAMPLE as usize];
    let source = Arrays::new(data, spec, vec![0; 100 * TARGET as usize], TensorSpec::class_index(), 100).unwrap();
    for others in [0, 63] {
        let ahead = asked(&source);
        let land = |id: SampleId| {
            ahead.window.lock().land(id, Arc::new(vec![3; (SAMPLE + TARGET) as usize]));
            ahead.landed.notify_all();
        };
        (1..=others).for_each(land);
        let mut came = 0;
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                ahead.fetch_unless(&source, &|| false, &[0], &mut |_, payload| {
                    came += payload.unwrap().data.len();
                    ControlFlow::Continue(())
                });
            });
            if others > 0 {
                // However busy the machine is: it goes on until the wait was counted once.
                while ahead.short_us.load(Relaxed) == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
            } else {
                std::thread::sleep(Duration::from_millis(120));
            }
            land(0);
            waits.join().unwrap();
        });
        assert_eq!((came as u64, ahead.short_us.load(Relaxed) > 0), (SAMPLE, others > 0));
    }
}
