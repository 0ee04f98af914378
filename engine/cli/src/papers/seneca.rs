//! Seneca's opportunistic sampling: who asks for what is not cached gets a cached sample that it has not seen.

use lossfeed_control::random::{Purpose, below, generator, shuffle};

use super::claims::{Claim, percent};

pub(super) const CLAIMS: [Claim; 1] = [Claim {
    paper: "Seneca (Desai et al., FAST'26)",
    claim: "hits of three jobs in step, cache 20 %, %",
    says: 54.0,
    within: 2.0,
    note: "Ours refills at once, as theirs does not. Hits do not depend on the number of jobs: one alone hits as much, \
           and reads all from the store. Three read 0.57 a sample; each sample fetched once for all would be 0.27.",
    ours: || Ok(percent(opportunistic(20_000, 0.2, 3).0)),
}];

/// A cached sample that every job has used since it came gives way, at once, to a random one that is not cached.
/// `jobs` ask in turn, a sample each, in orders of their own. The part of an epoch that a cached sample answered, and
/// the reads from the store, refills included, for each sample delivered.
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
            let unseen = |t: f64| 1.0 - t - (1.0 - cached) * (-t / (1.0 - cached)).exp();
            assert!(unseen(hits - 0.02) > 0.0 && unseen((hits + 0.02).min(1.0)) < 0.0, "{cached}");
            let found = opportunistic(20_000, cached, 1);
            assert!((found.0 - hits).abs() < 0.015, "{cached}: {found:?}");
            assert!((found.1 - 1.0).abs() < 1e-9, "{cached}: {found:?}");
        }
    }

    #[test]
    fn more_jobs_hit_as_much_and_read_less_but_more_than_once_for_all() {
        for (jobs, reads) in [(1, 1.0), (2, 0.68), (3, 0.57), (4, 0.52)] {
            let found = opportunistic(20_000, 0.2, jobs);
            assert!((found.1 - reads).abs() < 0.015 && found.1 > 0.8 / jobs as f64, "{jobs}: {found:?}");
            assert!((found.0 - 0.64).abs() < 0.015, "{jobs}: {found:?}");
        }
    }
}
