//! The one line to write. Never a value that is set already.

use super::cause::Cause;
use super::measured::{Loader, Measured};
use super::what_if::{Proposal, size};

/// For a rank that waits for its input.
pub(super) fn of_input(m: &Measured, cause: Cause, proposal: Option<&Proposal>) -> Option<String> {
    if cause == Cause::Slot {
        return Some("keep no batch longer than its step: clone what you keep".to_owned());
    }
    match (m.loader, proposal) {
        (_, Some(Proposal { setting: "cache", value, .. })) => Some(format!("Loader(…, cache=\"{}\")", size(*value))),
        (_, Some(Proposal { setting: "processes", value, .. })) => {
            Some(format!("lf.open(dataset, processes={value}) in place of thread_safe=True: Python threads take turns"))
        }
        (Loader::Torch, Some(Proposal { value, .. })) => Some(for_torch(m, *value)),
        (Loader::Lossfeed, Some(Proposal { value, .. })) => Some(for_ours(m, *value)),
        (Loader::Torch, None) => without_setting(m, cause),
        (Loader::Lossfeed, None) => match m.settings.processes {
            // A page alone knows its own process.
            Some(now) if now > 0 && m.work.batches == 0 => {
                let more = for_ours(m, 2 * now);
                Some(format!("{more}, if items wait for a disk or network: `lossfeed why` tells"))
            }
            Some(_) if cause == Cause::Python => Some(CHEAPER.to_owned()),
            _ => None,
        },
    }
}

const CHEAPER: &str = "the processors are busy: make Dataset.__getitem__ or collate_fn cheaper";

fn for_torch(m: &Measured, workers: u64) -> String {
    let line = format!("DataLoader(…, num_workers={workers})");
    if workers > 0 && m.settings.stream == Some(true) && m.settings.workers == Some(0) {
        return format!("{line}, each with its share in __iter__: torch.utils.data.get_worker_info()");
    }
    line
}

/// `num_workers=` are threads, or processes that read a Python dataset. Processes that `lf.open` was told of stay as
/// many, and where a cache is between, both look alike.
fn for_ours(m: &Measured, workers: u64) -> String {
    let line = format!("Loader(…, num_workers={workers})");
    let pool = m.settings.processes.is_some_and(|n| n > 0) && m.settings.workers.is_some_and(|n| n > 0);
    if pool { format!("{line}, or lf.open(…, processes={workers}) if that names them") } else { line }
}

fn without_setting(m: &Measured, cause: Cause) -> Option<String> {
    let cached = "from lossfeed import Loader as DataLoader   # with cache=:";
    match cause {
        // A stream cannot be kept.
        Cause::Source | Cause::Decode if m.settings.stream == Some(true) => None,
        Cause::Source => Some(format!("{cached} later epochs read from memory")),
        Cause::Decode => Some(format!("{cached} decoded samples stay in memory")),
        Cause::Python => Some(CHEAPER.to_owned()),
        _ => Some("hand over less a batch: smaller dtypes, fewer tensors".to_owned()),
    }
}

/// For one slow rank.
pub(super) fn of_rank(m: &Measured, cause: Cause) -> Option<String> {
    Some(match cause {
        Cause::Compute => format!("look at rank {}'s machine and at what only this rank does in its step", m.rank),
        Cause::Copy => format!("look at rank {}'s link to its device", m.rank),
        _ => format!("look at what rank {} reads, and from where", m.rank),
    })
}

/// For copies, of which a share comes from memory that is not pinned.
pub(super) fn of_copies(m: &Measured, pageable: f64) -> String {
    if pageable > 0.5 && m.settings.pinned != Some(true) {
        "DataLoader(…, pin_memory=True), then batch.to(device, non_blocking=True)".to_owned()
    } else {
        "copy fewer bytes: uint8 to the device, floats made there".to_owned()
    }
}

/// For passes that start slowly.
pub(super) fn of_pass_start(m: &Measured) -> Option<String> {
    if m.loader == Loader::Torch && 2 * m.passes > m.steps {
        return Some(
            "batches = iter(loader) once, then next(batches): each iter(loader) starts from nothing".to_owned(),
        );
    }
    let started_again = m.loader == Loader::Torch && m.settings.workers.is_some_and(|n| n > 0);
    (started_again && m.settings.persistent != Some(true)).then(|| "DataLoader(…, persistent_workers=True)".to_owned())
}
