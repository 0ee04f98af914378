//! How many processors are one rank's, where several run on a machine.

/// What a process sees of the machine's processors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Processors {
    /// Those that it may run on.
    pub allowed: usize,
    /// As many as it may keep busy: fewer than `allowed` under a quota.
    pub quota: usize,
    /// All of the machine's, or of the container that it runs in.
    pub all: usize,
    /// Ranks on this machine, this one included.
    pub ranks: usize,
}

/// The processors of one rank, at least 1. A quota is the container's and shared by all ranks. A launcher that has bound
/// each rank to processors of its own has shared them out already; else the ranks share them alike.
pub fn share(processors: Processors) -> usize {
    let Processors { allowed, quota, all, ranks } = processors;
    let alike = |of: usize| (of / ranks.max(1)).max(1);
    if quota < allowed { alike(quota) } else { allowed.max(1).min(alike(all.max(allowed))) }
}

/// The processors that all processes of the machine, or the container, have together; `None` for a rank that a launcher
/// has bound to some of them.
pub fn shared(processors: Processors) -> Option<usize> {
    let Processors { allowed, quota, all, .. } = processors;
    if quota < allowed { Some(quota.max(1)) } else { (allowed >= all).then_some(allowed.max(1)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_share_the_processors_unless_the_launcher_has_bound_them() {
        let of = |allowed, quota, all, ranks| share(Processors { allowed, quota, all, ranks });
        assert_eq!(of(64, 64, 64, 1), 64);
        assert_eq!(of(64, 64, 64, 8), 8, "all may run anywhere");
        assert_eq!(of(8, 8, 64, 8), 8, "each has its own");
        assert_eq!(of(32, 32, 64, 8), 8, "four share a socket");
        assert_eq!(of(16, 16, 16, 8), 2, "a container of 16");
        assert_eq!(of(64, 16, 64, 8), 2, "a quota of 16");
        assert_eq!(of(64, 16, 64, 1), 16);
        assert_eq!(of(4, 4, 4, 8), 1);
        assert_eq!(of(0, 0, 0, 0), 1);
        assert_eq!(of(8, 8, 2, 1), 8, "who counts fewer than it may run on is not believed");
        let all = |allowed, quota, all| shared(Processors { allowed, quota, all, ranks: 8 });
        assert_eq!([all(64, 64, 64), all(64, 16, 64), all(8, 8, 64)], [Some(64), Some(16), None]);
    }
}
