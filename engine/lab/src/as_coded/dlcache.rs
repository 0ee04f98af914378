//! What DLCache's public simulation of cache policies does, whatever its paper says.
//!
//! Four datasets lie in a bucket as a few dozen files. Training jobs come one after the other, each reads the files of
//! one dataset in their order, and a file that is not in the cache is fetched for as many seconds as that once took.
//! Kept as the code has them, because they move the number: a file's uses are remembered after it was evicted; ages are
//! seconds of the simulation's *own* running time, which are next to nothing; what is equal by all that a rule asks
//! gives way in the order in which it came; and LFU alone evicts where a file would fill the cache to the last byte.

use lossfeed_control::random::{Purpose, generator, shuffle, unit};
use rand_chacha::ChaCha8Rng;

/// A file, which is fetched and evicted whole.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DlcacheFile {
    /// Its size.
    pub bytes: u64,
    /// Seconds that one process took to fetch it.
    pub cost_s: f64,
}

/// Which file gives way first: the one with the least of what is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DlcacheRule {
    /// Least recently used.
    Lru,
    /// Uses since it came, and of equals the least recently used.
    Lfu,
    /// Uses ever, each counting the less the older it is.
    Lrfu,
    /// Whichever.
    Random,
    /// Cost.
    Greedy,
    /// As [`Lrfu`](Self::Lrfu), and of equals the cheapest.
    Clrfu,
    /// As [`Lrfu`](Self::Lrfu), and of equals the one that came last. Nobody's: the control of what costs are worth.
    Newest,
}

/// p and step of LRFU: a use counts (1/p)^(step · age).
const ATTENUATION: f64 = 2.0;
const STEP: f64 = 0.5;

/// One setting of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DlcacheAsCoded<'a> {
    /// The files of the dataset that is read whole by several jobs, of the one that jobs share, of the one of which
    /// each job reads the newest files, and of the one that is read once.
    pub datasets: [&'a [DlcacheFile]; 4],
    /// Bytes of cache.
    pub capacity: u64,
    /// Jobs that read the first dataset.
    pub reuses: usize,
    /// Jobs that read the second, each of them every file so many times in a row.
    pub shares: usize,
    /// How many files a job on the third reads beside the newest; the next job begins one file later.
    pub window: usize,
    /// Who gives way.
    pub rule: DlcacheRule,
    /// Age of a use when the next job begins; the code's is what the simulation of a job took.
    pub job_s: f64,
    /// Costs are seen by the rule in whole steps of so many seconds; as they are if it is 0.
    pub cost_step_s: f64,
}

impl DlcacheAsCoded<'_> {
    /// Processes that fetch a file together: its cost is divided by them.
    pub const PROCESSES: f64 = 8.0;

    /// The dataset of each job, in an order drawn by (seed, number).
    pub fn order(&self, seed: u64, number: u64) -> Vec<usize> {
        let windows = self.datasets[2].len().saturating_sub(self.window);
        let jobs = [self.reuses, self.shares, windows, 1];
        let mut order: Vec<usize> = jobs.iter().enumerate().flat_map(|(set, &jobs)| vec![set; jobs]).collect();
        shuffle(&mut order, &mut generator(seed, number, 0, Purpose::Order));
        order
    }

    /// The files that each job of this order reads, numbered through all datasets.
    pub fn jobs(&self, order: &[usize]) -> Vec<Vec<u32>> {
        let mut windows = 0..;
        let begins = |set: usize| self.datasets[..set].iter().map(|files| files.len() as u32).sum::<u32>();
        let mut job = |&set: &usize| {
            let (first, files) = (begins(set), self.datasets[set].len() as u32);
            match set {
                1 => (first..first + files).flat_map(|file| vec![file; self.shares]).collect(),
                2 => {
                    let first = first + windows.next().unwrap_or(0);
                    (first..=first + self.window as u32).collect()
                }
                _ => (first..first + files).collect(),
            }
        };
        order.iter().map(&mut job).collect()
    }

    /// Seconds of fetching in all. `random` is asked by [`DlcacheRule::Random`] alone.
    pub fn run(&self, jobs: &[Vec<u32>], random: &mut ChaCha8Rng) -> f64 {
        let files = self.datasets.concat();
        let mut cache = CodedCache { known: vec![Known::default(); files.len()], ..Default::default() };
        let mut fetched_s = 0.0;
        for (number, job) in jobs.iter().enumerate() {
            cache.weight = ATTENUATION.powf(STEP * (number + 1) as f64 * self.job_s);
            for &file in job {
                let place = file as usize;
                if !cache.known[place].cached {
                    fetched_s += files[place].cost_s / Self::PROCESSES;
                    self.make_room(&mut cache, &files, files[place].bytes, random);
                    cache.enter(file, files[place].bytes);
                }
                cache.use_now(place);
            }
        }
        fetched_s
    }

    fn make_room(&self, cache: &mut CodedCache, files: &[DlcacheFile], bytes: u64, random: &mut ChaCha8Rng) {
        let most = if self.rule == DlcacheRule::Lfu { self.capacity.saturating_sub(1) } else { self.capacity };
        if cache.bytes + bytes <= most {
            return;
        }
        let keyed = cache.came.iter().map(|&file| (self.key(cache, files, file as usize, random), file));
        let mut keyed: Vec<([f64; 2], u32)> = keyed.collect();
        while cache.bytes + bytes > most {
            // The first of equals: what is cached stands in the order in which it came.
            let least = (0..keyed.len()).min_by(|&a, &b| {
                let ([a, a_then], [b, b_then]) = (keyed[a].0, keyed[b].0);
                a.total_cmp(&b).then(a_then.total_cmp(&b_then))
            });
            let Some(least) = least else { return };
            let (_, victim) = keyed.remove(least);
            cache.evict(victim, files[victim as usize].bytes);
        }
    }

    /// The least gives way.
    fn key(&self, cache: &CodedCache, files: &[DlcacheFile], file: usize, random: &mut ChaCha8Rng) -> [f64; 2] {
        let known = &cache.known[file];
        let cost = files[file].cost_s;
        let cost = if self.cost_step_s > 0.0 { (cost / self.cost_step_s).round() } else { cost };
        match self.rule {
            DlcacheRule::Lru => [known.used as f64, 0.0],
            DlcacheRule::Lfu => [known.uses as f64, known.used as f64],
            DlcacheRule::Lrfu => [known.crf, 0.0],
            DlcacheRule::Random => [unit(random), 0.0],
            DlcacheRule::Greedy => [cost, 0.0],
            DlcacheRule::Clrfu => [known.crf, cost],
            DlcacheRule::Newest => [known.crf, -(known.came as f64)],
        }
    }
}

/// What is known of a file.
#[derive(Debug, Clone, Default)]
struct Known {
    cached: bool,
    /// Which of all that came it was, when it came last.
    came: u64,
    /// Uses since then.
    uses: u64,
    /// Which of all uses its last one was.
    used: u64,
    /// Σ p^(step · time) over all its uses ever: at any time in the same proportion to another file's as LRFU's
    /// Σ (1/p)^(step · age).
    crf: f64,
}

#[derive(Debug, Default)]
struct CodedCache {
    known: Vec<Known>,
    /// What is cached, in the order in which it came.
    came: Vec<u32>,
    bytes: u64,
    /// p^(step · now).
    weight: f64,
    all_came: u64,
    all_uses: u64,
}

impl CodedCache {
    fn enter(&mut self, file: u32, bytes: u64) {
        self.all_came += 1;
        let known = &mut self.known[file as usize];
        (known.cached, known.came, known.uses) = (true, self.all_came, 0);
        self.came.push(file);
        self.bytes += bytes;
    }
    fn evict(&mut self, file: u32, bytes: u64) {
        self.known[file as usize].cached = false;
        self.came.retain(|&other| other != file);
        self.bytes -= bytes;
    }
    fn use_now(&mut self, file: usize) {
        self.all_uses += 1;
        let known = &mut self.known[file];
        known.uses += 1;
        known.used = self.all_uses;
        known.crf += self.weight;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn file(cost_s: f64) -> DlcacheFile {
        DlcacheFile { bytes: 10, cost_s }
    }

    /// Files 0 and 1, 2, 3 to 5, and 6.
    const DATASETS: [&[DlcacheFile]; 4] =
        [&[file(24.0), file(8.0)], &[file(16.0)], &[file(8.0), file(8.0), file(8.0)], &[file(8.0)]];

    fn setting(rule: DlcacheRule, job_s: f64, cost_step_s: f64) -> DlcacheAsCoded<'static> {
        DlcacheAsCoded { datasets: DATASETS, capacity: 29, reuses: 1, shares: 2, window: 1, rule, job_s, cost_step_s }
    }

    #[test]
    fn jobs_read_whole_datasets_one_in_shares_and_one_by_a_window() {
        let setting = setting(DlcacheRule::Lru, 0.0, 0.0);
        let mut order = setting.order(1, 2);
        assert_eq!(order, setting.order(1, 2));
        order.sort_unstable();
        assert_eq!(order, [0, 1, 1, 2, 2, 3]);
        let jobs = setting.jobs(&[2, 0, 1, 2, 3]);
        assert_eq!(jobs, [vec![3, 4], vec![0, 1], vec![2, 2], vec![4, 5], vec![6]]);
    }

    /// Room for two of the files that cost 3, 1 and 2 s to eight processes.
    #[test]
    fn rules_let_go_whom_they_name() {
        use DlcacheRule::{Clrfu, Greedy, Lfu, Lrfu, Lru, Newest};
        let fetched_s = |rule, job_s, step, files: &[u32]| {
            let jobs: Vec<Vec<u32>> = files.iter().map(|&file| vec![file]).collect();
            setting(rule, job_s, step).run(&jobs, &mut generator(1, 0, 0, Purpose::Draw))
        };
        for (rule, job_s, step, lets_go) in [
            (Lru, 1.0, 0.0, 0),
            (Lfu, 1.0, 0.0, 0),
            (Lrfu, 1.0, 0.0, 0),
            // Without ages all counts are equal: the first that came, the cheapest, the newest.
            (Lrfu, 0.0, 0.0, 0),
            (Clrfu, 0.0, 0.0, 1),
            (Newest, 0.0, 0.0, 1),
            (Greedy, 1.0, 0.0, 1),
            // Costs of 24 and 8 s in steps of 100 s are equal too.
            (Clrfu, 0.0, 100.0, 0),
            // With ages the older use counts less, and nobody asks for costs.
            (Clrfu, 1.0, 0.0, 0),
        ] {
            assert_eq!(fetched_s(rule, job_s, step, &[0, 1, 2]), 6.0);
            let again = if lets_go == 0 { 3.0 } else { 0.0 };
            assert_eq!(fetched_s(rule, job_s, step, &[0, 1, 2, 0]), 6.0 + again, "{rule:?} {job_s} {step}");
        }
        // 1 goes for 2. Back again it has two uses for LRFU, as many as 0, which came first; for LFU it has one.
        for (rule, takes_s) in [(Lru, 9.0), (Lfu, 9.0), (Lrfu, 12.0)] {
            assert_eq!(fetched_s(rule, 0.0, 0.0, &[0, 0, 1, 2, 1, 2, 0]), takes_s, "{rule:?}");
        }
    }

    #[test]
    fn lfu_alone_does_not_fill_the_cache_to_the_last_byte() {
        for (rule, takes_s) in [(DlcacheRule::Lru, 4.0), (DlcacheRule::Lfu, 7.0)] {
            let setting = DlcacheAsCoded { capacity: 20, ..setting(rule, 0.0, 0.0) };
            assert_eq!(setting.run(&[vec![0, 1, 0]], &mut generator(1, 0, 0, Purpose::Draw)), takes_s, "{rule:?}");
        }
    }
}
