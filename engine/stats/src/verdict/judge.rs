//! The rules, applied to the ranks of a job.

use super::cause::{self, Cause};
use super::measured::{Loader, Measured, share};
use super::remedy;
use super::rules::{self, Word};
use super::what_if::{self, WhatIf};

/// A number that a verdict rests on. The name ends in its unit: `_seconds`, `_ratio` (0 to 1), `_bytes`; others are
/// counts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evidence {
    /// Its name.
    pub name: &'static str,
    /// Its value, in base units.
    pub value: f64,
}

/// Why a run waits, or that nothing is wrong.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// The verdict in one word.
    pub word: Word,
    /// The cause of the largest loss.
    pub cause: Option<Cause>,
    /// The rank that it is about: the worst one, where there are several.
    pub rank: Option<u32>,
    /// The numbers that it rests on.
    pub evidence: Vec<Evidence>,
    /// The second cause and its share of the loss, where the first explains less than 80 %.
    pub also: Option<(Cause, f64)>,
    /// One line of words and numbers.
    pub why: String,
    /// The one thing to change, as a line to write. `None`: nothing is wrong, or no setting is known to help.
    pub next: Option<String>,
    /// The effects of changes.
    pub what_if: Vec<WhatIf>,
}

impl Verdict {
    /// The verdict's word, with the cause where there is one: `input-bound (source)`.
    pub fn title(&self) -> String {
        match self.cause {
            Some(cause) => format!("{} ({})", self.word.name(), cause.name()),
            None => self.word.name().to_owned(),
        }
    }

    fn of(word: Word, why: String, evidence: Vec<Evidence>) -> Self {
        Self { word, cause: None, rank: None, evidence, also: None, why, next: None, what_if: Vec::new() }
    }
}

/// The verdict on a job, from the times of its ranks over one window.
pub fn judge(ranks: &[Measured]) -> Verdict {
    // Of a job the rank with the largest share of waits and copies is judged, and not rank 0.
    let lost = |m: &Measured| share(m.pace_wait_us().saturating_add(m.copies_us), m.pace_us());
    let Some(worst) = ranks.iter().max_by(|a, b| lost(a).total_cmp(&lost(b))) else {
        return incomplete(0);
    };
    let steps = ranks.iter().map(|m| m.steps).min().unwrap_or(0);
    if steps < rules::STEPS_MIN || worst.pace_us() == 0 {
        return incomplete(steps);
    }
    let mut verdict = rank_behind(ranks).unwrap_or_else(|| alone(worst));
    if verdict.rank.is_none() && ranks.len() > 1 {
        verdict.rank = Some(worst.rank);
    }
    verdict
}

fn incomplete(steps: u64) -> Verdict {
    let why = format!("{steps} steps were measured; a verdict needs {}", rules::STEPS_MIN);
    Verdict::of(Word::Incomplete, why, vec![count("steps", steps)])
}

fn rank_behind(ranks: &[Measured]) -> Option<Verdict> {
    let found = cause::slow_rank(ranks)?;
    let slow = &ranks[found.at];
    let why = format!(
        "rank {} takes {} a step of its own, the middle rank {}: the others wait for it ({})",
        slow.rank,
        shown_us(found.own_us),
        shown_us(found.middle_us),
        found.cause.name()
    );
    let evidence = vec![
        count("rank", slow.rank.into()),
        seconds("own_step_seconds", found.own_us),
        seconds("middle_own_step_seconds", found.middle_us),
        seconds("step_seconds", slow.step_us()),
    ];
    let mut verdict = Verdict::of(Word::RankBehind, why, evidence);
    verdict.rank = Some(slow.rank);
    verdict.cause = Some(found.cause);
    verdict.next = remedy::of_rank(slow, found.cause);
    verdict.what_if = what_if::rank_alike(slow, found.own_us - found.middle_us);
    Some(verdict)
}

/// The verdict on one rank, the others apart.
fn alone(m: &Measured) -> Verdict {
    let (waited, copied) = (share(m.pace_wait_us(), m.pace_us()), share(m.copies_us, m.pace_us()));
    let input = is_input(m, waited);
    let a_step = |us: u64| us as f64 / m.steps as f64;
    let copying = copied >= rules::COPY_SHARE && a_step(m.copies_us) >= rules::STEP_FLOOR_US;
    let starts = start_share(m);
    if copying && (!input || copied > waited) {
        return copy_bound(m, copied, if input { waited } else { 0.0 });
    }
    if starts >= rules::WAIT_SHARE && (!input || starts > waited) {
        return pass_start(m, starts);
    }
    if input {
        return input_bound(m, waited, if copying { copied } else { 0.0 });
    }
    if m.scores > 0 && share(m.scores_late, m.scores) >= rules::LATE_SHARE {
        return scores_late(m);
    }
    let mut evidence = time_evidence(m);
    let (computed, by) = match m.compute_us {
        0 => (share(m.own_processor_us, m.pace_us()), "the training thread's processor time"),
        gpu => (share(gpu, m.pace_us()), "the GPU's own clock"),
    };
    if computed >= rules::COMPUTE_SHARE && m.step_us() >= rules::COMPUTE_FLOOR_US {
        evidence.push(ratio("compute_ratio", computed.min(1.0)));
        let why = format!("computing fills {} of a step of {} ({by})", percent(computed), shown_us(m.step_us()));
        return Verdict::of(Word::ComputeBound, why, evidence);
    }
    let why = format!("waits take {} of a step of {}", percent(waited), shown_us(m.step_us()));
    Verdict::of(Word::Ok, why, evidence)
}

/// Waits that are worth a change: a share of the time, and more than a loop costs anyway.
fn is_input(m: &Measured, waited: f64) -> bool {
    let a_step = m.pace_wait_us() as f64 / m.steps as f64;
    let a_sample = m.pace_wait_us() as f64 / m.samples.max(1) as f64;
    let cheap = m.samples > 0 && a_sample < rules::SAMPLE_FLOOR_US && a_step < rules::STEP_CEILING_US;
    let handed = cause::waits(m).iter().find(|(cause, _)| *cause == Cause::Handover).map_or(0.0, |(_, us)| *us);
    let made = a_step - handed / m.steps as f64;
    let long = made >= rules::STEP_FLOOR_US || a_step >= rules::HANDOVER_FLOOR_US;
    waited >= rules::WAIT_SHARE && long && !cheap
}

/// The share of the time that first batches take longer than others, the run's first pass apart: a run starts once.
fn start_share(m: &Measured) -> f64 {
    if m.passes < 2 {
        return 0.0;
    }
    let usual = m.passes as f64 * m.pace_wait_us() as f64 / m.steps.max(1) as f64;
    let later = (m.passes - 1) as f64 / m.passes as f64;
    let lost = (m.wait.first_us as f64 - usual).max(0.0) * later;
    let long = lost / (m.passes - 1) as f64 >= 20.0 * rules::STEP_FLOOR_US;
    if long { lost / m.total_us().max(1) as f64 } else { 0.0 }
}

fn input_bound(m: &Measured, waited: f64, copied: f64) -> Verdict {
    let causes = cause::waits(m);
    let Some(&(first, us)) = causes.first() else {
        return Verdict::of(Word::Ok, "no wait has a cause".to_owned(), time_evidence(m));
    };
    let small = first == Cause::Source && cache_is_small(m);
    let mut evidence = time_evidence(m);
    evidence.extend(cause_evidence(m, &causes));
    let whole = m.pace_us().max(1) as f64;
    let parts: Vec<String> = causes
        .iter()
        .filter(|(_, us)| us / whole >= 0.01)
        .map(|(cause, us)| format!("{} {}", cause.name(), percent(us / whole)))
        .collect();
    let mut why =
        format!("waits take {} of a step of {}: {}", percent(waited), shown_us(m.step_us()), parts.join(", "));
    if first == Cause::Source && m.store_p99_us > 0 {
        let (p50, p99) = (shown_us(m.store_p50_us as f64), shown_us(m.store_p99_us as f64));
        why.push_str(&format!("; the store answers in {p50} (p50), {p99} (p99)"));
    }
    if small {
        let hits = percent(share(m.cache.hits, m.cache.requests));
        why.push_str(&format!("; the cache is full and had {hits} of the samples"));
    }
    let mut verdict = Verdict::of(if small { Word::CacheSmall } else { Word::InputBound }, why, evidence);
    verdict.cause = Some(first);
    let lost = m.pace_wait_us() as f64 + copied * whole;
    let second = causes.get(1).copied().into_iter().chain((copied > 0.0).then_some((Cause::Copy, copied * whole)));
    verdict.also = also(us, lost, second);
    let proposal = what_if::input(m, first, small);
    verdict.next = remedy::of_input(m, first, proposal.as_ref());
    verdict.what_if = proposal.and_then(|p| p.then).into_iter().chain(what_if::no_wait(m)).collect();
    verdict
}

fn copy_bound(m: &Measured, copied: f64, waited: f64) -> Verdict {
    let pageable = share(m.pageable_us, m.copies_us);
    let why = format!(
        "copies to the device take {} of a step of {}, {} of them from memory that is not pinned",
        percent(copied),
        shown_us(m.step_us()),
        percent(pageable)
    );
    let mut evidence = time_evidence(m);
    evidence.push(ratio("pageable_ratio", pageable));
    let mut verdict = Verdict::of(Word::CopyBound, why, evidence);
    verdict.cause = Some(Cause::Copy);
    let lost = (copied + waited) * m.pace_us() as f64;
    let second = (waited > 0.0).then(|| cause::waits(m).first().copied()).flatten();
    verdict.also = also(m.copies_us as f64, lost, second.into_iter());
    verdict.what_if = what_if::without(m, m.copies_us as f64, "copies beside the computing");
    verdict.next = Some(remedy::of_copies(m, pageable));
    verdict
}

fn pass_start(m: &Measured, starts: f64) -> Verdict {
    let first_us = m.wait.first_us as f64 / m.passes.max(1) as f64;
    let why = format!(
        "the first batch of each of {} passes takes {}: {} of the time",
        m.passes,
        shown_us(first_us),
        percent(starts)
    );
    let mut evidence = time_evidence(m);
    evidence.push(ratio("pass_start_ratio", starts));
    let mut verdict = Verdict::of(Word::InputBound, why, evidence);
    verdict.cause = Some(Cause::PassStart);
    verdict.next = remedy::of_pass_start(m);
    verdict
}

fn scores_late(m: &Measured) -> Verdict {
    let late = share(m.scores_late, m.scores);
    let why = format!("{} of the scores came later than the sampler's `lag`, or were lost", percent(late));
    let evidence = vec![count("scores", m.scores), count("scores_late", m.scores_late), ratio("late_ratio", late)];
    let mut verdict = Verdict::of(Word::ScoresLate, why, evidence);
    verdict.next =
        Some("sampler={\"name\": …, \"lag\": N} with a larger N, or score each batch before the next one".to_owned());
    verdict
}

/// A full cache, and reads that repeat earlier ones.
fn cache_is_small(m: &Measured) -> bool {
    let c = &m.cache;
    let full = c.capacity_bytes > 0 && c.used_bytes as f64 >= rules::FULL * c.capacity_bytes as f64;
    let repeated = share(c.fetched.saturating_sub(c.distinct), c.fetched);
    full && repeated >= rules::REPEATED
}

/// The largest second cause, where the first explains too little and the second at least a tenth.
fn also(first: f64, lost: f64, others: impl Iterator<Item = (Cause, f64)>) -> Option<(Cause, f64)> {
    if lost <= 0.0 || first / lost >= rules::EXPLAINS {
        return None;
    }
    let (cause, us) = others.max_by(|a, b| a.1.total_cmp(&b.1))?;
    (us / lost >= 0.10).then_some((cause, us / lost))
}

fn time_evidence(m: &Measured) -> Vec<Evidence> {
    vec![
        count("steps", m.steps),
        seconds("step_seconds", m.step_us()),
        ratio("wait_ratio", share(m.pace_wait_us(), m.pace_us())),
        ratio("copy_ratio", share(m.copies_us, m.pace_us())),
    ]
}

fn cause_evidence(m: &Measured, causes: &[(Cause, f64)]) -> Vec<Evidence> {
    let whole = m.pace_us().max(1) as f64;
    let name = |cause| match cause {
        Cause::Source => "wait_source_ratio",
        Cause::Decode => "wait_decode_ratio",
        Cause::Python => "wait_python_ratio",
        Cause::Slot => "wait_slot_ratio",
        _ => "wait_handover_ratio",
    };
    let mut evidence: Vec<Evidence> = causes.iter().map(|&(cause, us)| ratio(name(cause), us / whole)).collect();
    if m.store_p99_us > 0 {
        evidence.push(seconds("store_p50_seconds", m.store_p50_us as f64));
        evidence.push(seconds("store_p99_seconds", m.store_p99_us as f64));
    }
    if m.loader == Loader::Lossfeed && m.cache.capacity_bytes > 0 {
        evidence.push(ratio("hit_ratio", share(m.cache.hits, m.cache.requests)));
        evidence.push(Evidence { name: "cache_bytes", value: m.cache.capacity_bytes as f64 });
    }
    evidence
}

fn count(name: &'static str, value: u64) -> Evidence {
    Evidence { name, value: value as f64 }
}

fn ratio(name: &'static str, value: f64) -> Evidence {
    Evidence { name, value }
}

fn seconds(name: &'static str, us: f64) -> Evidence {
    Evidence { name, value: us / 1e6 }
}

/// "61 %"; small shares with a digit.
fn percent(share: f64) -> String {
    if share < 0.0995 { format!("{:.1} %", 100.0 * share) } else { format!("{:.0} %", 100.0 * share) }
}

/// "26.1 ms".
pub(super) fn shown_us(us: f64) -> String {
    match us {
        us if us >= 1e6 => format!("{:.1} s", us / 1e6),
        us if us >= 1e5 => format!("{:.0} ms", us / 1e3),
        us if us >= 1e3 => format!("{:.1} ms", us / 1e3),
        us => format!("{us:.0} µs"),
    }
}
