//! The ring's books under every interleaving of a few loader threads, a consumer, copies and a loader that closes:
//! breadth first, until there is nothing new. Then once more with mistakes planted, each of which must be found.

use std::collections::{BTreeSet, HashSet, VecDeque};

use super::ring::{Ring, SlotGauges, SlotState, Step, Wake};
use SlotState::{Copying, Filling, Free, Lent, Ready};

/// The round as the room's head draws it, apart from the table in the product.
const ROUND: [(SlotState, SlotState); 8] = [
    (Free, Filling),
    (Filling, Ready),
    (Ready, Lent),
    (Lent, Copying),
    (Filling, Free),
    (Ready, Free),
    (Lent, Free),
    (Copying, Free),
];
const STATES: [SlotState; 5] = [Free, Filling, Ready, Lent, Copying];

/// A mistake in the books, or in how they are used.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Fault {
    None,
    /// A slot that comes back wakes nobody.
    WakesNobody,
    /// Closing wakes nobody.
    ClosesSilently,
    /// Closing changes nothing.
    IgnoresClose,
    /// A slot that could not be made is not told.
    ForgetsRefusal,
    GrowsTooFar,
    /// A slot is given out that somebody has.
    GivesTwice,
    /// A dropped slot does not come back.
    Leaks,
    /// Every step is allowed.
    AcceptsAnything,
    /// The lock is let go between "wait" and the wait.
    DozesOff,
    /// Who is woken gives up without asking once more.
    GivesUp,
}

/// A loader thread inside or outside of `SlotPool::acquire`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
enum Loader {
    Outside,
    /// Told to wait, and not waiting yet: between the two there is no moment in which another thread acts.
    Dozing,
    Asleep,
    Woken,
    /// Its time is over; it asks once more.
    Late,
    Mapping,
    Filling(u32),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    ring: Ring,
    fault: Fault,
    loaders: Vec<Loader>,
    ready: BTreeSet<u32>,
    lent: BTreeSet<u32>,
    copying: BTreeSet<u32>,
    /// A copy that never ended keeps its slot.
    lost: BTreeSet<u32>,
    /// Slots there may be, as far as the machine has said.
    bound: usize,
    may_refuse: bool,
    closed: bool,
}

impl World {
    fn new(loaders: usize, depth: usize, bound: usize, fault: Fault) -> Self {
        let ring = Ring::new(depth, bound + usize::from(fault == Fault::GrowsTooFar));
        let [ready, lent, copying, lost] = Default::default();
        let loaders = vec![Loader::Outside; loaders];
        Self { ring, fault, loaders, ready, lent, copying, lost, bound, may_refuse: true, closed: false }
    }

    fn count(&self, what: Loader) -> usize {
        self.loaders.iter().filter(|&&loader| loader == what).count()
    }
    fn filling(&self) -> impl Iterator<Item = u32> {
        self.loaders.iter().filter_map(|loader| if let Loader::Filling(slot) = loader { Some(*slot) } else { None })
    }
    /// Every slot that somebody has, and in what state.
    fn held(&self) -> Vec<(u32, SlotState)> {
        let of = |slots: &BTreeSet<u32>, state| slots.iter().map(|&slot| (slot, state)).collect::<Vec<_>>();
        let filling = self.filling().map(|slot| (slot, Filling));
        let others =
            [of(&self.ready, Ready), of(&self.lent, Lent), of(&self.copying, Copying), of(&self.lost, Copying)];
        filling.chain(others.concat()).collect()
    }

    /// What `SlotPool::acquire` does between two moments at which others may act.
    fn ask(&mut self, who: usize) -> Result<(), String> {
        let before = self.loaders[who];
        let step = self.ring.acquire();
        self.loaders[who] = match step {
            Step::Take(slot) if self.fault == Fault::GivesTwice => {
                Loader::Filling(self.held().first().map_or(slot, |held| held.0))
            }
            Step::Take(slot) => Loader::Filling(slot),
            Step::Grow => Loader::Mapping,
            Step::Wait if before == Loader::Late => Loader::Outside,
            Step::Wait if self.fault == Fault::DozesOff => Loader::Dozing,
            Step::Wait => Loader::Asleep,
            Step::Closed => Loader::Outside,
        };
        Ok(())
    }

    fn mapped(&mut self, who: usize, made: bool) -> Result<(), String> {
        if made {
            self.ring.grown();
        } else {
            self.may_refuse = false;
            self.loaders[who] = Loader::Outside;
            self.bound = self.ring.gauges().total + self.count(Loader::Mapping);
            if self.fault != Fault::ForgetsRefusal {
                self.ring.refused();
            }
        }
        self.ask(who)
    }

    fn enter(&mut self, slot: u32, next: SlotState) -> Result<(), String> {
        let before = self.ring.clone();
        let wake = match self.ring.enter(slot, next) {
            Err(_) if self.fault == Fault::AcceptsAnything => Wake::Nobody,
            Err(error) => return Err(error.to_string()),
            Ok(_) if self.fault == Fault::WakesNobody => Wake::Nobody,
            Ok(_) if self.fault == Fault::Leaks && next == Free => {
                self.ring = before;
                Wake::Nobody
            }
            Ok(wake) => wake,
        };
        self.wake(wake);
        Ok(())
    }

    fn wake(&mut self, wake: Wake) {
        let many = match wake {
            Wake::Nobody => 0,
            Wake::One => 1,
            Wake::All => usize::MAX,
        };
        // One sleeper is like another.
        self.loaders.iter_mut().filter(|loader| **loader == Loader::Asleep).take(many).for_each(|l| *l = Loader::Woken);
    }

    fn close(&mut self) -> Result<(), String> {
        self.closed = true;
        if self.fault != Fault::IgnoresClose {
            let wake = self.ring.close();
            self.wake(if self.fault == Fault::ClosesSilently { Wake::Nobody } else { wake });
        }
        Ok(())
    }

    /// Every world that may come next.
    fn next(&self) -> Result<Vec<World>, String> {
        let mut worlds = Vec::new();
        let mut after = |act: &dyn Fn(&mut World) -> Result<(), String>| {
            let mut world = self.clone();
            act(&mut world)?;
            // Threads are alike.
            world.loaders.sort();
            worlds.push(world);
            Ok::<_, String>(())
        };
        for (who, &loader) in self.loaders.iter().enumerate() {
            let become_ = |state| move |world: &mut World| world.turn(who, state);
            match loader {
                Loader::Woken if self.fault == Fault::GivesUp => after(&become_(Loader::Outside))?,
                Loader::Outside | Loader::Woken | Loader::Late => after(&|world| world.ask(who))?,
                Loader::Dozing => after(&become_(Loader::Asleep))?,
                Loader::Asleep => after(&become_(Loader::Late))?,
                Loader::Mapping => {
                    after(&|world| world.mapped(who, true))?;
                    if self.may_refuse {
                        after(&|world| world.mapped(who, false))?;
                    }
                }
                Loader::Filling(slot) => {
                    after(&|world| {
                        world.ready.insert(slot);
                        world.turn(who, Loader::Outside)?;
                        world.enter(slot, Ready)
                    })?;
                    after(&|world| world.turn(who, Loader::Outside).and_then(|()| world.enter(slot, Free)))?;
                }
            }
        }
        for &slot in &self.ready {
            after(&|world| {
                world.lent.extend(world.ready.take(&slot));
                world.enter(slot, Lent)
            })?;
            after(&|world| {
                world.ready.remove(&slot);
                world.enter(slot, Free)
            })?;
        }
        for &slot in &self.lent {
            after(&|world| {
                world.copying.extend(world.lent.take(&slot));
                world.enter(slot, Copying)
            })?;
            after(&|world| {
                world.lent.remove(&slot);
                world.enter(slot, Free)
            })?;
        }
        for &slot in &self.copying {
            after(&|world| {
                world.copying.remove(&slot);
                world.enter(slot, Free)
            })?;
            if self.lost.is_empty() {
                after(&|world| {
                    world.lost.extend(world.copying.take(&slot));
                    Ok(())
                })?;
            }
        }
        if !self.closed {
            after(&|world| world.close())?;
        }
        Ok(worlds)
    }

    fn turn(&mut self, who: usize, state: Loader) -> Result<(), String> {
        self.loaders[who] = state;
        Ok(())
    }

    /// What is wrong with this world.
    fn wrong(&self) -> Result<(), String> {
        let ensure = |holds: bool, what: &str| if holds { Ok(()) } else { Err(what.to_owned()) };
        let (held, gauges, mapping) = (self.held(), self.ring.gauges(), self.count(Loader::Mapping));
        let distinct: HashSet<u32> = held.iter().map(|&(slot, _)| slot).collect();
        ensure(distinct.len() == held.len(), "two owners of one slot")?;
        let many = |state| held.iter().filter(|&&(_, held)| held == state).count();
        let counted = SlotGauges {
            total: gauges.total,
            free: gauges.total.wrapping_sub(held.len()),
            filling: many(Filling),
            ready: many(Ready),
            lent: many(Lent),
            copying: many(Copying),
        };
        ensure(gauges == counted, "the gauges are not what the owners have")?;
        ensure(gauges.total + mapping <= self.bound, "more slots than there may be")?;

        // What the next ones who ask would be told.
        let (mut probe, mut takes, mut grows) = (self.ring.clone(), 0, 0);
        let last = loop {
            match probe.acquire() {
                Step::Take(_) => takes += 1,
                Step::Grow => grows += 1,
                last => break last,
            }
        };
        if self.closed {
            ensure((last, takes + grows) == (Step::Closed, 0), "a closed ring gives slots")?;
            ensure(self.count(Loader::Asleep) == 0, "asleep in a closed ring")?;
        } else {
            ensure(last == Step::Wait && takes == gauges.free, "a free slot is not given")?;
            ensure(grows == self.bound - gauges.total - mapping, "the ring does not grow as far as it may")?;
            // With as many woken as there are slots to be had, nobody sleeps beside a slot.
            let lost_wake_up = self.count(Loader::Asleep) > 0 && self.count(Loader::Woken) < takes + grows;
            ensure(!lost_wake_up, "asleep beside a slot")?;
            let coming = takes + grows + mapping + many(Filling) + many(Ready) + many(Copying);
            ensure(
                self.ring.is_lent_out() == (coming == 0),
                "the consumer is not told that it holds every slot, or told wrongly",
            )?;
            for needed in 0..=self.bound {
                ensure(
                    self.ring.is_scarce(needed) == (coming < needed),
                    "the consumer is not told that it leaves too few slots, or told wrongly",
                )?;
            }
        }

        for slot in 0..gauges.total as u32 + 1 {
            let state = held.iter().find(|held| held.0 == slot).map_or(Free, |held| held.1);
            for next in STATES.into_iter().filter(|&next| state == Free || !ROUND.contains(&(state, next))) {
                let mut world = self.clone();
                let refused = world.enter(slot, next).is_err() && world == *self;
                ensure(refused, "a step out of turn was taken")?;
            }
        }

        let mut world = self.clone();
        for (slot, _) in held.iter().filter(|held| !self.lost.contains(&held.0)) {
            world.enter(*slot, Free)?;
        }
        let left = world.ring.gauges();
        ensure(left.free + self.lost.len() == left.total, "a slot is missing when all are dropped")
    }
}

/// How many worlds there are, or what is wrong with one of them.
fn explore(start: World) -> Result<usize, String> {
    let mut seen = HashSet::from([start.clone()]);
    let mut front = VecDeque::from([start]);
    while let Some(world) = front.pop_front() {
        let told = |what: String| format!("{what}, in {world:?}");
        world.wrong().map_err(told)?;
        for next in world.next().map_err(told)? {
            if seen.insert(next.clone()) {
                front.push_back(next);
            }
        }
    }
    Ok(seen.len())
}

#[test]
fn the_table_of_steps_is_the_round() {
    for (from, to) in STATES.into_iter().flat_map(|from| STATES.map(|to| (from, to))) {
        assert_eq!(from.may_become(to), ROUND.contains(&(from, to)), "{from:?} to {to:?}");
    }
}

#[test]
fn no_interleaving_shares_a_slot_loses_one_or_sleeps_beside_one() {
    let mut worlds = 0;
    for loaders in 1..=3 {
        for bound in 1..=4 {
            for depth in 1..=bound.min(3) {
                worlds += explore(World::new(loaders, depth, bound, Fault::None)).unwrap_or_else(|e| panic!("{e}"));
            }
        }
    }
    println!("{worlds} worlds");
    assert!(worlds > 100_000, "only {worlds} worlds: the walk ended early");
}

#[test]
fn every_planted_mistake_is_found() {
    for (fault, told) in [
        (Fault::WakesNobody, "asleep beside a slot"),
        (Fault::ClosesSilently, "asleep in a closed ring"),
        (Fault::IgnoresClose, "a closed ring gives slots"),
        (Fault::ForgetsRefusal, "the consumer is not told"),
        (Fault::GrowsTooFar, "the ring does not grow as far as it may"),
        (Fault::GivesTwice, "two owners"),
        (Fault::Leaks, "a slot is missing"),
        (Fault::AcceptsAnything, "out of turn"),
        (Fault::DozesOff, "asleep beside a slot"),
        (Fault::GivesUp, "asleep beside a slot"),
    ] {
        let found = explore(World::new(3, 1, 2, fault)).expect_err(&format!("{fault:?} was not found"));
        assert!(found.contains(told), "{fault:?}: {found}");
    }
}
