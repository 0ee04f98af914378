//! The allowed arrows of the house, as a test: who may use whom, what the pure half may not touch, where `unsafe` may
//! stand, what lies at the top level, how long a file may be. `engine/ARCHITECTURE.md` tells the reasons.
//!
//! The checks work on a tree of (path, text), so that each of them is also shown to find a planted violation.

#[path = "house/circles.rs"]
mod circles;
#[path = "house/code.rs"]
mod code;
#[path = "house/language.rs"]
mod language;
#[path = "house/rules.rs"]
mod rules;

use std::path::Path;

use rules::{Tree, violations};

/// Every file of the workspace that a person wrote.
fn workspace() -> Tree {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut tree = Tree::new();
    walk(&root, "", &mut tree);
    tree
}

fn walk(directory: &Path, prefix: &str, tree: &mut Tree) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        // Dot-files are the tools' business, the rest is built, not written.
        if name.starts_with('.') || ["target", "dist", "__pycache__"].contains(&name.as_str()) {
            continue;
        }
        let path = format!("{prefix}{name}");
        if entry.file_type().unwrap().is_dir() {
            walk(&entry.path(), &format!("{path}/"), tree);
        } else {
            // What is not text (a compressed trace, an image) is present with no text.
            tree.insert(path, std::fs::read_to_string(entry.path()).unwrap_or_default());
        }
    }
}

#[test]
fn the_house_keeps_its_rules() {
    let found = violations(&workspace());
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

#[test]
fn the_walk_sees_the_house() {
    let tree = workspace();
    for known in [
        "engine/control/src/policy/mod.rs",
        "engine/control/src/error.rs",
        "kernels/src/lib.rs",
        "tests/house.rs",
        "Makefile",
    ] {
        assert!(tree.contains_key(known), "{known} was not seen");
    }
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    let found = circles::circles(&workspace());
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

#[test]
fn a_circle_of_imports_is_found_also_through_names_that_are_handed_on() {
    let mut tree = workspace();
    for (path, text) in [
        ("engine/src/loader/planted.rs", "use super::planted_too::A;"),
        ("engine/src/loader/planted_too.rs", "use super::PlantedB;"),
    ] {
        tree.insert(path.to_owned(), format!("//! Head.\n{text}\n"));
    }
    let room = tree.get_mut("engine/src/loader/mod.rs").unwrap();
    room.push_str("pub use planted::B as PlantedB;\n");
    let found = circles::circles(&tree);
    let planted = "engine/src/loader/planted.rs: a circle of imports with engine/src/loader/planted_too.rs";
    assert!(found.iter().any(|circle| circle == planted), "{found:?}");
}

/// What becomes wrong when `text` is put at `path`.
fn planted(path: &str, text: &str) -> Vec<String> {
    let mut tree = workspace();
    let before = violations(&tree);
    tree.insert(path.to_owned(), text.to_owned());
    violations(&tree).into_iter().filter(|v| !before.contains(v)).collect()
}

/// The planted text breaks a rule, and the message tells file and reason.
#[track_caller]
fn assert_found(path: &str, text: &str, reason: &str) {
    let found = planted(path, text);
    assert!(
        found.iter().any(|v| v.starts_with(path) && v.contains(reason)),
        "planted in {path}: {text:?}\nexpected a violation with {reason:?}, found {found:?}"
    );
}

#[test]
fn an_arrow_upwards_is_found_however_it_is_written() {
    for (path, text) in [
        ("engine/control/src/policy/planted.rs", "use crate::ledger::Ledger;"),
        ("engine/control/src/policy/planted.rs", "use super::super::ledger::Ledger;"),
        ("engine/control/src/policy/planted.rs", "use crate::{error::Error, ledger::Ledger};"),
        ("engine/control/src/policy/planted.rs", "fn f(x: crate::ledger::Ledger) {}"),
        ("engine/src/arena/planted.rs", "use crate::staging::SlotPool;"),
        ("engine/src/cache/planted.rs", "use crate::source::Source;"),
        ("engine/src/loader/planted.rs", "use crate::engine::Engine;"),
        ("engine/source/src/request/planted.rs", "use crate::format::Arrays;"),
        ("engine/source/src/stop.rs", "use crate::sample::Source;"),
    ] {
        assert_found(path, &format!("//! Head.\n{text}\n"), "may not use");
    }
}

#[test]
fn the_pure_half_is_kept_from_effects() {
    for text in [
        "use crate::arena::Arena;",
        "use std::time::Instant;",
        "use std::{thread, mem};",
        "fn f() { std::fs::read(\"x\"); }",
        "use lossfeed_sync::Mutex;",
    ] {
        assert_found("engine/control/src/index/planted.rs", &format!("//! Head.\n{text}\n"), "may not use");
    }
    for text in ["use std::time::Instant;", "use lossfeed_sync::Mutex;"] {
        assert_found("engine/src/engine/copy_path.rs", &format!("//! Head.\n{text}\n"), "may not use");
    }
}

#[test]
fn locks_that_no_fork_can_use_are_found() {
    assert_found("engine/src/loader/planted.rs", "//! Head.\nuse parking_lot::Mutex;\n", "outlives a fork");
}

#[test]
fn unsafe_code_is_found_outside_the_named_files_and_not_in_words_about_it() {
    assert_found("engine/control/src/ledger/planted.rs", "//! Head.\nfn f() { unsafe { g() } }\n", "unsafe");
    assert_found("engine/src/loader/planted.rs", "//! Head.\n#![allow(unsafe_code)]\n", "unsafe");
    let words =
        "//! Head: no unsafe here.\n/* unsafe */ const A: &str = \"unsafe { }\";\nconst B: &str = r#\"unsafe\"#;\n";
    assert_eq!(planted("engine/control/src/ledger/planted.rs", words), Vec::<String>::new());
}

#[test]
fn a_room_that_names_the_gpu_instead_of_the_device_is_found() {
    let text = "//! Head.\nuse crate::device::cuda::Cuda;\n";
    assert_found("engine/src/staging/planted.rs", text, "GPU's own calls");
}

#[test]
fn an_unsafe_block_without_its_proof_is_found() {
    let text = "//! Head.\n#![allow(unsafe_code)]\nfn f() {\n    unsafe { g() }\n}\n";
    assert_found("engine/src/arena/slot.rs", text, "SAFETY");
}

#[test]
fn a_permission_for_unsafe_that_nobody_uses_is_found() {
    assert_found("engine/src/arena/slot.rs", "//! Head.\nfn f() {}\n", "has none");
}

#[test]
fn strangers_at_the_top_level_long_files_and_missing_heads_are_found() {
    assert_found("scripts/helper.sh", "", "top level");
    assert_found("engine/control/src/policy/planted.rs", &format!("//! Head.\n{}", "// line\n".repeat(500)), "lines");
    assert_found("engine/control/src/policy/planted.rs", "fn f() {}\n", "head");
    assert_found("pybind/python/lossfeed/planted.py", "import os\n", "head");
}

#[test]
fn a_folder_with_too_many_files_is_found() {
    let mut tree = workspace();
    for number in 0..31 {
        tree.insert(format!("engine/src/planted/{number}.rs"), "//! Head.\n".to_owned());
    }
    let found = violations(&tree);
    assert!(found.iter().any(|v| v.starts_with("engine/src/planted: 31 files")), "{found:?}");
}

#[test]
fn a_dependency_that_a_crate_may_not_have_is_found() {
    assert_found("kernels/Cargo.toml", "[dependencies]\nlossfeed.workspace = true\n", "may not depend");
    assert_found("engine/Cargo.toml", "[dependencies]\nclap.workspace = true\n", "may not depend");
    assert_found("engine/Cargo.toml", "[dependencies]\npyo3 = \"0.30\"\n", "may not depend");
    assert_found("engine/Cargo.toml", "[dependencies]\nlossfeed-candle = { path = \"candle\" }\n", "may not depend");
    assert_found("engine/candle/Cargo.toml", "[dependencies]\npyo3.workspace = true\n", "may not depend");
}

#[test]
fn a_panic_in_the_product_is_found_and_one_in_its_tests_is_not() {
    assert_found("engine/src/loader/planted.rs", "//! Head.\nfn f() { None::<u8>.unwrap(); }\n", "panics");
    assert_found("kernels/src/planted.rs", "//! Head.\nfn f() { panic!(\"no\") }\n", "panics");
    let text = "//! Head.\n#[cfg(test)]\nmod tests {\n    fn f() { None::<u8>.unwrap(); }\n}\n";
    assert_eq!(planted("engine/src/loader/planted.rs", text), Vec::<String>::new());
}
