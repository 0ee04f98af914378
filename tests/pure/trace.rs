//! Traces come from anywhere: whatever the bytes, reading one answers a trace or an error that names the line.

use lossfeed::journal::read_trace;
use lossfeed::sim::{Trace, replay};
use lossfeed_lab::policies::{self, find};
use lossfeed_lab::traces::read_oracle_general;
use proptest::prelude::*;

fn read(text: &str) -> Result<Trace, String> {
    read_trace(text.as_bytes(), 1000).map_err(|e| e.to_string())
}

#[test]
fn every_malformed_row_is_an_error_that_names_its_line() {
    let good = "epoch,step,id,loss,bytes\n0,0,7,0.5,100\n0,0,8,0.25,50\n";
    assert_eq!(read(good).unwrap().samples(), 2);
    for (row, said) in [
        ("0,1,9,0.5", "4 columns where the header has 5"),
        ("0,1,9,0.5,1,2", "6 columns"),
        ("0", "1 columns"),
        ("x,1,9,0.5,1", "epoch is \"x\""),
        ("0,-1,9,0.5,1", "step is \"-1\""),
        ("0,1,4294967296,0.5,1", "id is \"4294967296\""),
        ("0,1,9,half,1", "loss is \"half\""),
        ("0,1,9,nan,1", "loss is \"nan\": a finite number is needed, or nothing where the row has no loss"),
        ("0,1,9,NaN,1", "loss is \"NaN\""),
        ("0,1,9,inf,1", "loss is \"inf\""),
        ("0,1,9,-Infinity,1", "loss is \"-Infinity\""),
        ("0,1,9,1e39,1", "loss is \"1e39\""),
        ("0,1,9,0.5,0", "bytes is 0"),
        ("0,1,9,0.5,4294967296", "bytes is \"4294967296\""),
        ("0,1,7,0.5,99", "sample 7 takes 99 bytes here and 100 before"),
        ("0,1,9\0,0.5,1", "id is"),
    ] {
        let error = read(&format!("{good}{row}\n")).unwrap_err();
        assert!(error.contains("line 4") && error.contains(said), "{row:?} gave {error}");
    }
    let long = format!("{good}0,1,9,{},1\n", "1".repeat(5000));
    assert!(read(&long).unwrap_err().contains("line 4: it is longer than 256 bytes"));
    assert!(
        read(&format!("{good}1,0,7,1,100\n0,1,7,1,100\n"))
            .unwrap_err()
            .contains("line 5: epoch 0 step 1 comes after epoch 1")
    );
}

#[test]
fn files_that_hold_no_trace_are_refused_with_what_is_missing() {
    assert!(read("").unwrap_err().contains("it is empty"));
    for header in ["id,loss", "epoch,step,id,loss,label", "epoch,step,id,loss,bytes,label", "epoch,id,step,loss"] {
        let error = read(&format!("{header}\n0,0,1,2\n")).unwrap_err();
        assert!(error.contains(&format!("line 1: the header is \"{header}\"")), "{error}");
    }
    assert!(read("epoch,step,id,loss\n").unwrap_err().contains("no rows"));
}

#[test]
fn a_trace_longer_than_allowed_is_refused_and_one_as_long_is_not() {
    let rows = |n: usize| format!("epoch,step,id,loss\n{}", "0,0,1,0.5\n".repeat(n));
    assert!(read_trace(rows(5).as_bytes(), 5).is_ok());
    let error = read_trace(rows(6).as_bytes(), 5).unwrap_err().to_string();
    assert!(error.contains("line 7") && error.contains("more than 5 rows"), "{error}");
}

#[test]
fn a_gzip_cut_short_is_an_error_not_a_shorter_trace() {
    let whole = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/golden/small.csv.gz")).unwrap();
    assert_eq!(read_trace(&whole[..], 1 << 20).unwrap().requests(), 4200);
    let error = read_trace(&whole[..whole.len() / 2], 1 << 20).unwrap_err().to_string();
    assert!(error.contains("cut short"), "{error}");
}

#[test]
fn windows_line_ends_a_byte_order_mark_an_empty_line_and_a_missing_last_newline_are_read() {
    let trace = read("\u{feff}epoch,step,id,loss\r\n0,0,3,0.5\r\n\r\n0,1,9,1e-3").unwrap();
    assert_eq!((trace.requests(), trace.samples(), trace.batches()), (2, 2, 2));
}

#[test]
fn one_huge_id_costs_nothing_and_ids_keep_their_order() {
    let trace = read("epoch,step,id,loss\n0,0,4294967295,0.5\n0,0,7,0.5\n").unwrap();
    assert_eq!(trace.samples(), 2);
    assert_eq!(trace.total_bytes(), 2);
}

#[test]
fn a_bytes_column_makes_capacity_a_part_of_the_bytes() {
    // 60 + 20 + 20 bytes; 0.4 of them hold both small samples and never the large one.
    let rows = |e| format!("{e},0,0,1,60\n{e},0,1,1,20\n{e},0,2,1,20\n");
    let trace = read(&format!("epoch,step,id,loss,bytes\n{}{}{}", rows(0), rows(1), rows(2))).unwrap();
    assert_eq!(trace.total_bytes(), 100);
    assert_eq!(replay(&trace, find("lru").unwrap(), 0.4).unwrap().hits, 4);
    assert_eq!(replay(&trace, find("lru").unwrap(), 1.0).unwrap().hits, 6);
    assert_eq!(replay(&trace, find("lru").unwrap(), 0.0).unwrap().hits, 0);
}

#[test]
fn a_row_without_a_loss_is_an_access_without_a_score() {
    // Ranked alone, sample 1 would not replace anything; rows without a loss must neither rank nor be counted below.
    let trace = read("epoch,step,id,loss\n0,0,0,\n0,0,1, \n0,0,2,0.5\n1,1,0,\n1,1,1,\n").unwrap();
    for policy in &policies::ALL {
        let replayed = replay(&trace, policy, 1.0).unwrap();
        assert_eq!((replayed.hits, replayed.misses), (2, 3), "{}", policy.name);
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = read_trace(&bytes[..], 100);
    }

    #[test]
    fn arbitrary_bytes_are_an_oracle_general_trace_if_they_are_whole_records(
        bytes in prop::collection::vec(any::<u8>(), 0..400)
    ) {
        match read_oracle_general(&bytes[..], 12) {
            Ok((trace, _)) => {
                prop_assert_eq!(trace.requests() * 24, bytes.len());
                for policy in &policies::ALL {
                    let replayed = replay(&trace, policy, 0.5).unwrap();
                    prop_assert_eq!(replayed.hits + replayed.misses, trace.requests() as u64);
                }
            }
            Err(error) => {
                let said = error.to_string();
                let expected = ["record ", "it is empty", "more than 12 requests"];
                prop_assert!(expected.iter().any(|part| said.contains(part)), "{}", said);
                let gzip = bytes.starts_with(&[0x1f, 0x8b, 8]);
                prop_assert!(bytes.len() % 24 != 0 || bytes.is_empty() || bytes.len() > 12 * 24 || gzip);
            }
        }
    }

    #[test]
    fn a_damaged_trace_is_a_trace_or_an_error_that_names_a_line(
        rows in prop::collection::vec((0..3u32, 0..4u32, 0..9u32, 0.0..5f32, 1..3u32), 1..30),
        sized in any::<bool>(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let mut rows = rows;
        rows.sort_by_key(|r| (r.0, r.1));
        let mut text = String::from(if sized { "epoch,step,id,loss,bytes\n" } else { "epoch,step,id,loss\n" });
        for (epoch, step, id, loss, _) in &rows {
            text += &format!("{epoch},{step},{id},{loss}{}\n", if sized { format!(",{}", id + 1) } else { String::new() });
        }
        let trace = read(&text).unwrap();
        prop_assert_eq!(trace.requests(), rows.len());
        let mut bytes = text.into_bytes();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        match read_trace(&bytes[..], 1000) {
            Ok(trace) => for policy in &policies::ALL {
                let replayed = replay(&trace, policy, 0.5).unwrap();
                prop_assert_eq!(replayed.hits + replayed.misses, trace.requests() as u64);
            },
            // Damage may also make the first two bytes gzip's, or join the header with the only row.
            Err(error) => {
                let said = error.to_string();
                prop_assert!(said.contains("line ") || said.contains("no rows"), "{}", said);
            }
        }
    }
}
