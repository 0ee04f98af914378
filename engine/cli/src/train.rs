//! `lossfeed train` outside Python: finds a Python that has lossfeed and lets it take over this process.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::term;

/// Pythons worth asking, best first: the one `LOSSFEED_PYTHON` names and no other; else an active virtual
/// environment's, `.venv`'s, `python3`, `python`.
pub(crate) fn candidates() -> Vec<OsString> {
    if let Some(asked) = std::env::var_os("LOSSFEED_PYTHON") {
        return vec![asked];
    }
    let active = std::env::var_os("VIRTUAL_ENV").map(|dir| Path::new(&dir).join("bin/python").into_os_string());
    active.into_iter().chain([".venv/bin/python", "python3", "python"].map(OsString::from)).collect()
}

/// Replaces this process by `python -m lossfeed ARGS…`; returns (an exit code) only if no Python can do it.
pub fn exec_python(args: &[OsString]) -> i32 {
    let mut tried = Vec::new();
    for python in candidates() {
        // find_spec imports nothing: no torch is loaded to find out.
        let has = Command::new(&python)
            .args(["-c", "import sys, importlib.util as u; sys.exit(u.find_spec('lossfeed') is None)"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        match has {
            Ok(status) if status.success() => {
                let e = Command::new(&python).args(["-m", "lossfeed"]).args(args).exec();
                tried.push(format!("{} ({e})", python.display()));
            }
            Ok(_) => tried.push(format!("{} (has no lossfeed)", python.display())),
            Err(_) => tried.push(format!("{} (not there)", python.display())),
        }
    }
    term::complain(&format!(
        "training runs in Python, and no Python with lossfeed was found.\n  tried: {}\n  remedy: pip install lossfeed \
         torch, or `make run` in the repository; LOSSFEED_PYTHON=/path/to/python names one",
        tried.join(", ")
    ));
    1
}
