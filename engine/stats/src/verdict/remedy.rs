//! The one line to write. Never a value that is set already.

use super::cause::Cause;
use super::measured::{Loader, Measured};
use super::what_if::{WhatIf, size};

/// For a rank that waits for its input; `best` is the first of the changes that were modelled.
pub(super) fn of_input(m: &Measured, cause: Cause, best: Option<&WhatIf>) -> Option<String> {
    let value = best.filter(|then| !then.setting.is_empty()).map(|then| then.value);
    match (m.loader, cause, value) {
        (_, Cause::Slot, _) => Some("keep no batch longer than its step: clone what you keep".to_owned()),
        (Loader::Torch, _, Some(workers)) => Some(format!("DataLoader(…, num_workers={workers})")),
        (Loader::Torch, Cause::Source, None) => {
            Some("from lossfeed import Loader as DataLoader   # with cache=: later epochs read from memory".to_owned())
        }
        (Loader::Torch, Cause::Decode, None) => {
            Some("from lossfeed import Loader as DataLoader   # with cache=: decoded samples stay in memory".to_owned())
        }
        (Loader::Torch, Cause::Python, None) => {
            Some("the processors are busy: make Dataset.__getitem__ or collate_fn cheaper".to_owned())
        }
        (Loader::Torch, _, None) => Some("hand over less a batch: smaller dtypes, fewer tensors".to_owned()),
        (Loader::Lossfeed, _, Some(processes)) if m.settings.processes.is_some() => {
            Some(format!("lf.open(dataset, processes={processes})"))
        }
        (Loader::Lossfeed, Cause::Source, Some(bytes)) => Some(format!("Loader(…, cache=\"{}\")", size(bytes))),
        (Loader::Lossfeed, Cause::Source, None) => unknown_readers(m).map(|now| {
            let more = 2 * now;
            format!("Loader(…, num_workers={more}) if items wait for a disk or network: `lossfeed why` tells")
        }),
        (Loader::Lossfeed, Cause::Decode, Some(threads)) => Some(format!("Loader(…, num_workers={threads})")),
        _ => None,
    }
}

/// Worker processes whose work nothing measured: a page alone has only its own process's.
fn unknown_readers(m: &Measured) -> Option<u64> {
    m.settings.processes.filter(|&n| n > 0 && m.work.total_us < m.wait.source_us)
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
    let started_again = m.loader == Loader::Torch && m.settings.workers.is_some_and(|n| n > 0);
    (started_again && m.settings.persistent != Some(true)).then(|| "DataLoader(…, persistent_workers=True)".to_owned())
}
