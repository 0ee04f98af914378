//! Ranks that share what they learn: the engine's half of an exchange. Moving bytes between processes is the caller's.
//!
//! 1. [`Engine::begin_exchange`] on every rank gives what it brings: a *proposal*, which says what run it is of and
//!    what it has measured, and as words its news and what is in its cache.
//! 2. Proposals go to all ranks, and [`Engine::agree`] looks at all of them: it answers or refuses on every rank alike,
//!    so nobody waits for a rank that has given up.
//! 3. News go to all ranks, and [`Engine::end_exchange`] puts them together.

use super::Engine;
use super::tuning::Seen;
use crate::control::{Held, News};
use crate::error::{Error, Result};
use crate::loader::checkpoint::WeightUse;
use crate::settings::ScoreKind;
use lossfeed_sync::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a rank brings to an exchange.
#[derive(Debug, Serialize, Deserialize)]
struct Proposal {
    rank: u32,
    /// What must be equal on all ranks, by name.
    identity: BTreeMap<String, String>,
    /// Batches of the next epoch that were delivered before this process took it up.
    delivered: usize,
    /// Batches scored so far.
    step: u32,
    /// The measurement its scores are on; `None` before the first.
    measured: Option<String>,
    /// Numbers that it brings, and how many of them, at their end, are the samples in its cache.
    words: usize,
    held: usize,
    /// Its training loop's use of weights, in a run that awaits them.
    weights: Option<WeightUse>,
    /// Its measurements of the epoch before, if something is set by them.
    seen: Option<Seen>,
    /// Why it cannot take part.
    problem: Option<String>,
}

/// What all ranks have agreed on.
#[derive(Debug, Clone, PartialEq)]
pub struct Agreed {
    /// Numbers that every rank brings, in the order of the proposals.
    pub words: Vec<usize>,
    /// The part of them, at their end, that tells of its cache.
    held: Vec<usize>,
    /// The ranks, in that order.
    pub ranks: Vec<u32>,
    step: u32,
    measured: Option<ScoreKind>,
    /// Every rank's loop was seen to read weights.
    read: bool,
    seen: Option<Seen>,
}

impl Engine {
    /// Ends the pass under way and answers what this rank brings to an exchange: its proposal and its news. The news
    /// are brought again if the exchange comes to nothing.
    ///
    /// # Errors
    /// `Usage` if the engine is closed or shares nothing ([`crate::settings::Settings::exchange`]). The other ranks must
    /// be told: [`refusal`] is a proposal that does.
    pub fn begin_exchange(&self) -> Result<(String, Vec<u32>)> {
        self.usable()?;
        if !self.settings.exchange {
            return Err(Error::usage("this loader does not exchange scores: make it with ranks=\"exchange\""));
        }
        let mut clock = self.clock.lock();
        if let Some(old) = clock.current.take() {
            old.stop();
            self.end_pass(&old);
        }
        let resumed = clock.resume.as_ref().filter(|c| c.header.epoch == clock.next_epoch);
        // Of an epoch that other numbers of ranks began something was delivered.
        let delivered = resumed.map_or(0, |c| c.header.delivered.max(usize::from(c.header.part.is_some())));
        let epoch = clock.next_epoch;
        drop(clock);
        let (_, news, step) = self.feed.cache.shared()?;
        let mut words: Vec<u32> = news.iter().flat_map(|news| news.to_words()).collect();
        // A buffer sampler draws again from its own cache alone.
        let caches = self.settings.cache_bytes > 0 && self.settings.sampler.buffer().is_none();
        let held = if caches { self.feed.cache.residents() } else { Vec::new() };
        words.extend(&held);
        let weights = self.weights.as_ref().map(|weights| *weights.lock());
        let seen = self.tuning.as_ref().map(|tuning| tuning.lock().offer(&self.feed, epoch));
        let mut identity = self.identity();
        identity.remove("rank");
        // A limit that is set for one rank's cache from outside must not end the run.
        identity.remove("cache_bytes_now");
        if let Some(weights) = weights {
            identity.insert("draws by weight".into(), (weights == WeightUse::Used).to_string());
        }
        identity.insert("epoch".into(), epoch.to_string());
        identity.insert("batches of it delivered".into(), delivered.to_string());
        let measured = self.scale.settled().map(|kind| kind.name().to_string());
        let rank = self.settings.rank;
        let (counted, held) = (words.len(), held.len());
        let proposal =
            Proposal { rank, identity, delivered, step, measured, words: counted, held, weights, seen, problem: None };
        let text = serde_json::to_string(&proposal).map_err(|e| Error::internal("no proposal").because(e))?;
        Ok((text, words))
    }

    /// Looks at all ranks' proposals, in any order. `None`: an epoch goes on in which nothing is exchanged.
    ///
    /// # Errors
    /// On every rank the same: `Settings` if they are not of one run, with all that differs, if a rank is missing or
    /// there twice; `Usage` if one of them cannot take part, with its reason.
    pub fn agree(&self, proposals: &[String]) -> Result<Option<Agreed>> {
        let damaged = |e: serde_json::Error| Error::settings("a rank's proposal cannot be read").because(e);
        let all: Vec<Proposal> =
            proposals.iter().map(|text| serde_json::from_str(text).map_err(damaged)).collect::<Result<_>>()?;
        let problems = all.iter().enumerate().filter_map(|(at, p)| Some((at, p.problem.as_deref()?)));
        let problems: Vec<String> = problems.map(|(at, problem)| format!("process {at}: {problem}")).collect();
        if !problems.is_empty() {
            return Err(Error::usage(format!("ranks cannot exchange scores: {}", problems.join("; "))));
        }
        let mut ranks: Vec<u32> = all.iter().map(|p| p.rank).collect();
        ranks.sort_unstable();
        if !ranks.iter().copied().eq(0..self.settings.world_size) {
            return Err(Error::settings(format!(
                "the process group's loaders have ranks {ranks:?}: each of the {} must appear once",
                self.settings.world_size
            )));
        }
        let Some(first) = all.iter().find(|p| p.rank == 0) else { return Ok(None) };
        let differing: Vec<String> = all.iter().flat_map(|other| differences(first, other)).collect();
        if !differing.is_empty() {
            return Err(Error::settings(format!(
                "ranks disagree: {}; make all loaders with the same dataset and settings, and start the same epochs",
                differing.join(", ")
            )));
        }
        if first.delivered > 0 {
            return Ok(None);
        }
        let measured = all.iter().find_map(|p| p.measured.as_deref()).map(ScoreKind::from_name).transpose()?;
        let step = all.iter().map(|p| p.step).max().unwrap_or(0);
        let read = all.iter().all(|p| p.weights.is_some_and(|weights| weights >= WeightUse::Read));
        let seen = Seen::of_all(all.iter().filter_map(|p| p.seen));
        let of = |part: fn(&Proposal) -> usize| all.iter().map(part).collect();
        let (words, held) = (of(|p| p.words), of(|p| p.held));
        let ranks = all.iter().map(|p| p.rank).collect();
        Ok(Some(Agreed { words, held, ranks, step, measured, read, seen }))
    }

    /// Puts together what all ranks bring, given in the order of `agreed`. Every rank then believes the same of every
    /// sample and knows what each has in its cache, and draws the next epoch from that.
    ///
    /// # Errors
    /// `Settings` for news that are damaged, and nothing has changed then.
    pub fn end_exchange(&self, agreed: &Agreed, words: &[Vec<u32>]) -> Result<()> {
        self.usable()?;
        if words.iter().map(Vec::len).ne(agreed.words.iter().copied()) {
            return Err(Error::settings(format!(
                "news of {:?} numbers came where {:?} were announced",
                words.iter().map(Vec::len).collect::<Vec<_>>(),
                agreed.words
            )));
        }
        let samples = self.feed.source.len();
        let mut ranks: Vec<(u32, Vec<News>, Vec<u32>)> = Vec::with_capacity(words.len());
        for ((&rank, words), &held) in agreed.ranks.iter().zip(words).zip(&agreed.held) {
            let (of_news, held) = words.split_at(words.len().saturating_sub(held));
            ranks.push((rank, news(of_news, samples)?, held.to_vec()));
        }
        ranks.sort_unstable_by_key(|(rank, ..)| *rank);
        let (ranks, held): (Vec<Vec<News>>, Vec<_>) = ranks.into_iter().map(|(_, news, held)| (news, held)).unzip();
        let held = Held::new(held, samples)?;
        if let Some(kind) = agreed.measured {
            self.scale.replace(Some(kind));
        }
        if let Some(mut weights) = self.weights.as_ref().map(Mutex::lock)
            && agreed.read
            && *weights != WeightUse::Used
        {
            *weights = WeightUse::Used;
            self.feed.cache.use_weights(true);
        }
        if let Some(tuning) = &self.tuning {
            tuning.lock().agree(agreed.seen);
        }
        self.feed.cache.merge(&ranks, held, agreed.step)
    }
}

/// The proposal of a rank that cannot take part, and says why.
pub fn refusal(rank: u32, problem: &str) -> String {
    let (identity, measured, problem) = (BTreeMap::new(), None, Some(problem.to_string()));
    let (delivered, step, words, held) = (0, 0, 0, 0);
    let (weights, seen) = (None, None);
    let proposal = Proposal { rank, identity, delivered, step, measured, words, held, weights, seen, problem };
    serde_json::to_string(&proposal).unwrap_or_default()
}

/// What is not the same on two ranks.
fn differences(one: &Proposal, other: &Proposal) -> Vec<String> {
    let none = String::from("none");
    let say =
        |name: &str, a: &str, b: &str| format!("{name} is {a} on rank {} and {b} on rank {}", one.rank, other.rank);
    let names = one.identity.keys().chain(other.identity.keys().filter(|name| !one.identity.contains_key(*name)));
    let of = |p: &'_ Proposal, name: &str| p.identity.get(name).unwrap_or(&none).clone();
    let pairs = names.map(|name| (name, of(one, name), of(other, name)));
    let mut all: Vec<String> = pairs.filter(|(_, a, b)| a != b).map(|(name, a, b)| say(name, &a, &b)).collect();
    if let (Some(a), Some(b)) = (&one.measured, &other.measured)
        && a != b
    {
        all.push(say("what was measured", a, b));
    }
    all
}

/// News out of their words.
fn news(words: &[u32], samples: usize) -> Result<Vec<News>> {
    let (news, rest) = words.as_chunks::<3>();
    if !rest.is_empty() {
        return Err(Error::settings(format!(
            "news of {} numbers: they come in threes, so they are damaged",
            words.len()
        )));
    }
    news.iter().map(|&words| News::from_words(words, samples)).collect()
}

/// The first numbers in the state of a rank that shares what it learns.
pub(super) fn to_state(news: &[News], held: &Held) -> Vec<u32> {
    let count = std::iter::once(news.len() as u32);
    count.chain(news.iter().flat_map(|news| news.to_words())).chain(held.to_words()).collect()
}

/// The inverse, and the rest of the numbers. States of before tell of no caches.
pub(super) fn of_state(words: &[u32], samples: usize) -> Result<(Vec<News>, Held, &[u32])> {
    let damaged = || Error::settings("the state holds fewer news than it says: it is damaged");
    let (&count, rest) = words.split_first().ok_or_else(damaged)?;
    let numbers = (count as usize).checked_mul(3).ok_or_else(damaged)?;
    let (of_news, rest) = rest.split_at_checked(numbers).ok_or_else(damaged)?;
    let (held, rest) = if rest.is_empty() { (Held::default(), rest) } else { Held::from_words(rest, samples)? };
    Ok((news(of_news, samples)?, held, rest))
}
