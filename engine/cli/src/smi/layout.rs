//! Boxes and columns: lines of text that fit a width, in Unicode or plain ASCII.

use super::numbers::UNKNOWN;
use crate::term::{columns, wrap};
use lossfeed_stats::steers_terminal;

/// The characters a screen is drawn with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Glyphs {
    corners: [&'static str; 6],
    across: &'static str,
    down: &'static str,
    pub(super) cut: &'static str,
    /// Eight rising levels.
    pub(super) levels: [&'static str; 8],
}

pub(super) const UNICODE: Glyphs = Glyphs {
    corners: ["╭", "╮", "├", "┤", "╰", "╯"],
    across: "─",
    down: "│",
    cut: "…",
    levels: ["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"],
};

pub(super) const ASCII: Glyphs = Glyphs {
    corners: ["+", "+", "+", "+", "+", "+"],
    across: "-",
    down: "|",
    cut: "~",
    levels: ["_", ".", "-", "=", "+", "*", "%", "#"],
};

/// The look of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    Plain,
    Bold,
    Dim,
    Red,
    Yellow,
    Green,
}

/// A text of one look: a cell of a table, or a part of a line.
#[derive(Debug, Clone)]
pub(super) struct Cell(pub(super) String, pub(super) Style);

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self(text, Style::Plain)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self(text.to_owned(), Style::Plain)
    }
}

/// A column of a table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Column {
    pub(super) head: &'static str,
    width: usize,
    /// Aligned to the right.
    right: bool,
    /// The narrowest screen that shows it.
    from_width: usize,
    /// Its meaning, for `?`, `--help` and the manual.
    pub(super) help: &'static str,
}

pub(super) const fn text(head: &'static str, width: usize, from_width: usize, help: &'static str) -> Column {
    Column { head, width, right: false, from_width, help }
}

pub(super) const fn number(head: &'static str, width: usize, from_width: usize, help: &'static str) -> Column {
    Column { head, width, right: true, from_width, help }
}

/// Columns of a line's label.
pub(super) const LABEL: usize = 9;

/// A framed screen, built from top to bottom.
pub(super) struct Screen {
    glyphs: Glyphs,
    width: usize,
    lines: Vec<Vec<Cell>>,
}

impl Screen {
    pub(super) fn new(width: u16, glyphs: Glyphs) -> Self {
        Self { glyphs, width: usize::from(width), lines: Vec::new() }
    }

    /// Columns inside the frame and its margins.
    pub(super) fn inner(&self) -> usize {
        self.width.saturating_sub(4)
    }

    /// A frame line with a title; the first one opens the box.
    pub(super) fn rule(&mut self, title: &str) {
        let at = if self.lines.is_empty() { 0 } else { 2 };
        self.edge(at, title);
    }

    /// Closes the box.
    pub(super) fn close(&mut self, footer: &str) {
        self.edge(4, footer);
    }

    fn edge(&mut self, at: usize, title: &str) {
        let (left, right, across) = (self.glyphs.corners[at], self.glyphs.corners[at + 1], self.glyphs.across);
        let title =
            if title.is_empty() { String::new() } else { format!(" {} ", clip(title, self.inner() - 2, self.glyphs)) };
        let rest = self.width.saturating_sub(3 + columns(&title));
        let end = format!("{}{right}", across.repeat(rest));
        self.lines.push(vec![format!("{left}{across}").into(), Cell(title, Style::Bold), end.into()]);
    }

    /// A line of cells inside the frame, cut at its right edge.
    pub(super) fn line(&mut self, cells: impl IntoIterator<Item = Cell>) {
        let mut room = self.inner();
        let mut line: Vec<Cell> = vec![format!("{} ", self.glyphs.down).into()];
        for Cell(text, style) in cells {
            let text = clip(&text, room, self.glyphs);
            room -= columns(&text).min(room);
            line.push(Cell(text, style));
        }
        line.push(format!("{} {}", " ".repeat(room), self.glyphs.down).into());
        self.lines.push(line);
    }

    /// Text after a label, three blanks between its parts: as many a line as fit, the others below.
    pub(super) fn parts(&mut self, label: &str, parts: impl IntoIterator<Item = String>, style: Style) {
        self.flow(LABEL, label, parts, style);
    }

    /// [`Self::parts`] without a label.
    pub(super) fn words(&mut self, parts: impl IntoIterator<Item = String>, style: Style) {
        self.flow(0, "", parts, style);
    }

    fn flow(&mut self, indent: usize, label: &str, parts: impl IntoIterator<Item = String>, style: Style) {
        let room = self.inner().saturating_sub(indent);
        let mut lines: Vec<String> = Vec::new();
        for part in parts {
            match lines.last_mut() {
                Some(line) if columns(line) + 3 + columns(&part) <= room => *line = format!("{line}   {part}"),
                _ => lines.extend(wrap(&part, room)),
            }
        }
        for (k, line) in lines.into_iter().enumerate() {
            let label = if k == 0 { label } else { "" };
            self.line([format!("{label:<indent$}").into(), Cell(line, style)]);
        }
    }

    /// A table: the columns this width has room for, the first one widened by what is left over.
    pub(super) fn table(&mut self, table: &[Column], rows: Vec<Vec<Cell>>) {
        let shown: Vec<usize> = (0..table.len()).filter(|&c| table[c].from_width <= self.width).collect();
        let fixed: usize = shown.iter().map(|&c| table[c].width + 1).sum::<usize>().saturating_sub(1);
        let slack = self.inner().saturating_sub(fixed);
        let flexible = shown.iter().copied().find(|&c| !table[c].right);
        let width = |c: usize| table[c].width + if Some(c) == flexible { slack } else { 0 };
        let head = table.iter().map(|c| Cell(c.head.to_owned(), Style::Dim)).collect();
        for row in std::iter::once(head).chain(rows) {
            let row: Vec<Cell> = row;
            let mut cells = Vec::with_capacity(2 * shown.len());
            for (k, &c) in shown.iter().enumerate() {
                let Some(Cell(text, style)) = row.get(c) else { continue };
                let text = clip(text, width(c), self.glyphs);
                let pad = " ".repeat(width(c) - columns(&text));
                if k > 0 {
                    cells.push(" ".into());
                }
                cells.push(Cell(if table[c].right { pad + &text } else { text + &pad }, *style));
            }
            self.line(cells);
        }
    }

    /// The finished screen's lines, each as wide as the screen.
    pub(super) fn into_lines(self) -> Vec<Vec<Cell>> {
        self.lines
    }
}

/// `text` cut to `width` columns. Names come from other processes: control characters, escape sequences among them,
/// and the marks that turn the direction of text become `?` instead of reaching the terminal. Where only ASCII is
/// drawn, so is everything else.
pub(super) fn clip(text: &str, width: usize, glyphs: Glyphs) -> String {
    let shown = |c: char| match c {
        c if steers_terminal(c) => "?".to_owned(),
        c if c.is_ascii() || glyphs.cut != ASCII.cut => c.to_string(),
        'µ' => "u".to_owned(),
        '→' => "->".to_owned(),
        '…' => "...".to_owned(),
        _ => "?".to_owned(),
    };
    let mut clean: String = text.chars().map(shown).collect();
    if columns(&clean) <= width {
        return clean;
    }
    while !clean.is_empty() && columns(&clean) + 1 > width {
        clean.pop();
    }
    if width > 0 {
        clean.push_str(glyphs.cut);
    }
    clean
}

/// The colour of a share of time spent waiting, by the thresholds that nvitop paints with.
pub(super) fn wait_style(share: Option<f64>) -> Style {
    match share {
        Some(s) if s >= 0.75 => Style::Red,
        Some(s) if s >= 0.10 => Style::Yellow,
        Some(_) => Style::Green,
        None => Style::Plain,
    }
}

pub(super) fn known<T>(value: Option<T>, show: impl Fn(T) -> String) -> Cell {
    value.map_or_else(|| UNKNOWN.into(), |v| show(v).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_from_another_process_cannot_steer_the_terminal() {
        assert_eq!(clip("\u{1b}[2Jjob\n", 20, UNICODE), "?[2Jjob?");
        assert_eq!(clip("\u{9b}2J\u{7f}\u{202e}gnp.exe", 20, UNICODE), "?2J??gnp.exe");
    }

    #[test]
    fn what_does_not_fit_is_cut_at_the_column_even_with_wide_characters() {
        assert_eq!(clip("resnet50", 8, UNICODE), "resnet50");
        assert_eq!(clip("resnet50", 6, UNICODE), "resne…");
        assert_eq!(clip("訓練ジョブ", 6, UNICODE), "訓練…");
        assert_eq!(clip("x", 0, UNICODE), "");
        assert_eq!(clip("8 → 16 µs … 訓", 20, ASCII), "8 -> 16 us ... ?");
    }
}
