//! Segments cut at every byte, and with bits flipped: fewer samples, never wrong ones.

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;

use crate::tests::{key, offer, reads, small};

const RECORDS: u64 = 8;

/// A folder with one segment of some records, and its path.
fn one_segment(folder: &Path) -> PathBuf {
    let disk =
        crate::Disk::open_with(&crate::tests::settings(folder, 1 << 20), 64 << 10, crate::tests::plain()).unwrap();
    (0..RECORDS).for_each(|n| offer(&disk, key(n)));
    drop(disk);
    let mut segments = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
    let segment = segments.find(|p| p.extension().is_some_and(|e| e == "seg")).unwrap();
    assert!(segments.all(|p| p.extension().is_none()));
    segment
}

/// Which records a folder with `bytes` as its only segment gives; every one that comes is right.
fn found(folder: &Path, name: &str, bytes: &[u8]) -> Vec<u64> {
    for entry in fs::read_dir(folder).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    let path = folder.join(name);
    fs::write(&path, bytes).unwrap();
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let disk = small(folder, 1 << 20);
    let found: Vec<u64> = (0..RECORDS).filter(|&n| reads(&disk, key(n))).collect();
    // Whatever was found is found again, and the place takes more.
    offer(&disk, key(99));
    disk.settle();
    assert!(reads(&disk, key(99)));
    drop(disk);
    let again = small(folder, 1 << 20);
    assert!(found.iter().all(|&n| reads(&again, key(n))), "{found:?}");
    assert_eq!(again.numbers().damaged, 0);
    found
}

#[test]
fn a_segment_cut_anywhere_gives_the_records_before_the_cut() {
    let folder = tempfile::tempdir().unwrap();
    let segment = one_segment(folder.path());
    let (whole, name) = (fs::read(&segment).unwrap(), segment.file_name().unwrap().to_str().unwrap().to_owned());
    let open = name.replace(".seg", ".open");
    let mut most = 0;
    for cut in 0..=whole.len() {
        let name = if cut % 2 == 0 { &name } else { &open };
        let found = found(folder.path(), name, &whole[..cut]);
        assert!(found.iter().copied().eq(0..found.len() as u64) && found.len() >= most, "{cut}: {found:?}");
        most = found.len();
    }
    assert_eq!(most as u64, RECORDS);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn flipped_bits_and_zeroed_pieces_cost_records_and_nothing_else(
        flips in prop::collection::vec((any::<prop::sample::Index>(), 0..8u8), 0..4),
        zeros in prop::option::of((any::<prop::sample::Index>(), 1..600usize)),
        open in any::<bool>(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let segment = one_segment(folder.path());
        let mut bytes = fs::read(&segment).unwrap();
        let intact = bytes.clone();
        for (at, bit) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
        }
        if let Some((at, length)) = zeros {
            let at = at.index(bytes.len());
            let end = bytes.len().min(at + length);
            bytes[at..end].fill(0);
        }
        let name = segment.file_name().unwrap().to_str().unwrap().replace(".seg", if open { ".open" } else { ".seg" });
        let found = found(folder.path(), &name, &bytes);
        prop_assert!(bytes != intact || found.len() as u64 == RECORDS);
    }
}
