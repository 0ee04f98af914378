//! AWS's shared files, `config` and `credentials`: sections of names and values.
//!
//! A section of `config` is `[default]`, `[profile NAME]`, `[sso-session NAME]` or `[services NAME]`; one of
//! `credentials` is a profile's name. Where both have a profile, `credentials` has the last word. An indented line below a name
//! without a value is a name of its own, written here as `s3.endpoint_url`. Lines are never quoted in errors: there are
//! secrets in them.

use std::collections::BTreeMap;

use crate::error::{Error, Result};

/// Names and values.
pub(super) type Section = BTreeMap<String, String>;

/// What both files say.
#[derive(Default, PartialEq, Eq)]
pub(crate) struct Profiles {
    pub(super) profiles: BTreeMap<String, Section>,
    pub(super) sessions: BTreeMap<String, Section>,
    pub(super) services: BTreeMap<String, Section>,
}

/// Which of the two a text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Config,
    Credentials,
}

impl Profiles {
    /// Adds what `text` says, which is the content of `file`.
    ///
    /// # Errors
    /// `Settings` with the line's number for a line that is none.
    pub(crate) fn add(&mut self, text: &str, kind: Kind, file: &str) -> Result<()> {
        let mut section: Option<&mut Section> = None;
        // Of the last value: its name, and whether it was empty, so that indented lines below are names.
        let mut last: Option<(String, bool)> = None;
        let mut known = false;
        for (number, line) in (1..).zip(text.trim_start_matches('\u{feff}').lines()) {
            let wrong = |what: &str| Error::settings(format!("{file}, line {number}: {what}; correct the file"));
            let bare = line.trim();
            if bare.is_empty() || bare.starts_with(['#', ';']) {
                continue;
            }
            if let Some(rest) = line.strip_prefix('[') {
                let (name, _) = rest.split_once(']').ok_or_else(|| wrong("a section's name has no ]"))?;
                section = self.section(name.trim(), kind);
                (last, known) = (None, true);
                continue;
            }
            if !known {
                return Err(wrong("there is no [section] before it"));
            }
            let indented = line.starts_with([' ', '\t']);
            match (&last, bare.split_once('=')) {
                (Some((parent, true)), Some((name, value))) if indented => {
                    let name = format!("{parent}.{}", name.trim().to_lowercase());
                    if let Some(section) = &mut section {
                        section.insert(name.clone(), without_comment(&name, value));
                    }
                }
                (Some((name, false)), _) if indented => {
                    if let Some(value) = section.as_mut().and_then(|section| section.get_mut(name)) {
                        value.push('\n');
                        value.push_str(bare);
                    }
                }
                (_, Some((name, value))) if !name.trim().is_empty() => {
                    let name = name.trim().to_lowercase();
                    let value = without_comment(&name, value);
                    last = Some((name.clone(), value.is_empty()));
                    if let Some(section) = &mut section {
                        section.insert(name, value);
                    }
                }
                _ => return Err(wrong("it is neither a [section], nor name = value, nor a # comment")),
            }
        }
        Ok(())
    }

    /// The section with this header; `None` for one that is nothing to us.
    fn section(&mut self, header: &str, kind: Kind) -> Option<&mut Section> {
        let (what, name) = header.split_once(char::is_whitespace).unwrap_or(("", header));
        let of = match (kind, what) {
            (Kind::Credentials, _) => return Some(self.profiles.entry(unquoted(header)).or_default()),
            (_, "profile") => &mut self.profiles,
            (_, "sso-session") => &mut self.sessions,
            (_, "services") => &mut self.services,
            (_, "") if header == "default" => &mut self.profiles,
            _ => return None,
        };
        Some(of.entry(unquoted(name.trim())).or_default())
    }

    /// Names of profiles, for people.
    pub(super) fn names(&self) -> String {
        let names: Vec<&str> = self.profiles.keys().map(String::as_str).take(NAMES_SHOWN).collect();
        let more = self.profiles.len() - names.len();
        match (names.is_empty(), more) {
            (true, _) => "none".to_owned(),
            (_, 0) => names.join(", "),
            _ => format!("{} and {more} more", names.join(", ")),
        }
    }
}

const NAMES_SHOWN: usize = 8;

fn unquoted(name: &str) -> String {
    let inner = ['"', '\''].into_iter().find_map(|quote| name.strip_prefix(quote)?.strip_suffix(quote));
    inner.unwrap_or(name).to_owned()
}

/// A value without a comment behind it, as AWS's libraries for newer languages read it. No key, name or URL has a `#`
/// behind a blank; a command may.
fn without_comment(name: &str, value: &str) -> String {
    let value = value.trim();
    let comment = match name {
        "credential_process" => None,
        _ => [" #", " ;", "\t#", "\t;"].iter().filter_map(|mark| value.find(mark)).min(),
    };
    value.get(..comment.unwrap_or(value.len())).unwrap_or(value).trim_end().to_owned()
}
