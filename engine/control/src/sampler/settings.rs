//! Samplers as plain values a user chooses and tunes.

use super::{Block, BufferOptions, Chosen, CostAware, Echo, Given, Replay, Sampler, SamplerSettings, Uniform};
use crate::error::{Error, Result};
use crate::policy::{self, Entry, Needs};

/// Makes [`SamplerSettings`] of the samplers there are: a line each, with the type of its options and the name that
/// users type. All code that lists, reads or makes samplers follows it.
macro_rules! samplers {
    ($($(#[$doc:meta])* $Sampler:ident = $name:literal,)+) => {
        /// The names that users may type. [`Given`] is asked for by those who bring ids.
        pub const NAMES: [&str; [$($name),+].len() + 1] = [$($name,)+ "auto"];

        /// A sampler and its options. As JSON: `{"name": "cost-aware", "kappa": 64.0}`; options left out keep their
        /// defaults.
        #[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(tag = "name")]
        pub enum SamplerSettings {
            $($(#[$doc])* #[serde(rename = $name)] $Sampler($Sampler),)+
            /// The caller's own order.
            #[serde(rename = "given")]
            Given(Given),
            /// One of the others, chosen when the run begins. Whoever makes a run asks [`Auto::choose`] first.
            #[serde(rename = "auto")]
            Auto(Auto),
        }

        impl SamplerSettings {
            /// The sampler of that name with its default options.
            ///
            /// # Errors
            /// `Settings` if there is no such sampler.
            pub fn from_name(name: &str) -> Result<Self> {
                match name {
                    $($name => Ok(Self::$Sampler($Sampler::default())),)+
                    "auto" => Ok(Self::Auto(Auto::default())),
                    _ => Err(crate::error::Error::settings(format!(
                        "there is no sampler {name:?}: choose one of {}",
                        NAMES.join(", ")
                    ))),
                }
            }
            /// What draws, unchecked; `None` for [`Auto`], which chooses first.
            fn drawn_by(&self) -> Option<&dyn Sampler> {
                match self {
                    $(Self::$Sampler(sampler) => Some(sampler),)+
                    Self::Given(sampler) => Some(sampler),
                    Self::Auto(_) => None,
                }
            }
            fn boxed(&self) -> Option<Box<dyn Sampler>> {
                match *self {
                    $(Self::$Sampler(sampler) => Some(Box::new(sampler)),)+
                    Self::Given(sampler) => Some(Box::new(sampler)),
                    Self::Auto(_) => None,
                }
            }
        }
    };
}
pub(super) use samplers;

impl Default for SamplerSettings {
    fn default() -> Self {
        Self::CostAware(CostAware::default())
    }
}

impl SamplerSettings {
    /// The name users type.
    pub fn name(&self) -> &'static str {
        self.drawn_by().map_or("auto", |sampler| sampler.name())
    }
    /// How a sampler that trains on the cache as a buffer runs; `None` for those that draw epochs.
    pub fn buffer(&self) -> Option<BufferOptions> {
        self.drawn_by()?.buffer()
    }
    /// How the caller brings its own order; `None` for samplers that draw.
    pub fn given(&self) -> Option<Given> {
        if let Self::Given(sampler) = self { Some(*sampler) } else { None }
    }
    /// True if the node cache gives the orders: see [`Uniform::by_node`].
    pub fn is_by_node(&self) -> bool {
        matches!(self, Self::Uniform(Uniform { by_node: true, .. }))
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
    /// [`Sampler::by_batch_rank`].
    pub fn by_batch_rank(&self) -> bool {
        self.drawn_by().is_some_and(|sampler| sampler.by_batch_rank())
    }
    /// [`Sampler::is_short`].
    pub fn is_short(&self) -> bool {
        self.drawn_by().is_some_and(|sampler| sampler.is_short())
    }
    /// [`Sampler::random_scores`].
    pub fn random_scores(&self) -> bool {
        self.drawn_by().is_some_and(|sampler| sampler.random_scores())
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
        let Some(sampler) = self.boxed() else {
            return Err(Error::settings(
                "sampler auto chooses for a loader, by its cache and its transform: here name replay, cost-aware or uniform",
            ));
        };
        sampler.check()?;
        Ok(sampler)
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
