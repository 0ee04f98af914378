//! A store of one shard for benchmarks: an HTTP server on this machine's loopback whose answers wait, and whose bodies
//! share one link.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Connections share the link in pieces of this size.
const PIECE: usize = 16 << 10;

/// A step of a fixed pseudo-random sequence (Knuth's MMIX).
pub(crate) fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

pub(crate) fn shuffle<T>(items: &mut [T], state: &mut u64) {
    for k in (1..items.len()).rev() {
        items.swap(k, next(state) as usize % (k + 1));
    }
}

/// Processor time of this process, client and server, in seconds.
fn busy() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap();
    let after = text.rsplit_once(") ").unwrap().1;
    after.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<f64>().unwrap()).sum::<f64>() / 100.0
}

/// A tar of files that are called images.
pub(crate) fn shard(samples: usize, mut size: impl FnMut() -> usize) -> Vec<u8> {
    let mut tar = Vec::new();
    for n in 0..samples {
        let bytes = size();
        let mut header = [0u8; 512];
        let mut put = |at: usize, text: String| header[at..at + text.len()].copy_from_slice(text.as_bytes());
        put(0, format!("c{}/{n:07}.png", n % 10));
        put(100, "0000644\0".to_owned());
        put(108, "0000000\0".to_owned());
        put(116, "0000000\0".to_owned());
        put(124, format!("{bytes:011o}\0"));
        put(136, format!("{:011o}\0", 1_700_000_000));
        put(156, "0".to_owned());
        put(257, "ustar\x0000".to_owned());
        put(148, " ".repeat(8));
        let sum: u32 = header.iter().map(|&b| u32::from(b)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        tar.extend_from_slice(&header);
        tar.resize(tar.len() + bytes.next_multiple_of(512), n as u8);
    }
    tar.resize(tar.len() + 1024, 0);
    tar
}

/// A store of one object.
pub(crate) struct Server {
    object: Vec<u8>,
    pub(crate) bytes_per_s: AtomicU64,
    /// What an answer waits for.
    pub(crate) latency_ms: AtomicU64,
    /// What one answer in a hundred waits for.
    pub(crate) tail_ms: AtomicU64,
    /// When the link is free again.
    free: Mutex<Instant>,
    requests: AtomicU64,
    sent: AtomicU64,
}

impl Server {
    pub(crate) fn start(object: Vec<u8>) -> (Arc<Self>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/train.tar", listener.local_addr().unwrap());
        let server = Arc::new(Self {
            object,
            bytes_per_s: AtomicU64::new(1),
            latency_ms: AtomicU64::new(10),
            tail_ms: AtomicU64::new(10),
            free: Mutex::new(Instant::now()),
            requests: AtomicU64::new(0),
            sent: AtomicU64::new(0),
        });
        let serving = Arc::clone(&server);
        thread::spawn(move || {
            for client in listener.incoming() {
                let (server, client) = (Arc::clone(&serving), client.unwrap());
                // A client that leaves ends its thread.
                thread::spawn(move || _ = server.serve(&client));
            }
        });
        (server, url)
    }

    fn serve(&self, client: &TcpStream) -> std::io::Result<()> {
        client.set_nodelay(true)?;
        let (mut lines, mut client) = (BufReader::new(client).lines(), client);
        while let Some(request) = lines.next() {
            let (request, mut range) = (request?, None);
            loop {
                let header = lines.next().unwrap_or(Ok(String::new()))?.to_ascii_lowercase();
                if header.is_empty() {
                    break;
                }
                if let Some((from, to)) = header.strip_prefix("range: bytes=").and_then(|r| r.split_once('-')) {
                    range = Some((from.parse().unwrap(), to.parse::<usize>().unwrap() + 1));
                }
            }
            let slow = self.requests.fetch_add(1, Ordering::Relaxed) % 100 == 99;
            let wait = if slow { &self.tail_ms } else { &self.latency_ms };
            thread::sleep(Duration::from_millis(wait.load(Ordering::Relaxed)));
            let (len, date) = (self.object.len(), "Last-Modified: Tue, 14 Nov 2023 22:13:20 GMT");
            let (from, to) = range.unwrap_or((0, len));
            let status = range.map_or("200 OK".to_owned(), |(from, to)| {
                format!("206 Partial Content\r\nContent-Range: bytes {from}-{}/{len}", to - 1)
            });
            write!(client, "HTTP/1.1 {status}\r\n{date}\r\nContent-Length: {}\r\n\r\n", to - from)?;
            if request.starts_with("HEAD") {
                continue;
            }
            for piece in self.object[from..to].chunks(PIECE) {
                self.pass(piece.len());
                client.write_all(piece)?;
            }
        }
        Ok(())
    }

    /// Waits until the link has taken so many bytes more.
    fn pass(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
        let takes = Duration::from_secs_f64(bytes as f64 / self.bytes_per_s.load(Ordering::Relaxed) as f64);
        let until = {
            let mut free = self.free.lock().unwrap();
            *free = (*free).max(Instant::now()) + takes;
            *free
        };
        let wait = until.saturating_duration_since(Instant::now());
        // The timer's resolution: shorter waits are carried over.
        if wait > Duration::from_millis(1) {
            thread::sleep(wait);
        }
    }

    /// What `work` gives, and what it takes, as fields of JSON.
    pub(crate) fn counted<T>(&self, work: impl FnOnce() -> T) -> (T, String) {
        let counts = || (self.requests.load(Ordering::Relaxed), self.sent.load(Ordering::Relaxed), busy());
        let (before, started) = (counts(), Instant::now());
        let done = work();
        let (seconds, after) = (started.elapsed().as_secs_f64(), counts());
        let (requests, megabytes, busy) = (after.0 - before.0, (after.1 - before.1) as f64 / 1e6, after.2 - before.2);
        let fields = format!(
            "\"requests\":{requests},\"mb\":{megabytes:.2},\"seconds\":{seconds:.3},\"busy_seconds\":{busy:.2}"
        );
        (done, fields)
    }
}
