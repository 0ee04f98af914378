//! How many loader threads a run has, and how many batches they may prepare.

use super::{MAX_WORKERS, Settings};
use crate::tune::crew::{Processors, share, shared};

/// Read ahead where nobody says how much: some tens of thousands of small samples, or a few batches of photographs.
const READ_AHEAD_BYTES: u64 = 128 << 20;

/// Where that turns out to be too little, no more than this, and than this share of the memory that a rank has.
const READ_AHEAD_MOST_BYTES: u64 = 1 << 30;
const READ_AHEAD_SHARE: u64 = 16;

/// Of files of this machine so many batches, and at least as many samples as threads that read them beside each other.
const FILES_AHEAD_BATCHES: u64 = 8;
const FILES_AHEAD_MIN: u64 = 64;

/// Batch slots of threads beyond those that a run begins with take so much at most.
const MORE_BYTES: usize = 256 << 20;

/// The most threads that are started unasked.
const MOST_FOUND: usize = 64;

impl Settings {
    /// The same, and the number of processors is known.
    pub fn with_processors(self) -> Self {
        Self { processors: Some(self.processors.unwrap_or_else(|| of_rank(self.local_ranks))), ..self }
    }

    /// Threads to start with; 0 = inline. Those that are found while the run goes on begin with one a processor, and
    /// with fewer if `max_slots` leaves no room for as many.
    pub fn worker_count(&self) -> usize {
        self.workers.unwrap_or_else(|| {
            let room = self.max_slots.map_or(MAX_WORKERS, |slots| slots.saturating_sub(1) / (1 + self.prefetch_factor));
            let processors = self.processors.unwrap_or_else(|| of_rank(self.local_ranks));
            processors.min(room).clamp(1, MAX_WORKERS)
        })
    }

    /// Threads that there may be in the run, where a batch slot takes `slot_bytes`: where they are found while it goes
    /// on, four times as many as to begin with, as far as their slots take 256 MiB at most.
    pub fn worker_max(&self, slot_bytes: usize) -> usize {
        let start = self.worker_count();
        if self.workers.is_some() {
            return start;
        }
        start.max((self.slots_filled(slot_bytes).saturating_sub(1) / 2).min(4 * start).min(MOST_FOUND))
    }

    /// Batch slots that loader threads may fill before the consumer takes them, where one takes `slot_bytes`.
    fn slots_filled(&self, slot_bytes: usize) -> usize {
        let more = if self.workers.is_some() { 0 } else { MORE_BYTES / slot_bytes.max(1) };
        self.max_slots.unwrap_or(usize::MAX).min(self.depth().saturating_add(more))
    }

    /// How much is read ahead of a dataset, which lies behind a network or not.
    pub fn read_ahead_bytes(&self, remote: bool) -> u64 {
        self.read_ahead.unwrap_or(if remote && self.worker_count() > 0 { READ_AHEAD_BYTES } else { 0 })
    }

    /// The prefetch limit that a run with loader threads begins with, on any machine.
    pub fn read_ahead_at_first(&self) -> u64 {
        self.read_ahead.unwrap_or(READ_AHEAD_BYTES)
    }

    /// How much is read ahead of a dataset behind a network at most, where nobody says how much and answers come late.
    pub fn read_ahead_most(&self) -> u64 {
        let of_rank = memory_bytes() / self.local_ranks.max(1) as u64;
        READ_AHEAD_MOST_BYTES.min(of_rank / READ_AHEAD_SHARE).max(READ_AHEAD_BYTES)
    }

    /// How much is read ahead of files of this machine while their reads take long, of samples of `sample_bytes` in the
    /// mean: a few batches, so that ranks which share a slow file system leave it to the one that is behind.
    pub fn files_ahead_bytes(&self, sample_bytes: u64) -> u64 {
        let samples = FILES_AHEAD_BATCHES.saturating_mul(self.batch_size as u64).max(FILES_AHEAD_MIN);
        self.read_ahead_bytes(true).min(self.read_ahead.unwrap_or(samples.saturating_mul(sample_bytes.max(1))))
    }

    /// Batch slots kept busy to begin with.
    pub fn depth(&self) -> usize {
        self.depth_of(self.worker_count())
    }

    /// One slot per worker being filled, `prefetch_factor` more each, and one being handed over.
    fn depth_of(&self, workers: usize) -> usize {
        workers * (1 + self.prefetch_factor) + 1
    }

    /// The most batch slots of `slot_bytes` there may be, lent ones included, with up to `workers` threads.
    pub fn slots_max(&self, workers: usize, slot_bytes: usize) -> usize {
        self.max_slots.unwrap_or(self.slots_of(workers, slot_bytes) + 64)
    }

    /// As many as if that number of threads had been named, as far as there is memory for them, so that a slow sample
    /// holds up no more of them. Never fewer than to begin with, and one for each thread beside the one that it fills.
    fn slots_of(&self, workers: usize, slot_bytes: usize) -> usize {
        self.depth_of(workers).min(self.slots_filled(slot_bytes)).max(2 * workers + 1).max(self.depth())
    }

    /// Batches that may be in preparation or finished and not taken, with `workers` threads and slots of `slot_bytes`.
    /// Under a buffer sampler a batch's scores must be there in time for the batch that counts them.
    pub fn window(&self, workers: usize, slot_bytes: usize) -> usize {
        let most = self.sampler.buffer().map_or(u64::MAX, |options| options.lag.saturating_sub(2).max(1));
        self.slots_of(workers, slot_bytes).min(usize::try_from(most).unwrap_or(usize::MAX))
    }
}

/// Processors of one of `ranks` ranks on this machine; see [`share`].
fn of_rank(ranks: usize) -> usize {
    share(processors(ranks))
}

/// Processors that the processes of this machine share; see [`shared`].
pub(crate) fn shared_processors() -> Option<usize> {
    shared(processors(1))
}

fn processors(ranks: usize) -> Processors {
    let quota = std::thread::available_parallelism().map_or(1, usize::from);
    let allowed = rustix::thread::sched_getaffinity(None).map_or(quota, |set| set.count() as usize);
    // The first process was bound by nobody: what it may run on is the machine, or the container.
    let all = std::fs::read_to_string("/proc/1/status").ok().and_then(|status| allowed_of(&status)).unwrap_or(allowed);
    Processors { allowed, quota, all, ranks }
}

/// Bytes of memory that this machine has, or its container.
fn memory_bytes() -> u64 {
    let machine = rustix::system::sysinfo();
    let machine = (machine.totalram as u64).saturating_mul(u64::from(machine.mem_unit));
    let container = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    container.and_then(|bytes| bytes.trim().parse().ok()).map_or(machine, |bytes: u64| bytes.min(machine))
}

/// The processors that a process may run on, as its status tells: hexadecimal words, separated by commas.
fn allowed_of(status: &str) -> Option<usize> {
    let mask = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed:"))?.trim();
    mask.chars().filter(|&c| c != ',').map(|c| c.to_digit(16).map(|digit| digit.count_ones() as usize)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(processors: usize) -> Settings {
        Settings { workers: None, processors: Some(processors), ..Settings::default() }
    }

    #[test]
    fn a_mask_is_counted_and_nonsense_is_none() {
        assert_eq!(allowed_of("Name:\tinit\nCpus_allowed:\tff,ffffff03\nCpus_allowed_list:\t0-1"), Some(34));
        assert_eq!(allowed_of("Cpus_allowed:\t3"), Some(2));
        assert_eq!((allowed_of("Cpus_allowed:\tx"), allowed_of("")), (None, None));
        assert!(of_rank(1) >= of_rank(2) && of_rank(usize::MAX) == 1);
    }

    #[test]
    fn threads_that_are_found_have_room_for_their_batches() {
        let small = 1 << 10;
        assert_eq!((found(4).worker_count(), found(4).worker_max(small)), (4, 16));
        assert_eq!(found(40).worker_max(small), MOST_FOUND);
        assert_eq!(found(100).worker_max(small), 100, "never fewer than to begin with");
        // 13 slots to begin with, and one more.
        assert_eq!(found(4).worker_max(MORE_BYTES), 6);
        assert_eq!(found(4).worker_max(usize::MAX), 6);
        let narrow = Settings { max_slots: Some(9), ..found(8) };
        assert_eq!((narrow.worker_count(), narrow.worker_max(small)), (2, 4));
        narrow.validate(100).unwrap();
        let narrower = Settings { max_slots: Some(3), ..narrow };
        assert!(narrower.validate(100).unwrap_err().to_string().contains("max_slots 3 is below the 4 slots"));
        let named = Settings { workers: Some(3), ..found(8) };
        assert_eq!((named.worker_count(), named.worker_max(small)), (3, 3));
    }

    #[test]
    fn no_more_is_read_ahead_unasked_than_a_share_of_the_memory() {
        let most = |local_ranks| Settings { local_ranks, ..found(2) }.read_ahead_most();
        assert!(memory_bytes() > READ_AHEAD_MOST_BYTES / 4, "{}", memory_bytes());
        assert!((READ_AHEAD_BYTES..=READ_AHEAD_MOST_BYTES).contains(&most(1)) && most(1) >= most(8));
        assert_eq!(most(1 << 20), READ_AHEAD_BYTES);
    }

    #[test]
    fn of_slow_files_a_few_batches_are_read_ahead_and_never_more_than_of_a_store() {
        let settings = |batch_size, workers, read_ahead| Settings { batch_size, workers, read_ahead, ..found(2) };
        let bytes = |settings: Settings| settings.files_ahead_bytes(1000);
        assert_eq!(bytes(settings(8, None, None)), 64_000);
        assert_eq!(bytes(settings(100, None, None)), 800_000);
        assert_eq!(bytes(settings(1 << 20, None, None)), READ_AHEAD_BYTES);
        assert_eq!(settings(100, None, None).files_ahead_bytes(u64::MAX), READ_AHEAD_BYTES);
        assert_eq!(settings(100, None, None).read_ahead_bytes(true), READ_AHEAD_BYTES);
        assert_eq!(bytes(settings(100, Some(0), None)), 0, "nobody is there to read");
        assert_eq!([0, 5, 1 << 40].map(|said| bytes(settings(8, None, Some(said)))), [0, 5, 1 << 40]);
    }

    #[test]
    fn a_window_is_as_deep_as_if_its_threads_had_been_named_where_there_is_memory() {
        let (settings, small) = (found(4), 1 << 10);
        assert_eq!([1, 4, 6, 16].map(|workers| settings.window(workers, small)), [13, 13, 19, 49]);
        let named = Settings { workers: Some(16), ..found(4) };
        assert_eq!((named.window(16, small), named.window(16, usize::MAX)), (49, 49));
        assert_eq!(settings.slots_max(16, small), 49 + 64);
        // 13 slots to begin with, and eight more: and each thread has a batch in work and one ready.
        let dear = MORE_BYTES / 8;
        assert_eq!([4, 6, 9, 16].map(|workers| settings.window(workers, dear)), [13, 19, 21, 33]);
        let narrow = Settings { max_slots: Some(40), ..found(4) };
        assert_eq!((narrow.slots_max(16, small), narrow.window(16, small)), (40, 40));
    }
}
