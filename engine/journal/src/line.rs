//! A line of the file and its place in an event. Writing and reading use the same columns.

use std::io::Write;

use serde::{Deserialize, Serialize};

use crate::{Event, Row, Scored, Verdict};

/// One line. The order of the fields is the order of the columns.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub(crate) struct Line<'a> {
    pub(crate) event: &'a str,
    pub(crate) epoch: Option<u64>,
    pub(crate) step: Option<u32>,
    pub(crate) row: Option<u64>,
    pub(crate) id: Option<u32>,
    pub(crate) drawn: Option<u32>,
    pub(crate) verdict: Option<&'a str>,
    pub(crate) bytes: Option<u64>,
    pub(crate) weight: Option<f32>,
    pub(crate) score: Option<f32>,
    pub(crate) loss: Option<f32>,
    pub(crate) gradient_norm: Option<f32>,
}

/// The names of the columns, as the second line of the file has them.
pub(crate) const COLUMNS: [&str; 12] =
    ["event", "epoch", "step", "row", "id", "drawn", "verdict", "bytes", "weight", "score", "loss", "gradient_norm"];

/// The line that ends a journal.
pub(crate) const END: &str = "end";

const READ: &str = "read";
const FAILED: &str = "failed";
const USED: &str = "used";
const UNUSED: &str = "unused";

/// NaN is not written: the field stays empty.
fn number(value: f32) -> Option<f32> {
    (!value.is_nan()).then_some(value)
}

/// Writes the lines of one event.
pub(crate) fn write(out: &mut csv::Writer<impl Write>, event: &Event) -> csv::Result<()> {
    let (epoch, step) = match event {
        Event::Begin { epoch, step, .. }
        | Event::Decide { epoch, step, .. }
        | Event::Learn { epoch, step, .. }
        | Event::Io { epoch, step, .. } => (Some(*epoch), Some(*step)),
        _ => (None, None),
    };
    let head = Line { event: event.name(), epoch, step, ..Line::default() };
    if let Event::Lost(rows) = event {
        return out.serialize(Line { row: Some(*rows), ..head });
    }
    let told = match event {
        Event::Io { knob, before, now, why, .. } => format!("{knob}:before={before}:now={now}:why={why}"),
        _ => String::new(),
    };
    let verdict = match event {
        Event::Io { .. } => Some(&told[..]),
        Event::Sampler(spelled) => Some(&spelled[..]),
        Event::Weights(used) => Some(if *used { USED } else { UNUSED }),
        _ => None,
    };
    let rows = event.rows();
    if rows == 0 {
        return out.serialize(Line { verdict, ..head });
    }
    for k in 0..rows {
        let line = Line { row: Some(k as u64), ..head };
        out.serialize(match event {
            Event::Begin { plan, .. } => Line { id: Some(plan[k]), ..line },
            Event::Decide { rows, .. } => decided(line, &rows[k]),
            Event::Learn { rows, .. } => scored(line, &rows[k]),
            Event::Cancel(ids) | Event::Tried(ids) => Line { id: Some(ids[k]), ..line },
            Event::Read(rows) => {
                let (id, read) = rows[k];
                Line { id: Some(id), verdict: Some(if read { READ } else { FAILED }), ..line }
            }
            Event::Believe(rows) => Line { id: Some(rows[k].0), score: number(rows[k].1), ..line },
            Event::Sampler(_) | Event::Weights(_) | Event::Io { .. } | Event::Lost(_) => line,
        })?;
    }
    Ok(())
}

fn decided<'a>(line: Line<'a>, row: &Row) -> Line<'a> {
    Line {
        id: Some(row.id),
        drawn: Some(row.drawn),
        verdict: Some(row.verdict.name()),
        bytes: (row.bytes > 0).then_some(row.bytes),
        weight: number(row.weight),
        ..line
    }
}

fn scored<'a>(line: Line<'a>, row: &Scored) -> Line<'a> {
    Line {
        id: Some(row.id),
        score: number(row.score),
        loss: number(row.loss),
        gradient_norm: number(row.gradient_norm),
        ..line
    }
}

/// The event that this line begins, without rows, or what is wrong with it.
pub(crate) fn begun(line: &Line<'_>) -> Result<Event, String> {
    let batch = || Ok::<_, String>((needed("epoch", line.epoch)?, needed("step", line.step)?));
    Ok(match line.event {
        "begin" => batch().map(|(epoch, step)| Event::Begin { epoch, step, plan: [].into() })?,
        "decide" => batch().map(|(epoch, step)| Event::Decide { epoch, step, rows: Vec::new() })?,
        "learn" => batch().map(|(epoch, step)| Event::Learn { epoch, step, rows: Vec::new() })?,
        "cancel" => Event::Cancel(Vec::new()),
        "read" => Event::Read(Vec::new()),
        "tried" => Event::Tried(Vec::new()),
        "believe" => Event::Believe(Vec::new()),
        "sampler" => Event::Sampler(needed("verdict", line.verdict)?.to_owned()),
        "weights" => match needed("verdict", line.verdict)? {
            USED => Event::Weights(true),
            UNUSED => Event::Weights(false),
            other => return Err(format!("verdict is {other:?}: it must be used or unused")),
        },
        "io" => {
            let (epoch, step) = batch()?;
            let text = needed("verdict", line.verdict)?;
            let wrong = || format!("verdict is {text:?}: it must be NAME:before=N:now=N:why=WORDS");
            io(text, epoch, step).ok_or_else(wrong)?
        }
        "lost" => Event::Lost(needed("row", line.row)?),
        other => {
            let shown: String = other.chars().take(40).collect();
            return Err(format!(
                "event is {shown:?}: it must be begin, decide, learn, cancel, read, tried, believe, sampler, weights, io, \
                 lost or end"
            ));
        }
    })
}

/// What a decision about reading says.
fn io(text: &str, epoch: u64, step: u32) -> Option<Event> {
    let (knob, rest) = text.split_once(":before=")?;
    let (before, rest) = rest.split_once(":now=")?;
    let (now, why) = rest.split_once(":why=")?;
    if knob.is_empty() || knob.contains(':') || why.is_empty() {
        return None;
    }
    let (before, now) = (before.parse().ok()?, now.parse().ok()?);
    Some(Event::Io { epoch, step, knob: knob.to_owned(), before, now, why: why.to_owned() })
}

/// A row's own columns, read.
pub(crate) enum Read {
    Id(u32),
    Decided(Row),
    Scored(Scored),
    Told(u32, bool),
    Believed(u32, f32),
}

/// What this line says of its row.
pub(crate) fn row(line: &Line<'_>) -> Result<Read, String> {
    let id = needed("id", line.id)?;
    let real = |column: &str, value: Option<f32>| match value {
        Some(value) if value.is_nan() => Err(format!("{column} is NaN: leave it empty if it was not measured")),
        value => Ok(value.unwrap_or(f32::NAN)),
    };
    Ok(match line.event {
        "decide" => {
            let name = needed("verdict", line.verdict)?;
            let verdict = Verdict::from_name(name)
                .ok_or_else(|| format!("verdict is {name:?}: it must be hit, keep, pass or displaced"))?;
            if line.bytes == Some(0) {
                return Err("bytes is 0: a sample takes at least 1".into());
            }
            let bytes = line.bytes.unwrap_or(0);
            Read::Decided(Row {
                id,
                drawn: needed("drawn", line.drawn)?,
                verdict,
                bytes,
                weight: real("weight", line.weight)?,
            })
        }
        "learn" => Read::Scored(Scored {
            id,
            score: real("score", line.score)?,
            loss: real("loss", line.loss)?,
            gradient_norm: real("gradient_norm", line.gradient_norm)?,
        }),
        "read" => match needed("verdict", line.verdict)? {
            READ => Read::Told(id, true),
            FAILED => Read::Told(id, false),
            other => return Err(format!("verdict is {other:?}: it must be read or failed")),
        },
        "believe" => Read::Believed(id, real("score", line.score)?),
        _ => Read::Id(id),
    })
}

fn needed<T>(column: &str, value: Option<T>) -> Result<T, String> {
    value.ok_or_else(|| format!("{column} is empty"))
}
