//! A state of one number of ranks, taken up by another: what all of them had left is dealt anew.
//!
//! Where an epoch's order follows from the seed alone, any one rank's state tells where all of them stand, because
//! ranks take their steps together. Elsewhere the states of all ranks do, each of which has its own rest. Decision 45
//! has what is exact, and what cannot be.

use super::Engine;
use crate::control::{Cut, EMPTY_BUFFER};
use crate::error::{Error, Result};
use crate::index::ScoreTable;
use crate::loader::checkpoint::{Checkpoint, Header, Tuned, WeightUse};
use crate::policy::{self, Needs};
use crate::sampler::{Given, Leg, Order, Part, in_turn};
use std::collections::BTreeMap;

/// Settings that need not be those of a state which another number of ranks left.
const OF_OTHER_RANKS: [&str; 7] =
    ["rank", "world_size", "batch_size", "policy", "cache_bytes", "cache_bytes_now", "cache_form"];

/// A state for this rank, and what of the run it leaves out, in words.
pub(super) struct Taken {
    pub(super) state: Checkpoint,
    pub(super) note: Option<String>,
}

/// A number among a state's settings.
fn number<T: std::str::FromStr>(header: &Header, name: &str) -> Result<T> {
    let found = header.identity.get(name).and_then(|text| text.parse().ok());
    found.ok_or_else(|| Error::settings(format!("the state names no {name}: it is damaged")))
}

impl Engine {
    /// What `states` are to this rank: one state of any rank, or those of all ranks of a run, in any order.
    ///
    /// # Errors
    /// `Settings` for states that are not of one run and moment, and for one of another rank that does not tell
    /// what this one has left.
    pub(super) fn taken(&self, mut states: Vec<Checkpoint>) -> Result<Taken> {
        let of: Vec<(u32, u32)> = states
            .iter()
            .map(|state| Ok((number(&state.header, "rank")?, number(&state.header, "world_size")?)))
            .collect::<Result<_>>()?;
        let Some(&(one, ranks)) = of.first() else {
            return Err(Error::settings("no state given: pass the result of state_dict(), of one rank or of all"));
        };
        let mut named: Vec<u32> = of.iter().map(|&(rank, _)| rank).collect();
        named.sort_unstable();
        let whole = of.iter().all(|&(_, of)| of == ranks) && named.iter().copied().eq(0..ranks);
        if states.len() > 1 && !whole {
            return Err(Error::settings(format!(
                "{} states given, of ranks {named:?} of {ranks}: give one state, or each rank's once",
                states.len()
            )));
        }
        states.sort_by_key(|state| number::<u32>(&state.header, "rank").unwrap_or(0));
        let (rank, world) = (self.settings.rank, self.settings.world_size);
        if ranks == world && (states.len() > 1 || one == rank) {
            let own = if states.len() > 1 { rank as usize } else { 0 };
            return Ok(Taken { state: states.swap_remove(own), note: None });
        }
        if self.settings.sampler.is_short() && states.iter().any(|state| state.header.delivered > 0) {
            return Err(Error::settings(format!(
                "the state is of rank {one} of {ranks} in mid-epoch, and with short epochs only that rank can continue \
                 it: save states between epochs, or begin with set_epoch({})",
                states[0].header.epoch.saturating_add(1)
            )));
        }
        let policies = [self.policy_name, states[0].header.identity.get("policy").map_or("", String::as_str)];
        let substitutes = |name: &&str| policy::find(name).is_ok_and(|p| p.needs.contains(Needs::SUBSTITUTES));
        let mut free: Vec<&str> = OF_OTHER_RANKS.to_vec();
        if ranks == world {
            free.retain(|name| *name == "rank");
        } else if policies.iter().any(substitutes) {
            free.retain(|name| *name != "policy");
        }
        for state in &states {
            self.check_identity(&state.header, &free)?;
            self.check_sizes(state)?;
        }
        agree(&states, self.settings.sampler.given().is_some())?;
        let blind = self.is_blind(&states);
        let shared = self.settings.exchange && self.settings.sampler.buffer().is_none();
        if ranks == world && !blind && !shared {
            return Err(self.needs_all(&states[0].header, one, ranks));
        }
        let brought = states[0].header.identity.get("seed").cloned();
        let taken = if ranks == world { same_place(&states) } else { self.dealt_anew(&states, blind, whole)? };
        let Taken { mut state, note } = self.put_together(taken, &states)?;
        state.header.identity = self.identity();
        // A seed that was left open is taken from the state.
        state.header.identity.extend(brought.map(|seed| ("seed".to_string(), seed)));
        Ok(Taken { state, note })
    }

    /// Whether the sizes that a state names are those of this dataset: memory is taken by them.
    ///
    /// # Errors
    /// `Settings` if not.
    pub(super) fn check_sizes(&self, state: &Checkpoint) -> Result<()> {
        let (header, samples) = (&state.header, self.feed.source.len());
        if header.samples != samples {
            return Err(Error::settings(format!(
                "the state covers {} samples of {samples}: it is damaged",
                header.samples
            )));
        }
        let Some(part) = &header.part else { return Ok(()) };
        let ranks: usize = number(header, "world_size")?;
        let fits = match self.settings.sampler.given() {
            Some(_) => part.draws <= header.planned.saturating_add(1).saturating_mul(ranks),
            None => part.draws == samples,
        };
        let drawn = state.order.is_some() || self.settings.exchange || self.is_blind(std::slice::from_ref(state));
        if fits && drawn && !self.given_batches() {
            return Ok(());
        }
        Err(Error::settings(format!(
            "the state continues {} draws and holds {} of them: it is damaged",
            part.draws, header.planned
        )))
    }

    /// Whether the epoch's order follows from the seed alone, so that any rank's state tells what all have left.
    fn is_blind(&self, states: &[Checkpoint]) -> bool {
        let sampler = &self.settings.sampler;
        let awaits = self.weights.is_some() && states.iter().all(|s| s.header.weights != Some(WeightUse::Used));
        let by_seed = awaits || sampler.build().is_ok_and(|sampler| !sampler.adaptive());
        by_seed && sampler.buffer().is_none() && states.iter().all(|state| state.order.is_none())
    }

    fn needs_all(&self, header: &Header, rank: u32, ranks: u32) -> Error {
        Error::settings(format!(
            "the state is of rank {rank} of {ranks}, and this is rank {} of {}: with sampler={:?} only that rank's \
             state knows its rest of epoch {}. Load the states of all {ranks} ranks, {{\"ranks\": [state, …]}}, or \
             load none and begin with set_epoch({})",
            self.settings.rank,
            self.settings.world_size,
            self.settings.sampler.name(),
            header.epoch,
            header.epoch.saturating_add(1)
        ))
    }

    /// Position and order of this rank where another number of ranks left off.
    fn dealt_anew(&self, states: &[Checkpoint], blind: bool, whole: bool) -> Result<Taken> {
        let header = &states[0].header;
        let (one, ranks): (u32, u32) = (number(header, "rank")?, number(header, "world_size")?);
        let s = &self.settings;
        let given = s.sampler.given();
        let begun = header.part.is_some() || states.iter().any(|state| state.header.delivered > 0);
        if !begun && (given.is_none() || states.iter().all(|state| state.order.is_none())) {
            let some = !whole && !blind && !s.exchange && header.scored;
            let note = some.then(|| {
                format!(
                    "the state is of rank {one} of {ranks} and lacks the other ranks' importances (the states of \
                     all, {{\"ranks\": [state, …]}}, have it)"
                )
            });
            return Ok(Taken { state: beginning(header, header.epoch), note });
        }
        if s.sampler.buffer().is_some() {
            let note = format!(
                "sampler={:?} depends on the caches of {ranks} ranks, so {} ranks cannot continue it: the rest of \
                 epoch {} is skipped, and epoch {} comes next",
                s.sampler.name(),
                s.world_size,
                header.epoch,
                header.epoch.saturating_add(1)
            );
            return Ok(Taken { state: beginning(header, header.epoch.saturating_add(1)), note: Some(note) });
        }
        if given.is_some_and(|given| given.batches) {
            return Err(Error::settings(format!(
                "the state is of {ranks} ranks with a batch sampler each, and {} ranks cannot share those batches in \
                 equal steps: resume with {ranks} ranks, or begin with set_epoch({})",
                s.world_size,
                header.epoch.saturating_add(1)
            )));
        }
        // Ranks that exchange scores draw from a table that every state holds. What their orders have left would not do:
        // where halved last batches differ in length, it is not in the order of the list that legs tell of.
        let drawn_again = blind || s.exchange;
        if !drawn_again && !whole {
            return Err(self.needs_all(header, one, ranks));
        }
        self.shared_out(states, drawn_again, (one, ranks))
    }

    /// What is left of the states' epoch, dealt to this run's ranks: this one's part of it.
    fn shared_out(&self, states: &[Checkpoint], drawn_again: bool, (one, ranks): (u32, u32)) -> Result<Taken> {
        let (header, s) = (&states[0].header, &self.settings);
        let given = s.sampler.given();
        let batch_size: usize = number(header, "batch_size")?;
        let rest = match (drawn_again, given) {
            (true, _) => None,
            (false, Some(_)) if header.part.is_none() => Some(rest_of(states, |state| {
                let ends = Given::ends(state.header.planned, batch_size, s.drop_last);
                Ok(state
                    .header
                    .delivered
                    .checked_sub(1)
                    .map_or(0, |last| ends.get(last).copied().unwrap_or(usize::MAX)))
            })?),
            (false, _) => Some(rest_of(states, |state| {
                let rank = number(&state.header, "rank")?;
                Ok(place(&state.header, s.drop_last, batch_size, (rank, ranks))?.1)
            })?),
        };
        let part = match (&rest, given) {
            (Some(rest), Some(_)) => Part::whole(rest.ids.len()),
            _ => {
                let batches = place(header, s.drop_last, batch_size, (one, ranks))?.0;
                let before = header.part.clone().unwrap_or_else(|| Part::whole(header.samples));
                before.after(Leg { ranks, batch_size, batches })
            }
        };
        let dealt = part.dealt(s.batch_size, s.drop_last, s.rank, s.world_size)?;
        let left = part.left(s.drop_last)?;
        if rest.as_ref().is_some_and(|rest| rest.ids.len() != left) {
            return Err(Error::settings("the states' orders do not match their positions: they are damaged"));
        }
        let out = if s.drop_last { 0 } else { left - dealt.dealt() };
        let note = (out > 0).then(|| {
            format!(
                "{left} samples of epoch {} are left, and {} ranks cannot share them in batches of {} with equal \
                 steps: {out} of them are skipped",
                header.epoch, s.world_size, s.batch_size
            )
        });
        if !dealt.any() {
            return Ok(Taken { state: beginning(header, header.epoch.saturating_add(1)), note });
        }
        let order = rest.map(|rest| of_rank(&rest, s.rank, s.world_size));
        let planned = order.as_ref().map_or(0, |order| order.ids.len());
        let header = Header { delivered: dealt.first(), part: Some(part), planned, ..header.clone() };
        Ok(Taken { state: Checkpoint { header, scores: None, order, buffer: Vec::new() }, note })
    }

    /// The same with what all of the states know.
    fn put_together(&self, taken: Taken, states: &[Checkpoint]) -> Result<Taken> {
        let Taken { mut state, note } = taken;
        state.scores = beliefs(states);
        let mut measured = states.iter().filter_map(|state| state.header.measured.clone());
        let first = measured.next();
        if let Some(other) = measured.find(|other| Some(other) != first.as_ref()) {
            return Err(Error::settings(format!(
                "the states hold scores by {} and by {other}: they are from different runs",
                first.unwrap_or_default()
            )));
        }
        let header = &mut state.header;
        header.scored = state.scores.is_some();
        header.measured = first;
        header.step = states.iter().map(|state| state.header.step).max().unwrap_or(0);
        header.weights = states.iter().filter_map(|state| state.header.weights).max();
        let mine = |of: &&Checkpoint| {
            number::<u32>(&of.header, "rank").is_ok_and(|rank| rank % self.settings.world_size == self.settings.rank)
        };
        header.tuned = Tuned {
            pace: states.iter().find(mine).unwrap_or(&states[0]).header.tuned.pace,
            budget: budget(states, self.settings.world_size, self.settings.exchange),
            // A stream begins anew.
            blocks: None,
        };
        if self.settings.exchange {
            // News are given once: each rank's to one of the new ones. What caches had is the same in all states.
            let samples = state.header.samples;
            let read =
                |of: &Checkpoint| super::exchange::of_state(&of.buffer, samples).map(|(news, held, _)| (news, held));
            let held = read(&states[0])?.1;
            let mut news = Vec::new();
            for of in states.iter().filter(mine) {
                news.extend(read(of)?.0);
            }
            state.buffer = super::exchange::to_state(&news, &held);
        }
        if self.settings.sampler.buffer().is_some() {
            state.buffer.push(EMPTY_BUFFER);
        }
        (state.header.buffer, state.header.sizes) = (state.buffer.len(), 0);
        Ok(Taken { state, note })
    }

    /// Order and cut of a restored epoch; no order where it is drawn as any epoch's.
    pub(super) fn restored_plan(&self, state: &Checkpoint) -> Result<(Option<Order>, Cut)> {
        let cut = self.restored_cut(state)?;
        let Some(part) = state.header.part.as_ref().filter(|_| state.order.is_none()) else {
            return Ok((state.order.clone(), cut));
        };
        let s = &self.settings;
        let first = part.legs.first().map_or((s.world_size, s.batch_size), |leg| (leg.ranks, leg.batch_size));
        let all = self.feed.cache.draw_of_all(state.header.epoch, first)?;
        let left = part.places(s.drop_last)?;
        let at = |place: &u32| *place as usize;
        let rest = Order {
            ids: left.iter().filter_map(|place| all.ids.get(at(place)).copied()).collect(),
            weights: left.iter().filter_map(|place| all.weights.get(at(place)).copied()).collect(),
        };
        Ok((Some(of_rank(&rest, s.rank, s.world_size)), cut))
    }
}

/// A state that stands before the first batch of `epoch`.
fn beginning(header: &Header, epoch: u64) -> Checkpoint {
    let header = Header { epoch, delivered: 0, part: None, planned: 0, ..header.clone() };
    Checkpoint { header, scores: None, order: None, buffer: Vec::new() }
}

/// Where a rank stood: batches that its leg had delivered, and draws of its order before that.
fn place(header: &Header, drop_last: bool, batch_size: usize, (rank, ranks): (u32, u32)) -> Result<(usize, usize)> {
    let part = header.part.clone().unwrap_or_else(|| Part::whole(header.samples));
    let dealt = part.dealt(batch_size, drop_last, rank, ranks)?;
    let damaged = || Error::settings(format!("the state names batch {} of an epoch without it", header.delivered));
    let batches = header.delivered.checked_sub(dealt.first()).ok_or_else(damaged)?;
    let ends = dealt.ends();
    let before = header.delivered.checked_sub(1).map_or(Some(0), |last| ends.get(last).copied()).ok_or_else(damaged)?;
    Ok((batches, before))
}

/// What the states' orders have left, taken from them in turn.
fn rest_of(states: &[Checkpoint], before: impl Fn(&Checkpoint) -> Result<usize>) -> Result<Order> {
    let damaged = || Error::settings("a rank's state has no order of its epoch: load states saved at the same step");
    let mut rests = Vec::with_capacity(states.len());
    for state in states {
        let order = state.order.as_ref().ok_or_else(damaged)?;
        let from = before(state)?;
        let ids = order.ids.get(from..).ok_or_else(damaged)?;
        let weights = order.weights.get(from..).ok_or_else(damaged)?;
        rests.push((ids, weights));
    }
    Ok(Order {
        ids: in_turn(&rests.iter().map(|rest| rest.0).collect::<Vec<_>>()),
        weights: in_turn(&rests.iter().map(|rest| rest.1).collect::<Vec<_>>()),
    })
}

/// The bytes that all ranks of before read of a budget, in equal parts. Ranks that exchange scores (`shared`) have one
/// account of what was read before the epoch.
fn budget(states: &[Checkpoint], ranks: u32, shared: bool) -> Option<[u64; 4]> {
    let all: Vec<[u64; 4]> = states.iter().filter_map(|state| state.header.tuned.budget).collect();
    let part = |at: usize| all.iter().fold(0u64, |sum, of| sum.saturating_add(of[at])) / u64::from(ranks.max(1));
    let first = all.first()?;
    Some(std::array::from_fn(|at| if shared && at < 2 { first[at] } else { part(at) }))
}

/// What `rank` of `ranks` holds of `rest`. Draws that no step of all ranks has room for are among it, behind its last
/// batch: they are dealt again when the number of ranks changes once more.
fn of_rank(rest: &Order, rank: u32, ranks: u32) -> Order {
    let part = || (rank as usize..rest.ids.len()).step_by(ranks as usize);
    Order { ids: part().map(|at| rest.ids[at]).collect(), weights: part().map(|at| rest.weights[at]).collect() }
}

/// A state of another rank of as many, of an order that this one can draw.
fn same_place(states: &[Checkpoint]) -> Taken {
    let header = Header { planned: 0, ..states[0].header.clone() };
    Taken { state: Checkpoint { header, scores: None, order: None, buffer: Vec::new() }, note: None }
}

/// Whether states are of one run and moment. Where ranks bring their own orders, their steps may differ.
fn agree(states: &[Checkpoint], own_orders: bool) -> Result<()> {
    let told = |state: &Checkpoint| {
        let h = &state.header;
        let mut all: BTreeMap<String, String> = h.identity.clone();
        all.remove("rank");
        all.insert("epoch".into(), h.epoch.to_string());
        all.insert("samples of it".into(), h.samples.to_string());
        if !own_orders {
            all.insert("batches of it delivered".into(), h.delivered.to_string());
        }
        all.insert("its beginning".into(), format!("{:?}", h.part));
        all
    };
    let first = told(&states[0]);
    for (rank, state) in states.iter().enumerate() {
        let of = told(state);
        if let Some((name, value)) = of.iter().find(|(name, value)| first.get(*name) != Some(*value)) {
            return Err(Error::settings(format!(
                "the states are not from the same step of one run: {name} is {} on rank 0 and {value} on rank \
                 {rank}; save them after the same step on all ranks",
                first.get(name).map_or("none", String::as_str)
            )));
        }
    }
    Ok(())
}

/// What is known best of every sample.
fn beliefs(states: &[Checkpoint]) -> Option<(Vec<f32>, Vec<u32>)> {
    let mut known = states.iter().filter_map(|state| state.scores.as_ref());
    let mut best = known.next()?.clone();
    for (beliefs, stamps) in known {
        let others = beliefs.iter().copied().zip(stamps.iter().copied());
        for ((belief, stamp), other) in best.0.iter_mut().zip(best.1.iter_mut()).zip(others) {
            (*belief, *stamp) = ScoreTable::better((*belief, *stamp), other);
        }
    }
    Some(best)
}
