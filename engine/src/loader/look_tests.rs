//! Truths about calls that are planned: what a plan leaves out is found again, and memory is told to the byte.

use super::look::{Chosen, Found, Look, Taken};
use super::window::Window;
use crate::control::{Ahead, Want};
use crate::tune::fetch_plan::Plan;
use crate::types::SampleId;
use std::sync::Arc;

const LIMIT: u64 = 64_000;

fn bytes(_: SampleId) -> u64 {
    10
}

fn wants(places: std::ops::Range<usize>) -> Ahead {
    let next = places.end;
    Ahead { wants: places.map(|place| Want { place, id: place as SampleId }).collect(), next, ..Ahead::default() }
}

fn planned(samples: Vec<usize>, beside_bytes: u64, by_ranges: bool) -> Chosen {
    Chosen::Planned(Plan { samples, beside_bytes, by_ranges })
}

fn look(window: &mut Window, ahead: Ahead) -> (Look, Found) {
    let look = window.look().unwrap();
    let found = window.looked(&look, Some(ahead), &bytes);
    (look, found)
}

#[test]
fn a_plan_asks_for_what_it_names_and_the_rest_is_found_again() {
    let mut window = Window::new(LIMIT);
    window.begin(1, None);
    let (first, found) = look(&mut window, wants(0..1000));
    assert_eq!((found.urgent, window.free_for(&found, &bytes)), (100, LIMIT));
    // Two that are urgent and two that are not, and 500 bytes between them.
    let (ids, beside_bytes) = window.asked(&first, found, planned(vec![0, 7, 500, 999], 500, true), &bytes);
    assert_eq!((ids, beside_bytes, window.bytes()), (vec![0, 7, 500, 999], 500, 540));
    window.cede();
    let (second, found) = look(&mut window, wants(1..1000));
    assert_eq!((second.from, second.fresh, found.ids[0]), (1, false, 1), "from the first that was left out");
    assert!(!found.ids.contains(&7) && !found.ids.contains(&999));
    assert_eq!(window.free_for(&found, &bytes), LIMIT - 540);
    window.asked(&second, found, Chosen::Along(Vec::new()), &bytes);
    window.give_back(beside_bytes);
    assert_eq!(window.bytes(), 40 + 1000);
}

#[test]
fn batches_wait_until_it_is_known_what_comes_by_ranges() {
    let mut window = Window::new(LIMIT);
    assert!(!window.is_starting());
    window.begin(1, None);
    assert!(window.is_starting());
    let (first, found) = look(&mut window, wants(0..1000));
    assert!(first.first_alone(64, 64 * 200) && !first.first_alone(64, 64 * 200 - 1) && window.awaits(true));
    let ask = first.call(&found, 64, LIMIT);
    assert_eq!((ask.first, ask.urgent, ask.range_bytes), (64, 100, LIMIT / 16));
    window.asked(&first, found, planned((0..64).collect(), 0, false), &bytes);
    window.cede();
    assert!(window.is_starting(), "the first batch alone is asked for");
    assert!(window.awaits(false) && !window.awaits(true), "and it alone may be decided");
    let (second, found) = look(&mut window, wants(64..1000));
    assert!(second.call(&found, 64, LIMIT).first == 0 && !second.first_alone(64, 64 * 200));
    window.asked(&second, found, planned((0..900).collect(), 0, true), &bytes);
    assert!(!window.is_starting());
    // One that goes on with what was foreseen waits for nothing, and neither does one without prefetch threads.
    window.cede();
    window.begin(2, Some(1000..2000));
    assert!(!window.is_starting() && !window.awaits(true));
    window.begin(3, None);
    window.start();
    assert!(!window.is_starting());
    for end in [Window::close as fn(&mut Window), |window: &mut Window| window.pause(true)] {
        let mut window = Window::new(LIMIT);
        window.begin(1, None);
        end(&mut window);
        assert!(!window.is_starting());
    }
    // Nothing comes after the first batch.
    let mut window = Window::new(LIMIT);
    window.begin(1, None);
    let (only, found) = look(&mut window, Ahead { whole: true, ..wants(0..50) });
    window.asked(&only, found, planned((0..50).collect(), 0, false), &bytes);
    assert!(!window.is_starting());
}

#[test]
fn a_stream_waits_for_neighbours_where_the_next_pass_has_its_beginning() {
    let mut window = Window::new(LIMIT);
    let ahead = |places| Ahead { beyond: Some(500), stream: true, ..wants(places) };
    window.begin(1, None);
    let (first, found) = look(&mut window, ahead(0..1000));
    assert_eq!(found.early, None, "this pass needs them");
    window.asked(&first, found, planned((0..700).collect(), 0, true), &bytes);
    window.cede();
    let (second, found) = look(&mut window, ahead(700..1000));
    assert!(found.early == Some(0) && found.urgent > 0);
    assert_eq!(window.asked(&second, found, Chosen::Nothing, &bytes), (Vec::new(), 0));
    window.cede();
    assert_eq!((window.bytes(), window.look()), (7000, None));
    // When the pass is over they are looked at again. A look that ends in the next pass asks for nothing either.
    window.settle(1, 500, [].into_iter());
    let (late, found) = look(&mut window, ahead(700..1000));
    assert!(late.from == 500 && found.early == Some(0) && found.urgent > 0);
    window.begin(2, Some(500..1000));
    assert_eq!(window.asked(&late, found, Chosen::Nothing, &bytes), (Vec::new(), 0));
    window.cede();
    let next = window.look().unwrap();
    assert_eq!((next.pass, next.from, window.bytes()), (2, 0, 7000));
    // Little of the next pass is there: it has to begin.
    let mut window = Window::new(LIMIT);
    window.begin(1, None);
    let (first, found) = look(&mut window, ahead(0..1000));
    window.asked(&first, found, planned((0..550).collect(), 0, true), &bytes);
    window.cede();
    assert_eq!(look(&mut window, ahead(550..1000)).1.early, None);
}

#[test]
fn what_is_taken_before_the_next_pass_is_known_stays_for_it() {
    let mut window = Window::new(LIMIT);
    window.begin(1, None);
    let (first, found) = look(&mut window, Ahead { undrawn: true, ..wants(0..10) });
    window.asked(&first, found, planned((0..10).collect(), 0, true), &bytes);
    window.cede();
    for id in 0..10 {
        assert!(window.land(id, Arc::new(vec![0; 10])));
    }
    let taken = |window: &mut Window, id| match window.take(id) {
        Taken::Landed { stays, used, .. } => (stays, used),
        other => panic!("{other:?}"),
    };
    // Two are taken while it is not known who wants them again: the next pass wants the first of them.
    assert_eq!((taken(&mut window, 0), taken(&mut window, 1)), ((true, false), (true, false)));
    let wants = vec![Want { place: 10, id: 0 }];
    let next = Ahead { wants, next: 11, beyond: Some(10), whole: true, ..Ahead::default() };
    let (second, found) = look(&mut window, next);
    assert!(found.ids.is_empty());
    window.asked(&second, found, Chosen::Along(Vec::new()), &bytes);
    assert_eq!((window.take(1), window.bytes()), (Taken::Nothing, 90));
    assert_eq!(taken(&mut window, 2), (false, false), "now it is known that the next pass does not");
    window.give_back(10);
    assert_eq!(window.begin(2, Some(10..20)).samples, 7);
    assert_eq!((taken(&mut window, 0), window.bytes()), ((true, true), 10));
    // A pass that is not read for keeps nothing.
    window.begin(0, None);
    assert_eq!(window.bytes(), 0);
}
