//! What is read ahead: which samples were asked for, which have come, and how many bytes all that takes. Without locks;
//! `read_ahead.rs` puts one around it.

use super::look::{Asked, Chosen, Found, Landed, Look, Taken, Vain};
use crate::control::{Ahead, Room};
use crate::types::SampleId;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// The first call of a pass asks for this share of the limit at most, and each after it for as much as all before.
const FIRST_SHARE: u64 = 64;
/// So many samples are a beginning too, however few bytes they have.
const BEGINNING: usize = 256;
/// One request brings this share at most of what was asked for before: a batch waits for all that bring its samples.
const REQUEST_SHARE: u64 = 256;

/// The longest request for samples that no range is planned for.
const REQUEST_BYTES_MAX: u64 = 512 << 10;
/// After a planned call another is planned when this share of the limit is free.
const PLAN_SHARE: u64 = 8;

/// Of a link that is short less than this share of the limit has come before it is needed.
const LANDED_SHARE: u64 = 4;

/// See the module's head.
pub(super) struct Window {
    limit: u64,
    /// The pass that is read for; 0: none.
    pass: u64,
    /// Passes that were read for one behind the other are one stretch: what was asked for is of use to the next.
    stretch: u64,
    /// Everything that is wanted before this place of its order was asked for, if there was room.
    next: usize,
    whole: bool,
    /// Batches that were decided end here at the latest.
    reached: usize,
    /// Somebody looks, or has just begun to ask for what was found.
    looking: bool,
    /// The next sample takes more than there is room for, or somebody has it in hand.
    blocked: bool,
    /// Times that this may have ended.
    changes: u64,
    /// What little is missing at the start of a pass that was foreseen is asked for at once.
    fresh: bool,
    /// The places of the next pass begin here; of a stream, as far as could be told when it was looked at.
    beyond: Option<usize>,
    /// Batches wait until it is known what is asked for first: else they would ask for it themselves.
    starting: bool,
    /// The first batch's samples were asked for.
    first_asked: bool,
    /// The last call was planned by ranges.
    by_ranges: bool,
    /// It is not known yet what the next pass wants: what batches take stays until then.
    untold: bool,
    /// The order of the next pass was drawn late before.
    draws: bool,
    kept: Vec<SampleId>,
    asked: HashMap<SampleId, Asked>,
    /// Wanted by the next pass, and fetched for this one by a batch when that was found.
    due: HashSet<SampleId>,
    /// Of all that was asked for or has come, and of what batches have taken and not used yet.
    bytes: u64,
    /// Of these, those that have come and that no batch has taken.
    landed_bytes: u64,
    /// Asked for in this pass.
    asked_bytes: u64,
    /// Nothing more is to be asked for, until further notice.
    paused: bool,
    closed: bool,
}

impl Window {
    /// At most `limit` bytes.
    pub(super) fn new(limit: u64) -> Self {
        Self {
            limit,
            pass: 0,
            stretch: 0,
            next: 0,
            whole: true,
            reached: 0,
            looking: false,
            blocked: false,
            changes: 0,
            fresh: false,
            beyond: None,
            starting: false,
            first_asked: false,
            by_ranges: false,
            untold: false,
            draws: false,
            kept: Vec::new(),
            asked: HashMap::new(),
            due: HashSet::new(),
            bytes: 0,
            landed_bytes: 0,
            asked_bytes: 0,
            paused: false,
            closed: false,
        }
    }

    /// Another pass begins, or with 0 none. What was read for the last one is let go of. If this one was `foreseen`, at
    /// these places of the last one's, what was read for it stays.
    pub(super) fn begin(&mut self, pass: u64, foreseen: Option<Range<usize>>) -> Vain {
        let mut vain = Vain::default();
        self.asked_bytes = 0;
        let all: Vec<SampleId> = self.asked.keys().copied().collect();
        for id in all {
            // The first of its places that is the new pass's.
            let place_of = |asked: &Asked| {
                let places = foreseen.as_ref()?;
                let place = [asked.place, asked.again].into_iter().flatten().find(|place| places.contains(place))?;
                Some(place - places.start)
            };
            match self.asked.get_mut(&id).and_then(|asked| Some((place_of(asked)?, asked))) {
                Some((place, asked)) => {
                    (asked.place, asked.again) = (Some(place), None);
                    self.asked_bytes += asked.bytes;
                }
                None => self.let_go(id, &mut vain),
            }
        }
        self.due.clear();
        self.stretch += u64::from(foreseen.is_none());
        (self.pass, self.next, self.whole) = (pass, 0, pass == 0);
        (self.reached, self.blocked, self.fresh, self.beyond) = (0, false, foreseen.is_some(), None);
        (self.starting, self.first_asked, self.by_ranges) = (pass != 0 && foreseen.is_none(), false, false);
        self.untold = pass != 0 && self.draws;
        self.kept.clear();
        vain
    }

    pub(super) fn close(&mut self) {
        self.closed = true;
    }
    /// No more is asked for from now on, or it is again.
    pub(super) fn pause(&mut self, paused: bool) {
        self.paused = paused;
        if paused {
            self.told();
        }
    }
    /// Whether it is paused, and nothing is here or on its way.
    pub(super) fn is_idle(&self) -> bool {
        self.paused && self.bytes == 0 && self.asked.is_empty()
    }
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }
    pub(super) fn start(&mut self) {
        self.starting = false;
    }
    /// Batches wait until the pass is planned, and the `first` until it is asked for.
    pub(super) fn awaits(&self, first: bool) -> bool {
        self.is_starting() && !(first && self.first_asked)
    }
    /// True if a pass has begun and nothing of it was planned yet.
    pub(super) fn is_starting(&self) -> bool {
        self.starting && !self.paused && !self.closed
    }
    pub(super) fn stretch(&self) -> u64 {
        self.stretch
    }
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
    pub(super) fn limit(&self) -> u64 {
        self.limit
    }
    /// Of what has come and no batch has taken.
    #[cfg(test)]
    pub(super) fn landed_bytes(&self) -> u64 {
        self.landed_bytes
    }

    /// The most bytes from now on. What is here above it stays until it is used.
    pub(super) fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
        self.unblock();
    }
    /// Whether who waits now for what is under way would not, had that been asked for sooner: much has come of what is
    /// needed later, there is more to ask for, and no room to.
    pub(super) fn is_short(&self) -> bool {
        let more = !self.whole && !self.paused && !self.closed;
        more && !self.looking && self.landed_bytes >= self.limit / LANDED_SHARE
    }

    /// It is time to look further when so much is free.
    fn enough_bytes(&self) -> u64 {
        let most_bytes = self.limit / if self.by_ranges { PLAN_SHARE } else { 2 };
        self.asked_bytes.clamp(self.limit / FIRST_SHARE, most_bytes).max(1)
    }

    /// Whether it is time to look further, and where. Who gets an answer is alone until [`Self::cede`].
    pub(super) fn look(&mut self) -> Option<Look> {
        let enough_bytes = self.enough_bytes();
        let free_bytes = self.limit.saturating_sub(self.bytes);
        let time = self.fresh || free_bytes >= enough_bytes;
        let nothing = !time && self.due.is_empty();
        if self.closed || self.paused || self.whole || self.looking || self.blocked || nothing {
            return None;
        }
        let enough_bytes = if time { enough_bytes } else { 0 };
        (self.looking, self.fresh) = (true, false);
        let beyond = |asked: &&Asked| asked.place.is_some_and(|place| place >= self.next);
        let beyond_bytes: u64 = self.asked.values().filter(beyond).map(|asked| asked.bytes).sum();
        // All that is wanted within this, from the next place on, has room.
        let room = Room { free_bytes: free_bytes + beyond_bytes, sample_bytes_max: self.limit };
        let request_bytes = (self.asked_bytes / REQUEST_SHARE).min(REQUEST_BYTES_MAX);
        let fresh = self.asked_bytes == 0;
        let &mut Self { pass, stretch, next: from, changes, starting, .. } = self;
        Some(Look { pass, stretch, from, changes, room, enough_bytes, request_bytes, fresh, starting })
    }

    /// What was found by `look`. Those who are needed first are asked for from now on; of the others those may be that
    /// come with them.
    pub(super) fn looked(&mut self, look: &Look, found: Option<Ahead>, bytes: &dyn Fn(SampleId) -> u64) -> Found {
        let mut seen = Found::default();
        if self.pass != look.pass || self.closed {
            return seen;
        }
        let Some(Ahead { wants, busy, next, beyond, whole, stream, undrawn }) = found else {
            self.whole = true;
            self.told();
            return seen;
        };
        let (mut urgent_bytes, mut fetched, mut later, before) = (0, HashSet::new(), Vec::new(), self.next);
        (self.next, self.beyond) = (next, beyond);
        let patient = stream && self.begins_with(beyond);
        for want in wants {
            // Its batch was decided meanwhile and fetches it now.
            if want.place < self.reached {
                fetched.insert(want.id);
            }
            if fetched.contains(&want.id) {
                continue;
            }
            match self.asked.get_mut(&want.id) {
                Some(asked) => asked.want(want.place, beyond),
                None => {
                    let (bytes, due) = (bytes(want.id), self.due.remove(&want.id));
                    let enough = urgent_bytes >= look.enough_bytes && !due;
                    if enough || self.bytes + bytes > self.limit {
                        self.next = self.next.min(want.place);
                        later.push(want);
                    } else {
                        urgent_bytes += bytes;
                        seen.push(want);
                        self.ask(want.id, want.place, bytes);
                    }
                }
            }
        }
        seen.urgent = seen.ids.len();
        seen.early = patient.then_some(seen.places.partition_point(|&place| Some(place) < beyond));
        // What is due may lie behind what is not urgent.
        later.into_iter().for_each(|want| seen.push(want));
        for want in busy {
            match self.asked.get_mut(&want.id) {
                Some(asked) => asked.want(want.place, beyond),
                None => {
                    self.due.insert(want.id);
                    self.next = self.next.min(want.place);
                }
            }
        }
        self.whole = whole && self.next == next;
        // If all of this pass was seen there is room for what stays.
        (self.untold, self.draws) = (undrawn, self.draws || undrawn);
        if !undrawn {
            self.told();
        }
        let waits = self.bytes > 0 || !self.due.is_empty();
        // Unless what it waits for has come while somebody looked.
        let same = self.changes == look.changes;
        self.blocked = !self.whole && seen.urgent == 0 && self.next == before && waits && same;
        seen
    }

    /// The most bytes of a call that asks for what was `found`, its urgent samples included.
    pub(super) fn free_for(&self, found: &Found, bytes: &dyn Fn(SampleId) -> u64) -> u64 {
        let urgent = found.ids.get(..found.urgent).unwrap_or_default();
        (self.limit + urgent.iter().map(|&id| bytes(id)).sum::<u64>()).saturating_sub(self.bytes)
    }

    /// Asks for those of `found` that are `chosen`. All who are to be asked for, in the order of need, and
    /// what that takes beside them until they have come.
    pub(super) fn asked(
        &mut self,
        look: &Look,
        found: Found,
        chosen: Chosen,
        bytes: &dyn Fn(SampleId) -> u64,
    ) -> (Vec<SampleId>, u64) {
        // After a first batch that is asked for by itself the next look says what comes by ranges.
        let goes_on = matches!(&chosen, Chosen::Planned(plan) if !plan.by_ranges);
        self.starting &= self.pass != look.pass || goes_on;
        self.first_asked |= self.pass == look.pass && goes_on;
        if self.stretch != look.stretch || self.closed {
            // Nobody asks the source for them now.
            found.ids.iter().take(found.urgent).for_each(|&id| self.miss(id));
            return (Vec::new(), 0);
        }
        let mut ids = found.ids.get(..found.urgent).unwrap_or_default().to_vec();
        // If not, another pass has begun that looks for itself, and the places are those of the one before.
        let same = self.pass == look.pass;
        let (along, beside_bytes) = match chosen {
            Chosen::Along(_) if !same => return (ids, 0),
            Chosen::Along(along) => {
                self.by_ranges = false;
                (along, 0)
            }
            Chosen::Nothing => {
                found.ids.iter().take(found.urgent).for_each(|&id| self.unask(id, bytes(id)));
                self.whole |= same;
                return (Vec::new(), 0);
            }
            Chosen::Planned(plan) => {
                let left = (0..found.urgent).filter(|k| plan.samples.binary_search(k).is_err());
                for (&id, &place) in left.filter_map(|k| found.ids.get(k).zip(found.places.get(k))) {
                    self.unask(id, bytes(id));
                    (self.next, self.whole) = (self.next.min(place), self.whole && !same);
                }
                ids.retain(|id| self.asked.contains_key(id));
                if !same {
                    return (ids, 0);
                }
                self.by_ranges = plan.by_ranges;
                self.bytes += plan.beside_bytes;
                (plan.samples, plan.beside_bytes)
            }
        };
        for k in along {
            let (Some(&id), Some(&place)) = (found.ids.get(k), found.places.get(k)) else { continue };
            let bytes = bytes(id);
            let asked = self.asked.contains_key(&id) || place < self.reached || self.bytes + bytes > self.limit;
            if k >= found.urgent && !asked {
                self.ask(id, place, bytes);
                ids.push(id);
            }
        }
        self.starting &= !self.whole && self.limit.saturating_sub(self.bytes) >= self.enough_bytes();
        (ids, beside_bytes)
    }

    /// Who looked lets another look. It has been answered for most of what it asked for: what is needed first comes
    /// first.
    pub(super) fn cede(&mut self) {
        self.looking = false;
    }

    /// Sample `id` was to be asked for, and is not now.
    fn unask(&mut self, id: SampleId, bytes: u64) {
        self.miss(id);
        self.asked_bytes = self.asked_bytes.saturating_sub(bytes);
    }

    fn ask(&mut self, id: SampleId, place: usize, bytes: u64) {
        self.asked.insert(id, Asked { place: Some(place), again: None, bytes, landed: None, used: false });
        (self.bytes, self.asked_bytes) = (self.bytes + bytes, self.asked_bytes + bytes);
    }

    /// Sample `id` has come. False if nobody needs it any more: at the end a batch may still have waited for it, which
    /// was stopped meanwhile, and nobody would let go of it.
    pub(super) fn land(&mut self, id: SampleId, landed: Landed) -> bool {
        let closed = self.closed;
        let Some(asked) = self.asked.get_mut(&id).filter(|asked| asked.landed.is_none()) else { return false };
        let needed = asked.place.is_some() && !closed;
        if needed {
            // What it takes may not have been known when it was asked for.
            let bytes = landed.len() as u64;
            self.bytes = (self.bytes + bytes).saturating_sub(asked.bytes);
            self.landed_bytes += bytes;
            asked.bytes = bytes;
            asked.landed = Some(landed);
        } else {
            self.miss(id);
        }
        needed
    }

    /// Sample `id` will not come, unless it has.
    pub(super) fn miss(&mut self, id: SampleId) {
        if self.is_under_way(id)
            && let Some(asked) = self.asked.remove(&id)
        {
            self.give_back(asked.bytes);
        }
    }

    /// A batch of any pass needs sample `id`.
    pub(super) fn take(&mut self, id: SampleId) -> Taken {
        match self.asked.entry(id) {
            Entry::Vacant(_) => Taken::Nothing,
            Entry::Occupied(mut entry) => {
                let asked = entry.get_mut();
                let Some(landed) = asked.landed.clone() else {
                    asked.place.get_or_insert(0);
                    return Taken::UnderWay;
                };
                let (used, again) = (asked.used, asked.again.take());
                let stays = again.is_some() || (self.untold && !self.paused);
                if stays {
                    (asked.place, asked.used) = (again, true);
                    self.kept.extend(again.is_none().then_some(id));
                } else {
                    entry.remove();
                    self.landed_bytes = self.landed_bytes.saturating_sub(landed.len() as u64);
                }
                Taken::Landed { landed, stays, used }
            }
        }
    }

    /// Whether sample `id` was asked for and has not come.
    pub(super) fn is_under_way(&self, id: SampleId) -> bool {
        self.asked.get(&id).is_some_and(|asked| asked.landed.is_none())
    }

    /// So many bytes that batches have taken are used.
    pub(super) fn give_back(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
        self.unblock();
    }

    /// Samples `ids` did not decode: what is here of them is no good to the next pass either.
    pub(super) fn doubt(&mut self, ids: &[SampleId]) {
        for &id in ids {
            if self.asked.get(&id).is_some_and(|asked| asked.used) {
                self.let_go(id, &mut Vain::default());
            }
        }
    }

    /// A batch has ended, and nobody has its samples in hand any more. Whether some of them are due.
    pub(super) fn released(&mut self) -> bool {
        self.unblock();
        !self.due.is_empty()
    }

    /// A batch of pass `pass` was decided that ends at place `reach` of the order. Its samples `ids` are cached: what
    /// was read of them for it is let go of.
    pub(super) fn settle(&mut self, pass: u64, reach: usize, ids: impl Iterator<Item = SampleId>) -> Vain {
        let mut vain = Vain::default();
        if self.pass != pass {
            return vain;
        }
        self.reached = self.reached.max(reach);
        self.unblock();
        // The last of its pass: who is cached when the next begins is settled, and who gave way since it was looked at.
        if let Some(beyond) = self.beyond.filter(|&beyond| beyond <= reach) {
            (self.next, self.whole, self.fresh) = (self.next.min(beyond), false, true);
        }
        for id in ids {
            if self.asked.get(&id).and_then(|asked| asked.place).is_some_and(|place| place < reach) {
                self.let_go(id, &mut vain);
            }
        }
        vain
    }

    /// True if the first samples of the pass from place `beyond` on are here or on their way.
    fn begins_with(&self, beyond: Option<usize>) -> bool {
        let later = || self.asked.values().filter(|asked| beyond.is_some() && asked.place >= beyond);
        later().count() >= BEGINNING || later().map(|asked| asked.bytes).sum::<u64>() >= self.limit / FIRST_SHARE
    }

    /// Lets go of kept samples that are not wanted again.
    fn told(&mut self) {
        self.untold = false;
        for id in std::mem::take(&mut self.kept) {
            if self.asked.get(&id).is_some_and(|asked| asked.place.is_none()) {
                self.let_go(id, &mut Vain::default());
            }
        }
    }

    fn unblock(&mut self) {
        self.blocked = false;
        self.changes += 1;
    }

    /// Nobody needs sample `id` any more.
    fn let_go(&mut self, id: SampleId, vain: &mut Vain) {
        let Entry::Occupied(mut asked) = self.asked.entry(id) else { return };
        if asked.get().landed.is_none() {
            (asked.get_mut().place, asked.get_mut().again) = (None, None);
            return;
        }
        let asked = asked.remove();
        self.landed_bytes = self.landed_bytes.saturating_sub(asked.bytes);
        if !asked.used {
            vain.samples += 1;
            vain.bytes += asked.bytes;
        }
        self.give_back(asked.bytes);
    }
}
