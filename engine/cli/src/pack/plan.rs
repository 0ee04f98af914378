//! Which sample goes into which shard, and under which name. Nothing is read or written here.

use std::borrow::Cow;

use lossfeed::random::{Purpose, generator, shuffle};
use lossfeed::source::{Piece, PieceKind, ending_of};
use lossfeed::{Error, Result, SampleId};

use super::Labels;

const BLOCK: u64 = 512;
/// Two empty blocks end an archive.
const END_MARK: u64 = 2 * BLOCK;

/// In what order samples are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Every order is as likely as any other.
    Shuffled(u64),
    /// As the source has them.
    Kept,
}

/// The ids of each shard, none of which becomes longer than `most` bytes unless one sample alone makes it so.
/// `bytes_of` are a sample's own bytes, of which `beside` members beside the first have their part.
pub(super) fn shards(
    samples: usize,
    order: Order,
    labels: &Labels<'_>,
    most: u64,
    bytes_of: impl Fn(SampleId) -> u64,
    beside: u64,
) -> Vec<Vec<SampleId>> {
    let mut ids: Vec<SampleId> = (0..samples as SampleId).collect();
    if let Order::Shuffled(seed) = order {
        shuffle(&mut ids, &mut generator(seed, 0, 0, Purpose::Order));
    }
    let (mut shards, mut bytes) = (Vec::<Vec<SampleId>>::new(), 0);
    for id in ids {
        let label = if labels.beside(id).is_some() { member_bytes(1) } else { 0 };
        let more = member_bytes(bytes_of(id)) + label + beside * member_bytes(1);
        match shards.last_mut() {
            Some(shard) if bytes + more <= most => shard.push(id),
            _ => {
                shards.push(vec![id]);
                bytes = END_MARK;
            }
        }
        bytes += more;
    }
    shards
}

/// A header, and the bytes filled up to a whole block.
fn member_bytes(bytes: u64) -> u64 {
    BLOCK + bytes.div_ceil(BLOCK) * BLOCK
}

/// What shard `number` of `count` is called: names in their order are shards in theirs.
pub(super) fn shard_name(number: usize, count: usize) -> String {
    let digits = count.saturating_sub(1).to_string().len().max(6);
    format!("shard-{number:0digits$}.tar")
}

/// What a sample is called, without the ending: the id that it has in the source, in the folder of its class where that
/// tells its label.
pub(super) fn key(id: SampleId, labels: &Labels<'_>) -> Result<String> {
    match labels {
        Labels::Names { classes, labels } => {
            let label = labels.get(id as usize).copied().and_then(|label| usize::try_from(label).ok());
            let class = label.and_then(|label| classes.get(label));
            let class =
                class.ok_or_else(|| Error::sample(format!("sample {id} has a class that the source does not name")))?;
            Ok(format!("{class}/{id:08}"))
        }
        Labels::Numbers(_) | Labels::None => Ok(format!("{id:08}")),
    }
}

/// What the member is called that holds a part of a sample, behind the sample's key: as in the source, if that is a
/// member's name of its kind, or with the ending of its kind.
pub(super) fn member(piece: &Piece) -> String {
    let first = piece.name.split(';').next().unwrap_or_default();
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    let name: String = first.chars().map(plain).collect();
    let ending = match piece.kind {
        kind if kind == PieceKind::of_member(&name) => return name,
        PieceKind::Text => "txt",
        PieceKind::Json => "json",
        PieceKind::Npy | PieceKind::Number(_) | PieceKind::Numbers(_) => "npy",
        PieceKind::Bytes | PieceKind::Picture | PieceKind::Label => "bin",
    };
    format!("{name}.{ending}")
}

/// A part's bytes as its member holds them: numbers as NumPy's format has them.
pub(super) fn content(kind: PieceKind, bytes: &[u8]) -> Cow<'_, [u8]> {
    let Some(dtype) = kind.dtype() else { return Cow::Borrowed(bytes) };
    let size = dtype.size_bytes();
    // bool, int and float of NumPy begin as they do here.
    let letter = dtype.name().chars().next().unwrap_or('V');
    let shape = match kind {
        PieceKind::Number(_) => String::new(),
        _ => format!("{},", bytes.len() / size),
    };
    let order = if size == 1 { '|' } else { '<' };
    let head = format!("{{'descr': '{order}{letter}{size}', 'fortran_order': False, 'shape': ({shape}), }}");
    // Magic, version and length take ten bytes, and the data begins at a multiple of 64.
    let padding = (64 - (10 + head.len() + 1) % 64) % 64;
    let length = (head.len() + padding + 1) as u16;
    let mut file = Vec::with_capacity(128 + bytes.len());
    file.extend_from_slice(b"\x93NUMPY\x01\x00");
    file.extend_from_slice(&length.to_le_bytes());
    file.extend_from_slice(head.as_bytes());
    file.resize(file.len() + padding, b' ');
    file.push(b'\n');
    file.extend_from_slice(bytes);
    Cow::Owned(file)
}

/// The ending that says what an image's first bytes are. What is no image is packed as it was found, under the commonest.
pub(super) fn ending(image: &[u8]) -> &'static str {
    ending_of(image).unwrap_or("jpg")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_is_in_one_shard_and_none_is_too_long() {
        let bytes_of = |id: SampleId| u64::from(id * 37 % 5000);
        let numbers = [0; 900];
        let labels = Labels::Numbers(&numbers);
        for order in [Order::Kept, Order::Shuffled(3)] {
            for most in [1, 3000, 20_000, u64::MAX] {
                let shards = shards(900, order, &labels, most, bytes_of, 0);
                let mut ids = shards.concat();
                assert_eq!(ids.is_sorted(), order == Order::Kept);
                ids.sort_unstable();
                assert_eq!(ids, (0..900).collect::<Vec<_>>());
                let length = |shard: &Vec<SampleId>| {
                    END_MARK + shard.iter().map(|&id| member_bytes(bytes_of(id)) + 1024).sum::<u64>()
                };
                assert!(shards.iter().all(|shard| shard.len() == 1 || length(shard) <= most));
                let full =
                    shards.windows(2).all(|two| length(&two[0]) + member_bytes(bytes_of(two[1][0])) + 1024 > most);
                assert!(full, "a shard ends only where the next sample does not fit");
            }
        }
        assert!(shards(0, Order::Kept, &labels, 10, bytes_of, 0).is_empty());
    }

    #[test]
    fn members_end_as_their_kind_is_read() {
        let named = |name: &str, kind| member(&Piece { name: name.to_owned(), kind });
        for (name, kind, expected) in [
            ("caption", PieceKind::Text, "caption.txt"),
            ("txt", PieceKind::Text, "txt"),
            ("a long/name", PieceKind::Json, "a_long_name.json"),
            ("wav;flac", PieceKind::Bytes, "wav"),
            ("image_2", PieceKind::Bytes, "image_2"),
            ("png", PieceKind::Bytes, "png.bin"),
            ("json", PieceKind::Text, "json.txt"),
            ("half", PieceKind::Number(lossfeed::Dtype::F64), "half.npy"),
        ] {
            let found = named(name, kind);
            assert_eq!(found, expected);
            let read = PieceKind::of_member(&found);
            assert!(read == kind || (read == PieceKind::Npy && kind.dtype().is_some()), "{found} is read as {read:?}");
        }
    }

    #[test]
    fn names_sort_as_shards_do() {
        for count in [1, 10, 1_000_001] {
            let names: Vec<String> = (0..count).step_by(9_999).map(|n| shard_name(n, count)).collect();
            assert!(names.is_sorted() && names[0].len() == names[names.len() - 1].len());
        }
    }
}
