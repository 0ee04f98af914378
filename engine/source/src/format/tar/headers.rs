//! The headers of an archive, one member after the other, as Python's tarfile reads them: ustar, GNU, PAX and what came
//! before them.

use std::io::{self, Read, Seek, SeekFrom};

use super::extended::Extended;
use super::fields::{invalid, number, unsupported, until_zero};
use super::fill;
use super::sparse::{Map, structs};

pub(super) const BLOCK_BYTES: u64 = 512;
/// Long names, PAX records and sparse maps of one member; Linux allows paths of 4 KiB, PAX writers add a few hundred
/// bytes.
const HEADER_BYTES_MAX: u64 = 1 << 20;

/// A header's block.
pub(super) type Block = [u8; BLOCK_BYTES as usize];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Unknown types too: they are to be read as files.
    File,
    HardLink,
    SymbolicLink,
    Directory,
    /// Devices, pipes, and an archive's own label.
    Other,
}

/// A member as its headers describe it.
pub(super) struct Entry {
    pub(super) kind: Kind,
    pub(super) name: Vec<u8>,
    /// Of a link.
    pub(super) target: Vec<u8>,
    /// Where its last header lies.
    pub(super) header: u64,
    /// Where its bytes lie in the archive; of a sparse file, all that are stored.
    pub(super) offset: u64,
    pub(super) bytes: u64,
    pub(super) map: Option<Map>,
}

pub(super) struct Headers<R> {
    reader: R,
    next: u64,
    /// Bytes of headers that this member may still have.
    left: u64,
    global: Extended,
}

impl<R: Read + Seek> Headers<R> {
    pub(super) fn new(reader: R) -> Self {
        Self { reader, next: 0, left: 0, global: Extended::default() }
    }

    pub(super) fn into_inner(self) -> R {
        self.reader
    }

    /// So many bytes from an offset on; fewer at the file's end.
    pub(super) fn read(&mut self, at: u64, bytes: u64) -> io::Result<Vec<u8>> {
        self.reader.seek(SeekFrom::Start(at))?;
        let mut read = vec![0; bytes as usize];
        let got = fill(&mut self.reader, &mut read)?;
        read.truncate(got);
        Ok(read)
    }

    /// A block of a header; `None` at the file's end, or for one of zeros.
    fn block(&mut self, at: u64) -> io::Result<Option<Box<Block>>> {
        let read = self.header_bytes(at, BLOCK_BYTES)?;
        if read.is_empty() {
            return Ok(None);
        }
        let block: Box<Block> = read
            .try_into()
            .map_err(|_| io::Error::new(io::ErrorKind::UnexpectedEof, "the file ends within a header"))?;
        Ok(block.iter().any(|&byte| byte != 0).then_some(block))
    }

    fn header_bytes(&mut self, at: u64, bytes: u64) -> io::Result<Vec<u8>> {
        self.left = self
            .left
            .checked_sub(bytes)
            .ok_or_else(|| invalid(format!("a header is larger than {HEADER_BYTES_MAX} bytes")))?;
        self.read(at, bytes)
    }

    /// The next member; `None` at the archive's end.
    pub(super) fn next(&mut self) -> io::Result<Option<Entry>> {
        self.left = HEADER_BYTES_MAX;
        let first = self.next;
        let mut extended = self.global.clone();
        let mut long: [Option<Vec<u8>>; 2] = [None, None];
        loop {
            let header = self.next;
            let Some(block) = self.block(header)? else {
                let why = || invalid("a header with a name or records is followed by no member");
                return if header == first { Ok(None) } else { Err(why()) };
            };
            if !has_its_sum(&block) {
                return Err(invalid("its checksum does not match"));
            }
            let size = number(field(&block[..], 124, 12)).ok_or_else(|| invalid("numeric field"))?;
            let data = header + BLOCK_BYTES;
            let behind = |bytes: u64| {
                let end = bytes.checked_next_multiple_of(BLOCK_BYTES).and_then(|bytes| data.checked_add(bytes));
                end.ok_or_else(|| invalid("a member ends beyond 2^64 bytes"))
            };
            let kind = block[156];
            if matches!(kind, b'L' | b'K' | b'x' | b'g' | b'X') {
                let text = self.header_bytes(data, size)?;
                if (text.len() as u64) < size {
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file ends within a header"));
                }
                self.next = behind(size)?;
                match kind {
                    b'L' => long[0] = Some(until_zero(&text).to_vec()),
                    b'K' => long[1] = Some(until_zero(&text).to_vec()),
                    b'g' => {
                        for records in [&mut self.global, &mut extended] {
                            records.add(&text)?;
                            records.forget_sparse();
                        }
                    }
                    _ => extended.add(&text)?,
                }
                continue;
            }
            let [name, target] = long;
            let name = extended.name().or(name).unwrap_or_else(|| name_of(&block));
            let target =
                extended.link.clone().or(target).unwrap_or_else(|| until_zero(field(&block[..], 157, 100)).to_vec());
            return self.entry(&block, header, size, (name, target), &extended).map(Some);
        }
    }

    fn entry(
        &mut self,
        block: &Block,
        header: u64,
        size: u64,
        (name, target): (Vec<u8>, Vec<u8>),
        extended: &Extended,
    ) -> io::Result<Entry> {
        let mut offset = header + BLOCK_BYTES;
        // What is stored, and what lies in the archive in all.
        let mut bytes = extended.size.unwrap_or(size);
        let mut map = None;
        let kind = match block[156] {
            b'1' if bytes > 0 && !self.ends_at(offset)? => Kind::File,
            b'1' => Kind::HardLink,
            b'2' => Kind::SymbolicLink,
            b'5' | b'D' => Kind::Directory,
            b'\0' if name.ends_with(b"/") => Kind::Directory,
            b'3' | b'4' | b'6' | b'V' => Kind::Other,
            b'M' => {
                return Err(unsupported(
                    "a file that begins in another volume: join the volumes first, or write the archive in one",
                ));
            }
            b'S' => {
                let (mut parts, mut more) = (structs(field(block, 386, 96)), block[482] != 0);
                while more {
                    let next = self.block(offset)?.ok_or_else(|| invalid("a sparse map is cut"))?;
                    parts.extend(structs(field(&next[..], 0, 504)));
                    more = next[504] != 0;
                    offset += BLOCK_BYTES;
                }
                let real = number(field(block, 483, 12)).ok_or_else(|| invalid("numeric field"))?;
                map = Some(Map { bytes: real, parts });
                Kind::File
            }
            _ => Kind::File,
        };
        // Types that have no bytes have none, whatever their header says.
        if kind != Kind::File && !matches!(block[156], b'V' | b'D') {
            bytes = 0;
        }
        let end = bytes.checked_next_multiple_of(BLOCK_BYTES).and_then(|bytes| offset.checked_add(bytes));
        self.next = end.ok_or_else(|| invalid("a member ends beyond 2^64 bytes"))?;
        if kind == Kind::File && map.is_none() {
            map = extended.map()?;
            if extended.is_mapped_within() {
                let within = offset;
                let mut text = Vec::new();
                map = loop {
                    let block = self.header_bytes(within + text.len() as u64, BLOCK_BYTES)?;
                    if block.is_empty() || text.len() as u64 + BLOCK_BYTES > bytes {
                        return Err(invalid("a sparse map is cut"));
                    }
                    text.extend_from_slice(&block);
                    if let Some(map) = Map::of_text(&text, extended.real_bytes(bytes)) {
                        break Some(map);
                    }
                };
                offset += text.len() as u64;
                bytes -= text.len() as u64;
            }
        }
        if let Some(map) = &map {
            map.check(bytes)?;
        }
        Ok(Entry { kind, name, target, header, offset, bytes, map: map.filter(|map| !map.is_whole()) })
    }

    /// Whether a header or the archive's end lies here: some programs give a hard link its file's size, and no bytes.
    fn ends_at(&mut self, at: u64) -> io::Result<bool> {
        Ok(self.block(at)?.is_none_or(|block| has_its_sum(&block)))
    }
}

/// Bytes of a header, from `start` on.
fn field(block: &[u8], start: usize, bytes: usize) -> &[u8] {
    block.get(start..start + bytes).unwrap_or_default()
}

/// Old programs took bytes for signed numbers.
fn has_its_sum(block: &Block) -> bool {
    let others = || block.iter().enumerate().map(|(at, &byte)| if (148..156).contains(&at) { b' ' } else { byte });
    let unsigned: i64 = others().map(i64::from).sum();
    let signed: i64 = others().map(|byte| i64::from(byte as i8)).sum();
    number(field(block, 148, 8)).is_some_and(|sum| [unsigned, signed].contains(&(sum as i64)))
}

/// The name in the header, with what ustar keeps of it elsewhere.
fn name_of(block: &Block) -> Vec<u8> {
    let (name, before) = (until_zero(field(block, 0, 100)), until_zero(field(block, 345, 155)));
    // GNU's own format has times there.
    if before.is_empty() || field(block, 257, 8) == b"ustar  \0" {
        return name.to_vec();
    }
    [before, b"/", name].concat()
}
