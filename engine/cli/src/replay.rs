//! `lossfeed replay`: a recorded run through cache policies, on the same ledger the live cache uses; or a run that
//! samplers draw again. The program `lossfeed-lab` runs the same with more policies and kinds of files: a [`Bench`].

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, Seek};
use std::path::{Path, PathBuf};

use lossfeed_control::policy::{self, Entry, Needs};
use lossfeed_control::sampler::SamplerSettings;
use lossfeed_control::sim::{
    ClosedLoop, Costs, Losses, Options, Population, Replay, Trace, closed_loop, looks_at_scores, replay_with,
};
use lossfeed_control::{Error, ErrorKind, Result};
use lossfeed_journal::{Measured, ROWS_MAX, read_trace};

use crate::args::ReplayArgs;
use crate::bench::Bench;
use crate::journal::{self, Journal};
use crate::parallel::in_parallel;
use crate::progress::Progress;
use crate::report::{Report, Row, tell};
use crate::term;

/// Cache sizes if none is asked for.
const FRACTIONS: [f64; 3] = [0.1, 0.2, 0.5];
/// Of a closed loop over modelled losses.
const EPOCHS: u32 = 10;
const BATCH: u32 = 256;
const DECAY: f64 = 10.0;

/// That of `lossfeed`.
pub(crate) const OURS: Bench<'_> = Bench { policies: const { &policy::ALL }, read: &in_the_lab, watch: None };

fn in_the_lab(path: &Path, _file: &File) -> Result<Option<(Trace, Vec<String>)>> {
    if path.file_name().is_some_and(|name| name.to_string_lossy().contains(".oracleGeneral")) {
        return Err(Error::settings(
            "traces of libCacheSim are read by the program lossfeed-lab: `lossfeed-lab replay`",
        ));
    }
    Ok(None)
}

/// Runs the command and returns its exit code.
pub(crate) fn run(args: &ReplayArgs) -> i32 {
    report(args, &mut io::stdout().lock()).unwrap_or_else(|e| term::failed(&e))
}

pub(crate) fn report(args: &ReplayArgs, out: &mut impl io::Write) -> Result<i32> {
    check_written(&[("--trace", args.trace.as_deref())], &[("--csv", args.csv.as_deref())])?;
    tell(&results(args, &OURS)?, args, out)
}

/// What is replayed.
enum Source {
    Trace(Trace, Origin),
    Journal(Box<Journal>),
    /// Nothing but this many samples.
    Planted(usize),
}

/// What a trace was read from.
enum Origin {
    /// Our CSV.
    Csv,
    /// A file of another kind, and what it does not say.
    Told(Vec<String>),
    /// A journal, for the losses alone.
    Journal(Measured),
}

/// A sampler as it was typed, and what that means.
type Named = (String, SamplerSettings);

/// One replay to be made.
struct Asked<'a> {
    sampler: Option<&'a Named>,
    /// The name as it was typed.
    name: &'a str,
    policy: &'static Entry,
    /// Of the dataset, and in bytes.
    capacity: (f64, u64),
    /// Whether noise stands for scores.
    noise: bool,
}

/// Every policy at every size, in the order asked for, as many at once as there are processors.
///
/// # Errors
/// `Settings` for arguments that do not fit each other, before a large file is read; `Source` for a file that cannot
/// be.
pub fn results(args: &ReplayArgs, bench: &Bench<'_>) -> Result<Report> {
    let costs = args.costs()?;
    let samplers: Vec<Named> = args.sampler.iter().map(|text| named(text)).collect::<Result<_>>()?;
    let pairs = pairs(args, &samplers, bench)?;
    let source = read(args, bench)?;
    let capacities = capacities(args, &source)?;
    let mut asked = Vec::new();
    for &(sampler, name, policy, scores) in &pairs {
        for &capacity in &capacities {
            let noises = if scores && !args.no_control { &[false, true][..] } else { &[false] };
            asked.extend(noises.iter().map(|&noise| Asked { sampler, name, policy, capacity, noise }));
        }
    }
    let population = match &source {
        _ if !samplers.is_empty() => None,
        Source::Trace(trace, _) => Some(trace.population()),
        Source::Journal(journal) => Some(journal.recording.population()),
        Source::Planted(_) => None,
    };
    let options = Options { noise: None, costs, population: population.as_ref(), watch: bench.watch };
    let progress = Progress::on_stderr("replays", asked.len());
    let one = |asked: &Asked<'_>| {
        let found = one(args, &source, &options, asked);
        progress.step();
        found
    };
    let found = in_parallel(&asked, one);
    drop(progress);
    let mut results: Vec<Row> = Vec::new();
    for (asked, found) in asked.iter().zip(found) {
        let (found, population) = found?;
        let found = Replay { policy: asked.name.to_owned(), ..found };
        match results.last_mut() {
            Some(row) if asked.noise => row.random_scores = Some(found),
            _ => {
                let sampler = asked.sampler.map(|(typed, _)| typed.clone());
                results.push(Row { sampler, found, population, random_scores: None });
            }
        }
    }
    let (requests, samples) = match (&source, results.first()) {
        (_, Some(row)) if row.sampler.is_some() => ((row.found.hits + row.found.misses) as usize, dataset(&source).0),
        (Source::Journal(journal), _) => (journal.requests, journal.samples),
        (Source::Trace(trace, _), _) => (trace.requests(), trace.samples()),
        (Source::Planted(samples), _) => (0, *samples),
    };
    let title = args.trace.as_ref().map_or_else(|| format!("{samples} samples"), |path| path.display().to_string());
    let mut assumed = assumed(args, &source, &samplers, costs);
    if asked.iter().any(|asked| asked.policy.needs.contains(Needs::SUBSTITUTES)) {
        assumed.push(match source {
            Source::Journal(_) => "samples come as the run delivered them: no policy substitutes".to_owned(),
            _ => "policies that substitute deliver in another order, and their hits are of that order".to_owned(),
        });
    }
    if results.iter().all(|row| row.found.hits == 0 && row.found.epochs.len() == 1) {
        assumed.push("one epoch is the whole run, in which no cache has a hit: record two epochs or more".to_owned());
    }
    let (_, _, sized) = dataset(&source);
    let run = if let Source::Journal(journal) = source { Some(journal.run) } else { None };
    Ok(Report { run, requests, samples, assumed, costs, population, results, title, sized })
}

/// No file that is read may be written, and none twice. Each comes with its option.
///
/// # Errors
/// `Settings`, with both options.
pub fn check_written(read: &[(&str, Option<&Path>)], written: &[(&str, Option<&Path>)]) -> Result<()> {
    let mut seen: Vec<(&str, PathBuf, bool)> = Vec::new();
    let all = read.iter().map(|file| (file, false)).chain(written.iter().map(|file| (file, true)));
    for (&(option, path), is_written) in all {
        // Pipes and devices may be both.
        let Some(path) = path.filter(|path| !path.exists() || path.is_file()) else { continue };
        let place = path.canonicalize().or_else(|_| std::path::absolute(path)).unwrap_or_else(|_| path.to_owned());
        if let Some((other, ..)) = seen.iter().find(|(_, of, also)| *of == place && (is_written || *also)) {
            return Err(Error::settings(format!(
                "{option} and {other} are one file, {}: it would be written over, so give another name",
                path.display()
            )));
        }
        seen.push((option, place, is_written));
    }
    Ok(())
}

/// One replay; of a closed loop with the samples as it left them.
fn one(
    args: &ReplayArgs,
    source: &Source,
    options: &Options<'_>,
    asked: &Asked<'_>,
) -> Result<(Replay, Option<Population>)> {
    let options = Options { noise: asked.noise.then_some(args.seed), ..*options };
    let losses = match source {
        Source::Journal(journal) => return Ok((journal.replay(asked.policy, asked.capacity, &options)?, None)),
        Source::Trace(trace, _) => Losses::Recorded(trace),
        Source::Planted(samples) => Losses::Planted { samples: *samples, decay: args.decay.unwrap_or(DECAY) },
    };
    let Some(&(_, sampler)) = asked.sampler else {
        let Losses::Recorded(trace) = losses else { return Err(Error::internal("a replay of nothing")) };
        return Ok((replay_with(trace, asked.policy, asked.capacity, &options), None));
    };
    let run = ClosedLoop {
        sampler,
        policy: asked.policy,
        capacity: asked.capacity,
        epochs: epochs(args, source),
        batch: args.batch_size.unwrap_or(BATCH) as usize,
        ranks: ranks(args),
        seed: args.seed,
        losses,
        noise: asked.noise,
        costs: options.costs,
        watch: options.watch,
    };
    closed_loop(&run).map(|(found, population)| (found, Some(population)))
}

/// Ranks that share the dataset of a closed loop.
fn ranks(args: &ReplayArgs) -> u32 {
    args.world_size.unwrap_or(1)
}

/// Epochs of a closed loop.
fn epochs(args: &ReplayArgs, source: &Source) -> u64 {
    let recorded = if let Source::Trace(trace, _) = source { Some(trace.epoch_count() as u64) } else { None };
    args.epochs.map(u64::from).or(recorded).unwrap_or(u64::from(EPOCHS))
}

/// "cost-aware" or "cost-aware:kappa=64:floor=0.1".
fn named(typed: &str) -> Result<Named> {
    let mut parts = typed.split(':');
    let name = parts.next().unwrap_or_default();
    SamplerSettings::from_name(name)?;
    let mut options = serde_json::Map::from_iter([("name".to_owned(), name.into())]);
    for part in parts {
        let value = part.split_once('=').and_then(|(key, value)| Some((key, serde_json::from_str(value).ok()?)));
        let (key, value) = value.ok_or_else(|| {
            Error::settings(format!("sampler {typed:?}: {part:?} is no option: give key=value, such as kappa=64"))
        })?;
        options.insert(key.to_owned(), value);
    }
    let settings: SamplerSettings =
        serde_json::from_value(options.into()).map_err(|e| Error::settings(format!("sampler {typed:?}")).because(e))?;
    settings.build()?;
    Ok((typed.to_owned(), settings))
}

/// One pair of sampler and policy: with the policy's name as it was typed, and whether either looks at scores.
type Pair<'a> = (Option<&'a Named>, &'a str, &'static Entry, bool);

/// All policies without samplers; else those that suit each, unless policies are named. A buffer sampler has no choice.
fn pairs<'a>(args: &'a ReplayArgs, samplers: &'a [Named], bench: &Bench<'_>) -> Result<Vec<Pair<'a>>> {
    let named: Vec<(&str, &'static Entry)> =
        args.policy.iter().map(|name| Ok((&name[..], bench.find(name)?))).collect::<Result<_>>()?;
    let itself = |entry: &'static Entry| (entry.name, entry);
    if samplers.is_empty() {
        let policies = if named.is_empty() { bench.policies.iter().map(itself).collect() } else { named };
        let scores = |entry: &Entry| entry.needs.contains(Needs::SCORES);
        return Ok(policies.into_iter().map(|(name, entry)| (None, name, entry, scores(entry))).collect());
    }
    let mut pairs = Vec::new();
    for named_sampler in samplers {
        let sampler = &named_sampler.1;
        let policies = match (sampler.buffer(), named.is_empty()) {
            (Some(_), _) => vec![itself(bench.find("fifo")?)],
            (None, true) => vec![itself(sampler.default_policy(ranks(args)))],
            (None, false) => named.clone(),
        };
        for (name, entry) in policies {
            sampler.check_policy(entry.name, entry.needs)?;
            pairs.push((Some(named_sampler), name, entry, looks_at_scores(sampler, entry)?));
        }
    }
    Ok(pairs)
}

/// Opens and reads what the arguments name.
fn read(args: &ReplayArgs, bench: &Bench<'_>) -> Result<Source> {
    let Some(path) = &args.trace else {
        let samples = args.samples.ok_or_else(|| {
            Error::settings("there is no dataset: give --trace FILE, or --samples N for modelled losses")
        })?;
        return Ok(Source::Planted(samples as usize));
    };
    let closed = !args.sampler.is_empty();
    let told = |e: Error| Error::unreadable(format!("trace {}", path.display())).because(e);
    let mut file = File::open(path).map_err(|e| told(Error::unreadable("cannot open it").because(e)))?;
    let seekable = file.stream_position().is_ok();
    let told = |e: Error| if e.kind() == ErrorKind::Settings { e } else { told(e) };
    let (trace, origin) = if let Some((trace, assumed)) = (bench.read)(path, &file).map_err(told)? {
        (trace, Origin::Told(assumed))
    } else {
        // A pipe cannot be looked at twice; it is read as a trace.
        let is_journal = seekable && lossfeed_journal::is_journal(&file);
        if seekable {
            file.rewind().map_err(|e| told(Error::unreadable("cannot read it twice").because(e)))?;
        }
        if is_journal {
            if args.samples.is_some() {
                return Err(Error::settings("--samples is for traces: a journal knows how large its dataset is"));
            }
            if closed {
                let (trace, measured) = journal::losses(file).map_err(told)?;
                return Ok(Source::Trace(trace, Origin::Journal(measured)));
            }
            return Ok(Source::Journal(Box::new(journal::read(file, bench).map_err(told)?)));
        }
        (read_trace(file, ROWS_MAX).map_err(told)?, Origin::Csv)
    };
    match args.samples {
        Some(_) if closed => Err(Error::settings(
            "--samples goes with --sampler only if there is no trace: of samples that it does not name no loss is known",
        )),
        Some(samples) => Ok(Source::Trace(trace.of_dataset(samples as usize)?, origin)),
        None => Ok(Source::Trace(trace, origin)),
    }
}

/// Samples, their bytes, and whether these are bytes.
fn dataset(source: &Source) -> (usize, u64, bool) {
    match source {
        Source::Trace(trace, _) => (trace.samples(), trace.total_bytes(), trace.has_sizes()),
        Source::Journal(journal) => (journal.samples, journal.total_bytes, true),
        Source::Planted(samples) => (*samples, *samples as u64, false),
    }
}

/// Every size that was asked for, as a part of the dataset and in bytes.
fn capacities(args: &ReplayArgs, source: &Source) -> Result<Vec<(f64, u64)>> {
    let none_asked = args.capacity_fraction.is_empty() && args.capacity.is_empty();
    let fractions = if none_asked { &FRACTIONS[..] } else { &args.capacity_fraction };
    let (_, total, _) = dataset(source);
    let shares = fractions.iter().map(|&share| match source {
        Source::Trace(trace, _) => Ok((share, trace.capacity(share)?)),
        _ => Ok((share, (share * total as f64).floor() as u64)),
    });
    let absolute = args.capacity.iter().map(|&bytes| Ok((bytes as f64 / total as f64, bytes)));
    shares.chain(absolute).collect()
}

/// What a reader of the numbers has to know, in sentences.
fn assumed(args: &ReplayArgs, source: &Source, samplers: &[Named], costs: Option<Costs>) -> Vec<String> {
    let mut assumed = Vec::new();
    let closed = !args.sampler.is_empty();
    match source {
        Source::Journal(_) => assumed.push("a capacity in percent is of the delivered samples' bytes".to_owned()),
        Source::Planted(_) => {}
        Source::Trace(trace, _) => {
            if args.samples.is_none() {
                let remedy = if closed { "" } else { " (--samples N says otherwise)" };
                assumed.push(format!("the dataset is the {} samples that the trace names{remedy}", trace.samples()));
            }
            if trace.has_sizes() && trace.unnamed() > 0 {
                let unnamed = trace.unnamed();
                assumed.push(format!("{unnamed} samples that no row names have the mean size of the others"));
            }
        }
    }
    let (_, _, sized) = dataset(source);
    if !sized {
        assumed.push("every sample takes 1: capacities are numbers of samples".to_owned());
    }
    match source {
        Source::Trace(_, Origin::Told(more)) => assumed.extend_from_slice(more),
        Source::Trace(..) if !closed => {
            assumed.push("a score is SHADE's rank in its batch, and the newest one is believed".to_owned());
        }
        _ => {}
    }
    if closed {
        assumed_of_samplers(&mut assumed, args, source, samplers);
    }
    if costs.is_some() && !sized {
        assumed.push("bandwidths are in samples a second".to_owned());
    }
    assumed
}

/// Assumptions of a run whose orders a sampler draws.
fn assumed_of_samplers(assumed: &mut Vec<String>, args: &ReplayArgs, source: &Source, samplers: &[Named]) {
    let from = match source {
        Source::Planted(_) => format!(
            "losses are a model's: planted difficulty and noise, times e^(-deliveries / {})",
            args.decay.unwrap_or(DECAY)
        ),
        _ => "a sample's loss is the last that the trace has of it by the end of that epoch".to_owned(),
    };
    assumed.push(from);
    if let Source::Trace(_, Origin::Journal(measured)) = source {
        assumed
            .push("samples that the run delivered without telling their size have the mean of the others".to_owned());
        if *measured == Measured::Score {
            assumed.push("the journal has no losses: its scores stand for them".to_owned());
        }
    }
    assumed.push("scores come at once; they are ranks for pads and shade, else losses".to_owned());
    let a_epoch = (dataset(source).0 as u64).div_ceil(u64::from(args.batch_size.unwrap_or(BATCH)));
    let batches = a_epoch * epochs(args, source);
    for (typed, sampler) in samplers {
        if let Some(lag) = sampler.buffer().filter(|options| options.by_score).map(|options| options.lag)
            && batches <= lag
        {
            assumed.push(format!(
                "{typed} counts scores after {lag} batches, so none counts in {batches}: give it a lag, or more batches"
            ));
        }
    }
}
