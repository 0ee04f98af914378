//! Truths about the window of what is read ahead: every sample once, no byte above the limit, none forgotten.

use super::window::{Found, Landed, Look, Taken, Vain, Window};
use crate::control::{Ahead, Want};
use crate::types::SampleId;
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};
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
    let ids = window.asked(look, found, along, &bytes);
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

#[derive(Debug, Clone)]
enum Step {
    Look(Vec<(usize, SampleId)>),
    Land(SampleId),
    Miss(SampleId),
    Take(SampleId),
    Settle(usize, Vec<SampleId>),
    Begin,
}

fn any_step() -> impl Strategy<Value = Step> {
    let id = 0u32..12;
    prop_oneof![
        3 => prop::collection::vec((0usize..30, id.clone()), 0..6).prop_map(Step::Look),
        3 => id.clone().prop_map(Step::Land),
        1 => id.clone().prop_map(Step::Miss),
        3 => id.clone().prop_map(Step::Take),
        1 => (0usize..30, prop::collection::vec(id, 0..4)).prop_map(|(reach, ids)| Step::Settle(reach, ids)),
        1 => Just(Step::Begin),
    ]
}

proptest! {
    #[test]
    fn books_agree_with_a_naive_account(steps in prop::collection::vec(any_step(), 0..120)) {
        let mut window = Window::new(1 << 20);
        let (mut pass, mut reached) = (1, 0);
        window.begin(pass, None);
        // By sample: the place it is needed at, and whether it has come.
        let mut naive: HashMap<SampleId, (Option<usize>, bool)> = HashMap::new();
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
                        match naive.get_mut(&id) {
                            None => {
                                naive.insert(id, (Some(place), false));
                                expected.push(id);
                            }
                            Some((needed @ None, _)) => *needed = Some(place),
                            Some(_) => {}
                        }
                    }
                    asked += expected.len();
                    prop_assert_eq!(ask(&mut window, &wants, number + 1), expected);
                }
                Step::Land(id) => {
                    let needed = matches!(naive.get(&id), Some((Some(_), false)));
                    prop_assert_eq!(window.land(id, landed(id)), needed);
                    match naive.get_mut(&id) {
                        Some((Some(_), there)) => *there = true,
                        Some((None, _)) => {
                            naive.remove(&id);
                            vain += 1;
                        }
                        None => {}
                    }
                }
                Step::Miss(id) => {
                    window.miss(id);
                    if naive.get(&id).is_some_and(|(_, there)| !there) {
                        naive.remove(&id);
                        vain += 1;
                    }
                }
                Step::Take(id) => match (window.take(id), naive.get_mut(&id)) {
                    (Taken::Landed { landed: bytes, .. }, Some((_, true))) => {
                        prop_assert_eq!(bytes, landed(id));
                        window.give_back(landed(id).len() as u64);
                        naive.remove(&id);
                        used += 1;
                    }
                    (Taken::UnderWay, Some((needed, false))) => *needed = needed.or(Some(0)),
                    (Taken::Nothing, None) => {}
                    (got, expected) => prop_assert!(false, "{got:?} where {expected:?} was expected"),
                },
                Step::Settle(reach, ids) => {
                    reached = reached.max(reach);
                    let let_go = window.settle(pass, reach, ids.iter().copied()).samples;
                    let before = naive.len();
                    for id in ids {
                        match naive.get_mut(&id) {
                            Some((Some(place), true)) if *place < reach => _ = naive.remove(&id),
                            Some((place, false)) if place.is_some_and(|place| place < reach) => *place = None,
                            _ => {}
                        }
                    }
                    prop_assert_eq!(let_go as usize, before - naive.len());
                    vain += before - naive.len();
                }
                Step::Begin => {
                    (pass, reached) = (pass + 1, 0);
                    let there = naive.values().filter(|(_, there)| *there).count();
                    prop_assert_eq!(window.begin(pass, None).samples as usize, there);
                    vain += there;
                    naive.retain(|_, (_, there)| !*there);
                    naive.values_mut().for_each(|(needed, _)| *needed = None);
                }
            }
            prop_assert_eq!(window.bytes(), naive.keys().map(|&id| bytes(id)).sum::<u64>());
            prop_assert_eq!(asked, naive.len() + used + vain, "each is used, vain, or still here");
        }
    }
}
