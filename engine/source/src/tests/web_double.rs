//! A web server on this machine for tests: it gives parts of its objects or not, and may damage what it gives whole.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use lossfeed_sync::Mutex;

/// A request: the path, and the part of it that was asked for.
pub(crate) type Asked = (String, Option<(usize, usize)>);

/// The server. It ends with this value.
pub(crate) struct Web {
    pub(crate) url: String,
    served: Arc<Served>,
}

struct Served {
    objects: HashMap<String, Vec<u8>>,
    ranges: bool,
    /// Of whole objects to come: a byte that has another value. Then they are sound.
    damaged: Mutex<Vec<usize>>,
    asked: Mutex<Vec<Asked>>,
    over: AtomicBool,
}

impl Web {
    /// Serves `objects` by their paths, which begin with a slash.
    pub(crate) fn start(objects: HashMap<String, Vec<u8>>, ranges: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (damaged, asked, over) = (Mutex::default(), Mutex::default(), AtomicBool::new(false));
        let served = Arc::new(Served { objects, ranges, damaged, asked, over });
        let serving = Arc::clone(&served);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if serving.over.load(SeqCst) {
                    return;
                }
                let (served, Ok(client)) = (Arc::clone(&serving), client) else { continue };
                // A client that leaves ends its thread.
                std::thread::spawn(move || _ = served.serve(&client));
            }
        });
        Self { url, served }
    }

    /// The next whole objects have another value at these places, the last one first.
    pub(crate) fn damage(&self, places: Vec<usize>) {
        *self.served.damaged.lock() = places;
    }

    /// How often objects were given whole.
    pub(crate) fn wholes(&self) -> usize {
        self.served.asked.lock().iter().filter(|(_, part)| part.is_none()).count()
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        self.served.over.store(true, SeqCst);
        // Wakes it.
        _ = TcpStream::connect(self.url.trim_start_matches("http://"));
    }
}

impl Served {
    fn serve(&self, client: &TcpStream) -> std::io::Result<()> {
        client.set_nodelay(true)?;
        let (mut lines, mut client) = (BufReader::new(client).lines(), client);
        while let Some(request) = lines.next() {
            let (request, mut part) = (request?, None);
            loop {
                let header = lines.next().unwrap_or(Ok(String::new()))?.to_ascii_lowercase();
                if header.is_empty() {
                    break;
                }
                let range = header.strip_prefix("range: bytes=").and_then(|range| range.split_once('-'));
                if let Some((from, last)) = range.filter(|_| self.ranges) {
                    part = Some((from.parse().unwrap(), last.parse::<usize>().unwrap() + 1));
                }
            }
            let mut words = request.split(' ');
            let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
            let path = path.split('?').next().unwrap_or(path);
            let Some(object) = self.objects.get(path) else {
                client.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")?;
                continue;
            };
            let (from, to) = part.unwrap_or((0, object.len()));
            let status = part.map_or("200 OK".to_owned(), |(from, to)| {
                format!("206 Partial Content\r\nContent-Range: bytes {from}-{}/{}", to - 1, object.len())
            });
            let stamp = "ETag: \"one\"\r\nLast-Modified: Tue, 14 Nov 2023 22:13:20 GMT";
            write!(client, "HTTP/1.1 {status}\r\n{stamp}\r\nContent-Length: {}\r\n\r\n", to - from)?;
            if method == "HEAD" {
                continue;
            }
            self.asked.lock().push((path.to_owned(), part));
            let mut body = object.get(from..to).unwrap_or_default().to_vec();
            if part.is_none()
                && let Some(at) = self.damaged.lock().pop()
            {
                body[at] ^= 1;
            }
            client.write_all(&body)?;
        }
        Ok(())
    }
}
