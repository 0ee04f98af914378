//! The priority queue against a sorted vector.

use lossfeed::index::PriorityQueue;
use proptest::prelude::*;

/// Three levels: 16 neighbours share a node.
const SAMPLES: usize = 300;

#[derive(Debug, Clone)]
enum Op {
    Insert(u32, f32),
    Update(u32, f32),
    Remove(u32),
    Pop,
    RetainMultiplesOf(u32),
    Rekey(f32),
}

fn op() -> impl Strategy<Value = Op> {
    // Few keys: ties must be common. −0 and 0 are one key.
    let key = || prop::sample::select(vec![-1.5f32, -0.0, 0.0, 0.5, 0.5000001, 7.0, f32::INFINITY, f32::NEG_INFINITY]);
    let id = || prop_oneof![0..20u32, 0..SAMPLES as u32];
    prop_oneof![
        4 => (id(), key()).prop_map(|(i, k)| Op::Insert(i, k)),
        3 => (id(), key()).prop_map(|(i, k)| Op::Update(i, k)),
        2 => id().prop_map(Op::Remove),
        2 => Just(Op::Pop),
        1 => (1..5u32).prop_map(Op::RetainMultiplesOf),
        1 => key().prop_map(Op::Rekey),
    ]
}

#[derive(Default)]
struct Sorted(Vec<(f32, u32)>);

impl Sorted {
    fn insert(&mut self, id: u32, key: f32) {
        self.0.retain(|e| e.1 != id);
        self.0.push((key + 0.0, id));
        self.0.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    }
    fn key(&self, id: u32) -> Option<f32> {
        self.0.iter().find(|e| e.1 == id).map(|e| e.0)
    }
}

proptest! {
    #[test]
    fn the_queue_is_a_sorted_vector(ops in prop::collection::vec(op(), 0..300)) {
        let mut queue = PriorityQueue::<f32>::new(SAMPLES);
        let mut sorted = Sorted::default();
        for op in ops {
            match op {
                Op::Insert(id, key) => {
                    queue.insert(id, key);
                    sorted.insert(id, key);
                }
                Op::Update(id, key) => {
                    prop_assert_eq!(queue.update(id, key), sorted.key(id).is_some());
                    if sorted.key(id).is_some() {
                        sorted.insert(id, key);
                    }
                }
                Op::Remove(id) => {
                    prop_assert_eq!(queue.remove(id), sorted.key(id));
                    sorted.0.retain(|e| e.1 != id);
                }
                Op::Pop => {
                    let least = (!sorted.0.is_empty()).then(|| sorted.0.remove(0));
                    prop_assert_eq!(queue.pop(), least.map(|(key, id)| (id, key)));
                }
                Op::RetainMultiplesOf(n) => {
                    queue.retain(|id| id % n == 0);
                    sorted.0.retain(|e| e.1 % n == 0);
                }
                Op::Rekey(by) => {
                    queue.rekey(|id, _| by + (id % 3) as f32);
                    for (_, id) in sorted.0.clone() {
                        sorted.insert(id, by + (id % 3) as f32);
                    }
                }
            }
            prop_assert_eq!(queue.check(), Ok(()));
            prop_assert_eq!(queue.len(), sorted.0.len());
            prop_assert_eq!(queue.peek(), sorted.0.first().map(|&(key, id)| (id, key)));
            for id in 0..SAMPLES as u32 {
                prop_assert_eq!(queue.key(id), sorted.key(id));
                prop_assert_eq!(queue.contains(id), sorted.key(id).is_some());
            }
        }
    }
}

#[test]
fn integer_keys_keep_all_their_bits() {
    let mut queue = PriorityQueue::<u32>::new(3);
    queue.insert(0, u32::MAX - 1);
    queue.insert(1, u32::MAX - 2);
    queue.insert(2, 16_777_217); // 2²⁴ + 1: an f32 would tie it with its neighbour
    assert_eq!(queue.pop(), Some((2, 16_777_217)));
    assert_eq!(queue.pop(), Some((1, u32::MAX - 2)));
    assert_eq!(queue.pop(), Some((0, u32::MAX - 1)));
}
