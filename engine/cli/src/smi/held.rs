//! GPUs that are held and idle, and processes on them that no stats page explains. Pure: no NVML, no clock.

use std::collections::HashMap;

use super::snapshot::{Engine, Gpu, Process};

/// Below this share of the last sample period nothing worth the name ran.
const IDLE: f64 = 0.01;

/// Marks which processes on the GPUs are engines with a page.
///
/// NVML has the host's pids and a container its own. Where an engine of a GPU is none of that GPU's pids, any of the
/// processes may be it: then pids do not tell.
pub(super) fn mark(gpus: &mut [Gpu], engines: &[Engine]) {
    let living = || engines.iter().filter(|engine| engine.alive);
    for gpu in gpus {
        let mut here = living().filter(|engine| engine.gpu_uuid.is_some() && engine.gpu_uuid == gpu.uuid);
        let elsewhere = here.any(|engine| !gpu.processes.iter().any(|process| process.pid == engine.pid));
        for process in &mut gpu.processes {
            let found = living().any(|engine| engine.pid == process.pid);
            process.has_page = if found || !elsewhere { Some(found) } else { None };
        }
    }
}

/// True if processes hold the GPU and none runs anything.
fn is_idle(gpu: &Gpu) -> bool {
    !gpu.processes.is_empty() && gpu.utilization_ratio.is_some_and(|busy| busy < IDLE)
}

/// Since when each GPU is held and idle, in seconds of a clock of the caller's.
#[derive(Debug, Default)]
pub(super) struct IdleSince(HashMap<String, f64>);

impl IdleSince {
    /// Notes what a snapshot taken at `now_s` shows, and writes into it how long each GPU is idle.
    pub(super) fn note(&mut self, gpus: &mut [Gpu], now_s: f64) {
        for gpu in gpus {
            let Some(uuid) = gpu.uuid.clone() else { continue };
            if is_idle(gpu) {
                gpu.idle_seconds = Some(now_s - *self.0.entry(uuid).or_insert(now_s));
            } else {
                self.0.remove(&uuid);
            }
        }
    }
}

/// Lines that say which GPUs are held and idle, and which processes have no page. Empty where nothing is wrong.
pub(super) fn findings(gpus: &[Gpu]) -> Vec<String> {
    let mut lines = Vec::new();
    for gpu in gpus {
        if is_idle(gpu) {
            let since = gpu.idle_seconds.filter(|&s| s >= 1.0).map(|s| format!(" for {s:.0} s")).unwrap_or_default();
            lines.push(format!("GPU {} is held and idle{since}: {}", gpu.index, names(gpu.processes.iter())));
        }
        let strangers = || gpu.processes.iter().filter(|process| process.has_page == Some(false));
        if strangers().next().is_some() {
            let names = names(strangers());
            let index = gpu.index;
            lines.push(format!("GPU {index}: no stats page of {names}; start one with `lossfeed why -- COMMAND`"));
        }
    }
    lines
}

fn names<'a>(processes: impl Iterator<Item = &'a Process>) -> String {
    let name = |process: &Process| {
        let file = process.name.as_deref().and_then(|name| name.rsplit('/').next()).unwrap_or("a process");
        let memory = process.memory_bytes.map(|bytes| format!(" ({:.1} GiB)", bytes as f64 / f64::from(1 << 30)));
        format!("{file} {}{}", process.pid, memory.unwrap_or_default())
    };
    processes.map(name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(busy: f64, pids: &[u32]) -> Gpu {
        let process = |&pid: &u32| Process { pid, name: Some("/usr/bin/python3".to_owned()), ..Process::default() };
        Gpu {
            index: 3,
            uuid: Some("GPU-a".to_owned()),
            utilization_ratio: Some(busy),
            processes: pids.iter().map(process).collect(),
            ..Gpu::default()
        }
    }

    fn engine(pid: u32, gpu: &str) -> Engine {
        Engine { pid, alive: true, gpu_uuid: Some(gpu.to_owned()), ..Engine::default() }
    }

    #[test]
    fn a_process_without_a_page_is_named_with_the_command_to_try() {
        let mut gpus = [gpu(0.5, &[7, 8])];
        mark(&mut gpus, &[engine(7, "GPU-a")]);
        assert_eq!(gpus[0].processes.iter().map(|p| p.has_page).collect::<Vec<_>>(), [Some(true), Some(false)]);
        let told = findings(&gpus);
        assert_eq!(told, ["GPU 3: no stats page of python3 8; start one with `lossfeed why -- COMMAND`"]);
    }

    #[test]
    fn where_an_engines_pid_is_a_containers_no_process_is_accused() {
        let mut gpus = [gpu(0.5, &[70, 80])];
        mark(&mut gpus, &[engine(7, "GPU-a")]);
        assert!(gpus[0].processes.iter().all(|process| process.has_page.is_none()));
        assert_eq!(findings(&gpus), Vec::<String>::new());
        mark(&mut gpus, &[engine(7, "GPU-b"), Engine { alive: false, ..engine(7, "GPU-a") }]);
        assert!(gpus[0].processes.iter().all(|process| process.has_page == Some(false)));
    }

    #[test]
    fn a_gpu_that_is_held_and_idle_is_told_with_its_time_and_a_busy_or_free_one_is_not() {
        let mut since = IdleSince::default();
        let mut held = [gpu(0.0, &[7])];
        mark(&mut held, &[engine(7, "GPU-a")]);
        since.note(&mut held, 100.0);
        assert_eq!(findings(&held), ["GPU 3 is held and idle: python3 7"]);
        since.note(&mut held, 143.0);
        assert_eq!(findings(&held), ["GPU 3 is held and idle for 43 s: python3 7"]);
        since.note(&mut [gpu(0.4, &[7])], 144.0);
        since.note(&mut held, 150.0);
        assert_eq!(held[0].idle_seconds, Some(0.0), "it was busy in between");
        assert_eq!(findings(&[gpu(0.0, &[])]), Vec::<String>::new());
        assert_eq!(findings(&[Gpu { utilization_ratio: None, ..gpu(0.0, &[]) }]), Vec::<String>::new());
    }
}
