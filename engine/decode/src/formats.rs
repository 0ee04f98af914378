//! The formats of images there are: one table, one file each.

use super::{Format, bmp, gif, jpeg, png, pnm, tiff, webp};
use crate::error::{Error, Result};

/// The most frequent first.
static FORMATS: [&Format; 7] =
    [&jpeg::FORMAT, &png::FORMAT, &webp::FORMAT, &tiff::FORMAT, &bmp::FORMAT, &gif::FORMAT, &pnm::FORMAT];

impl Format {
    /// By content: names lie.
    ///
    /// # Errors
    /// `Sample` for bytes of another kind.
    pub(crate) fn of(encoded: &[u8]) -> Result<&'static Self> {
        find(encoded).ok_or_else(|| {
            let names: Vec<&str> = FORMATS.iter().map(|format| format.name).collect();
            let start: Vec<String> = encoded.iter().take(8).map(|b| format!("{b:02x}")).collect();
            Error::sample(format!(
                "these {} bytes are not an image in a supported format ({}; they begin with {}): convert the file or \
                 remove it",
                encoded.len(),
                listed(&names, "and"),
                if start.is_empty() { "nothing".to_owned() } else { start.join(" ") }
            ))
        })
    }
}

fn find(encoded: &[u8]) -> Option<&'static Format> {
    FORMATS.iter().copied().find(|format| (format.begins)(encoded))
}

/// The endings that [`ending_of`] gives, one for each format: `jpg`, `png` and so on.
pub fn endings() -> impl Iterator<Item = &'static str> {
    FORMATS.iter().filter_map(|format| format.endings.first()).copied()
}

/// Every ending that image files have.
fn known() -> impl Iterator<Item = &'static str> {
    FORMATS.iter().flat_map(|format| format.endings).copied()
}

/// The ending for a file that holds this image; `None` for bytes of no format that is known.
pub fn ending_of(encoded: &[u8]) -> Option<&'static str> {
    find(encoded)?.endings.first().copied()
}

/// Whether files that end so are images. Case does not matter.
pub fn is_ending(ending: &str) -> bool {
    known().any(|known| known.eq_ignore_ascii_case(ending))
}

/// Whether a name says it is an image this engine decodes. Content decides at decode time; the name decides what is a
/// sample at all.
pub fn is_image(name: &str) -> bool {
    let extension = name.rsplit('/').next().unwrap_or(name).rsplit_once('.').map(|(_, e)| e).unwrap_or("");
    is_ending(extension)
}

/// All endings for a message: `.jpg, .jpeg, … or .ppm`.
pub fn endings_said() -> String {
    listed(&known().map(|ending| format!(".{ending}")).collect::<Vec<_>>(), "or")
}

fn listed<S: AsRef<str>>(words: &[S], last: &str) -> String {
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    match words.split_last() {
        Some((end, [])) => (*end).to_owned(),
        Some((end, before)) => format!("{} {last} {end}", before.join(", ")),
        None => String::new(),
    }
}
