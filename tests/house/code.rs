//! Rust source as code alone: comments and literals blanked, tests cut off, and the paths it names.

/// The source with comments and the insides of literals replaced by blanks; lines stay where they are.
pub(crate) fn code_of(source: &str) -> String {
    let text: Vec<char> = source.chars().collect();
    let mut out = String::with_capacity(source.len());
    let mut at = 0;
    let at_word = |k: usize| k > 0 && (text[k - 1].is_alphanumeric() || text[k - 1] == '_');
    while at < text.len() {
        let rest = &text[at..];
        let end = match rest {
            ['/', '/', ..] => at + rest.iter().position(|&c| c == '\n').unwrap_or(rest.len()),
            ['/', '*', ..] => end_of_block_comment(&text, at),
            ['"', ..] => end_of_string(&text, at + 1),
            ['b' | 'c', '"', ..] if !at_word(at) => end_of_string(&text, at + 2),
            ['r', '"' | '#', ..] if !at_word(at) => end_of_raw_string(&text, at + 1),
            ['b' | 'c', 'r', '"' | '#', ..] if !at_word(at) => end_of_raw_string(&text, at + 2),
            // An escape: its quote comes after the escaped character, which may itself be a quote.
            ['\'', '\\', ..] => at + 4 + rest.iter().skip(3).position(|&c| c == '\'').unwrap_or(0),
            // A character, and not a lifetime.
            ['\'', _, '\'', ..] => at + 3,
            [c, ..] => {
                out.push(*c);
                at += 1;
                continue;
            }
            [] => break,
        };
        out.extend(text[at..end.min(text.len())].iter().map(|&c| if c == '\n' { '\n' } else { ' ' }));
        at = end;
    }
    out
}

fn end_of_block_comment(text: &[char], start: usize) -> usize {
    let (mut at, mut depth) = (start, 0);
    while at < text.len() {
        match text[at..] {
            ['/', '*', ..] => (at, depth) = (at + 2, depth + 1),
            ['*', '/', ..] => (at, depth) = (at + 2, depth - 1),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn end_of_string(text: &[char], mut at: usize) -> usize {
    while at < text.len() && text[at] != '"' {
        at += if text[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

/// From the first `#` or quote; a raw identifier (`r#type`) ends at once.
fn end_of_raw_string(text: &[char], start: usize) -> usize {
    let hashes = text[start..].iter().take_while(|&&c| c == '#').count();
    let mut at = start + hashes;
    if text.get(at) != Some(&'"') {
        return at;
    }
    at += 1;
    while at < text.len() {
        if text[at] == '"' && text[at + 1..].iter().take(hashes).filter(|&&c| c == '#').count() == hashes {
            return at + 1 + hashes;
        }
        at += 1;
    }
    at
}

/// Code without its test module, which by convention ends the file.
pub(crate) fn without_tests(code: &str) -> &str {
    let cut = code.match_indices("#[cfg(test)]").find(|(at, attribute)| {
        code[at + attribute.len()..].trim_start().trim_start_matches("pub(super) ").starts_with("mod tests {")
    });
    cut.map_or(code, |(at, _)| &code[..at])
}

/// The first segments below the crate's root that a file of the crate names, however it writes them: `crate::a`,
/// `crate::{a, b::c}`, `super::super::a`. `module` is the file's own module path.
pub(crate) fn crate_paths(code: &str, module: &[&str]) -> Vec<String> {
    let flat: String = code.split_whitespace().collect::<Vec<_>>().join(" ").replace(" :: ", "::").replace(":: ", "::");
    let mut found = Vec::new();
    for (at, _) in flat.match_indices("crate::") {
        if !ends_a_word(&flat[..at]) {
            found.extend(heads(&flat[at + "crate::".len()..]));
        }
    }
    for (at, _) in flat.match_indices("super::") {
        // Only the first of a chain.
        if ends_a_word(&flat[..at]) || flat[..at].ends_with("super::") {
            continue;
        }
        let (mut rest, mut up) = (&flat[at..], 0);
        while let Some(after) = rest.strip_prefix("super::") {
            (rest, up) = (after, up + 1);
        }
        if up >= module.len() {
            found.extend(heads(rest));
        }
    }
    found.sort();
    found.dedup();
    found
}

fn ends_a_word(before: &str) -> bool {
    before.chars().next_back().is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '$')
}

/// The first identifiers of a path: one, or those of a braced list's members.
fn heads(path: &str) -> Vec<String> {
    let identifier =
        |text: &str| -> String { text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect() };
    let Some(list) = path.strip_prefix('{') else { return vec![identifier(path)] };
    let (mut depth, mut member, mut found) = (0, String::new(), Vec::new());
    for c in list.chars() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => found.push(identifier(&std::mem::take(&mut member))),
            _ => {}
        }
        if !(c == ',' && depth == 0) {
            member.push(c);
        }
    }
    found.push(identifier(&member));
    found.retain(|name| !name.is_empty());
    found
}

/// The first segments of what is named below `std::`.
pub(crate) fn std_paths(code: &str) -> Vec<String> {
    let flat: String = code.split_whitespace().collect::<Vec<_>>().join(" ");
    flat.match_indices("std::")
        .filter(|(at, _)| !ends_a_word(&flat[..*at]))
        .flat_map(|(at, s)| heads(&flat[at + s.len()..]))
        .collect()
}

/// Whether `word` stands in the code as a word of its own.
pub(crate) fn has_word(code: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).any(|(at, _)| !code[..at].ends_with(part) && !code[at + word.len()..].starts_with(part))
}

#[test]
fn comments_and_literals_are_no_code() {
    let code = code_of("a /* x /* y */ */ b // c\n'\\'' 'q' &'life \"s\\\"t\" r#\"u\"v\"# br\"w\" r#type e");
    let words: Vec<&str> = code.split_whitespace().collect();
    assert_eq!(words, ["a", "b", "&'life", "type", "e"]);
}

#[test]
fn paths_are_read_in_every_spelling() {
    let code =
        "use crate::{a::b, c::{d, e}};\nfn f(x: crate::g::H, y: super::k::L, z: super::super::m::N) { my_crate::n(); }";
    assert_eq!(crate_paths(code, &["policy", "lru"]), ["a", "c", "g", "m"]);
    assert_eq!(crate_paths(code, &["policy"]), ["a", "c", "g", "k", "m"]);
    assert_eq!(std_paths("use std::{thread, mem::take}; std::fs::read()"), ["thread", "mem", "fs"]);
}
