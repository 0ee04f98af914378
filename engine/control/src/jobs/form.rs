//! In which form to cache: as stored, decoded, or augmented.
//!
//! A form that is nearer to the batch saves more CPU time a hit, takes more room, and may answer fewer reads: what
//! chance has touched is stale after one use. Which one pays depends on what is short, processors or the link. Seneca
//! (FAST'26) asks this for encoded, decoded and augmented samples, HyCache (ATC'25) for every stage of a pipeline.
//!
//! The question is the division of a cache among pieces once more: going from one form to the next one on the concave
//! hull is a piece, with its bytes and what it saves, and the steepest pieces come first. Processors and link work at
//! once, so what counts is the busier of the two. For given prices of both the division is exact; the prices at which
//! neither is busier are found by bisection, as in a linear program's dual. No integer program is solved: shares of a
//! dataset are real numbers, so the answer is off by at most a few samples.

use serde::{Deserialize, Serialize};

use super::{above_zero, amount};
use crate::error::{Error, Result};

/// One way to keep a sample, per sample.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Form {
    /// What it is called: encoded, decoded, augmented.
    pub name: String,
    /// Bytes it takes in the cache.
    pub bytes: f64,
    /// CPU seconds that a hit saves.
    pub cpu_s_saved: f64,
    /// Bytes that a hit does not fetch.
    pub fetch_bytes_saved: f64,
    /// Reads an epoch that one cached sample answers, of all jobs together.
    pub reuse: f64,
}

/// Samples of one kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Samples {
    /// What they are called.
    pub name: String,
    /// How many there are.
    pub count: f64,
    /// How often each is read an epoch, by all jobs together.
    pub reads: f64,
    /// CPU seconds of a read that the cache does not answer.
    pub cpu_s: f64,
    /// Bytes that such a read fetches.
    pub fetch_bytes: f64,
    /// The forms to choose from; not to cache is always one more.
    pub forms: Vec<Form>,
}

/// What there is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Means {
    /// Bytes of cache.
    pub cache_bytes: f64,
    /// Bytes a second from the store.
    pub bandwidth_bytes_per_s: f64,
    /// CPU seconds a second.
    pub cores: f64,
}

/// What is cached in which form.
#[derive(Debug, Clone, PartialEq)]
pub struct Forms {
    /// By samples and form: the part of the samples that is kept so.
    pub shares: Vec<Vec<f64>>,
    /// How long the processors work an epoch, in seconds.
    pub cpu_s: f64,
    /// How long the link works an epoch, in seconds.
    pub link_s: f64,
}

impl Forms {
    /// How long an epoch takes at least, in seconds.
    pub fn epoch_s(&self) -> f64 {
        self.cpu_s.max(self.link_s)
    }
}

/// Halvings of the interval in which the price of CPU time lies: past them a float64 does not change.
const HALVINGS: u32 = 60;

/// Chooses forms so that the busier of processors and link is done soonest.
///
/// # Errors
/// `Settings` for a number that is negative or not finite, no processor or link, samples without bytes or number, and a
/// form that saves more than a read costs or answers more reads than there are.
pub fn choose_forms(means: Means, samples: &[Samples]) -> Result<Forms> {
    check(means, samples)?;
    let at = |price| forms(means, samples, shares(means, samples, price));
    // At price 0 the link works as little as it can, at 1 the processors do.
    let (mut low, mut high) = (0.0, 1.0);
    let (mut cpu_busier, mut link_busier) = (at(low), at(high));
    if cpu_busier.cpu_s <= cpu_busier.link_s {
        return Ok(cpu_busier);
    }
    if link_busier.link_s <= link_busier.cpu_s {
        return Ok(link_busier);
    }
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        let found = at(middle);
        if found.cpu_s > found.link_s {
            (low, cpu_busier) = (middle, found)
        } else {
            (high, link_busier) = (middle, found)
        }
    }
    // Both are best at the same price, so what lies between them is too: where both work equally long.
    let (over, under) = (cpu_busier.cpu_s - cpu_busier.link_s, link_busier.link_s - link_busier.cpu_s);
    let part = under / (over + under);
    let mix = |(a, b): (&f64, &f64)| part * a + (1.0 - part) * b;
    let rows = cpu_busier.shares.iter().zip(&link_busier.shares);
    Ok(forms(means, samples, rows.map(|(a, b)| a.iter().zip(b).map(mix).collect()).collect()))
}

fn check(means: Means, samples: &[Samples]) -> Result<()> {
    amount("the cache", means.cache_bytes, "bytes")?;
    above_zero("the link", means.bandwidth_bytes_per_s, "bytes a second")?;
    above_zero("the machine", means.cores, "cores")?;
    for of in samples {
        let name = format!("dataset {}", of.name);
        above_zero(&name, of.count, "samples")?;
        amount(&name, of.reads, "reads of a sample")?;
        amount(&name, of.cpu_s, "CPU seconds a read")?;
        amount(&name, of.fetch_bytes, "bytes a read")?;
        for form in &of.forms {
            let name = format!("form {} of {name}", form.name);
            above_zero(&name, form.bytes, "bytes")?;
            let limits = [
                ("CPU seconds saved", form.cpu_s_saved, of.cpu_s),
                ("bytes saved", form.fetch_bytes_saved, of.fetch_bytes),
                ("reads answered", form.reuse, of.reads),
            ];
            for (what, value, most) in limits {
                amount(&name, value, what)?;
                if value > most {
                    return Err(Error::settings(format!("{name} has {value} {what}: there are {most}")));
                }
            }
        }
    }
    Ok(())
}

fn forms(means: Means, samples: &[Samples], shares: Vec<Vec<f64>>) -> Forms {
    let (mut cpu, mut bytes) = (0.0, 0.0);
    for (of, shares) in samples.iter().zip(&shares) {
        let saved = |what: fn(&Form) -> f64| -> f64 {
            of.forms.iter().zip(shares).map(|(form, share)| share * form.reuse * what(form)).sum()
        };
        cpu += of.count * (of.reads * of.cpu_s - saved(|form| form.cpu_s_saved)).max(0.0);
        bytes += of.count * (of.reads * of.fetch_bytes - saved(|form| form.fetch_bytes_saved)).max(0.0);
    }
    Forms { shares, cpu_s: cpu / means.cores, link_s: bytes / means.bandwidth_bytes_per_s }
}

/// One step along a hull: some samples go from one form, or none, to a larger one.
#[derive(Debug)]
struct Step {
    of: usize,
    from: Option<usize>,
    to: usize,
    bytes: f64,
    slope: f64,
}

/// The best shares if a second of all processors is worth `price` and one of the link 1 − `price`.
fn shares(means: Means, samples: &[Samples], price: f64) -> Vec<Vec<f64>> {
    let worth = |form: &Form| {
        let cpu = price * form.cpu_s_saved / means.cores;
        form.reuse * (cpu + (1.0 - price) * form.fetch_bytes_saved / means.bandwidth_bytes_per_s)
    };
    let mut steps: Vec<Step> = Vec::new();
    for (number, of) in samples.iter().enumerate() {
        let (mut last, mut at) = (None, (0.0, 0.0));
        // From the form that was reached to the steepest of those that are worth more.
        loop {
            let next = of.forms.iter().enumerate().filter(|(_, form)| form.bytes > at.0 && worth(form) > at.1);
            let slope = |form: &Form| (worth(form) - at.1) / (form.bytes - at.0);
            // Of forms on one line the largest, so that no step is of no length.
            let key = |form: &Form| (slope(form), form.bytes);
            let best = next.max_by(|a, b| {
                let (a, b) = (key(a.1), key(b.1));
                a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1))
            });
            let Some((to, form)) = best else { break };
            let (bytes, slope) = (of.count * (form.bytes - at.0), slope(form));
            steps.push(Step { of: number, from: last, to, bytes, slope });
            (last, at) = (Some(to), (form.bytes, worth(form)));
        }
    }
    // Stable: the steps of one dataset stay in their order.
    steps.sort_by(|a, b| b.slope.total_cmp(&a.slope));
    let mut left = means.cache_bytes;
    let mut shares: Vec<Vec<f64>> = samples.iter().map(|of| vec![0.0; of.forms.len()]).collect();
    for Step { of, from, to, bytes, .. } in steps {
        let part = (left / bytes).min(1.0);
        if part <= 0.0 {
            break;
        }
        shares[of][to] = part;
        if let Some(from) = from {
            shares[of][from] -= part;
        }
        left -= part * bytes;
    }
    shares
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn form(name: &str, bytes: f64, cpu_s_saved: f64, fetch_bytes_saved: f64, reuse: f64) -> Form {
        Form { name: name.to_owned(), bytes, cpu_s_saved, fetch_bytes_saved, reuse }
    }

    /// 100 pictures of 1 byte as stored and 5 decoded; a read costs 1 s of CPU, of which 0.8 are decoding.
    fn pictures() -> Samples {
        let forms = vec![form("encoded", 1.0, 0.0, 1.0, 2.0), form("decoded", 5.0, 0.8, 1.0, 2.0)];
        Samples { name: "pictures".to_owned(), count: 100.0, reads: 2.0, cpu_s: 1.0, fetch_bytes: 1.0, forms }
    }

    fn means(cache_bytes: f64, bandwidth_bytes_per_s: f64, cores: f64) -> Means {
        Means { cache_bytes, bandwidth_bytes_per_s, cores }
    }

    #[test]
    fn a_slow_link_wants_small_forms_and_slow_processors_large_ones() {
        let slow_link = choose_forms(means(100.0, 0.1, 1000.0), &[pictures()]).unwrap();
        assert!(slow_link.shares[0][0] > 0.999 && slow_link.epoch_s() <= 0.2, "{slow_link:?}");
        let slow_cpu = choose_forms(means(100.0, 1e6, 1.0), &[pictures()]).unwrap();
        assert!((slow_cpu.shares[0][1] - 0.2).abs() < 1e-12 && slow_cpu.shares[0][0] == 0.0, "{slow_cpu:?}");
        assert!((slow_cpu.epoch_s() - (200.0 - 0.2 * 160.0)).abs() < 1e-9);
    }

    /// Both at work: with e encoded and d decoded, e + 5 d = 1, the link takes 2 (1 - e - d) 100 s and the processors
    /// (2 - 1.6 d) 100 / 1.25 s. They are equal at 8 d = 160 - 128 d of a hundredth, so d = 160 / 928.
    #[test]
    fn between_the_two_neither_is_busier() {
        let found = choose_forms(means(100.0, 1.0, 1.25), &[pictures()]).unwrap();
        let d = 160.0 / (800.0 + 128.0);
        assert!((found.shares[0][1] - d).abs() < 1e-9 && (found.shares[0][0] - (1.0 - 5.0 * d)).abs() < 1e-9);
        assert!((found.cpu_s - found.link_s).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn numbers_that_mean_nothing_are_refused_with_the_place() {
        let refused = |change: fn(&mut Samples), says: &str| {
            let mut of = pictures();
            change(&mut of);
            let error = choose_forms(means(1.0, 1.0, 1.0), &[of]).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        };
        refused(|of| of.count = 0.0, "dataset pictures has 0 samples");
        refused(|of| of.cpu_s = f64::NAN, "NaN CPU seconds");
        refused(|of| of.forms[0].bytes = 0.0, "form encoded of dataset pictures has 0 bytes");
        refused(|of| of.forms[1].cpu_s_saved = 1.5, "1.5 CPU seconds saved: there are 1");
        refused(|of| of.forms[1].reuse = 3.0, "3 reads answered: there are 2");
        for bad in [means(-1.0, 1.0, 1.0), means(1.0, 0.0, 1.0), means(1.0, 1.0, f64::INFINITY)] {
            assert!(choose_forms(bad, &[pictures()]).is_err(), "{bad:?}");
        }
    }

    /// One or two datasets of one to three samples, up to three forms each.
    fn small() -> impl Strategy<Value = (Means, Vec<Samples>)> {
        let form = (1..6u32, 0..=4u32, 0..=4u32, 0..=3u32);
        let of = (1..=3u32, prop::collection::vec(form, 0..=3));
        (prop::collection::vec(of, 1..=2), 0..14u32, 1..5u32, 1..5u32).prop_map(|(rows, cache, link, cores)| {
            let samples = rows.into_iter().map(|(count, forms)| Samples {
                name: String::new(),
                count: count.into(),
                reads: 3.0,
                cpu_s: 4.0,
                fetch_bytes: 4.0,
                forms: forms
                    .into_iter()
                    .map(|(bytes, cpu, fetch, reuse)| {
                        self::form("", bytes.into(), cpu.into(), fetch.into(), reuse.into())
                    })
                    .collect(),
            });
            (means(cache.into(), link.into(), cores.into()), samples.collect())
        })
    }

    proptest! {
        /// Every sample in every form, or in none: whole samples are never better, and the best of them is at most
        /// two samples worse, as a division has at most two broken ones.
        #[test]
        fn brute_force_is_never_better((means, samples) in small()) {
            let found = choose_forms(means, &samples).unwrap();
            let whole: Vec<usize> =
                samples.iter().enumerate().flat_map(|(of, s)| std::iter::repeat_n(of, s.count as usize)).collect();
            let options: Vec<usize> = whole.iter().map(|&of| samples[of].forms.len() + 1).collect();
            let mut best = f64::INFINITY;
            for code in 0..options.iter().product::<usize>() {
                let (mut code, mut bytes) = (code, 0.0);
                let mut shares: Vec<Vec<f64>> = samples.iter().map(|of| vec![0.0; of.forms.len()]).collect();
                for (&of, &options) in whole.iter().zip(&options) {
                    let choice = code % options;
                    code /= options;
                    if let Some(form) = choice.checked_sub(1) {
                        bytes += samples[of].forms[form].bytes;
                        shares[of][form] += 1.0 / samples[of].count;
                    }
                }
                if bytes <= means.cache_bytes {
                    best = best.min(forms(means, &samples, shares).epoch_s());
                }
            }
            let a_sample = 12.0 / means.cores.min(means.bandwidth_bytes_per_s);
            prop_assert!(found.epoch_s() <= best + 1e-9, "{found:?} {best}");
            prop_assert!(best <= found.epoch_s() + 2.0 * a_sample + 1e-9, "{found:?} {best}");
            let used = |(of, shares): (&Samples, &Vec<f64>)| -> f64 {
                of.forms.iter().zip(shares).map(|(form, share)| of.count * share * form.bytes).sum()
            };
            prop_assert!(samples.iter().zip(&found.shares).map(used).sum::<f64>() <= means.cache_bytes + 1e-9);
            for shares in &found.shares {
                prop_assert!(shares.iter().all(|share| (-1e-12..=1.0 + 1e-12).contains(share)));
                prop_assert!(shares.iter().sum::<f64>() <= 1.0 + 1e-9);
            }
        }
    }
}
