//! What several test programs need.

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

/// The names of all cache policies, those that only a replay compares too.
pub fn policy_names() -> impl Iterator<Item = &'static str> {
    lossfeed_lab::policies::ALL.iter().map(|entry| entry.name)
}
