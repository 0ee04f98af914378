//! Habits of language that `.github/CONTRIBUTING.md` asks to leave behind, counted: the counts may only fall.

use super::rules::Tree;

/// The most of each that there may be: words, relative definitions, lines over 120 columns. To lower them after an edit,
/// take what `cargo test -p lossfeed-tests --test house language -- --nocapture` prints.
const CEILINGS: [(&str, [usize; 3]); 3] =
    [("product", [969, 1649, 498]), ("tests", [377, 336, 1385]), ("pages", [257, 0, 152])];

const WORDS: [&str; 7] = ["nobody", "somebody", "whoever", "anew", "behind", "lies", "stands"];
/// A documentation comment that begins so defines nothing.
const BEGINNINGS: [&str; 9] = ["What", "Whether", "How", "Where", "Of", "As", "By", "Who", "Which"];
const COLUMNS: usize = 120;

/// Which ceiling a file falls under; `None` for those that are generated or quote the words themselves.
fn kind(path: &str) -> Option<&'static str> {
    let extension = path.rsplit('.').next()?;
    match extension {
        "md" => Some("pages"),
        "rs" | "py" | "pyi" | "cu" | "cuh" if path == "tests/house/language.rs" => None,
        "rs" | "py" | "pyi" | "cu" | "cuh" if path.starts_with("tests/") || path.starts_with("benches/") => {
            Some("tests")
        }
        "rs" | "py" | "pyi" | "cu" | "cuh" if path.ends_with("tests.rs") || path.contains("/tests/") => Some("tests"),
        "rs" | "py" | "pyi" | "cu" | "cuh" => Some("product"),
        _ => None,
    }
}

/// Words, relative definitions and long lines of a text.
fn habits(text: &str) -> [usize; 3] {
    let mut counts = [0; 3];
    let mut in_comment = false;
    for line in text.lines() {
        // The verdict `rank-behind` is one word.
        let words = line.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '-');
        counts[0] += words.filter(|word| WORDS.contains(&word.to_lowercase().as_str())).count();
        let start = line.trim_start();
        let comment = ["/// ", "//! ", "\"\"\""].iter().find_map(|mark| start.strip_prefix(mark));
        let first =
            comment.filter(|_| !in_comment).unwrap_or_default().split([' ', ',', ':']).next().unwrap_or_default();
        counts[1] += usize::from(BEGINNINGS.contains(&first));
        in_comment = start.starts_with("///") || start.starts_with("//!");
        let table = start.starts_with('|') || line.contains("://") || line.contains("](");
        counts[2] += usize::from(line.chars().count() > COLUMNS && !table);
    }
    counts
}

/// What there is of each kind.
fn counted(tree: &Tree) -> [(&'static str, [usize; 3]); 3] {
    CEILINGS.map(|(name, _)| {
        let texts = tree.iter().filter(|(path, _)| kind(path) == Some(name)).map(|(_, text)| habits(text));
        (name, texts.fold([0; 3], |sum, found| std::array::from_fn(|k| sum[k] + found[k])))
    })
}

#[test]
fn language_gets_no_worse() {
    let counted = counted(&super::workspace());
    println!("{counted:?}");
    for ((kind, ceilings), (_, found)) in CEILINGS.iter().zip(counted) {
        for (k, what) in ["words to avoid", "relative definitions", "lines over 120 columns"].iter().enumerate() {
            let (found, most) = (found[k], ceilings[k]);
            assert!(found <= most, "{kind}: {found} {what}, {most} were allowed: see .github/CONTRIBUTING.md");
        }
    }
}

#[test]
fn habits_are_counted_as_words_beginnings_and_long_lines() {
    let long = "x".repeat(121);
    let text =
        format!("/// Whether nobody calls.\n/// Of course.\nlet behind_it = 1; // whoever, anew\n{long}\n| {long}\n");
    assert_eq!(habits(&text), [3, 1, 1]);
}
