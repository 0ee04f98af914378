//! A door for the fuzz target of segments (`tests/fuzz/targets`). Only in fuzzing builds, and in tests, which hold the
//! seeds and whatever was found to the same promises.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;

use crate::format::{self, ALIGNMENT, ENTRY, HEAD, RECORD_HEAD, TAIL};
use crate::read_at::System;
use crate::segment::{Contents, contents, read_record, scan};

/// A segment, as it lies and with its checksums put right: records that lie within it, are sound, and are found again
/// when it was ended behind the last of them.
pub fn segment(bytes: &[u8]) {
    for bytes in [bytes, &sealed(bytes)] {
        let Some(file) = in_memory(bytes) else { return };
        let length = bytes.len() as u64;
        if let Some(Contents { entries, .. }) = contents(&file) {
            assert!(entries.len() * ENTRY + TAIL <= bytes.len(), "more records than its footer has room for");
            let end = |at: u32, bytes: u32| u64::from(at) * ALIGNMENT + format::padded(bytes as usize);
            assert!(entries.iter().all(|entry| end(entry.at, entry.bytes) <= length));
        }
        let Ok(found) = scan(&file) else { return };
        let end = found.end;
        assert!(found.entries.is_empty() || end <= length, "records behind its end");
        let mut next = HEAD.len() as u64;
        for entry in &found.entries {
            assert_eq!(u64::from(entry.at) * ALIGNMENT, next, "a record after the other");
            next += format::padded(entry.bytes as usize);
        }
        assert_eq!(next, end);
        if !bytes.starts_with(HEAD) {
            assert!(found.entries.is_empty());
            continue;
        }
        let footer = format::footer(&found.entries, end, found.cost_us);
        let written = file.set_len(end).and_then(|()| file.write_all_at(&footer, end));
        let again = contents(&file).filter(|_| written.is_ok());
        assert!(again.is_some_and(|again| again.entries == found.entries && again.cost_us == found.cost_us));
        for entry in &found.entries {
            let mut data = vec![0; entry.bytes as usize];
            let mut read = |key| read_record(&System::default(), &file, entry.at, key, &mut data).is_ok();
            assert!(read(entry.key), "{entry:?}");
            assert!(!read(entry.key ^ 1), "another's record");
        }
    }
}

/// With the sums of its records and of its footer as they should be, so that what is behind them is reached.
fn sealed(bytes: &[u8]) -> Vec<u8> {
    let (mut bytes, mut at) = (bytes.to_vec(), HEAD.len());
    while let Some(said) = bytes.get(at..at + RECORD_HEAD).and_then(|head| format::record_head(head.try_into().ok()?)) {
        let Some(data) = bytes.get(at + RECORD_HEAD..at + RECORD_HEAD + said.bytes as usize) else { break };
        let mut record = Vec::new();
        format::put_record(&mut record, said.key, said.cost_us, data);
        let Some(into) = bytes.get_mut(at..at + RECORD_HEAD) else { break };
        into.copy_from_slice(&record[..RECORD_HEAD]);
        at += record.len();
    }
    let length = bytes.len();
    let tail = bytes.last_chunk::<TAIL>().and_then(|tail| format::tail(tail, length as u64));
    if let Some(tail) = tail
        && let Some((body, sum)) = bytes[tail.footer_at as usize..].split_last_chunk_mut::<4>()
    {
        sum.copy_from_slice(&crc32fast::hash(body).to_le_bytes());
    }
    bytes
}

fn in_memory(bytes: &[u8]) -> Option<File> {
    let mut file = File::from(rustix::fs::memfd_create("segment", rustix::fs::MemfdFlags::CLOEXEC).ok()?);
    file.write_all(bytes).ok()?;
    Some(file)
}

/// Segments by our own writer: complete, torn, and of no record.
pub fn seeds() -> Vec<Vec<u8>> {
    let of = |sizes: &[usize]| {
        let (mut bytes, mut entries) = (HEAD.to_vec(), Vec::new());
        for (n, &size) in sizes.iter().enumerate() {
            let (key, at) = (n as u128 * 77, (bytes.len() as u64 / ALIGNMENT) as u32);
            entries.push(format::Entry { key, at, bytes: size as u32 });
            format::put_record(&mut bytes, key, 5, &vec![n as u8; size]);
        }
        let footer = format::footer(&entries, bytes.len() as u64, 5 * sizes.len() as u64);
        (bytes.clone(), [bytes, footer].concat())
    };
    let (torn, whole) = of(&[3, 0, 64, 17]);
    vec![torn[..torn.len() - 5].to_vec(), torn, whole, of(&[]).1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_and_all_that_was_found_keep_the_promises() {
        let folder = [env!("CARGO_MANIFEST_DIR"), "..", "..", "tests", "fuzz", "corpus"];
        let folder: std::path::PathBuf = folder.iter().collect();
        let all = std::fs::read_dir(folder).unwrap().map(|entry| std::fs::read(entry.unwrap().path()).unwrap());
        let seeds = seeds();
        let records = |bytes: &[u8]| scan(&in_memory(bytes).unwrap()).unwrap().entries.len();
        assert_eq!(seeds.iter().map(|seed| records(seed)).collect::<Vec<_>>(), [3, 4, 4, 0]);
        let complete = |bytes: &[u8]| contents(&in_memory(bytes).unwrap()).is_some();
        assert_eq!(seeds.iter().map(|seed| complete(seed)).collect::<Vec<_>>(), [false, false, true, true]);
        // Where every sum is wrong, and is put right.
        let mut wrong = seeds[2].clone();
        let last = wrong.len() - 1;
        wrong[last] ^= 1;
        wrong[HEAD.len() + RECORD_HEAD] ^= 1;
        assert!(!complete(&wrong) && records(&wrong) == 0);
        assert!(complete(&sealed(&wrong)) && records(&sealed(&wrong)) == 4);
        seeds.into_iter().chain(all).for_each(|bytes| segment(&bytes));
    }
}
