//! Samplers as plain values a user chooses and tunes.

use serde::{Deserialize, Serialize};

use super::buffer::{BufferOptions, Echo, Replay};
use super::tilt;
use super::{Auto, Block, Chosen, CostAware, Importance, Pads, Sampler, Uniform};
use super::{Curriculum, Given, Iis, InfoBatch, Ods, PadsAsCoded, Selective};
use crate::error::{Error, Result};
use crate::policy::{self, Entry, Needs};

/// The names [`SamplerSettings::from_name`] knows: all that can draw. [`Given`] is asked for by those who bring ids.
pub const NAMES: [&str; 13] = [
    "uniform",
    "pads",
    "importance",
    "cost-aware",
    "echo",
    "replay",
    "iis",
    "infobatch",
    "selective",
    "curriculum",
    "shade-as-coded",
    "ods",
    "auto",
];

/// A sampler and its options. As JSON: `{"name": "cost-aware", "kappa": 64.0}`; options left out keep their defaults.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "kebab-case")]
pub enum SamplerSettings {
    /// Every sample alike.
    Uniform(Uniform),
    /// SHADE's.
    Pads(Pads),
    /// Unbiased, by importance.
    Importance(Importance),
    /// Unbiased, by importance and what a fetch costs.
    CostAware(CostAware),
    /// New samples from a stream, and passes over what the cache holds.
    Echo(Echo),
    /// New samples from a stream, and what the cache holds by importance.
    Replay(Replay),
    /// iCACHE's.
    Iis(Iis),
    /// InfoBatch's.
    #[serde(rename = "infobatch")]
    InfoBatch(InfoBatch),
    /// Selective-Backprop's: by loss, biased.
    Selective(Selective),
    /// From easy to hard, biased.
    Curriculum(Curriculum),
    /// SHADE's as its public code has it, biased.
    #[serde(rename = "shade-as-coded")]
    PadsAsCoded(PadsAsCoded),
    /// Seneca's: what is cached comes first.
    Ods(Ods),
    /// The caller's own order.
    Given(Given),
    /// One of the others, chosen when the run begins. Whoever makes a run asks [`Auto::choose`] first.
    Auto(Auto),
}

impl Default for SamplerSettings {
    fn default() -> Self {
        Self::CostAware(CostAware::default())
    }
}

impl SamplerSettings {
    /// The sampler of that name with its default options.
    ///
    /// # Errors
    /// `Settings` if there is no such sampler.
    pub fn from_name(name: &str) -> Result<Self> {
        Ok(match name {
            "uniform" => Self::Uniform(Uniform::default()),
            "pads" => Self::Pads(Pads::default()),
            "importance" => Self::Importance(Importance::default()),
            "cost-aware" => Self::CostAware(CostAware::default()),
            "echo" => Self::Echo(Echo::default()),
            "replay" => Self::Replay(Replay::default()),
            "iis" => Self::Iis(Iis::default()),
            "infobatch" => Self::InfoBatch(InfoBatch::default()),
            "selective" => Self::Selective(Selective::default()),
            "curriculum" => Self::Curriculum(Curriculum::default()),
            "shade-as-coded" => Self::PadsAsCoded(PadsAsCoded::default()),
            "ods" => Self::Ods(Ods::default()),
            "auto" => Self::Auto(Auto::default()),
            _ => {
                return Err(Error::settings(format!(
                    "there is no sampler {name:?}: choose one of {}",
                    NAMES.join(", ")
                )));
            }
        })
    }
    /// The name users type.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Uniform(sampler) => sampler.name(),
            Self::Pads(sampler) => sampler.name(),
            Self::Importance(sampler) => sampler.name(),
            Self::CostAware(sampler) => sampler.name(),
            Self::Echo(sampler) => sampler.name(),
            Self::Replay(sampler) => sampler.name(),
            Self::Iis(sampler) => sampler.name(),
            Self::InfoBatch(sampler) => sampler.name(),
            Self::Selective(sampler) => sampler.name(),
            Self::Curriculum(sampler) => sampler.name(),
            Self::PadsAsCoded(sampler) => sampler.name(),
            Self::Ods(sampler) => sampler.name(),
            Self::Given(sampler) => sampler.name(),
            Self::Auto(_) => "auto",
        }
    }
    /// How a sampler that trains on the cache as a buffer runs; `None` for those that draw epochs.
    pub fn buffer(&self) -> Option<BufferOptions> {
        match self {
            Self::Echo(sampler) => Some(sampler.options()),
            Self::Replay(sampler) => Some(sampler.options()),
            _ => None,
        }
    }
    /// How the caller brings its own order; `None` for samplers that draw.
    pub fn given(&self) -> Option<Given> {
        if let Self::Given(sampler) = self { Some(*sampler) } else { None }
    }
    /// The same with another part of the rows that may be fetched, for those that [`Auto`] chooses.
    pub fn with_fetches(self, fetches: f64) -> Self {
        match self {
            Self::Replay(sampler) => Self::Replay(Replay { fresh: fetches, ..sampler }),
            Self::CostAware(sampler) => Self::CostAware(CostAware { fetches: Some(fetches as f32), ..sampler }),
            other => other,
        }
    }
    /// The same with blocks of so many neighbours, for buffer samplers.
    pub fn with_block(self, block: u32) -> Self {
        let block = Block::Of(block);
        match self {
            Self::Echo(sampler) => Self::Echo(Echo { block, ..sampler }),
            Self::Replay(sampler) => Self::Replay(Replay { block, ..sampler }),
            other => other,
        }
    }
    /// Whether draws depend on what is in the cache, so that ranks with caches of their own cannot draw one order.
    pub fn looks_at_residents(&self) -> bool {
        let of_epochs = matches!(self, Self::CostAware(_) | Self::Pads(_) | Self::PadsAsCoded(_) | Self::Ods(_));
        of_epochs || self.buffer().is_some() || matches!(self, Self::Auto(_))
    }
    /// The cache policy that suits it, where as many ranks draw: that of its name, but for several ranks to which every
    /// epoch is shared out anew. There a sample comes back after one epoch or ten, and that is known ahead (decision
    /// 40).
    pub fn default_policy(&self, ranks: u32) -> &'static Entry {
        let anew = matches!(self, Self::Uniform(Uniform { fixed_shares: false, in_order: false, .. }));
        let ahead = || policy::find("belady").ok().filter(|_| anew && ranks > 1);
        ahead().unwrap_or_else(|| policy::default_for(self.name()))
    }
    /// Whether a run with this sampler can tell a policy what it needs to know.
    ///
    /// # Errors
    /// `Settings` if the policy goes by orders that are not known yet, and for options out of range.
    pub fn check_policy(&self, policy: &str, needs: Needs) -> Result<()> {
        if needs.contains(Needs::WHOLE_FUTURE) {
            return Err(Error::settings(format!(
                "policy {policy} needs the whole future, and a training run draws its order an epoch at a time: use another"
            )));
        }
        let unknown = self.given().is_some() || self.buffer().is_some() || self.build()?.adaptive();
        if needs.contains(Needs::NEXT_EPOCH) && unknown {
            let (name, fits) = (self.name(), policy::default_for(self.name()).name);
            return Err(Error::settings(format!(
                "policy {policy} goes by the order of the next epoch, and sampler {name}'s is not known before that begins: use policy {fits} with it, or sampler uniform"
            )));
        }
        Ok(())
    }
    /// Checks the options and makes the sampler.
    ///
    /// # Errors
    /// `Settings`, with the value, the range and what it means, if an option is out of range or not a number.
    pub fn build(&self) -> Result<Box<dyn Sampler>> {
        if let Some(options) = self.buffer() {
            options.check(self.name())?;
        }
        match *self {
            Self::Echo(sampler) => Ok(Box::new(sampler)),
            Self::Replay(sampler) => Ok(Box::new(sampler)),
            Self::Auto(_) => Err(Error::settings(
                "sampler auto chooses for a loader, by its cache and its transform: here name replay, cost-aware or uniform",
            )),
            Self::Uniform(Uniform { fixed_shares: true, replacement, in_order }) if replacement || in_order => {
                Err(Error::settings(format!(
                    "uniform: fixed_shares is set beside {}: draws with replacement are from all samples, and a walk in order has fixed shares already, so leave one out",
                    if replacement { "replacement" } else { "in_order" }
                )))
            }
            Self::Uniform(Uniform { replacement: true, in_order: true, .. }) => Err(Error::settings(
                "uniform: replacement and in_order are both set: draws with replacement have no order to keep, so leave one out",
            )),
            Self::Uniform(sampler) => Ok(Box::new(sampler)),
            Self::Pads(sampler) => {
                let Pads { repeats, miss_quota, unseen, corrected, .. } = sampler;
                check_repeats("pads", repeats)?;
                if !(0.0..1.0).contains(&miss_quota) {
                    return Err(Error::settings(format!(
                        "pads: miss_quota is {miss_quota}: give the part of an epoch kept for samples that are not cached, 0 up to but not including 1"
                    )));
                }
                if unseen.is_some_and(|u| !u.is_finite() || u <= 0.0) {
                    return Err(Error::settings(format!(
                        "pads: unseen is {}: give a belief above 0, or leave it out for the largest one held",
                        unseen.unwrap_or_default()
                    )));
                }
                if corrected && miss_quota == 0.0 {
                    return Err(Error::settings(
                        "pads: corrected weights need misses to weigh, and miss_quota is 0: give a miss_quota above 0",
                    ));
                }
                Ok(Box::new(sampler))
            }
            Self::Importance(sampler) => {
                tilt::check_floor("importance", sampler.floor)?;
                Ok(Box::new(sampler))
            }
            Self::CostAware(sampler) => {
                tilt::check_floor("cost-aware", sampler.floor)?;
                if !(1.0..=1e6).contains(&sampler.kappa) {
                    return Err(Error::settings(format!(
                        "cost-aware: kappa is {}: give what a fetch costs in uses of a cached sample, 1 to 1000000",
                        sampler.kappa
                    )));
                }
                if sampler.fetches.is_some_and(|f| !(f > 0.0 && f <= 1.0)) {
                    return Err(Error::settings(format!(
                        "cost-aware: fetches is {}: give the part of the draws that may miss, above 0 and at most 1",
                        sampler.fetches.unwrap_or_default()
                    )));
                }
                Ok(Box::new(sampler))
            }
            Self::Iis(sampler) => sampler.check().map(|()| Box::new(sampler) as _),
            Self::InfoBatch(sampler) => sampler.check().map(|()| Box::new(sampler) as _),
            Self::Selective(sampler) => sampler.check().map(|()| Box::new(sampler) as _),
            Self::Curriculum(sampler) => sampler.check().map(|()| Box::new(sampler) as _),
            Self::PadsAsCoded(sampler) => {
                check_repeats("shade-as-coded", sampler.repeats)?;
                Ok(Box::new(sampler))
            }
            Self::Ods(sampler) => Ok(Box::new(sampler)),
            Self::Given(sampler) => Ok(Box::new(sampler)),
        }
    }
}

impl From<Chosen> for SamplerSettings {
    fn from(chosen: Chosen) -> Self {
        match chosen {
            Chosen::Uniform => Self::Uniform(Uniform::default()),
            Chosen::Replay { fetches, block } => {
                let usual = Replay::default();
                Self::Replay(Replay { fresh: fetches.map_or(usual.fresh, f64::from), block, ..usual })
            }
            Chosen::CostAware { fetches, kappa } => {
                let usual = CostAware::default();
                Self::CostAware(CostAware { fetches, kappa: kappa.unwrap_or(usual.kappa), ..usual })
            }
        }
    }
}

fn check_repeats(name: &str, repeats: f64) -> Result<()> {
    if (1.0..=64.0).contains(&repeats) && (repeats * 2.0).fract() == 0.0 {
        return Ok(());
    }
    Err(Error::settings(format!("{name}: repeats is {repeats}: give 1 (no repeats) to 64 in steps of 0.5")))
}
