//! A drawn screen as text: plain, or with the SGR codes of its styles.

use std::io::{self, Write};

use ratatui::buffer::Buffer;
use ratatui::style::{Color, Modifier};

/// Writes text to standard output and flushes.
pub(super) fn text(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Writes the buffer line by line, without trailing blanks, and flushes: a reader at the other end of a pipe must not
/// wait for the next screen to see this one.
pub(super) fn print(out: &mut impl Write, buffer: &Buffer, color: bool) -> io::Result<()> {
    for y in 0..buffer.area.height {
        let mut line = String::new();
        let mut current = (Color::Reset, Modifier::empty());
        let mut x = 0;
        while x < buffer.area.width {
            let Some(cell) = buffer.cell((x, y)) else { break };
            let style = (cell.fg, cell.modifier);
            if color && style != current {
                line.push_str("\x1b[0m");
                line.push_str(sgr(style));
                current = style;
            }
            line.push_str(cell.symbol());
            // A wide character fills the cell after it too.
            x += ratatui::text::Span::raw(cell.symbol()).width().max(1) as u16;
        }
        if current != (Color::Reset, Modifier::empty()) {
            line.push_str("\x1b[0m");
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    out.flush()
}

/// The styles `draw` uses.
fn sgr((color, modifier): (Color, Modifier)) -> &'static str {
    match color {
        Color::Red => "\x1b[31m",
        Color::Yellow => "\x1b[33m",
        Color::Green => "\x1b[32m",
        _ if modifier.contains(Modifier::BOLD) => "\x1b[1m",
        _ if modifier.contains(Modifier::DIM) => "\x1b[2m",
        _ => "",
    }
}
