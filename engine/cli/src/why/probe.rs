//! The probe's files, in a folder of this run that only its user can open.

use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The Python files. They need no lossfeed, and no Python newer than torch needs.
const FILES: [(&str, &str); 10] = [
    ("sitecustomize.py", include_str!("probe/sitecustomize.py")),
    ("lossfeed_probe/__init__.py", include_str!("probe/lossfeed_probe/__init__.py")),
    ("lossfeed_probe/gpu.py", include_str!("probe/lossfeed_probe/gpu.py")),
    ("lossfeed_probe/imports.py", include_str!("probe/lossfeed_probe/imports.py")),
    ("lossfeed_probe/loaders.py", include_str!("probe/lossfeed_probe/loaders.py")),
    ("lossfeed_probe/own.py", include_str!("probe/lossfeed_probe/own.py")),
    ("lossfeed_probe/rank.py", include_str!("probe/lossfeed_probe/rank.py")),
    ("lossfeed_probe/slots.py", include_str!("probe/lossfeed_probe/slots.py")),
    ("lossfeed_probe/steps.py", include_str!("probe/lossfeed_probe/steps.py")),
    ("lossfeed_probe/workers.py", include_str!("probe/lossfeed_probe/workers.py")),
];

/// The folder, gone with this value.
pub(super) struct Folder {
    path: PathBuf,
    records: PathBuf,
}

impl Folder {
    /// Makes it in `TMPDIR`, or `/tmp`.
    pub(super) fn make() -> io::Result<Self> {
        let moment = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos());
        let path = std::env::temp_dir().join(format!("lossfeed-why-{}-{moment}", std::process::id()));
        let private = |path: &Path| DirBuilder::new().mode(0o700).create(path);
        private(&path)?;
        let folder = Self { records: path.join("records"), path };
        private(&folder.records)?;
        private(&folder.path.join("lossfeed_probe"))?;
        for (name, text) in FILES {
            fs::write(folder.path.join(name), text)?;
        }
        Ok(folder)
    }

    /// The folder for the numbers of the program's processes.
    pub(super) fn records(&self) -> &Path {
        &self.records
    }

    /// Variables of the program's environment, besides this one's.
    pub(super) fn environment(&self) -> [(&'static str, OsString); 2] {
        let mut path = self.path.clone().into_os_string();
        if let Some(own) = std::env::var_os("PYTHONPATH").filter(|own| !own.is_empty()) {
            path.push(":");
            path.push(own);
        }
        [("PYTHONPATH", path), ("LOSSFEED_WHY", self.records.clone().into_os_string())]
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_folder_is_its_users_alone_holds_every_file_and_goes_with_the_run() {
        let folder = Folder::make().unwrap();
        let path = folder.path.clone();
        for private in [&path, &folder.records] {
            assert_eq!(fs::metadata(private).unwrap().permissions().mode() & 0o777, 0o700);
        }
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/why/probe/lossfeed_probe");
        let written = |name: &Path| path.join("lossfeed_probe").join(name).exists();
        let files = fs::read_dir(here).unwrap().map(|entry| PathBuf::from(entry.unwrap().file_name()));
        assert!(files.filter(|name| name.extension().is_some_and(|e| e == "py")).all(|name| written(&name)));
        assert!(folder.environment()[0].1.to_string_lossy().starts_with(&*path.to_string_lossy()));
        drop(folder);
        assert!(!path.exists());
    }
}
