//! libCacheSim's CSV traces: a request a line, in columns that the reader is told of.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::str::FromStr;

use flate2::bufread::MultiGzDecoder;

use lossfeed_control::sim::Trace;
use lossfeed_control::{Error, Result};
use lossfeed_journal::{ShortLines, next_line};

use super::object_requests::{ObjectRequests, Taken};

/// A longer line is none of such a trace: objects may be URLs.
const LINE_BYTES_MAX: usize = 1 << 16;

/// Where a line has what, as libCacheSim's option `-t` says it: `time-col=2,obj-id-col=5,obj-size-col=4`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectColumns {
    /// Columns count from 1. Times may not fall; without them lines are taken to be in order.
    time: Option<usize>,
    id: usize,
    /// Without it every object has size 1.
    size: Option<usize>,
    has_header: bool,
    delimiter: u8,
    /// Whether objects are whole numbers; else any text.
    numeric: bool,
}

impl FromStr for ObjectColumns {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (mut time, mut id, mut size) = (None, None, None);
        let (mut has_header, mut delimiter, mut numeric) = (false, b',', false);
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        for part in parts {
            let (name, value) = part.split_once('=').ok_or_else(|| format!("{part:?} is no NAME=VALUE"))?;
            let column = || match value.parse::<usize>() {
                Ok(column @ 1..) => Ok(Some(column)),
                _ => Err(format!("{name} is {value:?}: columns are numbers from 1")),
            };
            let yes = || match value {
                "true" | "1" => Ok(true),
                "false" | "0" => Ok(false),
                _ => Err(format!("{name} is {value:?}: give true or false")),
            };
            match name {
                "time-col" => time = column()?,
                "obj-id-col" => id = column()?,
                "obj-size-col" => size = column()?,
                "has-header" => has_header = yes()?,
                "obj-id-is-num" => numeric = yes()?,
                // A comma is what this list itself is cut at.
                "delimiter" => match value.as_bytes() {
                    [] => delimiter = b',',
                    b"\\t" => delimiter = b'\t',
                    &[one] if one.is_ascii() && one != b'\n' && one != b'"' => delimiter = one,
                    _ => return Err(format!("delimiter is {value:?}: give one character")),
                },
                _ => {
                    return Err(format!(
                        "{name} is unknown: use time-col, obj-id-col, obj-size-col, obj-id-is-num, has-header and delimiter"
                    ));
                }
            }
        }
        let id = id.ok_or("obj-id-col is missing: it says which column has the object, from 1")?;
        Ok(Self { time, id, size, has_header, delimiter, numeric })
    }
}

/// Reads such a trace, plain or gzip, of at most `rows_max` requests, as one epoch without scores. A header line is
/// left out if `columns` says that there is one.
///
/// # Errors
/// `Unreadable`, with the line, if it cannot be read, a column is missing, a number is none, a time falls, or it has
/// no request or more than that.
pub fn read_object_csv(reader: impl Read, columns: ObjectColumns, rows_max: usize) -> Result<(Trace, Taken)> {
    let mut reader = BufReader::with_capacity(1 << 16, reader);
    let head = reader.fill_buf().map_err(|e| Error::unreadable("cannot read it").because(e))?;
    if head.starts_with(&[0x1f, 0x8b]) {
        parse(MultiGzDecoder::new(reader), columns, rows_max)
    } else {
        parse(reader, columns, rows_max)
    }
}

fn parse(reader: impl Read, columns: ObjectColumns, rows_max: usize) -> Result<(Trace, Taken)> {
    let mut lines = csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .quoting(false)
        .delimiter(columns.delimiter)
        .terminator(csv::Terminator::Any(b'\n'))
        .trim(csv::Trim::All)
        .from_reader(ShortLines::new(reader, LINE_BYTES_MAX));
    let mut requests = ObjectRequests::new(rows_max);
    let mut names: HashMap<Box<str>, u64> = HashMap::new();
    let (mut last, mut record) = (f64::NEG_INFINITY, csv::StringRecord::new());
    while next_line(&mut lines, &mut record)? {
        let line = record.position().map_or(0, csv::Position::line);
        let told = |what: String| Error::unreadable(format!("line {line}: {what}"));
        if columns.has_header && line == 1 {
            continue;
        }
        let request = Request::of(&record, &columns).map_err(told)?;
        if request.time < last {
            return Err(told(format!("time {} comes after {last}: sort the trace by time", request.time)));
        }
        last = request.time;
        let object = if columns.numeric {
            let number = request.object.parse();
            number.map_err(|_| told(format!("object {:?} is no whole number", request.object)))?
        } else if let Some(&number) = names.get(request.object) {
            number
        } else {
            let number = names.len() as u64;
            names.insert(request.object.into(), number);
            number
        };
        requests.add(object, request.size).map_err(|e| told(e.to_string()))?;
    }
    requests.trace(columns.size.is_some())
}

/// A line's columns.
struct Request<'a> {
    time: f64,
    object: &'a str,
    size: u32,
}

impl<'a> Request<'a> {
    fn of(record: &'a csv::StringRecord, columns: &ObjectColumns) -> std::result::Result<Self, String> {
        let column = |what: &str, number: usize| match record.get(number - 1) {
            Some(text) if !text.is_empty() => Ok(text),
            _ => Err(format!("no {what} in column {number}: the line has {} columns", record.len())),
        };
        let time = match columns.time {
            None => f64::NEG_INFINITY,
            Some(number) => {
                let text = column("time", number)?;
                let time = text.parse::<f64>().ok().filter(|time| time.is_finite());
                time.ok_or_else(|| format!("time {text:?} is no number"))?
            }
        };
        let size = match columns.size {
            None => 1,
            Some(number) => {
                let text = column("size", number)?;
                text.parse().map_err(|_| format!("size {text:?} is no number of bytes below 2^32"))?
            }
        };
        Ok(Self { time, object: column("object", columns.id)?, size })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn columns(text: &str) -> ObjectColumns {
        text.parse().unwrap()
    }

    fn read(text: &str, of: &str) -> Result<(Trace, Taken)> {
        read_object_csv(text.as_bytes(), columns(of), 1000)
    }

    fn said(error: &Error) -> String {
        error.to_string()
    }

    #[test]
    fn columns_are_where_they_are_said_to_be() {
        let (trace, taken) =
            read("x;7;1.5;b;9\ny;8;2;a;4\nz;8;2;b;3\r\n", "time-col=3,obj-id-col=4,obj-size-col=5,delimiter=;")
                .unwrap();
        assert_eq!((trace.requests(), trace.samples(), trace.has_sizes(), trace.total_bytes()), (3, 2, true, 13));
        assert_eq!(taken, Taken { other_sizes: 1, empty: 0 });
        let (trace, _) = read("id\n5\n6\n5\n", "obj-id-col=1,has-header=true,obj-id-is-num=true,delimiter=,").unwrap();
        assert_eq!((trace.requests(), trace.samples(), trace.has_sizes()), (3, 2, false));
        let (trace, taken) = read("1\t0\n", "obj-id-col=1,obj-size-col=2,delimiter=\\t").unwrap();
        assert_eq!((trace.total_bytes(), taken.empty), (1, 1));
    }

    #[test]
    fn gzip_is_told_by_its_first_bytes() {
        use std::io::Write;
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(b"a\nb\na\n").unwrap();
        let packed = packed.finish().unwrap();
        let (trace, _) = read_object_csv(&packed[..], columns("obj-id-col=1"), 9).unwrap();
        assert_eq!((trace.requests(), trace.samples()), (3, 2));
        let cut = read_object_csv(&packed[..packed.len() - 9], columns("obj-id-col=1"), 9).err().unwrap();
        assert!(said(&cut).contains("cut short"), "{}", said(&cut));
    }

    #[test]
    fn what_is_wrong_has_its_line() {
        let all = "time-col=1,obj-id-col=2,obj-size-col=3,obj-id-is-num=true";
        for (text, says) in [
            ("1,2,3\n2,2\n", "line 2: no size in column 3: the line has 2 columns"),
            ("1,2,3\n0,2,3\n", "line 2: time 0 comes after 1"),
            ("1,b,3\n", "line 1: object \"b\" is no whole number"),
            ("1,2,-3\n", "line 1: size \"-3\""),
            ("1,2,5000000000\n", "line 1: size"),
            ("nan,2,3\n", "line 1: time \"nan\" is no number"),
            ("time,id,size\n1,2,3\n", "line 1: time \"time\""),
            ("", "it is empty"),
        ] {
            let error = said(&read(text, all).err().unwrap());
            assert!(error.contains(says), "{error}");
        }
        let long = format!("{}\n", "x".repeat(1 << 20));
        assert!(said(&read(&long, "obj-id-col=1").err().unwrap()).contains("line 1: it is longer than 65536 bytes"));
        let many = read_object_csv(&b"1\n2\n3\n"[..], columns("obj-id-col=1"), 2).err().unwrap();
        assert!(said(&many).contains("more than 2 requests"));
    }

    #[test]
    fn columns_that_are_none_are_refused() {
        for (text, says) in [
            ("", "obj-id-col is missing"),
            ("obj-id-col=0", "columns are numbers from 1"),
            ("obj-id-col=x", "columns are numbers from 1"),
            ("obj-id-col", "no NAME=VALUE"),
            ("obj-id-col=1,ttl-col=2", "ttl-col is unknown"),
            ("obj-id-col=1,has-header=maybe", "give true or false"),
            ("obj-id-col=1,delimiter=ab", "one character"),
        ] {
            let error = text.parse::<ObjectColumns>().unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }

    proptest! {
        /// Any bytes are a trace or an error, and never a panic.
        #[test]
        fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..200), numeric in any::<bool>()) {
            let of = if numeric { "time-col=1,obj-id-col=2,obj-size-col=3,obj-id-is-num=1" } else { "obj-id-col=2" };
            let _ = read_object_csv(&bytes[..], columns(of), 50);
        }
    }
}
