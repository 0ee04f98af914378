//! Doors for the fuzz targets (`tests/fuzz/targets`) to the stats page. Only in fuzzing builds,
//! and in tests, which hold the seeds and whatever was found to the same promises.

use super::counters::{Counters, Snapshot};
use super::page::{self, Identity, PAGE_BYTES, RING, steers_terminal};
use super::process::Process;

/// A page: refused with words, or texts that cannot steer a terminal and a history of at most the ring.
pub fn page(bytes: &[u8]) {
    // As it lies, and cut or filled to a page's size.
    let mut fitted = bytes.to_vec();
    fitted.resize(PAGE_BYTES, 0);
    for file in [bytes, &fitted] {
        let contents = match page::parse(file) {
            Ok(contents) => contents,
            Err(why) => {
                assert!(!why.is_empty() && !why.contains(steers_terminal), "{why:?}");
                continue;
            }
        };
        assert!(contents.history.len() <= RING);
        assert_eq!(page::process(file), Some(contents.process));
        let who = &contents.identity;
        assert!(contents.numbers.iter().all(|(name, _)| !name.contains(steers_terminal)));
        for text in [&who.job, &who.policy, &who.sampler, &who.source, &who.device, &contents.version] {
            assert!(!text.contains(steers_terminal), "{text:?}");
        }
        // Written again, it says the same, but for what does not fit: replaced characters take more room.
        let again = page::fresh(who, contents.process, contents.started_unix_ms);
        let same = |back: page::Contents| {
            back.process == contents.process && who.job.starts_with(&back.identity.job) && back.history.is_empty()
        };
        assert!(page::parse(&again).is_ok_and(same));
    }
}

/// Pages by our own writer: fresh, and after updates.
pub fn seeds() -> Vec<Vec<u8>> {
    let identity =
        Identity { job: "resnet".to_owned(), world_size: 2, source: "s3://b/t.tar".to_owned(), ..Identity::default() };
    let process = Process { pid: 7, start_ticks: 8, pid_namespace: 9, boot: 10 };
    [0, 3, RING as u64 + 5]
        .map(|updates| {
            let mut bytes = page::fresh(&identity, process, 5);
            for k in 0..updates {
                for (at, piece) in page::update(2 * k, k, 1000 + k, &Snapshot { values: [k; Counters::NAMES.len()] }) {
                    bytes[at..at + piece.len()].copy_from_slice(&piece);
                }
            }
            bytes
        })
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every file of the corpus. Whatever its format: to another parser it is noise.
    fn corpus() -> Vec<Vec<u8>> {
        let folder: std::path::PathBuf =
            [env!("CARGO_MANIFEST_DIR"), "..", "..", "tests", "fuzz", "corpus"].iter().collect();
        std::fs::read_dir(folder).unwrap().map(|entry| std::fs::read(entry.unwrap().path()).unwrap()).collect()
    }

    #[test]
    fn seeds_and_all_that_was_found_keep_the_promises() {
        for seed in seeds() {
            assert!(page::parse(&seed).is_ok());
            page(&seed);
        }
        corpus().iter().for_each(|bytes| page(bytes));
    }
}
