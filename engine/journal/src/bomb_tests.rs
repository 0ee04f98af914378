//! Files of a few kilobytes that unpack to very much.

use std::cell::Cell;
use std::io::{self, Read, Write};

use super::read_trace;

/// A reader that counts what was asked of it.
struct Counted<'a>(&'a [u8], &'a Cell<usize>);

impl Read for Counted<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let read = self.0.read(to)?;
        self.1.set(self.1.get() + read);
        Ok(read)
    }
}

/// A few kilobytes that unpack to very much: refused with the line, most of it unread.
#[test]
fn a_gzip_that_unpacks_to_more_than_is_allowed_is_refused_before_it_is_unpacked() {
    let packed = |head: &str, part: &[u8], parts: usize| {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all(head.as_bytes()).unwrap();
        (0..parts).for_each(|_| packer.write_all(part).unwrap());
        packer.finish().unwrap()
    };
    let header = "epoch,step,id,loss\n";
    let rows = "0,0,1,0.5\n".repeat(10_000);
    let (many, long) = (packed(header, rows.as_bytes(), 300), packed(header, &[b'7'; 1 << 16], 600));
    let no_header = packed("", &[b'7'; 1 << 16], 600);
    let cases = [(&many, "line 1002: it has more than 1000 rows"), (&long, "line 2: it is longer than 256 bytes")];
    for (file, said) in cases.into_iter().chain([(&no_header, "line 1: it is longer than 256 bytes")]) {
        assert!(file.len() > 150_000, "{} bytes", file.len());
        let asked = Cell::new(0);
        let error = read_trace(Counted(file, &asked), 1000).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
        assert!(asked.get() <= 1 << 17, "{} of {} bytes were read for: {error}", asked.get(), file.len());
    }
    // Empty lines mean nothing, however many.
    let empty = packed(header, &[b'\n'; 1 << 16], 300);
    assert!(read_trace(&empty[..], 1000).unwrap_err().to_string().contains("no rows"));
}
