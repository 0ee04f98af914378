//! A drawn screen as text: plain, or with the SGR codes of its styles.

use std::io::{self, Write};

use super::layout::{Cell, Style};

/// Writes text to standard output and flushes.
pub(super) fn text(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Writes the lines without trailing blanks, and flushes: a reader at the other end of a pipe must not wait for the
/// next screen to see this one.
pub(super) fn print(out: &mut impl Write, lines: &[Vec<Cell>], color: bool) -> io::Result<()> {
    for cells in lines {
        writeln!(out, "{}", line(cells, |style| if color { style } else { Style::Plain }).trim_end())?;
    }
    out.flush()
}

/// A line as text, in the styles that `shown` leaves of its own.
pub(super) fn line(cells: &[Cell], shown: impl Fn(Style) -> Style) -> String {
    let (mut line, mut current) = (String::new(), Style::Plain);
    for Cell(text, style) in cells.iter().filter(|cell| !cell.0.is_empty()) {
        let style = shown(*style);
        if style != current {
            line.push_str("\x1b[0m");
            line.push_str(sgr(style));
            current = style;
        }
        line.push_str(text);
    }
    if current != Style::Plain {
        line.push_str("\x1b[0m");
    }
    line
}

fn sgr(style: Style) -> &'static str {
    match style {
        Style::Plain => "",
        Style::Bold => "\x1b[1m",
        Style::Dim => "\x1b[2m",
        Style::Red => "\x1b[31m",
        Style::Yellow => "\x1b[33m",
        Style::Green => "\x1b[32m",
    }
}
