//! Which processors are near a device: memory that one of them touches first lies on the same side of the machine.

use std::fs;
use std::path::Path;

use rustix::thread::{CpuSet, sched_setaffinity};

/// The processors that the kernel calls local to the PCI device `id` ("0000:3b:00.0", any case). Empty if it does not
/// say.
pub(super) fn processors(sysfs: &Path, id: &str) -> Vec<usize> {
    let path = sysfs.join("bus/pci/devices").join(id.to_ascii_lowercase()).join("local_cpulist");
    fs::read_to_string(path).ok().and_then(|list| parse(&list)).unwrap_or_default()
}

/// "0-3,8,10-11" → the numbers; `None` if it is no such list.
fn parse(list: &str) -> Option<Vec<usize>> {
    let mut processors = Vec::new();
    for part in list.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        if first > last || last >= CpuSet::MAX_CPU {
            return None;
        }
        processors.extend(first..=last);
    }
    Some(processors)
}

/// Keeps the calling thread on `processors`. Where the system refuses (a container that was given others), it stays
/// where it is: memory then lies where it would have lain anyway.
pub(crate) fn keep_to(processors: &[usize]) {
    if processors.is_empty() {
        return;
    }
    let mut set = CpuSet::new();
    processors.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU).for_each(|&cpu| set.set(cpu));
    if let Err(error) = sched_setaffinity(None, &set) {
        tracing::debug!(%error, "memory could not be placed near the device");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::sched_getaffinity;

    #[test]
    fn lists_are_read_as_the_kernel_writes_them_and_nothing_else_is() {
        assert_eq!(parse("0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(parse("\n"), Some(vec![]));
        for wrong in ["3-1", "a", "1-", "-1", "0-99999999999", "1,,x"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_device_is_found_by_its_id_in_any_case_and_an_unknown_one_is_near_nobody() {
        let sysfs = tempfile::tempdir().unwrap();
        let device = sysfs.path().join("bus/pci/devices/0000:3b:00.0");
        fs::create_dir_all(&device).unwrap();
        fs::write(device.join("local_cpulist"), "4-5\n").unwrap();
        assert_eq!(processors(sysfs.path(), "0000:3B:00.0"), [4, 5]);
        assert!(processors(sysfs.path(), "0000:3C:00.0").is_empty());
        assert!(processors(sysfs.path(), "../../../etc").is_empty());
    }

    #[test]
    fn a_thread_stays_where_it_is_told_and_nowhere_is_no_order() {
        let allowed = |set: &CpuSet| (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect::<Vec<_>>();
        let all = allowed(&sched_getaffinity(None).unwrap());
        let kept = |near: Vec<usize>| {
            let thread = std::thread::spawn(move || {
                keep_to(&near);
                sched_getaffinity(None).unwrap()
            });
            allowed(&thread.join().unwrap())
        };
        assert_eq!(kept(vec![all[0]]), [all[0]]);
        assert_eq!(kept(vec![]), all);
        assert_eq!(kept(vec![CpuSet::MAX_CPU - 1]), all, "a processor that does not exist");
        assert_eq!(allowed(&sched_getaffinity(None).unwrap()), all, "other threads are left alone");
    }
}
