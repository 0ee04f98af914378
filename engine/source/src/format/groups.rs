//! Samples of several members of a shard: `key.jpg`, `key.txt`, `key.json`, as WebDataset lays them out.
//!
//! The members of a sample lie one after the other, so one read brings them all. What is delivered of them is chosen by
//! name when the dataset is opened: at most one picture, which is decoded, at most one class number, and any others,
//! which travel as they are in the sample's tail. Members that nobody chose are passed over.

use std::collections::{HashMap, HashSet};

use crate::error::{Error, Result};
use crate::format::catalog::{Catalog, Shard, key, rest};
use crate::format::members::{Extent, Members};
use crate::format::tar::{Member, ShardIndex};
use crate::sample::{Piece, PieceKind};

/// What is read for a sample of links, beside twice its members' bytes.
const LINKS_SPAN: u64 = 1 << 20;

/// Adds the samples of all shards to `catalog`: what has all of the members `fields`.
///
/// # Errors
/// As [`Piece::of_members`]. `Sample` for a sample that lacks one of them or has one twice, for one whose members do
/// not lie together, and for a named class number that is no number.
pub(crate) fn assemble(catalog: &mut Catalog, shards: Vec<(Shard, ShardIndex)>, fields: &[String]) -> Result<Members> {
    let pieces = Piece::of_members(fields)?;
    // In the order in which they are kept: the picture comes first.
    let mut kept: Vec<&Piece> = pieces.iter().filter(|piece| piece.kind != PieceKind::Label).collect();
    kept.sort_by_key(|piece| piece.kind != PieceKind::Picture);
    let wanted: Vec<Vec<&str>> = kept.iter().map(|piece| piece.name.split(';').collect()).collect();
    let picture = kept.first().is_some_and(|piece| piece.kind == PieceKind::Picture);
    let tail = kept.len() - usize::from(picture);
    let label = pieces.iter().find(|piece| piece.kind == PieceKind::Label);
    let label: Option<Vec<&str>> = label.map(|piece| piece.name.split(';').collect());
    let labelled = label.is_some();
    let mut made = Members { pieces: pieces.clone(), picture, labelled, tail, extents: Vec::new() };
    for (number, (shard, mut index)) in shards.into_iter().enumerate() {
        let number = u32::try_from(number).map_err(|_| Error::settings("more than four billion shards"))?;
        let mut members = std::mem::take(&mut index.members);
        catalog.ignored.add(index.ignored);
        // The walk counted all of them; those that are passed over are counted here.
        catalog.ignored.others = catalog.ignored.others.saturating_sub(index.others.len() as u64);
        members.append(&mut index.others);
        let (labels, others): (Vec<Member>, Vec<Member>) =
            index.labels.into_iter().partition(|member| label.as_ref().is_some_and(|names| is_named(member, names)));
        // Such files that nobody named stand in nobody's way, wherever they lie.
        let (mut also, others): (Vec<Member>, Vec<Member>) =
            others.into_iter().partition(|member| wanted.iter().any(|names| is_named(member, names)));
        catalog.ignored.others += others.len() as u64;
        members.append(&mut also);
        members.sort_by_key(Member::at);
        // A class number is not read with its sample, so it may lie anywhere.
        let mut numbers: HashMap<&str, Vec<&Member>> = HashMap::new();
        labels.iter().for_each(|member| numbers.entry(key(&member.name)).or_default().push(member));
        let mut used = 0;
        for group in members.chunk_by(|a, b| key(&a.name) == key(&b.name)) {
            let Some(key) = group.first().map(|member| key(&member.name)) else { continue };
            add(&mut made, catalog, (number, &shard), key, group, &wanted)?;
            if let Some(names) = &label {
                catalog.labels.push(number_of(&shard, key, numbers.get(key).map_or(&[], Vec::as_slice), names)?);
                used += 1;
            }
        }
        // Those of samples that are not there.
        catalog.ignored.others += labels.len().saturating_sub(used) as u64;
        catalog.shards.push(shard);
    }
    check_whole(catalog)?;
    Ok(made)
}

fn add(
    made: &mut Members,
    catalog: &mut Catalog,
    (number, shard): (u32, &Shard),
    key: &str,
    group: &[Member],
    wanted: &[Vec<&str>],
) -> Result<()> {
    let mut chosen: Vec<&Member> = Vec::with_capacity(wanted.len());
    for names in wanted {
        let mut found = group.iter().filter(|member| is_named(member, names));
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
    catalog.ignored.others += (group.len() - chosen.len()) as u64;
    let start = chosen.iter().map(|member| member.offset).min().unwrap_or(0);
    let end = chosen.iter().map(|member| member.offset + member.bytes).max().unwrap_or(0);
    let refused = |member: &Member, why: &str| Error::sample(format!("{} in {} {why}", member.name, shard.path));
    if let Some(sparse) = chosen.iter().find(|member| member.map.is_some()) {
        return Err(refused(
            sparse,
            "is a sparse file, which fields= does not read: write the archive without --sparse",
        ));
    }
    // One read brings all of them, and a link's file may lie far away.
    let near = chosen.iter().map(|member| member.bytes).sum::<u64>().saturating_mul(2).saturating_add(LINKS_SPAN);
    if let Some(link) = chosen.iter().find(|member| member.linked.is_some())
        && end - start > near
    {
        return Err(refused(
            link,
            "is a link to a file that lies far from the other members of its sample: write the archive without links (tar --hard-dereference -h)",
        ));
    }
    catalog.push(key, number, start, end - start)?;
    // What fits the whole fits its parts.
    let extent = |m: &&Member| Extent { offset: (m.offset - start) as u32, bytes: m.bytes as u32 };
    made.extents.extend(chosen.iter().map(extent));
    Ok(())
}

/// Whether a member is one of `names`, which are what follows the key's dot.
fn is_named(member: &Member, names: &[&str]) -> bool {
    names.iter().any(|name| rest(&member.name).eq_ignore_ascii_case(name))
}

/// The class number of the sample `key`, of whose members those in `numbers` are called `names`.
fn number_of(shard: &Shard, key: &str, numbers: &[&Member], names: &[&str]) -> Result<i64> {
    match numbers {
        [only] => only.number(&shard.path),
        [] => Err(Error::sample(format!(
            "sample {key} in {} has no class number {key}.{}: add it, or leave {:?} out of fields",
            shard.path,
            names.join(&format!(" or {key}.")),
            names.join(";")
        ))),
        _ => Err(Error::sample(format!(
            "sample {key} in {} has {} members {}: a class number is one of them, rename or remove the others",
            shard.path,
            numbers.len(),
            names.join(" or ")
        ))),
    }
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
    let names: Vec<&str> = group.iter().take(8).map(|member| crate::format::catalog::file_name(&member.name)).collect();
    format!("{}{}", names.join(", "), if group.len() > names.len() { " and more" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::label;
    use crate::sample::payload::picture_and_tail;
    use crate::tests::{archive, index};

    fn member(name: &str, offset: u64, bytes: u64) -> Member {
        Member::new(name.to_owned(), offset, bytes)
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
    /// The shard with these members, opened.
    fn opened(members: &[(&str, &[u8])], fields: &[&str]) -> std::result::Result<(Catalog, Option<Vec<i64>>), String> {
        let index = index(&archive(members)).map_err(|e| e.to_string())?;
        let shard = Shard { path: "s.tar".to_owned(), bytes: 1 << 20, stamp: Default::default() };
        let mut catalog = Catalog::default();
        let fields: Vec<String> = fields.iter().map(|&field| field.to_owned()).collect();
        label::assemble(&mut catalog, vec![(shard, index)], &fields).map_err(|e| e.to_string())?;
        let labels = (!catalog.labels.is_empty()).then(|| catalog.labels.clone());
        Ok((catalog, labels))
    }

    /// Labels with these endings, and what is delivered of them.
    #[test]
    fn the_class_number_is_that_of_the_member_that_was_named() {
        let two: &[(&str, &[u8])] = &[
            ("d/a.png", b"x"),
            ("d/a.coarse.cls", b"1"),
            ("d/a.fine.cls", b"11"),
            ("d/b.png", b"y"),
            ("d/b.coarse.cls", b"2"),
            // A label may lie apart.
            ("d/c.png", b"z"),
            ("d/b.fine.cls", b"12"),
            ("d/c.FINE.cls", b"13"),
            ("d/c.coarse.cls", b"cat"),
        ];
        let labels = |fields: &[&str]| opened(two, fields).map(|(_, labels)| labels);
        assert_eq!(labels(&["png"]), Ok(None), "nobody asked for class numbers");
        assert_eq!(labels(&["png", "fine.cls"]), Ok(Some(vec![11, 12, 13])));
        assert_eq!(labels(&["png", "finest.cls;fine.cls"]), Ok(Some(vec![11, 12, 13])));
        let refused = |fields: &[&str]| opened(two, fields).err().unwrap();
        assert!(
            refused(&["png", "coarse.cls"]).contains("d/c.coarse.cls in s.tar should hold a class number, and its 3")
        );
        assert!(refused(&["png", "cls"]).contains("no class number d/a.cls: add it, or leave \"cls\" out of fields"));
        assert!(refused(&["png", "coarse.cls;fine.cls"]).contains("has 2 members coarse.cls or fine.cls"));
        // Without fields they are no labels: the folder is.
        let (catalog, labels) = opened(two, &[]).unwrap();
        assert_eq!((labels, catalog.classes), (Some(vec![0, 0, 0]), vec!["d".to_owned()]));
        assert_eq!(catalog.ignored.others, 6, "the labels that nobody asked for are counted");
        assert_eq!(opened(two, &["png", "fine.cls"]).unwrap().0.ignored.others, 3);
        // Of several the first is the target, as of pictures the first is decoded; the others are bytes beside it.
        let (catalog, labels) = opened(&two[..3], &["png", "fine.cls", "coarse.cls"]).unwrap();
        let members = catalog.members.unwrap();
        assert_eq!((labels, members.pieces[2].kind, members.tail), (Some(vec![11]), PieceKind::Bytes, 1));
        assert!(opened(&two[..2], &["png", "fine.cls"]).is_err_and(|e| e.contains("no class number d/a.fine.cls")));
    }

    #[test]
    fn what_nobody_named_stands_in_nobodys_way() {
        let text: &[(&str, &[u8])] = &[("a.png", b"x"), ("a.cls", b"cat"), ("a.cls", b"1"), ("b.cls", b"dog")];
        assert_eq!(opened(text, &["png"]).unwrap().1, None);
        assert!(opened(text, &["png", "cls"]).is_err_and(|e| e.contains("2 members cls")));
        assert!(opened(&text[..2], &["png", "cls"]).is_err_and(|e| e.contains("a.cls in s.tar should hold")));
        // Without fields key.cls is what labels an image, so that one is held to be a number, and the only one.
        assert!(opened(text, &[]).is_err_and(|e| e.contains("s.tar holds a.cls twice, the second time at offset 2")));
        assert!(opened(&text[..2], &[]).is_err_and(|e| e.contains("a.cls in s.tar should hold a class number")));
        let beside: &[(&str, &[u8])] = &[("a.png", b"x"), ("a.cls", b" 7\n"), ("b.cls", b"dog"), ("a.x.cls", b"8")];
        let (catalog, labels) = opened(beside, &[]).unwrap();
        assert_eq!((labels, catalog.ignored.others), (Some(vec![7]), 2));
    }
}
