//! The buffer as numbers of 32 bits, for a run's state.

use super::{Buffer, OUT};
use crate::error::{Error, Result};
use crate::index::Weight;
use crate::types::SampleId;

/// A resident that weighs as much as the average one.
const AVERAGE: u32 = OUT - 1;
/// Among the first word's bits: the buffer is full; the power of two of its weights follows, as it always does now.
const FULL: u32 = 1;
const SCALED: u32 = 2;

/// Numbers, written one after the other.
#[derive(Default)]
pub(in crate::control) struct Words(pub(in crate::control) Vec<u32>);

impl Words {
    pub(in crate::control) fn put(&mut self, value: u32) {
        self.0.push(value);
    }
    pub(in crate::control) fn long(&mut self, value: u64) {
        self.0.extend([value as u32, (value >> 32) as u32]);
    }
}

/// Numbers, read one after the other. Nothing in them is trusted.
pub(in crate::control) struct Reader<'a>(&'a [u32]);

pub(in crate::control) fn damaged(what: &str) -> Error {
    Error::settings(format!("the state's buffer is damaged: {what}"))
}

impl<'a> Reader<'a> {
    pub(in crate::control) fn new(words: &'a [u32]) -> Self {
        Self(words)
    }
    pub(in crate::control) fn get(&mut self) -> Result<u32> {
        let (&first, rest) = self.0.split_first().ok_or_else(|| damaged("it is too short"))?;
        self.0 = rest;
        Ok(first)
    }
    pub(in crate::control) fn long(&mut self) -> Result<u64> {
        Ok(u64::from(self.get()?) | u64::from(self.get()?) << 32)
    }
    /// A number of things that take at least a word each.
    pub(in crate::control) fn count(&mut self) -> Result<usize> {
        let count = self.get()? as usize;
        if count <= self.0.len() { Ok(count) } else { Err(damaged("a list is longer than the whole state")) }
    }
    /// A sample of `samples`.
    pub(in crate::control) fn id(&mut self, samples: usize) -> Result<SampleId> {
        let id = self.get()?;
        if (id as usize) < samples { Ok(id) } else { Err(damaged(&format!("it names sample {id} of {samples}"))) }
    }
    pub(in crate::control) fn end(self) -> Result<()> {
        if self.0.is_empty() { Ok(()) } else { Err(damaged("it is too long")) }
    }
}

impl Buffer {
    /// Residents in the order of their arrival, what they weigh, what this pass over them has drawn, and how far draws by
    /// score are behind.
    pub(in crate::control) fn write(&self, words: &mut Words) {
        words.put(SCALED | if self.full { FULL } else { 0 });
        words.put(self.by_score.as_ref().map_or(0, |by_score| by_score.exponent) as u32);
        words.long(self.tail);
        let size = self.ring.len() as u64;
        let residents: Vec<(u32, SampleId)> = (self.head..self.tail)
            .map(|arrival| (arrival % size) as u32)
            .map(|place| (place, self.ring[place as usize]))
            .filter(|&(place, id)| self.place_of[id as usize] == place)
            .collect();
        words.put(residents.len() as u32);
        for (place, id) in residents {
            words.put(id);
            words.put(place);
            if let Some(by_score) = &self.by_score {
                words.put(match by_score.tree.weight(place as usize) {
                    Some(Weight::Of(weight)) => weight,
                    Some(Weight::Average) => AVERAGE,
                    None => OUT,
                });
            }
        }
        if let Some(deck) = &self.passes {
            let (order, undrawn) = deck.parts();
            words.put(undrawn as u32);
            words.put(order.len() as u32);
            words.0.extend(order);
        }
        let behind = self.by_score.as_ref().map_or(&[0][..], |by_score| by_score.spread.parts());
        words.put(behind.len() as u32);
        words.0.extend(behind);
    }

    /// Puts back what [`Buffer::write`] wrote, into a new buffer of the same setup. Answers the residents in the
    /// order of their arrival.
    pub(in crate::control) fn read(&mut self, words: &mut Reader<'_>) -> Result<Vec<SampleId>> {
        let (samples, size) = (self.place_of.len(), self.ring.len() as u64);
        let first = words.get()?;
        self.full = first & FULL != 0;
        // States without it have weights of the power that a new buffer begins with.
        let exponent = if first & SCALED != 0 { Some(words.get()? as i32) } else { None };
        if let (Some(by_score), Some(exponent)) = (&mut self.by_score, exponent) {
            by_score.exponent = exponent.clamp(-200, 200);
        }
        self.tail = words.long()?;
        self.head = self.tail;
        let count = words.count()?;
        let mut residents = Vec::with_capacity(count);
        for number in 0..count {
            let (id, place) = (words.id(samples)?, words.get()?);
            // How many arrivals ago the place was taken.
            let back = (self.tail % size + size - 1 - u64::from(place) % size) % size + 1;
            if u64::from(place) >= size || self.place(id).is_some() || back > self.tail {
                return Err(damaged(&format!("resident {number} is sample {id} at place {place}")));
            }
            self.head = self.head.min(self.tail - back);
            self.ring[place as usize] = id;
            self.place_of[id as usize] = place;
            if let Some(by_score) = &mut self.by_score {
                by_score.tree.set(
                    place as usize,
                    match words.get()? {
                        OUT => None,
                        AVERAGE => Some(Weight::Average),
                        weight => Some(Weight::Of(weight)),
                    },
                );
            }
            residents.push(id);
        }
        if let Some(deck) = &mut self.passes {
            let undrawn = words.get()? as usize;
            let order: Vec<u32> = (0..words.count()?).map(|_| words.get()).collect::<Result<_>>()?;
            let known =
                |&place: &u32| self.ring.get(place as usize).is_some_and(|&id| self.place_of[id as usize] == place);
            if !order.iter().all(known) || !deck.restore(order, undrawn) {
                return Err(damaged("the pass over it names places that are empty"));
            }
        }
        let behind: Vec<u32> = (0..words.count()?).map(|_| words.get()).collect::<Result<_>>()?;
        let fits = match &mut self.by_score {
            Some(by_score) => by_score.spread.restore(behind),
            None => behind.len() == 1,
        };
        if !fits {
            return Err(damaged("its draws are those of another cache's size"));
        }
        Ok(residents)
    }
}
