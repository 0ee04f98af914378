//! Circles of imports between files: who reads one of them has to read all of them.
//!
//! A file and the modules below it know each other by necessity and do not count. A name that a module only hands on
//! (`pub use`) counts as the file that has it.

use std::collections::{BTreeMap, BTreeSet};

use super::code::{code_of, without_tests};
use super::rules::Tree;

/// The sources that are looked at, each a crate.
const CRATES: &[&str] = &[
    "engine/src/",
    "engine/control/src/",
    "engine/stats/src/",
    "engine/decode/src/",
    "engine/disk/src/",
    "engine/source/src/",
    "engine/cli/src/",
    "engine/lab/src/",
    "engine/candle/src/",
    "kernels/src/",
    "pybind/src/",
];

/// Circles that stay, each for a reason.
const BENIGN: &[(&[&str], &str)] =
    &[(&["engine/src/staging/pool.rs", "engine/src/staging/slot.rs"], "a slot gives itself back to its pool")];

type Module = Vec<String>;

/// One crate: the code of its files by module.
struct Crate<'a> {
    files: BTreeMap<Module, (&'a str, String)>,
}

/// Every circle of files, as sorted lists of paths.
pub(crate) fn circles(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for root in CRATES {
        let files = tree.iter().filter_map(|(path, text)| {
            let inside = path.strip_prefix(root)?.strip_suffix(".rs")?;
            let is_test = inside.ends_with("tests") || inside.contains("tests/");
            (!is_test).then(|| (module(inside), (path.as_str(), without_tests(&code_of(text)).to_owned())))
        });
        let whole = Crate { files: files.collect() };
        let edges: BTreeMap<&str, BTreeSet<&str>> = whole.files.keys().map(|m| whole.edges(m)).collect();
        for circle in components(&edges) {
            if !BENIGN.iter().any(|(files, _)| *files == circle) {
                found.push(format!("{}: a circle of imports with {}", circle[0], circle[1..].join(", ")));
            }
        }
    }
    found
}

/// The module of a file below `src/`, without its ending.
fn module(inside: &str) -> Module {
    let parts: Module = inside.split('/').map(str::to_owned).collect();
    match parts.last().map(String::as_str) {
        Some("mod") => parts[..parts.len() - 1].to_vec(),
        Some("lib" | "main") if parts.len() == 1 => Vec::new(),
        _ => parts,
    }
}

impl<'a> Crate<'a> {
    /// The files that the file of `from` names.
    fn edges(&self, from: &Module) -> (&'a str, BTreeSet<&'a str>) {
        let (path, code) = &self.files[from];
        let named = paths(code, from).into_iter().filter_map(|(_, named)| self.owner(&named, 8));
        let related = |to: &Module| to.starts_with(from) || from.starts_with(to);
        (path, named.filter(|to| !related(to)).map(|to| self.files[&to].0).collect())
    }

    /// The module that has what is named: names that are handed on lead further.
    fn owner(&self, named: &[String], depth: u32) -> Option<Module> {
        let known = (0..=named.len()).rev().find(|&k| self.files.contains_key(&named[..k]))?;
        let holder = named[..known].to_vec();
        let Some(name) = named.get(known) else { return Some(holder) };
        let handed_on =
            paths(&self.files[&holder].1, &holder).into_iter().find(|(alias, _)| alias.as_ref() == Some(name));
        match handed_on {
            Some((_, further)) if depth > 0 && further != named => self.owner(&further, depth - 1),
            _ => Some(holder),
        }
    }
}

/// Every path into the crate that the code names, from the crate's root, with the name it is imported under.
fn paths(code: &str, module: &Module) -> Vec<(Option<String>, Vec<String>)> {
    let flat = code.split_whitespace().collect::<Vec<_>>().join(" ").replace(" :: ", "::").replace(":: ", "::");
    let in_word = |at: usize| flat[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '$');
    let mut found = Vec::new();
    // Imports, also of what lies below the module.
    for (at, _) in flat.match_indices("use ").filter(|&(at, _)| !in_word(at)) {
        let statement = flat[at + 4..].split(';').next().unwrap_or("");
        for (path, alias) in expand(statement) {
            found.extend(absolute(&path, module, true).map(|path| (Some(alias), path)));
        }
    }
    // Paths written out in the code.
    for head in ["crate::", "super::"] {
        for (at, _) in flat.match_indices(head).filter(|&(at, _)| !in_word(at) && !flat[..at].ends_with("::")) {
            let end =
                flat[at..].find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')).unwrap_or(flat.len() - at);
            let path: Vec<String> =
                flat[at..at + end].split("::").filter(|s| !s.is_empty()).map(str::to_owned).collect();
            found.extend(absolute(&path, module, false).map(|path| (None, path)));
        }
    }
    found
}

/// A path from the crate's root; `None` for other crates'.
fn absolute(path: &[String], module: &Module, below: bool) -> Option<Vec<String>> {
    let (mut base, mut rest) = (module.clone(), path);
    match rest.first()?.as_str() {
        "crate" => (base, rest) = (Vec::new(), &rest[1..]),
        "self" => rest = &rest[1..],
        "super" => {
            while rest.first().is_some_and(|s| s == "super") {
                base.pop();
                rest = &rest[1..];
            }
        }
        _ if below => {}
        _ => return None,
    }
    Some(base.into_iter().chain(rest.iter().cloned()).collect())
}

/// The single paths of a tree of imports, each with the name it gives.
fn expand(tree: &str) -> Vec<(Vec<String>, String)> {
    let tree = tree.trim();
    let Some(open) = tree.find('{') else {
        let (path, alias) = tree.split_once(" as ").map_or((tree, None), |(path, alias)| (path, Some(alias.trim())));
        let mut path: Vec<String> = path.trim().split("::").map(str::to_owned).collect();
        if path.last().is_some_and(|last| last == "self" && path.len() > 1) {
            path.pop();
        }
        let name = alias.map_or_else(|| path.last().cloned().unwrap_or_default(), str::to_owned);
        return vec![(path, name)];
    };
    let head: Vec<String> =
        tree[..open].split("::").filter(|s| !s.trim().is_empty()).map(|s| s.trim().to_owned()).collect();
    let (mut depth, mut member, mut all) = (0, String::new(), Vec::new());
    for c in tree[open + 1..].chars() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                all.push(std::mem::take(&mut member));
                continue;
            }
            _ => {}
        }
        member.push(c);
    }
    all.push(member);
    let single = |member: &String| expand(member).into_iter().map(|(path, name)| ([head.clone(), path].concat(), name));
    let mut single: Vec<_> = all.iter().filter(|m| !m.trim().is_empty()).flat_map(single).collect();
    for (path, name) in &mut single {
        // `a::{self}` is `a`.
        if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
            path.pop();
            *name = path.last().cloned().unwrap_or_default();
        }
    }
    single
}

/// Sets of more than one file in which every file leads to every other.
fn components<'a>(edges: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> Vec<Vec<&'a str>> {
    let reach = |from: &'a str| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(file) = next.pop() {
            next.extend(edges.get(file).into_iter().flatten().filter(|&&to| seen.insert(to)));
        }
        seen
    };
    let all: BTreeMap<&str, BTreeSet<&str>> = edges.keys().map(|&file| (file, reach(file))).collect();
    let circles: BTreeSet<Vec<&str>> = all
        .iter()
        .filter(|(file, to)| to.contains(*file))
        .map(|(file, to)| to.iter().copied().filter(|other| all[other].contains(file)).collect())
        .collect();
    circles.into_iter().collect()
}

#[test]
fn imports_are_read_in_every_spelling() {
    let code =
        "use super::a::{self, b::C as D, e::{f, G}};\nuse crate::h::I;\nuse std::fmt;\nfn f(x: super::super::k::L) {}";
    let module = vec!["m".to_owned(), "n".to_owned()];
    let found = paths(code, &module);
    let named =
        |alias: &str| found.iter().find(|(name, _)| name.as_deref() == Some(alias)).map(|(_, path)| path.join("::"));
    assert_eq!(
        ["a", "D", "f", "G", "I"].map(|name| named(name).unwrap()),
        ["m::a", "m::a::b::C", "m::a::e::f", "m::a::e::G", "h::I"]
    );
    assert!(found.iter().any(|(name, path)| name.is_none() && path.join("::") == "k::L"));
}
