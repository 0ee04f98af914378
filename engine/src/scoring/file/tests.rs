//! Files of beliefs: read as they were written, refused where they were changed, theirs alone who wrote them.

use super::*;
use proptest::prelude::*;
use std::os::unix::fs::PermissionsExt;

fn head(samples: usize) -> Head {
    Head { dataset: "d".into(), samples, measured: Some("loss".into()), step: 7, made_ns: 5 }
}

fn bytes_of(head: &Head, entries: &[Entry], piece: usize) -> Vec<u8> {
    let mut pieces = entries.chunks(piece.clamp(1, PIECE));
    encode(Vec::new(), head, |into| {
        let next = pieces.next();
        into.extend(next.into_iter().flatten());
        next.is_some()
    })
    .unwrap()
}

/// What is read of bytes; `Err`: whether they never were a file of beliefs.
fn parsed(bytes: &[u8]) -> Result<(Head, Vec<Entry>), bool> {
    let mut found = Vec::new();
    let head =
        decode(bytes, |piece| found.extend_from_slice(piece)).map_err(|wrong| matches!(wrong, Wrong::Foreign(_)))?;
    Ok((head, found))
}

fn same(found: &[Entry], given: &[Entry]) -> bool {
    let bits = |entries: &[Entry]| entries.iter().map(|e| (e.0, e.1.to_bits(), e.2)).collect::<Vec<_>>();
    bits(found) == bits(given)
}

fn entries() -> impl Strategy<Value = Vec<Entry>> {
    let known = prop_oneof![(prop::num::f32::NORMAL | prop::num::f32::ZERO, any::<u32>()), (Just(f32::NAN), 1u32..=2),];
    prop::collection::btree_map(0u32..5000, known, 0..200)
        .prop_map(|known| known.into_iter().map(|(id, (belief, stamp))| (id, belief, stamp)).collect())
}

proptest! {
    #[test]
    fn what_is_written_is_read(entries in entries(), piece in 1usize..70) {
        let (found, known) = parsed(&bytes_of(&head(5000), &entries, piece)).unwrap();
        prop_assert_eq!(found, head(5000));
        prop_assert!(same(&known, &entries));
    }

    /// Cut anywhere, with something behind it, or with any bit turned: nothing of it is believed.
    #[test]
    fn nothing_that_was_changed_is_believed(entries in entries(), at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let whole = bytes_of(&head(5000), &entries, 30);
        prop_assert!(parsed(&whole[..at.index(whole.len())]).is_err());
        let mut changed = whole.clone();
        changed[at.index(whole.len())] ^= 1 << bit;
        prop_assert!(parsed(&changed).is_err());
        let mut longer = whole;
        longer.push(bit);
        prop_assert!(parsed(&longer).is_err());
    }

    /// Whatever bytes, with a checksum that holds: beliefs of the dataset, or a refusal.
    #[test]
    fn what_is_read_of_any_bytes_are_beliefs(
        start in 0usize..3, noise in prop::collection::vec(any::<u8>(), 0..400), entries in entries(),
        places in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
    ) {
        let mut bytes = match start {
            0 => noise,
            1 => [&MAGIC[..], &VERSION.to_le_bytes(), &noise].concat(),
            _ => {
                let mut whole = bytes_of(&head(5000), &entries, 30);
                whole.truncate(whole.len() - 4);
                let length = whole.len();
                places.iter().for_each(|(place, byte)| whole[place.index(length)] = *byte);
                whole
            }
        };
        bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        if let Ok((head, known)) = parsed(&bytes) {
            prop_assert!(known.windows(2).all(|two| two[0].0 < two[1].0));
            let belief = |b: f32, stamp| b.is_finite() || (b.is_nan() && [1, 2].contains(&stamp));
            prop_assert!(known.iter().all(|&(id, b, stamp)| (id as usize) < head.samples && belief(b, stamp)));
        }
    }
}

#[test]
fn another_version_and_another_format_are_named_and_not_taken_for_damage() {
    let whole = bytes_of(&head(9), &[], 1);
    assert!(parsed(b"PK\x03\x04 a model, say").unwrap_err());
    let newer: Vec<u8> = [&whole[..8], &2u32.to_le_bytes(), &whole[12..]].concat();
    assert!(parsed(&newer).unwrap_err());
    assert!(!parsed(&whole[..20]).unwrap_err());
    assert!(!parsed(b"").unwrap_err());
}

fn put(path: &Path, made_ns: u64, entries: &[Entry]) -> io::Result<Written> {
    let mut pieces = entries.chunks(3);
    write(path, &Head { made_ns, ..head(50) }, |into| {
        let next = pieces.next();
        into.extend(next.into_iter().flatten());
        next.is_some()
    })
}

fn got(path: &Path) -> (Found, Vec<Entry>) {
    let mut known = Vec::new();
    let found = read(path, |_| Ok(()), |piece| known.extend_from_slice(piece)).unwrap();
    (found, known)
}

#[test]
fn a_file_is_whole_and_its_owners_alone_and_the_newer_loader_has_it() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("scores");
    assert_eq!(got(&path).0, Found::Nothing);
    assert_eq!(put(&path, 5, &[(1, 0.5, 3), (4, f32::NAN, 1)]).unwrap(), Written::Done);
    let (found, known) = got(&path);
    assert!(matches!(found, Found::Whole(head) if head.step == 7) && same(&known, &[(1, 0.5, 3), (4, f32::NAN, 1)]));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(put(&path, 4, &[]).unwrap(), Written::Another);
    assert_eq!(got(&path).1.len(), 2);
    assert_eq!(put(&path, 6, &[]).unwrap(), Written::Done);
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1, "nothing else is left there");
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    assert!(matches!(got(&path).0, Found::Damaged(what) if what.contains("cut off")));
}

#[test]
fn nothing_is_believed_of_a_file_whose_head_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("scores");
    put(&path, 5, &[(1, 0.5, 3)]).unwrap();
    let refused = read(&path, |head| Err(Error::settings(head.dataset.clone())), |_| panic!("believed")).unwrap_err();
    assert!(refused.to_string().starts_with('d'), "{refused}");
}

#[test]
fn links_and_what_others_can_write_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let (path, link) = (place.path().join("scores"), place.path().join("link"));
    put(&path, 5, &[(1, 0.5, 3)]).unwrap();
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let refused = |path: &Path| read(path, |_| Ok(()), |_| panic!("believed")).unwrap_err().to_string();
    assert!(refused(&link).contains("is a link"), "{}", refused(&link));
    assert!(refused(place.path()).contains("is not a file"), "{}", refused(place.path()));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o620)).unwrap();
    assert!(refused(&path).contains("mode 0620") && refused(&path).contains("chmod 600"), "{}", refused(&path));
    fs::write(&path, b"something else that is dear to somebody").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(refused(&path).contains("is not a score file: choose another"), "{}", refused(&path));
    // What came there in the meantime is not written over.
    assert!(put(&link, 9, &[]).is_err() && put(&path, 9, &[]).is_err());
    assert!(fs::read(&path).unwrap().starts_with(b"something else"));
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 2);
}

#[test]
fn what_a_killed_process_left_is_removed_and_what_another_writes_is_not() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("scores");
    let left = place.path().join(".scores.12-0.tmp");
    fs::write(&left, b"half").unwrap();
    fs::set_permissions(&left, fs::Permissions::from_mode(0o600)).unwrap();
    let strangers = [".scores.12-.tmp", ".scores.a-0.tmp", "scores.12-0.tmp", ".other.12-0.tmp"];
    strangers.iter().for_each(|name| fs::write(place.path().join(name), b"mine").unwrap());
    let (_held, writing) = create(&path).unwrap();
    prepare(&path).unwrap();
    assert!(!left.exists() && writing.exists() && !path.exists());
    assert!(strangers.iter().all(|name| place.path().join(name).exists()));
    let refused = prepare(&place.path().join("no/such/scores")).unwrap_err();
    assert!(refused.to_string().contains("choose an existing folder"), "{refused}");
}
