//! `lossfeed train` outside Python: finds a Python that has lossfeed and lets it take over this process.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Replaces this process by `python -m lossfeed ARGS…`; returns (an exit code) only if no Python can do it.
/// `LOSSFEED_PYTHON` names the interpreter; otherwise an active virtual environment's, `.venv`'s, `python3` and
/// `python` are tried in this order.
pub fn exec_python(args: &[OsString]) -> i32 {
    let asked = std::env::var_os("LOSSFEED_PYTHON");
    let mut candidates: Vec<OsString> = Vec::new();
    match asked {
        Some(python) => candidates.push(python),
        None => {
            if let Some(active) = std::env::var_os("VIRTUAL_ENV") {
                candidates.push(std::path::Path::new(&active).join("bin/python").into_os_string());
            }
            candidates.extend([".venv/bin/python", "python3", "python"].map(OsString::from));
        }
    }
    let mut tried = Vec::new();
    for python in &candidates {
        // find_spec imports nothing: no torch is loaded to find out.
        let has = Command::new(python)
            .args(["-c", "import sys, importlib.util as u; sys.exit(u.find_spec('lossfeed') is None)"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        match has {
            Ok(status) if status.success() => {
                let e = Command::new(python).args(["-m", "lossfeed"]).args(args).exec();
                tried.push(format!("{} ({e})", python.display()));
            }
            Ok(_) => tried.push(format!("{} (has no lossfeed)", python.display())),
            Err(_) => tried.push(format!("{} (not there)", python.display())),
        }
    }
    let _ = writeln!(
        std::io::stderr(),
        "lossfeed: training runs in Python, and no Python with lossfeed was found.\n  tried: {}\n  remedy: pip install \
         lossfeed torch, or `make run` in the repository; LOSSFEED_PYTHON=/path/to/python names one",
        tried.join(", ")
    );
    1
}
