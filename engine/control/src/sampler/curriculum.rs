//! Curriculum learning: from the easy samples to all of them.
//!
//! The pacing is Hacohen and Weinshall's (ICML'19), which SiloD (EuroSys'23, §7.4) takes to show what a cache is worth
//! to a job whose accesses are not uniform: batches are drawn from the easiest part, which grows by a factor from time
//! to time. Departures: what is easy is told by the run's own scores, renewed as it learns, not by a teacher; the part
//! grows from epoch to epoch, not from step to step; and the first epoch is a pass over all samples, which scores them.

use serde::{Deserialize, Serialize};

use super::percentile::percentiles;
use super::{Order, Outlook, Sampler, tilt};
use crate::error::{Error, Result};
use crate::random::{Purpose, generator, shuffle_large};
use crate::types::SampleId;

/// In epoch e ≥ 1: shuffled passes over the easiest min(start × growth^(e − 1), 1) of the rank's samples, until the
/// epoch is full. Biased towards easy samples on purpose until that part is everything.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Curriculum {
    /// The part of the samples that epoch 1 trains on, in (0, 1]. Default 0.25.
    pub start: f64,
    /// What it grows by each epoch, at least 1. Default 1.5: with `start` 0.25 all samples come from epoch 5 on.
    pub growth: f64,
}

impl Default for Curriculum {
    fn default() -> Self {
        Self { start: 0.25, growth: 1.5 }
    }
}

impl Curriculum {
    /// The part of the samples that `epoch` trains on.
    fn part(&self, epoch: u64) -> f64 {
        let grown = i32::try_from(epoch.saturating_sub(1)).map_or(f64::INFINITY, |e| self.growth.powi(e));
        if epoch == 0 { 1.0 } else { (self.start * grown).min(1.0) }
    }
}

impl Sampler for Curriculum {
    fn name(&self) -> &'static str {
        "curriculum"
    }
    fn check(&self) -> Result<()> {
        if !(self.start > 0.0 && self.start <= 1.0) {
            return Err(Error::settings(format!(
                "curriculum: start is {}: give the part of the samples to begin with, above 0 and at most 1",
                self.start
            )));
        }
        if !(1.0..=1e6).contains(&self.growth) {
            return Err(Error::settings(format!(
                "curriculum: growth is {}: give what the part grows by each epoch, 1 to 1000000",
                self.growth
            )));
        }
        Ok(())
    }
    fn biased(&self) -> bool {
        true
    }
    fn draw(&self, outlook: &Outlook<'_>) -> Result<Order> {
        let draws = outlook.owned.len();
        let easiest = (self.part(outlook.epoch) * draws as f64).ceil() as usize;
        let standings = percentiles(outlook).filter(|_| easiest < draws);
        let Some(standings) = standings else {
            return Ok(Order { weights: vec![1.0; draws], ..tilt::first_pass(outlook) });
        };
        // Percentiles are at least 0, and such floats are ordered as their bits are. Of equals the smaller ids.
        let mut packed: Vec<u64> =
            (0..).zip(standings).map(|(index, share)| u64::from(share.to_bits()) << 32 | index).collect();
        let last = easiest.clamp(1, draws) - 1;
        packed.select_nth_unstable(last);
        packed.truncate(last + 1);
        packed.sort_unstable();
        let mut walked: Vec<SampleId> =
            packed.into_iter().map(|packed| outlook.owned[packed as u32 as usize]).collect();
        let rng = &mut generator(outlook.seed, outlook.epoch, outlook.rank, Purpose::Order);
        let mut ids = Vec::with_capacity(draws);
        while ids.len() < draws {
            walked = shuffle_large(walked, rng);
            ids.extend(walked.iter().take(draws - ids.len()));
        }
        Ok(Order { weights: vec![1.0; draws], ids })
    }
}
