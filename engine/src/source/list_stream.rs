//! A TAR stream taken apart as it comes: what a store sends for many samples that were asked for with one request.
//!
//! Nothing of the stream is believed. A member's name and length are told before a byte of it is kept, so that whoever
//! reads can refuse them; headers have a bound, and what is no header ends the reading. No effects: bytes go in piece by
//! piece, cut wherever the network cut them.

use crate::error::printable;

const BLOCK_BYTES: usize = 512;
/// Long names and PAX records before one member.
const EXTENDED_BYTES_MAX: u64 = 64 << 10;

/// What a stream says that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Broken(pub(super) String);

/// What the bytes so far have come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// The piece is used up.
    More,
    /// A member begins. The next step keeps its bytes.
    Begins { name: String, bytes: u64 },
    /// The member is whole: [`Members::body`] has it.
    Whole,
    /// The archive ended as archives end.
    End,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Header,
    /// Records about the next member, of this kind.
    Extended(u8, u64),
    Body(u64),
    /// Bytes up to the next block.
    Padding(u64),
    End,
}

/// The members of a stream.
#[derive(Debug)]
pub(super) struct Members {
    state: State,
    block: Vec<u8>,
    extended: Vec<u8>,
    body: Vec<u8>,
    /// What extended records say of the next member.
    name: Option<String>,
    bytes: Option<u64>,
}

impl Members {
    pub(super) fn new() -> Self {
        Self {
            state: State::Header,
            block: Vec::with_capacity(BLOCK_BYTES),
            extended: Vec::new(),
            body: Vec::new(),
            name: None,
            bytes: None,
        }
    }

    /// The bytes of the member that has just become whole.
    pub(super) fn body(&self) -> &[u8] {
        &self.body
    }

    /// Takes what makes one step off the front of `piece`.
    ///
    /// # Errors
    /// What the stream says that cannot be. It is not read on.
    pub(super) fn step(&mut self, piece: &mut &[u8]) -> Result<Step, Broken> {
        loop {
            match self.state {
                State::End => return Ok(Step::End),
                State::Header => {
                    let missing = (BLOCK_BYTES - self.block.len()) as u64;
                    self.block.extend_from_slice(taken(piece, missing));
                    if self.block.len() < BLOCK_BYTES {
                        return Ok(Step::More);
                    }
                    if let Some(step) = self.header()? {
                        return Ok(step);
                    }
                }
                State::Extended(kind, left) => {
                    let part = taken(piece, left);
                    self.extended.extend_from_slice(part);
                    let left = left - part.len() as u64;
                    if left > 0 {
                        self.state = State::Extended(kind, left);
                        return Ok(Step::More);
                    }
                    self.about_the_next(kind)?;
                    self.state = State::Padding(padding(self.extended.len() as u64));
                }
                State::Body(left) => {
                    let part = taken(piece, left);
                    self.body.extend_from_slice(part);
                    let left = left - part.len() as u64;
                    if left > 0 {
                        self.state = State::Body(left);
                        return Ok(Step::More);
                    }
                    self.state = State::Padding(padding(self.body.len() as u64));
                    return Ok(Step::Whole);
                }
                State::Padding(left) => {
                    let left = left - taken(piece, left).len() as u64;
                    if left > 0 {
                        self.state = State::Padding(left);
                        return Ok(Step::More);
                    }
                    self.state = State::Header;
                }
            }
        }
    }

    /// What a whole header block stands for; `None` where it is about the next member.
    fn header(&mut self) -> Result<Option<Step>, Broken> {
        let block = std::mem::take(&mut self.block);
        let of = |from: usize, to: usize| block.get(from..to).unwrap_or_default();
        if block.iter().all(|&byte| byte == 0) {
            self.state = State::End;
            return Ok(Some(Step::End));
        }
        let said = number(of(148, 156)).ok_or_else(no_header)?;
        let sum: u64 =
            block.iter().enumerate().map(|(at, &byte)| if (148..156).contains(&at) { 32 } else { byte.into() }).sum();
        if said != sum {
            return Err(no_header());
        }
        let bytes = number(of(124, 136)).ok_or_else(no_header)?;
        let kind = block.get(156).copied().unwrap_or_default();
        match kind {
            b'x' | b'g' | b'L' if bytes > EXTENDED_BYTES_MAX => {
                return Err(Broken(format!("records of {bytes} bytes about a member")));
            }
            b'x' | b'g' | b'L' => {
                self.extended.clear();
                self.state = State::Extended(kind, bytes);
            }
            b'0' | 0 => {
                let name = self.name.take().unwrap_or_else(|| plain_name(&block));
                let bytes = self.bytes.take().unwrap_or(bytes);
                self.body.clear();
                self.state = State::Body(bytes);
                self.block = recycled(block);
                return Ok(Some(Step::Begins { name, bytes }));
            }
            _ => return Err(Broken(format!("a member of kind {:?}, which is no file", char::from(kind)))),
        }
        self.block = recycled(block);
        Ok(None)
    }

    fn about_the_next(&mut self, kind: u8) -> Result<(), Broken> {
        if kind == b'L' {
            let name = self.extended.split(|&byte| byte == 0).next().unwrap_or_default();
            self.name = Some(String::from_utf8_lossy(name).into_owned());
        }
        if kind == b'x' {
            for (key, value) in records(&self.extended)? {
                match key {
                    b"path" => self.name = Some(String::from_utf8_lossy(value).into_owned()),
                    b"size" => {
                        let digits = std::str::from_utf8(value).ok();
                        let bytes =
                            digits.and_then(|digits| digits.parse().ok()).filter(|&bytes: &u64| bytes < 1 << 62);
                        self.bytes = Some(bytes.ok_or_else(no_header)?);
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

fn no_header() -> Broken {
    Broken("bytes that are no header where a member should begin".to_owned())
}

fn recycled(mut block: Vec<u8>) -> Vec<u8> {
    block.clear();
    block
}

/// Up to `most` bytes off the front.
fn taken<'a>(piece: &mut &'a [u8], most: u64) -> &'a [u8] {
    let (part, rest) = piece.split_at(piece.len().min(usize::try_from(most).unwrap_or(usize::MAX)));
    *piece = rest;
    part
}

fn padding(bytes: u64) -> u64 {
    bytes.next_multiple_of(BLOCK_BYTES as u64) - bytes
}

/// A header's number: octal digits, or, where the first bit is set, eight bytes at the field's end.
fn number(field: &[u8]) -> Option<u64> {
    if field.first()? & 0x80 != 0 {
        let (above, value) = field.split_last_chunk::<8>()?;
        let (first, between) = above.split_first()?;
        let fits = *first == 0x80 && between.iter().all(|&byte| byte == 0);
        return Some(u64::from_be_bytes(*value)).filter(|&value| fits && value < 1 << 62);
    }
    let digits = std::str::from_utf8(field).ok()?.trim_matches([' ', '\0']);
    let plain = digits.bytes().all(|digit| digit.is_ascii_digit());
    if digits.is_empty() { Some(0) } else { u64::from_str_radix(digits, 8).ok().filter(|_| plain) }
}

fn plain_name(block: &[u8]) -> String {
    let text = |from: usize, to: usize| {
        let field = block.get(from..to).unwrap_or_default();
        String::from_utf8_lossy(field.split(|&byte| byte == 0).next().unwrap_or_default()).into_owned()
    };
    let (name, prefix) = (text(0, 100), text(345, 500));
    let posix = block.get(257..263) == Some(b"ustar\0");
    if posix && !prefix.is_empty() { format!("{prefix}/{name}") } else { name }
}

/// Records of `length key=value` with a line's end, as PAX has them.
fn records(mut text: &[u8]) -> Result<Vec<(&[u8], &[u8])>, Broken> {
    let wrong = |text: &[u8]| {
        let shown = String::from_utf8_lossy(text.get(..text.len().min(40)).unwrap_or_default()).into_owned();
        Broken(format!("records about a member that are none: {}", printable(&shown)))
    };
    let mut found = Vec::new();
    while !text.is_empty() {
        let space = text.iter().take(20).position(|&byte| byte == b' ').ok_or_else(|| wrong(text))?;
        let length = text.get(..space).and_then(|digits| std::str::from_utf8(digits).ok()?.parse::<usize>().ok());
        let (record, rest) = length.and_then(|length| text.split_at_checked(length)).ok_or_else(|| wrong(text))?;
        let inner = record.get(space + 1..).and_then(|inner| inner.strip_suffix(b"\n")).ok_or_else(|| wrong(text))?;
        let equals = inner.iter().position(|&byte| byte == b'=').ok_or_else(|| wrong(text))?;
        found.push((inner.get(..equals).unwrap_or_default(), inner.get(equals + 1..).unwrap_or_default()));
        text = rest;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Read;

    type Found = Vec<(String, Vec<u8>)>;

    /// The definition: the archive library over the whole stream.
    fn naively(stream: &[u8]) -> Found {
        let mut archive = ::tar::Archive::new(stream);
        let read = |entry: std::io::Result<::tar::Entry<'_, &[u8]>>| {
            let mut entry = entry.unwrap();
            let mut body = Vec::new();
            entry.read_to_end(&mut body).unwrap();
            (String::from_utf8_lossy(&entry.path_bytes()).into_owned(), body)
        };
        archive.entries().unwrap().map(read).collect()
    }

    /// Pieces of these sizes, over and over.
    fn in_pieces(stream: &[u8], sizes: &[usize]) -> Result<(Found, bool), Broken> {
        let (mut members, mut found, mut name, mut at) = (Members::new(), Found::new(), String::new(), 0);
        for &size in sizes.iter().cycle() {
            let end = (at + size).min(stream.len());
            let mut piece = &stream[at..end];
            loop {
                match members.step(&mut piece)? {
                    Step::More => break,
                    Step::Begins { name: begins, .. } => name = begins,
                    Step::Whole => found.push((name.clone(), members.body().to_vec())),
                    Step::End => return Ok((found, true)),
                }
            }
            assert!(piece.is_empty(), "a piece is used up before more is asked for");
            at = end;
            if at == stream.len() {
                return Ok((found, false));
            }
        }
        unreachable!("sizes are not empty")
    }

    fn stream(members: &[(String, Vec<u8>)]) -> Vec<u8> {
        let mut builder = ::tar::Builder::new(Vec::new());
        for (name, body) in members {
            let mut header = ::tar::Header::new_gnu();
            header.set_size(body.len() as u64);
            header.set_mode(0o644);
            builder.append_data(&mut header, name, body.as_slice()).unwrap();
        }
        builder.into_inner().unwrap()
    }

    /// A member with a PAX header before it, as other writers put long names and sizes.
    fn with_pax(records: &[u8], header_name: &str, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (kind, name, body) in
            [(::tar::EntryType::XHeader, "pax", records), (::tar::EntryType::Regular, header_name, body)]
        {
            let mut header = ::tar::Header::new_ustar();
            header.set_path(name).unwrap();
            header.set_size(body.len() as u64);
            header.set_entry_type(kind);
            header.set_cksum();
            bytes.extend_from_slice(header.as_bytes());
            bytes.extend_from_slice(body);
            bytes.resize(bytes.len().next_multiple_of(512), 0);
        }
        bytes.extend_from_slice(&[0; 1024]);
        bytes
    }

    fn any_members() -> impl Strategy<Value = Vec<(String, Vec<u8>)>> {
        let name = prop_oneof!["[a-zé]{1,12}(/[a-z0-9]{1,20}){0,3}", "[a-z]{90,180}/[a-z]{90,120}"];
        prop::collection::vec((name, prop::collection::vec(any::<u8>(), 0..1500)), 0..8)
    }

    proptest! {
        #[test]
        fn a_stream_is_what_the_archive_library_reads(members in any_members(), sizes in prop::collection::vec(1usize..2000, 1..6)) {
            let stream = stream(&members);
            prop_assert_eq!(in_pieces(&stream, &sizes), Ok((naively(&stream), true)));
            prop_assert_eq!(naively(&stream), members);
        }

        #[test]
        fn a_stream_that_is_cut_gives_what_came_and_no_end(members in any_members(), cut in any::<prop::sample::Index>()) {
            let whole = stream(&members);
            let cut = cut.index(whole.len() - 1024 + 1);
            let (found, ended) = in_pieces(&whole[..cut], &[700]).unwrap();
            prop_assert!(!ended);
            prop_assert_eq!(&members[..found.len()], &found[..]);
        }

        #[test]
        fn damage_and_noise_are_refused_or_bounded(
            members in any_members(), at in any::<prop::sample::Index>(), value in any::<u8>(), noise in prop::collection::vec(any::<u8>(), 0..3000),
        ) {
            let mut stream = stream(&members);
            let at = at.index(stream.len());
            stream[at] = value;
            for bytes in [&stream, &noise] {
                if let Ok((found, _)) = in_pieces(bytes, &[333]) {
                    prop_assert!(found.iter().map(|(_, body)| body.len()).sum::<usize>() <= bytes.len());
                }
            }
        }
    }

    #[test]
    fn pax_names_and_sizes_count() {
        let long = "a/".repeat(150) + "b.jpg";
        let record = format!("path={long}\n");
        let length = record.len() + 4;
        let stream = with_pax(format!("{length} {record}").as_bytes(), "short", b"bytes");
        assert_eq!(in_pieces(&stream, &[100]), Ok((vec![(long.clone(), b"bytes".to_vec())], true)));
        assert_eq!(naively(&stream), [(long, b"bytes".to_vec())]);
        let sized = with_pax(b"9 size=3\n", "m", b"abc");
        assert_eq!(in_pieces(&sized, &[1]), Ok((vec![("m".to_owned(), b"abc".to_vec())], true)));
    }

    #[test]
    fn lies_are_named_before_a_byte_is_kept() {
        let mut huge = ::tar::Header::new_gnu();
        huge.set_path("m").unwrap();
        huge.set_size(5 << 30);
        huge.set_cksum();
        let (mut members, mut piece) = (Members::new(), huge.as_bytes().as_slice());
        assert_eq!(members.step(&mut piece), Ok(Step::Begins { name: "m".to_owned(), bytes: 5 << 30 }));
        assert!(members.body.capacity() == 0, "room is made as bytes come");
        for (kind, size, said) in
            [(b'L', 1 << 20, "records of 1048576 bytes"), (b'2', 0, "kind '2'"), (b'5', 0, "kind '5'")]
        {
            let mut header = ::tar::Header::new_gnu();
            header.set_entry_type(::tar::EntryType::new(kind));
            header.set_size(size);
            header.set_cksum();
            let told = in_pieces(header.as_bytes(), &[512]).unwrap_err();
            assert!(told.0.contains(said), "{told}");
        }
        for records in [&b"no number=1\n"[..], b"99 path=x\n", b"9 pathxx\n", b"0 \n", b"7 a=b x"] {
            let told = in_pieces(&with_pax(records, "m", b""), &[512]).unwrap_err();
            assert!(told.0.contains("records about a member that are none"), "{told}");
        }
        assert_eq!(in_pieces(&[7; 512], &[512]).unwrap_err(), no_header());
    }
}
