//! The lab's part of the command.

use super::*;

fn trace(text: &str) -> (tempfile::NamedTempFile, String) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let option = format!("--trace={}", file.path().display());
    (file, option)
}

/// The same accesses as libCacheSim writes them, one step each in CSV.
#[test]
fn an_oracle_general_trace_gives_the_hits_of_the_same_accesses_in_csv() {
    let (mut csv, mut binary) = (String::from("epoch,step,id,loss,bytes\n"), Vec::new());
    for step in 0..3000u64 {
        let id = step.wrapping_mul(step).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 57;
        let size = 1 + id as u32 % 9;
        csv += &format!("0,{step},{id},,{size}\n");
        binary.extend_from_slice(&(step as u32).to_le_bytes());
        // Objects have 64 bits there.
        binary.extend_from_slice(&(id << 40).to_le_bytes());
        binary.extend_from_slice(&(if step == 2999 { size + 1 } else { size }).to_le_bytes());
        binary.extend_from_slice(&(-1i64).to_le_bytes());
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let trace = format!("--trace={}", file.path().display());
    let mut args = LabReplayArgs::of(&[&trace, "--capacity=40,300", "--capacity-fraction=0.5"]);
    std::fs::write(file.path(), csv).unwrap();
    let expected = replayed(&args).unwrap();
    std::fs::write(file.path(), &binary).unwrap();
    args.format = TraceFormat::OracleGeneral;
    let found = replayed(&args).unwrap();
    assert_eq!(found.results, expected.results);
    assert_eq!((found.requests, found.samples), (3000, expected.samples));
    assert!(found.assumed.iter().any(|what| what.starts_with("1 requests have another size")));
    let objects = binary.chunks(24).map(|record| {
        let word = |at: usize| u32::from_le_bytes(record[at..at + 4].try_into().unwrap());
        format!("{};{};{}\n", word(0), u64::from_le_bytes(record[4..12].try_into().unwrap()), word(12))
    });
    std::fs::write(file.path(), objects.collect::<String>()).unwrap();
    (args.format, args.object_csv) = (
        TraceFormat::Auto,
        Some("time-col=1,obj-id-col=2,obj-size-col=3,obj-id-is-num=true,delimiter=;".parse().unwrap()),
    );
    assert_eq!(replayed(&args).unwrap().results, expected.results);
    (args.format, args.object_csv) = (TraceFormat::OracleGeneral, None);
    std::fs::write(file.path(), &binary[..binary.len() - 1]).unwrap();
    assert!(replayed(&args).unwrap_err().to_string().contains("record 3000: it ends within it"));
    std::fs::write(file.path(), "").unwrap();
    assert!(replayed(&args).unwrap_err().to_string().contains("it is empty"));
    assert!(is_oracle_general(TraceFormat::Auto, Path::new("/x/w01.oracleGeneral.bin")));
    assert!(!is_oracle_general(TraceFormat::Auto, Path::new("/oracleGeneral/run.csv")));
}

#[test]
fn all_policies_are_replayed_and_a_journal_of_one_of_the_labs_is() {
    let (_file, rows) = trace("epoch,step,id,loss\n0,0,0,1\n0,0,1,2\n1,1,1,1\n1,1,0,2\n");
    let found = replayed(&LabReplayArgs::of(&[&rows, "--capacity=1"])).unwrap();
    assert_eq!(found.results.len(), policies::ALL.len());
    let substituting = ["icache", "quiver"];
    for row in &found.results {
        let (policy, found) = (&row.found.policy[..], &row.found);
        assert_eq!((found.hits + found.misses, found.substituted.is_some()), (4, substituting.contains(&policy)));
    }
    let journal = "# {\"lossfeed-journal\":1,\"samples\":9,\"capacity_bytes\":20,\"policy\":\"sieve\",\"smoothing\":0}\n\
        event,epoch,step,row,id,drawn,verdict,bytes,weight,score,loss,gradient_norm\n\
        begin,0,0,,,,,,,,,\ndecide,0,0,0,1,1,keep,10,1,,,\ndecide,0,1,0,1,1,hit,10,1,,,\nend,,,,,,,,,,,\n";
    let (_file, recorded) = trace(journal);
    let mut out = Vec::new();
    report(&LabReplayArgs::of(&[&recorded, "--policy=app,sieve", "--capacity=20", "--json"]), &mut out).unwrap();
    let said: serde_json::Value = serde_json::from_slice(&out).unwrap();
    assert_eq!((&said["run"]["policy"], &said["run"]["differing"]), (&"sieve".into(), &0.into()));
    assert_eq!((&said["results"][0]["policy"], &said["results"][1]["hits"]), (&"app".into(), &1.into()));
}

/// Three epochs of ten samples of 400 KB and nothing cached. In the first nobody has a score, so all are important. Then
/// a score is the rank in a batch of five, had by two samples each; the upper four ranks are the seven tenths and more
/// that are important. The two others have 800 KB: one package, which ends with the epoch.
#[test]
fn what_is_not_important_comes_in_packages() {
    let line = |row: u32| format!("{},{},{},{},400000\n", row / 10, row / 5, row % 10, row % 10);
    let text = "epoch,step,id,loss,bytes\n".to_owned() + &(0..30).map(line).collect::<String>();
    let told = |text: &str| {
        let (_file, option) = trace(text);
        let mut out = Vec::new();
        let args =
            LabReplayArgs::of(&[&option, "--policy=icache,lru", "--capacity=0,4000000", "--json", "--no-control"]);
        report(&args, &mut out).unwrap();
        let said: serde_json::Value = serde_json::from_slice(&out).unwrap();
        let of =
            |k: usize| [&said["results"][k]["packed"], &said["results"][k]["packages"]].map(serde_json::Value::as_u64);
        (said["results"][0]["misses"].as_u64(), [of(0), of(1), of(2)], said["results"][0]["packed_bytes"].as_u64())
    };
    let (none, some) = ([None; 2], [Some(4), Some(2)]);
    assert_eq!(told(&text), (Some(30), [some, none, none], Some(1_600_000)));
    let no_sizes = text.replace(",400000", "").replace(",bytes", "");
    assert_eq!(told(&no_sizes), (Some(30), [none; 3], None));
    let mut out = Vec::new();
    let (_file, option) = trace(&text);
    report(&LabReplayArgs::of(&[&option, "--policy=icache,lru", "--capacity=0", "--no-control"]), &mut out).unwrap();
    let table = String::from_utf8(out).unwrap();
    assert!(table.contains("packages") && table.contains("1600000"), "{table}");
}

#[test]
fn a_file_that_is_read_is_not_written_and_none_is_written_twice() {
    let (file, option) = trace("epoch,step,id,loss\n0,0,0,1\n");
    let path = file.path().to_str().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let new = folder.path().join("new.csv").display().to_string();
    let said = |more: &[&str]| {
        let args = LabReplayArgs::of(&[&[&option[..], "--policy=lru", "--capacity=1"], more].concat());
        report(&args, &mut Vec::new()).map_err(|e| e.to_string())
    };
    assert!(said(&["--html", path]).unwrap_err().contains("--html and --trace are one file"));
    assert!(said(&["--html", &new, "--csv", &new]).unwrap_err().contains("--html and --csv"));
    assert!(!Path::new(&new).exists());
    assert_eq!(said(&["--html=/dev/null", "--csv=/dev/null"]), Ok(0));
}

/// A few kilobytes that unpack to very much: refused, most of it unread.
#[test]
fn a_trace_that_unpacks_to_more_than_is_allowed_is_refused_before_it_is_unpacked() {
    use std::io::{Read, Write};
    struct Counted<'a>(&'a [u8], &'a std::cell::Cell<usize>);
    impl Read for Counted<'_> {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            let read = self.0.read(to)?;
            self.1.set(self.1.get() + read);
            Ok(read)
        }
    }
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    (0..1600).for_each(|_| packer.write_all(&[1; 24 * 1024]).unwrap());
    let records = packer.finish().unwrap();
    let asked = std::cell::Cell::new(0);
    let error = read_oracle_general(Counted(&records, &asked), 1000).unwrap_err().to_string();
    assert!(error.contains("more than 1000 requests"), "{error}");
    assert!(asked.get() <= 1 << 17, "{} of {} bytes were read", asked.get(), records.len());
}
