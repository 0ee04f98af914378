//! The state of a live view: page, filter, order, and what keys do to them. Pure.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use lossfeed_stats as stats;

use super::snapshot::{Engine, Snapshot};

/// The page of a screen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Page {
    /// GPUs, all jobs, and the details of each.
    #[default]
    Jobs,
    /// Each job's step as a stacked bar.
    Step,
    /// The tiers that samples came from.
    Tiers,
    /// The ranks of each job.
    Ranks,
    /// GPUs and the processes on them.
    Gpus,
    /// The meaning of columns and keys.
    Help,
}

/// The keys and their meaning, for the help.
pub(super) const KEYS: [(&str, &str); 9] = [
    ("1 to 5", "jobs, steps as bars, tiers, ranks, GPUs"),
    ("?", "this help"),
    ("/", "show only engines whose job, pid or source has the text typed; Enter keeps it, Esc clears it"),
    ("s", "sort by the next of pid, wait%, sample/s, hit%, job"),
    ("p", "pause, go on"),
    ("e", "export what is shown as CSV, to a new file in this folder"),
    ("arrows", "scroll; also PgUp, PgDn, Home, End"),
    ("q", "quit; also Esc and Ctrl-C"),
    ("", "a page is read, never written: no key changes a run"),
];

type Key = fn(&Engine) -> f64;
/// Orders of the table: a name, and the number that comes first when it is large.
const ORDERS: [(&str, Option<Key>); 5] = [
    ("pid", None),
    ("wait%", Some(|e| e.stall_lately.unwrap_or(-1.0))),
    ("sample/s", Some(|e| e.samples_per_s.unwrap_or(-1.0))),
    ("hit%", Some(|e| e.ratio(stats::HIT_RATIO).unwrap_or(-1.0))),
    ("job", None),
];

/// The caller's task after a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    /// Draw again.
    Draw,
    /// Write the shown engines to a file.
    Export,
    /// Leave.
    Quit,
}

/// The view.
#[derive(Debug, Default)]
pub(super) struct View {
    pub(super) page: Page,
    pub(super) paused: bool,
    /// The first line on the screen.
    pub(super) top: u16,
    /// Said once in the footer, until the next key.
    pub(super) message: String,
    filter: String,
    typing: bool,
    order: usize,
}

impl View {
    /// Takes a key up; `height` is the screen's.
    pub(super) fn press(&mut self, key: KeyEvent, height: u16) -> Act {
        self.message.clear();
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return Act::Quit;
        }
        if self.typing {
            match key.code {
                // A line feed, which a terminal in raw mode sends as it is.
                KeyCode::Char('j') if key.modifiers.contains(KeyModifiers::CONTROL) => self.typing = false,
                KeyCode::Char(_) if key.modifiers.contains(KeyModifiers::CONTROL) => {}
                KeyCode::Char(c) => self.filter.push(c),
                KeyCode::Backspace => drop(self.filter.pop()),
                KeyCode::Enter => self.typing = false,
                KeyCode::Esc => (self.typing, self.filter) = (false, String::new()),
                _ => {}
            }
            return Act::Draw;
        }
        let pages = [Page::Jobs, Page::Step, Page::Tiers, Page::Ranks, Page::Gpus];
        match key.code {
            KeyCode::Esc if self.page == Page::Help => self.show(Page::Jobs),
            KeyCode::Char('?' | 'h') => self.show(if self.page == Page::Help { Page::Jobs } else { Page::Help }),
            KeyCode::Char('q') | KeyCode::Esc => return Act::Quit,
            KeyCode::Char('e') => return Act::Export,
            KeyCode::Char('p') => self.paused = !self.paused,
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Char('s') => self.order = (self.order + 1) % ORDERS.len(),
            KeyCode::Char(c @ '1'..='5') => self.show(pages[c as usize - '1' as usize]),
            KeyCode::Down | KeyCode::Char('j') => self.top = self.top.saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => self.top = self.top.saturating_sub(1),
            KeyCode::PageDown | KeyCode::Char(' ') => self.top = self.top.saturating_add(height),
            KeyCode::PageUp => self.top = self.top.saturating_sub(height),
            KeyCode::Home => self.top = 0,
            KeyCode::End => self.top = u16::MAX,
            _ => {}
        }
        Act::Draw
    }

    fn show(&mut self, page: Page) {
        (self.page, self.top) = (page, 0);
    }

    /// The snapshot as this view shows it: the engines that pass the filter, in its order, the ended last.
    pub(super) fn of(&self, snapshot: &Snapshot) -> Snapshot {
        let mut shown = snapshot.clone();
        let has = |text: &str| text.to_lowercase().contains(&self.filter.to_lowercase());
        shown.engines.retain(|e| has(&e.job) || has(&e.pid.to_string()) || has(&e.source));
        match ORDERS[self.order] {
            ("job", _) => shown.engines.sort_by(|a, b| b.alive.cmp(&a.alive).then_with(|| a.job.cmp(&b.job))),
            (_, Some(key)) => shown.engines.sort_by(|a, b| b.alive.cmp(&a.alive).then(key(b).total_cmp(&key(a)))),
            _ => {}
        }
        shown
    }

    /// The line at the bottom.
    pub(super) fn footer(&self) -> String {
        if self.typing {
            return format!("/{}_   Enter keeps   Esc clears", self.filter);
        }
        if !self.message.is_empty() {
            return self.message.clone();
        }
        let filter = if self.filter.is_empty() { String::new() } else { format!("/{}   ", self.filter) };
        let order = if self.order == 0 { String::new() } else { format!("by {}   ", ORDERS[self.order].0) };
        let paused = if self.paused { "paused   " } else { "" };
        format!("{paused}{filter}{order}? help   1-5 pages   q quit")
    }
}

#[cfg(test)]
mod tests {
    use super::super::demo;
    use super::*;

    fn typed(view: &mut View, keys: &str) -> Act {
        let mut act = Act::Draw;
        for c in keys.chars() {
            let code = if c == '\n' { KeyCode::Enter } else { KeyCode::Char(c) };
            act = view.press(KeyEvent::new(code, KeyModifiers::NONE), 10);
        }
        act
    }

    fn pids(view: &View) -> Vec<u32> {
        view.of(&demo::snapshot(600.0)).engines.iter().map(|engine| engine.pid).collect()
    }

    #[test]
    fn the_filter_takes_job_pid_or_source_and_its_letters_are_no_commands() {
        let mut view = View::default();
        assert_eq!(typed(&mut view, "/RESq"), Act::Draw);
        assert_eq!(view.footer(), "/RESq_   Enter keeps   Esc clears");
        view.press(KeyEvent::new(KeyCode::Backspace, KeyModifiers::NONE), 10);
        typed(&mut view, "\n");
        assert_eq!(pids(&view), [41_822]);
        assert!(view.footer().starts_with("/RES   "), "{}", view.footer());
        typed(&mut view, "/");
        view.press(KeyEvent::new(KeyCode::Esc, KeyModifiers::NONE), 10);
        assert_eq!(pids(&view).len(), 6);
        typed(&mut view, "/41908\n");
        assert_eq!(pids(&view), [41_908]);
    }

    #[test]
    fn every_order_keeps_the_ended_last() {
        let mut view = View::default();
        assert_eq!(pids(&view), [41_822, 41_907, 41_908, 41_909, 41_910, 977]);
        typed(&mut view, "s");
        assert_eq!(pids(&view)[..2], [41_822, 41_909], "by wait");
        typed(&mut view, "s");
        assert_eq!(pids(&view)[0], 41_822, "by samples a second");
        typed(&mut view, "s");
        assert_eq!(pids(&view)[4..], [41_822, 977], "by hits");
        typed(&mut view, "s");
        assert_eq!((pids(&view)[0], pids(&view)[5]), (41_907, 977), "by job");
        assert!(view.footer().contains("by job"));
        typed(&mut view, "s");
        assert!(!view.footer().contains("by "));
    }

    #[test]
    fn keys_change_the_page_scroll_pause_export_and_quit() {
        let mut view = View::default();
        typed(&mut view, "3jj");
        assert_eq!((view.page, view.top), (Page::Tiers, 2));
        typed(&mut view, "?");
        assert_eq!((view.page, view.top), (Page::Help, 0));
        view.press(KeyEvent::new(KeyCode::Esc, KeyModifiers::NONE), 10);
        assert_eq!(view.page, Page::Jobs);
        typed(&mut view, "p ");
        assert!(view.paused && view.top == 10 && view.footer().starts_with("paused"));
        assert_eq!(typed(&mut view, "e"), Act::Export);
        assert_eq!(typed(&mut view, "q"), Act::Quit);
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        typed(&mut view, "/");
        assert_eq!(view.press(control_c, 10), Act::Quit, "also while a filter is typed");
    }
}
