//! What is written is read back; what is cut, late or broken is told.

use std::io::{self, Read, Write};
use std::sync::Arc;

use lossfeed_sync::{Condvar, Mutex};
use proptest::prelude::*;

use crate::{
    Ending, Event, Limits, Meta, Reader, Recording, Row, Scored, Summary, Verdict, WhenBehind, Writer, is_journal,
    replay,
};

fn lru() -> &'static lossfeed_control::policy::Entry {
    lossfeed_control::policy::find("lru").unwrap()
}

const ROOMY: usize = 1 << 20;

fn meta() -> Meta {
    Meta::new(100, 1000, "lru", 0.25)
}

fn row(id: u32, verdict: Verdict) -> Row {
    Row { id, drawn: id, verdict, bytes: 10 + u64::from(id), weight: 0.1 }
}

fn decided(step: u32, ids: &[u32]) -> Event {
    Event::Decide { epoch: 3, step, rows: ids.iter().map(|&id| row(id, Verdict::Keep)).collect() }
}

/// Every kind of event, with rows and without.
fn every_event() -> Vec<Event> {
    let scored = |id, loss| Scored { id, score: 0.1 + 0.2, loss, gradient_norm: f32::NAN };
    let substituted = Row { drawn: 99, weight: f32::MIN_POSITIVE, ..row(4, Verdict::Hit) };
    vec![
        Event::Believe(vec![(7, 1e-30), (8, -0.0)]),
        Event::Begin { epoch: u64::MAX, step: 2, plan: [5, 4, 5].into() },
        Event::Decide {
            epoch: u64::MAX,
            step: 2,
            rows: vec![row(0, Verdict::Pass), substituted, row(0, Verdict::Displaced)],
        },
        Event::Decide { epoch: u64::MAX, step: 2, rows: vec![row(5, Verdict::Keep)] },
        Event::Learn { epoch: 3, step: u32::MAX, rows: vec![scored(1, f32::INFINITY), scored(1, f32::NAN)] },
        Event::Learn { epoch: 3, step: 0, rows: vec![] },
        Event::Cancel(vec![0, 5]),
        Event::Read(vec![(1, true), (2, false)]),
        Event::Tried(vec![98]),
        Event::Sampler("replay:fresh=0.25:lag=64".into()),
        Event::Weights(true),
        Event::Weights(false),
        Event::Io { epoch: 3, step: 7, knob: "threads".into(), before: 4, now: 8, why: "the consumer waits".into() },
        Event::Io {
            epoch: u64::MAX,
            step: u32::MAX,
            knob: "a \"later, one".into(),
            before: u64::MAX,
            now: 0,
            why: "x: y,\"z".into(),
        },
        Event::Lost(123_456_789_012),
        Event::Begin { epoch: 4, step: 0, plan: [].into() },
        Event::Begin { epoch: 5, step: 0, plan: [].into() },
        Event::Tried(vec![]),
    ]
}

/// What a writer wrote, for all to see.
#[derive(Clone, Default)]
struct Disk {
    bytes: Arc<Mutex<Vec<u8>>>,
    /// Writes are let through while this is 0; the description at the start always is.
    gate: Arc<(Mutex<Gate>, Condvar)>,
}

#[derive(Default)]
struct Gate {
    shut: bool,
    waiting: bool,
    broken: bool,
}

impl Disk {
    fn set(&self, change: impl FnOnce(&mut Gate)) {
        change(&mut self.gate.0.lock());
        self.gate.1.notify_all();
    }
    fn until_it_waits(&self) {
        let mut gate = self.gate.0.lock();
        while !gate.waiting {
            self.gate.1.wait(&mut gate);
        }
    }
    fn contents(&self) -> Vec<u8> {
        self.bytes.lock().clone()
    }
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut gate = self.gate.0.lock();
        while gate.shut {
            gate.waiting = true;
            self.gate.1.notify_all();
            self.gate.1.wait(&mut gate);
        }
        if gate.broken {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "no space left"));
        }
        self.bytes.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn written(events: &[Event], packed: bool) -> (Vec<u8>, Summary) {
    let disk = Disk::default();
    let writer = Writer::start(disk.clone(), &meta(), WhenBehind::Lose, packed, ROOMY).unwrap();
    events.iter().for_each(|event| writer.push(event.clone()));
    let summary = writer.close().unwrap();
    (disk.contents(), summary)
}

fn read(bytes: &[u8]) -> Result<(Vec<Event>, Option<Ending>), String> {
    let mut reader = Reader::new(bytes, Limits::default()).map_err(|e| e.to_string())?;
    let mut events = Vec::new();
    while let Some(event) = reader.next_event().map_err(|e| e.to_string())? {
        events.push(event);
    }
    assert!(matches!(reader.next_event(), Ok(None)), "the end stays the end");
    Ok((events, reader.ending()))
}

#[test]
fn every_event_is_read_back_bit_for_bit() {
    for packed in [false, true] {
        let events = every_event();
        let (bytes, summary) = written(&events, packed);
        assert_eq!(bytes.starts_with(&[0x1f, 0x8b]), packed);
        assert!(is_journal(&bytes[..]));
        assert_eq!(read(&bytes).unwrap(), (events, Some(Ending::Closed)));
        assert_eq!(summary, Summary { rows: 16, lost: 0 });
        let mut reader = Reader::new(&bytes[..], Limits::default()).unwrap();
        assert_eq!(reader.meta(), &meta());
        assert!(reader.ending().is_none() && reader.next_event().unwrap().is_some());
    }
}

#[test]
fn the_file_is_a_table_that_others_read() {
    let (bytes, _) = written(&every_event()[1..3], false);
    let golden = "# {\"lossfeed-journal\":3,\"samples\":100,\"capacity_bytes\":1000,\"policy\":\"lru\",\"smoothing\":0.25,\"settings\":{}}\n\
        event,epoch,step,row,id,drawn,verdict,bytes,weight,score,loss,gradient_norm\n\
        begin,18446744073709551615,2,0,5,,,,,,,\n\
        begin,18446744073709551615,2,1,4,,,,,,,\n\
        begin,18446744073709551615,2,2,5,,,,,,,\n\
        decide,18446744073709551615,2,0,0,0,pass,10,0.1,,,\n\
        decide,18446744073709551615,2,1,4,99,hit,14,1.1754944e-38,,,\n\
        decide,18446744073709551615,2,2,0,0,displaced,10,0.1,,,\n\
        end,,,,,,,,,,,\n";
    assert_eq!(String::from_utf8(bytes).unwrap(), golden);
}

#[test]
fn a_run_killed_at_any_byte_leaves_what_was_whole_before() {
    let events = every_event();
    for packed in [false, true] {
        let (bytes, _) = written(&events, packed);
        // The description and the header; packed they are the first member.
        let head = written(&[], packed).0.len() - if packed { 0 } else { "end,,,,,,,,,,,\n".len() };
        let mut most = 0;
        for end in 0..bytes.len() - 1 {
            match read(&bytes[..end]) {
                // What is missing lies behind the last line: the end of the packed block and its check sum.
                Ok((found, Some(Ending::Closed))) => assert!(packed && found == events && end + 16 >= bytes.len()),
                // A field that was cut short may look like another number: the last event is never believed.
                Ok((found, ending)) => {
                    assert_eq!(ending, Some(Ending::Cut), "cut at {end}");
                    assert!(found.len() < events.len() && found[..] == events[..found.len()], "cut at {end}");
                    most = most.max(found.len());
                }
                Err(said) => assert!(end < head, "cut at {end} of {}, behind the head at {head}: {said}", bytes.len()),
            }
        }
        assert!(packed || most == events.len() - 1, "all but the last event of a text were read: {most}");
    }
}

#[test]
fn a_disk_slower_than_the_run_costs_rows_that_are_counted_and_marked() {
    let disk = Disk::default();
    let writer = Writer::start(disk.clone(), &meta(), WhenBehind::Lose, false, 2000).unwrap();
    disk.set(|gate| gate.shut = true);
    writer.push(decided(0, &[1, 2]));
    disk.until_it_waits();
    // The thread hangs in its write. The queue takes what it may, and pushing never waits.
    let mut lost = 0;
    for step in 1..100 {
        writer.push(decided(step, &[1, 2, 3]));
        assert!(writer.lost() == lost || writer.lost() == lost + 3);
        lost = writer.lost();
    }
    assert!(lost > 200, "{lost}");
    disk.set(|gate| gate.shut = false);
    assert_eq!(writer.close().unwrap(), Summary { rows: 2 + 99 * 3 - lost, lost });
    let (events, ending) = read(&disk.contents()).unwrap();
    assert_eq!(ending, Some(Ending::Closed));
    let kept = events.iter().filter(|event| matches!(event, Event::Decide { .. })).count() as u64;
    assert_eq!((kept - 1) * 3, 99 * 3 - lost);
    // They were lost behind what was queued, and that is where the mark stands.
    assert_eq!(events.last(), Some(&Event::Lost(lost)));
}

#[test]
fn whoever_asked_for_it_waits_for_the_disk_and_loses_nothing() {
    let disk = Disk::default();
    let writer = Writer::start(disk.clone(), &meta(), WhenBehind::Wait, true, 2000).unwrap();
    disk.set(|gate| gate.shut = true);
    std::thread::scope(|scope| {
        let pushing = scope.spawn(|| (0..100).for_each(|step| writer.push(decided(step, &[1, 2, 3]))));
        disk.until_it_waits();
        let finished = pushing.is_finished();
        disk.set(|gate| gate.shut = false);
        assert!(!finished, "100 events fit neither into the queue nor into a block");
    });
    assert_eq!(writer.close().unwrap(), Summary { rows: 300, lost: 0 });
    assert_eq!(read(&disk.contents()).unwrap().0.len(), 100);
}

#[test]
fn a_full_disk_stops_neither_the_run_nor_the_truth() {
    for when_behind in [WhenBehind::Lose, WhenBehind::Wait] {
        let disk = Disk::default();
        let writer = Writer::start(disk.clone(), &meta(), when_behind, false, 2000).unwrap();
        disk.set(|gate| gate.broken = true);
        for step in 0..1000 {
            writer.push(decided(step, &[1, 2, 3]));
        }
        let said = writer.close().unwrap_err().to_string();
        assert!(said.contains("no space left") && said.contains("rows were lost"), "{said}");
    }
}

#[test]
fn a_journal_is_never_written_over_and_its_place_is_tried_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.csv.gz");
    Writer::create(&path, &meta(), WhenBehind::Lose).unwrap().close().unwrap();
    assert!(is_journal(std::fs::File::open(&path).unwrap()));
    let Err(again) = Writer::create(&path, &meta(), WhenBehind::Lose) else { panic!("written over") };
    assert!(again.to_string().contains("choose another name"), "{again}");
    let Err(nowhere) = Writer::create(&folder.path().join("no/run.csv"), &meta(), WhenBehind::Lose) else {
        panic!("made a folder")
    };
    assert!(nowhere.to_string().contains("choose an existing folder"), "{nowhere}");
}

#[test]
fn a_writer_that_is_dropped_ends_its_file() {
    let disk = Disk::default();
    let writer = Writer::start(disk.clone(), &meta(), WhenBehind::Lose, true, ROOMY).unwrap();
    writer.push(decided(0, &[1]));
    drop(writer);
    assert_eq!(read(&disk.contents()).unwrap(), (vec![decided(0, &[1])], Some(Ending::Closed)));
}

const HEAD: &str = "# {\"lossfeed-journal\":1,\"samples\":9,\"capacity_bytes\":20,\"policy\":\"lru\",\"smoothing\":0}\n\
    event,epoch,step,row,id,drawn,verdict,bytes,weight,score,loss,gradient_norm\n";

#[test]
fn what_is_no_journal_is_refused_with_the_line() {
    for (text, said) in [
        ("decide,0,0,0,1,1,hit,10,1,,,\nbegin,x,0,,,,,,,,,\n", "line 4"),
        ("decide,0,0,0,1,1,hit,10,1,,\n", "line 3"),
        ("decide,0,0,0,1,1,perhaps,10,1,,,\n", "verdict is \"perhaps\""),
        ("decide,0,0,0,1,1,hit,0,1,,,\n", "bytes is 0"),
        ("decide,0,0,0,9,1,hit,10,1,,,\n", "id is 9: the dataset has 9 samples"),
        ("decide,0,0,0,1,9,hit,10,1,,,\n", "drawn is 9"),
        ("decide,,0,0,1,1,hit,10,1,,,\n", "epoch is empty"),
        ("learn,0,0,0,1,,,,,1,nan,\n", "line 3: loss is NaN: leave it empty if it was not measured"),
        ("learn,0,0,0,1,,,,,nan,1,\n", "score is NaN"),
        ("learn,0,0,0,1,,,,,1,1,NaN\n", "gradient_norm is NaN"),
        ("believe,,,0,1,,,,,nan,,\n", "score is NaN"),
        ("decide,0,0,0,1,1,hit,10,nan,,,\n", "weight is NaN"),
        ("read,,,0,1,,hit,,,,,\n", "must be read or failed"),
        ("sampler,,,,,,,,,,,\n", "verdict is empty"),
        ("weights,,,,,,perhaps,,,,,\n", "must be used or unused"),
        ("forget,,,,,,,,,,,\n", "event is \"forget\""),
        ("io,0,0,,,,,,,,,\n", "verdict is empty"),
        ("io,,0,,,,a:before=1:now=2:why=b,,,,,\n", "epoch is empty"),
        ("io,0,,,,,a:before=1:now=2:why=b,,,,,\n", "step is empty"),
        ("io,0,0,0,1,,a:before=1:now=2:why=b,,,,,\n", "a row of another event"),
        ("io,0,0,,,,a:before=1:now=2,,,,,\n", "it must be NAME:before=N:now=N:why=WORDS"),
        ("io,0,0,,,,a:before=-1:now=2:why=b,,,,,\n", "it must be NAME"),
        ("io,0,0,,,,a:before=1:now=18446744073709551616:why=b,,,,,\n", "it must be NAME"),
        ("io,0,0,,,,:before=1:now=2:why=b,,,,,\n", "it must be NAME"),
        ("io,0,0,,,,a:b:before=1:now=2:why=b,,,,,\n", "it must be NAME"),
        ("io,0,0,,,,a:before=1:now=2:why=,,,,,\n", "it must be NAME"),
        ("tried,,,1,1,,,,,,,\n", "begins in the middle"),
        ("tried,,,0,1,,,,,,,\ntried,,,2,1,,,,,,,\n", "line 4: row 2 of \"tried\" follows 1 rows"),
        ("tried,,,0,1,,,,,,,\ncancel,,,1,1,,,,,,,\n", "line 4: row 1 of \"cancel\" follows"),
        ("tried,,,,,,,,,,,\ntried,,,1,1,,,,,,,\n", "follows 0 rows"),
        ("decide,0,0,0,1,1,hit,10,1,,,\ndecide,0,1,1,1,1,hit,10,1,,,\n", "line 4: row 1"),
    ] {
        let found = read(format!("{HEAD}{text}end,,,,,,,,,,,\n").as_bytes()).unwrap_err();
        assert!(found.contains("line ") && found.contains(said), "{text:?} gave {found}");
    }
    for (text, said) in [
        ("", "line 1: not a journal"),
        ("epoch,step,id,loss\n0,0,1,2\n", "line 1: not a journal"),
        ("# {\"lossfeed-journal\":4}\nx\n", "version 4, this program reads versions 1 to 3"),
        ("# {\"lossfeed-journal\":0}\nx\n", "version 0, this program reads versions 1 to 3"),
        (&HEAD.replace("\"smoothing\":0", "\"smoothing\":1"), "smoothing is 1"),
        (&HEAD.replace("drawn,", ""), "line 2: the columns must be event,"),
        (&HEAD.replace("\"samples\":9", "\"samples\":268435457"), "268435457 samples; replays take at most 268435456"),
    ] {
        let found = read(text.as_bytes()).unwrap_err();
        assert!(found.contains(said), "{text:?} gave {found}");
    }
}

#[test]
fn lines_and_rows_are_bounded() {
    // A line that never ends is refused long before it fills the memory.
    let endless = HEAD.as_bytes().chain(io::repeat(b'1').take(1 << 40));
    let mut reader = Reader::new(endless, Limits::default()).unwrap();
    let said = reader.next_event().unwrap_err().to_string();
    assert!(said.contains("line 3") && said.contains("longer than 512 bytes"), "{said}");
    let text = format!("{HEAD}tried,,,0,1,,,,,,,\ntried,,,1,1,,,,,,,\ntried,,,2,1,,,,,,,\nend,,,,,,,,,,,\n");
    for (rows, fits) in [(3, true), (2, false)] {
        let mut reader = Reader::new(text.as_bytes(), Limits { rows, samples: 9 }).unwrap();
        assert_eq!(reader.next_event().is_ok(), fits, "{rows} rows");
    }
}

#[test]
fn events_without_rows_are_bounded_too() {
    let io = "io,0,0,,,,threads:before=1:now=2:why=b,,,,,\n";
    let text = format!("{HEAD}{}end,,,,,,,,,,,\n", io.repeat(3));
    for (rows, fits) in [(3, true), (2, false)] {
        let mut reader = Reader::new(text.as_bytes(), Limits { rows, samples: 9 }).unwrap();
        let read = (0..3).map(|_| reader.next_event()).find(|event| !matches!(event, Ok(Some(_))));
        assert_eq!(read.is_none(), fits, "{rows} rows: {read:?}");
    }
}

proptest! {
    /// Whatever becomes of a journal's bytes: it is refused with the line, or read, and then what was read says the
    /// same when it is written and read again.
    #[test]
    fn a_journal_with_any_bytes_changed_is_refused_or_read(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = written(&every_event(), false).0;
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(cut.map_or(bytes.len(), |cut| cut.index(bytes.len())));
        match read(&bytes) {
            Ok((events, _)) => prop_assert_eq!(read(&written(&events, false).0).unwrap().0, events),
            Err(said) => prop_assert!(said.contains("line "), "{}", said),
        }
        // As the fuzz target does.
        if let Ok(recording) = Recording::read(&bytes[..], Limits { rows: 4096, samples: 4096 }) {
            let (hits, misses) = recording.counted();
            let replayed = replay(&recording, lru(), recording.meta.capacity_bytes).unwrap();
            prop_assert_eq!(replayed.hits + replayed.misses, hits + misses);
        }
    }
}

#[test]
fn a_recording_makes_the_same_calls_again() {
    // Two samples of 10 bytes in 20: 0 and 1 are kept, 2 evicts 0, its bytes never come, and then 0 is kept again.
    let text = format!(
        "{HEAD}begin,0,0,,,,,,,,,\ndecide,0,0,0,0,0,keep,10,1,,,\ndecide,0,0,1,1,1,keep,10,1,,,\n\
         decide,0,1,0,2,2,keep,10,1,,,\ncancel,,,0,2,,,,,,,\ndecide,0,2,0,0,0,keep,10,1,,,\ndecide,0,2,1,1,1,hit,10,1,,,\nend,,,,,,,,,,,\n"
    );
    let recording = Recording::read(text.as_bytes(), Limits::default()).unwrap();
    assert_eq!((recording.counted(), recording.lost(), recording.delivered()), ((1, 4), 0, 3));
    let same = replay(&recording, lru(), 20).unwrap();
    assert_eq!((same.hits, same.misses, same.otherwise), (1, 4, 0));
    // A journal of the first version, which HEAD says this is, one of the second with what draws its orders, and one of
    // this version with what was decided about reading.
    let drawn = text
        .replace(":1,", ":2,")
        .replace("begin,0", "sampler,,,,,,echo:fresh=0.5,,,,,\nweights,,,,,,used,,,,,\nbegin,0");
    let drawn = Recording::read(drawn.as_bytes(), Limits::default()).unwrap();
    assert_eq!(replay(&drawn, lru(), 20).unwrap(), same);
    let io = "io,0,1,,,,threads:before=2:now=4:why=the consumer waits,,,,,\n";
    let read = text.replace(":1,", ":3,").replace("decide,0,1", &format!("{io}decide,0,1"));
    let read = Recording::read(read.as_bytes(), Limits::default()).unwrap();
    assert_eq!((read.events.len(), replay(&read, lru(), 20).unwrap()), (recording.events.len() + 1, same.clone()));
    // Without the cancelled sample's end, 2 would have taken the place of 1.
    let deaf = Recording::read(text.replace("cancel,,,0,2,,,,,,,\n", "").as_bytes(), Limits::default()).unwrap();
    assert_eq!(replay(&deaf, lru(), 20).unwrap().otherwise, 1);
    assert_eq!(replay(&recording, lru(), 30).unwrap().hits, 2);
    let two = text.replace("hit,10", "hit,11");
    let said = Recording::read(two.as_bytes(), Limits::default()).unwrap_err().to_string();
    assert!(said.contains("sample 1 takes 11 bytes here and 10 before"), "{said}");
    let said = Recording::read(HEAD.as_bytes(), Limits::default()).unwrap_err().to_string();
    assert!(said.contains("nothing to replay"), "{said}");
}
