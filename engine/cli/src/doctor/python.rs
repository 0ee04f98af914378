//! The Python beside us: only `train` needs it, and it is asked without importing torch.

use std::process::{Command, Stdio};

use super::Check;
use crate::train;

/// Prints the versions of Python and of what we work with from the installed packages' metadata: no import, no second
/// lost.
const ASK: &str = "
import sys, importlib.metadata as m
def version(name):
    try: return m.version(name)
    except m.PackageNotFoundError: return '-'
print('%d.%d.%d' % sys.version_info[:3], *map(version, ('lossfeed', 'numpy', 'torch')))
";

/// The oldest versions that are tested: `pyproject.toml` asks for them too.
const PYTHON: (u32, u32) = (3, 11);
const NUMPY: (u32, u32) = (1, 26);
const TORCH: (u32, u32) = (2, 4);

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
    let (version, lossfeed, numpy, torch) = (word(), word(), word(), word());
    let finding = format!("{version} ({python}), lossfeed {lossfeed}, numpy {numpy}, torch {torch}");
    let install = |what: &str| format!("{python} -m pip install {what}");
    let ours = env!("CARGO_PKG_VERSION");
    let remedy = if older(version, PYTHON) {
        "lossfeed needs Python 3.11 or newer".to_owned()
    } else if lossfeed == "-" {
        install("lossfeed torch")
    } else if lossfeed != ours {
        format!("this program is {ours} and the package another: {}", install(&format!("lossfeed=={ours}")))
    } else if torch == "-" {
        format!("to train: {}", install("torch"))
    } else if older(torch, TORCH) {
        format!("lossfeed is tested with torch 2.4 and newer: {}", install("'torch>=2.4'"))
    } else if numpy == "-" || older(numpy, NUMPY) {
        format!("lossfeed is tested with NumPy 1.26 and newer: {}", install("'numpy>=1.26'"))
    } else {
        return Check::ok("python", finding);
    };
    Check::limited("python", finding, remedy)
}

/// Whether a version's first two numbers are below `least`. What is no number counts as 0.
fn older(version: &str, least: (u32, u32)) -> bool {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) < least
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn what_is_missing_or_too_old_decides_the_remedy() {
        let ours = env!("CARGO_PKG_VERSION");
        let remedy = |versions: &str| judge(Some(("python3", versions))).remedy;
        assert_eq!(judge(Some(("python3", &format!("3.12.1 {ours} 2.1.0 2.15.0\n")))).state, State::Ok);
        assert_eq!(judge(Some(("python3", &format!("3.12.1 {ours} 1.26.4 2.15.0+cu130\n")))).state, State::Ok);
        for (versions, says) in [
            (format!("3.12.1 {ours} 2.1.0 -"), "to train: python3 -m pip install torch"),
            ("3.9.2 - - -".to_owned(), "lossfeed needs Python 3.11 or newer"),
            ("3.12.1 - 2.1.0 2.15.0".to_owned(), "python3 -m pip install lossfeed torch"),
            (format!("3.12.1 {ours} 2.1.0 2.3.1"), "torch 2.4 and newer: python3 -m pip install 'torch>=2.4'"),
            (format!("3.12.1 {ours} 1.25.2 2.15.0"), "NumPy 1.26 and newer: python3 -m pip install 'numpy>=1.26'"),
            (format!("3.12.1 {ours} - 2.15.0"), "NumPy 1.26 and newer"),
            ("3.12.1 0.0.9 2.1.0 2.15.0".to_owned(), "and the package another: python3 -m pip install lossfeed=="),
        ] {
            assert!(remedy(&versions).is_some_and(|found| found.contains(says)), "{versions}");
        }
        assert_eq!(judge(None).state, State::Limited);
    }
}
