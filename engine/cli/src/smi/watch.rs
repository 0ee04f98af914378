//! `--watch`: a full screen on a terminal; repeated tables, or one JSON document a line, elsewhere.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};

use super::{Look, draw, show, take, verdict};
use crate::args::SmiArgs;
use crate::term::{self, Environment};

/// Shows snapshots every `every_s` seconds until the reader leaves, a key or a signal says stop.
pub(super) fn run(args: &SmiArgs, every_s: f64) -> io::Result<i32> {
    let every = Duration::from_secs_f64(every_s);
    let stop = Arc::new(AtomicBool::new(false));
    // Without these a signal would end the process with the terminal still in raw mode.
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    if args.json || !io::stdout().is_terminal() { lines(args, every, &stop) } else { full_screen(args, every, &stop) }
}

fn lines(args: &SmiArgs, every: Duration, stop: &AtomicBool) -> io::Result<i32> {
    let mut out = io::stdout().lock();
    loop {
        let started = Instant::now();
        let snapshot = take(args);
        show(&snapshot, args, &mut out)?;
        // Short naps: a signal sets a flag, and this thread may not be the one it interrupts.
        while started.elapsed() < every {
            if stop.load(Ordering::Relaxed) {
                return Ok(verdict(&snapshot, args));
            }
            std::thread::sleep(Duration::from_millis(50).min(every));
        }
    }
}

fn full_screen(args: &SmiArgs, every: Duration, stop: &AtomicBool) -> io::Result<i32> {
    // Also installs a panic hook that restores the terminal first.
    let mut terminal = ratatui::try_init()?;
    let ended = screens(&mut terminal, args, every, stop);
    ratatui::try_restore()?;
    ended
}

fn screens(
    terminal: &mut ratatui::DefaultTerminal,
    args: &SmiArgs,
    every: Duration,
    stop: &AtomicBool,
) -> io::Result<i32> {
    let colored = args.color.decide(Environment::of_stdout());
    let mut snapshot = take(args);
    let mut taken = Instant::now();
    let mut paused = false;
    let ascii = args.ascii || term::ascii();
    let (mut top, mut page) = (0_u16, 1_u16);
    loop {
        terminal.draw(|frame| {
            let footer = match paused {
                true => "paused   p go on   arrows scroll   q quit",
                false => "p pause   arrows scroll   q quit",
            };
            let area = frame.area();
            let mut screen = draw(&snapshot, Look { width: area.width.max(60), ascii, footer });
            page = area.height.max(1);
            // As far as there is something below; a screen that has become shorter takes it back.
            top = top.min(screen.area.height.saturating_sub(page));
            if !colored {
                for cell in &mut screen.content {
                    cell.fg = ratatui::style::Color::Reset;
                }
            }
            let target = frame.buffer_mut();
            for y in 0..area.height.min(screen.area.height - top) {
                for x in 0..area.width.min(screen.area.width) {
                    if let (Some(to), Some(from)) = (target.cell_mut((x, y)), screen.cell((x, y + top))) {
                        *to = from.clone();
                    }
                }
            }
        })?;
        let left = every.saturating_sub(taken.elapsed());
        if event::poll(left.min(Duration::from_millis(200)))?
            && let Event::Key(key) = event::read()?
            && key.kind == KeyEventKind::Press
        {
            let interrupted = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
            match key.code {
                KeyCode::Char('q') | KeyCode::Esc => return Ok(0),
                _ if interrupted => return Ok(0),
                KeyCode::Char('p') => paused = !paused,
                KeyCode::Down | KeyCode::Char('j') => top = top.saturating_add(1),
                KeyCode::Up | KeyCode::Char('k') => top = top.saturating_sub(1),
                KeyCode::PageDown | KeyCode::Char(' ') => top = top.saturating_add(page),
                KeyCode::PageUp => top = top.saturating_sub(page),
                KeyCode::Home => top = 0,
                KeyCode::End => top = u16::MAX,
                _ => {}
            }
        }
        if stop.load(Ordering::Relaxed) {
            return Ok(0);
        }
        if !paused && taken.elapsed() >= every {
            snapshot = take(args);
            taken = Instant::now();
        }
    }
}
