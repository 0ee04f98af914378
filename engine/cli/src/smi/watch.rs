//! `--watch`: a full screen on a terminal, repeated output elsewhere; and the rounds of `dmon`.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossterm::event::{self, Event, KeyEventKind};
use crossterm::{cursor, execute, terminal};

use super::draw::{Look, draw};
use super::held::IdleSince;
use super::judged::Window;
use super::layout::Style;
use super::print::line;
use super::snapshot::Snapshot;
use super::view::{Act, View};
use super::{Taker, demo, exit, fields, show};
use crate::args::SmiArgs;
use crate::term::{self, Environment};

/// A flag that SIGINT, SIGTERM and SIGHUP set. Without it a signal would end the process with the terminal still in raw
/// mode.
fn stopped() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

/// Shows snapshots every `every_s` seconds until the reader leaves, a key or a signal says stop.
pub(super) fn run(args: &SmiArgs, every_s: f64) -> io::Result<i32> {
    let lines = args.json || args.list || args.query || args.query_engine.is_some();
    if !lines && io::stdout().is_terminal() {
        let (stop, mut taker) = (stopped()?, Taker::new(args));
        return full_screen(args, Duration::from_secs_f64(every_s), &stop, &mut || taker.take());
    }
    let (mut last, mut taker) = (0, Taker::new(args));
    rounds(every_s, None, |round| {
        let snapshot = taker.take();
        show(&snapshot, args, round == 0, &mut io::stdout().lock())?;
        last = exit(&snapshot, args, round == 0);
        Ok(())
    })?;
    Ok(last)
}

/// Calls `round` with 0, 1, 2… every `every_s` seconds, `count` times or until a signal says stop.
pub(crate) fn rounds(every_s: f64, count: Option<u64>, mut round: impl FnMut(u64) -> io::Result<()>) -> io::Result<()> {
    let stop = stopped()?;
    let every = Duration::from_secs_f64(every_s);
    for k in 0..count.unwrap_or(u64::MAX) {
        let started = Instant::now();
        round(k)?;
        if Some(k + 1) == count {
            break;
        }
        // Short naps: a signal sets a flag, and this thread may not be the one it interrupts.
        while started.elapsed() < every {
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50).min(every));
        }
    }
    Ok(())
}

/// Gives the next snapshot.
type Take<'a> = &'a mut dyn FnMut() -> Snapshot;

fn full_screen(args: &SmiArgs, every: Duration, stop: &AtomicBool, take: Take<'_>) -> io::Result<i32> {
    let told = std::panic::take_hook();
    // A panic's words belong on the screen from before.
    std::panic::set_hook(Box::new(move |info| {
        let _ = restore();
        told(info);
    }));
    terminal::enable_raw_mode()?;
    // What is wider than the terminal is cut.
    let entered = execute!(io::stdout(), terminal::EnterAlternateScreen, terminal::DisableLineWrap, cursor::Hide);
    let ended = entered.and_then(|()| screens(args, every, stop, take));
    restore()?;
    ended
}

/// The terminal as it was before the live screen.
fn restore() -> io::Result<()> {
    let raw = terminal::disable_raw_mode();
    execute!(io::stdout(), cursor::Show, terminal::EnableLineWrap, terminal::LeaveAlternateScreen)?;
    raw
}

/// The lines of a terminal of `width` × `height`, as the view has them; `top` is held where something is below.
fn shown(
    snapshot: &Snapshot,
    view: &mut View,
    (width, height): (u16, u16),
    (colored, ascii): (bool, bool),
) -> Vec<String> {
    let footer = view.footer();
    let look = Look { width: width.max(60), ascii, footer: &footer, page: view.page };
    let mut lines = draw(&view.of(snapshot), look);
    let below = lines.len().saturating_sub(usize::from(height));
    // A screen that has become shorter takes the scrolling back.
    view.top = view.top.min(below.min(usize::from(u16::MAX)) as u16);
    // The keys stay in sight: they are the last line of every screen.
    let keys = lines.pop();
    let rows = lines.into_iter().skip(view.top.into()).take(usize::from(height) - 1);
    let style = |style| if colored || matches!(style, Style::Bold | Style::Dim) { style } else { Style::Plain };
    rows.chain(keys).map(|cells| line(&cells, style)).collect()
}

/// Writes the lines that are not on the screen yet, all at once, and clears what is below them.
fn put(lines: &[String], before: &[String], out: &mut impl Write) -> io::Result<()> {
    let mut text = String::new();
    for (y, line) in lines.iter().enumerate().filter(|&(y, line)| before.get(y) != Some(line)) {
        text += &format!("\x1b[{};1H\x1b[2K{line}", y + 1);
    }
    if before.len() > lines.len() {
        text += &format!("\x1b[{};1H\x1b[J", lines.len() + 1);
    }
    out.write_all(text.as_bytes())?;
    out.flush()
}

fn screens(args: &SmiArgs, every: Duration, stop: &AtomicBool, take: Take<'_>) -> io::Result<i32> {
    let look = (args.color.decide(Environment::of_stdout()), args.ascii || term::ascii());
    let mut snapshot = take();
    let mut taken = Instant::now();
    let (mut view, mut on_screen, mut size) = (View::default(), Vec::new(), (0, 0));
    loop {
        let (width, height) = terminal::size()?;
        let (now, mut out) = ((width, height.max(1)), io::stdout().lock());
        if now != size {
            execute!(out, terminal::Clear(terminal::ClearType::All))?;
            (size, on_screen) = (now, Vec::new());
        }
        let lines = shown(&snapshot, &mut view, size, look);
        put(&lines, &on_screen, &mut out)?;
        on_screen = lines;
        drop(out);
        let left = if view.paused { Duration::MAX } else { every.saturating_sub(taken.elapsed()) };
        if event::poll(left.min(Duration::from_millis(200)))?
            && let Event::Key(key) = event::read()?
            && key.kind == KeyEventKind::Press
        {
            match view.press(key, size.1) {
                Act::Quit => return Ok(0),
                Act::Export => view.message = export(&view.of(&snapshot)),
                Act::Draw => {}
            }
        }
        if stop.load(Ordering::Relaxed) {
            return Ok(0);
        }
        if !view.paused && taken.elapsed() >= every {
            snapshot = take();
            taken = Instant::now();
        }
    }
}

/// Writes the engines as CSV to a new file, and says what came of it.
fn export(snapshot: &Snapshot) -> String {
    let name = format!("lossfeed-smi-{}.csv", snapshot.time.replace([':', '-'], ""));
    // A new file: nothing is overwritten, and no link is followed.
    let made = std::fs::OpenOptions::new().write(true).create_new(true).open(&name);
    match made.and_then(|mut file| file.write_all(fields::csv(&snapshot.engines).as_bytes())) {
        Ok(()) => format!("wrote {name}"),
        Err(e) => format!("{name}: {e}"),
    }
}

impl<'a> Taker<'a> {
    /// Begins with an empty past.
    pub(super) fn new(args: &'a SmiArgs) -> Self {
        Self { args, started: Instant::now(), window: Window::default(), idle: IdleSince::default() }
    }

    /// Takes a snapshot, judges it by what came before, and narrows it to what was asked for.
    pub(super) fn take(&mut self) -> Snapshot {
        let now_s = self.started.elapsed().as_secs_f64();
        let mut snapshot = if self.args.demo {
            demo::snapshot(600.0 + now_s)
        } else {
            let mut snapshot = super::gather::snapshot();
            self.window.judge(&mut snapshot.engines, now_s);
            self.idle.note(&mut snapshot.gpus, now_s);
            snapshot
        };
        if let Some(job) = &self.args.job {
            snapshot.engines.retain(|e| e.job == *job || e.pid.to_string() == *job);
        }
        snapshot
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::process::{Child, Command, Stdio};

    use clap::Parser;
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};

    use super::*;
    use crate::args::{Cli, Command as Typed};

    /// In which way the live screen ends in the process that [`ended_on_a_terminal`] starts.
    const WAY: &str = "LOSSFEED_TEST_ENDING";

    /// Nothing by itself: the other tests run it in a process of its own, on a terminal.
    #[test]
    fn live() {
        let Ok(way) = std::env::var(WAY) else { return };
        let Typed::Smi(args) = Cli::parse_from(["lossfeed", "smi", "--demo", "-l", "0.1"]).command else { return };
        let mut shown = 0;
        let mut take = || {
            shown += 1;
            assert!(way != "panic" || shown < 3, "planted");
            demo::snapshot(600.0)
        };
        let stop = stopped().unwrap();
        full_screen(&args, Duration::from_secs_f64(0.1), &stop, &mut take).unwrap();
    }

    /// Runs [`live`] on a terminal until it ends, and holds the terminal to what it was before.
    fn ended_on_a_terminal(way: &str, end: impl Fn(&Child, &mut File)) -> String {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let terminal = File::options().read(true).write(true).open(name).unwrap();
        tcsetwinsize(&terminal, Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let before = format!("{:?}", tcgetattr(&terminal).unwrap());
        let stdio = || Stdio::from(terminal.try_clone().unwrap());
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "smi::watch::tests::live", "--nocapture"])
            .env(WAY, way)
            .stdin(stdio())
            .stdout(stdio())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (mut keyboard, mut screen) = (File::from(master.try_clone().unwrap()), File::from(master));
        let mut drawn = Vec::new();
        let mut read = |until: &str| {
            let mut chunk = [0; 4096];
            while !String::from_utf8_lossy(&drawn).contains(until) {
                match screen.read(&mut chunk) {
                    Ok(n) if n > 0 => drawn.extend_from_slice(&chunk[..n]),
                    _ => break,
                }
            }
        };
        read("input-bound");
        assert_ne!(before, format!("{:?}", tcgetattr(&terminal).unwrap()), "the live screen has the keys to itself");
        end(&child, &mut keyboard);
        read("\u{1b}[?1049l");
        child.wait().unwrap();
        assert_eq!(before, format!("{:?}", tcgetattr(&terminal).unwrap()), "{way}");
        let drawn = String::from_utf8_lossy(&drawn).into_owned();
        let last = |code: &str| drawn.rfind(code).unwrap_or_else(|| panic!("{way}: no {code:?} in {drawn:?}"));
        assert!(last("\u{1b}[?1049l") > last("\u{1b}[?1049h"), "{way}: the screen from before is back");
        drawn
    }

    #[test]
    fn after_a_panic_a_signal_and_a_key_the_terminal_is_as_it_was() {
        ended_on_a_terminal("panic", |_, _| {});
        for signal in [rustix::process::Signal::TERM, rustix::process::Signal::HUP, rustix::process::Signal::INT] {
            let pid = |child: &Child| rustix::process::Pid::from_child(child);
            ended_on_a_terminal("signal", |child, _| rustix::process::kill_process(pid(child), signal).unwrap());
        }
        ended_on_a_terminal("key", |_, keyboard| keyboard.write_all(b"q").unwrap());
    }

    #[test]
    fn a_low_terminal_keeps_the_keys_in_sight_and_scrolls_as_far_as_there_is_something() {
        let (snapshot, mut view) = (demo::snapshot(600.0), View::default());
        view.top = u16::MAX;
        let lines = shown(&snapshot, &mut view, (80, 10), (true, true));
        assert!(lines.len() == 10 && lines[9].contains("q quit"), "{lines:?}");
        assert!((1..u16::MAX).contains(&view.top), "{}", view.top);
        let mut whole = |colored| shown(&snapshot, &mut view, (80, 500), (colored, true));
        let (colored, plain) = (whole(true), whole(false));
        let colors = |lines: &[String]| lines.iter().filter(|line| line.contains("\x1b[3")).count();
        assert!(colors(&colored) > 0 && colors(&plain) == 0 && plain.len() < 500, "{plain:?}");
        assert_eq!(view.top, 0, "a screen that is whole is not scrolled");
    }

    #[test]
    fn lines_are_written_once_and_what_is_below_them_goes() {
        let written = |now: &str, before: &str| {
            let [now, before] = [now, before].map(|text| text.chars().map(String::from).collect::<Vec<_>>());
            let mut out = Vec::new();
            put(&now, &before, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(written("ab", ""), "\x1b[1;1H\x1b[2Ka\x1b[2;1H\x1b[2Kb");
        assert_eq!(written("aXc", "abc"), "\x1b[2;1H\x1b[2KX");
        assert_eq!(written("a", "abc"), "\x1b[2;1H\x1b[J");
        assert_eq!(written("a", "a"), "");
    }
}
