//! Messages between clients and the owner.
//!
//! ```text
//! 0  bytes after this head   u32        4  kind   u8        5  the rest
//! ```
//!
//! Numbers are little endian. The parser trusts nothing: every length is checked before anything is kept of it, and the
//! first thing that is wrong ends the connection with a reason.

/// A sample's name: a digest of what its bytes depend on.
pub type Key = [u8; 16];

/// So many keys a message has at most.
pub(crate) const KEYS_MAX: usize = 1024;
/// So many importances.
pub(crate) const WORTHS_MAX: usize = 8192;
/// The longest message but for an offered sample.
const CONTROL_MAX: usize = 4 * WORTHS_MAX + 4;
/// The longest message of the owner: a list for people.
pub(crate) const ANSWER_MAX: usize = 16 << 20;
/// The longest name of a job or a dataset.
pub(crate) const NAME_MAX: usize = 512;
pub(crate) const HEAD: usize = 5;
const OFFER: usize = 36;
const MAGIC: [u8; 8] = *b"lfnode\0\x04";

/// The kinds of messages: a client's, then the owner's.
pub(crate) mod kind {
    pub(crate) const HELLO: u8 = 1;
    pub(crate) const ASK: u8 = 2;
    pub(crate) const CLAIM: u8 = 3;
    pub(crate) const OFFER: u8 = 4;
    pub(crate) const END: u8 = 5;
    pub(crate) const RATE: u8 = 6;
    pub(crate) const FORGET: u8 = 7;
    pub(crate) const ADOPT: u8 = 8;
    pub(crate) const LIST: u8 = 9;
    pub(crate) const DROP: u8 = 10;
    pub(crate) const LIMIT: u8 = 11;
    pub(crate) const PIN: u8 = 12;
    pub(crate) const ORDER: u8 = 13;
    pub(crate) const AT: u8 = 14;
    pub(crate) const PROCESSORS: u8 = 15;
    pub(crate) const WELCOME: u8 = 64;
    pub(crate) const FOUND: u8 = 65;
    pub(crate) const WHOSE: u8 = 66;
    pub(crate) const TEXT: u8 = 67;
    pub(crate) const COUNT: u8 = 68;
    pub(crate) const REFUSED: u8 = 69;
    pub(crate) const ORDERED: u8 = 70;
    pub(crate) const SHARE: u8 = 71;
}

/// A message of a client.
#[derive(Debug, PartialEq)]
pub(crate) enum Message<'a> {
    Hello(Hello),
    /// Asks for the places of these.
    Ask(Vec<Key>),
    /// Asks to fetch these. `wait`: answer when one of them is no longer another's.
    Claim {
        wait: bool,
        keys: Vec<Key>,
    },
    /// Leases and fetches of this connection have ended.
    End,
    /// Expected draws of the samples from id `first` on.
    Rate {
        first: u32,
        draws: Vec<f32>,
    },
    Forget(Vec<Key>),
    Adopt,
    List,
    Drop(&'a str),
    Limit {
        job: &'a str,
        bytes: Option<u64>,
    },
    Pin {
        dataset: &'a str,
        pinned: bool,
    },
    /// Asks for the order of an epoch that begins.
    Order,
    /// So many samples of it have been read.
    At(u32),
    /// Asks how many processors it may use.
    Processors {
        all: u32,
        wanted: f32,
    },
}

/// The first message of a connection that reads samples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hello {
    /// A number of the client, the same on all its connections.
    pub(crate) member: u64,
    pub(crate) dataset: u64,
    pub(crate) samples: u32,
    /// Bytes that the client would give the arena.
    pub(crate) bytes: u64,
    pub(crate) job: String,
    /// The dataset for people.
    pub(crate) name: String,
}

/// The head of an offered sample; its bytes follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OfferHead {
    pub(crate) key: Key,
    pub(crate) id: u32,
    pub(crate) cost_us: u32,
    pub(crate) crc: u32,
    pub(crate) bytes: u64,
}

/// A result of the parser.
#[derive(Debug, PartialEq)]
pub(crate) enum Part<'a> {
    Message(Message<'a>),
    Offer(OfferHead),
    /// The next bytes of the offered sample.
    Bytes(&'a [u8]),
    /// They were all.
    Offered,
}

/// Cuts a stream of bytes into messages.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    kept: Vec<u8>,
    /// Bytes of the offered sample that are to come.
    offered: Option<u64>,
}

impl Parser {
    /// Parses what has come. After an error the stream has no meaning.
    ///
    /// # Errors
    /// The reason, of a message that is none or of `on`.
    pub(crate) fn feed<'a>(
        &mut self,
        mut bytes: &'a [u8],
        on: &mut dyn FnMut(Part<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        loop {
            if let Some(left) = self.offered {
                let now = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                let (part, rest) = bytes.split_at(now);
                bytes = rest;
                if now > 0 {
                    on(Part::Bytes(part))?;
                }
                self.offered = Some(left - now as u64);
                if left > now as u64 {
                    return Ok(());
                }
                self.offered = None;
                on(Part::Offered)?;
            }
            let Some(needed) = self.needed()? else {
                let kept = std::mem::take(&mut self.kept);
                self.take(&kept, on)?;
                continue;
            };
            if bytes.is_empty() {
                return Ok(());
            }
            let (now, rest) = bytes.split_at(needed.min(bytes.len()));
            self.kept.extend_from_slice(now);
            bytes = rest;
        }
    }

    /// Bytes to come until the next message can be read; `None` if it can.
    fn needed(&self) -> Result<Option<usize>, String> {
        let Some((head, rest)) = self.kept.split_first_chunk::<HEAD>() else { return Ok(Some(HEAD - self.kept.len())) };
        let [a, b, c, d, kind] = *head;
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        let whole = match kind {
            kind::OFFER if length < OFFER => return Err(format!("an offer of {length} bytes")),
            kind::OFFER => OFFER,
            kind::HELLO..=kind::PROCESSORS if length <= CONTROL_MAX => length,
            kind::HELLO..=kind::PROCESSORS => return Err(format!("a message of kind {kind} with {length} bytes")),
            kind => return Err(format!("a message of unknown kind {kind}")),
        };
        Ok((rest.len() < whole).then(|| whole - rest.len()))
    }

    fn take(&mut self, kept: &[u8], on: &mut dyn FnMut(Part<'_>) -> Result<(), String>) -> Result<(), String> {
        let Some((head, rest)) = kept.split_first_chunk::<HEAD>() else { return Ok(()) };
        let [a, b, c, d, kind] = *head;
        if kind != kind::OFFER {
            return on(Part::Message(message(kind, rest)?));
        }
        let length = u64::from(u32::from_le_bytes([a, b, c, d]));
        let mut fields = Fields(rest);
        let head = OfferHead {
            key: fields.array()?,
            id: fields.u32()?,
            cost_us: fields.u32()?,
            crc: fields.u32()?,
            bytes: fields.u64()?,
        };
        if head.bytes == 0 || head.bytes != length - OFFER as u64 {
            return Err(format!("an offer of {} bytes in a message of {length}", head.bytes));
        }
        self.offered = Some(head.bytes);
        on(Part::Offer(head))
    }
}

/// Reads fields one after the other.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (now, rest) = self.0.split_first_chunk().ok_or("a message that is too short")?;
        self.0 = rest;
        Ok(*now)
    }
    pub(crate) fn u32(&mut self) -> Result<u32, String> {
        self.array().map(u32::from_le_bytes)
    }
    pub(crate) fn u64(&mut self) -> Result<u64, String> {
        self.array().map(u64::from_le_bytes)
    }
    fn text(&mut self) -> Result<&'a str, String> {
        let bytes = self.u32()? as usize;
        let (now, rest) = self.0.split_at_checked(bytes).ok_or("a name that is longer than its message")?;
        self.0 = rest;
        let text = std::str::from_utf8(now).map_err(|_| "a name that is not UTF-8")?;
        if text.len() > NAME_MAX {
            return Err(format!("a name of {bytes} bytes"));
        }
        Ok(text)
    }
    pub(crate) fn end(&self) -> Result<(), String> {
        if self.0.is_empty() { Ok(()) } else { Err(format!("{} bytes too many in a message", self.0.len())) }
    }
    fn keys(&mut self) -> Result<Vec<Key>, String> {
        let (keys, rest) = self.0.as_chunks::<16>();
        if !rest.is_empty() || keys.len() > KEYS_MAX {
            return Err(format!("{} bytes of keys", self.0.len()));
        }
        self.0 = &[];
        Ok(keys.to_vec())
    }
}

fn message(kind: u8, bytes: &[u8]) -> Result<Message<'_>, String> {
    let mut fields = Fields(bytes);
    let message = match kind {
        kind::HELLO => {
            let magic: [u8; 8] = fields.array()?;
            if magic != MAGIC {
                return Err("a greeting of another version of lossfeed".into());
            }
            Message::Hello(Hello {
                member: fields.u64()?,
                dataset: fields.u64()?,
                samples: fields.u32()?,
                bytes: fields.u64()?,
                job: fields.text()?.to_owned(),
                name: fields.text()?.to_owned(),
            })
        }
        kind::ASK => Message::Ask(fields.keys()?),
        kind::CLAIM => {
            let [wait] = fields.array()?;
            Message::Claim { wait: wait != 0, keys: fields.keys()? }
        }
        kind::END => Message::End,
        kind::RATE => {
            let first = fields.u32()?;
            let (draws, rest) = std::mem::take(&mut fields.0).as_chunks::<4>();
            if !rest.is_empty() {
                return Err("importances that are cut off".into());
            }
            Message::Rate { first, draws: draws.iter().map(|&draws| f32::from_le_bytes(draws)).collect() }
        }
        kind::FORGET => Message::Forget(fields.keys()?),
        kind::ADOPT => Message::Adopt,
        kind::LIST => Message::List,
        kind::DROP => Message::Drop(fields.text()?),
        kind::LIMIT => {
            let bytes = fields.u64()?;
            Message::Limit { job: fields.text()?, bytes: (bytes != u64::MAX).then_some(bytes) }
        }
        kind::PIN => {
            let [pinned] = fields.array()?;
            Message::Pin { dataset: fields.text()?, pinned: pinned != 0 }
        }
        kind::ORDER => Message::Order,
        kind::AT => Message::At(fields.u32()?),
        kind::PROCESSORS => Message::Processors { all: fields.u32()?, wanted: fields.array().map(f32::from_le_bytes)? },
        kind => return Err(format!("a message of unknown kind {kind}")),
    };
    fields.end()?;
    Ok(message)
}

/// Begins a message; [`finish`] writes its length.
pub(crate) fn begin(out: &mut Vec<u8>, kind: u8) -> usize {
    let at = out.len();
    out.extend_from_slice(&[0, 0, 0, 0, kind]);
    at
}

pub(crate) fn finish(out: &mut [u8], at: usize) {
    let length = (out.len() - at - HEAD) as u32;
    if let Some(place) = out.get_mut(at..at + 4) {
        place.copy_from_slice(&length.to_le_bytes());
    }
}

/// A message of `kind` with these bytes.
pub(crate) fn frame(kind: u8, parts: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEAD + parts.iter().map(|part| part.len()).sum::<usize>());
    let at = begin(&mut out, kind);
    parts.iter().for_each(|part| out.extend_from_slice(part));
    finish(&mut out, at);
    out
}

pub(crate) fn text(name: &str) -> Vec<u8> {
    let mut end = name.len().min(NAME_MAX);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    let name = name.get(..end).unwrap_or_default();
    [&(name.len() as u32).to_le_bytes()[..], name.as_bytes()].concat()
}

pub(crate) fn hello(hello: &Hello) -> Vec<u8> {
    let numbers = [
        &MAGIC[..],
        &hello.member.to_le_bytes(),
        &hello.dataset.to_le_bytes(),
        &hello.samples.to_le_bytes(),
        &hello.bytes.to_le_bytes(),
        &text(&hello.job),
        &text(&hello.name),
    ];
    frame(kind::HELLO, &numbers)
}

/// The message of an offered sample without the sample.
pub(crate) fn offer(head: &OfferHead) -> Vec<u8> {
    let mut out = frame(
        kind::OFFER,
        &[
            &head.key,
            &head.id.to_le_bytes(),
            &head.cost_us.to_le_bytes(),
            &head.crc.to_le_bytes(),
            &head.bytes.to_le_bytes(),
        ],
    );
    let length = (OFFER as u64 + head.bytes) as u32;
    if let Some(place) = out.get_mut(..4) {
        place.copy_from_slice(&length.to_le_bytes());
    }
    out
}

/// The largest sample that a message can bring.
pub(crate) const SAMPLE_MAX: u64 = u32::MAX as u64 - OFFER as u64;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sent() -> Vec<u8> {
        let greeting = Hello { member: 1, dataset: 2, samples: 3, bytes: 4, job: "a".into(), name: "b".into() };
        let data = [5u8; 300];
        let head = OfferHead { key: [6; 16], id: 7, cost_us: 8, crc: crc32fast::hash(&data), bytes: data.len() as u64 };
        [
            hello(&greeting),
            frame(kind::ASK, &[&[1; 32]]),
            frame(kind::CLAIM, &[&[1], &[2; 16]]),
            offer(&head),
            data.to_vec(),
            frame(kind::RATE, &[&9u32.to_le_bytes(), &0.5f32.to_le_bytes()]),
            frame(kind::END, &[]),
            frame(kind::LIMIT, &[&u64::MAX.to_le_bytes(), &text("job")]),
            frame(kind::PIN, &[&[1], &text("data")]),
            frame(kind::ORDER, &[]),
            frame(kind::AT, &[&7u32.to_le_bytes()]),
            frame(kind::PROCESSORS, &[&8u32.to_le_bytes(), &1.5f32.to_le_bytes()]),
        ]
        .concat()
    }

    fn parsed(pieces: &[&[u8]]) -> Result<Vec<String>, String> {
        let (mut parser, mut found, mut bytes) = (Parser::default(), Vec::new(), 0);
        for piece in pieces {
            parser.feed(piece, &mut |part| {
                match part {
                    Part::Bytes(part) => bytes += part.len(),
                    part => found.push(format!("{part:?} after {bytes}")),
                }
                Ok(())
            })?;
            assert!(parser.kept.len() <= CONTROL_MAX + HEAD);
        }
        Ok(found)
    }

    proptest! {
        #[test]
        fn messages_are_the_same_however_they_are_cut(
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            let all = sent();
            let whole = parsed(&[&all]).unwrap();
            prop_assert_eq!(whole.len(), 12);
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(all.len())).collect();
            cuts.sort_unstable();
            let mut pieces = Vec::new();
            let mut from = 0;
            for cut in cuts.into_iter().chain([all.len()]) {
                pieces.push(&all[from..cut]);
                from = cut;
            }
            prop_assert_eq!(parsed(&pieces).unwrap(), whole);
        }

        #[test]
        fn no_bytes_break_the_parser(
            junk: Vec<u8>, at: prop::sample::Index, with: u8, cut: prop::sample::Index,
        ) {
            let _ = parsed(&[&junk]);
            let mut changed = sent();
            let at = at.index(changed.len());
            changed[at] ^= with;
            let _ = parsed(&[&changed]);
            let _ = parsed(&[&changed[..cut.index(changed.len())], &junk]);
        }
    }

    #[test]
    fn wrong_messages_are_refused_by_reason() {
        for (bytes, reason) in [
            (frame(99, &[]), "unknown kind 99"),
            (frame(kind::ASK, &[&[0; 17]]), "17 bytes of keys"),
            (frame(kind::ASK, &[&vec![0; 16 * KEYS_MAX + 16]]), "bytes of keys"),
            (frame(kind::HELLO, &[b"lfnode\0\x09"]), "another version"),
            (frame(kind::HELLO, &[&MAGIC]), "too short"),
            (frame(kind::END, &[&[1]]), "1 bytes too many"),
            (frame(kind::RATE, &[&[0; 7]]), "cut off"),
            (frame(kind::DROP, &[&9u32.to_le_bytes(), b"abc"]), "longer than its message"),
            (frame(kind::DROP, &[&2u32.to_le_bytes(), &[0xff, 0xfe]]), "not UTF-8"),
            (frame(kind::LIST, &[&vec![0; CONTROL_MAX + 1]]), "with"),
            (frame(kind::OFFER, &[&[0; OFFER - 1]]), "an offer of 35 bytes"),
            (frame(kind::OFFER, &[&[0; OFFER + 1]]), "an offer of 0 bytes in a message of 37"),
        ] {
            let refused = parsed(&[&bytes]).unwrap_err();
            assert!(refused.contains(reason), "{reason:?}: {refused}");
        }
    }
}
