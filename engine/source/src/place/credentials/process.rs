//! The command that a profile names as `credential_process`: run by the shell, as AWS's own libraries do, with a time
//! limit, and with its answer never shown.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// Long enough for a command that asks a person something.
pub(super) const LIMIT: Duration = Duration::from_secs(60);
/// No answer is longer.
const ANSWER_BYTES_MAX: u64 = 64 << 10;
const LOOK: Duration = Duration::from_millis(10);

/// What `command` prints. Blocks for as long as it runs.
///
/// # Errors
/// In words that say nothing of what it printed.
pub(super) fn answer(command: &str, limit: Duration) -> Result<Vec<u8>, String> {
    let end = Instant::now() + limit;
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(command).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    // A group of its own, so that what it starts ends with it.
    let mut child = shell.process_group(0).spawn().map_err(|e| format!("could not be started ({e})"))?;
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let (said, saying) = channel();
    if let Some(out) = child.stdout.take() {
        // What it started may hold its output open for ever: this thread is not waited for.
        let reader = std::thread::Builder::new().name("lossfeed-keys".to_owned());
        let read = reader.spawn(move || {
            let mut bytes = Vec::new();
            let read = out.take(ANSWER_BYTES_MAX + 1).read_to_end(&mut bytes);
            // Nobody may wait for it by now.
            let _ = said.send(read.map(|_| bytes));
        });
        // Without the thread nothing is said, and the wait below ends at once.
        drop(read);
    }
    let answer = saying.recv_timeout(limit);
    let ended = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Ok(status),
            Ok(None) if matches!(answer, Ok(Ok(_))) && Instant::now() < end => std::thread::sleep(LOOK),
            Ok(None) => break Err(format!("did not end within {limit:?}")),
            Err(e) => break Err(format!("was lost ({e})")),
        }
    };
    if ended.is_err() || matches!(answer, Err(RecvTimeoutError::Timeout)) {
        // Either may be gone already.
        let _ = group.map(|group| kill_process_group(group, Signal::KILL));
        let _ = child.kill();
        let _ = child.wait();
    }
    if matches!(&answer, Ok(Ok(bytes)) if bytes.len() as u64 > ANSWER_BYTES_MAX) {
        return Err(format!("printed more than {ANSWER_BYTES_MAX} bytes"));
    }
    let status = ended?;
    if !status.success() {
        return Err(format!("failed ({status})"));
    }
    match answer {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(e)) => Err(format!("could not be read ({e})")),
        Err(RecvTimeoutError::Timeout) => Err(format!("did not close its output within {limit:?}")),
        Err(RecvTimeoutError::Disconnected) => Err("printed nothing".to_owned()),
    }
}
