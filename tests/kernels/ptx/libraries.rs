//! A library for each entry of a PTX module, made when it is first asked for.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

use sha2::{Digest, Sha256};

use super::emit::translate;
use super::faults::Fault;
use super::text::{Module, parse};

/// For a compiler to be quick with thousands of statements in a function.
const OPTIONS: [&str; 8] =
    ["-std=c++17", "-Og", "-w", "-ffp-contract=off", "-fPIC", "-shared", "-fno-exceptions", "-fvisibility=default"];

pub(crate) struct Libraries {
    pub(crate) module: Module,
    faults: &'static [Fault],
    compiler: String,
    /// Holds `NAME.so` for each entry that was asked for.
    folder: tempfile::TempDir,
}

impl Libraries {
    /// `None` (said in one line) where no compiler is.
    pub(crate) fn new(text: impl AsRef<str>, faults: &'static [Fault]) -> Option<Libraries> {
        let compiler = lossfeed_tests::cpp_compiler("the PTX was not run")?;
        let module = parse(text.as_ref()).unwrap_or_else(|e| panic!("{e}"));
        Some(Libraries { module, faults, compiler, folder: tempfile::tempdir().unwrap() })
    }

    pub(crate) fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// Makes the library of that entry, unless this machine or a run before has made the same.
    pub(crate) fn make(&self, kernel: &str) -> Result<(), String> {
        let link = self.folder.path().join(format!("{kernel}.so"));
        if link.exists() {
            return Ok(());
        }
        let entry = self.module.entries.iter().find(|e| e.name == kernel).ok_or(format!("the PTX has no {kernel}"))?;
        let code = translate(&self.module, entry, self.faults)?;
        std::os::unix::fs::symlink(self.library(&code), link).unwrap();
        Ok(())
    }

    fn library(&self, code: &str) -> PathBuf {
        let headers = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("kernels/ptx");
        let header = fs::read(headers.join("ptx.h")).unwrap();
        let mut options = OPTIONS.to_vec();
        #[cfg(target_arch = "x86_64")]
        if std::is_x86_feature_detected!("fma") {
            options.push("-mfma"); // otherwise each fma is a call
        }
        let by = format!("{} {}", self.compiler, options.join(" "));
        let key: String = Sha256::digest([code.as_bytes(), &header, by.as_bytes()].concat())
            .iter()
            .take(16)
            .map(|b| format!("{b:02x}"))
            .collect();
        let place = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("ptx");
        fs::create_dir_all(&place).unwrap();
        let (source, made) = (place.join(format!("{key}.cpp")), place.join(format!("{key}.so")));
        // One process compiles, others wait for it.
        let mut lock = File::options().create(true).truncate(false).write(true).open(&source).unwrap();
        lock.lock().unwrap();
        if !made.exists() {
            lock.set_len(0).unwrap();
            lock.write_all(code.as_bytes()).unwrap();
            let part = made.with_extension("part");
            let mut command = Command::new(&self.compiler);
            let done = command.args(options).arg("-I").arg(headers).arg(&source).arg("-o").arg(&part).output().unwrap();
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
            fs::rename(part, &made).unwrap();
        }
        made
    }
}
