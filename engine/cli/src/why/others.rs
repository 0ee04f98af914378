//! The processors that other programs had while a program ran, from the kernel's clocks.

/// The kernel's clocks, in ticks since the machine began.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Ticks {
    /// All processors together.
    all: f64,
    /// Ticks that nothing used.
    idle: f64,
    /// Used by this process's children that have ended, and by theirs.
    own: f64,
    processors: f64,
}

impl Ticks {
    /// Now; `None` where the kernel does not say.
    pub(super) fn now() -> Option<Self> {
        let read = |path| std::fs::read_to_string(path).ok();
        Self::parse(&read("/proc/stat")?, &read("/proc/self/stat")?)
    }

    /// From the first line of `/proc/stat`, and the fields `cutime` and `cstime` of a process.
    fn parse(machine: &str, process: &str) -> Option<Self> {
        let numbers = |text: &str| text.split_whitespace().map_while(|word| word.parse().ok()).collect::<Vec<f64>>();
        let clocks = numbers(machine.strip_prefix("cpu ")?);
        let processors = machine.lines().skip(1).filter(|line| line.starts_with("cpu")).count();
        let fields: Vec<&str> = process.rsplit_once(')')?.1.split_whitespace().collect();
        let children = fields.get(13)?.parse::<f64>().ok()? + fields.get(14)?.parse::<f64>().ok()?;
        // The last two are parts of the first two; the third and the fourth from idling and from waiting for disks.
        let all = clocks.get(..8)?.iter().sum();
        Some(Self { all, idle: clocks[3] + clocks[4], own: children, processors: processors as f64 })
    }
}

/// How many processors others had in the mean between two moments; 0 if that is unknown.
pub(super) fn taken(before: Option<Ticks>, after: Option<Ticks>) -> f64 {
    let (Some(before), Some(after)) = (before, after) else { return 0.0 };
    let passed = (after.all - before.all) / after.processors.max(1.0);
    let used = (after.all - after.idle) - (before.all - before.idle) - (after.own - before.own);
    if passed > 0.0 { (used / passed).clamp(0.0, after.processors) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_have_what_neither_idles_nor_is_the_programs() {
        let machine = |user: u64, idle: u64| format!("cpu  {user} 0 50 {idle} 10 0 0 0 7 0\ncpu0 1\ncpu1 2\nintr 5\n");
        let process = |own: u64| format!("9 (a) b) S 1 2 3 4 5 6 7 8 9 10 11 12 {own} 0 20 0");
        let at = |user, idle, own| Ticks::parse(&machine(user, idle), &process(own));
        // 1000 ticks of two processors: 600 of them used, 400 by the program.
        assert_eq!(taken(at(100, 900, 20), at(700, 1300, 420)), 0.4);
        assert_eq!(taken(at(100, 900, 20), at(500, 1500, 420)), 0.0, "all is the program's");
        assert_eq!(taken(at(100, 900, 0), at(1100, 900, 0)), 2.0);
        assert_eq!(taken(at(1, 1, 0), at(1, 1, 0)), 0.0);
        assert_eq!(taken(None, at(1, 1, 0)), 0.0);
        assert_eq!(Ticks::parse("nonsense", &process(1)), None);
        assert!(Ticks::now().is_some());
    }
}
