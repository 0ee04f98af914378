//! What the terminal can do: colour, width, a screen to draw on; and writing that takes a closed pipe for an end.

use std::io::{self, IsTerminal, Write};

use clap::ValueEnum;
use lossfeed_control::{Error, ErrorKind};
use serde::Serialize;

/// `--color`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Color {
    /// On a terminal, unless `NO_COLOR` is set or `TERM` is dumb.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// The facts a decision about colour needs; read once, so that the decision is testable.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Environment {
    pub(crate) tty: bool,
    pub(crate) no_color: bool,
    pub(crate) force_color: bool,
    pub(crate) dumb: bool,
}

impl Environment {
    pub(crate) fn of_stdout() -> Self {
        // https://no-color.org: present and not empty. CLICOLOR_FORCE and FORCE_COLOR: anything but empty and 0.
        let set = |name: &str| std::env::var_os(name).is_some_and(|v| !v.is_empty());
        let forced = |name: &str| std::env::var_os(name).is_some_and(|v| !v.is_empty() && v != "0");
        Self {
            tty: io::stdout().is_terminal(),
            no_color: set("NO_COLOR"),
            force_color: forced("CLICOLOR_FORCE") || forced("FORCE_COLOR"),
            dumb: std::env::var_os("TERM").is_some_and(|v| v == "dumb"),
        }
    }
}

impl Color {
    /// The user's word first, then `NO_COLOR`, then force, then whether anybody looks.
    pub(crate) fn decide(self, env: Environment) -> bool {
        match self {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => !env.no_color && (env.force_color || (env.tty && !env.dumb)),
        }
    }
}

/// Whether the locale says that what is written is no UTF-8: box characters would come out as noise. A machine without
/// any locale, as many containers are, is shown them.
pub(crate) fn ascii() -> bool {
    let first = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(std::env::var_os).find(|v| !v.is_empty());
    first.is_some_and(|locale| !speaks_utf8(&locale.to_string_lossy()))
}

fn speaks_utf8(locale: &str) -> bool {
    let codeset = locale.split('@').next().and_then(|name| name.split_once('.')).map_or("", |(_, codeset)| codeset);
    codeset.eq_ignore_ascii_case("utf-8") || codeset.eq_ignore_ascii_case("utf8")
}

/// Columns to draw: the terminal's, else `COLUMNS`, else 100; never under 60 nor over 200.
pub(crate) fn width() -> u16 {
    let tty = io::stdout().is_terminal().then(|| crossterm::terminal::size().ok()).flatten().map(|(w, _)| w);
    let told = || std::env::var("COLUMNS").ok().and_then(|v| v.parse().ok());
    tty.or_else(told).unwrap_or(100).clamp(60, 200)
}

/// Columns that a text takes on a terminal; a wide character takes two.
pub(crate) fn columns(text: &str) -> usize {
    unicode_width::UnicodeWidthStr::width(text)
}

/// Text as lines of at most `width` columns, broken between words. A longer word has a line to itself.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.is_empty() => word.clone_into(line),
            Some(line) if columns(line) + 1 + columns(word) <= width => *line = format!("{line} {word}"),
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// How a command ended, as an exit code; a closed pipe is an end like any other.
pub fn exit_code(written: io::Result<i32>) -> i32 {
    match written {
        Ok(code) => code,
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => 0,
        Err(e) => {
            complain(&e.to_string());
            1
        }
    }
}

/// A JSON document on a line of its own.
///
/// # Errors
/// Those of `out`.
pub fn document(value: &impl Serialize, out: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, value).map_err(io::Error::from)?;
    writeln!(out)
}

/// Says what went wrong; the exit code is that of wrong arguments for settings, else that of a failure.
pub fn failed(error: &Error) -> i32 {
    complain(&error.to_string());
    if error.kind() == ErrorKind::Settings { 2 } else { 1 }
}

/// One line on standard error.
pub fn complain(message: &str) {
    let _ = writeln!(io::stderr(), "lossfeed: {message}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_word_beats_the_environment_and_no_color_beats_force() {
        let tty = Environment { tty: true, ..Default::default() };
        assert!(Color::Auto.decide(tty));
        assert!(!Color::Auto.decide(Environment::default()));
        assert!(!Color::Auto.decide(Environment { no_color: true, force_color: true, ..tty }));
        assert!(!Color::Auto.decide(Environment { dumb: true, ..tty }));
        assert!(Color::Auto.decide(Environment { force_color: true, ..Default::default() }));
        assert!(Color::Always.decide(Environment { no_color: true, ..Default::default() }));
        assert!(!Color::Never.decide(tty));
    }

    #[test]
    fn a_locale_says_by_its_codeset_whether_it_speaks_utf8() {
        assert!(["C.UTF-8", "en_GB.utf8", "sr_RS.UTF-8@latin"].iter().all(|locale| speaks_utf8(locale)));
        assert!(
            !["C", "POSIX", "de_DE", "de_DE@euro", "ja_JP.eucJP", "en_US.ISO-8859-1"].iter().any(|l| speaks_utf8(l))
        );
    }

    #[test]
    fn text_is_broken_between_words_and_a_long_word_is_left_whole() {
        assert_eq!(wrap("a bb ccc dddd", 6), ["a bb", "ccc", "dddd"]);
        assert_eq!(wrap("see /a/very/long/path now", 8), ["see", "/a/very/long/path", "now"]);
        assert_eq!(wrap("訓練 ジョブ", 8), ["訓練", "ジョブ"]);
        assert_eq!(wrap("", 8), [""]);
    }

    #[test]
    fn a_closed_pipe_is_a_quiet_end() {
        assert_eq!(exit_code(Err(io::ErrorKind::BrokenPipe.into())), 0);
        assert_eq!(exit_code(Err(io::ErrorKind::StorageFull.into())), 1);
        assert_eq!(exit_code(Ok(6)), 6);
    }
}
