//! The rules themselves, as tables, and one function that holds a tree to them.

use std::collections::BTreeMap;

use super::code::{code_of, crate_paths, has_word, std_paths, without_tests};

/// Paths from the workspace's root, and the files' texts.
pub(crate) type Tree = BTreeMap<String, String>;

/// What may lie at the top level besides dot-files: the rooms, and what tools demand to find there.
const TOP_LEVEL: &[&str] = &[
    "Cargo.toml",
    "Cargo.lock",
    "kernels",
    "engine",
    "pybind",
    "tests",
    "benches",
    "docker",
    "README.md",
    "Makefile",
    "LICENSE-MIT",
    "LICENSE-APACHE",
    "CHANGELOG.md",
    "rustfmt.toml",
    "deny.toml",
    "clippy.toml",
];

/// Words everybody may use.
const COMMON: &[&str] = &["error", "types", "random"];

/// The pure half by rank: a room may use rooms of a lower rank.
const PURE: &[(&str, u32)] = &[
    ("index", 0),
    ("ring", 0),
    ("tune", 0),
    // Rooms of `tune` under their own names, as the root has them.
    ("crew", 0),
    ("lead", 0),
    ("circuit", 0),
    ("decided", 1),
    ("policy", 1),
    ("ledger", 2),
    ("sampler", 2),
    ("control", 3),
    ("sim", 4),
    ("jobs", 4),
];

/// The effect half by rank. It may use all of the pure half. `stats` counts and `sync` locks for everyone, so they
/// stand at the bottom.
const EFFECT: &[(&str, u32)] = &[
    ("stats", 0),   // a crate of its own, under its old name
    ("journal", 0), // a crate of its own
    ("disk", 0),    // a crate of its own
    ("node", 0),    // a crate of its own
    ("sync", 0),
    ("process", 0), // lossfeed-sync's
    ("interrupt", 0),
    ("device", 1),
    ("arena", 2),
    ("staging", 3),
    ("cache", 3),
    ("source", 3), // a crate of its own, under its old name
    ("loader", 4),
    ("scoring", 5),
    ("engine", 6),
];

/// The folders of the source's crate by rank (`decode` is a crate of its own, under its old name), and what is beside
/// them for all of them.
const SOURCE: &[(&str, u32)] =
    &[("decode", 0), ("sample", 1), ("options", 2), ("request", 3), ("format", 4), ("wrap", 5), ("place", 6)];
const BESIDE_SOURCE: &[&str] = &["stop", "shown", "runtime", "tune", "process"];

/// Settings are plain values; some of them are the pure half's and the source's own. Rooms that only move bytes get
/// what they need handed in.
const SETTINGS_USES: &[&str] = &["sampler", "policy", "source", "tune"];
const USES_SETTINGS: &[&str] = &["loader", "scoring", "engine"];

/// Parts of std that the pure half has no use for: it reads no clock, starts no thread, opens nothing.
const IMPURE_STD: &[&str] = &["time", "thread", "fs", "net", "process", "env"];
const IMPURE_CRATES: &[&str] =
    &["lossfeed_sync", "tokio", "rustix", "nix", "memmap2", "object_store", "cudarc", "pinned_vec", "rayon"];

/// Files of the effect half that decide: no effects there either.
const PURE_FILES: &[&str] = &["engine/src/engine/copy_path.rs"];

/// The files that may contain `unsafe`, each for one reason.
const UNSAFE: &[(&str, &str)] = &[
    ("engine/src/arena/mapping.rs", "memory from the system"),
    ("engine/src/arena/mod.rs", "the books are a part of the arena's mapping"),
    ("engine/src/arena/granules.rs", "the books are a part of the arena's mapping"),
    ("engine/node/src/arena.rs", "memory that several processes map"),
    ("engine/sync/src/process.rs", "a page that the system empties in a fork"),
    ("engine/src/arena/slot.rs", "a slot is a part of the arena's mapping"),
    ("engine/src/arena/words.rs", "the books are a part of the arena's mapping"),
    ("engine/src/staging/slot.rs", "a batch slot is a part of the pool's mapping"),
    ("engine/src/device/cuda/mod.rs", "the CUDA driver: promises about raw device addresses and streams"),
    ("engine/src/device/cuda/driver.rs", "the CUDA driver: context, registered and mapped memory"),
    ("engine/src/device/cuda/probe.rs", "the CUDA driver: what is there"),
    ("engine/src/device/cuda/batch.rs", "the CUDA driver: a function that the bindings may not have"),
    ("engine/src/device/cuda/copy.rs", "the CUDA driver: copies and events"),
    ("engine/src/device/cuda/memory.rs", "the CUDA driver: device memory"),
    ("engine/src/device/cuda/kernels.rs", "the CUDA driver: kernels"),
    ("engine/src/device/cuda/lend.rs", "the CUDA driver: what launches are lent"),
    ("engine/src/device/cuda/module.rs", "the CUDA driver: the kernels' code"),
    ("engine/src/device/cuda/mailbox.rs", "memory that the GPU writes and the CPU reads"),
    ("engine/src/device/cuda/mailbox_tests.rs", "plays the GPU on plain memory"),
    ("engine/candle/src/cuda.rs", "the CUDA driver: kernels in candle's context"),
    ("kernels/src/fast/dispatch.rs", "functions compiled for a vector unit"),
    ("kernels/src/fast/prefetch.rs", "an instruction of the processor"),
    ("pybind/src/buffer.rs", "memory lent by Python"),
    ("pybind/src/lent.rs", "arrays and tensors of a dataset's items, where they lie in Python's memory"),
    ("engine/src/engine/courier.rs", "device addresses lent by a framework"),
    ("engine/src/engine/copy_cost.rs", "device addresses to measure copies with"),
    ("pybind/src/courier.rs", "device addresses lent by Python"),
    ("pybind/src/cuda.rs", "device addresses lent by Python"),
    ("pybind/src/plans.rs", "device addresses lent by Python"),
    ("pybind/src/openmp.rs", "a function of the C runtime that torch has loaded"),
    ("tests/driver/double.rs", "the driver double: a library loaded in the driver's place"),
    ("tests/kernels/gpu.rs", "kernel launches on a GPU"),
];

/// Dependencies on our own crates and on what a layer must not know.
const MAY_NOT_DEPEND: &[(&str, &[&str])] = &[
    (
        "kernels/Cargo.toml",
        &[
            "lossfeed",
            "lossfeed-cli",
            "lossfeed-lab",
            "lossfeed-candle",
            "pyo3",
            "clap",
            "crossterm",
            "tokio",
            "object_store",
            "cudarc",
            "candle-core",
        ],
    ),
    // The pure half: what could be an effect is no dependency.
    (
        "engine/control/Cargo.toml",
        &[
            "lossfeed",
            "lossfeed-stats",
            "lossfeed-sync",
            "tokio",
            "rustix",
            "memmap2",
            "object_store",
            "cudarc",
            "pinned_vec",
            "rayon",
            "tracing",
            "csv",
            "flate2",
        ],
    ),
    ("engine/stats/Cargo.toml", &["lossfeed", "lossfeed-kernels", "tokio", "object_store", "cudarc"]),
    ("engine/disk/Cargo.toml", &["lossfeed", "lossfeed-kernels", "lossfeed-stats", "tokio", "object_store", "cudarc"]),
    ("engine/node/Cargo.toml", &["lossfeed", "lossfeed-control", "lossfeed-stats", "tokio", "object_store", "cudarc"]),
    (
        "engine/decode/Cargo.toml",
        &["lossfeed", "lossfeed-source", "lossfeed-stats", "lossfeed-sync", "tokio", "object_store", "pyo3", "cudarc"],
    ),
    (
        "engine/source/Cargo.toml",
        &["lossfeed", "lossfeed-stats", "lossfeed-journal", "lossfeed-cli", "lossfeed-lab", "pyo3", "clap", "cudarc"],
    ),
    (
        "engine/Cargo.toml",
        &["lossfeed-cli", "lossfeed-lab", "lossfeed-candle", "pyo3", "clap", "crossterm", "candle-core"],
    ),
    ("engine/cli/Cargo.toml", &["pyo3", "lossfeed-lab", "lossfeed-python", "lossfeed-candle", "candle-core"]),
    // Nothing of the product looks at it, and it does without the engine.
    ("engine/lab/Cargo.toml", &["lossfeed", "lossfeed-python", "lossfeed-candle", "pyo3"]),
    // Optional: it looks down on engine and kernels, and nobody looks at it.
    (
        "engine/candle/Cargo.toml",
        &["lossfeed-cli", "lossfeed-lab", "lossfeed-python", "pyo3", "clap", "crossterm", "tokio"],
    ),
    ("pybind/Cargo.toml", &["lossfeed-lab", "lossfeed-candle", "candle-core"]),
];

/// Longest file a person should have to read.
const LINES_MAX: usize = 500;

/// Most source files of the product that may lie in one folder, tests apart.
const FILES_MAX: usize = 30;

/// Named files that are gone or have become safe: the list must not keep doors open that nobody uses.
fn unused_permissions(tree: &Tree, found: &mut Vec<String>) {
    for (path, _) in UNSAFE {
        if !tree.get(*path).is_some_and(|text| has_word(&code_of(text), "unsafe")) {
            found.push(format!("{path}: named as a place for unsafe, has none"));
        }
    }
}

fn full_folders(tree: &Tree, found: &mut Vec<String>) {
    let mut folders = BTreeMap::new();
    for path in tree.keys().filter(|path| is_product(path)) {
        let (folder, file) = path.rsplit_once('/').unwrap_or_default();
        if ["rs", "py", "pyi", "cu", "cuh"].contains(&file.rsplit('.').next().unwrap_or_default()) {
            *folders.entry(folder).or_insert(0) += 1;
        }
    }
    for (folder, files) in folders {
        if files > FILES_MAX {
            found.push(format!("{folder}: {files} files, {FILES_MAX} are the most: folders say what is inside"));
        }
    }
}

fn is_test(path: &str) -> bool {
    path.starts_with("tests/") || path.ends_with("/tests.rs") || path.ends_with("_tests.rs") || path.contains("/tests/")
}

fn is_product(path: &str) -> bool {
    ["engine/", "kernels/", "pybind/"].iter().any(|room| path.starts_with(room)) && !is_test(path)
}

/// Everything in the tree that breaks a rule, a line each: path, then reason.
pub(crate) fn violations(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    unused_permissions(tree, &mut found);
    full_folders(tree, &mut found);
    for (path, text) in tree {
        let top = path.split('/').next().unwrap_or(path);
        if !TOP_LEVEL.contains(&top) {
            found.push(format!("{path}: {top} is not one of the top level's {}", TOP_LEVEL.join(" ")));
        }
        let extension = path.rsplit('.').next().unwrap_or("");
        if ["rs", "py", "pyi", "cu", "cuh"].contains(&extension) && text.lines().count() > LINES_MAX {
            found.push(format!("{path}: {} lines, {LINES_MAX} are the most", text.lines().count()));
        }
        if extension == "py"
            && path.starts_with("pybind/")
            && !text.starts_with("\"\"\"")
            && !text.starts_with("r\"\"\"")
        {
            found.push(format!("{path}: no head: the file starts with a docstring that says what it is for"));
        }
        if extension == "rs" {
            rust(path, text, &mut found);
        }
        if let Some((_, banned)) = MAY_NOT_DEPEND.iter().find(|(manifest, _)| manifest == path) {
            dependencies(path, text, banned, &mut found);
        }
    }
    found
}

fn rust(path: &str, text: &str, found: &mut Vec<String>) {
    let head = text.lines().find(|line| !line.starts_with("#!["));
    if !head.is_some_and(|line| line.starts_with("//! ")) {
        found.push(format!("{path}: no head: the file starts with //! and what it is for"));
    }
    let all = code_of(text);
    let product = is_product(path);
    if !is_test(path) {
        unsafe_code(path, text, &all, found);
    }
    if product && has_word(&all, "parking_lot") {
        found.push(format!("{path}: parking_lot's table of threads outlives a fork: take lossfeed_sync"));
    }
    if product {
        let code = without_tests(&all);
        for call in [".unwrap()", ".expect(", "panic!(", "unreachable!(", "todo!(", "unimplemented!("] {
            if code.contains(call) {
                found.push(format!("{path}: {call} panics; return an error that says what to do"));
            }
        }
        let calls_cuda = path.strip_prefix("engine/src/").filter(|file| !file.starts_with("device/"));
        let above = |file: &str| has_word(code, "cudarc") || !file.starts_with("engine") && has_word(code, "cuda");
        if calls_cuda.is_some_and(above) {
            found.push(format!("{path}: a GPU's own calls are for `device` and `engine`: ask the trait `Device`"));
        }
        if let Some(file) = path.strip_prefix("engine/src/").or_else(|| path.strip_prefix("engine/control/src/")) {
            arrows(path, file, code, found);
        }
        if let Some(file) = path.strip_prefix("engine/source/src/") {
            source_arrows(path, file, code, found);
        }
        if PURE_FILES.contains(&path) {
            effects(path, code, found);
        }
    }
}

fn unsafe_code(path: &str, text: &str, code: &str, found: &mut Vec<String>) {
    if !has_word(code, "unsafe") && !has_word(code, "unsafe_code") {
        return;
    }
    if !UNSAFE.iter().any(|(named, _)| *named == path) {
        found.push(format!("{path}: unsafe outside the named files"));
        return;
    }
    let lines: Vec<&str> = text.lines().collect();
    for (k, line) in code.lines().enumerate() {
        let needs_proof = line.contains("unsafe {") || line.contains("unsafe impl");
        let above = lines[..k].iter().rev().take(12).take_while(|l| !l.trim().is_empty());
        let proven = std::iter::once(&lines[k]).chain(above).any(|l| l.contains("SAFETY"));
        if needs_proof && !proven {
            found.push(format!("{path}: line {}: unsafe without a SAFETY proof above it", k + 1));
        }
    }
}

fn arrows(path: &str, file: &str, code: &str, found: &mut Vec<String>) {
    let module: Vec<&str> = file.trim_end_matches(".rs").trim_end_matches("/mod").split('/').collect();
    let room = module[0];
    if room == "lib" {
        return;
    }
    let rank = |table: &[(&str, u32)], name: &str| table.iter().find(|(n, _)| *n == name).map(|(_, r)| *r);
    let (pure, effect) = (rank(PURE, room), rank(EFFECT, room));
    if pure.is_none() && effect.is_none() && !COMMON.contains(&room) && room != "settings" {
        found.push(format!("{path}: the room {room} has no rank in tests/house/rules.rs"));
        return;
    }
    for used in crate_paths(code, &module) {
        // The root re-exports common words (`crate::Error`); macros and the room itself are at home.
        if used == room || COMMON.contains(&used.as_str()) || used.starts_with(char::is_uppercase) {
            continue;
        }
        let below = |table: &[(&str, u32)], mine: Option<u32>| matches!((rank(table, &used), mine), (Some(theirs), Some(mine)) if theirs < mine);
        let allowed = match (pure, effect) {
            (Some(_), _) => below(PURE, pure),
            (None, Some(_)) if used == "settings" => USES_SETTINGS.contains(&room),
            (None, Some(_)) => rank(PURE, &used).is_some() || below(EFFECT, effect),
            (None, None) => room == "settings" && SETTINGS_USES.contains(&used.as_str()),
        };
        if !allowed {
            found.push(format!("{path}: {room} may not use {used}: arrows go down only"));
        }
    }
    if pure.is_some() || COMMON.contains(&room) {
        effects(path, code, found);
    }
}

/// The arrows between the folders of the source's crate.
fn source_arrows(path: &str, file: &str, code: &str, found: &mut Vec<String>) {
    let module: Vec<&str> = file.trim_end_matches(".rs").trim_end_matches("/mod").split('/').collect();
    let room = module[0];
    if ["lib", "fuzzing"].contains(&room) {
        return;
    }
    let rank = |name: &str| SOURCE.iter().find(|(n, _)| *n == name).map(|(_, r)| *r);
    if rank(room).is_none() && !BESIDE_SOURCE.contains(&room) {
        found.push(format!("{path}: the room {room} has no rank in tests/house/rules.rs"));
    }
    for used in crate_paths(code, &module) {
        let at_home = used == room || used.starts_with(char::is_uppercase);
        if at_home || COMMON.contains(&used.as_str()) || BESIDE_SOURCE.contains(&used.as_str()) {
            continue;
        }
        if !matches!((rank(&used), rank(room)), (Some(theirs), Some(mine)) if theirs < mine) {
            found.push(format!("{path}: {room} may not use {used}: arrows go down only"));
        }
    }
}

fn effects(path: &str, code: &str, found: &mut Vec<String>) {
    for used in std_paths(code).iter().filter(|used| IMPURE_STD.contains(&used.as_str())) {
        found.push(format!("{path}: the pure half may not use std::{used}"));
    }
    for used in IMPURE_CRATES.iter().filter(|name| has_word(code, name)) {
        found.push(format!("{path}: the pure half may not use {used}"));
    }
}

fn dependencies(path: &str, text: &str, banned: &[&str], found: &mut Vec<String>) {
    let mut section = "";
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line.trim_matches(['[', ']']);
            continue;
        }
        let name = line.split(['.', '=', ' ']).next().unwrap_or("");
        if section.ends_with("dependencies") && section != "dev-dependencies" && banned.contains(&name) {
            found.push(format!("{path}: may not depend on {name}"));
        }
    }
}
