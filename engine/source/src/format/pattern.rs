//! Names that stand for many: `train-{0000..0146}.tar`, `{train,val}.tar`, and `*` and `?` in the last component.

use crate::error::{Error, Result};

/// More names than any dataset has shards; a typing error should not fill the memory.
const NAMES_MAX: usize = 1 << 20;

/// Expands braces as shells do: `{a,b}` and `{000..146}`, the wider of the bounds' zero-padded widths kept. Braces that
/// are neither stay as they are. No nesting.
///
/// # Errors
/// `Settings` when the result has more than a million names.
pub(crate) fn braces(text: &str) -> Result<Vec<String>> {
    let mut names = vec![String::new()];
    let mut rest = text;
    while let Some((before, choices, after)) = first_group(rest) {
        let total = names.len().checked_mul(choices.count()).filter(|&n| n <= NAMES_MAX).ok_or_else(|| {
            Error::settings(format!("{text:?} stands for more than {NAMES_MAX} names: check the numbers in braces"))
        })?;
        let mut next = Vec::with_capacity(total);
        for name in &names {
            choices.each(|choice| next.push(format!("{name}{before}{choice}")));
        }
        names = next;
        rest = after;
    }
    for name in &mut names {
        name.push_str(rest);
    }
    Ok(names)
}

enum Choices<'a> {
    Words(&'a str),
    Numbers { from: u64, to: u64, width: usize },
}

impl Choices<'_> {
    fn parse(inside: &str) -> Option<Choices<'_>> {
        if inside.contains(',') {
            return Some(Choices::Words(inside));
        }
        let (from, to) = inside.split_once("..")?;
        let digits = |t: &str| !t.is_empty() && t.bytes().all(|b| b.is_ascii_digit());
        if !digits(from) || !digits(to) {
            return None;
        }
        let padded = |t: &str| if t.len() > 1 && t.starts_with('0') { t.len() } else { 0 };
        Some(Choices::Numbers { from: from.parse().ok()?, to: to.parse().ok()?, width: padded(from).max(padded(to)) })
    }
    fn count(&self) -> usize {
        match self {
            Choices::Words(words) => words.split(',').count(),
            Choices::Numbers { from, to, .. } => {
                usize::try_from(from.abs_diff(*to)).unwrap_or(usize::MAX).saturating_add(1)
            }
        }
    }
    fn each(&self, mut f: impl FnMut(String)) {
        match self {
            Choices::Words(words) => words.split(',').for_each(|w| f(w.to_owned())),
            Choices::Numbers { from, to, width } if from <= to => (*from..=*to).for_each(|n| f(format!("{n:0width$}"))),
            Choices::Numbers { from, to, width } => (*to..=*from).rev().for_each(|n| f(format!("{n:0width$}"))),
        }
    }
}

/// The first group of braces that means something, what is before it and what is after it.
fn first_group(text: &str) -> Option<(&str, Choices<'_>, &str)> {
    let mut from = 0;
    loop {
        let open = from + text.get(from..)?.find('{')?;
        let close = open + text.get(open..)?.find('}')?;
        if let Some(choices) = Choices::parse(text.get(open + 1..close)?) {
            return Some((text.get(..open)?, choices, text.get(close + 1..)?));
        }
        from = open + 1;
    }
}

/// Whether a name has stars or question marks.
pub(crate) fn has_wildcard(name: &str) -> bool {
    name.contains(['*', '?'])
}

/// Whether `name` matches `pattern`: `*` is any run of characters, `?` any one.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let (p, n): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut i, mut j) = (0, 0);
    // On a mismatch only the last star can still be stretched, so no recursion is needed.
    let mut star: Option<(usize, usize)> = None;
    while j < n.len() {
        match p.get(i) {
            Some('*') => {
                star = Some((i, j));
                i += 1;
            }
            Some(&c) if c == '?' || Some(&c) == n.get(j) => {
                i += 1;
                j += 1;
            }
            _ => match star {
                Some((at, taken)) => {
                    star = Some((at, taken + 1));
                    i = at + 1;
                    j = taken + 1;
                }
                None => return false,
            },
        }
    }
    p.get(i..).is_some_and(|rest| rest.iter().all(|&c| c == '*'))
}
