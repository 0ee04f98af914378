//! `lossfeed replay` of a journal: the run itself first, then what other policies and sizes would have made of it.

use std::io::{self, Read, Write};

use lossfeed_control::Result;
use lossfeed_control::sim::Replay;
use lossfeed_journal::{Ending, Limits, Recording, replay};
use serde::Serialize;

use crate::parallel::in_parallel;

/// The recorded run, and the same policy and capacity replayed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Run {
    policy: String,
    capacity_bytes: u64,
    /// Of the dataset, delivered or not.
    samples: u64,
    /// As the run counted them.
    hits: u64,
    misses: u64,
    /// As the replay counts them.
    replayed_hits: u64,
    replayed_misses: u64,
    /// Accesses on which the two differ: 0 unless the journal has gaps.
    differing: u64,
    /// Rows that the run could not write.
    lost_rows: u64,
    /// Whether the run closed its journal.
    complete: bool,
}

/// What [`crate::replay`] reports of a journal.
pub(crate) struct Journal {
    pub(crate) run: Run,
    pub(crate) requests: usize,
    pub(crate) samples: usize,
    pub(crate) results: Vec<Replay>,
}

/// Reads the journal and replays it: every policy at every share of the delivered samples' bytes, and at every capacity
/// in bytes.
pub(crate) fn read(file: impl Read, policies: &[String], fractions: &[f64], capacities: &[u64]) -> Result<Journal> {
    let recording = Recording::read(file, Limits::default())?;
    let (hits, misses) = recording.counted();
    let meta = &recording.meta;
    let same = replay(&recording, &meta.policy, meta.capacity_bytes)?;
    let run = Run {
        policy: meta.policy.clone(),
        capacity_bytes: meta.capacity_bytes,
        samples: meta.samples,
        hits,
        misses,
        replayed_hits: same.hits,
        replayed_misses: same.misses,
        differing: same.otherwise,
        lost_rows: recording.lost(),
        complete: recording.ending == Ending::Closed,
    };
    let total = recording.delivered_bytes();
    let shares = fractions.iter().map(|&share| (share, (share * total as f64).floor() as u64));
    let absolute = capacities.iter().map(|&bytes| (bytes as f64 / total as f64, bytes));
    let sizes: Vec<(f64, u64)> = shares.chain(absolute).collect();
    let one = |&(policy, (capacity_fraction, capacity_bytes)): &(&String, (f64, u64))| {
        let name = if policy == "app" { "shade" } else { policy };
        let found = replay(&recording, name, capacity_bytes)?;
        Ok(Replay {
            policy: policy.clone(),
            capacity_fraction,
            capacity_bytes,
            hits: found.hits,
            misses: found.misses,
            hit_ratio: found.hits as f64 / (found.hits + found.misses) as f64,
            substituted: None,
        })
    };
    let asked: Vec<_> = policies.iter().flat_map(|policy| sizes.iter().map(move |&size| (policy, size))).collect();
    let results = in_parallel(&asked, one).into_iter().collect::<Result<_>>()?;
    let requests = usize::try_from(hits + misses).unwrap_or(usize::MAX);
    Ok(Journal { run, requests, samples: recording.delivered(), results })
}

impl Run {
    /// In a few lines for people.
    pub(crate) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(
            out,
            "the run: {} with {} bytes for a dataset of {} samples: {} hits, {} misses",
            self.policy, self.capacity_bytes, self.samples, self.hits, self.misses
        )?;
        if self.differing == 0 {
            writeln!(out, "replayed: the same, access by access")?;
        } else {
            writeln!(
                out,
                "replayed: {} hits, {} misses, {} accesses differ",
                self.replayed_hits, self.replayed_misses, self.differing
            )?;
        }
        if !self.complete {
            writeln!(out, "the run did not close its journal: its end is missing")?;
        }
        if self.lost_rows > 0 {
            writeln!(out, "{} rows are missing: the disk was slower than the run", self.lost_rows)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{ReplayArgs, TraceFormat};

    const JOURNAL: &str = "# {\"lossfeed-journal\":1,\"samples\":9,\"capacity_bytes\":20,\"policy\":\"lru\",\"smoothing\":0}\n\
        event,epoch,step,row,id,drawn,verdict,bytes,weight,score,loss,gradient_norm\n\
        begin,0,0,,,,,,,,,\ndecide,0,0,0,1,1,keep,10,1,,,\ndecide,0,0,1,2,2,keep,10,1,,,\n\
        decide,0,1,0,1,1,hit,10,1,,,\ndecide,0,1,1,3,3,keep,10,1,,,\ndecide,0,2,0,1,1,hit,10,1,,,\n";

    #[test]
    fn the_run_itself_comes_first_and_gaps_are_told() {
        let policies = ["fifo".to_owned(), "app".to_owned()];
        let told = |text: &str| {
            let journal = read(text.as_bytes(), &policies, &[1.0], &[]).unwrap();
            let mut out = Vec::new();
            journal.run.print(&mut out).unwrap();
            (journal, String::from_utf8(out).unwrap())
        };
        let (journal, said) = told(&format!("{JOURNAL}end,,,,,,,,,,,\n"));
        assert_eq!((journal.requests, journal.samples), (5, 3));
        assert_eq!(
            journal.results.iter().map(|r| (&r.policy[..], r.hits)).collect::<Vec<_>>(),
            [("fifo", 2), ("app", 2)]
        );
        assert_eq!(
            said,
            "the run: lru with 20 bytes for a dataset of 9 samples: 2 hits, 3 misses\nreplayed: the same, access by access\n"
        );
        let gaps = JOURNAL.replace("decide,0,0,0,1,1,keep,10,1,,,\ndecide,0,0,1", "lost,,,1,,,,,,,,\ndecide,0,0,0");
        let (_, said) = told(&gaps);
        assert!(said.contains("1 hits, 2 misses") || said.contains("accesses differ"), "{said}");
        assert!(said.contains("did not close its journal") && said.contains("1 rows are missing"), "{said}");
    }

    #[test]
    fn replay_tells_a_journal_from_a_trace_by_its_content() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("{JOURNAL}end,,,,,,,,,,,\n")).unwrap();
        let policy = vec!["lru".to_owned()];
        let (capacity_fraction, capacity) = (vec![0.7], vec![20]);
        let trace = file.path().to_owned();
        let args = ReplayArgs {
            trace,
            policy,
            capacity_fraction,
            capacity,
            samples: None,
            format: TraceFormat::Auto,
            json: true,
        };
        let mut out = Vec::new();
        crate::replay::report(&args, &mut out).unwrap();
        let said: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(said["run"]["differing"], 0);
        assert_eq!((&said["requests"], &said["samples"]), (&5.into(), &3.into()));
        // 70 % of three samples of 10 bytes is room for two, as are 20 bytes.
        assert_eq!((&said["results"][0]["hits"], &said["results"][1]["hits"]), (&2.into(), &2.into()));
        let samples = ReplayArgs { samples: Some(9), ..args };
        assert!(crate::replay::report(&samples, &mut Vec::new()).unwrap_err().to_string().contains("journal"));
    }
}
