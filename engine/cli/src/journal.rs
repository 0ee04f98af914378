//! `lossfeed replay` of a journal: the run itself first, then what other policies and sizes would have made of it.

use std::io::{self, Read, Write};

use lossfeed_control::Result;
use lossfeed_control::policy::Entry;
use lossfeed_control::sim::{Options, Replay, Trace};
use lossfeed_journal::{Ending, Limits, Measured, Recording};
use serde::Serialize;

use crate::bench::Bench;

/// The recorded run, and the same policy and capacity replayed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Run {
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
    pub(crate) total_bytes: u64,
    pub(crate) recording: Recording,
}

/// Reads the journal and replays it as the run was.
pub(crate) fn read(file: impl Read, bench: &Bench<'_>) -> Result<Journal> {
    let recording = Recording::read(file, Limits::default())?;
    let (hits, misses) = recording.counted();
    let meta = &recording.meta;
    let same = lossfeed_journal::replay(&recording, bench.find(&meta.policy)?, meta.capacity_bytes)?;
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
    let requests = usize::try_from(hits + misses).unwrap_or(usize::MAX);
    let (samples, total_bytes) = (recording.delivered(), recording.delivered_bytes());
    Ok(Journal { run, requests, samples, total_bytes, recording })
}

/// Reads of the journal what its run learned, for runs that samplers draw anew.
pub(crate) fn losses(file: impl Read) -> Result<(Trace, Measured)> {
    lossfeed_journal::losses(&Recording::read(file, Limits::default())?)
}

impl Journal {
    /// The recorded run with another policy and capacity.
    pub(crate) fn replay(&self, policy: &Entry, capacity: (f64, u64), options: &Options<'_>) -> Result<Replay> {
        let found = lossfeed_journal::replay_with(&self.recording, policy, capacity.1, options)?;
        Ok(Replay::counted(policy.name, capacity, found.epochs, found.residents))
    }
}

impl Run {
    /// In a few lines for people.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
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
    use crate::args::ReplayArgs;

    const JOURNAL: &str = "# {\"lossfeed-journal\":1,\"samples\":9,\"capacity_bytes\":20,\"policy\":\"lru\",\"smoothing\":0}\n\
        event,epoch,step,row,id,drawn,verdict,bytes,weight,score,loss,gradient_norm\n\
        begin,0,0,,,,,,,,,\ndecide,0,0,0,1,1,keep,10,1,,,\ndecide,0,0,1,2,2,keep,10,1,,,\n\
        decide,0,1,0,1,1,hit,10,1,,,\ndecide,0,1,1,3,3,keep,10,1,,,\ndecide,0,2,0,1,1,hit,10,1,,,\n";

    #[test]
    fn the_run_itself_comes_first_and_gaps_are_told() {
        let told = |text: &str| {
            let journal = read(text.as_bytes(), &crate::replay::OURS).unwrap();
            let mut out = Vec::new();
            journal.run.print(&mut out).unwrap();
            (journal, String::from_utf8(out).unwrap())
        };
        let (journal, said) = told(&format!("{JOURNAL}end,,,,,,,,,,,\n"));
        assert_eq!((journal.requests, journal.samples, journal.total_bytes), (5, 3, 30));
        for policy in ["fifo", "shade"] {
            let entry = lossfeed_control::policy::find(policy).unwrap();
            let found = journal.replay(entry, (1.0, 30), &Options::default()).unwrap();
            assert_eq!((&found.policy[..], found.hits, found.epochs[0].distinct), (policy, 2, 3));
            assert_eq!((found.epochs.len(), found.epochs[0].effective_samples), (1, Some(1.0)));
        }
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
        let trace = file.path().to_str().unwrap();
        let args = ReplayArgs::of(&["--trace", trace, "--policy=lru", "--capacity-fraction=0.7", "--capacity=20"]);
        let mut out = Vec::new();
        crate::replay::report(&ReplayArgs { json: true, ..args.clone() }, &mut out).unwrap();
        let said: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(said["run"]["differing"], 0);
        assert_eq!((&said["requests"], &said["samples"]), (&5.into(), &3.into()));
        // 70 % of three samples of 10 bytes is room for two, as are 20 bytes.
        assert_eq!((&said["results"][0]["hits"], &said["results"][1]["hits"]), (&2.into(), &2.into()));
        let samples = ReplayArgs { samples: Some(9), ..args.clone() };
        assert!(crate::replay::report(&samples, &mut Vec::new()).unwrap_err().to_string().contains("journal"));
        let closed = ReplayArgs { sampler: vec!["uniform".to_owned()], ..args };
        let refused = crate::replay::report(&closed, &mut Vec::new()).unwrap_err().to_string();
        assert!(refused.contains("the journal has no scores"), "{refused}");
        let learned = "learn,0,0,0,1,,,,,2,,\nlearn,0,2,0,1,,,,,1,,\nend,,,,,,,,,,,\n";
        std::fs::write(file.path(), format!("{JOURNAL}{learned}")).unwrap();
        let mut out = Vec::new();
        crate::replay::report(&ReplayArgs { json: true, ..closed }, &mut out).unwrap();
        let said: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!((&said["requests"], &said["samples"]), (&3.into(), &3.into()));
        assert!(said["assumed"].to_string().contains("its scores stand for them"), "{said}");
        assert_eq!(said["results"][0]["capacity_bytes"], 21);
    }
}
