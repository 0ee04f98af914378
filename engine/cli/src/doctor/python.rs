//! The Python beside us: only `train` needs it, and it is asked without importing torch.

use std::process::{Command, Stdio};

use super::Check;
use crate::train;

/// Prints the versions of Python, lossfeed and torch from the installed packages' metadata: no import, no second lost.
const ASK: &str = "
import sys, importlib.metadata as m
def version(name):
    try: return m.version(name)
    except m.PackageNotFoundError: return '-'
print('%d.%d.%d' % sys.version_info[:3], version('lossfeed'), version('torch'))
";

pub(super) fn check() -> Check {
    let mut best: Option<(String, String)> = None;
    for python in train::candidates() {
        let asked = Command::new(&python).args(["-c", ASK]).stdin(Stdio::null()).stderr(Stdio::null()).output();
        let Some(answer) = asked.ok().filter(|o| o.status.success()).and_then(|o| String::from_utf8(o.stdout).ok())
        else {
            continue;
        };
        let complete = !answer.split_whitespace().any(|word| word == "-");
        if complete || best.is_none() {
            best = Some((python.display().to_string(), answer));
        }
        if complete {
            break;
        }
    }
    best.map_or_else(|| judge(None), |(python, answer)| judge(Some((&python, &answer))))
}

fn judge(found: Option<(&str, &str)>) -> Check {
    let Some((python, answer)) = found else {
        return Check::limited(
            "python",
            "none found: smi, replay and doctor do not need it",
            "install Python 3.11 or newer to train",
        );
    };
    let mut words = answer.split_whitespace();
    let mut word = || words.next().unwrap_or("-");
    let (version, lossfeed, torch) = (word(), word(), word());
    let finding = format!("{version} ({python}), lossfeed {lossfeed}, torch {torch}");
    let mut parts = version.split('.').map(|p| p.parse::<u32>().unwrap_or(0));
    let old = (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) < (3, 11);
    match (old, lossfeed, torch) {
        (true, _, _) => Check::limited("python", finding, "lossfeed needs Python 3.11 or newer"),
        (false, "-", _) => Check::limited("python", finding, format!("{python} -m pip install lossfeed torch")),
        (false, _, "-") => Check::limited("python", finding, format!("to train: {python} -m pip install torch")),
        _ => Check::ok("python", finding),
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn what_is_missing_decides_the_remedy() {
        assert_eq!(judge(Some(("python3", "3.12.1 0.1.0 2.15.0\n"))).state, State::Ok);
        let no_torch = judge(Some(("python3", "3.12.1 0.1.0 -")));
        assert_eq!(no_torch.remedy.as_deref(), Some("to train: python3 -m pip install torch"));
        let old = judge(Some(("python3", "3.9.2 - -")));
        assert_eq!(old.remedy.as_deref(), Some("lossfeed needs Python 3.11 or newer"));
        assert_eq!(judge(None).state, State::Limited);
    }
}
