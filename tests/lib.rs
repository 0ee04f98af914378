//! What several test programs need.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The C++ compiler: `CXX`, or the first of the usual names that runs. `None`, said in one line with `what` was not
/// done, if there is none.
#[allow(clippy::print_stderr)]
pub fn cpp_compiler(what: &str) -> Option<String> {
    let usual = ["c++", "g++", "clang++"].map(str::to_owned);
    let works = |name: &String| Command::new(name).arg("--version").output().is_ok_and(|o| o.status.success());
    let found = std::env::var("CXX").into_iter().chain(usual).find(works);
    if found.is_none() {
        eprintln!("{what}: no C++ compiler (set CXX, or install g++ or clang++)");
    }
    found
}

/// What the C++ compiler makes of `source` (a path in `tests`) with these arguments: the file `name` in a folder of
/// `place` (`CARGO_TARGET_TMPDIR`). It is made once for all processes, each of which is one test under nextest: the
/// folder is named after everything that it is made of. `None`, said in one line, where there is no compiler.
pub fn cpp_built(what: &str, place: &str, source: &str, name: &str, arguments: &[&str]) -> Option<PathBuf> {
    let compiler = cpp_compiler(what)?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut hash = DefaultHasher::new();
    (&compiler, source, arguments).hash(&mut hash);
    let folders = ["driver", "kernels", "../kernels/cuda"].map(|folder| root.join(folder));
    let files = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap()).map(|file| file.unwrap().path());
    let is_cpp = |file: &PathBuf| file.extension().is_some_and(|e| ["cpp", "h", "cu"].iter().any(|cpp| e == *cpp));
    let mut files: Vec<PathBuf> = files.filter(is_cpp).collect();
    files.sort();
    files.iter().for_each(|file| fs::read(file).unwrap().hash(&mut hash));
    let folder = Path::new(place).join(format!("cpp-{:016x}", hash.finish()));
    fs::create_dir_all(&folder).unwrap();
    // Others wait for the one that compiles.
    let lock = File::create(folder.join("lock")).unwrap();
    lock.lock().unwrap();
    let built = folder.join(name);
    if !built.exists() {
        let unfinished = folder.join("unfinished");
        let include = root.join("../kernels/cuda");
        let mut command = Command::new(&compiler);
        command.args(["-std=c++17", "-O1", "-Wall", "-Wextra", "-Wno-unknown-pragmas", "-ffp-contract=off"]);
        let done =
            command.arg("-I").arg(include).arg(root.join(source)).args(arguments).arg("-o").arg(&unfinished).output();
        let done = done.unwrap();
        assert!(done.status.success(), "{compiler} refuses {source}:\n{}", String::from_utf8_lossy(&done.stderr));
        fs::rename(unfinished, &built).unwrap();
    }
    Some(built)
}
