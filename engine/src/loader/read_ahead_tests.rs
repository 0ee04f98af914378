//! Truths about the window of what is read ahead: every sample once, no byte above the limit, none forgotten.

use super::look::{Chosen, Found, Landed, Look, Taken, Vain};
use super::window::Window;
use crate::control::{Ahead, Want};
use crate::types::SampleId;
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

fn bytes(id: SampleId) -> u64 {
    10 + u64::from(id % 7) * 5
}

fn landed(id: SampleId) -> Landed {
    Arc::new(vec![id as u8; bytes(id) as usize])
}

fn taken(id: SampleId) -> Taken {
    Taken::Landed { landed: landed(id), stays: false, used: false }
}

fn found(wants: &[(usize, SampleId)], next: usize) -> Option<Ahead> {
    let wants = wants.iter().map(|&(place, id)| Want { place, id }).collect();
    Some(Ahead { wants, next, ..Ahead::default() })
}

/// Looks, finds `wants`, and asks for as many as are needed now. Nobody comes along.
fn ask(window: &mut Window, wants: &[(usize, SampleId)], next: usize) -> Vec<SampleId> {
    let look = window.look().unwrap();
    let found = window.looked(&look, found(wants, next), &bytes);
    ask_for(window, &look, found, &[])
}

fn ask_for(window: &mut Window, look: &Look, found: Found, along: &[usize]) -> Vec<SampleId> {
    let ids = window.asked(look, found, Chosen::Along(along.to_vec()), &bytes).0;
    window.cede();
    ids
}

/// Ten bytes each, in order, without end.
fn plenty(from: usize) -> Option<Ahead> {
    found(&(from..from + 1000).map(|place| (place, 7 * place as SampleId)).collect::<Vec<_>>(), from + 1000)
}

#[test]
fn the_first_calls_are_short_and_the_later_ones_half_of_the_limit() {
    let mut window = Window::new(64_000);
    assert_eq!(window.look(), None, "no pass");
    window.begin(1, None);
    let (mut next, mut steps) = (0, Vec::new());
    while let Some(look) = window.look() {
        assert_eq!((look.from, look.room.free_bytes), (next, 64_000 - window.bytes()));
        assert_eq!(look.request_bytes, window.bytes() / 256, "a share of what was asked for before");
        assert_eq!(window.look(), None, "one looks at a time");
        let found = window.looked(
            &look,
            found(&(next..next + 9000).map(|k| (k, 7 * k as u32)).collect::<Vec<_>>(), next + 9000),
            &bytes,
        );
        assert_eq!(found.ids.len(), 9000);
        let asked = ask_for(&mut window, &look, found, &[]).len();
        steps.push(asked * 10);
        next += asked;
    }
    assert_eq!(steps, [1000, 1000, 2000, 4000, 8000, 16_000, 32_000]);
    // What is used makes room for as much again, once it is half of the limit.
    for k in 0..3200 {
        assert!(window.land(7 * k, landed(7 * k)));
        assert_eq!(window.take(7 * k), taken(7 * k));
        assert_eq!(window.look(), None);
        window.give_back(10);
    }
    let look = window.look().unwrap();
    let found = window.looked(&look, Some(Ahead { next, whole: true, ..Ahead::default() }), &bytes);
    assert!(ask_for(&mut window, &look, found, &[]).is_empty());
    assert_eq!(window.look(), None, "nothing is behind it");
    assert_eq!(window.begin(2, None), Vain::default(), "nothing more had come");
    let look = window.look().unwrap();
    assert_eq!(look.from, 0);
    // What the last pass asked for is on its way and takes room.
    assert_eq!(look.room.free_bytes, 32_000);
}

#[test]
fn those_who_come_along_are_asked_for_once_and_what_is_wanted_before_them_keeps_its_room() {
    let mut window = Window::new(6400);
    window.begin(1, None);
    let look = window.look().unwrap();
    let found = window.looked(&look, plenty(0), &bytes);
    assert_eq!((found.urgent, found.ids.len()), (10, 1000));
    // One of those is urgent anyway, one is nobody.
    let asked = ask_for(&mut window, &look, found, &[3, 500, 600, 9999]);
    assert_eq!(asked, (0..10).chain([500, 600]).map(|k| 7 * k).collect::<Vec<_>>());
    assert_eq!(window.bytes(), 120);
    // The two lie behind the next place, where they are found again: their room is not taken twice.
    let look = window.look().unwrap();
    assert_eq!((look.from, look.room.free_bytes), (10, 6400 - 100));
    let found = window.looked(&look, plenty(10), &bytes);
    assert!(!found.ids.contains(&3500) && !found.ids.contains(&4200));
    // A batch was decided meanwhile: who is in it does not come along any more.
    window.settle(1, 300, [].into_iter());
    let asked = ask_for(&mut window, &look, found, &[100, 400]);
    assert_eq!(asked.len(), 12 + 1, "{asked:?}");
    assert_eq!(asked.last(), Some(&(7 * 410)));
    // Another pass has begun: what was to be asked for is not, and takes no room.
    let look = window.look().unwrap();
    let found = window.looked(&look, plenty(200), &bytes);
    let before = window.bytes();
    window.begin(2, None);
    assert!(ask_for(&mut window, &look, found, &[]).is_empty());
    assert!(window.bytes() < before);
    assert!(window.look().is_some());
}

#[test]
fn what_nobody_needs_any_more_is_let_go_of_and_not_asked_for_twice() {
    let mut window = Window::new(64_000);
    window.begin(1, None);
    assert_eq!(ask(&mut window, &[(0, 5), (1, 6), (2, 5), (9, 8)], 10), [5, 6, 8]);
    assert!(window.land(5, landed(5)));
    // Of the batch that ends at 3, both are cached by now: one has come, the other has not.
    let vain = window.settle(1, 3, [5, 6, 8].into_iter());
    assert_eq!(vain, Vain { samples: 1, bytes: bytes(5) });
    assert_eq!((window.take(5), window.bytes()), (Taken::Nothing, bytes(6) + bytes(8)));
    // It is wanted again while it is on its way, and by then for a later batch.
    assert!(ask(&mut window, &[(12, 6)], 13).is_empty());
    assert!(window.land(6, landed(6)));
    assert_eq!(window.settle(1, 11, [6].into_iter()), Vain::default());
    assert_eq!(window.take(6), taken(6));
    window.give_back(bytes(6));
    // A batch that was decided while somebody looked fetches for itself, also what the order has again later.
    let look = window.look().unwrap();
    window.settle(1, 20, [].into_iter());
    let found = window.looked(&look, found(&[(19, 1), (20, 2), (21, 1)], 22), &bytes);
    assert_eq!(ask_for(&mut window, &look, found, &[]), [2]);
    // A batch of another pass says nothing about this one.
    window.settle(7, 99, [2, 8].into_iter());
    assert_eq!((window.take(2), window.take(8)), (Taken::UnderWay, Taken::UnderWay));
    window.miss(2);
    assert_eq!((window.take(2), window.bytes()), (Taken::Nothing, bytes(8)));
    // The pass ends: what is on its way counts until it has come or will not.
    assert_eq!(window.begin(0, None), Vain::default());
    assert_eq!(window.bytes(), bytes(8));
    assert!(!window.land(8, landed(8)));
    assert_eq!((window.bytes(), window.look()), (0, None));
}

#[test]
fn what_finds_no_room_waits_for_some() {
    let mut window = Window::new(100);
    window.begin(1, None);
    // 10, 40 and 40 bytes, and 40 more that have no room.
    let order = [(0, 0), (1, 6), (2, 13), (3, 20), (4, 27)];
    let mut asked = Vec::new();
    while let Some(look) = window.look() {
        // As the looking thread does; the test only asked whether it is time.
        ask_for(&mut window, &look, Found::default(), &[]);
        let new = ask(&mut window, &order, 5);
        if new.is_empty() {
            break;
        }
        asked.extend(new);
    }
    assert_eq!((asked, window.bytes()), (vec![0, 6, 13], 90));
    assert_eq!(window.look(), None, "nothing has become free");
    window.land(0, landed(0));
    assert_eq!((window.take(0), window.look()), (taken(0), None));
    window.give_back(bytes(0));
    window.land(6, landed(6));
    window.take(6);
    window.give_back(bytes(6));
    assert_eq!(ask(&mut window, &order[3..], 5), [20]);
}

/// As [`ask`], where the next pass begins at place `beyond`.
fn ask_beyond(
    window: &mut Window,
    wants: &[(usize, SampleId)],
    busy: &[(usize, SampleId)],
    beyond: usize,
    next: usize,
) -> Vec<SampleId> {
    let look = window.look().unwrap();
    let ahead = found(wants, next).unwrap();
    let busy = found(busy, next).unwrap().wants;
    let found = window.looked(&look, Some(Ahead { beyond: Some(beyond), busy, ..ahead }), &bytes);
    ask_for(window, &look, found, &[])
}

#[test]
fn what_the_next_pass_wants_stays_for_it_and_what_it_does_not_goes() {
    let mut window = Window::new(64_000);
    window.begin(1, None);
    let stretch = window.stretch();
    // The pass has 10 places. 5 is wanted by both passes, 6 by this one, 8 by the next.
    let asked = ask_beyond(&mut window, &[(2, 5), (3, 6), (11, 5), (12, 8)], &[], 10, 20);
    assert_eq!(asked, [5, 6, 8]);
    for id in [5, 6, 8] {
        assert!(window.land(id, landed(id)));
    }
    assert_eq!(window.take(5), Taken::Landed { landed: landed(5), stays: true, used: false });
    assert_eq!(window.bytes(), bytes(5) + bytes(6) + bytes(8), "it stays in its room");
    // A batch that ends the pass finds 6 cached: it goes. The next pass begins where it was foreseen.
    assert_eq!(window.settle(1, 10, [6, 8].into_iter()), Vain { samples: 1, bytes: bytes(6) });
    assert_eq!((window.begin(2, Some(10..20)), window.stretch()), (Vain::default(), stretch));
    assert_eq!(window.bytes(), bytes(5) + bytes(8));
    // Whoever is cached by now is let go of: 5 was of use, 8 was read in vain.
    assert_eq!(window.settle(2, 2, [5, 8].into_iter()), Vain::default());
    assert_eq!(window.bytes(), bytes(8));
    assert_eq!(window.settle(2, 3, [8].into_iter()), Vain { samples: 1, bytes: bytes(8) });
}

#[test]
fn what_stayed_is_told_from_what_was_read_and_does_not_stay_if_it_was_bad() {
    let mut window = Window::new(64_000);
    window.begin(1, None);
    assert_eq!(ask_beyond(&mut window, &[(2, 5), (3, 6), (11, 5), (12, 6)], &[], 10, 20), [5, 6]);
    for id in [5, 6] {
        window.land(id, landed(id));
        assert!(matches!(window.take(id), Taken::Landed { stays: true, used: false, .. }));
    }
    window.doubt(&[6, 7]);
    assert_eq!((window.take(6), window.bytes()), (Taken::Nothing, bytes(5)));
    window.begin(2, Some(10..20));
    assert_eq!(window.take(5), Taken::Landed { landed: landed(5), stays: false, used: true });
    // Another epoch than the one foreseen: all goes, and its requests end.
    let mut window = Window::new(64_000);
    window.begin(1, None);
    let stretch = window.stretch();
    ask_beyond(&mut window, &[(12, 8), (13, 9)], &[], 10, 20);
    window.land(8, landed(8));
    assert_eq!(window.begin(2, None), Vain { samples: 1, bytes: bytes(8) });
    assert_ne!(window.stretch(), stretch);
    assert!(!window.land(9, landed(9)));
    assert_eq!(window.bytes(), 0);
}

#[test]
fn what_a_batch_has_in_hand_is_asked_for_when_it_has_ended() {
    let mut window = Window::new(640);
    window.begin(1, None);
    // A batch fetches 5 by itself when the next pass is found to want it.
    assert_eq!(ask_beyond(&mut window, &[(12, 8)], &[(11, 5)], 10, 20), [8]);
    assert!(ask_beyond(&mut window, &[(12, 8)], &[(11, 5)], 10, 20).is_empty());
    assert_eq!(window.look(), None, "it is in hand still");
    // The batch has ended while somebody looked: that is not overlooked.
    assert!(window.released());
    let look = window.look().unwrap();
    assert_eq!(look.from, 11);
    window.released();
    let busy = found(&[(11, 5)], 20).unwrap().wants;
    let seen = window.looked(&look, Some(Ahead { beyond: Some(10), busy, next: 20, ..Ahead::default() }), &bytes);
    ask_for(&mut window, &look, seen, &[]);
    assert_eq!(ask_beyond(&mut window, &[(11, 5), (12, 8)], &[], 10, 20), [5]);
    assert!(!window.released());
    // The last batch of the pass is decided: who gave way meanwhile is looked for once more, though there is little room.
    assert!(ask_beyond(&mut window, &[], &[], 10, 20).is_empty());
    window.settle(1, 10, [].into_iter());
    assert_eq!(window.look().unwrap().from, 10);
    // What is due is asked for before its turn, and whatever lies before it is not.
    let mut window = Window::new(6400);
    window.begin(1, None);
    assert_eq!(ask_beyond(&mut window, &[(10, 70)], &[(35, 700)], 10, 50), [70]);
    window.released();
    let order: Vec<(usize, SampleId)> = (11..35).map(|place| (place, 7 * place as u32)).chain([(35, 700)]).collect();
    let expected: Vec<SampleId> = (11..21).map(|place| 7 * place).chain([700]).collect();
    assert_eq!(ask_beyond(&mut window, &order, &[], 10, 50), expected);
    assert_eq!(window.bytes(), 120);
}

#[derive(Debug, Clone)]
enum Step {
    Look(Vec<(usize, SampleId)>),
    Land(SampleId),
    Miss(SampleId),
    Take(SampleId),
    Settle(usize, Vec<SampleId>),
    Doubt(SampleId),
    /// Which places are the next pass's; none if another was foreseen.
    Begin(Option<Range<usize>>),
}

fn any_step() -> impl Strategy<Value = Step> {
    let id = 0u32..12;
    prop_oneof![
        3 => prop::collection::vec((0usize..30, id.clone()), 0..6).prop_map(Step::Look),
        3 => id.clone().prop_map(Step::Land),
        1 => id.clone().prop_map(Step::Miss),
        3 => id.clone().prop_map(Step::Take),
        1 => (0usize..30, prop::collection::vec(id, 0..4)).prop_map(|(reach, ids)| Step::Settle(reach, ids)),
        1 => (0u32..12).prop_map(Step::Doubt),
        1 => any_places().prop_map(Step::Begin),
    ]
}

/// Where they were foreseen, or wherever a stream stopped in fact, and as far as it is still the same.
fn any_places() -> impl Strategy<Value = Option<Range<usize>>> {
    let anywhere = (0usize..30, 1usize..30).prop_map(|(start, count)| Some(start..start + count));
    prop_oneof![Just(None), Just(Some(BEYOND..usize::MAX)), anywhere]
}

/// The next pass begins here, as far as was foreseen.
const BEYOND: usize = 20;

/// What is held of a sample: the place it is needed at, the one in the next pass if it stays for that, whether it has
/// come, and whether it was of use already.
#[derive(Default)]
struct Held {
    place: Option<usize>,
    again: Option<usize>,
    there: bool,
    used: bool,
}

proptest! {
    #[test]
    fn books_agree_with_a_naive_account(steps in prop::collection::vec(any_step(), 0..120)) {
        let mut window = Window::new(1 << 20);
        let (mut pass, mut reached) = (1, 0);
        window.begin(pass, None);
        let mut naive: HashMap<SampleId, Held> = HashMap::new();
        let (mut asked, mut used, mut vain) = (0, 0, 0);
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Look(wants) => {
                    let mut expected = Vec::new();
                    let mut fetched = HashSet::new();
                    for &(place, id) in &wants {
                        if place < reached || fetched.contains(&id) {
                            fetched.insert(id);
                            continue;
                        }
                        if !naive.contains_key(&id) {
                            expected.push(id);
                        }
                        let held = naive.entry(id).or_default();
                        let first = *held.place.get_or_insert(place);
                        if first < BEYOND && place >= BEYOND && held.again.is_none() {
                            held.again = Some(place);
                        }
                    }
                    asked += expected.len();
                    window.released();
                    prop_assert_eq!(ask_beyond(&mut window, &wants, &[], BEYOND, number + 1), expected);
                }
                Step::Land(id) => {
                    let needed = naive.get(&id).is_some_and(|held| held.place.is_some() && !held.there);
                    prop_assert_eq!(window.land(id, landed(id)), needed);
                    match naive.get_mut(&id) {
                        Some(held) if needed => held.there = true,
                        Some(held) if !held.there => {
                            naive.remove(&id);
                            vain += 1;
                        }
                        _ => {}
                    }
                }
                Step::Miss(id) => {
                    window.miss(id);
                    if naive.get(&id).is_some_and(|held| !held.there) {
                        naive.remove(&id);
                        vain += 1;
                    }
                }
                Step::Take(id) => match (window.take(id), naive.get_mut(&id)) {
                    (Taken::Landed { landed: bytes, stays, used: before }, Some(held)) if held.there => {
                        prop_assert_eq!(bytes, landed(id));
                        prop_assert_eq!((stays, before), (held.again.is_some(), held.used));
                        used += usize::from(!before);
                        if stays {
                            *held = Held { place: held.again, used: true, there: true, again: None };
                        } else {
                            window.give_back(landed(id).len() as u64);
                            naive.remove(&id);
                        }
                    }
                    (Taken::UnderWay, Some(held)) if !held.there => held.place = held.place.or(Some(0)),
                    (Taken::Nothing, None) => {}
                    (got, _) => prop_assert!(false, "{got:?} of {id}"),
                },
                Step::Settle(reach, ids) => {
                    reached = reached.max(reach);
                    let let_go = window.settle(pass, reach, ids.iter().copied()).samples;
                    let mut in_vain = 0;
                    for id in ids {
                        match naive.get_mut(&id) {
                            Some(held) if held.place.is_none_or(|place| place >= reach) => {}
                            Some(held) if held.there => {
                                in_vain += usize::from(!held.used);
                                naive.remove(&id);
                            }
                            Some(held) => (held.place, held.again) = (None, None),
                            None => {}
                        }
                    }
                    prop_assert_eq!(let_go as usize, in_vain);
                    vain += in_vain;
                }
                Step::Doubt(id) => {
                    window.doubt(&[id]);
                    if naive.get(&id).is_some_and(|held| held.used) {
                        naive.remove(&id);
                    }
                }
                Step::Begin(foreseen) => {
                    (pass, reached) = (pass + 1, 0);
                    let mut in_vain = 0;
                    naive.retain(|_, held| {
                        let inside = |place: &usize| foreseen.as_ref().is_some_and(|places| places.contains(place));
                        let place = held.place.filter(inside).or(held.again.filter(inside));
                        (held.place, held.again) = (place.map(|place| place - foreseen.as_ref().unwrap().start), None);
                        let goes = place.is_none() && held.there;
                        in_vain += usize::from(goes && !held.used);
                        !goes
                    });
                    prop_assert_eq!(window.begin(pass, foreseen).samples as usize, in_vain);
                    vain += in_vain;
                }
            }
            prop_assert_eq!(window.bytes(), naive.keys().map(|&id| bytes(id)).sum::<u64>());
            let there = naive.iter().filter(|(_, held)| held.there);
            prop_assert_eq!(window.landed_bytes(), there.map(|(&id, _)| bytes(id)).sum::<u64>());
            let unused = naive.values().filter(|held| !held.used).count();
            prop_assert_eq!(asked, unused + used + vain, "each is used, vain, or still here");
        }
    }
}

#[test]
fn it_is_short_where_much_has_come_that_is_needed_later_and_no_more_can_be_asked_for() {
    let mut window = Window::new(640);
    window.begin(1, None);
    let mut next = 0;
    while let Some(look) = window.look() {
        let found = window.looked(&look, plenty(next), &bytes);
        next += ask_for(&mut window, &look, found, &[]).len();
    }
    assert_eq!((next, window.is_short()), (64, false), "nothing has come");
    // All but the first, which is waited for.
    for k in 1..64 {
        assert_eq!(window.is_short(), k > 16);
        assert!(window.land(7 * k, landed(7 * k)));
    }
    assert!(window.is_short());
    // Somebody asks for more: the link has something to do.
    window.set_limit(1280);
    let look = window.look().unwrap();
    assert!(!window.is_short());
    let found = window.looked(&look, plenty(next), &bytes);
    ask_for(&mut window, &look, found, &[]);
    assert!(window.is_short());
    window.pause(true);
    assert!(!window.is_short());
    window.pause(false);
    // Nothing is left to ask for.
    window.set_limit(8000);
    let look = window.look().unwrap();
    let found = window.looked(&look, Some(Ahead { next, whole: true, ..Ahead::default() }), &bytes);
    ask_for(&mut window, &look, found, &[]);
    assert!(!window.is_short());
}

#[test]
fn a_smaller_limit_keeps_what_is_here_and_asks_for_no_more_until_that_is_used() {
    let mut window = Window::new(6400);
    window.begin(1, None);
    let (mut next, mut ids) = (0, Vec::new());
    while let Some(look) = window.look() {
        let found = window.looked(&look, plenty(next), &bytes);
        ids.extend(ask_for(&mut window, &look, found, &[]));
        next = ids.len();
    }
    assert_eq!(window.bytes(), 6400);
    window.set_limit(640);
    assert_eq!((window.limit(), window.bytes(), window.look()), (640, 6400, None));
    for (used, id) in ids.into_iter().enumerate() {
        assert_eq!(window.look().is_some(), 6400 - 10 * used as u64 <= 320, "{used} are used");
        window.cede();
        assert!(window.land(id, landed(id)));
        assert_eq!(window.take(id), taken(id));
        window.give_back(10);
    }
}

#[test]
fn what_a_stopped_batch_waited_for_at_the_end_is_not_kept_when_it_comes() {
    let mut window = Window::new(10_000);
    window.begin(1, None);
    assert_eq!(ask(&mut window, &[(0, 3), (1, 4)], 2), [3, 4]);
    window.close();
    window.begin(0, None);
    // A loader thread had this one in hand, and has not seen the end yet.
    assert_eq!(window.take(3), Taken::UnderWay);
    assert!(!window.land(3, landed(3)) && !window.land(4, landed(4)));
    assert_eq!((window.bytes(), window.take(3)), (0, Taken::Nothing));
}
