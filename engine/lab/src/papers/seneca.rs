//! Seneca's opportunistic sampling: who asks for what is not cached gets a cached sample that it has not seen.

use lossfeed_control::Result;
use lossfeed_control::random::{Purpose, below, generator, shuffle};

use super::claims::{Agrees, Claim, hit_ratios, mean, percent};

const SAMPLES: u32 = 20_000;
const RULE: &str = "Opportunistic sampling, Seneca's rule (as emulated before, by other code)";

/// Of the rule, for three jobs in step.
const fn hits(claim: &'static str, says: f64, note: &'static str, ours: fn() -> Result<f64>) -> Claim {
    Claim { paper: RULE, claim, says, agrees: Agrees::Within(1.0), note, ours }
}

/// Of the rule, for one sample delivered.
const fn reads(claim: &'static str, says: f64, note: &'static str, ours: fn() -> Result<f64>) -> Claim {
    Claim { paper: RULE, claim, says, agrees: Agrees::Within(0.015), note, ours }
}

pub(super) const CLAIMS: [Claim; 16] = [
    Claim {
        paper: "Seneca (Desai et al., FAST'26)",
        claim: "hits of three jobs in step, cache 20 %, %",
        says: 54.0,
        agrees: Agrees::Within(2.0),
        note: "Ours refills at once, as theirs does not. Hits do not depend on the number of jobs: one alone hits as much, \
               and reads all from the store. Three read 0.57 a sample; each sample fetched once for all would be 0.27.",
        ours: || Ok(hit(0.2, 3)),
    },
    hits(
        "hits, cache 20 %, %",
        64.0,
        "In closed form, for any number of jobs: until no unseen sample is cached.",
        || Ok(hit(0.2, 3)),
    ),
    hits("hits, cache 40 %, %", 86.0, "", || Ok(hit(0.4, 3))),
    hits("hits, cache 60 %, %", 97.0, "", || Ok(hit(0.6, 3))),
    hits("hits, cache 80 %, %", 100.0, "", || Ok(hit(0.8, 3))),
    reads("reads a sample, one job, cache 20 %", 1.0, "Who hits has a sample fetched in its place.", || {
        Ok(read(0.2, 1))
    }),
    reads("reads a sample, two jobs in step, cache 20 %", 0.68, "", || Ok(read(0.2, 2))),
    reads("reads a sample, three jobs in step, cache 20 %", 0.57, "", || Ok(read(0.2, 3))),
    reads("reads a sample, four jobs in step, cache 20 %", 0.52, "", || Ok(read(0.2, 4))),
    reads("reads a sample, three jobs in step, cache 40 %", 0.43, "", || Ok(read(0.4, 3))),
    reads("reads a sample, three jobs in step, cache 60 %", 0.36, "", || Ok(read(0.6, 3))),
    reads("reads a sample, three jobs in step, cache 80 %", 0.33, "", || Ok(read(0.8, 3))),
    reads(
        "the bound (1 - c)/J, two jobs in step, cache 20 %",
        0.40,
        "What is not cached is fetched once for all.",
        || once_for_all(0.2, 2),
    ),
    reads("the bound, three jobs", 0.267, "", || once_for_all(0.2, 3)),
    reads("the bound, four jobs", 0.2, "", || once_for_all(0.2, 4)),
    Claim {
        paper: RULE,
        claim: "its reads over the bound, three jobs, cache 20 %, times",
        says: 1.0,
        agrees: Agrees::Above,
        note: "",
        ours: || Ok(read(0.2, 3) / once_for_all(0.2, 3)?),
    },
];

fn hit(cached: f64, jobs: usize) -> f64 {
    percent(opportunistic(SAMPLES, cached, jobs).0)
}

fn read(cached: f64, jobs: usize) -> f64 {
    opportunistic(SAMPLES, cached, jobs).1
}

/// Reads a sample of jobs that take the same order at the same time, over a cache that evicts nobody: one asks for
/// what is not there, and all get it.
fn once_for_all(cached: f64, jobs: u32) -> Result<f64> {
    Ok((1.0 - mean(&hit_ratios("minio", false, SAMPLES, cached, 4)?[1..])) / f64::from(jobs))
}

/// A cached sample that every job has used since it came gives way, at once, to a random one that is not cached.
/// `jobs` ask in turn, a sample each, in orders of their own. Answers the part of what was asked for that a cached sample
/// answered, and the reads from the store, refills included, for each sample delivered.
fn opportunistic(samples: u32, cached: f64, jobs: usize) -> (f64, f64) {
    let mut rng = generator(7, 0, 0, Purpose::Order);
    let count = samples as usize;
    let room = (cached * f64::from(samples)).round() as usize;
    let mut ids: Vec<u32> = (0..samples).collect();
    // The first `room` of them are cached; `place` says where each is.
    shuffle(&mut ids, &mut rng);
    let mut place = vec![0usize; count];
    ids.iter().enumerate().for_each(|(at, &id)| place[id as usize] = at);
    let mut uses = vec![0usize; room];
    let mut seen = vec![vec![false; count]; jobs];
    let mut usable = vec![room; jobs];
    let mut orders: Vec<Vec<u32>> = Vec::new();
    for _ in 0..jobs {
        let mut order: Vec<u32> = (0..samples).collect();
        shuffle(&mut order, &mut rng);
        orders.push(order);
    }
    let (mut hits, mut reads) = (0u64, 0u64);
    for _ in 0..count {
        for job in 0..jobs {
            while orders[job].last().is_some_and(|&id| seen[job][id as usize]) {
                orders[job].pop();
            }
            let Some(&asked) = orders[job].last() else { continue };
            let given = if place[asked as usize] < room {
                asked
            } else if usable[job] > 0 {
                loop {
                    let id = ids[below(&mut rng, room as u32) as usize];
                    if !seen[job][id as usize] {
                        break id;
                    }
                }
            } else {
                reads += 1;
                seen[job][asked as usize] = true;
                continue;
            };
            hits += 1;
            seen[job][given as usize] = true;
            usable[job] -= 1;
            let at = place[given as usize];
            uses[at] += 1;
            if uses[at] == jobs && room < count {
                let other = room + below(&mut rng, samples - room as u32) as usize;
                ids.swap(at, other);
                place[ids[at] as usize] = at;
                place[ids[other] as usize] = other;
                uses[at] = 0;
                reads += 1;
                let came = ids[at] as usize;
                seen.iter().zip(&mut usable).for_each(|(seen, usable)| *usable += usize::from(!seen[came]));
            }
        }
    }
    let delivered = (count * jobs) as f64;
    (hits as f64 / delivered, reads as f64 / delivered)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One job: its unseen residents are 1 − t − (1 − c) exp(−t / (1 − c)) after a part t of the epoch, and it hits
    /// until there are none.
    #[test]
    fn one_job_hits_as_the_closed_form_says_and_reads_everything() {
        for (cached, hits) in [(0.2, 0.64), (0.4, 0.86), (0.6, 0.965), (0.8, 0.999)] {
            let (found, reads) = opportunistic(20_000, cached, 1);
            let unseen = |t: f64| 1.0 - t - (1.0 - cached) * (-t / (1.0 - cached)).exp();
            assert!(unseen(hits - 0.02) > 0.0 && unseen((hits + 0.02).min(1.0)) < 0.0, "{cached}");
            assert!((found - hits).abs() < 0.015 && (reads - 1.0).abs() < 1e-9, "{cached}: {found} {reads}");
        }
    }

    #[test]
    fn more_jobs_hit_as_much_and_read_less_but_more_than_once_for_all() {
        for (jobs, reads) in [(1, 1.0), (2, 0.68), (3, 0.57), (4, 0.52)] {
            let (hits, found) = opportunistic(20_000, 0.2, jobs);
            assert!((found - reads).abs() < 0.015 && found > 0.8 / jobs as f64, "{jobs}: {found}");
            assert!((hits - 0.64).abs() < 0.015, "{jobs}: {hits}");
        }
    }
}
