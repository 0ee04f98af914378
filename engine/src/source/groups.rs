//! Samples of several members of a shard: `key.jpg`, `key.txt`, `key.json`, as WebDataset lays them out.
//!
//! The members of a sample lie one after the other, so one read brings them all. What is delivered of them is chosen by
//! name when the dataset is opened: at most one picture, which is decoded, at most one class number, and any others,
//! which travel as they are in the sample's tail. Members that nobody chose are passed over.

use std::collections::HashSet;

use super::catalog::{Catalog, Shard, key};
use super::members::{Extent, Members};
use super::pieces::{Piece, PieceKind};
use super::tar::{Member, ShardIndex};
use crate::error::{Error, Result};

/// The member that holds a class number.
const LABEL: &str = "cls";

/// Adds the samples of all shards to `catalog`: what has all of the members `fields`.
///
/// # Errors
/// As [`Piece::of_members`]. `Sample` for a sample that lacks one of them or has one twice, and for one whose members do not
/// lie together.
pub(super) fn assemble(catalog: &mut Catalog, shards: Vec<(Shard, ShardIndex)>, fields: &[String]) -> Result<Members> {
    let pieces = Piece::of_members(fields)?;
    // In the order in which they are kept: the picture comes first.
    let mut kept: Vec<&Piece> = pieces.iter().filter(|piece| piece.kind != PieceKind::Label).collect();
    kept.sort_by_key(|piece| piece.kind != PieceKind::Picture);
    let wanted: Vec<Vec<&str>> = kept.iter().map(|piece| piece.name.split(';').collect()).collect();
    let picture = kept.first().is_some_and(|piece| piece.kind == PieceKind::Picture);
    let tail = kept.len() - usize::from(picture);
    let labelled = kept.len() < pieces.len();
    let mut made = Members { pieces: pieces.clone(), picture, labelled, tail, extents: Vec::new() };
    for (number, (shard, mut index)) in shards.into_iter().enumerate() {
        let number = u32::try_from(number).map_err(|_| Error::settings("more than four billion shards"))?;
        let mut members = std::mem::take(&mut index.members);
        catalog.ignored.add(index.ignored);
        // The walk counted all of them; those that are passed over are counted here.
        catalog.ignored.others = catalog.ignored.others.saturating_sub(index.others.len() as u64);
        members.append(&mut index.others);
        members.sort_by_key(|member| member.offset);
        for group in members.chunk_by(|a, b| key(&a.name) == key(&b.name)) {
            add(&mut made, catalog, (number, &shard), group, &wanted)?;
        }
        catalog.shards.push(shard);
    }
    check_whole(catalog)?;
    Ok(made)
}

fn add(
    made: &mut Members,
    catalog: &mut Catalog,
    (number, shard): (u32, &Shard),
    group: &[Member],
    wanted: &[Vec<&str>],
) -> Result<()> {
    let Some(first) = group.first() else { return Ok(()) };
    let key = key(&first.name);
    let named = |member: &&Member, names: &[&str]| {
        let rest = member.name.get(key.len() + 1..).unwrap_or("");
        names.iter().any(|name| rest.eq_ignore_ascii_case(name))
    };
    let mut chosen: Vec<&Member> = Vec::with_capacity(wanted.len());
    for names in wanted {
        let mut found = group.iter().filter(|member| named(member, names));
        match (found.next(), found.next()) {
            (Some(member), None) => chosen.push(member),
            (None, _) => {
                return Err(Error::sample(format!(
                    "sample {key} in {} has no member {}: every sample must have it, and its members must lie one after the other; it has {}",
                    shard.path,
                    names.join(" or "),
                    listed(group)
                )));
            }
            (Some(_), Some(_)) => {
                return Err(Error::sample(format!(
                    "sample {key} in {} has more than one member {}: name one of {}",
                    shard.path,
                    names.join(" or "),
                    listed(group)
                )));
            }
        }
    }
    let label = chosen.iter().find_map(|member| member.label);
    if made.labelled && label.is_none() {
        return Err(Error::sample(format!(
            "sample {key} in {} has no class number {key}.{LABEL}: add it, or leave {LABEL:?} out of fields",
            shard.path
        )));
    }
    catalog.ignored.others += (group.len() - chosen.len()) as u64;
    let start = chosen.iter().map(|member| member.offset).min().unwrap_or(0);
    let end = chosen.iter().map(|member| member.offset + member.bytes).max().unwrap_or(0);
    catalog.push(key, number, start, end - start)?;
    if made.labelled {
        catalog.labels.extend(label);
    }
    // What fits the whole fits its parts.
    let extent = |m: &&Member| Extent { offset: (m.offset - start) as u32, bytes: m.bytes as u32 };
    made.extents.extend(chosen.iter().map(extent));
    Ok(())
}

/// No name may come twice: members of one sample that lie apart look like two samples.
fn check_whole(catalog: &Catalog) -> Result<()> {
    let mut seen = HashSet::with_capacity(catalog.places.len());
    for (at, place) in catalog.places.iter().enumerate() {
        let name = catalog.names.get(at);
        if !seen.insert((place.shard, name)) {
            return Err(Error::sample(format!(
                "sample {name} comes twice in {}: the members of a sample must lie one after the other, and another must have another name",
                catalog.shards.get(place.shard as usize).map_or("", |shard| &shard.path)
            )));
        }
    }
    Ok(())
}

fn listed(group: &[Member]) -> String {
    let names: Vec<&str> = group.iter().take(8).map(|member| super::catalog::file_name(&member.name)).collect();
    format!("{}{}", names.join(", "), if group.len() > names.len() { " and more" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::payload::picture_and_tail;

    fn member(name: &str, offset: u64, bytes: u64) -> Member {
        Member { name: name.to_owned(), offset, bytes, label: Some(offset as i64), sum: None }
    }

    fn assembled(files: Vec<Member>, fields: &[&str]) -> Result<(Catalog, Members)> {
        let shard = Shard { path: "s.tar".to_owned(), bytes: 1 << 20, stamp: Default::default() };
        let index = ShardIndex { others: files, ..ShardIndex::default() };
        let fields: Vec<String> = fields.iter().map(|&field| field.to_owned()).collect();
        let mut catalog = Catalog::default();
        let members = assemble(&mut catalog, vec![(shard, index)], &fields)?;
        Ok((catalog, members))
    }

    /// One read covers the chosen members, in whatever order they lie; the payload has the picture first.
    #[test]
    fn a_payload_is_the_picture_then_the_tail_wherever_they_lie() {
        let files =
            vec![member("a.txt", 10, 3), member("a.wav", 20, 5), member("a.png", 30, 4), member("a.json", 40, 2)];
        let (catalog, members) = assembled(files, &["json", "png", "txt"]).unwrap();
        let place = catalog.place(0).unwrap();
        assert_eq!((place.offset, place.bytes, catalog.names.get(0)), (10, 32, "a"));
        let read: Vec<u8> = (10..42).collect();
        let mut payload = vec![9; 3];
        members.payload(0, &read, &mut payload).unwrap();
        assert_eq!(payload.len() as u64, members.payload_bytes(0));
        let (picture, tail) = picture_and_tail(&payload).unwrap();
        assert_eq!(picture, [30, 31, 32, 33]);
        // Two lengths, then the members, each at a multiple of eight from where the first begins.
        assert_eq!((&tail[..8], &tail[8..16]), (&2u64.to_ne_bytes()[..], &3u64.to_ne_bytes()[..]));
        assert_eq!(tail[16..], [40, 41, 0, 0, 0, 0, 0, 0, 10, 11, 12]);
        assert_eq!(tail.len() as u64, members.tail_bytes(0));
        assert_eq!(catalog.ignored.others, 1, "the sound was passed over");
        assert!(members.payload(0, &read[..20], &mut payload).is_err(), "less was read");
    }

    #[test]
    fn a_picture_alone_is_itself_and_a_tail_alone_has_no_picture() {
        let files = || vec![member("a.png", 0, 4), member("a.txt", 8, 2)];
        let mut payload = Vec::new();
        let (_, members) = assembled(files(), &["png"]).unwrap();
        members.payload(0, &[1, 2, 3, 4], &mut payload).unwrap();
        assert_eq!((&payload[..], members.payload_bytes(0), members.has_tail()), (&[1, 2, 3, 4][..], 4, false));
        let (_, members) = assembled(files(), &["txt"]).unwrap();
        members.payload(0, &[5, 6], &mut payload).unwrap();
        assert_eq!((payload.len() as u64, &payload[8..]), (members.payload_bytes(0), &[5, 6][..]));
    }
}
