//! `lossfeed exporter`: the numbers of running engines over HTTP, for Prometheus.

mod openmetrics;

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::args::ExporterArgs;
use crate::term;

/// Connections at a time. A further one takes the place of the one that has been idle for longest; it waits where all
/// are being answered.
const CONNECTIONS: usize = 512;
/// Time of a connection, from its first byte to its last: a slow client holds nothing longer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest head of a request.
const HEAD_BYTES: usize = 8192;

/// Runs the command until a signal ends it.
pub(crate) fn run(args: &ExporterArgs) -> i32 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let served = runtime.and_then(|runtime| runtime.block_on(serve(args)));
    let Err(e) = served;
    term::complain(&format!("--listen {}: {e}", args.listen));
    1
}

async fn serve(args: &ExporterArgs) -> io::Result<std::convert::Infallible> {
    let listener = TcpListener::bind(args.listen).await?;
    let mut out = io::stdout();
    // A closed pipe ends no exporter.
    let _ = writeln!(out, "http://{}/metrics", listener.local_addr()?).and_then(|()| out.flush());
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut idle: VecDeque<Idle> = VecDeque::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // No file descriptor is left, or the client has gone: others may be luckier.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        idle.retain(|one| !one.task.is_finished() && !one.has_asked.load(Ordering::Relaxed));
        if places.available_permits() == 0
            && let Some(oldest) = idle.pop_front()
        {
            oldest.task.abort();
        }
        let place = Arc::clone(&places).acquire_owned().await.map_err(io::Error::other)?;
        let has_asked = Arc::new(AtomicBool::new(false));
        let asks = Arc::clone(&has_asked);
        let task = tokio::spawn(async move {
            // A client that is slow, or goes away, gets no answer, and no other client waits for it.
            let _ = timeout(PATIENCE, answer(stream, &asks)).await;
            drop(place);
        });
        idle.push_back(Idle { task: task.abort_handle(), has_asked });
    }
}

/// A connection whose request has not come yet.
struct Idle {
    task: AbortHandle,
    /// True once it has come.
    has_asked: Arc<AtomicBool>,
}

/// Reads a request's head, or its first [`HEAD_BYTES`]; an error if the client goes away before.
async fn read_head(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    while head.len() <= HEAD_BYTES && !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let mut chunk = [0; 1024];
        let read = stream.read(&mut chunk).await?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        head.extend_from_slice(&chunk[..read]);
    }
    Ok(head)
}

/// Reads one request and answers it; the connection ends with it.
async fn answer(mut stream: TcpStream, has_asked: &AtomicBool) -> io::Result<()> {
    let head = read_head(&mut stream).await?;
    has_asked.store(true, Ordering::Relaxed);
    if head.len() > HEAD_BYTES {
        return respond(&mut stream, "431 Request Header Fields Too Large", TEXT, "", true).await;
    }
    let line = head.split(|&b| b == b'\r').next().unwrap_or_default();
    let words: Vec<&str> = std::str::from_utf8(line).unwrap_or_default().split(' ').collect();
    let (status, kind, body) = match words[..] {
        ["GET" | "HEAD", path, version] if version.starts_with("HTTP/1.") => match path.split('?').next() {
            Some("/metrics") => {
                ("200 OK", openmetrics::CONTENT_TYPE, openmetrics::text(&lossfeed_stats::discover_all()))
            }
            Some("/") => ("200 OK", TEXT, "lossfeed exporter: the numbers are at /metrics\n".to_owned()),
            _ => ("404 Not Found", TEXT, "the numbers are at /metrics\n".to_owned()),
        },
        [_, _, version] if version.starts_with("HTTP/1.") => ("405 Method Not Allowed", TEXT, String::new()),
        _ => ("400 Bad Request", TEXT, String::new()),
    };
    respond(&mut stream, status, kind, &body, words[0] != "HEAD").await
}

const TEXT: &str = "text/plain; charset=utf-8";

async fn respond(stream: &mut TcpStream, status: &str, kind: &str, body: &str, with_body: bool) -> io::Result<()> {
    let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{allow}Connection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    if with_body {
        stream.write_all(body.as_bytes()).await?;
    }
    stream.shutdown().await?;
    // What the client still sends is read away: closing before would reset the connection and lose the answer.
    let mut rest = [0; 1024];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}
